//! Operations that fail, whose answers are lost, or that are executed late: written data must
//! survive all of them.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use crate::common::{
    OperationFault, TestVolume, content, is_commit, is_truncation, new_file, root, set_size,
};
use quorumfs_gateway::vfs::{OpenMode, VfsOptions};
use std::time::Duration;

/// Data is committed only when a call asks for it.
fn manual_commits() -> VfsOptions {
    VfsOptions {
        commit_after: Duration::from_secs(3600),
        ..VfsOptions::default()
    }
}

#[tokio::test]
async fn a_failed_truncation_drops_nothing() {
    let world = TestVolume::new();
    let (fs, wire) = world.mount_over(manual_commits()).await;
    let (inode, handle) = new_file(&fs, b"file").await;
    fs.write(handle, 0, &[1; 3000]).await.unwrap();
    fs.fsync(handle).await.unwrap();
    fs.write(handle, 1000, &[2; 4000]).await.unwrap();
    wire.next(is_truncation, OperationFault::NotSent);
    set_size(&fs, inode, Some(handle), 0).await.unwrap_err();
    let mut expected = vec![1; 1000];
    expected.extend([2; 4000]);
    assert_eq!(fs.read(handle, 0, 10_000).await.unwrap(), expected);
    fs.fsync(handle).await.unwrap();
    let again = world.mount(manual_commits()).await;
    assert_eq!(content(&again, inode).await, expected);
}

#[tokio::test]
async fn a_truncation_drops_only_earlier_writes() {
    let world = TestVolume::new();
    let (fs, _wire) = world.mount_over(manual_commits()).await;
    let (inode, handle) = new_file(&fs, b"file").await;
    fs.write(handle, 0, &[1; 3000]).await.unwrap();
    set_size(&fs, inode, Some(handle), 0).await.unwrap();
    assert_eq!(fs.status().dirty_bytes, 0);
    fs.write(handle, 10, &[2; 5]).await.unwrap();
    fs.release(handle).await.unwrap();
    let again = world.mount(manual_commits()).await;
    let expected = [[0; 10].as_slice(), &[2; 5]].concat();
    assert_eq!(content(&again, inode).await, expected);
}

#[tokio::test]
async fn a_commit_executed_late_does_not_touch_later_writes() {
    for (old, new) in [(3000, 5000), (5000, 3000), (10, 20), (20, 10), (10, 3000)] {
        let world = TestVolume::new();
        let (fs, wire) = world.mount_over(manual_commits()).await;
        let (inode, handle) = new_file(&fs, b"file").await;
        fs.write(handle, 0, &vec![1; old]).await.unwrap();
        wire.next(is_commit, OperationFault::Late);
        fs.fsync(handle).await.unwrap_err();
        fs.write(handle, 0, &vec![2; new]).await.unwrap();
        fs.fsync(handle).await.unwrap();
        let expected = content(&fs, inode).await;
        assert_eq!(wire.deliver().await, 1);
        let again = world.mount(manual_commits()).await;
        assert_eq!(content(&again, inode).await, expected);
        assert_eq!(expected[..new], vec![2; new]);
        assert_eq!(expected.len(), old.max(new));
    }
}

#[tokio::test]
async fn a_truncation_executed_late_does_not_touch_later_writes() {
    for open in [true, false] {
        let world = TestVolume::new();
        let (fs, wire) = world.mount_over(manual_commits()).await;
        let (inode, first) = new_file(&fs, b"file").await;
        fs.write(first, 0, &[1; 3000]).await.unwrap();
        fs.fsync(first).await.unwrap();
        if !open {
            fs.release(first).await.unwrap();
        }
        wire.next(is_truncation, OperationFault::Late);
        set_size(&fs, inode, None, 0).await.unwrap_err();
        let mode = OpenMode::READ_WRITE;
        let handle = fs.open(&root(), inode, mode).await.unwrap().handle;
        fs.write(handle, 100, &[2; 3000]).await.unwrap();
        fs.fsync(handle).await.unwrap();
        assert_eq!(wire.deliver().await, 1);
        let again = world.mount(manual_commits()).await;
        let expected = [[1; 100].as_slice(), &[2; 3000]].concat();
        assert_eq!(content(&again, inode).await, expected);
    }
}

