//! The asynchronous client: connections to all replicas around the pure core of `bft::client`.
//!
//! ```text
//!   execute, query ──► core (one lock) ──► outbox of each replica ──► link ──► replica
//!   result ◄── core ◄── reader of each link ◄── replies
//! ```
//!
//! A caller with input for the core steps it directly, under a lock that is held for one step and
//! at most one signature. There is no task in between, so a request costs no extra wake-ups. One
//! task per replica maintains the link and one runs the core's timer.
//!
//! [`BlockingClient`] and [`CallbackClient`] are the same on a thread of their own, for programs
//! without an asynchronous runtime.
//!
//! # What always holds
//!
//! * An operation is answered exactly once: with its result, or with an error that says whether it
//!   may have been executed.
//! * The number of waiting operations is bounded; beyond the bound [`ClientError::Busy`] comes at
//!   once.
//! * Unreachable replicas are dialed again for ever; an error names them with the reasons.
//! * A lost session is not reopened silently: its owner has to know, and connects again.
//! * The client follows its cluster from membership epoch to membership epoch. Requests pending at
//!   a change go to the new epoch's replicas in the same bytes, and are executed once.
//! * When the last clone of a client is dropped, its tasks and connections end. The session then
//!   expires when it has been idle for long enough; [`Client::close`] ends it at once.

mod administer;
pub(crate) mod copy_feed;
pub mod error;
pub(crate) mod links;
mod machine;
mod observer;
mod own_thread;

pub use administer::Administered;
pub use error::{ClientError, StatusError, Unreachable};
pub use observer::{Interest, Observer, ObserverItem};
pub use own_thread::{BlockingClient, CallbackClient};

use crate::address::Address;
use crate::keys::NodeKey;
use crate::tls::Identity;
use crate::unsigned;
use bytes::Bytes;
use links::{Dialing, Links, Reach};
use machine::{Machine, SessionState};
use quorumfs_bft::client::{self as core, Event, Failure, OperationKind};
use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft::identity::{
    ClusterId, Incarnation, PublicKey, ReplicaId, Sequence, SessionId, Time,
};
use quorumfs_bft::membership::{self, Membership};
use quorumfs_bft::metrics::ReplicaStatus;
use quorumfs_bft::wire::limits::OPERATIONS_MAX;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// How often an operation is tried whose result did not fit into its bundle. It had no effect, and
/// the next bundles hold the results of other operations, so it succeeds eventually.
const NO_ROOM_ATTEMPTS: u32 = 8;

/// A replica as its peers and clients know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its number.
    pub id: ReplicaId,
    /// Its key.
    pub key: PublicKey,
    /// The incarnation of its first journal; only replicas check it.
    pub incarnation: Incarnation,
    /// Where it is reached.
    pub address: Address,
}

/// How a client reaches its cluster.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The cluster.
    pub cluster: ClusterId,
    /// The fault model that the cluster began with.
    pub fault_model: FaultModel,
    /// The replicas that the cluster began with. Those of them that remain lead the client to the
    /// current members.
    pub replicas: Vec<Member>,
    /// The membership of a later epoch, if one is known: the client starts from there.
    pub known: Option<Membership>,
    /// The key that sessions are opened with, and this client's TLS identity.
    pub principal: Arc<NodeKey>,
    /// How long an operation may take.
    pub deadline: Duration,
    /// How long opening the session may take.
    pub connect_deadline: Duration,
    /// How long a replica may take to answer a status query.
    pub status_deadline: Duration,
    /// The number of lanes to ask for; more operations than that are bundled.
    pub lanes: u16,
    /// The most operations in one bundle; 1 disables bundles.
    pub bundle_max: usize,
    /// The newest state that an earlier client of this owner saw, from [`Client::shown`]: replicas
    /// that have gone back behind it are refused.
    pub shown: Sequence,
    /// Whether [`Client::read`] sends unordered reads. All clients of a cluster have to agree on
    /// this: with it, writers wait for answers of more replicas, and readers rely on that.
    pub unordered_reads: bool,
}

impl ClientConfig {
    /// With the usual deadlines.
    #[must_use]
    pub fn new(
        cluster: ClusterId,
        fault_model: FaultModel,
        replicas: Vec<Member>,
        principal: Arc<NodeKey>,
    ) -> Self {
        Self {
            cluster,
            fault_model,
            replicas,
            known: None,
            principal,
            deadline: Duration::from_secs(30),
            connect_deadline: Duration::from_secs(30),
            status_deadline: Duration::from_secs(2),
            lanes: 8,
            bundle_max: OPERATIONS_MAX,
            shown: Sequence(0),
            unordered_reads: true,
        }
    }

