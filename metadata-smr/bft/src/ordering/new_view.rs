//! What a view begins with.
//!
//! A pure function of the q VIEW-CHANGEs in a NEW-VIEW, which every replica computes for itself.
//! The order continues at the highest base among them. From there the choice *walks*: at each next
//! sequence it takes, of the prepared certificates shown for it, the one of the highest view, and
//! goes on if that batch names as its predecessor the batch that the walk has reached. At the first
//! sequence without a certificate, or with one that follows upon something else, the walk ends. The
//! batches that it went over are proposed again, each with its old time and digest; beyond them the
//! leader is free. `ordering.rs` proves that nothing beyond can be committed.

use crate::certificate::CommitCertificate;
use crate::identity::{Digest, Sequence};
use crate::sabotage::Flag;
use crate::wire::Envelope;
use crate::wire::message::Message;
use std::sync::Arc;

/// What a view begins with.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Where the epoch begins.
    start: Sequence,
    /// The last batch that is known to be committed; nothing at the beginning of an epoch.
    base: Option<CommitCertificate>,
    /// The batches to propose right after it, in this order.
    carried: Vec<Arc<Envelope>>,
}

impl Choice {
    /// A choice made from claims; see [`super::claims`].
    pub(super) const fn new(
        start: Sequence,
        base: Option<CommitCertificate>,
        carried: Vec<Arc<Envelope>>,
    ) -> Self {
        Self {
            start,
            base,
            carried,
        }
    }

    /// The choice that these VIEW-CHANGEs determine; the epoch's first batch follows upon `start`.
    #[must_use]
    pub fn of(
        view_changes: &[Arc<Envelope>],
        start: (Sequence, Digest),
        lowest_view: Flag,
    ) -> Self {
        let (start, genesis) = start;
        let changes = || {
            let messages = view_changes.iter().map(|envelope| envelope.message());
            messages.filter_map(|message| match message {
                Message::ViewChange(change) => Some(change),
                _ => None,
            })
        };
        let bases = changes().filter_map(|change| change.base.last());
        let base = bases.max_by_key(|base| base.sequence).cloned();
        let mut stands_on = base.as_ref().map_or(genesis, |base| base.digest);
        let mut sequence = base.as_ref().map_or(start, |base| base.sequence);
        let mut carried = Vec::new();
        loop {
            sequence = sequence.next();
            let shown = changes().flat_map(|change| &change.prepared);
            let proposals = shown.filter_map(|it| Some((&it.proposal, it.proposal.batch()?)));
            let here = proposals.filter(|(_, batch)| batch.sequence == sequence);
            let chosen = match lowest_view.is_set() {
                false => here.max_by_key(|(proposal, _)| proposal.view()),
                true => here.min_by_key(|(proposal, _)| proposal.view()),
            };
            let Some((proposal, batch)) = chosen.filter(|(_, it)| it.previous == stands_on) else {
                break;
            };
            let _ = batch;
            stands_on = proposal.digest();
            carried.push(Arc::clone(proposal));
        }
        Self {
            start,
            base,
            carried,
        }
    }

    /// The last batch that is known to be committed.
    #[must_use]
    pub const fn base(&self) -> Option<&CommitCertificate> {
        self.base.as_ref()
    }

    /// The sequence of the base.
    #[must_use]
    pub fn base_sequence(&self) -> Sequence {
        self.base.as_ref().map_or(self.start, |base| base.sequence)
    }

    /// How many batches are carried over.
    #[must_use]
    pub fn length(&self) -> usize {
        self.carried.len()
    }

    /// The batch to propose at `sequence`, if any.
    #[must_use]
    pub fn carried_at(&self, sequence: Sequence) -> Option<&Arc<Envelope>> {
        let step = sequence.0.checked_sub(self.base_sequence().next().0)?;
        self.carried.get(usize::try_from(step).ok()?)
    }

