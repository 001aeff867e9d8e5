//! The trash over a service in this process, whose clock the tests set.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

use crate::common::{TestVolume, content, new_file, root};
use quorumfs_gateway::metadata::Embedded;
use quorumfs_gateway::vfs::{
    AttributeChange, Caller, FileSystem, InTrash, InodeId, OpenMode, SetMode, VfsOptions,
};
use quorumfs_metadata::Metadata;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A volume whose servers' clock can be put forward.
struct AgingVolume {
    world: TestVolume,
    ahead_seconds: Arc<AtomicU64>,
}

impl AgingVolume {
    fn new() -> Self {
        let mut world = TestVolume::new();
        let ahead_seconds = Arc::new(AtomicU64::new(0));
        let ahead = ahead_seconds.clone();
        let clock = move || {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            let ahead = Duration::from_secs(ahead.load(Ordering::Relaxed));
            (now + ahead).as_nanos() as u64
        };
        world.embedded = Embedded::with_clock(Metadata, &world.created.genesis, clock).unwrap();
        Self {
            world,
            ahead_seconds,
        }
    }

    fn wait(&self, seconds: u64) {
        self.ahead_seconds.fetch_add(seconds, Ordering::Relaxed);
    }
}

/// A file with content, closed.
async fn file(fs: &FileSystem, directory: InodeId, name: &[u8], bytes: &[u8]) -> InodeId {
    let mode = OpenMode::READ_WRITE;
    let made = fs.create(&root(), directory, name, 0o640, mode, true).await;
    let (found, handle) = made.unwrap();
    fs.write(handle, 0, bytes).await.unwrap();
    fs.fsync(handle).await.unwrap();
    fs.release(handle).await.unwrap();
    found.inode
}

async fn trash(fs: &FileSystem) -> Vec<InTrash> {
    let (items, next) = fs.trash(&root(), None).await.unwrap();
    assert!(next.is_none());
    items
}

fn names(items: &[InTrash]) -> Vec<&[u8]> {
    items.iter().map(|it| it.name.as_deref().unwrap()).collect()
}

#[tokio::test]
async fn a_file_that_is_restored_has_its_content_mode_times_and_attributes() {
    let volume = AgingVolume::new();
    let fs = volume.world.mount(VfsOptions::default()).await;
    let sizes = [0, 10, 3000, 300_000];
    let mut files = Vec::new();
    for size in sizes {
        let name = format!("file{size}");
        let bytes = vec![size as u8 + 1; size];
        let inode = file(&fs, fs.root(), name.as_bytes(), &bytes).await;
        fs.setxattr(&root(), inode, b"user.note", b"kept", SetMode::Any)
            .await
            .unwrap();
        files.push((inode, name, bytes, fs.getattr(inode).await.unwrap()));
    }
    volume.wait(61);
    for (_, name, _, _) in &files {
        fs.unlink(&root(), fs.root(), name.as_bytes())
            .await
            .unwrap();
        let found = fs.lookup(&root(), fs.root(), name.as_bytes()).await;
        assert!(found.unwrap().is_none());
    }
    let items = trash(&fs).await;
    let expected: Vec<_> = files.iter().map(|file| file.1.as_bytes()).collect();
    assert_eq!(names(&items), expected);
    assert!(
        items
            .iter()
            .all(|it| it.directory == fs.root() && it.by.0 == 0)
    );
    for (inode, name, bytes, before) in &files {
        let open = fs.open(&root(), *inode, OpenMode::READ).await;
        assert!(open.is_err(), "it can be opened while it is in the trash");
        let restored = fs
            .restore(&root(), *inode, fs.root(), name.as_bytes())
            .await;
        let restored = restored.unwrap();
        assert_eq!(
            (
                restored.inode,
                restored.mode,
                restored.size,
                restored.mtime,
                restored.links
            ),
            (*inode, before.mode, before.size, before.mtime, 1)
        );
        assert_eq!(content(&fs, *inode).await, *bytes, "{name}");
        let value = fs.getxattr(&root(), *inode, b"user.note").await;
        assert_eq!(&value.unwrap()[..], b"kept");
        let again = fs.restore(&root(), *inode, fs.root(), b"again").await;
        assert_eq!(again.unwrap_err().errno(), Errno::NOENT);
    }
    assert!(trash(&fs).await.is_empty());
}

