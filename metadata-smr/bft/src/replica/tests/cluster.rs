//! A cluster in virtual time: a network that delays and loses, slow disks that forget what was not
//! durable, clients that repeat themselves.
//!
//! * `keys`: signatures.  * `counter`: the service.  * `clients`: the clients.  * `journal`.
//! * `copies`: of disks.  * `leader`: one that proposes what a test wants.

mod clients;
mod copies;
mod counter;
mod journal;
mod keys;
mod leader;
mod observers;

pub(super) use keys::{Directory, FakeKey, FakeVerifier, replica_key};

use crate::authentication::Authentication;
use crate::fault_model::FaultModel;
use crate::identity::{ClusterId, Digest, Monotonic, Now, ReplicaId, Sequence, Time};
use crate::journal::{Condition, Entry, Journal};
use crate::replica::{Config, Replica, Status};
use crate::sabotage::{Planted, Sabotage};
use crate::state::{MemoryStore, StateError, Store, WriteBatch};
use crate::step::{Destination, Effect, Effects, Event, Peer, Timer, Token};
use crate::wire::{Context, Envelope, admit};
use bytes::Bytes;
use clients::TestClient;
use counter::Counter;
use std::collections::{BTreeMap, BTreeSet};

pub(super) const MS: u64 = 1_000_000;
/// Batches from one checkpoint to the next: few, so that every test sees some.
pub(super) const CHECKPOINT_EVERY: u64 = 16;
/// The wall clock when the monotonic one is zero.
const EPOCH: u64 = 1_700_000_000_000_000_000;

/// What a process loses in a crash, and what it does not.
struct TestReplica {
    core: Option<Replica<Counter, MemoryStore>>,
    directory: Directory,
    incarnation: u64,
    timers: BTreeMap<Timer, u64>,
    held: BTreeMap<Token, Vec<(Destination, Bytes)>>,
    durable_token: Token,
    written: Vec<Entry>,
    store: MemoryStore,
    skew: i64,
}

enum ScheduledEvent {
    Arrival {
        to: usize,
        from: Peer,
        frame: Bytes,
    },
    Reply {
        to: usize,
        from: usize,
        frame: Bytes,
    },
    Timer {
        node: usize,
        timer: Timer,
        incarnation: u64,
        at: u64,
    },
    Persisted {
        node: usize,
        incarnation: u64,
        entry: Entry,
    },
    Flushed {
        node: usize,
        incarnation: u64,
        batch: WriteBatch,
        sequence: Sequence,
    },
    Retry {
        client: usize,
    },
}

pub(super) struct TestCluster {
    pub(super) now: u64,
    pub(super) model: FaultModel,
    nodes: Vec<TestReplica>,
    clients: Vec<TestClient>,
    queue: BTreeMap<(u64, u64), ScheduledEvent>,
    order: u64,
    random: u64,
    /// In thousandths.
    pub(super) loss: u64,
    /// Links that carry nothing.
    pub(super) cut: BTreeSet<(usize, usize)>,
    pub(super) sabotage: Option<Sabotage>,
    pub(super) authentication: Authentication,
    pub(super) operation: &'static [u8],
    pub(super) checkpoint_every: u64,
    /// Replicas whose state diverges.
    pub(super) flawed: BTreeSet<usize>,
    pub(super) history: BTreeMap<Sequence, Digest>,
    /// Sees every frame between replicas; `false` drops it.
    #[allow(clippy::type_complexity)]
    pub(super) tap: Option<Box<dyn FnMut(usize, usize, &Envelope) -> bool>>,
    /// No replica removes old records from its journal.
    pub(super) never_trims: bool,
    pub(super) stepped: u64,
    /// Leaders that delay each proposal, and by how many nanoseconds.
    pub(super) slow_leaders: BTreeMap<usize, u64>,
    /// How many times as long frames take.
    pub(super) distance: u64,
    /// How many times as long disks take, if not once.
    pub(super) slow_disks: BTreeMap<usize, u64>,
    /// The same of what is written into the state store.
    pub(super) slow_stores: BTreeMap<usize, u64>,
    /// The replicas whose disks were put back to older ones.
    rolled_back: BTreeSet<usize>,
    /// The messages that connections received in addition to replies, by sender.
    received: BTreeMap<(usize, u64), Vec<crate::wire::Message>>,
}

pub(super) const CLUSTER: ClusterId = ClusterId([5; 16]);