    /// The membership that the cluster began with, as far as clients need it.
    #[must_use]
    pub fn genesis(&self) -> Membership {
        Self {
            known: None,
            ..self.clone()
        }
        .membership()
    }

    /// The membership to start from, until the client learns of a later one.
    fn membership(&self) -> Membership {
        let voter = |it: &Member| membership::Member {
            key: it.key,
            incarnation: it.incarnation,
            address: Bytes::new(),
            since: Sequence(0),
        };
        let first = || {
            let voters = self.replicas.iter().map(voter).collect();
            Membership::genesis(self.fault_model, voters, Vec::new())
        };
        self.known.clone().unwrap_or_else(first)
    }

    fn check(&self) -> Result<(), ClientError> {
        let expected = usize::from(self.fault_model.replicas());
        let numbered = (0_u16..)
            .zip(&self.replicas)
            .all(|(number, member)| member.id == ReplicaId(number));
        if self.replicas.len() != expected || !numbered {
            return Err(ClientError::Configuration(format!(
                "{} replicas are listed, but the fault model needs {expected}; \
                 list each once, numbered from 0 upwards",
                self.replicas.len()
            )));
        }
        let addresses = self.replicas.iter().map(|member| member.address.clone());
        if !unsigned::is_harmless(self.cluster, addresses) {
            return Err(ClientError::Configuration(unsigned::REFUSAL.to_owned()));
        }
        Ok(())
    }
}

/// Aborts its task when it is dropped.
#[derive(Debug)]
pub(crate) struct AbortOnDrop(pub(crate) JoinHandle<()>);

impl AbortOnDrop {
    /// Aborts the task and waits until everything that it owns is dropped.
    pub(crate) async fn end(mut self) {
        self.0.abort();
        // The result is that it was cancelled.
        let _ = (&mut self.0).await;
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(Debug)]
struct SharedClient {
    machine: Arc<Machine>,
    links: Links,
    config: ClientConfig,
    _timer: AbortOnDrop,
}

/// A session with the cluster. Clones share it.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<SharedClient>,
}

impl Client {
    /// Connects to the replicas and opens a session.
    ///
    /// # Errors
    /// If too few replicas can be reached in time, or the service refuses this principal.
    pub async fn connect(config: ClientConfig) -> Result<Self, ClientError> {
        let (client, session_key) = Self::dial(config, Reach::Voters)?;
        let machine = &client.inner.machine;
        let mut states = machine.session_states();
        machine.step(Event::Open {
            session_key,
            time: wall_clock(),
        });
        let opening = client.opened(&mut states);
        match tokio::time::timeout(client.inner.config.connect_deadline, opening).await {
            Ok(opened) => opened.map(|()| client),
            Err(_) => Err(client.too_few("opening a session")),
        }
    }

    /// Starts dialing all replicas. No session is opened; the returned key is for one.
    fn dial(config: ClientConfig, reach: Reach) -> Result<(Self, PublicKey), ClientError> {
        config.check()?;
        let identity = Identity::new(config.principal.clone())
            .map_err(|error| ClientError::Configuration(error.to_string()))?;
        let membership = config.membership();
        let (cluster, key) = (config.cluster, identity.key());
        let mut settings = core::ClientConfig::following(cluster, membership.clone(), key);
        settings.lanes = config.lanes;
        settings.bundle_max = config.bundle_max;
        settings.shown = config.shown;
        settings.unordered_reads = config.unordered_reads;
        settings.jitter_seed = getrandom::u64().map_err(no_randomness)?;
        let session_key = Arc::new(
            NodeKey::generate().map_err(|error| ClientError::Configuration(error.to_string()))?,
        );
        let machine = Arc::new(Machine::new(
            core::Client::new(settings),
            unsigned::signer(config.cluster, config.principal.clone()),
            unsigned::signer(config.cluster, session_key.clone()),
            membership,
        ));
        let timer = AbortOnDrop(tokio::spawn(machine::drive_timer(machine.clone())));
        let dialing = Dialing {
            identity,
            cluster,
            known_addresses: config
                .replicas
                .iter()
                .map(|it| (it.key, it.address.clone()))
                .collect(),
            reach,
            machine: machine.clone(),
        };
        let links = dialing.start()?;
        let inner = Arc::new(SharedClient {
            machine,
            links,
            config,
            _timer: timer,
        });
        Ok((Self { inner }, session_key.public()))
    }

