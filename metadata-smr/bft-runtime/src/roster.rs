//! Who is connected, who may be, and where frames to them go.
//!
//! Replicas are known by key from the membership of the epoch ([`peers`]) and always have an
//! outbox, connected or not. Clients come and go: each connection gets a number that is never
//! reused, an outbox, and a place that counts against the bounds, all together and for its
//! principal. The place is given back when the event loop has heard that the connection is gone, so
//! that a client that connects and leaves quickly cannot pile up farewells.
//!
//! Anybody with a key may connect, because anybody may ask for a session or for the status. So
//! *strangers*, whose principal has no session open here, have few places of their own, and when
//! those are taken the oldest stranger gives way: whoever means to open a session needs its place
//! for milliseconds, and strangers can take nothing from those who are at work.
//!
//! Whoever dials as a replica and is none that is known here is a *newcomer*. It may be a member of
//! an epoch that this replica has not heard of, and then it can prove that; it may be anybody.
//! There are few places for newcomers, one for a key, and the oldest gives way; as many at most are
//! on their way out. What they say is worth nothing but for the records of epochs
//! ([`crate::newcomers`]).
//!
//! Two processes with one replica's key (a copy of its disk that was started elsewhere) must not
//! take turns: the one that is connected stays, and the other is refused until it is gone.
//!
//! Whoever signed what no correct node would sign is blacklisted by key for a while: connections
//! are ended and new ones refused.

pub(crate) mod peers;

use crate::inbox::Source;
use crate::limits;
use crate::link::frame::Frame;
use crate::link::hello::{Refusal, Role};
use crate::link::outbox::{Bounds, Outbox};
use peers::{Addresses, Peering, Peers};
use quorumfs_bft::identity::{ConnectionId, Epoch, PublicKey, ReplicaId, SessionId};
use quorumfs_bft::membership::Membership;
use quorumfs_bft::step::{Destination, Peer};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::{Notify, watch};

const PEER_BOUNDS: Bounds = Bounds {
    frames_max: limits::PEER_OUTBOX_FRAMES_MAX,
    frames_away_max: limits::AWAY_OUTBOX_FRAMES_MAX,
    bytes_max: limits::PEER_OUTBOX_BYTES_MAX,
};

const CLIENT_BOUNDS: Bounds = Bounds {
    frames_max: limits::CLIENT_OUTBOX_FRAMES_MAX,
    frames_away_max: limits::CLIENT_OUTBOX_FRAMES_MAX,
    bytes_max: limits::CLIENT_OUTBOX_BYTES_MAX,
};

/// An admitted connection.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    /// Where what comes in on it comes from.
    pub(crate) from: Source,
    /// Whose key it proved.
    pub(crate) key: PublicKey,
    /// What goes out on it.
    pub(crate) outbox: Arc<Outbox>,
    /// Ends it.
    pub(crate) end: Arc<Notify>,
}

/// Where a frame goes, whatever epoch begins meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// To the replica with this key.
    Replica(PublicKey),
    /// To every other replica.
    Replicas,
    /// To a client's or newcomer's connection.
    Connection(ConnectionId),
}

#[derive(Debug)]
struct Inner {
    peers: Peers,
    newcomers: BTreeMap<ConnectionId, Connection>,
    next: u64,
    clients: BTreeMap<ConnectionId, Connection>,
    principals: BTreeMap<PublicKey, usize>,
    /// Open sessions, and how many each principal has.
    sessions: BTreeMap<SessionId, PublicKey>,
    known: BTreeMap<PublicKey, usize>,
    /// Strangers that were told to go and have not gone yet.
    leaving: BTreeSet<ConnectionId>,
    /// Newcomers of whom the same is true.
    newcomers_leaving: BTreeSet<ConnectionId>,
    /// The connection that each replica dialed last, to end it when it dials again, and which
    /// process did. It goes when it is over.
    dialed_by: BTreeMap<PublicKey, (Connection, u64)>,
    blacklist: BTreeMap<PublicKey, Instant>,
}

impl Inner {
    fn new(peers: Peers) -> Self {
        Self {
            peers,
            newcomers: BTreeMap::new(),
            next: 0,
            clients: BTreeMap::new(),
            principals: BTreeMap::new(),
            sessions: BTreeMap::new(),
            known: BTreeMap::new(),
            leaving: BTreeSet::new(),
            newcomers_leaving: BTreeSet::new(),
            dialed_by: BTreeMap::new(),
            blacklist: BTreeMap::new(),
        }
    }

