//! Data that was written at tier `local` survives the end of the process at any moment: the next
//! mount on this host puts it in place, or rescues it if another client has changed the file.
//!
//! A process that is killed leaves its files as they are at that moment; so a test copies them and
//! mounts from the copy, which takes the volume over. The mount before it is fenced and can do no
//! more, as a dead one.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use crate::common::{
    DiskFault, FaultyDisk, OperationFault, TestVolume, content, is_commit, new_file, root, set_size,
};
use quorumfs_gateway::journal::{Directory, Reason};
use quorumfs_gateway::vfs::{
    Allocation, AttributeChange, Caller, FileSystem, HandleId, InodeId, OpenMode, RESCUE_DIRECTORY,
    RenameMode, Replayed, SetMode, Tier, VfsOptions,
};
use quorumfs_metadata::attributes::Mode;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tempfile::TempDir;

/// Data is committed only when a call asks for it.
pub(crate) fn local() -> VfsOptions {
    VfsOptions {
        tier: Tier::Local,
        commit_after: Duration::from_secs(3600),
        ..VfsOptions::default()
    }
}

pub(crate) fn at(directory: &TempDir) -> Directory {
    Directory::open(directory.path()).unwrap()
}

pub(crate) fn new_journal() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn names(directory: &TempDir) -> BTreeSet<OsString> {
    let entries = std::fs::read_dir(directory.path()).unwrap();
    entries.map(|entry| entry.unwrap().file_name()).collect()
}

/// The files that a process leaves if it is killed now. This one goes on: if it made or removed a
/// file during the copy, the copy is repeated.
pub(crate) fn killed(directory: &TempDir) -> TempDir {
    loop {
        let (copy, before) = (new_journal(), names(directory));
        let copied = before.iter().all(|name| {
            let from = directory.path().join(name);
            std::fs::copy(from, copy.path().join(name)).is_ok()
        });
        if copied && names(directory) == before {
            return copy;
        }
    }
}

pub(crate) fn clouds_fail(world: &TestVolume, fail: bool) {
    world.slices.failing.store(fail, Ordering::Relaxed);
}

async fn lookup(fs: &FileSystem, name: &str) -> Option<InodeId> {
    let found = fs.lookup(&root(), fs.root(), name.as_bytes()).await;
    found.unwrap().map(|found| found.inode)
}

/// The volume's content as clients without a journal see it.
async fn committed(world: &TestVolume, inode: InodeId) -> Vec<u8> {
    let fs = world.mount(VfsOptions::default()).await;
    content(&fs, inode).await
}

/// The content of the only rescued file.
async fn rescued(fs: &FileSystem, inode: InodeId) -> Vec<u8> {
    let name = fs.rescued().await.unwrap().unwrap();
    let directory = lookup(fs, &name).await.unwrap();
    assert_eq!(fs.getattr(directory).await.unwrap().mode, Mode(0o700));
    let name = format!("inode-{inode}");
    let found = fs.lookup(&root(), directory, name.as_bytes()).await;
    let found = found.unwrap().unwrap();
    assert_eq!(found.mode, Mode(0o600));
    content(fs, found.inode).await
}

#[tokio::test]
async fn synced_data_survives_a_kill_while_all_clouds_are_down() {
    for length in [10, 5000, 6 << 20] {
        let (world, journal) = (TestVolume::new(), new_journal());
        let (fs, ..) = world.mount_journalled(local(), at(&journal)).await;
        let (inode, handle) = new_file(&fs, b"file").await;
        clouds_fail(&world, true);
        let bytes = vec![7; length];
        fs.write(handle, 3, &bytes).await.unwrap();
        fs.fsync(handle).await.unwrap();
        let expected = [[0; 3].as_slice(), &bytes].concat();
        let killed = killed(&journal);
        assert_eq!(committed(&world, inode).await, [0; 0]);
        let (fs, replayed, _) = world.mount_journalled(local(), at(&killed)).await;
        assert_eq!((replayed.in_place, replayed.rescued.len()), (1, 0));
        assert_eq!(fs.getattr(inode).await.unwrap().size, expected.len() as u64);
        let found = content(&fs, inode).await;
        assert!(found == expected[..found.len()]);
        assert_eq!(fs.status().journal.unwrap().waiting, 1);
        clouds_fail(&world, false);
        fs.shutdown().await.unwrap();
        assert_eq!(names(&killed).len(), 0, "nothing waits any more");
        let found = committed(&world, inode).await;
        assert!(found == expected[..found.len()]);
    }
}