    /// Waits until the session is open, or cannot be opened.
    async fn opened(
        &self,
        states: &mut tokio::sync::watch::Receiver<SessionState>,
    ) -> Result<(), ClientError> {
        let mut look = tokio::time::interval(Duration::from_millis(50));
        loop {
            let state = *states.borrow_and_update();
            match state {
                SessionState::Open(_) => return Ok(()),
                SessionState::Ended(end) => return Err(ClientError::SessionEnded(end)),
                SessionState::Opening => {}
            }
            let small = usize::from(self.membership().model.small());
            let (links, permanent) = self.inner.links.permanent_failures();
            if links.saturating_sub(permanent) < small {
                return Err(self.too_few("opening a session"));
            }
            tokio::select! {
                changed = states.changed() => if changed.is_err() {
                    return Err(self.too_few("opening a session"));
                },
                _ = look.tick() => {}
            }
        }
    }

    pub(crate) fn too_few(&self, doing: &'static str) -> ClientError {
        ClientError::TooFew {
            doing,
            needed: self.membership().model.medium(),
            unreachable: self.inner.links.unreachable(),
        }
    }

    /// Executes an operation and returns its result.
    ///
    /// # Errors
    /// If it was not answered in time or the session has ended; the error says whether the
    /// operation may have been executed.
    pub async fn execute(&self, operation: Bytes) -> Result<Bytes, ClientError> {
        self.submit(OperationKind::Execute, operation).await
    }

    /// Answers a query as an ordered request.
    ///
    /// # Errors
    /// Like [`Client::execute`]; a query changes nothing in any case.
    pub async fn query(&self, query: Bytes) -> Result<Bytes, ClientError> {
        self.submit(OperationKind::Query, query).await
    }

    /// Answers a query with an unordered read, from a state that contains everything that any
    /// client had an answer to before: as good as [`Client::query`], and cheaper. If the replicas
    /// do not agree in time, for instance because the data is changing, the query becomes an
    /// ordered request.
    ///
    /// # Errors
    /// Like [`Client::query`].
    pub async fn read(&self, query: Bytes) -> Result<Bytes, ClientError> {
        self.submit(OperationKind::Read, query).await
    }

    /// Answers a query from a state that is no older than any that this session saw before. It may
    /// miss recent changes of other clients. Fewer replicas are asked than by [`Client::read`].
    ///
    /// # Errors
    /// Like [`Client::query`].
    pub async fn read_in_session(&self, query: Bytes) -> Result<Bytes, ClientError> {
        self.submit(OperationKind::SessionRead, query).await
    }

    /// Whether [`Client::read_in_session`] is answered sooner than [`Client::read`], by what was
    /// measured: the nearest r + 1 replicas are nearer than a quorum.
    #[must_use]
    pub fn near_reads_pay(&self) -> bool {
        self.inner.machine.near_reads_pay()
    }

    /// How many queries were answered unordered so far, and how many became ordered requests
    /// because the replicas did not agree.
    #[must_use]
    pub fn reads(&self) -> (u64, u64) {
        self.inner.machine.reads()
    }

    async fn submit(&self, kind: OperationKind, operation: Bytes) -> Result<Bytes, ClientError> {
        let deadline = self.inner.config.deadline;
        let mut attempts = NO_ROOM_ATTEMPTS;
        loop {
            let answer = self.inner.machine.submit(kind, operation.clone(), deadline);
            let failure = match answer.await {
                Ok(Ok(result)) => return Ok(result),
                Ok(Err(failure)) => failure,
                Err(_) => return Err(ClientError::Closed),
            };
            attempts -= 1;
            if failure != Failure::NoRoom || attempts == 0 {
                return Err(ClientError::from_failure(
                    failure,
                    deadline,
                    self.inner.links.unreachable(),
                    self.inner.machine.end(),
                ));
            }
        }
    }

    /// Asks every replica for its status. Each answer is that replica's own statement. If a replica
    /// proves that there is a later epoch than the client knows, the replicas of that epoch are
    /// asked.
    pub async fn status(&self) -> Vec<(ReplicaId, Result<ReplicaStatus, StatusError>)> {
        let deadline = self.inner.config.status_deadline;
        let mut memberships = self.inner.machine.memberships();
        loop {
            let known = memberships.borrow_and_update().epoch;
            let answers = self.inner.links.ask_status(deadline).await;
            let epochs = answers.iter().filter_map(|(_, it)| it.as_ref().ok());
            let later = epochs.map(|it| it.epoch).max() > Some(known);
            let led_on =
                later && matches!(timeout(deadline, memberships.changed()).await, Ok(Ok(())));
            if !led_on {
                return answers;
            }
        }
    }

