//! A committed batch: executed, answered, and made durable with the next root.
//!
//! Execution follows the commit at once. The state becomes durable at each checkpoint. With each
//! root the batches since the one before are written, with their certificates, into rows outside
//! the tree, from which laggards are served. Until then they are kept in memory and in the journal.
//! When a root is durable the journal is trimmed behind it: the valid part of older records (the
//! view, the open sequences) is written again, and then everything before the first record about a
//! batch above the root can go. The driver removes as much of that as is convenient; the last
//! record that is written says which records do not count, whether they are still there or not.

use super::Replica;
use super::listeners::Listeners;
use crate::admission::Pool;
use crate::certificate::CommitCertificate;
use crate::execution::{Executor, Opened};
use crate::identity::{Sequence, SessionId, View};
use crate::journal::Record;
use crate::ordering::proposer::BatchPosition;
use crate::ordering::slot::{Promise, Slot};
use crate::ordering::suspicion::{Reason, Served};
use crate::service::{Credit, Service};
use crate::state::key_space::name_of_extra;
use crate::state::{KeySpace, StateError, Store};
use crate::step::{Destination, Effect, Effects, Token};
use crate::wire::Envelope;
use crate::wire::frame::{Header, encode_with_room};
use crate::wire::limits::CHECKPOINT_BYTES;
use crate::wire::message::{Batch, Committed, Message, Outcome, Reply};
use crate::wire::signed_bytes::results_digest;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;

/// The outcome of a batch: how many requests ran now, and whether there was progress. A leader that
/// orders requests that have been executed already makes none.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchOutcome {
    ran: u64,
    progress: bool,
}

/// Replies with the connections that they go to.
type AddressedReplies = Vec<(Listeners, Reply)>;

/// A committed batch that no durable root covers yet.
#[derive(Debug)]
struct Unflushed {
    sequence: Sequence,
    /// The first record about it.
    token: Token,
    /// Its row: made at once, while its parts are in memory, so that they can be freed.
    row: Bytes,
}

/// What every verifier of a session's requests has to know of it.
const fn announced(opened: &Opened) -> Effect {
    Effect::SessionKey {
        id: opened.id,
        key: opened.key,
        principal: opened.principal,
        credit: opened.credit,
    }
}

/// Announces the sessions of a state: those that are open, and those that a batch may still name.
pub(super) fn announce_sessions<S: Service, D: Store>(
    executor: &Executor<S>,
    space: &KeySpace<D>,
    pool: &mut Pool,
    effects: &mut Effects,
) -> Result<(), StateError> {
    for opened in executor.sessions(space)? {
        pool.session_opened(&opened);
        effects.push(announced(&opened));
    }
    for closed in executor.closed_sessions(space)? {
        pool.session_closed(closed.id, closed.at);
        effects.push(announced(&Opened {
            id: closed.id,
            key: closed.key,
            principal: closed.principal,
            credit: Credit { lanes: 0, bytes: 0 },
        }));
    }
    Ok(())
}

/// Committed batches that no durable root covers.
#[derive(Debug, Default)]
pub(super) struct History {
    batches: VecDeque<Unflushed>,
    /// The agreed number of batches between two checkpoints.
    interval: u64,
    /// How many batches and bytes of bodies have come since the last checkpoint.
    since: (u64, usize),
    /// Whether that was enough: the state as it is now is to be a checkpoint.
    boundary: bool,
    /// Whether the batch that was executed asks for a checkpoint.
    wanted: bool,
    /// The root that is being written.
    flushing: Option<Sequence>,
}

impl History {
    /// With a checkpoint every so many batches.
    pub(super) fn every(interval: u64) -> Self {
        Self {
            interval,
            ..Self::default()
        }
    }

    /// An epoch begins: batches of earlier ones are not served from memory any more. A root that is
    /// being written is still written.
    pub(super) fn epoch_begins(&mut self) {
        *self = Self {
            flushing: self.flushing,
            ..Self::every(self.interval)
        };
    }

    fn push(&mut self, header: Header, committed: Committed, token: Token) {
        let bytes: usize = committed.bodies.iter().map(|body| body.frame().len()).sum();
        self.since = (self.since.0 + 1, self.since.1.saturating_add(bytes));
        self.boundary |= self.since.0 >= self.interval || self.since.1 >= CHECKPOINT_BYTES;
        self.boundary |= std::mem::take(&mut self.wanted);
        let sequence = committed.batch.sequence;
        let message = Message::Committed(Box::new(committed));
        self.batches.push_back(Unflushed {
            sequence,
            token,
            row: batch_row(encode_with_room(header, &message, ROW_DIGEST_BYTES)),
        });
    }

