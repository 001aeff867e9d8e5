//! When a leader should go.
//!
//! * **Progress**: a verified request within credit, a tick that is due or a proposal has been open
//!   for too long, and no batch came of which anything was new. How long that is follows from what
//!   batches usually take here, but is never less than a start, nor more than a bound: votes can be
//!   held up by others than the leader. It doubles with each view that fails until something
//!   commits. Halfway, what the leader seems not to have is forwarded to it.
//! * **Fairness**, counted: a request that has waited for long is forwarded, whatever else commits
//!   meanwhile; from then on, two batches with requests that came here later, although this one
//!   would have fitted, or although another session was served twice meanwhile. Of a lane that is
//!   in a batch nothing is passed over, and batches that the leader may have proposed before it had
//!   the request, a window of them, do not count.
//! * **Clock**: several fresh proposals in a row whose time trails ours.
//! * **Silence**: several proposals in a row that others had to repeat, though the leader must have
//!   sent them to its favourites. One such replica changes nothing; enough of them replace it.
//! * **Two faces**: two proposals for one place, or one that no correct leader would have made.
//! * **Slowness**: it orders less than it could, while something waits all the time
//!   ([`super::throughput`]).
//! * **Abdication**: the leader itself suspects its view, as one does that was restarted.
//!
//! Between two views the time runs only once q replicas have voted for the same one, so that the
//! correct ones stay together, whoever drags one of them ahead.
//!
//! A suspicion promises nothing: whoever suspects goes on voting. It is taken back if the order
//! goes on for a while in spite of it, unless it was for something that no correct leader does;
//! else the bad moments of different replicas, days apart, would add up. A leader is never replaced
//! for being idle, nor while we ourselves are what is slow.

use crate::identity::{Digest, Lane, Nanos, Sequence, SessionId};
use crate::wire::limits::{
    BATCH_BYTES_MAX, BATCH_REQUESTS_MAX, PATIENCE_DECIDES, PATIENCE_LEARNT_MAX, PROGRESS_TIMEOUT,
    PROGRESS_TIMEOUT_MAX, REPEATED_PROPOSALS, TRAILING_PROPOSALS, UNFAIR_BATCHES,
    WATCHED_BYTES_MAX, WINDOW,
};
use std::collections::{BTreeMap, BTreeSet};

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
    /// It orders less than it could.
    Slow,
    /// It said two things, or one that no correct leader says.
    TwoFaced,
    /// It wants to go, or is not allowed to lead.
    Abdicated,
}

impl Reason {
    /// Whether a leader may be forgiven for it.
    #[must_use]
    pub const fn passes(self) -> bool {
        !matches!(self, Self::TwoFaced | Self::Abdicated)
    }
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
    /// What batches took lately from their proposal to their execution.
    decide: Nanos,
    trailing: u32,
    repeated: u32,
    /// Of a session one request at a time, which its leader has room for whatever the session's
    /// client told it; and one attempt to open a session.
    forwarded: BTreeMap<Option<SessionId>, Watched>,
}

/// A request that was forwarded to the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forwarded {
    /// Its lane, if it is a session's.
    pub lane: Option<(SessionId, Lane)>,
    /// Its length in bytes.
    pub bytes: usize,
    /// How many requests had come here when it was forwarded.
    pub arrivals: u64,
    /// The last batch that had been proposed by then, as far as is known here.
    pub under_way: Sequence,
}

#[derive(Clone, Debug)]
struct Watched {
    digest: Digest,
    request: Forwarded,
    passed_over: u32,
    /// The sessions that were served since, and before its own was.
    served: BTreeSet<SessionId>,
}

/// What a committed batch served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// As which request, counted from the start, the latest of them came here; what did not come
    /// here came after all others.
    pub latest: u64,
    /// How many there were.
    pub requests: usize,
    /// How many bytes they had together.
    pub bytes: usize,
    /// Whose they were.
    pub lanes: BTreeSet<(SessionId, Lane)>,
}

