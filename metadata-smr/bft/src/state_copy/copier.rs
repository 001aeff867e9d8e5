//! The machine that copies a state: frames of replicas in, requests and writes out.
//!
//! The driver reports connections by the replicas' keys, since numbers are those of one epoch. It
//! writes one batch at a time and reports it durable; calls come at least every
//! [`StateCopy::TICK`] while a refresh is under way. The machine reads its store within a step, so
//! a driver runs it where it may wait for a disk.

use super::copied::{self, Copied};
use super::stored::{self, OpenError};
use crate::authentication::Verifier;
use crate::checkpoint::CheckpointCertificate;
use crate::identity::{
    ClusterId, Digest, Epoch, Group, Monotonic, Nanos, PublicKey, ReplicaId, Sequence, SessionId,
    View,
};
use crate::membership::{EpochChain, Membership};
use crate::state::{DurableRoot, KeySpace, Path, StateError, Store, WriteBatch};
use crate::state_transfer::Sink;
use crate::step::EffectList;
use crate::wire::frame::{Envelope, Header, encode};
use crate::wire::limits::{BLACKLIST_TIME, RESEND_INTERVAL, TRANSFER_WAIT};
use crate::wire::message::{CopyPart, FetchCopy, FetchEpochs, Message};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// How often a replica has to refuse in a row until it counts: one that is behind learns of a new
/// right meanwhile.
const REFUSALS: u32 = 4;

/// Memory for nodes of the copy: a backup reads each once.
const CACHE_BYTES: usize = 16 << 20;

/// Nodes are written in batches of this many bytes: each is a sync of the disk.
const WRITE_BYTES: usize = 2 << 20;

/// An input.
#[derive(Clone, Debug)]
pub enum Event {
    /// A replica is connected.
    Connected {
        /// Which.
        peer: PublicKey,
    },
    /// A replica is not connected any more.
    Disconnected {
        /// Which.
        peer: PublicKey,
    },
    /// A frame came from a replica, over a transport that authenticated it as this one.
    Received {
        /// Which replica.
        peer: PublicKey,
        /// The bytes.
        frame: Bytes,
    },
    /// The batch of [`Effect::Write`] is durable.
    Written,
    /// Time has passed.
    Tick,
}

/// How a refresh ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyOutcome {
    /// The copy is as new as was asked for.
    Copied,
    /// The session's principal may not copy the state.
    Refused,
}

/// What the driver has to do, in this order.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Send a frame; nothing happens if there is no connection.
    Send {
        /// To which replica.
        to: PublicKey,
        /// The bytes.
        frame: Bytes,
    },
    /// Write this to the store, and report [`Event::Written`].
    Write {
        /// The rows.
        batch: WriteBatch,
    },
    /// No stable checkpoint is new enough: order one
    /// ([`OperationKind::Checkpoint`](crate::client::OperationKind)). Once for each refresh.
    NeedCheckpoint,
    /// The refresh is over.
    Done {
        /// How it ended.
        outcome: CopyOutcome,
    },
}

/// The effects of one step, in order.
pub type Effects = EffectList<Effect>;

/// A refresh that is under way.
#[derive(Debug)]
struct Refresh {
    session: SessionId,
    at_least: Sequence,
    sink: Option<Sink>,
    /// When all replicas were last asked for the newest checkpoint.
    asked: Option<Monotonic>,
    /// The replicas that have answered, and do not refuse.
    answered: BTreeSet<PublicKey>,
    /// How often each has refused in a row.
    refused: BTreeMap<PublicKey, u32>,
    needs_checkpoint: bool,
}

/// A replica that is connected.
#[derive(Clone, Copy, Debug)]
struct Contact {
    /// The number that it has in the transfer.
    number: ReplicaId,
    /// It has sent a certificate or records that prove nothing.
    wrong_until: Monotonic,
    /// When it was last asked for records of epochs, if it has not answered.
    epochs_asked: Option<Monotonic>,
}

