//! Crashes, lost messages, cut links, lost disks, clocks that are off, and leaders that lie.

use super::cluster::{MS, TestCluster};
use crate::fault_model::FaultModel;
use crate::identity::{Sequence, View};
use crate::journal::{Condition, Entry, Record};
use crate::metrics::Voting;
use crate::wire::message::{Kind, Message};
use std::cell::Cell;
use std::rc::Rc;

#[test]
fn a_crashed_leader_is_replaced_and_nothing_is_lost_or_run_twice() {
    for seed in 0..20 {
        let mut cluster = TestCluster::four(seed);
        for _ in 0..3 {
            cluster.client(40);
        }
        let when = 20 + cluster.random(80);
        cluster.run_for(when);
        cluster.crash(0);
        cluster.finish(20_000);
        assert!(cluster.status(1).view > View(0));
        cluster.start(0);
        cluster.check();
    }
}

#[test]
fn any_one_replica_after_the_other_crashes_at_any_moment() {
    for seed in 0..40 {
        let mut cluster = TestCluster::four(seed);
        cluster.loss = 20;
        for _ in 0..3 {
            cluster.client(60);
        }
        for _ in 0..6 {
            let (node, up, down) = (
                cluster.random(4) as usize,
                cluster.random(300),
                cluster.random(900),
            );
            cluster.run_for(up);
            cluster.crash(node);
            cluster.run_for(down);
            cluster.start(node);
        }
        cluster.finish(60_000);
        cluster.check();
    }
}

#[test]
fn all_crash_at_once_again_and_again() {
    for (up, right, replicas) in [(1, 1, 4), (1, 0, 3), (0, 0, 1), (0, 1, 2)] {
        for seed in 0..15 {
            let model = FaultModel::new(up, right, replicas).unwrap();
            let mut cluster = TestCluster::new(model, seed);
            cluster.start_all();
            for _ in 0..3 {
                cluster.client(60);
            }
            for _ in 0..5 {
                let time = cluster.random(150);
                cluster.run_for(time);
                (0..usize::from(replicas)).for_each(|node| cluster.crash(node));
                cluster.start_all();
            }
            cluster.finish(120_000);
            cluster.check();
        }
    }
}

#[test]
fn lost_messages_are_repaired_by_status_alone() {
    for seed in 0..20 {
        let mut cluster = TestCluster::four(seed);
        cluster.loss = 250;
        cluster.client(15);
        cluster.client(15);
        cluster.finish(120_000);
        cluster.loss = 0;
        cluster.check();
    }
}

#[test]
fn one_way_cuts_that_come_and_go_lose_nothing() {
    for seed in 0..30 {
        let mut cluster = TestCluster::four(seed);
        for _ in 0..2 {
            cluster.client(60);
        }
        for _ in 0..8 {
            let (from, to) = (cluster.random(4) as usize, cluster.random(4) as usize);
            cluster.cut.insert((from, to));
            let time = cluster.random(600);
            cluster.run_for(time);
            if cluster.random(2) == 0 {
                cluster.cut.clear();
            }
        }
        cluster.cut.clear();
        cluster.finish(60_000);
        cluster.check();
    }
}

#[test]
fn a_laggard_catches_up_with_certificates_from_memory_and_from_the_store() {
    let mut cluster = TestCluster::new(FaultModel::new(1, 1, 4).unwrap(), 9);
    cluster.checkpoint_every = 256;
    cluster.start_all();
    cluster.client(500);
    cluster.run_for(50);
    cluster.crash(3);
    cluster.finish(60_000);
    cluster.run_for(2_000);
    cluster.start(3);
    cluster.run_for(3_000);
    assert_eq!(cluster.status(3).sequence, cluster.status(0).sequence);
    assert!(cluster.status(3).counters.batches_fetched > 400);
    cluster.check();
}

#[test]
fn a_replica_without_its_journal_follows_but_never_votes() {
    for wiped in [true, false] {
        let mut cluster = TestCluster::four(10);
        let client = cluster.client(50);
        cluster.finish(10_000);
        cluster.crash(2);
        if wiped {
            cluster.wipe(2);
        }
        let reason = "its directory is empty".to_owned();
        cluster.start_on(2, Condition::Lost { reason });
        cluster.more(client, 50);
        cluster.finish(10_000);
        cluster.check();
        let status = cluster.status(2);
        assert_eq!(status.voting, Voting::Lost);
        assert_eq!((status.counters.prepares, status.counters.commits), (0, 0));
        // It is recorded: a restart on the journal that it has begun since changes nothing.
        cluster.crash(2);
        cluster.start(2);
        assert_eq!(cluster.status(2).voting, Voting::Lost);
        // It counts among u: with another one down the cluster waits, and goes on afterwards.
        cluster.crash(1);
        cluster.more(client, 1);
        cluster.run_for(3_000);
        assert!(!cluster.finished());
        cluster.start(1);
        cluster.finish(30_000);
        cluster.check();
    }
}