impl Watched {
    /// Whether a batch went past this request, which its leader must have had. A full one does if
    /// it serves a session again that has been served since, in this batch or an earlier one.
    fn is_passed_over(&mut self, sequence: Sequence, batch: &Served) -> bool {
        let request = &self.request;
        if sequence.0 <= request.under_way.0.saturating_add(WINDOW as u64) {
            return false;
        }
        let room = batch.requests < BATCH_REQUESTS_MAX
            && batch.bytes.saturating_add(request.bytes) <= BATCH_BYTES_MAX;
        let ours = request.lane.map(|(session, _)| session);
        let sessions = || batch.lanes.iter().map(|(session, _)| *session);
        let served = sessions().any(|session| Some(session) == ours);
        if served || ours.is_none() {
            // Attempts to open a session have turns of their own, a few in a batch.
            self.served.clear();
        }
        let mut again = false;
        for session in sessions() {
            again |= !self.served.insert(session);
        }
        let in_turn = request.lane.is_some_and(|lane| batch.lanes.contains(&lane));
        batch.latest >= request.arrivals && !in_turn && (room || (again && !served))
    }
}

impl Grievances {
    /// Half of the time that a view has to commit something.
    #[must_use]
    pub fn half_timeout(&self) -> Nanos {
        let learnt = self.decide.0.saturating_mul(PATIENCE_DECIDES);
        let start = PROGRESS_TIMEOUT.0.max(learnt.min(PATIENCE_LEARNT_MAX.0));
        let doubled = start.saturating_mul(1 << self.failed_views.min(8));
        Nanos(doubled.min(PROGRESS_TIMEOUT_MAX.0) / 2)
    }

