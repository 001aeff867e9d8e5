//! What observers of a replica are told, and when they are refused.

use super::cluster::Cluster;
use crate::identity::{Sequence, SessionId};
use crate::observer::{Observe, Observed, WatchRefusal};
use crate::wire::limits::OBSERVERS_MAX;
use crate::wire::message::Message;

const REPORTS: Observe = Observe {
    reports: true,
    session: None,
};

fn reports(told: &[Message]) -> Vec<(u64, Sequence)> {
    let report = |message: &Message| match message {
        Message::Report(said) => Some((said.number, said.report.executed)),
        _ => None,
    };
    told.iter().filter_map(report).collect()
}

#[test]
fn progress_is_told_now_and_then_and_the_last_word_is_the_last_state() {
    let mut cluster = Cluster::four(51);
    let client = cluster.client(10);
    cluster.finish(5_000);
    cluster.observe(1, 900, REPORTS);
    cluster.run_for(20);
    assert_eq!(reports(cluster.told(1, 900)).len(), 1, "it is told at once");
    let batches = cluster.status(1).sequence.0;
    cluster.more(client, 200);
    cluster.finish(20_000);
    cluster.run_for(500);
    let told = reports(cluster.told(1, 900));
    let executed = cluster.status(1).sequence;
    assert_eq!(told.last().unwrap().1, executed);
    assert!(told.len() >= 3, "{told:?}");
    assert!(4 * told.len() < (executed.0 - batches) as usize, "{told:?}");
    let numbers = told.windows(2).all(|pair| pair[1].0 <= pair[0].0 + 1);
    assert!(numbers, "none is skipped: {told:?}");
    let count = told.len();
    cluster.run_for(2_500);
    let told = reports(cluster.told(1, 900));
    assert!(told.len() >= count + 2, "silence would mean trouble");
    assert!(told.len() <= count + 3);
}

#[test]
fn a_change_of_view_is_told_at_once() {
    let mut cluster = Cluster::four(52);
    let client = cluster.client(5);
    cluster.finish(5_000);
    cluster.observe(1, 900, REPORTS);
    cluster.crash(0);
    cluster.more(client, 5);
    cluster.finish(10_000);
    let (mut between, mut begun) = (false, false);
    for message in cluster.told(1, 900) {
        if let Message::Report(said) = message {
            let report = said.report;
            between |= report.view.0 >= 1 && !report.active;
            begun |= between && report.active && report.leader.0 != 0;
        }
    }
    assert!(between && begun, "left one view, entered another");
}

#[test]
fn there_are_so_many_observers_and_the_place_of_one_who_left_is_free() {
    let mut cluster = Cluster::four(53);
    for connection in 0..OBSERVERS_MAX as u64 {
        cluster.observe(1, 1000 + connection, REPORTS);
    }
    cluster.observe(1, 900, REPORTS);
    cluster.run_for(20);
    let refused = |cluster: &Cluster, connection| {
        let told = cluster.told(1, connection).iter();
        let full =
            |it: &&Message| matches!(it, Message::Observed(Observed::Refused(WatchRefusal::Full)));
        told.filter(full).count()
    };
    assert_eq!((refused(&cluster, 900), refused(&cluster, 1000)), (1, 0));
    // Asking twice takes no second place.
    cluster.observe(1, 1000, REPORTS);
    cluster.disconnect(1, 1001);
    cluster.observe(1, 900, REPORTS);
    cluster.run_for(20);
    assert_eq!((refused(&cluster, 900), refused(&cluster, 1000)), (1, 0));
}

#[test]
fn a_session_that_is_not_open_is_not_watched() {
    let mut cluster = Cluster::four(54);
    cluster.client(1);
    cluster.finish(5_000);
    let observe = |session| Observe {
        reports: false,
        session: Some(SessionId(session)),
    };
    cluster.observe(2, 900, observe(77));
    cluster.observe(2, 901, observe(1));
    cluster.run_for(20);
    let told = |cluster: &Cluster, connection| match cluster.told(2, connection) {
        [Message::Observed(observed)] => *observed,
        other => panic!("{other:?}"),
    };
    let refused = Observed::Refused(WatchRefusal::NoSession);
    assert_eq!(told(&cluster, 900), refused);
    let applied = cluster.status(2).sequence;
    let accepted = Observed::Accepted {
        applied,
        last: None,
    };
    assert_eq!(told(&cluster, 901), accepted);
}
