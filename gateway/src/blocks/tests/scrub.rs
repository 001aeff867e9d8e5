//! The scrub: finds lost shards that are rarely read, and restores them at the least cost.

use super::harness::{MemoryLog, Volume, content, object_id, policy};
use crate::blocks::{ScrubConfig, ScrubDepth, ScrubReport, SealedSlice, StoredObject};
use bytes::Bytes;
use proptest::prelude::*;
use quorumfs_backends::StoreErrorKind as Kind;
use quorumfs_backends::faulty::{Fault, Plan};
use quorumfs_metadata::identity::{CloudIndex, ShardIndex};
use quorumfs_metadata::operation::PlacedShard;
use quorumfs_metadata::placement::Policy;
use std::sync::atomic::Ordering;
use std::time::Duration;

const LENGTHS: [usize; 7] = [0, 1, 65_000, 66_000, 300_000, 1_000_000, 3_000_000];

const LENGTHS_ONLY: ScrubDepth = ScrubDepth::Sample { per_million: 0 };
const A_CELL_OF_EACH: ScrubDepth = ScrubDepth::Sample {
    per_million: 1_000_000,
};

fn all_policies() -> [Policy; 5] {
    [(3, 1, 1), (4, 1, 2), (5, 1, 3), (6, 1, 4), (7, 2, 3)].map(|(n, f, k)| policy(n, f, k))
}

type Written = Vec<(Bytes, SealedSlice)>;

async fn written(volume: &Volume, lengths: &[usize]) -> Written {
    let mut slices = Vec::new();
    for (number, length) in (0u32..).zip(lengths) {
        let plain = content(number.into(), *length);
        let stored = volume.write(number, &plain).await.unwrap();
        slices.push((plain, stored.slice));
    }
    volume.drain().await;
    slices
}

async fn assert_reads(volume: &Volume, written: &Written) {
    for (number, (plain, slice)) in (0u32..).zip(written) {
        let found = volume.read(number, slice, 0..plain.len() as u32).await;
        assert!(found.unwrap() == plain, "object {number}");
    }
}

async fn scrub(volume: &Volume, depth: ScrubDepth) -> ScrubReport {
    let config = ScrubConfig {
        depth,
        ..ScrubConfig::default()
    };
    let report = volume.blocks.scrub(&config, None).await.unwrap();
    assert!(report.finished);
    report
}

fn lose(volume: &Volume, cloud: usize) -> usize {
    let mut objects = volume.memories[cloud].objects.lock().unwrap();
    std::mem::take(&mut *objects).len()
}

/// Gets that returned bytes, those bytes, and puts, at all clouds so far.
fn traffic(volume: &Volume) -> (u64, u64, u64) {
    volume.memories.iter().fold((0, 0, 0), |sum, memory| {
        (
            sum.0 + memory.gets.load(Ordering::Relaxed),
            sum.1 + memory.bytes_got.load(Ordering::Relaxed),
            sum.2 + memory.puts.load(Ordering::Relaxed),
        )
    })
}

/// For each object: its shards' attempts, and whether all are acknowledged.
fn rows(volume: &Volume) -> Vec<(Vec<u8>, bool)> {
    let rows = volume.log.rows.lock().unwrap();
    rows.values()
        .map(|row| {
            let attempts = row.shards.iter().map(|shard| shard.attempt).collect();
            (attempts, row.shards.iter().all(|shard| shard.acknowledged))
        })
        .collect()
}

/// One shard of every object, under its first name.
fn placed(log: &MemoryLog, shard: u8) -> Vec<PlacedShard> {
    let rows = log.rows.lock().unwrap();
    let all = rows.values().map(|row| PlacedShard {
        object: row.id,
        shard: ShardIndex(shard),
        cloud: row.shards[usize::from(shard)].cloud,
        generation: 0,
        attempt: 0,
        receipt: None,
    });
    all.collect()
}

