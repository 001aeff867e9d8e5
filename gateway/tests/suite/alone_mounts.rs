//! A mount that is alone until another one comes: what it costs, how it comes to share, and when it
//! is alone again.
//!
//! The servers' clock is the test's, which is paused.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use crate::common::{OperationFault, TestVolume, new_file, root};
use quorumfs_gateway::metadata::MountMode;
use quorumfs_gateway::vfs::{FileSystem, InodeId, Invalidation, OpenMode, VfsError, VfsOptions};
use quorumfs_metadata::operation::Operation;
use std::time::Duration;
use tokio::time::Instant;

async fn alone(world: &TestVolume) -> FileSystem {
    world
        .mount_as(MountMode::Alone, VfsOptions::default())
        .await
}

async fn write(fs: &FileSystem, name: &[u8], bytes: &[u8]) -> InodeId {
    let (inode, handle) = new_file(fs, name).await;
    fs.write(handle, 0, bytes).await.unwrap();
    fs.fsync(handle).await.unwrap();
    fs.release(handle).await.unwrap();
    inode
}

async fn open_and_read(fs: &FileSystem, inode: InodeId) -> Result<Vec<u8>, VfsError> {
    let opened = fs.open(&root(), inode, OpenMode::READ).await?;
    let bytes = fs.read(opened.handle, 0, 8192).await;
    fs.release(opened.handle).await?;
    bytes.map(|bytes| bytes.to_vec())
}

/// What a mount asks and orders in half a minute of use.
async fn cost(fs: &FileSystem) -> (u64, u64) {
    let inode = write(fs, b"file", &[1; 3000]).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = fs.status();
    for _ in 0..30 {
        for _ in 0..20 {
            assert_eq!(open_and_read(fs, inode).await.unwrap().len(), 3000);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let after = fs.status();
    (
        after.queries - before.queries,
        after.operations - before.operations,
    )
}

#[tokio::test(start_paused = true)]
async fn a_mount_that_is_alone_costs_what_an_exclusive_one_costs() {
    let exclusive = TestVolume::in_test_time();
    let exclusive = exclusive.mount(VfsOptions::default()).await;
    let world = TestVolume::in_test_time();
    let alone = alone(&world).await;
    assert!(!exclusive.is_shared());
    let ((asked, ordered), (exclusive, its_ordered)) = (cost(&alone).await, cost(&exclusive).await);
    assert_eq!((ordered, its_ordered), (0, 0));
    // Both ask for news twice a second, beginning at different moments.
    assert!(asked.abs_diff(exclusive) < 6, "{asked} {exclusive}");
    assert!(!alone.is_shared());
    // One that shares asks at each open.
    let world = TestVolume::in_test_time();
    let shared = world.share(VfsOptions::default()).await;
    assert!(cost(&shared).await.0 > 600);
}

#[tokio::test(start_paused = true)]
async fn a_mount_that_is_alone_shares_as_soon_as_it_hears_of_another_one() {
    // Nothing rings the bell here.
    for (is_used, within) in [(true, 1), (false, 4)] {
        let world = TestVolume::in_test_time();
        let first = alone(&world).await;
        let inode = write(&first, b"file", b"first").await;
        assert!(!first.is_shared());
        for _ in 0..50 {
            tokio::time::sleep(Duration::from_millis(900)).await;
            if is_used {
                first.getattr(inode).await.unwrap();
            }
        }
        let mut kernel = first.invalidations();
        let asked = Instant::now();
        let second = alone(&world).await;
        assert!(
            asked.elapsed() < Duration::from_secs(within),
            "used: {is_used}"
        );
        assert!(first.is_shared() && second.is_shared());
        // The kernel may have cached something for longer than a mount that shares allows.
        while kernel.next().await.unwrap() != Invalidation::Everything {}
        for (writer, reader, bytes) in [
            (&first, &second, b"one"),
            (&second, &first, b"two"),
            (&first, &second, b"six"),
        ] {
            let opened = writer
                .open(&root(), inode, OpenMode::READ_WRITE)
                .await
                .unwrap();
            writer.write(opened.handle, 0, bytes).await.unwrap();
            writer.fsync(opened.handle).await.unwrap();
            writer.release(opened.handle).await.unwrap();
            let found = open_and_read(reader, inode).await.unwrap();
            assert_eq!(&found[..3], bytes);
        }
        let third = alone(&world).await;
        assert!(third.is_shared());
    }
}

#[tokio::test(start_paused = true)]
async fn a_mount_that_hears_no_bell_and_whose_answers_are_lost_shares_in_time() {
    let world = TestVolume::in_test_time();
    // Its transport watches nothing.
    let (first, wire) = world.over(MountMode::Alone, VfsOptions::default()).await;
    let inode = write(&first, b"file", b"first").await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    let shares: fn(&Operation) -> bool = |it| matches!(it, Operation::MountRealm { .. });
    for fault in [OperationFault::NotSent, OperationFault::AnswerLost] {
        wire.next(shares, fault);
    }
    let asked = Instant::now();
    let second = alone(&world).await;
    assert!(asked.elapsed() < Duration::from_secs(8));
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert!(wire.all_faults_occurred());
    assert!(first.is_shared());
    assert_eq!(open_and_read(&first, inode).await.unwrap(), b"first");
    assert_eq!(open_and_read(&second, inode).await.unwrap(), b"first");
}

#[tokio::test(start_paused = true)]
async fn a_mount_is_alone_again_when_the_others_have_been_away_for_half_a_minute() {
    let world = TestVolume::in_test_time();
    let first = alone(&world).await;
    let second = alone(&world).await;
    let inode = write(&second, b"file", b"second").await;
    assert_eq!(open_and_read(&first, inode).await.unwrap(), b"second");
    let use_for = async |seconds: u32| {
        for _ in 0..seconds {
            first.getattr(inode).await.unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    use_for(60).await;
    assert!(first.is_shared(), "the other one is still there");
    second.shutdown().await.unwrap();
    use_for(25).await;
    assert!(first.is_shared());
    use_for(10).await;
    assert!(!first.is_shared());
    let before = first.status().operations;
    use_for(120).await;
    assert_eq!(first.status().operations, before);
    let third = alone(&world).await;
    assert!(first.is_shared() && third.is_shared());
    // One that is used no more does not care.
    third.shutdown().await.unwrap();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(first.is_shared());
    assert_eq!(open_and_read(&first, inode).await.unwrap(), b"second");
}

#[tokio::test(start_paused = true)]
async fn a_mount_that_ignores_recalls_is_fenced_and_nothing_of_others_is_lost() {
    let world = TestVolume::in_test_time();
    let (first, wire) = world.over(MountMode::Alone, VfsOptions::default()).await;
    let inode = write(&first, b"file", b"first").await;
    let shares: fn(&Operation) -> bool = |it| matches!(it, Operation::MountRealm { .. });
    for _ in 0..200 {
        wire.next(shares, OperationFault::NotSent);
    }
    let asked = Instant::now();
    let second = alone(&world).await;
    let took = asked.elapsed();
    let bounds = Duration::from_secs(10)..Duration::from_secs(12);
    assert!(bounds.contains(&took), "{took:?}");
    assert_eq!(open_and_read(&second, inode).await.unwrap(), b"first");
    let fenced = open_and_read(&first, inode).await;
    assert!(matches!(fenced, Err(VfsError::Fenced)), "{fenced:?}");
    assert!(!second.is_shared(), "no other one is left");
}
