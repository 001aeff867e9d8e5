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

mod config;

pub use crate::recorder::RecordingConfig;
pub use config::{ReplicaConfig, ServerError, Who, first_incarnation};

use crate::client::Task;
use crate::disk::{Completion, Disk, DiskError, Durability, Opened};
use crate::event_loop::{Clock, Core, Ending, EventLoop, Published, Surroundings};
use crate::inbox::Inbox;
use crate::limits;
use crate::link::listen::Listener;
use crate::own_affairs::OwnAffairs;
use crate::pace::{Accounts, Volumes};
use crate::recorder;
use crate::replica_links::{Dialing, Reception};
use crate::room::Room;
use crate::roster::{Places, Roster};
use crate::store::{DiskStore, Spare};
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

impl Start {
    /// The replica of `service` that goes on from there, for a core that is built around one.
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
    /// Makes `directory` the empty disk of a replica. Gives the incarnation that the journal on it
    /// is known by: a random one, and no disk has the same. The membership that the cluster begins
    /// with names that of each replica, and an administrator that of one who joins. So a replica
    /// whose disk was made anew does not vote: it asks by itself to be taken up again.
    ///
    /// # Errors
    /// If it is one already or cannot be written, or there is no randomness.
    pub fn initialise(directory: &Path) -> Result<Incarnation, ServerError> {
        let incarnation = random_incarnation()?;
        Self::initialise_as(directory, incarnation)?;
        Ok(incarnation)
    }

    /// The same under an incarnation that was chosen before, and never used before.
    ///
    /// # Errors
    /// If it is one already or cannot be written.
    pub fn initialise_as(directory: &Path, incarnation: Incarnation) -> Result<(), ServerError> {
        Ok(Disk::create(directory, incarnation)?)
    }

    /// Starts a replica of `service`. Returns when it has recovered and listens.
    ///
    /// # Errors
    /// If the configuration makes no sense, the address is taken, or the disk cannot be used.
    pub fn start(config: ReplicaConfig, service: impl Service + Send + 'static) -> Starting {
        let service = Box::new(service);
        match config.address() {
            Ok(address) => bind_and_start(config, address, service),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    /// The same on a socket that listens already.
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

    /// The same with something else than a replica in the middle, which `make` makes on the thread
    /// that it will live on: for measurements of what surrounds a replica, and of what replicas
    /// that misbehave do to others.
    ///
    /// # Errors
    /// Like [`ReplicaServer::start`].
    pub fn start_core_on<C: Core + 'static>(
        config: ReplicaConfig,
        make: impl FnOnce(Start, Now, &mut Effects) -> Result<C, StateError> + Send + 'static,
        socket: TcpListener,
    ) -> Starting {
        let make: Make = Box::new(move |start, now, effects| {
            make(start, now, effects).map(|core| Box::new(core) as Box<dyn Core>)
        });
        boxed(config, make, socket)
    }
}

/// A replica that is being started. It is boxed in this crate, with its service and its core, so
/// that servers are compiled here once, and not again in each crate that starts one.
pub type Starting = Pin<Box<dyn Future<Output = Result<ReplicaHandle, ServerError>> + Send>>;

/// Makes a core on the thread that it will live on.
type Make = Box<dyn FnOnce(Start, Now, &mut Effects) -> Result<Box<dyn Core>, StateError> + Send>;

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
    let replica: Make = Box::new(move |start, now, effects| {
        let core = recorder::recover(recording.as_ref(), start, service, now, effects)?;
        Ok(Box::new(core))
    });
    boxed(config, replica, socket)
}

fn boxed(config: ReplicaConfig, make: Make, socket: TcpListener) -> Starting {
    Box::pin(start_core(config, make, socket))
}

async fn start_core(
    config: ReplicaConfig,
    make: Make,
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
    // A replica says so itself once it has recovered, and may then be in a later epoch.
    shared.roster.enter(&genesis, core.replica);
    Room::new(&config.directory, config.free_bytes_min).make_way();
    // Whatever can fail comes before the thread that nobody would stop.
    let acceptor = identity.acceptor()?;
    let (ended, home) = run_on_thread(&config, core, make, &shared).await?;
    let dialing = Dialing {
        process: random_process()?,
        doubles: Arc::default(),
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
    let affairs = OwnAffairs::of(&config, shared.published.clone(), shared.spare.clone());
    let tasks = vec![
        Task(home.spawn(dialing.run())),
        Task(tokio::spawn(listener.run())),
        Task(tokio::spawn(affairs.run())),
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

/// Tells this process from others with the same key; never that of clients.
fn random_process() -> Result<u64, ServerError> {
    let drawn = getrandom::u64().map_err(|error| ServerError::Randomness {
        reason: error.to_string(),
    })?;
    Ok(drawn.max(1))
}

/// What the core is told; the disk says later what its journal is known by.
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
    Ok(core)
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

#[derive(Clone)]
struct Shared {
    inbox: Arc<Inbox>,
    roster: Arc<Roster>,
    verification: Arc<Verification>,
    accounts: Arc<Accounts>,
    volumes: Arc<Volumes>,
    published: Arc<Published>,
    /// What the database has to spare, once it is open.
    spare: Arc<OnceLock<Spare>>,
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

/// How a replica ended; the disk's own complaint, if it had one, is in the reason.
type Ended = Option<Ending>;

/// Opens disk and core on a new thread and runs the loop there; says where that is.
async fn run_on_thread(
    config: &ReplicaConfig,
    mut core: Config,
    make: Make,
    shared: &Shared,
) -> Result<(watch::Receiver<Ended>, Handle), ServerError> {
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
        let around = Surroundings {
            inbox: shared.inbox,
            roster: shared.roster,
            verification: shared.verification,
            accounts: shared.accounts,
            volumes: shared.volumes,
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
    ended: watch::Receiver<Ended>,
    tasks: Vec<Task>,
}

impl std::fmt::Debug for ReplicaHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReplicaHandle({})", self.address)
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

    /// The membership of the epoch that it is in; nothing in the first moments.
    #[must_use]
    pub fn membership(&self) -> Option<Arc<Membership>> {
        self.shared.published.membership()
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