#[tokio::test]
async fn a_close_waits_for_the_journal_and_not_for_the_clouds() {
    let (world, journal) = (TestVolume::new(), new_journal());
    let (fs, ..) = world.mount_journalled(local(), at(&journal)).await;
    clouds_fail(&world, true);
    let (inode, handle) = new_file(&fs, b"file").await;
    fs.write(handle, 0, &[1; 5000]).await.unwrap();
    fs.flush(handle).await.unwrap();
    let killed = killed(&journal);
    fs.release(handle).await.unwrap();
    assert_eq!(fs.status().dirty_files, 1);
    let queue = fs.queue();
    assert_eq!((queue.len(), queue[0].inode), (1, inode));
    assert!(queue[0].bytes >= 5000 && queue[0].waiting.is_some());
    fs.sync(inode).await.unwrap_err();
    clouds_fail(&world, false);
    fs.sync(inode).await.unwrap();
    assert_eq!(fs.queue(), []);
    assert_eq!(committed(&world, inode).await, [1; 5000]);
    // Data in the clouds is not rescued: no other client changed it.
    let (fs, replayed, _) = world.mount_journalled(local(), at(&killed)).await;
    let Replayed { rescued, .. } = replayed;
    assert_eq!(
        rescued,
        [(inode, Reason::Changed)],
        "that copy knew of no commit"
    );
    assert_eq!(content(&fs, inode).await, [1; 5000]);
}

#[tokio::test]
async fn a_kill_in_the_middle_of_a_commit_loses_nothing() {
    for fault in [
        OperationFault::NotSent,
        OperationFault::AnswerLost,
        OperationFault::Late,
    ] {
        for (before, length) in [(0, 10), (0, 5000), (3000, 10), (5000, 3000)] {
            let (world, journal) = (TestVolume::new(), new_journal());
            let (fs, _, wire) = world.mount_journalled(local(), at(&journal)).await;
            let (inode, handle) = new_file(&fs, b"file").await;
            if before > 0 {
                fs.write(handle, 0, &vec![1; before]).await.unwrap();
                fs.sync(inode).await.unwrap();
            }
            fs.write(handle, 5, &vec![2; length]).await.unwrap();
            wire.next(is_commit, fault);
            fs.sync(inode).await.unwrap_err();
            assert!(wire.all_faults_occurred());
            // It continues, and is killed then.
            fs.write(handle, 7, &[3]).await.unwrap();
            fs.fsync(handle).await.unwrap();
            let expected = content(&fs, inode).await;
            let killed = killed(&journal);
            let (fs, replayed, _) = world.mount_journalled(local(), at(&killed)).await;
            wire.deliver().await;
            let case = format!("{fault:?} {before} {length}");
            assert_eq!(replayed.rescued, [], "{case}");
            assert_eq!(content(&fs, inode).await, expected, "{case}");
            fs.sync_all().await.unwrap();
            assert_eq!(committed(&world, inode).await, expected, "{case}");
        }
    }
}

