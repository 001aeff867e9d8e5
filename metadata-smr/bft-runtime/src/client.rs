//! The asynchronous client: connections to all replicas around the pure core of `bft::client`.
//!
//! ```text
//!   execute, query ──► core (one lock) ──► outbox of each replica ──► link ──► replica
//!   result ◄── core ◄── reader of each link ◄── replies
//! ```
//!
//! Whoever has something for the core steps it right there, under a lock that is held for one step
//! and at most one signature; there is no task in between, so a request costs no extra wake-ups.
//! One task per replica keeps the link and one keeps the core's timer.
//!
//! [`BlockingClient`] and [`CallbackClient`] are the same on a thread of their own, for programs
//! without an asynchronous runtime.
//!
//! # What always holds
//!
//! * An operation is answered exactly once: with its result, or with an error that says whether it
//!   may have been executed.
//! * At most the core's bound of operations waits; beyond it [`ClientError::Busy`] comes at once.
//! * Replicas that cannot be reached are dialed again for ever; an error names them with reasons.
//! * A session that was lost is not reopened silently: its owner has to know, and connects again.
//! * The client follows its cluster from epoch to epoch: what is under way then is asked of the new
//!   epoch's replicas in the same bytes, and is executed once.
//! * When the last clone of a client is dropped, its tasks and connections end. The session then
//!   ends by being idle; [`Client::close`] ends it at once.

mod administer;
pub mod error;
pub(crate) mod links;
mod machine;
mod observer;
mod own_thread;

pub use administer::Administered;
pub use error::{ClientError, StatusError, Unreachable};
pub use observer::{Interest, Observer, Told};
pub use own_thread::{BlockingClient, CallbackClient};

use crate::address::Address;
use crate::keys::NodeKey;
use crate::tls::Identity;
use crate::unsigned;
use bytes::Bytes;
use links::{Dialing, Links, Reach};
use machine::{Machine, Notice};
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

/// An operation whose result found no room in its bundle had no effect, and is tried so often: the
/// bundles after it hold others' results, so it gets ahead of them.
const NO_ROOM_ATTEMPTS: u32 = 8;

/// A replica as its peers and clients know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its number.
    pub id: ReplicaId,
    /// Its key.
    pub key: PublicKey,
    /// What its first journal is known by; only replicas look at it.
    pub incarnation: Incarnation,
    /// Where it is reached.
    pub address: Address,
}

/// How a client reaches its cluster.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The cluster.
    pub cluster: ClusterId,
    /// Who may fail, of those that the cluster began with.
    pub fault_model: FaultModel,
    /// The replicas that it began with. From what those say that are left, the client is led to who
    /// they are now.
    pub replicas: Vec<Member>,
    /// The membership of a later epoch, if one is known: the client is led on from there.
    pub known: Option<Membership>,
    /// The key that sessions are opened with, and this client's TLS identity.
    pub principal: Arc<NodeKey>,
    /// How long an operation may take.
    pub deadline: Duration,
    /// How long opening the session may take.
    pub connect_deadline: Duration,
    /// How long a replica may take to tell its status.
    pub status_deadline: Duration,
    /// Closed loops that are asked for; what is submitted beyond is bundled.
    pub lanes: u16,
    /// Operations in one bundle at the most; 1 does without bundles.
    pub bundle_max: usize,
    /// The newest state that this client's owner was shown before, of [`Client::shown`]: replicas
    /// that have gone back behind it are refused.
    pub shown: Sequence,
    /// Whether [`Client::read`] asks out of order. All clients of a cluster have to agree on this:
    /// readers count on what writers wait for, which is an answer of more replicas then.
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

    /// What the client believes before it has heard of anything later.
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
                "{} replicas are listed, the fault model speaks of {expected}; \
                 list each once, by rising number from 0",
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

/// Stops its task when it is dropped.
#[derive(Debug)]
pub(crate) struct Task(pub(crate) JoinHandle<()>);

