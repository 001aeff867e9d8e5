//! A committed batch: executed, answered, and made durable with the next root.
//!
//! Execution follows the commit at once. The state becomes durable at each checkpoint; with each
//! root go the batches since the one before, with their certificates, into rows outside the tree,
//! where laggards are served from. Until then they are kept in memory and in the journal. When a
//! root is durable the journal is trimmed behind it: what still counts of older
//! records (the view, the open sequence) is written once more, and then everything before the first
//! record about a batch above the root can go.

use super::Replica;
use crate::certificate::CommitCertificate;
use crate::execution::Opened;
use crate::identity::{ConnectionId, Sequence, SessionId};
use crate::journal::Record;
use crate::metrics::Voting;
use crate::ordering::proposer::Place;
use crate::ordering::suspicion::{Reason, Served};
use crate::ordering::vote::Tally;
use crate::ordering::window::Slot;
use crate::service::Service;
use crate::state::{StateError, Store};
use crate::step::{Destination, Effect, Effects, Token};
use crate::wire::Envelope;
use crate::wire::frame::Header;
use crate::wire::limits::CHECKPOINT_BYTES;
use crate::wire::message::{Batch, Committed, Message, Outcome, Reply};
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;

/// A committed batch that no durable root covers yet.
#[derive(Debug)]
struct Unflushed {
    committed: Arc<Committed>,
    /// The first record about it.
    token: Token,
    /// Its frame, once it was needed.
    frame: Option<Bytes>,
}

impl Unflushed {
    /// Its frame, encoded once however often it is sent and written.
    fn frame(&mut self, header: Header) -> Bytes {
        let committed = &self.committed;
        let encode = || {
            let message = Message::Committed(Box::new((**committed).clone()));
            crate::wire::encode(header, &message)
        };
        self.frame.get_or_insert_with(encode).clone()
    }
}

