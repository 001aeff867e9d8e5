//! Malicious clients and networks: only the attacker's own connections suffer.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use crate::support::{TestCluster, add, key};
use bytes::Bytes;
use quorumfs_bft::authentication::Authentication;
use quorumfs_bft::checkpoint::{Checkpoint, CheckpointCertificate};
use quorumfs_bft::identity::{Digest, Epoch, Group, Sequence, Time, View};
use quorumfs_bft::membership::{EpochRecord, Membership};
use quorumfs_bft::wire::Envelope;
use quorumfs_bft::wire::frame::{Header, Unsigned, encode};
use quorumfs_bft::wire::message::{Message, OpenSession, PeerStatus, StatusQuery};
use quorumfs_bft_runtime::client::Client;
use quorumfs_bft_runtime::link::LinkError;
use quorumfs_bft_runtime::link::connection::FrameReader;
use quorumfs_bft_runtime::link::dial::Dialer;
use quorumfs_bft_runtime::link::frame::Frame;
use quorumfs_bft_runtime::link::hello::{Refusal, Role};
use quorumfs_bft_runtime::link::outbox::{Bounds, Outbox};
use quorumfs_bft_runtime::tls::Identity;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const BOUNDS: Bounds = Bounds {
    frames_max: 4096,
    frames_away_max: 16,
    bytes_max: 16 << 20,
};

fn dialer(cluster: &TestCluster, number: usize, identity: &Identity, role: Role) -> Dialer {
    let member = &cluster.members[number];
    Dialer {
        wanted: member.id,
        addresses: vec![member.address.clone()],
        connector: identity.connector(member.key).expect("connector"),
        cluster: cluster.id,
        role,
        authentication: Authentication::Sig,
        process: 0,
    }
}

