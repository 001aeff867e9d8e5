//! The tier of a file and of what is made in a directory, against that of the mount.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use crate::common::{OperationFault, TestVolume, content, is_commit, new_file, root};
use quorumfs_bft::identity::Time;
use quorumfs_gateway::journal::Directory;
use quorumfs_gateway::vfs::{
    AttributeChange, Caller, FileSystem, InodeId, OpenMode, RESCUE_DIRECTORY, SetMode, Tier,
    TimeChange, VfsOptions,
};
use rustix::io::Errno;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tempfile::TempDir;

const ATTRIBUTE: &[u8] = b"user.quorumfs.tier";
const ALL: [Tier; 3] = [Tier::Memory, Tier::Local, Tier::Clouds];

/// Data is committed only when a call asks for it.
fn of(tier: Tier) -> VfsOptions {
    VfsOptions {
        tier,
        commit_after: Duration::from_secs(3600),
        ..VfsOptions::default()
    }
}

fn new_journal() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn at(directory: &TempDir) -> Directory {
    Directory::open(directory.path()).unwrap()
}

/// The files that a process leaves if it is killed now.
fn killed(directory: &TempDir) -> TempDir {
    let copy = new_journal();
    for file in std::fs::read_dir(directory.path()).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
    }
    copy
}

fn clouds_fail(world: &TestVolume, fail: bool) {
    world.slices.failing.store(fail, Ordering::Relaxed);
}

async fn set_tier(fs: &FileSystem, inode: InodeId, tier: &str) -> Result<(), Errno> {
    let root = root();
    let set = fs.setxattr(&root, inode, ATTRIBUTE, tier.as_bytes(), SetMode::Any);
    set.await.map_err(|error| error.errno())
}

#[tokio::test]
async fn the_tier_of_a_file_overrides_the_mounts() {
    for mount in ALL {
        for own in ALL {
            let case = format!("{own:?} on {mount:?}");
            let (world, journal) = (TestVolume::new(), new_journal());
            let (fs, ..) = world.mount_journalled(of(mount), at(&journal)).await;
            let (inode, handle) = new_file(&fs, b"file").await;
            set_tier(&fs, inode, own.name()).await.unwrap();
            clouds_fail(&world, true);
            fs.write(handle, 0, &[7; 5000]).await.unwrap();
            let synced = fs.fsync(handle).await;
            assert_eq!(synced.is_ok(), own != Tier::Clouds, "{case}");
            assert_eq!(
                fs.flush(handle).await.is_ok(),
                own != Tier::Clouds,
                "{case}"
            );
            let left = killed(&journal);
            if own == Tier::Clouds {
                clouds_fail(&world, false);
                fs.fsync(handle).await.unwrap();
            }
            let (after, replayed, _) = world.mount_journalled(of(mount), at(&left)).await;
            let in_place = usize::from(own == Tier::Local);
            assert_eq!(replayed.in_place, in_place, "{case}");
            let expected = if own == Tier::Memory { 0 } else { 5000 };
            let found = after.getattr(inode).await.unwrap().size;
            assert_eq!(found, expected, "{case}");
            assert!(content(&after, inode).await.iter().all(|byte| *byte == 7));
        }
    }
}

/// A database looks at its journal before it writes to it, and sets its owner to the same owner.
#[tokio::test]
async fn attributes_of_a_pending_file_ride_with_its_commit_even_if_it_is_not_writable() {
    for tier in [Tier::Memory, Tier::Local] {
        let (world, journal) = (TestVolume::new(), new_journal());
        let (fs, ..) = world.mount_journalled(of(tier), at(&journal)).await;
        let (inode, handle) = new_file(&fs, b"file").await;
        fs.write(handle, 0, &[7; 5000]).await.unwrap();
        fs.flush(handle).await.unwrap();
        fs.release(handle).await.unwrap();
        let before = fs.getattr(inode).await.unwrap();
        let reader = fs.open(&root(), inode, OpenMode::READ).await.unwrap();
        let (ordered, _) = world.embedded.counters();
        let own = AttributeChange {
            uid: Some(before.uid.0),
            gid: Some(before.gid.0),
            ..AttributeChange::default()
        };
        let given = fs.setattr(&root(), inode, None, own).await.unwrap();
        assert!(given.ctime > before.ctime && given.mtime == before.mtime);
        let old = AttributeChange {
            mode: Some(0o600),
            mtime: Some(TimeChange::At(Time(1_000_000_000_000_000).into())),
            ..AttributeChange::default()
        };
        fs.setattr(&root(), inode, None, old).await.unwrap();
        let seen = fs.getattr(inode).await.unwrap();
        assert_eq!((seen.mode.0, seen.size), (0o600, 5000));
        assert_eq!(world.embedded.counters().0, ordered, "nothing is ordered");
        fs.release(reader.handle).await.unwrap();
        fs.sync_all().await.unwrap();
        assert!(world.embedded.counters().0 > ordered);
        let committed = fs.getattr(inode).await.unwrap();
        assert_eq!((committed.mode, committed.mtime), (seen.mode, seen.mtime));
        assert_eq!(committed.ctime, seen.ctime);
        // Nothing is pending any more.
        let (ordered, _) = world.embedded.counters();
        fs.setattr(&root(), inode, None, own).await.unwrap();
        assert_eq!(world.embedded.counters().0, ordered + 1);
    }
}

