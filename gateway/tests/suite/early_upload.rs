//! A file that is written faster than it is committed: slices are uploaded early, and reads are
//! right before and after, whatever is overwritten and whichever slices fail.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

use crate::common::{MemorySlices, TestVolume, new_file};
use async_trait::async_trait;
use bytes::Bytes;
use quorumfs_gateway::blocks::BlockErrorKind;
use quorumfs_gateway::metadata::{AllocatedId, MetadataClient, MountMode, Takeover};
use quorumfs_gateway::vfs::{
    FileSystem, HandleId, SliceStore, StoredSlice, VfsError, VfsOptions, WrittenSlice,
};
use quorumfs_metadata::identity::ObjectId;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

/// Slow slices, of which some fail.
struct SlowSlices {
    inner: Arc<MemorySlices>,
    writes: AtomicU32,
    /// Which writes fail, in the order in which they begin.
    failing: &'static [u32],
    under_way: AtomicUsize,
    most: AtomicUsize,
}

#[async_trait]
impl SliceStore for SlowSlices {
    async fn write(&self, id: &AllocatedId, plain: Bytes) -> Result<WrittenSlice, VfsError> {
        let number = self.writes.fetch_add(1, Ordering::Relaxed);
        let now = self.under_way.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(now, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(20 + u64::from(number % 7) * 10)).await;
        self.under_way.fetch_sub(1, Ordering::Relaxed);
        if self.failing.contains(&number) {
            return Err(VfsError::Data {
                kind: BlockErrorKind::Io,
                doing: "a write",
                reason: "set to fail".into(),
            });
        }
        self.inner.write(id, plain).await
    }

    async fn read(&self, stored: &StoredSlice, range: Range<u32>) -> Result<Bytes, VfsError> {
        self.inner.read(stored, range).await
    }

    fn committed(&self, object: ObjectId) {
        self.inner.committed(object);
    }

    fn abandoned(&self, object: ObjectId) {
        self.inner.abandoned(object);
    }
}

const MIB: usize = 1 << 20;

async fn mount(world: &TestVolume, failing: &'static [u32]) -> (FileSystem, Arc<SlowSlices>) {
    let slices = Arc::new(SlowSlices {
        inner: world.slices.clone(),
        writes: AtomicU32::new(0),
        failing,
        under_way: AtomicUsize::new(0),
        most: AtomicUsize::new(0),
    });
    let own = world.volume.own_credentials();
    let client = Arc::new(MetadataClient::new(Arc::new(world.session()), own));
    client
        .mount(Takeover::OfAny, MountMode::Exclusive)
        .await
        .unwrap();
    let options = VfsOptions {
        file_dirty_bytes_max: 16 << 20,
        slices_in_flight: 4,
        part_bytes: 4 << 20,
        ..VfsOptions::default()
    };
    let fs = FileSystem::new(world.volume.clone(), client, slices.clone(), options);
    (fs, slices)
}

/// Writes, and retries if a commit that had to free memory failed.
async fn write(fs: &FileSystem, handle: HandleId, at: usize, body: &[u8]) {
    for _ in 0..50 {
        if fs.write(handle, at as u64, body).await.is_ok() {
            return;
        }
    }
    panic!("it was never written");
}

async fn writes_are_seen_as_they_were_written(failing: &'static [u32]) {
    let world = TestVolume::new();
    let (fs, slices) = mount(&world, failing).await;
    let (inode, handle) = new_file(&fs, b"large").await;
    let mut expected = vec![0; 96 * MIB];
    let mut random = 7_u64;
    for number in 0..96 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        // Mostly sequential; now and then over bytes from a while ago.
        let back = (random >> 33) as usize % 12 * MIB;
        let again = (number * MIB).saturating_sub(back + 12_345);
        let fill = |seed: usize| (0..MIB).map(move |i| (i / 997 + seed) as u8);
        let body: Vec<u8> = fill(number).collect();
        write(&fs, handle, number * MIB, &body).await;
        expected[number * MIB..][..MIB].copy_from_slice(&body);
        if number % 5 == 4 {
            let body: Vec<u8> = fill(number + 100).take(70_000).collect();
            write(&fs, handle, again, &body).await;
            expected[again..][..70_000].copy_from_slice(&body);
        }
        let end = (number + 1) * MIB;
        assert_eq!(fs.getattr(inode).await.unwrap().size, end as u64);
        let from = end.saturating_sub(9 * MIB + 5);
        let seen = fs
            .read(handle, from as u64, (end - from) as u32)
            .await
            .unwrap();
        assert!(seen == expected[from..end], "after {number}");
    }
    let mut tries = 0;
    while fs.fsync(handle).await.is_err() {
        tries += 1;
        assert!(tries < 50);
    }
    fs.drop_caches();
    for at in (0..expected.len()).step_by(MIB) {
        let seen = fs.read(handle, at as u64, MIB as u32).await.unwrap();
        assert!(seen == expected[at..at + MIB], "at {at}");
    }
    assert!(slices.most.load(Ordering::Relaxed) > 4, "some left early");
    fs.release(handle).await.unwrap();
    fs.shutdown().await.unwrap();
}

/// In virtual time a busy machine delays no writer.
#[tokio::test(start_paused = true)]
async fn a_file_written_faster_than_committed_is_right() {
    writes_are_seen_as_they_were_written(&[]).await;
}

#[tokio::test(start_paused = true)]
async fn a_file_written_faster_than_committed_is_right_when_some_slices_fail() {
    writes_are_seen_as_they_were_written(&[1, 6, 13, 14, 30]).await;
}
