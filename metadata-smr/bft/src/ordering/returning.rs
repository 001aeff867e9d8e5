//! When a leader hands over to a replica that should lead rather than it.
//!
//! The order of the voters in the membership is the order in which they should lead, and a view's
//! number says who leads it. After a failure another one leads, perhaps in a region from which
//! everything takes longer. Without this module it would go on for good.
//!
//! ```text
//!   view 0: replica 0 ──lost──► view 1: replica 1 ──0 is well for a while, nothing waits──► view 4
//!                                    ▲                                                      │
//!                                    └──────────────── lost: twice as long ◄────────────────┘
//! ```
//!
//! The leader suspects its own views up to the one before the next that the other replica leads.
//! The others do so too when they see that, and all go there in one step.
//!
//! * **No one is passed over for a replica that cannot lead.** Who has not itself seen the other
//!   replica well, for half of the time at least, takes the leader to resign from its view alone:
//!   then the next replica in turn leads. Otherwise a liar could always hand over to one that is
//!   down, which comes before it, and no other replica would ever lead.
//! * **It costs no request its place**: a leader hands over only while nothing waits and nothing is
//!   being decided.
//! * **Only to one that is well**: each of its STATUSes in the last while came in time and showed
//!   it in this view, with nearly all that was executed.
//! * **It never loops.** A leader hands over only to a replica that comes before it. Each view that
//!   a replica loses after the first doubles the time that it has to be well, up to
//!   [`RETURN_DOUBLINGS_MAX`] times; leading for long takes a doubling back. So a replica that
//!   flaps, or is a bad leader and says that it is well, costs a view change in a minute, then in
//!   two, and in the end one in 17 hours.
//! * Whether and when it happens concerns speed alone: what views decide does not depend on it.
//!
//! Each replica notes for itself what it sees; a restart forgets it.

use crate::identity::{Monotonic, Nanos, ReplicaId};
use crate::wire::limits::{RETURN_DOUBLINGS_MAX, RETURN_FORGIVEN};
use std::collections::BTreeMap;

/// What a replica has noted about the others as leaders.
#[derive(Clone, Debug, Default)]
pub struct Returning {
    /// Since when they have been well all the time.
    well_since: BTreeMap<ReplicaId, Monotonic>,
    /// How many views they lost, less what was forgiven.
    losses: BTreeMap<ReplicaId, u32>,
    /// The leader of this view, and since when it has led without a loss that was forgiven.
    led_since: Option<(ReplicaId, Monotonic)>,
}

impl Returning {
    /// At each STATUS: whether a replica is well.
    pub fn note(&mut self, replica: ReplicaId, well: bool, now: Monotonic) {
        if well {
            self.well_since.entry(replica).or_insert(now);
        } else {
            self.well_since.remove(&replica);
        }
    }

    /// At each STATUS: who leads.
    pub fn leads(&mut self, leader: ReplicaId, now: Monotonic) {
        match self.led_since {
            Some((before, since)) if before == leader => {
                if now.since(since) < RETURN_FORGIVEN {
                    return;
                }
                if let Some(losses) = self.losses.get_mut(&leader) {
                    *losses = losses.saturating_sub(1);
                }
                self.led_since = Some((leader, now));
            }
            _ => self.led_since = Some((leader, now)),
        }
    }

    /// A view ended, and its leader had not handed over.
    pub fn lost(&mut self, leader: ReplicaId) {
        let losses = self.losses.entry(leader).or_insert(0);
        *losses = losses.saturating_add(1).min(RETURN_DOUBLINGS_MAX + 1);
        self.led_since = None;
        // It is well again only after it was seen as that.
        self.well_since.remove(&leader);
    }

    /// The replica that `leader` should hand over to: the first of those that come before it and
    /// have been well for long enough.
    #[must_use]
    pub fn due(&self, leader: ReplicaId, after: Nanos, now: Monotonic) -> Option<ReplicaId> {
        let before = self.well_since.range(..leader);
        let mut ready = before.filter(|(replica, _)| self.is_ready(**replica, after, now));
        ready.next().map(|(replica, _)| *replica)
    }

    /// Whether a replica has been well for this long, or for longer after views that it lost.
    #[must_use]
    pub fn is_ready(&self, replica: ReplicaId, after: Nanos, now: Monotonic) -> bool {
        let losses = self.losses.get(&replica).copied().unwrap_or(0);
        let doublings = losses.saturating_sub(1).min(RETURN_DOUBLINGS_MAX);
        let needed = after.0.saturating_mul(1 << doublings);
        let since = self.well_since.get(&replica);
        since.is_some_and(|since| now.since(*since).0 >= needed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: Nanos = Nanos::from_secs(60);
    const LEADER: ReplicaId = ReplicaId(2);

    fn at(seconds: u64) -> Monotonic {
        Monotonic(Nanos::from_secs(seconds).0)
    }

    #[test]
    fn the_first_that_was_well_for_long_enough_is_handed_over_to() {
        let mut returning = Returning::default();
        assert_eq!(returning.due(LEADER, AFTER, at(1000)), None);
        for replica in [1, 3] {
            returning.note(ReplicaId(replica), true, at(0));
        }
        returning.note(ReplicaId(0), true, at(10));
        assert_eq!(returning.due(LEADER, AFTER, at(59)), None);
        assert_eq!(returning.due(LEADER, AFTER, at(60)), Some(ReplicaId(1)));
        returning.note(ReplicaId(0), true, at(70));
        assert_eq!(returning.due(LEADER, AFTER, at(70)), Some(ReplicaId(0)));
        returning.note(ReplicaId(0), false, at(71));
        assert_eq!(returning.due(LEADER, AFTER, at(71)), Some(ReplicaId(1)));
        // No one hands over to one that comes after it.
        assert_eq!(returning.due(ReplicaId(1), AFTER, at(71)), None);
    }

    /// The worst case: it says that it is well whenever it is asked, and never leads.
    #[test]
    fn one_that_loses_each_view_is_handed_few() {
        let (mut returning, mut handed) = (Returning::default(), Vec::new());
        for second in 0..24 * 3600 {
            returning.note(ReplicaId(0), true, at(second));
            returning.leads(LEADER, at(second));
            if returning.due(LEADER, AFTER, at(second)).is_some() {
                handed.push(second);
                returning.leads(ReplicaId(0), at(second));
                returning.lost(ReplicaId(0));
            }
        }
        assert_eq!(handed.len(), 11, "{handed:?}");
        assert_eq!(&handed[..3], [60, 121, 242]);
    }

    #[test]
    fn leading_for_long_is_forgiving() {
        let mut returning = Returning::default();
        for _ in 0..3 {
            returning.lost(ReplicaId(0));
        }
        let forgiven = RETURN_FORGIVEN.0 / Nanos::from_secs(1).0;
        for second in 0..=2 * forgiven {
            returning.leads(ReplicaId(0), at(second));
        }
        returning.lost(ReplicaId(0));
        let start = 2 * forgiven + 1;
        returning.note(ReplicaId(0), true, at(start));
        assert_eq!(returning.due(LEADER, AFTER, at(start + 119)), None);
        assert!(returning.due(LEADER, AFTER, at(start + 120)).is_some());
    }
}
