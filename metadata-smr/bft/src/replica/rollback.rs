//! Noticing a journal that was rolled back, by what others show.
//!
//! A disk that was restored from an older copy is consistent in itself: an older journal with an
//! older state. The replica on it has lost its last promises without knowing it, so for the others
//! it is a liar. It cannot find that out by itself. But the receivers of its earlier messages still
//! have them, under its own signature:
//!
//! ```text
//!  STATUS ──► peer: "it does not know this vote of its own" ──► the vote, as it was signed ─┐
//!  fetched batches, NEW-VIEW, VIEW-CHANGEs, checkpoints, records of epochs ─────────────────┤
//!                                                                                           ▼
//!      not in the journal? ──► Incarnation recorded, no vote from here on, `Rejoin` as if it
//!                              had been lost
//! ```
//!
//! # What proves it
//!
//! A message of this replica, in this membership epoch, that its journal would know of if it were
//! whole:
//!
//! | Message | proves it if |
//! |---|---|
//! | PREPARE, COMMIT, VIEW-CHANGE, NEW-VIEW of a view | the view is above the own one |
//! | PREPARE, COMMIT for a sequence, in the own view | it is above the last executed; not known |
//! | CHECKPOINT | its sequence is above the last executed one |
//! | CHECKPOINT in the record of an epoch | the same; of a later epoch, in any case |
//!
//! *No whole journal is taken for one that was rolled back*, whatever any replica shows. These
//! messages leave only when they are durable, and so is everything recorded before them. The order
//! of the records ensures it: the record that makes a view known stands before any message of that
//! view, and COMMITTED(s) before every vote that waited for s. So for each message that has left, a
//! start finds the view, and either the vote itself or that its sequence was executed; a CHECKPOINT
//! leaves when its root is durable, and the last executed sequence is never below the newest root.
//! Views only rise within an epoch. A vote of the own view is forgotten when its sequence is
//! executed, or when a state from others replaces a wrong one, for which a `VoteBarrier` record
//! says up to where; nothing up to there counts as missing, and nothing behind a durable root does.
//! A message that was signed and never became durable has not left. Votes of an earlier incarnation
//! are of earlier epochs than those in which this one votes, and prove nothing to an incarnation
//! that does not vote.
//!
//! Proposals and SUSPECTs leave before they are durable, or never are: they prove nothing. Where
//! votes are not signed, PREPAREs and COMMITs prove nothing either, since any replica can forge
//! one; there r + 1 peers whose STATUS has such a vote of this replica do. One of them is correct.
//!
//! # What is missed
//!
//! An older copy is a prefix of the records, so a missing promise is about the view of the copy or
//! a later one. If it is about a sequence that has been executed meanwhile, it need not be found,
//! and binds no longer: it is a vote for a decided batch, in a view that is not above the own one.
//! Any other promise that a correct replica counted, that replica still has, in its window, in a
//! certificate, or as a VIEW-CHANGE, and shows it when it receives the next STATUS, or when it is
//! asked for batches. A replica that was restarted since knows the votes of others only from the
//! certificates in its journal.
//!
//! # What is guaranteed
//!
//! *Until it has noticed, such a replica is one of the r liars*: its votes may contradict those
//! that it has forgotten. With r = 0 there must be none. It notices within the round trip of a
//! STATUS and its answer, from every peer that it can reach; a copy that is older than a few
//! batches has more to fetch than that before it can vote for anything new, and fetches its own
//! COMMITs. Once it has noticed it does not vote before an epoch has begun with its rejoining, and
//! counts among u until then. It does not wait at its start until all replicas have answered: some
//! may be down for any length of time, and a wait that ends by itself proves nothing. *If more than
//! r are rolled back at once*, those notice for which other replicas have evidence, and operations
//! acknowledged since the copies were made may be lost; all of them together, put back to one
//! moment, notice nothing.
//!
//! Two processes on copies of one disk notice each other in the same way.

