//! The requests of a replica that takes a state over.

use super::peer::{NodeRequest, Peer};
use crate::checkpoint::CheckpointCertificate;
use crate::identity::{Monotonic, Nanos, ReplicaId};
use crate::state::{KeySpace, Path, StateError, Store, Taken};
use crate::step::Token;
use crate::wire::Envelope;
use crate::wire::limits::{
    BLACKLIST_TIME, TRANSFER_NODES_FIRST, TRANSFER_PASS, TRANSFER_PATIENCE, TRANSFER_QUESTIONS_MAX,
    TRANSFER_STUCK, TRANSFER_WAIT, TRANSFER_WAIT_MAX,
};
use crate::wire::message::Nodes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The progress of the end of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Ending {
    /// Nodes are missing, or the checkpoint's batch.
    #[default]
    Open,
    /// The promises beyond the checkpoint are being recorded.
    Recording(Token),
    /// The new root is being written.
    Writing,
}

/// A transfer in progress.
#[derive(Debug)]
pub struct Sink {
    /// The checkpoint's certificate.
    pub target: CheckpointCertificate,
    /// Its batch, with the commit certificate, once it has arrived.
    pub batch: Option<Arc<Envelope>>,
    /// Whether nodes are being written.
    pub writing: bool,
    /// The progress of its end.
    pub ending: Ending,
    peers: BTreeMap<ReplicaId, Peer>,
    /// Whether a peer has reported that this root is not served any more.
    root_gone: bool,
    /// When the last useful node or batch arrived.
    last_arrival: Monotonic,
    turn: usize,
    batch_asked: Option<(ReplicaId, Monotonic)>,
}

/// The result of handling an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Nodes that match their digests.
    pub good: u64,
    /// Nodes that do not.
    pub wrong: u64,
}

impl Sink {
    /// Begins a transfer of this checkpoint's state.
    #[must_use]
    pub fn new(target: CheckpointCertificate, now: Monotonic) -> Self {
        Self {
            target,
            batch: None,
            writing: false,
            ending: Ending::Open,
            peers: BTreeMap::new(),
            root_gone: false,
            last_arrival: now,
            turn: 0,
            batch_asked: None,
        }
    }

    /// The same transfer, of a newer checkpoint. Faulty peers stay marked, and the distances of the
    /// others stay known. A peer that only lacked the older root is asked at once: it may be the
    /// only one to ask, and roots may expire as fast as a replica waits for them.
    #[must_use]
    pub fn retargeted(&self, target: CheckpointCertificate, now: Monotonic) -> Self {
        let known = self
            .peers
            .iter()
            .map(|(id, peer)| (*id, peer.without_requests()));
        Self {
            peers: known.collect(),
            writing: self.writing,
            ..Self::new(target, now)
        }
    }

    /// Whether it would be better to move to a newer checkpoint, if there is one.
    #[must_use]
    pub fn is_stuck(&self, now: Monotonic) -> bool {
        self.root_gone || now.since(self.last_arrival) > TRANSFER_STUCK
    }

    /// Requests to send now: as many to each peer as its distance allows, with the missing nodes
    /// shared among them.
    pub fn next_requests<D: Store>(
        &mut self,
        space: &mut KeySpace<D>,
        peers: &[ReplicaId],
        now: Monotonic,
    ) -> Vec<(ReplicaId, Vec<Path>)> {
        let mut requests = Vec::new();
        let room = |peer: &ReplicaId| {
            let known = self.peers.get(peer);
            known.map_or(1, |known| known.room(now))
        };
        let mut free: Vec<(ReplicaId, usize)> = peers.iter().map(|it| (*it, room(it))).collect();
        free.retain(|(_, room)| *room > 0);
        if !free.is_empty() {
            // Not always the same one first.
            self.turn = (self.turn + 1) % free.len();
            free.rotate_left(self.turn);
        }
        let share = space.import_missing().div_ceil(free.len().max(1));
        for round in 0..TRANSFER_QUESTIONS_MAX {
            for (peer, _) in free.iter().filter(|(_, room)| *room > round) {
                let known = self.peers.get(peer);
                let most = known.map_or(TRANSFER_NODES_FIRST, Peer::nodes_max);
                let paths = space.import_wanted(share.min(most));
                if paths.is_empty() {
                    return requests;
                }
                let open_requests = &mut self.peers.entry(*peer).or_default().open_requests;
                open_requests.push_back(NodeRequest {
                    paths: paths.clone(),
                    at: now,
                    overdue: false,
                });
                requests.push((*peer, paths));
            }
        }
        requests
    }

