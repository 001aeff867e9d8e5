//! A replica's connections: it dials every other replica and serves all that dial it.
//!
//! The roster has the current replicas, which change with the epoch. A connection to a replica that
//! stays, at the same address, is kept.

use crate::address::Address;
use crate::client::AbortOnDrop;
use crate::event_loop::{Ending, Published};
use crate::inbox::{Arrival, Class, Inbox, Source};
use crate::limits;
use crate::link::LinkError;
use crate::link::connection::{FrameReader, Greeted};
use crate::link::dial::{Backoff, Dialer};
use crate::link::frame::Kind;
use crate::link::hello::{Refusal, Role};
use crate::link::listen::Gatekeeper;
use crate::link::outbox::Outbox;
use crate::pace::{Account, Accounts, Volumes};
use crate::roster::peers::Peering;
use crate::roster::{Connection, Roster};
use crate::tls::Identity;
use crate::unknown_replicas::{EpochRequests, UnknownReplica};
use crate::verification::Verification;
use bytes::Bytes;
use quorumfs_bft::authentication::Authentication;
use quorumfs_bft::identity::{ClusterId, ConnectionId, PublicKey};
use quorumfs_bft::wire::limits::{FRAME_BYTES_MAX, REQUEST_BYTES_MAX};
use quorumfs_bft::wire::message::Kind as MessageKind;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// Serves the connections of dialers.
#[derive(Debug)]
pub(crate) struct Reception {
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) roster: Arc<Roster>,
    pub(crate) verification: Arc<Verification>,
    pub(crate) accounts: Arc<Accounts>,
    pub(crate) volumes: Arc<Volumes>,
    /// The runtime of the replica's thread, where connections are served after the greeting.
    pub(crate) home: Handle,
}

/// An admitted connection's place; its end is reported to the event loop when it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionGuard {
    connection: Connection,
    inbox: Arc<Inbox>,
    roster: Arc<Roster>,
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        match self.connection.from {
            Source::Client(id) | Source::UnknownReplica(id) => self.inbox.connection_ended(id),
            Source::Replica(_) => self.roster.disconnected(&self.connection),
        }
    }
}

impl Gatekeeper for Reception {
    type Guard = ConnectionGuard;

    fn admit(&self, key: PublicKey, role: Role, process: u64) -> Result<ConnectionGuard, Refusal> {
        let admitted = self.roster.admit(key, role, process);
        if let Err(Refusal::DuplicateProcess) = admitted {
            tracing::warn!(%key, "a second process with this replica's key was refused");
        }
        Ok(ConnectionGuard {
            connection: admitted?,
            inbox: self.inbox.clone(),
            roster: self.roster.clone(),
        })
    }

    async fn serve(self: Arc<Self>, place: ConnectionGuard, greeted: Greeted) -> LinkError {
        let home = self.home.clone();
        let mut serving = Serving(home.spawn(self.serve_on_replica_thread(place, greeted)));
        // Cancelled when the replica's thread has ended.
        (&mut serving.0).await.unwrap_or(LinkError::Ended)
    }
}

/// Aborts the task that serves a connection when it is dropped.
struct Serving(JoinHandle<LinkError>);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Reception {
    /// Runs on the replica's thread.
    async fn serve_on_replica_thread(
        self: Arc<Self>,
        place: ConnectionGuard,
        mut greeted: Greeted,
    ) -> LinkError {
        if let Err(error) = greeted.settle() {
            return error;
        }
        let connection = &place.connection;
        let frame_bytes_max = match connection.from {
            Source::Replica(_) => FRAME_BYTES_MAX,
            Source::UnknownReplica(_) | Source::Client(_) => REQUEST_BYTES_MAX,
        };
        let (reader, mut writing) = greeted.start(connection.outbox.clone(), frame_bytes_max);
        tokio::select! {
            error = self.receive(connection, reader) => error,
            error = writing.ended() => error,
            () = connection.end.notified() => LinkError::Ended,
        }
    }

