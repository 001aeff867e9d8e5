//! A baseline that only carries the messages, to measure the protocol's own cost against.
//!
//! It replaces a replica's core: the same messages over the same links, with the same signatures
//! and checks of them (request to all, proposal, PREPAREs, COMMITs, replies), but no reliable
//! order: no state, no journal, no timers. Batches are made as by a replica whose window is one: at
//! once if none is in flight. Messages sent before all links are up may be lost; a client that
//! repeats its request triggers them again.

use bytes::Bytes;
use quorumfs_bft::identity::{
    ConnectionId, Digest, Lane, Now, ReplicaId, RequestNumber, Sequence, SessionId, Signature,
    Time, View,
};
use quorumfs_bft::metrics::{Counters, ReplicaStatus, Voting};
use quorumfs_bft::service::Credit;
use quorumfs_bft::step::{Destination, Effect, Effects, Event, Peer};
use quorumfs_bft::wire::message::{
    Ballot, Batch, Message, OpenSession, Outcome, Reply, Request, RequestOperation,
};
use quorumfs_bft::wire::{Context, Envelope, Unsigned, encode};
use quorumfs_bft_runtime::event_loop::Core;
use std::collections::BTreeMap;
use std::sync::Arc;

const VIEW: View = View(0);
/// The most requests in a batch, as in the library.
const BATCH_MAX: usize = 512;
/// The most waiting requests: more than all clients have in flight.
const WAITING_MAX: usize = 1 << 16;
/// The most sessions that are announced to the others.
const SESSIONS_MAX: usize = 4096;
const CREDIT: Credit = Credit {
    lanes: 64,
    bytes: 64 << 20,
};

/// One sequence.
#[derive(Default)]
struct Slot {
    proposal: Option<Arc<Envelope>>,
    /// The replicas whose votes are here, a bit for each; its own once it is signed.
    prepares: u64,
    commits: u64,
    committing: bool,
    /// The messages that this replica has sent about it.
    sent: Vec<Bytes>,
}

/// The messages of a replica.
pub(super) struct Baseline {
    context: Context,
    me: ReplicaId,
    answer: Bytes,
    connections: BTreeMap<SessionId, ConnectionId>,
    bodies: BTreeMap<Digest, Arc<Envelope>>,
    /// Decided requests that had not arrived yet.
    owed: BTreeMap<Digest, Sequence>,
    /// The leader's: requests that arrived and were not proposed.
    ready: Vec<Digest>,
    slots: BTreeMap<Sequence, Slot>,
    proposed: Sequence,
    decided: Sequence,
    previous: Digest,
    /// The messages that this replica sent about the last decided batch.
    sent: Vec<Bytes>,
    /// How this replica's clients opened their sessions: no order tells the others.
    opened: Vec<Bytes>,
    counters: Counters,
}

impl Baseline {
    pub(super) fn new(context: Context, me: ReplicaId, answer_bytes: usize) -> Self {
        Self {
            context,
            me,
            answer: vec![0; answer_bytes].into(),
            connections: BTreeMap::new(),
            bodies: BTreeMap::new(),
            owed: BTreeMap::new(),
            ready: Vec::new(),
            slots: BTreeMap::new(),
            proposed: Sequence(0),
            decided: Sequence(0),
            previous: Digest::default(),
            sent: Vec::new(),
            opened: Vec::new(),
            counters: Counters::default(),
        }
    }

    fn leads(&self) -> bool {
        self.context.leader(VIEW) == self.me
    }

    /// Sends a message to the other replicas: signed, or unsigned where the channels authenticate
    /// it.
    fn send(&mut self, message: Message, effects: &mut Effects) {
        let unsigned = Unsigned::new(self.context.header(VIEW), message);
        if self.signs() {
            let message = Box::new(unsigned);
            effects.push(Effect::Sign { message });
        } else {
            let sent = unsigned.with_signature(Signature::default());
            self.signed(sent.envelope(), effects);
        }
    }

    const fn signs(&self) -> bool {
        self.context.authentication.signs_votes()
    }

    fn reply(&self, to: ConnectionId, reply: Reply, effects: &mut Effects) {
        effects.push(Effect::Send {
            to: Destination::Client(to),
            frame: encode(self.context.header(VIEW), &Message::Reply(reply)),
            after: None,
        });
    }

