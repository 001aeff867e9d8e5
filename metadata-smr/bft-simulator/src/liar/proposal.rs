//! Two proposals for one sequence.
//!
//! The victims consistently receive the other version, including votes and all later messages: if a
//! quorum were one vote too small, two chains would be decided.

use crate::random::Random;
use quorumfs_bft::identity::{Digest, ReplicaId, Sequence, View};
use quorumfs_bft::wire::frame::Envelope;
use quorumfs_bft::wire::message::Batch;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// The versions that an equivocating leader has sent.
#[derive(Debug)]
pub(super) struct Equivocations {
    victims: BTreeSet<ReplicaId>,
    versions: BTreeMap<(View, Sequence), Digest>,
    style: u64,
}

/// Requests that do not belong in a proposal, the same ones for all replicas: one that no client
/// made, for which no correct replica votes since its body cannot be obtained; or one that has been
/// executed, which is voted for and has no effect.
#[derive(Debug, Default)]
pub(super) struct Inventions {
    made: usize,
    last: Option<((View, Sequence), Option<Invention>)>,
    requests: VecDeque<Arc<Envelope>>,
}

/// A request that does not belong there, with its body if there is one.
pub(super) type Invention = (Digest, Option<Arc<Envelope>>);

/// How many proposals of a run have one: each may cost a view change.
const INVENTIONS_MAX: usize = 3;
/// How many requests are remembered.
const REQUESTS_MAX: usize = 12;

impl Inventions {
    /// Remembers a client's request.
    pub(super) fn remember(&mut self, request: &Arc<Envelope>) {
        if self.requests.len() >= REQUESTS_MAX {
            self.requests.pop_front();
        }
        self.requests.push_back(Arc::clone(request));
    }

    /// The addition to this proposal, if any: the same for all replicas.
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
        let old = self.requests.get(random.index(self.requests.len()));
        let fresh = |request: &&Arc<Envelope>| !batch.requests.contains(&request.digest());
        match old.filter(fresh) {
            Some(request) if random.chance(2, 3) => (request.digest(), Some(Arc::clone(request))),
            _ => (Digest(random.bytes()), None),
        }
    }
}

/// How many sequences are remembered.
const VERSIONS_MAX: usize = 32;

impl Equivocations {
    pub(super) fn new(replicas: u16, random: &mut Random) -> Self {
        let victims = (0..replicas)
            .map(ReplicaId)
            .filter(|_| random.chance(1, 2))
            .collect();
        Self {
            victims,
            versions: BTreeMap::new(),
            style: random.below(3),
        }
    }

    pub(super) fn is_victim(&self, replica: ReplicaId) -> bool {
        self.victims.contains(&replica)
    }

    /// The other version of a batch: the same for all its victims.
    pub(super) fn twin(&self, view: View, batch: &Batch, digest: Digest) -> Batch {
        let mut twin = batch.clone();
        let _ = digest;
        // The fork continues: the twin follows the version that the victims have before this.
        let before = Sequence(batch.sequence.0.saturating_sub(1));
        if let Some(version) = self.version_of(view, before) {
            twin.previous = version;
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

    /// Remembers the version that the victims received.
    pub(super) fn settle(&mut self, view: View, sequence: Sequence, digest: Digest) {
        if self.versions.len() >= VERSIONS_MAX {
            self.versions.pop_first();
        }
        self.versions.insert((view, sequence), digest);
    }

    /// The version that the victims received.
    pub(super) fn version_of(&self, view: View, sequence: Sequence) -> Option<Digest> {
        self.versions.get(&(view, sequence)).copied()
    }
}
