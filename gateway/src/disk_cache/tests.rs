//! The cache over a disk that tears, forgets, flips, swaps, fills up and fails, by seeds; and over
//! a real directory that is searched.

mod disk;

use super::cache::{DiskCache, DiskCacheOptions, FoundChunks};
use super::index::{CACHE_BYTES_MIN, ChunkKey, Index, Limits, TAG_BYTES};
use super::place::SegmentPlace;
use super::writer::{SegmentWriter, SharedIndex};
use crate::keys::Secret;
use crate::slices::CHUNK_BYTES;
use bytes::Bytes;
use disk::{MemoryDisk, Random};
use quorumfs_metadata::identity::{AllocationId, SliceId};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const LIMITS: Limits = Limits {
    bytes_max: 64 << 10,
    segment_bytes: 8 << 10,
    records: 16,
    entries_max: 96,
};

fn slice(counter: u32) -> SliceId {
    let allocation = AllocationId(9);
    SliceId {
        allocation,
        counter,
    }
}

/// The content of a chunk follows from its key.
fn content(number: u32) -> (ChunkKey, Vec<u8>) {
    let mut bytes = vec![0; 1 + number as usize * 7919 % 1500];
    let mut hasher = blake3::Hasher::new();
    hasher.update(&number.to_be_bytes());
    hasher.finalize_xof().fill(&mut bytes);
    (ChunkKey::new(slice(number / 3), number % 3), bytes)
}

struct Cache {
    shared: Arc<SharedIndex>,
    writer: SegmentWriter,
}

impl Cache {
    fn start(disk: &MemoryDisk, limits: Limits, free_floor: u64) -> Self {
        let shared = SharedIndex::new(Index::new(limits));
        let key = Secret::from_bytes([3; 32]);
        let place: Box<dyn SegmentPlace> = Box::new(disk.clone());
        let writer = SegmentWriter::start(shared.clone(), place, key, free_floor).unwrap();
        Self { shared, writer }
    }

    fn put(&mut self, number: u32) {
        let (key, bytes) = content(number);
        self.writer.put(key, &bytes);
    }

    /// Whether a chunk is present; its bytes are those that were put.
    fn has(&self, number: u32) -> bool {
        let (key, bytes) = content(number);
        let mut found = vec![0; bytes.len() + TAG_BYTES as usize];
        let is_there = self.shared.read(key, &mut found);
        if is_there {
            let found = &found[..bytes.len()];
            assert_eq!(found, &bytes[..], "another chunk's bytes for {number}");
        }
        is_there
    }

    fn is_within_bounds(&self, disk: &MemoryDisk, limits: Limits) {
        let (on_disk, index) = (disk.bytes(), self.shared.index());
        assert!(on_disk <= limits.bytes_max, "{on_disk} bytes on disk");
        assert!(index.bytes() <= limits.bytes_max && index.bytes() >= on_disk);
        assert!(index.chunks() <= limits.entries_max);
    }
}

#[test]
fn whatever_the_disk_does_a_chunk_is_right_or_absent_and_the_bounds_hold() {
    let (mut hits, mut restarts, mut given_up) = (0_u64, 0_u64, 0_u64);
    for seed in 0..400 {
        let (mut random, disk) = (Random::new(seed), MemoryDisk::default());
        let mut cache = Cache::start(&disk, LIMITS, 0);
        for _ in 0..400 {
            match random.below(100) {
                0..50 => {
                    let number = random.below(300);
                    // A chunk that does not open any more is put again.
                    cache.has(number);
                    cache.put(number);
                    if cache.shared.problem().is_none() {
                        assert!(
                            cache.has(number),
                            "seed {seed}: a chunk is present after its put"
                        );
                    }
                }
                50..90 => hits += u64::from(cache.has(random.below(300))),
                90..94 => {
                    cache.writer.learn_one();
                }
                94..96 => disk.fail_after(u64::from(random.below(4000))),
                _ => {
                    given_up += u64::from(cache.shared.problem().is_some());
                    disk.restart();
                    for _ in 0..random.below(4) {
                        disk.damage(&mut random);
                    }
                    cache = Cache::start(&disk, LIMITS, 0);
                    restarts += 1;
                }
            }
            if cache.shared.problem().is_none() {
                cache.is_within_bounds(&disk, LIMITS);
            }
        }
    }
    // The test proves nothing if the cache never hits.
    assert!(hits > 1_000 && restarts > 1_000 && given_up > 100);
}