    fn received(&mut self, from: Peer, envelope: &Arc<Envelope>, effects: &mut Effects) {
        match (envelope.message(), from) {
            (Message::OpenSession(open), Peer::Client(connection)) => {
                self.open(connection, open, envelope.digest(), effects);
                if self.opened.len() < SESSIONS_MAX {
                    self.opened.push(envelope.frame().clone());
                }
            }
            (Message::OpenSession(open), _) => {
                self.know(open, effects);
            }
            (Message::CloseSession(close), Peer::Client(connection)) => {
                let (digest, id) = (envelope.digest(), close.session);
                let reply = answer_to(id, Sequence(0), digest, Outcome::SessionClosed);
                self.reply(connection, reply, effects);
            }
            (Message::Request(request), Peer::Client(connection)) => {
                self.connections.insert(request.session, connection);
                let digest = envelope.digest();
                if let Some(decided) = self.owed.remove(&digest) {
                    self.answer(connection, request, digest, decided, effects);
                    return;
                }
                if self.bodies.contains_key(&digest) {
                    self.send_again(effects);
                } else if self.bodies.len() < WAITING_MAX {
                    self.bodies.insert(digest, Arc::clone(envelope));
                    self.ready.push(digest);
                }
                self.propose(effects);
            }
            (Message::Proposal(batch), _) if batch.sequence > self.decided => {
                let slot = self.slots.entry(batch.sequence).or_default();
                if slot.proposal.is_some() {
                    return;
                }
                slot.proposal = Some(Arc::clone(envelope));
                let ballot = self.ballot(batch.sequence, envelope.digest());
                if self.context.model.right() > 0 {
                    self.send(Message::Prepare(ballot), effects);
                }
                self.advance(batch.sequence, effects);
            }
            (Message::Prepare(ballot), _) if ballot.sequence > self.decided => {
                self.slot(ballot).prepares |= bit(ballot.signer);
                self.advance(ballot.sequence, effects);
            }
            (Message::Commit(ballot), _) if ballot.sequence > self.decided => {
                self.slot(ballot).commits |= bit(ballot.signer);
                self.advance(ballot.sequence, effects);
            }
            _ => {}
        }
    }

    fn signed(&mut self, envelope: &Arc<Envelope>, effects: &mut Effects) {
        effects.push(Effect::Send {
            to: Destination::Replicas,
            frame: envelope.frame().clone(),
            after: None,
        });
        let sequence = match envelope.message() {
            Message::Proposal(batch) => {
                let slot = self.slots.entry(batch.sequence).or_default();
                slot.proposal = Some(Arc::clone(envelope));
                if !self.signs() && self.context.model.right() > 0 {
                    // An unsigned proposal is no vote.
                    let ballot = self.ballot(batch.sequence, envelope.digest());
                    self.send(Message::Prepare(ballot), effects);
                }
                batch.sequence
            }
            Message::Prepare(ballot) if ballot.sequence > self.decided => {
                self.slot(ballot).prepares |= bit(ballot.signer);
                ballot.sequence
            }
            Message::Commit(ballot) if ballot.sequence > self.decided => {
                self.slot(ballot).commits |= bit(ballot.signer);
                ballot.sequence
            }
            _ => return,
        };
        if let Some(slot) = self.slots.get_mut(&sequence) {
            slot.sent.push(envelope.frame().clone());
        }
        self.advance(sequence, effects);
    }

    /// Messages of undecided batches may have been lost.
    fn send_again(&self, effects: &mut Effects) {
        let open = self.slots.values().flat_map(|slot| &slot.sent);
        for frame in self.opened.iter().chain(&self.sent).chain(open) {
            effects.push(Effect::Send {
                to: Destination::Replicas,
                frame: frame.clone(),
                after: None,
            });
        }
    }

    fn slot(&mut self, ballot: &Ballot) -> &mut Slot {
        self.slots.entry(ballot.sequence).or_default()
    }

    const fn ballot(&self, sequence: Sequence, digest: Digest) -> Ballot {
        Ballot {
            sequence,
            digest,
            signer: self.me,
        }
    }

    /// All replicas are correct, so equal messages need no further check.
    fn know(&self, open: &OpenSession, effects: &mut Effects) -> SessionId {
        let [a, b, c, d, e, f, g, h, ..] = open.session_key.0;
        let id = SessionId(u64::from_be_bytes([a, b, c, d, e, f, g, h]));
        effects.push(Effect::SessionKey {
            id,
            key: open.session_key,
            principal: open.principal,
            credit: CREDIT,
        });
        id
    }

    fn open(
        &self,
        connection: ConnectionId,
        open: &OpenSession,
        digest: Digest,
        effects: &mut Effects,
    ) {
        let id = self.know(open, effects);
        let outcome = Outcome::SessionOpened {
            session: id,
            credit: CREDIT,
        };
        let reply = answer_to(SessionId(0), Sequence(1), digest, outcome);
        self.reply(connection, reply, effects);
    }

