//! A cloud is replaced while everything is in use: dead, lying, slow or well.

use super::harness::{
    MemoryStore, PATIENCE, Volume, attached, content, object_id, policies, policy,
};
use crate::blocks::{Drainage, Draining, ScrubConfig, ScrubDepth, SealedSlice};
use bytes::Bytes;
use quorumfs_backends::StoreErrorKind as Kind;
use quorumfs_backends::faulty::{Fault, Faulty, Plan};
use quorumfs_metadata::identity::CloudIndex;
use quorumfs_metadata::row;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const OBJECTS: u32 = 100;
const LENGTH: usize = 70_000;
/// As fast as it goes.
const FAST: Draining = Draining {
    every: Duration::from_millis(50),
    bytes_per_second: None,
};

impl Volume {
    /// A new cloud takes the place of an active one, or one that was replaced before does.
    pub(super) fn replace(&mut self, old: u8, new: u8) {
        while self.clouds.len() <= usize::from(new) {
            let memory = Arc::new(MemoryStore::default());
            self.memories.push(Arc::clone(&memory));
            let seed = self.clouds.len() as u64;
            let faulty = Faulty::new(memory, Plan::honest(), seed);
            self.clouds.push(Arc::new(faulty));
        }
        let (old, new) = (CloudIndex(old), CloudIndex(new));
        let fleet = &mut self.fleet;
        fleet.retired = self.log.retired.lock().unwrap().iter().copied().collect();
        for cloud in &mut fleet.active {
            *cloud = if *cloud == old { new } else { *cloud };
        }
        fleet.former.retain(|cloud| *cloud != new);
        fleet.retired.retain(|cloud| *cloud != new);
        self.log.retired.lock().unwrap().remove(&new);
        fleet.former.push(old);
        fleet.changes += 1;
        *self.log.drain.lock().unwrap() = row::Drain::default();
        let clouds = attached(&self.clouds);
        self.blocks.learn_clouds(&clouds, fleet.clone()).unwrap();
    }
}

type Written = Vec<(Bytes, SealedSlice)>;

async fn written(volume: &Volume, numbers: std::ops::Range<u32>) -> Written {
    let mut slices = Vec::new();
    for number in numbers {
        let plain = content(number.into(), LENGTH);
        let stored = volume.write(number, &plain).await.unwrap();
        slices.push((plain, stored.slice));
    }
    slices
}

async fn assert_reads(volume: &Volume, written: &Written) {
    for (number, (plain, slice)) in (0_u32..).zip(written) {
        let found = volume.read(number, slice, 0..plain.len() as u32).await;
        assert!(found.unwrap() == plain, "object {number}");
    }
}

/// The objects that have a shard on a cloud.
fn named(volume: &Volume, cloud: u8) -> usize {
    let rows = volume.log.rows.lock().unwrap();
    let names = |row: &&_| -> bool {
        let row: &quorumfs_metadata::operation::NewObject = row;
        row.shards.iter().any(|it| it.cloud == CloudIndex(cloud))
    };
    rows.values().filter(names).count()
}

fn gets(volume: &Volume) -> u64 {
    let count = |memory: &Arc<MemoryStore>| memory.gets.load(Ordering::Relaxed);
    volume.memories.iter().map(count).sum()
}

/// Drains; returns the result, with the number of whole gets.
pub(super) async fn drained(volume: &Volume) -> (Drainage, u64) {
    let before = gets(volume);
    let drainage = volume.blocks.drain_clouds(&FAST).await.unwrap();
    (drainage, gets(volume) - before)
}