#[tokio::test]
async fn changes_by_another_client_stay_and_journalled_bytes_are_rescued() {
    let (world, journal) = (TestVolume::new(), new_journal());
    let (fs, ..) = world.mount_journalled(local(), at(&journal)).await;
    let (inode, handle) = new_file(&fs, b"file").await;
    let (gone, other) = new_file(&fs, b"gone").await;
    fs.write(handle, 2, &[1; 3000]).await.unwrap();
    fs.write(other, 0, b"of the deleted").await.unwrap();
    fs.fsync(handle).await.unwrap();
    fs.fsync(other).await.unwrap();
    let killed = killed(&journal);
    let newer = world.mount(VfsOptions::default()).await;
    let mode = OpenMode::READ_WRITE;
    let there = newer.open(&root(), inode, mode).await.unwrap().handle;
    newer.write(there, 0, b"newer").await.unwrap();
    newer.release(there).await.unwrap();
    newer.unlink(&root(), newer.root(), b"gone").await.unwrap();
    newer.shutdown().await.unwrap();
    // The clouds are not needed for that.
    clouds_fail(&world, true);
    let (fs, replayed, _) = world.mount_journalled(local(), at(&killed)).await;
    let expected = [(inode, Reason::Changed), (gone, Reason::Deleted)];
    assert_eq!(replayed.rescued, expected);
    assert_eq!(content(&fs, inode).await, b"newer");
    let bytes = [[0; 2].as_slice(), &[1; 3000]].concat();
    assert_eq!(rescued(&fs, inode).await, bytes);
    assert_eq!(rescued(&fs, gone).await, b"of the deleted");
    // Not again; and the rescued data itself survives a kill.
    let again = self::killed(&killed);
    let (fs, replayed, _) = world.mount_journalled(local(), at(&again)).await;
    assert_eq!((replayed.in_place, replayed.rescued.len()), (2, 0));
    assert_eq!(rescued(&fs, inode).await, bytes);
    clouds_fail(&world, false);
    fs.shutdown().await.unwrap();
    assert_eq!(names(&again).len(), 0);
}

