//! Which requests a replica accepts, and which it does not.

use super::cluster::{FakeKey, TestCluster};
use crate::fault_model::FaultModel;
use crate::identity::{
    ConnectionId, Digest, Epoch, Lane, PublicKey, ReplicaId, RequestNumber, Sequence, SessionId,
    Time, View,
};
use crate::journal::Record;
use crate::step::Peer;
use crate::wire::Unsigned;
use crate::wire::limits::{
    BATCH_REQUESTS_MAX, FETCH_BATCHES_MAX, SERVE_BODY_BYTES_MIN, SERVE_BURST_BYTES, SERVE_BYTES_MIN,
};
use crate::wire::message::{
    FetchBodies, FetchCommitted, FetchEpochs, Message, OpenSession, Request, RequestOperation,
};
use bytes::Bytes;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// A connection that is not one of the cluster's own clients.
const STRANGER: ConnectionId = ConnectionId(1_000);

/// The key of the cluster's client with this index, and of its session.
fn client_key(index: u64) -> PublicKey {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&(index + 1).to_le_bytes());
    PublicKey(key)
}

/// Replica 3 sends a request to replica 0.
fn ask(cluster: &mut TestCluster, message: &Message) {
    let header = cluster.context().header(View(0));
    let frame = crate::wire::encode(header, message);
    cluster.arrive(0, Peer::Replica(ReplicaId(3)), frame);
}

#[test]
fn a_peer_that_asks_all_the_time_is_rate_limited() {
    let mut cluster = TestCluster::new(FaultModel::new(1, 1, 4).unwrap(), 22);
    cluster.checkpoint_every = 256;
    cluster.start_all();
    let client = cluster.client(400);
    cluster.finish(30_000);
    let served = |cluster: &TestCluster| cluster.status(0).counters.committed_served;
    let before = served(&cluster);
    let fetch = |from| {
        Message::FetchCommitted(FetchCommitted {
            from: Sequence(from),
        })
    };
    for _ in 0..100 {
        ask(&mut cluster, &fetch(1));
    }
    let once = served(&cluster) - before;
    assert_eq!(once, FETCH_BATCHES_MAX as u64, "one answer to one request");
    // Requests for other batches each time are bounded as well, and so are those for bodies.
    let most = SERVE_BURST_BYTES / SERVE_BYTES_MIN + FETCH_BATCHES_MAX as u64;
    for round in 0..2_000 {
        ask(&mut cluster, &fetch(1 + round % 300));
        let digests = vec![Digest([7; 32])];
        let sequence = Sequence(1 + round % 300);
        ask(
            &mut cluster,
            &Message::FetchBodies(FetchBodies { sequence, digests }),
        );
    }
    let all = served(&cluster) - before;
    assert!(all > 1_000 && all <= most, "{all} batches");
    cluster.run_for(1_000);
    let rested = served(&cluster);
    ask(&mut cluster, &fetch(1));
    assert_eq!(served(&cluster) - rested, FETCH_BATCHES_MAX as u64);
    cluster.more(client, 5);
    cluster.finish(5_000);
    cluster.check();
}

/// A peer asks for one body that an open batch has and for many that no replica has.
#[test]
fn a_peer_that_asks_for_many_bodies_is_rate_limited_as_if_it_got_them() {
    let mut cluster = TestCluster::four(23);
    let client = cluster.client(5);
    cluster.finish(5_000);
    let (proposed, given) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new(0)));
    let (sees, counts) = (Rc::clone(&proposed), Rc::clone(&given));
    cluster.tap = Some(Box::new(move |_, _, envelope| match envelope.message() {
        Message::Proposal(batch) => {
            *sees.borrow_mut() = batch.requests.clone();
            true
        }
        Message::Bodies(bodies) => {
            let digests: Vec<_> = bodies.requests.iter().map(|it| it.digest()).collect();
            assert_eq!(digests, *sees.borrow(), "it is sent once");
            counts.set(counts.get() + 1);
            false
        }
        // Nothing is decided.
        Message::Commit(_) => false,
        _ => true,
    }));
    cluster.more(client, 1);
    cluster.run_for(50);
    let mut digests = proposed.borrow().clone();
    assert_eq!(digests.len(), 1);
    digests.extend((1..BATCH_REQUESTS_MAX).map(|it| Digest([it as u8; 32])));
    let sequence = cluster.status(0).sequence.next();
    let fetch = Message::FetchBodies(FetchBodies { sequence, digests });
    for _ in 0..2_000 {
        ask(&mut cluster, &fetch);
    }
    let price = BATCH_REQUESTS_MAX * SERVE_BODY_BYTES_MIN;
    let most = SERVE_BURST_BYTES as usize / price + 1;
    assert!((1..=most).contains(&given.get()), "{}", given.get());
    cluster.tap = None;
    cluster.finish(10_000);
    cluster.check();
}

