//! A Byzantine replica: the real core behind a proxy that rewrites its messages.
//!
//! The core behaves honestly, so its messages are what a correct replica would send now; the proxy
//! changes them on their way out and signs the result with the replica's real key. Lies therefore
//! come at the right time and are plausible, which random bytes never are. A liar's behaviour is
//! drawn once a run as a set of [`Habit`]s; most lies pass every check of form and signature, and a
//! few crude ones do not and get their author blacklisted.
//!
//! Sources: Winter et al., "Randomized Testing of Byzantine Fault Tolerant Algorithms" (ByzzFuzz,
//! 2023) for the small-scope mutations; Bano et al., "Twins" (2021) for equivocation.

mod certificates;
mod claims;
mod echo;
mod mutation;
mod profiles;
mod proposal;
mod reading;
mod showing;

use crate::authentication::FakeSigner;
use crate::lie::Lie;
use crate::random::Random;
use bytes::Bytes;
use certificates::Spoiling;
use proposal::{Equivocations, Inventions};
use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft::identity::{Digest, ReplicaId, SessionId, Signature, View};
use quorumfs_bft::wire::frame::{Envelope, Header, Unsigned};
use quorumfs_bft::wire::message::{
    Ballot, Bodies, Kind, Message, Outcome, RequestOperation, Suspect,
};
use reading::Reading;
use std::collections::VecDeque;

/// One way of lying.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Habit {
    /// As leader, propose one thing to some and another to the others, and vote for both.
    Equivocate,
    /// Never send anything to these.
    Exclude(Vec<ReplicaId>),
    /// As leader, never propose anything to these.
    ProposeNotTo(Vec<ReplicaId>),
    /// Sometimes withhold messages of this kind.
    Withhold(Kind),
    /// Sometimes change one field by a little.
    Mutate,
    /// Hide prepared batches, or show an old base, when the view changes.
    Stale,
    /// Report a false status.
    FalseStatus,
    /// Suspect every leader.
    Suspect,
    /// As leader, hand over to others, also to those that are down.
    HandOver,
    /// Send old messages again.
    Replay,
    /// Give clients false results.
    FalseReplies,
    /// Send forged bodies and batches, also unrequested ones.
    Forge,
    /// Send forged nodes of a state, or deny having them.
    ForgeNodes,
    /// As leader, delay each proposal.
    Dawdle,
    /// Send lies that no correct replica admits.
    Crude,
    /// Equivocate, send every vote several times, return other replicas' votes to them, and, as a
    /// new leader, show one VIEW-CHANGE in place of many.
    Echo,
    /// Receive decisions and withhold them: no COMMIT, no body and no batch leaves, though
    /// everything else is true.
    Hoard,
    /// Send COMMIT together with the vote, before anything is prepared.
    Hasty,
    /// As leader, withhold some proposals, so that later ones cannot be executed.
    Skip,
    /// Ignore the requests of some sessions, from any sender, and so never propose them.
    Starve,
    /// As leader, propose requests whose body no replica has, or that have been executed.
    Invent,
    /// Make false claims when the view changes, where no proof is needed.
    FalseClaims,
    /// Show invalid certificates, and vote for states and epochs that do not exist.
    Spoil,
}

/// A frame that a liar sends.
#[derive(Clone, Debug)]
pub struct OutgoingFrame {
    /// The bytes.
    pub frame: Bytes,
    /// The defect, if there is one.
    pub lie: Option<Lie>,
    /// Nanoseconds to wait before sending.
    pub delay: u64,
}

impl OutgoingFrame {
    const fn truth(frame: Bytes) -> Self {
        Self {
            frame,
            lie: None,
            delay: 0,
        }
    }

    const fn lie(frame: Bytes, lie: Lie) -> Self {
        Self {
            frame,
            lie: Some(lie),
            delay: 0,
        }
    }
}

