//! The core alone: four pure replicas in one thread, without network, disk, TLS or signatures.
//!
//! A verifier that accepts everything admits every message; records count as durable at once; the
//! state is in memory. Bundles hold one operation each, and 256 of them arrive at a time, while the
//! batch of as many before them is being decided. These four only produce the messages. The timed
//! ones are two more replicas ([`super::probe`]) that receive the events of the leader and of one
//! other replica.

use super::probe::{Probe, Spent};
use super::replica::{CLUSTER, Null};
use crate::failure::{BenchResult as Result, failed};
use bytes::Bytes;
use quorumfs_bft::authentication::{KeyDirectory, Signer, Verifier};
use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft::identity::{
    ConnectionId, Lane, Monotonic, Nanos, Now, PublicKey, ReplicaId, RequestNumber, SessionId,
    Signature, Time, View,
};
use quorumfs_bft::journal::Journal;
use quorumfs_bft::replica::{Config, Replica};
use quorumfs_bft::state::MemoryStore;
use quorumfs_bft::step::{Destination, Effect, Effects, Event, Peer, Timer};
use quorumfs_bft::wire::frame::{Envelope, Unsigned};
use quorumfs_bft::wire::message::{Message, OpenSession, Outcome, Request, RequestOperation};
use quorumfs_bft::wire::{Verified, admit};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

const SESSIONS: u64 = 8;
const LANES: u16 = 64;
/// Requests that arrive at once: half as many as lanes, so that one batch is being decided while
/// the next one arrives.
const BATCH: usize = 256;
/// The leader, and another replica.
const PROBED: u16 = 2;
/// The virtual time that suffices for opening a session.
const OPENING_MAX: Nanos = Nanos::from_secs(10);
/// The wall clock at the start: any time will do.
const START: u64 = 1_800_000_000_000_000_000;
/// What each probe does at least: the processor may have given this thread nothing in the time.
const OPERATIONS_MIN: u64 = 10 * BATCH as u64;
/// Virtual time from one event to the next; requests take none.
const STEP_NANOS: u64 = 200;

/// Signs with zeros and accepts everything.
pub(super) struct NullSigner;

impl Signer for NullSigner {
    fn public_key(&self) -> PublicKey {
        PublicKey([0; 32])
    }
    fn sign(&self, _message: &[u8]) -> Signature {
        Signature([0; 64])
    }
}

impl Verifier for NullSigner {
    fn verify(&self, _: &PublicKey, _: &[u8], _: &Signature) -> bool {
        true
    }
}

impl KeyDirectory for NullSigner {
    fn replica(&self, _: ReplicaId) -> Option<PublicKey> {
        Some(PublicKey([0; 32]))
    }
    fn session(&self, _: SessionId) -> Option<PublicKey> {
        Some(PublicKey([0; 32]))
    }
}

struct CoreNode {
    core: Replica<Null, MemoryStore>,
    store: MemoryStore,
    timers: BTreeMap<Timer, Monotonic>,
    probe: Option<Probe>,
}

/// Four replicas, and the messages in flight to them.
struct Rig {
    config: Config,
    nodes: Vec<CoreNode>,
    mail: VecDeque<(usize, Event)>,
    /// The session of each connection.
    sessions: BTreeMap<ConnectionId, SessionId>,
    /// The next requests.
    next: Vec<(ConnectionId, Request)>,
    monotonic: u64,
}

fn principal(number: u64) -> PublicKey {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&number.to_le_bytes());
    key[31] = 1;
    PublicKey(key)
}

/// A replica with an empty state.
pub(super) fn start(
    config: Config,
    now: Now,
    effects: &mut Effects,
) -> Result<(Replica<Null, MemoryStore>, MemoryStore)> {
    let store = MemoryStore::new();
    let (service, journal) = (Null::answering(0), Journal::default());
    let core = Replica::recover(config, service, store.clone(), journal, now, effects)
        .map_err(|error| failed("start a core", &error))?;
    Ok((core, store))
}

impl Rig {
    fn new(model: FaultModel) -> Result<Self> {
        let config = Config::new(ReplicaId(0), CLUSTER, model, Bytes::new());
        let mut rig = Self {
            nodes: Vec::new(),
            mail: VecDeque::new(),
            sessions: BTreeMap::new(),
            next: Vec::new(),
            monotonic: 0,
            config,
        };
        for number in 0..model.replicas() {
            let config = Config::new(ReplicaId(number), CLUSTER, model, Bytes::new());
            let mut effects = Effects::default();
            let (core, store) = start(config.clone(), rig.now(), &mut effects)?;
            let probed = number < PROBED;
            rig.nodes.push(CoreNode {
                core,
                store,
                timers: BTreeMap::new(),
                probe: match probed {
                    true => Some(Probe::new(config, rig.now())?),
                    false => None,
                },
            });
            rig.carry_out(usize::from(number), &mut effects)?;
        }
        Ok(rig)
    }

