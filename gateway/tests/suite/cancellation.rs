//! Cancelled calls, lost answers, removals by commands: nothing is held for ever because of them,
//! and no call waits for ever.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use crate::common::{OperationFault, TRUNCATE, TestVolume, content, is_allocation, new_file, root};
use quorumfs_gateway::vfs::{AttributeChange, Caller, FileSystem, VfsOptions};
use quorumfs_metadata::attributes::Mode;
use rustix::io::Errno;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

fn manual_commits() -> VfsOptions {
    VfsOptions {
        commit_after: Duration::from_secs(3600),
        ..VfsOptions::default()
    }
}

/// Waits until `done`, for a while.
async fn until(done: impl AsyncFn() -> bool) {
    let patience = Instant::now() + Duration::from_secs(20);
    while !done().await {
        assert!(Instant::now() < patience);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// How many inodes the servers have.
async fn inodes(fs: &FileSystem) -> u64 {
    let usage = fs.statfs().await.unwrap();
    usage.files - usage.files_free
}

const SOON: Duration = Duration::from_millis(50);

#[tokio::test(start_paused = true)]
async fn a_cancelled_close_still_closes() {
    let world = TestVolume::new();
    let fs = world.mount(manual_commits()).await;
    let (_, handle) = new_file(&fs, b"file").await;
    fs.write(handle, 0, &[1; 5000]).await.unwrap();
    world.slices.delay.store(300, Ordering::Relaxed);
    let closed = tokio::time::timeout(SOON, fs.release(handle)).await;
    assert!(closed.is_err());
    until(async || fs.status().dirty_files == 0).await;
    tokio::time::sleep(SOON).await;
    let before = inodes(&fs).await;
    fs.unlink(&root(), fs.root(), b"file").await.unwrap();
    assert_eq!(inodes(&fs).await, before - 1, "it is not open");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_open_leaves_nothing_open() {
    let world = TestVolume::new();
    let fs = world.mount(manual_commits()).await;
    let (inode, handle) = new_file(&fs, b"file").await;
    fs.write(handle, 0, &[1; 5000]).await.unwrap();
    world.slices.delay.store(300, Ordering::Relaxed);
    let flush = tokio::spawn({
        let fs = fs.clone();
        async move { fs.fsync(handle).await }
    });
    tokio::time::sleep(SOON).await;
    let caller = root();
    let opening = fs.open(&caller, inode, TRUNCATE);
    assert!(tokio::time::timeout(SOON, opening).await.is_err());
    flush.await.unwrap().unwrap();
    until(async || fs.status().open_handles == 1).await;
    fs.release(handle).await.unwrap();
    let before = inodes(&fs).await;
    fs.unlink(&root(), fs.root(), b"file").await.unwrap();
    assert_eq!(inodes(&fs).await, before - 1, "it is not open");
}

#[tokio::test(start_paused = true)]
async fn a_file_removed_by_a_command_goes_unless_it_is_open() {
    let world = TestVolume::in_test_time();
    let options = VfsOptions {
        orphans_every: Duration::from_millis(100),
        ..VfsOptions::default()
    };
    let fs = world.mount(options).await;
    let empty = inodes(&fs).await;
    let (_, handle) = new_file(&fs, b"closed").await;
    fs.release(handle).await.unwrap();
    let (_, handle) = new_file(&fs, b"open").await;
    fs.write(handle, 0, b"content").await.unwrap();
    let command = world.command(VfsOptions::default());
    let directory = command.root();
    command.unlink(&root(), directory, b"closed").await.unwrap();
    command.unlink(&root(), directory, b"open").await.unwrap();
    until(async || inodes(&command).await == empty + 1).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(
        fs.read(handle, 0, 100).await.unwrap(),
        b"content".as_slice()
    );
    fs.release(handle).await.unwrap();
    assert_eq!(inodes(&command).await, empty);
}

#[tokio::test]
async fn grants_with_lost_answers_are_given_back() {
    let world = TestVolume::new();
    let (fs, wire) = world.mount_over(manual_commits()).await;
    let (inode, handle) = new_file(&fs, b"file").await;
    fs.write(handle, 0, &[1; 5000]).await.unwrap();
    for _ in 0..16 {
        wire.next(is_allocation, OperationFault::AnswerLost);
        fs.fsync(handle).await.unwrap_err();
    }
    assert!(wire.all_faults_occurred());
    fs.fsync(handle).await.unwrap();
    assert_eq!(content(&fs, inode).await, [1; 5000]);
}

#[tokio::test(start_paused = true)]
async fn everything_is_committed_in_parallel_and_within_a_bound() {
    let world = TestVolume::new();
    let options = VfsOptions {
        sync_wait: Duration::from_secs(3),
        ..manual_commits()
    };
    let fs = world.mount(options).await;
    let write = async |round: u8| {
        for number in 0..10 {
            let name = format!("file {round} {number}");
            let (_, handle) = new_file(&fs, name.as_bytes()).await;
            fs.write(handle, 0, &[round; 5000]).await.unwrap();
        }
    };
    write(1).await;
    world.slices.delay.store(500, Ordering::Relaxed);
    fs.sync_all().await.unwrap();
    write(2).await;
    world.slices.delay.store(60_000, Ordering::Relaxed);
    let started = Instant::now();
    let error = fs.sync_all().await.unwrap_err();
    assert_eq!(error.errno(), Errno::TIMEDOUT);
    assert!(started.elapsed() < Duration::from_secs(20));
}

#[tokio::test]
async fn set_id_bits_that_a_writer_may_not_keep_go_with_the_write() {
    let world = TestVolume::new();
    let fs = world.mount(manual_commits()).await;
    let (inode, handle) = new_file(&fs, b"program").await;
    fs.release(handle).await.unwrap();
    // The group is 0: only its members keep its bit, if the group may not execute.
    let (stranger, member) = (Caller::user(7, 7, Vec::new()), Caller::user(7, 7, vec![0]));
    let tries = [
        (&stranger, 0o6755, 0o755),
        (&member, 0o6755, 0o755),
        (&stranger, 0o6745, 0o745),
        (&member, 0o6745, 0o2745),
    ];
    for (writer, mode, left) in tries {
        let change = AttributeChange {
            mode: Some(mode),
            ..AttributeChange::default()
        };
        fs.setattr(&root(), inode, None, change).await.unwrap();
        let handle = fs.open(&root(), inode, TRUNCATE).await.unwrap().handle;
        fs.write(handle, 0, b"new").await.unwrap();
        fs.drop_set_id(writer, handle).unwrap();
        assert_eq!(fs.getattr(inode).await.unwrap().mode, Mode(left));
        fs.release(handle).await.unwrap();
    }
    let again = world.mount(manual_commits()).await;
    assert_eq!(again.getattr(inode).await.unwrap().mode, Mode(0o2745));
}
