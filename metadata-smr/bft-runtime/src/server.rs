//! A replica in a process: disk, core, event loop, links, and a handle to all of it.
//!
//! ```text
//!   start ──► bind ──► open disk ──► recover core ──► loop on a thread of its own, and with it
//!                                                │    a dialing task per peer, and dialers
//!                                                └──► listener, with the caller's tasks
//!   shutdown ──► loop ends ──► core dropped ──► disk closed with its clean-stop mark
//! ```
//!
//! # What always holds
//!
//! * Nothing listens before recovery has succeeded.
//! * A replica whose state or disk fails stops and stays silent; [`ReplicaHandle::ended`] returns
//!   the reason, and the stop is not marked as clean.
//! * Dropping the handle stops the replica as a crash would: without the clean-stop mark.

mod config;

pub use crate::recorder::RecordingConfig;
pub use config::{ReplicaConfig, ReplicaLabel, ServerError, first_incarnation};

use crate::client::AbortOnDrop;
use crate::disk::{Completion, Disk, DiskError, Durability, Opened};
use crate::disk_space::DiskSpace;
use crate::event_loop::{Clock, Core, Ending, EventLoop, LoopContext, Published};
use crate::inbox::Inbox;
use crate::limits;
use crate::link::listen::Listener;
use crate::pace::{Accounts, Volumes};
use crate::recorder;
use crate::replica_links::{Dialing, Reception};
use crate::roster::{ConnectionLimits, Roster};
use crate::self_administration::SelfAdministration;
use crate::store::{DiskStore, ReusableSpace};
use crate::tls::Identity;
use crate::unsigned;
use crate::verification::Verification;
use quorumfs_bft::identity::{Incarnation, Now, ReplicaId};
use quorumfs_bft::journal::Journal;
use quorumfs_bft::membership::Membership;
use quorumfs_bft::metrics::ReplicaStatus;
use quorumfs_bft::replica::Config;
use quorumfs_bft::service::Service;
use quorumfs_bft::state::StateError;
use quorumfs_bft::step::Effects;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

/// The status of a replica and its links.
#[derive(Clone, Debug)]
pub struct ServerStatus {
    /// The status of the core.
    pub replica: ReplicaStatus,
    /// Each other replica, and why it is unreachable; `None` while it is connected.
    pub links: Vec<(ReplicaId, Option<String>)>,
    /// Frames refused because of their content.
    pub frames_refused: u64,
    /// Votes that came too late to be checked.
    pub votes_stale: u64,
    /// Frames that were dropped for newer ones because a peer did not read them.
    pub frames_dropped: u64,
}

/// The state that a replica starts from.
pub struct Start {
    /// Its settings.
    pub config: Config,
    /// Its state.
    pub store: DiskStore,
    /// The record of its promises.
    pub journal: Journal,
}

impl Start {
    /// The replica of `service` that continues from there, for a core that wraps one.
    ///
    /// # Errors
    /// If the state cannot be read.
    pub fn replica(
        self,
        service: Box<dyn Service + Send>,
        now: Now,
        effects: &mut Effects,
    ) -> Result<Box<dyn Core>, StateError> {
        let core = recorder::recover(None, self, service, now, effects)?;
        Ok(Box::new(core))
    }
}

/// Starts replicas.
#[derive(Clone, Copy, Debug)]
pub struct ReplicaServer;

impl ReplicaServer {
    /// Makes `directory` the empty disk of a replica. Returns the incarnation of the journal on it,
    /// a random one that no other disk has. The genesis membership names the incarnation of each
    /// replica, and an administrator names that of one that joins. So a replica with a new disk
    /// does not vote: it asks by itself to be admitted again.
    ///
    /// # Errors
    /// If it is a replica's disk already or cannot be written, or there are no random numbers.
    pub fn initialise(directory: &Path) -> Result<Incarnation, ServerError> {
        let incarnation = random_incarnation()?;
        Self::initialise_as(directory, incarnation)?;
        Ok(incarnation)
    }

    /// Like [`ReplicaServer::initialise`], with a given incarnation that was never used before.
    ///
    /// # Errors
    /// If it is a replica's disk already or cannot be written.
    pub fn initialise_as(directory: &Path, incarnation: Incarnation) -> Result<(), ServerError> {
        Ok(Disk::create(directory, incarnation)?)
    }

