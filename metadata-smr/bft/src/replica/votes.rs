//! The own votes, and those of others: from a proposal to a commit certificate.
//!
//! PREPAREs may be given in any order. COMMITs promise an order: the own COMMIT for a sequence is
//! recorded after the own COMMIT, in the same view, for the one before (or that one has been
//! executed). So a replica that COMMITs holds, durably, a prepared certificate of this view for
//! every open batch that the committed one follows upon. The proof in `ordering.rs` rests on it.
//! With r = 0 a COMMIT is the vote for the proposal, and those are given in order.

use super::Replica;
use crate::certificate::{CommitCertificate, PreparedCertificate, Vote};
use crate::identity::{Digest, Sequence};
use crate::journal::Record;
use crate::metrics::Voting;
use crate::ordering::slot::{CommitStage, Promise, Stage};
use crate::sabotage::Sabotage;
use crate::service::Service;
use crate::state::{StateError, Store};
use crate::step::{Effects, Token};
use crate::wire::Envelope;
use crate::wire::limits::{CLOCK_LEAD_MAX, WINDOW};
use crate::wire::message::{Ballot, Kind, Message};
use std::sync::Arc;

/// The vote that a PREPARE or COMMIT is.
fn vote_of(envelope: &Envelope) -> Option<(Ballot, Vote)> {
    let (Message::Prepare(ballot) | Message::Commit(ballot)) = envelope.message() else {
        return None;
    };
    let vote = Vote {
        signer: ballot.signer,
        signature: envelope.signature()?,
    };
    Some((*ballot, vote))
}

impl<S: Service, D: Store> Replica<S, D> {
    fn sign_ballot(
        &mut self,
        kind: Kind,
        sequence: Sequence,
        digest: Digest,
        effects: &mut Effects,
    ) {
        let ballot = Ballot {
            sequence,
            digest,
            signer: self.config.replica,
        };
        let message = match kind {
            Kind::Prepare => Message::Prepare(ballot),
            _ => Message::Commit(ballot),
        };
        self.sign(message, effects);
    }

    /// Records a proposal of this view with all bodies and the own vote.
    pub(super) fn record_vote(
        &mut self,
        proposal: &Arc<Envelope>,
        vote: Option<Arc<Envelope>>,
        effects: &mut Effects,
    ) -> Token {
        let batch = proposal.batch();
        let slot = batch.and_then(|batch| self.window.get(batch.sequence));
        let (Some(batch), Some(slot)) = (batch, slot) else {
            return self.journal_writes.next();
        };
        let known = slot.bodies().those_of(proposal.digest_ref(), batch);
        let bodies: Vec<_> = known.cloned().collect();
        let whole = batch.requests.len() == bodies.len();
        let token = self.journal_writes.persist(
            &Record::Voted {
                proposal: Arc::clone(proposal),
                bodies,
                vote,
            },
            effects,
        );
        if let Some(slot) = self.window.get_mut(batch.sequence) {
            slot.recorded(token);
        }
        if whole {
            self.window.journaled(proposal);
        }
        token
    }

    /// A replica votes.
    pub(super) fn ballot(&mut self, envelope: &Envelope) {
        let now = self.now.monotonic;
        let Some((ballot, vote)) = vote_of(envelope) else {
            return;
        };
        let Some(slot) = self.window.get_mut(ballot.sequence) else {
            // Its signer has executed all but a window of the batches before.
            let executed = Sequence(ballot.sequence.0.saturating_sub(WINDOW as u64));
            self.behind(ballot.signer, executed);
            return;
        };
        let tally = match envelope.message() {
            Message::Prepare(_) => &mut slot.prepares,
            _ => &mut slot.commits,
        };
        tally.add(envelope.view(), ballot.digest, vote, now);
    }

    /// Advances the own votes as far as possible.
    pub(super) fn advance_votes(&mut self, effects: &mut Effects) {
        if !self.views.active() {
            return;
        }
        let open = self.window.open().0;
        for sequence in (0..WINDOW as u64).map(|step| Sequence(open.saturating_add(step))) {
            if self
                .window
                .get(sequence)
                .is_some_and(|it| it.proposal.is_some())
            {
                self.advance_vote(sequence, effects);
            }
        }
    }

    fn advance_vote(&mut self, sequence: Sequence, effects: &mut Effects) {
        let patient = !self.sabotaged(Sabotage::PrepareWithoutBody);
        let Some(slot) = self.window.get(sequence) else {
            return;
        };
        let waits = patient && !slot.missing.is_empty();
        if slot.stage == Stage::Bodies && !waits {
            let next = match self.admissible(sequence) {
                None => Stage::Bodies,
                Some(true) => Stage::Clock,
                Some(false) => {
                    self.refuse("it proposed requests that no replica would admit", effects);
                    Stage::Watching
                }
            };
            self.set_stage(sequence, next);
        }
        if self.stage(sequence) == Some(Stage::Clock) {
            self.vote(sequence, effects);
        }
        if let Some(Stage::Persisting(token)) = self.stage(sequence)
            && self.journal_writes.durable(token)
        {
            self.set_stage(sequence, Stage::Voted);
            self.count_own(sequence, Kind::Prepare);
        }
        self.advance_prepared(sequence, effects);
        if let Some(slot) = self.window.get_mut(sequence)
            && let CommitStage::Persisting(token) = slot.commit
            && self.journal_writes.durable(token)
        {
            slot.commit = CommitStage::Durable;
            self.count_own(sequence, Kind::Commit);
        }
    }

