//! The choice of clouds, over links of stated speed and in virtual time: the duration of an
//! operation here is the cost of that choice, on any machine.

use super::harness::{
    MemoryLog, MemoryStore, VOLUME, content, key, object_id, policies, policy, secrets, slice_id,
};
use crate::blocks::{
    BlockConfig, BlockStore, Cloud, Preference, Stored, StoredObject, Timeouts, Workers,
};
use bytes::Bytes;
use futures_util::StreamExt;
use quorumfs_backends::shaped::{Shape, Shaped};
use quorumfs_metadata::identity::CloudIndex;
use quorumfs_metadata::placement::Policy;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

const MIB: usize = 1 << 20;

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// A cloud's latency in milliseconds, and its read price.
type LinkSpec = (u64, u32);

/// Clouds in memory behind links of 40 MiB/s, or of another rate in bytes a second.
struct LinkedClouds {
    policy: Policy,
    prices: Vec<u32>,
    memories: Vec<Arc<MemoryStore>>,
    clouds: Vec<Arc<Shaped>>,
    log: Arc<MemoryLog>,
    blocks: BlockStore,
}

impl LinkedClouds {
    fn new(policy: Policy, preference: Preference, links: &[LinkSpec]) -> Self {
        Self::with_rate(policy, preference, links, 40 << 20)
    }

    fn with_rate(policy: Policy, preference: Preference, links: &[LinkSpec], rate: u64) -> Self {
        let memories: Vec<_> = links
            .iter()
            .map(|_| Arc::new(MemoryStore::default()))
            .collect();
        let shaped = |(memory, (latency, _)): (&Arc<MemoryStore>, &LinkSpec)| {
            let shape = Shape {
                latency: ms(*latency),
                bytes_per_second: Some(rate),
            };
            Arc::new(Shaped::new(Arc::clone(memory) as _, shape))
        };
        let clouds: Vec<_> = memories.iter().zip(links).map(shaped).collect();
        let log = Arc::new(MemoryLog::default());
        let prices: Vec<u32> = links.iter().map(|(_, read_price)| *read_price).collect();
        let blocks = open(policy, preference, &prices, &clouds, &log);
        Self {
            policy,
            prices,
            memories,
            clouds,
            log,
            blocks,
        }
    }

    /// Another process opens the volume with another preference.
    fn reopen(&mut self, preference: Preference) {
        self.blocks.shutdown();
        let (policy, prices) = (self.policy, &self.prices);
        self.blocks = open(policy, preference, prices, &self.clouds, &self.log);
    }

    async fn write(&self, number: u32, plain: &Bytes) -> Stored {
        let key = key(number);
        let (object, slice) = (object_id(number), slice_id(number));
        let written = self.blocks.write(object, slice, &key, plain.clone()).await;
        let stored = written.unwrap();
        let rows = &self.log.rows;
        rows.lock().unwrap().insert(object, stored.object.clone());
        self.blocks.committed(object);
        stored
    }

    async fn read(&self, number: u32, stored: &Stored, range: Range<u32>) -> Bytes {
        let object = StoredObject::of_new(&self.log.row(object_id(number))).unwrap();
        let read = self
            .blocks
            .read(&object, &stored.slice, &key(number), range)
            .await;
        read.unwrap()
    }

    /// Writes so many blocks, some at a time, and waits for the background puts.
    async fn filled(&self, blocks: u32, length: usize) -> Vec<Stored> {
        let written = futures_util::stream::iter(0..blocks)
            .map(|number| async move { self.write(number, &content(number.into(), length)).await })
            .buffered(4)
            .collect()
            .await;
        self.drain().await;
        written
    }

    async fn drain(&self) {
        let drained = self.blocks.drain(Duration::from_secs(600)).await;
        assert!(drained.is_complete(), "{drained:?}");
    }

    /// Reads all of the blocks, some at a time; returns the time that it took.
    async fn read_all(&self, stored: &[Stored], at_a_time: usize) -> Duration {
        let begin = Instant::now();
        futures_util::stream::iter((0..).zip(stored))
            .map(|(number, stored)| async move {
                let length = stored.slice.length;
                let found = self.read(number, stored, 0..length).await;
                assert!(found == content(number.into(), length as usize), "{number}");
            })
            .buffered(at_a_time)
            .collect::<Vec<()>>()
            .await;
        begin.elapsed()
    }

