//! One replica's process with its machine: the driver of the real core in virtual time.
//!
//! It does the work of the runtime, without threads: admits frames, signs, appends to the journal
//! with group commit, holds back frames that wait for a write, and runs the timers. A liar's frames
//! go through its [`Proxy`] on their way out.

use crate::authentication::{FakeSigner, Keyring};
use crate::clock::Clock;
use crate::counters::Counters;
use crate::disk::{Crash, Disk};
use crate::liar::{OutgoingFrame, Proxy};
use crate::lie::Lie;
use crate::observed::{Log, Observed};
use crate::random::Random;
use bytes::Bytes;
use quorumfs_bft::admission::Blacklist;
use quorumfs_bft::authentication::KeyDirectory;
use quorumfs_bft::identity::{ConnectionId, Incarnation, Now, PublicKey, ReplicaId, SessionId};
use quorumfs_bft::journal::{Condition, Entry, Journal, Record, Segment, examine};
use quorumfs_bft::membership::Membership;
use quorumfs_bft::metrics::ReplicaStatus;
use quorumfs_bft::replica::{Config, Replica};
use quorumfs_bft::service::Service;
use quorumfs_bft::state::{DurableRoot, MemoryStore, StateError};
use quorumfs_bft::step::{Destination, Effect, Effects, Event, Peer, Timer, Token};
use quorumfs_bft::wire::{Context, Message, Rejection, Verified, admit};
use std::collections::{BTreeMap, VecDeque};

/// An action that a node wants the simulation to carry out.
#[derive(Debug)]
pub(crate) enum NodeAction {
    ToReplica {
        to: PublicKey,
        frame: OutgoingFrame,
    },
    ToClient {
        to: ConnectionId,
        frame: Bytes,
    },
    Sync,
    Flush {
        number: u64,
        root: DurableRoot,
    },
    Timer {
        timer: Timer,
        generation: u64,
        nanos: u64,
    },
    Poisoned {
        reason: String,
    },
}

/// The keys of other nodes and of sessions.
#[derive(Debug, Default)]
struct NodeKeys {
    replicas: Vec<PublicKey>,
    sessions: BTreeMap<SessionId, PublicKey>,
}

impl KeyDirectory for NodeKeys {
    fn replica(&self, id: ReplicaId) -> Option<PublicKey> {
        self.replicas.get(usize::from(id.0)).copied()
    }
    fn session(&self, id: SessionId) -> Option<PublicKey> {
        self.sessions.get(&id).copied()
    }
}

/// The permanent properties of a machine.
pub(crate) struct Setup {
    pub(crate) config: Config,
    pub(crate) signer: FakeSigner,
    pub(crate) keyring: Keyring,
    pub(crate) clock: Clock,
    pub(crate) proxy: Option<Proxy>,
    pub(crate) forgetful: bool,
    pub(crate) rolls_back: bool,
    pub(crate) honest: bool,
    /// The keys that clients watch.
    pub(crate) watches: Vec<Bytes>,
}

/// A machine, with a replica on it while it runs.
pub(crate) struct Node {
    setup: Setup,
    admission: Context,
    /// The membership of its epoch, and its own number there.
    pub(crate) membership: Membership,
    me: ReplicaId,
    core: Option<Replica<Observed, MemoryStore>>,
    pub(crate) clock: Clock,
    disk: Disk,
    found: Option<Segment>,
    keys: NodeKeys,
    blacklist: Blacklist,
    timers: BTreeMap<Timer, u64>,
    timer_number: u64,
    durable: Option<Token>,
    held: VecDeque<(Token, Destination, Bytes)>,
    pub(crate) log: Log,
    /// Counts starts: events of an earlier one are void.
    pub(crate) generation: u64,
    pub(crate) disk_factor: u64,
    pub(crate) lost: bool,
}

impl Node {
    pub(crate) fn new(setup: Setup) -> Self {
        Self {
            clock: setup.clock.clone(),
            disk: match setup.rolls_back {
                true => Disk::new(setup.forgetful).copied(),
                false => Disk::new(setup.forgetful),
            },
            admission: setup.config.context(),
            membership: setup.config.genesis_membership.clone(),
            me: setup.config.replica,
            blacklist: Blacklist::default(),
            setup,
            core: None,
            found: None,
            keys: NodeKeys::default(),
            timers: BTreeMap::new(),
            timer_number: 0,
            durable: None,
            held: VecDeque::new(),
            log: Log::default(),
            generation: 0,
            disk_factor: 1,
            lost: false,
        }
    }

