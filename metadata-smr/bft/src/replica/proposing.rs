//! The leader: when it proposes, and what.
//!
//! With nothing under way it proposes at once, so that a lone client never waits. With j batches of
//! a window under way it waits until a batch is full, or until the oldest request has waited for
//! *decide-time × j ÷ window*: the more is under way, the more the next batch collects, and the
//! window is full only if batches take far longer to be decided than to be filled. The decide-time
//! is how long batches of this leader took lately, from proposal to execution.
//!
//! The batches that a view begins with come first, in their order; then the requests of the pool.

use super::Replica;
use crate::identity::{Monotonic, Nanos};
use crate::ordering::proposer::{BatchPosition, fresh_batch};
use crate::ordering::slot::Stage;
use crate::service::Service;
use crate::state::Store;
use crate::step::Effects;
use crate::wire::Envelope;
use crate::wire::limits::WINDOW;
use crate::wire::message::Message;
use std::sync::Arc;

/// How long batches took lately from their proposal to their execution.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DecideTime(Option<Nanos>);

impl DecideTime {
    /// Another batch took from `from` to `until`: a new sample counts for an eighth.
    pub(super) fn took(&mut self, from: Monotonic, until: Monotonic) {
        let sample = until.since(from).0;
        let smoothed = self
            .0
            .map_or(sample, |known| known.0 - known.0 / 8 + sample / 8);
        self.0 = Some(Nanos(smoothed));
    }

    /// How long a request may wait while so many batches are under way.
    fn patience(self, in_flight: usize) -> Nanos {
        let share = self.0.unwrap_or_default().0 / WINDOW as u64;
        Nanos(share.saturating_mul(in_flight as u64))
    }
}

impl<S: Service, D: Store> Replica<S, D> {
    /// The position that the next proposal of this view follows upon, and how many are under way.
    /// `None` if the window is full, or if others have decided another batch than was proposed
    /// here.
    fn next_position(&self) -> Option<(BatchPosition, usize)> {
        let mut last = self.last_executed;
        for (slot, in_flight) in self.window.voting().zip(0..) {
            let Some(proposal) = &slot.proposal else {
                return Some((last, in_flight));
            };
            let batch = proposal.batch().filter(|it| it.previous == last.digest)?;
            last = BatchPosition::of(batch, proposal.digest());
        }
        None
    }

    fn may_propose(&self) -> bool {
        self.leads()
            && !self.views.proposing
            && self.views.choice.base_sequence() <= self.last_executed.sequence
            && self.journal_writes.durable(self.views.boot_token)
            && !self.history.backlog()
            && !self.epochs.ended()
    }

    /// Proposes, if it is this replica's turn and there is something to propose. Whether there may
    /// be more at once.
    pub(super) fn propose(&mut self, effects: &mut Effects) -> bool {
        if !self.may_propose() {
            return false;
        }
        let Some((last, in_flight)) = self.next_position() else {
            return false;
        };
        let sequence = last.sequence.next();
        let carried = self.views.choice.carried_at(sequence).cloned();
        let batch = match carried.as_ref().and_then(|carried| carried.batch()) {
            // It follows upon another history than ours: a proposal of it would be refused here
            // too, again and again. That happens only where agreement is broken already.
            Some(batch) if batch.previous != last.digest => return false,
            Some(batch) => {
                let Some(slot) = self.window.get_mut(sequence) else {
                    return false;
                };
                slot.collect(batch, |digest| self.pool.get(digest));
                if !slot.missing.is_empty() {
                    return false;
                }
                batch
                    .requests
                    .iter()
                    .for_each(|it| self.pool.mark_proposed(it));
                self.counters.reproposals += 1;
                batch.clone()
            }
            None => {
                if in_flight > 0 && self.accumulates(in_flight) != Some(Nanos(0)) {
                    return false;
                }
                // Whether a tick is due follows from executed state: unknown while a batch is under
                // way.
                let due = |deadline| deadline <= self.now.clock;
                let tick = in_flight == 0 && self.deadline.is_some_and(due);
                let bodies = self.pool.select(self.now.monotonic);
                if bodies.is_empty() && !tick {
                    return false;
                }
                self.counters.pipelined += u64::from(in_flight > 0);
                self.counters.pipelined_deep += u64::from(in_flight > 2);
                let version = self.epochs.current.behaviour_version;
                let batch = fresh_batch(&last, self.now.clock, version, tick, &bodies);
                if let Some(slot) = self.window.get_mut(sequence) {
                    slot.bodies_mut().keep_list(bodies);
                }
                batch
            }
        };
        self.views.proposing = true;
        self.sign(Message::Proposal(batch), effects);
        let placed = self.window.get(sequence);
        placed.is_some_and(|slot| slot.proposal.is_some())
    }