    fn next_connection(&mut self, key: PublicKey, role: Role, bounds: Bounds) -> Connection {
        self.next += 1;
        let id = ConnectionId(self.next);
        let connection = Connection {
            from: match role {
                Role::Replica(_) => Source::Newcomer(id),
                Role::Client => Source::Client(id),
            },
            key,
            outbox: Arc::new(Outbox::new(bounds)),
            end: Arc::new(Notify::new()),
        };
        connection.outbox.set_connected(true);
        connection
    }

    /// A place for somebody who says that it is a replica, at the cost of the oldest one of these.
    fn admit_newcomer(&mut self, key: PublicKey) -> Result<Connection, Refusal> {
        let stays = |(id, _): &(&ConnectionId, _)| !self.newcomers_leaving.contains(id);
        let staying = || self.newcomers.iter().filter(stays);
        let same = staying().find(|(_, it)| it.key == key);
        let full = staying().count() >= limits::NEWCOMERS_MAX;
        let goes = same.or_else(|| staying().next().filter(|_| full));
        if let Some((id, goes)) = goes {
            // Those who leave hold a descriptor until they are gone.
            if self.newcomers_leaving.len() >= limits::NEWCOMERS_MAX {
                return Err(Refusal::Full);
            }
            goes.end.notify_one();
            self.newcomers_leaving.insert(*id);
        }
        let role = Role::Replica(ReplicaId::NONE);
        let connection = self.next_connection(key, role, CLIENT_BOUNDS);
        self.newcomers
            .insert(ConnectionId(self.next), connection.clone());
        Ok(connection)
    }

    /// The connection that somebody is heard on.
    fn connection(&self, source: Source) -> Option<&Connection> {
        match source {
            Source::Client(id) => self.clients.get(&id),
            Source::Newcomer(id) => self.newcomers.get(&id),
            Source::Replica(key) => self.dialed_by.get(&key).map(|(connection, _)| connection),
        }
    }

    /// The strangers that are not leaving, oldest first.
    fn strangers(&self) -> impl Iterator<Item = &Connection> {
        let stays = |id: &ConnectionId| !self.leaving.contains(id);
        let all = self.clients.iter().filter(move |(id, _)| stays(id));
        all.map(|(_, connection)| connection)
            .filter(|connection| !self.known.contains_key(&connection.key))
    }

    /// Makes room for one more connection of this principal, or says why there is none.
    fn make_room(&mut self, key: &PublicKey, places: Places) -> Result<(), Refusal> {
        if self.principals.get(key).copied().unwrap_or_default()
            >= limits::CLIENTS_PER_PRINCIPAL_MAX
        {
            return Err(Refusal::FullForPrincipal);
        }
        let strangers = self.strangers().count();
        let known = self.clients.len() - self.leaving.len() - strangers;
        if self.known.contains_key(key) {
            return if known < places.clients {
                Ok(())
            } else {
                Err(Refusal::Full)
            };
        }
        if strangers >= places.strangers {
            // Those who leave hold a descriptor until they are gone.
            if self.leaving.len() >= places.strangers {
                return Err(Refusal::Full);
            }
            let oldest = self.strangers().next().cloned();
            if let Some(oldest) = oldest {
                oldest.end.notify_one();
                if let Source::Client(id) = oldest.from {
                    self.leaving.insert(id);
                }
            }
        }
        Ok(())
    }
}

/// How many connections there may be: of principals with an open session, and of all others. Twice
/// as many strangers may hold a descriptor, half of them on their way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    pub(crate) clients: usize,
    pub(crate) strangers: usize,
}

impl Places {
    /// As many as this process may have files open for, next to its own.
    pub(crate) fn within(open_files: usize) -> Self {
        let left = open_files.saturating_sub(limits::FILES_RESERVED);
        Self {
            clients: (left / 2).clamp(1, limits::CLIENTS_MAX),
            strangers: (left / 8).clamp(1, limits::STRANGERS_MAX),
        }
    }
}

/// Everybody that a replica talks to.
#[derive(Debug)]
pub(crate) struct Roster {
    places: Places,
    inner: Mutex<Inner>,
    entered: watch::Sender<Epoch>,
}

