//! A full quota: reported at once where that is possible, otherwise at the latest when a file is
//! closed; nothing is left behind, no other user is disturbed, and data that fits again is
//! committed.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]

use crate::common::{TestVolume, content, root, set_size};
use quorumfs_gateway::journal::Directory;
use quorumfs_gateway::metadata::MetadataClient;
use quorumfs_gateway::vfs::{
    AttributeChange, Caller, FileSystem, HandleId, InodeId, OpenMode, RenameMode, Tier, VfsError,
    VfsOptions,
};
use quorumfs_metadata::identity::Uid;
use quorumfs_metadata::operation::QuotaOf;
use quorumfs_metadata::row::Limit;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

const USER: u32 = 7;
const DQUOT: Errno = Errno::DQUOT;
/// The bytes that a name counts.
const NAME: u64 = 512;

fn user() -> Caller {
    Caller::user(USER, USER, vec![])
}

fn bytes(limit: u64) -> Option<Limit> {
    Some(Limit {
        bytes: Some(limit),
        inodes: None,
    })
}

/// Data is committed only when a call asks for it.
fn manual_commits() -> VfsOptions {
    VfsOptions {
        commit_after: Duration::from_secs(3600),
        ..VfsOptions::default()
    }
}

fn at(tier: Tier) -> VfsOptions {
    VfsOptions {
        tier,
        ..manual_commits()
    }
}

/// All users may create at the root.
async fn open_root(fs: &FileSystem) {
    let change = AttributeChange {
        mode: Some(0o777),
        ..AttributeChange::default()
    };
    fs.setattr(&root(), fs.root(), None, change).await.unwrap();
}

async fn limit(world: &TestVolume, of: QuotaOf, limit: Option<Limit>) {
    let own = world.volume.own_credentials();
    let client = MetadataClient::new(Arc::new(world.session()), own);
    client.set_quota(of, limit).await.unwrap();
    client.close().await;
}

/// Bytes apart from those of names; each inode that is not held has one name.
async fn used(world: &TestVolume) -> u64 {
    let own = world.volume.own_credentials();
    let client = MetadataClient::new(Arc::new(world.session()), own);
    let (_, user) = client.quota(Uid(USER)).await.unwrap();
    client.close().await;
    user.used.bytes - NAME * user.used.inodes
}

async fn users_file(fs: &FileSystem, name: &[u8]) -> (InodeId, HandleId) {
    let mode = OpenMode::READ_WRITE;
    let made = fs.create(&user(), fs.root(), name, 0o644, mode, true).await;
    let (found, handle) = made.unwrap();
    (found.inode, handle)
}

fn errno<T: std::fmt::Debug>(outcome: Result<T, VfsError>) -> Errno {
    outcome.unwrap_err().errno()
}

