//! Leaders that are slow, silent or unlucky: which are suspected, and which are not.

use super::cluster::{MS, TestCluster};
use crate::fault_model::FaultModel;
use crate::identity::View;
use crate::metrics::Counters;
use crate::wire::message::Kind;
use std::cell::Cell;
use std::rc::Rc;

fn total(cluster: &TestCluster, count: impl Fn(&Counters) -> u64) -> u64 {
    let up = (0..4).filter(|node| cluster.up(*node));
    up.map(|node| count(&cluster.status(node).counters)).sum()
}

/// A cluster under a load that does not end.
fn busy(seed: u64, clients: usize) -> TestCluster {
    let mut cluster = TestCluster::four(seed);
    for _ in 0..clients {
        cluster.client(1_000_000);
    }
    cluster.run_for(500);
    cluster
}

fn done(cluster: &TestCluster) -> u64 {
    (0..4)
        .map(|node| cluster.status(node).counters.operations)
        .max()
        .unwrap_or(0)
}

fn done_in(cluster: &mut TestCluster, seconds: u64) -> u64 {
    let before = done(cluster);
    cluster.run_for(1_000 * seconds);
    (done(cluster) - before) / seconds
}

#[test]
fn a_leader_that_becomes_slow_is_replaced_and_goodput_comes_back() {
    for (delay, seed) in [(10, 1), (100, 2), (300, 3)] {
        let mut cluster = busy(seed, 8);
        let usual = done_in(&mut cluster, 2);
        assert_eq!(cluster.status(1).view, View(0));
        cluster.slow_leaders.insert(0, delay * MS);
        cluster.run_for(3_000);
        let after = done_in(&mut cluster, 2);
        let slow = total(&cluster, |it| it.suspicions_slow);
        assert!(slow >= 2, "{delay} ms: {slow} suspicions");
        assert!(cluster.status(1).view > View(0));
        assert!(after * 10 >= usual * 9, "{delay} ms: {after} of {usual}");
    }
}

#[test]
fn a_leader_that_is_slow_from_the_start_is_replaced() {
    for delay in [30, 60, 100, 300] {
        let mut cluster = TestCluster::four(4);
        cluster.slow_leaders.insert(0, delay * MS);
        for _ in 0..8 {
            cluster.client(1_000_000);
        }
        cluster.run_for(4_000);
        let view = cluster.status(1).view;
        assert!(view > View(0), "{delay} ms");
        let (slow, usual) = (done_in(&mut cluster, 2), done_in(&mut busy(4, 8), 2));
        assert!(slow * 10 >= usual * 9, "{delay} ms: {slow} of {usual}");
    }
}

#[test]
fn an_hour_of_bursts_changes_no_view() {
    let mut cluster = TestCluster::four(5);
    let clients: Vec<usize> = (0..12).map(|_| cluster.client(1)).collect();
    for burst in 0..180 {
        let few = 1 + cluster.random(12) as usize;
        for client in clients.iter().take(few) {
            let operations = 1 + cluster.random(40);
            cluster.more(*client, operations);
        }
        let pause = match burst % 3 {
            0 => 400,
            _ => 30_000,
        };
        cluster.run_for(pause);
    }
    assert!(cluster.now > 3_600_000 * MS);
    assert!(total(&cluster, |it| it.throughput_compared) > 0);
    assert_eq!(total(&cluster, |it| it.suspicions), 0);
    assert_eq!(cluster.status(1).view, View(0));
    cluster.finish(5_000);
    cluster.check();
}

#[test]
fn views_settle_where_deciding_takes_longer_than_the_first_timeout() {
    for seed in 20..23 {
        let mut cluster = TestCluster::new(FaultModel::new(1, 1, 4).unwrap(), seed);
        cluster.distance = 120;
        cluster.start_all();
        cluster.client(100_000);
        cluster.run_for(20_000);
        let entered = |cluster: &TestCluster| cluster.status(1).counters.views_entered;
        let (views, before) = (entered(&cluster), done(&cluster));
        cluster.run_for(120_000);
        // A handover to the first replica is no view that failed.
        let handed = total(&cluster, |it| it.handovers);
        let more = entered(&cluster) - views;
        assert!(more <= 1 + handed, "seed {seed}: {more} views more");
        assert!(handed <= 1, "seed {seed}: {handed}");
        assert!(done(&cluster) > before + 100);
    }
}

