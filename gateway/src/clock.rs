//! The wall clock, for the times that gateways set: atime and mtime; and its offset from the
//! servers' clock, for the time that servers set.
//!
//! A ctime is the servers': the time of the batch that changed the inode, or, for pending changes,
//! the gateway's time if it is near that. A pending change is visible before its commit. With the
//! time of a clock that is an hour ahead, its ctime would go back at the commit. So no ctime is
//! shown as later than the servers' clock, which the gateway learns when it mounts and advances
//! from there. A clock that is behind does no harm, because times only move forward.

use quorumfs_metadata::attributes::Timestamp;
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A smaller difference is ignored: the servers accept it, and it may be a message's delay.
const TOLERANCE_SECONDS: i64 = 2;

/// The servers' clock as this machine knows it: a reading, and when it was taken by the monotonic
/// clock.
#[derive(Debug, Default)]
pub(crate) struct ServerClock(Mutex<Option<(Timestamp, Instant)>>);

impl ServerClock {
    /// The servers' clock was at `theirs` no earlier than `sent`.
    pub(crate) fn learn(&self, theirs: Timestamp, sent: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((theirs, sent));
    }

    /// A moment of this machine's wall clock, or the servers' now if that is earlier.
    pub(crate) fn at_most(&self, here: Timestamp, now: Instant) -> Timestamp {
        let known = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((theirs, then)) = known else {
            return here;
        };
        let passed = now.saturating_duration_since(then).as_secs();
        let passed = i64::try_from(passed).unwrap_or(i64::MAX);
        let theirs = Timestamp {
            seconds: theirs.seconds.saturating_add(passed),
            ..theirs
        };
        let ahead = here.seconds.saturating_sub(theirs.seconds);
        if ahead > TOLERANCE_SECONDS {
            theirs
        } else {
            here
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
    use std::time::Duration;

    #[test]
    fn no_moment_is_later_than_the_servers_clock() {
        let at = |seconds| Timestamp { seconds, nanos: 7 };
        let (agreed, then) = (ServerClock::default(), Instant::now());
        assert_eq!(
            agreed.at_most(at(9_000), then),
            at(9_000),
            "nothing is known"
        );
        agreed.learn(at(5_000), then);
        let later = then + Duration::from_secs(100);
        for (here, expected) in [
            (8_700, 5_100),
            (5_103, 5_100),
            (5_102, 5_102),
            (5_100, 5_100),
            (1_000, 1_000),
        ] {
            assert_eq!(agreed.at_most(at(here), later), at(expected), "{here}");
        }
    }
}
