//! From a proposal to a commit certificate: the normal case, with one sequence open.

use super::{Heard, Replica, Sabotage};
use crate::certificate::{CommitCertificate, PreparedCertificate, Vote};
use crate::identity::{Digest, Time};
use crate::journal::Record;
use crate::metrics::Voting;
use crate::ordering::proposer::fresh_batch;
use crate::ordering::suspicion::Reason;
use crate::ordering::window::{CommitStage, Promise, Stage};
use crate::service::Service;
use crate::state::{StateError, Store};
use crate::step::{Effect, Effects, Peer, Token};
use crate::wire::Envelope;
use crate::wire::limits::{BATCH_BYTES_MAX, CLOCK_LEAD_MAX};
use crate::wire::message::{Ballot, Batch, Kind, Message};
use std::collections::BTreeSet;
use std::sync::Arc;

impl<S: Service, D: Store> Replica<S, D> {
    /// With r = 0 nobody lies, and there is no PREPARE phase.
    pub(super) const fn has_prepare_phase(&self) -> bool {
        self.context.model.right() > 0
    }

    /// Proposes, if it is this replica's turn and there is something to propose.
    pub(super) fn propose(&mut self, effects: &mut Effects) {
        let here = self.leads()
            && self.slot.proposal.is_none()
            && !self.views.proposing
            && self.views.choice.base_sequence() <= self.tip.sequence
            && self.promises.durable(self.views.boot_token)
            && !self.history.backlog();
        if !here {
            return;
        }
        let carried = self.views.choice.carried_at(self.slot.sequence).cloned();
        let batch = match carried.as_ref().and_then(|carried| carried.batch()) {
            // It follows upon another history than ours: to propose it would be refused here too,
            // again and again. Only where agreement is broken already can that be.
            Some(batch) if batch.previous != self.tip.digest => return,
            Some(batch) => {
                self.slot.collect(batch, |digest| self.pool.get(digest));
                if !self.slot.missing.is_empty() {
                    return;
                }
                self.counters.reproposals += 1;
                batch.clone()
            }
            None => {
                let tick = self
                    .deadline
                    .is_some_and(|deadline| deadline <= self.now.clock);
                let bodies = self.pool.select(self.now.monotonic);
                if bodies.is_empty() && !tick {
                    return;
                }
                let version = self.config.behaviour_version;
                let batch = fresh_batch(&self.tip, self.now.clock, version, tick, &bodies);
                for body in bodies {
                    self.slot.bodies.insert(body.digest(), body);
                }
                batch
            }
        };
        self.views.proposing = true;
        self.sign(Message::Proposal(batch), effects);
    }

    /// The own proposal is signed: it may leave while it is being written, since a leader that
    /// restarts never leads this view again.
    pub(super) fn own_proposal(&mut self, envelope: &Arc<Envelope>, effects: &mut Effects) {
        self.views.proposing = false;
        let Some(batch) = envelope.batch() else {
            return;
        };
        let current = batch.sequence == self.slot.sequence
            && self.leads()
            && self.slot.proposal.is_none()
            && batch.previous == self.tip.digest;
        if !current {
            return;
        }
        self.counters.proposals += 1;
        self.slot.accept(Arc::clone(envelope));
        self.broadcast(envelope, None, effects);
        if self.has_prepare_phase() {
            let token = self.record_vote(None, effects);
            self.slot.stage = Stage::Persisting(token);
        } else {
            self.slot.stage = Stage::Signing;
            self.sign_ballot(Kind::Commit, envelope.digest(), effects);
        }
    }

    fn sign_ballot(&self, kind: Kind, digest: Digest, effects: &mut Effects) {
        let ballot = Ballot {
            sequence: self.slot.sequence,
            digest,
            signer: self.config.replica,
        };
        let message = match kind {
            Kind::Prepare => Message::Prepare(ballot),
            _ => Message::Commit(ballot),
        };
        self.sign(message, effects);
    }

    /// Records the view's proposal with all bodies and the own vote.
    fn record_vote(&mut self, vote: Option<Arc<Envelope>>, effects: &mut Effects) -> Token {
        let Some(proposal) = self.slot.proposal.clone() else {
            return self.promises.next();
        };
        let bodies = proposal.batch().map_or_else(Vec::new, |batch| {
            let known = batch.requests.iter();
            known
                .filter_map(|digest| self.slot.bodies.get(digest).cloned())
                .collect()
        });
        let whole = proposal
            .batch()
            .is_some_and(|batch| batch.requests.len() == bodies.len());
        let token = self.promises.persist(
            &Record::Voted {
                proposal: Arc::clone(&proposal),
                bodies,
                vote,
            },
            effects,
        );
        self.slot.recorded(token);
        if whole {
            self.slot.journaled(&proposal);
        }
        token
    }