async fn until(done: impl AsyncFn() -> bool) {
    let patience = Instant::now() + Duration::from_secs(20);
    while !done().await {
        assert!(Instant::now() < patience);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A file whose owner may have 10,000 bytes: 9000 are committed, and the next 9000 were refused.
async fn file_with_refused(world: &TestVolume, fs: &FileSystem) -> (InodeId, HandleId) {
    open_root(fs).await;
    limit(world, QuotaOf::User(Uid(USER)), bytes(NAME + 10_000)).await;
    let (inode, handle) = users_file(fs, b"file").await;
    fs.write(handle, 0, &[1; 9000]).await.unwrap();
    fs.fsync(handle).await.unwrap();
    fs.write(handle, 9000, &[2; 9000]).await.unwrap();
    assert_eq!(errno(fs.fsync(handle).await), DQUOT);
    (inode, handle)
}

#[tokio::test]
async fn data_that_does_not_fit_is_reported_until_the_last_close_and_leaves_nothing_behind() {
    let world = TestVolume::new();
    let fs = world.mount(manual_commits()).await;
    let (inode, handle) = file_with_refused(&world, &fs).await;
    let uploads = world.slices.writes.load(Ordering::Relaxed);
    assert_eq!(errno(fs.write(handle, 20_000, b"more").await), DQUOT);
    assert_eq!(errno(fs.flush(handle).await), DQUOT);
    let again = world.slices.writes.load(Ordering::Relaxed);
    assert_eq!(again, uploads, "nothing is uploaded in vain");
    // Others go on, the superuser among them.
    let mode = OpenMode::READ_WRITE;
    let (root_dir, name) = (fs.root(), b"other".as_slice());
    let made = fs.create(&root(), root_dir, name, 0o644, mode, true).await;
    let (_, other) = made.unwrap();
    fs.write(other, 0, &[3; 50_000]).await.unwrap();
    fs.release(other).await.unwrap();

    assert_eq!(errno(fs.release(handle).await), DQUOT);
    let status = fs.status();
    assert_eq!((status.dirty_files, status.dirty_bytes), (0, 0));
    assert_eq!((status.files_lost, status.open_handles), (1, 0));
    assert_eq!(content(&fs, inode).await, [1; 9000], "committed data");
    assert_eq!(fs.getattr(inode).await.unwrap().size, 9000);
    assert_eq!(used(&world).await, 9000);
    fs.shutdown().await.unwrap();
}

#[tokio::test]
async fn data_that_did_not_fit_is_committed_once_space_was_freed() {
    let world = TestVolume::new();
    let fs = world.mount(manual_commits()).await;
    open_root(&fs).await;
    limit(&world, QuotaOf::Default, bytes(2 * NAME + 9500)).await;
    let (_, first) = users_file(&fs, b"first").await;
    fs.write(first, 0, &[1; 9000]).await.unwrap();
    fs.release(first).await.unwrap();
    let (inode, second) = users_file(&fs, b"second").await;
    fs.write(second, 0, &[2; 9000]).await.unwrap();
    assert_eq!(errno(fs.fsync(second).await), DQUOT);
    assert_eq!(content(&fs, inode).await, [2; 9000], "readers see it");
    fs.unlink(&user(), fs.root(), b"first").await.unwrap();
    fs.write(second, 9000, &[3; 1000]).await.unwrap();
    fs.release(second).await.unwrap();
    assert_eq!((used(&world).await, fs.status().files_lost), (10_000, 0));
    let again = world.mount(VfsOptions::default()).await;
    let mut expected = vec![2; 9000];
    expected.extend([3; 1000]);
    assert_eq!(content(&again, inode).await, expected);
}

#[tokio::test(start_paused = true)]
async fn the_background_commits_data_that_fits_again() {
    let world = TestVolume::new();
    let options = VfsOptions {
        commit_after: Duration::from_millis(50),
        ..VfsOptions::default()
    };
    let fs = world.mount(options).await;
    open_root(&fs).await;
    let whose = QuotaOf::User(Uid(USER));
    limit(&world, whose, bytes(NAME)).await;
    let (inode, handle) = users_file(&fs, b"file").await;
    fs.write(handle, 0, &[1; 5000]).await.unwrap();
    until(async || world.slices.writes.load(Ordering::Relaxed) > 0).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(world.slices.writes.load(Ordering::Relaxed), 1);
    limit(&world, whose, None).await;
    until(async || fs.status().dirty_files == 0).await;
    fs.release(handle).await.unwrap();
    assert_eq!(content(&fs, inode).await, [1; 5000]);
}

#[tokio::test]
async fn a_user_at_the_limit_can_overwrite_truncate_rename_and_remove() {
    let world = TestVolume::new();
    let fs = world.mount(manual_commits()).await;
    open_root(&fs).await;
    let (inode, handle) = users_file(&fs, b"file").await;
    fs.write(handle, 0, &[1; 9000]).await.unwrap();
    fs.fsync(handle).await.unwrap();
    limit(&world, QuotaOf::User(Uid(USER)), bytes(NAME + 5000)).await;
    fs.write(handle, 100, &[2; 100]).await.unwrap();
    fs.fsync(handle).await.unwrap();
    fs.write(handle, 9000, &[3; 100]).await.unwrap();
    assert_eq!(errno(fs.fsync(handle).await), DQUOT);
    set_size(&fs, inode, Some(handle), 0).await.unwrap();
    fs.write(handle, 0, &[4; 5000]).await.unwrap();
    fs.release(handle).await.unwrap();
    let (parent, mode) = (fs.root(), RenameMode::Replace);
    fs.rename(&user(), parent, b"file", parent, b"new", mode)
        .await
        .unwrap();
    assert_eq!(content(&fs, inode).await, [4; 5000]);
    fs.unlink(&user(), parent, b"new").await.unwrap();
    assert_eq!(used(&world).await, 0);
}

#[tokio::test]
async fn a_full_file_can_be_truncated_and_nothing_else() {
    let world = TestVolume::new();
    let fs = world.mount(manual_commits()).await;
    let (inode, handle) = file_with_refused(&world, &fs).await;
    let (top, replace) = (fs.root(), RenameMode::Replace);
    let rename = async || fs.rename(&user(), top, b"file", top, b"new", replace).await;
    let give = AttributeChange {
        uid: Some(USER + 1),
        ..AttributeChange::default()
    };
    // Some of these would fit.
    for size in [1, 5000, 9000, 10_000, 18_000, 30_000] {
        let by_handle = set_size(&fs, inode, Some(handle), size).await;
        assert_eq!(errno(by_handle), DQUOT, "{size}");
        let cut = set_size(&fs, inode, None, size).await;
        assert_eq!(errno(cut), DQUOT, "{size}");
    }
    assert_eq!(errno(rename().await), DQUOT);
    let given = fs.setattr(&root(), inode, None, give).await;
    assert_eq!(errno(given), DQUOT);
    let found = fs.lookup(&root(), top, b"file").await.unwrap().unwrap();
    assert_eq!((found.uid, found.size), (Uid(USER), 18_000));
    assert!(fs.lookup(&root(), top, b"new").await.unwrap().is_none());
    assert_eq!(content(&fs, inode).await[8999..9001], [1, 2]);

    set_size(&fs, inode, Some(handle), 0).await.unwrap();
    rename().await.unwrap();
    fs.setattr(&root(), inode, None, give).await.unwrap();
    fs.release(handle).await.unwrap();
    assert_eq!((used(&world).await, fs.status().files_lost), (0, 0));
    assert!(content(&fs, inode).await.is_empty());
}

#[tokio::test]
async fn no_inode_is_made_beyond_the_limit_and_a_full_volume_is_enospc_for_all() {
    let world = TestVolume::new();
    let fs = world.mount(manual_commits()).await;
    open_root(&fs).await;
    let inodes = |inodes| {
        Some(Limit {
            bytes: None,
            inodes: Some(inodes),
        })
    };
    limit(&world, QuotaOf::User(Uid(USER)), inodes(1)).await;
    fs.mkdir(&user(), fs.root(), b"one", 0o755).await.unwrap();
    let made = fs.mkdir(&user(), fs.root(), b"two", 0o755).await;
    assert_eq!(errno(made), DQUOT);
    let created = fs
        .create(
            &user(),
            fs.root(),
            b"two",
            0o644,
            OpenMode::READ_WRITE,
            true,
        )
        .await;
    assert_eq!(errno(created), DQUOT);
    assert_eq!(fs.status().open_handles, 0);
    let found = fs.lookup(&root(), fs.root(), b"two").await.unwrap();
    assert!(found.is_none());
    limit(&world, QuotaOf::Realm, inodes(2)).await;
    let made = fs.mkdir(&root(), fs.root(), b"three", 0o755).await;
    assert_eq!(errno(made), Errno::NOSPC);
    assert_eq!(fs.statfs().await.unwrap().files_free, 0);
    limit(&world, QuotaOf::Realm, bytes((1 << 20) + 3 * NAME)).await;
    let usage = fs.statfs().await.unwrap();
    let block = u64::from(usage.block_bytes);
    assert_eq!(usage.blocks_free * block, 1 << 20);
    let (_, handle) = users_file_of(&fs, &root(), b"large").await;
    fs.write(handle, 0, &vec![1; 1 << 20]).await.unwrap();
    fs.fsync(handle).await.unwrap();
    assert_eq!(fs.statfs().await.unwrap().blocks_free, 0);
    fs.write(handle, 1 << 20, &[1; 5000]).await.unwrap();
    assert_eq!(errno(fs.release(handle).await), Errno::NOSPC);
}

async fn users_file_of(fs: &FileSystem, who: &Caller, name: &[u8]) -> (InodeId, HandleId) {
    let mode = OpenMode::READ_WRITE;
    let made = fs.create(who, fs.root(), name, 0o644, mode, true).await;
    let (found, handle) = made.unwrap();
    (found.inode, handle)
}

#[tokio::test]
async fn a_tier_that_promises_early_promises_only_data_that_fits() {
    for tier in [Tier::Memory, Tier::Local] {
        let world = TestVolume::new();
        let directory = tempfile::tempdir().unwrap();
        let (fs, _, _) = world.mount_journalled(at(tier), disk(&directory)).await;
        open_root(&fs).await;
        limit(&world, QuotaOf::User(Uid(USER)), bytes(2 * NAME + 50_000)).await;
        let (small, handle) = users_file(&fs, b"small").await;
        fs.write(handle, 0, &[1; 5000]).await.unwrap();
        fs.release(handle).await.unwrap();
        assert_eq!(
            fs.status().dirty_files,
            1,
            "{tier:?}: data that fits is promised"
        );
        assert_eq!(used(&world).await, 0);
        let (large, handle) = users_file(&fs, b"large").await;
        fs.write(handle, 0, &[2; 60_000]).await.unwrap();
        assert_eq!(errno(fs.fsync(handle).await), DQUOT, "{tier:?}");
        assert_eq!(errno(fs.write(handle, 0, b"x").await), DQUOT);
        assert_eq!(errno(fs.release(handle).await), DQUOT, "{tier:?}");
        assert_eq!(fs.status().files_lost, 1);
        // Promised data is there, whatever happened to the rest, and nothing else comes back.
        fs.shutdown().await.unwrap();
        let (fs, replayed, _) = world.mount_journalled(at(tier), disk(&directory)).await;
        assert_eq!((replayed.in_place, replayed.rescued.len()), (0, 0));
        assert_eq!(content(&fs, small).await, [1; 5000]);
        assert!(content(&fs, large).await.is_empty());
    }
}

#[tokio::test]
async fn promised_data_is_not_given_up_for_later_writes() {
    let world = TestVolume::new();
    let directory = tempfile::tempdir().unwrap();
    let options = at(Tier::Local);
    let (fs, _, _) = world.mount_journalled(options, disk(&directory)).await;
    open_root(&fs).await;
    limit(&world, QuotaOf::User(Uid(USER)), bytes(50_000)).await;
    let (inode, handle) = users_file(&fs, b"log").await;
    fs.write(handle, 0, &[1; 40_000]).await.unwrap();
    fs.fsync(handle).await.unwrap();
    let mut at = 40_000;
    let refused = loop {
        match fs.write(handle, at, &[2; 20_000]).await {
            Ok(taken) => at += u64::from(taken),
            Err(error) => break error.errno(),
        }
        if let Err(error) = fs.fsync(handle).await {
            break error.errno();
        }
    };
    assert_eq!(refused, DQUOT);
    assert_eq!(errno(fs.release(handle).await), DQUOT);
    assert_eq!(content(&fs, inode).await, [1; 40_000]);
}

#[tokio::test]
async fn when_memory_is_short_data_that_does_not_fit_goes_first_and_its_writer_gets_an_error() {
    let world = TestVolume::new();
    let options = VfsOptions {
        dirty_bytes_max: 100_000,
        commit_after: Duration::from_millis(50),
        write_wait: Duration::from_secs(10),
        ..VfsOptions::default()
    };
    let fs = world.mount(options).await;
    open_root(&fs).await;
    limit(&world, QuotaOf::User(Uid(USER)), bytes(5 * NAME + 10_000)).await;
    let mut full = Vec::new();
    for number in 0..5_u8 {
        let (inode, handle) = users_file(&fs, &[b'a' + number]).await;
        fs.write(handle, 0, &[number; 30_000]).await.unwrap();
        full.push((inode, handle));
    }
    for _ in 0..10 {
        let (_, handle) = users_file_of(&fs, &root(), b"other").await;
        fs.write(handle, 0, &[9; 60_000]).await.unwrap();
        fs.release(handle).await.unwrap();
        fs.unlink(&root(), fs.root(), b"other").await.unwrap();
    }
    for (inode, handle) in full {
        // The last of them may not have been refused yet: a `write` reports a refusal.
        assert_eq!(errno(fs.fsync(handle).await), DQUOT);
        assert_eq!(errno(fs.write(handle, 0, b"x").await), DQUOT);
        assert_eq!(errno(fs.release(handle).await), DQUOT);
        assert_eq!(fs.getattr(inode).await.unwrap().size, 0);
    }
    assert_eq!(fs.status().files_lost, 5);
    assert_eq!(fs.status().dirty_bytes, 0);
}

#[tokio::test]
async fn a_file_is_given_only_to_a_user_with_space_for_it() {
    let world = TestVolume::new();
    let fs = world.mount(manual_commits()).await;
    open_root(&fs).await;
    let (inode, handle) = users_file_of(&fs, &root(), b"file").await;
    fs.write(handle, 0, &[1; 5000]).await.unwrap();
    fs.release(handle).await.unwrap();
    limit(&world, QuotaOf::User(Uid(USER)), bytes(NAME + 4999)).await;
    let give = AttributeChange {
        uid: Some(USER),
        ..AttributeChange::default()
    };
    let given = fs.setattr(&root(), inode, None, give).await;
    assert_eq!(errno(given), DQUOT);
    assert_eq!(fs.getattr(inode).await.unwrap().uid, Uid(0));
    limit(&world, QuotaOf::User(Uid(USER)), bytes(NAME + 5000)).await;
    fs.setattr(&root(), inode, None, give).await.unwrap();
    assert_eq!(used(&world).await, 5000);
}

fn disk(directory: &tempfile::TempDir) -> Directory {
    Directory::open(directory.path()).unwrap()
}