    /// Starts a replica of `service`. Returns when it has recovered and listens.
    ///
    /// # Errors
    /// If the configuration is invalid, the address is taken, or the disk cannot be used.
    pub fn start(config: ReplicaConfig, service: impl Service + Send + 'static) -> Starting {
        let service = Box::new(service);
        match config.address() {
            Ok(address) => bind_and_start(config, address, service),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    /// Like [`ReplicaServer::start`], on a socket that listens already.
    ///
    /// # Errors
    /// Like [`ReplicaServer::start`].
    pub fn start_on(
        config: ReplicaConfig,
        service: impl Service + Send + 'static,
        socket: TcpListener,
    ) -> Starting {
        start_service(config, Box::new(service), socket)
    }

    /// Like [`ReplicaServer::start_on`], with another core than a replica, which `make` creates on
    /// the core's thread: for measurements of a replica's surroundings, and of the effect of
    /// misbehaving replicas on others.
    ///
    /// # Errors
    /// Like [`ReplicaServer::start`].
    pub fn start_core_on<C: Core + 'static>(
        config: ReplicaConfig,
        make: impl FnOnce(Start, Now, &mut Effects) -> Result<C, StateError> + Send + 'static,
        socket: TcpListener,
    ) -> Starting {
        let make: CoreFactory = Box::new(move |start, now, effects| {
            make(start, now, effects).map(|core| Box::new(core) as Box<dyn Core>)
        });
        boxed(config, make, socket)
    }
}

/// A starting replica. It is boxed in this crate, with its service and its core, so that servers
/// are compiled here once, and not again in each crate that starts one.
pub type Starting = Pin<Box<dyn Future<Output = Result<ReplicaHandle, ServerError>> + Send>>;

/// Creates a core on its thread.
type CoreFactory =
    Box<dyn FnOnce(Start, Now, &mut Effects) -> Result<Box<dyn Core>, StateError> + Send>;

fn bind_and_start(
    config: ReplicaConfig,
    address: SocketAddr,
    service: Box<dyn Service + Send>,
) -> Starting {
    Box::pin(async move {
        let failed = |source| ServerError::Listen {
            replica: config.who(),
            address,
            source,
        };
        let socket = TcpListener::bind(address).await.map_err(failed)?;
        start_service(config, service, socket).await
    })
}

fn start_service(
    config: ReplicaConfig,
    service: Box<dyn Service + Send>,
    socket: TcpListener,
) -> Starting {
    let recording = config.recording.clone();
    let replica: CoreFactory = Box::new(move |start, now, effects| {
        let core = recorder::recover(recording.as_ref(), start, service, now, effects)?;
        Ok(Box::new(core))
    });
    boxed(config, replica, socket)
}

fn boxed(config: ReplicaConfig, make: CoreFactory, socket: TcpListener) -> Starting {
    Box::pin(start_core(config, make, socket))
}

async fn start_core(
    config: ReplicaConfig,
    make: CoreFactory,
    socket: TcpListener,
) -> Result<ReplicaHandle, ServerError> {
    let address = socket.local_addr().map_err(|source| ServerError::Listen {
        replica: config.who(),
        address: config.listen.unwrap_or(([0, 0, 0, 0], 0).into()),
        source,
    })?;
    config.check()?;
    let addresses = config.replicas.iter().map(|member| member.address.clone());
    if !unsigned::is_harmless(config.cluster, addresses.chain([address.into()])) {
        return Err(ServerError::Configuration {
            replica: config.who(),
            reason: unsigned::REFUSAL.to_owned(),
        });
    }
    let identity = Identity::new(config.key.clone())?;
    let genesis = config.membership();
    let core = core_config(&config, &genesis)?;
    let shared = Shared::new(&config, &core);
    // A replica enters its epoch itself after recovery, and that may be a later one.
    shared.roster.enter(&genesis, core.replica);
    DiskSpace::new(&config.directory, config.free_bytes_min).release_reserve();
    // Everything that can fail comes before the thread, which would not be stopped.
    let acceptor = identity.acceptor()?;
    let (ended, home) = run_on_thread(&config, core, make, &shared).await?;
    let dialing = Dialing {
        process: random_process()?,
        duplicates: Arc::default(),
        published: shared.published.clone(),
        identity,
        cluster: config.cluster,
        authentication: config.authentication,
        roster: shared.roster.clone(),
        inbox: shared.inbox.clone(),
    };
    let listener = Listener {
        socket,
        acceptor,
        cluster: config.cluster,
        authentication: config.authentication,
        gatekeeper: Arc::new(Reception {
            inbox: shared.inbox.clone(),
            roster: shared.roster.clone(),
            verification: shared.verification.clone(),
            accounts: shared.accounts.clone(),
            volumes: shared.volumes.clone(),
            home: home.clone(),
        }),
    };
    let administration =
        SelfAdministration::of(&config, shared.published.clone(), shared.spare.clone());
    let tasks = vec![
        AbortOnDrop(home.spawn(dialing.run())),
        AbortOnDrop(tokio::spawn(listener.run())),
        AbortOnDrop(tokio::spawn(administration.run())),
    ];
    tracing::info!(replica = %config.who(), %address, "the replica listens");
    Ok(ReplicaHandle {
        address,
        shared,
        ended,
        tasks,
    })
}

fn random_incarnation() -> Result<Incarnation, ServerError> {
    let mut incarnation = Incarnation::default();
    getrandom::fill(&mut incarnation.0).map_err(|error| ServerError::Randomness {
        reason: error.to_string(),
    })?;
    Ok(incarnation)
}

/// Distinguishes this process from others with the same key; clients have 0.
fn random_process() -> Result<u64, ServerError> {
    let drawn = getrandom::u64().map_err(|error| ServerError::Randomness {
        reason: error.to_string(),
    })?;
    Ok(drawn.max(1))
}

/// The core's configuration; the disk supplies the journal's incarnation later.
fn core_config(config: &ReplicaConfig, genesis: &Membership) -> Result<Config, ServerError> {
    let mut core = Config::member(
        config.key.public(),
        Incarnation::default(),
        random_incarnation()?,
        config.cluster,
        genesis.clone(),
        config.genesis.clone(),
    );
    core.authentication = config.authentication;
    core.durability = config.durability;
    Ok(core)
}

/// Raises the limit of open files as far as this process may, and divides it up.
fn places() -> ConnectionLimits {
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
    let places = ConnectionLimits::within(usize::try_from(files).unwrap_or(usize::MAX));
    if places.clients < limits::CLIENTS_MAX {
        tracing::warn!(
            files,
            clients = places.clients,
            "this process may open few files, so it serves few clients; raise `ulimit -n`"
        );
    }
    places
}

#[derive(Clone)]
struct Shared {
    inbox: Arc<Inbox>,
    roster: Arc<Roster>,
    verification: Arc<Verification>,
    accounts: Arc<Accounts>,
    volumes: Arc<Volumes>,
    published: Arc<Published>,
    /// The reusable space in the database, once it is open.
    spare: Arc<OnceLock<ReusableSpace>>,
    clean: Arc<AtomicBool>,
}

impl Shared {
    fn new(config: &ReplicaConfig, core: &Config) -> Self {
        let keys = config.replicas.iter().map(|it| it.key).collect();
        let roster = Roster::new(core.key, config.addresses(), places());
        Self {
            inbox: Arc::new(Inbox::default()),
            roster: Arc::new(roster),
            verification: Arc::new(Verification::new(core.context(), keys)),
            accounts: Arc::new(Accounts::default()),
            volumes: Arc::new(Volumes::new(config.fault_model, Instant::now())),
            published: Arc::new(Published::default()),
            spare: Arc::default(),
            clean: Arc::new(AtomicBool::new(false)),
        }
    }
}

/// How a replica ended; an error of the disk, if there was one, is in the reason.
type LoopEnd = Option<Ending>;

/// Opens disk and core on a new thread and runs the loop there; returns how to reach it.
async fn run_on_thread(
    config: &ReplicaConfig,
    mut core: Config,
    make: CoreFactory,
    shared: &Shared,
) -> Result<(watch::Receiver<LoopEnd>, Handle), ServerError> {
    let replica = config.who();
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
            incarnation,
        } = opened;
        core.incarnation = incarnation;
        shared.published.set_incarnation(incarnation);
        let _ = shared.spare.set(store.spare());
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
        let context = LoopContext {
            inbox: shared.inbox,
            roster: shared.roster,
            verification: shared.verification,
            accounts: shared.accounts,
            volumes: shared.volumes,
            published: shared.published,
            signer,
            clock,
        };
        let inbox = context.inbox.clone();
        let event_loop = EventLoop::new(machine, disk, context);
        let (mut ending, disk) = runtime.block_on(event_loop.run(effects));
        if ending == Ending::Stopped && shared.clean.load(Ordering::Acquire) {
            if let Err(error) = disk.close() {
                ending = ending_of(&error);
            }
        } else {
            drop(disk);
        }
        ended_tx.send_replace(Some(ending));
        // Connections stay open and silent, or peers would dial again and again.
        runtime.block_on(inbox.until_stopped());
    };
    std::thread::Builder::new()
        .name(replica.to_string().replace(' ', "-"))
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
    address: SocketAddr,
    shared: Shared,
    ended: watch::Receiver<LoopEnd>,
    tasks: Vec<AbortOnDrop>,
}