    /// The frame of a committed batch that is still in memory.
    pub(super) fn frame(&self, sequence: Sequence) -> Option<Bytes> {
        let first = self.batches.front()?.sequence.0;
        let index = usize::try_from(sequence.0.checked_sub(first)?).ok()?;
        self.batches.get(index).map(|batch| frame_of(&batch.row))
    }

    /// All batches, as rows outside the tree.
    pub(super) fn rows(&self) -> impl Iterator<Item = (Bytes, Option<Bytes>)> {
        let batches = self.batches.iter();
        batches.map(|batch| (batch_key(batch.sequence), Some(batch.row.clone())))
    }

    fn forget_up_to(&mut self, sequence: Sequence) {
        while let Some(first) = self.batches.front()
            && first.sequence <= sequence
        {
            self.batches.pop_front();
        }
    }

    /// Whether a boundary was reached and the state below it is not being written yet: nothing may
    /// be executed, voted for or proposed beyond it.
    pub(super) const fn backlog(&self) -> bool {
        self.boundary
    }

    /// The current state is to be a checkpoint, however little came since the last one.
    pub(super) const fn checkpoint_now(&mut self) {
        self.boundary = true;
    }

    /// The state at the boundary is being written.
    pub(super) const fn flush_started(&mut self, sequence: Sequence) {
        self.flushing = Some(sequence);
        self.boundary = false;
        self.since = (0, 0);
    }

    /// Whether a root is being written.
    pub(super) const fn is_flushing(&self) -> bool {
        self.flushing.is_some()
    }

    /// Whether there is a root to write and none being written.
    pub(super) const fn wants_flush(&self) -> bool {
        self.boundary && self.flushing.is_none()
    }
}

/// Derives the digest at the end of a committed batch's row.
const ROW_CONTEXT: &str = "quorumfs 2026 bft committed batch row";
const ROW_DIGEST_BYTES: usize = 32;

/// The row, outside the tree, of a committed batch: its frame, and a digest of that. The signatures
/// in it are not checked when it is read back, and no replica should be blamed for a disk's damage.
pub(super) fn batch_row(mut frame: Vec<u8>) -> Bytes {
    let digest = blake3::derive_key(ROW_CONTEXT, &frame);
    frame.extend_from_slice(&digest);
    frame.into()
}

/// The frame that a row begins with.
fn frame_of(row: &Bytes) -> Bytes {
    row.slice(..row.len().saturating_sub(ROW_DIGEST_BYTES))
}

/// The frame of a committed batch in the store, if there is one.
pub(super) fn stored_batch<D: Store>(
    space: &KeySpace<D>,
    sequence: Sequence,
) -> Result<Option<Bytes>, StateError> {
    let Some(row) = space.extra(&batch_key(sequence))? else {
        return Ok(None);
    };
    let frame = frame_of(&row);
    match blake3::derive_key(ROW_CONTEXT, &frame) == row.slice(frame.len()..).as_ref() {
        true => Ok(Some(frame)),
        false => Err(StateError::Damaged {
            place: format!("committed batch {sequence}"),
            reason: "its digest is not the one that was written with it".to_owned(),
        }),
    }
}

const BATCH_PREFIX: u8 = b'b';

/// The key, outside the tree, of a committed batch.
pub(super) fn batch_key(sequence: Sequence) -> Bytes {
    let mut key = vec![BATCH_PREFIX];
    key.extend_from_slice(&sequence.0.to_be_bytes());
    Bytes::from(key)
}

/// Whether a row of the store, by its key there, is a committed batch. Such rows are most of what a
/// flush writes, hardly ever rewritten, and removed in the order in which they came: a store may
/// keep them apart from the others.
#[must_use]
pub fn is_batch_row(key: &[u8]) -> bool {
    let name = name_of_extra(key).and_then(<[u8]>::split_first);
    name.is_some_and(|(prefix, sequence)| *prefix == BATCH_PREFIX && sequence.len() == 8)
}