#[tokio::test]
async fn what_a_user_has_in_the_place_of_rescued_files_stays_and_keeps_no_mount_from_starting() {
    let (world, journal) = (TestVolume::new(), new_journal());
    let (fs, ..) = world.mount_journalled(local(), at(&journal)).await;
    let (inode, handle) = new_file(&fs, b"file").await;
    fs.write(handle, 0, b"of the deleted").await.unwrap();
    fs.fsync(handle).await.unwrap();
    let killed = killed(&journal);
    let newer = world.mount(VfsOptions::default()).await;
    newer.unlink(&root(), newer.root(), b"file").await.unwrap();
    let (taken, handle) = new_file(&newer, RESCUE_DIRECTORY.as_bytes()).await;
    newer.write(handle, 0, b"a user's").await.unwrap();
    newer.release(handle).await.unwrap();
    let second = format!("{RESCUE_DIRECTORY}-1");
    let stranger = Caller::user(4321, 4321, Vec::new());
    let all = AttributeChange {
        mode: Some(0o777),
        ..AttributeChange::default()
    };
    newer
        .setattr(&root(), newer.root(), None, all)
        .await
        .unwrap();
    let made = newer.mkdir(&stranger, newer.root(), second.as_bytes(), 0o777);
    made.await.unwrap();
    assert_eq!(newer.rescued().await.unwrap(), None);
    newer.shutdown().await.unwrap();
    let (fs, replayed, _) = world.mount_journalled(local(), at(&killed)).await;
    assert_eq!(replayed.rescued, [(inode, Reason::Deleted)]);
    let place = fs.rescued().await.unwrap();
    assert_eq!(place, Some(format!("{RESCUE_DIRECTORY}-2")));
    assert_eq!(rescued(&fs, inode).await, b"of the deleted");
    assert_eq!(content(&fs, taken).await, b"a user's");
    fs.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_mount_that_was_taken_over_leaves_uncommitted_data_to_the_next_one() {
    let (world, journal) = (TestVolume::new(), new_journal());
    let (fs, ..) = world.mount_journalled(local(), at(&journal)).await;
    let (inode, handle) = new_file(&fs, b"file").await;
    fs.write(handle, 0, &[1; 3000]).await.unwrap();
    fs.fsync(handle).await.unwrap();
    let other = world.mount(VfsOptions::default()).await;
    let error = fs.sync(inode).await.unwrap_err();
    assert_eq!(error.errno(), rustix::io::Errno::STALE);
    let error = fs.fsync(handle).await.unwrap_err();
    assert!(error.to_string().contains("journal"), "{error}");
    assert_eq!(fs.status().files_lost, 0);
    fs.shutdown().await.unwrap_or_default();
    other.shutdown().await.unwrap();
    let (fs, replayed, _) = world.mount_journalled(local(), at(&journal)).await;
    assert_eq!((replayed.in_place, replayed.rescued.len()), (1, 0));
    assert_eq!(content(&fs, inode).await, [1; 3000]);
}

#[tokio::test]
async fn a_rename_over_another_file_waits_until_the_content_is_committed() {
    let (world, journal) = (TestVolume::new(), new_journal());
    let (fs, ..) = world.mount_journalled(local(), at(&journal)).await;
    let (_, old) = new_file(&fs, b"name").await;
    fs.write(old, 0, &[1; 3000]).await.unwrap();
    fs.release(old).await.unwrap();
    fs.sync_all().await.unwrap();
    let (_, new) = new_file(&fs, b"temporary").await;
    fs.write(new, 0, &[2; 5000]).await.unwrap();
    fs.fsync(new).await.unwrap();
    fs.release(new).await.unwrap();
    let (from, caller) = (fs.root(), root());
    let rename = async || {
        let mode = RenameMode::Replace;
        fs.rename(&caller, from, b"temporary", from, b"name", mode)
            .await
    };
    clouds_fail(&world, true);
    rename().await.unwrap_err();
    clouds_fail(&world, false);
    rename().await.unwrap();
    // No other host needs this one for it.
    let elsewhere = world.mount(VfsOptions::default()).await;
    let inode = lookup(&elsewhere, "name").await.unwrap();
    assert_eq!(content(&elsewhere, inode).await, [2; 5000]);
    assert_eq!(lookup(&elsewhere, "temporary").await, None);
}

#[tokio::test]
async fn truncated_or_deleted_data_does_not_come_back() {
    let (world, journal) = (TestVolume::new(), new_journal());
    let (fs, ..) = world.mount_journalled(local(), at(&journal)).await;
    let (cut, handle) = new_file(&fs, b"cut").await;
    fs.write(handle, 0, &[1; 3000]).await.unwrap();
    fs.fsync(handle).await.unwrap();
    set_size(&fs, cut, Some(handle), 0).await.unwrap();
    let (punched, handle) = new_file(&fs, b"punched").await;
    fs.write(handle, 0, &[1; 3000]).await.unwrap();
    fs.fsync(handle).await.unwrap();
    let clear = Allocation {
        clear: true,
        keep_size: true,
    };
    fs.allocate(handle, 1000, 1000, clear).await.unwrap();
    let (_, deleted) = new_file(&fs, b"deleted").await;
    fs.write(deleted, 0, &[1; 3000]).await.unwrap();
    fs.fsync(deleted).await.unwrap();
    fs.unlink(&root(), fs.root(), b"deleted").await.unwrap();
    fs.write(deleted, 0, &[2; 10]).await.unwrap();
    fs.fsync(deleted).await.unwrap();
    assert_eq!(fs.read(deleted, 0, 10).await.unwrap(), [2; 10].as_slice());
    // A sync of one entry makes all entries before it durable.
    let (_, last) = new_file(&fs, b"last").await;
    fs.write(last, 0, b"last").await.unwrap();
    fs.fsync(last).await.unwrap();
    let killed = killed(&journal);
    let (fs, replayed, _) = world.mount_journalled(local(), at(&killed)).await;
    assert_eq!((replayed.in_place, replayed.rescued), (1, vec![]));
    assert_eq!(content(&fs, cut).await, [0; 0]);
    let expected = [[1; 1000], [0; 1000], [1; 1000]].concat();
    assert_eq!(content(&fs, punched).await, expected);
}

#[tokio::test]
async fn riding_attributes_are_journalled_with_the_content_and_others_leave_it_in_place() {
    let (world, journal) = (TestVolume::new(), new_journal());
    let (fs, ..) = world.mount_journalled(local(), at(&journal)).await;
    let (inode, handle) = new_file(&fs, b"file").await;
    fs.write(handle, 0, &[1; 3000]).await.unwrap();
    let caller = root();
    let change = AttributeChange {
        mode: Some(0o4755),
        ..AttributeChange::default()
    };
    fs.setattr(&root(), inode, Some(handle), change)
        .await
        .unwrap();
    fs.drop_set_id(&Caller::user(7, 7, Vec::new()), handle)
        .unwrap();
    fs.fsync(handle).await.unwrap();
    // A change of the inode beneath pending data is ours, and the journal says so.
    let name = async |name: &[u8]| {
        let set = fs.setxattr(&caller, inode, name, b"value", SetMode::Any);
        set.await.unwrap();
    };
    name(b"user.one").await;
    fs.write(handle, 3000, &[2]).await.unwrap();
    name(b"user.two").await;
    name(b"user.three").await;
    fs.fsync(handle).await.unwrap();
    let killed = killed(&journal);
    let (fs, replayed, _) = world.mount_journalled(local(), at(&killed)).await;
    assert_eq!((replayed.in_place, replayed.rescued), (1, vec![]));
    assert_eq!(fs.getattr(inode).await.unwrap().mode, Mode(0o755));
    fs.sync_all().await.unwrap();
    let elsewhere = world.mount(VfsOptions::default()).await;
    let found = elsewhere.getattr(inode).await.unwrap();
    assert_eq!((found.mode, found.size), (Mode(0o755), 3001));
}

#[tokio::test]
async fn when_the_journal_fails_once_close_and_fsync_wait_for_the_clouds_from_then_on() {
    let (world, journal) = (TestVolume::new(), new_journal());
    let fault = Arc::new(DiskFault::default());
    let disk = FaultyDisk(at(&journal), fault.clone());
    let (fs, ..) = world.mount_journalled(local(), disk).await;
    let (inode, handle) = new_file(&fs, b"file").await;
    fs.write(handle, 0, &[1; 3000]).await.unwrap();
    fs.fsync(handle).await.unwrap();
    fs.write(handle, 0, &[2; 3000]).await.unwrap();
    fault.fails.store(true, Ordering::Relaxed);
    clouds_fail(&world, true);
    fs.fsync(handle).await.unwrap_err();
    assert!(fs.status().journal.unwrap().broken.is_some());
    fs.fsync(handle).await.unwrap_err();
    clouds_fail(&world, false);
    fs.fsync(handle).await.unwrap();
    assert_eq!(committed(&world, inode).await, [2; 3000]);
}

#[tokio::test]
async fn a_close_at_tier_memory_waits_for_nothing() {
    let world = TestVolume::new();
    let options = VfsOptions {
        tier: Tier::Memory,
        ..local()
    };
    let fs = world.mount(options).await;
    let (inode, handle) = new_file(&fs, b"file").await;
    clouds_fail(&world, true);
    fs.write(handle, 0, &[1; 3000]).await.unwrap();
    fs.fsync(handle).await.unwrap();
    fs.release(handle).await.unwrap();
    assert_eq!(content(&fs, inode).await, [1; 3000]);
    clouds_fail(&world, false);
    fs.sync_all().await.unwrap();
    assert_eq!(fs.status().dirty_files, 0);
    assert_eq!(committed(&world, inode).await, [1; 3000]);
}

#[tokio::test]
async fn a_full_journal_makes_writers_wait_for_commits() {
    let (world, journal) = (TestVolume::new(), new_journal());
    let (fs, ..) = world.mount_journalled(local(), at(&journal)).await;
    let (_, handle) = new_file(&fs, b"file").await;
    let most = fs.status().journal.unwrap().bytes_max;
    let block = vec![1; 1 << 20];
    for _ in 0..most / (1 << 20) + 200 {
        fs.write(handle, 0, &block).await.unwrap();
        assert!(fs.status().journal.unwrap().bytes < most + (64 << 20));
    }
    fs.release(handle).await.unwrap();
}

/// One file after each change since its last sync.
struct Versions(Vec<Vec<u8>>);

impl Versions {
    fn now(&mut self, change: impl FnOnce(&mut Vec<u8>)) {
        let mut next = self.0.last().unwrap().clone();
        change(&mut next);
        self.0.push(next);
    }

    fn safe(&mut self) {
        self.0.drain(..self.0.len() - 1);
    }
}

struct SeededRandom(u64);

impl SeededRandom {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % bound
    }
}

