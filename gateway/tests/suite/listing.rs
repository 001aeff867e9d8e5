//! Listings, which the kernel caches for a second.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use crate::common::{TestVolume, content, new_file, root};
use quorumfs_gateway::vfs::{AttributeChange, OpenMode, RenameMode, VfsOptions};
use std::time::Duration;

#[tokio::test]
async fn a_listing_in_pieces_shows_changes_since_it_began() {
    let world = TestVolume::new();
    let fs = world.mount(VfsOptions::default()).await;
    for number in 0..40 {
        let name = format!("file {number}");
        let (_, handle) = new_file(&fs, name.as_bytes()).await;
        fs.write(handle, 0, &[1; 10]).await.unwrap();
        fs.release(handle).await.unwrap();
    }
    let listing = fs.opendir(&root(), fs.root(), false).await.unwrap();
    let first = fs.readdir_plus(listing, 0, 20).await.unwrap();
    let rest = fs.readdir_plus(listing, first[19].0.cookie.0, 100).await;
    let rest = rest.unwrap();
    let (grown, removed, replaced) = (&rest[3].0, &rest[5].0, &rest[7].0);

    let mode = OpenMode::READ_WRITE;
    let handle = fs.open(&root(), grown.inode, mode).await.unwrap().handle;
    fs.write(handle, 10, &[2; 10]).await.unwrap();
    fs.release(handle).await.unwrap();
    let after = first[19].0.cookie.0;
    let shown = fs.readdir_plus(listing, after, 100).await.unwrap();
    let of = |shown: &[(_, quorumfs_gateway::vfs::Attributes)], inode| {
        let found = shown.iter().find(|(_, found)| found.inode == inode);
        found.map(|(_, found)| found.size)
    };
    assert_eq!(of(&shown, grown.inode), Some(20));

    fs.unlink(&root(), fs.root(), &removed.name).await.unwrap();
    fs.unlink(&root(), fs.root(), &replaced.name).await.unwrap();
    let (new, handle) = new_file(&fs, &replaced.name).await;
    fs.release(handle).await.unwrap();
    let shown = fs.readdir_plus(listing, after, 100).await.unwrap();
    assert_eq!(of(&shown, removed.inode), None);
    assert_eq!(of(&shown, replaced.inode), None);
    assert_eq!(of(&shown, new), Some(0));
    assert_eq!(shown.len(), rest.len() - 1);
}

#[tokio::test(start_paused = true)]
async fn a_page_of_a_listing_is_cached_for_at_most_a_second() {
    let world = TestVolume::in_test_time();
    let fs = world.mount(VfsOptions::default()).await;
    let (inode, handle) = new_file(&fs, b"file").await;
    fs.release(handle).await.unwrap();
    let listing = fs.opendir(&root(), fs.root(), false).await.unwrap();
    let first = fs.readdir_plus(listing, 0, 2).await.unwrap();
    assert_eq!(first.len(), 2);
    let command = world.command(VfsOptions::default());
    let mode = OpenMode::READ_WRITE;
    let handle = command.open(&root(), inode, mode).await.unwrap().handle;
    command.write(handle, 0, b"more").await.unwrap();
    command.release(handle).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let rest = fs.readdir_plus(listing, 2, 100).await.unwrap();
    assert_eq!(rest[0].1.size, 4);
    assert_eq!(content(&fs, inode).await, b"more");
}

#[tokio::test]
async fn a_directory_moved_out_of_a_removed_one_is_listed() {
    let world = TestVolume::new();
    let fs = world.mount(VfsOptions::default()).await;
    let (caller, top) = (root(), fs.root());
    let make = async |parent, name: &[u8]| fs.mkdir(&caller, parent, name, 0o755).await.unwrap();
    let (from, to) = (make(top, b"from").await, make(top, b"to").await);
    let moved = make(from.inode, b"moved").await;
    let list = async || {
        let listing = fs.opendir(&caller, moved.inode, false).await.unwrap();
        let shown = fs.readdir_plus(listing, 0, 10).await.unwrap();
        fs.releasedir(listing).await.unwrap();
        shown
            .iter()
            .map(|(entry, _)| entry.inode)
            .collect::<Vec<_>>()
    };
    assert_eq!(list().await, [moved.inode, from.inode]);
    let mode = RenameMode::NoReplace;
    fs.rename(&caller, from.inode, b"moved", to.inode, b"moved", mode)
        .await
        .unwrap();
    assert!(!fs.may_cache_listing(moved.inode), "its parent is another");
    fs.rmdir(&caller, top, b"from").await.unwrap();
    assert_eq!(list().await, [moved.inode, to.inode]);
}

