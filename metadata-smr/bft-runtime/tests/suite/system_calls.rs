//! Watches a replica's system calls: a vote leaves after the `fdatasync` that it waits for.
//!
//! A cluster of two, (u, r) = (0, 1): this process runs the leader and the client; a child, this
//! very test program run again under strace, runs the follower. strace delays every `fdatasync` of
//! the child, so that a vote that did not wait would be far ahead of it. TLS hides the content, so
//! votes are recognised by connection and size: on the connection that the follower dialed to the
//! leader, its other messages while one operation at a time is ordered have other lengths than a
//! vote, and so have the messages that share a TLS record.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use crate::support::{KeyValue, add, key};
use bytes::Bytes;
use quorumfs_bft::authentication::Authentication;
use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft::identity::{
    ClusterId, Digest, Lane, ReplicaId, RequestNumber, Sequence, SessionId, View,
};
use quorumfs_bft::wire::message::{
    Ballot, Message, OpenStatus, PeerStatus, Request, RequestOperation,
};
use quorumfs_bft::wire::{Header, encode};
use quorumfs_bft_runtime::client::{Client, ClientConfig, Member};
use quorumfs_bft_runtime::disk::Durability;
use quorumfs_bft_runtime::keys::NodeKey;
use quorumfs_bft_runtime::server::{ReplicaConfig, ReplicaServer, ServerStatus, first_incarnation};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

const CHILD: &str = "QUORUMFS_TEST_FOLLOWER";
/// The overhead of TLS for each write, and of the link for each frame.
const RECORD_BYTES: u64 = 22;
const LINK_BYTES: u64 = 5;
const OPERATIONS: usize = 5;

fn config(number: u16, addresses: &[SocketAddr], directory: &Path) -> ReplicaConfig {
    let key = |number: u16| {
        let seed = [u8::try_from(number).expect("small") + 1; 32];
        Arc::new(NodeKey::from_seed(seed.into()).expect("key"))
    };
    let member = |(number, address): (u16, &SocketAddr)| Member {
        id: ReplicaId(number),
        key: key(number).public(),
        incarnation: first_incarnation(&key(number).public()),
        address: (*address).into(),
    };
    ReplicaConfig {
        id: Some(ReplicaId(number)),
        cluster: ClusterId([5; 16]),
        fault_model: FaultModel::new(0, 1, 2).expect("model"),
        replicas: (0..).zip(addresses).map(member).collect(),
        administrators: Vec::new(),
        key: key(number),
        listen: None,
        directory: directory.join(number.to_string()),
        free_bytes_min: 0,
        durability: Durability::Strict,
        genesis: Bytes::new(),
        authentication: Authentication::Sig,
        recording: None,
    }
}

/// Does nothing unless it was started by the test below.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_traced_follower() {
    let Ok(arguments) = std::env::var(CHILD) else {
        return;
    };
    let words: Vec<&str> = arguments.split(' ').collect();
    let addresses: Vec<SocketAddr> = words[1..]
        .iter()
        .map(|word| word.parse().expect("address"))
        .collect();
    let config = config(1, &addresses, Path::new(words[0]));
    let handle = ReplicaServer::start(config, KeyValue).await.expect("start");
    let input = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
    input.await.expect("input").expect("the parent has ended");
    handle.shutdown().await;
}

struct Watched(Child);

impl Drop for Watched {
    fn drop(&mut self) {
        // The follower stops when its input is closed, and strace with it.
        drop(self.0.stdin.take());
        self.0.wait().ok();
    }
}

