//! The run of a whole cluster from one seed.
//!
//! ```text
//!            ┌────────── Agenda: the next event, in virtual time ─────────────┐
//!            ▼                                                                │
//!   Node (replica, disk, clock, proxy) ─actions► Network ──delays, cuts──────►│
//!   HonestClient (client core)        ──actions► Network ─────────────────────┤
//!   ByzantineClient                   ──volleys► Network ─────────────────────┤
//!   Plan (faults)                     ──begin, end───────────────────────────►┘
//!            │
//!            └─► Judge (agreement, exactly once) · History ─► Workload::judge · Counters
//! ```
//!
//! A run ends when every client has finished after the last fault has healed and the replicas have
//! caught up, or when that has taken longer than `PROGRESS`. It depends on nothing but the seed,
//! the profile and the workload.

mod administrator;
mod aftermath;
mod aim;
mod ambush;
mod clients;
mod deliver;
mod fault;
mod more_faults;
mod observe;
mod options;
mod quiet;
mod watching;

pub use options::Options;

use crate::agenda::{Agenda, Instant, MILLISECOND};
use crate::authentication::{FakeSigner, Keyring};
use crate::byzantine_client::ByzantineClient;
use crate::clock::Clock;
use crate::counters::Counters;
use crate::history::{History, SessionRead};
use crate::honest_client::HonestClient;
use crate::judge::Judge;
use crate::liar::Proxy;
use crate::lie::Lie;
use crate::network::Network;
use crate::node::{Node, NodeAction, Setup};
use crate::plan::{Liar, Plan};
use crate::profile::Profile;
use crate::random::Random;
use crate::report::Report;
use crate::workload::Workload;
use administrator::Administration;
use aftermath::Aftermath;
use bytes::Bytes;
use quiet::Quiet;
use quorumfs_bft::authentication::Signer as _;
use quorumfs_bft::fault_model::FaultModelError;
use quorumfs_bft::identity::{ClusterId, ConnectionId, Sequence, SessionId};
use quorumfs_bft::membership::Membership;
use quorumfs_bft::step::Timer;
use std::collections::{BTreeMap, BTreeSet};
use watching::Watching;

/// Receives a line for every event.
pub type Trace<'a> = Option<&'a mut dyn FnMut(&str)>;

/// A future event.
#[derive(Debug)]
pub(crate) enum Happening {
    FrameToNode {
        node: usize,
        generation: u64,
        from: FrameSource,
        frame: Bytes,
        lie: Option<Lie>,
        corrupted: bool,
    },
    FrameToClient {
        client: usize,
        generation: u64,
        node: usize,
        frame: Bytes,
        corrupted: bool,
    },
    Tell {
        node: usize,
        generation: u64,
        to: usize,
        frame: Bytes,
        lie: Option<Lie>,
    },
    Synced {
        node: usize,
        generation: u64,
    },
    Flushed {
        node: usize,
        generation: u64,
        number: u64,
    },
    Timer {
        node: usize,
        generation: u64,
        timer: Timer,
        number: u64,
    },
    ClientTimer {
        client: usize,
        generation: u64,
        number: u64,
    },
    Connect {
        client: usize,
        node: usize,
    },
    Next {
        client: usize,
        generation: u64,
    },
    ByzantineClient,
    /// The moment of this fault, a blackout.
    Dark(usize),
    Begin(usize),
    End(usize),
    Look,
    Murmur,
    Administer,
}

/// The source of a frame to a node.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FrameSource {
    Node(usize),
    Client(ConnectionId),
}

/// The ends of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientLink {
    pub(crate) client: usize,
    pub(crate) node: usize,
}

