//! Sequential reading: data is prefetched, also if the servers return a file's extents in several
//! pages; and it was put on the clouds in that order.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

use crate::common::{MemorySlices, TestVolume, new_file};
use async_trait::async_trait;
use bytes::Bytes;
use quorumfs_gateway::metadata::{AllocatedId, MetadataClient, MountMode, Takeover};
use quorumfs_gateway::vfs::{
    FileSystem, OpenMode, SliceStore, StoredSlice, VfsError, VfsOptions, WrittenSlice,
};
use quorumfs_metadata::identity::ObjectId;
use quorumfs_metadata::limits::EXTENT_PAGE_MAX;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// Slices on distant clouds, the turns in which they were written, and how many reads of them are
/// in flight.
struct FarSlices(Arc<MemorySlices>, Mutex<Vec<u32>>, AtomicUsize);

/// One read, until it is answered or cancelled.
struct UnderWay<'a>(&'a AtomicUsize);

impl<'a> UnderWay<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

const FAR: Duration = Duration::from_millis(50);

#[async_trait]
impl SliceStore for FarSlices {
    async fn write(&self, id: &AllocatedId, plain: Bytes) -> Result<WrittenSlice, VfsError> {
        self.1.lock().unwrap().push(id.turn());
        self.0.write(id, plain).await
    }

    async fn read(&self, stored: &StoredSlice, range: Range<u32>) -> Result<Bytes, VfsError> {
        let _under_way = UnderWay::begin(&self.2);
        tokio::time::sleep(FAR).await;
        self.0.read(stored, range).await
    }

    fn committed(&self, object: ObjectId) {
        self.0.committed(object);
    }

    fn abandoned(&self, object: ObjectId) {
        self.0.abandoned(object);
    }
}

async fn mount(world: &TestVolume) -> (FileSystem, Arc<FarSlices>) {
    let own = world.volume.own_credentials();
    let client = Arc::new(MetadataClient::new(Arc::new(world.session()), own));
    client
        .mount(Takeover::OfAny, MountMode::Exclusive)
        .await
        .unwrap();
    let slices = Arc::new(FarSlices(
        world.slices.clone(),
        Mutex::default(),
        AtomicUsize::new(0),
    ));
    // Capacity for all pieces, which count as much as whole chunks.
    let options = VfsOptions {
        cache_bytes: 1 << 30,
        readahead_bytes_max: 8 << 20,
        ..VfsOptions::default()
    };
    let fs = FileSystem::new(world.volume.clone(), client, slices.clone(), options);
    (fs, slices)
}