use super::Replica;
use crate::certificate::{CommitCertificate, Vote};
use crate::checkpoint::{Checkpoint, CheckpointCertificate};
use crate::identity::{Digest, Incarnation, Monotonic, ReplicaId, Sequence, Signature, View};
use crate::membership::EpochRecord;
use crate::metrics::Voting;
use crate::ordering::slot::{Promise, Slot};
use crate::ordering::vote::bit;
use crate::service::Service;
use crate::state::Store;
use crate::step::{Effect, Effects};
use crate::wire::limits::{RESEND_INTERVAL, WINDOW};
use crate::wire::message::{
    Ballot, CheckpointVote, Kind, Message, NewView, PeerStatus, ViewChange,
};
use crate::wire::{Envelope, Header, Unsigned};
use std::sync::Arc;

/// Rebuilds a message of another replica from its parts.
fn rebuilt(header: Header, message: Message, signature: Signature) -> Arc<Envelope> {
    let unsigned = Unsigned::new(header, message);
    Arc::clone(unsigned.with_signature(signature).envelope())
}

/// The digest that an own PREPARE or COMMIT is for.
fn voted_digest(promise: Option<&Promise>) -> Option<Digest> {
    match promise?.message.message() {
        Message::Prepare(ballot) | Message::Commit(ballot) => Some(ballot.digest),
        _ => None,
    }
}

fn own_vote(slot: &Slot, kind: Kind) -> Option<Digest> {
    voted_digest(match kind {
        Kind::Prepare => slot.own_prepare.as_ref(),
        _ => slot.own_commit.as_ref(),
    })
}

impl<S: Service, D: Store> Replica<S, D> {
    /// Whether the messages of this incarnation in this epoch count, or will.
    fn checks_for_rollback(&self) -> bool {
        self.config.detects_rollback && self.voting_by_membership() == Voting::Abstaining
    }

    /// Checks whether a message shows a promise of this replica that its journal does not hold.
    pub(super) fn check_for_rollback(&mut self, envelope: &Envelope, effects: &mut Effects) {
        if self.shows_forgotten(envelope) && self.checks_for_rollback() {
            self.rolled_back(effects);
        }
    }

    /// The same for votes that r + 1 peers say they have of it, where no message can show them.
    pub(super) fn check_statuses_for_rollback(&mut self, effects: &mut Effects) {
        if self.signs_votes() || self.voting == Voting::Lost {
            return;
        }
        let voters = self.peers.iter().take(self.context.model.replicas().into());
        let known = voters.zip(0..).filter_map(|(peer, index)| {
            let (view, status) = peer.known.as_ref()?;
            (index != self.config.replica.0).then_some((*view, status))
        });
        let know_more = known.filter(|(view, status)| self.has_forgotten(*view, status));
        if know_more.count() >= usize::from(self.context.model.small())
            && self.checks_for_rollback()
        {
            self.rolled_back(effects);
        }
    }

    /// Up to here no promise about a sequence can be missing.
    fn remembered_up_to(&self) -> Sequence {
        self.last_executed.sequence.max(self.vote_barrier)
    }

    fn is_me(&self, signer: ReplicaId) -> bool {
        signer == self.config.replica
    }

    fn signed_by_me(&self, votes: &[Vote]) -> bool {
        votes.iter().any(|vote| self.is_me(vote.signer))
    }

    /// Whether this replica does not know of this vote of its own.
    fn forgot_vote(&self, kind: Kind, view: View, sequence: Sequence, digest: &Digest) -> bool {
        if view != self.views.view || sequence <= self.remembered_up_to() {
            return view > self.views.view;
        }
        let slot = self.window.get(sequence);
        slot.and_then(|slot| own_vote(slot, kind)) != Some(*digest)
    }

    fn forgot_checkpoint(&self, certificate: &CheckpointCertificate) -> bool {
        certificate.checkpoint.sequence > self.remembered_up_to()
            && self.signed_by_me(&certificate.votes)
    }

    fn forgot_committed(&self, certificate: &CommitCertificate) -> bool {
        let (view, sequence) = (certificate.view, certificate.sequence);
        self.signed_by_me(&certificate.votes)
            && self.forgot_vote(Kind::Commit, view, sequence, &certificate.digest)
    }

