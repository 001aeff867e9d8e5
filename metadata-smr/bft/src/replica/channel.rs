//! How a replica behaves differently where votes are not signed; [`crate::ordering::claims`] has
//! the rules and the proof.
//!
//! * It sends PROPOSAL, PREPARE and COMMIT without asking for a signature (`persist_before_send`).
//! * A repeated proposal is accepted once r + 1 replicas vouch for it.
//! * What a view begins with is taken from its NEW-VIEW, not from a proposal.
//! * Executed batches are voted for again, for replicas that lack them: COMMITs cannot be passed
//!   on.
//! * Committed batches are accepted once r + 1 replicas give them, or if they are known to be
//!   committed.

use super::Replica;
use crate::certificate::CommitCertificate;
use crate::identity::{Digest, ReplicaId, Sequence, View};
use crate::metrics::Voting;
use crate::ordering::claims::{self, Rule, unsigned};
use crate::ordering::new_view::Choice;
use crate::ordering::slot::ReceivedProposal;
use crate::ordering::vote::bit;
use crate::sabotage::Sabotage;
use crate::service::Service;
use crate::state::{StateError, Store};
use crate::step::{Effects, Peer, Token};
use crate::wire::Envelope;
use crate::wire::limits::{VOUCHED_BYTES_MAX, WINDOW};
use crate::wire::message::{Ballot, Committed, Message, PeerStatus, ViewChange};
use std::collections::BTreeMap;
use std::sync::Arc;

impl<S: Service, D: Store> Replica<S, D> {
    /// Whether votes are signed here.
    pub(super) const fn signs_votes(&self) -> bool {
        self.context.authentication.signs_votes()
    }

    fn small(&self) -> usize {
        self.context.model.small().into()
    }

    /// How many peers have to give a batch as executed.
    pub(super) fn vouchers_needed(&self) -> usize {
        match self.signs_votes() || self.sabotaged(Sabotage::OneVoucher) {
            true => 1,
            false => self.small(),
        }
    }

    /// A replica votes for a view, and shows or claims what it knows.
    pub(super) fn note_change(
        &mut self,
        signer: ReplicaId,
        change: &Arc<Envelope>,
        effects: &mut Effects,
    ) {
        let small = self.small();
        let now = self.now.monotonic;
        self.views.departures.change(signer, change, small, now);
        let stable = claims::checkpoints(std::iter::once(change)).next();
        if let Some(stable) = stable.cloned() {
            self.stable(&stable, effects);
        }
    }

    /// What a VIEW-CHANGE of this replica claims now.
    pub(super) fn claims(&self) -> ViewChange {
        let stable = self.states.known.stable();
        // A certificate of an earlier epoch is no claim in this one.
        let stable = stable.filter(|it| it.checkpoint.sequence > self.epochs.from());
        let mut executed = self.recent.iter();
        claims::view_change(self.config.replica, &mut executed, &self.window, stable)
    }

    /// What a view begins with by these VIEW-CHANGEs; `None` if they do not determine it.
    pub(super) fn begins_with(&self, view_changes: &[Arc<Envelope>], view: View) -> Option<Choice> {
        let lowest_view = self.config.sabotage.flag(Sabotage::LockOnLowerView);
        let start = (self.epochs.from(), self.epochs.start);
        if self.signs_votes() {
            return Some(Choice::of(view_changes, start, lowest_view));
        }
        let rule = Rule {
            quorum: self.context.quorum.into(),
            small: self.small(),
            without_acceptance: self.config.sabotage.flag(Sabotage::ClaimNotAccepted),
            without_waiting: self.config.sabotage.flag(Sabotage::NothingInsteadOfWaiting),
            lowest_view,
        };
        claims::choose(view_changes, start, self.context.header(view), rule)
    }

    /// The batches that these VIEW-CHANGEs prove to be committed.
    pub(super) fn shown_by(&self, view_changes: &[Arc<Envelope>]) -> Vec<CommitCertificate> {
        if !self.signs_votes() {
            return claims::executed_by(view_changes.iter(), self.small());
        }
        let changes = view_changes.iter().map(|change| change.message());
        let shown = changes.flat_map(|change| match change {
            Message::ViewChange(change) => change.base.as_slice(),
            _ => &[],
        });
        shown.cloned().collect()
    }

    /// Whether a repeated proposal is its leader's. A signed one proves it itself; otherwise r + 1
    /// replicas have to say that they accepted it.
    pub(super) fn vouched(&self, from: Peer, proposal: &Envelope) -> bool {
        if self.signs_votes() {
            return true;
        }
        let (Peer::Replica(from), Some(batch)) = (from, proposal.batch()) else {
            return false;
        };
        let view = proposal.view();
        if view != self.views.view || !self.views.active() {
            return false;
        }
        let digest = proposal.digest();
        self.window.get(batch.sequence).is_some_and(|slot| {
            let voters = slot.prepares.mask(view, &digest) | slot.commits.mask(view, &digest);
            let repeats = match from.0 < self.context.model.replicas() {
                true => bit(from),
                false => 0,
            };
            let supporters = (voters | repeats) & !bit(self.config.replica);
            supporters.count_ones() as usize >= self.small()
        })
    }