/// A mount with some files.
struct Host {
    fs: FileSystem,
    journal: TempDir,
    wire: Arc<crate::common::Wire>,
    handles: Vec<HandleId>,
}

impl Host {
    async fn mount(world: &TestVolume, journal: TempDir, inodes: &[InodeId]) -> Self {
        let (fs, replayed, wire) = world.mount_journalled(local(), at(&journal)).await;
        assert_eq!(replayed.rescued, [], "no other client changed it");
        let mut handles = Vec::new();
        for inode in inodes {
            let opened = fs.open(&root(), *inode, OpenMode::READ_WRITE).await;
            handles.push(opened.unwrap().handle);
        }
        Self {
            fs,
            journal,
            wire,
            handles,
        }
    }

    async fn step(&self, random: &mut SeededRandom, inodes: &[InodeId], versions: &mut [Versions]) {
        let which = random.below(inodes.len() as u64) as usize;
        let (inode, handle, file) = (inodes[which], self.handles[which], &mut versions[which]);
        let (offset, length) = (random.below(6000), 1 + random.below(4000));
        match random.below(14) {
            0..=5 => {
                let byte = 1 + random.below(255) as u8;
                let bytes = vec![byte; length as usize];
                self.fs.write(handle, offset, &bytes).await.unwrap();
                file.now(|content| {
                    let end = (offset + length) as usize;
                    content.resize(content.len().max(end), 0);
                    content[offset as usize..end].fill(byte);
                });
            }
            6..=8 => {
                self.fs.fsync(handle).await.unwrap();
                file.safe();
            }
            9 => {
                self.fs.sync(inode).await.unwrap();
                file.safe();
            }
            10 => {
                let fault = [
                    OperationFault::NotSent,
                    OperationFault::AnswerLost,
                    OperationFault::Late,
                ];
                let fault = fault[random.below(3) as usize];
                self.wire.next(is_commit, fault);
                if self.fs.sync(inode).await.is_ok() {
                    self.wire.forget();
                }
            }
            11 => {
                set_size(&self.fs, inode, Some(handle), offset)
                    .await
                    .unwrap();
                file.now(|content| content.resize(offset as usize, 0));
                file.safe();
            }
            12 => {
                let clear = Allocation {
                    clear: true,
                    keep_size: true,
                };
                let cleared = self.fs.allocate(handle, offset, length, clear).await;
                cleared.unwrap();
                file.now(|content| {
                    let end = content.len().min((offset + length) as usize);
                    content[(offset as usize).min(end)..end].fill(0);
                });
                file.safe();
            }
            _ => {
                let change = AttributeChange {
                    mode: Some(0o600 + random.below(64) as u16),
                    ..AttributeChange::default()
                };
                let handle = (random.below(2) == 0).then_some(handle);
                let changed = self.fs.setattr(&root(), inode, handle, change).await;
                changed.unwrap();
            }
        }
    }
}