impl Task {
    /// Stops it and waits until everything that it held is dropped.
    pub(crate) async fn end(mut self) {
        self.0.abort();
        // Cancelled is what it should be.
        let _ = (&mut self.0).await;
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(Debug)]
struct Inner {
    machine: Arc<Machine>,
    links: Links,
    config: ClientConfig,
    _timer: Task,
}

/// A session with the cluster. Clones share it.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

impl Client {
    /// Connects to the replicas and opens a session.
    ///
    /// # Errors
    /// If too few replicas can be reached in time, or the service refuses this principal.
    pub async fn connect(config: ClientConfig) -> Result<Self, ClientError> {
        let (client, session_key) = Self::dial(config, Reach::Voters)?;
        let machine = &client.inner.machine;
        let mut notices = machine.notices();
        machine.step(Event::Open {
            session_key,
            time: wall_clock(),
        });
        let opening = client.opened(&mut notices);
        match tokio::time::timeout(client.inner.config.connect_deadline, opening).await {
            Ok(opened) => opened.map(|()| client),
            Err(_) => Err(client.too_few("opening a session")),
        }
    }

    /// Begins to dial all replicas; there is no session, but the key for one.
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
        let timer = Task(tokio::spawn(machine::keep_time(machine.clone())));
        let dialing = Dialing {
            identity,
            cluster,
            told: config
                .replicas
                .iter()
                .map(|it| (it.key, it.address.clone()))
                .collect(),
            reach,
            machine: machine.clone(),
        };
        let links = dialing.start()?;
        let inner = Arc::new(Inner {
            machine,
            links,
            config,
            _timer: timer,
        });
        Ok((Self { inner }, session_key.public()))
    }

    /// Waits for the session, or until it is certain that there will be none.
    async fn opened(
        &self,
        notices: &mut tokio::sync::watch::Receiver<Notice>,
    ) -> Result<(), ClientError> {
        let mut look = tokio::time::interval(Duration::from_millis(50));
        loop {
            let notice = *notices.borrow_and_update();
            match notice {
                Notice::Open(_) => return Ok(()),
                Notice::Ended(end) => return Err(ClientError::SessionEnded(end)),
                Notice::Opening => {}
            }
            let small = usize::from(self.membership().model.small());
            let (links, hopeless) = self.inner.links.hopeless();
            if links.saturating_sub(hopeless) < small {
                return Err(self.too_few("opening a session"));
            }
            tokio::select! {
                changed = notices.changed() => if changed.is_err() {
                    return Err(self.too_few("opening a session"));
                },
                _ = look.tick() => {}
            }
        }
    }

    fn too_few(&self, doing: &'static str) -> ClientError {
        ClientError::TooFew {
            doing,
            needed: self.membership().model.medium(),
            unreachable: self.inner.links.unreachable(),
        }
    }

    /// Gets an operation executed and gives its result.
    ///
    /// # Errors
    /// If it was not answered in time or the session has ended; the error says whether the
    /// operation may have been executed.
    pub async fn execute(&self, operation: Bytes) -> Result<Bytes, ClientError> {
        self.submit(OperationKind::Execute, operation).await
    }

    /// Gets a query answered, in the order like everything else.
    ///
    /// # Errors
    /// Like [`Client::execute`]; a query changes nothing in any case.
    pub async fn query(&self, query: Bytes) -> Result<Bytes, ClientError> {
        self.submit(OperationKind::Query, query).await
    }

    /// Gets a query answered out of order, from a state in which everything has happened that
    /// anybody had been told of before: as good as [`Client::query`], and cheaper. If the replicas
    /// do not agree in time, for instance because what is asked about is changing, it takes its
    /// place in the order.
    ///
    /// # Errors
    /// Like [`Client::query`].
    pub async fn read(&self, query: Bytes) -> Result<Bytes, ClientError> {
        self.submit(OperationKind::Read, query).await
    }