impl Roster {
    /// Of the replica with this key. There are no other replicas before [`Roster::enter`].
    pub(crate) fn new(key: PublicKey, told: Addresses, places: Places) -> Self {
        Self {
            places,
            inner: Mutex::new(Inner::new(Peers::new(key, told))),
            entered: watch::Sender::new(Epoch(0)),
        }
    }

    /// An epoch begins, in which this replica is `me`. Connections of those who stay are not
    /// touched. Newcomers that are members now have to connect as such.
    pub(crate) fn enter(&self, membership: &Membership, me: ReplicaId) {
        let mut inner = self.inner();
        for gone in inner.peers.enter(membership, me) {
            if let Some((connection, _)) = inner.dialed_by.remove(&gone) {
                connection.end.notify_one();
            }
        }
        for newcomer in inner.newcomers.values() {
            if inner.peers.place(&newcomer.key).is_some() {
                newcomer.end.notify_one();
            }
        }
        drop(inner);
        self.entered.send_replace(membership.epoch);
    }

    /// Changes whenever an epoch has begun.
    pub(crate) fn entered(&self) -> watch::Receiver<Epoch> {
        self.entered.subscribe()
    }

    /// All other replicas, by rising number.
    pub(crate) fn peers(&self) -> Vec<Peering> {
        self.inner().peers.all()
    }

    /// This replica's number in this epoch.
    pub(crate) fn me(&self) -> ReplicaId {
        self.inner().peers.me()
    }

    /// The number in this epoch of another replica.
    pub(crate) fn place(&self, key: &PublicKey) -> Option<ReplicaId> {
        self.inner().peers.place(key)
    }

    /// Who this is to the core, which knows replicas by their numbers in this epoch. Of a newcomer,
    /// which has none, only that gets as far which proves itself.
    pub(crate) fn peer(&self, source: Source) -> Option<Peer> {
        match source {
            Source::Replica(key) => self.place(&key).map(Peer::Replica),
            Source::Client(id) => Some(Peer::Client(id)),
            Source::Newcomer(_) => Some(Peer::Replica(ReplicaId::NONE)),
        }
    }

    /// The same the other way round.
    pub(crate) fn source(&self, peer: Peer) -> Option<Source> {
        match peer {
            Peer::Replica(id) => self.inner().peers.key_of(id).map(Source::Replica),
            Peer::Client(id) => Some(Source::Client(id)),
        }
    }

    /// What goes out to another replica.
    #[cfg(test)]
    pub(crate) fn outbox(&self, id: ReplicaId) -> Option<Arc<Outbox>> {
        let inner = self.inner();
        let key = inner.peers.key_of(id)?;
        inner.peers.outbox(&key).cloned()
    }