    fn shows_forgotten(&self, envelope: &Envelope) -> bool {
        if let Message::Epochs(records) = envelope.message() {
            return self.forgot_epochs(records);
        }
        let (header, view) = (envelope.header(), envelope.view());
        if header.epoch != self.context.epoch {
            return false;
        }
        match envelope.message() {
            Message::Checkpoint(CheckpointVote { checkpoint, signer }) => {
                self.is_me(*signer) && checkpoint.sequence > self.remembered_up_to()
            }
            Message::Stable(certificate) => self.forgot_checkpoint(certificate),
            Message::ViewChange(change) => self.forgot_change(view, change),
            Message::NewView(new) => self.forgot_new_view(view, new),
            // Any replica can forge an unsigned message.
            _ if !self.signs_votes() => false,
            Message::Prepare(ballot) => {
                self.is_me(ballot.signer)
                    && self.forgot_vote(Kind::Prepare, view, ballot.sequence, &ballot.digest)
            }
            Message::Commit(ballot) => {
                self.is_me(ballot.signer)
                    && self.forgot_vote(Kind::Commit, view, ballot.sequence, &ballot.digest)
            }
            Message::Committed(committed) => self.forgot_committed(&committed.certificate),
            _ => false,
        }
    }

    fn forgot_new_view(&self, view: View, new: &NewView) -> bool {
        let mut changes = new.view_changes.iter();
        (self.is_me(self.context.leader(view)) && view > self.views.view)
            || changes.any(|change| match change.message() {
                Message::ViewChange(changed) => self.forgot_change(view, changed),
                _ => false,
            })
    }

    fn forgot_change(&self, view: View, change: &ViewChange) -> bool {
        if self.is_me(change.signer) && view > self.views.view {
            return true;
        }
        if let Some(claims) = &change.claims {
            let mut stable = claims.stable.iter();
            return stable.any(|it| self.forgot_checkpoint(it));
        }
        let mut prepared = change.prepared.iter();
        change.base.iter().any(|it| self.forgot_committed(it))
            || prepared.any(|it| {
                let proposal = &it.proposal;
                let sequence = proposal.batch().map(|batch| batch.sequence);
                self.signed_by_me(&it.votes)
                    && sequence.is_some_and(|sequence| {
                        let (view, digest) = (proposal.view(), proposal.digest_ref());
                        self.forgot_vote(Kind::Prepare, view, sequence, digest)
                    })
            })
    }

    fn forgot_epochs(&self, records: &[EpochRecord]) -> bool {
        let mut before = &self.epochs.current;
        for record in records {
            if record.epoch() <= self.context.epoch {
                continue;
            }
            let place = before.place(&self.config.key);
            let votes = &record.certificate.votes;
            let mine = votes.iter().any(|vote| Some(vote.signer) == place);
            let later = before.epoch > self.context.epoch;
            if mine && (later || record.certificate.checkpoint.sequence > self.remembered_up_to()) {
                return true;
            }
            before = &record.membership;
        }
        false
    }

    /// Whether a peer in this view says that it has a vote of this replica that is not known here.
    fn has_forgotten(&self, view: View, status: &PeerStatus) -> bool {
        let me = bit(self.config.replica);
        let sequences = status.committed.0.saturating_add(1)..;
        let later = view > self.views.view && status.view_changes & me != 0;
        let mut open = sequences.map(Sequence).zip(&status.open);
        later
            || open.any(|(sequence, it)| {
                it.proposal.is_some_and(|digest| {
                    let forgot = |kind| self.forgot_vote(kind, view, sequence, &digest);
                    (it.prepares & me != 0 && forgot(Kind::Prepare))
                        || (it.commits & me != 0 && forgot(Kind::Commit))
                })
            })
    }