    /// The peer to ask for the checkpoint's batch now, if it is missing: all peers in turn.
    pub fn next_batch_source(&mut self, peers: &[ReplicaId], now: Monotonic) -> Option<ReplicaId> {
        let longest = self.longest_wait();
        let waits = |(peer, at): (ReplicaId, Monotonic)| {
            let known = self.peers.get(&peer);
            now.since(at) < known.map_or(TRANSFER_WAIT, |it| it.patience().min(longest))
        };
        if self.batch.is_some() || self.batch_asked.is_some_and(waits) {
            return None;
        }
        let last = self.batch_asked.map(|(peer, _)| peer);
        let after = peers.iter().find(|peer| Some(**peer) > last);
        let next = after.or(peers.first()).copied()?;
        self.batch_asked = Some((next, now));
        Some(next)
    }

    /// The longest wait for any peer: several times the response time of the fastest. A liar may be
    /// slow on purpose, and would delay the nodes that it was asked for.
    fn longest_wait(&self) -> Nanos {
        let measured = self.peers.values().filter(|peer| peer.is_measured());
        let quickest = measured.map(Peer::patience).min();
        let quickest = quickest.unwrap_or(TRANSFER_WAIT_MAX);
        Nanos(quickest.0.saturating_mul(TRANSFER_PATIENCE))
    }

    /// Requests overdue nodes from other peers. The request stays open: a later answer has the same
    /// value.
    pub fn overdue<D: Store>(&mut self, space: &mut KeySpace<D>, now: Monotonic) {
        let longest = self.longest_wait();
        for peer in self.peers.values_mut() {
            let patience = peer.patience().min(longest);
            for at in 0..peer.open_requests.len() {
                let request = peer.open_requests.get(at);
                let late = |it: &&NodeRequest| !it.overdue && peer.is_late(it, patience, now);
                if request.filter(late).is_none() {
                    continue;
                }
                if let Some(request) = peer.open_requests.get_mut(at) {
                    space.import_give_back(&request.paths);
                    request.overdue = true;
                }
                peer.silent_until = now.plus(TRANSFER_PASS.max(patience));
            }
            while peer.open_requests.len() > 2 * TRANSFER_QUESTIONS_MAX {
                let oldest = peer.open_requests.pop_front();
                if let Some(lost) = oldest.filter(|it| !it.overdue) {
                    space.import_give_back(&lost.paths);
                }
            }
        }
    }

    /// Handles a peer's answer.
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
        let Some(peer) = self.peers.get_mut(&peer) else {
            return Ok(received);
        };
        let Some(request) = peer.answers(nodes, now) else {
            return Ok(received);
        };
        let mut known = false;
        for (path, node) in &nodes.nodes {
            if !request.paths.contains(path) {
                continue;
            }
            match space.import_take(path, node)? {
                Taken::Good => received.good += 1,
                Taken::Wrong => received.wrong += 1,
                // It arrived from another peer meanwhile.
                Taken::Unasked => known = true,
            }
        }
        if !request.overdue {
            space.import_give_back(&request.paths);
        }
        if received.good > 0 {
            // Any peer's report shows that it is served.
            self.root_gone = false;
            self.last_arrival = now;
        }
        if received.wrong > 0 {
            peer.wrong_until = now.plus(BLACKLIST_TIME);
        } else if nodes.gone || (received.good == 0 && !known) {
            self.root_gone |= nodes.gone;
            peer.without_root_until = now.plus(TRANSFER_PASS);
        }
        Ok(received)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Checkpoint;
    use crate::identity::{Digest, Sequence};
    use crate::state::{Area, DurableRoot, MemoryStore};

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
    fn a_peer_without_the_root_is_asked_for_the_next_one_at_once() {
        let mut space = KeySpace::open(MemoryStore::default()).unwrap();
        let mut sink = Sink::new(target(3), NOW);
        let open_requests = &mut sink.peers.entry(PEER).or_default().open_requests;
        open_requests.push_back(NodeRequest {
            paths: Vec::new(),
            at: NOW,
            overdue: false,
        });
        let nodes = Nodes {
            root: Digest([7; 32]),
            gone: true,
            nodes: Vec::new(),
        };
        sink.answered(&mut space, PEER, &nodes, NOW).unwrap();
        let room = |sink: &Sink| sink.peers[&PEER].room(NOW);
        assert!(sink.is_stuck(NOW) && room(&sink) == 0);
        assert!(room(&sink.retargeted(target(6), NOW)) > 0);
        sink.peers.entry(PEER).or_default().wrong_until = NOW.plus(BLACKLIST_TIME);
        assert_eq!(
            room(&sink.retargeted(target(6), NOW)),
            0,
            "it is marked as faulty"
        );
    }