impl<S: Service, D: Store> Replica<S, D> {
    /// Executes the batch after the last one.
    pub(super) fn deliver(
        &mut self,
        batch: Batch,
        bodies: Vec<Arc<Envelope>>,
        certificate: CommitCertificate,
        fetched: bool,
        effects: &mut Effects,
    ) -> Result<(), StateError> {
        let slot = self.window.lowest();
        let journaled = slot.journaled.contains_key(&certificate.digest);
        let proposed = slot.proposed_at.filter(|_| {
            let own = slot.proposal.as_ref().map(|it| it.digest_ref());
            own == Some(&certificate.digest)
        });
        if let Some(proposed) = proposed {
            self.decide_time.took(proposed, self.now.monotonic);
        }
        let seen = slot.seen_at.filter(|_| {
            let here = slot.proposal.as_ref().map(|it| it.digest_ref());
            !fetched && here == Some(&certificate.digest)
        });
        let decide = seen.map(|seen| self.now.monotonic.since(seen));
        let record = Record::Committed {
            certificate: certificate.clone(),
            batch: (!journaled).then(|| (batch.clone(), bodies.clone())),
        };
        let token = self.journal_writes.persist(&record, effects);
        self.journal_writes.executed(token);
        // Where the order goes on there is no need for a state transfer.
        self.inquiry.last_useful = self.now.monotonic;
        self.inquiry.in_vain = 0;
        self.inquiry.all_asked_in_vain = false;
        if fetched {
            self.ask_soon(batch.sequence, effects);
        }
        self.window.lowest_mut().recorded(token);
        self.counters.batches_fetched += u64::from(fetched);
        let watching = self.suspicions.watches_any();
        let served = if watching { self.served(&bodies) } else { None };
        let (replies, outcome) = self.execute(&batch, &bodies, effects)?;
        let bytes: usize = bodies.iter().map(|body| body.frame().len()).sum();
        self.throughput.executed(outcome.ran, bytes as u64, decide);
        if let Some(decide) = decide {
            self.suspicions.decided(decide);
        }
        for (connections, reply) in replies {
            let reply = self.shortened(reply);
            self.answer(connections, reply, effects);
        }
        let pool = &self.pool;
        self.suspicions.retain(|digest| pool.get(digest).is_some());
        self.forwarded.retain(|digest| pool.get(digest).is_some());
        let sequence = batch.sequence;
        self.enter_next_slot(batch, bodies, certificate);
        if outcome.progress {
            self.suspicions.committed();
            self.timers.progressed(effects);
        }
        if served.is_some_and(|served| self.suspicions.passed_over(sequence, &served)) {
            self.suspect(Reason::Unfair, effects);
        }
        self.flush_if_due(effects)
    }

    /// Executes the batch and updates pool and sessions. Returns the replies and the outcome.
    pub(super) fn execute(
        &mut self,
        batch: &Batch,
        bodies: &[Arc<Envelope>],
        effects: &mut Effects,
    ) -> Result<(AddressedReplies, BatchOutcome), StateError> {
        let executed = self.executor.execute(&mut self.space, batch, bodies)?;
        if executed.ends_epoch {
            self.epochs.agree(self.executor.membership(&self.space)?);
            self.counters.epochs_ended += 1;
        }
        self.history.wanted = executed.checkpoint;
        self.counters.checkpoints_wanted += u64::from(executed.checkpoint);
        let outcome = BatchOutcome {
            ran: executed.ran as u64,
            progress: executed.ran > 0 || executed.ticked || executed.expired > 0,
        };
        self.deadline = self.executor.next_deadline(&self.space)?;
        self.counters.batches += 1;
        self.counters.duplicates += executed.duplicates as u64;
        self.counters.ticks += u64::from(executed.ticked);
        self.counters.sessions_opened += executed.opened.len() as u64;
        self.counters.sessions_expired += executed.expired as u64;
        let closed = executed.closed.len().saturating_sub(executed.expired);
        self.counters.sessions_closed += closed as u64;
        for opened in &executed.opened {
            self.pool.session_opened(opened);
            effects.push(announced(opened));
        }
        let mut replies = Vec::with_capacity(executed.replies.len());
        for reply in executed.replies {
            if let Outcome::Results(results) = &reply.outcome {
                self.counters.requests += 1;
                self.counters.operations += results.len() as u64;
            }
            replies.push((self.listeners(&reply, bodies), reply));
        }
        self.show_events(executed.events, effects);
        for digest in &executed.skipped {
            self.pool.withdraw(digest);
        }
        for body in bodies
            .iter()
            .filter(|body| !executed.skipped.contains(body.digest_ref()))
        {
            self.pool.settle(body);
        }
        for id in executed.closed {
            self.pool.session_closed(id, batch.sequence);
        }
        for id in executed.forgotten {
            self.pool.session_forgotten(id);
            effects.push(Effect::SessionClosed { id });
        }
        Ok((replies, outcome))
    }

