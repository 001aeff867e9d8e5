//! Who is connected, who may be, and where frames to them go.
//!
//! Replicas are known by key from the configuration and always have an outbox, connected or not.
//! Clients come and go: each connection gets a number that is never reused, an outbox, and a place
//! that counts against the bounds, all together and for its principal. The place is given back
//! when the event loop has heard that the connection is gone, so that a client that connects and
//! leaves quickly cannot pile up farewells.
//!
//! Anybody with a key may connect, because anybody may ask for a session or for the status. So
//! *strangers*, whose principal has no session open here, have few places of their own, and when
//! those are taken the oldest stranger gives way: whoever means to open a session needs its place
//! for milliseconds, and strangers can take nothing from those who are at work.
//!
//! Whoever signed what no correct node would sign is blacklisted by key for a while: connections
//! are ended and new ones refused.

use crate::limits;
use crate::link::frame::Frame;
use crate::link::hello::{Refusal, Role};
use crate::link::outbox::{Bounds, Outbox};
use quorumfs_bft::identity::{ConnectionId, PublicKey, ReplicaId, SessionId};
use quorumfs_bft::step::{Destination, Peer};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::Notify;

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
    /// Who it is to the core.
    pub(crate) peer: Peer,
    /// Whose key it proved.
    pub(crate) key: PublicKey,
    /// What goes out on it.
    pub(crate) outbox: Arc<Outbox>,
    /// Ends it.
    pub(crate) end: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    clients: BTreeMap<ConnectionId, Connection>,
    principals: BTreeMap<PublicKey, usize>,
    /// Open sessions, and how many each principal has.
    sessions: BTreeMap<SessionId, PublicKey>,
    known: BTreeMap<PublicKey, usize>,
    /// Strangers that were told to go and have not gone yet.
    leaving: BTreeSet<ConnectionId>,
    /// The connection that each replica dialed last, to end it when it dials again.
    dialed_by: BTreeMap<ReplicaId, Connection>,
    blacklist: BTreeMap<PublicKey, Instant>,
}

