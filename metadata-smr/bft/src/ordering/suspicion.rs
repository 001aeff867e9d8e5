//! When a leader should be replaced.
//!
//! * **Progress**: a verified request within credit, a due tick or a proposal has been open for too
//!   long, and no batch came that made progress. How long that is follows from what batches usually
//!   take here, but is never less than a starting value, nor more than a bound, since replicas
//!   other than the leader can delay votes. It doubles with each view that fails until something
//!   commits. Halfway, requests that the leader seems to lack are forwarded to it.
//! * **Fairness**, counted: a request that has waited for long is forwarded, whatever else commits
//!   meanwhile. From then on, two batches count against the leader if their requests came here
//!   later although this one would have fitted, or although another session was served twice
//!   meanwhile. A batch that holds a request of the same lane passes nothing over. Batches that the
//!   leader may have proposed before it had the request, a window of them, do not count.
//! * **Clock**: several fresh proposals in a row whose time trails ours.
//! * **Silence**: several proposals in a row that others had to repeat, though the leader must have
//!   sent them to some replicas. One such victim changes nothing; enough of them replace it.
//! * **Two faces**: two proposals for one sequence, or one that no correct leader would have made.
//! * **Slowness**: it orders less than it could, while something waits all the time
//!   ([`super::throughput`]).
//! * **Abdication**: the leader itself suspects its view, as one does that was restarted.
//!
//! Between two views the timer runs only once q replicas have voted for the same one, so that the
//! correct ones stay together, even if one of them is drawn ahead.
//!
//! A suspicion promises nothing: a replica that suspects goes on voting. It is withdrawn if the
//! order goes on for a while in spite of it, unless the reason is something that no correct leader
//! does; otherwise bad moments of different replicas, days apart, would add up. A leader is never
//! replaced for being idle, nor while this replica itself is slow.

use crate::identity::{Digest, Lane, Nanos, Sequence, SessionId};
use crate::wire::limits::{
    BATCH_BYTES_MAX, BATCH_REQUESTS_MAX, PATIENCE_DECIDES, PATIENCE_LEARNT_MAX, PROGRESS_TIMEOUT,
    PROGRESS_TIMEOUT_MAX, PROGRESS_TIMEOUT_UNKNOWN, REPEATED_PROPOSALS, TRAILING_PROPOSALS,
    UNFAIR_BATCHES, WATCHED_BYTES_MAX, WINDOW,
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
    /// It does not send us what it sends to others.
    Silent,
    /// It orders less than it could.
    Slow,
    /// It contradicted itself, or sent what no correct leader sends.
    TwoFaced,
    /// It resigns, or is not allowed to lead.
    Abdicated,
}

impl Reason {
    /// Whether the suspicion is withdrawn if the order goes on.
    #[must_use]
    pub const fn may_be_withdrawn(self) -> bool {
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
    /// Second half: requests that the leader may lack have been forwarded.
    Forwarded,
    /// Time is up, and this view has been suspected.
    Expired,
}

/// How many forwarded requests are watched at a time.
const WATCHED_MAX: usize = 64;

/// What this replica has noted against the leader of its current view.
#[derive(Clone, Debug, Default)]
pub struct Suspicions {
    /// Where the progress timer stands.
    pub progress: Progress,
    failed_views: u32,
    /// How long batches took lately from their proposal to their execution.
    decide: Nanos,
    trailing: u32,
    repeated: u32,
    /// One request of each session at a time, for which the leader has room whatever the session's
    /// client sent it; and one attempt to open a session.
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
    /// The arrival number, counted from the start, of the latest of them; a request that did not
    /// come here counts as later than all others.
    pub latest: u64,
    /// How many there were.
    pub requests: usize,
    /// How many bytes they had together.
    pub bytes: usize,
    /// Their sessions and lanes.
    pub lanes: BTreeSet<(SessionId, Lane)>,
}

impl Watched {
    /// Whether a batch passed over this request, which its leader must have had. A full one does if
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

impl Suspicions {
    /// How long batches took lately from their proposal to their execution.
    #[must_use]
    pub const fn usual(&self) -> Nanos {
        self.decide
    }