fn outbox() -> Arc<Outbox> {
    let outbox = Arc::new(Outbox::new(BOUNDS));
    outbox.set_connected(true);
    outbox
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sender_of_garbage_is_blacklisted_and_no_other_client_is_affected() {
    let cluster = TestCluster::start(1, 1).await;
    let client = cluster.client().await;
    let identity = Identity::new(key()).expect("identity");
    let dialer = dialer(&cluster, 0, &identity, Role::Client);
    let greeted = dialer.dial().await.expect("welcome at first");
    let outbox = outbox();
    let (mut reader, _writing) = greeted.start(outbox.clone(), 1 << 20);
    outbox.push(Frame::message(Bytes::from_static(b"garbage")));
    assert!(reader.next().await.is_err(), "the connection is ended");
    let again = dialer.dial().await.expect_err("not welcome any more");
    assert!(
        matches!(again, LinkError::Refused(Refusal::Blacklisted)),
        "{again}"
    );
    for expected in 1..=5 {
        assert_eq!(add(&client, "n").await, expected);
    }
    assert!(cluster.status(0).expect("running").frames_refused >= 1);
}

/// An unsigned record of epoch 1.
fn forged(cluster: &TestCluster) -> EpochRecord {
    let voters = cluster.handles[0].as_ref().expect("running").membership();
    let mut membership = Membership::clone(&voters.expect("recovered"));
    (membership.epoch, membership.from) = (Epoch(1), Sequence(5));
    let checkpoint = Checkpoint {
        sequence: Sequence(5),
        batch: Digest::default(),
        root: Digest::default(),
        membership: membership.digest(),
    };
    let votes = Vec::new();
    EpochRecord::new(CheckpointCertificate { checkpoint, votes }, membership)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_poses_as_a_replica_is_asked_for_proof_and_otherwise_ignored() {
    let cluster = TestCluster::start(1, 1).await;
    let client = cluster.client().await;
    let identity = Identity::new(key()).expect("identity");
    let dialer = dialer(&cluster, 0, &identity, Role::Replica(cluster.members[1].id));
    let greeted = dialer.dial().await.expect("an unknown replica's place");
    let outbox = outbox();
    let (mut reader, _writing) = greeted.start(outbox.clone(), 1 << 20);
    let later = Header {
        epoch: Epoch(1),
        ..header(&cluster)
    };
    let query = encode(
        header(&cluster),
        &Message::StatusQuery(StatusQuery { nonce: 1 }),
    );
    outbox.push(Frame::message(query));
    let status = Message::Status(PeerStatus::default());
    for header in [header(&cluster), later, later] {
        outbox.push(Frame::message(encode(header, &status)));
    }
    let soon = Duration::from_secs(10);
    let question = tokio::time::timeout(soon, reader.next()).await;
    let question = question.expect("in time").expect("one request");
    let question = Envelope::decode(question.payload).expect("a message");
    assert!(
        matches!(question.message(), Message::FetchEpochs(fetch) if fetch.after == Epoch(0)),
        "{question:?}"
    );
    let pause = tokio::time::timeout(Duration::from_millis(200), reader.next()).await;
    assert!(pause.is_err(), "and no answer: {pause:?}");
    let records = Message::Epochs(vec![forged(&cluster)]);
    outbox.push(Frame::message(encode(later, &records)));
    let ended = tokio::time::timeout(soon, reader.next()).await;
    assert!(ended.expect("in time").is_err(), "the connection is ended");
    let again = dialer.dial().await.expect_err("not welcome any more");
    assert!(
        matches!(again, LinkError::Refused(Refusal::Blacklisted)),
        "{again}"
    );
    assert_eq!(add(&client, "n").await, 1);
    let membership = cluster.handles[0].as_ref().expect("running").membership();
    assert_eq!(membership.expect("recovered").epoch, Epoch(0));
}

fn header(cluster: &TestCluster) -> Header {
    Header {
        cluster: cluster.id,
        epoch: Epoch(0),
        group: Group(0),
        view: View(0),
    }
}

/// Sends `frame` to every replica on connections of its own; returns the connections.
async fn send_to_all(
    cluster: &TestCluster,
    identity: &Identity,
    frame: &Bytes,
) -> Vec<(FrameReader, impl Sized + use<>)> {
    let mut readers = Vec::new();
    for number in 0..cluster.members.len() {
        let greeted = dialer(cluster, number, identity, Role::Client).dial().await;
        let outbox = outbox();
        let (reader, writing) = greeted.expect("welcome").start(outbox.clone(), 1 << 20);
        outbox.push(Frame::message(frame.clone()));
        readers.push((reader, writing));
    }
    readers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_repeats_another_clients_frame_gets_no_answer() {
    let cluster = TestCluster::start(1, 1).await;
    let (principal, session) = (key(), key());
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.expect("after 1970");
    let opening = Message::OpenSession(OpenSession {
        principal: principal.public(),
        session_key: session.public(),
        lanes: 1,
        time: Time(u64::try_from(now.as_nanos()).expect("this century")),
    });
    let opening = Unsigned::new(header(&cluster), opening).sign(&*principal);
    let owner = Identity::new(principal).expect("identity");
    let thief = Identity::new(key()).expect("identity");
    let patience = Duration::from_secs(20);
    for round in 0..2 {
        let mut own = send_to_all(&cluster, &owner, opening.frame()).await;
        let answer = tokio::time::timeout(patience, own[0].0.next()).await;
        assert!(answer.expect("in time").is_ok(), "round {round}");
        let mut stolen = send_to_all(&cluster, &thief, opening.frame()).await;
        for (reader, _) in &mut stolen {
            let silence = tokio::time::timeout(Duration::from_millis(300), reader.next()).await;
            assert!(silence.is_err(), "round {round}: {silence:?}");
        }
    }
    let refused = cluster.status(0).expect("running").frames_refused;
    assert!(refused >= 2, "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_queries_delays_others_little() {
    let cluster = TestCluster::start(1, 1).await;
    let client = cluster.client().await;
    add(&client, "n").await;
    let question = encode(
        header(&cluster),
        &Message::StatusQuery(StatusQuery { nonce: 1 }),
    );
    let mut floods = Vec::new();
    for number in 0..4 {
        let identity = Identity::new(key()).expect("identity");
        let greeted = dialer(&cluster, number, &identity, Role::Client)
            .dial()
            .await;
        let outbox = outbox();
        // The answers are never read.
        let (reader, writing) = greeted.expect("welcome").start(outbox.clone(), 1 << 20);
        let question = question.clone();
        let flooding = tokio::spawn(async move {
            let _held = (reader, writing);
            loop {
                for _ in 0..256 {
                    outbox.push(Frame::message(question.clone()));
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        floods.push(flooding);
    }
    let start = Instant::now();
    for expected in 2..=40 {
        assert_eq!(add(&client, "n").await, expected);
    }
    assert!(
        start.elapsed() < Duration::from_secs(25),
        "{:?}",
        start.elapsed()
    );
    floods.iter().for_each(tokio::task::JoinHandle::abort);
}

/// Relays bytes, and sometimes flips a bit of those for the replica.
async fn corrupting_proxy(target: SocketAddr, flipped: Arc<AtomicU64>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let far = TcpStream::connect(target).await.expect("replica");
            let flipped = flipped.clone();
            tokio::spawn(async move {
                let (mut from_near, mut to_near) = near.into_split();
                let (mut from_far, mut to_far) = far.into_split();
                let back = tokio::spawn(async move {
                    tokio::io::copy(&mut from_far, &mut to_near).await.ok();
                });
                let mut buffer = [0; 4096];
                let mut passed = 0;
                while let Ok(bytes @ 1..) = from_near.read(&mut buffer).await {
                    passed += bytes;
                    if passed > 6000 {
                        buffer[bytes / 2] ^= 0x10;
                        flipped.fetch_add(1, Ordering::Relaxed);
                        passed = 0;
                    }
                    if to_far.write_all(&buffer[..bytes]).await.is_err() {
                        break;
                    }
                }
                back.abort();
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_corrupting_network_breaks_a_link_and_nothing_else() {
    let cluster = TestCluster::start(1, 1).await;
    let flipped = Arc::new(AtomicU64::new(0));
    let mut config = cluster.client_config(key());
    for member in &mut config.replicas {
        let target = member.address.as_str().parse().expect("an IP address");
        member.address = corrupting_proxy(target, flipped.clone()).await.into();
    }
    let client = Client::connect(config).await.expect("connect");
    for expected in 1..=60 {
        assert_eq!(add(&client, "n").await, expected, "each runs once");
    }
    assert!(flipped.load(Ordering::Relaxed) > 0, "something was changed");
}
