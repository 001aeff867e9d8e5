//! Reading in order: what comes next is there before it is asked for, also where the servers tell
//! of a file in several answers; and it was laid on the clouds in that order.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

mod common;

use async_trait::async_trait;
use bytes::Bytes;
use common::{MemorySlices, World, new_file};
use quorumfs_gateway::metadata::{AllocatedId, MetadataClient, Takeover};
use quorumfs_gateway::vfs::{
    FileSystem, OpenMode, SliceStore, StoredSlice, VfsError, VfsOptions, WrittenSlice,
};
use quorumfs_metadata::identity::ObjectId;
use quorumfs_metadata::limits::EXTENT_PAGE_MAX;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// Slices on clouds that are far away, and the turns in which they were written.
struct FarSlices(Arc<MemorySlices>, Mutex<Vec<u32>>);

const FAR: Duration = Duration::from_millis(50);

#[async_trait]
impl SliceStore for FarSlices {
    async fn write(&self, id: &AllocatedId, plain: Bytes) -> Result<WrittenSlice, VfsError> {
        self.1.lock().unwrap().push(id.turn());
        self.0.write(id, plain).await
    }

    async fn read(&self, stored: &StoredSlice, range: Range<u32>) -> Result<Bytes, VfsError> {
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

async fn mount(world: &World) -> (FileSystem, Arc<FarSlices>) {
    let own = world.volume.own_credentials();
    let client = Arc::new(MetadataClient::new(Arc::new(world.session()), own));
    client.mount(Takeover::OfAny).await.unwrap();
    let slices = Arc::new(FarSlices(world.slices.clone(), Mutex::default()));
    // Room for as many pieces as there are, which count as much as whole chunks.
    let options = VfsOptions {
        cache_bytes: 1 << 30,
        readahead_bytes_max: 8 << 20,
        ..VfsOptions::default()
    };
    let fs = FileSystem::new(world.volume.clone(), client, slices.clone(), options);
    (fs, slices)
}

#[tokio::test(start_paused = true)]
async fn nothing_is_left_out_where_the_next_page_of_a_file_has_to_be_asked_for() {
    const PIECE: u64 = 64 << 10;
    let pieces = u64::from(EXTENT_PAGE_MAX) * 5 / 2;
    let world = World::new();
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
    let root = common::root();
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
    // Sixteen at a time are on their way; a window that was left out is waited for one by one.
    assert!(
        waits <= pieces / 16 + 16,
        "waited {waits} times in {pieces}"
    );
    fs.shutdown().await.unwrap();
}

#[tokio::test]
async fn blocks_follow_each_other_in_a_file_and_from_one_file_to_the_next() {
    const BLOCK: usize = 4 << 20;
    let world = World::new();
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
    // Pictures, say: data shards of which all were on the same clouds would make two do all the
    // work.
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