    fn gets(&self) -> Vec<u64> {
        let gets = |memory: &Arc<MemoryStore>| memory.gets.load(Ordering::Relaxed);
        self.memories.iter().map(gets).collect()
    }

    fn objects(&self) -> Vec<usize> {
        let held = |memory: &Arc<MemoryStore>| memory.objects.lock().unwrap().len();
        self.memories.iter().map(held).collect()
    }
}

fn open(
    policy: Policy,
    preference: Preference,
    prices: &[u32],
    clouds: &[Arc<Shaped>],
    log: &Arc<MemoryLog>,
) -> BlockStore {
    let numbered = clouds.iter().zip(secrets(policy.clouds())).zip(prices);
    let known: Vec<_> = numbered
        .zip(0..)
        .map(|(((store, secret), read_price), index)| Cloud {
            index: CloudIndex(index),
            store: Arc::clone(store) as _,
            secret,
            read_price: *read_price,
        })
        .collect();
    let config = BlockConfig {
        preference,
        workers: Workers::Inline,
        timeouts: Timeouts::default(),
        rebuilt_bytes_max: 0,
        ..BlockConfig::new(VOLUME, policy)
    };
    BlockStore::open(config, &known, Arc::clone(log) as _).unwrap()
}

/// As fast as the benchmark's: 20, 30, 40 and 200 ms.
const USUAL: [LinkSpec; 4] = [(20, 0), (30, 0), (40, 0), (200, 0)];

#[tokio::test(start_paused = true)]
async fn cheap_reads_ask_the_cheapest_clouds_and_no_others() {
    let links = [(20, 90), (30, 0), (40, 80), (200, 10)];
    let place = LinkedClouds::new(policy(4, 1, 2), Preference::Cheap, &links);
    let stored = place.filled(12, MIB).await;
    place.read_all(&stored, 1).await;
    let gets = place.gets();
    assert!(gets[1] >= 12 && gets[3] >= 12, "{gets:?}");
    assert_eq!((gets[0], gets[2]), (0, 0), "{gets:?}");
}

#[tokio::test(start_paused = true)]
async fn objects_written_regardless_of_prices_are_read_cheaply_too() {
    let links = [(20, 90), (30, 0), (40, 80), (200, 10)];
    let mut place = LinkedClouds::new(policy(4, 1, 2), Preference::Fast, &links);
    let stored = place.filled(12, MIB).await;
    place.reopen(Preference::Cheap);
    place.read_all(&stored, 1).await;
    let gets = place.gets();
    assert_eq!((gets[0], gets[2]), (0, 0), "{gets:?}");
}

#[tokio::test(start_paused = true)]
async fn cheap_clouds_are_not_waited_for_without_end() {
    let links = [(20, 90), (30, 0), (40, 80), (50, 10)];
    let place = LinkedClouds::new(policy(4, 1, 2), Preference::Cheap, &links);
    let stored = place.filled(12, MIB).await;
    place.read_all(&stored, 1).await;
    place.clouds[1].set_hanging(true);
    for number in 0..12 {
        let begin = Instant::now();
        let length = stored[number as usize].slice.length;
        place
            .read(number, &stored[number as usize], 0..length)
            .await;
        // The hedge at twice the usual time, then one from the rest.
        let usual = ms(50) + ms(1000 / 80);
        assert!(begin.elapsed() < usual * 4, "{:?}", begin.elapsed());
    }
    let suspended = place.blocks.status().clouds[1].suspended;
    assert!(suspended, "three overdue requests are enough");
}