/// A running simulation.
pub struct Simulation<'a, W: Workload> {
    options: Options,
    plan: Plan,
    workload: W,
    cluster: ClusterId,
    agenda: Agenda<Happening>,
    network: Network,
    nodes: Vec<Node>,
    down: Vec<Option<usize>>,
    honest_clients: Vec<HonestClient>,
    principals: Vec<FakeSigner>,
    byzantine_client: Option<ByzantineClient>,
    byzantine_sessions: BTreeSet<SessionId>,
    links: BTreeMap<ConnectionId, ClientLink>,
    connections: u64,
    keyring: Keyring,
    history: History,
    judge: Judge,
    counters: Counters,
    effective: BTreeSet<usize>,
    /// The blackout that waits for its moment.
    blackout: Option<usize>,
    ambush: Option<ambush::Ambush>,
    aims: Vec<aim::Aim>,
    /// The last sequence in which the service of an honest node was called.
    executed: Sequence,
    /// The last sequence that an honest node has executed, with any content: a command to the
    /// cluster itself, or a skipped request, does not reach the service.
    newest: Sequence,
    answered: usize,
    stalls: Vec<String>,
    network_random: Random,
    disk_random: Random,
    client_random: Random,
    read_random: Random,
    /// The newest batch whose effects some client has seen.
    shown: u64,
    /// Pending unordered queries: the newest batch that had been seen when they were submitted.
    reading: BTreeMap<usize, u64>,
    /// Queries that need only be as new as their session.
    session_reading: BTreeMap<usize, SessionRead>,
    session_calls: usize,
    /// Calls that their client may give up before they are answered.
    impatient: BTreeSet<usize>,
    watching: Watching,
    trace: Trace<'a>,
    done: Option<Instant>,
    /// When the faults, or the long quiet after them, end.
    settled: Instant,
    quiet: Quiet,
    aftermath: Aftermath,
    administrator: Administration,
    /// The membership at genesis.
    genesis: Membership,
    finished: bool,
    events: u64,
}

/// Seeds of different profiles are different runs.
const fn mix(seed: u64, profile: Profile) -> u64 {
    seed ^ (profile as u64).wrapping_mul(0xa076_1d64_78bd_642f)
}

impl<'a, W: Workload> Simulation<'a, W> {
    /// Runs to the end.
    ///
    /// # Errors
    /// Never with the built-in fault models.
    pub fn run(options: Options, workload: W, trace: Trace<'a>) -> Result<Report, FaultModelError> {
        let mut simulation = Self::new(options, workload, trace)?;
        simulation.begin();
        while !simulation.finished {
            let Some(happening) = simulation.agenda.take() else {
                break;
            };
            simulation.events += 1;
            simulation.happen(happening);
        }
        Ok(simulation.report())
    }

    fn new(options: Options, workload: W, trace: Trace<'a>) -> Result<Self, FaultModelError> {
        let mut random = Random::new(mix(options.seed, options.profile));
        let plan = Plan::draw(options.profile, options.fault_model, &mut random.fork(1))?;
        let keyring = Keyring::default();
        let mut keys = random.fork(2);
        let mut lies = random.fork(3);
        let model = plan.fault_model;
        let mut cluster = ClusterId([0; 16]);
        for (to, from) in cluster.0.iter_mut().zip(keys.bytes()) {
            *to = from;
        }
        let signers: Vec<FakeSigner> = (0..plan.liars.len())
            .map(|_| keyring.generate(keys.bytes()))
            .collect();
        let mut principals: Vec<FakeSigner> = (0..=plan.clients)
            .map(|_| keyring.generate(keys.bytes()))
            .collect();
        administrator::assign_keys(&plan, &signers, &mut principals);
        let membership = administrator::genesis(&plan, &signers, &principals);
        let principal_keys: Vec<_> = principals.iter().map(FakeSigner::public_key).collect();
        let genesis = workload.genesis(&principal_keys);
        let network = Network::new(plan.nodes.len() + plan.clients + 1, plan.network)
            .spread(plan.distances.clone())
            .placed(plan.ways.clone());
        let mut nodes = Vec::new();
        for ((replica, (skew, drift)), node) in plan.nodes.iter().zip(&plan.clocks).zip(0..) {
            let liar = plan.liars.get(*replica).copied().flatten();
            let Some(signer) = signers.get(*replica).cloned() else {
                continue;
            };
            let id = replica_id(*replica);
            let excluded = model.right();
            let proxy = (liar == Some(Liar::Proxy)).then(|| {
                let random = lies.fork(node);
                let proxy = Proxy::new(id, model, excluded, signer.clone(), random);
                let proxy = proxy.in_profile(options.profile, plan.authentication);
                let proxy = if plan.forging { proxy.forging() } else { proxy };
                if plan.dawdling {
                    proxy.dawdling()
                } else {
                    proxy
                }
            });
            let genesis = genesis.clone();
            let sizes = (plan.checkpoint_interval, plan.leaf_bytes_max);
            let whole = plan.reply_whole_bytes;
            let (membership, key) = (membership.clone(), signer.public_key());
            let mut config =
                observe::config(cluster, membership, key, genesis, sizes, options.sabotage);
            config.reply_whole_bytes = whole;
            config.session_idle = plan.session_idle;
            config.return_after = plan.return_after;
            config.authentication = plan.authentication;
            config.detects_rollback = liar.is_none();
            nodes.push(Node::new(Setup {
                config,
                signer,
                keyring: keyring.clone(),
                clock: Clock::new(*skew, *drift),
                proxy,
                forgetful: liar == Some(Liar::Forgetful),
                rolls_back: plan.rolls_back(nodes.len()),
                honest: liar.is_none(),
                watches: if plan.watching {
                    workload.watches()
                } else {
                    Vec::new()
                },
            }));
        }
        let mut client_random = random.fork(4);
        let honest_clients = principals
            .iter()
            .take(plan.clients)
            .map(|principal| {
                let principal = principal.clone();
                let (known, settings) = ((cluster, &membership), (&plan, options.sabotage));
                HonestClient::new(known, settings, principal, &keyring, 0, &mut client_random)
            })
            .collect();
        let byzantine_client =
            principals
                .last()
                .filter(|_| plan.byzantine_client)
                .map(|principal| {
                    let session = keyring.generate(keys.bytes());
                    ByzantineClient::new(cluster, principal.clone(), session, random.fork(5))
                });
        let settled = plan.healed;
        let quiet = Quiet::of(&plan);
        Ok(Self {
            options,
            down: vec![None; nodes.len()],
            workload,
            cluster,
            agenda: Agenda::default(),
            network,
            nodes,
            honest_clients,
            principals,
            byzantine_client,
            byzantine_sessions: BTreeSet::new(),
            links: BTreeMap::new(),
            connections: 0,
            keyring,
            history: History::default(),
            judge: Judge::default(),
            counters: Counters::new(),
            effective: BTreeSet::new(),
            blackout: None,
            ambush: None,
            aims: Vec::new(),
            executed: Sequence(0),
            newest: Sequence(0),
            answered: 0,
            stalls: Vec::new(),
            network_random: random.fork(6),
            disk_random: random.fork(7),
            client_random,
            read_random: random.fork(8),
            shown: 0,
            reading: BTreeMap::new(),
            session_reading: BTreeMap::new(),
            session_calls: 0,
            impatient: BTreeSet::new(),
            watching: Watching::default(),
            trace,
            done: None,
            settled,
            quiet,
            aftermath: Aftermath::of(&plan),
            administrator: Administration::of(&plan),
            genesis: membership,
            plan,
            finished: false,
            events: 0,
        })
    }