    async fn receive(&self, connection: &Connection, mut reader: FrameReader) -> LinkError {
        let from = connection.from;
        let allowance = Inbox::allowance(from);
        let account = self.accounts.of(connection.key, Instant::now());
        let mut unknown = UnknownReplica::default();
        loop {
            self.pace(from, &account).await;
            let frame = match reader.next().await {
                Ok(frame) if frame.kind == Kind::Message => frame.payload,
                Ok(_) => return LinkError::Malformed("a second greeting"),
                Err(error) => return error,
            };
            let (bytes, class) = (frame.len(), self.class(connection));
            if class == Class::Stranger {
                account.charge(bytes, Instant::now());
            }
            let frame = match from {
                Source::UnknownReplica(_) => unknown.receive(frame, connection, &self.verification),
                Source::Replica(_) | Source::Client(_) => Some(frame),
            };
            let Some(frame) = frame else {
                continue;
            };
            if let Some(arrival) = self.arrive(connection, frame).await {
                let put = self.inbox.put(from, class, bytes, &allowance, arrival);
                put.await;
            }
        }
    }

    /// Waits if this source has sent too much.
    async fn pace(&self, from: Source, account: &Account) {
        let now = Instant::now();
        let pause = match from {
            Source::Replica(replica) => self.volumes.count(replica, now),
            Source::UnknownReplica(_) | Source::Client(_) => account.pause(now),
        };
        if let Some(pause) = pause {
            tokio::time::sleep(pause).await;
        }
    }

    fn class(&self, connection: &Connection) -> Class {
        match connection.from {
            Source::Replica(_) => Class::Peer,
            Source::Client(_) if self.roster.has_session(&connection.key) => Class::Client,
            Source::UnknownReplica(_) | Source::Client(_) => Class::Stranger,
        }
    }

    /// Passes a frame to the event loop, which checks it in its source's turn; large frames are
    /// checked on another thread first.
    async fn arrive(&self, connection: &Connection, frame: Bytes) -> Option<Arrival> {
        let (from, key) = (connection.from, connection.key);
        let peer = self.roster.peer(from)?;
        if frame.len() <= limits::INLINE_FRAME_BYTES_MAX {
            return Some(Arrival::Raw(frame, key));
        }
        match self
            .verification
            .check_on_another_thread(peer, key, frame)
            .await
        {
            Ok((message, epoch)) => Some(Arrival::Admitted(Box::new(message), epoch, key)),
            Err(refused) => {
                // An epoch that has begun meanwhile may have given it another number.
                let same = self.roster.peer(from) == Some(peer);
                if let Some(reason) = refused.blame.filter(|_| same) {
                    self.roster.blacklist(from, &reason);
                }
                None
            }
        }
    }
}

/// The state of a link that this node dials.
#[derive(Clone, Debug, Default)]
pub struct LinkState {
    reason: Arc<Mutex<Option<String>>>,
}

impl LinkState {
    /// The state before the first attempt.
    pub(crate) fn never_dialed() -> Self {
        let state = Self::default();
        state.set(Some("not dialed yet".to_owned()));
        state
    }

    /// Why there is no connection; `None` while there is one.
    #[must_use]
    pub fn unreachable(&self) -> Option<String> {
        self.reason
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn set(&self, reason: Option<String>) {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = reason;
    }
}

/// The replicas that report another process with this replica's key, and since when.
///
/// A short refusal means nothing: other replicas may not have noticed yet that an earlier process
/// has ended, and a single one may lie. If more replicas than may lie report it for long, the
/// cluster takes another process for this replica, and this one ends rather than seem to vote.
#[derive(Debug, Default)]
pub(crate) struct DuplicateReports {
    since: Mutex<BTreeMap<PublicKey, Instant>>,
}

impl DuplicateReports {
    /// Sets the other replicas; reports of earlier ones no longer count.
    fn retain(&self, peers: &[Peering]) {
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        since.retain(|key, _| peers.iter().any(|peer| peer.key == *key));
    }

