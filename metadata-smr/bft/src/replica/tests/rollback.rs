//! Disks that are put back to an older state, and whole ones of which a liar claims it.

use super::cluster::TestCluster;
use crate::authentication::Authentication;
use crate::fault_model::FaultModel;
use crate::identity::{ReplicaId, Sequence, View};
use crate::metrics::Voting;
use crate::step::Peer;
use crate::wire::message::{Kind, Message};
use bytes::Bytes;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

/// The replica whose disk is put back.
const BACK: usize = 2;

/// No replica gets beyond this phase: a batch stays open for as long as the cell is set.
fn hold(cluster: &mut TestCluster, kinds: &'static [Kind]) -> Rc<Cell<bool>> {
    let holds = Rc::new(Cell::new(true));
    let held = Rc::clone(&holds);
    cluster.tap = Some(Box::new(move |_, _, envelope| {
        !held.get() || !kinds.contains(&envelope.message().kind())
    }));
    holds
}

#[track_caller]
fn noticed(cluster: &TestCluster) {
    let status = cluster.status(BACK);
    assert_eq!(status.voting, Voting::Lost, "{status:#?}");
    assert_eq!(status.counters.rollbacks_noticed, 1);
    assert!(status.reborn.is_some());
}

/// It has recorded that it does not vote, and the others go on.
#[track_caller]
fn counts_as_lost(cluster: &mut TestCluster, client: usize) {
    noticed(cluster);
    cluster.run_for(20);
    cluster.crash(BACK);
    cluster.start(BACK);
    cluster.more(client, 20);
    cluster.finish(10_000);
    cluster.check();
    let status = cluster.status(BACK);
    assert_eq!(status.voting, Voting::Lost);
    let counters = status.counters;
    assert_eq!(counters.rollbacks_noticed, 0, "it is recorded");
    let given = (counters.prepares, counters.commits, counters.view_changes);
    assert_eq!(given, (0, 0, 0));
}

#[test]
fn a_disk_of_many_batches_ago_is_noticed_by_the_batches_that_it_lacks() {
    for seed in 0..10 {
        let mut cluster = TestCluster::four(seed);
        let client = cluster.client(20);
        cluster.finish(10_000);
        let copy = cluster.copy(BACK);
        cluster.more(client, 5 + 10 * seed);
        cluster.finish(10_000);
        cluster.run_for(300);
        cluster.restore_copy(BACK, &copy);
        cluster.run_for(1_000);
        counts_as_lost(&mut cluster, client);
    }
}

/// One vote is missing, for a batch that is not decided, and no replica needs anything.
#[test]
fn a_forgotten_prepare_is_shown_by_replicas_that_have_it() {
    let mut cluster = TestCluster::four(7);
    let client = cluster.client(20);
    cluster.finish(10_000);
    cluster.run_for(300);
    let copy = cluster.copy(BACK);
    let holds = hold(&mut cluster, &[Kind::Commit]);
    cluster.more(client, 1);
    cluster.run_for(120);
    assert_eq!(cluster.status(0).sequence, cluster.status(BACK).sequence);
    cluster.restore_copy(BACK, &copy);
    assert_eq!(cluster.status(BACK).voting, Voting::Voting);
    cluster.run_for(240);
    assert_eq!(cluster.status(0).view, View(0));
    assert!(cluster.status(0).counters.messages_returned > 0);
    noticed(&cluster);
    holds.set(false);
    cluster.finish(10_000);
    cluster.check();
    counts_as_lost(&mut cluster, client);
}

#[test]
fn a_replica_that_left_a_view_and_does_not_remember_is_shown_its_view_change() {
    let mut cluster = TestCluster::four(8);
    let client = cluster.client(20);
    cluster.finish(10_000);
    let copy = cluster.copy(BACK);
    // No view begins, and no replica shows a certificate of votes.
    let holds = hold(&mut cluster, &[Kind::NewView]);
    cluster.crash(0);
    cluster.more(client, 1);
    cluster.run_for(1_500);
    assert!(cluster.status(1).view > View(0));
    cluster.restore_copy(BACK, &copy);
    assert_eq!(cluster.status(BACK).view, View(0));
    cluster.run_for(100);
    noticed(&cluster);
    holds.set(false);
    cluster.start(0);
    cluster.finish(30_000);
    counts_as_lost(&mut cluster, client);
}

/// Neither batches, votes nor views reach it: only checkpoints do.
fn only_checkpoints(cluster: &mut TestCluster, stable: bool) {
    let others = [Kind::Committed, Kind::NewView, Kind::Prepare, Kind::Commit];
    cluster.tap = Some(Box::new(move |from, to, envelope| {
        match envelope.message() {
            Message::Checkpoint(_) => stable || from == BACK || to == BACK,
            Message::Stable(_) => stable,
            _ => to != BACK || !others.contains(&envelope.message().kind()),
        }
    }));
}