/// What is being written.
#[derive(Debug)]
enum Writing {
    Nodes,
    /// The root that this certificate is of, and how many records with it.
    Root(CheckpointCertificate, usize),
}

/// A copy of a cluster's state. See [`crate::state_copy`].
#[derive(Debug)]
pub struct StateCopy<D> {
    space: KeySpace<D>,
    genesis: Membership,
    chain: EpochChain,
    /// How many of the chain's records are in the store.
    stored: usize,
    /// The certificate of the newest root.
    certificate: Option<CheckpointCertificate>,
    /// The newest certificate that is proved.
    newest: Option<CheckpointCertificate>,
    /// That of a refresh that was interrupted, not proved yet.
    interrupted: Option<CheckpointCertificate>,
    contacts: BTreeMap<PublicKey, Contact>,
    /// The number of the next contact.
    next: u16,
    writing: Option<Writing>,
    refresh: Option<Refresh>,
    progress: u64,
}

impl<D: Store> StateCopy<D> {
    /// How often a driver calls at least while a refresh is under way.
    pub const TICK: Nanos = Nanos(TRANSFER_WAIT.0 / 4);

    /// Opens the copy in `store`, or an empty one. The cluster began with `genesis`; `known` is a
    /// later membership of it, if the client knows one.
    ///
    /// # Errors
    /// If the store fails, is damaged, or holds something else.
    pub fn open(
        store: D,
        cluster: ClusterId,
        (genesis, known): (Membership, Option<Membership>),
        verifier: &dyn Verifier,
    ) -> Result<Self, OpenError> {
        let space = KeySpace::open_with(store, CACHE_BYTES)?;
        let mut chain = EpochChain::new(cluster, genesis.clone()).anchored(known);
        let certificate = stored::read(&space, (cluster, &genesis), &mut chain, verifier)?;
        let note = space.import_note();
        Ok(Self {
            interrupted: note.as_ref().and_then(copied::decode),
            stored: chain.records().len(),
            newest: certificate.clone(),
            space,
            genesis,
            chain,
            certificate,
            contacts: BTreeMap::new(),
            next: 0,
            writing: None,
            refresh: None,
            progress: 0,
        })
    }

    /// The rows. Those of the newest root are the ones to read
    /// ([`KeySpace::durable_rows`], [`KeySpace::changes_since`], [`KeySpace::proof`]).
    pub const fn space(&self) -> &KeySpace<D> {
        &self.space
    }

    /// The checkpoint that the copy holds; `None` before the first one.
    #[must_use]
    pub fn copied(&self) -> Option<Copied> {
        let certificate = self.certificate.as_ref()?;
        Some(Copied::new(certificate, &self.chain))
    }

    /// The last batch whose effects it contains.
    #[must_use]
    pub fn sequence(&self) -> Sequence {
        let certificate = self.certificate.as_ref();
        certificate.map_or(Sequence(0), |it| it.checkpoint.sequence)
    }

    /// The newest stable checkpoint that the replicas have proved.
    #[must_use]
    pub fn newest(&self) -> Sequence {
        let newest = self.newest.as_ref();
        newest.map_or(Sequence(0), |it| it.checkpoint.sequence)
    }

    /// A number that rises whenever something useful has come or was written.
    #[must_use]
    pub const fn progress(&self) -> u64 {
        self.progress
    }

    /// The nodes that have come and are not written yet, to be written before a planned end.
    /// [`Event::Written`] follows.
    pub fn flush_import(&mut self) -> Option<(WriteBatch, DurableRoot)> {
        if self.writing.is_some() {
            return None;
        }
        let written = self.space.import_write()?;
        self.writing = Some(Writing::Nodes);
        Some(written)
    }

    /// The membership of the newest epoch that is proved.
    #[must_use]
    pub fn membership(&self) -> &Membership {
        self.chain.newest()
    }