    /// A leader proposes.
    pub(super) fn proposal(&mut self, heard: &Heard, effects: &mut Effects) {
        let envelope = &heard.proposal;
        let Some(batch) = envelope.batch() else {
            return;
        };
        let view = envelope.view();
        let open = self.slot.sequence;
        if batch.sequence < open || view < self.views.view {
            return;
        }
        if batch.sequence > open.next() {
            let leader = self.context.leader(view);
            self.behind(
                leader,
                crate::identity::Sequence(batch.sequence.0.saturating_sub(1)),
            );
            return;
        }
        if view > self.views.view || !self.views.active() {
            self.early_proposal = Some(heard.clone());
        } else if batch.sequence == open {
            self.consider(heard, effects);
        } else {
            self.ahead_proposal = Some(heard.clone());
        }
    }

    /// A proposal for the open sequence in the current view.
    fn consider(&mut self, heard: &Heard, effects: &mut Effects) {
        let envelope = &heard.proposal;
        match &self.slot.proposal {
            Some(known) if known.digest_ref() == envelope.digest_ref() => {
                if heard.directly {
                    self.grievances.proposal_repeated(false);
                }
                return;
            }
            Some(_) => {
                self.counters.equivocations += 1;
                self.blame_leader("it signed two proposals for one place", effects);
                return;
            }
            None => {}
        }
        let Some(batch) = envelope.batch() else {
            return;
        };
        if self.leader() == self.config.replica {
            // A proposal of our own from before a restart: it only counts if we vote for it anew,
            // which a leader does not.
            return;
        }
        let open = self.slot.sequence;
        if let Some(carried) = self.views.choice.carried_at(open)
            && carried.digest_ref() != envelope.digest_ref()
        {
            self.refuse(
                "it proposed something else than what its view begins with",
                effects,
            );
            return;
        }
        if open <= self.views.choice.base_sequence() {
            // Committed already, as the NEW-VIEW proves: the batch is being fetched.
            return;
        }
        if !self.sound(batch) {
            self.refuse("it proposed what no correct leader would", effects);
            return;
        }
        let fresh = !self.views.choice.carries(open, envelope.digest_ref());
        let trails = fresh && self.now.clock.since(batch.time) > CLOCK_LEAD_MAX;
        if fresh && self.grievances.proposal_trails(trails) {
            self.suspect(Reason::Clock, effects);
        }
        if self.grievances.proposal_repeated(!heard.directly) {
            self.suspect(Reason::Silent, effects);
        }
        let batch = batch.clone();
        self.slot.accept(Arc::clone(envelope));
        self.slot.collect(&batch, |digest| self.pool.get(digest));
    }

    /// Whether every correct replica would take this batch after the last one, as far as its form
    /// goes. All of it follows from agreed state.
    fn sound(&self, batch: &Batch) -> bool {
        let distinct: BTreeSet<&Digest> = batch.requests.iter().collect();
        let due = self.deadline.is_some_and(|deadline| deadline <= batch.time);
        batch.previous == self.tip.digest
            && batch.time > self.tip.time
            && batch.behaviour_version == self.config.behaviour_version
            && distinct.len() == batch.requests.len()
            && (!batch.requests.is_empty() || (batch.tick && due))
    }

    fn refuse(&mut self, reason: &'static str, effects: &mut Effects) {
        self.counters.proposals_refused += 1;
        self.blame_leader(reason, effects);
    }

    fn blame_leader(&mut self, reason: &'static str, effects: &mut Effects) {
        let peer = Peer::Replica(self.leader());
        self.blacklist.add(peer, self.now.monotonic);
        self.counters.blacklisted += 1;
        effects.push(Effect::Blacklist { peer, reason });
        self.suspect(Reason::TwoFaced, effects);
    }

    /// Somebody votes.
    pub(super) fn ballot(
        &mut self,
        kind: Kind,
        envelope: &Envelope,
        ballot: Ballot,
        effects: &mut Effects,
    ) {
        let _ = effects;
        let Some(signature) = envelope.signature() else {
            return;
        };
        let vote = Vote {
            signer: ballot.signer,
            signature: *signature,
        };
        let open = self.slot.sequence;
        let (prepares, commits) = if ballot.sequence == open {
            (&mut self.slot.prepares, &mut self.slot.commits)
        } else if ballot.sequence == open.next() {
            (&mut self.ahead.0, &mut self.ahead.1)
        } else {
            // Nobody votes before the sequence below has committed at its own place.
            let below = crate::identity::Sequence(ballot.sequence.0.saturating_sub(1));
            self.behind(ballot.signer, below);
            return;
        };
        let tally = if kind == Kind::Prepare {
            prepares
        } else {
            commits
        };
        tally.add(envelope.view(), ballot.digest, vote);
    }

