//! Verified requests that wait to be ordered.
//!
//! Each session has a queue of its own, bounded by the credit that the session was opened with, and
//! is served in turn. Of a lane at most one request enters a batch, the one with the smallest
//! number, since the next one is passed over at execution unless its predecessor ran. What has been
//! chosen *flies* and is not chosen again: batches are executed in their order, so the next request
//! of a lane may be in the next batch. When a view ends, what flew may be chosen again.
//!
//! The pool as a whole needs no bound of its own: of a session there are requests within its credit
//! and one attempt to close it, and the credit of all sessions together is what a replica has to
//! have room for. So nobody's request within credit is ever turned away because of somebody else's.
//!
//! Attempts to open a session have a room of their own, so that they crowd nobody out: `openings`.

mod openings;
mod session_queue;
mod shelf;

use crate::execution::Opened;
use crate::identity::{
    ConnectionId, Digest, Lane, Monotonic, ReplicaId, RequestNumber, Sequence, SessionId,
};
use crate::wire::Envelope;
use crate::wire::limits::{
    BATCH_BYTES_MAX, BATCH_OPENS_MAX, BATCH_REQUESTS_MAX, SESSION_CONNECTIONS_MAX, WINDOW,
};
use crate::wire::message::{Message, OpenSession, Outcome, Reply};
use openings::{Name, Openings, Taken};
use session_queue::SessionQueue;
use shelf::Shelf;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What became of a request that was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// It waits now.
    New,
    /// It waited already.
    Known,
    /// Beyond the session's credit, or the room for openings.
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
    /// Nothing for what nobody is owed: a stranger's attempt to open a session.
    arrival: Option<u64>,
    /// Whether it has been proposed.
    flies: bool,
    /// The peer that forwarded what had no place here.
    shelved: Option<ReplicaId>,
}

/// Where a request's answer goes and what it counts against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Lane(SessionId, Lane, RequestNumber),
    Close(SessionId),
    Open(Name),
}

/// Verified requests that wait to be ordered.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    waiting: BTreeMap<Digest, Waiting>,
    by_arrival: BTreeMap<u64, Digest>,
    /// Those that have not been proposed.
    ready: BTreeMap<u64, Digest>,
    ready_bytes: usize,
    /// Sessions that have ended, and at which sequence, for as long as a batch may name them.
    ended: BTreeMap<SessionId, Sequence>,
    sessions: BTreeMap<SessionId, SessionQueue>,
    openings: Openings,
    shelf: Shelf,
    bytes: usize,
    arrivals: u64,
    /// The sessions for which something waits, in the order of their turns: each has the place that
    /// it took when it began to wait or was last served.
    turns: BTreeMap<u64, SessionId>,
    places: u64,
}