#[tokio::test]
async fn killed_at_any_step_every_file_is_as_at_or_after_its_last_sync() {
    for seed in 0..60 {
        let mut random = SeededRandom(seed * 7919 + 1);
        let world = TestVolume::new();
        let setup = world.mount(VfsOptions::default()).await;
        let mut inodes = Vec::new();
        for name in [b"a", b"b", b"c"] {
            let (inode, handle) = new_file(&setup, name).await;
            setup.release(handle).await.unwrap();
            inodes.push(inode);
        }
        let mut versions: Vec<_> = inodes.iter().map(|_| Versions(vec![vec![]])).collect();
        let mut host = Host::mount(&world, new_journal(), &inodes).await;
        for _ in 0..4 {
            for _ in 0..random.below(40) {
                host.step(&mut random, &inodes, &mut versions).await;
            }
            let killed = killed(&host.journal);
            let late = host.wire.clone();
            host = Host::mount(&world, killed, &inodes).await;
            late.deliver().await;
            for (inode, file) in inodes.iter().zip(&mut versions) {
                let found = content(&host.fs, *inode).await;
                assert!(file.0.contains(&found), "seed {seed}, inode {inode}");
                file.0 = vec![found];
            }
        }
        host.fs.shutdown().await.unwrap();
        assert_eq!(names(&host.journal).len(), 0);
        for (inode, file) in inodes.iter().zip(&versions) {
            assert_eq!(committed(&world, *inode).await, file.0[0], "seed {seed}");
        }
    }
}