    /// Notes the outcome of dialing this replica now; returns whether another process has taken
    /// this replica's place. Of `enough` replicas at least one tells the truth.
    fn note(&self, key: PublicKey, duplicate: bool, enough: usize, now: Instant) -> bool {
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        if !duplicate {
            since.remove(&key);
            return false;
        }
        since.entry(key).or_insert(now);
        let for_long = |since: &&Instant| now.duration_since(**since) >= limits::DUPLICATE_DEADLINE;
        since.values().filter(for_long).count() >= enough
    }
}

/// Dials the other replicas of the current epoch.
pub(crate) struct Dialing {
    pub(crate) identity: Identity,
    pub(crate) cluster: ClusterId,
    pub(crate) authentication: Authentication,
    pub(crate) roster: Arc<Roster>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) process: u64,
    pub(crate) duplicates: Arc<DuplicateReports>,
    pub(crate) published: Arc<Published>,
}

impl Dialing {
    /// The state that all connections share.
    fn shared(&self) -> (Arc<DuplicateReports>, Arc<Published>) {
        (self.duplicates.clone(), self.published.clone())
    }

    /// Maintains a connection to every other replica, for ever.
    pub(crate) async fn run(self) {
        let mut entered = self.roster.entered();
        let mut tasks: BTreeMap<PublicKey, (Dialed, AbortOnDrop)> = BTreeMap::new();
        loop {
            let peers = self.roster.peers();
            self.duplicates.retain(&peers);
            let stays = |dialed: &Dialed| peers.iter().any(|peer| dialed.is(peer));
            tasks.retain(|_, (dialed, _)| stays(dialed));
            for peer in peers {
                if peer.addresses.is_empty() {
                    let reason = "no address of it is known".to_owned();
                    peer.state.set(Some(reason));
                    continue;
                }
                if tasks.contains_key(&peer.key) {
                    continue;
                }
                let connector = match self.identity.connector(peer.key) {
                    Ok(connector) => connector,
                    Err(error) => {
                        peer.state.set(Some(error.to_string()));
                        continue;
                    }
                };
                let dialer = Dialer {
                    wanted: peer.id,
                    addresses: peer.addresses.clone(),
                    connector,
                    cluster: self.cluster,
                    role: Role::Replica(self.roster.me()),
                    authentication: self.authentication,
                    process: self.process,
                };
                let (key, outbox) = (peer.key, peer.outbox.clone());
                let addresses = peer.addresses.clone();
                let maintaining = maintain(dialer, peer, self.inbox.clone(), self.shared());
                let dialed = Dialed { addresses, outbox };
                tasks.insert(key, (dialed, AbortOnDrop(tokio::spawn(maintaining))));
            }
            if entered.changed().await.is_err() {
                return;
            }
        }
    }
}

/// The target of a dialing task, and the outbox that it sends.
struct Dialed {
    addresses: Vec<Address>,
    outbox: Arc<Outbox>,
}

impl Dialed {
    /// Whether this is about that peer. A peer that left and was admitted again between two checks
    /// has the same key, and another outbox.
    fn is(&self, peer: &Peering) -> bool {
        peer.addresses == self.addresses && Arc::ptr_eq(&peer.outbox, &self.outbox)
    }
}

/// Maintains a connection to one other replica, for ever.
async fn maintain(
    dialer: Dialer,
    peer: Peering,
    inbox: Arc<Inbox>,
    (duplicates, published): (Arc<DuplicateReports>, Arc<Published>),
) {
    let Peering {
        key, outbox, state, ..
    } = peer;
    let mut backoff = Backoff::default();
    let mut attempt = 0_usize;
    loop {
        let dialed = dialer.dial_at(attempt).await;
        let duplicate = matches!(dialed, Err(LinkError::Refused(Refusal::DuplicateProcess)));
        // The current epoch's model: r may have changed.
        let model = published.membership().map(|membership| membership.model);
        let enough = model.map_or(usize::MAX, |model| model.small().into());
        if duplicates.note(key, duplicate, enough, Instant::now()) {
            inbox.failed(Ending::DuplicateProcess);
        }
        let error = match dialed {
            Ok(greeted) => {
                let since = Instant::now();
                state.set(None);
                outbox.set_connected(true);
                inbox.connected(key);
                let address = dialer
                    .address(attempt)
                    .map_or_else(|_| String::new(), |it| it.to_string());
                tracing::info!(replica = %dialer.wanted, address, "connected");
                let error = send_all(greeted, outbox.clone(), key, &inbox).await;
                outbox.set_connected(false);
                tracing::info!(replica = %dialer.wanted, %error, "disconnected");
                // A peer that closes the connection at once is not dialed again at once.
                if since.elapsed() >= limits::SETTLED {
                    backoff.reset();
                }
                error
            }
            Err(error) => {
                // It may be at its other address. The one that worked last is tried first.
                attempt = attempt.wrapping_add(1);
                tracing::debug!(replica = %dialer.wanted, %error, "cannot connect");
                error
            }
        };
        state.set(Some(error.to_string()));
        backoff.pause().await;
    }
}

