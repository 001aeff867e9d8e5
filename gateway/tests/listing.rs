//! What a listing shows, which the kernel takes as the truth for a second.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod common;

use common::{World, content, new_file, root};
use quorumfs_gateway::vfs::{OpenMode, RenameMode, VfsOptions};
use std::time::Duration;

#[tokio::test]
async fn a_listing_in_pieces_shows_what_was_changed_since_it_began() {
    let world = World::new();
    let fs = world.mount(VfsOptions::default()).await;
    for number in 0..40 {
        let name = format!("file {number}");
        let (_, handle) = new_file(&fs, name.as_bytes()).await;
        fs.write(handle, 0, &[1; 10]).await.unwrap();
        fs.release(handle).await.unwrap();
    }
    let listing = fs.opendir(&root(), fs.root()).await.unwrap();
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

#[tokio::test]
async fn a_page_of_a_listing_is_not_kept_for_longer_than_a_second() {
    let world = World::new();
    let fs = world.mount(VfsOptions::default()).await;
    let (inode, handle) = new_file(&fs, b"file").await;
    fs.release(handle).await.unwrap();
    let listing = fs.opendir(&root(), fs.root()).await.unwrap();
    let first = fs.readdir_plus(listing, 0, 2).await.unwrap();
    assert_eq!(first.len(), 2);
    let beside = world.beside(VfsOptions::default());
    let mode = OpenMode::READ_WRITE;
    let handle = beside.open(&root(), inode, mode).await.unwrap().handle;
    beside.write(handle, 0, b"more").await.unwrap();
    beside.release(handle).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let rest = fs.readdir_plus(listing, 2, 100).await.unwrap();
    assert_eq!(rest[0].1.size, 4);
    assert_eq!(content(&fs, inode).await, b"more");
}

#[tokio::test]
async fn a_directory_that_was_moved_away_from_one_that_is_gone_is_listed() {
    let world = World::new();
    let fs = world.mount(VfsOptions::default()).await;
    let (caller, top) = (root(), fs.root());
    let make = async |parent, name: &[u8]| fs.mkdir(&caller, parent, name, 0o755).await.unwrap();
    let (from, to) = (make(top, b"from").await, make(top, b"to").await);
    let moved = make(from.inode, b"moved").await;
    let list = async || {
        let listing = fs.opendir(&caller, moved.inode).await.unwrap();
        let shown = fs.readdir_plus(listing, 0, 10).await.unwrap();
        fs.releasedir(listing);
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
    assert!(!fs.keeps_listing(moved.inode), "its parent is another");
    fs.rmdir(&caller, top, b"from").await.unwrap();
    assert_eq!(list().await, [moved.inode, to.inode]);
}
