//! A client's connections: one to every replica of the epoch that it knows, redialed for ever.

use super::machine::Machine;
use super::{AbortOnDrop, ClientError, StatusError, Unreachable};
use crate::address::Address;
use crate::limits;
use crate::link::LinkError;
use crate::link::connection::Greeted;
use crate::link::dial::{Backoff, Dialer};
use crate::link::frame::{Frame, Kind as FrameKind};
use crate::link::hello::{Refusal, Role};
use crate::link::outbox::{Bounds, Outbox};
use crate::replica_links::LinkState;
use crate::roster::peers::{Addresses, addresses_of};
use crate::tls::{Identity, TlsError};
use bytes::Bytes;
use quorumfs_bft::authentication::Authentication;
use quorumfs_bft::identity::{ClusterId, Epoch, Group, PublicKey, ReplicaId, View};
use quorumfs_bft::membership::Membership;
use quorumfs_bft::metrics::ReplicaStatus;
use quorumfs_bft::wire::frame::{Envelope, Header, encode};
use quorumfs_bft::wire::limits::FRAME_BYTES_MAX;
use quorumfs_bft::wire::message::{Kind, Message, StatusQuery};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};

const BOUNDS: Bounds = Bounds {
    frames_max: limits::CLIENT_OUTBOX_FRAMES_MAX,
    frames_away_max: limits::AWAY_OUTBOX_FRAMES_MAX,
    bytes_max: limits::CLIENT_OUTBOX_BYTES_MAX,
};

/// Status queries that wait for one replica; beyond this the oldest goes unanswered.
const STATUS_QUERIES_MAX: usize = 64;

/// One replica, as seen by a client.
#[derive(Debug)]
struct Link {
    key: PublicKey,
    /// Its number in the epoch that the client knows.
    replica: AtomicU16,
    addresses: Vec<Address>,
    cluster: ClusterId,
    outbox: Arc<Outbox>,
    state: LinkState,
    /// Redialing cannot cure the reason.
    permanent: AtomicBool,
    /// Whether there is a connection.
    connected: watch::Sender<bool>,
    nonce: AtomicU64,
    status_queries: Mutex<BTreeMap<u64, oneshot::Sender<ReplicaStatus>>>,
}

/// Which replicas a client connects to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Those that vote: they alone send replies.
    Voters,
    /// All members, to query the status of each.
    Members,
}

/// What is needed to create links.
pub(crate) struct Dialing {
    pub(crate) identity: Identity,
    pub(crate) cluster: ClusterId,
    /// The known addresses of replicas.
    pub(crate) known_addresses: Addresses,
    pub(crate) reach: Reach,
    pub(crate) machine: Arc<Machine>,
}

/// A link and the task that maintains it.
type RunningLink = (Arc<Link>, AbortOnDrop);

/// All links of a client, to the members of the epoch that it knows.
pub(crate) struct Links {
    links: Arc<Mutex<BTreeMap<PublicKey, RunningLink>>>,
    _follower: AbortOnDrop,
}

impl std::fmt::Debug for Links {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Links").finish_non_exhaustive()
    }
}

impl Dialing {
    /// Starts dialing, and follows the client from epoch to epoch.
    pub(crate) fn start(self) -> Result<Links, ClientError> {
        let links = Arc::new(Mutex::new(BTreeMap::new()));
        let mut memberships = self.machine.memberships();
        let first = memberships.borrow_and_update().clone();
        self.arrange(&first, &links)
            .map_err(|error| ClientError::Configuration(error.to_string()))?;
        let current = links.clone();
        let following = async move {
            while memberships.changed().await.is_ok() {
                let membership = memberships.borrow_and_update().clone();
                if let Err(error) = self.arrange(&membership, &current) {
                    tracing::warn!(%error, "a replica cannot be dialed");
                }
            }
        };
        Ok(Links {
            links,
            _follower: AbortOnDrop(tokio::spawn(following)),
        })
    }

    /// Links to exactly these members. Existing links to them are not touched.
    fn arrange(
        &self,
        membership: &Membership,
        links: &Mutex<BTreeMap<PublicKey, RunningLink>>,
    ) -> Result<(), TlsError> {
        let mut links = links.lock().unwrap_or_else(PoisonError::into_inner);
        let mut before = std::mem::take(&mut *links);
        for (id, member) in (0..).zip(membership.members()) {
            if self.reach == Reach::Voters && !membership.votes(ReplicaId(id)) {
                continue;
            }
            let addresses = addresses_of(member, &self.known_addresses);
            if addresses.is_empty() {
                tracing::warn!(replica = id, "no address of this replica is known");
                continue;
            }
            let stays = before.remove(&member.key);
            let running = match stays.filter(|(link, _)| link.addresses == addresses) {
                Some(running) => running,
                None => self.dial(member.key, id, addresses)?,
            };
            running.0.replica.store(id, Ordering::Relaxed);
            links.insert(member.key, running);
        }
        drop(links);
        for key in before.into_keys() {
            self.machine.disconnected(key);
        }
        Ok(())
    }

