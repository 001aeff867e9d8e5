//! Collection over directories and a real metadata service: what nothing needs is deleted, what is
//! needed stays, whatever else lies there.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use crate::common::*;
use crate::packs::{Clouds, bytes_of, read_one, write_one};
use quorumfs_backends::{Deadline, ObjectName, ObjectStore};
use quorumfs_gateway::blocks::{
    BlockStore, CloudKeys, Collection, Compaction, Named, PlacementLog,
};
use quorumfs_gateway::metadata::MetadataClient;
use quorumfs_gateway::vfs::{CloudSlices, FileSystem, Packing, VfsOptions};
use quorumfs_metadata::identity::{AllocationId, ObjectClass, ObjectId, ShardIndex};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);

fn at_once() -> Collection {
    Collection {
        grace: Duration::ZERO,
        ..Collection::default()
    }
}

/// Writes files and removes some, and ends the session.
async fn written(clouds: &Clouds, kept: usize, removed: usize) {
    let (fs, blocks) = writer(clouds);
    for number in 0..kept + removed {
        let content = bytes_of(number).repeat(10);
        write_one(&fs, &format!("f{number}"), &content).await;
    }
    for number in kept..kept + removed {
        let name = format!("f{number}");
        fs.unlink(&root(), fs.root(), name.as_bytes())
            .await
            .unwrap();
    }
    fs.sync_all().await.unwrap();
    assert!(blocks.drain(SOON).await.is_complete());
    fs.shutdown().await.unwrap();
}

/// A file system, and its block store.
fn writer(clouds: &Clouds) -> (FileSystem, BlockStore) {
    let client = clouds.client();
    let blocks = clouds.blocks(&client);
    let volume = clouds.world.volume.clone();
    let slices = CloudSlices::new(volume.clone(), blocks.clone(), Packing::PROMPT);
    let options = VfsOptions::default();
    let fs = FileSystem::new(volume, client, Arc::new(slices), options);
    (fs, blocks)
}