    fn now(&self) -> Now {
        Now {
            clock: Time(START + self.monotonic),
            monotonic: Monotonic(self.monotonic),
        }
    }

    fn admitted(&self, from: Peer, frame: Bytes) -> Result<Verified> {
        let context = self.config.context();
        admit(frame, from, &NullSigner, &NullSigner, &context)
            .map_err(|error| failed("admit a message", &error))
    }

    /// Sends a client's message to every replica.
    fn ask(&mut self, connection: ConnectionId, message: Message) -> Result<()> {
        let header = self.config.context().header(View(0));
        let frame = Unsigned::new(header, message)
            .sign(&NullSigner)
            .frame()
            .clone();
        let from = Peer::Client(connection);
        for to in 0..self.nodes.len() {
            let message = self.admitted(from, frame.clone())?;
            self.mail.push_back((to, Event::Received { from, message }));
        }
        Ok(())
    }

    /// Handles the next event: a message in flight, or else the timer that is due first.
    fn step(&mut self) -> Result<()> {
        let (to, event) = match self.mail.pop_front() {
            Some(mail) => mail,
            None => {
                let timers = self.nodes.iter().enumerate().flat_map(|(number, node)| {
                    let timers = node.timers.iter();
                    timers.map(move |(timer, at)| (*at, number, *timer))
                });
                let (at, number, timer) = timers
                    .min()
                    .ok_or_else(|| failed("go on", &"nothing is under way"))?;
                self.monotonic = self.monotonic.max(at.0);
                if let Some(node) = self.nodes.get_mut(number) {
                    node.timers.remove(&timer);
                }
                (number, Event::Timer { timer })
            }
        };
        self.monotonic += match event {
            Event::Received {
                from: Peer::Client(_),
                ..
            } => 0,
            _ => STEP_NANOS,
        };
        let (now, mut effects) = (self.now(), Effects::default());
        if let Some(node) = self.nodes.get_mut(to) {
            if let Some(probe) = &mut node.probe {
                probe.observe(now, &event)?;
            }
            node.core.step(now, event, &mut effects);
        }
        self.carry_out(to, &mut effects)
    }

    fn carry_out(&mut self, me: usize, effects: &mut Effects) -> Result<()> {
        let count = self.nodes.len();
        // A replica's messages to itself come before those of others to it.
        let mut own = Vec::new();
        for effect in effects.drain() {
            let Some(node) = self.nodes.get_mut(me) else {
                continue;
            };
            match effect {
                Effect::Sign { message } => own.push(Event::Signed {
                    message: message.sign(&NullSigner),
                }),
                Effect::Persist { token, .. } => own.push(Event::Persisted { token }),
                Effect::Flush { batch, root } => {
                    node.store.apply(&batch);
                    let sequence = root.sequence;
                    own.push(Event::Flushed { sequence });
                }
                Effect::SetTimer { timer, after } => {
                    node.timers
                        .insert(timer, Monotonic(self.monotonic).plus(after));
                }
                Effect::CancelTimer { timer } => {
                    node.timers.remove(&timer);
                }
                Effect::Send { to, frame, .. } => match to {
                    Destination::Replicas => {
                        for to in (0..count).filter(|to| *to != me) {
                            self.deliver(me, to, frame.clone())?;
                        }
                    }
                    Destination::Replica(to) => self.deliver(me, usize::from(to.0), frame)?,
                    Destination::Client(connection) if me == 0 => self.answer(connection, frame)?,
                    Destination::Client(_) => {}
                },
                Effect::Poison { reason } => return Err(failed("run a core", &reason)),
                _ => {}
            }
        }
        for event in own.into_iter().rev() {
            self.mail.push_front((me, event));
        }
        Ok(())
    }

    fn deliver(&mut self, me: usize, to: usize, frame: Bytes) -> Result<()> {
        let from = Peer::Replica(ReplicaId(u16::try_from(me).unwrap_or(u16::MAX)));
        let message = self.admitted(from, frame)?;
        self.mail.push_back((to, Event::Received { from, message }));
        Ok(())
    }

