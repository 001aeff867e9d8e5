//! The file system over the disk cache: when no cloud answers, and when the disk does not.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]

use crate::common::{MemorySlices, TestVolume, new_file, root};
use quorumfs_gateway::disk_cache::{
    CACHE_BYTES_MIN, CachedSlices, DiskCache, DiskCacheOptions, DiskCacheStatus,
};
use quorumfs_gateway::keys::Secret;
use quorumfs_gateway::metadata::{MetadataClient, MountMode, Takeover};
use quorumfs_gateway::vfs::{FileSystem, InodeId, OpenMode, VfsError, VfsOptions};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const MIB: usize = 1 << 20;

struct CachedMount {
    fs: FileSystem,
    cache: Arc<DiskCache>,
}

impl CachedMount {
    async fn new(world: &TestVolume, path: &Path) -> Self {
        let options = DiskCacheOptions {
            path: path.to_owned(),
            bytes_max: CACHE_BYTES_MIN,
            free_floor: 0,
            index_bytes_max: 1 << 20,
            queue_bytes_max: 64 << 20,
        };
        let cache = Arc::new(DiskCache::open(options, Secret::from_bytes([8; 32])));
        let slices: Arc<MemorySlices> = world.slices.clone();
        let slices = Arc::new(CachedSlices::new(slices, cache.clone()));
        let own = world.volume.own_credentials();
        let client = Arc::new(MetadataClient::new(Arc::new(world.session()), own));
        client
            .mount(Takeover::OfAny, MountMode::Exclusive)
            .await
            .unwrap();
        let fs = FileSystem::new(world.volume.clone(), client, slices, VfsOptions::default());
        Self { fs, cache }
    }

    async fn status(&self) -> DiskCacheStatus {
        self.cache.settle().await;
        self.cache.status()
    }

    async fn write(&self, name: &[u8], bytes: &[u8]) -> InodeId {
        let (inode, handle) = new_file(&self.fs, name).await;
        for (number, part) in (0..).zip(bytes.chunks(MIB)) {
            let offset = number * MIB as u64;
            self.fs.write(handle, offset, part).await.unwrap();
        }
        self.fs.release(handle).await.unwrap();
        inode
    }

    async fn read(&self, inode: InodeId, bytes: usize) -> Result<Vec<u8>, VfsError> {
        let opened = self.fs.open(&root(), inode, OpenMode::READ).await.unwrap();
        let mut found = Vec::new();
        let outcome = loop {
            let wanted = (bytes - found.len()).min(MIB) as u32;
            if wanted == 0 {
                break Ok(());
            }
            match self
                .fs
                .read(opened.handle, found.len() as u64, wanted)
                .await
            {
                Ok(part) => found.extend_from_slice(&part),
                Err(error) => break Err(error),
            }
        };
        self.fs.release(opened.handle).await.unwrap();
        outcome.map(|()| found)
    }

    async fn end(self) {
        self.fs.shutdown().await.unwrap();
        self.cache.close().await;
    }
}

fn pattern(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * at / 7) as u8 ^ seed).collect()
}

#[tokio::test]
async fn cached_content_is_read_while_no_cloud_answers() {
    let (world, directory) = (TestVolume::new(), tempfile::tempdir().unwrap());
    let (one, two) = (pattern(1, 5 * MIB + 12_345), pattern(2, 3 * MIB));
    let mount = CachedMount::new(&world, directory.path()).await;
    let first = mount.write(b"one", &one).await;
    mount.status().await;
    // Read data is cached as written data is.
    let other = world.mount(VfsOptions::default()).await;
    let (second, handle) = new_file(&other, b"two").await;
    other.write(handle, 0, &two).await.unwrap();
    other.release(handle).await.unwrap();
    mount.end().await;
    let mount = CachedMount::new(&world, directory.path()).await;
    assert_eq!(mount.read(second, two.len()).await.unwrap(), two);
    assert!(mount.status().await.hits == 0);

    world.slices.refusing.store(true, Ordering::Relaxed);
    let reads = world.slices.reads.load(Ordering::Relaxed);
    mount.fs.drop_caches();
    assert_eq!(mount.read(first, one.len()).await.unwrap(), one);
    assert_eq!(mount.read(second, two.len()).await.unwrap(), two);
    let status = mount.status().await;
    assert!(status.hits >= 33, "{status:?}");
    mount.end().await;

    // Another process finds the same entries.
    let mount = CachedMount::new(&world, directory.path()).await;
    mount.status().await;
    assert_eq!(mount.read(first, one.len()).await.unwrap(), one);
    assert_eq!(mount.read(second, two.len()).await.unwrap(), two);
    assert_eq!(world.slices.reads.load(Ordering::Relaxed), reads);
    mount.end().await;
}

#[tokio::test]
async fn missing_or_damaged_cache_entries_are_read_from_the_clouds_and_cached_again() {
    let (world, directory) = (TestVolume::new(), tempfile::tempdir().unwrap());
    let bytes = pattern(3, 4 * MIB);
    let mount = CachedMount::new(&world, directory.path()).await;
    let inode = mount.write(b"file", &bytes).await;
    mount.status().await;
    mount.end().await;
    for entry in std::fs::read_dir(directory.path()).unwrap() {
        let path = entry.unwrap().path();
        let mut content = std::fs::read(&path).unwrap();
        // In the middle of chunks; the table stays.
        for at in (400_000..content.len()).step_by(700_000) {
            content[at] ^= 1;
        }
        std::fs::write(&path, content).unwrap();
    }
    let mount = CachedMount::new(&world, directory.path()).await;
    mount.status().await;
    assert_eq!(mount.read(inode, bytes.len()).await.unwrap(), bytes);
    let status = mount.status().await;
    assert!(status.damaged >= 4 && status.hits > 0, "{status:?}");
    mount.fs.drop_caches();
    world.slices.refusing.store(true, Ordering::Relaxed);
    assert_eq!(mount.read(inode, bytes.len()).await.unwrap(), bytes);
    mount.end().await;
}

#[tokio::test]
async fn the_clouds_free_space_is_seen_through_the_cache() {
    let (world, directory) = (TestVolume::new(), tempfile::tempdir().unwrap());
    world.slices.room.store(1 << 30, Ordering::Relaxed);
    let mount = CachedMount::new(&world, directory.path()).await;
    let usage = mount.fs.statfs().await.unwrap();
    assert_eq!(usage.blocks_free * u64::from(usage.block_bytes), 1 << 30);
    mount.end().await;
}

#[tokio::test]
async fn a_cache_that_cannot_be_created_changes_nothing() {
    let (world, directory) = (TestVolume::new(), tempfile::tempdir().unwrap());
    let path = directory.path().join("file");
    std::fs::write(&path, "in the way").unwrap();
    let bytes = pattern(4, 2 * MIB);
    let mount = CachedMount::new(&world, &path).await;
    let inode = mount.write(b"file", &bytes).await;
    mount.fs.drop_caches();
    assert_eq!(mount.read(inode, bytes.len()).await.unwrap(), bytes);
    let status = mount.status().await;
    assert!(status.problem.is_some() && status.refused > 0);
    world.slices.refusing.store(true, Ordering::Relaxed);
    mount.fs.drop_caches();
    assert!(mount.read(inode, bytes.len()).await.is_err());
    mount.end().await;
}