async fn collector(clouds: &Clouds) -> (Arc<MetadataClient>, BlockStore) {
    let client = clouds.client();
    let blocks = clouds.blocks(&client);
    (client, blocks)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_deleted_is_freed_and_the_rest_is_read() {
    let clouds = Clouds::new();
    written(&clouds, 10, 30).await;
    let before = clouds.stored();
    let (client, blocks) = collector(&clouds).await;
    let planned = blocks.would_collect(Duration::ZERO).await.unwrap();
    assert_eq!(clouds.stored(), before, "nothing is deleted by a plan");
    let collected = blocks.collect(&at_once()).await.unwrap();
    assert_eq!(
        (collected.objects, collected.bytes),
        (planned.objects, planned.bytes)
    );
    assert!(collected.objects >= 30, "{collected:?}");
    assert_eq!(collected.kept.objects(), 0, "{collected:?}");
    let after = clouds.stored();
    assert_eq!(before.1 - after.1, collected.bytes);
    assert!(after.1 * 2 < before.1, "{before:?} {after:?}");
    let again = blocks.collect(&at_once()).await.unwrap();
    assert_eq!(again.objects, 0);
    client.close().await;
    let fs = clouds.file_system(Packing::PROMPT);
    for number in 0..10 {
        let content = bytes_of(number).repeat(10);
        assert_eq!(read_one(&fs, &format!("f{number}")).await, content);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_waits_for_the_grace_and_for_its_writer() {
    let clouds = Clouds::new();
    let (fs, writes) = writer(&clouds);
    write_one(&fs, "f", &bytes_of(1).repeat(10)).await;
    fs.unlink(&root(), fs.root(), b"f").await.unwrap();
    fs.sync_all().await.unwrap();
    writes.drain(SOON).await;
    let (client, blocks) = collector(&clouds).await;
    let open = blocks.collect(&at_once()).await.unwrap();
    assert_eq!((open.objects, open.kept.open), (0, 1), "{open:?}");
    fs.shutdown().await.unwrap();
    let patient = Collection::default();
    let young = blocks.collect(&patient).await.unwrap();
    assert_eq!((young.objects, young.kept.young), (0, 1), "{young:?}");
    let other = collector(&clouds).await;
    let elsewhere = other.1.collect(&at_once()).await.unwrap();
    assert!(elsewhere.elsewhere, "one process does the job");
    assert_eq!(blocks.collect(&at_once()).await.unwrap().objects, 1);
    client.close().await;
    let now = other.1.collect(&at_once()).await.unwrap();
    assert!(!now.elsewhere, "its session has ended");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cloud_that_does_not_answer_keeps_the_rows_of_its_objects() {
    let clouds = Clouds::new();
    written(&clouds, 1, 5).await;
    let (_client, blocks) = collector(&clouds).await;
    clouds.stores[2].refuse_deletes(true);
    let first = blocks.collect(&at_once()).await.unwrap();
    assert_eq!((first.objects, first.kept.unreachable), (0, 5), "{first:?}");
    clouds.stores[2].refuse_deletes(false);
    let mut objects = 0;
    for _ in 0..100 {
        // The cloud is bypassed until a probe finds that it answers.
        objects += blocks.collect(&at_once()).await.unwrap().objects;
        if objects == 5 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(objects, 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_deletes_what_no_row_names_and_nothing_that_it_does_not_know() {
    let clouds = Clouds::new();
    written(&clouds, 3, 0).await;
    let (client, blocks) = collector(&clouds).await;
    let (cloud, secret) = clouds.world.volume.clouds().next().unwrap();
    assert_eq!(cloud.index.0, 0);
    let keys = CloudKeys::derive(secret);
    let store = &clouds.stores[0];
    let object = |allocation: u64| ObjectId {
        allocation: AllocationId(allocation),
        counter: 900,
    };
    let open = client.allocate().await.unwrap().object();
    let named = |object, class| Named {
        object,
        class,
        shard: ShardIndex(0),
        attempt: 0,
        generation: 0,
    };
    let names = [
        (named(object(0), ObjectClass::BLOCK), false, "left behind"),
        (
            named(object(0), ObjectClass::SHARE),
            true,
            "a share of the second lock",
        ),
        (
            named(ObjectId::FOUNDING, ObjectClass::SHARE),
            true,
            "the first one",
        ),
        (
            named(object(0), ObjectClass::BACKUP),
            true,
            "of a later release",
        ),
        (
            named(open, ObjectClass::BLOCK),
            true,
            "of a write under way",
        ),
        (
            named(object(7000), ObjectClass::BLOCK),
            true,
            "never granted",
        ),
    ];
    let mut lies = vec![ObjectName::parse("ab/abcdef0123456789abcdef0123456789").unwrap()];
    for (named, ..) in &names {
        lies.push(keys.name(named).unwrap());
    }
    let deadline = || Deadline::after(SOON);
    for name in &lies {
        let body = b"something".as_slice().into();
        store.put_if_absent(name, body, deadline()).await.unwrap();
    }
    let before = clouds.stored();
    let swept = blocks.sweep_listings(&at_once()).await.unwrap();
    assert_eq!((swept.deleted, swept.failed), (1, 0), "{swept:?}");
    assert_eq!(clouds.stored().0, before.0 - 1);
    assert!(store.head(&lies[0], deadline()).await.is_ok(), "not ours");
    for ((_, stays, what), name) in names.iter().zip(&lies[1..]) {
        let found = store.head(name, deadline()).await.is_ok();
        assert_eq!(found, *stays, "{what}");
    }
    client.close().await;
    let fs = clouds.file_system(Packing::PROMPT);
    for number in 0..3 {
        let content = bytes_of(number).repeat(10);
        assert_eq!(read_one(&fs, &format!("f{number}")).await, content);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn packs_are_compacted_and_then_collected() {
    let clouds = Clouds::new();
    {
        let (fs, writes) = writer(&clouds);
        for number in 0..200 {
            write_one(&fs, &format!("f{number}"), &bytes_of(number)).await;
        }
        for number in 0..190 {
            let name = format!("f{number}");
            fs.unlink(&root(), fs.root(), name.as_bytes())
                .await
                .unwrap();
        }
        fs.sync_all().await.unwrap();
        writes.drain(SOON).await;
        fs.shutdown().await.unwrap();
    }
    let before = clouds.stored();
    let (client, blocks) = collector(&clouds).await;
    let eager = Compaction {
        bytes_per_second: None,
        dead_bytes_min: 1,
        ..Compaction::default()
    };
    for _ in 0..3 {
        blocks.compact(&eager).await.unwrap();
    }
    blocks.drain(SOON).await;
    client.close().await;
    let (_client, blocks) = collector(&clouds).await;
    let collected = blocks.collect(&at_once()).await.unwrap();
    assert!(collected.objects > 0, "{collected:?}");
    let after = clouds.stored();
    // Ten files of 4 KiB, of which four shards are kept where two suffice, with their headers.
    let live = 10 * 4096;
    assert!(after.1 < 4 * live, "{before:?} {after:?}");
    let fs = clouds.file_system(Packing::PROMPT);
    for number in 190..200 {
        assert_eq!(read_one(&fs, &format!("f{number}")).await, bytes_of(number));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_object_is_left_to_its_writer_while_that_one_lives() {
    let clouds = Clouds::new();
    clouds.stores[3].refuses.store(true, Ordering::Relaxed);
    let (fs, _writes) = writer(&clouds);
    write_one(&fs, "f", &bytes_of(1).repeat(10)).await;
    fs.sync_all().await.unwrap();
    let other = clouds.client();
    let listed = other.list_under_replicated(None, 10).await.unwrap();
    assert_eq!(
        listed.objects.len(),
        0,
        "its writer may be putting the rest"
    );
    fs.shutdown().await.unwrap();
    let listed = other.list_under_replicated(None, 10).await.unwrap();
    assert_eq!(listed.objects.len(), 1, "its writer is gone");
    other.close().await;
}