    /// Begins to bring the copy to a stable checkpoint at `at_least` or later. A refresh that was
    /// under way ends; the nodes that it has fetched are kept. Connections are reported anew.
    pub fn begin(
        &mut self,
        now: Monotonic,
        (session, at_least): (SessionId, Sequence),
        verifier: &dyn Verifier,
        effects: &mut Effects,
    ) -> Result<(), StateError> {
        self.contacts.clear();
        self.space.import_give_back_all();
        self.refresh = Some(Refresh {
            session,
            at_least,
            sink: None,
            asked: None,
            answered: BTreeSet::new(),
            refused: BTreeMap::new(),
            needs_checkpoint: false,
        });
        self.end_if_new_enough(effects);
        self.advance(now, verifier, effects).map(drop)
    }

    /// Handles one input. Returns whether more can be done at once, without further input.
    ///
    /// # Errors
    /// If the store fails; the copy has to be opened again then.
    pub fn step(
        &mut self,
        now: Monotonic,
        event: Event,
        verifier: &dyn Verifier,
        effects: &mut Effects,
    ) -> Result<bool, StateError> {
        match event {
            Event::Connected { peer } => {
                let contact = Contact {
                    number: ReplicaId(self.next),
                    wrong_until: Monotonic::default(),
                    epochs_asked: None,
                };
                self.next = self.next.wrapping_add(1);
                self.contacts.entry(peer).or_insert(contact);
                if let Some(refresh) = &mut self.refresh {
                    refresh.asked = None;
                }
            }
            Event::Disconnected { peer } => {
                self.contacts.remove(&peer);
            }
            Event::Received { peer, frame } => {
                self.received((now, peer), frame, verifier, effects)?;
            }
            Event::Written => self.written(effects),
            Event::Tick => {
                if let Some(sink) = self.refresh.as_mut().and_then(|it| it.sink.as_mut()) {
                    sink.overdue(&mut self.space, now);
                }
            }
        }
        self.advance(now, verifier, effects)
    }

    fn header(&self) -> Header {
        Header {
            cluster: self.chain.cluster(),
            epoch: self.chain.epoch(),
            group: Group(0),
            view: View(0),
        }
    }

