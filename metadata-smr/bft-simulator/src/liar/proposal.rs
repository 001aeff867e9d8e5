//! Two proposals for one place.
//!
//! The victims are told the other version consistently, votes included, so that with a quorum one
//! vote too small both versions would be decided.

use crate::random::Random;
use quorumfs_bft::identity::{Digest, ReplicaId, Sequence, View};
use quorumfs_bft::wire::message::Batch;
use std::collections::{BTreeMap, BTreeSet};

/// What an equivocating leader told whom.
#[derive(Debug)]
pub(super) struct Equivocations {
    victims: BTreeSet<ReplicaId>,
    told: BTreeMap<(View, Sequence), Digest>,
    style: u64,
}

/// How many places are remembered.
const TOLD_MAX: usize = 32;

impl Equivocations {
    pub(super) fn new(replicas: u16, random: &mut Random) -> Self {
        let victims = (0..replicas)
            .map(ReplicaId)
            .filter(|_| random.chance(1, 2))
            .collect();
        Self {
            victims,
            told: BTreeMap::new(),
            style: random.below(3),
        }
    }

    pub(super) fn is_victim(&self, replica: ReplicaId) -> bool {
        self.victims.contains(&replica)
    }

    /// The other version of a batch: the same for everybody who is told it.
    pub(super) fn twin(&self, view: View, batch: &Batch, digest: Digest) -> Batch {
        let mut twin = batch.clone();
        let _ = (view, digest);
        match self.style {
            0 if twin.requests.len() > 1 => twin.requests.reverse(),
            1 if twin.requests.len() > 1 => {
                twin.requests.pop();
            }
            _ => {}
        }
        twin.time.0 = twin.time.0.saturating_add(1);
        twin
    }

    /// Remembers what the victims were told.
    pub(super) fn settle(&mut self, view: View, sequence: Sequence, digest: Digest) {
        if self.told.len() >= TOLD_MAX {
            self.told.pop_first();
        }
        self.told.insert((view, sequence), digest);
    }

    /// What the victims were told.
    pub(super) fn told(&self, view: View, sequence: Sequence) -> Option<Digest> {
        self.told.get(&(view, sequence)).copied()
    }
}
