//! Reading in order: what comes next is there before it is asked for, also where the servers tell
//! of a file in several answers.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

mod common;

use async_trait::async_trait;
use bytes::Bytes;
use common::{MemorySlices, World, new_file};
use quorumfs_gateway::metadata::{AllocatedId, MetadataClient};
use quorumfs_gateway::vfs::{
    FileSystem, OpenMode, SliceStore, StoredSlice, VfsError, VfsOptions, WrittenSlice,
};
use quorumfs_metadata::identity::ObjectId;
use quorumfs_metadata::limits::EXTENT_PAGE_MAX;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Slices on clouds that are far away.
struct FarSlices(Arc<MemorySlices>);

const FAR: Duration = Duration::from_millis(50);

#[async_trait]
impl SliceStore for FarSlices {
    async fn write(&self, id: &AllocatedId, plain: Bytes) -> Result<WrittenSlice, VfsError> {
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

async fn mount(world: &World) -> FileSystem {
    let own = world.volume.own_credentials();
    let client = Arc::new(MetadataClient::new(Arc::new(world.session()), own));
    client.mount(true).await.unwrap();
    let slices = Arc::new(FarSlices(world.slices.clone()));
    // Room for as many pieces as there are, which count as much as whole chunks.
    let options = VfsOptions {
        cache_bytes: 1 << 30,
        readahead_bytes_max: 8 << 20,
        ..VfsOptions::default()
    };
    FileSystem::new(world.volume.clone(), client, slices, options)
}

#[tokio::test(start_paused = true)]
async fn nothing_is_left_out_where_the_next_page_of_a_file_has_to_be_asked_for() {
    const PIECE: u64 = 64 << 10;
    let pieces = u64::from(EXTENT_PAGE_MAX) * 5 / 2;
    let world = World::new();
    let fs = mount(&world).await;
    let (inode, handle) = new_file(&fs, b"in pieces").await;
    for number in 0..pieces {
        let piece = vec![number as u8; PIECE as usize];
        fs.write(handle, number * PIECE, &piece).await.unwrap();
        fs.fsync(handle).await.unwrap();
    }
    fs.release(handle).await.unwrap();
    fs.shutdown().await.unwrap();

    let fs = mount(&world).await;
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