    /// Accepts the proposals that the NEW-VIEW prescribes, as far as they are not here yet. The
    /// leader proposes them in its turn, when it has the bodies.
    pub(super) fn take_carried(&mut self, effects: &mut Effects) {
        if self.signs_votes() || self.leader() == self.config.replica {
            return;
        }
        let open = self.window.open();
        for step in 0..WINDOW as u64 {
            let sequence = Sequence(open.0.saturating_add(step));
            let Some(carried) = self.views.choice.carried_at(sequence) else {
                continue;
            };
            let slot = self.window.get(sequence);
            if slot.is_some_and(|slot| slot.proposal.is_none() && slot.received.is_none()) {
                let received = ReceivedProposal {
                    proposal: Arc::clone(carried),
                    directly: true,
                };
                self.consider(&received, effects);
            }
        }
    }

    /// The digest of one of the last batches that were executed here.
    fn executed_at(&self, sequence: Sequence) -> Option<Digest> {
        let mut recent = self.recent.iter().rev();
        let here = recent.find(|it| it.sequence == sequence);
        here.map(|it| it.digest)
    }

    /// The votes for a batch that was executed here, in the view that this replica is in.
    fn executed_votes(&self, sequence: Sequence) -> Option<(Digest, [Arc<Envelope>; 2])> {
        if self.signs_votes() || self.voting != Voting::Voting || !self.views.active() {
            return None;
        }
        let digest = self.executed_at(sequence)?;
        let ballot = Ballot {
            sequence,
            digest,
            signer: self.config.replica,
        };
        let header = self.context.header(self.views.view);
        let prepare = unsigned(header, Message::Prepare(ballot));
        let commit = unsigned(header, Message::Commit(ballot));
        Some((digest, [prepare, commit]))
    }

    /// Votes again for a batch that was executed here: it was proposed again.
    pub(super) fn echo(&mut self, sequence: Sequence, effects: &mut Effects) {
        let Some((_, votes)) = self.executed_votes(sequence) else {
            return;
        };
        let token = Some(self.journal_writes.last_executed());
        let phases = self.has_prepare_phase();
        self.counters.echoes += 1;
        for vote in votes.iter().skip(usize::from(!phases)) {
            self.broadcast(vote, token, effects);
        }
    }

    /// Votes for carried batches that were executed here.
    pub(super) fn echo_carried(&mut self, effects: &mut Effects) {
        let first = self.views.choice.base_sequence().next().0;
        for sequence in first
            ..=self
                .last_executed
                .sequence
                .0
                .min(first.saturating_add(2 * WINDOW as u64))
        {
            self.echo(Sequence(sequence), effects);
        }
    }

    /// The own votes for batches that this replica has executed, and the peer has not.
    pub(super) fn echoes(
        &self,
        status: &PeerStatus,
        lacking: &mut Vec<(Arc<Envelope>, Option<Token>)>,
    ) {
        let me = bit(self.config.replica);
        let token = Some(self.journal_writes.last_executed());
        let phases = self.has_prepare_phase();
        for step in 0..WINDOW as u64 {
            let sequence = Sequence(status.committed.0.saturating_add(1 + step));
            if sequence > self.last_executed.sequence {
                return;
            }
            let Some((digest, [prepare, commit])) = self.executed_votes(sequence) else {
                continue;
            };
            let theirs = usize::try_from(step)
                .ok()
                .and_then(|step| status.open.get(step));
            let theirs = theirs.copied().unwrap_or_default();
            let same = theirs.proposal == Some(digest);
            if phases && (!same || theirs.prepares & me == 0) {
                lacking.push((prepare, token));
            }
            if !same || theirs.commits & me == 0 {
                lacking.push((commit, token));
            }
        }
    }

    /// A peer gives a batch as executed. One per peer and sequence is kept.
    pub(super) fn voucher(
        &mut self,
        peer: ReplicaId,
        sequence: Sequence,
        envelope: &Arc<Envelope>,
    ) {
        let given = self.vouchers.entry(sequence).or_default();
        let mut known = given.values();
        let same = known.find(|it| given_as(it) == given_as(envelope)).cloned();
        given.insert(peer, same.unwrap_or_else(|| Arc::clone(envelope)));
        bound(&mut self.vouchers, peer, |it| it.frame().len());
    }

