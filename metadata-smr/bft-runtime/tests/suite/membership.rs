//! Real replicas that join, leave, and return without their memory.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use crate::support::{TestCluster, add, key};
use bytes::Bytes;
use quorumfs_bft::authentication::Authentication;
use quorumfs_bft::identity::Epoch;
use quorumfs_bft::membership::Command;
use quorumfs_bft::metrics::Voting;
use quorumfs_bft_runtime::client::{Administered, Client, ClientError, cluster_status};
use quorumfs_bft_runtime::server::ReplicaServer;
use std::fs;
use std::time::{Duration, Instant};

const SIGNED: Authentication = Authentication::Sig;
const CHANNELS: Authentication = Authentication::Mac;

async fn start(authentication: Authentication) -> TestCluster {
    TestCluster::start_as(authentication, 1, 1, Bytes::new()).await
}

/// Retries until it is granted: a learner has to report its checkpoint first.
async fn retry_until_granted(administrator: &Client, command: &Command) -> Administered {
    let began = Instant::now();
    loop {
        match administrator.administer(command.clone()).await {
            Ok(done) => return done,
            Err(ClientError::CommandRefused { reason, .. }) => {
                assert!(began.elapsed() < Duration::from_secs(30), "{reason}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

async fn replace_a_disk(authentication: Authentication) {
    let mut cluster = start(authentication).await;
    let client = cluster.client().await;
    for expected in 1..=20 {
        assert_eq!(add(&client, "n").await, expected);
    }
    let follower = (cluster.leader() + 1) % 4;
    cluster.kill(follower).await;
    fs::remove_dir_all(cluster.disk_of(follower)).expect("removed");
    let second = ReplicaServer::initialise(&cluster.disk_of(follower)).expect("initialised");
    assert_ne!(second, cluster.members[follower].incarnation);
    cluster.restart(follower).await;
    cluster.votes(follower).await;
    let handle = cluster.handles[follower].as_ref().expect("running");
    let membership = handle.membership().expect("recovered");
    assert_eq!(membership.voters[follower].incarnation, second);
    assert_eq!(membership.epoch, Epoch(1));
    // It is needed now, and the session goes on in the new epoch.
    cluster.kill((follower + 1) % 4).await;
    for expected in 21..=40 {
        assert_eq!(add(&client, "n").await, expected);
    }
    cluster.kill(follower).await;
    cluster.restart(follower).await;
    cluster.votes(follower).await;
    assert_eq!(add(&client, "n").await, 41);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_with_a_new_disk_votes_once_it_has_rejoined() {
    replace_a_disk(SIGNED).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn so_does_a_replica_with_channel_authenticated_votes() {
    replace_a_disk(CHANNELS).await;
}

/// A membership of before the loss names the incarnation that is lost. Entering its epoch must not
/// make the new disk give up its own incarnation, under which it may have asked to rejoin already:
/// the second request would be refused for hundreds of batches.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_with_a_new_disk_rejoins_at_once_after_earlier_changes_too() {
    let mut cluster = start(SIGNED).await;
    let client = cluster.client().await;
    assert_eq!(add(&client, "n").await, 1);
    let (learner, incarnation) = cluster.add_machine().await;
    let address = cluster.handles[learner]
        .as_ref()
        .expect("running")
        .address();
    let administrator = cluster.administrator().await;
    let admit = Command::Admit {
        key: cluster.keys[learner].public(),
        incarnation,
        address: Bytes::from(address.to_string()),
    };
    let begins = administrator.administer(admit).await;
    assert_eq!(begins, Ok(Administered::Begins(Epoch(1))));
    let follower = (cluster.leader() + 1) % 4;
    cluster.kill(follower).await;
    fs::remove_dir_all(cluster.disk_of(follower)).expect("removed");
    let second = ReplicaServer::initialise(&cluster.disk_of(follower)).expect("initialised");
    cluster.restart(follower).await;
    // No operations are ordered meanwhile, so a refused request would have to wait for ever.
    cluster.votes(follower).await;
    let handle = cluster.handles[follower].as_ref().expect("running");
    let membership = handle.membership().expect("recovered");
    assert_eq!(membership.voters[follower].incarnation, second);
    assert_eq!(membership.epoch, Epoch(2));
}

async fn replace_a_voter(authentication: Authentication) {
    let mut cluster = start(authentication).await;
    let client = cluster.client().await;
    assert_eq!(add(&client, "n").await, 1);
    let (new, incarnation) = cluster.add_machine().await;
    let into = cluster.keys[new].public();
    let out = cluster.members[1].key;
    let administrator = cluster.administrator().await;
    let address = cluster.handles[new].as_ref().expect("running").address();
    let admit = Command::Admit {
        key: into,
        incarnation,
        address: Bytes::from(address.to_string()),
    };
    let replace = Command::Replace { out, into };
    let refused = administrator.administer(replace.clone()).await;
    match &refused {
        Err(ClientError::CommandRefused { reason, passes }) => {
            assert!(reason.contains("admit") && !passes, "{refused:?}");
        }
        other => panic!("{other:?}"),
    }
    let refused = client.administer(admit.clone()).await;
    assert!(matches!(refused, Err(ClientError::CommandRefused { .. })));
    let begins = administrator.administer(admit).await;
    assert_eq!(begins, Ok(Administered::Begins(Epoch(1))));
    let began = Instant::now();
    assert_eq!(
        retry_until_granted(&administrator, &replace).await,
        Administered::Begins(Epoch(2))
    );
    println!("it was ready after {:?}", began.elapsed());
    cluster.votes(new).await;
    for expected in 2..=20 {
        assert_eq!(add(&client, "n").await, expected);
    }
    // The replaced voter stops, and with it a replica that stays: the new one is needed.
    cluster.kill(1).await;
    cluster.kill(2).await;
    cluster.restart(2).await;
    cluster.votes(2).await;
    for expected in 21..=40 {
        assert_eq!(add(&client, "n").await, expected);
    }
    // A client that starts with an old membership is led to the current one.
    let latecomer = cluster.client().await;
    assert_eq!(add(&latecomer, "n").await, 41);
    assert_eq!(latecomer.membership().epoch, Epoch(2));
    let standing = cluster_status(&cluster.client_config(key()))
        .await
        .expect("asked");
    assert_eq!(standing.membership.voters[1].key, into);
    let voting = standing.replicas.iter().filter(|(_, status)| {
        let status = status.as_ref().ok();
        status.is_some_and(|it| it.voting == Voting::Voting && it.epoch == Epoch(2))
    });
    assert_eq!(voting.count(), 4);
    let shown = administrator.administer(Command::Show).await;
    let Ok(Administered::Shown(shown)) = shown else {
        panic!("{shown:?}");
    };
    assert_eq!(shown.retired, [out]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_learner_takes_a_voters_place_and_sessions_follow() {
    replace_a_voter(SIGNED).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_learner_takes_a_voters_place_with_channel_authenticated_votes() {
    replace_a_voter(CHANNELS).await;
}
