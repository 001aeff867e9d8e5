//! Verified requests that wait to be ordered.
//!
//! Each session has a queue of its own, bounded by the credit that the session was opened with, and
//! is served in turn. Of a lane at most one request enters a batch, the one with the smallest
//! number, since the next one is passed over at execution unless its predecessor ran.
//!
//! Attempts to open a session come from principals that nobody may know yet: they have a room of
//! their own, a few for each principal, so that they crowd nobody out.

use crate::identity::{ConnectionId, Digest, Lane, Monotonic, PublicKey, RequestNumber, SessionId};
use crate::service::Credit;
use crate::wire::Envelope;
use crate::wire::limits::{
    BATCH_BYTES_MAX, BATCH_OPENS_MAX, BATCH_REQUESTS_MAX, LANE_IN_FLIGHT, OPEN_CONNECTIONS_MAX,
    OPENS_PER_PRINCIPAL_MAX, OPENS_WAITING_MAX, POOL_BYTES_MAX, SESSION_CONNECTIONS_MAX,
};
use crate::wire::message::{Message, Outcome, Reply};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What became of a request that was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// It waits now.
    New,
    /// It waited already.
    Known,
    /// Beyond the session's credit or the pool's room.
    Busy,
    /// Another request with the same session, lane and number waits: the first one counts.
    Conflict,
    /// Its session is not open here, or has no such lane.
    NoSession,
}

/// A request in the pool.
#[derive(Clone, Debug)]
struct Waiting {
    body: Arc<Envelope>,
    since: Monotonic,
    arrival: u64,
}

/// Where a request's answer goes and what it counts against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Lane(SessionId, Lane, RequestNumber),
    Close(SessionId),
    Open(PublicKey),
}

#[derive(Clone, Debug)]
struct SessionQueue {
    credit: Credit,
    bytes: usize,
    waiting: BTreeMap<(Lane, RequestNumber), Digest>,
    close: Option<Digest>,
    connections: Vec<ConnectionId>,
}

#[derive(Clone, Debug)]
struct Opening {
    principal: PublicKey,
    digest: Digest,
    connections: Vec<ConnectionId>,
}

/// Verified requests that wait to be ordered.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    waiting: BTreeMap<Digest, Waiting>,
    by_arrival: BTreeMap<u64, Digest>,
    sessions: BTreeMap<SessionId, SessionQueue>,
    openings: BTreeMap<PublicKey, Opening>,
    bytes: usize,
    arrivals: u64,
    /// The session that was served last.
    turn: SessionId,
}

fn place_of(body: &Envelope) -> Option<Place> {
    match body.message() {
        Message::Request(request) => {
            Some(Place::Lane(request.session, request.lane, request.number))
        }
        Message::CloseSession(close) => Some(Place::Close(close.session)),
        Message::OpenSession(open) => Some(Place::Open(open.session_key)),
        _ => None,
    }
}

fn take(
    waiting: &mut BTreeMap<Digest, Waiting>,
    by_arrival: &mut BTreeMap<u64, Digest>,
    bytes: &mut usize,
    digest: &Digest,
) {
    if let Some(gone) = waiting.remove(digest) {
        *bytes = bytes.saturating_sub(gone.body.frame().len());
        by_arrival.remove(&gone.arrival);
    }
}

/// Moves `newest` to the end of `connections` and keeps the last `most`.
fn remember(connections: &mut Vec<ConnectionId>, newest: ConnectionId, most: usize) {
    connections.retain(|known| *known != newest);
    connections.push(newest);
    if connections.len() > most {
        connections.remove(0);
    }
}

impl Pool {
    /// A session is open from now on.
    pub fn session_opened(&mut self, id: SessionId, key: &PublicKey, credit: Credit) {
        let connections = match self.openings.remove(key) {
            Some(opening) => {
                self.take(&opening.digest);
                opening.connections
            }
            None => Vec::new(),
        };
        let queue = SessionQueue {
            credit,
            bytes: 0,
            waiting: BTreeMap::new(),
            close: None,
            connections,
        };
        self.sessions.entry(id).or_insert(queue);
    }

    /// A session is no more, and neither is what waited for it.
    pub fn session_closed(&mut self, id: SessionId) {
        if let Some(queue) = self.sessions.remove(&id) {
            for digest in queue.waiting.values().chain(queue.close.iter()) {
                self.take(digest);
            }
        }
    }

