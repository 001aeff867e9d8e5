//! Queries out of order.
//!
//! ```text
//!   waiting ──► as many replicas as are needed ──► they match: delivered
//!                  │ one is late, or they differ
//!                  ▼
//!               everybody, in full ──► they match: delivered
//!                  │ still not
//!                  ▼
//!               into the order, like an operation
//! ```
//!
//! Answers match if they are equal and of the same *version*, the sequence at which anything that
//! they depend on last changed. No answer is of a version above what its replica has executed.
//!
//! * *Linearizable*: a medium quorum (n − u, where there are no spares) matches. Whoever was told
//!   before that something took effect was told so by as many, and any two such quorums have a
//!   correct replica in common: it has executed that
//!   operation, and its answer is this one. The same goes for what an earlier reader was shown, and
//!   there the version is needed: with bytes alone, a replica that has not seen a row change and
//!   one that has seen it change back vouch for the same, and the next reader finds the first of
//!   them between the two.
//! * *Session*: r + 1 match, each from a state that is at least as new as any that this session was
//!   shown. One of them is correct. The answer holds from its version up to that one's state, so it
//!   holds at the smallest of the states that are claimed, which becomes the new bound.
//!
//! A replica's answers may come in any order and late: each query goes out under a fresh number,
//! and an answer is from after that.
//!
//! Source: Castro and Liskov (1999), §5.1.3; Berger, Reiser and Bessani, "Making Reads in BFT State
//! Machine Replication Fast, Linearizable, and Live" (2021), for what writers have to wait for.

use super::config::ClientConfig;
use super::event::{Effect, Effects, Kind};
use super::queue::{Pending, Queue};
use super::round_trip::RoundTrip;
use super::speech;
use crate::identity::{Digest, Monotonic, ReplicaId, Sequence, SessionId};
use crate::wire::limits::{
    READ_FRAMES, READ_FRAMES_SINGLE, READ_HEDGE_MAX, READ_HEDGE_MIN, READ_QUERIES_MAX, READ_TRIES,
};
use crate::wire::message::{AnswerBody, Answered, Read, ReadAnswer};
use crate::wire::signed_bytes::answer_digest;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What one replica answered one query.
#[derive(Clone, Debug)]
struct Vote {
    applied: Sequence,
    version: Sequence,
    digest: Digest,
    bytes: Option<Bytes>,
}

impl Vote {
    fn new(applied: Sequence, answered: Answered) -> Option<Self> {
        let (digest, bytes) = match answered.body {
            AnswerBody::Bytes(bytes) => (answer_digest(&bytes), Some(bytes)),
            AnswerBody::Digest(digest) => (digest, None),
            AnswerBody::NoRoom => return None,
        };
        // What changed after the last batch that was executed cannot have been seen.
        (answered.version <= applied).then_some(Self {
            applied,
            version: answered.version,
            digest,
            bytes,
        })
    }

    fn matches(&self, other: &Self) -> bool {
        self.version == other.version && self.digest == other.digest
    }
}

/// A query and what is said about it. Settled ones are kept, so that places stay.
#[derive(Debug)]
struct Asked {
    pending: Option<Pending>,
    votes: Vec<Vote>,
}

/// Queries that went out together.
#[derive(Debug)]
struct Flight {
    /// No answer from a state before this counts.
    floor: Sequence,
    needed: usize,
    asked: Vec<Asked>,
    of: BTreeSet<ReplicaId>,
    heard: BTreeSet<ReplicaId>,
    tries: u32,
    sent: Monotonic,
    due: Monotonic,
}

/// An answer that counts.
struct Accepted {
    bytes: Bytes,
    version: Sequence,
    /// The smallest state that is claimed for it.
    claimed: Sequence,
}

impl Flight {
    /// The answer that enough replicas give to a query, if one has given all of it.
    fn settled(&self, asked: &Asked, latest: &Vote) -> Option<Accepted> {
        let counts = |vote: &&Vote| vote.matches(latest) && vote.applied >= self.floor;
        let matching = || asked.votes.iter().filter(counts);
        if matching().count() < self.needed {
            return None;
        }
        let claimed = matching().map(|vote| vote.applied).min()?;
        let bytes = matching().find_map(|vote| vote.bytes.clone())?;
        Some(Accepted {
            bytes,
            version: latest.version,
            claimed,
        })
    }
}

/// All queries of a client that are not in the order.
#[derive(Debug)]
pub(super) struct Reads {
    waiting: VecDeque<Pending>,
    flights: BTreeMap<u64, Flight>,
    nonce: u64,
    /// Whom to ask first; who was late or differed is asked last.
    order: Vec<ReplicaId>,
    /// The newest state that this session is known to have been shown.
    seen: Sequence,
    /// The newest batch that a watcher was told of: whoever then looks has to see it, also where
    /// it has not been executed by a quorum yet.
    told: Sequence,
    /// When something of this session last went into the order.
    ordered: Monotonic,
    trip: RoundTrip,
    pub(super) accepted: u64,
    pub(super) fallen_back: u64,
}