    /// The first replica's answer suffices: all are correct. The lane sends its next request.
    fn answer(&mut self, connection: ConnectionId, frame: Bytes) -> Result<()> {
        let envelope = Envelope::decode(frame).map_err(|error| failed("read an answer", &error))?;
        let Message::Reply(reply) = envelope.message() else {
            return Ok(());
        };
        match &reply.outcome {
            Outcome::SessionOpened { session, .. } => {
                self.sessions.insert(connection, *session);
                Ok(())
            }
            Outcome::Results(_) => {
                let number = RequestNumber(reply.number.0 + 1);
                self.request(connection, reply.session, reply.lane, number)
            }
            other => Err(failed("get an answer", &format!("{other:?}"))),
        }
    }

    fn request(
        &mut self,
        connection: ConnectionId,
        session: SessionId,
        lane: Lane,
        number: RequestNumber,
    ) -> Result<()> {
        let request = Request {
            session,
            lane,
            number,
            operations: vec![RequestOperation::Execute(Bytes::new())],
        };
        self.next.push((connection, request));
        if self.next.len() < BATCH {
            return Ok(());
        }
        for (connection, request) in std::mem::take(&mut self.next) {
            self.ask(connection, Message::Request(request))?;
        }
        Ok(())
    }

    fn probes(&self) -> impl Iterator<Item = &Probe> {
        self.nodes.iter().filter_map(|node| node.probe.as_ref())
    }
}

/// The results for the core alone.
pub(super) struct Core {
    /// Of the slower one of the leader and the other replica.
    pub(super) operations_per_second: f64,
    pub(super) operations_per_batch: f64,
    /// Nanoseconds for each operation: of the leader's steps, and of the other replica's.
    pub(super) leader_ns: f64,
    pub(super) follower_ns: f64,
    /// For decoding frames and hashing requests, before the steps.
    pub(super) frames_ns: f64,
}

/// Measures for about so long, and at least [`OPERATIONS_MIN`].
pub(super) fn measure(length: Duration) -> Result<Core> {
    let model = FaultModel::new(1, 1, 4).map_err(|error| failed("make a fault model", &error))?;
    let mut rig = Rig::new(model)?;
    for number in 1..=SESSIONS {
        let open = OpenSession {
            principal: principal(number),
            session_key: principal(number),
            lanes: LANES,
            time: rig.now().clock,
        };
        rig.ask(ConnectionId(number), Message::OpenSession(open))?;
        let given_up = rig.monotonic + OPENING_MAX.0;
        while !rig.sessions.contains_key(&ConnectionId(number)) {
            if rig.monotonic > given_up {
                return Err(failed("open a session", &"no replica answers"));
            }
            rig.step()?;
        }
    }
    for (connection, session) in rig.sessions.clone() {
        for lane in 0..LANES {
            rig.request(connection, session, Lane(lane), RequestNumber(1))?;
        }
    }
    let warm = Instant::now();
    while warm.elapsed() < length / 4 {
        rig.step()?;
    }
    let leads = rig.nodes.first().map(|it| it.core.status().leader);
    if leads != Some(ReplicaId(0)) {
        return Err(failed("measure", &"the leader was replaced"));
    }
    let before: Vec<Spent> = rig.probes().map(Probe::spent).collect();
    let spent = |rig: &Rig| -> Vec<Spent> {
        let spent = rig.probes().map(Probe::spent).zip(&before);
        spent.map(|(after, before)| after.since(*before)).collect()
    };
    let few = |spent: &Spent| spent.operations < OPERATIONS_MIN;
    let began = Instant::now();
    while began.elapsed() < length || spent(&rig).iter().any(few) {
        rig.step()?;
    }
    let spent = spent(&rig);
    let [leader, follower] = spent.as_slice() else {
        return Err(failed("measure", &"there are two probes"));
    };
    let nanos = |seconds: f64, spent: &Spent| seconds * 1e9 / spent.operations.max(1) as f64;
    let (leader_ns, follower_ns) = (nanos(leader.steps, leader), nanos(follower.steps, follower));
    Ok(Core {
        operations_per_second: 1e9 / leader_ns.max(follower_ns),
        operations_per_batch: leader.operations as f64 / leader.batches.max(1) as f64,
        leader_ns,
        follower_ns,
        frames_ns: nanos(leader.frames, leader).max(nanos(follower.frames, follower)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_cores_order_in_batches_and_the_probes_hear_it_all() {
        let core = measure(Duration::ZERO).expect("the cores agree");
        assert!(core.operations_per_second > 0.0 && core.frames_ns > 0.0);
        assert!(core.operations_per_batch > 100.0, "the lanes are kept busy");
    }
}
