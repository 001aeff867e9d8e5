//! Queries out of order.
//!
//! ```text
//!   waiting ──► as many replicas as are needed ──► they match: delivered
//!                  │ one is late, or they differ
//!                  ▼
//!               all replicas, in full ──► they match: delivered
//!                  │ still not
//!                  ▼
//!               ordered, like an operation
//! ```
//!
//! Answers match if they are equal and of the same *version*, the sequence at which anything that
//! they depend on last changed. No answer has a version above the last batch that its replica has
//! executed.
//!
//! * *Linearizable*: a medium quorum (n − u, where there are no spares) matches. A client that
//!   learned before that an operation took effect learned it from as many replicas, and any two
//!   such quorums have a correct replica in common: it has executed that operation, and its answer
//!   is this one. The same holds for answers that an earlier reader was shown, and there the
//!   version is needed: with bytes alone, a replica that has not seen a row change and one that has
//!   seen it change back vouch for the same answer, and the next reader finds the first of them
//!   between the two.
//! * *Session*: r + 1 match, each from a state that is at least as new as any that this session was
//!   shown. One of them is correct. The answer holds from its version up to that replica's state,
//!   so it holds at the smallest of the claimed states, which becomes the new bound. A later
//!   linearizable query of this session must not go back before its version: a quorum may not have
//!   executed that batch yet.
//!
//! A replica's answers may come in any order and late. Each try is sent under a fresh number, so an
//! answer to it was made after the query. Therefore answers to all tries of a query count, once for
//! each replica.
//!
//! A try waits about as long as the needed number of answers usually takes. Each try is measured by
//! its own number, even if it is answered after its queries were ordered, so that replicas which
//! turned out to be farther away are waited for the next time. That a replica refuses to answer, as
//! one does that does not vote, is no answer: the time that counts is that of the others. Fewer
//! answers take less time, so the two kinds are measured apart. Before anything was measured a try
//! waits for as long as the session took to be opened.
//!
//! Source: Castro and Liskov (1999), §5.1.3; Berger, Reiser and Bessani, "Making Reads in BFT State
//! Machine Replication Fast, Linearizable, and Live" (2021), for what writers have to wait for.

use super::config::ClientConfig;
use super::encoding;
use super::event::{Effect, Effects, OperationKind};
use super::nearest::{Chosen, Nearest};
use super::queue::{Pending, Queue};
use super::read_try::{OverdueTry, Trips, Try, TryProgress, Vote};
use crate::identity::{Monotonic, Nanos, ReplicaId, Sequence, SessionId};
use crate::sabotage::Flag;
use crate::wire::limits::{
    READ_FRAMES, READ_FRAMES_SINGLE, READ_HEDGE, READ_HEDGE_MAX, READ_OVERDUE_MAX,
    READ_QUERIES_MAX, READ_TRIES,
};
use crate::wire::message::{Read, ReadAnswer};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A query and its answers. Settled ones are kept, so that the positions stay valid.
#[derive(Debug)]
struct PendingQuery {
    pending: Option<Pending>,
    /// A replica that answers several tries may have given several answers.
    votes: Vec<(ReplicaId, Vote)>,
}

/// Queries that were sent together.
#[derive(Debug)]
struct QueryGroup {
    /// Answers from a state before this do not count.
    floor: Sequence,
    needed: usize,
    /// It is measured with the queries of this kind.
    in_session: bool,
    queries: Vec<PendingQuery>,
    /// The tries, by number.
    tries: BTreeMap<u64, Try>,
    due: Monotonic,
}

/// An answer that counts.
struct Accepted {
    bytes: Bytes,
    version: Sequence,
    /// The smallest state that is claimed for it.
    claimed: Sequence,
    /// The replicas that gave it.
    matched: BTreeSet<ReplicaId>,
}

