//! One open sequence, and what is known about it.
//!
//! ```text
//! Empty ─proposal─► Bodies ─all here─► Clock ─not too far ahead─► Signing
//!   Signing ─► Persisting ─► Voted          (r > 0)  Voted, q PREPAREs ─► Commit::Signing ─► …
//! ```
//!
//! A slot survives a change of view: its prepared certificate with the bodies, and the votes of
//! others (which name their view). The proposal and the stage belong to the view and end with it.

use super::bodies::Bodies;
use super::vote::Tally;
use crate::certificate::PreparedCertificate;
use crate::identity::{Digest, Monotonic, Sequence, View};
use crate::sabotage::Flag;
use crate::step::Token;
use crate::wire::Envelope;
use crate::wire::limits::BATCHES_KEPT;
use crate::wire::message::Batch;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A proposal that is kept for later.
#[derive(Clone, Debug)]
pub struct ReceivedProposal {
    /// What was proposed.
    pub proposal: Arc<Envelope>,
    /// Whether its leader sent it, and not another replica that repeats it.
    pub directly: bool,
}

/// How far the own vote for the view's proposal has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Stage {
    /// There is no proposal.
    #[default]
    Empty,
    /// Bodies are missing.
    Bodies,
    /// All bodies are here; it may be too early for its time, or the disk is behind.
    Clock,
    /// The own vote is being signed.
    Signing,
    /// The record with proposal, bodies and vote is being written.
    Persisting(Token),
    /// The own vote is durable; a leader's may still be in flight, before its COMMIT is.
    Voted,
    /// This replica does not vote on it.
    Watching,
}

/// How far the own COMMIT has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CommitStage {
    /// Not due.
    #[default]
    None,
    /// Being signed.
    Signing,
    /// Being written, with the certificate that it rests on.
    Persisting(Token),
    /// Durable.
    Durable,
}

/// An own message, and the write that it waits for.
#[derive(Clone, Debug)]
pub struct Promise {
    /// The message.
    pub message: Arc<Envelope>,
    /// Its record.
    pub token: Token,
}

/// One open sequence.
#[derive(Clone, Debug, Default)]
pub struct Slot {
    /// Its sequence.
    pub sequence: Sequence,
    /// The proposal of the current view.
    pub proposal: Option<Arc<Envelope>>,
    /// One that came before its predecessor.
    pub received: Option<ReceivedProposal>,
    /// When this replica proposed it.
    pub proposed_at: Option<Monotonic>,
    /// When the proposal was accepted here.
    pub seen_at: Option<Monotonic>,
    /// The own vote for it.
    pub stage: Stage,
    /// The own COMMIT.
    pub commit: CommitStage,
    /// Bodies of the proposal that are not here yet.
    pub missing: BTreeSet<Digest>,
    /// Bodies of the proposal and of what is prepared.
    bodies: Bodies,
    /// The certificate of the highest view, if any.
    pub prepared: Option<PreparedCertificate>,
    /// PREPAREs, by view.
    pub prepares: Tally,
    /// COMMITs, by view.
    pub commits: Tally,
    /// The own PREPARE in the current view.
    pub own_prepare: Option<Promise>,
    /// The own COMMIT in the current view.
    pub own_commit: Option<Promise>,
    /// The proposals that the journal holds with their bodies: those voted for here, in this view
    /// or an earlier one.
    pub journaled: BTreeMap<Digest, Arc<Envelope>>,
    /// The first record about this sequence.
    pub first_token: Option<Token>,
    /// Whether the progress timer has already been extended once because a body was missing.
    pub patience_used: bool,
}

impl Slot {
    /// An empty slot.
    #[must_use]
    pub fn new(sequence: Sequence, duplicates: Flag) -> Self {
        Self {
            sequence,
            prepares: Tally::new(duplicates),
            commits: Tally::new(duplicates),
            ..Self::default()
        }
    }

    /// Accepts the view's proposal.
    pub fn accept(&mut self, proposal: Arc<Envelope>) {
        if let Some(batch) = proposal.batch() {
            self.bodies.belong_to(proposal.digest_ref(), batch);
        }
        self.proposal = Some(proposal);
        self.received = None;
        self.proposed_at = None;
        self.seen_at = None;
        self.stage = Stage::Bodies;
        self.missing.clear();
        self.commit = CommitStage::None;
        self.own_prepare = None;
        self.own_commit = None;
    }

    /// The current view is over.
    pub fn leave_view(&mut self) {
        self.proposal = None;
        self.received = None;
        self.proposed_at = None;
        self.seen_at = None;
        self.stage = Stage::Empty;
        self.commit = CommitStage::None;
        self.own_prepare = None;
        self.own_commit = None;
        self.missing.clear();
        self.forget_bodies();
    }

    /// Keeps the bodies of the batches voted for in any view: with the votes of others they may be
    /// prepared somewhere, and a later view may have to propose them again.
    fn forget_bodies(&mut self) {
        let prepared = self.prepared.as_ref().map(|it| &it.proposal);
        let known = self.journaled.values().chain(prepared);
        let batches = known.chain(&self.proposal).filter_map(|it| it.batch());
        self.bodies.keep_only(batches);
    }

    /// The journal holds this proposal with its bodies.
    pub(super) fn journaled(&mut self, proposal: &Arc<Envelope>) {
        self.journaled
            .insert(proposal.digest(), Arc::clone(proposal));
        if self.journaled.len() > BATCHES_KEPT
            && let Some((_, oldest)) = self.oldest()
        {
            self.forget(&oldest);
        }
    }