fn place_of(body: &Envelope) -> Option<Place> {
    match body.message() {
        Message::Request(request) => {
            Some(Place::Lane(request.session, request.lane, request.number))
        }
        Message::CloseSession(close) => Some(Place::Close(close.session)),
        Message::OpenSession(open) => Some(Place::Open((open.principal, open.session_key))),
        _ => None,
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
    pub fn session_opened(&mut self, opened: &Opened) {
        let connections = match self.openings.remove(&(opened.principal, opened.key)) {
            Some((digest, connections)) => {
                self.take(&digest);
                connections
            }
            None => Vec::new(),
        };
        let queue = SessionQueue::new(opened.credit, connections);
        self.sessions.entry(opened.id).or_insert(queue);
    }

    /// A session ended with the batch at this sequence, and so did what waited for it.
    pub fn session_closed(&mut self, id: SessionId, at: Sequence) {
        self.ended.insert(id, at);
        if let Some(queue) = self.sessions.remove(&id) {
            if let Some(place) = queue.place {
                self.turns.remove(&place);
            }
            for digest in queue.digests() {
                self.take(digest);
            }
        }
    }

    /// No batch may name this session any more.
    pub fn session_forgotten(&mut self, id: SessionId) {
        self.ended.remove(&id);
    }

    /// Whether a batch at this sequence may hold a request of this session: it is open, or was
    /// after a batch less than a window before, which is when a leader may have chosen it. All
    /// replicas agree on that, however far they have executed.
    #[must_use]
    pub fn admits(&self, id: SessionId, sequence: Sequence) -> bool {
        let recent = |at: &Sequence| at.0.saturating_add(WINDOW as u64) > sequence.0;
        self.is_open(id) || self.ended.get(&id).is_some_and(recent)
    }

    /// Takes a verified request in, if there is room.
    pub fn offer(
        &mut self,
        body: &Arc<Envelope>,
        from: Option<ConnectionId>,
        now: Monotonic,
    ) -> Offer {
        self.offer_as(body, from, now, true)
    }

    /// Takes in an attempt to open a session for somebody whom the service would not have as
    /// things stand, if there is room.
    pub fn offer_stranger(
        &mut self,
        body: &Arc<Envelope>,
        from: Option<ConnectionId>,
        now: Monotonic,
    ) -> Offer {
        self.offer_as(body, from, now, false)
    }

    fn offer_as(
        &mut self,
        body: &Arc<Envelope>,
        from: Option<ConnectionId>,
        now: Monotonic,
        welcome: bool,
    ) -> Offer {
        let digest = body.digest();
        let length = body.frame().len();
        let mut flies = false;
        let offer = match (place_of(body), body.message()) {
            (Some(Place::Open(name)), _) => {
                match self.openings.offer(name, digest, from, welcome) {
                    Taken::New(gave_way) => {
                        if let Some(gave_way) = gave_way {
                            self.take(&gave_way);
                        }
                        Offer::New
                    }
                    Taken::Welcomed => {
                        flies = self.waiting.get(&digest).is_some_and(|it| it.flies);
                        self.take(&digest);
                        Offer::New
                    }
                    Taken::Known => Offer::Known,
                    Taken::Busy => Offer::Busy,
                    Taken::Conflict => Offer::Conflict,
                }
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
                match queue.get(lane, number) {
                    Some(first) if first == digest => Offer::Known,
                    Some(_) => Offer::Conflict,
                    None => match queue.insert(lane, number, digest, length) {
                        None => Offer::Busy,
                        Some(gave_way) => {
                            gave_way.iter().for_each(|digest| self.take(digest));
                            self.give_place(id);
                            Offer::New
                        }
                    },
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
                    self.give_place(id);
                    Offer::New
                }
            }
            _ => return Offer::Conflict,
        };
        if offer == Offer::New && !self.waiting.contains_key(&digest) {
            let arrival = welcome.then_some(self.arrivals);
            self.bytes += length;
            if let Some(arrival) = arrival {
                self.arrivals += 1;
                self.by_arrival.insert(arrival, digest);
                if !flies {
                    self.ready.insert(arrival, digest);
                    self.ready_bytes += length;
                }
            }
            self.waiting.insert(
                digest,
                Waiting {
                    body: Arc::clone(body),
                    since: now,
                    arrival,
                    flies,
                    shelved: None,
                },
            );
        }
        offer
    }

    /// Gives a session a place if something waits and it has none, and takes it if nothing does.
    fn give_place(&mut self, id: SessionId) {
        let Some(queue) = self.sessions.get_mut(&id) else {
            return;
        };
        match queue.place {
            None if queue.has_work() => {
                self.places += 1;
                queue.place = Some(self.places);
                self.turns.insert(self.places, id);
            }
            Some(place) if !queue.has_work() => {
                queue.place = None;
                self.turns.remove(&place);
            }
            _ => {}
        }
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

    /// Who waits for this session to be opened.
    #[must_use]
    pub fn opening_connections(&self, open: &OpenSession) -> &[ConnectionId] {
        self.openings
            .connections(&(open.principal, open.session_key))
    }

    /// A connection is gone.
    pub fn disconnected(&mut self, connection: ConnectionId) {
        for queue in self.sessions.values_mut() {
            queue.connections.retain(|known| *known != connection);
        }
        self.openings.disconnected(connection);
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
                for digest in queue.remove_up_to(lane, number) {
                    self.take(&digest);
                }
                self.give_place(id);
                return;
            }
            Some(Place::Close(id)) => {
                if let Some(queue) = self.sessions.get_mut(&id)
                    && queue.close == Some(body.digest())
                {
                    queue.close = None;
                    queue.closing = false;
                    self.give_place(id);
                }
            }
            Some(Place::Open(name)) if self.openings.digest(&name) == Some(body.digest()) => {
                self.openings.remove(&name);
            }
            Some(Place::Open(_)) | None => {}
        }
        self.take(&body.digest());
    }

    /// A request was passed over at execution: it alone leaves, until its client sends it again.
    pub fn withdraw(&mut self, digest: &Digest) {
        let body = self.get(digest).cloned();
        if body.is_some_and(|body| self.unshelve(&body)) {
            return;
        }
        if let Some(Place::Lane(id, lane, number)) =
            self.get(digest).and_then(|body| place_of(body))
            && let Some(queue) = self.sessions.get_mut(&id)
            && queue.remove(lane, number).is_some()
        {
            self.take(digest);
            self.give_place(id);
        }
    }

    fn take(&mut self, digest: &Digest) {
        if let Some(gone) = self.waiting.remove(digest) {
            self.bytes = self.bytes.saturating_sub(gone.body.frame().len());
            if let Some(arrival) = gone.arrival {
                self.by_arrival.remove(&arrival);
                if self.ready.remove(&arrival).is_some() {
                    self.ready_bytes -= gone.body.frame().len();
                }
            }
            if let Some(peer) = gone.shelved {
                self.shelf.taken(peer, digest, gone.body.frame().len());
            }
        }
    }

    /// A request has been proposed: it is not chosen again in this view.
    pub fn fly(&mut self, digest: &Digest) {
        let Some(waiting) = self.waiting.get_mut(digest).filter(|it| !it.flies) else {
            return;
        };
        waiting.flies = true;
        let arrival = waiting.arrival.as_ref();
        if arrival.is_some_and(|arrival| self.ready.remove(arrival).is_some()) {
            self.ready_bytes -= waiting.body.frame().len();
        }
        match place_of(&waiting.body) {
            Some(Place::Lane(id, lane, number)) => {
                if let Some(queue) = self.sessions.get_mut(&id) {
                    queue.fly(lane, number, digest);
                }
                self.give_place(id);
            }
            Some(Place::Close(id)) => {
                if let Some(queue) = self.sessions.get_mut(&id) {
                    queue.closing = true;
                }
                self.give_place(id);
            }
            Some(Place::Open(_)) if waiting.shelved.is_some() => self.shelf.fly(digest),
            Some(Place::Open(name)) => self.openings.fly(&name),
            None => {}
        }
    }

    /// The view is over: what was proposed in it may be chosen again.
    pub fn land(&mut self) {
        self.openings.land();
        let mut landed = Vec::new();
        for waiting in self.waiting.values_mut().filter(|it| it.flies) {
            waiting.flies = false;
            if let Some(arrival) = waiting.arrival {
                self.ready.insert(arrival, waiting.body.digest());
                self.ready_bytes += waiting.body.frame().len();
            }
            match place_of(&waiting.body) {
                Some(Place::Lane(id, ..) | Place::Close(id)) => landed.push(id),
                Some(Place::Open(_)) | None => {}
            }
        }
        for id in landed {
            if let Some(queue) = self.sessions.get_mut(&id) {
                queue.land();
            }
            self.give_place(id);
        }
    }

    /// Since when the request that came first, of those that have not been proposed, has been
    /// waiting.
    #[must_use]
    pub fn oldest_ready(&self) -> Option<Monotonic> {
        let digest = self.ready.values().next()?;
        self.waiting.get(digest).map(|waiting| waiting.since)
    }

    /// Whether what has not been proposed would fill a batch.
    #[must_use]
    pub fn fills_a_batch(&self) -> bool {
        self.ready.len() >= BATCH_REQUESTS_MAX || self.ready_bytes >= BATCH_BYTES_MAX
    }

    /// As which request, counted from the start, this one came here. Nothing for a stranger's.
    #[must_use]
    pub fn arrival(&self, digest: &Digest) -> Option<u64> {
        self.waiting.get(digest)?.arrival
    }

    /// Since when a request has been waiting.
    #[must_use]
    pub fn since(&self, digest: &Digest) -> Option<Monotonic> {
        self.waiting.get(digest).map(|waiting| waiting.since)
    }

    /// How many requests wait that a leader has to order.
    #[must_use]
    pub fn owed(&self) -> usize {
        self.by_arrival.len()
    }

    /// How many requests have come here since the start.
    #[must_use]
    pub const fn arrivals(&self) -> u64 {
        self.arrivals
    }

    /// Whether a session is open.
    #[must_use]
    pub fn is_open(&self, id: SessionId) -> bool {
        self.sessions.contains_key(&id)
    }

    /// The sessions that a batch may name: open ones, and those that ended recently.
    pub fn session_ids(&self) -> impl Iterator<Item = SessionId> {
        self.sessions.keys().chain(self.ended.keys()).copied()
    }

    /// How many sessions are open.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Whether nothing waits that a leader has to order; strangers may have to wait.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_arrival.is_empty()
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

    /// What waits and has to be ordered, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Envelope>> {
        let digests = self.by_arrival.values();
        digests.filter_map(|digest| self.get(digest))
    }

    /// Chooses the next batch: sessions in turn, of each one request a round and of each lane one
    /// request, the one with the smallest number. What is chosen flies: it goes on waiting until it
    /// is settled, and is not chosen again.
    ///
    /// Whoever is served goes to the end, so the next batch goes on where this one ended. Cost: a
    /// few steps of O(log sessions) for each request that is chosen, and for each session among
    /// them one more to see that all its lanes are in; sessions that are not served and those for
    /// which nothing waits cost nothing.
    pub fn select(&mut self, now: Monotonic) -> Vec<Arc<Envelope>> {
        let mut batch = Selection::default();
        for digest in self.openings.select(BATCH_OPENS_MAX, now) {
            batch.add(self.get(&digest));
        }
        for digest in self.shelf.openings() {
            batch.add(self.get(&digest));
        }
        let mut chosen: BTreeMap<SessionId, usize> = BTreeMap::new();
        let mut from = 0;
        while let Some((place, id)) = self.turns.range(from..).next().map(|(at, id)| (*at, *id)) {
            from = place.saturating_add(1);
            let times = chosen.get(&id).copied().unwrap_or(0);
            let next = self.sessions.get(&id).and_then(|queue| queue.next(times));
            let Some((lane, digest)) = next else {
                continue;
            };
            if !batch.add(self.get(&digest)) {
                break;
            }
            chosen.insert(id, times.saturating_add(1));
            self.turns.remove(&place);
            self.places += 1;
            self.turns.insert(self.places, id);
            if let Some(queue) = self.sessions.get_mut(&id) {
                queue.served(lane);
                queue.place = Some(self.places);
            }
        }
        for body in &batch.bodies {
            self.fly(body.digest_ref());
        }
        batch.bodies
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
