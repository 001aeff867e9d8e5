//! What a correct replica votes for, and what it refuses once it has all bodies.

use super::cluster::{MS, TestCluster};
use crate::wire::limits::{BATCH_BYTES_MAX, REQUEST_BYTES_MAX, WINDOW};

/// The replica that gets all proposals; replica 0 leads.
const BACKUP: usize = 1;

/// The backup's verdicts on proposals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Verdicts {
    voted: u64,
    refused: u64,
}

const VOTED: Verdicts = Verdicts {
    voted: 1,
    refused: 0,
};
const REFUSED: Verdicts = Verdicts {
    voted: 0,
    refused: 1,
};
const NEITHER: Verdicts = Verdicts {
    voted: 0,
    refused: 0,
};

fn so_far(cluster: &TestCluster) -> Verdicts {
    let counters = cluster.status(BACKUP).counters;
    Verdicts {
        voted: counters.prepares,
        refused: counters.proposals_refused,
    }
}

/// The backup's verdicts on the messages that `send` sends.
fn verdict(cluster: &mut TestCluster, send: impl FnOnce(&mut TestCluster)) -> Verdicts {
    let before = so_far(cluster);
    send(cluster);
    let after = so_far(cluster);
    Verdicts {
        voted: after.voted - before.voted,
        refused: after.refused - before.refused,
    }
}

/// Four replicas at rest, after an operation of each of `clients` clients.
fn at_rest(operation: &'static [u8], clients: usize) -> TestCluster {
    let mut cluster = TestCluster::four(1);
    cluster.operation = operation;
    (0..clients).for_each(|_| {
        cluster.client(1);
    });
    cluster.finish(5_000);
    cluster.run_for(20);
    assert_eq!(cluster.last_of(BACKUP), cluster.last_of(0));
    cluster
}

#[test]
fn an_empty_batch_is_voted_for_when_a_tick_is_due_and_refused_before() {
    let due = 300 * MS;
    for (operation, later, expected) in [
        (&b"t"[..], due, VOTED),
        (b"t", due - 1, REFUSED),
        (b"a", due, REFUSED),
    ] {
        let mut cluster = at_rest(operation, 1);
        let last = cluster.last_of(BACKUP);
        let found = verdict(&mut cluster, |it| {
            it.propose(BACKUP, last, later, &[]);
        });
        assert_eq!(found, expected, "{operation:?} after {later} ns");
    }
}

#[test]
fn whether_a_tick_is_due_is_not_known_before_the_batch_before_has_been_executed() {
    let mut cluster = at_rest(b"t", 1);
    let last = cluster.last_of(BACKUP);
    let request = cluster.request(0, 2, 1);
    let found = verdict(&mut cluster, |it| {
        let open = it.propose(BACKUP, last, 1, &[request]);
        it.propose(BACKUP, open, 300 * MS, &[]);
    });
    assert_eq!(found, NEITHER);
}

#[test]
fn a_batch_is_voted_for_up_to_its_bytes_and_refused_beyond() {
    let cluster = at_rest(b"a", 1);
    let around = cluster.request(0, 2, 0).frame().len();
    let most = REQUEST_BYTES_MAX - around;
    let full: Vec<_> = (2..10).map(|it| cluster.request(0, it, most)).collect();
    let bytes: usize = full.iter().map(|body| body.frame().len()).sum();
    assert_eq!(bytes, BATCH_BYTES_MAX);
    let mut beyond = full.clone();
    beyond.push(cluster.request(0, 10, 0));
    for (bodies, expected) in [(full, VOTED), (beyond, REFUSED)] {
        let mut cluster = at_rest(b"a", 1);
        let last = cluster.last_of(BACKUP);
        let found = verdict(&mut cluster, |it| {
            it.propose(BACKUP, last, 1, &bodies);
            assert_eq!(so_far(it).refused, 0, "no body is here yet");
            it.send_bodies(BACKUP, bodies.clone());
        });
        assert_eq!(found, expected, "{} requests", bodies.len());
    }
}

#[test]
fn a_request_of_a_session_that_has_ended_is_voted_for_within_a_window_and_refused_beyond() {
    for (behind, expected) in [(WINDOW - 1, VOTED), (WINDOW, REFUSED)] {
        let mut cluster = at_rest(b"a", 2);
        cluster.close_session(0);
        cluster.run_for(50);
        assert_eq!(cluster.status(BACKUP).counters.sessions_closed, 1);
        let mut last = cluster.last_of(BACKUP);
        for number in 1..behind as u64 {
            let filler = cluster.request(1, 1 + number, 1);
            last = cluster.propose(BACKUP, last, 1, &[filler]);
        }
        let late = cluster.request(0, 2, 1);
        let found = verdict(&mut cluster, |it| {
            it.propose(BACKUP, last, 1, std::slice::from_ref(&late));
            it.send_bodies(BACKUP, vec![late]);
        });
        assert_eq!(found, expected, "{behind} batches behind its end");
    }
}
