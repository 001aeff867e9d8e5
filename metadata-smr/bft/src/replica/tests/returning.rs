//! Leaders that come back: when they lead again, and when they do not.

use super::cluster::{FakeKey, MS, TestCluster, replica_key};
use crate::fault_model::FaultModel;
use crate::identity::{ReplicaId, View};
use crate::step::Peer;
use crate::wire::message::{Message, Suspect};
use crate::wire::{Kind, Unsigned};

fn handovers(cluster: &TestCluster) -> u64 {
    let up = (0..4).filter(|node| cluster.up(*node));
    up.map(|node| cluster.status(node).counters.handovers).sum()
}

/// The views of all replicas, and their leader.
fn led(cluster: &TestCluster) -> (Vec<View>, ReplicaId) {
    let views = (0..4).map(|node| cluster.status(node).view);
    (views.collect(), cluster.status(1).leader)
}

/// A cluster whose first leader was away for a while.
fn after_a_failure(seed: u64) -> (TestCluster, usize) {
    let mut cluster = TestCluster::four(seed);
    let client = cluster.client(5);
    cluster.finish(5_000);
    cluster.crash(0);
    cluster.more(client, 5);
    cluster.finish(5_000);
    cluster.start(0);
    cluster.run_for(1_000);
    assert_eq!(led(&cluster), (vec![View(1); 4], ReplicaId(1)));
    (cluster, client)
}

#[test]
fn a_leader_that_comes_back_leads_again_after_a_while_in_one_step() {
    let (mut cluster, client) = after_a_failure(1);
    cluster.run_for(57_000);
    assert_eq!(led(&cluster), (vec![View(1); 4], ReplicaId(1)));
    cluster.run_for(3_000);
    assert_eq!(led(&cluster), (vec![View(4); 4], ReplicaId(0)));
    cluster.more(client, 5);
    cluster.finish(1_000);
    cluster.run_for(600_000);
    assert_eq!((led(&cluster).1, handovers(&cluster)), (ReplicaId(0), 1));
    cluster.check();
}

#[test]
fn a_view_is_handed_over_though_messages_about_it_are_lost() {
    for seed in 2..8 {
        let (mut cluster, client) = after_a_failure(seed);
        let victim = 2 + (seed as usize % 2);
        cluster.cut.extend([(1, victim), (victim, 1)]);
        cluster.run_for(63_000);
        cluster.cut.clear();
        cluster.more(client, 5);
        cluster.finish(5_000);
        assert_eq!(led(&cluster), (vec![View(4); 4], ReplicaId(0)), "{seed}");
        cluster.check();
    }
}

#[test]
fn a_replica_that_is_not_well_is_handed_nothing() {
    let (mut cluster, client) = after_a_failure(9);
    // It hears and is heard, but for half of the time.
    for _ in 0..30 {
        cluster.cut.extend([(0, 1), (1, 0)]);
        cluster.run_for(4_000);
        cluster.cut.clear();
        cluster.run_for(4_000);
        cluster.more(client, 1);
    }
    assert_eq!((led(&cluster).1, handovers(&cluster)), (ReplicaId(1), 0));
    cluster.run_for(70_000);
    // Its old suspicion of view 1 counts still, and leads no one into the view after that.
    assert_eq!((led(&cluster).1, handovers(&cluster)), (ReplicaId(0), 1));
    cluster.check();
}

#[test]
fn a_replica_that_leads_badly_is_handed_few_views() {
    let (mut cluster, client) = after_a_failure(10);
    cluster.slow_leaders.insert(0, 3_000 * MS);
    for _ in 0..300 {
        cluster.more(client, 1);
        cluster.run_for(4_000);
    }
    let times = handovers(&cluster);
    assert!((2..=5).contains(&times), "{times} in 20 minutes");
    cluster.slow_leaders.clear();
    cluster.finish(10_000);
    cluster.check();
}

/// A replica whose clock is wrong for good loses each view soon.
#[test]
fn a_replica_with_a_wrong_clock_is_handed_few_views() {
    for minutes in [5, -5] {
        let (mut cluster, client) = after_a_failure(12);
        cluster.skew(0, minutes * 60_000);
        for _ in 0..300 {
            cluster.more(client, 1);
            cluster.run_for(4_000);
        }
        let times = handovers(&cluster);
        assert!((2..=5).contains(&times), "{times} in 20 minutes");
        cluster.finish(10_000);
        cluster.check();
    }
}

/// A leader hands over to a replica that comes before it and is down, again and again: the others
/// lead all the same.
#[test]
fn a_leader_that_hands_over_to_one_that_is_down_passes_no_one_over() {
    let (down, liar) = (0, ReplicaId(1));
    let model = FaultModel::new(2, 1, 6).unwrap();
    let mut cluster = TestCluster::new(model, 11);
    cluster.start_all();
    cluster.crash(down);
    // It orders nothing.
    cluster.tap = Some(Box::new(|from, _, envelope| {
        !(from == 1 && envelope.message().kind() == Kind::Proposal)
    }));
    cluster.client(5);
    for _ in 0..400 {
        cluster.run_for(20);
        for node in 2..6 {
            let status = cluster.status(node);
            if status.leader == liar {
                let last = View(status.view.0 + 4);
                assert_eq!(cluster.context().leader(last.next()), ReplicaId(0));
                let suspect = Message::Suspect(Suspect { signer: liar });
                let suspect = Unsigned::new(cluster.context().header(last), suspect);
                let suspect = suspect.sign(&FakeKey(replica_key(liar)));
                cluster.arrive(node, Peer::Replica(liar), suspect.frame().clone());
            }
        }
    }
    assert!(cluster.finished(), "{:#?}", cluster.statuses());
    cluster.tap = None;
    cluster.start(down);
    cluster.run_for(1_000);
    cluster.check();
}