    /// Takes a verified request in, if there is room.
    pub fn offer(
        &mut self,
        body: &Arc<Envelope>,
        from: Option<ConnectionId>,
        now: Monotonic,
    ) -> Offer {
        let digest = body.digest();
        let length = body.frame().len();
        let known = self.waiting.contains_key(&digest);
        let full = self.bytes.saturating_add(length) > POOL_BYTES_MAX;
        let offer = match (place_of(body), body.message()) {
            (Some(Place::Open(key)), Message::OpenSession(open)) => {
                self.offer_opening(key, open.principal, digest, from, full)
            }
            (Some(Place::Lane(id, lane, number)), _) => {
                let Some(queue) = self.sessions.get_mut(&id) else {
                    return Offer::NoSession;
                };
                if let Some(from) = from {
                    remember(&mut queue.connections, from, SESSION_CONNECTIONS_MAX);
                }
                if lane.0 >= queue.credit.lanes {
                    return Offer::NoSession;
                }
                let in_lane = queue
                    .waiting
                    .range((lane, RequestNumber(0))..=(lane, RequestNumber(u64::MAX)));
                let in_lane = in_lane.count() as u64;
                match queue.waiting.get(&(lane, number)) {
                    Some(first) if *first == digest => Offer::Known,
                    Some(_) => Offer::Conflict,
                    None if full
                        || in_lane >= LANE_IN_FLIGHT
                        || queue.bytes + length > queue.credit.bytes as usize =>
                    {
                        Offer::Busy
                    }
                    None => {
                        queue.bytes += length;
                        queue.waiting.insert((lane, number), digest);
                        Offer::New
                    }
                }
            }
            (Some(Place::Close(id)), _) => {
                let Some(queue) = self.sessions.get_mut(&id) else {
                    return Offer::NoSession;
                };
                if let Some(from) = from {
                    remember(&mut queue.connections, from, SESSION_CONNECTIONS_MAX);
                }
                if queue.close.is_some() {
                    Offer::Known
                } else {
                    queue.close = Some(digest);
                    Offer::New
                }
            }
            _ => return Offer::Conflict,
        };
        if offer == Offer::New && !known {
            let arrival = self.arrivals;
            self.arrivals += 1;
            self.bytes += length;
            self.by_arrival.insert(arrival, digest);
            self.waiting.insert(
                digest,
                Waiting {
                    body: Arc::clone(body),
                    since: now,
                    arrival,
                },
            );
        }
        offer
    }

    fn offer_opening(
        &mut self,
        key: PublicKey,
        principal: PublicKey,
        digest: Digest,
        from: Option<ConnectionId>,
        full: bool,
    ) -> Offer {
        if let Some(opening) = self.openings.get_mut(&key) {
            if let Some(from) = from {
                remember(&mut opening.connections, from, OPEN_CONNECTIONS_MAX);
            }
            return if opening.digest == digest {
                Offer::Known
            } else {
                Offer::Conflict
            };
        }
        let same = self
            .openings
            .values()
            .filter(|opening| opening.principal == principal);
        let crowded = self.openings.len() >= OPENS_WAITING_MAX;
        if full || crowded || same.count() >= OPENS_PER_PRINCIPAL_MAX {
            return Offer::Busy;
        }
        let connections = from.into_iter().collect();
        self.openings.insert(
            key,
            Opening {
                principal,
                digest,
                connections,
            },
        );
        Offer::New
    }

    /// Where the answers of a session go: its newest connections.
    #[must_use]
    pub fn connections(&self, id: SessionId) -> &[ConnectionId] {
        self.sessions
            .get(&id)
            .map_or(&[], |queue| &queue.connections)
    }

    /// A connection asked for an answer of a session: later ones go there as well.
    pub fn listens(&mut self, reply: &Reply, connection: ConnectionId) {
        let id = match &reply.outcome {
            Outcome::SessionOpened { session, .. } => *session,
            _ => reply.session,
        };
        if let Some(queue) = self.sessions.get_mut(&id) {
            remember(&mut queue.connections, connection, SESSION_CONNECTIONS_MAX);
        }
    }

    /// Who waits for the session with this key to be opened.
    #[must_use]
    pub fn opening_connections(&self, key: &PublicKey) -> &[ConnectionId] {
        self.openings
            .get(key)
            .map_or(&[], |opening| &opening.connections)
    }

    /// A connection is gone.
    pub fn disconnected(&mut self, connection: ConnectionId) {
        for queue in self.sessions.values_mut() {
            queue.connections.retain(|known| *known != connection);
        }
        for opening in self.openings.values_mut() {
            opening.connections.retain(|known| *known != connection);
        }
    }

    /// A request that waits.
    #[must_use]
    pub fn get(&self, digest: &Digest) -> Option<&Arc<Envelope>> {
        self.waiting.get(digest).map(|waiting| &waiting.body)
    }

    /// A request was executed or answered: it waits no more, and neither does anything else with
    /// its number or an earlier one in its lane, which will never run.
    pub fn settle(&mut self, body: &Envelope) {
        match place_of(body) {
            Some(Place::Lane(id, lane, number)) => {
                let Some(queue) = self.sessions.get_mut(&id) else {
                    return;
                };
                let done = (lane, RequestNumber(0))..=(lane, number);
                let done: Vec<_> = queue
                    .waiting
                    .range(done)
                    .map(|(at, digest)| (*at, *digest))
                    .collect();
                for (at, digest) in done {
                    queue.waiting.remove(&at);
                    let length = self
                        .waiting
                        .get(&digest)
                        .map_or(0, |one| one.body.frame().len());
                    queue.bytes = queue.bytes.saturating_sub(length);
                    take(
                        &mut self.waiting,
                        &mut self.by_arrival,
                        &mut self.bytes,
                        &digest,
                    );
                }
                return;
            }
            Some(Place::Close(id)) => {
                if let Some(queue) = self.sessions.get_mut(&id)
                    && queue.close == Some(body.digest())
                {
                    queue.close = None;
                }
            }
            Some(Place::Open(key)) => {
                let digest = body.digest();
                let same = |opening: &Opening| opening.digest == digest;
                if self.openings.get(&key).is_some_and(same) {
                    self.openings.remove(&key);
                }
            }
            None => {}
        }
        self.take(&body.digest());
    }