#[tokio::test]
async fn a_ctime_neither_goes_back_nor_moves_again_after_a_crash() {
    for written in [true, false] {
        let (world, journal) = (TestVolume::new(), new_journal());
        let (fs, ..) = world.mount_journalled(of(Tier::Local), at(&journal)).await;
        let (inode, handle) = new_file(&fs, b"file").await;
        if written {
            fs.write(handle, 0, &[7; 5000]).await.unwrap();
        }
        let mode = AttributeChange {
            mode: Some(0o600),
            ..AttributeChange::default()
        };
        let seen = fs.setattr(&root(), inode, None, mode).await.unwrap();
        fs.fsync(handle).await.unwrap();
        let left = killed(&journal);
        let (after, ..) = world.mount_journalled(of(Tier::Local), at(&left)).await;
        let found = after.getattr(inode).await.unwrap();
        assert!(found.mode == seen.mode && found.ctime >= seen.ctime);
        tokio::time::sleep(Duration::from_millis(20)).await;
        after.sync_all().await.unwrap();
        let committed = after.getattr(inode).await.unwrap();
        assert_eq!(committed.ctime, found.ctime, "written: {written}");
    }
}

#[tokio::test]
async fn with_a_clock_that_is_ahead_a_ctime_does_not_go_back_at_the_commit() {
    let world = TestVolume::behind(3600);
    let fs = world.mount(of(Tier::Memory)).await;
    let (inode, handle) = new_file(&fs, b"file").await;
    let mut before = fs.getattr(inode).await.unwrap().ctime;
    for size in [5_000, 700_000] {
        fs.write(handle, 0, &vec![7; size]).await.unwrap();
        let mode = AttributeChange {
            mode: Some(0o600),
            ..AttributeChange::default()
        };
        let seen = fs.setattr(&root(), inode, None, mode).await.unwrap();
        assert!(seen.ctime >= before && seen.mtime > seen.ctime, "{seen:?}");
        fs.sync_all().await.unwrap();
        let committed = fs.getattr(inode).await.unwrap();
        assert_eq!(committed.ctime, seen.ctime);
        before = committed.ctime;
    }
}