#[tokio::test]
async fn a_tree_comes_back_from_its_top_and_is_listed_and_written_as_before() {
    let volume = AgingVolume::new();
    let fs = volume.world.mount(VfsOptions::default()).await;
    let top = fs
        .mkdir(&root(), fs.root(), b"top", 0o755)
        .await
        .unwrap()
        .inode;
    let sub = fs.mkdir(&root(), top, b"sub", 0o755).await.unwrap().inode;
    let inner = file(&fs, sub, b"inner", b"content").await;
    fs.symlink(&root(), sub, b"link", b"inner").await.unwrap();
    volume.wait(61);
    for name in [&b"inner"[..], b"link"] {
        fs.unlink(&root(), sub, name).await.unwrap();
    }
    fs.rmdir(&root(), top, b"sub").await.unwrap();
    fs.rmdir(&root(), fs.root(), b"top").await.unwrap();
    let (items, _) = fs.trashed_in(&root(), sub, None).await.unwrap();
    assert_eq!(names(&items), [&b"inner"[..], b"link"]);
    let early = fs.restore(&root(), sub, top, b"sub").await;
    assert_eq!(early.unwrap_err().errno(), Errno::STALE);
    for (inode, directory, name) in [
        (top, fs.root(), &b"top"[..]),
        (sub, top, b"sub"),
        (inner, sub, b"inner"),
        (items[1].inode.inode, sub, b"link"),
    ] {
        fs.restore(&root(), inode, directory, name).await.unwrap();
    }
    assert_eq!(fs.name_of(sub).await.unwrap(), Some((top, b"sub".to_vec())));
    let handle = fs.opendir(&root(), sub, false).await.unwrap();
    let listed = fs.readdir(handle, 0, 10).await.unwrap();
    let mut listed: Vec<_> = listed.into_iter().map(|entry| entry.name).collect();
    listed.sort();
    assert_eq!(listed, [&b"."[..], b"..", b"inner", b"link"]);
    fs.releasedir(handle).await.unwrap();
    let link = fs.lookup(&root(), sub, b"link").await.unwrap().unwrap();
    assert_eq!(fs.readlink(link.inode).await.unwrap(), b"inner");
    assert_eq!(content(&fs, inner).await, b"content");
    file(&fs, sub, b"new", b"more").await;
}

#[tokio::test]
async fn a_mount_sees_what_another_session_restores() {
    let volume = AgingVolume::new();
    let fs = volume.world.mount(VfsOptions::default()).await;
    let directory = fs
        .mkdir(&root(), fs.root(), b"d", 0o755)
        .await
        .unwrap()
        .inode;
    let inode = file(&fs, directory, b"file", b"content").await;
    volume.wait(61);
    fs.unlink(&root(), directory, b"file").await.unwrap();
    fs.rmdir(&root(), fs.root(), b"d").await.unwrap();
    assert!(fs.lookup(&root(), fs.root(), b"d").await.unwrap().is_none());
    let command = volume.world.command(VfsOptions::default());
    let back = command
        .restore(&root(), directory, command.root(), b"d")
        .await;
    back.unwrap();
    command
        .restore(&root(), inode, directory, b"file")
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let found = fs.lookup(&root(), fs.root(), b"d").await.unwrap().unwrap();
    assert_eq!((found.inode, found.links), (directory, 2));
    let handle = fs.opendir(&root(), directory, false).await.unwrap();
    let listed = fs.readdir(handle, 0, 10).await.unwrap();
    assert_eq!(listed.len(), 3, "the mount remembers that it was removed");
    fs.releasedir(handle).await.unwrap();
    let found = fs
        .lookup(&root(), directory, b"file")
        .await
        .unwrap()
        .unwrap();
    assert_eq!(content(&fs, found.inode).await, b"content");
}

