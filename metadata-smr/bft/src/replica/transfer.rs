//! State transfer in a replica: when it begins, how it affects everything else, and how it ends.
//! [`crate::state_transfer`] decides which peer to ask for what.

use super::Replica;
use super::checkpoints::from_note;
use super::commit::{History, announce_sessions, batch_key, batch_row};
use crate::checkpoint::{Checkpoint, CheckpointCertificate, Finding};
use crate::identity::{Nanos, ReplicaId, Sequence};
use crate::journal::Record;
use crate::metrics::Voting;
use crate::ordering::proposer::BatchPosition;
use crate::ordering::slot::Slot;
use crate::ordering::window::Window;
use crate::service::Service;
use crate::state::{DurableRoot, StateError, Store};
use crate::state_transfer::sink::{Ending, Sink};
use crate::state_transfer::source;
use crate::step::{Destination, Effect, Effects};
use crate::wire::Envelope;
use crate::wire::limits::TRANSFER_WAIT;
use crate::wire::message::{FetchCommitted, FetchNodes, Message, Nodes};
use std::collections::BTreeSet;
use std::sync::Arc;

const fn root_of(checkpoint: &Checkpoint) -> DurableRoot {
    DurableRoot {
        sequence: checkpoint.sequence,
        digest: checkpoint.root,
    }
}

impl<S: Service, D: Store> Replica<S, D> {
    /// All replicas that may have the state, also those that do not vote: one of them may be the
    /// last to have it.
    fn others(&self) -> Vec<ReplicaId> {
        let peers = u16::try_from(self.peers.len()).unwrap_or(u16::MAX);
        let all = (0..peers).map(ReplicaId);
        all.filter(|it| *it != self.config.replica).collect()
    }

    /// Whether enough peers to contain a correct one have removed the batch that is needed next.
    fn left_behind(&self) -> bool {
        let next = self.last_executed.sequence.next();
        let voters = self.peers.iter().take(self.context.model.replicas().into());
        let known = voters.filter_map(|peer| peer.known.as_ref());
        let gone = known.filter(|(_, status)| status.kept > next).count();
        let vouchers = usize::from(self.context.model.right()) + 1;
        gone > 0 && gone >= vouchers.min(self.others().len())
    }

    /// The checkpoint to take over, if batches do not suffice.
    fn transfer_target(&self) -> Option<&CheckpointCertificate> {
        let stable = self.states.known.stable()?;
        match self.states.finding {
            Some(Finding::Alone(_)) => Some(stable),
            Some(Finding::Split(_)) => None,
            None => {
                let ahead = stable.checkpoint.sequence > self.last_executed.sequence;
                let lags = self.follows() || self.left_behind() || self.inquiry.all_asked_in_vain;
                (ahead && lags).then_some(stable)
            }
        }
    }

    /// Resumes a transfer that a crash has interrupted.
    pub(super) fn resume_transfer(&mut self) -> Result<(), StateError> {
        if let Some(note) = self.space.import_note() {
            let target = from_note(&note)?;
            self.states.known.learn(&target);
            self.counters.transfers_resumed += 1;
            self.sink = Some(Sink::new(target, self.now.monotonic));
        }
        Ok(())
    }

    /// Begins, continues and ends a transfer, as far as possible now.
    pub(super) fn advance_transfer(&mut self, effects: &mut Effects) -> Result<(), StateError> {
        self.move_or_begin();
        let Some(sink) = &mut self.sink else {
            return Ok(());
        };
        if sink.ending == Ending::Open {
            if self.space.import_advance()? {
                self.timers.ask_again_after(Nanos(1), effects);
            }
            if !sink.writing
                && let Some((batch, root)) = self.space.import_write()
            {
                sink.writing = true;
                effects.push(Effect::Flush { batch, root });
            }
            self.ask_for_nodes(effects);
        }
        self.end_transfer(effects)
    }

    fn move_or_begin(&mut self) {
        let now = self.now.monotonic;
        let stable = self.states.known.stable();
        let next = match (&self.sink, stable) {
            (Some(sink), Some(stable)) => {
                let newer = stable.checkpoint.sequence > sink.target.checkpoint.sequence;
                // Replicas that are ahead do not serve a state of an earlier epoch.
                let old = sink.target.checkpoint.sequence < self.epochs.from();
                let moves = newer && sink.ending == Ending::Open && (old || sink.is_stuck(now));
                moves.then(|| (stable.clone(), sink.retargeted(stable.clone(), now)))
            }
            (None, _) if !self.history.is_flushing() => self
                .transfer_target()
                .map(|target| (target.clone(), Sink::new(target.clone(), now))),
            _ => None,
        };
        let Some((target, sink)) = next else {
            return;
        };
        match self.sink {
            Some(_) => self.counters.transfers_moved += 1,
            None => self.counters.transfers += 1,
        }
        let root = root_of(&target.checkpoint);
        self.space
            .begin_import(root, super::checkpoints::as_bytes(&target));
        self.inquiry.all_asked_in_vain = false;
        self.sink = Some(sink);
    }

