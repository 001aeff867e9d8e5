//! A replica that is too far behind, or wrong, takes the state of a checkpoint over.

use super::cluster::{CHECKPOINT_EVERY, MS, TestCluster};
use crate::fault_model::FaultModel;
use crate::identity::{ReplicaId, Sequence, View};
use crate::journal::{Condition, Record};
use crate::metrics::Voting;
use crate::step::Peer;
use crate::wire::message::{Message, PeerStatus};
use std::cell::Cell;
use std::rc::Rc;

/// All replicas have the same sequence and the same state.
fn agree(cluster: &mut TestCluster) {
    cluster.run_for(3_000);
    let states: Vec<_> = (0..4).map(|node| cluster.state(node)).collect();
    assert!(states.iter().all(|it| *it == states[0]), "{states:#?}");
    cluster.check();
}

#[test]
fn a_replica_away_for_longer_than_batches_are_kept_takes_a_checkpoint_over() {
    let mut cluster = TestCluster::four(11);
    cluster.client(30);
    cluster.finish(10_000);
    cluster.crash(3);
    cluster.client(6 * CHECKPOINT_EVERY);
    cluster.finish(30_000);
    let kept = cluster.status(0).kept;
    assert!(kept.0 > 4 * CHECKPOINT_EVERY, "{kept}");
    cluster.start(3);
    agree(&mut cluster);
    let status = cluster.status(3);
    assert_eq!(status.counters.transfers_finished, 1, "{status:#?}");
    assert_eq!(status.voting, Voting::Voting);
    // It is a full member: without another one, it is needed.
    cluster.crash(1);
    cluster.client(3 * CHECKPOINT_EVERY);
    cluster.finish(60_000);
    cluster.crash(3);
    cluster.start(3);
    cluster.start(1);
    agree(&mut cluster);
}

#[test]
fn a_replica_that_lost_journal_and_state_gets_the_state_back_and_does_not_vote() {
    let mut cluster = TestCluster::four(12);
    cluster.client(6 * CHECKPOINT_EVERY);
    cluster.finish(30_000);
    cluster.crash(2);
    cluster.wipe(2);
    let reason = "wiped".to_owned();
    cluster.start_on(2, Condition::Lost { reason });
    agree(&mut cluster);
    let status = cluster.status(2);
    assert_eq!(status.counters.transfers_finished, 1);
    assert_eq!(status.voting, Voting::Lost);
}

#[test]
fn a_crash_in_the_middle_costs_only_what_was_under_way() {
    let mut cluster = TestCluster::four(13);
    cluster.operation = b"w";
    cluster.client(8 * CHECKPOINT_EVERY);
    cluster.finish(30_000);
    cluster.crash(2);
    cluster.wipe(2);
    let lost = || Condition::Lost {
        reason: "wiped".to_owned(),
    };
    cluster.start_on(2, lost());
    let mut fetched = 0;
    for _ in 0..400 {
        cluster.run_for(1);
        fetched = cluster.status(2).counters.nodes_fetched;
        if cluster.status(2).counters.nodes_fetched > 3 && cluster.has_import(2) {
            break;
        }
    }
    assert!(cluster.status(2).transfer.is_some() && fetched > 3);
    cluster.crash(2);
    cluster.start_on(2, lost());
    agree(&mut cluster);
    let status = cluster.status(2);
    assert_eq!(status.counters.transfers_resumed, 1);
    assert_eq!(status.counters.transfers_finished, 1);
    let all = cluster.status(0).counters.nodes_served
        + cluster.status(1).counters.nodes_served
        + cluster.status(3).counters.nodes_served;
    assert!(status.counters.nodes_fetched < all, "{all} in both lives");
}

#[test]
fn a_wrong_state_is_replaced_and_votes_come_back() {
    let mut cluster = TestCluster::new(FaultModel::new(1, 1, 4).unwrap(), 14);
    cluster.flawed.insert(3);
    cluster.start_all();
    cluster.client(6 * CHECKPOINT_EVERY);
    cluster.finish(30_000);
    agree(&mut cluster);
    let status = cluster.status(3);
    assert!(status.counters.states_refuted >= 1);
    assert!(status.counters.transfers_finished >= 1);
    assert_eq!(status.voting, Voting::Voting, "{status:#?}");
}

