//! Checkpoints: agreement on the state, and what follows from its absence.

use super::cluster::{CHECKPOINT_EVERY, Cluster};
use crate::fault_model::FaultModel;
use crate::identity::{Epoch, Sequence, SessionId};
use crate::journal::{Condition, Record};
use crate::metrics::Voting;
use crate::wire::message::Message;

#[test]
fn two_replicas_that_differ_stop_and_say_so() {
    let mut cluster = Cluster::new(FaultModel::new(0, 1, 2).unwrap(), 4);
    cluster.flawed.insert(1);
    cluster.start_all();
    cluster.client(200);
    cluster.run_for(20_000);
    for node in 0..2 {
        let status = cluster.status(node);
        assert_eq!(status.voting, Voting::Diverged, "replica {node}");
        assert!(status.stable < Sequence(60), "{status:#?}");
        assert!(status.sequence.0 <= status.stable.0 + 2 * CHECKPOINT_EVERY);
    }
    let before = cluster.status(0).sequence;
    for node in 0..2 {
        cluster.crash(node);
        cluster.start(node);
    }
    cluster.run_for(3_000);
    let after = cluster.status(0);
    let room = before.0 + CHECKPOINT_EVERY;
    assert!(after.sequence.0 <= room, "{after:#?}");
    assert_eq!(after.voting, Voting::Diverged, "it finds out again");
}

#[test]
fn one_of_four_that_differs_does_not_vote_any_more() {
    let mut cluster = Cluster::new(FaultModel::new(1, 1, 4).unwrap(), 5);
    cluster.flawed.insert(3);
    // It cannot mend itself.
    cluster.tap = Some(Box::new(|_, _, envelope| {
        !matches!(envelope.message(), Message::Nodes(_))
    }));
    cluster.start_all();
    cluster.client(120);
    cluster.run_for(20_000);
    assert_eq!(cluster.status(3).voting, Voting::Diverged);
    for node in 0..3 {
        let status = cluster.status(node);
        assert_eq!(status.voting, Voting::Voting);
        assert!(status.sequence > Sequence(100), "{status:#?}");
    }
    // Nor does a restart make it forget, although what has become stable since says nothing of it.
    cluster.crash(3);
    cluster.start(3);
    cluster.run_for(2_000);
    let status = cluster.status(3);
    assert_eq!(status.voting, Voting::Diverged, "{status:#?}");
    assert!(status.transfer.is_some());
    cluster.tap = None;
    cluster.run_for(5_000);
    let status = cluster.status(3);
    assert_eq!(status.voting, Voting::Voting);
    assert_eq!(status.sequence, cluster.status(0).sequence);
}

#[test]
fn without_stable_checkpoints_the_order_stops_instead_of_growing() {
    let mut cluster = Cluster::four(6);
    // Nobody hears of the state of others.
    cluster.tap = Some(Box::new(|_, _, envelope| {
        !matches!(
            envelope.message(),
            Message::Checkpoint(_) | Message::Stable(_)
        )
    }));
    cluster.client(200);
    cluster.run_for(10_000);
    let stopped = cluster.status(0).sequence;
    assert_eq!(stopped, Sequence(2 * CHECKPOINT_EVERY));
    assert_eq!(cluster.status(0).view.0, 0, "no leader is to blame");
    cluster.tap = None;
    cluster.run_for(20_000);
    assert!(cluster.status(0).sequence > Sequence(190));
    cluster.check();
}

#[test]
fn what_became_durable_while_somebody_abstained_is_spoken_for_afterwards() {
    let mut cluster = Cluster::four(7);
    let client = cluster.client(20);
    cluster.finish(10_000);
    cluster.run_for(1_000);
    cluster.crash(2);
    let (epoch, until) = (Epoch(0), Sequence(40));
    cluster.write(2, &Record::VoteBarrier { epoch, until });
    cluster.start(2);
    // Without its word there is no quorum.
    cluster.tap = Some(Box::new(|from, _, envelope| {
        from != 3
            || !matches!(
                envelope.message(),
                Message::Checkpoint(_) | Message::Stable(_)
            )
    }));
    cluster.more(client, 5);
    cluster.finish(10_000);
    assert_eq!(cluster.status(2).voting, Voting::Abstaining);
    cluster.more(client, 25);
    cluster.finish(10_000);
    assert!(cluster.status(0).stable >= Sequence(2 * CHECKPOINT_EVERY));
    cluster.check();
}

#[test]
fn a_state_that_is_refuted_answers_nobody_whether_its_replica_votes_or_not() {
    let mut cluster = Cluster::new(FaultModel::new(1, 1, 4).unwrap(), 8);
    cluster.flawed.insert(3);
    cluster.tap = Some(Box::new(|_, _, envelope| {
        !matches!(envelope.message(), Message::Nodes(_))
    }));
    (0..3).for_each(|node| cluster.start(node));
    let reason = "its directory is empty".to_owned();
    cluster.start_on(3, Condition::Lost { reason });
    let client = cluster.client(60);
    cluster.finish(20_000);
    cluster.run_for(2_000);
    let status = cluster.status(3);
    assert_eq!(status.voting, Voting::Lost);
    assert_eq!(status.counters.states_refuted, 1);
    let answered = |cluster: &Cluster, node| {
        let counters = cluster.status(node).counters;
        (counters.replies_resent, counters.no_session)
    };
    let before = [0, 3].map(|node| answered(&cluster, node));
    cluster.again(client, 44);
    cluster.stray(SessionId(0));
    let after = [0, 3].map(|node| answered(&cluster, node));
    assert_eq!(after, [(before[0].0 + 1, before[0].1 + 1), before[1]]);
}