impl std::fmt::Debug for ReplicaHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReplicaHandle({})", self.address)
    }
}

impl ReplicaHandle {
    /// The address on which it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its status; nothing in the first moments.
    #[must_use]
    pub fn status(&self) -> Option<ServerStatus> {
        let peers = self.shared.roster.peers();
        let (frames_refused, votes_stale) = self.shared.verification.counts();
        Some(ServerStatus {
            replica: self.shared.published.get()?,
            links: peers
                .iter()
                .map(|peer| (peer.id, peer.state.unreachable()))
                .collect(),
            frames_refused,
            votes_stale,
            frames_dropped: peers.iter().map(|peer| peer.outbox.dropped()).sum(),
        })
    }

    /// The membership of its epoch; nothing in the first moments.
    #[must_use]
    pub fn membership(&self) -> Option<Arc<Membership>> {
        self.shared.published.membership()
    }

    /// Waits until it has ended, by itself or on request.
    pub async fn ended(&self) -> Ending {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await {
            Ok(ending) => ending.clone().unwrap_or(Ending::Stopped),
            Err(_) => Ending::Poisoned("the thread of the replica panicked".to_owned()),
        }
    }

    /// Stops it cleanly: pending writes are completed and the stop is marked.
    pub async fn shutdown(self) -> Ending {
        self.shared.clean.store(true, Ordering::Release);
        self.stop().await
    }

    /// Stops it as a crash would, and waits until it has ended.
    pub async fn kill(self) -> Ending {
        self.stop().await
    }

    async fn stop(mut self) -> Ending {
        for task in self.tasks.drain(..) {
            // Awaited, so that the address is free when this returns.
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