impl QueryGroup {
    /// The answer that enough replicas give to a query, if one has given it in full.
    fn settled(&self, query: &PendingQuery, latest: &Vote) -> Option<Accepted> {
        let counts = |vote: &Vote| vote.matches(latest) && vote.applied >= self.floor;
        let matching = || query.votes.iter().filter(|(_, vote)| counts(vote));
        let mut claims: BTreeMap<ReplicaId, Sequence> = BTreeMap::new();
        for (from, vote) in matching() {
            let claim = claims.entry(*from).or_default();
            *claim = vote.applied.max(*claim);
        }
        if claims.len() < self.needed {
            return None;
        }
        let claimed = claims.values().copied().min()?;
        let bytes = matching().find_map(|(_, vote)| vote.bytes.clone())?;
        Some(Accepted {
            bytes,
            version: latest.version,
            claimed,
            matched: claims.into_keys().collect(),
        })
    }

    /// Whether some of its queries are unsettled.
    fn open(&self) -> bool {
        self.queries.iter().any(|query| query.pending.is_some())
    }

    /// Whether as many replicas as are waited for have answered the last try.
    fn all_answered(&self) -> bool {
        let last = self.tries.last_key_value();
        last.is_none_or(|(_, last)| last.answered_by.len() >= last.awaited)
    }
}

/// All queries of a client that are not ordered.
#[derive(Debug)]
pub(super) struct Reads {
    waiting: VecDeque<Pending>,
    /// By the number of their first try.
    groups: BTreeMap<u64, QueryGroup>,
    /// The group that a try belongs to.
    tries: BTreeMap<u64, u64>,
    /// Tries that were not answered before their queries were ordered. They serve only to measure
    /// the time.
    overdue: BTreeMap<u64, OverdueTry>,
    nonce: u64,
    nearest: Nearest,
    /// The newest state that this session is known to have been shown.
    seen: Sequence,
    /// The newest batch that the session knows of without a quorum that has executed it: a watcher
    /// was notified of it, or a query in session saw it. A later query has to see it.
    notified: Sequence,
    /// When an operation or query of this session was last ordered.
    ordered: Monotonic,
    trips: Trips,
    /// How long a try waits before anything was measured.
    unmeasured: Nanos,
    pub(super) accepted: u64,
    pub(super) fallen_back: u64,
    /// A planted defect.
    drops_earlier: Flag,
}

impl Reads {
    pub(super) fn new(config: &ClientConfig) -> Self {
        Self {
            waiting: VecDeque::new(),
            groups: BTreeMap::new(),
            tries: BTreeMap::new(),
            overdue: BTreeMap::new(),
            nonce: 0,
            nearest: Nearest::new(config.fault_model.replicas(), config.jitter_seed),
            seen: Sequence(0),
            notified: Sequence(0),
            ordered: Monotonic(0),
            trips: Trips::default(),
            unmeasured: READ_HEDGE,
            accepted: 0,
            fallen_back: 0,
            drops_earlier: config.earlier_try_dropped,
        }
    }

    /// The membership has changed: unsettled queries are ordered instead.
    pub(super) fn enter(&mut self, config: &ClientConfig, queue: &mut Queue) {
        let groups = std::mem::take(&mut self.groups).into_values();
        for query in groups.flat_map(|group| group.queries) {
            if let Some(pending) = query.pending {
                self.fallen_back = self.fallen_back.saturating_add(1);
                queue.requeue(Pending {
                    kind: OperationKind::Query,
                    ..pending
                });
            }
        }
        (self.tries, self.overdue) = (BTreeMap::new(), BTreeMap::new());
        self.nearest = Self::new(config).nearest;
    }

    pub(super) fn push(&mut self, pending: Pending) {
        self.waiting.push_back(pending);
    }

    /// The session was shown the state after this batch.
    pub(super) fn shown(&mut self, sequence: Sequence) {
        self.seen = self.seen.max(sequence);
    }

    /// The newest state that the session was shown.
    pub(super) const fn newest_shown(&self) -> Sequence {
        self.seen
    }

    /// The session was notified that this batch changed something.
    pub(super) fn notified(&mut self, sequence: Sequence) {
        self.notified = self.notified.max(sequence);
        self.shown(sequence);
    }

    /// An operation or query of the session is ordered.
    pub(super) const fn ordered(&mut self, now: Monotonic) {
        self.ordered = now;
    }

    /// The session is open, which took longer than an answer will: more than two round trips.
    pub(super) fn opened(&mut self, now: Monotonic) {
        let took = now.since(self.ordered);
        self.unmeasured = took.clamp(READ_HEDGE, READ_HEDGE_MAX);
    }