    fn begin(&mut self) {
        self.note(|simulation| {
            let plan = &simulation.plan;
            format!("plan {plan:?}")
        });
        for node in 0..self.nodes.len() {
            self.start(node);
        }
        for client in 0..self.honest_clients.len() {
            self.start_client(client);
        }
        for index in 0..self.plan.faults.len() {
            if let Some(fault) = self.plan.faults.get(index) {
                self.agenda.put(fault.from, Happening::Begin(index));
                self.agenda.put(fault.until, Happening::End(index));
            }
        }
        if self.byzantine_client.is_some() {
            self.agenda
                .after(20 * MILLISECOND, Happening::ByzantineClient);
        }
        self.begin_administration();
        let look = self.plan.healed.plus(50 * MILLISECOND);
        self.agenda.put(look, Happening::Look);
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::FrameToNode {
                node,
                generation,
                from,
                frame,
                lie,
                corrupted,
            } => {
                if self.generation(node) == Some(generation) {
                    self.frame_to_node(node, from, frame, lie, corrupted);
                }
            }
            Happening::FrameToClient {
                client,
                generation,
                node,
                frame,
                corrupted,
            } => self.frame_to_client(client, generation, node, frame, corrupted),
            Happening::Tell {
                node,
                generation,
                to,
                frame,
                lie,
            } => {
                if self.generation(node) == Some(generation) {
                    self.transmit(node, to, frame, lie);
                }
            }
            Happening::Synced { node, generation } => {
                self.with_node(node, generation, |node, now| node.synced(now));
            }
            Happening::Flushed {
                node,
                generation,
                number,
            } => self.with_node(node, generation, |node, now| node.flushed(now, number)),
            Happening::Timer {
                node,
                generation,
                timer,
                number,
            } => self.with_node(node, generation, |node, now| node.timer(now, timer, number)),
            Happening::ClientTimer {
                client,
                generation,
                number,
            } => self.with_client(client, generation, |client, now| client.timer(now, number)),
            Happening::Connect { client, node } => self.connect(client, node),
            Happening::Next { client, generation } => self.next_operation(client, generation),
            Happening::ByzantineClient => self.byzantine_client_acts(),
            Happening::Dark(index) => self.black_out(index),
            Happening::Begin(index) => self.begin_fault(index),
            Happening::End(index) => {
                self.end_fault(index);
                self.add_missing_fault();
            }
            Happening::Look => self.check_end(),
            Happening::Murmur => self.send_quiet_request(),
            Happening::Administer => self.administer(),
        }
    }

    fn generation(&self, node: usize) -> Option<u64> {
        self.nodes.get(node).map(|node| node.generation)
    }

    /// Writes to the trace, if there is one.
    fn note(&mut self, what: impl FnOnce(&Self) -> String) {
        if self.trace.is_some() {
            let line = format!("{:>12.6} {}", seconds(self.agenda.now()), what(self));
            if let Some(trace) = &mut self.trace {
                trace(&line);
            }
        }
    }

    fn with_node(
        &mut self,
        index: usize,
        generation: u64,
        act: impl FnOnce(&mut Node, quorumfs_bft::identity::Now) -> Vec<NodeAction>,
    ) {
        let at = self.agenda.now();
        let Some(node) = self.nodes.get_mut(index) else {
            return;
        };
        if node.generation == generation && node.running() {
            let now = node.clock.now(at);
            let acts = act(node, now);
            self.carry_out(index, acts);
        }
    }

    fn carry_out(&mut self, index: usize, acts: Vec<NodeAction>) {
        self.observe(index);
        let Some(node) = self.nodes.get(index) else {
            return;
        };
        let (generation, factor) = (node.generation, node.disk_factor);
        for act in acts {
            match act {
                NodeAction::ToReplica { to, frame } => {
                    self.send_to_replica(index, generation, to, frame);
                }
                NodeAction::ToClient { to, frame } => self.reply(index, to, frame),
                NodeAction::Sync => {
                    let (shortest, longest) = self.plan.disk;
                    let nanos = self.disk_random.between(shortest, longest) * factor;
                    let node = index;
                    self.agenda
                        .after(nanos, Happening::Synced { node, generation });
                }
                NodeAction::Flush { number, root } => {
                    self.root_observed(index, root);
                    let (shortest, longest) = self.plan.disk;
                    let nanos = self.disk_random.between(shortest, 3 * longest) * factor;
                    self.agenda.after(
                        nanos,
                        Happening::Flushed {
                            node: index,
                            generation,
                            number,
                        },
                    );
                }
                NodeAction::Timer {
                    timer,
                    generation: number,
                    nanos,
                } => self.agenda.after(
                    nanos,
                    Happening::Timer {
                        node: index,
                        generation,
                        timer,
                        number,
                    },
                ),
                NodeAction::Poisoned { reason } => self.poisoned(index, &reason),
            }
        }
    }

    /// Checks whether the run is over.
    fn check_end(&mut self) {
        let now = self.agenda.now();
        let late = now.since(self.settled) > self.plan.patience();
        if self.done.is_none() {
            let waiting = self.waiting();
            if waiting.is_empty() {
                self.done = Some(now);
                self.note(|_| "every client has finished".into());
            } else if late {
                self.stalls = waiting;
                self.finished = true;
                return;
            }
        }
        if self.done.is_some() {
            let mut behind = self.lagging_nodes();
            if self.quiet != Quiet::Here {
                behind.extend(self.lagging_watchers());
            }
            if behind.is_empty() {
                self.finished = !self.begin_quiet() && !self.advance_aftermath();
                return;
            }
            if late {
                self.stalls = behind;
                self.finished = true;
                return;
            }
        }
        self.agenda.after(100 * MILLISECOND, Happening::Look);
    }

    /// The clients that have not finished.
    fn waiting(&self) -> Vec<String> {
        let mut waiting = self.unsettled();
        if !self.enough() {
            waiting.push(format!(
                "{} of {} operations were answered",
                self.answered, self.plan.operations
            ));
        }
        for (index, honest_client) in self.honest_clients.iter().enumerate() {
            let outstanding = honest_client.outstanding();
            if outstanding > 0 || honest_client.session_id.is_none() {
                waiting.push(format!("client {index} waits for {outstanding} answers"));
            }
        }
        waiting
    }
}

/// The id of the replica with this number.
fn replica_id(index: usize) -> quorumfs_bft::identity::ReplicaId {
    quorumfs_bft::identity::ReplicaId(u16::try_from(index).unwrap_or(u16::MAX))
}

fn seconds(at: Instant) -> f64 {
    at.0 as f64 / crate::agenda::SECOND as f64
}
