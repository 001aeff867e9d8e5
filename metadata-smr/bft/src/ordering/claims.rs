//! What a view begins with where votes are not signed.
//!
//! A vote that only its channel authenticates proves nothing to a third replica, so there are no
//! certificates of votes. A signed VIEW-CHANGE carries *claims* instead. A liar may claim anything,
//! so each claim counts only as far as enough others agree. Of the sequences after its last
//! executed batch a replica claims
//!
//! * **P**: at s it last prepared d, in view v (with the batch);
//! * **Q**: at s it accepted these digests, each last in that view;
//!
//! and of its last executed batch and a window of batches before it
//!
//! * **E**: at s it executed d.
//!
//! It also shows the newest stable checkpoint that it knows, whose certificate is signed. Claims
//! are bounded by the window, whatever the interval between checkpoints. P and Q were durable
//! before PREPARE and COMMIT left, so a restart changes none of them.
//!
//! # What is chosen
//!
//! From q or more VIEW-CHANGEs for a view, the *base* is the highest of their checkpoints and of
//! the batches that r + 1 of them claim alike to have executed. From there the choice walks:
//!
//! * (d, v) is chosen at s if some P names it and
//!   **A1** q of them are compatible with it, each with no P at s, one of a lower view, or one for
//!   d, or with d executed there; and
//!   **A2** r + 1 of them have Q for d at s in v or later, or have executed it;
//! * nothing is chosen at s if **B** q of them have no P there and have not executed it: the walk
//!   ends, and so it does where what is chosen does not follow upon what it stands on;
//! * otherwise the leader *waits* for more VIEW-CHANGEs. A NEW-VIEW with which one would have to
//!   wait is none.
//!
//! A VIEW-CHANGE that has executed beyond s and whose E do not reach back to s says nothing about s
//! and counts in neither A1 nor B. More of them never undo A1, A2 or B.
//!
//! # The rules of voting
//!
//! Those of [`crate::ordering`], with "claims" for "holds a certificate", and these:
//!
//! 1. A leader PREPAREs as every replica does, once its proposal is durable with all bodies. So (d,
//!    s, v) prepared means that q replicas have Q for it, through any crash.
//! 2. A proposal that comes from another replica than its leader is taken if r + 1 replicas say
//!    that they took it: they repeat it, PREPARE or COMMIT it. One is correct and received it from
//!    the leader.
//! 3. What a view begins with is proposed by its NEW-VIEW, which the leader has signed.
//! 4. A replica takes d as committed at s if q COMMITs for it in one view came to it, if r + 1
//!    replicas gave it the batch as executed, or if r + 1 VIEW-CHANGEs claim E for it, or by a
//!    checkpoint's certificate.
//! 5. A batch that it has executed, durably, it PREPAREs and COMMITs in any view that it is in, for
//!    the replicas that have not executed it. (It *echoes*.)
//!
//! # Why it is right
//!
//! An echo breaks none of the rules: the first q COMMITs for (d, s, v) that came together anywhere
//! were no echoes, as an echo needs an execution before it. So d is prepared and committed at (s,
//! v) by the plain rules; in v no q replicas can PREPARE something else, as q of them share a
//! correct one with these that did not echo, and for later views it follows from the claim below.
//!
//! **Claim.** If q replicas have COMMITted (d, s, v), each towards some replica, then every correct
//! replica that takes a proposal for s in a view w > v takes d, and the same holds of each batch
//! that d follows upon, at its sequence.
//!
//! Suppose not, and look at the first time that a correct replica takes something else, in view w
//! at a sequence s′ ≤ s. Let a(σ) be the batch at σ that d is or follows upon, and b the base of
//! w's NEW-VIEW. That base is committed (r + 1 executed it, one of them correct, or q signed the
//! checkpoint), and as in [`crate::ordering`] it is a(b) if b ≤ s. If b ≥ s′ nothing is proposed at
//! s′ in w. Else take any σ with b < σ ≤ s′. Any q of the VIEW-CHANGEs include that of a correct p
//! which COMMITted (d, s, v) before; what does p say of σ? If it has executed σ or beyond, E for
//! a(σ) or nothing. If not, then by rule 2 of `ordering` it had claimed P(a(σ), v), and what it
//! prepared since is of a later view, has the vote of a correct replica from before the time
//! that we look at, and so is a(σ): it says P(a(σ), ≥ v).
//!
//! * So B does not hold at σ: p is among any q, and has P there, or is beyond it.
//! * And no (x, ν) with x ≠ a(σ) is chosen: by A1 p's P is of a lower view than ν, so ν > v. By A2
//!   a correct replica accepted x at σ in a view from ν on and before w, against the claim before
//!   the time that we look at; or it executed x, and then either x was committed in a view after v,
//!   which takes that same acceptance, or in v, where only one chain is prepared, or before v, and
//!   then a(σ), accepted in v, is x by the claim for x.
//!
//! So what is chosen at each σ is a(σ), which follows upon the one before it and at first upon the
//! base, and the walk does not end before s′. ∎
//!
//! Where the walk ends, therefore, nothing there or beyond can be committed: if anything were, its
//! ancestor would have been chosen here, and would follow upon what the walk stands on. With r = 0
//! a COMMIT is the vote, P is what it was given for, and the proof is the same.
//!
//! # Why waiting ends
//!
//! Let C be the replicas that are correct and up, n − u ≥ q of them; STATUS brings all their
//! VIEW-CHANGEs to the leader in the end. What q replicas accepted or committed, q − u ≥ r + 1 of C
//! did. Let T be the highest sequence that a replica of C has executed: r + 1 of C COMMITted it,
//! hence had executed T − window or beyond, and claim the same E at the lowest last executed batch
//! among them, unless some of them know of a checkpoint above that. So the base is at T − window or
//! beyond, and every replica in C says something about every σ above it: an E, or that it is open,
//! and no correct replica contradicts them.
//!
//! * If a replica in C has executed d at σ: r + 1 of C have P(d, ≥ v) with Q or have executed it,
//!   so A2 holds of d. One at least has P, or all r + 1 have executed it and σ is not above the
//!   base. And all P of C from v on are for d, so A1 holds of the highest.
//! * Else, if there are P in C, take the highest, (d, v). A1 holds by C. It is prepared, so q have
//!   Q for it from v on, r + 1 of them in C: A2 holds.
//! * Else B holds by C.
//!
//! A liar's claims are in addition and undo nothing. They may lead to the choice of a batch that no
//! replica has prepared; but r + 1 have accepted it, so a correct replica has all its bodies.
//! Should that one fail before it sends them, the view fails, and the next is without its claim.
//! The number of digests of one sequence that Q remembers is bounded
//! ([`BATCHES_KEPT`](crate::wire::limits::BATCHES_KEPT), with their bodies): to have a digest
//! forgotten, a liar has to make as many views fail, each with another batch.
//!
//! What is carried over has q votes in C: a replica that has not executed it votes on it, one that
//! has executed it echoes. A replica that lacks a batch further back than that gets it from r + 1:
//! what is a window or more below T was executed by as many in C.
//!
//! *No view changes and some are left behind*: say X ⊂ C executed s and Y = C ∖ X did not. With r +
//! 1 in X, Y takes it from them. Otherwise Y has at least n − u − r ≥ u + 1 members, which suspect
//! the view unless they make progress. With r ≤ u these are enough to end it; with r > u those in X
//! suspect it too while fewer than q say that they have executed what X has.
//!
//! Source: M. Castro and B. Liskov, "Practical Byzantine Fault Tolerance and Proactive Recovery"
//! (2002), §3; M. Castro, "Practical Byzantine Fault Tolerance" (2001), §3.2.4. The chain, E and
//! the echo are this library's: there, every sequence is chosen for itself with empty batches in
//! the gaps, and all batches since the checkpoint are agreed upon again.