    /// Whether a query in session is answered sooner than a linearizable one.
    pub(super) fn near_pays(&self, config: &ClientConfig, connected: &BTreeSet<ReplicaId>) -> bool {
        let model = &config.fault_model;
        let (few, many) = (model.small().into(), model.medium().into());
        self.nearest.is_nearer(connected, few, many)
    }

    /// When that last happened.
    pub(super) const fn last_ordered(&self) -> Monotonic {
        self.ordered
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.groups.is_empty()
    }

    /// Sends waiting queries, as far as the limit of frames allows.
    pub(super) fn dispatch(
        &mut self,
        config: &ClientConfig,
        session: SessionId,
        connected: &BTreeSet<ReplicaId>,
        now: Monotonic,
        effects: &mut Effects,
    ) {
        let frames_max = match config.bundle_max {
            0 | 1 => READ_FRAMES_SINGLE,
            _ => READ_FRAMES,
        };
        // A frame that had to be sent again does not count against the limit.
        let under_way = |groups: &BTreeMap<u64, QueryGroup>| {
            let first = |group: &&QueryGroup| group.tries.len() == 1;
            groups.values().filter(first).count()
        };
        while !self.waiting.is_empty() && under_way(&self.groups) < frames_max {
            let queries = self.next_frame(config);
            let Some(kind) = queries.first().map(|pending| pending.kind) else {
                return;
            };
            let model = &config.fault_model;
            let in_session = kind == OperationKind::SessionRead;
            let (floor, needed) = match in_session {
                true => (self.seen, model.small()),
                false => (self.notified, model.medium()),
            };
            let pending_query = |pending| PendingQuery {
                pending: Some(pending),
                votes: Vec::new(),
            };
            let group = QueryGroup {
                floor,
                needed: needed.into(),
                in_session,
                queries: queries.into_iter().map(pending_query).collect(),
                tries: BTreeMap::new(),
                due: now,
            };
            let id = self.nonce + 1;
            self.send(config, session, connected, (id, group), now, effects);
        }
    }

    /// Queries of one kind that go together.
    fn next_frame(&mut self, config: &ClientConfig) -> Vec<Pending> {
        let count_max = config.bundle_max.clamp(1, READ_QUERIES_MAX);
        let mut room = encoding::BUNDLE_BYTES_MAX;
        let mut queries: Vec<Pending> = Vec::new();
        while let Some(next) = self.waiting.front() {
            let cost = next
                .operation
                .len()
                .saturating_add(encoding::OPERATION_OVERHEAD);
            let alike = queries.first().is_none_or(|first| first.kind == next.kind);
            if queries.len() >= count_max || cost > room || !alike {
                break;
            }
            room = room.saturating_sub(cost);
            queries.extend(self.waiting.pop_front());
        }
        queries
    }

    fn send(
        &mut self,
        config: &ClientConfig,
        session: SessionId,
        connected: &BTreeSet<ReplicaId>,
        (id, mut group): (u64, QueryGroup),
        now: Monotonic,
        effects: &mut Effects,
    ) {
        self.nonce += 1;
        let first = group.tries.is_empty();
        let Chosen { needed, probed } = match first {
            true => self.nearest.choose(connected, group.needed),
            false => Chosen {
                needed: self.nearest.all(connected),
                probed: None,
            },
        };
        let turn = usize::try_from(self.nonce).unwrap_or_default() % needed.len().max(1);
        let full = match needed.get(turn) {
            Some(replica) if first => *replica,
            _ => Read::ALL,
        };
        let open = group.queries.iter().enumerate();
        let open = open.filter_map(|(place, query)| Some((place, query.pending.as_ref()?)));
        let (places, queries) = open
            .map(|(place, pending)| (place, pending.operation.clone()))
            .unzip();
        let frame = encoding::read(config, session, self.nonce, full, queries);
        let awaited = needed.len();
        let chosen: Vec<ReplicaId> = needed.into_iter().chain(probed).collect();
        for to in &chosen {
            let frame = frame.clone();
            effects.push(Effect::Send { to: *to, frame });
        }
        let sent = Try {
            places,
            of: chosen.into_iter().collect(),
            awaited,
            answered_by: BTreeSet::new(),
            refused_by: BTreeSet::new(),
            sent: now,
        };
        let patience = match config.patience_fixed.is_set() {
            true => READ_HEDGE,
            false => self.trips.patience(group.in_session, self.unmeasured),
        };
        group.due = now.plus(patience);
        group.tries.insert(self.nonce, sent);
        self.tries.insert(self.nonce, id);
        self.groups.insert(id, group);
    }

