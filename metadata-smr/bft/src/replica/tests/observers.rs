//! What observers of a replica receive, and when they are refused.

use super::cluster::TestCluster;
use crate::identity::{Sequence, SessionId};
use crate::observer::{Observe, Observed, WatchRefusal};
use crate::wire::limits::OBSERVERS_MAX;
use crate::wire::message::Message;

const REPORTS: Observe = Observe {
    reports: true,
    session: None,
};

fn reports(received: &[Message]) -> Vec<(u64, Sequence)> {
    let report = |message: &Message| match message {
        Message::Report(numbered) => Some((numbered.number, numbered.report.executed)),
        _ => None,
    };
    received.iter().filter_map(report).collect()
}

#[test]
fn progress_is_reported_now_and_then_and_the_last_report_is_the_last_state() {
    let mut cluster = TestCluster::four(51);
    let client = cluster.client(10);
    cluster.finish(5_000);
    cluster.observe(1, 900, REPORTS);
    cluster.run_for(20);
    assert_eq!(
        reports(cluster.received(1, 900)).len(),
        1,
        "it is received at once"
    );
    let batches = cluster.status(1).sequence.0;
    cluster.more(client, 200);
    cluster.finish(20_000);
    cluster.run_for(500);
    let received = reports(cluster.received(1, 900));
    let executed = cluster.status(1).sequence;
    assert_eq!(received.last().unwrap().1, executed);
    assert!(received.len() >= 3, "{received:?}");
    assert!(
        4 * received.len() < (executed.0 - batches) as usize,
        "{received:?}"
    );
    let numbers = received.windows(2).all(|pair| pair[1].0 <= pair[0].0 + 1);
    assert!(numbers, "none is skipped: {received:?}");
    let count = received.len();
    cluster.run_for(2_500);
    let received = reports(cluster.received(1, 900));
    assert!(received.len() >= count + 2, "an idle replica reports too");
    assert!(received.len() <= count + 3);
}

#[test]
fn a_change_of_view_is_reported_at_once() {
    let mut cluster = TestCluster::four(52);
    let client = cluster.client(5);
    cluster.finish(5_000);
    cluster.observe(1, 900, REPORTS);
    cluster.crash(0);
    cluster.more(client, 5);
    cluster.finish(10_000);
    let (mut between, mut begun) = (false, false);
    for message in cluster.received(1, 900) {
        if let Message::Report(numbered) = message {
            let report = numbered.report;
            between |= report.view.0 >= 1 && !report.active;
            begun |= between && report.active && report.leader.0 != 0;
        }
    }
    assert!(between && begun, "left one view, entered another");
}

#[test]
fn observers_are_bounded_and_the_place_of_one_that_left_is_free() {
    let mut cluster = TestCluster::four(53);
    for connection in 0..OBSERVERS_MAX as u64 {
        cluster.observe(1, 1000 + connection, REPORTS);
    }
    cluster.observe(1, 900, REPORTS);
    cluster.run_for(20);
    let refused = |cluster: &TestCluster, connection| {
        let received = cluster.received(1, connection).iter();
        let full =
            |it: &&Message| matches!(it, Message::Observed(Observed::Refused(WatchRefusal::Full)));
        received.filter(full).count()
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
    let mut cluster = TestCluster::four(54);
    cluster.client(1);
    cluster.finish(5_000);
    let observe = |session| Observe {
        reports: false,
        session: Some(SessionId(session)),
    };
    cluster.observe(2, 900, observe(77));
    cluster.observe(2, 901, observe(1));
    cluster.run_for(20);
    let received = |cluster: &TestCluster, connection| match cluster.received(2, connection) {
        [Message::Observed(observed)] => *observed,
        other => panic!("{other:?}"),
    };
    let refused = Observed::Refused(WatchRefusal::NoSession);
    assert_eq!(received(&cluster, 900), refused);
    let applied = cluster.status(2).sequence;
    let accepted = Observed::Accepted {
        applied,
        last: None,
    };
    assert_eq!(received(&cluster, 901), accepted);
}