#[test]
fn a_leader_whose_clock_runs_ahead_cannot_move_time() {
    let mut cluster = TestCluster::four(11);
    cluster.skew(0, 60_000);
    let client = cluster.client(5);
    cluster.finish(20_000);
    assert!(cluster.status(1).view > View(0));
    assert!(cluster.status(1).counters.held_for_clock > 0);
    let ahead = cluster.status(1).time.0 as i64 - (1_700_000_000_000_000_000 + cluster.now) as i64;
    assert!(ahead < 500 * MS as i64, "agreed time is {ahead} ns ahead");
    cluster.more(client, 20);
    cluster.finish(20_000);
    cluster.check();
}

#[test]
fn a_leader_whose_clock_trails_is_replaced() {
    let mut cluster = TestCluster::four(12);
    cluster.skew(0, -60_000);
    cluster.client(100);
    cluster.finish(20_000);
    assert!(cluster.status(1).view > View(0));
    assert!(cluster.status(1).counters.suspicions_clock > 0);
    cluster.check();
}

#[test]
fn a_leader_that_proposes_to_too_few_is_replaced_and_no_replica_is_left_behind() {
    let mut cluster = TestCluster::four(13);
    cluster.tap = Some(Box::new(|from, to, envelope| {
        let view = envelope.view();
        !(from == 0 && view == View(0) && to != 1 && envelope.message().kind() == Kind::Proposal)
    }));
    cluster.client(20);
    cluster.finish(20_000);
    cluster.check();
}

#[test]
fn a_leader_that_leaves_one_replica_out_does_not_stop_it() {
    let mut cluster = TestCluster::four(14);
    cluster.tap = Some(Box::new(|from, to, _| !(from == 0 && to == 3)));
    cluster.client(100);
    cluster.finish(20_000);
    cluster.run_for(2_000);
    assert_eq!(cluster.status(3).sequence, cluster.status(1).sequence);
    assert!(cluster.status(3).sequence >= Sequence(101));
}

#[test]
fn a_leader_that_serves_only_its_accomplice_is_replaced() {
    for seed in 0..5 {
        let mut cluster = TestCluster::four(seed);
        let (accomplice, honest) = (cluster.client(1), cluster.client(1));
        cluster.finish(5_000);
        // Only the leader gets the accomplice's requests, and it gets no others.
        cluster.sends_to(accomplice, &[0]);
        cluster.sends_to(honest, &[1, 2, 3]);
        cluster.tap = Some(Box::new(|_, to, envelope| {
            to != 0 || envelope.message().kind() != Kind::Request
        }));
        cluster.more(accomplice, 100_000);
        cluster.more(honest, 1);
        cluster.run_for(5_000);
        let unfair = cluster.status(1).counters.suspicions_unfair;
        assert!(unfair > 0 && cluster.results(honest).len() == 2, "{seed}");
    }
}

#[test]
fn a_batch_that_was_prepared_survives_its_leader() {
    // COMMITs are lost: all that is prepared has to be carried over into the next view.
    for seed in 0..10 {
        let mut cluster = TestCluster::four(seed);
        cluster.tap = Some(Box::new(|_, _, envelope| {
            !(envelope.view() == View(0) && envelope.message().kind() == Kind::Commit)
        }));
        cluster.client(10);
        cluster.finish(20_000);
        let carried: u64 = (0..4)
            .map(|node| cluster.status(node).counters.reproposals)
            .sum();
        assert!(carried > 0);
        cluster.check();
    }
}

#[test]
fn a_chain_of_batches_that_were_prepared_survives_its_leader() {
    for seed in 0..10 {
        let mut cluster = TestCluster::four(seed);
        for _ in 0..8 {
            cluster.client(20);
        }
        cluster.run_for(60);
        // From now on nothing commits in the first view, and no replica learns of every batch.
        cluster.tap = Some(Box::new(|_, to, envelope| {
            let sequence = match envelope.message() {
                Message::Commit(_) => return envelope.view() > View(0),
                Message::Prepare(ballot) => ballot.sequence.0,
                _ => return true,
            };
            envelope.view() > View(0) || sequence % 4 != to as u64
        }));
        cluster.finish(30_000);
        let chains: u64 = (0..4)
            .map(|node| cluster.status(node).counters.chains_carried)
            .sum();
        assert!(chains > 0, "seed {seed}");
        cluster.tap = None;
        cluster.check();
    }
}

