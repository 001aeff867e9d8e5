//! Checkpoints: the positions at which replicas agree on the state, not only on the order.
//!
//! # What they are for
//!
//! A checkpoint is the state after a batch whose position follows from the history alone: the first
//! one at which [`CHECKPOINT_BYTES`] of requests or the agreed number of batches (see
//! [`crate::replica::Config`]) have come since the checkpoint before. There every replica settles
//! its tree, makes that root durable, and then signs a CHECKPOINT for it. q equal votes are a
//! *stable* checkpoint: enough correct replicas hold this state durably for everything below it to
//! be forgotten, and for a replica that is too far behind to start from it.
//!
//! # What always holds
//!
//! * A replica votes for a root only when it is durable, and its durable roots are checkpoints.
//! * The next root is written only when the one before is durable and stable. So the stable
//!   checkpoint's root is always one of the last two, which stay readable. A cluster whose
//!   checkpoints do not become stable stops within two intervals of the last that did, instead of
//!   growing: execution waits at the boundary, and no replica votes or proposes beyond it.
//! * A certificate proves that the batch was committed: a correct replica among its signers has
//!   executed it.
//! * Of each replica at most [`VOTES_KEPT`] votes are kept, whatever it sends.
//!
//! # What can go wrong
//!
//! A replica's own root differs from a certificate's: its state is wrong, by a defect or a faulty
//! medium. Votes are so spread that no q can ever agree: the service is not deterministic, or more
//! replicas lie than the model allows. Either way the replica must stop voting and report it
//! ([`Finding`]); with (u, r) = (0, 1) two replicas are run for exactly this.
//!
//! Source: M. Castro and B. Liskov, "Practical Byzantine Fault Tolerance" (1999), §4.3; A. Clement,
//! "UpRight Fault Tolerance" (2010), §5.4 for roots that are durable before they are announced.
//!
//! [`CHECKPOINT_BYTES`]: crate::wire::limits::CHECKPOINT_BYTES

use crate::authentication::{KeyDirectory, Verifier};
use crate::certificate::Vote;
use crate::identity::{Digest, ReplicaId, Sequence, Signature, View};
use crate::wire::frame::Header;
use crate::wire::signed_bytes::checkpoint_bytes;
use crate::wire::{Context, Field, Reader};
use bytes::Bytes;
use std::collections::BTreeMap;

/// Votes kept of one replica. A correct one is at most one checkpoint past the newest that is
/// stable here, and has voted for the one before as well.
pub const VOTES_KEPT: usize = 2;

/// The state after one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Checkpoint {
    /// The batch's sequence.
    pub sequence: Sequence,
    /// The batch.
    pub batch: Digest,
    /// The digest of all rows after it.
    pub root: Digest,
    /// The digest of the membership after it: if that is another one than before, the certificate
    /// is the record of the next epoch.
    pub membership: Digest,
}

/// q replicas hold this state durably.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointCertificate {
    /// The state.
    pub checkpoint: Checkpoint,
    /// The votes, signers ascending.
    pub votes: Vec<Vote>,
}

impl CheckpointCertificate {
    /// Whether q different replicas signed this.
    pub fn verify(
        &self,
        header: Header,
        context: &Context,
        keys: &dyn KeyDirectory,
        verifier: &dyn Verifier,
    ) -> bool {
        let header = header.at(View(0));
        let ascending = self.votes.is_sorted_by(|left, right| {
            left.signer < right.signer
                || (context.duplicates.is_set() && left.signer == right.signer)
        });
        ascending
            && context.certify(self.votes.len(), context.quorum.into())
            && self.votes.iter().all(|vote| {
                let bytes = checkpoint_bytes(&header, &self.checkpoint, vote.signer);
                keys.replica(vote.signer)
                    .is_some_and(|key| verifier.verify(&key, &bytes, &vote.signature))
            })
    }
}

/// The answer to a session that asks for a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointAnswer {
    /// The state after this batch will be a checkpoint.
    At(Sequence),
    /// Its principal may not copy the state, and has no use for a checkpoint.
    Refused,
}

impl CheckpointAnswer {
    /// Encodes it.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut bytes = Vec::with_capacity(9);
        match self {
            Self::At(sequence) => {
                bytes.push(0);
                sequence.write(&mut bytes);
            }
            Self::Refused => bytes.push(1),
        }
        bytes.into()
    }

    /// Decodes it; `None` if the bytes are no answer.
    #[must_use]
    pub fn decode(bytes: &Bytes) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let answer = match reader.get::<u8>("answer").ok()? {
            0 => Self::At(reader.get("sequence").ok()?),
            1 => Self::Refused,
            _ => return None,
        };
        reader.end().ok()?;
        Some(answer)
    }
}

/// What the votes for checkpoints show about the replica that counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// A quorum has another state than this replica at this sequence.
    Alone(Sequence),
    /// No quorum can agree any more on a state at this sequence.
    Split(Sequence),
}

/// The votes of all replicas, and the newest stable checkpoint.
#[derive(Clone, Debug, Default)]
pub struct Checkpoints {
    votes: BTreeMap<ReplicaId, BTreeMap<Checkpoint, Signature>>,
    stable: Option<CheckpointCertificate>,
}

impl Checkpoints {
    /// The newest stable checkpoint.
    #[must_use]
    pub const fn stable(&self) -> Option<&CheckpointCertificate> {
        self.stable.as_ref()
    }

    /// Its sequence; 0 at genesis.
    #[must_use]
    pub fn stable_sequence(&self) -> Sequence {
        let stable = self.stable.as_ref();
        stable.map_or(Sequence(0), |it| it.checkpoint.sequence)
    }