impl TestCluster {
    pub(super) fn new(model: FaultModel, seed: u64) -> Self {
        let node = |_| TestReplica {
            core: None,
            directory: Directory {
                replicas: model.replicas(),
                sessions: BTreeMap::new(),
            },
            incarnation: 0,
            timers: BTreeMap::new(),
            held: BTreeMap::new(),
            durable_token: Token(0),
            written: Vec::new(),
            store: MemoryStore::new(),
            skew: 0,
        };
        Self {
            now: 0,
            model,
            nodes: (0..model.replicas()).map(node).collect(),
            clients: Vec::new(),
            queue: BTreeMap::new(),
            order: 0,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            loss: 0,
            cut: BTreeSet::new(),
            sabotage: None,
            authentication: Authentication::Sig,
            operation: b"a",
            checkpoint_every: CHECKPOINT_EVERY,
            flawed: BTreeSet::new(),
            history: BTreeMap::new(),
            tap: None,
            never_trims: false,
            stepped: 0,
            slow_leaders: BTreeMap::new(),
            distance: 1,
            slow_disks: BTreeMap::new(),
            slow_stores: BTreeMap::new(),
            rolled_back: BTreeSet::new(),
            received: BTreeMap::new(),
        }
    }

    /// A BFT cluster of four that is up.
    pub(super) fn four(seed: u64) -> Self {
        let mut cluster = Self::new(FaultModel::new(1, 1, 4).unwrap(), seed);
        cluster.start_all();
        cluster
    }

    pub(super) fn start_all(&mut self) {
        for node in 0..self.nodes.len() {
            self.start(node);
        }
    }

