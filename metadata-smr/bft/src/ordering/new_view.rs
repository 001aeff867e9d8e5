//! What a view begins with.
//!
//! A pure function of the q VIEW-CHANGEs in a NEW-VIEW, which everybody computes for himself: the
//! highest base among them is where the order continues; of the prepared certificates for the
//! sequence after it the one of the highest view is proposed again, with its old time, and only if
//! there is none may the leader propose what it likes.

use crate::certificate::CommitCertificate;
use crate::identity::{Digest, Sequence};
use crate::wire::Envelope;
use crate::wire::message::Message;
use std::sync::Arc;

/// What a view begins with.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// The last batch that is known to be committed; nothing at genesis.
    pub base: Option<CommitCertificate>,
    /// What has to be proposed right after it, if anything.
    pub carried: Option<Arc<Envelope>>,
}

impl Choice {
    /// The choice that these VIEW-CHANGEs leave.
    #[must_use]
    pub fn of(view_changes: &[Arc<Envelope>]) -> Self {
        let changes = || {
            view_changes
                .iter()
                .filter_map(|envelope| match envelope.message() {
                    Message::ViewChange(change) => Some(change),
                    _ => None,
                })
        };
        let base = changes().filter_map(|change| change.base.as_ref());
        let base = base.max_by_key(|base| base.sequence).cloned();
        let next = base
            .as_ref()
            .map_or(Sequence(0), |base| base.sequence)
            .next();
        let carried = changes()
            .filter_map(|change| change.prepared.as_ref())
            .filter(|it| {
                it.proposal
                    .batch()
                    .is_some_and(|batch| batch.sequence == next)
            })
            .max_by_key(|it| it.proposal.view())
            .map(|it| Arc::clone(&it.proposal));
        Self { base, carried }
    }

    /// The sequence of the base.
    #[must_use]
    pub fn base_sequence(&self) -> Sequence {
        self.base.as_ref().map_or(Sequence(0), |base| base.sequence)
    }

    /// What has to be proposed at `sequence`, if anything.
    #[must_use]
    pub fn carried_at(&self, sequence: Sequence) -> Option<&Arc<Envelope>> {
        self.carried
            .as_ref()
            .filter(|_| sequence == self.base_sequence().next())
    }

    /// Whether `digest` is the one that is carried over to `sequence`.
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
    use crate::identity::{ReplicaId, Signature, Time, View};
    use crate::wire::message::{Batch, ViewChange};
    use crate::wire::{Header, Unsigned};
    use proptest::prelude::*;

    fn at(view: u64) -> Header {
        Header {
            view: View(view),
            ..Header::default()
        }
    }

    fn proposal(view: u64, sequence: u64, time: u64) -> Arc<Envelope> {
        let batch = Batch {
            sequence: Sequence(sequence),
            time: Time(time),
            previous: Digest::default(),
            behaviour_version: 1,
            tick: false,
            requests: Vec::new(),
        };
        let unsigned = Unsigned::new(at(view), Message::Proposal(batch));
        Arc::clone(unsigned.with_signature(Signature::default()).envelope())
    }

    /// base, and the view and content of what is prepared after it
    fn change(signer: u16, base: u64, prepared: Option<(u64, u64)>) -> Arc<Envelope> {
        let base = (base > 0).then(|| CommitCertificate {
            view: View(0),
            sequence: Sequence(base),
            digest: Digest([base as u8; 32]),
            votes: Vec::new(),
        });
        let next = base.as_ref().map_or(0, |base| base.sequence.0) + 1;
        let prepared = prepared.map(|(view, time)| PreparedCertificate {
            proposal: proposal(view, next, time),
            votes: Vec::new(),
        });
        let message = ViewChange {
            signer: ReplicaId(signer),
            base,
            prepared,
        };
        let unsigned = Unsigned::new(at(9), Message::ViewChange(message));
        Arc::clone(unsigned.with_signature(Signature::default()).envelope())
    }

    proptest! {
        #[test]
        fn the_highest_base_counts_and_behind_it_the_highest_view(
            known in proptest::collection::vec(
                (0_u64..3, proptest::option::of((0_u64..9, 0_u64..3))),
                1..5,
            ),
        ) {
            let changes: Vec<_> = known.iter().zip(0..)
                .map(|((base, prepared), signer)| change(signer, *base, *prepared))
                .collect();
            let choice = Choice::of(&changes);
            let base = known.iter().map(|(base, _)| *base).max().unwrap_or(0);
            prop_assert_eq!(choice.base_sequence().0, base);
            let view = known.iter().filter(|(at, _)| *at == base)
                .filter_map(|(_, prepared)| prepared.map(|(view, _)| view)).max();
            prop_assert_eq!(choice.carried.as_ref().map(|it| it.view().0), view);
            let next = Sequence(base + 1);
            prop_assert_eq!(choice.carried_at(next).is_some(), view.is_some());
            prop_assert!(choice.carried_at(next.next()).is_none());
        }
    }
}
