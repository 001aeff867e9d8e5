//! A principal that may act for some users and groups only, and mounts: requests of any others to
//! the servers fail with EPERM, under any user of the kernel, and have no effect.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use crate::common::{TestVolume, content, new_volume, root};
use quorumfs_gateway::vfs::{
    AttributeChange, Caller, FileSystem, OpenMode, RenameMode, VfsError, VfsOptions,
};
use quorumfs_gateway::volume::NewVolume;
use quorumfs_metadata::identity::{Gid, Uid};
use quorumfs_metadata::row::Assertable;
use rustix::io::Errno;

/// A volume whose owner may act for these only.
fn world_of(uids: &[u32], gids: &[u32]) -> TestVolume {
    TestVolume::of(NewVolume {
        root_owner: (Uid::ROOT, Gid(0)),
        owner_uids: Assertable::Only(uids.iter().copied().map(Uid).collect()),
        owner_gids: Assertable::Only(gids.iter().copied().map(Gid).collect()),
        ..new_volume()
    })
}

fn errno<T: std::fmt::Debug>(outcome: Result<T, VfsError>) -> Errno {
    outcome.unwrap_err().errno()
}

async fn make(fs: &FileSystem, who: &Caller, name: &[u8]) -> Result<(), VfsError> {
    let mode = OpenMode::READ_WRITE;
    let (_, handle) = fs.create(who, fs.root(), name, 0o644, mode, true).await?;
    fs.write(handle, 0, name).await?;
    fs.release(handle).await
}

#[tokio::test]
async fn users_that_the_principal_may_not_act_for_are_refused_and_others_go_on() {
    let world = world_of(&[0, 7], &[0, 7, 8]);
    let fs = world.mount(VfsOptions::default()).await;
    let change = |mode| AttributeChange {
        mode: Some(mode),
        ..AttributeChange::default()
    };
    let (top, replace) = (fs.root(), RenameMode::Replace);
    fs.setattr(&root(), top, None, change(0o777)).await.unwrap();
    make(&fs, &root(), b"root's").await.unwrap();
    let user = Caller::user(7, 7, vec![8]);
    make(&fs, &user, b"user's").await.unwrap();
    let inode = fs.lookup(&user, top, b"user's").await.unwrap();
    let inode = inode.unwrap().inode;
    fs.setattr(&user, inode, None, change(0o666)).await.unwrap();

    // Another user, and the right one in a group that is not the user's.
    for stranger in [
        Caller::user(9, 7, vec![]),
        Caller::user(7, 9, vec![]),
        Caller::user(7, 7, vec![8, 9]),
    ] {
        assert_eq!(errno(make(&fs, &stranger, b"new").await), Errno::PERM);
        let made = fs.mkdir(&stranger, top, b"new", 0o755).await;
        assert_eq!(errno(made), Errno::PERM);
        let made = fs.symlink(&stranger, top, b"new", b"target").await;
        assert_eq!(errno(made), Errno::PERM);
        let linked = fs.link(&stranger, inode, top, b"new").await;
        assert_eq!(errno(linked), Errno::PERM);
        let gone = fs.unlink(&stranger, top, b"user's").await;
        assert_eq!(errno(gone), Errno::PERM);
        let moved = fs.rename(&stranger, top, b"user's", top, b"new", replace);
        assert_eq!(errno(moved.await), Errno::PERM);
        let set = fs.setattr(&stranger, inode, None, change(0o777)).await;
        assert_eq!(errno(set), Errno::PERM);
    }
    assert!(fs.lookup(&root(), top, b"new").await.unwrap().is_none());
    assert_eq!(fs.getattr(inode).await.unwrap().mode.0, 0o666);
    assert_eq!(content(&fs, inode).await, b"user's");
    make(&fs, &user, b"user's too").await.unwrap();
    fs.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_principal_that_may_not_act_for_the_superuser_has_no_such_rights() {
    let world = world_of(&[7], &[7]);
    let fs = world.mount(VfsOptions::default()).await;
    assert_eq!(errno(make(&fs, &root(), b"file").await), Errno::PERM);
    let change = AttributeChange {
        mode: Some(0o777),
        ..AttributeChange::default()
    };
    let set = fs.setattr(&root(), fs.root(), None, change).await;
    assert_eq!(errno(set), Errno::PERM);
    // It may act as that user; the root directory belongs to another.
    let user = Caller::user(7, 7, vec![]);
    assert_eq!(errno(make(&fs, &user, b"file").await), Errno::ACCESS);
    let found = fs.lookup(&user, fs.root(), b"file").await.unwrap();
    assert!(found.is_none());
    fs.shutdown().await.unwrap();
}