    const OTHER: ReplicaId = ReplicaId(2);

    fn at(milliseconds: u64) -> Monotonic {
        NOW.plus(Nanos::from_millis(milliseconds))
    }

    /// A durable state of some thousand nodes.
    fn filled() -> (KeySpace<MemoryStore>, DurableRoot) {
        let store = MemoryStore::new();
        let mut space = KeySpace::open_shaped(store.clone(), 0, 120).unwrap();
        let mut txn = space.begin(Area::Service, Sequence(3));
        for row in 0..6_000_u64 {
            let key = blake3::hash(&row.to_be_bytes());
            txn.put(key.as_bytes(), vec![7; 40]).unwrap();
        }
        txn.commit();
        let (batch, root) = space.flush(Sequence(3), Vec::new()).unwrap();
        store.apply(&batch);
        space.flushed(root.sequence);
        (space, root)
    }

    fn begun(root: DurableRoot) -> (KeySpace<MemoryStore>, Sink) {
        let mut target = target(3);
        target.checkpoint.root = root.digest;
        let mut space = KeySpace::open(MemoryStore::default()).unwrap();
        space.begin_import(root, Path::new());
        while space.import_advance().unwrap() {}
        (space, Sink::new(target, NOW))
    }

    fn answer(source: &KeySpace<MemoryStore>, root: DurableRoot, paths: &[Path]) -> Nodes {
        let node = |path: &Path| source.export(&root.digest, path).unwrap().unwrap();
        Nodes {
            root: root.digest,
            gone: false,
            nodes: paths
                .iter()
                .map(|path| (path.clone(), node(path)))
                .collect(),
        }
    }

    #[test]
    fn an_answer_that_is_late_counts_and_the_next_one_is_waited_for() {
        let (source, root) = filled();
        let (mut space, mut sink) = begun(root);
        let first = sink.next_requests(&mut space, &[PEER], NOW);
        sink.overdue(&mut space, at(100));
        let again = sink.next_requests(&mut space, &[PEER], at(120));
        assert!(again.is_empty(), "it is bypassed");
        let nodes = answer(&source, root, &first[0].1);
        let received = sink.answered(&mut space, PEER, &nodes, at(150)).unwrap();
        assert_eq!((received.good, received.wrong), (1, 0));
        while space.import_advance().unwrap() {}
        let next = sink.next_requests(&mut space, &[PEER], at(150));
        assert!(!next.is_empty(), "and it is asked again at once");
        let missing = space.import_missing();
        sink.overdue(&mut space, at(290));
        assert_eq!(space.import_missing(), missing, "nothing is given back yet");
        sink.overdue(&mut space, at(700));
        assert!(space.import_missing() > missing, "but not for ever");
    }

    #[test]
    fn distant_peers_have_several_requests_open_and_near_ones_one() {
        let (source, root) = filled();
        for (trip, most) in [(1, 1), (24, 1), (60, 3), (160, 7), (500, 8)] {
            let (mut space, mut sink) = begun(root);
            let mut open = sink.next_requests(&mut space, &[PEER], NOW);
            let mut now = 0;
            for _ in 0..4 {
                now += trip;
                for (peer, paths) in std::mem::take(&mut open) {
                    let nodes = answer(&source, root, &paths);
                    sink.answered(&mut space, peer, &nodes, at(now)).unwrap();
                }
                while space.import_advance().unwrap() {}
                open = sink.next_requests(&mut space, &[PEER], at(now));
            }
            while space.import_advance().unwrap() {}
            assert!(space.import_missing() > 0, "there would be more to ask");
            assert_eq!(open.len(), most, "at a round trip of {trip} ms");
        }
    }