#[tokio::test(start_paused = true)]
async fn the_latest_pipes_without_names_are_held_in_case_they_are_open() {
    let world = TestVolume::new();
    let options = VfsOptions {
        orphans_every: Duration::from_millis(100),
        ..VfsOptions::default()
    };
    let fs = world.mount(options).await;
    let (caller, top) = (root(), fs.root());
    let mut pipes = Vec::new();
    for _ in 0..300 {
        let pipe = fs.mknod(&caller, top, b"pipe", 0o010_644, 0).await.unwrap();
        fs.unlink(&caller, top, b"pipe").await.unwrap();
        pipes.push(pipe.inode);
    }
    tokio::time::sleep(Duration::from_millis(1200)).await;
    let change = AttributeChange {
        mode: Some(0o600),
        ..AttributeChange::default()
    };
    let latest = *pipes.last().unwrap();
    fs.setattr(&caller, latest, None, change).await.unwrap();
    let mut there = 0;
    for pipe in &pipes {
        there += usize::from(fs.getattr(*pipe).await.is_ok_and(|it| it.links == 0));
    }
    assert_eq!(there, 256);
    fs.getattr(pipes[0]).await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn an_open_directory_without_a_name_lives_until_it_is_closed() {
    let world = TestVolume::in_test_time();
    let options = VfsOptions {
        orphans_every: Duration::from_millis(100),
        ..VfsOptions::default()
    };
    let fs = world.mount(options).await;
    let command = world.command(VfsOptions::default());
    let (caller, top) = (root(), fs.root());
    let inodes = async || {
        let usage = command.statfs().await.unwrap();
        usage.files - usage.files_free
    };
    for way in 0..3 {
        let before = inodes().await;
        let directory = fs.mkdir(&caller, top, b"directory", 0o755).await.unwrap();
        let inode = directory.inode;
        let first = fs.opendir(&caller, inode, false).await.unwrap();
        let second = fs.opendir(&caller, inode, false).await.unwrap();
        match way {
            0 => fs.rmdir(&caller, top, b"directory").await.unwrap(),
            1 => command.rmdir(&caller, top, b"directory").await.unwrap(),
            _ => {
                fs.mkdir(&caller, top, b"other", 0o755).await.unwrap();
                let (from, to) = ((top, b"other"), (top, b"directory"));
                let mode = RenameMode::Replace;
                fs.rename(&caller, from.0, from.1, to.0, to.1, mode)
                    .await
                    .unwrap();
                fs.rmdir(&caller, top, b"directory").await.unwrap();
            }
        }
        fs.releasedir(first).await.unwrap();
        // Cached entries have expired, and the orphans were released.
        tokio::time::sleep(Duration::from_millis(1200)).await;
        let change = AttributeChange {
            mode: Some(0o700),
            ..AttributeChange::default()
        };
        fs.setattr(&caller, inode, None, change).await.unwrap();
        let found = fs.getattr(inode).await.unwrap();
        assert_eq!((found.links, found.mode.0), (0, 0o700));
        let made = fs.mkdir(&caller, inode, b"below", 0o755).await.unwrap_err();
        assert_eq!(made.errno(), rustix::io::Errno::NOENT);
        assert_eq!(inodes().await, before + 1);
        fs.releasedir(second).await.unwrap();
        assert_eq!(inodes().await, before);
        fs.getattr(inode).await.unwrap_err();
    }
}

#[tokio::test]
async fn a_path_descriptor_of_a_removed_inode_shows_its_last_attributes() {
    let world = TestVolume::new();
    let fs = world.mount(VfsOptions::default()).await;
    let (caller, top) = (root(), fs.root());
    let directory = fs.mkdir(&caller, top, b"directory", 0o750).await.unwrap();
    let (file, handle) = new_file(&fs, b"file").await;
    fs.write(handle, 0, &[1; 10]).await.unwrap();
    fs.release(handle).await.unwrap();
    fs.rmdir(&caller, top, b"directory").await.unwrap();
    fs.unlink(&caller, top, b"file").await.unwrap();
    let found = fs.getattr(directory.inode).await.unwrap();
    assert_eq!((found.links, found.mode.0), (0, 0o750));
    let found = fs.getattr(file).await.unwrap();
    assert_eq!((found.links, found.size), (0, 10));
    fs.open(&caller, file, OpenMode::READ).await.unwrap_err();
    let listing = fs.opendir(&caller, directory.inode, false).await.unwrap();
    assert_eq!(fs.readdir(listing, 0, 10).await.unwrap(), []);
    fs.releasedir(listing).await.unwrap();
}