#[test]
fn an_append_that_ends_anywhere_costs_that_chunk_alone() {
    let mut lost = 0;
    for cut in 0..2_000 {
        let disk = MemoryDisk::default();
        let mut cache = Cache::start(&disk, LIMITS, 0);
        for number in 0..3 {
            cache.put(number);
        }
        disk.fail_after(cut);
        cache.put(5);
        disk.restart();
        let mut cache = Cache::start(&disk, LIMITS, 0);
        assert!(!cache.has(0), "nothing is known before the table was read");
        while cache.writer.learn_one() {}
        for number in 0..3 {
            assert!(cache.has(number), "cut after {cut} bytes");
        }
        lost += u32::from(!cache.has(5));
        cache.put(6);
        assert!(cache.has(6), "and it goes on");
    }
    assert!((1..2_000).contains(&lost), "{lost}");
}

#[test]
fn chunks_that_are_read_repeatedly_stay_and_others_are_evicted() {
    let disk = MemoryDisk::default();
    let mut cache = Cache::start(&disk, LIMITS, 0);
    for number in 0..2_000 {
        cache.put(number);
        if number > 1 {
            assert!(cache.has(1), "after {number}");
        }
    }
    assert!(!cache.has(0) && cache.has(1_999));
    let kept = (0..2_000).filter(|number| cache.has(*number)).count();
    assert!(kept > 30, "{kept} chunks in {} bytes", disk.bytes());
}

#[test]
fn below_the_floor_it_frees_segments_and_takes_nothing_and_above_it_goes_on() {
    let disk = MemoryDisk::default();
    disk.set_size(200_000);
    let mut cache = Cache::start(&disk, LIMITS, 100_000);
    for number in 0..40 {
        cache.put(number);
    }
    assert!(cache.has(39) && disk.bytes() > 20_000);
    let before = disk.bytes();
    // Another program fills the disk: a part has to go, then all.
    disk.set_size(before + 100_000 - 5_000);
    cache.put(40);
    assert!(disk.bytes() < before && disk.bytes() > 0 && cache.has(39));
    disk.set_size(100_000);
    cache.put(41);
    assert!(!cache.has(41) && disk.bytes() == 0);
    assert!(cache.shared.problem().is_none());
    disk.set_size(200_000);
    cache.put(42);
    assert!(cache.has(42));
}

#[test]
fn a_disk_that_fails_a_write_is_not_written_again_and_still_read() {
    let disk = MemoryDisk::default();
    let mut cache = Cache::start(&disk, LIMITS, 0);
    cache.put(1);
    disk.fail_after(100);
    cache.put(2);
    assert!(cache.shared.problem().is_some());
    let before = disk.bytes();
    cache.put(3);
    assert_eq!(disk.bytes(), before);
    assert!(cache.has(1) && !cache.has(2) && !cache.has(3));
}

#[test]
fn segments_under_another_key_are_removed() {
    let disk = MemoryDisk::default();
    let mut cache = Cache::start(&disk, LIMITS, 0);
    cache.put(1);
    let shared = SharedIndex::new(Index::new(LIMITS));
    let other = Secret::from_bytes([4; 32]);
    let mut writer =
        SegmentWriter::start(shared.clone(), Box::new(disk.clone()), other, 0).unwrap();
    assert!(disk.bytes() > 0);
    while writer.learn_one() {}
    assert_eq!((disk.bytes(), shared.index().bytes()), (0, 0));
}

#[test]
fn a_smaller_bound_than_before_holds_from_the_start() {
    let disk = MemoryDisk::default();
    let mut cache = Cache::start(&disk, LIMITS, 0);
    for number in 0..200 {
        cache.put(number);
    }
    let less = Limits {
        bytes_max: LIMITS.bytes_max / 2,
        segment_bytes: LIMITS.segment_bytes / 2,
        entries_max: 40,
        records: 5,
    };
    assert!(disk.bytes() > less.bytes_max);
    let mut cache = Cache::start(&disk, less, 0);
    while cache.writer.learn_one() {
        cache.is_within_bounds(&disk, less);
    }
    cache.put(300);
    cache.is_within_bounds(&disk, less);
    assert!(cache.has(300) && cache.has(199));
}