    fn dial(
        &self,
        key: PublicKey,
        id: u16,
        addresses: Vec<Address>,
    ) -> Result<RunningLink, TlsError> {
        let dialer = Dialer {
            wanted: ReplicaId(id),
            addresses: addresses.clone(),
            connector: self.identity.connector(key)?,
            cluster: self.cluster,
            role: Role::Client,
            authentication: Authentication::Sig,
            process: 0,
        };
        let link = Arc::new(Link {
            key,
            replica: AtomicU16::new(id),
            addresses,
            cluster: self.cluster,
            outbox: Arc::new(Outbox::new(BOUNDS)),
            state: LinkState::never_dialed(),
            permanent: AtomicBool::new(false),
            connected: watch::Sender::new(false),
            nonce: AtomicU64::new(0),
            status_queries: Mutex::default(),
        });
        let maintaining = maintain(link.clone(), dialer, self.machine.clone());
        Ok((link, AbortOnDrop(tokio::spawn(maintaining))))
    }
}

impl Links {
    /// All links, by rising number.
    fn all(&self) -> Vec<Arc<Link>> {
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<Arc<Link>> = links.values().map(|(link, _)| link.clone()).collect();
        all.sort_by_key(|link| link.id());
        all
    }

    /// How many links there are, and how many of them failed for a reason that redialing cannot
    /// cure.
    pub(crate) fn permanent_failures(&self) -> (usize, usize) {
        let all = self.all();
        let permanent = |link: &&Arc<Link>| link.permanent.load(Ordering::Relaxed);
        (all.len(), all.iter().filter(permanent).count())
    }

    /// How many are connected.
    pub(crate) fn connected(&self) -> usize {
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let connected = |link: &&Arc<Link>| link.state.unreachable().is_none();
        links
            .values()
            .map(|(link, _)| link)
            .filter(connected)
            .count()
    }

    /// The replicas that are not connected, with the reasons.
    pub(crate) fn unreachable(&self) -> Vec<Unreachable> {
        let unreachable = |link: &Arc<Link>| {
            Some(Unreachable {
                replica: link.id(),
                address: link.addresses.first()?.clone(),
                reason: link.state.unreachable()?,
            })
        };
        self.all().iter().filter_map(unreachable).collect()
    }

    /// Asks all replicas for their status at the same time.
    pub(crate) async fn ask_status(
        &self,
        deadline: Duration,
    ) -> Vec<(ReplicaId, Result<ReplicaStatus, StatusError>)> {
        let ask = move |link: Arc<Link>| async move {
            let answered = link.ask_status(deadline).await;
            answered.map(|(status, _)| status)
        };
        self.ask_all(ask).await
    }

    /// The shortest of so many round trips to each replica; all replicas at the same time.
    pub(crate) async fn round_trips(
        &self,
        tries: u32,
        deadline: Duration,
    ) -> Vec<(ReplicaId, Result<Duration, StatusError>)> {
        let ask = move |link: Arc<Link>| async move { link.round_trip(tries, deadline).await };
        self.ask_all(ask).await
    }

    async fn ask_all<T, F>(
        &self,
        ask: impl Fn(Arc<Link>) -> F,
    ) -> Vec<(ReplicaId, Result<T, StatusError>)>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StatusError>> + Send + 'static,
    {
        let mut queries = Vec::new();
        for link in self.all() {
            queries.push((link.id(), tokio::spawn(ask(link))));
        }
        let mut answers = Vec::new();
        for (replica, answer) in queries {
            let answer = answer
                .await
                .unwrap_or_else(|error| Err(StatusError::Unreachable(error.to_string())));
            answers.push((replica, answer));
        }
        answers
    }
}