    /// A batch was executed so long after its proposal came. What is slower counts by half at once,
    /// what is faster by an eighth: impatience costs views.
    pub fn decided(&mut self, took: Nanos) {
        let known = self.decide.0;
        self.decide = Nanos(match took.0 > known {
            true => known + (took.0 - known) / 2,
            false => known - (known - took.0) / 8,
        });
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

    /// Whether this session's next request that is forwarded would be watched. It has to be
    /// forwarded again then, if it was before: nobody has to have had room for it.
    #[must_use]
    pub fn would_watch(&self, session: Option<SessionId>, bytes: usize) -> bool {
        let held: usize = self.forwarded.values().map(|it| it.request.bytes).sum();
        !self.forwarded.contains_key(&session)
            && self.forwarded.len() < WATCHED_MAX
            && held.saturating_add(bytes) <= WATCHED_BYTES_MAX
    }

    /// Whether any request that was forwarded is watched.
    #[must_use]
    pub fn watches_any(&self) -> bool {
        !self.forwarded.is_empty()
    }

    /// A request was forwarded.
    pub fn forwarded(&mut self, digest: Digest, request: Forwarded) {
        let session = request.lane.map(|(session, _)| session);
        if self.would_watch(session, request.bytes) {
            let watched = Watched {
                digest,
                request,
                passed_over: 0,
                served: BTreeSet::new(),
            };
            self.forwarded.insert(session, watched);
        }
    }

    /// Only these requests still wait: of the others nothing is to be expected, whether they ran,
    /// another one with their number did, or their session ended.
    pub fn retain(&mut self, waits: impl Fn(&Digest) -> bool) {
        self.forwarded.retain(|_, watched| waits(&watched.digest));
    }

    /// A batch committed. Whether a forwarded request has been passed over too often.
    pub fn passed_over(&mut self, sequence: Sequence, served: &Served) -> bool {
        for watched in self.forwarded.values_mut() {
            let passes = watched.is_passed_over(sequence, served);
            watched.passed_over += u32::from(passes);
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
    fn patience_follows_what_batches_take_up_to_a_bound_and_comes_back() {
        let mut grievances = Grievances::default();
        let first = grievances.half_timeout();
        (0..10).for_each(|_| grievances.decided(Nanos::from_millis(20)));
        assert_eq!(grievances.half_timeout(), first);
        (0..3).for_each(|_| grievances.decided(Nanos::from_millis(600)));
        assert!(grievances.half_timeout() > Nanos::from_millis(600));
        (0..30).for_each(|_| grievances.decided(Nanos::from_secs(60)));
        assert_eq!(grievances.half_timeout().0, PATIENCE_LEARNT_MAX.0 / 2);
        (0..100).for_each(|_| grievances.decided(Nanos::from_millis(20)));
        assert_eq!(grievances.half_timeout(), first);
    }

    fn forwarded(session: u64, bytes: usize) -> Forwarded {
        Forwarded {
            lane: Some((SessionId(session), Lane(0))),
            bytes,
            arrivals: 10,
            under_way: Sequence(20),
        }
    }

    /// Proposed when the leader must have had the request.
    const LATER: Sequence = Sequence(21 + WINDOW as u64);

    fn served(latest: u64, bytes: usize, lanes: &[(u64, u16)]) -> Served {
        let lanes = lanes.iter().map(|(id, lane)| (SessionId(*id), Lane(*lane)));
        Served {
            latest,
            requests: lanes.len(),
            bytes,
            lanes: lanes.collect(),
        }
    }

    #[test]
    fn being_passed_over_once_is_no_reason_and_twice_is() {
        let mut grievances = Grievances::default();
        grievances.forwarded(Digest([1; 32]), forwarded(1, 100));
        let earlier = served(9, 100, &[(2, 0)]);
        let later = served(11, 100, &[(2, 0)]);
        for under_way in 21..=20 + WINDOW as u64 {
            let unfair = grievances.passed_over(Sequence(under_way), &later);
            assert!(!unfair, "it may have been proposed before");
        }
        assert!(
            !grievances.passed_over(LATER, &earlier),
            "those came earlier"
        );
        assert!(!grievances.passed_over(LATER, &later));
        assert!(grievances.passed_over(LATER, &later));
        grievances.retain(|_| false);
        assert!(!grievances.passed_over(LATER, &later), "it waits no more");
    }

    #[test]
    fn a_full_batch_passes_nobody_over_unless_it_serves_another_session_again() {
        let fresh = || Watched {
            digest: Digest([1; 32]),
            request: forwarded(1, 1000),
            passed_over: 0,
            served: BTreeSet::new(),
        };
        let passes = |watched: &mut Watched, bytes, lanes: &[(u64, u16)]| {
            watched.is_passed_over(LATER, &served(11, bytes, lanes))
        };
        let full = BATCH_BYTES_MAX - 999;
        assert!(passes(&mut fresh(), full - 1, &[(2, 0)]));
        assert!(!passes(&mut fresh(), full, &[(2, 0)]));
        assert!(!passes(&mut fresh(), full, &[(2, 0), (3, 0)]));
        assert!(passes(&mut fresh(), full, &[(2, 0), (2, 1)]));
        let own = [(1, 1), (2, 0), (2, 1)];
        assert!(!passes(&mut fresh(), full, &own));
        assert!(passes(&mut fresh(), 10, &own), "room is room");
        let same_lane = [(1, 0), (2, 0), (2, 1)];
        assert!(!passes(&mut fresh(), 10, &same_lane));
        // Full batches of accomplices, none of whom stands in one of them twice.
        let mut watched = fresh();
        assert!(!passes(&mut watched, full, &[(2, 0), (3, 0)]));
        assert!(!passes(&mut watched, full, &[(4, 0), (5, 0)]));
        assert!(passes(&mut watched, full, &[(6, 0), (2, 0)]));
        // Once its own session is served, the others have another turn each.
        assert!(!passes(&mut watched, full, &[(1, 7), (3, 0)]));
        assert!(!passes(&mut watched, full, &[(2, 0), (4, 0)]));
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