#[tokio::test]
async fn an_owner_cannot_truncate_by_name_a_file_without_write_permission() {
    let world = TestVolume::new();
    let fs = world.mount(of(Tier::Memory)).await;
    let user = Caller::user(1000, 1000, Vec::new());
    let open_to_all = AttributeChange {
        mode: Some(0o777),
        ..AttributeChange::default()
    };
    fs.setattr(&root(), fs.root(), None, open_to_all)
        .await
        .unwrap();
    let made = fs.create(&user, fs.root(), b"file", 0o444, OpenMode::READ_WRITE, true);
    let (file, handle) = made.await.unwrap();
    let cut = AttributeChange {
        size: Some(0),
        ..AttributeChange::default()
    };
    let refused = fs.setattr(&user, file.inode, None, cut).await.unwrap_err();
    assert_eq!(refused.errno(), Errno::ACCESS);
    fs.setattr(&user, file.inode, Some(handle), cut)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_reopened_file_has_its_own_tier_or_the_mounts() {
    let world = TestVolume::new();
    let fs = world.mount(of(Tier::Memory)).await;
    let (inode, handle) = new_file(&fs, b"file").await;
    set_tier(&fs, inode, "clouds").await.unwrap();
    fs.release(handle).await.unwrap();
    let fs = world.mount(of(Tier::Memory)).await;
    let mode = OpenMode::READ_WRITE;
    let handle = fs.open(&root(), inode, mode).await.unwrap().handle;
    clouds_fail(&world, true);
    fs.write(handle, 0, &[1; 5000]).await.unwrap();
    fs.flush(handle).await.unwrap_err();
    fs.removexattr(&root(), inode, ATTRIBUTE).await.unwrap();
    fs.flush(handle).await.unwrap();
    set_tier(&fs, inode, "clouds").await.unwrap();
    fs.release(handle).await.unwrap_err();
    clouds_fail(&world, false);
    fs.sync_all().await.unwrap();
    assert_eq!(content(&fs, inode).await, [1; 5000]);
}

#[tokio::test]
async fn new_inodes_in_a_directory_with_a_tier_inherit_it() {
    let world = TestVolume::new();
    let fs = world.mount(of(Tier::Memory)).await;
    let (before, _) = new_file(&fs, b"before").await;
    let top = fs.mkdir(&root(), fs.root(), b"top", 0o755).await.unwrap();
    set_tier(&fs, top.inode, "clouds").await.unwrap();
    let beneath = fs.mkdir(&root(), top.inode, b"beneath", 0o755).await;
    let beneath = beneath.unwrap().inode;
    let mode = OpenMode::READ_WRITE;
    let root = root();
    let made = fs.create(&root, beneath, b"file", 0o400, mode, true);
    let (made, handle) = made.await.unwrap();
    assert_eq!(made, fs.getattr(made.inode).await.unwrap());
    clouds_fail(&world, true);
    fs.write(handle, 0, &[1; 5000]).await.unwrap();
    fs.fsync(handle).await.unwrap_err();
    clouds_fail(&world, false);
    fs.release(handle).await.unwrap();
    let fresh = world.mount(of(Tier::Memory)).await;
    for inode in [beneath, made.inode] {
        let found = fresh.getxattr(&root, inode, ATTRIBUTE).await.unwrap();
        assert_eq!(found, b"clouds".as_slice());
    }
    let none = fresh.getxattr(&root, before, ATTRIBUTE).await;
    assert_eq!(none.unwrap_err().errno(), Errno::NODATA);
}

#[tokio::test]
async fn an_unknown_tier_is_refused() {
    let world = TestVolume::new();
    let fs = world.mount(of(Tier::Clouds)).await;
    let (inode, _) = new_file(&fs, b"file").await;
    for tier in ["", "cloud", "Clouds", "clouds\n", "clouds\0", "none"] {
        let refused = set_tier(&fs, inode, tier).await;
        assert_eq!(refused, Err(Errno::INVAL), "{tier:?}");
    }
    let names = fs.listxattr(&root(), inode).await.unwrap();
    assert_eq!(names, [0; 0]);
    let other = b"trusted.quorumfs.tier";
    let root = root();
    let set = fs.setxattr(&root, inode, other, b"anything", SetMode::Any);
    set.await.unwrap();
}

#[tokio::test]
async fn the_tier_of_a_file_without_attributes_costs_no_query() {
    let world = TestVolume::new();
    let fs = world.mount(of(Tier::Memory)).await;
    let (inode, handle) = new_file(&fs, b"file").await;
    // A close also asks for the owner's free space, now and then.
    fs.write(handle, 0, b"first").await.unwrap();
    fs.release(handle).await.unwrap();
    fs.getattr(inode).await.unwrap();
    let before = fs.status().queries;
    let mode = OpenMode::READ_WRITE;
    let handle = fs.open(&root(), inode, mode).await.unwrap().handle;
    fs.write(handle, 0, b"x").await.unwrap();
    fs.release(handle).await.unwrap();
    assert_eq!(fs.status().queries, before);
}

#[tokio::test]
async fn data_pending_outside_the_journal_is_not_safe_at_local_until_it_is_committed() {
    let (world, journal) = (TestVolume::new(), new_journal());
    let options = of(Tier::Memory);
    let (fs, ..) = world.mount_journalled(options, at(&journal)).await;
    let (inode, handle) = new_file(&fs, b"file").await;
    clouds_fail(&world, true);
    fs.write(handle, 0, &[1; 3000]).await.unwrap();
    set_tier(&fs, inode, "local").await.unwrap();
    fs.fsync(handle).await.unwrap_err();
    fs.write(handle, 3000, &[2; 3000]).await.unwrap();
    fs.fsync(handle).await.unwrap_err();
    clouds_fail(&world, false);
    fs.fsync(handle).await.unwrap();
    clouds_fail(&world, true);
    fs.write(handle, 6000, &[3; 3000]).await.unwrap();
    fs.fsync(handle).await.unwrap();
    let left = killed(&journal);
    let (after, replayed, _) = world.mount_journalled(of(Tier::Memory), at(&left)).await;
    assert_eq!((replayed.in_place, replayed.rescued.len()), (1, 0));
    let expected = [[1; 3000], [2; 3000], [3; 3000]].concat();
    assert_eq!(content(&after, inode).await, expected);
}

#[tokio::test]
async fn a_journal_never_lays_older_bytes_over_newer_committed_ones() {
    for fault in [OperationFault::NotSent, OperationFault::AnswerLost] {
        let (world, journal) = (TestVolume::new(), new_journal());
        let (fs, _, wire) = world.mount_journalled(of(Tier::Local), at(&journal)).await;
        let (inode, handle) = new_file(&fs, b"file").await;
        fs.write(handle, 0, &[1; 5000]).await.unwrap();
        fs.fsync(handle).await.unwrap();
        set_tier(&fs, inode, "clouds").await.unwrap();
        fs.write(handle, 0, &[2; 5000]).await.unwrap();
        wire.next(is_commit, fault);
        fs.fsync(handle).await.unwrap_err();
        assert!(wire.all_faults_occurred());
        let left = killed(&journal);
        let (after, replayed, _) = world.mount_journalled(of(Tier::Local), at(&left)).await;
        assert_eq!(replayed.rescued, [], "{fault:?}");
        assert_eq!(content(&after, inode).await, [2; 5000], "{fault:?}");
    }
}

#[tokio::test]
async fn a_sync_at_a_tier_waits_for_that_tier_and_reports_failures() {
    let (world, journal) = (TestVolume::new(), new_journal());
    let (fs, ..) = world.mount_journalled(of(Tier::Local), at(&journal)).await;
    let (inode, handle) = new_file(&fs, b"file").await;
    clouds_fail(&world, true);
    fs.write(handle, 0, &[1; 5000]).await.unwrap();
    for which in [Some(inode), None] {
        fs.sync_at(which, Tier::Local).await.unwrap();
        fs.sync_at(which, Tier::Clouds).await.unwrap_err();
    }
    let left = killed(&journal);
    let (after, replayed, _) = world.mount_journalled(of(Tier::Local), at(&left)).await;
    assert_eq!(replayed.in_place, 1);
    assert_eq!(content(&after, inode).await, [1; 5000]);
    // Without a journal nothing less than the clouds is enough.
    let fs = world.mount(of(Tier::Memory)).await;
    let (inode, handle) = new_file(&fs, b"other").await;
    fs.write(handle, 0, &[1; 5000]).await.unwrap();
    fs.sync_at(Some(inode), Tier::Memory).await.unwrap();
    fs.sync_at(Some(inode), Tier::Local).await.unwrap_err();
    clouds_fail(&world, false);
    fs.sync_at(Some(inode), Tier::Local).await.unwrap();
    assert_eq!(fs.status().dirty_files, 0);
}

#[tokio::test]
async fn rescued_data_is_no_less_safe_than_in_the_journal() {
    for tier in ALL {
        let (world, journal) = (TestVolume::new(), new_journal());
        let (fs, ..) = world.mount_journalled(of(Tier::Local), at(&journal)).await;
        let (inode, handle) = new_file(&fs, b"file").await;
        fs.write(handle, 0, &[1; 5000]).await.unwrap();
        fs.fsync(handle).await.unwrap();
        let left = killed(&journal);
        let newer = world.mount(VfsOptions::default()).await;
        newer.unlink(&root(), newer.root(), b"file").await.unwrap();
        let (_, replayed, _) = world.mount_journalled(of(tier), at(&left)).await;
        assert_eq!(replayed.rescued.len(), 1);
        let left = killed(&left);
        let (fs, ..) = world.mount_journalled(of(tier), at(&left)).await;
        let name = RESCUE_DIRECTORY.as_bytes();
        let directory = fs.lookup(&root(), fs.root(), name).await.unwrap().unwrap();
        let name = format!("inode-{inode}");
        let found = fs.lookup(&root(), directory.inode, name.as_bytes()).await;
        let found = found.unwrap().unwrap().inode;
        assert_eq!(content(&fs, found).await, [1; 5000], "{tier:?}");
    }
}

#[tokio::test]
async fn cached_pages_outlive_a_commit_but_not_a_change_by_another_client() {
    let (world, journal) = (TestVolume::new(), new_journal());
    let (fs, ..) = world.mount_journalled(of(Tier::Local), at(&journal)).await;
    let (inode, handle) = new_file(&fs, b"file").await;
    fs.write(handle, 0, &[7; 5000]).await.unwrap();
    fs.release(handle).await.unwrap();
    fs.sync(inode).await.unwrap();
    let open = |fs: FileSystem| async move {
        let opened = fs.open(&root(), inode, OpenMode::READ).await.unwrap();
        fs.release(opened.handle).await.unwrap();
        opened.keep_pages
    };
    assert!(open(fs.clone()).await, "committed after it was closed");

    let command = world.command(of(Tier::Clouds));
    let mode = OpenMode::READ_WRITE;
    let handle = command.open(&root(), inode, mode).await.unwrap().handle;
    command.write(handle, 0, &[8; 5000]).await.unwrap();
    command.release(handle).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert!(!open(fs.clone()).await, "of the same length");
    assert_eq!(content(&fs, inode).await, [8; 5000]);
    assert!(open(fs).await, "nothing new");
}
