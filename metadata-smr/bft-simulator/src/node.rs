//! One replica's process with its machine: the driver of the real core in virtual time.
//!
//! It does what the runtime does, without threads: admits frames, signs, appends to the journal
//! with group commit, holds back what waits for a write, and keeps the timers. A liar's frames go
//! through its [`Proxy`] on their way out.

use crate::authentication::{FakeSigner, Keyring};
use crate::clock::Clock;
use crate::counters::Counters;
use crate::disk::{Crash, Disk};
use crate::liar::{Proxy, Told};
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

/// What a node wants done by the simulation.
#[derive(Debug)]
pub(crate) enum Act {
    ToReplica {
        to: PublicKey,
        told: Told,
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

/// The keys that a node knows.
#[derive(Debug, Default)]
struct Directory {
    replicas: Vec<PublicKey>,
    sessions: BTreeMap<SessionId, PublicKey>,
}

impl KeyDirectory for Directory {
    fn replica(&self, id: ReplicaId) -> Option<PublicKey> {
        self.replicas.get(usize::from(id.0)).copied()
    }
    fn session(&self, id: SessionId) -> Option<PublicKey> {
        self.sessions.get(&id).copied()
    }
}

/// What belongs to a machine for good.
pub(crate) struct Setup {
    pub(crate) config: Config,
    pub(crate) signer: FakeSigner,
    pub(crate) keyring: Keyring,
    pub(crate) clock: Clock,
    pub(crate) proxy: Option<Proxy>,
    pub(crate) forgetful: bool,
    pub(crate) rolls_back: bool,
    pub(crate) honest: bool,
    /// What clients watch.
    pub(crate) watches: Vec<Bytes>,
}

/// A machine with a replica on it, if it runs.
pub(crate) struct Node {
    setup: Setup,
    admission: Context,
    /// Who is who in the epoch that it is in, and its own number there.
    pub(crate) membership: Membership,
    me: ReplicaId,
    core: Option<Replica<Observed, MemoryStore>>,
    pub(crate) clock: Clock,
    disk: Disk,
    found: Option<Segment>,
    keys: Directory,
    blacklist: Blacklist,
    timers: BTreeMap<Timer, u64>,
    timer_number: u64,
    durable: Option<Token>,
    held: VecDeque<(Token, Destination, Bytes)>,
    pub(crate) log: Log,
    /// Counts starts: what belongs to an earlier one is void.
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
            keys: Directory::default(),
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

    /// The key that it is known by.
    pub(crate) const fn key(&self) -> PublicKey {
        self.setup.config.key
    }

    /// What its journal begins with, as far as anybody was told.
    pub(crate) fn incarnation(&self) -> Incarnation {
        let reborn = self.status().and_then(|status| status.reborn);
        reborn.unwrap_or(self.setup.config.incarnation)
    }

    /// Whether that is durable: as long as it is not, a crash makes it yet another one, and of
    /// those the membership takes up only one in an interval.
    pub(crate) const fn remembers(&self) -> bool {
        self.durable.is_some()
    }

    /// Whether everything that it does has to be right.
    pub(crate) const fn honest(&self) -> bool {
        self.setup.honest
    }

    /// Whether it thinks that its disk was put back, which it was not.
    pub(crate) fn doubts_itself(&self) -> bool {
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

    /// The digest of the state as it is now, and the sequence that it belongs to.
    pub(crate) fn state(&mut self) -> Option<Result<DurableRoot, StateError>> {
        let core = self.core.as_mut()?;
        let sequence = core.status().sequence;
        let digest = core.state_digest();
        Some(digest.map(|digest| DurableRoot { sequence, digest }))
    }

    /// Starts the process on what is on the disk.
    pub(crate) fn start(
        &mut self,
        now: Now,
        service: Box<dyn Service>,
        counters: &mut Counters,
    ) -> Vec<Act> {
        self.generation += 1;
        self.keys = Directory::default();
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
                return vec![Act::Poisoned {
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

    /// Stops the process. What was counted is added up.
    pub(crate) fn crash(&mut self, how: Crash, random: &mut Random, counters: &mut Counters) {
        self.collect(counters);
        self.core = None;
        self.generation += 1;
        self.lost |= matches!(how, Crash::Damaged | Crash::Wiped | Crash::Bereft);
        self.found = Some(self.disk.crash(how, random));
        self.blacklist = Blacklist::default();
    }

    /// Adds up what the core counted.
    pub(crate) fn collect(&self, counters: &mut Counters) {
        if let Some(status) = self.status() {
            for (name, count) in status.counters.named() {
                counters.add(name, count);
            }
        }
    }

    /// Handles an event and the signatures that follow from it.
    pub(crate) fn handle(&mut self, now: Now, event: Event) -> Vec<Act> {
        let mut acts = Vec::new();
        if let Some(proxy) = &mut self.setup.proxy
            && let Event::Received { from, message } = &event
        {
            let told = proxy.hear(*from, message.envelope());
            if let Peer::Replica(from) = *from
                && let Some(to) = self.membership.member(from).map(|it| it.key)
            {
                acts.extend(told.into_iter().map(|told| Act::ToReplica { to, told }));
            }
            if proxy.ignores(message.envelope()) {
                return acts;
            }
        }
        self.advance(now, event, &mut acts);
        acts
    }

    fn advance(&mut self, now: Now, event: Event, acts: &mut Vec<Act>) {
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
        acts: &mut Vec<Act>,
    ) {
        for effect in effects.drain() {
            match effect {
                Effect::Sign { message } => events.push_back(Event::Signed {
                    message: message.sign(&self.setup.signer),
                }),
                Effect::Persist { record, token } => {
                    if self.disk.append(token, record) {
                        acts.push(Act::Sync);
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
                        Some(proxy) => proxy.show(&frame),
                        None => vec![frame],
                    };
                    for (to, frame) in to.iter().flat_map(|to| frames.iter().map(|it| (*to, it))) {
                        let frame = frame.clone();
                        acts.push(Act::ToClient { to, frame });
                    }
                }
                Effect::Flush { batch, root } => {
                    let number = self.disk.flush(root.sequence, batch);
                    acts.push(Act::Flush { number, root });
                }
                Effect::TrimJournal { before } => self.disk.trim(before),
                Effect::SetTimer { timer, after } => {
                    self.timer_number += 1;
                    self.timers.insert(timer, self.timer_number);
                    acts.push(Act::Timer {
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
                // The core does not listen to it any more; the driver could drop frames earlier.
                Effect::Blacklist { .. } => {}
                // Its status says so, and the counters count it.
                Effect::Alarm { .. } => {}
                Effect::Poison { reason } => acts.push(Act::Poisoned { reason }),
            }
        }
    }

    /// A timer ran out, if it is still the one that was set.
    pub(crate) fn timer(&mut self, now: Now, timer: Timer, generation: u64) -> Vec<Act> {
        if self.timers.get(&timer) != Some(&generation) {
            return Vec::new();
        }
        self.timers.remove(&timer);
        self.handle(now, Event::Timer { timer })
    }

    /// A sync has completed: what waited for it goes out.
    pub(crate) fn synced(&mut self, now: Now) -> Vec<Act> {
        let mut acts = Vec::new();
        let (token, more) = self.disk.synced();
        if more {
            acts.push(Act::Sync);
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
    pub(crate) fn flushed(&mut self, now: Now, number: u64) -> Vec<Act> {
        match self.disk.flushed(number) {
            Some(sequence) => self.handle(now, Event::Flushed { sequence }),
            None => Vec::new(),
        }
    }

    /// Stops listening to a peer for a while.
    pub(crate) fn blame(&mut self, now: Now, peer: Peer) {
        self.blacklist.add(peer, now.monotonic);
    }

    /// Whether a peer is listened to.
    pub(crate) fn listens_to(&self, now: Now, peer: Peer) -> bool {
        !self.blacklist.holds(&peer, now.monotonic)
    }

    /// Whether it was a mistake to let this in.
    pub(crate) fn deceived_by(&self, lie: Lie, message: &Message) -> bool {
        lie.never_let_in()
            && match message {
                // Those of epochs that are known here are passed over unseen.
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

    /// What the disk has for the core to begin with. A journal that was lost once stays lost, as
    /// the runtime's mark on the disk says.
    fn recovery(&mut self, counters: &mut Counters) -> Journal {
        let Some(found) = self.found.take() else {
            return Journal::default();
        };
        let mut journal = examine(&[found]);
        let reborn =
            |entry: &Entry| matches!(Record::decode(&entry.record), Ok(Record::Incarnation(_)));
        // Until the new one has begun, there is none.
        self.lost &= !journal.entries.iter().any(reborn);
        if self.lost {
            journal = Journal::lost("the simulation took it away");
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

/// Sends, or has the liar send what it makes of it.
fn send(
    setup: &mut Setup,
    membership: &Membership,
    to: Destination,
    frame: &Bytes,
    acts: &mut Vec<Act>,
) {
    let own = setup.config.key;
    let keys = membership.members().map(|member| member.key);
    let everybody = (0..)
        .map(ReplicaId)
        .zip(keys)
        .filter(|(_, key)| *key != own);
    let receivers: Vec<(ReplicaId, PublicKey)> = match to {
        Destination::Replica(id) => everybody.filter(|(it, _)| *it == id).collect(),
        Destination::Replicas => everybody.collect(),
        Destination::Client(to) => {
            let frame = match &mut setup.proxy {
                Some(proxy) => proxy.reply(frame),
                None => frame.clone(),
            };
            acts.push(Act::ToClient { to, frame });
            return;
        }
    };
    for (id, to) in receivers {
        let told = match &mut setup.proxy {
            Some(proxy) => proxy.tell(id, frame),
            None => vec![Told {
                frame: frame.clone(),
                lie: None,
                delay: 0,
            }],
        };
        acts.extend(told.into_iter().map(|told| Act::ToReplica { to, told }));
    }
}
