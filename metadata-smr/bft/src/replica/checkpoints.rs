//! Checkpoints as a replica takes them: from a durable root to a stable one, and what follows.
//!
//! ```text
//!  boundary reached ─► flush, once the root before is durable and stable ─► durable ─► CHECKPOINT
//!                                                             q CHECKPOINTs ─► stable, recorded
//! ```
//!
//! Between the boundary and the hand-over to the disk nothing is executed, voted for or proposed.
//! Each flush removes the rows of batches that no replica will ask for any more: those up to the
//! checkpoint before the stable one. [`crate::checkpoint`] says what a stable checkpoint
//! guarantees, and what it shows about a replica whose state differs.

use super::Replica;
use super::commit::batch_key;
use crate::certificate::Vote;
use crate::checkpoint::{Checkpoint, CheckpointCertificate, Checkpoints, Finding};
use crate::identity::{ReplicaId, Sequence, View};
use crate::journal::Record;
use crate::metrics::Voting;
use crate::service::Service;
use crate::state::{KeySpace, StateError, Store};
use crate::step::{Destination, Effect, Effects};
use crate::wire::limits::TRUNCATED_PER_FLUSH;
use crate::wire::message::{CheckpointVote, Message};
use crate::wire::{Envelope, Reader, Unsigned, decode_stable, encode_stable, write_option};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a replica knows about states that were agreed upon.
#[derive(Debug, Default)]
pub(super) struct States {
    pub(super) known: Checkpoints,
    /// The own last two durable roots, with the own CHECKPOINT for each once it is signed.
    own: BTreeMap<Sequence, (Checkpoint, Option<Arc<Envelope>>)>,
    /// The one that is being written.
    pub(super) writing: Option<Checkpoint>,
    /// What was found to be wrong with the own state.
    pub(super) finding: Option<Finding>,
    /// The first batch that is kept for others.
    pub(super) kept: Sequence,
}

/// The key, outside the tree, of what is known about checkpoints.
const STABLE_KEY: &[u8] = b"c";

impl States {
    /// What was known when the newest durable root was written.
    pub(super) fn stored<D: Store>(space: &KeySpace<D>) -> Result<Self, StateError> {
        let mut states = Self {
            kept: Sequence(1),
            ..Self::default()
        };
        let Some(row) = space.extra(STABLE_KEY)? else {
            return Ok(states);
        };
        let damaged = |reason: String| StateError::Damaged {
            place: "the row about checkpoints".to_owned(),
            reason,
        };
        let mut reader = Reader::new(&row);
        let read = reader.get("kept").and_then(|kept| {
            let stable = reader.option("stable", decode_stable)?;
            reader.end()?;
            Ok((kept, stable))
        });
        let (kept, stable) = read.map_err(|error| damaged(error.to_string()))?;
        states.kept = kept;
        if let Some(stable) = stable {
            states.known.learn(&stable);
        }
        Ok(states)
    }

    /// The same as a row.
    pub(super) fn row(&self) -> (Bytes, Option<Bytes>) {
        let mut bytes = self.kept.0.to_le_bytes().to_vec();
        write_option(&mut bytes, self.known.stable(), encode_stable);
        (Bytes::from_static(STABLE_KEY), Some(bytes.into()))
    }

    /// A root of this replica is durable.
    pub(super) fn durable(&mut self, checkpoint: Checkpoint) {
        self.own.insert(checkpoint.sequence, (checkpoint, None));
        while self.own.len() > 2 {
            self.own.pop_first();
        }
    }

    /// An epoch begins: votes of the one before do not count any more.
    pub(super) fn epoch_begins(&mut self) {
        self.known.forget_votes();
        self.own.values_mut().for_each(|(_, signed)| *signed = None);
    }

    /// The own state is this checkpoint's now, whatever it was before.
    pub(super) fn replaced(&mut self, checkpoint: Checkpoint) {
        self.own.clear();
        self.durable(checkpoint);
    }