    fn ask_for_nodes(&mut self, effects: &mut Effects) {
        let now = self.now.monotonic;
        let others = self.others();
        let Some(sink) = &mut self.sink else {
            return;
        };
        let root = sink.target.checkpoint.root;
        let from = sink.target.checkpoint.sequence;
        let requests = sink.next_requests(&mut self.space, &others, now);
        let batch_of = match from > self.epochs.from() {
            true => sink.next_batch_source(&others, now),
            false => None,
        };
        for (peer, paths) in requests {
            let fetch = Message::FetchNodes(FetchNodes { root, paths });
            self.send_unsigned(Destination::Replica(peer), fetch, effects);
        }
        if let Some(peer) = batch_of {
            let fetch = Message::FetchCommitted(FetchCommitted { from });
            self.send_unsigned(Destination::Replica(peer), fetch, effects);
        }
    }

    /// Time has passed: asks others for overdue answers.
    pub(super) fn transfer_again(&mut self, effects: &mut Effects) {
        let now = self.now.monotonic;
        if let Some(sink) = &mut self.sink {
            sink.overdue(&mut self.space, now);
            self.timers
                .ask_again_after(Nanos(TRANSFER_WAIT.0 / 2), effects);
        }
    }

    /// A peer takes our state over.
    pub(super) fn serve_nodes(
        &mut self,
        peer: ReplicaId,
        fetch: &FetchNodes,
        effects: &mut Effects,
    ) -> Result<(), StateError> {
        let now = self.now.monotonic;
        let record = self.peers.get_mut(usize::from(peer.0));
        if !record.is_some_and(|record| record.nodes.allows(now)) {
            return Ok(());
        }
        let answer = source::answer(&self.space, fetch)?;
        let bytes = answer.nodes.iter().map(|(_, node)| node.len()).sum();
        if let Some(record) = self.peers.get_mut(usize::from(peer.0)) {
            record.nodes.served(bytes);
        }
        self.counters.nodes_served += answer.nodes.len() as u64;
        if answer.gone
            && let Some(stable) = self.stable_here().cloned()
        {
            let stable = Message::Stable(Box::new(stable));
            self.send_unsigned(Destination::Replica(peer), stable, effects);
        }
        self.send_unsigned(Destination::Replica(peer), Message::Nodes(answer), effects);
        Ok(())
    }

    /// Nodes that were asked for.
    pub(super) fn receive_nodes(
        &mut self,
        peer: ReplicaId,
        nodes: &Nodes,
    ) -> Result<(), StateError> {
        let now = self.now.monotonic;
        if let Some(sink) = &mut self.sink
            && sink.ending == Ending::Open
        {
            let received = sink.answered(&mut self.space, peer, nodes, now)?;
            self.counters.nodes_fetched += received.good;
            self.counters.nodes_refused += received.wrong;
        }
        Ok(())
    }

    /// A committed batch came: it may be the checkpoint's. Whether it is.
    pub(super) fn batch_of_checkpoint(&mut self, envelope: &Arc<Envelope>) -> bool {
        let (Some(sink), Message::Committed(committed)) = (&mut self.sink, envelope.message())
        else {
            return false;
        };
        let checkpoint = &sink.target.checkpoint;
        let certificate = &committed.certificate;
        let same =
            certificate.sequence == checkpoint.sequence && certificate.digest == checkpoint.batch;
        if same {
            sink.batch = Some(Arc::clone(envelope));
        }
        same
    }

    /// The last sequence that this replica may have voted for.
    fn promised(&self) -> Sequence {
        let voted = |slot: &&Slot| slot.prepared.is_some() || !slot.journaled.is_empty();
        let last = self.window.iter().rfind(voted);
        last.map_or(self.last_executed.sequence, |slot| slot.sequence)
    }