    #[test]
    fn a_peer_is_not_bypassed_if_its_nodes_came_from_another_one_meanwhile() {
        let (source, root) = filled();
        let (mut space, mut sink) = begun(root);
        let first = sink.next_requests(&mut space, &[PEER, OTHER], NOW);
        let (late, paths) = &first[0];
        sink.overdue(&mut space, at(100));
        let again = sink.next_requests(&mut space, &[PEER, OTHER], at(100));
        assert_eq!(
            (again.len(), &again[0].1),
            (1, paths),
            "the other one is asked"
        );
        let nodes = answer(&source, root, paths);
        assert_eq!(
            sink.answered(&mut space, *late, &nodes, at(130))
                .unwrap()
                .good,
            1
        );
        let other = again[0].0;
        let received = sink.answered(&mut space, other, &nodes, at(140)).unwrap();
        assert_eq!(received, Received::default());
        assert!(sink.peers[&other].room(at(140)) > 0);
        assert!(sink.peers[late].room(at(140)) > 0);
    }

    /// Three peers behind a link that carries a node in `node` milliseconds, one after the other.
    /// Returns how many nodes were sent, and how many there are.
    fn over_a_slow_link(node: u64, trip: u64) -> (usize, usize) {
        let (source, root) = filled();
        let (mut space, mut sink) = begun(root);
        let peers = [PEER, OTHER, ReplicaId(3)];
        let (mut sent, mut good) = (0, 0);
        let mut free_at = 0;
        let mut arriving: BTreeMap<(u64, usize), (ReplicaId, Nodes)> = BTreeMap::new();
        for now in 0..2_000_000 {
            while let Some(first) = arriving.first_entry().filter(|it| it.key().0 <= now) {
                let (peer, nodes) = first.remove();
                let received = sink.answered(&mut space, peer, &nodes, at(now)).unwrap();
                good += usize::try_from(received.good).unwrap();
            }
            while space.import_advance().unwrap() {}
            if space.import_complete() {
                return (sent, good);
            }
            if now % 50 == 0 {
                sink.overdue(&mut space, at(now));
            }
            for (peer, paths) in sink.next_requests(&mut space, &peers, at(now)) {
                sent += paths.len();
                free_at = free_at.max(now + trip) + node * paths.len() as u64;
                arriving.insert((free_at, sent), (peer, answer(&source, root, &paths)));
            }
            if let Some((_, _)) = space.import_write() {
                space.import_written();
            }
        }
        panic!("it did not end: {good} nodes of {sent} that were sent");
    }

    #[test]
    fn over_a_slow_link_little_is_sent_twice() {
        // With nodes of four kilobytes: 256 kbit/s, 1 Mbit/s, 20 Mbit/s.
        for (node, trip) in [(125, 1), (125, 200), (32, 100), (2, 200)] {
            let (sent, needed) = over_a_slow_link(node, trip);
            assert!(
                sent <= needed + needed / 4,
                "{sent} for {needed} of {node} ms, {trip} ms away"
            );
        }
    }

    /// The flaw: a liar that repeated an old answer was waited for until the transfer moved to the
    /// next checkpoint, again and again, with the nodes that it had been asked for.
    #[test]
    fn no_peer_is_waited_for_much_longer_than_the_quickest() {
        let (source, root) = filled();
        let (mut space, mut sink) = begun(root);
        let first = sink.next_requests(&mut space, &[PEER], NOW);
        sink.overdue(&mut space, at(100));
        let other = sink.next_requests(&mut space, &[OTHER], at(100));
        let nodes = answer(&source, root, &first[0].1);
        sink.answered(&mut space, OTHER, &nodes, at(101)).unwrap();
        sink.answered(&mut space, PEER, &nodes, at(1_900)).unwrap();
        assert_eq!((first.len(), other.len()), (1, 1));
        while space.import_advance().unwrap() {}
        let held = sink.next_requests(&mut space, &[PEER], at(2_000));
        let (missing, asked) = (space.import_missing(), held.iter().map(|it| it.1.len()));
        let asked: usize = asked.sum();
        assert!(asked > 0);
        sink.overdue(&mut space, at(2_400));
        assert_eq!(space.import_missing(), missing + asked, "it is given back");
    }
}