    fn propose(&mut self, effects: &mut Effects) {
        if !self.leads() || self.proposed > self.decided || self.ready.is_empty() {
            return;
        }
        self.proposed = self.proposed.next();
        let count = self.ready.len().min(BATCH_MAX);
        let batch = Batch {
            sequence: self.proposed,
            time: Time(self.proposed.0),
            previous: self.previous,
            behaviour_version: 1,
            tick: false,
            requests: self.ready.drain(..count).collect(),
        };
        self.send(Message::Proposal(batch), effects);
    }

    fn advance(&mut self, sequence: Sequence, effects: &mut Effects) {
        let (quorum, two_phases) = (self.context.model.medium(), self.context.model.right() > 0);
        let quorum = u32::from(quorum);
        let prepares = quorum - u32::from(self.signs());
        let me = self.me;
        if let Some(slot) = self.slots.get_mut(&sequence)
            && let Some(proposal) = &slot.proposal
            && !slot.committing
            && (!two_phases || slot.prepares.count_ones() >= prepares)
        {
            slot.committing = true;
            let ballot = Ballot {
                sequence,
                digest: proposal.digest(),
                signer: me,
            };
            self.send(Message::Commit(ballot), effects);
        }
        while let Some(slot) = self.slots.get(&self.decided.next())
            && slot.commits.count_ones() >= quorum
            && let Some(proposal) = slot.proposal.clone()
        {
            self.decided = self.decided.next();
            let slot = self.slots.remove(&self.decided);
            self.sent = slot.map(|slot| slot.sent).unwrap_or_default();
            self.previous = proposal.digest();
            self.decide(&proposal, effects);
        }
        self.propose(effects);
    }

    fn decide(&mut self, proposal: &Envelope, effects: &mut Effects) {
        let Some(batch) = proposal.batch() else {
            return;
        };
        self.counters.batches += 1;
        for digest in &batch.requests {
            let Some(body) = self.bodies.remove(digest) else {
                if self.owed.len() < WAITING_MAX {
                    self.owed.insert(*digest, batch.sequence);
                }
                continue;
            };
            if let Message::Request(request) = body.message()
                && let Some(connection) = self.connections.get(&request.session).copied()
            {
                self.counters.requests += 1;
                self.counters.operations += request.operations.len() as u64;
                self.answer(connection, request, *digest, batch.sequence, effects);
            }
        }
        if !self.leads() {
            self.ready.clear();
        }
    }

    fn answer(
        &self,
        connection: ConnectionId,
        request: &Request,
        digest: Digest,
        version: Sequence,
        effects: &mut Effects,
    ) {
        let result = |_: &RequestOperation| Some(self.answer.clone());
        let results = request.operations.iter().map(result).collect();
        let reply = Reply {
            session: request.session,
            lane: request.lane,
            number: request.number,
            request: digest,
            version,
            outcome: Outcome::Results(results),
        };
        self.reply(connection, reply, effects);
    }
}

const fn bit(replica: ReplicaId) -> u64 {
    1 << (replica.0 % 64)
}

const fn answer_to(
    session: SessionId,
    version: Sequence,
    request: Digest,
    outcome: Outcome,
) -> Reply {
    Reply {
        session,
        lane: Lane(0),
        number: RequestNumber(0),
        request,
        version,
        outcome,
    }
}

impl Core for Baseline {
    fn step(&mut self, _: Now, event: Event, effects: &mut Effects) {
        match event {
            Event::Received { from, message } => self.received(from, message.envelope(), effects),
            Event::Signed { message } => self.signed(message.envelope(), effects),
            _ => {}
        }
    }

    fn status(&self) -> ReplicaStatus {
        ReplicaStatus {
            replica: self.me,
            epoch: self.context.epoch,
            began: Sequence(0),
            ended: false,
            reborn: None,
            view: VIEW,
            leader: self.context.leader(VIEW),
            active: true,
            sequence: self.decided,
            batch: self.previous,
            time: Time(0),
            durable: Sequence(0),
            root: Digest::default(),
            stable: Sequence(0),
            kept: Sequence(0),
            transfer: None,
            voting: Voting::Voting,
            signers: Vec::new(),
            sessions: 0,
            waiting: 0,
            authentication: self.context.authentication,
            durability: Default::default(),
            counters: self.counters,
        }
    }

    fn committed(&self) -> Sequence {
        self.decided
    }
}
