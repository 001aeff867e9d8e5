//! For how long a mount believes what it has learned: as long as nobody else changes anything, and
//! no longer.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use crate::common::{World, content, new_file, root, set_size};
use quorumfs_gateway::vfs::{AttributeChange, FileSystem, InodeId, VfsOptions};
use std::time::Duration;
use tokio::time::Instant;

const FILES: u32 = 60;

fn name(number: u32) -> Vec<u8> {
    format!("f{number}").into_bytes()
}

/// A directory with some files, as a mount finds it that has not made it.
async fn with_files(world: &World) -> (FileSystem, InodeId) {
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
async fn what_nobody_else_changes_is_asked_for_once() {
    let world = World::new();
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
async fn small_files_that_were_read_or_written_are_read_again_without_a_question() {
    let world = World::new();
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
    let beside = world.beside(VfsOptions::default());
    set_size(&beside, *inode, None, 5).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert_eq!(content(&fs, *inode).await, bytes[..5]);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_has_nothing_mounted_believes_for_a_second() {
    let world = World::new();
    let (fs, directory) = with_files(&world).await;
    let beside = world.beside(VfsOptions::default());
    let file = || async {
        let found = beside.lookup(&root(), directory, b"f1").await;
        found.unwrap().unwrap()
    };
    let shown = file().await;
    assert!(!beside.keeps(&shown));
    chmod(&fs, shown.inode, 0o600).await;
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert_eq!(file().await.mode.0, 0o600);
}

#[tokio::test]
async fn what_others_change_is_seen_and_taken_back_within_about_a_second() {
    let world = World::new();
    let (fs, directory) = with_files(&world).await;
    look_at_all(&fs, directory).await;
    let mut doubts = fs.doubts();
    let shown = fs.lookup(&root(), directory, b"f1").await.unwrap().unwrap();
    assert!(fs.keeps(&shown));
    assert!(fs.keeps_name(directory, b"f1", Some(shown.inode)));
    assert!(fs.keeps_name(directory, b"absent", None));
    let beside = world.beside(VfsOptions::default());
    chmod(&beside, shown.inode, 0o600).await;
    beside
        .mknod(&root(), directory, b"absent", 0o100_644, 0)
        .await
        .unwrap();
    beside.unlink(&root(), directory, b"f2").await.unwrap();
    let changed = tokio::time::timeout(Duration::from_secs(2), doubts.changed());
    changed.await.unwrap().unwrap();
    assert!(!fs.keeps(&shown), "not before it was asked for again");
    let seen = fs.getattr(shown.inode).await.unwrap();
    assert_eq!(seen.mode.0, 0o600);
    for (name, there) in [(b"absent".as_slice(), true), (b"f2", false)] {
        let found = fs.lookup(&root(), directory, name).await.unwrap();
        assert_eq!(found.is_some(), there);
    }
    // The last of the changes has been heard of as well.
    tokio::time::sleep(Duration::from_millis(600)).await;
    let seen = fs.getattr(shown.inode).await.unwrap();
    assert!(fs.keeps(&seen), "nothing has changed since");
}

#[tokio::test]
async fn what_this_mount_changes_is_kept_and_what_waits_is_not() {
    let world = World::new();
    let fs = world.mount(VfsOptions::default()).await;
    // Anything: the count is asked for.
    fs.lookup(&root(), fs.root(), b"nothing").await.unwrap();
    let (inode, handle) = new_file(&fs, b"file").await;
    assert!(fs.keeps_name(fs.root(), b"file", Some(inode)));
    fs.write(handle, 0, b"content").await.unwrap();
    let waiting = fs.getattr(inode).await.unwrap();
    assert!(!fs.keeps(&waiting), "its commit changes what is shown");
    fs.release(handle).await.unwrap();
    let committed = fs.getattr(inode).await.unwrap();
    assert!(fs.keeps(&committed));
    chmod(&fs, inode, 0o600).await;
    assert!(!fs.keeps(&committed), "that was before");
    assert!(fs.keeps(&fs.getattr(inode).await.unwrap()));
    fs.unlink(&root(), fs.root(), b"file").await.unwrap();
    assert!(fs.keeps_name(fs.root(), b"file", None));
}

#[tokio::test(start_paused = true)]
async fn a_mount_that_hears_nothing_takes_back_what_it_gave_and_one_that_was_taken_over_too() {
    let world = World::new();
    let (fs, directory) = with_files(&world).await;
    look_at_all(&fs, directory).await;
    let shown = fs.lookup(&root(), directory, b"f1").await.unwrap().unwrap();
    assert!(fs.keeps(&shown));
    let mut doubts = fs.doubts();
    let taken_over = Instant::now();
    let other = world.mount(VfsOptions::default()).await;
    let changed = tokio::time::timeout(Duration::from_secs(4), doubts.changed());
    changed.await.unwrap().unwrap();
    assert!(taken_over.elapsed() < Duration::from_secs(3));
    assert!(!fs.keeps(&shown));
    chmod(&other, shown.inode, 0o600).await;
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert!(fs.getattr(shown.inode).await.is_err(), "it is fenced");
}
