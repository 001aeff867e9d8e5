//! The core alone: four pure replicas in one thread, without network, disk, TLS or signatures.
//!
//! Every message is let in by a verifier that accepts all, outside of what is timed; records count
//! as durable at once; the state lies in memory. What is timed is the replicas' steps, each
//! replica's own, and the figure is that of the slowest: how many operations one replica could do
//! on one core if all else were free. The time is what this thread was given of a processor, so
//! that others on the machine do not count. Bundles hold one operation each, and enough lanes are
//! kept busy for batches of 256.

use super::failed;
use super::replica::{CLUSTER, Null};
use crate::failure::Outcome as Result;
use bytes::Bytes;
use quorumfs_bft::authentication::{KeyDirectory, Signer, Verifier};
use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft::identity::{
    ConnectionId, Lane, Monotonic, Now, PublicKey, ReplicaId, RequestNumber, SessionId, Signature,
    Time, View,
};
use quorumfs_bft::journal::Journal;
use quorumfs_bft::replica::{Config, Replica};
use quorumfs_bft::state::MemoryStore;
use quorumfs_bft::step::{Destination, Effect, Effects, Event, Peer, Timer};
use quorumfs_bft::wire::frame::{Envelope, Unsigned};
use quorumfs_bft::wire::message::{Message, OpenSession, Operation, Outcome, Request};
use quorumfs_bft::wire::{Verified, admit};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

const SESSIONS: u64 = 8;
const LANES: u16 = 64;
/// The wall clock at the start: any time will do.
const START: u64 = 1_800_000_000_000_000_000;
/// Virtual time from one event to the next.
const STEP_NANOS: u64 = 200;

/// Signs with zeros and accepts everything.
struct Nobody;

impl Signer for Nobody {
    fn public_key(&self) -> PublicKey {
        PublicKey([0; 32])
    }
    fn sign(&self, _message: &[u8]) -> Signature {
        Signature([0; 64])
    }
}

impl Verifier for Nobody {
    fn verify(&self, _: &PublicKey, _: &[u8], _: &Signature) -> bool {
        true
    }
}

impl KeyDirectory for Nobody {
    fn replica(&self, _: ReplicaId) -> Option<PublicKey> {
        Some(PublicKey([0; 32]))
    }
    fn session(&self, _: SessionId) -> Option<PublicKey> {
        Some(PublicKey([0; 32]))
    }
}

struct Node {
    core: Replica<Null, MemoryStore>,
    store: MemoryStore,
    timers: BTreeMap<Timer, Monotonic>,
    busy: Duration,
}

/// Four replicas, and what is under way to them.
struct Rig {
    config: Config,
    nodes: Vec<Node>,
    mail: VecDeque<(usize, Event)>,
    /// Client messages that have to go to every replica.
    sessions: BTreeMap<ConnectionId, SessionId>,
    answered: u64,
    monotonic: u64,
}

fn principal(number: u64) -> PublicKey {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&number.to_le_bytes());
    key[31] = 1;
    PublicKey(key)
}

impl Rig {
    fn new(model: FaultModel) -> Result<Self> {
        let config = Config::new(ReplicaId(0), CLUSTER, model, Bytes::new());
        let mut rig = Self {
            nodes: Vec::new(),
            mail: VecDeque::new(),
            sessions: BTreeMap::new(),
            answered: 0,
            monotonic: 0,
            config,
        };
        for number in 0..model.replicas() {
            let mut config = rig.config.clone();
            config.replica = ReplicaId(number);
            let (store, mut effects) = (MemoryStore::new(), Effects::default());
            let service = Null::answering(0);
            let journal = Journal::default();
            let core = Replica::recover(
                config,
                service,
                store.clone(),
                journal,
                rig.now(),
                &mut effects,
            )
            .map_err(|error| failed("start a core", &error))?;
            rig.nodes.push(Node {
                core,
                store,
                timers: BTreeMap::new(),
                busy: Duration::ZERO,
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
        admit(frame, from, &Nobody, &Nobody, &context)
            .map_err(|error| failed("let a message in", &error))
    }

    /// A client's message, to every replica.
    fn ask(&mut self, connection: ConnectionId, message: Message) -> Result<()> {
        let header = self.config.context().header(View(0));
        let frame = Unsigned::new(header, message).sign(&Nobody).frame().clone();
        let from = Peer::Client(connection);
        for to in 0..self.nodes.len() {
            let message = self.admitted(from, frame.clone())?;
            self.mail.push_back((to, Event::Received { from, message }));
        }
        Ok(())
    }

    /// The next event: what is under way, or else the timer that is due first.
    fn step(&mut self) -> Result<()> {
        self.monotonic += STEP_NANOS;
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
        let (now, mut effects) = (self.now(), Effects::default());
        if let Some(node) = self.nodes.get_mut(to) {
            let start = Instant::now();
            node.core.step(now, event, &mut effects);
            node.busy += start.elapsed();
        }
        self.carry_out(to, &mut effects)
    }

    fn carry_out(&mut self, me: usize, effects: &mut Effects) -> Result<()> {
        let count = self.nodes.len();
        // What a replica has for itself comes before what others have for it.
        let mut own = Vec::new();
        for effect in effects.drain() {
            let Some(node) = self.nodes.get_mut(me) else {
                continue;
            };
            match effect {
                Effect::Sign { message } => own.push(Event::Signed {
                    message: message.sign(&Nobody),
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

    /// The first replica's answer is enough: all are correct. The lane goes on at once.
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
                self.answered += 1;
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
            operations: vec![Operation::Execute(Bytes::new())],
        };
        self.ask(connection, Message::Request(request))
    }

    fn busy(&self) -> Vec<Duration> {
        self.nodes.iter().map(|node| node.busy).collect()
    }
}

/// Seconds of a processor that this thread was given.
pub(super) fn given() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// What the core alone can do.
pub(super) struct Core {
    pub(super) operations_per_second: f64,
    pub(super) operations_per_batch: f64,
}

/// Measures for about so long.
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
        while !rig.sessions.contains_key(&ConnectionId(number)) {
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
    let batches = |rig: &Rig| rig.nodes.first().map_or(0, |it| it.core.committed().0);
    let (began, answered, before) = (Instant::now(), rig.answered, rig.busy());
    let given_before = given();
    let batches_before = batches(&rig);
    while began.elapsed() < length {
        rig.step()?;
    }
    let operations = (rig.answered - answered) as f64;
    let share = (given() - given_before) / began.elapsed().as_secs_f64();
    let spent = rig.busy();
    let slowest = spent
        .iter()
        .zip(&before)
        .map(|(after, before)| *after - *before);
    let slowest = slowest.max().unwrap_or_default().as_secs_f64();
    Ok(Core {
        operations_per_second: operations / (slowest * share),
        operations_per_batch: operations / (batches(&rig) - batches_before).max(1) as f64,
    })
}