    /// Moves the own votes on, as far as they can go.
    pub(super) fn advance_votes(&mut self, effects: &mut Effects) {
        if !self.views.active() {
            return;
        }
        if self.slot.stage == Stage::Bodies {
            let patient = !self.sabotaged(Sabotage::PrepareWithoutBody);
            if patient && !self.slot.missing.is_empty() {
                return;
            }
            if !self.bodies_sound() {
                self.refuse("it proposed requests that no replica can verify", effects);
                self.slot.stage = Stage::Watching;
                return;
            }
            self.slot.stage = Stage::Clock;
        }
        if self.slot.stage == Stage::Clock {
            self.vote(effects);
        }
        if let Stage::Persisting(token) = self.slot.stage
            && self.promises.durable(token)
        {
            self.slot.stage = Stage::Voted;
            self.count_own_prepare();
        }
        self.advance_prepared(effects);
        if let CommitStage::Persisting(token) = self.slot.commit
            && self.promises.durable(token)
        {
            self.slot.commit = CommitStage::Durable;
            self.count_own_commit();
        }
    }

    /// Whether the bodies, all in hand, may be in one batch: their sessions were open after the
    /// batch before, which every correct replica knows when it comes to this point.
    fn bodies_sound(&self) -> bool {
        let Some(batch) = self.slot.proposal.as_ref().and_then(|it| it.batch()) else {
            return false;
        };
        let bodies = || {
            batch
                .requests
                .iter()
                .filter_map(|digest| self.slot.bodies.get(digest))
        };
        let bytes: usize = bodies().map(|body| body.frame().len()).sum();
        bytes <= BATCH_BYTES_MAX
            && bodies().all(|body| match body.message() {
                Message::Request(request) => self.pool.is_open(request.session),
                Message::CloseSession(close) => self.pool.is_open(close.session),
                Message::OpenSession(_) => true,
                _ => false,
            })
    }

    /// How long a proposal has to wait until our clock admits its time; nothing if it does.
    pub(super) fn clock_lead(&self) -> Option<Time> {
        let proposal = self.slot.proposal.as_ref()?;
        let time = proposal.batch()?.time;
        if self.slot.stage != Stage::Clock {
            return None;
        }
        let lawful = self.now.clock.plus(CLOCK_LEAD_MAX);
        let forced = time.0 <= self.tip.time.0.saturating_add(1);
        let carried = self
            .views
            .choice
            .carries(self.slot.sequence, proposal.digest_ref());
        (time > lawful && !forced && !carried).then_some(time)
    }

    /// Gives the own vote for the view's proposal, if nothing stands against it.
    fn vote(&mut self, effects: &mut Effects) {
        let Some(proposal) = self.slot.proposal.clone() else {
            return;
        };
        if self.voting != Voting::Voting {
            self.slot.stage = Stage::Watching;
            return;
        }
        if self.sabotaged(Sabotage::ReproposalRefusedByClock)
            && self
                .views
                .choice
                .carries(self.slot.sequence, proposal.digest_ref())
            && proposal.batch().is_some_and(|batch| {
                let apart = self
                    .now
                    .clock
                    .since(batch.time)
                    .max(batch.time.since(self.now.clock));
                apart > CLOCK_LEAD_MAX
            })
        {
            self.slot.stage = Stage::Watching;
            return;
        }
        if let Some(time) = self.clock_lead() {
            if !self.timers.clock_armed(time) {
                self.counters.held_for_clock += 1;
            }
            return;
        }
        if self.history.backlog() {
            return;
        }
        self.slot.stage = Stage::Signing;
        let kind = if self.has_prepare_phase() {
            Kind::Prepare
        } else {
            Kind::Commit
        };
        self.sign_ballot(kind, proposal.digest(), effects);
    }

    fn is_for_slot(&self, envelope: &Envelope) -> bool {
        let (Message::Prepare(ballot) | Message::Commit(ballot)) = envelope.message() else {
            return false;
        };
        let proposal = self.slot.proposal.as_ref();
        self.views.active()
            && ballot.sequence == self.slot.sequence
            && proposal.is_some_and(|proposal| *proposal.digest_ref() == ballot.digest)
    }

    /// The own PREPARE is signed.
    pub(super) fn own_prepare(&mut self, envelope: &Arc<Envelope>, effects: &mut Effects) {
        if self.slot.stage != Stage::Signing || !self.is_for_slot(envelope) {
            return;
        }
        self.counters.prepares += 1;
        let token = self.record_vote(Some(Arc::clone(envelope)), effects);
        self.slot.stage = Stage::Persisting(token);
        self.slot.own_prepare = Some(Promise {
            message: Arc::clone(envelope),
            token,
        });
        self.broadcast(envelope, Some(token), effects);
    }