    /// Of the batches voted for, the first to forget: neither prepared nor of this view.
    pub(super) fn oldest(&self) -> Option<(View, Digest)> {
        let prepared = self.prepared.as_ref().map(|it| &it.proposal);
        let needed = prepared.into_iter().chain(&self.proposal);
        let kept = |digest: &Digest| needed.clone().any(|it| it.digest_ref() == digest);
        let others = self.journaled.iter().filter(|(digest, _)| !kept(digest));
        let oldest = others.min_by_key(|(_, proposal)| proposal.view());
        oldest.map(|(digest, proposal)| (proposal.view(), *digest))
    }

    /// Forgets a batch that was voted for.
    pub(super) fn forget(&mut self, digest: &Digest) {
        self.journaled.remove(digest);
        self.forget_bodies();
    }

    /// Bodies of the proposal and of batches voted for.
    #[must_use]
    pub const fn bodies(&self) -> &Bodies {
        &self.bodies
    }

    /// Bodies of the proposal and of batches voted for.
    pub const fn bodies_mut(&mut self) -> &mut Bodies {
        &mut self.bodies
    }

    /// Finds the bodies of the view's proposal by `find` or here, and notes those that are missing.
    pub fn collect<'a>(
        &mut self,
        batch: &Batch,
        find: impl FnMut(&Digest) -> Option<&'a Arc<Envelope>>,
    ) {
        self.missing.clear();
        self.bodies.gather(batch, find, &mut self.missing);
        if let Some(proposal) = &self.proposal {
            self.bodies.belong_to(proposal.digest_ref(), batch);
        }
    }

    /// Keeps a body, if it is wanted.
    pub fn offer(&mut self, body: &Arc<Envelope>) -> bool {
        let wanted = !self.missing.is_empty() && self.missing.remove(body.digest_ref());
        if wanted {
            self.bodies.keep(body);
        }
        wanted
    }

    /// Whether its proposal asks for this request.
    #[must_use]
    pub fn asks_for(&self, digest: &Digest) -> bool {
        self.bodies.get(digest).is_some() || self.missing.contains(digest)
    }

    /// The batch with this digest, from any view.
    #[must_use]
    pub fn batch(&self, digest: &Digest) -> Option<&Batch> {
        let prepared = self.prepared.as_ref().map(|it| &it.proposal);
        let known = self.proposal.iter().chain(prepared);
        let known = known.chain(self.journaled.get(digest));
        let mut same = known.filter(|proposal| proposal.digest_ref() == digest);
        same.next().and_then(|proposal| proposal.batch())
    }

    /// Notes a record about this sequence.
    pub fn recorded(&mut self, token: Token) {
        self.first_token.get_or_insert(token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{SessionId, Signature, Time, View};
    use crate::wire::message::{CloseSession, Message};
    use crate::wire::{Header, Unsigned};

    fn envelope(view: u64, message: Message) -> Arc<Envelope> {
        let header = Header {
            view: View(view),
            ..Header::default()
        };
        let unsigned = Unsigned::new(header, message);
        Arc::clone(unsigned.with_signature(Signature::default()).envelope())
    }

    fn body(number: u64) -> Arc<Envelope> {
        let session = SessionId(number);
        envelope(0, Message::CloseSession(CloseSession { session }))
    }

    fn proposal(view: u64, body: &Envelope) -> Arc<Envelope> {
        let batch = Batch {
            sequence: Sequence(1),
            time: Time(view),
            previous: Digest::default(),
            behaviour_version: 1,
            tick: false,
            requests: vec![body.digest()],
        };
        envelope(view, Message::Proposal(batch))
    }

    /// Proposes the body in the view, and votes for it if `votes`.
    fn see(slot: &mut Slot, view: u64, body: &Arc<Envelope>, votes: bool) -> Digest {
        let proposal = proposal(view, body);
        slot.accept(Arc::clone(&proposal));
        slot.bodies.keep(body);
        if votes {
            slot.journaled(&proposal);
        }
        proposal.digest()
    }

    #[test]
    fn what_was_voted_for_keeps_its_bodies_through_later_views() {
        let mut slot = Slot::new(Sequence(1), Flag::CLEAR);
        let (one, two, three) = (body(1), body(2), body(3));
        let first = see(&mut slot, 0, &one, true);
        slot.leave_view();
        let second = see(&mut slot, 1, &two, false);
        slot.leave_view();
        see(&mut slot, 2, &three, true);
        slot.leave_view();
        let batch = slot.batch(&first).expect("it was voted for").clone();
        assert!(slot.bodies.of(&first, &batch).is_some());
        assert!(slot.batch(&second).is_none() && slot.bodies.get(two.digest_ref()).is_none());
    }

    #[test]
    fn of_many_failed_views_the_newest_and_what_is_prepared_are_kept() {
        let mut slot = Slot::new(Sequence(1), Flag::CLEAR);
        let prepared = see(&mut slot, 0, &body(0), true);
        slot.prepared =
            slot.journaled
                .get(&prepared)
                .cloned()
                .map(|proposal| PreparedCertificate {
                    proposal,
                    votes: Vec::new(),
                });
        let mut seen = Vec::new();
        for view in 1..3 * BATCHES_KEPT as u64 {
            seen.push(see(&mut slot, view, &body(view), true));
            slot.leave_view();
        }
        assert_eq!(slot.journaled.len(), BATCHES_KEPT);
        assert!(slot.bodies.count() <= BATCHES_KEPT);
        assert!(slot.batch(&prepared).is_some());
        let newest = &seen[seen.len() + 1 - BATCHES_KEPT..];
        assert!(newest.iter().all(|digest| slot.batch(digest).is_some()));
    }
}
