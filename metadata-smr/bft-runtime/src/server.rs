//! A replica as a process runs it: disk, core, event loop, links, and a handle to all of it.
//!
//! ```text
//!   start ──► bind ──► open disk ──► recover core ──► loop on a thread of its own, and with it
//!                                                │    a dialing task a peer, whoever was let in
//!                                                └──► listener, with the caller's tasks
//!   shutdown ──► loop ends ──► core dropped ──► disk closed with its clean-stop mark
//! ```
//!
//! # What always holds
//!
//! * Nothing is listened to before recovery has succeeded.
//! * A replica whose state or disk fails stops and stays silent; [`ReplicaHandle::ended`] says why,
//!   and the stop is not marked as clean.
//! * Dropping the handle stops the replica as a crash would: without the clean-stop mark.

use crate::client::{Member, Task};
use crate::disk::{Completion, Disk, DiskError, Durability, Opened};
use crate::event_loop::{Clock, Core, Ending, EventLoop, Published, Surroundings};
use crate::inbox::Inbox;
use crate::keys::NodeKey;
use crate::limits;
use crate::link::dial::Dialer;
use crate::link::hello::Role;
use crate::link::listen::Listener;
use crate::link::outbox::Outbox;
use crate::pace::{Accounts, Volumes};
use crate::replica_links::{LinkState, Reception, keep_dialing};
use crate::roster::{Places, Roster};
use crate::store::DiskStore;
use crate::tls::{Identity, TlsError};
use crate::unsigned;
use crate::verification::Verification;
use bytes::Bytes;
use quorumfs_bft::authentication::Authentication;
use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft::identity::{ClusterId, Now, PublicKey, ReplicaId};
use quorumfs_bft::journal::Journal;
use quorumfs_bft::metrics::ReplicaStatus;
use quorumfs_bft::replica::{Config, Replica};
use quorumfs_bft::service::Service;
use quorumfs_bft::state::StateError;
use quorumfs_bft::step::Effects;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

/// What a replica is told.
#[derive(Clone, Debug)]
pub struct ReplicaConfig {
    /// Who it is.
    pub id: ReplicaId,
    /// The cluster that it belongs to.
    pub cluster: ClusterId,
    /// Who may fail.
    pub fault_model: FaultModel,
    /// All replicas, itself included, numbered from 0.
    pub replicas: Vec<Member>,
    /// Its own key.
    pub key: Arc<NodeKey>,
    /// Where it listens; at its address in `replicas` if nothing else is said.
    pub listen: Option<SocketAddr>,
    /// Its disk, made by [`ReplicaServer::initialise`].
    pub directory: PathBuf,
    /// When a record counts as durable.
    pub durability: Durability,
    /// What the service begins with: the same bytes on every replica.
    pub genesis: Bytes,
    /// Whether votes are signed: the same on every replica, for good.
    pub authentication: Authentication,
}

/// A replica that did not start or did not stop well.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The configuration makes no sense.
    #[error("replica {replica} cannot work as configured: {reason}")]
    Configuration {
        /// Which replica.
        replica: ReplicaId,
        /// What is wrong.
        reason: String,
    },
    /// The configured key is another one than the replica has.
    #[error(
        "replica {replica} has the key {own}, its configuration lists {listed} for it: \
         use the key file and the cluster configuration that belong together"
    )]
    WrongKey {
        /// Which replica.
        replica: ReplicaId,
        /// The key that it has.
        own: PublicKey,
        /// The key that is listed.
        listed: PublicKey,
    },
    /// It cannot listen there.
    #[error("replica {replica} cannot listen on {address}: {source}; is another process there?")]
    Listen {
        /// Which replica.
        replica: ReplicaId,
        /// Where.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// Its TLS identity cannot be made.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Its disk cannot be used.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// Its state cannot be read.
    #[error("replica {replica} cannot read its state: {source}")]
    State {
        /// Which replica.
        replica: ReplicaId,
        /// What is wrong.
        source: StateError,
    },
    /// A thread could not be started, or died.
    #[error("the thread of replica {replica} {reason}")]
    Thread {
        /// Which replica.
        replica: ReplicaId,
        /// What happened to it.
        reason: String,
    },
}

/// How a replica and its links are.
#[derive(Clone, Debug)]
pub struct ServerStatus {
    /// What the core says.
    pub replica: ReplicaStatus,
    /// Each other replica, and why it cannot be reached; `None` while it is.
    pub links: Vec<(ReplicaId, Option<String>)>,
    /// Frames refused because of their content.
    pub frames_refused: u64,
    /// Votes that came too late to be looked at.
    pub votes_stale: u64,
    /// Frames that gave way to newer ones because a peer did not take them.
    pub frames_dropped: u64,
}