    /// The own COMMIT is signed.
    pub(super) fn own_commit(&mut self, envelope: &Arc<Envelope>, effects: &mut Effects) {
        if !self.is_for_slot(envelope) {
            return;
        }
        let token = if self.has_prepare_phase() {
            if self.slot.commit != CommitStage::Signing {
                return;
            }
            let forgets = self.sabotaged(Sabotage::VoteWithoutPreparedCertificate);
            let prepared = self.slot.prepared.clone().filter(|_| !forgets);
            let record = Record::Prepared {
                prepared,
                commit: Some(Arc::clone(envelope)),
            };
            let token = self.promises.persist(&record, effects);
            self.slot.recorded(token);
            token
        } else {
            if self.slot.stage != Stage::Signing {
                return;
            }
            let proposal = self.slot.proposal.clone();
            self.slot.prepared = proposal.map(|proposal| PreparedCertificate {
                proposal,
                votes: Vec::new(),
            });
            let token = self.record_vote(Some(Arc::clone(envelope)), effects);
            self.slot.stage = Stage::Persisting(token);
            token
        };
        self.counters.commits += 1;
        self.slot.commit = CommitStage::Persisting(token);
        self.slot.own_commit = Some(Promise {
            message: Arc::clone(envelope),
            token,
        });
        self.broadcast(envelope, Some(token), effects);
    }

    pub(super) fn count_own_prepare(&mut self) {
        if let Some(own) = &self.slot.own_prepare {
            let (view, message) = (own.message.view(), Arc::clone(&own.message));
            if let (Message::Prepare(ballot), Some(signature)) =
                (message.message(), message.signature())
            {
                let vote = Vote {
                    signer: ballot.signer,
                    signature: *signature,
                };
                self.slot.prepares.add(view, ballot.digest, vote);
            }
        }
    }

    pub(super) fn count_own_commit(&mut self) {
        if let Some(own) = &self.slot.own_commit {
            let (view, message) = (own.message.view(), Arc::clone(&own.message));
            if let (Message::Commit(ballot), Some(signature)) =
                (message.message(), message.signature())
            {
                let vote = Vote {
                    signer: ballot.signer,
                    signature: *signature,
                };
                self.slot.commits.add(view, ballot.digest, vote);
            }
        }
    }

    /// Gives the own COMMIT once the batch is prepared and the own vote for it durable.
    fn advance_prepared(&mut self, effects: &mut Effects) {
        let due = self.has_prepare_phase()
            && self.slot.stage == Stage::Voted
            && self.slot.commit == CommitStage::None;
        let Some(proposal) = self.slot.proposal.as_ref().filter(|_| due) else {
            return;
        };
        let (view, digest) = (self.views.view, proposal.digest());
        let others = self.context.prepared_quorum().saturating_sub(1);
        let leader = self.leader();
        let Some(votes) = self
            .slot
            .prepares
            .quorum(view, &digest, others, Some(leader))
        else {
            return;
        };
        self.slot.prepared = Some(PreparedCertificate {
            proposal: Arc::clone(proposal),
            votes,
        });
        self.slot.commit = CommitStage::Signing;
        self.sign_ballot(Kind::Commit, digest, effects);
    }

    /// A proof that the open sequence is decided: q COMMITs that came here, or a certificate that
    /// somebody's VIEW-CHANGE starts from. Who shows it need not be willing to hand out the batch,
    /// but q − r correct replicas signed it and have the batch, as this one may.
    fn decided(&self) -> Option<CommitCertificate> {
        let sequence = self.slot.sequence;
        if let Some((view, digest, votes)) = self.slot.commits.decided(self.context.quorum.into()) {
            return Some(CommitCertificate {
                view,
                sequence,
                digest,
                votes,
            });
        }
        let shown = self.views.choice.base.iter();
        let mut shown = shown.chain(self.views.departures.bases());
        let here = |it: &&CommitCertificate| {
            it.sequence == sequence && self.slot.batch(&it.digest).is_some()
        };
        shown.find(here).cloned()
    }

    /// Executes the open sequence if it is decided and the batch is at hand. Whether it did.
    pub(super) fn advance_commit(&mut self, effects: &mut Effects) -> Result<bool, StateError> {
        let Some(certificate) = self.decided() else {
            return Ok(false);
        };
        let digest = certificate.digest;
        let known = self.slot.batch(&digest).cloned();
        let bodies = known.as_ref().and_then(|batch| self.slot.bodies_of(batch));
        let (Some(batch), Some(bodies)) = (known, bodies) else {
            return Ok(false);
        };
        self.deliver(batch, bodies, certificate, false, effects)?;
        Ok(true)
    }
}