use super::new_view::Choice;
use super::window::Window;
use crate::certificate::{CommitCertificate, PreparedCertificate, Vote};
use crate::checkpoint::CheckpointCertificate;
use crate::identity::{Digest, ReplicaId, Sequence, Signature, View};
use crate::sabotage::Flag;
use crate::wire::frame::Header;
use crate::wire::limits::WINDOW;
use crate::wire::message::{Accepted, Claims, Message, ViewChange};
use crate::wire::{Envelope, Unsigned};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// How many claims it takes, and which defect is planted in a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// q.
    pub quorum: usize,
    /// r + 1.
    pub small: usize,
    /// Whether A2 is left out.
    pub without_acceptance: Flag,
    /// Whether to choose nothing instead of waiting.
    pub without_waiting: Flag,
    /// Whether to prefer batches that were prepared in lower views.
    pub lowest_view: Flag,
}

/// The signature field of a vote that is not signed: its channel authenticates it.
const UNSIGNED: Signature = Signature([0; 64]);

/// A proposal or vote in an envelope, where votes are not signed.
#[must_use]
pub fn unsigned(header: Header, message: Message) -> Arc<Envelope> {
    let shown = Unsigned::new(header, message).with_signature(UNSIGNED);
    Arc::clone(shown.envelope())
}