fn watch(directory: &Path, trace: &Path, addresses: &[SocketAddr]) -> Watched {
    let arguments = format!("{} {} {}", directory.display(), addresses[0], addresses[1]);
    let child = Command::new("strace")
        .args(["-f", "-ttt", "-T", "-yy"])
        .args(["-e", "trace=fdatasync,sendto,sendmsg,write,writev"])
        .args(["-e", "inject=fdatasync:delay_enter=20000", "-o"])
        .arg(trace)
        .arg(std::env::current_exe().expect("own path"))
        .args(["--exact", "system_calls::the_traced_follower"])
        .env(CHILD, arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn();
    match child {
        Ok(child) => Watched(child),
        Err(error) => panic!("strace cannot be run ({error}): scripts/setup installs it"),
    }
}

/// A system call: thread, name, the rest of its line, when it began and ended.
#[derive(Debug)]
struct Call {
    thread: String,
    name: String,
    rest: String,
    begin: f64,
    end: f64,
}

impl Call {
    fn result(&self) -> u64 {
        let result = self.rest.rsplit(" = ").next().expect("a result");
        let number = result.split_whitespace().next().expect("a number");
        number.parse().unwrap_or(0)
    }
}

/// The length of a message on its link, signed or not.
fn length(message: &Message) -> u64 {
    let signature = if message.kind().signed() { 64 } else { 0 };
    LINK_BYTES + (encode(Header::default(), message).len() + signature) as u64
}

/// The lengths of a vote, and of the other messages: a STATUS without and with an open sequence, a
/// request that has waited and is forwarded.
fn lengths() -> (u64, Vec<u64>) {
    let vote = Message::Commit(Ballot {
        sequence: Sequence(1),
        digest: Digest::default(),
        signer: ReplicaId(1),
    });
    let status = |open| {
        Message::Status(PeerStatus {
            open: vec![open; 1],
            ..PeerStatus::default()
        })
    };
    let request = Message::Request(Request {
        session: SessionId(1),
        lane: Lane(0),
        number: RequestNumber(1),
        operations: vec![RequestOperation::Execute(Bytes::from_static(b"add n"))],
    });
    let open = OpenStatus {
        proposal: Some(Digest::default()),
        ..OpenStatus::default()
    };
    let others = [
        Message::Status(PeerStatus::default()),
        status(open),
        request,
    ];
    (length(&vote), others.iter().map(length).collect())
}

/// Whether so many bytes consist of votes and other messages, with at least one vote.
fn contains_a_vote(bytes: u64) -> bool {
    fn made_of(bytes: u64, lengths: &[u64]) -> bool {
        let mut fits = lengths.iter().filter(|length| **length <= bytes);
        bytes == 0 || fits.any(|length| made_of(bytes - length, lengths))
    }
    let (vote, others) = lengths();
    let rests = (1..=4).filter_map(|votes| bytes.checked_sub(RECORD_BYTES + votes * vote));
    rests.into_iter().any(|rest| made_of(rest, &others))
}

#[test]
fn a_vote_is_recognised_by_its_length() {
    let (vote, others) = lengths();
    for one in &others {
        assert!(!contains_a_vote(RECORD_BYTES + one), "{one}");
        assert!(contains_a_vote(RECORD_BYTES + vote + one), "{one}");
        for other in &others {
            assert!(
                !contains_a_vote(RECORD_BYTES + one + other),
                "{one} and {other}"
            );
        }
    }
    assert!(contains_a_vote(RECORD_BYTES + vote) && contains_a_vote(RECORD_BYTES + 2 * vote));
    // This happened once.
    assert!(!contains_a_vote(258), "{vote} {others:?}");
}

fn calls(trace: &str) -> Vec<Call> {
    let mut calls: Vec<Call> = Vec::new();
    for line in trace.lines() {
        // The number of the thread is padded to five columns.
        let fields = line.split_once(' ').and_then(|(thread, rest)| {
            let (at, call) = rest.trim_start().split_once(' ')?;
            Some((thread, at, call))
        });
        let Some((thread, at, call)) = fields else {
            continue;
        };
        let call = call.trim_start();
        let Ok(at) = at.parse::<f64>() else {
            continue;
        };
        if let Some(resumed) = call.strip_prefix("<... ") {
            let unfinished = calls.iter_mut().rfind(|it| it.thread == thread);
            let unfinished = unfinished.expect("begun earlier");
            unfinished.rest.push_str(resumed);
            unfinished.end = at;
            continue;
        }
        let Some((name, rest)) = call.split_once('(') else {
            continue;
        };
        let took = rest
            .rsplit_once(" <")
            .and_then(|(_, took)| took.trim_end_matches('>').parse::<f64>().ok());
        calls.push(Call {
            thread: thread.to_owned(),
            name: name.to_owned(),
            rest: rest.to_owned(),
            begin: at,
            end: at + took.unwrap_or(0.0),
        });
    }
    calls
}

fn now() -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.expect("after 1970").as_secs_f64()
}

/// The observation: the trace, when each operation began and the last one ended, and the leader's
/// address.
struct Observed {
    trace: String,
    began: Vec<f64>,
    leader: SocketAddr,
}

/// Orders operations one by one; nothing if a view change made the traced replica the leader,
/// whose proposal need not wait for its own disk.
async fn observe() -> Option<Observed> {
    let directory = tempfile::tempdir().expect("directory");
    let addresses = [
        crate::support::free_address().await,
        crate::support::free_address().await,
    ];
    for number in [0, 1] {
        let config = config(number, &addresses, directory.path());
        let first = first_incarnation(&config.key.public());
        ReplicaServer::initialise_as(&config.directory, first).expect("initialise");
    }
    let trace = directory.path().join("trace");
    let watched = watch(directory.path(), &trace, &addresses);
    let leader = config(0, &addresses, directory.path());
    let client = ClientConfig::new(
        leader.cluster,
        leader.fault_model,
        leader.replicas.clone(),
        key(),
    );
    let leader = ReplicaServer::start(leader, KeyValue).await.expect("start");
    let connected = |status: ServerStatus| status.links.iter().all(|(_, reason)| reason.is_none());
    while !leader.status().is_some_and(connected) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let client = Client::connect(client).await.expect("connect");
    add(&client, "warm").await;
    let mut began = Vec::new();
    for expected in 1..=OPERATIONS {
        tokio::time::sleep(Duration::from_millis(300)).await;
        began.push(now());
        assert_eq!(add(&client, "n").await, expected as u64);
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    began.push(now());
    drop(watched);
    let view = leader.status().expect("running").replica.view;
    leader.shutdown().await;
    (view == View(0)).then(|| Observed {
        trace: std::fs::read_to_string(&trace).expect("trace"),
        began,
        leader: addresses[0],
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vote_leaves_after_the_fdatasync_that_it_waits_for() {
    let mut observed = None;
    for _ in 0..5 {
        observed = observe().await;
        if observed.is_some() {
            break;
        }
    }
    let observed = observed.expect("one of five runs without a view change");
    let calls = calls(&observed.trace);
    let to_leader = format!("->{}]", observed.leader);
    for window in observed.began.windows(2) {
        let within: Vec<&Call> = calls
            .iter()
            .filter(|call| call.begin >= window[0] && call.begin < window[1])
            .collect();
        let synced = within
            .iter()
            .find(|call| call.name == "fdatasync" && call.rest.contains("journal"))
            .unwrap_or_else(|| panic!("no fdatasync of the journal in {within:#?}"));
        let voted = within
            .iter()
            .find(|call| call.rest.contains(&to_leader) && contains_a_vote(call.result()))
            .unwrap_or_else(|| panic!("no vote in {within:#?}"));
        assert!(
            synced.end - synced.begin > 0.02,
            "strace delayed it: {synced:?}"
        );
        assert!(
            voted.begin >= synced.end,
            "a vote left before its record was durable:\n{voted:?}\n{synced:?}"
        );
    }
}