    /// The connections that a reply goes to.
    fn listeners(&self, reply: &Reply, bodies: &[Arc<Envelope>]) -> Listeners {
        let session = match &reply.outcome {
            Outcome::SessionOpened { session, .. } => *session,
            _ => reply.session,
        };
        if session != SessionId(0) {
            return Listeners::of(self.pool.connections(session));
        }
        let mut asked = bodies
            .iter()
            .filter(|body| *body.digest_ref() == reply.request);
        match asked.next().map(|body| body.message()) {
            Some(Message::OpenSession(open)) => Listeners::of(self.pool.opening_connections(open)),
            _ => Listeners::default(),
        }
    }

    /// Long results are sent whole by one replica, which the request's digest chooses. A client
    /// that asks again gets them from every replica.
    fn shortened(&mut self, mut reply: Reply) -> Reply {
        let [first, second, ..] = reply.request.0;
        let full_replier = u16::from_le_bytes([first, second]) % self.context.model.replicas();
        if let Outcome::Results(results) = &reply.outcome
            && full_replier != self.config.replica.0
            && reply.outcome.results_bytes() > self.config.reply_whole_bytes
        {
            self.counters.replies_shortened += 1;
            reply.outcome = Outcome::ResultsDigest(results_digest(results));
        }
        reply
    }

    pub(super) fn answer(&self, listeners: Listeners, reply: Reply, effects: &mut Effects) {
        let mut connections = listeners.connections();
        let Some(first) = connections.next() else {
            return;
        };
        let header = self.context.header(self.views.view);
        // The state that a reply shows has to be remembered: see `reads`.
        let after = self.journal_writes.answered(reply.version);
        let frame = crate::wire::encode(header, &Message::Reply(reply));
        for connection in connections {
            let to = Destination::Client(connection);
            let frame = frame.clone();
            effects.push(Effect::Send { to, frame, after });
        }
        let to = Destination::Client(first);
        effects.push(Effect::Send { to, frame, after });
    }

    /// What a batch of these requests serves. A request that is not known here counts as the
    /// latest: otherwise a leader could pass over clients with requests that no other replica has.
    fn served(&self, bodies: &[Arc<Envelope>]) -> Option<Served> {
        let arrival = |body: &Arc<Envelope>| self.pool.arrival(body.digest_ref());
        let arrivals = bodies.iter().map(|body| arrival(body).unwrap_or(u64::MAX));
        let latest = arrivals.max()?;
        let lane = |body: &Arc<Envelope>| match body.message() {
            Message::Request(request) => Some((request.session, request.lane)),
            _ => None,
        };
        Some(Served {
            latest,
            requests: bodies.len(),
            bytes: bodies.iter().map(|body| body.frame().len()).sum(),
            lanes: bodies.iter().filter_map(lane).collect(),
        })
    }

    /// The batch has been executed: the next sequence is open.
    pub(super) fn enter_next_slot(
        &mut self,
        batch: Batch,
        bodies: Vec<Arc<Envelope>>,
        certificate: CommitCertificate,
    ) {
        let ends = self.epochs.ended_by(batch.sequence);
        self.last_executed = BatchPosition {
            sequence: batch.sequence,
            digest: certificate.digest,
            time: batch.time,
        };
        self.last_certificate = Some(certificate.clone());
        self.recent.push_back(certificate.clone());
        if self.recent.len() > self.context.recent() {
            self.recent.pop_front();
        }
        let token = self
            .window
            .advance()
            .first_token
            .unwrap_or_else(|| self.journal_writes.next());
        let committed = Committed {
            batch,
            certificate,
            bodies,
        };
        self.history
            .push(self.context.header(View(0)), committed, token);
        if ends {
            self.history.checkpoint_now();
        }
    }

