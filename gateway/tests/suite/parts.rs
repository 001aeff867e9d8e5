//! A long commit is made in parts: arrived slices are in place and take no memory any more, even if
//! the rest fails.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use crate::common::{TestVolume, new_file};
use quorumfs_gateway::journal::Directory;
use quorumfs_gateway::vfs::{FileSystem, HandleId, InodeId, OpenMode, Tier, VfsError, VfsOptions};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tempfile::TempDir;
use tokio::task::JoinHandle;

const MIB: usize = 1 << 20;
const LENGTH: usize = 24 * MIB;

/// Each slice is a part, and one is in flight at a time.
fn options(tier: Tier) -> VfsOptions {
    VfsOptions {
        tier,
        commit_after: Duration::from_secs(3600),
        slices_in_flight: 1,
        part_bytes: 4 << 20,
        ..VfsOptions::default()
    }
}

fn bytes(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|i| (i / 997 + seed) as u8).collect()
}

async fn write(fs: &FileSystem, handle: HandleId, expected: &mut [u8], at: usize, body: &[u8]) {
    for (number, piece) in body.chunks(MIB).enumerate() {
        let at = (at + number * MIB) as u64;
        fs.write(handle, at, piece).await.unwrap();
    }
    expected[at..at + body.len()].copy_from_slice(body);
}

async fn all_of(fs: &FileSystem, inode: InodeId) -> Vec<u8> {
    let (root, length) = (
        crate::common::root(),
        fs.getattr(inode).await.unwrap().size as usize,
    );
    let opened = fs.open(&root, inode, OpenMode::READ).await.unwrap();
    let mut found = Vec::new();
    for at in (0..length).step_by(MIB) {
        let read = fs.read(opened.handle, at as u64, MIB as u32).await;
        found.extend_from_slice(&read.unwrap());
    }
    fs.release(opened.handle).await.unwrap();
    found
}

struct Halfway {
    expected: Vec<u8>,
    inode: InodeId,
    handle: HandleId,
    sync: JoinHandle<Result<(), VfsError>>,
}

/// A file of six slices, of which three have arrived.
async fn halfway(world: &TestVolume, fs: &FileSystem) -> Halfway {
    let (inode, handle) = new_file(fs, b"large").await;
    let mut expected = vec![0; LENGTH];
    write(fs, handle, &mut expected, 0, &bytes(LENGTH, 1)).await;
    fs.fsync(handle).await.unwrap();
    world.slices.let_through.store(3, Ordering::Relaxed);
    let of = fs.clone();
    let sync = tokio::spawn(async move { of.sync(inode).await });
    let limit = tokio::time::Instant::now() + Duration::from_secs(60);
    while fs.status().dirty_bytes > LENGTH as u64 / 2 {
        assert!(tokio::time::Instant::now() < limit, "memory is not freed");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(!sync.is_finished());
    Halfway {
        expected,
        inode,
        handle,
        sync,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn arrived_parts_of_a_long_commit_take_no_memory_and_are_in_place() {
    let world = TestVolume::new();
    let fs = world.mount(options(Tier::Memory)).await;
    let mut it = halfway(&world, &fs).await;
    assert_eq!(fs.getattr(it.inode).await.unwrap().size, LENGTH as u64);
    assert!(all_of(&fs, it.inode).await == it.expected);
    // No other session sees a length whose bytes are missing.
    let command = world.command(options(Tier::Clouds));
    let seen = all_of(&command, it.inode).await;
    assert!(seen == it.expected[..12 * MIB]);

    // Writes during the commit go over both halves.
    for at in [MIB, 20 * MIB + 5] {
        write(&fs, it.handle, &mut it.expected, at, &bytes(70_000, at)).await;
    }
    assert!(all_of(&fs, it.inode).await == it.expected);

    // Committed parts are not sent again when the rest fails.
    world.slices.failing.store(true, Ordering::Relaxed);
    world.slices.let_through.store(0, Ordering::Relaxed);
    it.sync.await.unwrap().unwrap_err();
    assert!(all_of(&fs, it.inode).await == it.expected);
    assert_eq!(fs.getattr(it.inode).await.unwrap().size, LENGTH as u64);
    world.slices.failing.store(false, Ordering::Relaxed);
    fs.sync(it.inode).await.unwrap();
    assert_eq!(world.slices.writes.load(Ordering::Relaxed), 3 + 3 + 1);
    assert_eq!(fs.status().dirty_bytes, 0);
    fs.drop_caches();
    assert!(all_of(&fs, it.inode).await == it.expected);
    fs.shutdown().await.unwrap();
    assert!(all_of(&world.command(options(Tier::Clouds)), it.inode).await == it.expected);
}

/// The files that a process leaves if it is killed now; nothing is written meanwhile.
fn killed(journal: &TempDir) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(journal.path()).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    copy
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_between_the_parts_of_a_commit_leaves_everything_in_its_place() {
    let (world, journal) = (TestVolume::new(), tempfile::tempdir().unwrap());
    let at = |place: &TempDir| Directory::open(place.path()).unwrap();
    let (fs, ..) = world
        .mount_journalled(options(Tier::Local), at(&journal))
        .await;
    let mut it = halfway(&world, &fs).await;
    for at in [MIB, 20 * MIB + 5] {
        write(&fs, it.handle, &mut it.expected, at, &bytes(70_000, at)).await;
    }
    fs.fsync(it.handle).await.unwrap();
    let killed = killed(&journal);
    let (fs, replayed, _) = world
        .mount_journalled(options(Tier::Local), at(&killed))
        .await;
    world.slices.let_through.store(0, Ordering::Relaxed);
    assert_eq!((replayed.in_place, replayed.rescued.len()), (1, 0));
    assert!(all_of(&fs, it.inode).await == it.expected);
    fs.sync_all().await.unwrap();
    fs.shutdown().await.unwrap();
    it.sync.await.unwrap().unwrap_err();
    assert!(all_of(&world.command(options(Tier::Clouds)), it.inode).await == it.expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_files_are_committed_while_a_large_one_takes_its_time() {
    let world = TestVolume::new();
    let options = VfsOptions {
        commit_after: Duration::from_secs(1),
        ..options(Tier::Memory)
    };
    let fs = world.mount(options).await;
    let mut it = halfway(&world, &fs).await;
    // A little of the large one is pending again, and is due as well.
    write(&fs, it.handle, &mut it.expected, 5, &[9; 10]).await;
    tokio::time::sleep(Duration::from_millis(1700)).await;
    let limit = tokio::time::Instant::now() + Duration::from_secs(60);
    for number in 0..3 {
        let (inode, handle) = new_file(&fs, format!("small {number}").as_bytes()).await;
        fs.write(handle, 0, b"content").await.unwrap();
        let command = world.command(VfsOptions::default());
        while command.getattr(inode).await.unwrap().size == 0 {
            assert!(
                tokio::time::Instant::now() < limit,
                "it waits for the other"
            );
            command.drop_caches();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    assert!(!it.sync.is_finished());
    world.slices.let_through.store(0, Ordering::Relaxed);
    it.sync.await.unwrap().unwrap();
    fs.shutdown().await.unwrap();
}