    /// Whether this is known to be committed without vouchers.
    fn known_committed(&self, sequence: Sequence, digest: &Digest) -> bool {
        let slot = self.window.lowest();
        let decided = slot.commits.decided(self.context.quorum.into());
        let here = slot.sequence == sequence && decided.is_some_and(|it| it.1 == *digest);
        let mut shown = self.views.shown.iter().chain(self.views.departures.bases());
        let stable = self.states.known.stable().map(|it| it.checkpoint);
        here || shown.any(|it| it.sequence == sequence && it.digest == *digest)
            || stable.is_some_and(|it| it.sequence == sequence && it.batch == *digest)
    }

    /// Executes the next batch if enough peers have given it. Whether it did.
    pub(super) fn advance_vouched(&mut self, effects: &mut Effects) -> Result<bool, StateError> {
        let next = self.last_executed.sequence.next();
        self.vouchers = self.vouchers.split_off(&next);
        let Some(given) = self.vouchers.get(&next) else {
            return Ok(false);
        };
        let committed = |it: &Arc<Envelope>| match it.message() {
            Message::Committed(committed) => Some((**committed).clone()),
            _ => None,
        };
        let executed = given.values().find(|it| {
            let digest = given_as(it);
            let voters = self.context.model.replicas();
            let alike = vouchers(given, voters, |it| given_as(it) == digest);
            let known = |digest: Digest| self.known_committed(next, &digest);
            alike >= self.vouchers_needed() || digest.is_some_and(known)
        });
        let Some(executed) = executed.and_then(committed) else {
            return Ok(false);
        };
        let Committed {
            batch,
            certificate,
            bodies,
        } = executed;
        if batch.previous != self.last_executed.digest {
            return Ok(false);
        }
        self.vouchers.remove(&next);
        self.deliver(batch, bodies, certificate, true, effects)?;
        Ok(true)
    }

    /// Whether a quorum does not yet say that it has executed the last batch executed here. With
    /// more liars than failures, the replicas left behind may be too few to end the view, and this
    /// helps them.
    pub(super) fn waits_for_others(&self) -> bool {
        let model = self.context.model;
        if self.signs_votes() || model.right() <= model.up() || model.up() == 0 {
            return false;
        }
        let last = self.last_executed.sequence;
        let others = self.peers.iter().zip(0..).filter(|(peer, index)| {
            *index != self.config.replica.0 && peer.committed() >= Some(last)
        });
        last > Sequence(0) && others.count() + 1 < usize::from(self.context.quorum)
    }
}

/// The batch that a peer gives as executed.
fn given_as(given: &Envelope) -> Option<Digest> {
    match given.message() {
        Message::Committed(committed) => Some(committed.certificate.digest),
        _ => None,
    }
}

/// Of the batches that a peer has given, keeps a bounded number of bytes, and the first one always.
fn bound<T>(
    given: &mut BTreeMap<Sequence, BTreeMap<ReplicaId, T>>,
    peer: ReplicaId,
    length: impl Fn(&T) -> usize,
) {
    let mut bytes = 0;
    for given in given.values_mut() {
        let more = given.get(&peer).map_or(0, &length);
        if bytes > 0 && bytes + more > VOUCHED_BYTES_MAX {
            given.remove(&peer);
        }
        bytes += more;
    }
}

/// How many voters have given one of these. Of the others, which only learn, any number may lie.
fn vouchers<T>(given: &BTreeMap<ReplicaId, T>, voters: u16, one: impl Fn(&T) -> bool) -> usize {
    let voters = given.range(..ReplicaId(voters));
    voters.filter(|(_, it)| one(it)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_that_only_learns_does_not_vouch() {
        let given = [(0, 'a'), (2, 'b'), (3, 'a'), (4, 'a'), (5, 'a')];
        let given = given.map(|(peer, it)| (ReplicaId(peer), it)).into();
        assert_eq!(vouchers(&given, 4, |it| *it == 'a'), 2);
        assert_eq!(vouchers(&given, 6, |it| *it == 'a'), 4);
    }

    #[test]
    fn the_bytes_kept_of_a_peer_are_bounded_and_its_next_batch_is_kept() {
        let (liar, other) = (ReplicaId(2), ReplicaId(1));
        let most = VOUCHED_BYTES_MAX / 3;
        let both = BTreeMap::from([(liar, most), (other, 1)]);
        let all = (1..=32).map(|it| (Sequence(it), both.clone()));
        let mut given: BTreeMap<_, _> = all.collect();
        bound(&mut given, liar, |it| *it);
        let kept = |peer| given.values().filter(|it| it.contains_key(&peer)).count();
        assert_eq!((kept(liar), kept(other)), (3, 32));
        let first = given
            .first_entry()
            .map(|mut it| it.get_mut().insert(liar, 5 * most));
        assert!(first.is_some());
        bound(&mut given, liar, |it| *it);
        let kept: Vec<_> = given.values().map(|it| it.contains_key(&liar)).collect();
        assert_eq!(kept.iter().position(|it| !it), Some(1));
        assert_eq!(kept.iter().filter(|it| **it).count(), 1);
    }
}