    /// Half of the time that a view has to commit something.
    #[must_use]
    pub fn half_timeout(&self) -> Nanos {
        let learnt = self.decide.0.saturating_mul(PATIENCE_DECIDES);
        let start = match learnt {
            0 => PROGRESS_TIMEOUT_UNKNOWN.0,
            learnt => PROGRESS_TIMEOUT.0.max(learnt.min(PATIENCE_LEARNT_MAX.0)),
        };
        let doubled = start.saturating_mul(1 << self.failed_views.min(8));
        Nanos(doubled.min(PROGRESS_TIMEOUT_MAX.0) / 2)
    }

    /// A batch was executed so long after its proposal came. A slower one counts by half at once, a
    /// faster one by an eighth: too short a timeout costs views.
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

    /// Another leader: what was noted against the last one is forgotten.
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

    /// A proposal came from its leader or, `repeated`, from another replica. Whether that was so
    /// too often.
    pub fn proposal_repeated(&mut self, repeated: bool) -> bool {
        self.repeated = if repeated { self.repeated + 1 } else { 0 };
        self.repeated >= REPEATED_PROPOSALS
    }

    /// Whether this session's next forwarded request would be watched. It then has to be forwarded
    /// again if it was before, since no replica was obliged to have room for it.
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

    /// Only these requests still wait. Nothing more is expected of the others: they ran, another
    /// one with their number did, or their session ended.
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
        let mut suspicions = Suspicions::default();
        let first = suspicions.half_timeout();
        suspicions.view_failed();
        assert_eq!(suspicions.half_timeout().0, first.0 * 2);
        for _ in 0..100 {
            suspicions.view_failed();
        }
        assert_eq!(suspicions.half_timeout().0, PROGRESS_TIMEOUT_MAX.0 / 2);
        suspicions.committed();
        assert_eq!(suspicions.half_timeout(), first);
    }

    #[test]
    fn patience_follows_what_batches_take_up_to_a_bound_and_comes_back() {
        let mut suspicions = Suspicions::default();
        let unknown = suspicions.half_timeout();
        assert_eq!(unknown.0, PROGRESS_TIMEOUT_UNKNOWN.0 / 2);
        let first = Nanos(PROGRESS_TIMEOUT.0 / 2);
        (0..10).for_each(|_| suspicions.decided(Nanos::from_millis(20)));
        assert_eq!(suspicions.half_timeout(), first);
        (0..3).for_each(|_| suspicions.decided(Nanos::from_millis(600)));
        assert!(suspicions.half_timeout() > Nanos::from_millis(600));
        (0..30).for_each(|_| suspicions.decided(Nanos::from_secs(60)));
        assert_eq!(suspicions.half_timeout().0, PATIENCE_LEARNT_MAX.0 / 2);
        (0..100).for_each(|_| suspicions.decided(Nanos::from_millis(20)));
        assert_eq!(suspicions.half_timeout(), first);
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
        let mut suspicions = Suspicions::default();
        suspicions.forwarded(Digest([1; 32]), forwarded(1, 100));
        let earlier = served(9, 100, &[(2, 0)]);
        let later = served(11, 100, &[(2, 0)]);
        for under_way in 21..=20 + WINDOW as u64 {
            let unfair = suspicions.passed_over(Sequence(under_way), &later);
            assert!(!unfair, "it may have been proposed before");
        }
        assert!(
            !suspicions.passed_over(LATER, &earlier),
            "those came earlier"
        );
        assert!(!suspicions.passed_over(LATER, &later));
        assert!(suspicions.passed_over(LATER, &later));
        suspicions.retain(|_| false);
        assert!(!suspicions.passed_over(LATER, &later), "it waits no more");
    }

    #[test]
    fn a_full_batch_passes_over_no_request_unless_it_serves_another_session_again() {
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
        // Full batches of accomplices, none of which stands in one of them twice.
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
        let mut suspicions = Suspicions::default();
        assert!(!suspicions.proposal_trails(true));
        assert!(!suspicions.proposal_trails(true));
        assert!(!suspicions.proposal_trails(false));
        assert!(!suspicions.proposal_trails(true));
        assert!(!suspicions.proposal_trails(true));
        assert!(suspicions.proposal_trails(true));
    }
}
