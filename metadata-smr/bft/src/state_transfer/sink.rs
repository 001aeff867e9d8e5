//! Whom a replica asks for what while it takes a state over.

use crate::checkpoint::CheckpointCertificate;
use crate::identity::{Monotonic, ReplicaId};
use crate::state::{KeySpace, Path, StateError, Store, Taken};
use crate::step::Token;
use crate::wire::Envelope;
use crate::wire::limits::{
    PAROLE, TRANSFER_NODES_MAX, TRANSFER_PASS, TRANSFER_STUCK, TRANSFER_WAIT,
};
use crate::wire::message::Nodes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How far the end of a transfer has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Ending {
    /// Nodes are missing, or the checkpoint's batch.
    #[default]
    Open,
    /// What was promised beyond the checkpoint is being recorded.
    Recording(Token),
    /// The new root is being written.
    Writing,
}

/// A transfer under way.
#[derive(Debug)]
pub struct Sink {
    /// The checkpoint, and the proof of it.
    pub target: CheckpointCertificate,
    /// Its batch, with the commit certificate, once it has come.
    pub batch: Option<Arc<Envelope>>,
    /// Whether nodes are being written.
    pub writing: bool,
    /// How far its end has come.
    pub ending: Ending,
    asked: BTreeMap<ReplicaId, (Vec<Path>, Monotonic)>,
    passed_over: BTreeMap<ReplicaId, Monotonic>,
    /// Who does not have this root, and until when nothing of it is asked there again.
    without: BTreeMap<ReplicaId, Monotonic>,
    /// Whether somebody has said that this root is not served any more.
    gone: bool,
    /// When something useful came last.
    came: Monotonic,
    turn: usize,
    batch_asked: Option<(ReplicaId, Monotonic)>,
}

/// What came of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Nodes that are what they have to be.
    pub good: u64,
    /// Nodes that are not.
    pub wrong: u64,
}

impl Sink {
    /// A transfer of this checkpoint's state that begins now.
    #[must_use]
    pub fn new(target: CheckpointCertificate, now: Monotonic) -> Self {
        Self {
            target,
            batch: None,
            writing: false,
            ending: Ending::Open,
            asked: BTreeMap::new(),
            passed_over: BTreeMap::new(),
            without: BTreeMap::new(),
            gone: false,
            came: now,
            turn: 0,
            batch_asked: None,
        }
    }

    /// The same transfer, of a newer checkpoint. Who was found out is not forgotten; whoever only
    /// had the older root no more is asked at once: it may be the only one to ask, and roots may go
    /// as fast as one waits for it.
    #[must_use]
    pub fn moved(&self, target: CheckpointCertificate, now: Monotonic) -> Self {
        Self {
            passed_over: self.passed_over.clone(),
            writing: self.writing,
            ..Self::new(target, now)
        }
    }

    /// Whether it would be better to go over to a newer checkpoint, if there is one.
    #[must_use]
    pub fn stuck(&self, now: Monotonic) -> bool {
        self.gone || now.since(self.came) > TRANSFER_STUCK
    }

    /// Who may be asked now.
    fn eligible(&self, peer: ReplicaId, now: Monotonic) -> bool {
        let passed = [self.passed_over.get(&peer), self.without.get(&peer)];
        passed.into_iter().flatten().all(|until| *until <= now)
    }

    /// Questions to ask now: at most one a peer is open, and all have a share in what is missing.
    pub fn questions<D: Store>(
        &mut self,
        space: &mut KeySpace<D>,
        peers: &[ReplicaId],
        now: Monotonic,
    ) -> Vec<(ReplicaId, Vec<Path>)> {
        let mut questions = Vec::new();
        let free = |peer: &&ReplicaId| !self.asked.contains_key(peer) && self.eligible(**peer, now);
        let mut free: Vec<ReplicaId> = peers.iter().filter(free).copied().collect();
        if !free.is_empty() {
            // Not the same one first all the time.
            self.turn = (self.turn + 1) % free.len();
            free.rotate_left(self.turn);
        }
        let share = space.import_missing().div_ceil(free.len().max(1));
        for peer in free {
            let paths = space.import_wanted(share.min(TRANSFER_NODES_MAX));
            if paths.is_empty() {
                break;
            }
            self.asked.insert(peer, (paths.clone(), now));
            questions.push((peer, paths));
        }
        questions
    }