    /// Gets a query answered from a state that is no older than any that this session was shown
    /// before. It may not have what others have done lately. Fewer replicas are asked than by
    /// [`Client::read`].
    ///
    /// # Errors
    /// Like [`Client::query`].
    pub async fn read_in_session(&self, query: Bytes) -> Result<Bytes, ClientError> {
        self.submit(OperationKind::SessionRead, query).await
    }

    /// How many queries were answered out of order so far, and how many were put into it because
    /// the replicas did not agree.
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

    /// Asks every replica how it stands. Each answer is that replica's own word. If one is in a
    /// later epoch than the client knows, the replicas of that one are asked, once it has proved
    /// that there is one.
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

    /// The membership of the newest epoch that the client was led to.
    #[must_use]
    pub fn membership(&self) -> Arc<Membership> {
        self.inner.machine.memberships().borrow().clone()
    }

    /// What the order calls this session; nothing once it has ended.
    #[must_use]
    pub fn session(&self) -> Option<SessionId> {
        self.inner.machine.session()
    }

    /// The newest state that this client was shown. Its owner keeps it for the next client
    /// ([`ClientConfig::shown`]), which replicas that went back in time then cannot deceive.
    #[must_use]
    pub fn shown(&self) -> Sequence {
        self.inner.machine.shown()
    }

    /// The replicas that are not connected now, with the reason.
    #[must_use]
    pub fn unreachable(&self) -> Vec<Unreachable> {
        self.inner.links.unreachable()
    }

    /// Whether fewer replicas are connected now than an order takes.
    #[must_use]
    pub fn is_cut_off(&self) -> bool {
        let model = self.membership().model;
        self.inner.links.connected() < usize::from(model.medium())
    }

    /// Closes the session, after everything under way has been answered.
    ///
    /// # Errors
    /// If that takes longer than the deadline.
    pub async fn close(&self) -> Result<(), ClientError> {
        let mut notices = self.inner.machine.notices();
        self.inner.machine.step(Event::Close);
        let closing = async {
            loop {
                if matches!(*notices.borrow_and_update(), Notice::Ended(_)) {
                    return;
                }
                if notices.changed().await.is_err() {
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

/// The time by this machine's clock.
fn wall_clock() -> Time {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let nanos = now.unwrap_or_default().as_nanos();
    Time(u64::try_from(nanos).unwrap_or(u64::MAX))
}

fn no_randomness(error: getrandom::Error) -> ClientError {
    ClientError::Configuration(format!("the operating system gave no randomness: {error}"))
}

/// Asks every replica to tell what it is, now and whenever that changes, without opening a session:
/// any key may ask.
///
/// # Errors
/// If the configuration makes no sense; a replica that cannot be reached is silent.
pub fn observe_replicas(config: ClientConfig) -> Result<Observer, ClientError> {
    let (client, _) = Client::dial(config, Reach::Voters)?;
    Ok(client.observe(Interest {
        reports: true,
        watches: false,
    }))
}

/// How a cluster is.
#[derive(Clone, Debug)]
pub struct Standing {
    /// The newest membership that its members could prove. Of the one that a cluster begins with
    /// nobody proves more than what the asker knows.
    pub membership: Arc<Membership>,
    /// What each member says of itself, voters first, by its number there.
    pub replicas: Vec<(ReplicaId, Result<ReplicaStatus, StatusError>)>,
}

/// Asks every member, voter or not, how it stands, without opening a session: any key may ask.
///
/// # Errors
/// If the configuration makes no sense; a replica's silence is in its own entry.
pub async fn standing_of(config: &ClientConfig) -> Result<Standing, ClientError> {
    let (client, _) = Client::dial(config.clone(), Reach::Members)?;
    let replicas = client.status().await;
    Ok(Standing {
        membership: client.membership(),
        replicas,
    })
}

/// The same without the membership.
///
/// # Errors
/// As there.
pub async fn status_of(
    config: &ClientConfig,
) -> Result<Vec<(ReplicaId, Result<ReplicaStatus, StatusError>)>, ClientError> {
    Ok(standing_of(config).await?.replicas)
}