#[test]
fn several_batches_that_only_a_silent_replica_has_executed_are_executed_by_the_others() {
    let mut deepest = 0;
    for seed in 0..10 {
        let mut cluster = TestCluster::four(seed);
        let clients: Vec<_> = (0..6).map(|_| cluster.client(5)).collect();
        cluster.finish(5_000);
        cluster.run_for(50);
        // Only the leader learns what is decided, and it sends no batches.
        cluster.tap = Some(Box::new(|from, to, envelope| {
            let kind = envelope.message().kind();
            let first = envelope.view() == View(0);
            !(kind == Kind::Committed || (kind == Kind::Commit && (first && to != 0 || from == 0)))
        }));
        let before = cluster.status(1).sequence;
        clients.iter().for_each(|client| cluster.more(*client, 5));
        cluster.run_for(150);
        deepest = deepest.max(cluster.status(0).sequence.0 - before.0);
        assert_eq!(cluster.status(1).sequence, before);
        // It shows its certificates when the view changes, and then it is silent.
        cluster.run_for(900);
        assert!(cluster.status(1).sequence > before, "seed {seed}");
        cluster.tap = None;
        cluster.finish(20_000);
        cluster.check();
    }
    assert!(deepest > 2, "only {deepest} batches");
}

#[test]
fn views_change_under_load_again_and_again() {
    for seed in 0..10 {
        let mut cluster = TestCluster::four(seed);
        for _ in 0..4 {
            cluster.client(150);
        }
        for round in 0..6 {
            let leader = (0..4)
                .find(|it| cluster.up(*it))
                .map_or(0, |it| usize::from(cluster.status(it).leader.0));
            cluster.crash(leader);
            cluster.run_for(1_500 + 100 * round);
            cluster.start(leader);
            cluster.run_for(300);
        }
        cluster.finish(60_000);
        assert!(cluster.status(0).view >= View(5));
        cluster.check();
    }
}

#[test]
fn a_batch_that_only_a_silent_replica_has_executed_blocks_no_view() {
    for seed in 0..10 {
        let mut cluster = TestCluster::four(seed);
        let client = cluster.client(3);
        cluster.finish(5_000);
        // It learns what is decided, shows it when the view changes, and sends no batches.
        cluster.tap = Some(Box::new(|from, _, envelope| {
            let kept = matches!(
                envelope.message(),
                Message::Commit(_) | Message::Committed(_) | Message::Bodies(_)
            );
            from != 0 || !kept
        }));
        for other in 0..3 {
            cluster.cut.extend([(3, other), (other, 3)]);
        }
        let before = cluster.status(1).sequence;
        cluster.more(client, 5);
        cluster.run_for(150);
        assert!(cluster.status(0).sequence > before);
        assert_eq!(cluster.status(1).sequence, before);
        cluster.run_for(400);
        cluster.cut.clear();
        cluster.finish(20_000);
        cluster.tap = None;
        cluster.check();
    }
}

/// Whether a crash now would leave a journal that ends where a vote was rewritten behind a root,
/// but the certificate of the vote's COMMIT was not yet.
fn cut_while_rewritten(cluster: &TestCluster, node: usize) -> bool {
    let entries = cluster.durable(node);
    let decoded = |entry: &Entry| Record::decode(&entry.record).unwrap();
    let mut newest = entries.iter().rev().take(2).map(decoded);
    let (Some(Record::Voted { proposal, .. }), Some(Record::BootMark)) =
        (newest.next(), newest.next())
    else {
        return false;
    };
    entries.iter().any(|entry| match decoded(entry) {
        Record::Prepared { prepared, .. } => {
            prepared.is_some_and(|it| it.proposal.digest() == proposal.digest())
        }
        _ => false,
    })
}

#[test]
fn a_leader_that_crashes_while_its_votes_are_rewritten_shows_a_whole_certificate() {
    let shown: Rc<Cell<usize>> = Rc::default();
    for seed in 0..12 {
        let mut cluster = TestCluster::four(seed);
        for _ in 0..3 {
            cluster.client(400);
        }
        while !cut_while_rewritten(&cluster, 0) && cluster.now < 4_000 * MS {
            cluster.run_until(cluster.now + MS / 20);
        }
        cluster.crash(0);
        let shown = Rc::clone(&shown);
        cluster.tap = Some(Box::new(move |from, to, envelope| {
            if let (0, Message::ViewChange(change)) = (from, envelope.message()) {
                for prepared in &change.prepared {
                    assert!(prepared.votes.len() >= 2, "others prepared it");
                    shown.set(shown.get() + 1);
                }
            }
            // It does not learn that the batch is committed, so that it has to show what it knows.
            to != 0
                || !matches!(
                    envelope.message(),
                    Message::Commit(_) | Message::Committed(_)
                )
        }));
        cluster.start(0);
        cluster.run_for(2_000);
        cluster.tap = None;
        cluster.finish(60_000);
        cluster.check();
    }
    assert!(shown.get() >= 3, "only {} VIEW-CHANGEs", shown.get());
}