/// Maintains one connection for ever.
async fn maintain(link: Arc<Link>, dialer: Dialer, machine: Arc<Machine>) {
    let mut backoff = Backoff::default();
    let mut attempt = 0_usize;
    loop {
        let error = match dialer.dial_at(attempt).await {
            Ok(greeted) => {
                backoff.reset();
                link.permanent.store(false, Ordering::Relaxed);
                link.state.set(None);
                link.outbox.set_connected(true);
                link.connected.send_replace(true);
                machine.connected(link.key, link.outbox.clone());
                let error = link.serve(greeted, &machine).await;
                link.connected.send_replace(false);
                link.outbox.set_connected(false);
                link.state.set(Some(error.to_string()));
                machine.disconnected(link.key);
                error
            }
            Err(error) => {
                // It may be at its other address. The one that worked last is tried first.
                attempt = attempt.wrapping_add(1);
                error
            }
        };
        tracing::debug!(replica = %link.id(), %error, "not connected");
        let permanent = is_permanent(&error) && link.addresses.len() == 1;
        link.permanent.store(permanent, Ordering::Relaxed);
        link.state.set(Some(error.to_string()));
        backoff.pause().await;
    }
}

/// Whether only a change of a configuration can help.
fn is_permanent(error: &LinkError) -> bool {
    match error {
        LinkError::WrongCluster { .. } | LinkError::Tls(TlsError::WrongKey { .. }) => true,
        LinkError::Refused(refusal) => match refusal {
            Refusal::WrongCluster
            | Refusal::Version
            | Refusal::NotThatReplica
            | Refusal::Authentication => true,
            // These pass without intervention.
            Refusal::Full
            | Refusal::FullForPrincipal
            | Refusal::Blacklisted
            | Refusal::DuplicateProcess => false,
        },
        _ => false,
    }
}

impl Link {
    fn id(&self) -> ReplicaId {
        ReplicaId(self.replica.load(Ordering::Relaxed))
    }

    async fn serve(&self, greeted: Greeted, machine: &Machine) -> LinkError {
        let (mut reader, mut writing) = greeted.start(self.outbox.clone(), FRAME_BYTES_MAX);
        let reading = async {
            loop {
                match reader.next().await {
                    Ok(frame) if frame.kind == FrameKind::Message => {
                        self.receive(frame.payload, machine);
                    }
                    Ok(_) => return LinkError::Malformed("a second greeting"),
                    Err(error) => return error,
                }
            }
        };
        tokio::select! {
            error = reading => error,
            error = writing.ended() => error,
        }
    }

    fn receive(&self, frame: Bytes, machine: &Machine) {
        if frame.get(..8).and_then(Kind::of_tag) == Some(Kind::StatusAnswer) {
            self.receive_status(frame.clone());
        }
        // The core learns from any answer which epoch its sender is in.
        machine.received(self.key, frame);
    }

    fn status_queries(
        &self,
    ) -> std::sync::MutexGuard<'_, BTreeMap<u64, oneshot::Sender<ReplicaStatus>>> {
        self.status_queries
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn receive_status(&self, frame: Bytes) {
        let Ok(envelope) = Envelope::decode(frame) else {
            return;
        };
        if let Message::StatusAnswer(answer) = envelope.message()
            && let Some(caller) = self.status_queries().remove(&answer.nonce)
        {
            let _ = caller.send(answer.status.clone());
        }
    }

    /// The shortest of so many round trips, one after the other.
    async fn round_trip(&self, tries: u32, deadline: Duration) -> Result<Duration, StatusError> {
        let (_, mut shortest) = self.ask_status(deadline).await?;
        for _ in 1..tries {
            let (_, took) = self.ask_status(deadline).await?;
            shortest = shortest.min(took);
        }
        Ok(shortest)
    }

    /// The replica's status, and how long the answer took once there was a connection.
    async fn ask_status(
        &self,
        deadline: Duration,
    ) -> Result<(ReplicaStatus, Duration), StatusError> {
        let asking = async {
            let mut connected = self.connected.subscribe();
            if connected.wait_for(|connected| *connected).await.is_err() {
                return None;
            }
            let nonce = self.nonce.fetch_add(1, Ordering::Relaxed);
            let (sender, receiver) = oneshot::channel();
            {
                let mut status_queries = self.status_queries();
                while status_queries.len() >= STATUS_QUERIES_MAX {
                    status_queries.pop_first();
                }
                status_queries.insert(nonce, sender);
            }
            let header = Header {
                cluster: self.cluster,
                epoch: Epoch(0),
                group: Group(0),
                view: View(0),
            };
            let query = encode(header, &Message::StatusQuery(StatusQuery { nonce }));
            let asked = Instant::now();
            self.outbox.push(Frame::message(query));
            let status = receiver.await.ok()?;
            Some((status, asked.elapsed()))
        };
        match tokio::time::timeout(deadline, asking).await {
            Ok(Some(answered)) => Ok(answered),
            _ => Err(match self.state.unreachable() {
                Some(reason) => StatusError::Unreachable(reason),
                None => StatusError::Silent(deadline),
            }),
        }
    }
}