    /// Where that is in every epoch.
    pub(crate) fn route(&self, to: Destination) -> Option<Route> {
        match to {
            Destination::Replica(id) => self.inner().peers.key_of(id).map(Route::Replica),
            Destination::Replicas => Some(Route::Replicas),
            Destination::Client(id) => Some(Route::Connection(id)),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Each change below is complete before anything can panic.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a connection, or says why not. Which number a replica says that it has means nothing:
    /// it may be in another epoch. Which process it is means that two do not take turns.
    pub(crate) fn admit(
        &self,
        key: PublicKey,
        role: Role,
        process: u64,
    ) -> Result<Connection, Refusal> {
        let mut inner = self.inner();
        if let Some(until) = inner.blacklist.get(&key) {
            if Instant::now() < *until {
                return Err(Refusal::Blacklisted);
            }
            inner.blacklist.remove(&key);
        }
        match role {
            Role::Replica(_) if inner.peers.is_own(&key) => Err(Refusal::NotThatReplica),
            Role::Replica(_) if inner.peers.place(&key).is_none() => inner.admit_newcomer(key),
            Role::Replica(_)
                if inner
                    .dialed_by
                    .get(&key)
                    .is_some_and(|(_, other)| *other != process) =>
            {
                Err(Refusal::Doubled)
            }
            Role::Replica(_) => {
                let connection = Connection {
                    from: Source::Replica(key),
                    key,
                    outbox: Arc::new(Outbox::new(PEER_BOUNDS)),
                    end: Arc::new(Notify::new()),
                };
                let dialed = (connection.clone(), process);
                if let Some((older, _)) = inner.dialed_by.insert(key, dialed) {
                    older.end.notify_one();
                }
                Ok(connection)
            }
            Role::Client => {
                inner.make_room(&key, self.places)?;
                *inner.principals.entry(key).or_default() += 1;
                let connection = inner.next_connection(key, role, CLIENT_BOUNDS);
                let id = ConnectionId(inner.next);
                inner.clients.insert(id, connection.clone());
                Ok(connection)
            }
        }
    }

    /// This connection of a replica is over.
    pub(crate) fn hung_up(&self, connection: &Connection) {
        let mut inner = self.inner();
        let last = inner.dialed_by.get(&connection.key);
        if last.is_some_and(|(last, _)| Arc::ptr_eq(&last.end, &connection.end)) {
            inner.dialed_by.remove(&connection.key);
        }
    }

    /// The event loop has heard that this connection is gone: its place is free.
    pub(crate) fn release(&self, id: ConnectionId) {
        let mut inner = self.inner();
        if let Some(newcomer) = inner.newcomers.remove(&id) {
            newcomer.outbox.close();
            inner.newcomers_leaving.remove(&id);
        }
        let Some(connection) = inner.clients.remove(&id) else {
            return;
        };
        connection.outbox.close();
        inner.leaving.remove(&id);
        if let Some(places) = inner.principals.get_mut(&connection.key) {
            *places = places.saturating_sub(1);
            if *places == 0 {
                inner.principals.remove(&connection.key);
            }
        }
    }

    /// Whether this principal has a session open.
    pub(crate) fn has_session(&self, principal: &PublicKey) -> bool {
        self.inner().known.contains_key(principal)
    }

    /// A principal has a session (one more).
    pub(crate) fn session_opened(&self, id: SessionId, principal: PublicKey) {
        let mut inner = self.inner();
        if inner.sessions.insert(id, principal).is_none() {
            *inner.known.entry(principal).or_default() += 1;
        }
    }

    /// A session has ended.
    pub(crate) fn session_closed(&self, id: SessionId) {
        let mut inner = self.inner();
        let Some(principal) = inner.sessions.remove(&id) else {
            return;
        };
        if let Some(count) = inner.known.get_mut(&principal) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                inner.known.remove(&principal);
            }
        }
    }

    /// Sends a frame; nothing happens if nobody is there.
    pub(crate) fn send(&self, to: Route, frame: Frame) {
        let inner = self.inner();
        let outbox = match to {
            Route::Replica(key) => inner.peers.outbox(&key).cloned(),
            Route::Replicas => return inner.peers.tell_all(&frame),
            Route::Connection(id) => {
                let client = inner.clients.get(&id);
                let connection = client.or_else(|| inner.newcomers.get(&id));
                connection.map(|it| it.outbox.clone())
            }
        };
        drop(inner);
        if let Some(outbox) = outbox {
            outbox.push(frame);
        }
    }

    /// Sends a frame to observers, as far as their connections have room.
    pub(crate) fn show(&self, to: &[ConnectionId], frame: &Frame) {
        let inner = self.inner();
        for connection in to.iter().filter_map(|id| inner.clients.get(id)) {
            connection.outbox.push_spare(frame.clone());
        }
    }

    /// Ends the connections of whoever this is and refuses new ones for a while.
    pub(crate) fn blacklist(&self, source: Source, reason: &str) {
        let mut inner = self.inner();
        let Some(connection) = inner.connection(source).cloned() else {
            return;
        };
        tracing::warn!(key = %connection.key, ?source, reason, "blacklisted for a while");
        while inner.blacklist.len() >= limits::BLACKLIST_MAX {
            let oldest = inner.blacklist.iter().min_by_key(|(_, until)| **until);
            let Some(oldest) = oldest.map(|(key, _)| *key) else {
                break;
            };
            inner.blacklist.remove(&oldest);
        }
        let until = Instant::now() + limits::BLACKLIST_TIME;
        inner.blacklist.insert(connection.key, until);
        for other in inner.clients.values() {
            if other.key == connection.key {
                other.end.notify_one();
            }
        }
        connection.end.notify_one();
    }
}

#[cfg(test)]
mod tests;