    /// Removes from the store, with the next flush, batches up to `sequence`, in bounded pieces.
    pub(super) fn truncate(&mut self, sequence: Sequence) -> Vec<(Bytes, Option<Bytes>)> {
        let end = sequence.next().0;
        let end = end.min(self.kept.0.saturating_add(TRUNCATED_PER_FLUSH));
        let gone = (self.kept.0..end).map(|it| (batch_key(Sequence(it)), None));
        let gone = gone.collect();
        self.kept = Sequence(end.max(self.kept.0));
        gone
    }
}

/// A certificate as the note that an import keeps.
pub(super) fn as_bytes(certificate: &CheckpointCertificate) -> Bytes {
    let mut bytes = Vec::new();
    encode_stable(certificate, &mut bytes);
    bytes.into()
}

/// The certificate in such a note.
pub(super) fn from_note(note: &Bytes) -> Result<CheckpointCertificate, StateError> {
    let mut reader = Reader::new(note);
    decode_stable(&mut reader).map_err(|error| StateError::Damaged {
        place: "the note of a state transfer".to_owned(),
        reason: error.to_string(),
    })
}

impl<S: Service, D: Store> Replica<S, D> {
    /// Whether execution has to wait: for the disk and the others at a boundary, or for good.
    pub(super) fn execution_paused(&self) -> bool {
        self.history.backlog()
            || self.states.finding.is_some()
            || self.sink.is_some()
            || self.epochs.ended()
            || self.follows()
    }

    /// Whether the newest durable root is stable, so that another one may replace the one before
    /// it.
    fn durable_root_stable(&self) -> bool {
        let durable = self.space.durable_root();
        durable.is_none_or(|root| root.sequence <= self.states.known.stable_sequence())
    }

    /// Makes the state durable if a boundary was reached and the one before is stable.
    pub(super) fn flush_if_due(&mut self, effects: &mut Effects) -> Result<(), StateError> {
        if !self.history.wants_flush() || !self.durable_root_stable() || self.sink.is_some() {
            return Ok(());
        }
        let mut rows: Vec<_> = self.history.rows().collect();
        if let Some(previous) = self.space.previous_root() {
            let gone = self.states.truncate(previous.sequence);
            self.counters.batches_truncated += gone.len() as u64;
            rows.extend(gone);
        }
        rows.push(self.states.row());
        rows.extend(self.epochs.rows());
        self.executor.settle(&mut self.space)?;
        let (batch, root) = self.space.flush(self.last_executed.sequence, rows)?;
        self.history.flush_started(root.sequence);
        self.states.writing = Some(Checkpoint {
            sequence: root.sequence,
            batch: self.last_executed.digest,
            root: root.digest,
            membership: self.epochs.digest(),
        });
        self.counters.flushes += 1;
        effects.push(Effect::Flush { batch, root });
        Ok(())
    }

    /// A root is durable: a CHECKPOINT may be signed for it.
    pub(super) fn root_durable(&mut self, effects: &mut Effects) {
        if let Some(checkpoint) = self.states.writing.take() {
            self.states.durable(checkpoint);
            self.sign_checkpoints(effects);
            self.examine_states(effects);
        }
    }

    /// Signs durable roots that are neither signed nor stable yet.
    pub(super) fn sign_checkpoints(&self, effects: &mut Effects) {
        if self.voting != Voting::Voting {
            return;
        }
        let stable = self.states.known.stable_sequence();
        for (checkpoint, signed) in self.states.own.values() {
            if signed.is_none() && checkpoint.sequence > stable {
                let message = Message::Checkpoint(CheckpointVote {
                    checkpoint: *checkpoint,
                    signer: self.config.replica,
                });
                let header = self.context.header(View(0));
                effects.push(Effect::Sign {
                    message: Box::new(Unsigned::new(header, message)),
                });
            }
        }
    }

    /// The own CHECKPOINT is signed.
    pub(super) fn own_checkpoint(&mut self, envelope: &Arc<Envelope>, effects: &mut Effects) {
        let Message::Checkpoint(vote) = envelope.message() else {
            return;
        };
        if let Some((checkpoint, signed)) = self.states.own.get_mut(&vote.checkpoint.sequence)
            && *checkpoint == vote.checkpoint
        {
            *signed = Some(Arc::clone(envelope));
            self.counters.checkpoints += 1;
            self.broadcast(envelope, None, effects);
            self.checkpoint_vote(envelope, effects);
        }
    }