#[test]
fn a_wrong_state_is_known_to_be_wrong_after_a_crash() {
    let mut cluster = TestCluster::new(FaultModel::new(1, 1, 4).unwrap(), 16);
    cluster.flawed.insert(3);
    cluster.start_all();
    let client = cluster.client(42);
    cluster.finish(10_000);
    cluster.run_for(1_000);
    cluster.slow_stores.insert(3, 1_000);
    cluster.more(client, 8);
    cluster.finish(10_000);
    while cluster.status(3).voting != Voting::Diverged {
        cluster.run_for(10);
        assert!(cluster.now < 60_000 * MS);
    }
    let status = cluster.status(3);
    // The checkpoint that showed it is replaced by later ones, of which nothing is here yet.
    cluster.more(client, 3 * CHECKPOINT_EVERY);
    cluster.finish(10_000);
    assert!(cluster.status(3).stable > status.stable);
    assert!(
        !cluster.has_import(3),
        "nothing of another state is durable"
    );
    cluster.flawed.clear();
    cluster.slow_stores.clear();
    cluster.crash(3);
    cluster.start(3);
    assert_eq!(cluster.status(3).voting, Voting::Diverged);
    agree(&mut cluster);
    let status = cluster.status(3);
    assert_eq!(status.counters.transfers_finished, 1, "{status:#?}");
    assert_eq!(status.voting, Voting::Voting);
    cluster.crash(3);
    cluster.start(3);
    cluster.run_for(1_000);
    let voting = cluster.status(3).voting;
    assert_eq!(voting, Voting::Voting, "another state took its place");
}

/// Its promises in open sequences were lost with its state. It votes for nothing there until it has
/// executed it, whatever the leader proposes, and however often it restarts.
#[test]
fn a_replica_that_goes_back_to_an_earlier_state_abstains_where_it_may_have_voted() {
    let mut cluster = TestCluster::new(FaultModel::new(1, 1, 4).unwrap(), 18);
    cluster.flawed.insert(3);
    let voted = Rc::new(Cell::new(Sequence(0)));
    let votes = Rc::clone(&voted);
    cluster.tap = Some(Box::new(move |from, _, envelope| {
        if let (3, Message::Prepare(ballot)) = (from, envelope.message()) {
            votes.set(votes.get().max(ballot.sequence));
        }
        true
    }));
    cluster.start_all();
    let client = cluster.client(200);
    while cluster.status(3).counters.transfers_finished == 0 {
        cluster.run_until(cluster.now + MS / 10);
        assert!(cluster.now < 60_000 * MS);
    }
    let back = cluster.last_of(3);
    assert!(back.sequence < voted.get(), "{back:?} is not back");
    // Nothing comes from the others until its journal begins with its valid records.
    cluster.cut.extend([(0, 3), (1, 3), (2, 3)]);
    cluster.run_for(50);
    for restarted in [false, true] {
        if restarted {
            cluster.crash(3);
            cluster.start(3);
        }
        let before = cluster.status(3);
        assert_eq!(before.voting, Voting::Abstaining, "restarted: {restarted}");
        // Another batch than the one it has voted for there.
        let place = cluster.last_of(3);
        assert!(place.sequence < voted.get());
        let twin = cluster.request(client, 1_000, 1);
        cluster.propose(3, place, 1, std::slice::from_ref(&twin));
        cluster.send_bodies(3, vec![twin]);
        let prepares = cluster.status(3).counters.prepares;
        assert_eq!(prepares, before.counters.prepares);
    }
    cluster.flawed.clear();
    cluster.cut.clear();
    cluster.crash(3);
    cluster.start(3);
    cluster.finish(30_000);
    agree(&mut cluster);
    assert_eq!(cluster.status(3).voting, Voting::Voting);
}