fn options(path: &Path) -> DiskCacheOptions {
    DiskCacheOptions {
        path: path.to_owned(),
        bytes_max: CACHE_BYTES_MIN,
        free_floor: 0,
        index_bytes_max: 1 << 20,
        queue_bytes_max: 8 << 20,
    }
}

fn key() -> Secret {
    Secret::from_bytes([0xc5; 32])
}

const PLANTED: &[u8] = b"a sentence that was planted in a file";

fn planted() -> Bytes {
    Bytes::from(PLANTED.repeat(20_000))
}

/// Whether any file below holds these bytes.
fn holds(directory: &Path, bytes: &[u8]) -> bool {
    let mut files = std::fs::read_dir(directory).unwrap();
    files.any(|file| {
        let found = std::fs::read(file.unwrap().path()).unwrap();
        found.windows(bytes.len()).any(|window| window == bytes)
    })
}

#[tokio::test]
async fn a_directory_keeps_chunks_over_restarts_and_shows_neither_content_nor_keys() {
    let directory = tempfile::tempdir().unwrap();
    let bytes = planted();
    let length = bytes.len() as u32;
    let chunks = length.div_ceil(CHUNK_BYTES);
    let cache = DiskCache::open(options(directory.path()), key());
    cache.offer(slice(1), 0, &bytes);
    cache.settle().await;
    cache.close().await;
    cache.offer(slice(2), 0, &bytes);

    let cache = DiskCache::open(options(directory.path()), key());
    cache.settle().await;
    let FoundChunks::All(found) = cache.get(slice(1), 0..chunks, length).await else {
        panic!("a chunk is missing");
    };
    assert_eq!(found, bytes);
    let other = parts(cache.get(slice(2), 0..chunks, length).await);
    assert!(other.iter().all(Option::is_none));
    let status = cache.status();
    assert_eq!(
        (status.hits, status.misses, status.damaged, status.problem),
        (u64::from(chunks), u64::from(chunks), 0, None)
    );
    // A slice with another length is another slice.
    let shorter = parts(cache.get(slice(1), 0..chunks, length - 1).await);
    let (last, before) = shorter.split_last().unwrap();
    assert!(last.is_none());
    let before: Vec<Bytes> = before.iter().cloned().map(Option::unwrap).collect();
    assert_eq!(before.concat(), bytes[..before.concat().len()]);

    assert!(!holds(directory.path(), PLANTED));
    assert!(!holds(directory.path(), &key().expose()[..16]));
    // The search finds planted bytes.
    std::fs::write(directory.path().join("plain"), &bytes).unwrap();
    assert!(holds(directory.path(), PLANTED));
}

fn parts(found: FoundChunks) -> Vec<Option<Bytes>> {
    match found {
        FoundChunks::Parts(parts) => parts,
        FoundChunks::All(_) => panic!("chunks that should be missing"),
    }
}

#[tokio::test]
async fn no_call_waits_for_a_disk_that_hangs_and_its_queue_is_bounded() {
    let (release, wait) = std::sync::mpsc::channel::<()>();
    let directory = tempfile::tempdir().unwrap();
    let place = move || {
        let _ = wait.recv();
        Ok(Box::new(MemoryDisk::default()) as Box<dyn SegmentPlace>)
    };
    let cache = DiskCache::over(options(directory.path()), key(), place);
    let bytes = Bytes::from(vec![1; 1 << 20]);
    for number in 0..100 {
        cache.offer(slice(number), 0, &bytes);
    }
    assert_eq!(cache.status().refused, 4 * 92, "eight MiB wait");
    let missed = cache.get(slice(1), 0..4, 1 << 20);
    let missed = tokio::time::timeout(Duration::from_secs(10), missed).await;
    assert!(parts(missed.unwrap()).iter().all(Option::is_none));
    release.send(()).unwrap();
    cache.settle().await;
    assert_eq!(cache.status().chunks, 32);
}

#[tokio::test]
async fn a_directory_that_is_in_use_or_unusable_is_bypassed() {
    let directory = tempfile::tempdir().unwrap();
    let first = DiskCache::open(options(directory.path()), key());
    first.settle().await;
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    for path in [directory.path(), &file] {
        let second = DiskCache::open(options(path), key());
        second.settle().await;
        second.offer(slice(1), 0, &planted());
        let found = second.get(slice(1), 0..1, 10).await;
        assert_eq!(parts(found), [None]);
        assert!(second.status().problem.is_some(), "{path:?}");
        second.close().await;
    }
}
