//! Two proposals for one place.
//!
//! The victims are told the other version consistently, votes included, and so is what follows upon
//! it: with a quorum one vote too small two chains would be decided.

use crate::random::Random;
use quorumfs_bft::identity::{Digest, ReplicaId, Sequence, View};
use quorumfs_bft::wire::frame::Envelope;
use quorumfs_bft::wire::message::Batch;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// What an equivocating leader told whom.
#[derive(Debug)]
pub(super) struct Equivocations {
    victims: BTreeSet<ReplicaId>,
    told: BTreeMap<(View, Sequence), Digest>,
    style: u64,
}

/// Requests that do not belong into a proposal, which everybody is told alike: one that nobody
/// made, and for which no correct replica votes, since its body is nowhere to be had; or one that
/// has been executed, which is voted for and comes to nothing.
#[derive(Debug, Default)]
pub(super) struct Inventions {
    made: usize,
    last: Option<((View, Sequence), Option<Invention>)>,
    heard: VecDeque<Arc<Envelope>>,
}

/// A request that does not belong there, with its body if it has one.
pub(super) type Invention = (Digest, Option<Arc<Envelope>>);

/// How many proposals of a run have one: each may cost a change of view.
const INVENTIONS_MAX: usize = 3;
/// How many requests are remembered.
const HEARD_MAX: usize = 12;

impl Inventions {
    /// A client asked for something.
    pub(super) fn heard(&mut self, request: &Arc<Envelope>) {
        if self.heard.len() >= HEARD_MAX {
            self.heard.pop_front();
        }
        self.heard.push_back(Arc::clone(request));
    }

    /// What is added to this proposal, if anything: the same for everybody.
    pub(super) fn to(
        &mut self,
        view: View,
        batch: &Batch,
        random: &mut Random,
    ) -> Option<Invention> {
        let place = (view, batch.sequence);
        match &self.last {
            Some((known, invention)) if *known == place => invention.clone(),
            _ => {
                let wanted = self.made < INVENTIONS_MAX && random.chance(1, 4);
                let invention = wanted.then(|| self.invent(batch, random));
                self.made += usize::from(wanted);
                self.last = Some((place, invention.clone()));
                invention
            }
        }
    }

    fn invent(&self, batch: &Batch, random: &mut Random) -> Invention {
        let old = self.heard.get(random.index(self.heard.len()));
        let fresh = |request: &&Arc<Envelope>| !batch.requests.contains(&request.digest());
        match old.filter(fresh) {
            Some(request) if random.chance(2, 3) => (request.digest(), Some(Arc::clone(request))),
            _ => (Digest(random.bytes()), None),
        }
    }
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
        let _ = digest;
        // The fork goes on: what the victims have before this is what the twin follows upon.
        let before = Sequence(batch.sequence.0.saturating_sub(1));
        if let Some(told) = self.told(view, before) {
            twin.previous = told;
        }
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
