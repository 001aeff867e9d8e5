//! Objects of another principal: content for every reader, or the same error for all of them.

use super::harness::{
    FOREIGN, MemoryLog, PATIENCE, VOLUME, Volume, content, key, object_id, policy, secrets,
    slice_id,
};
use super::replaced::drained;
use crate::blocks::{
    BlockError, BlockErrorKind, CloudKeys, Named, ScrubConfig, ScrubDepth, SealedSlice, Sealer,
};
use bytes::Bytes;
use quorumfs_backends::StoreErrorKind as Kind;
use quorumfs_backends::faulty::{Fault, Plan};
use quorumfs_bft::identity::Digest;
use quorumfs_metadata::identity::{CloudIndex, Codec, ObjectClass, ShardIndex};
use quorumfs_metadata::operation::NewObject;
use quorumfs_metadata::placement::Shard;
use std::sync::atomic::Ordering;
use std::time::Duration;

const LENGTH: usize = 400_000;

/// Commits an object of the foreign principal that lies on all clouds: data shards of one content,
/// and from shard `parity_from` on those of another.
fn brought_in(volume: &Volume, number: u32, parity_from: usize) -> (Bytes, SealedSlice) {
    let policy = volume.policy;
    let (plain, other) = (content(1, LENGTH), content(2, LENGTH));
    let secrets = secrets(policy.clouds());
    let sealer = Sealer::new(VOLUME, policy, &secrets).unwrap();
    let (object, slice) = (object_id(number), slice_id(number));
    let seal = |plain: &Bytes| sealer.seal(object, slice, &key(number), plain).unwrap();
    let (right, wrong) = (seal(&plain), seal(&other));
    let mixed: Vec<(Bytes, Digest)> = right
        .into_iter()
        .zip(wrong)
        .enumerate()
        .map(|(shard, (right, wrong))| if shard < parity_from { right } else { wrong })
        .collect();
    let shard_length = mixed[0].0.len() as u32;
    let mut shards = Vec::new();
    for (index, (body, digest)) in (0u8..).zip(mixed) {
        let named = Named {
            object,
            class: ObjectClass::BLOCK,
            shard: ShardIndex(index),
            attempt: 0,
            generation: 0,
        };
        let name = CloudKeys::derive(&secrets[usize::from(index)]).name(&named);
        let memory = &volume.memories[usize::from(index)];
        memory.objects.lock().unwrap().insert(name.unwrap(), body);
        shards.push(Shard {
            digest,
            cloud: CloudIndex(index),
            attempt: 0,
            acknowledged: true,
            withdrawn: false,
            receipt: None,
            coded_for: None,
        });
    }
    let length = LENGTH as u32;
    let sealed_length = length + length.div_ceil(65_536) * 16;
    let new = NewObject {
        id: object,
        class: ObjectClass::BLOCK,
        policy,
        length: sealed_length,
        shard_length,
        shards,
    };
    volume.log.rows.lock().unwrap().insert(object, new);
    volume.log.foreign.lock().unwrap().insert(object);
    let sealed = SealedSlice {
        id: slice,
        object,
        offset: 0,
        length,
        sealed_length,
        codec: Codec::NONE,
    };
    (plain, sealed)
}

fn brought_in_well(volume: &Volume, number: u32) -> (Bytes, SealedSlice) {
    brought_in(volume, number, usize::MAX)
}

fn bytes_got(volume: &Volume) -> u64 {
    let got = |memory: &std::sync::Arc<super::harness::MemoryStore>| {
        memory.bytes_got.load(Ordering::Relaxed)
    };
    volume.memories.iter().map(got).sum()
}

fn is_checked(log: &MemoryLog, number: u32) -> bool {
    log.checked.lock().unwrap().contains(&object_id(number))
}

