//! Observers of real clusters on loopback: what they receive, and that they delay nothing.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use crate::support::{TestCluster, add, key};
use bytes::Bytes;
use quorumfs_bft::identity::{ReplicaId, Sequence};
use quorumfs_bft::observer::{Fact, Observation, Watched};
use quorumfs_bft_runtime::client::{
    CallbackClient, Client, ClientError, Interest, Observer, ObserverItem,
};
use std::collections::BTreeSet;
use std::sync::mpsc;
use std::time::Duration;

const WATCHES: Interest = Interest {
    reports: false,
    watches: true,
};
const REPORTS: Interest = Interest {
    reports: true,
    watches: false,
};
const LONG: Duration = Duration::from_secs(20);
const KEY: Bytes = Bytes::from_static(b"n");

async fn next(observer: &mut Observer) -> ObserverItem {
    let item = tokio::time::timeout(LONG, observer.next()).await;
    item.expect("an item in time").expect("a session")
}

/// Reads the value whenever the observer asks, until it has the expected one.
async fn read_until(client: &Client, observer: &mut Observer, value: u64) {
    let value = value.to_string();
    loop {
        match next(observer).await {
            ObserverItem::Watched(Watched::Blind) | ObserverItem::Observation(_) => {}
            ObserverItem::Watched(_) | ObserverItem::Lagging { .. } => {
                let read = client.read_in_session(KEY).await.expect("answer");
                if read == value {
                    return;
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_sees_every_last_value_whichever_replica_is_down() {
    let mut cluster = TestCluster::start(1, 1).await;
    let (writer, watcher) = (cluster.client().await, cluster.client().await);
    let mut observer = watcher.observe(WATCHES);
    let watch = watcher.watch(KEY).await.expect("allowed");
    for round in 1..=10 {
        assert_eq!(add(&writer, "n").await, round);
        read_until(&watcher, &mut observer, round).await;
    }
    let follower = (cluster.leader() + 1) % 4;
    cluster.kill(follower).await;
    for round in 11..=15 {
        assert_eq!(add(&writer, "n").await, round);
        read_until(&watcher, &mut observer, round).await;
    }
    cluster.restart(follower).await;
    let leader = (follower + 3) % 4;
    cluster.kill(leader).await;
    for round in 16..=20 {
        assert_eq!(add(&writer, "n").await, round);
        read_until(&watcher, &mut observer, round).await;
    }
    watcher.unwatch(watch).await.expect("answered");
    let refused = watcher.watch(Bytes::from_static(b"unwanted")).await;
    assert_eq!(refused, Err(ClientError::WatchRefused));
    watcher.close().await.expect("close");
    while let Some(item) = tokio::time::timeout(LONG, observer.next()).await.unwrap() {
        assert!(!matches!(item, ObserverItem::Lagging { .. }));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_observer_receives_single_and_quorum_reports_and_learns_of_silence() {
    let mut cluster = TestCluster::start(1, 1).await;
    let client = cluster.client().await;
    let mut observer = client.observe(REPORTS);
    for round in 1..=10 {
        assert_eq!(add(&client, "n").await, round);
    }
    let target = Sequence(cluster.sequence());
    let (mut reporters, mut reached, mut active) = (BTreeSet::new(), Sequence(0), false);
    while reporters.len() < 4 || reached < target || !active {
        match next(&mut observer).await {
            ObserverItem::Observation(Observation::Single { replica, .. }) => {
                reporters.insert(replica);
            }
            ObserverItem::Observation(Observation::Fact(Fact::Executed(sequence))) => {
                reached = sequence
            }
            ObserverItem::Observation(Observation::Activity(activity)) => active = activity.active,
            _ => {}
        }
    }
    cluster.kill(2).await;
    let replica = ReplicaId(2);
    while next(&mut observer).await != ObserverItem::Observation(Observation::Silent { replica }) {}
    cluster.restart(2).await;
    loop {
        if let ObserverItem::Observation(Observation::Single { replica, .. }) =
            next(&mut observer).await
            && replica == ReplicaId(2)
        {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_callback_delays_no_operation() {
    let cluster = TestCluster::start(1, 1).await;
    let config = cluster.client_config(key());
    let client = tokio::task::spawn_blocking(move || CallbackClient::connect(config));
    let client = client.await.expect("a thread").expect("connect");
    let (sender, items) = mpsc::channel();
    let (go_on, waits) = mpsc::channel::<()>();
    let callback = move |item| {
        let _ = sender.send(item);
        let _ = waits.recv();
    };
    client.observe(WATCHES, callback).expect("a thread");
    let first = items.recv_timeout(LONG).expect("an item");
    assert!(matches!(
        first,
        ObserverItem::Watched(Watched::Revalidate { .. })
    ));
    // The callback blocks now, and operations go on.
    let (answer, answers) = mpsc::channel();
    client.execute(Bytes::from_static(b"add n"), move |result| {
        let _ = answer.send(result);
    });
    let answered = answers.recv_timeout(LONG).expect("answered");
    assert_eq!(answered.expect("executed"), "1");
    drop((client, go_on));
    let ended = Err(mpsc::RecvTimeoutError::Disconnected);
    assert_eq!(items.recv_timeout(LONG), ended, "so has its thread");
}
