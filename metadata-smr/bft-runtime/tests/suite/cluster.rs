//! Real clusters on loopback under the actions of operators and the faults of networks.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use crate::support::{KeyValue, TestCluster, add, free_address, key};
use bytes::Bytes;
use quorumfs_bft::authentication::Authentication;
use quorumfs_bft::client::event::End;
use quorumfs_bft::identity::{ClusterId, Epoch, ReplicaId};
use quorumfs_bft::metrics::Voting;
use quorumfs_bft::wire::limits::CHECKPOINT_INTERVAL;
use quorumfs_bft_runtime::client::{Client, ClientError, status_of};
use quorumfs_bft_runtime::event_loop::Ending;
use quorumfs_bft_runtime::server::{ReplicaServer, ServerError};
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_and_queries_are_answered() {
    let cluster = TestCluster::start(1, 1).await;
    let client = cluster.client().await;
    let put = |text: &'static str| client.execute(Bytes::from_static(text.as_bytes()));
    assert_eq!(put("put colour red").await.expect("answer"), "");
    assert_eq!(put("put colour blue").await.expect("answer"), "red");
    let colour = client.query(Bytes::from_static(b"colour")).await;
    assert_eq!(colour.expect("answer"), "blue");
    let statuses = client.status().await;
    assert_eq!(statuses.len(), 4);
    for (id, status) in statuses {
        let status = status.expect("running");
        assert_eq!(status.replica, id);
        assert_eq!(status.voting, Voting::Voting);
    }
    client.close().await.expect("close");
    let late = client.execute(Bytes::from_static(b"add x")).await;
    assert_eq!(late, Err(ClientError::SessionEnded(End::Closed)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unordered_queries_see_earlier_answers_even_with_a_replica_down() {
    let mut cluster = TestCluster::start(1, 1).await;
    let (writer, reader) = (cluster.client().await, cluster.client().await);
    for round in 1..=20 {
        assert_eq!(add(&writer, "n").await, round);
        let read = reader.read(Bytes::from_static(b"n")).await;
        assert_eq!(read.expect("answer"), round.to_string());
        let own = writer.read_in_session(Bytes::from_static(b"n")).await;
        assert_eq!(own.expect("answer"), round.to_string());
        if round == 10 {
            let follower = (cluster.leader() + 1) % 4;
            cluster.kill(follower).await;
        }
    }
    let (accepted, fallen_back) = reader.reads();
    assert_eq!(accepted + fallen_back, 20);
    assert!(accepted > 0, "unordered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_embedded_replica_is_a_cluster() {
    let cluster = TestCluster::start(0, 0).await;
    let client = cluster.client().await;
    for expected in 1..=20 {
        assert_eq!(add(&client, "n").await, expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_is_killed_is_not_missed_and_catches_up() {
    let mut cluster = TestCluster::start(1, 1).await;
    let client = cluster.client().await;
    assert_eq!(add(&client, "n").await, 1);
    let follower = (cluster.leader() + 1) % 4;
    cluster.kill(follower).await;
    for expected in 2..=30 {
        assert_eq!(add(&client, "n").await, expected);
    }
    cluster.restart(follower).await;
    cluster.all_at(cluster.sequence()).await;
    assert_eq!(add(&client, "n").await, 31);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_was_away_or_lost_its_state_fetches_a_checkpoint() {
    let mut cluster = TestCluster::start(1, 1).await;
    let client = cluster.client().await;
    assert_eq!(add(&client, "n").await, 1);
    let follower = (cluster.leader() + 1) % 4;
    cluster.kill(follower).await;
    // Batches up to the checkpoint before the stable one are removed: three intervals are enough.
    let enough = 3 * CHECKPOINT_INTERVAL + 20;
    let mut count = 1;
    while cluster.sequence() < enough {
        count += 1;
        assert_eq!(add(&client, "n").await, count);
        add(&client, &format!("row-{count}")).await;
    }
    let state = cluster.disk_of(cluster.leader()).join("state");
    let names = std::fs::read_dir(state).expect("listed").map(|entry| {
        let name = entry.expect("an entry").file_name();
        name.into_string().expect("of letters")
    });
    let of_batches = names.filter(|name| name.ends_with(".batches")).count();
    assert!((1..=3).contains(&of_batches), "{of_batches} files");
    cluster.restart(follower).await;
    cluster.all_at(cluster.sequence()).await;
    let status = cluster.status(follower).expect("running").replica;
    assert_eq!(status.voting, Voting::Voting);
    assert_eq!(status.counters.transfers_finished, 1, "{status:#?}");
    assert!(status.counters.nodes_fetched > 1);

    // Only the state is lost. The journal does not follow from an empty state, so it is rejected;
    // but the state is fetched, and then the replica is admitted as a new one.
    cluster.kill(follower).await;
    std::fs::remove_file(cluster.disk_of(follower).join("state/state.redb")).expect("remove");
    cluster.restart(follower).await;
    cluster.all_at(cluster.sequence()).await;
    cluster.votes(follower).await;
    let status = cluster.status(follower).expect("running").replica;
    assert_eq!((status.epoch, status.reborn.is_some()), (Epoch(1), true));
    assert_eq!(status.counters.transfers_finished, 1);
    assert_eq!(add(&client, "n").await, count + 1);
    cluster.all_at(cluster.sequence()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_killed_is_replaced() {
    let mut cluster = TestCluster::start(1, 1).await;
    let client = cluster.client().await;
    assert_eq!(add(&client, "n").await, 1);
    let first = cluster.leader();
    let view = cluster.status(first).expect("running").replica.view;
    cluster.kill(first).await;
    let start = Instant::now();
    for expected in 2..=10 {
        assert_eq!(add(&client, "n").await, expected);
    }
    assert!(
        start.elapsed() < Duration::from_secs(25),
        "{:?}",
        start.elapsed()
    );
    // A status is published a little later than the events in it.
    let shown = Instant::now();
    while cluster.leader() == first && shown.elapsed() < Duration::from_secs(20) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_ne!(cluster.leader(), first);
    let another = (first + 1) % 4;
    assert!(cluster.status(another).expect("running").replica.view > view);
    cluster.restart(first).await;
    cluster.all_at(cluster.sequence()).await;
    let second = cluster.leader();
    cluster.kill(second).await;
    assert_eq!(add(&client, "n").await, 11);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_survives_a_stop_of_all_replicas_clean_or_not() {
    let mut cluster = TestCluster::start(1, 1).await;
    let client = cluster.client().await;
    for expected in 1..=5 {
        assert_eq!(add(&client, "n").await, expected);
    }
    for number in 0..4 {
        if number % 2 == 0 {
            cluster.kill(number).await;
        } else {
            cluster.shutdown(number).await;
        }
    }
    for number in 0..4 {
        cluster.restart(number).await;
    }
    assert_eq!(add(&client, "n").await, 6, "the session goes on");
    for number in 0..4 {
        let status = cluster.status(number).expect("running").replica;
        assert_eq!(status.voting, Voting::Voting, "replica {number}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_clients_are_served_concurrently() {
    let cluster = TestCluster::start(1, 1).await;
    let mut tasks = Vec::new();
    for number in 0..64 {
        let config = cluster.client_config(key());
        tasks.push(tokio::spawn(async move {
            let client = Client::connect(config).await.expect("connect");
            for expected in 1..=5 {
                assert_eq!(add(&client, &format!("own-{number}")).await, expected);
                add(&client, "shared").await;
            }
            client.close().await.expect("close");
        }));
    }
    for task in tasks {
        task.await.expect("client");
    }
    let client = cluster.client().await;
    assert_eq!(add(&client, "shared").await, 64 * 5 + 1, "each ran once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clones_of_one_client_share_its_session() {
    let cluster = TestCluster::start(1, 1).await;
    let client = cluster.client().await;
    let mut tasks = Vec::new();
    for _ in 0..64 {
        let client = client.clone();
        tasks.push(tokio::spawn(async move {
            for _ in 0..10 {
                add(&client, "n").await;
            }
        }));
    }
    for task in tasks {
        task.await.expect("submitter");
    }
    assert_eq!(add(&client, "n").await, 641);
    assert_eq!(
        client.status().await[0]
            .1
            .as_ref()
            .expect("running")
            .sessions,
        1
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_principal_that_the_service_does_not_know_is_refused() {
    let stranger = key();
    let genesis = Bytes::copy_from_slice(&stranger.public().0);
    let cluster = TestCluster::start_with(1, 1, genesis).await;
    let refused = Client::connect(cluster.client_config(stranger)).await;
    assert_eq!(refused.err(), Some(ClientError::SessionEnded(End::Refused)));
    cluster.client().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_another_cluster_is_refused_at_once() {
    let cluster = TestCluster::start(1, 1).await;
    let mut config = cluster.client_config(key());
    config.cluster = ClusterId([43; 16]);
    let start = Instant::now();
    let error = Client::connect(config).await.expect_err("another cluster");
    assert!(start.elapsed() < Duration::from_secs(20));
    let text = error.to_string();
    assert!(
        text.contains("replica 0") && text.contains("cluster"),
        "{text}"
    );
    assert!(text.contains(&ClusterId([42; 16]).to_string()), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_with_other_keys_are_named() {
    let cluster = TestCluster::start(1, 1).await;
    let mut config = cluster.client_config(key());
    for member in &mut config.replicas {
        member.key = key().public();
    }
    let error = Client::connect(config).await.expect_err("wrong keys");
    let text = error.to_string();
    // It ends as soon as too few replicas can be left, before the last of them answers.
    let named = cluster.members.iter();
    let named = named.filter(|member| text.contains(&member.key.to_string()));
    assert!(named.count() >= 2, "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_few_replicas_are_an_error_that_names_the_others() {
    let mut cluster = TestCluster::start(1, 1).await;
    cluster.kill(0).await;
    cluster.kill(3).await;
    let mut config = cluster.client_config(key());
    config.connect_deadline = Duration::from_secs(2);
    config.status_deadline = Duration::from_millis(500);
    let statuses = status_of(&config).await.expect("asked");
    let up: Vec<bool> = statuses.iter().map(|(_, status)| status.is_ok()).collect();
    assert_eq!(up, [false, true, true, false]);
    match Client::connect(config).await.expect_err("no quorum") {
        ClientError::TooFew {
            needed,
            unreachable,
            ..
        } => {
            assert_eq!(needed, 3);
            let ids: Vec<_> = unreachable.iter().map(|it| it.replica.0).collect();
            assert_eq!(ids, [0, 3]);
            assert!(
                unreachable[0].reason.contains("cannot connect"),
                "{unreachable:?}"
            );
        }
        other => panic!("{other}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operation_that_no_quorum_answers_ends_with_its_deadline() {
    let mut cluster = TestCluster::start(1, 1).await;
    let mut config = cluster.client_config(key());
    config.deadline = Duration::from_secs(1);
    let client = Client::connect(config).await.expect("connect");
    cluster.kill(1).await;
    cluster.kill(2).await;
    let start = Instant::now();
    let lost = client.execute(Bytes::from_static(b"add n")).await;
    assert!(
        matches!(lost, Err(ClientError::OutcomeUnknown { .. })),
        "{lost:?}"
    );
    assert!(start.elapsed() < Duration::from_secs(15));
    cluster.restart(1).await;
    let start = Instant::now();
    while client.execute(Bytes::from_static(b"add n")).await.is_err() {
        assert!(start.elapsed() < Duration::from_secs(20), "it goes on");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_with_another_key_than_is_listed_does_not_start() {
    let mut cluster = TestCluster::start(0, 0).await;
    cluster.shutdown(0).await;
    let mut config = cluster.config_of(0);
    config.key = key();
    let error = ReplicaServer::start(config, KeyValue)
        .await
        .expect_err("wrong key");
    assert!(matches!(error, ServerError::WrongKey { .. }), "{error}");
    let mut config = cluster.config_of(0);
    config.directory = cluster.directory.path().join("nowhere");
    let error = ReplicaServer::start(config, KeyValue)
        .await
        .expect_err("no disk");
    assert!(matches!(error, ServerError::Disk(_)), "{error}");
    let mut config = cluster.config_of(0);
    config.id = Some(ReplicaId(7));
    let error = ReplicaServer::start(config, KeyValue)
        .await
        .expect_err("no such replica");
    assert!(
        matches!(error, ServerError::Configuration { .. }),
        "{error}"
    );
    cluster.restart(0).await;
    let second = ReplicaServer::start(cluster.config_of(0), KeyValue).await;
    let error = second.expect_err("the address is taken");
    assert!(matches!(error, ServerError::Listen { .. }), "{error}");
    let mut config = cluster.config_of(0);
    config.listen = Some(free_address().await);
    let error = ReplicaServer::start(config, KeyValue)
        .await
        .expect_err("the disk is in use");
    assert!(matches!(error, ServerError::Disk(_)), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_ends_in_time() {
    let mut cluster = TestCluster::start(1, 1).await;
    let client = cluster.client().await;
    add(&client, "n").await;
    let start = Instant::now();
    for handle in &mut cluster.handles {
        let handle = handle.take().expect("running");
        assert_eq!(handle.shutdown().await, Ending::Stopped);
    }
    assert!(start.elapsed() < Duration::from_secs(20));
}

/// Followers and leaders stop and start, one is left behind further than a window, and no replica
/// has a certificate to show.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_with_channel_authenticated_votes_survives_the_same_faults() {
    for (up, right) in [(1, 1), (1, 0), (0, 1), (0, 0)] {
        let mut cluster = TestCluster::start_as(Authentication::Mac, up, right, Bytes::new()).await;
        let client = cluster.client().await;
        let mut count = 0;
        for round in 0..2 * usize::from(up) {
            let leader = cluster.leader();
            let others = cluster.members.len();
            let victim = (leader + round % 2) % others;
            cluster.kill(victim).await;
            for _ in 0..30 {
                count += 1;
                assert_eq!(add(&client, "n").await, count);
            }
            cluster.restart(victim).await;
            cluster.all_at(cluster.sequence()).await;
        }
        count += 1;
        assert_eq!(add(&client, "n").await, count);
        // All of them at once: their promises are on their disks.
        for number in 0..cluster.members.len() {
            cluster.kill(number).await;
        }
        for number in 0..cluster.members.len() {
            cluster.restart(number).await;
        }
        assert_eq!(add(&client, "n").await, count + 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_authenticates_votes_in_another_way_is_refused_with_the_reason() {
    let mut cluster = TestCluster::start(1, 1).await;
    let client = cluster.client().await;
    assert_eq!(add(&client, "n").await, 1);
    let other = (cluster.leader() + 1) % 4;
    cluster.kill(other).await;
    cluster.authentication = Authentication::Mac;
    cluster.restart(other).await;
    for expected in 2..=10 {
        assert_eq!(add(&client, "n").await, expected);
    }
    let shown = Instant::now();
    let refusals = || {
        let status = cluster.status(other).expect("running");
        let links = format!("{status:?}");
        links.matches("authenticates votes in another way").count()
    };
    while refusals() < 3 && shown.elapsed() < Duration::from_secs(20) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(refusals(), 3, "{:?}", cluster.status(other));
    let status = cluster.status(other).expect("running").replica;
    assert!(status.sequence.0 < cluster.sequence());
}
