//! How long a mount's cached metadata is valid: as long as no other session changes anything.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use crate::common::{TestVolume, content, new_file, root, set_size};
use quorumfs_gateway::vfs::{AttributeChange, FileSystem, InodeId, Invalidation, VfsOptions};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

const FILES: u32 = 60;

fn name(number: u32) -> Vec<u8> {
    format!("f{number}").into_bytes()
}

/// A directory with some files, as another mount finds it.
async fn with_files(world: &TestVolume) -> (FileSystem, InodeId) {
    let maker = world.mount(VfsOptions::default()).await;
    let directory = maker
        .mkdir(&root(), maker.root(), b"d", 0o755)
        .await
        .unwrap();
    for number in 0..FILES {
        let name = name(number);
        maker
            .mknod(&root(), directory.inode, &name, 0o100_644, 0)
            .await
            .unwrap();
    }
    maker.shutdown().await.unwrap();
    (world.mount(VfsOptions::default()).await, directory.inode)
}

async fn look_at_all(fs: &FileSystem, directory: InodeId) {
    let listing = fs.opendir(&root(), directory, false).await.unwrap();
    let (mut offset, mut seen) = (0, 0);
    loop {
        let page = fs.readdir_plus(listing, offset, 20).await.unwrap();
        let Some((last, _)) = page.last() else { break };
        offset = last.cookie.0;
        seen += page.len();
    }
    fs.releasedir(listing).await.unwrap();
    assert_eq!(seen, FILES as usize + 2);
    for number in 0..FILES {
        let found = fs.lookup(&root(), directory, &name(number)).await.unwrap();
        let found = found.unwrap();
        assert_eq!(fs.getattr(found.inode).await.unwrap(), found);
    }
    let absent = fs.lookup(&root(), directory, b"absent").await.unwrap();
    assert!(absent.is_none());
}

async fn chmod(fs: &FileSystem, inode: InodeId, mode: u16) {
    let change = AttributeChange {
        mode: Some(mode),
        ..AttributeChange::default()
    };
    fs.setattr(&root(), inode, None, change).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn unchanged_metadata_is_queried_once() {
    let world = TestVolume::new();
    let (fs, directory) = with_files(&world).await;
    look_at_all(&fs, directory).await;
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(2500)).await;
        let before = fs.status().queries;
        look_at_all(&fs, directory).await;
        let asked = fs.status().queries - before;
        assert!(asked <= 1, "{asked} questions");
    }
}

#[tokio::test(start_paused = true)]
async fn small_files_that_were_read_or_written_are_read_again_without_a_query() {
    let world = TestVolume::in_test_time();
    let fs = world.mount(VfsOptions::default()).await;
    fs.lookup(&root(), fs.root(), b"nothing").await.unwrap();
    let mut files = Vec::new();
    for number in 0..40_u32 {
        let (inode, handle) = new_file(&fs, &name(number)).await;
        let bytes = vec![number as u8 + 1; 200 * number as usize];
        fs.write(handle, 0, &bytes).await.unwrap();
        fs.release(handle).await.unwrap();
        files.push((inode, bytes));
    }
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(1200)).await;
        let before = fs.status().queries;
        for (inode, bytes) in &files {
            assert_eq!(content(&fs, *inode).await, *bytes);
        }
        let asked = fs.status().queries - before;
        assert!(asked <= 1, "{asked} questions");
    }
    let (inode, bytes) = &files[39];
    let command = world.command(VfsOptions::default());
    set_size(&command, *inode, None, 5).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert_eq!(content(&fs, *inode).await, bytes[..5]);
}

#[tokio::test(start_paused = true)]
async fn without_a_mount_metadata_is_valid_for_a_second() {
    let world = TestVolume::new();
    let (fs, directory) = with_files(&world).await;
    let command = world.command(VfsOptions::default());
    let file = || async {
        let found = command.lookup(&root(), directory, b"f1").await;
        found.unwrap().unwrap()
    };
    let shown = file().await;
    assert!(!command.may_cache(&shown));
    chmod(&fs, shown.inode, 0o600).await;
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert_eq!(file().await.mode.0, 0o600);
}