    pub(super) fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % below
    }

    fn schedule(&mut self, after: u64, event: ScheduledEvent) {
        self.order += 1;
        self.queue.insert((self.now + after, self.order), event);
    }

    fn config(&self, node: usize) -> Config {
        let id = ReplicaId(node as u16);
        let mut config = Config::new(id, CLUSTER, self.model, Bytes::from_static(b"genesis"));
        config.checkpoint_interval = self.checkpoint_every;
        config.sabotage = Planted::new(self.sabotage);
        config.authentication = self.authentication;
        config
    }

    pub(super) fn context(&self) -> Context {
        self.config(0).context()
    }

    fn clock(&self, node: usize) -> Now {
        let clock = (EPOCH + self.now).wrapping_add_signed(self.nodes[node].skew);
        Now {
            clock: Time(clock),
            monotonic: Monotonic(self.now),
        }
    }

    /// Sets how far a node's wall clock is off, in milliseconds.
    pub(super) fn skew(&mut self, node: usize, milliseconds: i64) {
        self.nodes[node].skew = milliseconds * MS as i64;
    }

    /// Starts a node on its disk.
    pub(super) fn start(&mut self, node: usize) {
        let condition = Condition::Intact;
        self.start_on(node, condition);
    }

    pub(super) fn start_on(&mut self, node: usize, condition: Condition) {
        let mut effects = Effects::default();
        let next = Token(self.nodes[node].durable_token.0 + 1);
        let journal = Journal {
            entries: self.nodes[node].written.clone(),
            condition,
            next,
        };
        let (config, now) = (self.config(node), self.clock(node));
        let store = self.nodes[node].store.clone();
        let flawed = self.flawed.contains(&node);
        let service = Counter { flawed };
        let core = Replica::recover(config, service, store, journal, now, &mut effects).unwrap();
        self.nodes[node].core = Some(core);
        self.carry_out(node, effects);
        for other in 0..self.nodes.len() {
            if other != node && self.nodes[other].core.is_some() {
                self.step(
                    other,
                    Event::Connected {
                        replica: ReplicaId(node as u16),
                    },
                );
            }
        }
    }

    /// Why a node does not start if its journal ends with `record`.
    pub(super) fn refusal(&self, node: usize, record: Bytes) -> Option<StateError> {
        let this = &self.nodes[node];
        let token = Token(this.durable_token.0 + 1);
        let mut entries = this.written.clone();
        entries.push(Entry { token, record });
        let journal = Journal {
            entries,
            ..Journal::default()
        };
        let service = Counter { flawed: false };
        let (config, store, now) = (self.config(node), this.store.clone(), self.clock(node));
        let mut effects = Effects::default();
        let started = Replica::recover(config, service, store, journal, now, &mut effects);
        started.err()
    }

    /// Changes one byte of the value of `key` in a node's store.
    pub(super) fn damage(&mut self, node: usize, key: &[u8], at: usize) {
        let store = &self.nodes[node].store;
        let value = store.get(key).unwrap().expect("it is there");
        let mut value = value.to_vec();
        value[at] ^= 1;
        let entry = (Bytes::copy_from_slice(key), Some(value.into()));
        store.apply(&WriteBatch {
            entries: vec![entry],
        });
    }

    /// Kills a node; what was not durable is lost.
    pub(super) fn crash(&mut self, node: usize) {
        self.check_no_rollback_noticed(node);
        let node = &mut self.nodes[node];
        node.core = None;
        node.incarnation += 1;
        node.timers.clear();
        node.held.clear();
        node.directory.sessions.clear();
        let durable = node.durable_token;
        node.written.retain(|entry| entry.token <= durable);
    }

    /// Loses a node's journal and state.
    pub(super) fn wipe(&mut self, node: usize) {
        self.nodes[node].written.clear();
        self.nodes[node].store = MemoryStore::new();
    }

    /// Whether a node's store holds part of a state that is being taken over.
    pub(super) fn has_import(&self, node: usize) -> bool {
        self.nodes[node].store.keys().iter().any(|key| key == "t")
    }

    /// A node's sequence, and its state.
    pub(super) fn state(&mut self, node: usize) -> (Sequence, Digest) {
        let core = self.nodes[node].core.as_mut().expect("it runs");
        (core.status().sequence, core.state_digest().unwrap())
    }

    pub(super) fn journal(&self, node: usize) -> &[Entry] {
        &self.nodes[node].written
    }

    /// The part of a node's journal that a crash leaves.
    pub(super) fn durable(&self, node: usize) -> &[Entry] {
        let node = &self.nodes[node];
        let mut count = 0;
        while node
            .written
            .get(count)
            .is_some_and(|entry| entry.token <= node.durable_token)
        {
            count += 1;
        }
        &node.written[..count]
    }

    pub(super) fn up(&self, node: usize) -> bool {
        self.nodes[node].core.is_some()
    }

    pub(super) fn step(&mut self, node: usize, event: Event) {
        let now = self.clock(node);
        let mut effects = Effects::default();
        let Some(core) = self.nodes[node].core.as_mut() else {
            return;
        };
        self.stepped += 1;
        core.step(now, event, &mut effects);
        let status = core.status();
        let (sequence, batch) = (status.sequence, status.batch);
        if sequence > Sequence(0) {
            let agreed = *self.history.entry(sequence).or_insert(batch);
            assert_eq!(agreed, batch, "two batches at {sequence}: replica {node}");
        }
        self.carry_out(node, effects);
    }

    fn carry_out(&mut self, node: usize, mut effects: Effects) {
        let incarnation = self.nodes[node].incarnation;
        let list: Vec<Effect> = effects.drain().collect();
        for effect in list {
            match effect {
                Effect::Sign { message } => {
                    let key = FakeKey(replica_key(ReplicaId(node as u16)));
                    let message = message.sign(&key);
                    self.step(node, Event::Signed { message });
                }
                Effect::Persist { record, token } => {
                    let factor = self.slow_disks.get(&node).copied().unwrap_or(1);
                    let latency = (MS / 2 + self.random(2 * MS)) * factor;
                    let entry = Entry { token, record };
                    self.schedule(
                        latency,
                        ScheduledEvent::Persisted {
                            node,
                            incarnation,
                            entry,
                        },
                    );
                }
                Effect::Send { to, frame, after } => {
                    let held = after.is_some_and(|it| it > self.nodes[node].durable_token);
                    if let Some(token) = after.filter(|_| held) {
                        self.nodes[node]
                            .held
                            .entry(token)
                            .or_default()
                            .push((to, frame));
                    } else {
                        self.send(node, to, frame);
                    }
                }
                Effect::Flush { batch, root } => {
                    let sequence = root.sequence;
                    let factor = self.slow_stores.get(&node).copied().unwrap_or(1);
                    let latency = (3 * MS + self.random(5 * MS)) * factor;
                    let done = ScheduledEvent::Flushed {
                        node,
                        incarnation,
                        batch,
                        sequence,
                    };
                    self.schedule(latency, done);
                }
                Effect::TrimJournal { before } => {
                    let written = &mut self.nodes[node].written;
                    written.retain(|entry| entry.token >= before || self.never_trims);
                }
                Effect::NewEpoch { .. } => {}
                Effect::SetTimer { timer, after } => {
                    let at = self.now + after.0;
                    self.nodes[node].timers.insert(timer, at);
                    self.schedule(
                        after.0,
                        ScheduledEvent::Timer {
                            node,
                            timer,
                            incarnation,
                            at,
                        },
                    );
                }
                Effect::CancelTimer { timer } => {
                    self.nodes[node].timers.remove(&timer);
                }
                Effect::SessionKey { id, key, .. } => {
                    self.nodes[node].directory.sessions.insert(id, key);
                }
                Effect::SessionClosed { id } => {
                    self.nodes[node].directory.sessions.remove(&id);
                }
                Effect::Show { to, frame } => self.show(node, &to, &frame),
                Effect::Blacklist { .. } | Effect::Alarm { .. } => {}
                Effect::Poison { reason } => panic!("replica {node}: {reason}"),
            }
        }
    }

    fn send(&mut self, node: usize, to: Destination, frame: Bytes) {
        match to {
            Destination::Replica(id) => self.send_one(node, id.0.into(), frame),
            Destination::Replicas => {
                for other in (0..self.nodes.len()).filter(|other| *other != node) {
                    self.send_one(node, other, frame.clone());
                }
            }
            Destination::Client(connection) => {
                let (client, latency) = (connection.0 as usize, self.latency());
                if self.random(1000) >= self.loss {
                    self.schedule(
                        latency,
                        ScheduledEvent::Reply {
                            to: client,
                            from: node,
                            frame,
                        },
                    );
                }
            }
        }
    }

    fn latency(&mut self) -> u64 {
        (MS / 10 + self.random(2 * MS)) * self.distance
    }

    fn send_one(&mut self, from: usize, to: usize, frame: Bytes) {
        if let Some(tap) = self.tap.as_mut() {
            let envelope =
                Envelope::decode(frame.clone()).expect("a core sends well-formed frames");
            if !tap(from, to, &envelope) {
                return;
            }
        }
        if self.cut.contains(&(from, to)) || self.random(1000) < self.loss {
            return;
        }
        let latency = self.latency() + self.proposal_delay(from, &frame);
        let from = Peer::Replica(ReplicaId(from as u16));
        self.schedule(latency, ScheduledEvent::Arrival { to, from, frame });
    }

    pub(super) fn arrive(&mut self, to: usize, from: Peer, frame: Bytes) {
        let context = self.context();
        let node = &self.nodes[to];
        if node.core.is_none() {
            return;
        }
        match admit(frame, from, &node.directory, &FakeVerifier, &context) {
            Ok(message) => self.step(to, Event::Received { from, message }),
            Err(rejection) => {
                let expected = self.sabotage.is_some() || self.tap.is_some();
                assert!(
                    expected || matches!(from, Peer::Client(_)),
                    "{from:?}: {rejection}"
                );
            }
        }
    }

    fn run_event(&mut self, event: ScheduledEvent) {
        match event {
            ScheduledEvent::Arrival { to, from, frame } => self.arrive(to, from, frame),
            ScheduledEvent::Timer {
                node,
                timer,
                incarnation,
                at,
            } => {
                let set = self.nodes[node].timers.get(&timer) == Some(&at);
                if incarnation == self.nodes[node].incarnation && set {
                    self.nodes[node].timers.remove(&timer);
                    self.step(node, Event::Timer { timer });
                }
            }
            ScheduledEvent::Persisted {
                node,
                incarnation,
                entry,
            } => {
                if incarnation == self.nodes[node].incarnation {
                    self.persisted(node, entry);
                }
            }
            ScheduledEvent::Flushed {
                node,
                incarnation,
                batch,
                sequence,
            } => {
                if incarnation == self.nodes[node].incarnation {
                    self.nodes[node].store.apply(&batch);
                    self.step(node, Event::Flushed { sequence });
                }
            }
            ScheduledEvent::Reply { to, from, frame } => self.reply(to, from, frame),
            ScheduledEvent::Retry { client } => {
                if !self.clients[client].frame.is_empty() {
                    self.transmit(client);
                }
            }
        }
    }

    /// Records become durable in their order, whatever the latencies say.
    fn persisted(&mut self, node: usize, entry: Entry) {
        let token = entry.token;
        let this = &mut self.nodes[node];
        this.written.push(entry);
        this.written.sort_by_key(|entry| entry.token);
        let mut durable = this.durable_token;
        for entry in &this.written {
            if entry.token.0 == durable.0 + 1 {
                durable = entry.token;
            }
        }
        if durable == this.durable_token {
            return;
        }
        let _ = token;
        this.durable_token = durable;
        let later = this.held.split_off(&Token(durable.0 + 1));
        let ready = std::mem::replace(&mut this.held, later);
        for (to, frame) in ready.into_values().flatten() {
            self.send(node, to, frame);
        }
        self.step(node, Event::Persisted { token: durable });
    }

    pub(super) fn run_until(&mut self, until: u64) {
        while let Some(entry) = self.queue.first_entry() {
            if entry.key().0 > until {
                break;
            }
            let ((at, _), event) = entry.remove_entry();
            self.now = at;
            self.run_event(event);
        }
        self.now = until;
    }

    pub(super) fn run_for(&mut self, milliseconds: u64) {
        self.run_until(self.now + milliseconds * MS);
    }

    /// Runs until every client has all its answers, at most so long.
    #[track_caller]
    pub(super) fn finish(&mut self, milliseconds: u64) {
        let end = self.now + milliseconds * MS;
        while !self.finished() {
            assert!(self.now < end, "stalled: {:#?}", self.statuses());
            self.run_for(10);
        }
    }

    pub(super) fn statuses(&self) -> Vec<Option<Status>> {
        self.nodes
            .iter()
            .map(|node| node.core.as_ref().map(Replica::status))
            .collect()
    }

    pub(super) fn status(&self, node: usize) -> Status {
        self.nodes[node].core.as_ref().expect("it is up").status()
    }
}