    /// Ends the transfer when everything is here: records what binds this replica, then makes the
    /// root durable.
    fn end_transfer(&mut self, effects: &mut Effects) -> Result<(), StateError> {
        let (promised, executed) = (self.promised(), self.last_executed.sequence);
        let Some(sink) = &mut self.sink else {
            return Ok(());
        };
        let checkpoint = sink.target.checkpoint;
        // The record of an epoch names the batch that it begins after.
        let last = sink.batch.clone();
        if last.is_none() && checkpoint.sequence > self.epochs.from() {
            return Ok(());
        }
        if sink.ending == Ending::Open && self.space.import_complete() {
            // A replica that goes forward keeps its knowledge and promises about later sequences.
            let mut until = self.vote_barrier;
            if checkpoint.sequence < executed {
                until = until.max(promised);
            }
            let mut token = crate::step::Token(0);
            if until > self.vote_barrier {
                let epoch = self.context.epoch;
                let record = Record::VoteBarrier { epoch, until };
                token = self.journal_writes.persist(&record, effects);
            }
            if self.states.finding.is_some() {
                let root = root_of(&checkpoint);
                token = self
                    .journal_writes
                    .persist(&Record::Replaced { root }, effects);
            }
            self.vote_barrier = until;
            sink.ending = Ending::Recording(token);
        }
        let Ending::Recording(token) = sink.ending else {
            return Ok(());
        };
        if !self.journal_writes.durable(token) {
            return Ok(());
        }
        sink.ending = Ending::Writing;
        let durable = self.space.durable_root().map(|root| root.sequence);
        let mut rows = Vec::new();
        if let Some(durable) = durable.filter(|it| *it < checkpoint.sequence) {
            rows = self.states.truncate(durable);
        }
        let first = match last {
            Some(_) => checkpoint.sequence,
            None => checkpoint.sequence.next(),
        };
        self.states.kept = self.states.kept.max(first);
        if let Some(last) = last {
            let row = batch_row(last.frame().to_vec());
            rows.push((batch_key(checkpoint.sequence), Some(row)));
        }
        rows.push(self.states.row());
        rows.extend(self.epochs.rows());
        let (batch, root) = self.space.finish_import(rows)?;
        effects.push(Effect::Flush { batch, root });
        Ok(())
    }

    /// A write of the transfer is durable. Whether it was that.
    pub(super) fn transfer_flushed(
        &mut self,
        sequence: Sequence,
        effects: &mut Effects,
    ) -> Result<bool, StateError> {
        let Some(sink) = &mut self.sink else {
            return Ok(false);
        };
        if sink.writing {
            sink.writing = false;
            self.space.import_written();
            return Ok(true);
        }
        if sink.ending == Ending::Writing && sequence == sink.target.checkpoint.sequence {
            self.space.flushed(sequence);
            self.install(effects)?;
            return Ok(true);
        }
        Ok(false)
    }

    /// The state is that of the checkpoint: everything derived from the state is made again.
    fn install(&mut self, effects: &mut Effects) -> Result<(), StateError> {
        let Some(sink) = self.sink.take() else {
            return Ok(());
        };
        self.counters.transfers_finished += 1;
        let checkpoint = sink.target.checkpoint;
        let forward = checkpoint.sequence >= self.last_executed.sequence;
        self.executor.state_replaced();
        let applied = self.executor.applied(&self.space)?;
        self.epochs.agree(self.executor.membership(&self.space)?);
        self.epochs.written();
        self.last_executed = BatchPosition {
            sequence: checkpoint.sequence,
            digest: checkpoint.batch,
            time: applied.time,
        };
        self.last_certificate = None;
        self.recent.clear();
        if let Some(Message::Committed(last)) = sink.batch.as_deref().map(Envelope::message) {
            // The last one of an earlier epoch proves nothing in this one.
            let certificate = Some(&last.certificate).filter(|it| it.sequence > self.epochs.from());
            self.last_certificate = certificate.cloned();
            self.recent.extend(certificate.cloned());
        }
        self.deadline = self.executor.next_deadline(&self.space)?;
        // Waiting requests may have been executed: their clients ask again.
        let before = std::mem::take(&mut self.pool);
        announce_sessions(&self.executor, &self.space, &mut self.pool, effects)?;
        let known: BTreeSet<_> = self.pool.session_ids().collect();
        for id in before.session_ids().filter(|id| !known.contains(id)) {
            effects.push(Effect::SessionClosed { id });
        }
        self.history = History::every(self.config.checkpoint_interval);
        self.states.finding = None;
        self.states.writing = None;
        self.states.replaced(checkpoint);
        match forward {
            true => self
                .window
                .skip_to(self.last_executed.sequence, &self.context),
            false => self.window = Window::after(self.last_executed.sequence, &self.context),
        }
        self.views.proposing = false;
        self.fetched.clear();
        self.vouchers.clear();
        self.forwarded.clear();
        self.inquiry.asked_from = None;
        self.voting = match self.voting {
            Voting::Diverged | Voting::Voting => self.voting_by_membership(),
            other => other,
        };
        self.journal_writes.remembered(checkpoint.sequence);
        let first = self.journal_writes.next();
        self.rewrite_journal(effects);
        self.journal_writes.trim_below(first, effects);
        self.send_status(None, effects);
        Ok(())
    }

    /// A replica that abstains votes again once it has executed what it may have voted for. Then it
    /// signs the roots that have become durable meanwhile.
    pub(super) fn advance_abstention(&mut self, effects: &mut Effects) {
        let due = self.sink.is_none() && self.last_executed.sequence >= self.vote_barrier;
        if due && self.voting == Voting::Abstaining {
            self.voting = Voting::Voting;
            self.sign_checkpoints(effects);
        }
    }
}