    /// A request was passed over at execution: it alone leaves, until its client sends it again.
    pub fn withdraw(&mut self, digest: &Digest) {
        if let Some(Place::Lane(id, lane, number)) =
            self.get(digest).and_then(|body| place_of(body))
            && let Some(queue) = self.sessions.get_mut(&id)
            && queue.waiting.remove(&(lane, number)).is_some()
        {
            let length = self
                .waiting
                .get(digest)
                .map_or(0, |one| one.body.frame().len());
            queue.bytes = queue.bytes.saturating_sub(length);
            self.take(digest);
        }
    }

    fn take(&mut self, digest: &Digest) {
        take(
            &mut self.waiting,
            &mut self.by_arrival,
            &mut self.bytes,
            digest,
        );
    }
    /// Since when the request that came first has been waiting.
    #[must_use]
    pub fn oldest(&self) -> Option<(Monotonic, Digest)> {
        let digest = self.by_arrival.values().next()?;
        self.waiting
            .get(digest)
            .map(|waiting| (waiting.since, *digest))
    }

    /// As which request, counted from the start, this one came here.
    #[must_use]
    pub fn arrival(&self, digest: &Digest) -> Option<u64> {
        self.waiting.get(digest).map(|waiting| waiting.arrival)
    }

    /// Whether a session is open.
    #[must_use]
    pub fn is_open(&self, id: SessionId) -> bool {
        self.sessions.contains_key(&id)
    }

    /// How many sessions are open.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// How many requests wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// How many bytes wait.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// What waits, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Envelope>> {
        let digests = self.by_arrival.values();
        digests.filter_map(|digest| self.get(digest))
    }

    /// Chooses the next batch: sessions in turn, of a lane the smallest number. What is chosen goes
    /// on waiting until it is settled.
    pub fn select(&mut self) -> Vec<Arc<Envelope>> {
        let mut chosen = Selection::default();
        for opening in self.openings.values().take(BATCH_OPENS_MAX) {
            chosen.add(self.get(&opening.digest));
        }
        let after = self
            .sessions
            .range(SessionId(self.turn.0.saturating_add(1))..);
        let order: Vec<SessionId> = after
            .chain(self.sessions.range(..=self.turn))
            .map(|(id, _)| *id)
            .collect();
        // One request of each session a round, so that no session fills the batch alone.
        let mut lanes_used: BTreeSet<(SessionId, Lane)> = BTreeSet::new();
        let mut active: Vec<SessionId> =
            order.into_iter().filter(|id| self.has_work(*id)).collect();
        while !active.is_empty() && !chosen.full {
            let mut remaining = Vec::with_capacity(active.len());
            for id in active {
                let Some(digest) = self.next_of(id, &lanes_used) else {
                    continue;
                };
                let body = self.get(&digest.1);
                if !chosen.add(body) {
                    break;
                }
                self.turn = id;
                if let Some(lane) = digest.0 {
                    lanes_used.insert((id, lane));
                    remaining.push(id);
                }
            }
            active = remaining;
        }
        chosen.bodies
    }

    fn has_work(&self, id: SessionId) -> bool {
        self.sessions
            .get(&id)
            .is_some_and(|queue| !queue.waiting.is_empty() || queue.close.is_some())
    }

    /// The next request of a session for a batch that has used some lanes; closing comes last.
    fn next_of(
        &self,
        id: SessionId,
        used: &BTreeSet<(SessionId, Lane)>,
    ) -> Option<(Option<Lane>, Digest)> {
        let queue = self.sessions.get(&id)?;
        let mut last = None;
        for ((lane, _), digest) in &queue.waiting {
            // Only the first of a lane counts: the keys are sorted by lane, then number.
            if last.replace(*lane) != Some(*lane) && !used.contains(&(id, *lane)) {
                return Some((Some(*lane), *digest));
            }
        }
        if queue.waiting.is_empty() {
            queue.close.map(|digest| (None, digest))
        } else {
            None
        }
    }
}

/// A batch being filled.
#[derive(Default)]
struct Selection {
    bodies: Vec<Arc<Envelope>>,
    bytes: usize,
    full: bool,
}

impl Selection {
    /// Adds a request, unless the batch is full.
    fn add(&mut self, body: Option<&Arc<Envelope>>) -> bool {
        let Some(body) = body else {
            return true;
        };
        let bytes = self.bytes + body.frame().len();
        if self.full || self.bodies.len() >= BATCH_REQUESTS_MAX || bytes > BATCH_BYTES_MAX {
            self.full = true;
            return false;
        }
        self.bytes = bytes;
        self.bodies.push(Arc::clone(body));
        true
    }
}

#[cfg(test)]
mod tests;
