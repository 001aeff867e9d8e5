//! Verdicts: receipts, present answers, and the findings that are ordered.

use super::harness::{Volume, content, object_id, policy};
use crate::blocks::{ScrubConfig, ScrubDepth, Stored};
use bytes::Bytes;
use quorumfs_backends::faulty::{Fault, Plan};
use quorumfs_bft::identity::Digest;
use quorumfs_metadata::identity::CloudIndex;
use quorumfs_metadata::operation::Finding;
use quorumfs_metadata::row::{FaultKind, Verdict};
use std::time::Duration;

const LENGTH: usize = 300_000;

/// A written volume without background work.
async fn written() -> (Volume, Stored, Bytes) {
    let mut volume = Volume::new(policy(4, 1, 2));
    volume.timeouts.completion = Duration::from_secs(3600);
    volume.restart();
    let plain = content(1, LENGTH);
    let stored = volume.write(1, &plain).await.unwrap();
    volume.drain().await;
    (volume, stored, plain)
}

fn alter(volume: &Volume, cloud: usize) {
    let mut objects = volume.memories[cloud].objects.lock().unwrap();
    for body in objects.values_mut() {
        let mut bytes = body.to_vec();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        *body = bytes.into();
    }
}

/// The cloud of a shard: the first cloud of an object follows from its id.
fn cloud_of(volume: &Volume, shard: usize) -> usize {
    usize::from(volume.log.row(object_id(1)).shards[shard].cloud.0)
}

/// All findings, after the queued ones were ordered.
async fn all_testified(volume: &Volume) -> Vec<(CloudIndex, Finding)> {
    volume.drain().await;
    volume.log.testified.lock().unwrap().clone()
}

fn verdict(finding: &Finding) -> Verdict {
    finding.fault.verdict(finding.receipt, finding.found)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_acknowledged_shard_has_its_receipt() {
    let (volume, ..) = written().await;
    let row = volume.log.row(object_id(1));
    assert!(row.shards.iter().all(|shard| shard.receipt.is_some()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cloud_that_alters_what_it_acknowledged_is_convicted_once_by_readers_and_scrubs() {
    let (volume, stored, plain) = written().await;
    let cloud = cloud_of(&volume, 0);
    alter(&volume, cloud);
    // In ranges, so that the checksum of the whole has still to be fetched.
    for _ in 0..3 {
        let read = volume.read(1, &stored.slice, 0..LENGTH as u32).await;
        assert_eq!(read.unwrap(), plain);
    }
    let all = all_testified(&volume).await;
    let [(found, finding)] = &all[..] else {
        panic!("{all:?}")
    };
    assert_eq!(usize::from(found.0), cloud);
    assert_eq!(finding.fault, FaultKind::WrongBytes);
    assert_eq!(verdict(finding), Verdict::Cloud, "{finding:?}");

    let (volume, ..) = written().await;
    alter(&volume, 3);
    let config = ScrubConfig {
        depth: ScrubDepth::Full,
        ..ScrubConfig::default()
    };
    let report = volume.blocks.scrub(&config, None).await.unwrap();
    assert_eq!(report.found(), 1);
    let all = volume.log.testified.lock().unwrap().clone();
    let [(CloudIndex(3), finding)] = &all[..] else {
        panic!("{all:?}")
    };
    assert_eq!(verdict(finding), Verdict::Cloud, "{finding:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_that_orders_another_digest_than_it_put_is_convicted_and_no_cloud() {
    let (volume, stored, plain) = written().await;
    let change = |volume: &Volume, receipts: bool| {
        let mut rows = volume.log.rows.lock().unwrap();
        let shard = &mut rows.get_mut(&object_id(1)).unwrap().shards[0];
        shard.digest = Digest([0x55; 32]);
        if !receipts {
            shard.receipt = None;
        }
    };
    change(&volume, true);
    // It is rebuilt from the others, and does not have its digest.
    volume.read(1, &stored.slice, 0..10).await.unwrap_err();
    let all = all_testified(&volume).await;
    assert_eq!(all.len(), 1, "{all:?}");
    assert_eq!(verdict(&all[0].1), Verdict::Writer, "{all:?}");

    // Without a receipt there is no verdict.
    let (volume, ..) = written().await;
    change(&volume, false);
    volume.read(1, &stored.slice, 0..10).await.unwrap_err();
    let all = all_testified(&volume).await;
    assert_eq!(verdict(&all[0].1), Verdict::Undecided, "{all:?}");
    drop(plain);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cloud_that_denies_what_it_acknowledged_is_convicted() {
    let (volume, stored, plain) = written().await;
    let cloud = cloud_of(&volume, 1);
    volume.memories[cloud].objects.lock().unwrap().clear();
    let read = volume.read(1, &stored.slice, 0..LENGTH as u32).await;
    assert_eq!(read.unwrap(), plain);
    let all = all_testified(&volume).await;
    let [(found, finding)] = &all[..] else {
        panic!("{all:?}")
    };
    assert_eq!(usize::from(found.0), cloud);
    assert_eq!(finding.fault, FaultKind::Missing);
    assert_eq!(verdict(finding), Verdict::Cloud);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_that_is_acknowledged_as_another_is_no_acknowledgement() {
    let volume = Volume::new(policy(4, 1, 2));
    volume.plan(2, Plan::always(Fault::WrongReceipt));
    let stored = volume.write(1, &content(1, LENGTH)).await.unwrap();
    let mut shards = stored.object.shards.iter();
    let shard = shards.find(|shard| shard.cloud == CloudIndex(2)).unwrap();
    assert!(!shard.acknowledged);
    let status = volume.blocks.status();
    let error = status.clouds[2].last_error.clone().unwrap();
    assert!(error.contains("and says that it took crc32c"), "{error}");
    let all = all_testified(&volume).await;
    let [(CloudIndex(2), finding), ..] = &all[..] else {
        panic!("{all:?}")
    };
    assert_eq!(finding.fault, FaultKind::WrongReceipt);
    assert_eq!(verdict(finding), Verdict::Cloud);
}
