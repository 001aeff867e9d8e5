//! Which replica has left which view.
//!
//! A replica has left view v when it has suspected v, or has voted for a view above it. Once max(u,
//! r) + 1 replicas have left a view, every other replica leaves it too: one of them is correct, and
//! one of them is up. Of each replica only the highest view counts, so that a latecomer joins the
//! latest view that enough others have reached, without visiting those between.
//!
//! A suspicion counts for a while. A replica that still has it repeats it after every STATUS that
//! shows that it is not known any more.

use super::claims;
use super::vote::bit;
use crate::certificate::CommitCertificate;
use crate::identity::{Monotonic, ReplicaId, View};
use crate::wire::Envelope;
use crate::wire::limits::SUSPICION_LASTS;
use crate::wire::message::Message;
use std::collections::BTreeMap;
use std::sync::Arc;

/// SUSPECTs and VIEW-CHANGEs: the latest of each replica.
#[derive(Clone, Debug, Default)]
pub struct Departures {
    suspects: BTreeMap<ReplicaId, (View, Monotonic)>,
    changes: BTreeMap<ReplicaId, Arc<Envelope>>,
    /// When they came.
    changed_at: BTreeMap<ReplicaId, Monotonic>,
    /// The batches that enough of these VIEW-CHANGEs claim alike to have executed.
    executed: Vec<CommitCertificate>,
}

impl Departures {
    /// A replica suspects a view.
    pub fn suspect(&mut self, signer: ReplicaId, view: View, now: Monotonic) {
        let latest = self.suspects.entry(signer).or_insert((view, now));
        *latest = (*latest).max((view, now));
    }

    /// Whether a replica suspects this view or a later one.
    #[must_use]
    pub fn suspects(&self, signer: ReplicaId, view: View) -> bool {
        let suspected = self.suspects.get(&signer);
        suspected.is_some_and(|(suspected, _)| *suspected >= view)
    }

    /// A replica does not suspect a view any more.
    pub fn withdraw(&mut self, signer: ReplicaId) {
        self.suspects.remove(&signer);
    }

    /// Forgets old suspicions: their authors have withdrawn them by now, or will repeat them.
    pub fn forget_old(&mut self, now: Monotonic) {
        let lasts = SUSPICION_LASTS.0.saturating_mul(2);
        self.suspects
            .retain(|_, (_, since)| now.since(*since).0 < lasts);
    }

    /// A replica votes for a view. Claims count if r + 1 = `small` make them.
    pub fn change(
        &mut self,
        signer: ReplicaId,
        change: &Arc<Envelope>,
        small: usize,
        now: Monotonic,
    ) {
        let latest = self.changes.get(&signer).map(|latest| latest.view());
        if latest.is_none_or(|latest| latest < change.view()) {
            self.changes.insert(signer, Arc::clone(change));
            self.changed_at.insert(signer, now);
            self.executed = claims::executed_by(self.changes.values(), small);
        }
    }

    /// The highest view that a replica has left.
    fn left(&self, replica: ReplicaId) -> Option<View> {
        let suspected = self.suspects.get(&replica).map(|(view, _)| *view);
        let change = self.changes.get(&replica);
        suspected.max(change.map(|change| View(change.view().0.saturating_sub(1))))
    }

    /// The highest view that at least `count` replicas have left.
    #[must_use]
    pub fn left_by(&self, count: usize) -> Option<View> {
        if self.suspects.len() + self.changes.len() < count {
            return None;
        }
        let replicas = self.suspects.keys().chain(self.changes.keys());
        let mut replicas: Vec<ReplicaId> = replicas.copied().collect();
        replicas.sort_unstable();
        replicas.dedup();
        let mut left: Vec<View> = replicas.iter().filter_map(|one| self.left(*one)).collect();
        left.sort_unstable_by(|one, other| other.cmp(one));
        left.get(count.saturating_sub(1)).copied()
    }

    /// The replicas that have left `view`, as a mask.
    #[must_use]
    pub fn leavers(&self, view: View) -> u64 {
        let replicas = self.suspects.keys().chain(self.changes.keys());
        replicas
            .filter(|one| self.left(**one) >= Some(view))
            .fold(0, |mask, one| mask | bit(*one))
    }

    /// The latest VIEW-CHANGE of a replica, if it came before `time`.
    #[must_use]
    pub fn change_of(&self, signer: ReplicaId, time: Monotonic) -> Option<&Arc<Envelope>> {
        let at = self.changed_at.get(&signer);
        self.changes.get(&signer).filter(|_| at < Some(&time))
    }