    /// Whom to ask for the checkpoint's batch now, if it is missing: everybody in turn.
    pub fn batch_question(&mut self, peers: &[ReplicaId], now: Monotonic) -> Option<ReplicaId> {
        let waits = |(_, at): (ReplicaId, Monotonic)| now.since(at) < TRANSFER_WAIT;
        if self.batch.is_some() || self.batch_asked.is_some_and(waits) {
            return None;
        }
        let last = self.batch_asked.map(|(peer, _)| peer);
        let after = peers.iter().find(|peer| Some(**peer) > last);
        let next = after.or(peers.first()).copied()?;
        self.batch_asked = Some((next, now));
        Some(next)
    }

    /// What was not answered in time is asked of others.
    pub fn overdue<D: Store>(&mut self, space: &mut KeySpace<D>, now: Monotonic) {
        let late = |(_, at): &(Vec<Path>, Monotonic)| now.since(*at) >= TRANSFER_WAIT;
        let silent: Vec<_> = self.asked.extract_if(.., |_, asked| late(asked)).collect();
        for (peer, (paths, _)) in silent {
            space.import_give_back(&paths);
            self.passed_over.insert(peer, now.plus(TRANSFER_PASS));
        }
    }

    /// A peer has answered.
    ///
    /// # Errors
    /// If the own store fails.
    pub fn answered<D: Store>(
        &mut self,
        space: &mut KeySpace<D>,
        peer: ReplicaId,
        nodes: &Nodes,
        now: Monotonic,
    ) -> Result<Received, StateError> {
        let mut received = Received::default();
        if nodes.root != self.target.checkpoint.root {
            return Ok(received);
        }
        let Some((paths, _)) = self.asked.remove(&peer) else {
            return Ok(received);
        };
        for (path, node) in &nodes.nodes {
            if !paths.contains(path) {
                continue;
            }
            match space.import_take(path, node)? {
                Taken::Good => received.good += 1,
                Taken::Wrong => received.wrong += 1,
                Taken::Unasked => {}
            }
        }
        space.import_give_back(&paths);
        if received.good > 0 {
            // Whatever one of them says: it is served.
            self.gone = false;
            self.came = now;
        }
        if received.wrong > 0 {
            self.passed_over.insert(peer, now.plus(PAROLE));
        } else if nodes.gone || received.good == 0 {
            self.gone |= nodes.gone;
            self.without.insert(peer, now.plus(TRANSFER_PASS));
        }
        Ok(received)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Checkpoint;
    use crate::identity::{Digest, Sequence};
    use crate::state::MemoryStore;

    const NOW: Monotonic = Monotonic(0);
    const PEER: ReplicaId = ReplicaId(1);

    fn target(sequence: u64) -> CheckpointCertificate {
        let checkpoint = Checkpoint {
            sequence: Sequence(sequence),
            batch: Digest::default(),
            root: Digest([7; 32]),
            membership: Digest::default(),
        };
        let votes = Vec::new();
        CheckpointCertificate { checkpoint, votes }
    }

    #[test]
    fn whoever_has_a_root_no_more_is_asked_for_the_next_one_at_once() {
        let mut space = KeySpace::open(MemoryStore::default()).unwrap();
        let mut sink = Sink::new(target(3), NOW);
        sink.asked.insert(PEER, (Vec::new(), NOW));
        let nodes = Nodes {
            root: Digest([7; 32]),
            gone: true,
            nodes: Vec::new(),
        };
        sink.answered(&mut space, PEER, &nodes, NOW).unwrap();
        assert!(sink.stuck(NOW) && !sink.eligible(PEER, NOW));
        assert!(sink.moved(target(6), NOW).eligible(PEER, NOW));
        sink.passed_over.insert(PEER, NOW.plus(PAROLE));
        assert!(
            !sink.moved(target(6), NOW).eligible(PEER, NOW),
            "it was found out"
        );
    }
}