/// A lying replica's proxy.
#[derive(Debug)]
pub struct Proxy {
    replica: ReplicaId,
    replicas: u16,
    model: FaultModel,
    signer: FakeSigner,
    habits: Vec<Habit>,
    random: Random,
    shown: VecDeque<Bytes>,
    equivocations: Equivocations,
    sent: VecDeque<Bytes>,
    /// The requests of the last proposal but one: executed by now.
    last_requests: Vec<Digest>,
    proposed: Vec<Digest>,
    echoes: usize,
    inventions: Inventions,
    /// A node that it once sent.
    node: Bytes,
    reading: Reading,
    misreads: bool,
    signs_votes: bool,
    spoiling: Spoiling,
}

/// One in how many liars spoils certificates.
const SPOILERS: u64 = 6;

/// How many old messages a liar keeps for replaying.
const SENT_MAX: usize = 48;

impl Proxy {
    /// A liar with habits drawn from `random`.
    #[must_use]
    pub fn new(
        replica: ReplicaId,
        model: FaultModel,
        excluded: u16,
        signer: FakeSigner,
        mut random: Random,
    ) -> Self {
        let replicas = model.replicas();
        let mut habits = Vec::new();
        for _ in 0..random.between(1, 4) {
            habits.push(draw_habit(replica, replicas, excluded, &mut random));
        }
        // From a stream of their own, so that the other habits do not depend on these.
        let mut more = random.clone().fork(1);
        match more.below(10) {
            0 | 6 | 8 => habits.push(Habit::Echo),
            1 | 7 | 9 => habits.push(Habit::Invent),
            2 => habits.push(Habit::Hoard),
            3 => habits.push(Habit::Hasty),
            4 => habits.push(Habit::Skip),
            5 => habits.push(Habit::Starve),
            _ => habits.push(Habit::ForgeNodes),
        }
        let misreads = random.clone().fork(2).chance(1, 3);
        let mut spoiling = random.clone().fork(5);
        if spoiling.chance(1, SPOILERS) {
            habits.push(Habit::Spoil);
        }
        let equivocations = Equivocations::new(replicas, &mut random);
        Self {
            replica,
            replicas,
            model,
            signer,
            habits,
            random,
            shown: VecDeque::new(),
            equivocations,
            sent: VecDeque::new(),
            last_requests: Vec::new(),
            proposed: Vec::new(),
            echoes: 0,
            inventions: Inventions::default(),
            node: Bytes::new(),
            reading: Reading::default(),
            misreads,
            signs_votes: true,
            spoiling: Spoiling::new(spoiling, model.medium().into()),
        }
    }

    /// Sets its number in another epoch.
    pub fn renumber(&mut self, replica: ReplicaId, model: FaultModel) {
        self.spoiling.quorum_before = self.model.medium().into();
        self.replica = replica;
        self.replicas = model.replicas().max(1);
        self.model = model;
    }

    /// Whether it hides this message from its core.
    #[must_use]
    pub fn ignores(&self, envelope: &Envelope) -> bool {
        let starved = matches!(envelope.message(), Message::Request(request)
            if request.session.0 % 3 == u64::from(self.replica.0) % 3);
        starved && self.habits.contains(&Habit::Starve)
    }

    /// Its habits, for the trace.
    #[must_use]
    pub fn habits(&self) -> &[Habit] {
        &self.habits
    }

    /// Rewrites a frame for a replica.
    pub fn rewrite(&mut self, to: ReplicaId, frame: &Bytes) -> Vec<OutgoingFrame> {
        let Ok(envelope) = Envelope::decode(frame.clone()) else {
            return vec![OutgoingFrame::truth(frame.clone())];
        };
        self.remember(&envelope);
        let mut frames = vec![OutgoingFrame::truth(frame.clone())];
        for habit in self.habits.clone() {
            self.follow(&habit, to, &envelope, &mut frames);
        }
        frames
    }