    /// The messages of this peer that, as its STATUS shows, it does not know of.
    pub(super) fn own_messages_of(
        &self,
        peer: ReplicaId,
        view: View,
        status: &PeerStatus,
    ) -> Vec<Arc<Envelope>> {
        let mut messages = Vec::new();
        // Later messages may have overtaken this STATUS.
        let now = self.now.monotonic;
        let settled = Monotonic(now.0.saturating_sub(RESEND_INTERVAL.0));
        let change = self.views.departures.change_of(peer, settled);
        messages.extend(change.filter(|it| it.view() > view).cloned());
        let header = self.context.header(View(0));
        let behind = status.committed.0.saturating_add(WINDOW as u64);
        for (checkpoint, signature) in self.states.known.unstable_votes_of(peer) {
            if checkpoint.sequence.0 > behind {
                messages.push(rebuilt_checkpoint(header, checkpoint, peer, signature));
            }
        }
        if !self.signs_votes() {
            return messages;
        }
        let first = status.committed.next();
        for slot in self.window.iter().filter(|it| it.sequence >= first) {
            let step = usize::try_from(slot.sequence.0 - first.0);
            let theirs = step.ok().and_then(|step| status.open.get(step));
            let theirs = theirs.copied().unwrap_or_default();
            for (kind, tally, mask) in [
                (Kind::Prepare, &slot.prepares, theirs.prepares),
                (Kind::Commit, &slot.commits, theirs.commits),
            ] {
                let Some((of, digest, signature)) = tally.latest(peer, settled) else {
                    continue;
                };
                let knows = theirs.proposal == Some(digest) && mask & bit(peer) != 0;
                if of > view || (of == view && !knows) {
                    let ballot = Ballot {
                        sequence: slot.sequence,
                        digest,
                        signer: peer,
                    };
                    let message = match kind {
                        Kind::Prepare => Message::Prepare(ballot),
                        _ => Message::Commit(ballot),
                    };
                    messages.push(rebuilt(self.context.header(of), message, signature));
                }
            }
        }
        messages
    }

    /// The journal is older than the one in which this replica made its promises: it counts as
    /// lost.
    fn rolled_back(&mut self, effects: &mut Effects) {
        self.counters.rollbacks_noticed += 1;
        let reason = "other replicas hold messages of this replica that its journal lacks: its \
                      disk was restored from an older copy, or another process runs on a copy of \
                      it. This replica does not vote until the cluster has accepted it as a new \
                      one";
        effects.push(Effect::Alarm {
            reason: reason.to_owned(),
        });
        self.start_new_incarnation(effects);
    }

    /// Takes another incarnation, and does not vote until the membership names that one.
    pub(super) fn start_new_incarnation(&mut self, effects: &mut Effects) {
        let before = self
            .epochs
            .announced(|token| self.journal_writes.durable(token));
        self.epochs.incarnation = match self.epochs.incarnation == self.config.reincarnation {
            // Another one was needed before: only another process on a copy of this disk causes
            // that.
            true => next_incarnation(self.epochs.incarnation),
            false => self.config.reincarnation,
        };
        self.epochs.reborn = true;
        let mark = self.start_mark();
        let token = self.journal_writes.persist(&mark, effects);
        self.epochs.unannounced = Some((token, before));
        self.views.stop(self.views.view);
        self.leave_view();
        self.timers.progressed(effects);
        if self.voting != Voting::Diverged {
            self.voting = self.voting_by_membership();
        }
    }
}

fn rebuilt_checkpoint(
    header: Header,
    checkpoint: Checkpoint,
    signer: ReplicaId,
    signature: Signature,
) -> Arc<Envelope> {
    let vote = CheckpointVote { checkpoint, signer };
    rebuilt(header, Message::Checkpoint(vote), signature)
}

/// An incarnation that no replica has, derived from this one.
fn next_incarnation(incarnation: Incarnation) -> Incarnation {
    let context = "quorumfs 2026 bft incarnation after another";
    let hash = blake3::derive_key(context, &incarnation.0);
    let mut fresh = Incarnation::default();
    let bytes = fresh.0.iter_mut().zip(hash);
    bytes.for_each(|(to, from)| *to = from);
    fresh
}