/// Whole segments are removed from a journal, so it may begin anywhere before the valid records.
#[test]
fn void_records_left_in_a_journal_change_nothing() {
    let mut cluster = TestCluster::new(FaultModel::new(1, 1, 4).unwrap(), 18);
    cluster.never_trims = true;
    cluster.flawed.insert(3);
    cluster.start_all();
    let client = cluster.client(44);
    let mut ahead = Sequence(0);
    while cluster.status(3).counters.transfers_finished == 0 {
        ahead = ahead.max(cluster.status(3).sequence);
        cluster.run_for(1);
        cluster.more(client, 1);
        assert!(cluster.now < 60_000 * MS);
    }
    let back = cluster.status(3).durable;
    assert!(back < ahead, "it went back from {ahead} to {back}");
    cluster.flawed.clear();
    for intervals in [0, 1, 3] {
        cluster.more(client, intervals * CHECKPOINT_EVERY);
        cluster.finish(30_000);
        agree(&mut cluster);
        cluster.crash(3);
        let entries = cluster.journal(3);
        let newest_first = entries.iter().rev();
        let counts = newest_first
            .filter_map(|it| Record::trimmed(&it.record))
            .next();
        let void = entries.iter().filter(|it| Some(it.token) < counts);
        let void = void.count();
        assert!(void > 100, "{void}");
        for cut in (0..=void).step_by(7) {
            let status = cluster.begins_without(3, cut);
            let good = matches!(status.voting, Voting::Voting | Voting::Abstaining);
            assert!(good, "without {cut} of {void}: {status:#?}");
        }
        cluster.start(3);
        agree(&mut cluster);
        assert_eq!(cluster.status(3).voting, Voting::Voting);
    }
}

/// A peer claims to have a batch that no replica has, and none can send it. The claim is forgotten
/// as soon as the order goes on, and being late by a batch is no reason for a state transfer.
#[test]
fn a_peer_that_claims_too_much_triggers_no_transfer() {
    let mut cluster = TestCluster::four(18);
    let client = cluster.client(20);
    cluster.finish(10_000);
    cluster.run_for(1_000);
    let claim = PeerStatus {
        active: true,
        committed: Sequence(1 << 40),
        open: Vec::new(),
        view_changes: 0,
        suspects: 0,
        stable: Sequence(0),
        kept: Sequence(0),
    };
    let header = cluster.context().header(View(0));
    let claim = crate::wire::encode(header, &Message::Status(claim));
    cluster.arrive(3, Peer::Replica(ReplicaId(2)), claim);
    cluster.run_for(2_000);
    let boundary = Sequence(2 * CHECKPOINT_EVERY);
    cluster.tap = Some(Box::new(move |from, to, envelope| {
        match envelope.message() {
            Message::Commit(ballot) => to != 3 || from == 2 || ballot.sequence != boundary,
            _ => true,
        }
    }));
    cluster.more(client, CHECKPOINT_EVERY);
    cluster.finish(10_000);
    agree(&mut cluster);
    let counters = cluster.status(3).counters;
    assert!(counters.committed_fetched >= 8, "it asked every peer twice");
    assert!(cluster.status(3).stable >= boundary);
    assert_eq!(counters.transfers, 0);
}

#[test]
fn a_silent_source_is_passed_over() {
    let mut cluster = TestCluster::four(15);
    cluster.client(6 * CHECKPOINT_EVERY);
    cluster.finish(30_000);
    cluster.crash(3);
    cluster.wipe(3);
    cluster.tap = Some(Box::new(|from, _, envelope| {
        from != 0
            || !matches!(
                envelope.message(),
                Message::Nodes(_) | Message::Committed(_)
            )
    }));
    let reason = "wiped".to_owned();
    cluster.start_on(3, Condition::Lost { reason });
    cluster.run_for(3_000);
    assert_eq!(cluster.status(3).counters.transfers_finished, 1);
    agree(&mut cluster);
}

/// Answers later than a tenth of a second used to be dropped, and their sender skipped: a replica
/// far from the others never learnt anything.
#[test]
fn a_state_is_taken_over_however_long_the_way_is() {
    for distance in [60, 150] {
        let mut cluster = TestCluster::four(19);
        cluster.operation = b"w";
        cluster.client(8 * CHECKPOINT_EVERY);
        cluster.finish(30_000);
        cluster.crash(2);
        cluster.wipe(2);
        cluster.distance = distance;
        let reason = "wiped".to_owned();
        cluster.start_on(2, Condition::Lost { reason });
        let begun = cluster.now;
        while cluster.status(2).counters.transfers_finished == 0 {
            cluster.run_for(10);
            let status = cluster.status(2);
            assert!(cluster.now < begun + 8_000 * MS, "{distance}: {status:#?}");
        }
        cluster.run_for(5_000);
        agree(&mut cluster);
    }
}
