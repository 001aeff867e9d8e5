//! Verified requests that wait to be ordered.
//!
//! Each session has a queue of its own, bounded by the credit that it was opened with, and sessions
//! are served in turn. At most one request of a lane enters a batch, the one with the smallest
//! number, since the next one is passed over at execution unless its predecessor ran. A chosen
//! request is marked as *proposed* and is not chosen again. Batches are executed in their order, so
//! the next request of a lane may be in the next batch. When a view ends, its proposed requests may
//! be chosen again.
//!
//! The pool as a whole needs no bound of its own: a session has requests within its credit and one
//! attempt to close it, and a replica has capacity for the credit of all sessions together. So a
//! request within its session's credit is never refused because of another session.
//!
//! Attempts to open a session have a capacity of their own, so that they displace no requests:
//! `openings`.
//!
//! All pending requests are in one list, sorted by arrival (`queue`); sessions refer to their
//! requests by handles into it (`session_queue`).

mod forwarded;
mod openings;
mod queue;
mod selection;
mod session_queue;

use crate::execution::Opened;
use crate::identity::{ConnectionId, Digest, Lane, Monotonic, RequestNumber, Sequence, SessionId};
use crate::wire::Envelope;
use crate::wire::limits::{BATCH_BYTES_MAX, BATCH_REQUESTS_MAX, SESSION_CONNECTIONS_MAX, WINDOW};
use crate::wire::message::{Message, OpenSession, Outcome, Reply};
use forwarded::Forwarded;
use openings::{Name, Openings, Taken};
use queue::{Handle, Queue};
use session_queue::SessionQueue;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The result of offering a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// The request is pending now.
    New,
    /// The request was pending already.
    Known,
    /// It exceeds the session's credit, or the capacity for openings.
    Busy,
    /// Another request with the same session, lane and number is pending: the first one counts.
    Conflict,
    /// Its session is not open here, or has no such lane.
    NoSession,
}

/// What a request belongs to and counts against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PoolKey {
    Lane(SessionId, Lane, RequestNumber),
    Close(SessionId),
    Open(Name),
}

/// Verified requests that wait to be ordered.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    queue: Queue,
    /// Sessions that have ended, with the sequence, for as long as a batch may name them.
    ended: BTreeMap<SessionId, Sequence>,
    sessions: BTreeMap<SessionId, SessionQueue>,
    openings: Openings,
    forwarded: Forwarded,
    /// The sessions that have pending requests, in the order of their turns. Each has the place
    /// that it got when it began to wait or was last served.
    turns: BTreeMap<u64, SessionId>,
    places: u64,
}

fn pool_key(body: &Envelope) -> Option<PoolKey> {
    match body.message() {
        Message::Request(request) => {
            Some(PoolKey::Lane(request.session, request.lane, request.number))
        }
        Message::CloseSession(close) => Some(PoolKey::Close(close.session)),
        Message::OpenSession(open) => Some(PoolKey::Open((open.principal, open.session_key))),
        _ => None,
    }
}

/// Moves `newest` to the end of `connections` and keeps the last `most`.
fn remember(connections: &mut Vec<ConnectionId>, newest: ConnectionId, most: usize) {
    if connections.last() == Some(&newest) {
        return;
    }
    connections.retain(|known| *known != newest);
    connections.push(newest);
    if connections.len() > most {
        connections.remove(0);
    }
}

impl Pool {
    /// Adds a session that was opened.
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

    /// Removes a session that ended with the batch at this sequence, with its pending requests.
    pub fn session_closed(&mut self, id: SessionId, at: Sequence) {
        self.ended.insert(id, at);
        if let Some(queue) = self.sessions.remove(&id) {
            if let Some(place) = queue.place {
                self.turns.remove(&place);
            }
            for handle in queue.handles() {
                self.take_at(handle);
            }
            for digest in queue.others() {
                self.take(&digest);
            }
        }
    }

    /// No batch may name this session any more.
    pub fn session_forgotten(&mut self, id: SessionId) {
        self.ended.remove(&id);
    }

