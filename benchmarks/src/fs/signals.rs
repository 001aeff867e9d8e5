//! Signals that ask for the end, so that nothing stays mounted.

use crate::failure::{BenchResult, failed};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens for them; they no longer kill.
pub(super) struct Signals([Signal; 3]);

impl Signals {
    /// Begins to listen. A hangup that was ignored when the process began stays ignored, as `nohup`
    /// expects; an interrupt then takes its place in the list.
    pub(super) fn listen() -> BenchResult<Self> {
        let hangup = match is_hangup_ignored() {
            true => SignalKind::interrupt(),
            false => SignalKind::hangup(),
        };
        let heed = |kind| signal(kind).map_err(|error| failed("listen for signals", &error));
        Ok(Self([
            heed(SignalKind::interrupt())?,
            heed(SignalKind::terminate())?,
            heed(hangup)?,
        ]))
    }

    /// Returns at the next one.
    pub(super) async fn next(&mut self) {
        let [one, other, third] = &mut self.0;
        tokio::select! {
            _ = one.recv() => {}
            _ = other.recv() => {}
            _ = third.recv() => {}
        }
    }
}

/// By the kernel's account, in which each signal is a bit, and this one the first.
fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 == 1)
}