    /// A replica's state is durable.
    pub(super) fn checkpoint_vote(&mut self, envelope: &Envelope, effects: &mut Effects) {
        let (Message::Checkpoint(received), Some(signature)) =
            (envelope.message(), envelope.signature())
        else {
            return;
        };
        if envelope.view() != View(0) || envelope.header().epoch != self.context.epoch {
            return;
        }
        let vote = Vote {
            signer: received.signer,
            signature,
        };
        let quorum = self.context.quorum.into();
        match self.states.known.add(received.checkpoint, vote, quorum) {
            Some(certificate) => self.stable(&certificate, effects),
            None => self.examine_states(effects),
        }
    }

    /// A verified certificate: the checkpoint is stable.
    pub(super) fn stable(&mut self, certificate: &CheckpointCertificate, effects: &mut Effects) {
        if !self.states.known.learn(certificate) {
            return;
        }
        self.counters.checkpoints_stable += 1;
        let certificate = certificate.clone();
        let record = Record::Stable { certificate };
        self.journal_writes.persist(&record, effects);
        self.examine_states(effects);
    }

    /// Compares the own states with those of the others.
    pub(super) fn examine_states(&mut self, effects: &mut Effects) {
        if self.states.finding.is_some() {
            return;
        }
        let replicas = self.context.model.replicas().into();
        let quorum = self.context.quorum.into();
        let known = &self.states.known;
        let own = self.states.own.values();
        let found = own
            .filter_map(|(own, _)| known.finding(own, replicas, quorum))
            .next();
        let Some(found) = found else {
            return;
        };
        self.states.finding = Some(found);
        self.counters.states_refuted += 1;
        self.record_finding(effects);
        if matches!(self.voting, Voting::Voting | Voting::Abstaining) {
            self.voting = Voting::Diverged;
        }
        let reason = match found {
            Finding::Alone(sequence) => format!(
                "the state here after batch {sequence} is not the one that a quorum has: this \
                 replica does not vote any more"
            ),
            Finding::Split(sequence) => format!(
                "the replicas cannot agree on the state after batch {sequence}: the service is \
                 not deterministic, or more replicas lie than the model allows. No replica votes \
                 any more"
            ),
        };
        effects.push(Effect::Alarm { reason });
    }

    /// Records that the own state is wrong: after a restart the certificate that showed it may have
    /// been replaced by one of a later state, which says nothing about the own one. A split is not
    /// recorded; every replica repeats its vote.
    pub(super) fn record_finding(&mut self, effects: &mut Effects) {
        if let Some(Finding::Alone(sequence)) = self.states.finding {
            self.journal_writes
                .persist(&Record::Refuted { sequence }, effects);
        }
    }

    /// The newest stable checkpoint, if it is of this epoch: the proof of an earlier one proves
    /// nothing to replicas that know this epoch's keys alone.
    pub(super) fn stable_here(&self) -> Option<&CheckpointCertificate> {
        let stable = self.states.known.stable();
        stable.filter(|it| it.checkpoint.sequence > self.epochs.from())
    }

    /// Sends a peer what it lacks about checkpoints.
    pub(super) fn resend_checkpoints(
        &mut self,
        peer: ReplicaId,
        stable: Sequence,
        effects: &mut Effects,
    ) {
        if let Some(certificate) = self.stable_here()
            && certificate.checkpoint.sequence > stable
        {
            let message = Message::Stable(Box::new(certificate.clone()));
            self.counters.resends += 1;
            self.send_unsigned(Destination::Replica(peer), message, effects);
        }
        let own = self.states.own.range(stable.next()..);
        let lacking: Vec<_> = own.filter_map(|(_, (_, signed))| signed.clone()).collect();
        self.counters.resends += lacking.len() as u64;
        for envelope in lacking {
            self.send(Destination::Replica(peer), &envelope, None, effects);
        }
    }
}