    /// Rewrites a frame for a client.
    pub fn reply(&mut self, frame: &Bytes) -> Bytes {
        if frame.get(..8).and_then(Kind::of_tag) == Some(Kind::ReadAnswer) {
            let envelope = Envelope::decode(frame.clone())
                .ok()
                .filter(|_| self.misreads);
            return match envelope.as_ref().map(|it| (it, it.message())) {
                Some((envelope, Message::ReadAnswer(answer))) => self.misread(envelope, answer),
                _ => frame.clone(),
            };
        }
        if !self.habits.contains(&Habit::FalseReplies) || self.random.chance(1, 3) {
            return frame.clone();
        }
        let Ok(envelope) = Envelope::decode(frame.clone()) else {
            return frame.clone();
        };
        let Message::Reply(reply) = envelope.message() else {
            return frame.clone();
        };
        let mut reply = reply.clone();
        match (self.random.below(3), &mut reply.outcome) {
            (0, Outcome::Results(results)) => {
                results.reverse();
                if let Some(last) = results.last_mut() {
                    *last = Some(Bytes::from_static(b"a lie"));
                }
            }
            (1, _) => reply.outcome = Outcome::NoSession,
            (_, Outcome::SessionOpened { session, .. }) => {
                *session = SessionId(session.0.wrapping_add(1));
            }
            _ => reply.version.0 = reply.version.0.wrapping_add(1),
        }
        quorumfs_bft::wire::encode(*envelope.header(), &Message::Reply(reply))
    }

    fn follow(
        &mut self,
        habit: &Habit,
        to: ReplicaId,
        envelope: &Envelope,
        frames: &mut Vec<OutgoingFrame>,
    ) {
        let kind = envelope.message().kind();
        match habit {
            Habit::Equivocate => self.equivocate(to, envelope, frames),
            Habit::Echo => {
                self.equivocate(to, envelope, frames);
                self.echo(envelope, frames);
            }
            Habit::Hoard if matches!(kind, Kind::Commit | Kind::Bodies | Kind::Committed) => {
                frames.clear();
            }
            Habit::Invent => self.invent(envelope, frames),
            Habit::Hasty => {
                if let Some(ballot) = self.early_commit(envelope) {
                    let frame = self.frame(*envelope.header(), Message::Commit(ballot));
                    frames.push(OutgoingFrame::lie(frame, Lie::EarlyCommit));
                }
            }
            Habit::Skip if envelope.batch().is_some_and(|it| it.sequence.0 % 5 == 0) => {
                frames.clear();
            }
            Habit::Exclude(victims) if victims.contains(&to) => frames.clear(),
            Habit::ProposeNotTo(victims) if kind == Kind::Proposal && victims.contains(&to) => {
                frames.clear();
            }
            Habit::Withhold(withheld)
                if *withheld == same_kind(kind) && self.random.chance(1, 2) =>
            {
                frames.clear();
            }
            Habit::Mutate if self.random.chance(1, 12) => {
                if let Some((message, header, lie)) = self.mutate(envelope) {
                    let lie = OutgoingFrame::lie(self.frame(header, message), lie);
                    if self.random.chance(1, 2) {
                        frames.clear();
                    }
                    frames.push(lie);
                }
            }
            Habit::FalseClaims if kind == Kind::Claims => {
                if let Some(message) = self.false_claims(envelope) {
                    frames.clear();
                    let frame = self.frame(*envelope.header(), message);
                    frames.push(OutgoingFrame::lie(frame, Lie::FalseClaim));
                }
            }
            Habit::Stale if same_kind(kind) == Kind::ViewChange => {
                if let Some(message) = self.stale(envelope) {
                    frames.clear();
                    let frame = self.frame(*envelope.header(), message);
                    frames.push(OutgoingFrame::lie(frame, Lie::StaleCertificate));
                }
            }
            Habit::FalseStatus if self.random.chance(1, 2) => {
                if let Some(message) = self.false_status(envelope) {
                    frames.clear();
                    let frame = self.frame(*envelope.header(), message);
                    frames.push(OutgoingFrame::lie(frame, Lie::FalseStatus));
                }
            }
            Habit::Suspect if kind == Kind::Status => {
                let signer = self.replica;
                let frame = self.frame(*envelope.header(), Message::Suspect(Suspect { signer }));
                frames.push(OutgoingFrame::lie(frame, Lie::FalseSuspicion));
            }
            Habit::HandOver if kind == Kind::Status => {
                let signer = self.replica;
                let later = self.random.below(u64::from(self.replicas));
                let view = View(envelope.view().0.saturating_add(later));
                let header = envelope.header().at(view);
                let frame = self.frame(header, Message::Suspect(Suspect { signer }));
                frames.push(OutgoingFrame::lie(frame, Lie::FalseSuspicion));
            }
            Habit::Replay if self.random.chance(1, 8) => {
                let index = self.random.index(self.sent.len());
                if let Some(old) = self.sent.get(index) {
                    frames.push(OutgoingFrame::lie(old.clone(), Lie::Replay));
                }
            }
            Habit::ForgeNodes if kind != Kind::Nodes || self.random.chance(1, 4) => {}
            Habit::Forge | Habit::ForgeNodes => {
                if let Some(message) = self.forge(envelope) {
                    frames.clear();
                    let frame = self.frame(*envelope.header(), message);
                    let lie = match kind {
                        Kind::Nodes => Lie::ForgedNode,
                        _ => Lie::ForgedBody,
                    };
                    frames.push(OutgoingFrame::lie(frame, lie));
                }
            }
            Habit::Dawdle if kind == Kind::Proposal => {
                let delay = self.random.between(50, 350) * crate::agenda::MILLISECOND;
                for frame in frames {
                    frame.delay = delay;
                }
            }
            Habit::Spoil => {
                if let Some((message, lie)) = self.spoil(envelope) {
                    frames.clear();
                    let frame = self.frame(*envelope.header(), message);
                    frames.push(OutgoingFrame::lie(frame, lie));
                }
            }
            Habit::Crude if self.random.chance(1, crudeness(kind)) => {
                if let Some(lie) = self.crude(envelope) {
                    frames.push(lie);
                }
            }
            _ => {}
        }
    }