/// What a replica starts from.
pub struct Start {
    /// Its settings.
    pub config: Config,
    /// Its state.
    pub store: DiskStore,
    /// What it has promised.
    pub journal: Journal,
}

/// Starts replicas.
#[derive(Clone, Copy, Debug)]
pub struct ReplicaServer;

impl ReplicaServer {
    /// Makes `directory` the empty disk of a new replica.
    ///
    /// # Errors
    /// If it is one already or cannot be written.
    pub fn initialise(directory: &Path) -> Result<(), ServerError> {
        Ok(Disk::create(directory)?)
    }

    /// Starts a replica of `service`. Returns when it has recovered and listens.
    ///
    /// # Errors
    /// If the configuration makes no sense, the address is taken, or the disk cannot be used.
    pub async fn start<S: Service + Send + 'static>(
        config: ReplicaConfig,
        service: S,
    ) -> Result<ReplicaHandle, ServerError> {
        let address = match config.listen {
            Some(address) => address,
            None => own(&config)?.address,
        };
        let failed = |source| ServerError::Listen {
            replica: config.id,
            address,
            source,
        };
        let socket = TcpListener::bind(address).await.map_err(failed)?;
        Self::start_on(config, service, socket).await
    }

    /// The same on a socket that listens already.
    ///
    /// # Errors
    /// Like [`ReplicaServer::start`].
    pub async fn start_on<S: Service + Send + 'static>(
        config: ReplicaConfig,
        service: S,
        socket: TcpListener,
    ) -> Result<ReplicaHandle, ServerError> {
        let replica = |start: Start, now, effects: &mut Effects| {
            let Start {
                config,
                store,
                journal,
            } = start;
            Replica::recover(config, service, store, journal, now, effects)
        };
        Self::start_core_on(config, replica, socket).await
    }

    /// The same with something else than a replica in the middle, which `make` makes on the thread
    /// that it will live on: for measurements of what surrounds a replica, and of what replicas
    /// that misbehave do to others.
    ///
    /// # Errors
    /// Like [`ReplicaServer::start`].
    pub async fn start_core_on<C: Core>(
        config: ReplicaConfig,
        make: impl FnOnce(Start, Now, &mut Effects) -> Result<C, StateError> + Send + 'static,
        socket: TcpListener,
    ) -> Result<ReplicaHandle, ServerError> {
        let address = socket.local_addr().map_err(|source| ServerError::Listen {
            replica: config.id,
            address: config.listen.unwrap_or(([0, 0, 0, 0], 0).into()),
            source,
        })?;
        let listed = own(&config)?.key;
        if listed != config.key.public() {
            return Err(ServerError::WrongKey {
                replica: config.id,
                own: config.key.public(),
                listed,
            });
        }
        let addresses = config.replicas.iter().map(|member| member.address);
        if !unsigned::is_harmless(config.cluster, addresses.chain([address])) {
            return Err(ServerError::Configuration {
                replica: config.id,
                reason: unsigned::REFUSAL.to_owned(),
            });
        }
        let identity = Identity::new(config.key.clone())?;
        let keys: Vec<(ReplicaId, PublicKey)> =
            config.replicas.iter().map(|it| (it.id, it.key)).collect();
        let mut core = Config::new(
            config.id,
            config.cluster,
            config.fault_model,
            config.genesis.clone(),
        );
        core.authentication = config.authentication;
        let verification = Verification::new(
            core.context(),
            config.replicas.iter().map(|it| it.key).collect(),
        );
        let shared = Shared {
            inbox: Arc::new(Inbox::default()),
            roster: Arc::new(Roster::new(config.id, &keys, places())),
            verification: Arc::new(verification),
            accounts: Arc::new(Accounts::default()),
            published: Arc::new(Published::default()),
            clean: Arc::new(AtomicBool::new(false)),
        };
        // Whatever can fail comes before the thread that nobody would stop.
        let dialers = dialers(&config, &identity, &shared)?;
        let acceptor = identity.acceptor()?;
        let (ended, home) = run_on_thread(&config, core, make, &shared).await?;
        let (mut tasks, links) = dial_all(dialers, &shared, &home);
        let listener = Listener {
            socket,
            acceptor,
            cluster: config.cluster,
            authentication: config.authentication,
            me: config.id,
            gatekeeper: Arc::new(Reception {
                inbox: shared.inbox.clone(),
                roster: shared.roster.clone(),
                verification: shared.verification.clone(),
                accounts: shared.accounts.clone(),
                volumes: Arc::new(Volumes::new(config.fault_model, Instant::now())),
                home,
            }),
        };
        tasks.push(Task(tokio::spawn(listener.run())));
        tracing::info!(replica = %config.id, %address, "the replica listens");
        Ok(ReplicaHandle {
            id: config.id,
            address,
            shared,
            links,
            ended,
            tasks,
        })
    }
}