    /// A root is durable: the journal behind it can go.
    pub(super) fn flushed(
        &mut self,
        sequence: Sequence,
        effects: &mut Effects,
    ) -> Result<(), StateError> {
        if self.transfer_flushed(sequence, effects)? || self.history.flushing != Some(sequence) {
            return Ok(());
        }
        self.history.flushing = None;
        self.space.flushed(sequence);
        self.epochs.written();
        self.history.forget_up_to(sequence);
        let first = self.journal_writes.next();
        self.rewrite_journal(effects);
        // A batch may have been voted for before its predecessor.
        let tokens = self.history.batches.iter().map(|batch| batch.token);
        let oldest = tokens.fold(first, Token::min);
        self.journal_writes.trim_below(oldest, effects);
        self.root_durable(effects);
        Ok(())
    }

    /// The first record of a journal.
    pub(super) const fn start_mark(&self) -> Record {
        match self.epochs.reborn {
            true => Record::Incarnation(self.epochs.incarnation),
            false => Record::BootMark,
        }
    }

    /// Writes the valid part of older records again.
    pub(super) fn rewrite_journal(&mut self, effects: &mut Effects) {
        let mark = self.start_mark();
        self.journal_writes.persist(&mark, effects);
        for record in self.epochs.unwritten() {
            let record = Record::Epoch(Box::new(record.clone()));
            self.journal_writes.persist(&record, effects);
        }
        if self.vote_barrier > self.last_executed.sequence {
            let (epoch, until) = (self.context.epoch, self.vote_barrier);
            let record = Record::VoteBarrier { epoch, until };
            self.journal_writes.persist(&record, effects);
        }
        if let Some(certificate) = self.states.known.stable().cloned() {
            let record = Record::Stable { certificate };
            self.journal_writes.persist(&record, effects);
        }
        self.record_finding(effects);
        if let Some(frame) = self.views.new_view.clone() {
            self.journal_writes
                .persist(&Record::NewView { frame }, effects);
        }
        if let Some(own) = &self.views.own_change {
            let frame = Arc::clone(&own.message);
            self.journal_writes
                .persist(&Record::ViewChange { frame }, effects);
        }
        // The record that it waits for may be trimmed, and votes will depend on it.
        if let Some(frame) = self.views.own_new_view.clone() {
            self.journal_writes
                .persist(&Record::NewView { frame }, effects);
        }
        let phases = self.has_prepare_phase();
        for slot in self.window.iter_mut() {
            slot.first_token = None;
            for record in slot_records(slot, phases) {
                let token = self.journal_writes.persist(&record, effects);
                slot.recorded(token);
            }
        }
    }
}

/// The records of an open sequence.
pub(super) fn slot_records(slot: &Slot, phases: bool) -> Vec<Record> {
    let open = slot.proposal.as_ref().map(|it| it.digest());
    // A COMMIT stands with the certificate that it rests on, in a record of its own, except with
    // r = 0, where it is the only vote.
    let message = |own: &Promise| Arc::clone(&own.message);
    let own_commit = slot.own_commit.as_ref().map(message);
    let own_vote = match phases {
        true => slot.own_prepare.as_ref().map(message),
        false => own_commit.clone(),
    };
    // With all bodies that are here: a vote counts even if one should be missing.
    let voted = slot.journaled.iter().filter_map(|(digest, proposal)| {
        let bodies = slot.bodies().those_of(digest, proposal.batch()?);
        Some(Record::Voted {
            proposal: Arc::clone(proposal),
            bodies: bodies.cloned().collect(),
            vote: own_vote.clone().filter(|_| Some(*digest) == open),
        })
    });
    let mut records: Vec<Record> = voted.collect();
    if let Some(prepared) = slot.prepared.clone() {
        records.push(Record::Prepared {
            prepared: Some(prepared),
            commit: own_commit,
        });
    }
    records
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{Area, MemoryStore};

    #[test]
    fn a_store_knows_batches_by_their_keys() {
        let mut space = KeySpace::open(MemoryStore::new()).expect("sound");
        let mut txn = space.begin(Area::Service, Sequence(7));
        txn.put(b"b0000007", vec![1]).expect("put");
        txn.commit();
        let others = ["c", "n", "e0000007"].map(Bytes::from);
        let names = others.into_iter().chain([batch_key(Sequence(7))]);
        let extra = names.map(|name| (name.clone(), Some(name))).collect();
        let (batch, _) = space.flush(Sequence(7), extra).expect("flushed");
        let rows = batch.entries.iter().filter(|(key, _)| is_batch_row(key));
        let rows: Vec<_> = rows.map(|(_, row)| row.clone()).collect();
        assert_eq!(rows, [Some(batch_key(Sequence(7)))]);
    }
}