#[tokio::test(start_paused = true)]
async fn prefetch_has_no_gap_where_the_next_page_of_a_file_is_queried() {
    const PIECE: u64 = 64 << 10;
    let pieces = u64::from(EXTENT_PAGE_MAX) * 5 / 2;
    let world = TestVolume::new();
    let (fs, _) = mount(&world).await;
    let (inode, handle) = new_file(&fs, b"in pieces").await;
    for number in 0..pieces {
        let piece = vec![number as u8; PIECE as usize];
        fs.write(handle, number * PIECE, &piece).await.unwrap();
        fs.fsync(handle).await.unwrap();
    }
    fs.release(handle).await.unwrap();
    fs.shutdown().await.unwrap();

    let (fs, _) = mount(&world).await;
    let root = crate::common::root();
    let opened = fs.open(&root, inode, OpenMode::READ).await.unwrap();
    let (mut begin, mut waits) = (Instant::now(), 0);
    for number in 0..pieces {
        let seen = fs
            .read(opened.handle, number * PIECE, PIECE as u32)
            .await
            .unwrap();
        assert!(seen.iter().all(|byte| *byte == number as u8), "{number}");
        waits += u64::from(begin.elapsed() >= FAR);
        begin = Instant::now();
    }
    // Sixteen at a time are in flight; a gap in the window is waited for piece by piece.
    assert!(
        waits <= pieces / 16 + 16,
        "waited {waits} times in {pieces}"
    );
    fs.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn prefetch_stops_when_its_reader_jumps_or_closes() {
    const BLOCK: u64 = 4 << 20;
    const PIECE: u64 = 128 << 10;
    let world = TestVolume::new();
    let (fs, _) = mount(&world).await;
    let (inode, handle) = new_file(&fs, b"large").await;
    for number in 0..16 {
        let block = vec![number as u8; BLOCK as usize];
        fs.write(handle, number * BLOCK, &block).await.unwrap();
    }
    fs.release(handle).await.unwrap();
    fs.shutdown().await.unwrap();

    let (fs, slices) = mount(&world).await;
    let root = crate::common::root();
    let open = || async { fs.open(&root, inode, OpenMode::READ).await.unwrap().handle };
    let under_way = || async {
        // A cancelled read is dropped when its task is polled.
        tokio::time::sleep(FAR / 50).await;
        slices.2.load(Ordering::Relaxed)
    };
    let read = async |handle, offset: u64| {
        let read = fs.read(handle, offset, PIECE as u32).await.unwrap();
        assert!(read.iter().all(|byte| u64::from(*byte) == offset / BLOCK));
        assert_eq!(read.len() as u64, PIECE);
    };
    // Reads in order until more is in flight than was asked for, of two windows at most.
    let read_on = async |handle, from: u64| {
        let mut offset = from;
        while under_way().await < 2 {
            read(handle, offset).await;
            offset += PIECE;
            assert!(offset < from + 4 * BLOCK, "nothing is fetched ahead");
        }
        offset
    };
    let first = open().await;
    read_on(first, 0).await;
    let jump = read(first, 15 * BLOCK);
    tokio::pin!(jump);
    tokio::select! {
        () = &mut jump => panic!("the clouds are far away"),
        count = under_way() => assert_eq!(count, 1, "more than the read of the jump itself"),
    }
    jump.await;

    // A read that another reader waits for continues.
    let offset = read_on(first, 6 * BLOCK).await;
    let (second, command) = (open().await, offset / BLOCK * BLOCK + BLOCK);
    let waiting = read(second, command);
    tokio::pin!(waiting);
    tokio::select! {
        () = &mut waiting => panic!("it was there already"),
        count = under_way() => assert!(count >= 2, "the second one is to wait for the first"),
    }
    fs.release(first).await.unwrap();
    let fetched = tokio::select! {
        () = &mut waiting => None,
        count = under_way() => Some(count),
    };
    assert_eq!(fetched, Some(1), "more than the second reader asked for");
    waiting.await;
    fs.release(second).await.unwrap();
    fs.shutdown().await.unwrap();
}

#[tokio::test]
async fn blocks_are_consecutive_in_a_file_and_from_one_file_to_the_next() {
    const BLOCK: usize = 4 << 20;
    let world = TestVolume::new();
    let (fs, slices) = mount(&world).await;
    let turns = || -> Vec<u32> {
        let mut turns = std::mem::take(&mut *slices.1.lock().unwrap());
        turns.sort_unstable();
        turns
    };
    let (_, handle) = new_file(&fs, b"large").await;
    fs.write(handle, 0, &vec![1; 4 * BLOCK]).await.unwrap();
    fs.release(handle).await.unwrap();
    let of_one = turns();
    let first = of_one[0];
    assert_eq!(of_one, (first..first + 4).collect::<Vec<_>>());
    // For example, pictures: if all data shards were on the same clouds, two would do all the work.
    for number in 0..8 {
        let name = format!("picture {number}");
        let (_, handle) = new_file(&fs, name.as_bytes()).await;
        fs.write(handle, 0, &vec![2; BLOCK / 2]).await.unwrap();
        fs.release(handle).await.unwrap();
    }
    let mut clouds = [0; 4];
    for turn in turns() {
        clouds[turn as usize % 4] += 1;
    }
    assert_eq!(clouds, [2; 4], "each begins as many");
    fs.shutdown().await.unwrap();
}