    /// Handles a replica's answer.
    pub(super) fn answered(
        &mut self,
        from: ReplicaId,
        answer: ReadAnswer,
        now: Monotonic,
        queue: &mut Queue,
        effects: &mut Effects,
    ) {
        let Some(id) = self.tries.get(&answer.nonce).copied() else {
            self.answered_late(from, &answer, now);
            return;
        };
        let Some(mut group) = self.groups.remove(&id) else {
            return;
        };
        let last = group.tries.last_key_value().map(|(nonce, _)| *nonce);
        if !self.drops_earlier.is_set() || last == Some(answer.nonce) {
            self.count(&mut group, from, answer, now, queue, effects);
        }
        if group.open() {
            if group.all_answered() {
                group.due = now;
            }
            self.groups.insert(id, group);
        } else {
            self.forget(&group);
        }
    }

    /// Counts a replica's answers to the queries of one try.
    fn count(
        &mut self,
        group: &mut QueryGroup,
        from: ReplicaId,
        answer: ReadAnswer,
        now: Monotonic,
        queue: &mut Queue,
        effects: &mut Effects,
    ) {
        let Some(sent) = group.tries.get_mut(&answer.nonce) else {
            return;
        };
        let is_refused = answer.answers.is_none();
        let progress = sent.record_answer(from, group.needed, is_refused, now);
        if matches!(progress, TryProgress::One | TryProgress::Enough(_)) {
            self.nearest.answered(from, now.since(sent.sent));
        }
        match progress {
            TryProgress::Ignored => return,
            TryProgress::Refused => self.nearest.refused(from),
            TryProgress::One => {}
            TryProgress::Enough(took) => self.trips.measured(group.in_session, took),
        }
        let places = sent.places.clone();
        let answers = answer.answers.unwrap_or_default();
        for (place, answered) in places.into_iter().zip(answers) {
            let Some(vote) = Vote::new(answer.applied, answered) else {
                continue;
            };
            let query = group.queries.get_mut(place);
            let Some(query) = query.filter(|it| it.pending.is_some()) else {
                continue;
            };
            query.votes.push((from, vote.clone()));
            let Some(query) = group.queries.get(place) else {
                continue;
            };
            if let Some(accepted) = group.settled(query, &vote) {
                self.accept(group, place, accepted, queue, effects);
            }
        }
    }

    /// Measures an answer to a try that no query waits for any more.
    fn answered_late(&mut self, from: ReplicaId, answer: &ReadAnswer, now: Monotonic) {
        let dropped = self.drops_earlier.is_set();
        let late = self.overdue.get_mut(&answer.nonce);
        let Some(late) = late.filter(|_| !dropped) else {
            return;
        };
        let is_refused = answer.answers.is_none();
        if let TryProgress::Enough(took) = late.record_answer(from, is_refused, now) {
            self.trips.measured(late.in_session, took);
        }
        if late.is_over() {
            self.overdue.remove(&answer.nonce);
        }
    }

    /// Drops a group that is settled.
    fn forget(&mut self, group: &QueryGroup) {
        for nonce in group.tries.keys() {
            self.tries.remove(nonce);
        }
    }

    /// Drops a group that was not answered in time.
    fn give_up(&mut self, group: QueryGroup) {
        self.forget(&group);
        let (needed, in_session) = (group.needed, group.in_session);
        let unanswered = group.tries.into_iter();
        let unanswered = unanswered.filter(|(_, it)| !it.is_answered_by_all());
        let overdue = |sent| OverdueTry::new(sent, needed, in_session);
        self.overdue
            .extend(unanswered.map(|(nonce, sent)| (nonce, overdue(sent))));
        while self.overdue.len() > READ_OVERDUE_MAX {
            self.overdue.pop_first();
        }
    }

