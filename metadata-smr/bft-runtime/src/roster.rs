//! The connected nodes, which nodes may connect, and where frames to them go.
//!
//! Replicas are identified by key from the membership of the epoch ([`peers`]) and always have an
//! outbox, connected or not. Clients come and go: each connection gets a number that is never
//! reused, an outbox, and a place that counts against the bounds, in total and for its principal.
//! The place is freed when the event loop has handled the connection's end, so that a client that
//! connects and leaves quickly cannot accumulate ended connections.
//!
//! Any node with a key may connect, because any may ask for a session or for the status. So
//! *strangers*, whose principal has no session open here, have a few places of their own, and when
//! those are taken the oldest stranger is disconnected: an honest client needs its place only for
//! the milliseconds of opening a session, and strangers take nothing from clients with sessions.
//!
//! A node that dials as a replica and is not in the membership is an *unknown replica*. It may be a
//! member of an epoch that this replica has not learned of, and can then prove it; it may be an
//! attacker. There are few places for unknown replicas, one for a key, and the oldest is
//! disconnected for a new one; at most as many more are being disconnected. Only the records of
//! epochs that they send are used ([`crate::unknown_replicas`]).
//!
//! Two processes with one replica's key (a copy of its disk that was started elsewhere) must not
//! take turns: the connected one stays, and the other is refused until the first has ended.
//!
//! A node that signed what no correct node would sign is blacklisted by key for a while:
//! its connections are ended and new ones refused.

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
    /// The source of the frames that arrive on it.
    pub(crate) from: Source,
    /// The key that it proved.
    pub(crate) key: PublicKey,
    /// The frames to send on it.
    pub(crate) outbox: Arc<Outbox>,
    /// Ends it.
    pub(crate) end: Arc<Notify>,
}

/// Where a frame goes, even if an epoch begins meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// To the replica with this key.
    Replica(PublicKey),
    /// To every other replica.
    Replicas,
    /// To the connection of a client or an unknown replica.
    Connection(ConnectionId),
}

#[derive(Debug)]
struct RosterState {
    peers: Peers,
    unknown_replicas: BTreeMap<ConnectionId, Connection>,
    next: u64,
    clients: BTreeMap<ConnectionId, Connection>,
    principals: BTreeMap<PublicKey, usize>,
    /// Open sessions, and how many each principal has.
    sessions: BTreeMap<SessionId, PublicKey>,
    known: BTreeMap<PublicKey, usize>,
    /// Strangers that are being disconnected.
    leaving: BTreeSet<ConnectionId>,
    /// Unknown replicas that are being disconnected.
    unknown_replicas_leaving: BTreeSet<ConnectionId>,
    /// The connection that each replica dialed last, to end it when it dials again, and the process
    /// that did. Removed when the connection ends.
    dialed_by: BTreeMap<PublicKey, (Connection, u64)>,
    blacklist: BTreeMap<PublicKey, Instant>,
}

impl RosterState {
    fn new(peers: Peers) -> Self {
        Self {
            peers,
            unknown_replicas: BTreeMap::new(),
            next: 0,
            clients: BTreeMap::new(),
            principals: BTreeMap::new(),
            sessions: BTreeMap::new(),
            known: BTreeMap::new(),
            leaving: BTreeSet::new(),
            unknown_replicas_leaving: BTreeSet::new(),
            dialed_by: BTreeMap::new(),
            blacklist: BTreeMap::new(),
        }
    }

    fn next_connection(&mut self, key: PublicKey, role: Role, bounds: Bounds) -> Connection {
        self.next += 1;
        let id = ConnectionId(self.next);
        let connection = Connection {
            from: match role {
                Role::Replica(_) => Source::UnknownReplica(id),
                Role::Client => Source::Client(id),
            },
            key,
            outbox: Arc::new(Outbox::new(bounds)),
            end: Arc::new(Notify::new()),
        };
        connection.outbox.set_connected(true);
        connection
    }