    /// Measures the way to each replica: the shortest of so many round trips, one after the other,
    /// of a question that each answers by itself.
    pub async fn round_trips(&self, tries: u32) -> Vec<(ReplicaId, Result<Duration, StatusError>)> {
        let deadline = self.inner.config.status_deadline;
        self.inner.links.round_trips(tries, deadline).await
    }

    /// The membership of the newest epoch that the client has followed to.
    #[must_use]
    pub fn membership(&self) -> Arc<Membership> {
        self.inner.machine.memberships().borrow().clone()
    }

    /// The id of this session; nothing once it has ended.
    #[must_use]
    pub fn session(&self) -> Option<SessionId> {
        self.inner.machine.session()
    }

    /// The newest state that this client saw. Its owner saves it for the next client
    /// ([`ClientConfig::shown`]): replicas whose state was rolled back cannot deceive that one.
    #[must_use]
    pub fn shown(&self) -> Sequence {
        self.inner.machine.shown()
    }

    /// The replicas that are not connected now, with the reason.
    #[must_use]
    pub fn unreachable(&self) -> Vec<Unreachable> {
        self.inner.links.unreachable()
    }

    /// Whether fewer replicas are connected now than ordering a request takes.
    #[must_use]
    pub fn is_cut_off(&self) -> bool {
        let model = self.membership().model;
        self.inner.links.connected() < usize::from(model.medium())
    }

    /// Closes the session, after all pending requests have been answered.
    ///
    /// # Errors
    /// If that takes longer than the deadline.
    pub async fn close(&self) -> Result<(), ClientError> {
        let mut states = self.inner.machine.session_states();
        self.inner.machine.step(Event::Close);
        let closing = async {
            loop {
                if matches!(*states.borrow_and_update(), SessionState::Ended(_)) {
                    return;
                }
                if states.changed().await.is_err() {
                    return;
                }
            }
        };
        match tokio::time::timeout(self.inner.config.deadline, closing).await {
            Ok(()) => Ok(()),
            Err(_) => Err(self.too_few("closing the session")),
        }
    }
}

/// The time of this machine's clock.
fn wall_clock() -> Time {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let nanos = now.unwrap_or_default().as_nanos();
    Time(u64::try_from(nanos).unwrap_or(u64::MAX))
}

fn no_randomness(error: getrandom::Error) -> ClientError {
    ClientError::Configuration(format!(
        "the operating system provided no random numbers: {error}"
    ))
}

/// Observes every replica's status, now and whenever it changes, without opening a session: any key
/// may ask.
///
/// # Errors
/// If the configuration is invalid; an unreachable replica is reported as silent.
pub fn observe_replicas(config: ClientConfig) -> Result<Observer, ClientError> {
    let (client, _) = Client::dial(config, Reach::Voters)?;
    Ok(client.observe(Interest {
        reports: true,
        watches: false,
    }))
}

/// The status of a cluster.
#[derive(Clone, Debug)]
pub struct ClusterStatus {
    /// The newest membership that its members could prove. For the membership that a cluster begins
    /// with there is no proof beyond what the caller already knows.
    pub membership: Arc<Membership>,
    /// What each member reports about itself, voters first, by its number there.
    pub replicas: Vec<(ReplicaId, Result<ReplicaStatus, StatusError>)>,
}

/// Asks every member, voting or not, for its status, without opening a session: any key may ask.
///
/// # Errors
/// If the configuration is invalid; a silent replica has an error in its own entry.
pub async fn cluster_status(config: &ClientConfig) -> Result<ClusterStatus, ClientError> {
    let (client, _) = Client::dial(config.clone(), Reach::Members)?;
    let replicas = client.status().await;
    Ok(ClusterStatus {
        membership: client.membership(),
        replicas,
    })
}

/// Like [`cluster_status`], without the membership.
///
/// # Errors
/// Like [`cluster_status`].
pub async fn status_of(
    config: &ClientConfig,
) -> Result<Vec<(ReplicaId, Result<ReplicaStatus, StatusError>)>, ClientError> {
    Ok(cluster_status(config).await?.replicas)
}