#[test]
fn a_leader_whose_proposals_others_have_to_repeat_is_suspected_of_silence() {
    let mut cluster = TestCluster::four(6);
    // Its vote is needed, so every batch waits until another replica repeats the proposal to it.
    cluster.crash(2);
    cluster.tap = Some(Box::new(|from, to, envelope| {
        !(from == 0 && to == 3 && envelope.message().kind() == Kind::Proposal)
    }));
    cluster.client(30);
    cluster.run_for(4_000);
    assert_eq!(cluster.status(3).counters.suspicions_silent, 1);
    assert_eq!(cluster.status(1).counters.suspicions_silent, 0);
    cluster.tap = None;
    cluster.finish(20_000);
    cluster.start(2);
    cluster.check();
}

#[test]
fn a_leader_whose_body_is_missing_gets_a_second_chance() {
    for (held_up, replaced) in [(500, false), (1_000, true)] {
        let mut cluster = TestCluster::four(7);
        let client = cluster.client(1);
        cluster.finish(5_000);
        cluster.run_for(1_000);
        cluster.sends_to(client, &[0]);
        let since = Rc::new(Cell::new(true));
        let holds = Rc::clone(&since);
        cluster.tap = Some(Box::new(move |from, _, envelope| {
            // The leader has the body and no reason to suspect itself: otherwise it would resign
            // first.
            let kind = envelope.message().kind();
            !(holds.get() && kind == Kind::Bodies || from == 0 && kind == Kind::Suspect)
        }));
        cluster.more(client, 1);
        cluster.run_for(held_up);
        since.set(false);
        cluster.run_for(50);
        assert_eq!(cluster.status(1).view > View(0), replaced, "{held_up} ms");
        cluster.finish(10_000);
        cluster.tap = None;
        cluster.check();
    }
}

#[test]
fn a_replica_that_waits_for_its_own_disk_suspects_no_leader() {
    let mut cluster = TestCluster::four(8);
    let client = cluster.client(3);
    cluster.finish(5_000);
    // All three votes are needed, and one of them waits for a second.
    cluster.crash(3);
    cluster.slow_disks.insert(1, 2_000);
    cluster.more(client, 3);
    cluster.run_for(900);
    let suspects = |node| cluster.status(node).counters.suspicions_progress;
    assert_eq!((suspects(1), suspects(2)), (0, 1));
    cluster.slow_disks.clear();
    cluster.start(3);
    cluster.finish(20_000);
    cluster.check();
}

#[test]
fn between_two_views_time_runs_only_once_a_quorum_has_come_along() {
    let mut cluster = TestCluster::four(9);
    let client = cluster.client(5);
    cluster.finish(5_000);
    cluster.crash(2);
    cluster.crash(3);
    cluster.more(client, 5);
    cluster.run_for(60_000);
    for node in [0, 1] {
        assert!(
            cluster.status(node).view <= View(1),
            "{:#?}",
            cluster.statuses()
        );
    }
    cluster.start(2);
    cluster.start(3);
    cluster.finish(10_000);
    cluster.check();
}

#[test]
fn a_suspicion_is_withdrawn_when_the_order_goes_on_in_spite_of_it() {
    let mut cluster = busy(10, 1);
    // One replica is cut off for a moment, and another one days later.
    for victim in [1, 2] {
        for other in [0, 3 - victim, 3] {
            cluster.cut.extend([(other, victim)]);
        }
        cluster.run_for(1_500);
        cluster.cut.clear();
        assert!(cluster.status(victim).counters.suspicions > 0, "{victim}");
        cluster.run_for(25_000);
    }
    assert_eq!(cluster.status(3).view, View(0));
    assert!(total(&cluster, |it| it.suspicions_withdrawn) >= 2);
}

/// Its last proposal may have left without being durable: the next one could be a second one for
/// the same sequence.
#[test]
fn a_leader_that_restarts_proposes_nothing_more_in_its_view() {
    let mut cluster = TestCluster::four(11);
    let client = cluster.client(5);
    cluster.finish(5_000);
    let proposed = Rc::new(Cell::new(0));
    let counts = Rc::clone(&proposed);
    // All its messages reach the others, except its own SUSPECT.
    cluster.tap = Some(Box::new(move |from, to, envelope| {
        let kind = envelope.message().kind();
        if (from, to, kind) == (0, 1, Kind::Proposal) {
            counts.set(counts.get() + 1);
        }
        kind != Kind::Suspect
    }));
    cluster.more(client, 5);
    cluster.finish(5_000);
    assert_eq!(proposed.replace(0), 5);
    cluster.crash(0);
    cluster.start(0);
    cluster.more(client, 5);
    cluster.run_for(3_000);
    assert_eq!(cluster.status(0).view, View(0));
    assert_eq!(proposed.get(), 0, "it leads its old view again");
    cluster.tap = None;
    cluster.finish(10_000);
    assert!(cluster.status(0).view > View(0));
    cluster.check();
}
