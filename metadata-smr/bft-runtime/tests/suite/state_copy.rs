//! Copies of the state of real clusters on loopback.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use crate::support::{TestCluster, add, key};
use bytes::Bytes;
use quorumfs_bft::authentication::Authentication;
use quorumfs_bft::identity::{Epoch, Sequence};
use quorumfs_bft::membership::{Command, EpochChain, Member, Membership};
use quorumfs_bft::state::BornRow;
use quorumfs_bft::state_copy::Copied;
use quorumfs_bft_runtime::client::Client;
use quorumfs_bft_runtime::keys::{NodeKey, Zip215};
use quorumfs_bft_runtime::state_copy::{CopyError, StateCopy};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A client whose principal may copy.
async fn copier(cluster: &TestCluster) -> (Client, Arc<NodeKey>) {
    let principal = key();
    let config = cluster.client_config(principal.clone());
    let client = Client::connect(config).await.expect("connect");
    let mut put = b"put copier ".to_vec();
    put.extend(principal.public().0);
    client.execute(put.into()).await.expect("executed");
    (client, principal)
}

fn open(cluster: &TestCluster, directory: &Path, principal: &Arc<NodeKey>) -> StateCopy {
    let config = cluster.client_config(principal.clone());
    StateCopy::open(directory, config).expect("opened")
}

async fn fill(client: &Client, from: u64, count: u64) {
    let operation = Bytes::from(format!("fill {from} {count}"));
    client.execute(operation).await.expect("executed");
}

fn all_rows(copy: &StateCopy) -> Vec<BornRow> {
    let view = copy.read();
    let (mut all, mut from) = (Vec::new(), Vec::new());
    loop {
        let page = view.rows(&from, 500).expect("readable");
        let Some((last, _)) = page.last() else {
            return all;
        };
        from = last.to_vec();
        from.push(0);
        all.extend(page);
    }
}

/// The copy is proved from the membership that the cluster began with, all rows of it.
#[track_caller]
fn check(cluster: &TestCluster, copy: &StateCopy) -> Copied {
    let copied = copy.read().copied().expect("a copy");
    let voter = |number: usize| Member {
        key: cluster.keys[number].public(),
        incarnation: cluster.members[number].incarnation,
        address: Bytes::new(),
        since: Sequence(0),
    };
    let voters = (0..cluster.members.len()).map(voter).collect();
    let genesis = Membership::genesis(cluster.model, voters, Vec::new());
    let chain = EpochChain::new(cluster.id, genesis);
    copied.verify(chain, &Zip215).expect("proved");
    let mut proving = copy.read().proof().expect("readable").begin();
    for (key, born) in all_rows(copy) {
        proving.push(&key, born).expect("in order");
    }
    assert_eq!(proving.finish(&copied.root), Ok(()));
    copied
}

