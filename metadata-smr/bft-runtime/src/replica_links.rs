//! A replica's connections: it dials every other replica and serves whoever dials it.
//!
//! Which replicas there are the roster says, which changes with the epoch. Whoever stays, at the
//! same address, is not dialed anew.

use crate::address::Address;
use crate::client::Task;
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
use crate::newcomers::{Newcomer, Questions};
use crate::pace::{Account, Accounts, Volumes};
use crate::roster::peers::Peering;
use crate::roster::{Connection, Roster};
use crate::tls::Identity;
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

/// Serves the connections that others open.
#[derive(Debug)]
pub(crate) struct Reception {
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) roster: Arc<Roster>,
    pub(crate) verification: Arc<Verification>,
    pub(crate) accounts: Arc<Accounts>,
    pub(crate) volumes: Arc<Volumes>,
    /// The replica's thread, where connections are served once they are greeted.
    pub(crate) home: Handle,
}

/// An admitted connection's place; the event loop is told when it goes.
#[derive(Debug)]
pub(crate) struct Place {
    connection: Connection,
    inbox: Arc<Inbox>,
    roster: Arc<Roster>,
}

impl Drop for Place {
    fn drop(&mut self) {
        match self.connection.from {
            Source::Client(id) | Source::Newcomer(id) => self.inbox.gone(id),
            Source::Replica(_) => self.roster.hung_up(&self.connection),
        }
    }
}

impl Gatekeeper for Reception {
    type Place = Place;

    fn admit(&self, key: PublicKey, role: Role, process: u64) -> Result<Place, Refusal> {
        let admitted = self.roster.admit(key, role, process);
        if let Err(Refusal::Doubled) = admitted {
            tracing::warn!(%key, "a second process with this replica's key was turned away");
        }
        Ok(Place {
            connection: admitted?,
            inbox: self.inbox.clone(),
            roster: self.roster.clone(),
        })
    }

    async fn serve(self: Arc<Self>, place: Place, greeted: Greeted) -> LinkError {
        let home = self.home.clone();
        let mut serving = Serving(home.spawn(self.serve_at_home(place, greeted)));
        // Cancelled when the replica's thread is gone.
        (&mut serving.0).await.unwrap_or(LinkError::Ended)
    }
}