#[tokio::test]
async fn what_is_open_goes_to_the_trash_at_its_last_close_and_young_files_never() {
    let volume = AgingVolume::new();
    let fs = volume.world.mount(VfsOptions::default()).await;
    let inode = file(&fs, fs.root(), b"open", b"content").await;
    volume.wait(61);
    let opened = fs.open(&root(), inode, OpenMode::READ_WRITE).await.unwrap();
    fs.unlink(&root(), fs.root(), b"open").await.unwrap();
    assert!(trash(&fs).await.is_empty());
    assert_eq!(
        &fs.read(opened.handle, 0, 100).await.unwrap()[..],
        b"content"
    );
    fs.release(opened.handle).await.unwrap();
    // A database makes and removes its journal at once.
    let (_, journal) = new_file(&fs, b"db-journal").await;
    fs.write(journal, 0, &[1; 5000]).await.unwrap();
    fs.fsync(journal).await.unwrap();
    fs.release(journal).await.unwrap();
    fs.unlink(&root(), fs.root(), b"db-journal").await.unwrap();
    assert_eq!(names(&trash(&fs).await), [b"open"]);
    fs.restore(&root(), inode, fs.root(), b"open")
        .await
        .unwrap();
    assert_eq!(content(&fs, inode).await, b"content");
}

#[tokio::test]
async fn a_file_that_a_command_removes_beneath_a_mount_goes_to_the_trash() {
    let volume = AgingVolume::new();
    let options = VfsOptions {
        orphans_every: Duration::from_millis(100),
        ..VfsOptions::default()
    };
    let fs = volume.world.mount(options).await;
    file(&fs, fs.root(), b"file", b"content").await;
    volume.wait(61);
    let command = volume.world.command(VfsOptions::default());
    command
        .unlink(&root(), command.root(), b"file")
        .await
        .unwrap();
    // The mount may have it open; it releases what it has not.
    let begun = tokio::time::Instant::now();
    while trash(&command).await.is_empty() {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "it is not released"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(names(&trash(&command).await), [b"file"]);
}

#[tokio::test]
async fn users_see_and_restore_their_own_and_what_they_removed() {
    let volume = AgingVolume::new();
    let fs = volume.world.mount(VfsOptions::default()).await;
    let user = |uid: u32| Caller::user(uid, uid, vec![]);
    let everyone = AttributeChange {
        mode: Some(0o777),
        ..AttributeChange::default()
    };
    fs.setattr(&root(), fs.root(), None, everyone)
        .await
        .unwrap();
    let made = fs.mkdir(&user(7), fs.root(), b"own", 0o755).await.unwrap();
    volume.wait(61);
    fs.rmdir(&user(7), fs.root(), b"own").await.unwrap();
    let seen = |who: Caller| {
        let fs = fs.clone();
        async move { fs.trash(&who, None).await.unwrap().0.len() }
    };
    assert_eq!((seen(user(7)).await, seen(user(8)).await), (1, 0));
    let refused = fs.in_trash(&user(8), made.inode).await.unwrap_err();
    assert_eq!(refused.errno(), Errno::PERM);
    let refused = fs.purge(&user(8), &[made.inode]).await.unwrap_err();
    assert_eq!(refused.errno(), Errno::PERM);
    assert_eq!(fs.purge(&user(7), &[made.inode]).await.unwrap(), 1);
    assert_eq!(seen(root()).await, 0);
}

#[tokio::test]
async fn a_write_that_finds_the_clouds_full_has_the_oldest_purged() {
    let volume = AgingVolume::new();
    let fs = volume.world.mount(VfsOptions::default()).await;
    file(&fs, fs.root(), b"old", &[1; 5000]).await;
    volume.wait(61);
    fs.unlink(&root(), fs.root(), b"old").await.unwrap();
    assert_eq!(trash(&fs).await.len(), 1);
    volume.world.slices.full.store(true, Ordering::Relaxed);
    let (_, handle) = new_file(&fs, b"new").await;
    fs.write(handle, 0, &[2; 5000]).await.unwrap();
    let refused = fs.fsync(handle).await.unwrap_err();
    assert_eq!(refused.errno(), Errno::NOSPC);
    let begun = tokio::time::Instant::now();
    while !trash(&fs).await.is_empty() {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "nothing is purged"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    volume.world.slices.full.store(false, Ordering::Relaxed);
    fs.fsync(handle).await.unwrap();
    fs.release(handle).await.unwrap();
}