    /// Encodes a message and signs it, if its kind is signed.
    fn frame(&self, header: Header, message: Message) -> Bytes {
        let vote = matches!(
            message.kind(),
            Kind::Proposal | Kind::Prepare | Kind::Commit
        );
        if message.kind().signed() {
            let unsigned = Unsigned::new(header, message);
            let verified = match vote && !self.signs_votes {
                true => unsigned.with_signature(Signature::default()),
                false => unsigned.sign(&self.signer),
            };
            verified.frame().clone()
        } else {
            quorumfs_bft::wire::encode(header, &message)
        }
    }

    fn remember(&mut self, envelope: &Envelope) {
        if let Some(batch) = envelope.batch()
            && batch.requests != self.proposed
        {
            let proposed = batch.requests.clone();
            self.last_requests = std::mem::replace(&mut self.proposed, proposed);
        }
        if envelope.message().kind().signed() && self.random.chance(1, 4) {
            if self.sent.len() >= SENT_MAX {
                self.sent.pop_front();
            }
            self.sent.push_back(envelope.frame().clone());
        }
    }

    /// As leader, proposes a request that does not belong there.
    fn invent(&mut self, envelope: &Envelope, frames: &mut Vec<OutgoingFrame>) {
        let Message::Proposal(batch) = envelope.message() else {
            return;
        };
        let header = *envelope.header();
        let (inventions, random) = (&mut self.inventions, &mut self.random);
        let Some((digest, body)) = inventions.to(header.view, batch, random) else {
            return;
        };
        let mut batch = batch.clone();
        batch.requests.push(digest);
        let frame = self.frame(header, Message::Proposal(batch));
        frames.clear();
        frames.push(OutgoingFrame::lie(frame, Lie::WrongRequests));
        if let Some(body) = body {
            let requests = vec![body];
            let mut bodies =
                OutgoingFrame::truth(self.frame(header, Message::Bodies(Bodies { requests })));
            // A little later than the proposal, since replicas take only missing bodies.
            bodies.delay = 20 * crate::agenda::MILLISECOND;
            frames.push(bodies);
        }
    }