    /// Admits an unknown replica, in place of the oldest one if necessary.
    fn admit_unknown_replica(&mut self, key: PublicKey) -> Result<Connection, Refusal> {
        let stays = |(id, _): &(&ConnectionId, _)| !self.unknown_replicas_leaving.contains(id);
        let staying = || self.unknown_replicas.iter().filter(stays);
        let same = staying().find(|(_, it)| it.key == key);
        let full = staying().count() >= limits::UNKNOWN_REPLICAS_MAX;
        let goes = same.or_else(|| staying().next().filter(|_| full));
        if let Some((id, goes)) = goes {
            // A connection that is being ended holds a descriptor until then.
            if self.unknown_replicas_leaving.len() >= limits::UNKNOWN_REPLICAS_MAX {
                return Err(Refusal::Full);
            }
            goes.end.notify_one();
            self.unknown_replicas_leaving.insert(*id);
        }
        let role = Role::Replica(ReplicaId::NONE);
        let connection = self.next_connection(key, role, CLIENT_BOUNDS);
        self.unknown_replicas
            .insert(ConnectionId(self.next), connection.clone());
        Ok(connection)
    }

    /// The connection of a source.
    fn connection(&self, source: Source) -> Option<&Connection> {
        match source {
            Source::Client(id) => self.clients.get(&id),
            Source::UnknownReplica(id) => self.unknown_replicas.get(&id),
            Source::Replica(key) => self.dialed_by.get(&key).map(|(connection, _)| connection),
        }
    }

    /// The strangers that are not being disconnected, oldest first.
    fn strangers(&self) -> impl Iterator<Item = &Connection> {
        let stays = |id: &ConnectionId| !self.leaving.contains(id);
        let all = self.clients.iter().filter(move |(id, _)| stays(id));
        all.map(|(_, connection)| connection)
            .filter(|connection| !self.known.contains_key(&connection.key))
    }

    /// Reserves a place for one more connection of this principal, or refuses.
    fn reserve_place(&mut self, key: &PublicKey, places: ConnectionLimits) -> Result<(), Refusal> {
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
            // A connection that is being ended holds a descriptor until then.
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
/// as many strangers may hold a descriptor, half of them being disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionLimits {
    pub(crate) clients: usize,
    pub(crate) strangers: usize,
}

impl ConnectionLimits {
    /// The limits for a process with so many open files, after its own needs.
    pub(crate) fn within(open_files: usize) -> Self {
        let left = open_files.saturating_sub(limits::FILES_RESERVED);
        Self {
            clients: (left / 2).clamp(1, limits::CLIENTS_MAX),
            strangers: (left / 8).clamp(1, limits::STRANGERS_MAX),
        }
    }
}

/// All nodes that a replica communicates with.
#[derive(Debug)]
pub(crate) struct Roster {
    places: ConnectionLimits,
    inner: Mutex<RosterState>,
    entered: watch::Sender<Epoch>,
}

impl Roster {
    /// The roster of the replica with this key. Before [`Roster::enter`] there are no other
    /// replicas.
    pub(crate) fn new(key: PublicKey, known: Addresses, places: ConnectionLimits) -> Self {
        Self {
            places,
            inner: Mutex::new(RosterState::new(Peers::new(key, known))),
            entered: watch::Sender::new(Epoch(0)),
        }
    }