/// The claims of a replica about its window, after `executed`.
#[must_use]
pub fn view_change(
    signer: ReplicaId,
    executed: &mut dyn Iterator<Item = &CommitCertificate>,
    window: &Window,
    stable: Option<&CheckpointCertificate>,
) -> ViewChange {
    let base = executed.map(|it| CommitCertificate {
        view: View(0),
        sequence: it.sequence,
        digest: it.digest,
        votes: Vec::new(),
    });
    let prepared = window.certificates().into_iter();
    let prepared = prepared.map(|it| PreparedCertificate {
        proposal: it.proposal,
        votes: Vec::new(),
    });
    let accepted = window.voting().flat_map(|slot| {
        let sequence = slot.sequence;
        slot.journaled
            .iter()
            .map(move |(digest, proposal)| Accepted {
                sequence,
                digest: *digest,
                view: proposal.view(),
            })
    });
    ViewChange {
        signer,
        base: base.collect(),
        prepared: prepared.collect(),
        claims: Some(Box::new(Claims {
            stable: stable.cloned(),
            accepted: accepted.collect(),
        })),
    }
}

/// The claims of one replica's VIEW-CHANGE.
#[derive(Clone, Copy)]
struct ShownClaims<'a> {
    change: &'a ViewChange,
    claims: &'a Claims,
}

impl<'a> ShownClaims<'a> {
    fn in_envelope(envelope: &'a Envelope) -> Option<Self> {
        match envelope.message() {
            Message::ViewChange(change) => {
                let claims = change.claims.as_ref()?;
                Some(Self { change, claims })
            }
            _ => None,
        }
    }

    fn last_executed(self) -> Sequence {
        let last = self.change.base.last();
        last.map_or(Sequence(0), |last| last.sequence)
    }

    fn executed(self, sequence: Sequence) -> Option<Digest> {
        let mut executed = self.change.base.iter();
        let here = executed.find(|it| it.sequence == sequence);
        here.map(|it| it.digest)
    }

    fn prepared(self, sequence: Sequence) -> Option<&'a Arc<Envelope>> {
        let prepared = self.change.prepared.iter().map(|it| &it.proposal);
        let mut here = prepared.filter(|it| it.batch().is_some_and(|it| it.sequence == sequence));
        here.next()
    }

    /// B: nothing can be committed here, as far as this replica knows.
    fn shows_nothing(self, sequence: Sequence) -> bool {
        self.last_executed() < sequence && self.prepared(sequence).is_none()
    }

    /// A1.
    fn compatible(self, sequence: Sequence, digest: &Digest, view: View) -> bool {
        if self.last_executed() >= sequence {
            return self.executed(sequence) == Some(*digest);
        }
        self.prepared(sequence)
            .is_none_or(|it| it.digest_ref() == digest || it.view() < view)
    }

    /// A2.
    fn accepted(self, sequence: Sequence, digest: &Digest, view: View) -> bool {
        let mut accepted = self.claims.accepted.iter();
        self.executed(sequence) == Some(*digest)
            || accepted.any(|it| it.sequence == sequence && it.digest == *digest && it.view >= view)
    }
}

