//! Copies of the state by clients: over a cluster whose replicas may lie, crash and move on.

use super::cluster::{CLUSTER, FakeVerifier, TestCluster, replica_key};
use crate::checkpoint::CheckpointCertificate;
use crate::identity::{
    ConnectionId, Digest, Incarnation, Monotonic, PublicKey, ReplicaId, Sequence, SessionId, View,
};
use crate::membership::{EpochChain, Member, Membership};
use crate::state::{Area, BornRow, MemoryStore};
use crate::state_copy::{CopyOutcome, Effect, Effects, Event, OpenError, StateCopy, Unproved};
use crate::step::{Event as ReplicaEvent, Peer};
use crate::wire::encode;
use crate::wire::limits::{SERVE_BURST_BYTES, SERVE_BYTES_MIN};
use crate::wire::message::{FetchCopy, Message};
use bytes::Bytes;

/// A connection that is no client's.
const CONNECTION: u64 = 700;

fn genesis(cluster: &TestCluster) -> Membership {
    let member = |number| Member {
        key: replica_key(ReplicaId(number)),
        incarnation: Incarnation::default(),
        address: Bytes::new(),
        since: Sequence(0),
    };
    let voters = (0..cluster.model.replicas()).map(member).collect();
    Membership::genesis(cluster.model, voters, Vec::new())
}

type Lie = Box<dyn FnMut(usize, Message) -> Option<Message>>;

/// A client's copy with its driver.
struct TestCopy {
    copy: StateCopy<MemoryStore>,
    store: MemoryStore,
    effects: Effects,
    outcome: Option<CopyOutcome>,
    needs_checkpoint: bool,
    /// What becomes of the messages of replicas.
    lie: Option<Lie>,
    /// Nodes that came.
    nodes: usize,
    /// No more come after so many.
    nodes_max: usize,
}

impl TestCopy {
    fn open(cluster: &TestCluster, store: MemoryStore) -> Self {
        let memberships = (genesis(cluster), None);
        let copy = StateCopy::open(store.clone(), CLUSTER, memberships, &FakeVerifier);
        Self {
            copy: copy.expect("sound"),
            store,
            effects: Effects::default(),
            outcome: None,
            needs_checkpoint: false,
            lie: None,
            nodes: 0,
            nodes_max: usize::MAX,
        }
    }

    fn step(&mut self, cluster: &TestCluster, event: Event) {
        let now = Monotonic(cluster.now);
        let effects = &mut self.effects;
        let stepped = self.copy.step(now, event, &FakeVerifier, effects);
        stepped.expect("memory does not fail");
    }

    fn carry_out(&mut self, cluster: &mut TestCluster) {
        while !self.effects.is_empty() {
            for effect in self.effects.drain().collect::<Vec<_>>() {
                match effect {
                    Effect::Send { to, frame } => {
                        let number = u16::from_le_bytes([to.0[0], to.0[1]]);
                        let from = Peer::Client(ConnectionId(CONNECTION));
                        cluster.arrive(number.into(), from, frame);
                    }
                    Effect::Write { batch } => {
                        self.store.apply(&batch);
                        self.step(cluster, Event::Written);
                    }
                    Effect::NeedCheckpoint => self.needs_checkpoint = true,
                    Effect::Done { outcome } => self.outcome = Some(outcome),
                }
            }
        }
    }

    /// Refreshes until the end, or for so long.
    fn refresh(
        &mut self,
        cluster: &mut TestCluster,
        (session, at_least): (SessionId, u64),
        milliseconds: u64,
        mut meanwhile: impl FnMut(&mut TestCluster, &Self),
    ) -> Option<CopyOutcome> {
        let now = Monotonic(cluster.now);
        let wanted = (session, Sequence(at_least));
        self.outcome = None;
        let begun = self
            .copy
            .begin(now, wanted, &FakeVerifier, &mut self.effects);
        begun.expect("memory does not fail");
        let replicas = cluster.model.replicas();
        for peer in (0..replicas).map(|number| replica_key(ReplicaId(number))) {
            self.step(cluster, Event::Connected { peer });
        }
        let end = cluster.now + milliseconds * super::cluster::MS;
        while self.outcome.is_none() && cluster.now < end {
            self.carry_out(cluster);
            cluster.run_for(2);
            for node in 0..usize::from(replicas) {
                for message in cluster.take_received(node, CONNECTION) {
                    self.receive(cluster, node, message);
                }
            }
            self.step(cluster, Event::Tick);
            self.carry_out(cluster);
            meanwhile(cluster, self);
        }
        self.outcome
    }

