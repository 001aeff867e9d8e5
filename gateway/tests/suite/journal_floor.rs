//! A journal whose disk has less free space than its floor: writers bypass it, and data that was
//! written without it is never replayed in part.

#![allow(clippy::unwrap_used)]

use crate::common::{DiskFault, FaultyDisk, TestVolume, content, new_file};
use crate::journal::{at, clouds_fail, killed, local, new_journal};
use quorumfs_gateway::vfs::{FileSystem, VfsOptions};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tempfile::TempDir;

async fn mount_below_floor(world: &TestVolume, journal: &TempDir) -> (FileSystem, Arc<DiskFault>) {
    let fault = Arc::new(DiskFault::default());
    fault.full.store(true, Ordering::Relaxed);
    let disk = FaultyDisk(at(journal), fault.clone());
    let (fs, ..) = world.mount_journalled(local(), disk).await;
    (fs, fault)
}

/// Sets the free space of the journal's disk below or above the floor, and waits until the journal
/// notices.
async fn leave_room(fs: &FileSystem, fault: &DiskFault, enough: bool) {
    fault.full.store(!enough, Ordering::Relaxed);
    let noticed = async {
        while fs.status().journal.unwrap().disk_full == enough {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let noticed = tokio::time::timeout(Duration::from_secs(30), noticed).await;
    noticed.unwrap();
}

#[tokio::test]
async fn below_the_floor_close_and_fsync_wait_for_the_clouds() {
    let (world, journal) = (TestVolume::new(), new_journal());
    let (fs, fault) = mount_below_floor(&world, &journal).await;
    let (inode, handle) = new_file(&fs, b"file").await;
    let elsewhere = || world.command(VfsOptions::default());
    // It checks at its first write; that file is in it.
    fs.write(handle, 0, &[1; 3000]).await.unwrap();
    leave_room(&fs, &fault, false).await;
    fs.write(handle, 3000, &[2; 3000]).await.unwrap();
    assert_eq!(content(&elsewhere(), inode).await, [1; 3000], "committed");
    clouds_fail(&world, true);
    fs.fsync(handle).await.unwrap_err();
    fs.write(handle, 6000, &[3; 3000]).await.unwrap();
    clouds_fail(&world, false);
    fs.fsync(handle).await.unwrap();
    let expected = [[1; 3000], [2; 3000], [3; 3000]].concat();
    assert_eq!(content(&elsewhere(), inode).await, expected);
    leave_room(&fs, &fault, true).await;
    clouds_fail(&world, true);
    fs.write(handle, 0, &[4; 3000]).await.unwrap();
    fs.fsync(handle).await.unwrap();
}

#[tokio::test]
async fn a_file_begun_below_the_floor_is_not_replayed_in_part() {
    let (world, journal) = (TestVolume::new(), new_journal());
    let (fs, fault) = mount_below_floor(&world, &journal).await;
    let (_, other) = new_file(&fs, b"other").await;
    fs.write(other, 0, &[1; 10]).await.unwrap();
    leave_room(&fs, &fault, false).await;
    let (inode, handle) = new_file(&fs, b"file").await;
    fs.write(handle, 0, &[1; 3000]).await.unwrap();
    leave_room(&fs, &fault, true).await;
    fs.write(handle, 3000, &[2; 3000]).await.unwrap();
    fs.fsync(other).await.unwrap();
    let killed = killed(&journal);
    let (fs, ..) = world.mount_journalled(local(), at(&killed)).await;
    // Until the commit the file is empty; by then, on a busy machine, the first write may be there.
    let found = content(&fs, inode).await;
    let written = [[1; 3000], [2; 3000]].concat();
    assert!(
        [0, 3000, 6000].contains(&found.len()) && written.starts_with(&found),
        "the second write alone, or a part: {} bytes",
        found.len()
    );
}