#[tokio::test(start_paused = true)]
async fn a_cheap_write_asks_no_more_than_it_needs_and_spills_when_one_is_late() {
    let links = [(20, 0), (30, 0), (40, 0), (50, 0)];
    let three = Policy::new(4, 1, 2, 3).unwrap();
    let place = LinkedClouds::new(three, Preference::Cheap, &links);
    place.filled(16, MIB).await;
    assert_eq!(place.objects().iter().sum::<usize>(), 16 * 3, "t of each");
    // Each of the three clouds that usually take part is late in turn.
    for late in 0..3 {
        place.clouds[late].set_hanging(true);
        let number = 100 + late as u32;
        let begin = Instant::now();
        place.write(number, &content(number.into(), MIB)).await;
        assert!(begin.elapsed() < ms(400), "{late}: {:?}", begin.elapsed());
        place.clouds[late].set_hanging(false);
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    assert!(place.blocks.status().counters.puts_spilled > 0);
}

#[tokio::test(start_paused = true)]
async fn a_write_takes_as_long_as_the_wth_fastest_cloud() {
    for policy in policies() {
        for preference in [Preference::Fast, Preference::Cheap] {
            let links: Vec<LinkSpec> = (1..=u64::from(policy.clouds()))
                .map(|number| (20 * number, 0))
                .collect();
            let place = LinkedClouds::new(policy, preference, &links);
            for number in 0..24 {
                place.write(number, &content(number.into(), MIB)).await;
                place.drain().await;
            }
            // Where not all clouds are to keep each object, `fast` uses all of them in turn.
            let some = policy.target() < policy.clouds() && preference == Preference::Fast;
            let last = if some {
                policy.clouds()
            } else {
                policy.write_quorum()
            };
            let shard = Duration::from_secs_f64(1.0 / 40.0 / f64::from(policy.data()));
            let stated = ms(20 * u64::from(last)) + shard;
            let begin = Instant::now();
            place.write(99, &content(99, MIB)).await;
            let taken = begin.elapsed();
            assert!(
                taken <= stated.mul_f64(1.1),
                "{policy:?} {preference}: {taken:?}, stated {stated:?}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn fast_reads_use_the_bandwidth_of_all_clouds_and_cheap_ones_that_of_theirs() {
    for (preference, clouds, least) in [(Preference::Fast, 4, 0.8), (Preference::Cheap, 2, 0.9)] {
        let place = LinkedClouds::new(policy(4, 1, 2), preference, &USUAL);
        let stored = place.filled(64, 4 * MIB).await;
        // As much prefetching as a mount does; once to learn the latencies.
        place.read_all(&stored, 12).await;
        let taken = place.read_all(&stored, 12).await;
        let rate = 256.0 / taken.as_secs_f64();
        let stated = f64::from(40 * clouds);
        assert!(
            rate >= least * stated,
            "{preference}: {rate:.1} MiB/s of {stated}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn slices_read_in_order_lie_on_all_clouds_in_turn_whatever_their_ids() {
    let place = LinkedClouds::new(policy(4, 1, 2), Preference::Fast, &USUAL);
    for turn in 0..8 {
        // As when four of them leave at a time, and their successors get their ids first.
        let number = turn * 4 % 32;
        let (object, slice) = (object_id(number), slice_id(number));
        let plain = content(number.into(), MIB);
        let written = place
            .blocks
            .write_in_turn(object, slice, &key(number), plain, turn)
            .await
            .unwrap();
        let clouds: Vec<u32> = written
            .object
            .shards
            .iter()
            .map(|s| s.cloud.0.into())
            .collect();
        let expected: Vec<u32> = (turn..turn + 4).map(|cloud| cloud % 4).collect();
        assert_eq!(clouds, expected);
        place.blocks.abandoned(object);
    }
}

#[tokio::test(start_paused = true)]
async fn a_hung_cloud_costs_readers_only_its_own_share() {
    for hung in 0..4 {
        let place = LinkedClouds::new(policy(4, 1, 2), Preference::Fast, &USUAL);
        let stored = place.filled(64, 4 * MIB).await;
        // As much prefetching as a mount does; once to learn the latencies.
        place.read_all(&stored, 12).await;
        place.clouds[hung].set_hanging(true);
        // And once to detect the hung cloud.
        place.read_all(&stored, 12).await;
        let taken = place.read_all(&stored, 12).await;
        let rate = 256.0 / taken.as_secs_f64();
        assert!(rate >= 0.85 * 120.0, "cloud {hung}: {rate:.1} MiB/s of 120");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hung_cloud_costs_a_moment_and_then_nothing() {
    for hung in 0..4 {
        let place = LinkedClouds::new(policy(4, 1, 2), Preference::Fast, &USUAL);
        place.filled(64, MIB).await;
        let rate = async |first: u32| {
            let begin = Instant::now();
            futures_util::stream::iter(first..first + 256)
                .map(|number| {
                    let place = &place;
                    async move { place.write(number, &content(number.into(), MIB)).await }
                })
                .buffered(24)
                .collect::<Vec<_>>()
                .await;
            256.0 / begin.elapsed().as_secs_f64()
        };
        let before = rate(1000).await;
        place.clouds[hung].set_hanging(true);
        let after = rate(2000).await;
        assert!(
            after > 0.9 * before,
            "cloud {hung}: {after:.1} MiB/s after {before:.1}"
        );
        // No write waits for it once it is suspended.
        let begin = Instant::now();
        place.write(9999, &content(9999, MIB)).await;
        let stated = if hung == 3 { ms(40) } else { ms(200) } + ms(1000 / 80);
        assert!(
            begin.elapsed() <= stated.mul_f64(1.1),
            "{:?}",
            begin.elapsed()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_link_that_is_full_is_not_a_cloud_that_hangs() {
    let place = LinkedClouds::with_rate(policy(4, 1, 2), Preference::Fast, &USUAL, 4 << 20);
    // Each of the puts takes half a second, and the last of them four seconds.
    let filling = async {
        let write = |number: u32| {
            let place = &place;
            async move {
                let plain = content(number.into(), 4 * MIB);
                place.write(number, &plain).await
            }
        };
        let all: Vec<_> = (0..8).map(write).collect();
        futures_util::future::join_all(all).await;
        place.drain().await;
    };
    let watching = async {
        loop {
            tokio::time::sleep(ms(100)).await;
            let clouds = place.blocks.status().clouds;
            let suspended = clouds.iter().filter(|cloud| cloud.suspended).count();
            assert_eq!(suspended, 0);
        }
    };
    let begin = Instant::now();
    tokio::select! {
        biased;
        () = filling => {}
        () = watching => {}
    }
    assert!(
        begin.elapsed() > 2 * Timeouts::default().suspect,
        "it was full"
    );
}

#[tokio::test(start_paused = true)]
async fn a_cloud_that_hung_is_used_again_when_it_answers() {
    let place = LinkedClouds::new(policy(4, 1, 2), Preference::Fast, &USUAL);
    place.filled(8, MIB).await;
    place.clouds[0].set_hanging(true);
    for number in 100..108 {
        place.write(number, &content(number.into(), MIB)).await;
    }
    // Its requests have to time out first.
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert!(place.blocks.status().clouds[0].suspended);
    place.clouds[0].set_hanging(false);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!place.blocks.status().clouds[0].suspended);
    place.drain().await;
    assert_eq!(place.objects(), vec![16; 4], "missed shards were completed");
}

#[tokio::test(start_paused = true)]
async fn small_reads_use_the_data_shards_and_large_ones_the_fast_clouds() {
    // The data shards of every fourth object lie on the slow cloud.
    let links = [(20, 0), (20, 0), (20, 0), (600, 0)];
    let place = LinkedClouds::new(policy(4, 1, 2), Preference::Fast, &links);
    let stored = place.filled(16, MIB).await;
    place.read_all(&stored, 1).await;
    let before = place.gets();
    place.read_all(&stored, 1).await;
    let after = place.gets();
    assert_eq!(after[3] - before[3], 0, "the whole is rebuilt elsewhere");
    let (mut bytes, gets) = (0, |place: &LinkedClouds| -> u64 {
        let got = |memory: &Arc<MemoryStore>| memory.bytes_got.load(Ordering::Relaxed);
        place.memories.iter().map(got).sum()
    });
    for (number, stored) in (0..).zip(&stored) {
        let begin = gets(&place);
        place.read(number, stored, 0..4096).await;
        bytes = bytes.max(gets(&place) - begin);
    }
    assert!(
        bytes < 256 << 10,
        "a segment is not worth a whole object: {bytes} bytes"
    );
}