async fn assert_clean(volume: &Volume) {
    let full = ScrubConfig {
        depth: ScrubDepth::Full,
        ..ScrubConfig::default()
    };
    let report = volume.blocks.scrub(&full, None).await.unwrap();
    assert_eq!((report.found(), report.unreachable()), (0, 0), "{report:?}");
    assert_eq!((report.lacking, report.lost), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_cloud_that_is_well_gives_its_shards_for_one_read_each() {
    for policy in policies() {
        let mut volume = Volume::new(policy);
        let n = policy.clouds();
        let slices = written(&volume, 0..OBJECTS).await;
        volume.drain().await;
        let (before, kept) = (named(&volume, 0), u64::from(OBJECTS));
        volume.replace(0, n);
        let (drainage, reads) = drained(&volume).await;
        assert!(drainage.finished, "{drainage:?}");
        assert_eq!(drainage.shards_moved, before as u64);
        assert!(reads <= kept, "{reads} reads");
        assert_eq!((named(&volume, 0), named(&volume, n)), (0, before));
        // The shards on the old cloud are not needed any more.
        volume.memories[0].objects.lock().unwrap().clear();
        assert_reads(&volume, &slices).await;
        assert_clean(&volume).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_or_lying_cloud_costs_k_reads_an_object_and_five_per_cent() {
    let dead = Plan::always(Fault::Refuse(Kind::Unavailable));
    for plan in [
        dead,
        Plan::always(Fault::Hang),
        Plan::always(Fault::FlipBit),
        Plan::always(Fault::Zeros),
        Plan::always(Fault::WrongObject),
        Plan::always(Fault::Stale),
    ] {
        let mut volume = Volume::new(policy(4, 1, 2));
        let slices = written(&volume, 0..OBJECTS).await;
        volume.drain().await;
        volume.plan(1, plan.clone());
        volume.replace(1, 4);
        let (drainage, reads) = drained(&volume).await;
        assert!(drainage.finished, "{plan:?} {drainage:?}");
        assert_eq!(drainage.objects, u64::from(OBJECTS));
        let most = u64::from(OBJECTS) * 2 * 105 / 100;
        assert!(reads <= most, "{plan:?}: {reads} reads");
        assert_eq!(named(&volume, 1), 0);
        assert_reads(&volume, &slices).await;
        assert_clean(&volume).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_cloud_is_not_waited_for_longer_than_a_few_others() {
    let mut volume = Volume::new(policy(4, 1, 2));
    let slices = written(&volume, 0..OBJECTS).await;
    volume.drain().await;
    volume.plan(2, Plan::always(Fault::Delay(1500)));
    volume.replace(2, 4);
    let begin = tokio::time::Instant::now();
    let (drainage, reads) = drained(&volume).await;
    assert!(drainage.finished, "{drainage:?}");
    assert!(
        begin.elapsed() < Duration::from_secs(10),
        "{:?}",
        begin.elapsed()
    );
    assert!(reads <= u64::from(OBJECTS) * 2 * 105 / 100, "{reads} reads");
    assert_reads(&volume, &slices).await;
}

#[tokio::test(start_paused = true)]
async fn new_objects_go_to_the_new_cloud_at_once_and_reads_go_on() {
    let mut volume = Volume::new(policy(4, 1, 2));
    let mut slices = written(&volume, 0..10).await;
    volume.drain().await;
    volume.plan(3, Plan::always(Fault::Refuse(Kind::Unavailable)));
    volume.replace(3, 4);
    slices.extend(written(&volume, 10..20).await);
    volume.drain().await;
    assert_eq!(named(&volume, 4), 10, "the new ones");
    assert_reads(&volume, &slices).await;
    let (drainage, _) = drained(&volume).await;
    assert!(drainage.finished);
    assert_eq!(named(&volume, 3), 0);
    assert_reads(&volume, &slices).await;
    assert_clean(&volume).await;
}

#[tokio::test(start_paused = true)]
async fn a_round_that_is_cut_short_goes_on_in_another_process_and_reads_nothing_twice() {
    let mut volume = Volume::new(policy(4, 1, 2));
    let slices = written(&volume, 0..600).await;
    volume.drain().await;
    volume.plan(0, Plan::always(Fault::Refuse(Kind::Unavailable)));
    volume.replace(0, 4);
    let before = gets(&volume);
    *volume.log.moves_left.lock().unwrap() = Some(3);
    let cut = volume.blocks.drain_clouds(&FAST).await;
    assert!(cut.is_err(), "{cut:?}");
    let position = volume.log.drain.lock().unwrap().after;
    assert_eq!(position, Some(object_id(255)), "a whole page");
    *volume.log.moves_left.lock().unwrap() = None;
    volume.restart();
    let (drainage, _) = drained(&volume).await;
    assert!(drainage.finished, "{drainage:?}");
    assert_eq!(drainage.shards_moved, 600);
    // What was put and not ordered is read back once from the new cloud.
    let unordered = 600 - 384;
    let reads = gets(&volume) - before;
    assert!(reads <= 600 * 2 + 3 * unordered, "{reads} reads");
    assert_reads(&volume, &slices).await;
    assert_clean(&volume).await;
}

#[tokio::test(start_paused = true)]
async fn replaced_twice_in_a_row_and_back_again_every_object_follows() {
    let mut volume = Volume::new(policy(4, 1, 2));
    let slices = written(&volume, 0..40).await;
    volume.drain().await;
    volume.replace(0, 4);
    // The second replacement begins in the middle of the first.
    *volume.log.moves_left.lock().unwrap() = Some(0);
    assert!(volume.blocks.drain_clouds(&FAST).await.is_err());
    *volume.log.moves_left.lock().unwrap() = None;
    volume.replace(4, 5);
    volume.replace(1, 4);
    let (drainage, _) = drained(&volume).await;
    assert!(drainage.finished, "{drainage:?}");
    for (cloud, objects) in [(0, 0), (1, 0), (2, 40), (3, 40), (4, 40), (5, 40)] {
        assert_eq!(named(&volume, cloud), objects, "cloud {cloud}");
    }
    volume.replace(5, 0);
    volume.replace(4, 1);
    let (drainage, _) = drained(&volume).await;
    assert!(drainage.finished, "{drainage:?}");
    let row = volume.log.row(object_id(7));
    assert!(row.shards.iter().all(|shard| shard.coded_for.is_none()));
    assert_reads(&volume, &slices).await;
    assert_clean(&volume).await;
}

#[tokio::test(start_paused = true)]
async fn what_the_new_cloud_does_not_take_moves_once_it_does() {
    let mut volume = Volume::new(policy(4, 1, 2));
    let slices = written(&volume, 0..10).await;
    volume.drain().await;
    volume.replace(0, 4);
    volume.plan(4, Plan::always(Fault::Refuse(Kind::Unavailable)));
    let (drainage, _) = drained(&volume).await;
    assert!(!drainage.finished);
    assert_eq!((drainage.shards_stuck, named(&volume, 0)), (10, 10));
    assert_reads(&volume, &slices).await;
    volume.heal();
    tokio::time::sleep(PATIENCE).await;
    let (drainage, _) = drained(&volume).await;
    assert!(drainage.finished, "{drainage:?}");
    assert_reads(&volume, &slices).await;
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_was_awaited_on_a_dead_cloud_is_completed_on_its_successor() {
    let mut volume = Volume::new(policy(4, 1, 2));
    volume.plan(3, Plan::always(Fault::Refuse(Kind::Unavailable)));
    let slices = written(&volume, 0..10).await;
    volume.replace(3, 4);
    volume.drain().await;
    assert_eq!((named(&volume, 3), named(&volume, 4)), (0, 10));
    assert_reads(&volume, &slices).await;
    assert_clean(&volume).await;
}

#[tokio::test(start_paused = true)]
async fn a_bad_shard_on_a_replaced_cloud_is_written_to_its_successor() {
    let mut volume = Volume::new(policy(4, 1, 2));
    let slices = written(&volume, 0..4).await;
    volume.drain().await;
    volume.memories[0].alter(|body| body.fill(0));
    volume.replace(0, 4);
    assert_reads(&volume, &slices).await;
    volume.drain().await;
    assert!(named(&volume, 4) > 0, "the shards that were read");
    // A scrub finds the others.
    let report = volume.blocks.scrub(&ScrubConfig::default(), None).await;
    report.unwrap();
    let (drainage, _) = drained(&volume).await;
    assert!(drainage.finished, "{drainage:?}");
    assert_eq!(named(&volume, 4), 4);
    assert_clean(&volume).await;
}

#[tokio::test(start_paused = true)]
async fn a_cloud_with_a_share_of_the_newest_key_is_not_retired() {
    let mut volume = Volume::new(policy(4, 1, 2));
    let _slices = written(&volume, 0..4).await;
    volume.drain().await;
    volume.log.holding.lock().unwrap().insert(CloudIndex(0));
    volume.replace(0, 4);
    let (drainage, _) = drained(&volume).await;
    assert_eq!(named(&volume, 0), 0);
    assert_eq!(drainage.holding, [CloudIndex(0)]);
    assert!(!drainage.finished);
    volume.log.holding.lock().unwrap().clear();
    let (drainage, reads) = drained(&volume).await;
    assert!(drainage.finished && reads == 0, "{drainage:?}");
}