    pub(crate) const fn replica(&self) -> ReplicaId {
        self.me
    }

    /// Its key.
    pub(crate) const fn key(&self) -> PublicKey {
        self.setup.config.key
    }

    /// Its journal's incarnation, as far as it was reported.
    pub(crate) fn incarnation(&self) -> Incarnation {
        let reborn = self.status().and_then(|status| status.reborn);
        reborn.unwrap_or(self.setup.config.incarnation)
    }

    /// Whether that is durable: until then, a crash changes it once more, and the membership
    /// accepts only one change in an interval.
    pub(crate) const fn remembers(&self) -> bool {
        self.durable.is_some()
    }

    /// Whether its behaviour must be correct.
    pub(crate) const fn honest(&self) -> bool {
        self.setup.honest
    }

    /// Whether it suspects that its intact disk was rolled back.
    pub(crate) fn suspects_own_disk(&self) -> bool {
        let noticed = |status: ReplicaStatus| status.counters.rollbacks_noticed > 0;
        self.honest() && !self.setup.rolls_back && self.status().is_some_and(noticed)
    }

    pub(crate) const fn running(&self) -> bool {
        self.core.is_some()
    }

    pub(crate) fn habits(&self) -> String {
        match &self.setup.proxy {
            Some(proxy) => format!("{:?}", proxy.habits()),
            None => String::new(),
        }
    }

    pub(crate) fn status(&self) -> Option<ReplicaStatus> {
        self.core.as_ref().map(Replica::status)
    }

    /// The digest of its current state, and the sequence of that state.
    pub(crate) fn state(&mut self) -> Option<Result<DurableRoot, StateError>> {
        let core = self.core.as_mut()?;
        let sequence = core.status().sequence;
        let digest = core.state_digest();
        Some(digest.map(|digest| DurableRoot { sequence, digest }))
    }

    /// Starts the process from its disk.
    pub(crate) fn start(
        &mut self,
        now: Now,
        service: Box<dyn Service>,
        counters: &mut Counters,
    ) -> Vec<NodeAction> {
        self.generation += 1;
        self.keys = NodeKeys::default();
        let numbers = [self.generation.to_le_bytes(), u64::MAX.to_le_bytes()];
        let numbers = numbers.concat().into_iter().zip(self.key().0);
        for (to, (number, key)) in self.setup.config.reincarnation.0.iter_mut().zip(numbers) {
            *to = number ^ key;
        }
        self.timers.clear();
        self.held.clear();
        self.durable = None;
        let service = Observed::new(service, self.log.clone(), self.setup.watches.clone());
        let mut effects = Effects::default();
        let recovery = self.recovery(counters);
        let core = Replica::recover(
            self.setup.config.clone(),
            service,
            self.disk.store(),
            recovery,
            now,
            &mut effects,
        );
        match core {
            Ok(core) => self.core = Some(core),
            Err(error) => {
                return vec![NodeAction::Poisoned {
                    reason: error.to_string(),
                }];
            }
        }
        let mut acts = Vec::new();
        let mut signed = VecDeque::new();
        self.carry_out(&mut effects, &mut signed, &mut acts);
        while let Some(event) = signed.pop_front() {
            self.advance(now, event, &mut acts);
        }
        acts
    }

    /// Stops the process, and collects its counters.
    pub(crate) fn crash(&mut self, how: Crash, random: &mut Random, counters: &mut Counters) {
        self.collect(counters);
        self.core = None;
        self.generation += 1;
        self.lost |= matches!(how, Crash::Damaged | Crash::Wiped | Crash::Bereft);
        self.found = Some(self.disk.crash(how, random));
        self.blacklist = Blacklist::default();
    }

    /// Collects the core's counters.
    pub(crate) fn collect(&self, counters: &mut Counters) {
        if let Some(status) = self.status() {
            for (name, count) in status.counters.named() {
                counters.add(name, count);
            }
        }
    }