    /// Requests that no open proposal asks for may be proposed again.
    fn land_requests(&mut self) {
        self.pool.release_proposed();
        let proposals = self.window.iter().filter_map(|slot| slot.proposal.as_ref());
        for batch in proposals.filter_map(|proposal| proposal.batch()) {
            batch
                .requests
                .iter()
                .for_each(|it| self.pool.mark_proposed(it));
        }
    }

    /// How much longer requests are collected while so many batches are under way; `None` if no
    /// request waits.
    fn accumulates(&self, in_flight: usize) -> Option<Nanos> {
        let oldest = self.pool.oldest_ready()?;
        if self.pool.fills_a_batch() {
            return Some(Nanos(0));
        }
        let waited = self.now.monotonic.since(oldest);
        let patience = self.decide_time.patience(in_flight);
        Some(Nanos(patience.0.saturating_sub(waited.0)))
    }

    /// Whether the next batch is being collected, is not full, and its time is known and has not
    /// come. Any other change of that time is followed by a full step.
    pub(super) fn collects(&self) -> bool {
        self.window.lowest().proposal.is_some()
            && self
                .timers
                .batch_due()
                .is_some_and(|at| self.now.monotonic < at)
            && !self.pool.fills_a_batch()
    }

    /// When to check again whether it is time for the next batch.
    pub(super) fn next_batch_due(&self) -> Option<Nanos> {
        if !self.may_propose() {
            return None;
        }
        let (_, in_flight) = self
            .next_position()
            .filter(|(_, in_flight)| *in_flight > 0)?;
        self.accumulates(in_flight).filter(|wait| wait.0 > 0)
    }

    /// The own proposal is signed. It may leave while it is being written, since a leader that
    /// restarts never leads this view again.
    pub(super) fn own_proposal(&mut self, envelope: &Arc<Envelope>, effects: &mut Effects) {
        self.views.proposing = false;
        let Some(batch) = envelope.batch() else {
            return;
        };
        let place = self.next_position().filter(|_| self.leads());
        let current = place.is_some_and(|(last, _)| {
            last.sequence.next() == batch.sequence && last.digest == batch.previous
        });
        let now = self.now.monotonic;
        // Otherwise a proposal is not a vote.
        let prepares = self.has_prepare_phase() && self.signs_votes();
        let fresh = !self
            .views
            .choice
            .carries(batch.sequence, envelope.digest_ref());
        let Some(slot) = self.window.get_mut(batch.sequence).filter(|_| current) else {
            // Another batch was decided meanwhile.
            self.land_requests();
            return;
        };
        self.counters.proposals += 1;
        slot.accept(Arc::clone(envelope));
        slot.proposed_at = fresh.then_some(now);
        self.broadcast(envelope, None, effects);
        if prepares {
            self.record_vote(envelope, None, effects);
            if let Some(slot) = self.window.get_mut(batch.sequence) {
                // The leader's next message is its COMMIT, which waits for a later record: one wait
                // for the disk serves both.
                slot.stage = Stage::Voted;
            }
        } else if let Some(slot) = self.window.get_mut(batch.sequence) {
            slot.stage = Stage::Clock;
        }
    }
}