impl Inner {
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
                if let Peer::Client(id) = oldest.peer {
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
    me: ReplicaId,
    replicas: BTreeMap<PublicKey, ReplicaId>,
    outboxes: BTreeMap<ReplicaId, Arc<Outbox>>,
    places: Places,
    inner: Mutex<Inner>,
}

impl Roster {
    /// Of replica `me` among `replicas`.
    pub(crate) fn new(me: ReplicaId, replicas: &[(ReplicaId, PublicKey)], places: Places) -> Self {
        let others = replicas.iter().filter(|(id, _)| *id != me);
        Self {
            me,
            replicas: replicas.iter().map(|(id, key)| (*key, *id)).collect(),
            outboxes: others
                .map(|(id, _)| (*id, Arc::new(Outbox::new(PEER_BOUNDS))))
                .collect(),
            places,
            inner: Mutex::default(),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Each change below is complete before anything can panic.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What goes out to another replica.
    pub(crate) fn outbox(&self, id: ReplicaId) -> Option<Arc<Outbox>> {
        self.outboxes.get(&id).cloned()
    }

    /// Admits a connection, or says why not.
    pub(crate) fn admit(&self, key: PublicKey, role: Role) -> Result<Connection, Refusal> {
        let mut inner = self.inner();
        if let Some(until) = inner.blacklist.get(&key) {
            if Instant::now() < *until {
                return Err(Refusal::Blacklisted);
            }
            inner.blacklist.remove(&key);
        }
        match role {
            Role::Replica(id) => {
                if id == self.me || self.replicas.get(&key) != Some(&id) {
                    return Err(Refusal::NotThatReplica);
                }
                let connection = Connection {
                    peer: Peer::Replica(id),
                    key,
                    outbox: Arc::new(Outbox::new(PEER_BOUNDS)),
                    end: Arc::new(Notify::new()),
                };
                if let Some(older) = inner.dialed_by.insert(id, connection.clone()) {
                    older.end.notify_one();
                }
                Ok(connection)
            }
            Role::Client => {
                inner.make_room(&key, self.places)?;
                *inner.principals.entry(key).or_default() += 1;
                inner.next += 1;
                let id = ConnectionId(inner.next);
                let connection = Connection {
                    peer: Peer::Client(id),
                    key,
                    outbox: Arc::new(Outbox::new(CLIENT_BOUNDS)),
                    end: Arc::new(Notify::new()),
                };
                connection.outbox.set_connected(true);
                inner.clients.insert(id, connection.clone());
                Ok(connection)
            }
        }
    }

    /// The event loop has heard that a client's connection is gone: its place is free.
    pub(crate) fn release(&self, id: ConnectionId) {
        let mut inner = self.inner();
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
    pub(crate) fn send(&self, to: Destination, frame: Frame) {
        match to {
            Destination::Replica(id) => {
                if let Some(outbox) = self.outboxes.get(&id) {
                    outbox.push(frame);
                }
            }
            Destination::Replicas => {
                for outbox in self.outboxes.values() {
                    outbox.push(frame.clone());
                }
            }
            Destination::Client(id) => {
                let outbox = self.inner().clients.get(&id).map(|it| it.outbox.clone());
                if let Some(outbox) = outbox {
                    outbox.push(frame);
                }
            }
        }
    }

    /// Sends a frame to observers, as far as their connections have room.
    pub(crate) fn show(&self, to: &[ConnectionId], frame: &Frame) {
        let inner = self.inner();
        for connection in to.iter().filter_map(|id| inner.clients.get(id)) {
            connection.outbox.push_spare(frame.clone());
        }
    }

    /// Ends the connections of `peer` and refuses new ones for a while.
    pub(crate) fn blacklist(&self, peer: Peer, reason: &str) {
        let mut inner = self.inner();
        let connection = match peer {
            Peer::Client(id) => inner.clients.get(&id).cloned(),
            Peer::Replica(id) => inner.dialed_by.get(&id).cloned(),
        };
        let Some(connection) = connection else {
            return;
        };
        tracing::warn!(?peer, key = %connection.key, reason, "blacklisted for a while");
        while inner.blacklist.len() >= limits::BLACKLIST_MAX {
            let oldest = inner.blacklist.iter().min_by_key(|(_, until)| **until);
            let Some(oldest) = oldest.map(|(key, _)| *key) else {
                break;
            };
            inner.blacklist.remove(&oldest);
        }
        let until = Instant::now() + limits::PAROLE;
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
mod tests {
    use super::*;

    const PLACES: Places = Places {
        clients: 200,
        strangers: 100,
    };

    fn key(number: u16) -> PublicKey {
        let mut key = [0; 32];
        key[..2].copy_from_slice(&number.to_be_bytes());
        PublicKey(key)
    }

    fn roster() -> Roster {
        let replicas = [(ReplicaId(0), key(1000)), (ReplicaId(1), key(1001))];
        Roster::new(ReplicaId(0), &replicas, PLACES)
    }

    fn id_of(connection: &Connection) -> ConnectionId {
        match connection.peer {
            Peer::Client(id) => id,
            Peer::Replica(_) => panic!("a client"),
        }
    }

    #[test]
    fn a_replica_is_known_by_its_key_alone() {
        let roster = roster();
        let refused = Some(Refusal::NotThatReplica);
        let admit = |number, id| {
            roster
                .admit(key(number), Role::Replica(ReplicaId(id)))
                .err()
        };
        assert_eq!(admit(1001, 1), None);
        assert_eq!(admit(1001, 0), refused, "another's number");
        assert_eq!(admit(1002, 1), refused, "another's key");
        assert_eq!(admit(1000, 0), refused, "myself");
    }

    #[test]
    fn places_are_bounded_for_each_principal_and_come_back() {
        let roster = roster();
        let mut ids = Vec::new();
        for _ in 0..limits::CLIENTS_PER_PRINCIPAL_MAX {
            ids.push(id_of(&roster.admit(key(1), Role::Client).expect("room")));
        }
        assert_eq!(
            roster.admit(key(1), Role::Client).err(),
            Some(Refusal::FullForPrincipal)
        );
        roster.release(ids[0]);
        roster.release(ids[0]);
        assert!(roster.admit(key(1), Role::Client).is_ok());
        assert!(roster.admit(key(1), Role::Client).is_err());
    }

    #[test]
    fn strangers_give_way_to_each_other_and_take_nothing_from_principals_with_sessions() {
        let roster = roster();
        let oldest = id_of(&roster.admit(key(1), Role::Client).expect("room"));
        let mut admitted = 1;
        for number in 2.. {
            if roster.admit(key(number), Role::Client).is_err() {
                break;
            }
            admitted += 1;
        }
        assert_eq!(admitted, 2 * PLACES.strangers, "half of them leave");
        assert!(roster.inner().leaving.contains(&oldest));
        roster.release(oldest);
        assert!(roster.admit(key(5000), Role::Client).is_ok());

        let working: Vec<_> = (6000..6000 + PLACES.clients as u16).map(key).collect();
        for (id, principal) in (1..).zip(&working) {
            roster.session_opened(SessionId(id), *principal);
            assert!(roster.admit(*principal, Role::Client).is_ok(), "{id}");
        }
        let refused = roster.admit(working[0], Role::Client).err();
        assert_eq!(refused, Some(Refusal::Full));
        roster.session_closed(SessionId(1));
        roster.session_closed(SessionId(1));
        assert!(
            roster.admit(working[1], Role::Client).is_ok(),
            "its place is free"
        );
    }

    #[test]
    fn places_follow_from_the_files_that_may_be_open() {
        let plenty = Places::within(65_536);
        assert_eq!(plenty.clients, limits::CLIENTS_MAX);
        assert_eq!(plenty.strangers, limits::STRANGERS_MAX);
        let usual = Places::within(1024);
        let taken = usual.clients + 2 * usual.strangers + limits::FILES_RESERVED;
        assert!(taken <= 1024, "{usual:?}");
        assert_eq!(
            Places::within(0),
            Places {
                clients: 1,
                strangers: 1
            }
        );
    }

    #[test]
    fn the_blacklisted_are_refused_whatever_they_come_as() {
        let roster = roster();
        let connection = roster.admit(key(7), Role::Client).expect("room");
        roster.blacklist(connection.peer, "test");
        assert_eq!(
            roster.admit(key(7), Role::Client).err(),
            Some(Refusal::Blacklisted)
        );
        assert!(roster.admit(key(8), Role::Client).is_ok());
    }

    #[tokio::test]
    async fn a_replica_that_dials_again_replaces_its_older_connection() {
        let roster = roster();
        let role = Role::Replica(ReplicaId(1));
        let older = roster.admit(key(1001), role).expect("known");
        let _newer = roster.admit(key(1001), role).expect("known");
        older.end.notified().await;
    }
}
