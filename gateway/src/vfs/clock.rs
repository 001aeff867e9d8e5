//! The wall clock, for the times that gateways tell: atime and mtime; and how far it is ahead of
//! the servers' clock, for the one that servers tell.
//!
//! A ctime is the servers': of the batch that changed the inode, or, of what waited here, of the
//! moment that the gateway says if that is near it. What waits has been shown by then. Shown with
//! the time of a clock that is an hour ahead, it would go back at the commit. So the gateway takes
//! off what its clock was ahead when it mounted; a clock that is behind does no harm, for times
//! only move forward then.

use quorumfs_metadata::attributes::Timestamp;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Less than this is not taken off: the servers believe it, and it may be the way of a message.
const BELIEVED_SECONDS: i64 = 2;

/// How far this machine's clock is ahead of the servers'.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    seconds: AtomicI64,
}

impl Ahead {
    /// A question was sent when the clock here stood at `sent`, and then the servers' stood at
    /// `theirs`.
    pub(crate) fn learn(&self, sent: Timestamp, theirs: Timestamp) {
        let ahead = sent.seconds.saturating_sub(theirs.seconds);
        let ahead = if ahead > BELIEVED_SECONDS { ahead } else { 0 };
        self.seconds.store(ahead, Ordering::Relaxed);
    }

    /// A moment of this machine's clock as one of the servers', if that is earlier.
    pub(crate) fn agreed(&self, here: Timestamp) -> Timestamp {
        let ahead = self.seconds.load(Ordering::Relaxed);
        Timestamp {
            seconds: here.seconds.saturating_sub(ahead),
            ..here
        }
    }
}

/// Now.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp {
        seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanos: since.subsec_nanos(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_clock_is_ahead_is_taken_off_and_what_it_is_behind_is_not_added() {
        let at = |seconds| Timestamp { seconds, nanos: 7 };
        let ahead = Ahead::default();
        assert_eq!(ahead.agreed(at(5_000)), at(5_000));
        ahead.learn(at(9_000), at(5_400));
        assert_eq!(ahead.agreed(at(9_100)), at(5_500));
        for near in [5_398, 5_400, 5_402, 9_000] {
            ahead.learn(at(5_400), at(near));
            assert_eq!(ahead.agreed(at(5_400)), at(5_400), "{near}");
        }
    }
}