    /// An epoch begins, in which this replica is `me`. Connections of replicas that stay are not
    /// touched. Unknown replicas that are members now have to connect as such.
    pub(crate) fn enter(&self, membership: &Membership, me: ReplicaId) {
        let mut inner = self.inner();
        for gone in inner.peers.enter(membership, me) {
            if let Some((connection, _)) = inner.dialed_by.remove(&gone) {
                connection.end.notify_one();
            }
        }
        for unknown in inner.unknown_replicas.values() {
            if inner.peers.place(&unknown.key).is_some() {
                unknown.end.notify_one();
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

    /// The peer as the core identifies it, by its number in this epoch. An unknown replica has
    /// none, so only its frames that prove themselves pass.
    pub(crate) fn peer(&self, source: Source) -> Option<Peer> {
        match source {
            Source::Replica(key) => self.place(&key).map(Peer::Replica),
            Source::Client(id) => Some(Peer::Client(id)),
            Source::UnknownReplica(_) => Some(Peer::Replica(ReplicaId::NONE)),
        }
    }

    /// The reverse of [`Roster::peer`].
    pub(crate) fn source(&self, peer: Peer) -> Option<Source> {
        match peer {
            Peer::Replica(id) => self.inner().peers.key_of(id).map(Source::Replica),
            Peer::Client(id) => Some(Source::Client(id)),
        }
    }

    /// The outbox of another replica.
    #[cfg(test)]
    pub(crate) fn outbox(&self, id: ReplicaId) -> Option<Arc<Outbox>> {
        let inner = self.inner();
        let key = inner.peers.key_of(id)?;
        inner.peers.outbox(&key).cloned()
    }

    /// The destination, independent of the epoch.
    pub(crate) fn route(&self, to: Destination) -> Option<Route> {
        match to {
            Destination::Replica(id) => self.inner().peers.key_of(id).map(Route::Replica),
            Destination::Replicas => Some(Route::Replicas),
            Destination::Client(id) => Some(Route::Connection(id)),
        }
    }

    fn inner(&self) -> MutexGuard<'_, RosterState> {
        // Each change below is complete before anything can panic.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a connection, or returns the refusal. The number that a replica claims is ignored: it
    /// may be in another epoch. Its process number keeps two processes from taking turns.
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
            Role::Replica(_) if inner.peers.place(&key).is_none() => {
                inner.admit_unknown_replica(key)
            }
            Role::Replica(_)
                if inner
                    .dialed_by
                    .get(&key)
                    .is_some_and(|(_, other)| *other != process) =>
            {
                Err(Refusal::DuplicateProcess)
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
                inner.reserve_place(&key, self.places)?;
                *inner.principals.entry(key).or_default() += 1;
                let connection = inner.next_connection(key, role, CLIENT_BOUNDS);
                let id = ConnectionId(inner.next);
                inner.clients.insert(id, connection.clone());
                Ok(connection)
            }
        }
    }

    /// A connection of this replica has ended.
    pub(crate) fn disconnected(&self, connection: &Connection) {
        let mut inner = self.inner();
        let last = inner.dialed_by.get(&connection.key);
        if last.is_some_and(|(last, _)| Arc::ptr_eq(&last.end, &connection.end)) {
            inner.dialed_by.remove(&connection.key);
        }
    }

    /// The event loop has handled the end of this connection: its place is free.
    pub(crate) fn release(&self, id: ConnectionId) {
        let mut inner = self.inner();
        if let Some(unknown) = inner.unknown_replicas.remove(&id) {
            unknown.outbox.close();
            inner.unknown_replicas_leaving.remove(&id);
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

    /// A principal has opened one more session.
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

    /// Sends a frame; nothing happens without a connection.
    pub(crate) fn send(&self, to: Route, frame: Frame) {
        let inner = self.inner();
        let outbox = match to {
            Route::Replica(key) => inner.peers.outbox(&key).cloned(),
            Route::Replicas => return inner.peers.send_to_all(&frame),
            Route::Connection(id) => {
                let client = inner.clients.get(&id);
                let connection = client.or_else(|| inner.unknown_replicas.get(&id));
                connection.map(|it| it.outbox.clone())
            }
        };
        drop(inner);
        if let Some(outbox) = outbox {
            outbox.push(frame);
        }
    }

    /// Sends a frame to observers, if their outboxes have space.
    pub(crate) fn send_to_observers(&self, to: &[ConnectionId], frame: &Frame) {
        let inner = self.inner();
        for connection in to.iter().filter_map(|id| inner.clients.get(id)) {
            connection.outbox.push_spare(frame.clone());
        }
    }

    /// Ends the connections of this source's key and refuses new ones for a while.
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