impl Reads {
    pub(super) fn new(config: &ClientConfig) -> Self {
        let count = config.fault_model.replicas();
        let first = config.jitter_seed % u64::from(count);
        let turn = |step: u16| ReplicaId(((first + u64::from(step)) % u64::from(count)) as u16);
        Self {
            waiting: VecDeque::new(),
            flights: BTreeMap::new(),
            nonce: 0,
            order: (0..count).map(turn).collect(),
            seen: Sequence(0),
            told: Sequence(0),
            ordered: Monotonic(0),
            trip: RoundTrip::default(),
            accepted: 0,
            fallen_back: 0,
        }
    }

    /// The replicas are others from now on: what they were asked takes its place in the order.
    pub(super) fn enter(&mut self, config: &ClientConfig, queue: &mut Queue) {
        let flights = std::mem::take(&mut self.flights).into_values();
        for asked in flights.flat_map(|flight| flight.asked) {
            if let Some(pending) = asked.pending {
                self.fallen_back = self.fallen_back.saturating_add(1);
                queue.requeue(Pending {
                    kind: Kind::Query,
                    ..pending
                });
            }
        }
        self.order = Self::new(config).order;
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

    /// The session was told that this batch changed something.
    pub(super) fn told(&mut self, sequence: Sequence) {
        self.told = self.told.max(sequence);
        self.shown(sequence);
    }

    /// Something of the session goes into the order.
    pub(super) const fn ordered(&mut self, now: Monotonic) {
        self.ordered = now;
    }

    /// When something last did.
    pub(super) const fn last_ordered(&self) -> Monotonic {
        self.ordered
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.flights.is_empty()
    }

    /// Sends what waits, as far as there is room for frames.
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
        // A frame that had to be sent again is in nobody's way.
        let under_way = |flights: &BTreeMap<u64, Flight>| {
            flights.values().filter(|flight| flight.tries == 1).count()
        };
        while !self.waiting.is_empty() && under_way(&self.flights) < frames_max {
            let queries = self.next_frame(config);
            let Some(kind) = queries.first().map(|pending| pending.kind) else {
                return;
            };
            let model = &config.fault_model;
            let (floor, needed) = match kind {
                Kind::SessionRead => (self.seen, model.small()),
                _ => (self.told, model.medium()),
            };
            let asked = |pending| Asked {
                pending: Some(pending),
                votes: Vec::new(),
            };
            let flight = Flight {
                floor,
                needed: needed.into(),
                asked: queries.into_iter().map(asked).collect(),
                of: BTreeSet::new(),
                heard: BTreeSet::new(),
                tries: 1,
                sent: now,
                due: now,
            };
            self.send(config, session, connected, flight, now, effects);
        }
    }