/// Raises the limit of open files as far as this process may, and divides it up.
fn places() -> Places {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        };
        if setrlimit(Resource::Nofile, raised).is_ok() {
            limit = getrlimit(Resource::Nofile);
        }
    }
    let files = limit.current.unwrap_or(u64::MAX);
    let places = Places::within(usize::try_from(files).unwrap_or(usize::MAX));
    if places.clients < limits::CLIENTS_MAX {
        tracing::warn!(
            files,
            clients = places.clients,
            "few files may be open; see `ulimit -n`"
        );
    }
    places
}

/// This replica's own entry; checks that the list makes sense.
fn own(config: &ReplicaConfig) -> Result<&Member, ServerError> {
    let wrong = |reason| ServerError::Configuration {
        replica: config.id,
        reason,
    };
    let expected = usize::from(config.fault_model.replicas());
    let numbered = (0_u16..)
        .zip(&config.replicas)
        .all(|(number, member)| member.id == ReplicaId(number));
    if config.replicas.len() != expected || !numbered {
        return Err(wrong(format!(
            "{} replicas are listed, the fault model speaks of {expected}; \
             list each once, by rising number from 0",
            config.replicas.len()
        )));
    }
    config
        .replicas
        .get(usize::from(config.id.0))
        .ok_or_else(|| {
            wrong(format!(
                "there are only {expected} replicas, numbered from 0"
            ))
        })
}

/// Tasks that dial, and how each link stands.
type Dialing = (Vec<Task>, Vec<(ReplicaId, LinkState)>);

/// One for every other replica, with the outbox that it empties.
fn dialers(
    config: &ReplicaConfig,
    identity: &Identity,
    shared: &Shared,
) -> Result<Vec<(Dialer, Arc<Outbox>)>, ServerError> {
    let mut dialers = Vec::new();
    for member in &config.replicas {
        let Some(outbox) = shared.roster.outbox(member.id) else {
            continue;
        };
        let dialer = Dialer {
            wanted: member.id,
            address: member.address,
            connector: identity.connector(member.key)?,
            cluster: config.cluster,
            role: Role::Replica(config.id),
            authentication: config.authentication,
        };
        dialers.push((dialer, outbox));
    }
    Ok(dialers)
}

fn dial_all(dialers: Vec<(Dialer, Arc<Outbox>)>, shared: &Shared, home: &Handle) -> Dialing {
    let mut tasks = Vec::new();
    let mut links = Vec::new();
    for (dialer, outbox) in dialers {
        let state = LinkState::default();
        links.push((dialer.wanted, state.clone()));
        let keeping = keep_dialing(dialer, outbox, state, shared.inbox.clone());
        tasks.push(Task(home.spawn(keeping)));
    }
    (tasks, links)
}

#[derive(Clone)]
struct Shared {
    inbox: Arc<Inbox>,
    roster: Arc<Roster>,
    verification: Arc<Verification>,
    accounts: Arc<Accounts>,
    published: Arc<Published>,
    clean: Arc<AtomicBool>,
}

/// How a replica ended; the disk's own complaint, if it had one, is in the reason.
type Ended = Option<Ending>;