    /// An epoch begins: votes of the one before do not count in it.
    pub fn forget_votes(&mut self) {
        self.votes.clear();
    }

    /// Adds a verified certificate. Whether it is new.
    pub fn learn(&mut self, certificate: &CheckpointCertificate) -> bool {
        let sequence = certificate.checkpoint.sequence;
        let news = sequence > self.stable_sequence();
        if news {
            for votes in self.votes.values_mut() {
                votes.retain(|checkpoint, _| checkpoint.sequence > sequence);
            }
            self.stable = Some(certificate.clone());
        }
        news
    }

    /// Adds a verified vote. Returns the certificate that it completes.
    pub fn add(
        &mut self,
        checkpoint: Checkpoint,
        vote: Vote,
        quorum: usize,
    ) -> Option<CheckpointCertificate> {
        if checkpoint.sequence <= self.stable_sequence() {
            return None;
        }
        let own = self.votes.entry(vote.signer).or_default();
        let contradicts = own.keys().any(|it| it.sequence == checkpoint.sequence);
        if !contradicts {
            own.insert(checkpoint, vote.signature);
        }
        while own.len() > VOTES_KEPT {
            own.pop_first();
        }
        let votes: Vec<Vote> = self
            .votes
            .iter()
            .filter_map(|(signer, votes)| {
                let signature = *votes.get(&checkpoint)?;
                let signer = *signer;
                Some(Vote { signer, signature })
            })
            .collect();
        (votes.len() >= quorum).then_some(CheckpointCertificate { checkpoint, votes })
    }

    /// The votes of a replica for checkpoints that are not stable yet.
    pub fn unstable_votes_of(
        &self,
        signer: ReplicaId,
    ) -> impl Iterator<Item = (Checkpoint, Signature)> {
        let own = self.votes.get(&signer).into_iter().flatten();
        own.map(|(checkpoint, signature)| (*checkpoint, *signature))
    }

    /// What is wrong, if anything, for a replica that has `own` as its state at some checkpoint.
    #[must_use]
    pub fn finding(&self, own: &Checkpoint, replicas: usize, quorum: usize) -> Option<Finding> {
        let sequence = own.sequence;
        if let Some(stable) = self.stable.as_ref().map(|it| it.checkpoint)
            && stable.sequence == sequence
        {
            return (stable != *own).then_some(Finding::Alone(sequence));
        }
        let mut counted: BTreeMap<&Checkpoint, usize> = BTreeMap::new();
        for votes in self.votes.values() {
            for checkpoint in votes.keys().filter(|it| it.sequence == sequence) {
                *counted.entry(checkpoint).or_default() += 1;
            }
        }
        let most = counted.values().copied().max().unwrap_or(0);
        let silent = replicas.saturating_sub(counted.values().sum());
        (counted.len() > 1 && most + silent < quorum).then_some(Finding::Split(sequence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(sequence: u64, root: u8) -> Checkpoint {
        Checkpoint {
            sequence: Sequence(sequence),
            batch: Digest([9; 32]),
            root: Digest([root; 32]),
            membership: Digest([7; 32]),
        }
    }

    fn vote(signer: u16) -> Vote {
        Vote {
            signer: ReplicaId(signer),
            signature: Signature::default(),
        }
    }

    #[test]
    fn only_a_quorum_of_equal_votes_makes_a_checkpoint_stable() {
        let mut all = Checkpoints::default();
        assert!(all.add(state(8, 1), vote(0), 3).is_none());
        assert!(all.add(state(8, 1), vote(0), 3).is_none(), "the same again");
        assert!(all.add(state(8, 2), vote(1), 3).is_none());
        assert!(
            all.add(state(8, 1), vote(1), 3).is_none(),
            "its first vote counts"
        );
        assert!(all.add(state(8, 1), vote(2), 3).is_none());
        let certificate = all.add(state(8, 1), vote(3), 3).expect("three agree");
        assert_eq!(certificate.votes.len(), 3);
        assert!(all.learn(&certificate) && !all.learn(&certificate));
        assert!(all.add(state(8, 1), vote(1), 1).is_none(), "it is past");
    }

    #[test]
    fn a_replica_that_differs_from_a_quorum_finds_out_and_so_do_all_in_a_split() {
        let mut two = Checkpoints::default();
        two.add(state(8, 1), vote(0), 2);
        assert_eq!(two.finding(&state(8, 1), 2, 2), None);
        two.add(state(8, 2), vote(1), 2);
        let split = Some(Finding::Split(Sequence(8)));
        assert_eq!(two.finding(&state(8, 1), 2, 2), split);

        let mut four = Checkpoints::default();
        for signer in 0..2 {
            four.add(state(8, 1), vote(signer), 3);
        }
        four.add(state(8, 2), vote(2), 3);
        assert_eq!(
            four.finding(&state(8, 2), 4, 3),
            None,
            "the fourth may decide"
        );
        let certificate = four.add(state(8, 1), vote(3), 3).expect("three agree");
        four.learn(&certificate);
        let alone = Some(Finding::Alone(Sequence(8)));
        assert_eq!(four.finding(&state(8, 2), 4, 3), alone);
        assert_eq!(four.finding(&state(8, 1), 4, 3), None);
    }

    #[test]
    fn no_replica_fills_the_memory_or_evicts_the_votes_of_others() {
        let mut all = Checkpoints::default();
        all.add(state(8, 1), vote(0), 3);
        for sequence in 9..1000 {
            all.add(state(sequence, 1), vote(1), 3);
        }
        assert!(all.votes.values().all(|votes| votes.len() <= VOTES_KEPT));
        assert!(all.votes[&ReplicaId(0)].contains_key(&state(8, 1)));
    }
}