    /// Handles an event and the signatures that follow from it.
    pub(crate) fn handle(&mut self, now: Now, event: Event) -> Vec<NodeAction> {
        let mut acts = Vec::new();
        if let Some(proxy) = &mut self.setup.proxy
            && let Event::Received { from, message } = &event
        {
            let frames = proxy.receive(*from, message.envelope());
            if let Peer::Replica(from) = *from
                && let Some(to) = self.membership.member(from).map(|it| it.key)
            {
                acts.extend(
                    frames
                        .into_iter()
                        .map(|frame| NodeAction::ToReplica { to, frame }),
                );
            }
            if proxy.ignores(message.envelope()) {
                return acts;
            }
        }
        self.advance(now, event, &mut acts);
        acts
    }

    fn advance(&mut self, now: Now, event: Event, acts: &mut Vec<NodeAction>) {
        let mut events = VecDeque::from([event]);
        let mut effects = Effects::default();
        while let Some(event) = events.pop_front() {
            let Some(core) = &mut self.core else {
                return;
            };
            core.step(now, event, &mut effects);
            self.carry_out(&mut effects, &mut events, acts);
        }
    }

    fn carry_out(
        &mut self,
        effects: &mut Effects,
        events: &mut VecDeque<Event>,
        acts: &mut Vec<NodeAction>,
    ) {
        for effect in effects.drain() {
            match effect {
                Effect::Sign { message } => events.push_back(Event::Signed {
                    message: message.sign(&self.setup.signer),
                }),
                Effect::Persist { record, token } => {
                    if self.disk.append(token, record) {
                        acts.push(NodeAction::Sync);
                    }
                }
                Effect::Send { to, frame, after } => match after {
                    Some(token) if self.durable.is_none_or(|durable| durable < token) => {
                        self.held.push_back((token, to, frame));
                    }
                    _ => send(&mut self.setup, &self.membership, to, &frame, acts),
                },
                Effect::Show { to, frame } => {
                    let frames = match &mut self.setup.proxy {
                        Some(proxy) => proxy.rewrite_report(&frame),
                        None => vec![frame],
                    };
                    for (to, frame) in to.iter().flat_map(|to| frames.iter().map(|it| (*to, it))) {
                        let frame = frame.clone();
                        acts.push(NodeAction::ToClient { to, frame });
                    }
                }
                Effect::Flush { batch, root } => {
                    let number = self.disk.flush(root.sequence, batch);
                    acts.push(NodeAction::Flush { number, root });
                }
                Effect::TrimJournal { before } => self.disk.trim(before),
                Effect::SetTimer { timer, after } => {
                    self.timer_number += 1;
                    self.timers.insert(timer, self.timer_number);
                    acts.push(NodeAction::Timer {
                        timer,
                        generation: self.timer_number,
                        nanos: self.clock.true_length(after.0),
                    });
                }
                Effect::CancelTimer { timer } => {
                    self.timers.remove(&timer);
                }
                Effect::SessionKey { id, key, .. } => {
                    self.keys.sessions.insert(id, key);
                }
                Effect::SessionClosed { id } => {
                    self.keys.sessions.remove(&id);
                }
                Effect::NewEpoch { membership, me } => {
                    self.admission = self.setup.config.context_of(&membership);
                    self.keys.replicas = membership.voters.iter().map(|it| it.key).collect();
                    self.membership = *membership;
                    self.me = me;
                    self.blacklist = Blacklist::default();
                    if let Some(proxy) = &mut self.setup.proxy {
                        proxy.renumber(me, self.membership.model);
                    }
                }
                // The core ignores the sender now; the driver could drop its frames earlier.
                Effect::Blacklist { .. } => {}
                // Its status reports it, and the counters count it.
                Effect::Alarm { .. } => {}
                Effect::Poison { reason } => acts.push(NodeAction::Poisoned { reason }),
            }
        }
    }

    /// A timer has expired, if it is still the one that was set.
    pub(crate) fn timer(&mut self, now: Now, timer: Timer, generation: u64) -> Vec<NodeAction> {
        if self.timers.get(&timer) != Some(&generation) {
            return Vec::new();
        }
        self.timers.remove(&timer);
        self.handle(now, Event::Timer { timer })
    }