/// What everybody who checks a session's requests has to know of it.
pub(super) const fn announced(opened: &Opened) -> Effect {
    Effect::SessionKey {
        id: opened.id,
        key: opened.key,
        principal: opened.principal,
        credit: opened.credit,
    }
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

    fn push(&mut self, committed: Arc<Committed>, token: Token) {
        let bytes: usize = committed.bodies.iter().map(|body| body.frame().len()).sum();
        self.since = (self.since.0 + 1, self.since.1.saturating_add(bytes));
        self.boundary |= self.since.0 >= self.interval || self.since.1 >= CHECKPOINT_BYTES;
        self.batches.push_back(Unflushed {
            committed,
            token,
            frame: None,
        });
    }

    /// The frame of a committed batch that is still in memory.
    pub(super) fn frame(&mut self, sequence: Sequence, header: Header) -> Option<Bytes> {
        let first = self.batches.front()?.committed.batch.sequence.0;
        let index = usize::try_from(sequence.0.checked_sub(first)?).ok()?;
        self.batches.get_mut(index).map(|batch| batch.frame(header))
    }

    /// All batches, as rows outside the tree.
    pub(super) fn rows(&mut self, header: Header) -> Vec<(Bytes, Option<Bytes>)> {
        let rows = self.batches.iter_mut().map(|unflushed| {
            let key = batch_key(unflushed.committed.batch.sequence);
            (key, Some(unflushed.frame(header)))
        });
        rows.collect()
    }

    fn forget_up_to(&mut self, sequence: Sequence) {
        while let Some(first) = self.batches.front()
            && first.committed.batch.sequence <= sequence
        {
            self.batches.pop_front();
        }
    }

    /// Whether a boundary was reached and what lies below it is not on its way to the disk yet:
    /// nothing may be executed, voted for or proposed beyond it.
    pub(super) const fn backlog(&self) -> bool {
        self.boundary
    }

    /// The state at the boundary is on its way to the disk.
    pub(super) const fn handed_out(&mut self, sequence: Sequence) {
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

/// The key, outside the tree, of a committed batch.
pub(super) fn batch_key(sequence: Sequence) -> Bytes {
    let mut key = vec![b'b'];
    key.extend_from_slice(&sequence.0.to_be_bytes());
    Bytes::from(key)
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
        let journaled = self.slot.journaled.contains_key(&certificate.digest);
        let record = Record::Committed {
            certificate: certificate.clone(),
            batch: (!journaled).then(|| (batch.clone(), bodies.clone())),
        };
        let token = self.promises.persist(&record, effects);
        self.slot.recorded(token);
        self.counters.batches_fetched += u64::from(fetched);
        let served = self.served(&bodies);
        let replies = self.execute(&batch, &bodies, effects)?;
        for (connections, reply) in replies {
            self.answer(&connections, &reply, effects);
        }
        let pool = &self.pool;
        self.grievances.retain(|digest| pool.get(digest).is_some());
        self.forwarded.retain(|digest| pool.get(digest).is_some());
        self.enter_next_slot(batch, bodies, certificate);
        self.grievances.committed();
        self.timers.progressed(effects);
        if served.is_some_and(|served| self.grievances.passed_over(&served)) {
            self.suspect(Reason::Unfair, effects);
        }
        if let Some(proposal) = self.ahead_proposal.take()
            && proposal.proposal.view() == self.views.view
        {
            self.proposal(&proposal, effects);
        }
        if let Some(proposal) = self.early_proposal.take() {
            self.proposal(&proposal, effects);
        }
        self.flush_if_due(effects)
    }

    /// Runs the batch and brings pool and sessions up to it. Returns who is to be told what.
    pub(super) fn execute(
        &mut self,
        batch: &Batch,
        bodies: &[Arc<Envelope>],
        effects: &mut Effects,
    ) -> Result<Vec<(Vec<ConnectionId>, Reply)>, StateError> {
        let executed = self.executor.execute(&mut self.space, batch, bodies)?;
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
        let mut told = Vec::with_capacity(executed.replies.len());
        for reply in executed.replies {
            if let Outcome::Results(results) = &reply.outcome {
                self.counters.requests += 1;
                self.counters.operations += results.len() as u64;
            }
            told.push((self.listeners(&reply, bodies), reply));
        }
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
            self.pool.session_closed(id);
            effects.push(Effect::SessionClosed { id });
        }
        Ok(told)
    }

    /// Whom a reply goes to.
    fn listeners(&self, reply: &Reply, bodies: &[Arc<Envelope>]) -> Vec<ConnectionId> {
        let session = match &reply.outcome {
            Outcome::SessionOpened { session, .. } => *session,
            _ => reply.session,
        };
        if session != SessionId(0) {
            return self.pool.connections(session).to_vec();
        }
        let mut asked = bodies
            .iter()
            .filter(|body| *body.digest_ref() == reply.request);
        match asked.next().map(|body| body.message()) {
            Some(Message::OpenSession(open)) => self.pool.opening_connections(open).to_vec(),
            _ => Vec::new(),
        }
    }

    pub(super) fn answer(
        &self,
        connections: &[ConnectionId],
        reply: &Reply,
        effects: &mut Effects,
    ) {
        if connections.is_empty() {
            return;
        }
        let header = self.context.header(self.views.view);
        let frame = crate::wire::encode(header, &Message::Reply(reply.clone()));
        for connection in connections {
            let to = Destination::Client(*connection);
            effects.push(Effect::Send {
                to,
                frame: frame.clone(),
                after: None,
            });
        }
    }

    /// What a batch of these requests serves, as far as they are known here.
    fn served(&self, bodies: &[Arc<Envelope>]) -> Option<Served> {
        let mut arrivals = bodies
            .iter()
            .filter_map(|body| self.pool.arrival(body.digest_ref()));
        let first = arrivals.next()?;
        let lane = |body: &Arc<Envelope>| match body.message() {
            Message::Request(request) => Some((request.session, request.lane)),
            _ => None,
        };
        Some(Served {
            latest: arrivals.fold(first, u64::max),
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
        self.tip = Place {
            sequence: batch.sequence,
            digest: certificate.digest,
            time: batch.time,
        };
        self.tip_certificate = Some(certificate.clone());
        let token = self
            .slot
            .first_token
            .unwrap_or_else(|| self.promises.next());
        self.history.push(
            Arc::new(Committed {
                batch,
                certificate,
                bodies,
            }),
            token,
        );
        let duplicates = self.context.duplicates;
        let empty = (Tally::new(duplicates), Tally::new(duplicates));
        let (prepares, commits) = std::mem::replace(&mut self.ahead, empty);
        self.slot = Slot::new(self.tip.sequence.next(), prepares, commits);
        self.views.proposing = false;
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
        self.history.forget_up_to(sequence);
        let first = self.promises.next();
        self.record_standing(effects);
        let oldest = self
            .history
            .batches
            .front()
            .map_or(first, |batch| batch.token.min(first));
        self.promises.trim_below(oldest);
        self.root_durable(effects);
        Ok(())
    }

    /// Writes what older records say and still counts.
    pub(super) fn record_standing(&mut self, effects: &mut Effects) {
        let mark = if self.voting == Voting::Lost {
            Record::Lost
        } else {
            Record::BootMark
        };
        self.promises.persist(&mark, effects);
        if self.abstain > self.tip.sequence {
            let until = self.abstain;
            self.promises.persist(&Record::Abstain { until }, effects);
        }
        if let Some(certificate) = self.states.known.stable().cloned() {
            let record = Record::Stable { certificate };
            self.promises.persist(&record, effects);
        }
        if let Some(frame) = self.views.new_view.clone() {
            self.promises.persist(&Record::NewView { frame }, effects);
        }
        if let Some(own) = &self.views.own_change {
            let frame = Arc::clone(&own.message);
            self.promises
                .persist(&Record::ViewChange { frame }, effects);
        }
        self.slot.first_token = None;
        let open = self.slot.proposal.as_ref().map(|it| it.digest());
        // A COMMIT stands with the certificate that it rests on, in a record of its own, except
        // with r = 0, where it is the only vote.
        let own_vote = match self.has_prepare_phase() {
            true => self.slot.own_prepare.as_ref(),
            false => self.slot.own_commit.as_ref(),
        };
        let own_vote = own_vote.map(|own| Arc::clone(&own.message));
        for (digest, proposal) in std::mem::take(&mut self.slot.journaled) {
            let batch = proposal.batch();
            let Some(bodies) = batch.and_then(|batch| self.slot.bodies_of(batch)) else {
                continue;
            };
            self.slot.journaled(&proposal);
            let record = Record::Voted {
                proposal,
                bodies,
                vote: own_vote.clone().filter(|_| Some(digest) == open),
            };
            let token = self.promises.persist(&record, effects);
            self.slot.recorded(token);
        }
        if let Some(prepared) = self.slot.prepared.clone() {
            let commit = self
                .slot
                .own_commit
                .as_ref()
                .map(|own| Arc::clone(&own.message));
            let record = Record::Prepared {
                prepared: Some(prepared),
                commit,
            };
            let token = self.promises.persist(&record, effects);
            self.slot.recorded(token);
        }
    }
}
