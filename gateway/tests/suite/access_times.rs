//! Times of access over a service in this process: when reading moves them, and what that costs.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

use crate::common::{TestVolume, new_file, root};
use quorumfs_gateway::vfs::{
    AttributeChange, FileSystem, InodeId, OpenMode, TimeChange, Timestamp, VfsOptions,
};
use std::time::{Duration, Instant};

/// Options under which pending times are sent only at the end.
fn late() -> VfsOptions {
    VfsOptions {
        access_times_after: Duration::from_secs(3600),
        ..VfsOptions::default()
    }
}

async fn files(fs: &FileSystem, count: u32) -> Vec<InodeId> {
    let mut files = Vec::new();
    for number in 0..count {
        let (inode, handle) = new_file(fs, format!("f{number}").as_bytes()).await;
        fs.write(handle, 0, b"content").await.unwrap();
        fs.release(handle).await.unwrap();
        files.push(inode);
    }
    files
}

async fn open_and_close(fs: &FileSystem, inode: InodeId, mode: OpenMode) {
    let opened = fs.open(&root(), inode, mode).await.unwrap();
    fs.release(opened.handle).await.unwrap();
}

#[tokio::test]
async fn reading_moves_the_time_of_access_once() {
    let world = TestVolume::new();
    let fs = world.mount(late()).await;
    let files = files(&fs, 300).await;
    let mut expected = Vec::new();
    let before = fs.status().operations;
    for inode in &files {
        let was = fs.getattr(*inode).await.unwrap();
        open_and_close(&fs, *inode, OpenMode::READ).await;
        let mut is = fs.getattr(*inode).await.unwrap();
        assert!(is.atime > was.mtime && is.atime > was.ctime);
        expected.push(is);
        is.atime = was.atime;
        assert_eq!(is, was);
        open_and_close(&fs, *inode, OpenMode::READ).await;
        assert_eq!(
            fs.getattr(*inode).await.unwrap(),
            expected[expected.len() - 1]
        );
    }
    assert_eq!(fs.status().operations, before, "times are sent later");
    fs.shutdown().await.unwrap();
    let sent = fs.status().operations - before;
    assert!(sent <= 4, "{sent} operations for 300 files");
    let again = world.mount(late()).await;
    for expected in expected {
        let found = again.getattr(expected.inode).await.unwrap();
        assert_eq!(found, expected);
    }
}

#[tokio::test]
async fn writing_alone_moves_no_time_of_access_and_reading_after_it_does() {
    let world = TestVolume::new();
    let fs = world.mount(late()).await;
    let inode = files(&fs, 1).await[0];
    open_and_close(&fs, inode, OpenMode::READ).await;
    let first = fs.getattr(inode).await.unwrap().atime;
    let write = OpenMode {
        read: false,
        write: true,
        truncate: false,
        keep_atime: false,
        append: false,
    };
    let opened = fs.open(&root(), inode, write).await.unwrap();
    fs.write(opened.handle, 0, b"others").await.unwrap();
    fs.release(opened.handle).await.unwrap();
    assert_eq!(fs.getattr(inode).await.unwrap().atime, first);
    open_and_close(&fs, inode, OpenMode::READ).await;
    assert!(fs.getattr(inode).await.unwrap().atime > first);
    let root_was = fs.getattr(fs.root()).await.unwrap();
    let listing = fs.opendir(&root(), fs.root(), false).await.unwrap();
    fs.releasedir(listing).await.unwrap();
    assert!(fs.getattr(fs.root()).await.unwrap().atime > root_was.mtime);
}

#[tokio::test]
async fn reading_with_noatime_moves_no_time_of_access() {
    let world = TestVolume::new();
    let fs = world.mount(late()).await;
    let inode = files(&fs, 1).await[0];
    let seen = |inode| {
        let fs = fs.clone();
        async move { fs.getattr(inode).await.unwrap().atime }
    };
    let before = (seen(inode).await, seen(fs.root()).await);
    let quietly = OpenMode {
        keep_atime: true,
        append: false,
        ..OpenMode::READ
    };
    open_and_close(&fs, inode, quietly).await;
    let listing = fs.opendir(&root(), fs.root(), true).await.unwrap();
    fs.releasedir(listing).await.unwrap();
    assert_eq!((seen(inode).await, seen(fs.root()).await), before);
    open_and_close(&fs, inode, OpenMode::READ).await;
    assert!(seen(inode).await > before.0);
}

#[tokio::test]
async fn a_time_that_is_set_wins_over_a_pending_one() {
    let world = TestVolume::new();
    let fs = world.mount(late()).await;
    let inode = files(&fs, 1).await[0];
    open_and_close(&fs, inode, OpenMode::READ).await;
    let set = Timestamp {
        seconds: 12_345,
        nanos: 678,
    };
    let change = AttributeChange {
        atime: Some(TimeChange::At(set)),
        ..AttributeChange::default()
    };
    let is = fs.setattr(&root(), inode, None, change).await.unwrap();
    assert_eq!(is.atime, set);
    fs.shutdown().await.unwrap();
    let again = world.mount(late()).await;
    assert_eq!(again.getattr(inode).await.unwrap().atime, set);
}

#[tokio::test]
async fn pending_times_are_sent_to_the_servers_after_a_while() {
    let world = TestVolume::new();
    let options = VfsOptions {
        access_times_after: Duration::from_millis(50),
        ..VfsOptions::default()
    };
    let fs = world.mount(options).await;
    let inode = files(&fs, 1).await[0];
    let before = fs.status().operations;
    open_and_close(&fs, inode, OpenMode::READ).await;
    let seen = fs.getattr(inode).await.unwrap();
    let patience = Instant::now() + Duration::from_secs(20);
    while fs.status().operations == before {
        assert!(Instant::now() < patience);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let command = world.command(VfsOptions::default());
    while command.getattr(inode).await.unwrap() != seen {
        assert!(Instant::now() < patience);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(fs.getattr(inode).await.unwrap(), seen);
}