#[tokio::test(start_paused = true)]
async fn changes_by_others_are_seen_and_invalidated_within_about_a_second() {
    let world = TestVolume::in_test_time();
    let (fs, directory) = with_files(&world).await;
    look_at_all(&fs, directory).await;
    let mut invalidations = fs.invalidations();
    let shown = fs.lookup(&root(), directory, b"f1").await.unwrap().unwrap();
    assert!(fs.may_cache(&shown));
    assert!(fs.may_cache_name(directory, b"f1", Some(shown.inode)));
    assert!(fs.may_cache_name(directory, b"absent", None));
    let command = world.command(VfsOptions::default());
    chmod(&command, shown.inode, 0o600).await;
    command
        .mknod(&root(), directory, b"absent", 0o100_644, 0)
        .await
        .unwrap();
    command.unlink(&root(), directory, b"f2").await.unwrap();
    let told = async {
        let mut told = BTreeSet::new();
        // The directory, the first file and the removed one.
        while told.len() < 3 {
            match invalidations.next().await {
                Some(Invalidation::Inodes(inodes)) => told.extend(inodes.iter().copied()),
                other => panic!("it is known what was changed: {other:?}"),
            }
        }
        told
    };
    let told = tokio::time::timeout(Duration::from_secs(2), told);
    let told = told.await.unwrap();
    assert!(told.contains(&directory) && told.contains(&shown.inode));
    assert_eq!(told.len(), 3);
    assert!(!fs.may_cache(&shown), "not before it was asked for again");
    let seen = fs.getattr(shown.inode).await.unwrap();
    assert_eq!(seen.mode.0, 0o600);
    for (name, there) in [(b"absent".as_slice(), true), (b"f2", false)] {
        let found = fs.lookup(&root(), directory, name).await.unwrap();
        assert_eq!(found.is_some(), there);
    }
    // The news of the last change have arrived as well.
    tokio::time::sleep(Duration::from_millis(600)).await;
    let seen = fs.getattr(shown.inode).await.unwrap();
    assert!(fs.may_cache(&seen), "nothing has changed since");
}

#[tokio::test]
async fn committed_changes_of_this_mount_are_cacheable_and_pending_ones_are_not() {
    let world = TestVolume::new();
    let fs = world.mount(VfsOptions::default()).await;
    // Any call: it asks for news.
    fs.lookup(&root(), fs.root(), b"nothing").await.unwrap();
    let (inode, handle) = new_file(&fs, b"file").await;
    assert!(fs.may_cache_name(fs.root(), b"file", Some(inode)));
    fs.write(handle, 0, b"content").await.unwrap();
    let waiting = fs.getattr(inode).await.unwrap();
    assert!(!fs.may_cache(&waiting), "its commit changes the attributes");
    fs.release(handle).await.unwrap();
    let committed = fs.getattr(inode).await.unwrap();
    assert!(fs.may_cache(&committed));
    chmod(&fs, inode, 0o600).await;
    assert!(!fs.may_cache(&committed), "that was before");
    assert!(fs.may_cache(&fs.getattr(inode).await.unwrap()));
    fs.unlink(&root(), fs.root(), b"file").await.unwrap();
    assert!(fs.may_cache_name(fs.root(), b"file", None));
}

#[tokio::test(start_paused = true)]
async fn a_mount_without_answers_or_taken_over_invalidates_the_kernels_entries() {
    let world = TestVolume::new();
    let (fs, directory) = with_files(&world).await;
    look_at_all(&fs, directory).await;
    let shown = fs.lookup(&root(), directory, b"f1").await.unwrap().unwrap();
    assert!(fs.may_cache(&shown));
    let mut invalidations = fs.invalidations();
    let taken_over = Instant::now();
    let other = world.mount(VfsOptions::default()).await;
    let next = tokio::time::timeout(Duration::from_secs(4), invalidations.next());
    assert_eq!(next.await.unwrap(), Some(Invalidation::Everything));
    assert!(taken_over.elapsed() < Duration::from_secs(3));
    assert!(!fs.may_cache(&shown));
    chmod(&other, shown.inode, 0o600).await;
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert!(fs.getattr(shown.inode).await.is_err(), "it is fenced");
}
