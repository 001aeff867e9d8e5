//! Locks that show that a process uses a directory.
//!
//! The kernel releases a process's locks when the process has ended, which takes a moment after a
//! kill. A successor that starts right away must not be refused because of that.

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

/// Far longer than a process takes to end, and short for a refused caller.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(10);

/// Takes the lock on a file, which lasts as long as the file is open. Waits, blocking the thread.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] if another process still holds it after two seconds.
pub fn take(file: &File) -> io::Result<()> {
    let began = Instant::now();
    loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if began.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
            outcome => return outcome.map_err(io::Error::from),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_whose_holder_ends_within_moments_is_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let open = || File::create(directory.path().join("lock")).unwrap();
        let (held, next) = (open(), open());
        take(&held).unwrap();
        let refused = take(&next).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        let ending = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            drop(held);
        });
        take(&next).unwrap();
        ending.join().unwrap();
    }
}