#[test]
fn the_records_of_epochs_are_rate_limited() {
    let mut cluster = TestCluster::new(FaultModel::new(1, 1, 4).unwrap(), 24);
    cluster.write(0, &Record::Epoch(Box::new(cluster.next_epoch())));
    cluster.start(0);
    let fetch = Message::FetchEpochs(FetchEpochs { after: Epoch(0) });
    let served = |cluster: &TestCluster| cluster.status(0).counters.epochs_served;
    let most = SERVE_BURST_BYTES / SERVE_BYTES_MIN;
    for _ in 0..10_000 {
        ask(&mut cluster, &fetch);
    }
    let first = served(&cluster);
    assert!((1..=most).contains(&first), "{first}");
    let frame = crate::wire::encode(cluster.context().header(View(0)), &fetch);
    for _ in 0..10_000 {
        cluster.arrive(0, Peer::Client(STRANGER), frame.clone());
    }
    let second = served(&cluster) - first;
    assert!((1..=most).contains(&second), "{second}");
}

/// Sends a message to every replica.
fn send(cluster: &mut TestCluster, key: PublicKey, message: &Message) {
    let header = cluster.context().header(View(0));
    let signed = Unsigned::new(header, message.clone()).sign(&FakeKey(key));
    for node in 0..4 {
        cluster.arrive(node, Peer::Client(STRANGER), signed.frame().clone());
    }
}

#[test]
fn a_number_far_ahead_is_refused_and_its_sender_has_to_wait() {
    let mut cluster = TestCluster::four(21);
    let client = cluster.client(3);
    cluster.finish(5_000);
    let before = cluster.status(0);
    let far = Message::Request(Request {
        session: SessionId(1),
        lane: Lane(0),
        number: RequestNumber(1 << 60),
        operations: vec![RequestOperation::Execute(Bytes::from_static(b"a"))],
    });
    send(&mut cluster, client_key(0), &far);
    cluster.run_for(1_000);
    let after = cluster.status(0);
    assert_eq!(after.waiting, 0);
    assert_eq!(after.counters.busy, before.counters.busy + 1);
    assert_eq!(after.sequence, before.sequence, "and no leader proposes it");
    cluster.more(client, 3);
    cluster.finish(5_000);
    cluster.check();
}

/// A request of this length without meaning, in the first session.
fn long(lane: u16, number: u64, length: usize) -> Message {
    Message::Request(Request {
        session: SessionId(1),
        lane: Lane(lane),
        number: RequestNumber(number),
        operations: vec![RequestOperation::Execute(Bytes::from(vec![b'x'; length]))],
    })
}

/// A client uses up its credit at the leader, with requests that can never run; its requests to the
/// others are within it. They forward those, and expect them to be ordered. The network delivers
/// them at the worst moment, when the client's credit has just been used up again.
#[test]
fn a_client_that_contradicts_itself_deposes_no_leader() {
    let mut cluster = TestCluster::four(31);
    let key = client_key(77);
    let open = Message::OpenSession(OpenSession {
        principal: key,
        session_key: key,
        lanes: 4,
        time: Time(1_700_000_000_000_000_000),
    });
    send(&mut cluster, key, &open);
    cluster.run_for(200);
    let honest = cluster.client(1_000_000);
    let header = cluster.context().header(View(0));
    let frame = |message: Message| {
        let signed = Unsigned::new(header, message).sign(&FakeKey(key));
        signed.frame().clone()
    };
    let (quarter, half) = (frame(long(3, 1, 200 << 10)), 500 << 10);
    let full = [2, 3, 4].map(|number| frame(long(0, number, half)));
    let forwarded = Rc::new(RefCell::new(Vec::new()));
    let (delayed, wanted) = (Rc::clone(&forwarded), quarter.clone());
    cluster.tap = Some(Box::new(move |from, to, envelope| {
        let caught = to == 0 && *envelope.frame() == wanted;
        delayed.borrow_mut().extend(caught.then_some(from as u16));
        !caught
    }));
    for round in 0..300 {
        for frame in &full {
            cluster.arrive(0, Peer::Client(STRANGER), frame.clone());
        }
        for from in forwarded.take() {
            cluster.arrive(0, Peer::Replica(ReplicaId(from)), quarter.clone());
        }
        for node in (1..4).filter(|_| round == 20) {
            cluster.arrive(node, Peer::Client(STRANGER), quarter.clone());
        }
        cluster.run_for(10);
    }
    assert!(
        cluster.status(0).counters.busy > 100,
        "its credit is used up"
    );
    assert!(cluster.results(honest).len() > 100);
    assert!(cluster.status(1).counters.forwarded > 0);
    for node in 0..4 {
        let status = cluster.status(node);
        assert_eq!(status.view, View(0), "{:?}", status.counters);
        assert_eq!(status.counters.suspicions_unfair, 0);
    }
    // The forwarded requests have been ordered.
    let waits = |node| cluster.status(node).waiting;
    assert!((1..4).map(waits).max() <= Some(2));
}