    /// Whether a batch at this sequence may hold a request of this session. It may if the session
    /// is open, or was open after a batch less than a window before, since a leader may have chosen
    /// the request then. All replicas agree on this, however far they have executed.
    #[must_use]
    pub fn admits(&self, id: SessionId, sequence: Sequence) -> bool {
        let recent = |at: &Sequence| at.0.saturating_add(WINDOW as u64) > sequence.0;
        self.is_open(id) || self.ended.get(&id).is_some_and(recent)
    }

    /// Accepts a verified request, if there is capacity.
    pub fn offer(
        &mut self,
        body: &Arc<Envelope>,
        from: Option<ConnectionId>,
        now: Monotonic,
    ) -> Offer {
        self.offer_as(body, from, now, true)
    }

    /// Accepts an attempt to open a session by a principal that the service would refuse at
    /// present, if there is capacity.
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
        match (pool_key(body), body.message()) {
            (Some(PoolKey::Open(name)), _) => self.offer_opening(body, name, from, (now, welcome)),
            (Some(PoolKey::Lane(id, lane, number)), _) => {
                self.offer_request(body, from, (id, lane, number), now)
            }
            (Some(PoolKey::Close(id)), _) => {
                let Some(queue) = self.sessions.get_mut(&id) else {
                    return Offer::NoSession;
                };
                if let Some(from) = from {
                    remember(&mut queue.connections, from, SESSION_CONNECTIONS_MAX);
                }
                if queue.close.is_some() {
                    return Offer::Known;
                }
                queue.close = Some(body.digest());
                self.give_place(id);
                self.push(body, now, welcome, false);
                Offer::New
            }
            _ => Offer::Conflict,
        }
    }

    fn push(&mut self, body: &Arc<Envelope>, now: Monotonic, owed: bool, proposed: bool) {
        if self.queue.handle(body.digest_ref()).is_none() {
            self.queue.push(body, now, owed, proposed, None);
        }
    }

    fn offer_opening(
        &mut self,
        body: &Arc<Envelope>,
        name: Name,
        from: Option<ConnectionId>,
        (now, welcome): (Monotonic, bool),
    ) -> Offer {
        let digest = body.digest();
        let proposed = match self.openings.offer(name, digest, from, welcome) {
            Taken::New(gave_way) => {
                let gave_way = gave_way.and_then(|digest| self.queue.handle(&digest));
                gave_way.into_iter().for_each(|it| self.give_way(it));
                false
            }
            Taken::Welcomed => {
                let proposed = self.queue.find(&digest).is_some_and(|it| it.proposed);
                self.take(&digest);
                proposed
            }
            Taken::Known => return Offer::Known,
            Taken::Busy => return Offer::Busy,
            Taken::Conflict => return Offer::Conflict,
        };
        self.push(body, now, welcome, proposed);
        if self.queue.find(&digest).is_some_and(|it| it.proposed) {
            self.openings.mark_proposed(&name);
        }
        Offer::New
    }

    fn offer_request(
        &mut self,
        body: &Arc<Envelope>,
        from: Option<ConnectionId>,
        (id, lane, number): (SessionId, Lane, RequestNumber),
        now: Monotonic,
    ) -> Offer {
        let length = body.frame().len();
        let Some(session) = self.sessions.get_mut(&id) else {
            return Offer::NoSession;
        };
        if let Some(from) = from {
            remember(&mut session.connections, from, SESSION_CONNECTIONS_MAX);
        }
        if lane.0 >= session.credit.lanes {
            return Offer::NoSession;
        }
        if let Some(first) = session.get(lane, number) {
            let first = self.queue.at(first).map(|it| it.body.digest_ref());
            return match first == Some(body.digest_ref()) {
                true => Offer::Known,
                false => Offer::Conflict,
            };
        }
        let Some(gave_way) = session.make_room(lane, number, length) else {
            return Offer::Busy;
        };
        // A peer may have forwarded it before: it stays there, and gets its own place too.
        let handle = match self.queue.handle(body.digest_ref()) {
            Some(handle) => handle,
            None => self.queue.push(body, now, true, false, None),
        };
        let proposed = self.queue.at(handle).is_some_and(|it| it.proposed);
        session.insert(lane, number, (handle, length), proposed);
        give_place(session, id, &mut self.turns, &mut self.places);
        gave_way.into_iter().for_each(|it| self.give_way(it));
        Offer::New
    }

    /// Drops a request that lost its place to another one, unless it has a place as a forwarded
    /// request.
    fn give_way(&mut self, handle: Handle) {
        let waiting = self.queue.at(handle);
        if waiting.is_some_and(|it| it.forwarded_by.is_none()) {
            self.take_at(handle);
        }
    }

    /// Gives a session a place if it has pending requests and no place, and removes its place if it
    /// has none pending.
    fn give_place(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(&id) {
            give_place(session, id, &mut self.turns, &mut self.places);
        }
    }

    /// The connections that a session's answers go to: its newest ones.
    #[must_use]
    pub fn connections(&self, id: SessionId) -> &[ConnectionId] {
        self.sessions
            .get(&id)
            .map_or(&[], |queue| &queue.connections)
    }

    /// Adds a connection that asked for an answer of a session: later answers go there as well.
    pub fn add_connection(&mut self, reply: &Reply, connection: ConnectionId) {
        let id = match &reply.outcome {
            Outcome::SessionOpened { session, .. } => *session,
            _ => reply.session,
        };
        if let Some(queue) = self.sessions.get_mut(&id) {
            remember(&mut queue.connections, connection, SESSION_CONNECTIONS_MAX);
        }
    }

    /// The connections that wait for this session to be opened.
    #[must_use]
    pub fn opening_connections(&self, open: &OpenSession) -> &[ConnectionId] {
        self.openings
            .connections(&(open.principal, open.session_key))
    }

    /// Removes a closed connection.
    pub fn disconnected(&mut self, connection: ConnectionId) {
        for queue in self.sessions.values_mut() {
            queue.connections.retain(|known| *known != connection);
        }
        self.openings.disconnected(connection);
    }

    /// A pending request.
    #[must_use]
    pub fn get(&self, digest: &Digest) -> Option<&Arc<Envelope>> {
        self.find(digest).map(|(body, _)| body)
    }

    /// A pending request, and since when it has been pending.
    #[must_use]
    pub fn find(&self, digest: &Digest) -> Option<(&Arc<Envelope>, Monotonic)> {
        self.queue.find(digest).map(|it| (&it.body, it.since))
    }

    /// Removes a request that was executed or answered, and all others with its number or an
    /// earlier one in its lane, which will never run.
    pub fn settle(&mut self, body: &Envelope) {
        match pool_key(body) {
            Some(PoolKey::Lane(id, lane, number)) => {
                let Some(session) = self.sessions.get_mut(&id) else {
                    return;
                };
                let (queue, forwarded) = (&mut self.queue, &mut self.forwarded);
                session.remove_up_to(lane, number, |handle| take(queue, forwarded, handle));
                let removed = session.remove_forwarded_up_to(lane, number);
                give_place(session, id, &mut self.turns, &mut self.places);
                removed.iter().for_each(|digest| self.take(digest));
                return;
            }
            Some(PoolKey::Close(id)) => {
                if let Some(session) = self.sessions.get_mut(&id)
                    && session.close == Some(body.digest())
                {
                    session.close = None;
                    session.closing = false;
                    self.give_place(id);
                }
            }
            Some(PoolKey::Open(name)) if self.openings.digest(&name) == Some(body.digest()) => {
                self.openings.remove(&name);
            }
            Some(PoolKey::Open(_)) | None => {}
        }
        self.take(&body.digest());
    }

    /// Removes a request that was passed over at execution, and only that; its client sends it
    /// again.
    pub fn withdraw(&mut self, digest: &Digest) {
        let Some(body) = self.get(digest).cloned() else {
            return;
        };
        self.remove_forwarded(&body);
        let handle = self.queue.handle(digest);
        if let Some(PoolKey::Lane(id, lane, number)) = pool_key(&body)
            && let Some(session) = self.sessions.get_mut(&id)
            && handle.is_some()
            && session.get(lane, number) == handle
        {
            session.remove(lane, number);
            self.take(digest);
            self.give_place(id);
        }
    }

    fn take(&mut self, digest: &Digest) {
        if let Some(handle) = self.queue.handle(digest) {
            self.take_at(handle);
        }
    }

    fn take_at(&mut self, handle: Handle) {
        take(&mut self.queue, &mut self.forwarded, handle);
    }

    /// Marks a request as proposed: it is not chosen again in this view.
    pub fn mark_proposed(&mut self, digest: &Digest) {
        if let Some(handle) = self.queue.handle(digest) {
            self.mark_proposed_at(handle);
        }
    }

    fn mark_proposed_at(&mut self, handle: Handle) {
        if !self.queue.mark_proposed(handle) {
            return;
        }
        let Some(waiting) = self.queue.at(handle) else {
            return;
        };
        let (place, digest) = (pool_key(&waiting.body), waiting.body.digest_ref());
        let was_forwarded = waiting.forwarded_by.is_some();
        match place {
            Some(PoolKey::Lane(id, lane, _)) => {
                if let Some(session) = self.sessions.get_mut(&id) {
                    if was_forwarded {
                        session.mark_forwarded_proposed(digest);
                    }
                    session.mark_proposed(lane, handle);
                    give_place(session, id, &mut self.turns, &mut self.places);
                }
            }
            Some(PoolKey::Close(id)) => {
                if let Some(session) = self.sessions.get_mut(&id) {
                    session.closing = true;
                }
                self.give_place(id);
            }
            Some(PoolKey::Open(name)) => {
                self.forwarded.mark_proposed(digest);
                if self.openings.digest(&name) == Some(*digest) {
                    self.openings.mark_proposed(&name);
                }
            }
            None => {}
        }
    }

    /// Ends the view: its proposed requests may be chosen again.
    pub fn release_proposed(&mut self) {
        self.openings.release_proposed();
        self.forwarded.release_proposed();
        let mut released = Vec::new();
        for waiting in self.queue.owed().filter(|it| it.proposed) {
            match pool_key(&waiting.body) {
                Some(PoolKey::Lane(id, ..) | PoolKey::Close(id)) => released.push(id),
                Some(PoolKey::Open(_)) | None => {}
            }
        }
        self.queue.release_proposed();
        for id in released {
            if let Some(session) = self.sessions.get_mut(&id) {
                session.release_proposed();
            }
            self.give_place(id);
        }
    }

    /// Since when the oldest request that has not been proposed has been pending.
    #[must_use]
    pub fn oldest_ready(&self) -> Option<Monotonic> {
        self.queue.oldest_ready()
    }

    /// Whether the requests that have not been proposed would fill a batch.
    #[must_use]
    pub const fn fills_a_batch(&self) -> bool {
        let (ready, bytes) = self.queue.ready();
        ready >= BATCH_REQUESTS_MAX || bytes >= BATCH_BYTES_MAX
    }

    /// The arrival number of a request, counted from the start. `None` for a stranger's.
    #[must_use]
    pub fn arrival(&self, digest: &Digest) -> Option<u64> {
        self.queue.find(digest)?.arrival
    }

    /// The number of pending requests that a leader has to order.
    #[must_use]
    pub const fn owed(&self) -> usize {
        self.queue.owed_count()
    }

    /// The number of requests that have arrived since the start.
    #[must_use]
    pub const fn arrivals(&self) -> u64 {
        self.queue.arrivals()
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

    /// The number of open sessions.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Whether no pending request has to be ordered by a leader; strangers may be waiting.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.owed() == 0
    }

    /// The number of pending requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// The number of pending bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.queue.bytes()
    }

    /// The pending requests that have to be ordered, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Envelope>> {
        self.queue.owed().map(|waiting| &waiting.body)
    }
}

/// See [`Pool::give_place`].
fn give_place(
    session: &mut SessionQueue,
    id: SessionId,
    turns: &mut BTreeMap<u64, SessionId>,
    places: &mut u64,
) {
    match session.place {
        None if session.has_work() => {
            *places += 1;
            session.place = Some(*places);
            turns.insert(*places, id);
        }
        Some(place) if !session.has_work() => {
            session.place = None;
            turns.remove(&place);
        }
        _ => {}
    }
}

fn take(queue: &mut Queue, forwarded: &mut Forwarded, handle: Handle) {
    if let Some(gone) = queue.take(handle)
        && let Some(peer) = gone.forwarded_by
    {
        forwarded.taken(peer, gone.body.digest_ref(), gone.body.frame().len());
    }
}

#[cfg(test)]
mod tests;