/// Only these clouds answer.
fn reach(volume: &Volume, clouds: &[usize]) {
    for cloud in 0..volume.clouds.len() {
        let plan = match clouds.contains(&cloud) {
            true => Plan::honest(),
            false => Plan::always(Fault::Refuse(Kind::Unavailable)),
        };
        volume.plan(cloud, plan);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_readers_with_different_clouds_get_the_same_error_that_names_the_principal() {
    let mut volume = Volume::new(policy(4, 1, 2));
    let (_, slice) = brought_in(&volume, 1, 2);
    for clouds in [[0, 1], [2, 3], [0, 2], [1, 3]] {
        // A process without any cached result.
        volume.restart();
        reach(&volume, &clouds);
        for range in [0..10, 100_000..100_001, 0..LENGTH as u32] {
            let error = volume.read(1, &slice, range.clone()).await.unwrap_err();
            assert!(
                matches!(error, BlockError::WrittenWrong { .. }),
                "{clouds:?} {range:?}: {error}"
            );
            assert_eq!(error.kind(), BlockErrorKind::Corrupt);
            let writer = error.writer().unwrap();
            assert_eq!(writer.principal, Some(FOREIGN));
            let text = error.to_string();
            assert!(text.contains("principal `mallory` (0707"), "{text}");
            assert!(text.contains("no cloud is to blame"), "{text}");
        }
        let poisoned = volume.blocks.status().poisoned;
        let [one] = &poisoned[..] else {
            panic!("{poisoned:?}")
        };
        assert_eq!(one.object, object_id(1));
        assert_eq!(one.writer.principal, Some(FOREIGN));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_objects_and_checked_ones_cost_no_more_than_before() {
    let volume = Volume::new(policy(4, 1, 2));
    let (plain, slice) = brought_in_well(&volume, 1);
    let read = async |number| {
        let before = bytes_got(&volume);
        let found = volume.read(number, &slice, 0..10).await.unwrap();
        assert_eq!(found, plain[..10]);
        bytes_got(&volume) - before
    };
    let a_cell = 70_000;
    volume.log.foreign.lock().unwrap().clear();
    assert!(read(1).await < a_cell);
    volume.log.foreign.lock().unwrap().insert(object_id(1));
    volume.log.checked.lock().unwrap().insert(object_id(1));
    assert!(read(1).await < a_cell);
    // Another principal's unchecked object: k whole shards, once.
    volume.log.checked.lock().unwrap().clear();
    let whole = read(1).await;
    assert!(
        (LENGTH as u64..2 * LENGTH as u64).contains(&whole),
        "{whole}"
    );
    assert!(read(1).await < a_cell);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_that_a_reader_finds_good_is_ordered_as_checked_and_a_poisoned_one_is_not() {
    let volume = Volume::new(policy(4, 1, 2));
    let (plain, slice) = brought_in_well(&volume, 1);
    let (_, poisoned) = brought_in(&volume, 2, 2);
    assert_eq!(volume.read(1, &slice, 0..10).await.unwrap(), plain[..10]);
    volume.read(2, &poisoned, 0..10).await.unwrap_err();
    volume.drain().await;
    assert!(is_checked(&volume.log, 1));
    assert!(!is_checked(&volume.log, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn completion_completes_good_objects_and_never_poisoned_ones() {
    // Shard 3 is awaited: one that is there already, and one that has to be rebuilt.
    for there in [true, false] {
        let mut volume = Volume::new(policy(4, 1, 2));
        volume.timeouts.completion = Duration::from_secs(3600);
        volume.restart();
        brought_in_well(&volume, 1);
        brought_in(&volume, 2, 2);
        for row in volume.log.rows.lock().unwrap().values_mut() {
            row.shards[3].acknowledged = false;
        }
        if !there {
            volume.memories[3].objects.lock().unwrap().clear();
        }
        volume.drain().await;
        let is_whole = |number| volume.log.row(object_id(number)).shards[3].acknowledged;
        assert!(is_whole(1) && !is_whole(2), "there: {there}");
        assert!(is_checked(&volume.log, 1));
        let held = volume.memories[3].objects.lock().unwrap().len();
        assert_eq!(held, if there { 2 } else { 1 });
        assert_eq!(volume.blocks.status().poisoned.len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_scrub_checks_everything_and_reports_poisoned_objects() {
    let volume = Volume::new(policy(4, 1, 2));
    brought_in_well(&volume, 1);
    brought_in(&volume, 2, 3);
    let config = ScrubConfig {
        depth: ScrubDepth::Sample { per_million: 0 },
        ..ScrubConfig::default()
    };
    let report = volume.blocks.scrub(&config, None).await.unwrap();
    assert_eq!((report.poisoned, report.found()), (0, 0));
    assert!(!is_checked(&volume.log, 1), "it only asked for lengths");
    let config = ScrubConfig {
        depth: ScrubDepth::Full,
        ..config
    };
    let report = volume.blocks.scrub(&config, None).await.unwrap();
    assert_eq!((report.poisoned, report.found()), (1, 0));
    assert!(is_checked(&volume.log, 1) && !is_checked(&volume.log, 2));
    let poisoned = volume.blocks.status().poisoned;
    assert_eq!(poisoned[0].writer.name.as_ref().unwrap().label, "mallory");
}

#[tokio::test(start_paused = true)]
async fn replacing_clouds_takes_no_conviction_away() {
    let mut volume = Volume::new(policy(4, 1, 2));
    let (_, slice) = brought_in_well(&volume, 1);
    // No shard is what its row says.
    for memory in &volume.memories {
        memory.alter(|body| body.fill(0));
    }
    // The replaced clouds are gone, so nothing of the object can move.
    for (old, new) in [(0, 4), (1, 5)] {
        volume.plan(
            usize::from(old),
            Plan::always(Fault::Refuse(Kind::Unavailable)),
        );
        volume.replace(old, new);
        let mut drainage = drained(&volume).await.0;
        for _ in 0..10 {
            // A shard that was just found bad is not tried again at once.
            if !drainage.finished {
                tokio::time::sleep(PATIENCE).await;
                drainage = drained(&volume).await.0;
            }
        }
        assert!(drainage.finished, "{drainage:?}");
    }
    for down in 2..6 {
        volume.restart();
        let clouds: Vec<usize> = (0..6).filter(|cloud| *cloud != down).collect();
        reach(&volume, &clouds);
        let error = volume.read(1, &slice, 0..10).await.unwrap_err();
        let writer = error.writer().and_then(|writer| writer.principal);
        assert_eq!(writer, Some(FOREIGN), "without cloud {down}: {error}");
    }
}