    /// Whether `digest` is carried over to `sequence`.
    #[must_use]
    pub fn carries(&self, sequence: Sequence, digest: &Digest) -> bool {
        self.carried_at(sequence)
            .is_some_and(|carried| carried.digest_ref() == digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificate::PreparedCertificate;
    use crate::identity::{ReplicaId, Signature, View};
    use crate::ordering::chains::{GENESIS, START, at, proposal};
    use crate::wire::Unsigned;
    use crate::wire::message::ViewChange;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn change(base: Option<(u64, Digest)>, prepared: &[Arc<Envelope>]) -> Arc<Envelope> {
        let base = base.map(|(sequence, digest)| CommitCertificate {
            view: View(0),
            sequence: Sequence(sequence),
            digest,
            votes: Vec::new(),
        });
        let prepared = prepared.iter().map(|proposal| PreparedCertificate {
            proposal: Arc::clone(proposal),
            votes: Vec::new(),
        });
        let message = ViewChange {
            signer: ReplicaId(0),
            base: base.into_iter().collect(),
            prepared: prepared.collect(),
            claims: None,
        };
        let unsigned = Unsigned::new(at(9), Message::ViewChange(message));
        Arc::clone(unsigned.with_signature(Signature::default()).envelope())
    }

    fn times(choice: &Choice) -> Vec<u64> {
        let batches = choice.carried.iter().filter_map(|it| it.batch());
        batches.map(|batch| batch.time.0).collect()
    }

    #[test]
    fn a_chain_is_carried_as_far_as_it_follows_upon_itself() {
        let one = proposal(1, 1, GENESIS, 10);
        let two = proposal(1, 2, one.digest(), 20);
        let three = proposal(1, 3, two.digest(), 30);
        let all = change(None, &[one.clone(), two.clone(), three.clone()]);
        assert_eq!(times(&Choice::of(&[all], START, Flag::CLEAR)), [10, 20, 30]);
        // No replica shows the middle: it cannot be committed, nor can a batch that follows upon
        // it.
        let gap = change(None, &[one.clone(), three.clone()]);
        assert_eq!(times(&Choice::of(&[gap], START, Flag::CLEAR)), [10]);
        // A later view has something else in the middle, which only another replica shows.
        let other = proposal(2, 2, one.digest(), 21);
        let changes = [
            change(None, &[one.clone(), two.clone(), three.clone()]),
            change(None, &[one.clone(), other.clone()]),
        ];
        assert_eq!(times(&Choice::of(&changes, START, Flag::CLEAR)), [10, 21]);
        // A batch that a replica has executed is not proposed again, one that follows upon it is.
        let changes = [
            change(Some((2, two.digest())), &[three]),
            change(None, &[one, two]),
        ];
        let choice = Choice::of(&changes, START, Flag::CLEAR);
        assert_eq!((choice.base_sequence().0, times(&choice)), (2, vec![30]));
        assert!(choice.carried_at(Sequence(2)).is_none());
        assert!(choice.carried_at(Sequence(3)).is_some());
        assert!(choice.carried_at(Sequence(4)).is_none());
    }

    #[test]
    fn what_follows_upon_something_else_than_the_base_is_free() {
        let stray = proposal(3, 3, Digest([1; 32]), 30);
        let choice = Choice::of(
            &[change(Some((2, Digest([2; 32]))), &[stray])],
            START,
            Flag::CLEAR,
        );
        assert_eq!((choice.base_sequence().0, choice.length()), (2, 0));
    }

    proptest! {
        /// Random views, each of which continues some chain that the views before it left. In each
        /// view some replicas prepare a part of it, in order. A prefix that q replicas have
        /// prepared may be committed. Whatever q replicas then show, that prefix is carried.
        #[test]
        fn what_q_replicas_hold_is_carried_whatever_each_shows(
            views in proptest::collection::vec(
                (proptest::collection::vec(0_usize..6, 4), any::<u8>()), 1..8,
            ),
        ) {
            const Q: usize = 3;
            let mut held: Vec<BTreeMap<u64, Arc<Envelope>>> = vec![BTreeMap::new(); 4];
            let mut decided: Vec<Digest> = Vec::new();
            for ((lengths, silent), view) in views.iter().zip(1..) {
                let changes: Vec<_> = held.iter().enumerate()
                    .filter(|(replica, _)| *replica != usize::from(*silent) % 4)
                    .map(|(_, held)| {
                        change(None, &held.values().cloned().collect::<Vec<_>>())
                    })
                    .collect();
                let choice = Choice::of(&changes, START, Flag::CLEAR);
                let carried: Vec<Digest> = choice.carried.iter().map(|it| it.digest()).collect();
                prop_assert!(carried.starts_with(&decided), "view {view}");
                // The view's chain: what is carried, then something fresh.
                let mut chain = Vec::new();
                let mut previous = GENESIS;
                for sequence in 1..6 {
                    let old = choice.carried_at(Sequence(sequence)).and_then(|it| it.batch());
                    let time = old.map_or(100 * view + sequence, |batch| batch.time.0);
                    chain.push(proposal(view, sequence, previous, time));
                    previous = chain[chain.len() - 1].digest();
                }
                for (length, held) in lengths.iter().zip(&mut held) {
                    for (proposal, sequence) in chain.iter().zip(1..).take(*length) {
                        held.insert(sequence, Arc::clone(proposal));
                    }
                }
                let mut sorted = lengths.clone();
                sorted.sort_unstable();
                let committed = sorted[4 - Q].min(chain.len());
                if committed > decided.len() {
                    decided = chain.iter().take(committed).map(|it| it.digest()).collect();
                }
            }
        }
    }
}