    fn accept(
        &mut self,
        group: &mut QueryGroup,
        place: usize,
        accepted: Accepted,
        queue: &mut Queue,
        effects: &mut Effects,
    ) {
        let Some(query) = group.queries.get_mut(place) else {
            return;
        };
        let Some(pending) = query.pending.take() else {
            return;
        };
        for (replica, _) in &query.votes {
            match accepted.matched.contains(replica) {
                true => self.nearest.matched(*replica),
                false => self.nearest.mismatched(*replica),
            }
        }
        self.seen = self.seen.max(accepted.version);
        if pending.kind == OperationKind::SessionRead {
            self.seen = self.seen.max(accepted.claimed);
            self.notified = self.notified.max(accepted.version);
        }
        self.accepted = self.accepted.saturating_add(1);
        queue.deliver(&pending, accepted.bytes, accepted.version, effects);
    }

    /// Sends overdue queries to all replicas; if that was done already, orders them.
    pub(super) fn hedge(
        &mut self,
        config: &ClientConfig,
        session: SessionId,
        connected: &BTreeSet<ReplicaId>,
        now: Monotonic,
        queue: &mut Queue,
        effects: &mut Effects,
    ) {
        let is_due = |(id, group): (&u64, &QueryGroup)| (group.due <= now).then_some(*id);
        let due: Vec<u64> = self.groups.iter().filter_map(is_due).collect();
        for id in due {
            let Some(mut group) = self.groups.remove(&id) else {
                continue;
            };
            let last = group.tries.last_key_value().map(|(_, last)| last);
            // Once enough have answered no one is late, not even one that was only probed.
            let awaited = last.filter(|last| last.answered_by.len() < last.awaited);
            let late = |id: &ReplicaId| {
                awaited.is_some_and(|last| last.of.contains(id) && !last.answered_by.contains(id))
            };
            let waited = last.map_or(Nanos(0), |last| now.since(last.sent));
            let refused = last.is_some_and(|last| !last.refused_by.is_empty());
            let differ = !refused && !last.is_some_and(|last| last.of.iter().any(late));
            self.nearest.disappointed(late, waited);
            if differ && group.tries.len() == 1 {
                self.nearest.differed();
            }
            if group.tries.len() < READ_TRIES {
                self.send(config, session, connected, (id, group), now, effects);
                continue;
            }
            for query in &mut group.queries {
                let Some(pending) = query.pending.take() else {
                    continue;
                };
                self.fallen_back = self.fallen_back.saturating_add(1);
                queue.requeue(Pending {
                    kind: OperationKind::Query,
                    ..pending
                });
            }
            self.give_up(group);
        }
    }

    /// Removes the queries whose deadline has passed.
    pub(super) fn take_expired(&mut self, now: Monotonic) -> Vec<Pending> {
        let passed = |pending: &Pending| pending.deadline <= now;
        let mut expired = Vec::new();
        for group in self.groups.values_mut() {
            let slots = group.queries.iter_mut().map(|query| &mut query.pending);
            expired.extend(slots.filter_map(|slot| slot.take_if(|it| passed(it))));
        }
        let over: Vec<QueryGroup> = self
            .groups
            .extract_if(.., |_, it| !it.open())
            .map(|(_, it)| it)
            .collect();
        for group in over {
            self.give_up(group);
        }
        if self.waiting.iter().any(passed) {
            let (out, stay) = self.waiting.drain(..).partition(passed);
            self.waiting = stay;
            expired.extend::<VecDeque<Pending>>(out);
        }
        expired
    }

    /// Removes all queries, since the session has ended.
    pub(super) fn take_all(&mut self) -> Vec<Pending> {
        let groups = std::mem::take(&mut self.groups).into_values();
        let queries = groups.flat_map(|group| group.queries);
        let mut all: Vec<Pending> = queries.filter_map(|query| query.pending).collect();
        all.extend(self.waiting.drain(..));
        (self.tries, self.overdue) = (BTreeMap::new(), BTreeMap::new());
        (self.seen, self.notified) = (Sequence(0), Sequence(0));
        all
    }

    /// The next instant at which something is due.
    pub(super) fn next_deadline(&self) -> Option<Monotonic> {
        let due = self.groups.values().map(|group| group.due);
        let waiting = self.waiting.iter().map(|pending| pending.deadline).min();
        due.chain(waiting).min()
    }
}