    /// Queries of one kind that go together.
    fn next_frame(&mut self, config: &ClientConfig) -> Vec<Pending> {
        let count_max = config.bundle_max.clamp(1, READ_QUERIES_MAX);
        let mut room = speech::BUNDLE_BYTES_MAX;
        let mut queries: Vec<Pending> = Vec::new();
        while let Some(next) = self.waiting.front() {
            let cost = next
                .operation
                .len()
                .saturating_add(speech::OPERATION_OVERHEAD);
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
        mut flight: Flight,
        now: Monotonic,
        effects: &mut Effects,
    ) {
        self.nonce += 1;
        let count = if flight.tries == 1 {
            flight.needed
        } else {
            usize::MAX
        };
        let reachable = self.order.iter().filter(|it| connected.contains(it));
        let chosen: Vec<ReplicaId> = reachable.take(count).copied().collect();
        let turn = usize::try_from(self.nonce).unwrap_or_default() % chosen.len().max(1);
        let full = match chosen.get(turn) {
            Some(replica) if flight.tries == 1 => *replica,
            _ => Read::EVERYBODY,
        };
        let pending = flight
            .asked
            .iter()
            .filter_map(|asked| asked.pending.as_ref());
        let queries = pending.map(|pending| pending.operation.clone()).collect();
        let frame = speech::read(config, session, self.nonce, full, queries);
        for to in &chosen {
            let frame = frame.clone();
            effects.push(Effect::Send { to: *to, frame });
        }
        flight.of = chosen.into_iter().collect();
        flight.sent = now;
        flight.due = now.plus(
            self.trip
                .patience(READ_HEDGE_MAX, READ_HEDGE_MIN)
                .min(READ_HEDGE_MAX),
        );
        self.flights.insert(self.nonce, flight);
    }

    /// A replica answers.
    pub(super) fn answered(
        &mut self,
        from: ReplicaId,
        answer: ReadAnswer,
        now: Monotonic,
        queue: &mut Queue,
        effects: &mut Effects,
    ) {
        let Some(mut flight) = self.flights.remove(&answer.nonce) else {
            return;
        };
        if !flight.of.contains(&from) || !flight.heard.insert(from) {
            self.flights.insert(answer.nonce, flight);
            return;
        }
        let answers = answer.answers.unwrap_or_default();
        for (place, answered) in answers.into_iter().enumerate().take(flight.asked.len()) {
            let Some(vote) = Vote::new(answer.applied, answered) else {
                continue;
            };
            let Some(asked) = flight
                .asked
                .get_mut(place)
                .filter(|it| it.pending.is_some())
            else {
                continue;
            };
            asked.votes.push(vote.clone());
            let Some(asked) = flight.asked.get(place) else {
                continue;
            };
            if let Some(accepted) = flight.settled(asked, &vote) {
                self.accept(&mut flight, place, accepted, queue, effects);
            }
        }
        let open = flight.asked.iter().any(|asked| asked.pending.is_some());
        if open {
            if flight.heard.len() >= flight.of.len() {
                flight.due = now;
            }
            self.flights.insert(answer.nonce, flight);
        } else if flight.tries == 1 {
            self.trip.measured(now.since(flight.sent));
        }
    }

    fn accept(
        &mut self,
        flight: &mut Flight,
        place: usize,
        accepted: Accepted,
        queue: &mut Queue,
        effects: &mut Effects,
    ) {
        let Some(asked) = flight.asked.get_mut(place) else {
            return;
        };
        let Some(pending) = asked.pending.take() else {
            return;
        };
        let state = match pending.kind {
            Kind::SessionRead => accepted.claimed,
            _ => accepted.version,
        };
        self.seen = self.seen.max(state);
        self.accepted = self.accepted.saturating_add(1);
        queue.deliver(&pending, accepted.bytes, accepted.version, effects);
    }

    /// What has waited long enough is asked of everybody; what was is put into the order.
    pub(super) fn hedge(
        &mut self,
        config: &ClientConfig,
        session: SessionId,
        connected: &BTreeSet<ReplicaId>,
        now: Monotonic,
        queue: &mut Queue,
        effects: &mut Effects,
    ) {
        let is_due = |(nonce, flight): (&u64, &Flight)| (flight.due <= now).then_some(*nonce);
        let due: Vec<u64> = self.flights.iter().filter_map(is_due).collect();
        for nonce in due {
            let Some(mut flight) = self.flights.remove(&nonce) else {
                continue;
            };
            let late = |id: &ReplicaId| flight.of.contains(id) && !flight.heard.contains(id);
            let differ = !self.order.iter().any(late);
            // A stable sort: who was late goes behind all others, among whom nothing changes.
            self.order.sort_by_key(late);
            if differ && flight.tries == 1 {
                self.order.rotate_left(1);
            }
            flight.asked.retain(|asked| asked.pending.is_some());
            if flight.tries < READ_TRIES {
                flight.tries += 1;
                flight.heard.clear();
                for asked in &mut flight.asked {
                    asked.votes.clear();
                }
                self.send(config, session, connected, flight, now, effects);
                continue;
            }
            for pending in flight.asked.into_iter().filter_map(|asked| asked.pending) {
                self.fallen_back = self.fallen_back.saturating_add(1);
                queue.requeue(Pending {
                    kind: Kind::Query,
                    ..pending
                });
            }
        }
    }

    /// Takes out what has passed its deadline.
    pub(super) fn take_expired(&mut self, now: Monotonic) -> Vec<Pending> {
        let passed = |pending: &Pending| pending.deadline <= now;
        let mut expired = Vec::new();
        for flight in self.flights.values_mut() {
            let slots = flight.asked.iter_mut().map(|asked| &mut asked.pending);
            expired.extend(slots.filter_map(|slot| slot.take_if(|it| passed(it))));
        }
        self.flights
            .retain(|_, flight| flight.asked.iter().any(|asked| asked.pending.is_some()));
        if self.waiting.iter().any(passed) {
            let (out, stay) = self.waiting.drain(..).partition(passed);
            self.waiting = stay;
            expired.extend::<VecDeque<Pending>>(out);
        }
        expired
    }

    /// Takes out everything, for the session has ended.
    pub(super) fn take_all(&mut self) -> Vec<Pending> {
        let flights = std::mem::take(&mut self.flights).into_values();
        let asked = flights.flat_map(|flight| flight.asked);
        let mut all: Vec<Pending> = asked.filter_map(|asked| asked.pending).collect();
        all.extend(self.waiting.drain(..));
        (self.seen, self.told) = (Sequence(0), Sequence(0));
        all
    }

    /// The next instant at which something has to be done.
    pub(super) fn next_deadline(&self) -> Option<Monotonic> {
        let due = self.flights.values().map(|flight| flight.due);
        let waiting = self.waiting.iter().map(|pending| pending.deadline).min();
        due.chain(waiting).min()
    }
}
