//! The normal case, for every preset of the fault model.

use super::cluster::{CHECKPOINT_EVERY, TestCluster};
use crate::fault_model::FaultModel;
use crate::identity::{Sequence, View};
use crate::metrics::Voting;

#[test]
fn every_preset_orders_and_executes_exactly_once() {
    for (up, right, replicas) in [
        (1, 1, 4),
        (1, 0, 3),
        (0, 0, 1),
        (2, 1, 6),
        (2, 2, 7),
        (0, 1, 2),
    ] {
        let mut cluster = TestCluster::new(FaultModel::new(up, right, replicas).unwrap(), 3);
        cluster.start_all();
        for _ in 0..3 {
            cluster.client(20);
        }
        cluster.finish(20_000);
        cluster.check();
        for node in 0..usize::from(replicas) {
            assert_eq!(cluster.status(node).view, View(0), "({up}, {right})");
        }
    }
}

#[test]
fn a_lone_client_does_not_wait_for_others() {
    let mut cluster = TestCluster::four(1);
    cluster.client(50);
    cluster.finish(5_000);
    cluster.check();
    assert_eq!(
        cluster.status(0).counters.proposals,
        51,
        "one batch for each request"
    );
}

#[test]
fn batches_are_proposed_while_others_are_under_way() {
    for (up, right, replicas) in [(1, 1, 4), (1, 0, 3), (0, 0, 1), (0, 1, 2)] {
        let mut cluster = TestCluster::new(FaultModel::new(up, right, replicas).unwrap(), 17);
        cluster.start_all();
        for _ in 0..8 {
            cluster.client(60);
        }
        cluster.finish(20_000);
        cluster.check();
        let counters = cluster.status(0).counters;
        let name = format!("({up}, {right}): {counters:?}");
        assert!(counters.pipelined * 3 > counters.proposals, "{name}");
        assert!(counters.pipelined_deep > 0, "{name}");
        assert!(counters.proposals < 480, "some are collected: {name}");
        assert_eq!(counters.duplicates, 0, "nothing is proposed twice: {name}");
        assert_eq!(cluster.status(0).view, View(0), "{name}");
    }
}

#[test]
fn an_idle_cluster_keeps_its_leader_and_makes_no_batches() {
    let mut cluster = TestCluster::four(2);
    cluster.client(5);
    cluster.finish(5_000);
    let before = cluster.status(1);
    cluster.run_for(3_600_000);
    let after = cluster.status(1);
    assert_eq!((before.view, before.sequence), (after.view, after.sequence));
}

#[test]
fn a_tick_runs_without_any_request() {
    let mut cluster = TestCluster::four(4);
    cluster.operation = b"t";
    cluster.client(1);
    cluster.finish(5_000);
    cluster.run_for(1_000);
    for node in 0..4 {
        let status = cluster.status(node);
        assert_eq!((status.counters.ticks, status.view), (1, View(0)));
    }
}

#[test]
fn a_leader_that_does_not_tick_is_replaced() {
    let mut cluster = TestCluster::four(5);
    cluster.operation = b"t";
    cluster.client(1);
    cluster.finish(5_000);
    cluster.crash(0);
    cluster.run_for(5_000);
    for node in 1..4 {
        let status = cluster.status(node);
        assert!(
            status.view > View(0) && status.counters.ticks == 1,
            "{status:#?}"
        );
    }
}

#[test]
fn the_state_becomes_durable_and_the_journal_short() {
    let mut cluster = TestCluster::four(6);
    cluster.client(700);
    cluster.finish(60_000);
    cluster.run_for(3_000);
    for node in 0..4 {
        let status = cluster.status(node);
        assert!(status.sequence.0 < status.durable.0 + CHECKPOINT_EVERY);
        assert_eq!(status.stable, status.durable);
        assert!(
            cluster.journal(node).len() < 4 * CHECKPOINT_EVERY as usize,
            "{} records",
            cluster.journal(node).len()
        );
    }
    cluster.check();
}

#[test]
fn all_replicas_restart_and_continue_where_they_were() {
    let mut cluster = TestCluster::four(7);
    let client = cluster.client(30);
    cluster.finish(10_000);
    let before = cluster.status(0).sequence;
    (0..4).for_each(|node| cluster.crash(node));
    cluster.run_for(100);
    cluster.start_all();
    cluster.more(client, 30);
    cluster.finish(20_000);
    cluster.check();
    let status = cluster.status(2);
    assert!(status.view > View(0), "the old leader has abdicated");
    assert_eq!(status.voting, Voting::Voting);
    assert!(status.sequence >= Sequence(before.0 + 30));
    assert_eq!(cluster.results(client).len(), 60);
}

#[test]
fn one_replica_alone_restarts_and_goes_on() {
    let mut cluster = TestCluster::new(FaultModel::new(0, 0, 1).unwrap(), 8);
    cluster.start_all();
    let client = cluster.client(10);
    cluster.finish(5_000);
    for _ in 0..3 {
        cluster.crash(0);
        cluster.start(0);
        cluster.more(client, 10);
        cluster.finish(5_000);
    }
    assert_eq!(cluster.status(0).view, View(3));
    cluster.check();
}

#[test]
fn a_leader_waits_for_its_disk_once_a_batch() {
    let mut cluster = TestCluster::four(23);
    cluster.crash(3);
    cluster.run_for(100);
    // A write takes a second or more there, and without the fourth replica its COMMIT is needed.
    cluster.slow_disks.insert(0, 2_000);
    let before = cluster.status(0).counters.commits;
    let client = cluster.client(1);
    cluster.run_for(300);
    let counters = cluster.status(0).counters;
    assert_eq!(counters.commits, before + 1, "it is being written");
    assert_eq!(cluster.status(1).sequence, Sequence(0), "and has not left");
    cluster.slow_disks.clear();
    cluster.finish(20_000);
    cluster.more(client, 5);
    cluster.finish(20_000);
    cluster.check();
}