    /// A sync has completed: the frames that waited for it are sent.
    pub(crate) fn synced(&mut self, now: Now) -> Vec<NodeAction> {
        let mut acts = Vec::new();
        let (token, more) = self.disk.synced();
        if more {
            acts.push(NodeAction::Sync);
        }
        let Some(token) = token else {
            return acts;
        };
        self.durable = Some(token);
        for (after, to, frame) in std::mem::take(&mut self.held) {
            if after <= token {
                send(&mut self.setup, &self.membership, to, &frame, &mut acts);
            } else {
                self.held.push_back((after, to, frame));
            }
        }
        self.advance(now, Event::Persisted { token }, &mut acts);
        acts
    }

    /// A batch of the state store is durable.
    pub(crate) fn flushed(&mut self, now: Now, number: u64) -> Vec<NodeAction> {
        match self.disk.flushed(number) {
            Some(sequence) => self.handle(now, Event::Flushed { sequence }),
            None => Vec::new(),
        }
    }

    /// Ignores a peer for a while.
    pub(crate) fn blame(&mut self, now: Now, peer: Peer) {
        self.blacklist.add(peer, now.monotonic);
    }

    /// Whether a peer's frames are accepted.
    pub(crate) fn listens_to(&self, now: Now, peer: Peer) -> bool {
        !self.blacklist.holds(&peer, now.monotonic)
    }

    /// Whether admitting this message was a mistake.
    pub(crate) fn is_deceived_by(&self, lie: Lie, message: &Message) -> bool {
        lie.never_admitted()
            && match message {
                // Records of epochs that are known here are skipped unread.
                Message::Epochs(records) => records
                    .last()
                    .is_some_and(|it| it.epoch() > self.admission.epoch),
                _ => true,
            }
    }

    /// Checks a frame as the runtime does.
    pub(crate) fn admit(&self, from: Peer, frame: Bytes) -> Result<Verified, Rejection> {
        let (keys, ring) = (&self.keys, &self.setup.keyring);
        admit(frame, from, keys, ring, &self.admission)
    }

    /// The journal for the core to start from. A journal that was lost once stays lost, as in the
    /// runtime, which marks it on the disk.
    fn recovery(&mut self, counters: &mut Counters) -> Journal {
        let Some(found) = self.found.take() else {
            return Journal::default();
        };
        let mut journal = examine(&[found]);
        let reborn =
            |entry: &Entry| matches!(Record::decode(&entry.record), Ok(Record::Incarnation(_)));
        // Until the new journal has begun, there is none.
        self.lost &= !journal.entries.iter().any(reborn);
        if self.lost {
            journal = Journal::lost("the simulation removed it");
        }
        match journal.condition {
            Condition::Lost { .. } => counters.count("recoveries_without_log"),
            Condition::TornTail => counters.count("torn_tails"),
            Condition::Intact => {}
        }
        counters.count("recoveries");
        let records = journal.entries.iter();
        let records = records.map(|entry| (entry.token, entry.record.clone()));
        self.disk.restore(records);
        journal
    }
}

/// Sends a frame, or what the liar makes of it.
fn send(
    setup: &mut Setup,
    membership: &Membership,
    to: Destination,
    frame: &Bytes,
    acts: &mut Vec<NodeAction>,
) {
    let own = setup.config.key;
    let keys = membership.members().map(|member| member.key);
    let all = (0..)
        .map(ReplicaId)
        .zip(keys)
        .filter(|(_, key)| *key != own);
    let receivers: Vec<(ReplicaId, PublicKey)> = match to {
        Destination::Replica(id) => all.filter(|(it, _)| *it == id).collect(),
        Destination::Replicas => all.collect(),
        Destination::Client(to) => {
            let frame = match &mut setup.proxy {
                Some(proxy) => proxy.reply(frame),
                None => frame.clone(),
            };
            acts.push(NodeAction::ToClient { to, frame });
            return;
        }
    };
    for (id, to) in receivers {
        let frames = match &mut setup.proxy {
            Some(proxy) => proxy.rewrite(id, frame),
            None => vec![OutgoingFrame {
                frame: frame.clone(),
                lie: None,
                delay: 0,
            }],
        };
        acts.extend(
            frames
                .into_iter()
                .map(|frame| NodeAction::ToReplica { to, frame }),
        );
    }
}