    fn stage(&self, sequence: Sequence) -> Option<Stage> {
        self.window.get(sequence).map(|slot| slot.stage)
    }

    fn set_stage(&mut self, sequence: Sequence, stage: Stage) {
        if let Some(slot) = self.window.get_mut(sequence) {
            slot.stage = stage;
        }
    }

    /// Whether this view's proposal for the sequence follows upon an executed batch, or upon one
    /// for which the own COMMIT in this view is recorded.
    fn stands_on_commits(&self, sequence: Sequence) -> bool {
        let proposal = self
            .window
            .get(sequence)
            .and_then(|it| it.proposal.as_ref());
        let Some(batch) = proposal.and_then(|proposal| proposal.batch()) else {
            return false;
        };
        if sequence == self.last_executed.sequence.next() {
            return batch.previous == self.last_executed.digest;
        }
        // After a restart the proposal before may have come later, and be another one.
        let before = self.window.get(Sequence(sequence.0.saturating_sub(1)));
        before.is_some_and(|slot| {
            let proposal = slot.proposal.as_ref();
            proposal.is_some_and(|it| *it.digest_ref() == batch.previous)
                && matches!(
                    slot.commit,
                    CommitStage::Persisting(_) | CommitStage::Durable
                )
        })
    }

    /// Gives the own vote for a proposal of this view, if nothing prevents it.
    fn vote(&mut self, sequence: Sequence, effects: &mut Effects) {
        let slot = self.window.get(sequence);
        let Some(proposal) = slot.and_then(|slot| slot.proposal.clone()) else {
            return;
        };
        let refuses = self.sabotaged(Sabotage::ReproposalRefusedByClock)
            && self.refuses_by_clock(sequence, &proposal);
        if self.voting != Voting::Voting || refuses {
            self.set_stage(sequence, Stage::Watching);
            return;
        }
        if let Some(time) = self.clock_lead_of(sequence) {
            if !self.timers.clock_armed(time) {
                self.counters.held_for_clock += 1;
            }
            return;
        }
        if self.history.backlog() || self.epochs.ended() {
            return;
        }
        let kind = if self.has_prepare_phase() {
            Kind::Prepare
        } else if self.stands_on_commits(sequence) {
            Kind::Commit
        } else {
            return;
        };
        self.set_stage(sequence, Stage::Signing);
        self.sign_ballot(kind, sequence, proposal.digest(), effects);
    }

    /// Used only with a planted defect.
    fn refuses_by_clock(&self, sequence: Sequence, proposal: &Envelope) -> bool {
        let clock = self.now.clock;
        let choice = &self.views.choice;
        choice.carries(sequence, proposal.digest_ref())
            && proposal.batch().is_some_and(|batch| {
                clock.since(batch.time).max(batch.time.since(clock)) > CLOCK_LEAD_MAX
            })
    }

    /// The view's proposal that an own vote is for, if it is still there.
    fn voted_for(&self, envelope: &Envelope) -> Option<Arc<Envelope>> {
        let (ballot, _) = vote_of(envelope)?;
        let slot = self.window.get(ballot.sequence)?;
        let proposal = slot.proposal.as_ref().filter(|_| self.views.active());
        proposal
            .filter(|it| *it.digest_ref() == ballot.digest)
            .cloned()
    }

    /// The own PREPARE is signed.
    pub(super) fn own_prepare(&mut self, envelope: &Arc<Envelope>, effects: &mut Effects) {
        let Some(proposal) = self.voted_for(envelope) else {
            return;
        };
        let sequence = proposal.batch().map_or(Sequence(0), |it| it.sequence);
        if self.stage(sequence) != Some(Stage::Signing) {
            return;
        }
        self.counters.prepares += 1;
        let token = self.record_vote(&proposal, Some(Arc::clone(envelope)), effects);
        if let Some(slot) = self.window.get_mut(sequence) {
            slot.stage = Stage::Persisting(token);
            slot.own_prepare = Some(Promise {
                message: Arc::clone(envelope),
                token,
            });
        }
        self.broadcast(envelope, Some(token), effects);
    }