/// Opens disk and core on a new thread and runs the loop there; says where that is.
async fn run_on_thread<C: Core>(
    config: &ReplicaConfig,
    core: Config,
    make: impl FnOnce(Start, Now, &mut Effects) -> Result<C, StateError> + Send + 'static,
    shared: &Shared,
) -> Result<(watch::Receiver<Ended>, Handle), ServerError> {
    let replica = config.id;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| ServerError::Thread {
            replica,
            reason: format!("has no event queue: {error}"),
        })?;
    let home = runtime.handle().clone();
    let (ready_tx, ready_rx) = oneshot::channel();
    let (ended_tx, ended_rx) = watch::channel(None);
    let (directory, durability) = (config.directory.clone(), config.durability);
    let signer = unsigned::signer(config.cluster, config.key.clone());
    let shared = shared.clone();
    let run = move || {
        let inbox = shared.inbox.clone();
        let opened = match Disk::open(&directory, durability, report_to(inbox, durability)) {
            Ok(opened) => opened,
            Err(error) => {
                let _ = ready_tx.send(Err(error.into()));
                return;
            }
        };
        let Opened {
            disk,
            journal,
            store,
        } = opened;
        let clock = Clock::start();
        let mut effects = Effects::default();
        let start = Start {
            config: core,
            store,
            journal,
        };
        let machine = match make(start, clock.now(), &mut effects) {
            Ok(machine) => machine,
            Err(source) => {
                let _ = ready_tx.send(Err(ServerError::State { replica, source }));
                return;
            }
        };
        let _ = ready_tx.send(Ok(()));
        let around = Surroundings {
            inbox: shared.inbox,
            roster: shared.roster,
            verification: shared.verification,
            accounts: shared.accounts,
            published: shared.published,
            signer,
            clock,
        };
        let inbox = around.inbox.clone();
        let looping = EventLoop::new(machine, disk, around);
        let (mut ending, disk) = runtime.block_on(looping.run(effects));
        if ending == Ending::Stopped && shared.clean.load(Ordering::Acquire) {
            if let Err(error) = disk.close() {
                ending = ending_of(&error);
            }
        } else {
            drop(disk);
        }
        ended_tx.send_replace(Some(ending));
        // Connections stay open and silent, or peers would dial in vain again and again.
        runtime.block_on(inbox.until_stopped());
    };
    std::thread::Builder::new()
        .name(format!("replica-{replica}"))
        .spawn(run)
        .map_err(|error| ServerError::Thread {
            replica,
            reason: format!("could not be started: {error}"),
        })?;
    match ready_rx.await {
        Ok(Ok(())) => Ok((ended_rx, home)),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(ServerError::Thread {
            replica,
            reason: "died while it was recovering".to_owned(),
        }),
    }
}

fn ending_of(error: &DiskError) -> Ending {
    match error {
        DiskError::Full { .. } => Ending::DiskFull(error.to_string()),
        _ => Ending::Poisoned(error.to_string()),
    }
}

fn report_to(
    inbox: Arc<Inbox>,
    durability: Durability,
) -> impl Fn(Completion) + Send + Sync + 'static {
    move |completion| match completion {
        // The loop has not waited for it.
        Completion::Persisted { .. } if durability == Durability::None => {}
        Completion::Persisted { token } => inbox.persisted(token),
        Completion::Flushed { sequence } => inbox.flushed(sequence),
        Completion::Failed { error } => inbox.failed(ending_of(&error)),
    }
}

/// A running replica.
pub struct ReplicaHandle {
    id: ReplicaId,
    address: SocketAddr,
    shared: Shared,
    links: Vec<(ReplicaId, LinkState)>,
    ended: watch::Receiver<Ended>,
    tasks: Vec<Task>,
}

impl std::fmt::Debug for ReplicaHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReplicaHandle({} at {})", self.id, self.address)
    }
}

impl ReplicaHandle {
    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How it is; nothing in the first moments.
    #[must_use]
    pub fn status(&self) -> Option<ServerStatus> {
        let links = self.links.iter();
        let outboxes = links
            .clone()
            .filter_map(|(id, _)| self.shared.roster.outbox(*id));
        let (frames_refused, votes_stale) = self.shared.verification.counts();
        Some(ServerStatus {
            replica: self.shared.published.get()?,
            links: links
                .map(|(id, state)| (*id, state.unreachable()))
                .collect(),
            frames_refused,
            votes_stale,
            frames_dropped: outboxes.map(|outbox| outbox.dropped()).sum(),
        })
    }

    /// Waits until it has ended, by itself or by somebody's wish.
    pub async fn ended(&self) -> Ending {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await {
            Ok(ending) => ending.clone().unwrap_or(Ending::Stopped),
            Err(_) => Ending::Poisoned("the thread of the replica panicked".to_owned()),
        }
    }

    /// Stops it cleanly: what was asked of the disk is written and the stop is marked.
    pub async fn shutdown(self) -> Ending {
        self.shared.clean.store(true, Ordering::Release);
        self.stop().await
    }

    /// Stops it as a crash would, and waits until it is gone.
    pub async fn kill(self) -> Ending {
        self.stop().await
    }

    async fn stop(mut self) -> Ending {
        for task in self.tasks.drain(..) {
            // Waited for, so that the address is free when this returns.
            task.end().await;
        }
        self.shared.inbox.stop();
        self.ended().await
    }
}

impl Drop for ReplicaHandle {
    fn drop(&mut self) {
        self.shared.inbox.stop();
    }
}