/// A volume whose process has just begun, with pauses in the background so long that only the test
/// acts.
async fn quiet(volume: &mut Volume) {
    volume.timeouts.completion = Duration::from_secs(3600);
    volume.restart();
    volume.drain().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_loss_of_a_cloud_no_more_than_k_shards_of_an_object_are_read() {
    for policy in all_policies() {
        let (k, last) = (u64::from(policy.data()), usize::from(policy.clouds()) - 1);
        let mut volume = Volume::new(policy);
        let slices = written(&volume, &LENGTHS).await;
        quiet(&mut volume).await;
        let objects = LENGTHS.len() as u64;
        assert_eq!(lose(&volume, last), LENGTHS.len());
        let longest: u64 = {
            let rows = volume.log.rows.lock().unwrap();
            rows.values().map(|row| u64::from(row.shard_length)).sum()
        };
        let before = traffic(&volume);
        let report = scrub(&volume, LENGTHS_ONLY).await;
        let after = traffic(&volume);
        let (gets, bytes, puts) = (after.0 - before.0, after.1 - before.1, after.2 - before.2);
        assert!(gets * 100 <= k * objects * 105, "{policy:?}: {gets} gets");
        assert!(
            bytes * 100 <= k * longest * 105,
            "{policy:?}: {bytes} bytes"
        );
        assert_eq!(puts, objects, "{policy:?}");
        assert_eq!(
            (report.withdrawn, report.restored, report.lacking),
            (objects, objects, 0),
            "{report:?}"
        );
        assert_eq!(report.clouds[last].missing, objects);
        for (attempts, whole) in rows(&volume) {
            let renamed = attempts.iter().filter(|attempt| **attempt == 1).count();
            assert!(whole && renamed == 1, "the next name: {attempts:?}");
        }
        // Now as many other clouds vanish as are allowed.
        for cloud in 0..usize::from(policy.faulty()) {
            lose(&volume, cloud);
        }
        volume.restart();
        assert_reads(&volume, &slices).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cloud_that_cannot_be_reached_is_missing_nothing() {
    let mut volume = Volume::new(policy(4, 1, 2));
    written(&volume, &LENGTHS).await;
    quiet(&mut volume).await;
    let before = rows(&volume);
    volume.plan(3, Plan::always(Fault::Refuse(Kind::Unavailable)));
    let puts = traffic(&volume).2;
    let report = scrub(&volume, LENGTHS_ONLY).await;
    assert_eq!((report.withdrawn, report.found()), (0, 0), "{report:?}");
    assert_eq!(report.clouds[3].unreachable, LENGTHS.len() as u64);
    assert_eq!(report.unreachable(), LENGTHS.len() as u64);
    assert_eq!((rows(&volume), traffic(&volume).2), (before, puts));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sampling_cells_or_reading_everything_shows_damage_that_lengths_do_not() {
    for depth in [A_CELL_OF_EACH, ScrubDepth::Full] {
        let mut volume = Volume::new(policy(4, 1, 2));
        let slices = written(&volume, &LENGTHS).await;
        quiet(&mut volume).await;
        volume.memories[1].alter(|bytes| bytes.iter_mut().for_each(|byte| *byte ^= 0x10));
        let report = scrub(&volume, LENGTHS_ONLY).await;
        assert_eq!((report.found(), report.bytes), (0, 0), "{report:?}");
        let report = scrub(&volume, depth).await;
        let objects = LENGTHS.len() as u64;
        assert_eq!(report.clouds[1].damaged, objects, "{report:?}");
        assert_eq!((report.restored, report.lacking), (objects, 0));
        assert!(report.bytes > 0 && report.proved == 3 * objects);
        lose(&volume, 0);
        volume.restart();
        assert_reads(&volume, &slices).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scrub_can_look_at_one_cloud_alone_and_change_nothing() {
    let mut volume = Volume::new(policy(4, 1, 2));
    written(&volume, &LENGTHS).await;
    quiet(&mut volume).await;
    lose(&volume, 0);
    lose(&volume, 2);
    let before = (rows(&volume), traffic(&volume));
    let config = ScrubConfig {
        depth: LENGTHS_ONLY,
        cloud: Some(CloudIndex(2)),
        repair: false,
        ..ScrubConfig::default()
    };
    let report = volume.blocks.scrub(&config, None).await.unwrap();
    let objects = LENGTHS.len() as u64;
    assert_eq!(
        (report.found(), report.clouds[2].missing),
        (objects, objects)
    );
    assert_eq!((rows(&volume), traffic(&volume)), before);
    let status = volume.blocks.status();
    assert!(status.scrub.is_some_and(|shown| shown.objects == objects));
    // From a position on.
    let half = Some(object_id(3));
    let report = volume.blocks.scrub(&config, half).await.unwrap();
    assert_eq!((report.objects, report.found()), (3, 3));
    assert_eq!(report.position, Some(object_id(6)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_withdrawal_that_was_wrong_costs_a_look_and_one_that_was_right_survives_its_author() {
    let mut volume = Volume::new(policy(4, 1, 2));
    let slices = written(&volume, &LENGTHS).await;
    quiet(&mut volume).await;
    let log = std::sync::Arc::clone(&volume.log);
    let withdraw = |shards| crate::blocks::PlacementLog::withdraw_placed(&*log, shards);
    withdraw(placed(&log, 1)).await.unwrap();
    let puts = traffic(&volume).2;
    // The withdrawing process is gone; another one finds the queue.
    volume.restart();
    volume.drain().await;
    assert_eq!(traffic(&volume).2, puts, "all of it was there");
    assert!(rows(&volume).iter().all(|row| *row == (vec![0; 4], true)));

    for row in volume.log.rows.lock().unwrap().values() {
        let cloud = usize::from(row.shards[1].cloud.0);
        let keys = crate::blocks::CloudKeys::derive(&super::harness::secrets(4)[cloud]);
        let object = StoredObject::of_new(row).unwrap();
        let name = keys.name(&object.named(1, 0)).unwrap();
        assert!(
            volume.memories[cloud]
                .objects
                .lock()
                .unwrap()
                .remove(&name)
                .is_some()
        );
    }
    withdraw(placed(&log, 1)).await.unwrap();
    volume.restart();
    volume.drain().await;
    assert!(
        rows(&volume)
            .iter()
            .all(|row| *row == (vec![0, 1, 0, 0], true))
    );
    lose(&volume, 3);
    volume.restart();
    assert_reads(&volume, &slices).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cloud_that_takes_shards_and_loses_them_does_not_cause_traffic_without_end() {
    let mut volume = Volume::new(policy(4, 1, 2));
    written(&volume, &LENGTHS).await;
    quiet(&mut volume).await;
    let objects = LENGTHS.len() as u64;
    lose(&volume, 1);
    let report = scrub(&volume, LENGTHS_ONLY).await;
    assert_eq!((report.withdrawn, report.restored), (objects, objects));
    lose(&volume, 1);
    let before = traffic(&volume);
    for round in 0..3 {
        let report = scrub(&volume, LENGTHS_ONLY).await;
        let withdrawn = if round == 0 { objects } else { 0 };
        assert_eq!((report.withdrawn, report.restored), (withdrawn, 0));
        assert_eq!(report.lacking, objects, "and that is said");
    }
    assert_eq!(traffic(&volume), before, "its time has not come");

    // The number of names is bounded, for all times and processes.
    for row in volume.log.rows.lock().unwrap().values_mut() {
        for shard in row.shards.iter_mut().filter(|shard| shard.cloud.0 == 1) {
            shard.attempt = 63;
            shard.acknowledge();
        }
    }
    volume.timeouts.completion = Duration::from_millis(10);
    volume.restart();
    let report = scrub(&volume, LENGTHS_ONLY).await;
    assert_eq!(
        (report.restored, report.lacking),
        (0, objects),
        "{report:?}"
    );
    assert_eq!(traffic(&volume), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_look_like_a_newer_format_next_to_good_shards_are_damage() {
    let volume = Volume::new(policy(4, 1, 2));
    let slices = written(&volume, &LENGTHS).await;
    let objects = LENGTHS.len() as u64;
    volume.memories[2].alter(|bytes| bytes[9] = 2);
    let report = scrub(&volume, ScrubDepth::Full).await;
    assert_eq!((report.withdrawn, report.restored), (objects, objects));
    assert_eq!((report.found(), report.unreachable()), (objects, 0));
    lose(&volume, 0);
    lose(&volume, 1);
    assert_reads(&volume, &slices).await;
}

/// The damage of one shard: usually none.
fn damage(kind: u8, bytes: &mut Vec<u8>) {
    let middle = bytes.len() / 2;
    match kind {
        0 => bytes[middle] ^= 1,
        1 => bytes.truncate(middle),
        2 => bytes.push(0),
        3 => bytes.fill(0),
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn whatever_f_clouds_did_a_scrub_makes_everything_whole_again(
        which in 0usize..5,
        lengths in proptest::collection::vec(0usize..400_000, 1..6),
        first in 0usize..7,
        fates in proptest::collection::vec(0u8..8, 12),
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let policy = all_policies()[which];
            let (n, f) = (usize::from(policy.clouds()), usize::from(policy.faulty()));
            let mut volume = Volume::new(policy);
            let slices = written(&volume, &lengths).await;
            quiet(&mut volume).await;
            let mut fates = fates.iter().copied().cycle();
            for step in 0..f {
                let memory = &volume.memories[(first + step) % n];
                memory.objects.lock().unwrap().retain(|_, body| {
                    let fate = fates.next().unwrap();
                    let mut bytes = body.to_vec();
                    damage(fate, &mut bytes);
                    *body = bytes.into();
                    fate != 4
                });
            }
            let report = scrub(&volume, ScrubDepth::Full).await;
            assert_eq!((report.lacking, report.lost), (0, 0), "{report:?}");
            assert_eq!(report.withdrawn, report.restored, "{report:?}");
            let again = scrub(&volume, ScrubDepth::Full).await;
            assert_eq!((again.found(), again.withdrawn), (0, 0), "{again:?}");
            assert_eq!(again.good(), (n * lengths.len()) as u64);
            assert!(rows(&volume).iter().all(|(_, whole)| *whole));
            for step in 0..f {
                lose(&volume, (first + f + step) % n);
            }
            volume.restart();
            assert_reads(&volume, &slices).await;
        });
    }
}