    /// The VIEW-CHANGEs for `view`, by signer.
    pub fn changes_for(&self, view: View) -> impl Iterator<Item = (ReplicaId, &Arc<Envelope>)> {
        let all = self
            .changes
            .iter()
            .map(|(signer, change)| (*signer, change));
        all.filter(move |(_, change)| change.view() == view)
    }

    /// The commit certificates that VIEW-CHANGEs show, and the batches that enough of them claim.
    pub fn bases(&self) -> impl Iterator<Item = &CommitCertificate> {
        let changes = self.changes.values().map(|change| change.message());
        let shown = changes.flat_map(|change| match change {
            Message::ViewChange(change) if change.claims.is_none() => change.base.as_slice(),
            _ => &[],
        });
        shown.chain(&self.executed)
    }

    /// How many replicas have come to `view` or beyond.
    #[must_use]
    pub fn arrived(&self, view: View) -> usize {
        let changes = self.changes.values();
        changes.filter(|change| change.view() >= view).count()
    }

    /// The replicas whose VIEW-CHANGEs for `view` are here, as a mask.
    #[must_use]
    pub fn changed(&self, view: View) -> u64 {
        self.changes_for(view)
            .fold(0, |mask, (signer, _)| mask | bit(signer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Signature;
    use crate::wire::message::{Message, ViewChange};
    use crate::wire::{Header, Unsigned};

    fn change(signer: u16, view: u64) -> Arc<Envelope> {
        let message = ViewChange {
            signer: ReplicaId(signer),
            base: Vec::new(),
            prepared: Vec::new(),
            claims: None,
        };
        let header = Header {
            view: View(view),
            ..Header::default()
        };
        let unsigned = Unsigned::new(header, Message::ViewChange(message));
        Arc::clone(unsigned.with_signature(Signature::default()).envelope())
    }

    #[test]
    fn one_liar_moves_no_replica_however_high_it_counts() {
        let mut departures = Departures::default();
        departures.suspect(ReplicaId(3), View(u64::MAX), Monotonic(0));
        departures.change(ReplicaId(3), &change(3, u64::MAX), 2, Monotonic(0));
        assert_eq!(departures.left_by(2), None);
        departures.suspect(ReplicaId(1), View(4), Monotonic(0));
        assert_eq!(departures.left_by(2), Some(View(4)));
    }

    /// Otherwise a liar could send each replica another one again and again, and the first would
    /// look as if it had come just now.
    #[test]
    fn of_several_view_changes_for_one_view_the_first_counts() {
        let mut departures = Departures::default();
        let first = change(3, 6);
        departures.change(ReplicaId(3), &first, 2, Monotonic(1));
        departures.change(ReplicaId(3), &change(3, 6), 2, Monotonic(2));
        departures.change(ReplicaId(3), &change(3, 5), 2, Monotonic(3));
        let kept = departures.change_of(ReplicaId(3), Monotonic(2));
        assert!(kept.is_some_and(|kept| Arc::ptr_eq(kept, &first)));
        let later = change(3, 7);
        departures.change(ReplicaId(3), &later, 2, Monotonic(4));
        let kept = departures.change_of(ReplicaId(3), Monotonic(5));
        assert!(kept.is_some_and(|kept| Arc::ptr_eq(kept, &later)));
    }

    #[test]
    fn bad_moments_that_are_far_apart_do_not_add_up() {
        let mut departures = Departures::default();
        let lasts = SUSPICION_LASTS.0 * 2;
        departures.suspect(ReplicaId(1), View(4), Monotonic(0));
        departures.suspect(ReplicaId(2), View(4), Monotonic(lasts - 1));
        departures.forget_old(Monotonic(lasts - 1));
        assert_eq!(departures.left_by(2), Some(View(4)));
        departures.forget_old(Monotonic(lasts));
        assert_eq!(departures.left_by(2), None);
        // A replica that still suspects repeats its suspicion.
        departures.suspect(ReplicaId(1), View(4), Monotonic(lasts));
        assert_eq!(departures.left_by(2), Some(View(4)));
        departures.withdraw(ReplicaId(2));
        assert_eq!(departures.left_by(2), None);
    }

    #[test]
    fn a_view_change_counts_as_a_suspicion_of_every_view_below() {
        let mut departures = Departures::default();
        departures.change(ReplicaId(0), &change(0, 6), 2, Monotonic(0));
        departures.suspect(ReplicaId(1), View(2), Monotonic(0));
        assert_eq!(departures.left_by(2), Some(View(2)));
        departures.change(ReplicaId(1), &change(1, 9), 2, Monotonic(0));
        assert_eq!(departures.left_by(2), Some(View(5)));
        assert_eq!(departures.leavers(View(5)), 0b11);
        assert_eq!(departures.leavers(View(8)), 0b10);
    }
}