    fn receive(&mut self, cluster: &TestCluster, node: usize, message: Message) {
        let message = match &mut self.lie {
            Some(lie) => lie(node, message),
            None => Some(message),
        };
        let Some(message) = message else {
            return;
        };
        if let Message::CopyPart(part) = &message {
            if self.nodes >= self.nodes_max && !part.nodes.nodes.is_empty() {
                return;
            }
            self.nodes += part.nodes.nodes.len();
        }
        let frame = encode(cluster.context().header(View(0)), &message);
        let peer = replica_key(ReplicaId(node as u16));
        self.step(cluster, Event::Received { peer, frame });
    }

    fn rows(&self, area: Area) -> Vec<BornRow> {
        let rows = self.copy.space().durable_rows(area, b"", usize::MAX);
        rows.expect("sound")
    }

    /// What is copied is proved, all of it, from the membership that the cluster began with.
    #[track_caller]
    fn check(&self, cluster: &TestCluster) {
        let copied = self.copy.copied().expect("a copy");
        let chain = || EpochChain::new(CLUSTER, genesis(cluster));
        let checkpoint = copied.verify(chain(), &FakeVerifier).expect("proved");
        let space = self.copy.space();
        let root = space.durable_root().expect("durable");
        assert_eq!((root.sequence, root.digest), (copied.sequence, copied.root));
        assert_eq!(checkpoint.root, copied.root);
        let mut proving = space.proof().expect("sound").begin();
        for (key, born) in self.rows(Area::Service) {
            proving.push(&key, born).expect("in order");
        }
        assert_eq!(proving.finish(&copied.root), Ok(()));
        let other = crate::state_copy::Copied {
            root: Digest([1; 32]),
            ..copied
        };
        let refused = other.verify(chain(), &FakeVerifier);
        assert_eq!(refused, Err(Unproved::OtherState));
    }
}

/// A cluster with rows, a checkpoint that covers them, and a client that may copy.
fn with_rows(seed: u64, rows: u64) -> (TestCluster, usize, SessionId) {
    let mut cluster = TestCluster::four(seed);
    cluster.operation = b"w";
    let client = cluster.client(rows);
    cluster.finish(120_000);
    let session = cluster.session_of(client);
    cluster.order_checkpoint(client);
    cluster.run_for(500);
    (cluster, client, session)
}

#[test]
fn a_checkpoint_that_is_ordered_is_stable_at_once_on_all_replicas() {
    let mut cluster = TestCluster::four(31);
    let client = cluster.client(3);
    cluster.finish(20_000);
    cluster.run_for(2_000);
    assert_eq!(cluster.status(0).stable, Sequence(0), "few batches");
    // A replica that crashes before its root is durable finds the same place again.
    cluster.slow_stores.insert(2, 20);
    cluster.order_checkpoint(client);
    cluster.run_for(60);
    cluster.crash(2);
    cluster.slow_stores.clear();
    cluster.start(2);
    cluster.run_for(2_000);
    let statuses: Vec<_> = (0..4).map(|node| cluster.status(node)).collect();
    for status in &statuses {
        assert_eq!(status.stable, status.sequence, "{status:#?}");
        assert!(status.stable > Sequence(0) && status.durable == status.stable);
        assert_eq!(status.root, statuses[0].root);
    }
    assert_eq!(statuses[0].counters.checkpoints_wanted, 1);
    // The next one comes after as many batches as always, counted from there.
    cluster.more(client, 40);
    cluster.finish(60_000);
    cluster.check();
    assert!(cluster.status(0).stable.0 >= statuses[0].stable.0 + 16);
}

#[test]
fn a_client_without_the_right_gets_no_checkpoint_and_no_node() {
    let (mut cluster, _, session) = with_rows(32, 20);
    // The second client's principal has no right.
    let other = cluster.client(1);
    cluster.finish(20_000);
    let theirs = cluster.session_of(other);
    let before = cluster.status(0);
    cluster.order_checkpoint(other);
    cluster.run_for(500);
    let after = cluster.status(0);
    assert!(after.sequence > before.sequence, "it was executed");
    assert_eq!(after.stable, before.stable);
    let mut copy = TestCopy::open(&cluster, MemoryStore::new());
    let unknown = SessionId(99_999);
    for session in [theirs, unknown] {
        let outcome = copy.refresh(&mut cluster, (session, 1), 5_000, |_, _| {});
        assert_eq!(outcome, Some(CopyOutcome::Refused));
    }
    assert_eq!(copy.nodes, 0);
    assert!(cluster.status(0).counters.copies_refused > 0);
    assert_eq!(cluster.status(0).counters.nodes_copied, 0);
    let outcome = copy.refresh(&mut cluster, (session, 1), 5_000, |_, _| {});
    assert_eq!(
        outcome,
        Some(CopyOutcome::Copied),
        "the other one's session"
    );
    copy.check(&cluster);
}