    /// The own COMMIT is signed.
    pub(super) fn own_commit(&mut self, envelope: &Arc<Envelope>, effects: &mut Effects) {
        let Some(proposal) = self.voted_for(envelope) else {
            return;
        };
        let sequence = proposal.batch().map_or(Sequence(0), |it| it.sequence);
        let phases = self.has_prepare_phase();
        let forgets = self.sabotaged(Sabotage::VoteWithoutPreparedCertificate);
        let Some(slot) = self.window.get_mut(sequence) else {
            return;
        };
        let due = match phases {
            true => slot.commit == CommitStage::Signing,
            false => slot.stage == Stage::Signing,
        };
        if !due {
            return;
        }
        let token = if phases {
            let record = Record::Prepared {
                prepared: slot.prepared.clone().filter(|_| !forgets),
                commit: Some(Arc::clone(envelope)),
            };
            let token = self.journal_writes.persist(&record, effects);
            slot.recorded(token);
            token
        } else {
            slot.prepared = Some(PreparedCertificate {
                proposal: Arc::clone(&proposal),
                votes: Vec::new(),
            });
            let token = self.record_vote(&proposal, Some(Arc::clone(envelope)), effects);
            self.set_stage(sequence, Stage::Persisting(token));
            token
        };
        self.counters.commits += 1;
        if let Some(slot) = self.window.get_mut(sequence) {
            slot.commit = CommitStage::Persisting(token);
            slot.own_commit = Some(Promise {
                message: Arc::clone(envelope),
                token,
            });
        }
        self.broadcast(envelope, Some(token), effects);
    }

    /// The own vote is durable: it counts.
    pub(super) fn count_own(&mut self, sequence: Sequence, kind: Kind) {
        let now = self.now.monotonic;
        let Some(slot) = self.window.get_mut(sequence) else {
            return;
        };
        let (own, tally) = match kind {
            Kind::Prepare => (&slot.own_prepare, &mut slot.prepares),
            _ => (&slot.own_commit, &mut slot.commits),
        };
        let own = own.as_ref().map(|own| &own.message);
        if let Some(own) = own
            && let Some((ballot, vote)) = vote_of(own)
        {
            tally.add(own.view(), ballot.digest, vote, now);
        }
    }

    /// Gives the own COMMIT once the batch is prepared, the own vote for it is durable, and the own
    /// COMMIT for its predecessor is recorded.
    fn advance_prepared(&mut self, sequence: Sequence, effects: &mut Effects) {
        let early = self.sabotaged(Sabotage::CommitBeforePredecessor);
        let in_order = self.has_prepare_phase() && (early || self.stands_on_commits(sequence));
        let (view, leader) = (self.views.view, self.leader());
        let (others, except) = self.context.prepares_needed(leader);
        let signed = self.signs_votes();
        let Some(slot) = self.window.get_mut(sequence).filter(|_| in_order) else {
            return;
        };
        let due = slot.stage == Stage::Voted && slot.commit == CommitStage::None;
        let Some(proposal) = slot.proposal.as_ref().filter(|_| due) else {
            return;
        };
        let digest = proposal.digest();
        let Some(votes) = slot.prepares.quorum(view, &digest, others, except) else {
            return;
        };
        slot.prepared = Some(PreparedCertificate {
            proposal: Arc::clone(proposal),
            votes: if signed { votes } else { Vec::new() },
        });
        slot.commit = CommitStage::Signing;
        self.sign_ballot(Kind::Commit, sequence, digest, effects);
    }

    /// A proof that the lowest open sequence is decided: q COMMITs that came here, or a certificate
    /// that a VIEW-CHANGE shows. Its sender may refuse to send the batch, but q − r correct
    /// replicas signed it and have the batch, and this replica may have it too.
    fn decided(&self) -> Option<CommitCertificate> {
        let slot = self.window.lowest();
        let sequence = slot.sequence;
        if let Some((view, digest, votes)) = slot.commits.decided(self.context.quorum.into()) {
            return Some(CommitCertificate {
                view,
                sequence,
                digest,
                votes,
            });
        }
        let here =
            |it: &&CommitCertificate| it.sequence == sequence && slot.batch(&it.digest).is_some();
        let shown = self.views.shown.iter();
        let mut shown = shown.chain(self.views.departures.bases());
        shown.find(here).cloned()
    }

    /// Executes the lowest open sequence if it is decided and the batch is here. Whether it did.
    pub(super) fn advance_commit(&mut self, effects: &mut Effects) -> Result<bool, StateError> {
        let Some(certificate) = self.decided() else {
            return Ok(false);
        };
        let slot = self.window.lowest_mut();
        let known = slot.batch(&certificate.digest).cloned();
        let taken = known.as_ref();
        let bodies = taken.and_then(|batch| slot.bodies_mut().take(&certificate.digest, batch));
        let (Some(batch), Some(bodies)) = (known, bodies) else {
            return Ok(false);
        };
        self.deliver(batch, bodies, certificate, false, effects)?;
        let after = self
            .window
            .lowest()
            .commits
            .decided(self.context.quorum.into());
        self.counters.decided_early += u64::from(after.is_some());
        Ok(true)
    }
}
