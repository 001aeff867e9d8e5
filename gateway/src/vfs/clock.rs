//! The wall clock, for the times that gateways tell: atime and mtime; and how far it is ahead of
//! the servers' clock, for the one that servers tell.
//!
//! A ctime is the servers': of the batch that changed the inode, or, of what waited here, of the
//! moment that the gateway says if that is near it. What waits has been shown by then. Shown with
//! the time of a clock that is an hour ahead, it would go back at the commit. So nothing is shown
//! as later than the servers' clock, which the gateway hears when it mounts and counts on from
//! there; a clock that is behind does no harm, for times only move forward then.

use quorumfs_metadata::attributes::Timestamp;
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Less than this is not taken off: the servers believe it, and it may be the way of a message.
const BELIEVED_SECONDS: i64 = 2;

/// The servers' clock, as this machine knows it: where it stood once, and how long ago that is by
/// the monotonic clock.
#[derive(Debug, Default)]
pub(crate) struct Agreed(Mutex<Option<(Timestamp, Instant)>>);

impl Agreed {
    /// The servers' clock stood at `theirs` no earlier than `sent`.
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
        if ahead > BELIEVED_SECONDS {
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
    fn no_moment_is_later_than_the_servers_clock_whenever_the_own_one_is_set() {
        let at = |seconds| Timestamp { seconds, nanos: 7 };
        let (agreed, then) = (Agreed::default(), Instant::now());
        assert_eq!(
            agreed.at_most(at(9_000), then),
            at(9_000),
            "nothing is known"
        );
        agreed.learn(at(5_000), then);
        let later = then + Duration::from_secs(100);
        for (here, told) in [
            (8_700, 5_100),
            (5_103, 5_100),
            (5_102, 5_102),
            (5_100, 5_100),
            (1_000, 1_000),
        ] {
            assert_eq!(agreed.at_most(at(here), later), at(told), "{here}");
        }
    }
}