#[test]
fn a_copy_has_the_rows_of_the_checkpoint_and_then_what_has_changed() {
    let (mut cluster, client, session) = with_rows(33, 60);
    let mut copy = TestCopy::open(&cluster, MemoryStore::new());
    let outcome = copy.refresh(&mut cluster, (session, 1), 5_000, |_, _| {});
    assert_eq!(outcome, Some(CopyOutcome::Copied));
    copy.check(&cluster);
    let first = copy.copy.copied().expect("copied");
    assert_eq!(first.sequence, cluster.status(0).stable);
    let before = copy.rows(Area::Service);
    assert!(before.len() >= 60, "a row for each operation");
    let whole = copy.nodes;
    // The copy is new enough: nothing is asked.
    let again = copy.refresh(&mut cluster, (session, first.sequence.0), 10, |_, _| {});
    assert_eq!((again, copy.nodes), (Some(CopyOutcome::Copied), whole));

    cluster.operation = b"a";
    cluster.more(client, 2);
    cluster.finish(20_000);
    let executed = cluster.status(0).sequence;
    let outcome = copy.refresh(
        &mut cluster,
        (session, executed.0),
        5_000,
        |cluster, copy| {
            if copy.needs_checkpoint && cluster.status(0).counters.checkpoints_wanted < 2 {
                cluster.order_checkpoint(client);
            }
        },
    );
    assert_eq!(outcome, Some(CopyOutcome::Copied));
    copy.check(&cluster);
    let fetched = copy.nodes - whole;
    assert!(fetched < whole / 2, "{fetched} nodes after {whole}");
    let space = copy.copy.space();
    let changes = space.changes_since(&first.root, Area::Service);
    let mut changes = changes.expect("sound").expect("the root before");
    let changed = changes.next().expect("sound").expect("the count");
    assert_eq!(changed.key, "count");
    assert_eq!(changes.next().expect("sound"), None);

    // Another cluster's copy, or one of another beginning, is not taken for it.
    let mut other = genesis(&cluster);
    other.voters.swap(0, 1);
    let opened = StateCopy::open(copy.store.clone(), CLUSTER, (other, None), &FakeVerifier);
    assert!(matches!(opened, Err(OpenError::OtherCluster)));
    let reopened = TestCopy::open(&cluster, copy.store.clone());
    assert_eq!(reopened.copy.copied(), copy.copy.copied());
}

/// The replica's nodes are wrong, and its certificates old or forged.
fn liar(liar: usize, old: CheckpointCertificate) -> Lie {
    let mut turn = 0;
    Box::new(move |node, message| {
        let Message::CopyPart(mut part) = message else {
            return Some(message);
        };
        if node == liar {
            turn += 1;
            match &mut part.stable {
                Some(stable) if turn % 2 == 0 => stable.checkpoint.root = Digest([turn; 32]),
                Some(stable) => *stable = old.clone(),
                None => {}
            }
            for (_, bytes) in &mut part.nodes.nodes {
                let mut wrong = bytes.to_vec();
                let last = wrong.len() - 1;
                wrong[last] ^= 1;
                *bytes = wrong.into();
            }
            part.nodes.gone = turn % 3 == 0;
        }
        Some(Message::CopyPart(part))
    })
}

#[test]
fn a_replica_that_lies_changes_nothing_and_cannot_prevent_a_copy() {
    let (mut cluster, client, session) = with_rows(34, 60);
    let mut honest = TestCopy::open(&cluster, MemoryStore::new());
    let outcome = honest.refresh(&mut cluster, (session, 1), 5_000, |_, _| {});
    assert_eq!(outcome, Some(CopyOutcome::Copied));
    let old = honest.copy.copied().expect("copied").certificate;
    let old = crate::state_copy::copied::decode(&old).expect("a certificate");
    cluster.more(client, 30);
    cluster.finish(20_000);
    cluster.order_checkpoint(client);
    cluster.run_for(500);
    let stable = cluster.status(0).stable;
    for node in 0..4 {
        let mut copy = TestCopy::open(&cluster, MemoryStore::new());
        copy.lie = Some(liar(node, old.clone()));
        let outcome = copy.refresh(&mut cluster, (session, stable.0), 20_000, |_, _| {});
        assert_eq!(outcome, Some(CopyOutcome::Copied), "liar {node}");
        copy.check(&cluster);
        assert_eq!(copy.copy.sequence(), stable);
    }
}