    fn received(
        &mut self,
        (now, peer): (Monotonic, PublicKey),
        frame: Bytes,
        verifier: &dyn Verifier,
        effects: &mut Effects,
    ) -> Result<(), StateError> {
        let known = self.contacts.get(&peer);
        let Ok(envelope) = Envelope::decode(frame) else {
            return Ok(());
        };
        let theirs = envelope.header();
        if theirs.cluster != self.chain.cluster() || known.is_none_or(|it| it.wrong_until > now) {
            return Ok(());
        }
        if theirs.epoch > self.chain.epoch() {
            self.ask_epochs(now, peer, effects);
        }
        match envelope.message() {
            Message::Epochs(records) => {
                let contact = self.contacts.get_mut(&peer);
                let asked = contact.and_then(|contact| contact.epochs_asked.take());
                let later = records.last().map(|it| it.epoch()) > Some(self.chain.epoch());
                if asked.is_some() && later {
                    match self.chain.follow(records, verifier) {
                        true => self.progress += 1,
                        false => self.bypass(now, peer),
                    }
                }
            }
            Message::CopyPart(part) => {
                self.part((now, peer), part, theirs.epoch, verifier, effects)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn ask_epochs(&mut self, now: Monotonic, peer: PublicKey, effects: &mut Effects) {
        let after = self.chain.epoch();
        let frame = encode(self.header(), &Message::FetchEpochs(FetchEpochs { after }));
        let lately = |at: Monotonic| now.since(at) < RESEND_INTERVAL;
        if let Some(contact) = self.contacts.get_mut(&peer)
            && !contact.epochs_asked.is_some_and(lately)
        {
            contact.epochs_asked = Some(now);
            effects.push(Effect::Send { to: peer, frame });
        }
    }

    /// The peer has lied: nothing of it counts for a while.
    fn bypass(&mut self, now: Monotonic, peer: PublicKey) {
        if let Some(contact) = self.contacts.get_mut(&peer) {
            contact.wrong_until = now.plus(BLACKLIST_TIME);
        }
    }

    fn part(
        &mut self,
        (now, peer): (Monotonic, PublicKey),
        part: &CopyPart,
        epoch: Epoch,
        verifier: &dyn Verifier,
        effects: &mut Effects,
    ) -> Result<(), StateError> {
        let Some(refresh) = &mut self.refresh else {
            return Ok(());
        };
        if part.refused {
            *refresh.refused.entry(peer).or_default() += 1;
            refresh.answered.remove(&peer);
            self.examine_refusals(effects);
            return Ok(());
        }
        refresh.refused.remove(&peer);
        refresh.answered.insert(peer);
        if let Some(certificate) = &part.stable
            && certificate.checkpoint.sequence > self.newest()
        {
            if self.chain.proves(certificate, verifier) {
                self.newest = Some(certificate.clone());
                self.progress += 1;
            } else if epoch <= self.chain.epoch() {
                self.bypass(now, peer);
                return Ok(());
            }
        }
        let number = self.contacts.get(&peer).map(|contact| contact.number);
        let refresh = self.refresh.as_mut();
        if let Some(sink) = refresh.and_then(|it| it.sink.as_mut())
            && let Some(number) = number
        {
            let received = sink.answered(&mut self.space, number, &part.nodes, now)?;
            self.progress += received.good;
        }
        Ok(())
    }

    /// Of r + 1 voters that refuse, one is correct.
    fn examine_refusals(&mut self, effects: &mut Effects) {
        let Some(refresh) = &self.refresh else {
            return;
        };
        let now = self.chain.newest();
        let votes = |peer: &PublicKey| now.place(peer).is_some_and(|it| now.votes(it));
        let refusals = refresh.refused.iter();
        let refusals = refusals.filter(|(peer, times)| **times >= REFUSALS && votes(peer));
        if refusals.count() >= usize::from(now.model.small()) {
            self.refresh = None;
            let outcome = CopyOutcome::Refused;
            effects.push(Effect::Done { outcome });
        }
    }

    fn written(&mut self, effects: &mut Effects) {
        self.progress += 1;
        match self.writing.take() {
            None => {}
            Some(Writing::Nodes) => self.space.import_written(),
            Some(Writing::Root(certificate, records)) => {
                self.space.flushed(certificate.checkpoint.sequence);
                self.stored = records;
                self.certificate = Some(certificate);
                if let Some(refresh) = &mut self.refresh {
                    refresh.sink = None;
                }
                self.end_if_new_enough(effects);
            }
        }
    }

    fn end_if_new_enough(&mut self, effects: &mut Effects) {
        let copied = self.certificate.as_ref().map(|it| it.checkpoint.sequence);
        let enough = |refresh: &mut Refresh| copied >= Some(refresh.at_least);
        if self.refresh.take_if(enough).is_some() {
            let outcome = CopyOutcome::Copied;
            effects.push(Effect::Done { outcome });
        }
    }

    /// Does what can be done now. Returns whether more can be done at once.
    fn advance(
        &mut self,
        now: Monotonic,
        verifier: &dyn Verifier,
        effects: &mut Effects,
    ) -> Result<bool, StateError> {
        let ends = matches!(self.writing, Some(Writing::Root(..)));
        if self.refresh.is_none() || ends {
            return Ok(false);
        }
        self.examine_interrupted(verifier);
        self.choose(now);
        self.ask_newest(now, effects);
        if self.refresh.as_ref().is_none_or(|it| it.sink.is_none()) {
            return Ok(false);
        }
        let more = self.space.import_advance()?;
        if self.writing.is_none()
            && self.space.import_write_pays(WRITE_BYTES)
            && let Some((batch, _)) = self.space.import_write()
        {
            self.writing = Some(Writing::Nodes);
            effects.push(Effect::Write { batch });
        }
        self.ask_nodes(now, effects);
        self.finish(effects)?;
        Ok(more)
    }

    /// A refresh that was interrupted goes on, once its checkpoint is proved.
    fn examine_interrupted(&mut self, verifier: &dyn Verifier) {
        if let Some(certificate) = &self.interrupted
            && self.chain.is_anchored()
            && self.chain.proves(certificate, verifier)
        {
            if certificate.checkpoint.sequence > self.newest() {
                self.newest = Some(certificate.clone());
            }
            self.interrupted = None;
        }
    }

    /// Chooses the checkpoint to copy, or a newer one if the chosen one is not served any more.
    fn choose(&mut self, now: Monotonic) {
        let copied = self.sequence();
        let (Some(refresh), Some(newest)) = (&mut self.refresh, &self.newest) else {
            return;
        };
        let sequence = newest.checkpoint.sequence;
        if sequence <= copied || sequence < refresh.at_least || !self.chain.is_anchored() {
            return;
        }
        let sink = match &refresh.sink {
            Some(sink) => {
                let newer = sequence > sink.target.checkpoint.sequence;
                if !newer || !sink.is_stuck(now) {
                    return;
                }
                sink.retargeted(newest.clone(), now)
            }
            None => Sink::new(newest.clone(), now),
        };
        let root = DurableRoot {
            sequence,
            digest: newest.checkpoint.root,
        };
        if self.space.import_target() != Some(root) {
            self.space.begin_import(root, copied::encode(newest));
        }
        refresh.sink = Some(sink);
    }

    /// Asks all replicas for their newest stable checkpoint, as long as none is chosen.
    fn ask_newest(&mut self, now: Monotonic, effects: &mut Effects) {
        let enough = usize::from(self.chain.newest().model.small());
        let Some(refresh) = &mut self.refresh else {
            return;
        };
        let lately = |at: Monotonic| now.since(at) < TRANSFER_WAIT;
        if refresh.sink.is_some() || refresh.asked.is_some_and(lately) {
            return;
        }
        let asks = refresh.answered.len() >= enough && self.chain.is_anchored();
        if asks && !refresh.needs_checkpoint {
            refresh.needs_checkpoint = true;
            effects.push(Effect::NeedCheckpoint);
        }
        refresh.asked = Some(now);
        let session = refresh.session;
        for to in self.contacts.keys().copied().collect::<Vec<_>>() {
            let frame = self.fetch(session, Digest::default(), Vec::new());
            effects.push(Effect::Send { to, frame });
        }
    }

    fn fetch(&self, session: SessionId, root: Digest, paths: Vec<Path>) -> Bytes {
        let fetch = FetchCopy {
            session,
            root,
            paths,
        };
        encode(self.header(), &Message::FetchCopy(fetch))
    }

    fn ask_nodes(&mut self, now: Monotonic, effects: &mut Effects) {
        let trusted = self.contacts.iter();
        let trusted = trusted.filter(|(_, contact)| contact.wrong_until <= now);
        let peers: BTreeMap<ReplicaId, PublicKey> =
            trusted.map(|(key, it)| (it.number, *key)).collect();
        let numbers: Vec<ReplicaId> = peers.keys().copied().collect();
        let Some(refresh) = &mut self.refresh else {
            return;
        };
        let Some(sink) = &mut refresh.sink else {
            return;
        };
        let (session, root) = (refresh.session, sink.target.checkpoint.root);
        for (number, paths) in sink.next_requests(&mut self.space, &numbers, now) {
            if let Some(to) = peers.get(&number).copied() {
                let frame = self.fetch(session, root, paths);
                effects.push(Effect::Send { to, frame });
            }
        }
    }

    /// Makes the new root durable once all of its nodes are, and the records that prove it here.
    fn finish(&mut self, effects: &mut Effects) -> Result<(), StateError> {
        let sink = self.refresh.as_ref().and_then(|it| it.sink.as_ref());
        let Some(sink) = sink.filter(|_| self.space.import_complete()) else {
            return Ok(());
        };
        let (target, records) = (sink.target.clone(), self.chain.records().len());
        let rows = stored::rows(&self.genesis, &self.chain, self.stored, &target);
        let (batch, _) = self.space.finish_import(rows)?;
        self.writing = Some(Writing::Root(target, records));
        effects.push(Effect::Write { batch });
        Ok(())
    }
}