async fn an_idle_volume(authentication: Authentication) {
    let mut cluster = TestCluster::start_as(authentication, 1, 1, Bytes::new()).await;
    let directory = tempfile::tempdir().expect("a directory");
    let (client, principal) = copier(&cluster).await;
    assert_eq!(add(&client, "n").await, 1);
    let mut copy = open(&cluster, directory.path(), &principal);
    let began = Instant::now();
    let first = copy.refresh(client.shown()).await.expect("copied");
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "{:?}",
        began.elapsed()
    );
    assert!(first.sequence >= client.shown());
    assert_eq!(check(&cluster, &copy), first);
    let find = |copy: &StateCopy| copy.read().rows(b"n", 1).expect("readable");
    assert_eq!(find(&copy)[0].1.value, "1");

    // Not all replicas are needed, and the copy outlives its process.
    drop(copy);
    cluster.kill((cluster.leader() + 1) % 4).await;
    fill(&client, 0, 3_000).await;
    assert_eq!(add(&client, "n").await, 2);
    let mut copy = open(&cluster, directory.path(), &principal);
    assert_eq!(copy.read().copied(), Some(first.clone()));
    let second = copy.refresh_over(&client, client.shown()).await;
    let second = second.expect("copied");
    assert_eq!(check(&cluster, &copy), second);
    assert_eq!(find(&copy)[0].1.value, "2");
    let view = copy.read();
    let changes = view.changes_since(&first.root).expect("readable");
    let (mut changes, mut changed) = (changes.expect("the one before"), 0);
    while let Some(row) = changes.next().expect("readable") {
        assert!(row.now.is_some_and(|now| now.birth > first.sequence));
        changed += 1;
    }
    assert_eq!(changed, 3_001);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_volume_is_copied_in_seconds_and_then_its_changes() {
    an_idle_volume(Authentication::Sig).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn so_is_one_whose_votes_the_channels_authenticate() {
    an_idle_volume(Authentication::Mac).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_principal_without_the_right_copies_nothing() {
    let cluster = TestCluster::start(1, 1).await;
    let (client, _) = copier(&cluster).await;
    let directory = tempfile::tempdir().expect("a directory");
    let mut copy = open(&cluster, directory.path(), &key());
    for at_least in [Sequence(1), client.shown()] {
        let refused = copy.refresh(at_least).await;
        assert!(matches!(refused, Err(CopyError::NoRight)), "{refused:?}");
    }
    assert_eq!(copy.read().copied(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_that_the_cluster_does_not_have_yet_is_not_waited_for() {
    let cluster = TestCluster::start(1, 1).await;
    let (client, principal) = copier(&cluster).await;
    let directory = tempfile::tempdir().expect("a directory");
    let mut copy = open(&cluster, directory.path(), &principal);
    let refused = copy.refresh_over(&client, Sequence(1_000_000)).await;
    assert!(
        matches!(refused, Err(CopyError::TooNew { .. })),
        "{refused:?}"
    );
    // That ended in the middle of a refresh; the next one works.
    copy.refresh_over(&client, client.shown())
        .await
        .expect("copied");
    check(&cluster, &copy);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refresh_that_is_dropped_harms_nothing() {
    let cluster = TestCluster::start(1, 1).await;
    let (client, principal) = copier(&cluster).await;
    fill(&client, 0, 3_000).await;
    let directory = tempfile::tempdir().expect("a directory");
    let mut copy = open(&cluster, directory.path(), &principal);
    for milliseconds in [0, 1, 5, 20, 40, 80] {
        let patience = Duration::from_millis(milliseconds);
        let refreshing = copy.refresh_over(&client, client.shown());
        let _ = tokio::time::timeout(patience, refreshing).await;
    }
    copy.refresh_over(&client, client.shown())
        .await
        .expect("copied");
    check(&cluster, &copy);
    assert!(all_rows(&copy).len() > 3_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_follows_its_cluster_from_epoch_to_epoch() {
    let mut cluster = TestCluster::start(1, 1).await;
    let (client, principal) = copier(&cluster).await;
    let directory = tempfile::tempdir().expect("a directory");
    let mut copy = open(&cluster, directory.path(), &principal);
    copy.refresh_over(&client, client.shown())
        .await
        .expect("copied");
    let (learner, incarnation) = cluster.add_machine().await;
    let handle = cluster.handles[learner].as_ref().expect("running");
    let address = Bytes::from(handle.address().to_string());
    let key = cluster.keys[learner].public();
    let admit = Command::Admit {
        key,
        incarnation,
        address,
    };
    let administrator = cluster.administrator().await;
    administrator.administer(admit).await.expect("granted");
    // The state at the end of the epoch before is the newest checkpoint.
    let end = copy
        .refresh(Sequence(1))
        .await
        .expect("as new as asked for");
    assert_eq!(end.records.len(), 0, "nothing was asked");
    assert_eq!(add(&client, "n").await, 1);
    let copied = copy.refresh(client.shown()).await.expect("copied");
    assert_eq!(copied.records.len(), 1);
    assert_eq!(client.membership().epoch, Epoch(1));
    check(&cluster, &copy);
    drop(copy);
    let copy = open(&cluster, directory.path(), &principal);
    assert_eq!(check(&cluster, &copy), copied);
}