/// Sends the frames of the outbox until the connection ends. Only keepalives come back, and the
/// request of a replica that does not know this one yet ([`crate::unknown_replicas`]).
async fn send_all(
    greeted: Greeted,
    outbox: Arc<Outbox>,
    key: PublicKey,
    inbox: &Inbox,
) -> LinkError {
    let from = Source::Replica(key);
    let allowance = Inbox::allowance(Source::Client(ConnectionId(0)));
    let (mut reader, mut writing) = greeted.start(outbox, limits::ANSWER_BYTES_MAX);
    let mut requests = EpochRequests::default();
    let reading = async {
        loop {
            let frame = match reader.next().await {
                Ok(frame) => frame.payload,
                Err(error) => return error,
            };
            if frame.get(..8).and_then(MessageKind::of_tag) != Some(MessageKind::FetchEpochs) {
                return LinkError::Malformed("an unexpected frame on a connection for sending");
            }
            if !requests.accept(Instant::now()) {
                return LinkError::Malformed("requests for epochs without a pause");
            }
            let (bytes, arrival) = (frame.len(), Arrival::Raw(frame, key));
            inbox
                .put(from, Class::Peer, bytes, &allowance, arrival)
                .await;
        }
    };
    tokio::select! {
        error = reading => error,
        error = writing.ended() => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::outbox::Bounds;
    use quorumfs_bft::identity::ReplicaId;

    #[test]
    fn a_replica_that_left_and_was_admitted_again_is_dialed_anew() {
        let outbox = || {
            Arc::new(Outbox::new(Bounds {
                frames_max: 1,
                frames_away_max: 1,
                bytes_max: 1,
            }))
        };
        let addresses = vec![Address::from(std::net::SocketAddr::from((
            [127, 0, 0, 1],
            1,
        )))];
        let mut peer = Peering {
            id: ReplicaId(1),
            key: PublicKey([1; 32]),
            addresses: addresses.clone(),
            outbox: outbox(),
            state: LinkState::never_dialed(),
        };
        let dialed = Dialed {
            addresses,
            outbox: peer.outbox.clone(),
        };
        assert!(dialed.is(&peer));
        peer.outbox = outbox();
        assert!(!dialed.is(&peer), "a closed outbox stays closed");
    }

    #[test]
    fn a_duplicate_counts_if_more_replicas_than_may_lie_report_it_for_long() {
        let duplicates = DuplicateReports::default();
        let key = |number| PublicKey([number; 32]);
        let began = Instant::now();
        let later = began + limits::DUPLICATE_DEADLINE;
        assert!(!duplicates.note(key(1), true, 2, began));
        assert!(!duplicates.note(key(1), true, 2, later), "one may lie");
        assert!(
            !duplicates.note(key(2), true, 2, later),
            "it may be too early"
        );
        assert!(!duplicates.note(key(1), false, 2, later));
        assert!(!duplicates.note(key(2), true, 2, later + limits::DUPLICATE_DEADLINE));
        assert!(!duplicates.note(key(3), true, 2, later));
        let much_later = later + limits::DUPLICATE_DEADLINE;
        assert!(
            !duplicates.note(key(3), true, 3, much_later),
            "three may lie"
        );
        assert!(duplicates.note(key(3), true, 2, much_later));
        duplicates.retain(&[]);
        assert!(
            !duplicates.note(key(3), true, 2, much_later),
            "a replica that left does not count"
        );
    }
}