/// Batches that `small` of these claim alike to have executed, lowest first. The certificate's
/// voters are the claimants.
#[must_use]
pub fn executed_by<'a>(
    view_changes: impl Iterator<Item = &'a Arc<Envelope>>,
    small: usize,
) -> Vec<CommitCertificate> {
    let mut claimants: BTreeMap<(Sequence, Digest), BTreeSet<ReplicaId>> = BTreeMap::new();
    for shown in view_changes.filter_map(|it| ShownClaims::in_envelope(it)) {
        for executed in &shown.change.base {
            let place = (executed.sequence, executed.digest);
            claimants
                .entry(place)
                .or_default()
                .insert(shown.change.signer);
        }
    }
    let enough = claimants
        .into_iter()
        .filter(|(_, signers)| signers.len() >= small);
    let certain = enough.map(|((sequence, digest), signers)| CommitCertificate {
        view: View(0),
        sequence,
        digest,
        votes: signers.into_iter().map(unsigned_vote).collect(),
    });
    certain.collect()
}

const fn unsigned_vote(signer: ReplicaId) -> Vote {
    Vote {
        signer,
        signature: UNSIGNED,
    }
}

/// The checkpoints that these show.
pub fn checkpoints<'a>(
    view_changes: impl Iterator<Item = &'a Arc<Envelope>>,
) -> impl Iterator<Item = &'a CheckpointCertificate> {
    view_changes.filter_map(|it| ShownClaims::in_envelope(it)?.claims.stable.as_ref())
}

/// What these let a view begin with, whose messages have this header; nothing if that is not known
/// yet. The epoch's first batch follows upon `start`.
#[must_use]
pub fn choose(
    view_changes: &[Arc<Envelope>],
    start: (Sequence, Digest),
    header: Header,
    rule: Rule,
) -> Option<Choice> {
    let shown: Vec<ShownClaims<'_>> = view_changes
        .iter()
        .filter_map(|it| ShownClaims::in_envelope(it))
        .collect();
    let executed = executed_by(view_changes.iter(), rule.small).pop();
    let stable = checkpoints(view_changes.iter()).max_by_key(|it| it.checkpoint.sequence);
    let stable = stable.map(|it| CommitCertificate {
        view: View(0),
        sequence: it.checkpoint.sequence,
        digest: it.checkpoint.batch,
        votes: it
            .votes
            .iter()
            .map(|vote| unsigned_vote(vote.signer))
            .collect(),
    });
    let base = executed
        .into_iter()
        .chain(stable)
        .max_by_key(|it| it.sequence);
    let mut stands_on = base.as_ref().map_or(start.1, |base| base.digest);
    let mut sequence = base.as_ref().map_or(start.0, |base| base.sequence);
    let mut carried = Vec::new();
    loop {
        sequence = Sequence(sequence.0.checked_add(1)?);
        let mut candidates: Vec<&Arc<Envelope>> = shown
            .iter()
            .filter_map(|it| it.prepared(sequence))
            .collect();
        candidates.sort_by_key(|it| (it.view(), it.digest()));
        if !rule.lowest_view.is_set() {
            candidates.reverse();
        }
        let all = |counts: &dyn Fn(&ShownClaims<'_>) -> bool| {
            shown.iter().filter(|it| counts(it)).count()
        };
        let chosen = candidates.into_iter().find(|proposal| {
            let (digest, view) = (proposal.digest_ref(), proposal.view());
            (rule.lowest_view.is_set()
                || all(&|it| it.compatible(sequence, digest, view)) >= rule.quorum)
                && (rule.without_acceptance.is_set()
                    || all(&|it| it.accepted(sequence, digest, view)) >= rule.small)
        });
        let Some(batch) = chosen.and_then(|proposal| proposal.batch()) else {
            let nothing = all(&|it| it.shows_nothing(sequence)) >= rule.quorum;
            if nothing || rule.without_waiting.is_set() {
                break;
            }
            return None;
        };
        if batch.previous != stands_on {
            break;
        }
        let proposal = unsigned(header, Message::Proposal(batch.clone()));
        stands_on = proposal.digest();
        carried.push(proposal);
    }
    Some(Choice::new(start.0, base, carried))
}

/// How many of the last batches a replica that makes claims has to know: a window, and the one
/// before.
pub const EXECUTED_SHOWN: usize = WINDOW + 1;

#[cfg(test)]
mod tests;
