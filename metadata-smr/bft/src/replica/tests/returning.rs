//! Leaders that come back: when they lead again, and when they do not.

use super::cluster::{MS, TestCluster};
use crate::identity::{ReplicaId, View};

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
        cluster.run_for(2_000);
        cluster.cut.clear();
        cluster.run_for(4_000);
        cluster.more(client, 1);
    }
    assert_eq!((led(&cluster).1, handovers(&cluster)), (ReplicaId(1), 0));
    cluster.run_for(70_000);
    // Its old suspicion of view 1 counts still, so that another view may come between.
    let (leader, times) = (led(&cluster).1, handovers(&cluster));
    assert!(
        leader == ReplicaId(0) && (1..=2).contains(&times),
        "{times}"
    );
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
