//! Processor time in seconds: other load on the machine does not count.

use rustix::time::{ClockId, clock_gettime};

fn seconds(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Of this process.
pub(crate) fn process_seconds() -> f64 {
    seconds(ClockId::ProcessCPUTime)
}

/// Of this thread.
pub(crate) fn thread_seconds() -> f64 {
    seconds(ClockId::ThreadCPUTime)
}
