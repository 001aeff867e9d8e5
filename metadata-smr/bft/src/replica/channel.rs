//! What a replica does differently where votes are not signed; [`crate::ordering::claims`] has the
//! rules and the proof.
//!
//! * It says PROPOSAL, PREPARE and COMMIT without asking for a signature (`promises`).
//! * A proposal that others repeat is taken on r + 1 words.
//! * What a view begins with is taken from its NEW-VIEW, not from a proposal.
//! * What was executed is voted for again, for those who have not: COMMITs cannot be handed on.
//! * Committed batches are taken on r + 1 words, unless it is known otherwise that they are.

use super::Replica;
use crate::certificate::CommitCertificate;
use crate::identity::{Digest, ReplicaId, Sequence, View};
use crate::metrics::Voting;
use crate::ordering::claims::{self, Rule, unsigned};
use crate::ordering::new_view::Choice;
use crate::ordering::slot::Heard;
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

    /// Somebody votes for a view, and shows or claims what it knows.
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
        // What an earlier epoch has signed is no claim in this one.
        let stable = stable.filter(|it| it.checkpoint.sequence > self.epochs.from());
        let mut executed = self.recent.iter();
        claims::view_change(self.config.replica, &mut executed, &self.window, stable)
    }

    /// What a view begins with by these VIEW-CHANGEs; nothing if they do not say.
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

    /// What these VIEW-CHANGEs prove to be committed.
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

    /// Whether a proposal that somebody repeats is its leader's: where it is signed it proves that
    /// itself, elsewhere r + 1 replicas have to say that they took it.
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
            let who = (voters | repeats) & !bit(self.config.replica);
            who.count_ones() as usize >= self.small()
        })
    }

    /// Takes what the NEW-VIEW says that has to be proposed, as far as it is not here yet. The
    /// leader proposes it in its turn, when it has the bodies.
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
            if slot.is_some_and(|slot| slot.proposal.is_none() && slot.heard.is_none()) {
                let heard = Heard {
                    proposal: Arc::clone(carried),
                    directly: true,
                };
                self.consider(&heard, effects);
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

    /// Votes once more for what was executed here: it was proposed again.
    pub(super) fn echo(&mut self, sequence: Sequence, effects: &mut Effects) {
        let Some((_, votes)) = self.executed_votes(sequence) else {
            return;
        };
        let token = Some(self.promises.last_executed());
        let phases = self.has_prepare_phase();
        self.counters.echoes += 1;
        for vote in votes.iter().skip(usize::from(!phases)) {
            self.broadcast(vote, token, effects);
        }
    }

    /// Votes for what the view begins with and was executed here.
    pub(super) fn echo_carried(&mut self, effects: &mut Effects) {
        let first = self.views.choice.base_sequence().next().0;
        for sequence in first
            ..=self
                .tip
                .sequence
                .0
                .min(first.saturating_add(2 * WINDOW as u64))
        {
            self.echo(Sequence(sequence), effects);
        }
    }

    /// The own votes for what a peer has not executed, and this replica has.
    pub(super) fn echoes(
        &self,
        status: &PeerStatus,
        lacking: &mut Vec<(Arc<Envelope>, Option<Token>)>,
    ) {
        let me = bit(self.config.replica);
        let token = Some(self.promises.last_executed());
        let phases = self.has_prepare_phase();
        for step in 0..WINDOW as u64 {
            let sequence = Sequence(status.committed.0.saturating_add(1 + step));
            if sequence > self.tip.sequence {
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

    /// A peer gives a batch as executed. Of each peer one is kept for a sequence.
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

    /// Whether it is known that this was committed, without anybody's word for it now.
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
        let next = self.tip.sequence.next();
        self.vouchers = self.vouchers.split_off(&next);
        let Some(given) = self.vouchers.get(&next) else {
            return Ok(false);
        };
        let committed = |it: &Arc<Envelope>| match it.message() {
            Message::Committed(committed) => Some((**committed).clone()),
            _ => None,
        };
        let believed = given.values().find(|it| {
            let digest = given_as(it);
            let voters = self.context.model.replicas();
            let alike = vouchers(given, voters, |it| given_as(it) == digest);
            let known = |digest: Digest| self.known_committed(next, &digest);
            alike >= self.vouchers_needed() || digest.is_some_and(known)
        });
        let Some(believed) = believed.and_then(committed) else {
            return Ok(false);
        };
        let Committed {
            batch,
            certificate,
            bodies,
        } = believed;
        if batch.previous != self.tip.digest {
            return Ok(false);
        }
        self.vouchers.remove(&next);
        self.deliver(batch, bodies, certificate, true, effects)?;
        Ok(true)
    }

    /// Whether what was executed here is not yet said to be executed by a quorum. With more liars
    /// than failures, whoever is left behind may be too few to end the view, and is helped by this.
    pub(super) fn waits_for_others(&self) -> bool {
        let model = self.context.model;
        if self.signs_votes() || model.right() <= model.up() || model.up() == 0 {
            return false;
        }
        let tip = self.tip.sequence;
        let others = self.peers.iter().zip(0..).filter(|(peer, index)| {
            *index != self.config.replica.0 && peer.committed() >= Some(tip)
        });
        tip > Sequence(0) && others.count() + 1 < usize::from(self.context.quorum)
    }
}

/// What a peer gives as executed.
fn given_as(given: &Envelope) -> Option<Digest> {
    match given.message() {
        Message::Committed(committed) => Some(committed.certificate.digest),
        _ => None,
    }
}

/// Of what a peer has given, keeps so many bytes, and the first one in any case.
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

/// How many voters have given one of these. Of those who only learn any number may lie.
fn vouchers<T>(given: &BTreeMap<ReplicaId, T>, voters: u16, one: impl Fn(&T) -> bool) -> usize {
    let voters = given.range(..ReplicaId(voters));
    voters.filter(|(_, it)| one(it)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_only_learns_vouches_for_nothing() {
        let given = [(0, 'a'), (2, 'b'), (3, 'a'), (4, 'a'), (5, 'a')];
        let given = given.map(|(peer, it)| (ReplicaId(peer), it)).into();
        assert_eq!(vouchers(&given, 4, |it| *it == 'a'), 2);
        assert_eq!(vouchers(&given, 6, |it| *it == 'a'), 4);
    }

    #[test]
    fn of_a_peer_so_many_bytes_are_kept_and_what_comes_next_is() {
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