/// Ends what serves a connection when it goes out of scope.
struct Serving(JoinHandle<LinkError>);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Reception {
    /// On the replica's thread.
    async fn serve_at_home(self: Arc<Self>, place: Place, mut greeted: Greeted) -> LinkError {
        if let Err(error) = greeted.settle() {
            return error;
        }
        let connection = &place.connection;
        let frame_bytes_max = match connection.from {
            Source::Replica(_) => FRAME_BYTES_MAX,
            Source::Newcomer(_) | Source::Client(_) => REQUEST_BYTES_MAX,
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
        let mut newcomer = Newcomer::default();
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
                Source::Newcomer(_) => newcomer.hear(frame, connection, &self.verification),
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

    /// Waits if too much has come from there.
    async fn pace(&self, from: Source, account: &Account) {
        let now = Instant::now();
        let pause = match from {
            Source::Replica(replica) => self.volumes.count(replica, now),
            Source::Newcomer(_) | Source::Client(_) => account.pause(now),
        };
        if let Some(pause) = pause {
            tokio::time::sleep(pause).await;
        }
    }

    fn class(&self, connection: &Connection) -> Class {
        match connection.from {
            Source::Replica(_) => Class::Peer,
            Source::Client(_) if self.roster.has_session(&connection.key) => Class::Client,
            Source::Newcomer(_) | Source::Client(_) => Class::Stranger,
        }
    }

    /// Leaves a frame's check to the event loop, which has a turn for each source; what is large
    /// is checked apart first.
    async fn arrive(&self, connection: &Connection, frame: Bytes) -> Option<Arrival> {
        let (from, key) = (connection.from, connection.key);
        let peer = self.roster.peer(from)?;
        if frame.len() <= limits::INLINE_FRAME_BYTES_MAX {
            return Some(Arrival::Raw(frame, key));
        }
        match self.verification.check_apart(peer, key, frame).await {
            Ok((message, epoch)) => Some(Arrival::Admitted(Box::new(message), epoch, key)),
            Err(refused) => {
                // An epoch that began meanwhile may have given it another number.
                let same = self.roster.peer(from) == Some(peer);
                if let Some(reason) = refused.blame.filter(|_| same) {
                    self.roster.blacklist(from, &reason);
                }
                None
            }
        }
    }
}

/// How it stands with a link that this node dials.
#[derive(Clone, Debug, Default)]
pub struct LinkState {
    reason: Arc<Mutex<Option<String>>>,
}

impl LinkState {
    /// Of one that nobody has tried yet.
    pub(crate) fn undialed() -> Self {
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

/// Who says that another process with this replica's key is connected to it, and since when.
///
/// That it was refused for a moment means nothing: the others may not have noticed yet that an
/// earlier process has ended, and one alone may lie. If more than may lie say so for long, another
/// process is this replica to the cluster, and this one ends rather than seem to vote.
#[derive(Debug, Default)]
pub(crate) struct Doubles {
    since: Mutex<BTreeMap<PublicKey, Instant>>,
}

impl Doubles {
    /// These are the other replicas now; what others said counts no more.
    fn keep(&self, peers: &[Peering]) {
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        since.retain(|key, _| peers.iter().any(|peer| peer.key == *key));
    }

    /// What came of dialing this replica now: whether another process has this one's place. As many
    /// as `enough` do not all lie.
    fn dialed(&self, key: PublicKey, doubled: bool, enough: usize, now: Instant) -> bool {
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        if !doubled {
            since.remove(&key);
            return false;
        }
        since.entry(key).or_insert(now);
        let for_long = |since: &&Instant| now.duration_since(**since) >= limits::DOUBLED_FOR;
        since.values().filter(for_long).count() >= enough
    }
}

/// Dials the other replicas of whichever epoch it is.
pub(crate) struct Dialing {
    pub(crate) identity: Identity,
    pub(crate) cluster: ClusterId,
    pub(crate) authentication: Authentication,
    pub(crate) roster: Arc<Roster>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) process: u64,
    pub(crate) doubles: Arc<Doubles>,
    pub(crate) published: Arc<Published>,
}

impl Dialing {
    /// What each connection that is kept needs to know of the others.
    fn said(&self) -> (Arc<Doubles>, Arc<Published>) {
        (self.doubles.clone(), self.published.clone())
    }

    /// Keeps a connection to every other replica, for ever.
    pub(crate) async fn run(self) {
        let mut entered = self.roster.entered();
        let mut tasks: BTreeMap<PublicKey, (Dialed, Task)> = BTreeMap::new();
        loop {
            let peers = self.roster.peers();
            self.doubles.keep(&peers);
            let stays = |dialed: &Dialed| peers.iter().any(|peer| dialed.is(peer));
            tasks.retain(|_, (dialed, _)| stays(dialed));
            for peer in peers {
                if peer.addresses.is_empty() {
                    let reason = "nobody said where it is found".to_owned();
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
                let keeping = keep_dialing(dialer, peer, self.inbox.clone(), self.said());
                let dialed = Dialed { addresses, outbox };
                tasks.insert(key, (dialed, Task(tokio::spawn(keeping))));
            }
            if entered.changed().await.is_err() {
                return;
            }
        }
    }
}

/// Whom a task dials, and what it sends.
struct Dialed {
    addresses: Vec<Address>,
    outbox: Arc<Outbox>,
}

impl Dialed {
    /// Whether this is about that peer. One that left and was taken up again between two looks has
    /// the same key, and another outbox.
    fn is(&self, peer: &Peering) -> bool {
        peer.addresses == self.addresses && Arc::ptr_eq(&peer.outbox, &self.outbox)
    }
}

/// Keeps a connection to one other replica, for ever.
async fn keep_dialing(
    dialer: Dialer,
    peer: Peering,
    inbox: Arc<Inbox>,
    (doubles, published): (Arc<Doubles>, Arc<Published>),
) {
    let Peering {
        key, outbox, state, ..
    } = peer;
    let mut backoff = Backoff::default();
    let mut attempt = 0_usize;
    loop {
        let dialed = dialer.dial_at(attempt).await;
        let doubled = matches!(dialed, Err(LinkError::Refused(Refusal::Doubled)));
        // Of the epoch that this one is in: r may have changed.
        let model = published.membership().map(|membership| membership.model);
        let enough = model.map_or(usize::MAX, |model| model.small().into());
        if doubles.dialed(key, doubled, enough, Instant::now()) {
            inbox.failed(Ending::Doubled);
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
                // Whoever hangs up at once is not dialed at once.
                if since.elapsed() >= limits::SETTLED {
                    backoff.reset();
                }
                error
            }
            Err(error) => {
                // It may be at the other of its addresses. One that it was at is tried first.
                attempt = attempt.wrapping_add(1);
                tracing::debug!(replica = %dialer.wanted, %error, "cannot connect");
                error
            }
        };
        state.set(Some(error.to_string()));
        backoff.pause().await;
    }
}

/// Sends what the outbox holds until the connection ends. Only signs of life come back, and the
/// question of a replica that does not know this one yet ([`crate::newcomers`]).
async fn send_all(
    greeted: Greeted,
    outbox: Arc<Outbox>,
    key: PublicKey,
    inbox: &Inbox,
) -> LinkError {
    let from = Source::Replica(key);
    let allowance = Inbox::allowance(Source::Client(ConnectionId(0)));
    let (mut reader, mut writing) = greeted.start(outbox, limits::ANSWER_BYTES_MAX);
    let mut questions = Questions::default();
    let hearing = async {
        loop {
            let frame = match reader.next().await {
                Ok(frame) => frame.payload,
                Err(error) => return error,
            };
            if frame.get(..8).and_then(MessageKind::of_tag) != Some(MessageKind::FetchEpochs) {
                return LinkError::Malformed("an answer on a connection that takes none");
            }
            if !questions.came(Instant::now()) {
                return LinkError::Malformed("one question after the other");
            }
            let (bytes, arrival) = (frame.len(), Arrival::Raw(frame, key));
            inbox
                .put(from, Class::Peer, bytes, &allowance, arrival)
                .await;
        }
    };
    tokio::select! {
        error = hearing => error,
        error = writing.ended() => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::outbox::Bounds;
    use quorumfs_bft::identity::ReplicaId;

    #[test]
    fn whoever_left_and_was_taken_up_again_is_dialed_anew() {
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
            state: LinkState::undialed(),
        };
        let dialed = Dialed {
            addresses,
            outbox: peer.outbox.clone(),
        };
        assert!(dialed.is(&peer));
        peer.outbox = outbox();
        assert!(!dialed.is(&peer), "what was closed stays so");
    }

    #[test]
    fn another_process_has_the_place_if_more_than_may_lie_say_so_for_long() {
        let doubles = Doubles::default();
        let key = |number| PublicKey([number; 32]);
        let began = Instant::now();
        let later = began + limits::DOUBLED_FOR;
        assert!(!doubles.dialed(key(1), true, 2, began));
        assert!(!doubles.dialed(key(1), true, 2, later), "one may lie");
        assert!(
            !doubles.dialed(key(2), true, 2, later),
            "it may be too early"
        );
        assert!(!doubles.dialed(key(1), false, 2, later));
        assert!(!doubles.dialed(key(2), true, 2, later + limits::DOUBLED_FOR));
        assert!(!doubles.dialed(key(3), true, 2, later));
        let much_later = later + limits::DOUBLED_FOR;
        assert!(
            !doubles.dialed(key(3), true, 3, much_later),
            "three may lie"
        );
        assert!(doubles.dialed(key(3), true, 2, much_later));
        doubles.keep(&[]);
        assert!(
            !doubles.dialed(key(3), true, 2, much_later),
            "who left says nothing"
        );
    }
}
