//! The one sequence that is open.
//!
//! ```text
//!   Empty ─proposal─► Bodies ─all in hand─► Clock ─not too far ahead─► Signing ─► Persisting ─► Voted
//!                                                    (r > 0)  Voted, q PREPAREs ─► Commit::Signing ─► …
//! ```
//!
//! A slot survives a change of view: its prepared certificate with the bodies, and the votes of
//! others (which name their view). The proposal and the stage belong to the view and go with it.

use super::vote::Tally;
use crate::certificate::PreparedCertificate;
use crate::identity::{Digest, Sequence};
use crate::step::Token;
use crate::wire::Envelope;
use crate::wire::message::Batch;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// How far the own vote for the view's proposal has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Stage {
    /// There is no proposal.
    #[default]
    Empty,
    /// Bodies are missing.
    Bodies,
    /// Everything is in hand; it may be too early for its time, or the disk is behind.
    Clock,
    /// The own vote is being signed.
    Signing,
    /// The record with proposal, bodies and vote is being written.
    Persisting(Token),
    /// The own vote is durable.
    Voted,
    /// This replica does not vote: it only watches.
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

/// The open sequence.
#[derive(Clone, Debug, Default)]
pub struct Slot {
    /// Which.
    pub sequence: Sequence,
    /// The proposal of the current view.
    pub proposal: Option<Arc<Envelope>>,
    /// The own vote for it.
    pub stage: Stage,
    /// The own COMMIT.
    pub commit: CommitStage,
    /// Bodies of the proposal that are not here yet.
    pub missing: BTreeSet<Digest>,
    /// Bodies of the proposal and of what is prepared.
    pub bodies: BTreeMap<Digest, Arc<Envelope>>,
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
    /// The batches that the journal holds with their bodies.
    pub journaled: BTreeSet<Digest>,
    /// The first record about this sequence.
    pub first_token: Option<Token>,
    /// Whether the progress timer has been patient once already because a body was missing.
    pub patience_used: bool,
}

impl Slot {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(sequence: Sequence, prepares: Tally, commits: Tally) -> Self {
        Self {
            sequence,
            prepares,
            commits,
            ..Self::default()
        }
    }

    /// Takes the view's proposal.
    pub fn accept(&mut self, proposal: Arc<Envelope>) {
        self.proposal = Some(proposal);
        self.stage = Stage::Bodies;
        self.missing.clear();
        self.commit = CommitStage::None;
        self.own_prepare = None;
        self.own_commit = None;
    }

    /// The current view is over.
    pub fn leave_view(&mut self) {
        self.proposal = None;
        self.stage = Stage::Empty;
        self.commit = CommitStage::None;
        self.own_prepare = None;
        self.own_commit = None;
        self.missing.clear();
        let keep: BTreeSet<Digest> = match self.prepared.as_ref().map(|it| it.proposal.batch()) {
            Some(Some(batch)) => batch.requests.iter().copied().collect(),
            _ => BTreeSet::new(),
        };
        self.bodies.retain(|digest, _| keep.contains(digest));
    }

    /// Finds the bodies of `batch` here or by `find`, and notes those that are missing.
    pub fn collect<'a>(
        &mut self,
        batch: &Batch,
        find: impl Fn(&Digest) -> Option<&'a Arc<Envelope>>,
    ) {
        self.missing.clear();
        for digest in &batch.requests {
            if self.bodies.contains_key(digest) {
                continue;
            }
            match find(digest) {
                Some(body) => {
                    self.bodies.insert(*digest, Arc::clone(body));
                }
                None => {
                    self.missing.insert(*digest);
                }
            }
        }
    }

    /// Takes a body in, if it is wanted.
    pub fn offer(&mut self, body: &Arc<Envelope>) -> bool {
        let wanted = self.missing.remove(body.digest_ref());
        if wanted {
            self.bodies.insert(body.digest(), Arc::clone(body));
        }
        wanted
    }

    /// The bodies of `batch`, in order, if all are here.
    #[must_use]
    pub fn bodies_of(&self, batch: &Batch) -> Option<Vec<Arc<Envelope>>> {
        batch
            .requests
            .iter()
            .map(|digest| self.bodies.get(digest).cloned())
            .collect()
    }

    /// The batch with this digest, from whatever view it is known.
    #[must_use]
    pub fn batch(&self, digest: &Digest) -> Option<&Batch> {
        let prepared = self.prepared.as_ref().map(|it| &it.proposal);
        let known = self.proposal.iter().chain(prepared);
        let mut same = known.filter(|proposal| proposal.digest_ref() == digest);
        same.next().and_then(|proposal| proposal.batch())
    }

    /// Notes a record about this sequence.
    pub fn recorded(&mut self, token: Token) {
        self.first_token.get_or_insert(token);
    }
}