#[test]
fn refusals_of_as_many_as_may_lie_end_nothing() {
    let (mut cluster, _, session) = with_rows(35, 20);
    let mut copy = TestCopy::open(&cluster, MemoryStore::new());
    copy.lie = Some(Box::new(|node, message| {
        let Message::CopyPart(mut part) = message else {
            return Some(message);
        };
        if node == 1 {
            part.refused = true;
        }
        Some(Message::CopyPart(part))
    }));
    let outcome = copy.refresh(&mut cluster, (session, 1), 10_000, |_, _| {});
    assert_eq!(outcome, Some(CopyOutcome::Copied));
}

#[test]
fn a_copy_that_is_interrupted_goes_on_and_fetches_no_node_twice() {
    let (mut cluster, _, session) = with_rows(36, 200);
    let mut whole = TestCopy::open(&cluster, MemoryStore::new());
    whole.refresh(&mut cluster, (session, 1), 20_000, |_, _| {});
    let mut first = TestCopy::open(&cluster, MemoryStore::new());
    first.nodes_max = whole.nodes / 2;
    let outcome = first.refresh(&mut cluster, (session, 1), 500, |_, _| {});
    assert_eq!((outcome, first.copy.copied()), (None, None));
    // What has come is written before it counts as fetched; this store writes it when asked.
    if let Some((batch, _)) = first.copy.flush_import() {
        first.store.apply(&batch);
    }
    let mut second = TestCopy::open(&cluster, first.store.clone());
    let outcome = second.refresh(&mut cluster, (session, 1), 20_000, |_, _| {});
    assert_eq!(outcome, Some(CopyOutcome::Copied));
    second.check(&cluster);
    assert_eq!(second.rows(Area::Service), whole.rows(Area::Service));
    assert!(
        second.nodes <= whole.nodes - first.nodes / 2,
        "{}",
        second.nodes
    );
}

#[test]
fn a_copy_moves_on_when_the_replicas_have_left_its_root() {
    let (mut cluster, client, session) = with_rows(37, 150);
    let mut copy = TestCopy::open(&cluster, MemoryStore::new());
    // Nodes come slowly, and checkpoints fast.
    let mut parts = 0;
    copy.lie = Some(Box::new(move |_, message| {
        parts += 1;
        let slow = matches!(&message, Message::CopyPart(part) if !part.nodes.nodes.is_empty());
        (!slow || parts % 4 == 0).then_some(message)
    }));
    let before = cluster.status(0).stable;
    cluster.operation = b"a";
    cluster.more(client, 400);
    let outcome = copy.refresh(&mut cluster, (session, 1), 60_000, |_, _| {});
    assert_eq!(outcome, Some(CopyOutcome::Copied));
    copy.check(&cluster);
    assert!(copy.copy.sequence() > before, "{}", copy.copy.sequence());
}

#[test]
fn a_connection_is_served_at_a_bounded_rate_and_forgotten_when_it_is_closed() {
    let (mut cluster, _, session) = with_rows(38, 60);
    let fetch = FetchCopy {
        session,
        root: Digest::default(),
        paths: Vec::new(),
    };
    let frame = encode(
        cluster.context().header(View(0)),
        &Message::FetchCopy(fetch),
    );
    let ask = |cluster: &mut TestCluster| {
        let from = Peer::Client(ConnectionId(CONNECTION));
        cluster.arrive(0, from, frame.clone());
    };
    let most = (SERVE_BURST_BYTES / SERVE_BYTES_MIN) as usize;
    for _ in 0..most * 2 {
        ask(&mut cluster);
    }
    cluster.run_for(10);
    let served = cluster.take_received(0, CONNECTION).len();
    assert!(served > 0 && served <= most, "{served} of {most}");
    ask(&mut cluster);
    let connection = ConnectionId(CONNECTION);
    cluster.step(0, ReplicaEvent::Disconnected { connection });
    ask(&mut cluster);
    cluster.run_for(10);
    assert!(!cluster.take_received(0, CONNECTION).is_empty());
}

#[test]
fn a_membership_that_is_known_holds_against_other_records() {
    let cluster = TestCluster::four(39);
    let mut known = genesis(&cluster);
    known.epoch = crate::identity::Epoch(1);
    known.from = Sequence(5);
    known.voters[0].key = PublicKey([77; 32]);
    let chain = EpochChain::new(CLUSTER, genesis(&cluster)).anchored(Some(known));
    assert!(!chain.is_anchored(), "the records up to there are missing");
    let chain = EpochChain::new(CLUSTER, genesis(&cluster)).anchored(Some(genesis(&cluster)));
    assert!(chain.is_anchored(), "nothing later is known");
}