    /// The COMMIT for its own vote.
    fn early_commit(&self, envelope: &Envelope) -> Option<Ballot> {
        match envelope.message() {
            Message::Proposal(batch) => Some(Ballot {
                sequence: batch.sequence,
                digest: envelope.digest(),
                signer: self.replica,
            }),
            Message::Prepare(ballot) => Some(*ballot),
            _ => None,
        }
    }

    fn equivocate(&mut self, to: ReplicaId, envelope: &Envelope, frames: &mut Vec<OutgoingFrame>) {
        if !self.equivocations.is_victim(to) {
            return;
        }
        let header = *envelope.header();
        match envelope.message() {
            Message::Proposal(batch) => {
                let twin = self
                    .equivocations
                    .twin(header.view, batch, envelope.digest());
                let frame = self.frame(header, Message::Proposal(twin));
                if let Ok(other) = Envelope::decode(frame.clone()) {
                    let sequence = batch.sequence;
                    self.equivocations
                        .settle(header.view, sequence, other.digest());
                }
                frames.clear();
                frames.push(OutgoingFrame::lie(frame, Lie::Equivocation));
            }
            Message::Prepare(ballot) | Message::Commit(ballot) => {
                if let Some(digest) = self.equivocations.version_of(header.view, ballot.sequence) {
                    let ballot = Ballot { digest, ..*ballot };
                    let message = match envelope.message() {
                        Message::Prepare(_) => Message::Prepare(ballot),
                        _ => Message::Commit(ballot),
                    };
                    let frame = self.frame(header, message);
                    frames.clear();
                    frames.push(OutgoingFrame::lie(frame, Lie::DoubleVote));
                }
            }
            _ => {}
        }
    }
}

/// A VIEW-CHANGE counts as one kind with any content.
const fn same_kind(kind: Kind) -> Kind {
    match kind {
        Kind::Claims => Kind::ViewChange,
        kind => kind,
    }
}

/// One in how many messages becomes a crude lie: fewer for rare kinds.
const fn crudeness(kind: Kind) -> u64 {
    match kind {
        Kind::ViewChange | Kind::Claims => 4,
        _ => 60,
    }
}

fn draw_habit(replica: ReplicaId, replicas: u16, excluded: u16, random: &mut Random) -> Habit {
    let mut others: Vec<ReplicaId> = (0..replicas)
        .map(ReplicaId)
        .filter(|id| *id != replica)
        .collect();
    random.shuffle(&mut others);
    others.truncate(usize::from(excluded.max(1)));
    let kinds = [
        Kind::Proposal,
        Kind::Prepare,
        Kind::Commit,
        Kind::ViewChange,
        Kind::NewView,
        Kind::Status,
        Kind::Bodies,
        Kind::Committed,
    ];
    match random.below(16) {
        0..3 => Habit::Equivocate,
        3 => Habit::Exclude(others),
        4 => Habit::ProposeNotTo(others),
        5 => Habit::Withhold(*random.pick(&kinds).unwrap_or(&Kind::Commit)),
        6 | 7 => Habit::Mutate,
        8 => Habit::Stale,
        9 => Habit::FalseStatus,
        10 => Habit::Suspect,
        11 => Habit::Replay,
        12 => Habit::FalseReplies,
        13 => Habit::Forge,
        14 => Habit::Dawdle,
        _ => Habit::Crude,
    }
}

/// A request of no client: its session's key is not known to the liar.
fn invented_request() -> Message {
    Message::Request(quorumfs_bft::wire::message::Request {
        session: SessionId(1),
        lane: Default::default(),
        number: quorumfs_bft::identity::RequestNumber(1),
        operations: vec![RequestOperation::Execute(Bytes::from_static(b"invented"))],
    })
}

/// A digest of nothing.
fn no_digest(random: &mut Random) -> Digest {
    Digest(random.bytes())
}
