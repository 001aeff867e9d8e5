//! When a leader should go.
//!
//! * **Progress**: a verified request within credit, a tick that is due or a proposal has been open
//!   for too long. The time doubles with each view that fails and is back to its start with the next
//!   commit. Halfway, what the leader seems not to have is forwarded to it.
//! * **Fairness**, counted and not timed: two batches with requests that came later than one that was
//!   forwarded, although they had room.
//! * **Clock**: several fresh proposals in a row whose time trails ours.
//! * **Silence**: several proposals in a row that others had to repeat, though the leader must have
//!   sent them to its favourites. One such replica changes nothing; enough of them replace it.
//! * **Two faces**: two proposals for one place, or one that no correct leader would have made.
//! * **Abdication**: the leader itself suspects its view, as one does that was restarted.
//!
//! Between two views the time runs only once q replicas have voted for the same one, so that the
//! correct ones stay together, whoever drags one of them ahead.
//!
//! A suspicion promises nothing: whoever suspects goes on voting. A leader is never replaced for
//! being idle, nor while we ourselves are what is slow.

use crate::identity::{Digest, Nanos};
use crate::wire::limits::{
    PROGRESS_TIMEOUT, PROGRESS_TIMEOUT_MAX, REPEATED_PROPOSALS, TRAILING_PROPOSALS, UNFAIR_BATCHES,
};
use std::collections::BTreeMap;

/// Why a leader is suspected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// Nothing committed in time.
    Progress,
    /// Requests are passed over.
    Unfair,
    /// Its time trails.
    Clock,
    /// It does not say to us what it says to others.
    Silent,
    /// It said two things, or one that no correct leader says.
    TwoFaced,
    /// It wants to go, or is not allowed to lead.
    Abdicated,
}

/// Where the progress timer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Progress {
    /// Nothing to wait for.
    #[default]
    Idle,
    /// First half.
    Waiting,
    /// Second half: what the leader may lack has been forwarded.
    Forwarded,
    /// Time is up, and this view has been suspected.
    Expired,
}

/// How many requests that were forwarded are watched at a time.
const WATCHED_MAX: usize = 64;

/// What this replica has against the leader of the view that it is in.
#[derive(Clone, Debug, Default)]
pub struct Grievances {
    /// Where the progress timer stands.
    pub progress: Progress,
    failed_views: u32,
    trailing: u32,
    repeated: u32,
    forwarded: BTreeMap<Digest, Watched>,
}

#[derive(Clone, Copy, Debug)]
struct Watched {
    arrival: u64,
    passed_over: u32,
}

impl Grievances {
    /// Half of the time that a view has to commit something.
    #[must_use]
    pub fn half_timeout(&self) -> Nanos {
        let doubled = PROGRESS_TIMEOUT
            .0
            .saturating_mul(1 << self.failed_views.min(8));
        Nanos(doubled.min(PROGRESS_TIMEOUT_MAX.0) / 2)
    }

    /// A view failed: the next one gets more time.
    pub fn view_failed(&mut self) {
        self.failed_views = self.failed_views.saturating_add(1);
    }

    /// Another leader: what was held against the last one is forgotten.
    pub fn new_leader(&mut self) {
        self.progress = Progress::Idle;
        self.trailing = 0;
        self.repeated = 0;
        self.forwarded.clear();
    }

    /// Something committed.
    pub fn committed(&mut self) {
        self.failed_views = 0;
        self.progress = Progress::Idle;
    }

    /// A fresh proposal came. Whether its time has trailed ours too often.
    pub fn proposal_trails(&mut self, trails: bool) -> bool {
        self.trailing = if trails { self.trailing + 1 } else { 0 };
        self.trailing >= TRAILING_PROPOSALS
    }

    /// A proposal came from its leader or, `repeated`, from somebody else. Whether that was so too
    /// often.
    pub fn proposal_repeated(&mut self, repeated: bool) -> bool {
        self.repeated = if repeated { self.repeated + 1 } else { 0 };
        self.repeated >= REPEATED_PROPOSALS
    }

    /// A request was forwarded; it came as number `arrival`.
    pub fn forwarded(&mut self, digest: Digest, arrival: u64) {
        if self.forwarded.len() < WATCHED_MAX {
            self.forwarded.insert(
                digest,
                Watched {
                    arrival,
                    passed_over: 0,
                },
            );
        }
    }

    /// A request does not wait any more.
    pub fn settled(&mut self, digest: &Digest) {
        self.forwarded.remove(digest);
    }

    /// A batch committed that had room and whose latest request came as number `latest`. Whether a
    /// forwarded request has been passed over too often.
    pub fn passed_over(&mut self, latest: u64) -> bool {
        for watched in self.forwarded.values_mut().filter(|it| it.arrival < latest) {
            watched.passed_over += 1;
        }
        self.forwarded
            .values()
            .any(|watched| watched.passed_over >= UNFAIR_BATCHES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_doubles_with_each_failed_view_and_is_back_after_a_commit() {
        let mut grievances = Grievances::default();
        let first = grievances.half_timeout();
        grievances.view_failed();
        assert_eq!(grievances.half_timeout().0, first.0 * 2);
        for _ in 0..100 {
            grievances.view_failed();
        }
        assert_eq!(grievances.half_timeout().0, PROGRESS_TIMEOUT_MAX.0 / 2);
        grievances.committed();
        assert_eq!(grievances.half_timeout(), first);
    }

    #[test]
    fn being_passed_over_once_is_no_reason_and_twice_is() {
        let mut grievances = Grievances::default();
        grievances.forwarded(Digest([1; 32]), 10);
        assert!(!grievances.passed_over(9), "those came earlier");
        assert!(!grievances.passed_over(11));
        assert!(grievances.passed_over(12));
        grievances.settled(&Digest([1; 32]));
        assert!(!grievances.passed_over(13));
    }

    #[test]
    fn one_late_proposal_is_the_network_and_several_in_a_row_are_the_leader() {
        let mut grievances = Grievances::default();
        assert!(!grievances.proposal_trails(true));
        assert!(!grievances.proposal_trails(true));
        assert!(!grievances.proposal_trails(false));
        assert!(!grievances.proposal_trails(true));
        assert!(!grievances.proposal_trails(true));
        assert!(grievances.proposal_trails(true));
    }
}