#[tokio::test]
async fn a_commit_whose_answer_was_lost_is_repeated_and_changes_nothing() {
    for length in [10, 3000, 9 << 20] {
        let world = TestVolume::new();
        let (fs, wire) = world.mount_over(manual_commits()).await;
        let (inode, handle) = new_file(&fs, b"file").await;
        fs.write(handle, 0, &[1; 5]).await.unwrap();
        fs.fsync(handle).await.unwrap();
        fs.write(handle, 3, &vec![2; length]).await.unwrap();
        if length > 8 << 20 {
            // This much is committed in the background, which would meet the fault.
            fs.fsync(handle).await.unwrap();
            fs.write(handle, 3, &vec![2; 4 << 20]).await.unwrap();
        }
        wire.next(is_commit, OperationFault::AnswerLost);
        fs.fsync(handle).await.unwrap_err();
        fs.write(handle, 0, &[3]).await.unwrap();
        fs.fsync(handle).await.unwrap();
        fs.release(handle).await.unwrap();
        assert_eq!((fs.status().dirty_bytes, fs.status().dirty_files), (0, 0));
        let again = world.mount(manual_commits()).await;
        let expected = [[3, 1, 1].as_slice(), &vec![2; length]].concat();
        let found = content(&again, inode).await;
        assert!(found == expected[..found.len()], "{length}");
        assert_eq!(
            again.getattr(inode).await.unwrap().size,
            expected.len() as u64
        );
    }
}

#[tokio::test]
async fn changes_by_another_session_are_kept_with_local_writes() {
    let world = TestVolume::new();
    let (fs, _wire) = world.mount_over(manual_commits()).await;
    let command = world.command(manual_commits());
    for (length, at, expected_length) in [(20, 5, 20), (20, 30, 32), (4000, 10, 4000)] {
        let name = format!("file {length} {at}");
        let (inode, here) = new_file(&fs, name.as_bytes()).await;
        fs.write(here, 0, &[1; 2]).await.unwrap();
        fs.fsync(here).await.unwrap();
        let mode = OpenMode::READ_WRITE;
        let there = command.open(&root(), inode, mode).await.unwrap().handle;
        command.write(there, 0, &vec![2; length]).await.unwrap();
        command.release(there).await.unwrap();
        fs.write(here, at, &[3; 2]).await.unwrap();
        fs.release(here).await.unwrap();
        let mut expected = vec![2; length];
        expected.resize(expected_length, 0);
        expected[at as usize..][..2].fill(3);
        command.drop_caches();
        assert_eq!(content(&command, inode).await, expected);
    }
}

#[tokio::test]
async fn a_truncation_by_path_is_seen_by_a_file_opened_meanwhile() {
    let world = TestVolume::new();
    let (fs, _wire) = world.mount_over(manual_commits()).await;
    let (inode, handle) = new_file(&fs, b"file").await;
    fs.write(handle, 0, &[1; 100_000]).await.unwrap();
    fs.release(handle).await.unwrap();
    // Another client truncates it; we open it while the old length is still cached.
    let command = world.command(manual_commits());
    set_size(&command, inode, None, 0).await.unwrap();
    let mode = OpenMode::READ_WRITE;
    let handle = fs.open(&root(), inode, mode).await.unwrap().handle;
    fs.write(handle, 0, &[2; 10]).await.unwrap();
    fs.release(handle).await.unwrap();
    assert_eq!(fs.getattr(inode).await.unwrap().size, 10);
    command.drop_caches();
    assert_eq!(content(&command, inode).await, [2; 10]);
}
