//! Files of very many small pieces: databases, images of disks, logs.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use crate::common::{TRUNCATE, TestVolume, new_file, root, set_size};
use quorumfs_gateway::vfs::{FileSystem, HandleId, OpenMode, VfsOptions};
use std::time::Duration;

fn manual_commits() -> VfsOptions {
    VfsOptions {
        commit_after: Duration::from_secs(3600),
        ..VfsOptions::default()
    }
}

/// A file and its expected content.
struct Written<'f> {
    fs: &'f FileSystem,
    handle: HandleId,
    model: Vec<u8>,
}

impl Written<'_> {
    async fn write(&mut self, at: usize, bytes: &[u8]) {
        let end = at + bytes.len();
        if self.model.len() < end {
            self.model.resize(end, 0);
        }
        self.model[at..end].copy_from_slice(bytes);
        self.fs.write(self.handle, at as u64, bytes).await.unwrap();
    }

    async fn check(&self, world: &TestVolume, name: &[u8]) {
        let again = world.mount(manual_commits()).await;
        let found = again.lookup(&root(), again.root(), name).await.unwrap();
        let inode = found.unwrap().inode;
        let mode = OpenMode::READ;
        let handle = again.open(&root(), inode, mode).await.unwrap().handle;
        let length = u32::try_from(self.model.len()).unwrap();
        let bytes = again.read(handle, 0, length + 1).await.unwrap();
        assert!(bytes == self.model);
    }
}

#[tokio::test]
async fn scattered_writes_into_a_file_of_many_pieces_are_committed() {
    let world = TestVolume::new();
    let fs = world.mount(manual_commits()).await;
    let (_, handle) = new_file(&fs, b"database").await;
    let mut file = Written {
        fs: &fs,
        handle,
        model: Vec::new(),
    };
    for page in 0..1200 {
        file.write(page * 8192, &[1; 100]).await;
    }
    fs.fsync(handle).await.unwrap();
    for page in 0..300 {
        file.write(page * 4 * 8192 + 40, &[2; 10]).await;
    }
    fs.fsync(handle).await.unwrap();
    file.check(&world, b"database").await;
}

#[tokio::test]
async fn many_writes_into_large_pieces_are_committed() {
    let world = TestVolume::new();
    let fs = world.mount(manual_commits()).await;
    let (_, handle) = new_file(&fs, b"image").await;
    let mut file = Written {
        fs: &fs,
        handle,
        model: Vec::new(),
    };
    for _ in 0..4 {
        let end = file.model.len();
        file.write(end, &vec![1; 1 << 20]).await;
        fs.fsync(handle).await.unwrap();
    }
    for page in 0..400 {
        file.write(page * 8192 + 40, &[2; 10]).await;
    }
    fs.fsync(handle).await.unwrap();
    file.check(&world, b"image").await;
}

#[tokio::test]
async fn one_run_over_more_pieces_than_an_operation_can_delete_is_committed() {
    let world = TestVolume::new();
    let fs = world.mount(manual_commits()).await;
    let (_, handle) = new_file(&fs, b"fragments").await;
    let mut file = Written {
        fs: &fs,
        handle,
        model: Vec::new(),
    };
    for piece in 0..1500 {
        file.write(piece * 2000, &[1; 10]).await;
    }
    fs.fsync(handle).await.unwrap();
    file.write(500, &vec![2; 3_000_000]).await;
    fs.fsync(handle).await.unwrap();
    file.check(&world, b"fragments").await;
}

#[tokio::test]
async fn a_log_of_many_pieces_that_was_replaced_by_a_tiny_one_grows_on() {
    let world = TestVolume::new();
    let fs = world.mount(manual_commits()).await;
    let (inode, handle) = new_file(&fs, b"log").await;
    for line in 0..1000 {
        fs.write(handle, line * 2000, &[1; 10]).await.unwrap();
    }
    fs.release(handle).await.unwrap();
    let handle = fs.open(&root(), inode, TRUNCATE).await.unwrap().handle;
    fs.write(handle, 0, b"x").await.unwrap();
    fs.release(handle).await.unwrap();
    let mode = OpenMode::READ_WRITE;
    let handle = fs.open(&root(), inode, mode).await.unwrap().handle;
    let mut file = Written {
        fs: &fs,
        handle,
        model: b"x".to_vec(),
    };
    file.write(1, b"y").await;
    fs.release(handle).await.unwrap();
    file.check(&world, b"log").await;
}

#[tokio::test]
async fn a_file_of_many_pieces_is_overwritten_while_a_larger_one_is_being_reaped() {
    let world = TestVolume::new();
    let fs = world.mount(manual_commits()).await;
    let (large, large_handle) = new_file(&fs, b"large").await;
    let (short, short_handle) = new_file(&fs, b"short").await;
    for (handle, pieces) in [(large_handle, 3000), (short_handle, 60)] {
        for piece in 0..pieces {
            fs.write(handle, piece * 2000, &[1; 10]).await.unwrap();
        }
        fs.fsync(handle).await.unwrap();
    }
    // Both tails are too long to go at once. Here each operation lets the servers do a piece of
    // that work, so that most of the large one is still to come.
    set_size(&fs, large, Some(large_handle), 0).await.unwrap();
    let handle = fs.open(&root(), short, TRUNCATE).await.unwrap().handle;
    let mut file = Written {
        fs: &fs,
        handle,
        model: Vec::new(),
    };
    file.write(0, &vec![2; 100_000]).await;
    fs.fsync(handle).await.unwrap();
    file.check(&world, b"short").await;
}