#[test]
fn a_checkpoint_that_is_not_remembered_is_shown_before_it_is_stable() {
    let mut cluster = TestCluster::four(9);
    let client = cluster.client(5);
    cluster.finish(10_000);
    let copy = cluster.copy(BACK);
    cluster.tap = Some(Box::new(move |from, _, envelope| {
        match envelope.message() {
            Message::Checkpoint(_) => from == BACK,
            _ => true,
        }
    }));
    cluster.more(client, 15);
    cluster.finish(10_000);
    cluster.run_for(500);
    assert_eq!(cluster.status(0).stable, Sequence(0));
    only_checkpoints(&mut cluster, false);
    cluster.restore_copy(BACK, &copy);
    cluster.run_for(300);
    noticed(&cluster);
}

#[test]
fn a_stable_checkpoint_that_it_signed_is_enough() {
    let mut seen = 0;
    for seed in 0..8 {
        let mut cluster = TestCluster::four(seed);
        let client = cluster.client(20);
        cluster.finish(10_000);
        let copy = cluster.copy(BACK);
        cluster.more(client, 60);
        cluster.finish(10_000);
        cluster.run_for(500);
        only_checkpoints(&mut cluster, true);
        cluster.restore_copy(BACK, &copy);
        cluster.run_for(1_000);
        // Three of four have signed the certificate that is shown.
        seen += cluster.status(BACK).counters.rollbacks_noticed;
    }
    assert!(seen >= 2, "{seen}");
}

#[test]
fn where_votes_are_not_signed_enough_peers_say_that_they_have_them() {
    for liars in [1, 0] {
        let model = FaultModel::new(1, 1, 4).expect("a preset");
        let mut cluster = TestCluster::new(model, 7 + liars);
        cluster.authentication = Authentication::Mac;
        cluster.start_all();
        let client = cluster.client(20);
        cluster.finish(10_000);
        cluster.run_for(300);
        let copy = cluster.copy(BACK);
        let all_receive = liars == 0;
        // One peer alone could be lying.
        cluster.tap = Some(Box::new(move |from, to, envelope| {
            match envelope.message() {
                Message::Commit(_) => false,
                Message::Prepare(_) => all_receive || from != BACK || to == 0,
                _ => true,
            }
        }));
        cluster.more(client, 1);
        cluster.run_for(60);
        cluster.restore_copy(BACK, &copy);
        // It does not vote again.
        cluster.tap = Some(Box::new(move |from, _, envelope| {
            match envelope.message() {
                Message::Commit(_) => false,
                Message::Prepare(_) | Message::Proposal(_) => from == BACK,
                _ => true,
            }
        }));
        cluster.run_for(250);
        match all_receive {
            true => noticed(&cluster),
            false => assert_eq!(cluster.status(BACK).voting, Voting::Voting),
        }
    }
}

#[test]
fn a_disk_that_lacks_no_promise_is_taken_for_what_it_is() {
    let mut cluster = TestCluster::four(10);
    let client = cluster.client(20);
    cluster.finish(10_000);
    cluster.run_for(1_000);
    let copy = cluster.copy(BACK);
    // No messages are sent while it is quiet, except STATUS.
    cluster.run_for(5_000);
    cluster.restore_copy(BACK, &copy);
    cluster.run_for(1_000);
    cluster.more(client, 20);
    cluster.finish(10_000);
    cluster.check();
    let status = cluster.status(BACK);
    assert_eq!(status.voting, Voting::Voting);
    assert_eq!(status.counters.rollbacks_noticed, 0);
}

/// A liar shows everything that a replica ever sent, in any order, again and again.
#[test]
fn no_message_of_a_replica_makes_it_suspect_a_whole_disk() {
    let (mut views, mut messages) = (0, 0);
    for seed in 0..25 {
        let mut cluster = TestCluster::four(100 + seed);
        let sent: Rc<RefCell<BTreeSet<Bytes>>> = Rc::default();
        let all = Rc::clone(&sent);
        cluster.tap = Some(Box::new(move |_, _, envelope| {
            let kind = envelope.message().kind();
            if !matches!(kind, Kind::Status | Kind::Request | Kind::Bodies) {
                all.borrow_mut().insert(envelope.frame().clone());
            }
            true
        }));
        cluster.loss = 30;
        for _ in 0..2 {
            cluster.client(40);
        }
        for _ in 0..6 {
            let (up, down) = (cluster.random(250), cluster.random(600));
            let node = [BACK, cluster.random(4) as usize][cluster.random(2) as usize];
            cluster.run_for(up);
            if cluster.random(3) == 0 {
                (0..4).for_each(|node| cluster.crash(node));
            }
            cluster.crash(node);
            cluster.run_for(down);
            for node in 0..4 {
                if !cluster.up(node) {
                    cluster.start(node);
                }
            }
            let frames: Vec<Bytes> = sent.borrow().iter().cloned().collect();
            messages += frames.len();
            for frame in frames {
                let from = Peer::Replica(ReplicaId(((BACK + 1) % 4) as u16));
                cluster.arrive(BACK, from, frame);
            }
            cluster.check_no_rollback_noticed(BACK);
        }
        cluster.finish(60_000);
        views += cluster.status(BACK).view.0;
        cluster.check();
        assert_eq!(cluster.status(BACK).voting, Voting::Voting);
    }
    assert!(views > 20 && messages > 10_000, "{views} {messages}");
}
