//! Locks, and writes at the end of a file, over two mounts and over one that is alone.
//!
//! The servers' clock is the test's, which is paused.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod faults;

use crate::common::{TestVolume, content, new_file, root};
use bytes::Bytes;
use quorumfs_gateway::metadata::MountMode;
use quorumfs_gateway::vfs::{
    AttributeChange, Caller, FileSystem, HandleId, InodeId, Interruption, LockKind, LockRange,
    LockWish, OpenMode, TakenLock, VfsError, VfsOptions,
};
use rustix::io::Errno;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

const RANGES: LockKind = LockKind::Ranges;
const WHOLE: LockKind = LockKind::Whole;
const SOON: Duration = Duration::from_secs(2);

/// An open file of a mount, as a process sees it.
#[derive(Clone)]
struct Process {
    fs: FileSystem,
    handle: HandleId,
    /// The kernel's number of it.
    owner: u64,
}

impl Process {
    async fn open(fs: &FileSystem, inode: InodeId, owner: u64) -> Self {
        let mode = OpenMode {
            append: true,
            ..OpenMode::READ_WRITE
        };
        let opened = fs.open(&root(), inode, mode).await.unwrap();
        Self {
            fs: fs.clone(),
            handle: opened.handle,
            owner,
        }
    }

    async fn ask(
        &self,
        kind: LockKind,
        (range, wish): (LockRange, LockWish),
        wait: Option<Interruption>,
    ) -> Result<TakenLock, VfsError> {
        let pid = u32::try_from(self.owner).unwrap();
        let owner = (kind, self.owner);
        self.fs
            .lock(self.handle, owner, (range, wish), pid, wait)
            .await
    }

    async fn attempt(&self, kind: LockKind, wish: LockWish) -> Result<(), Errno> {
        let asked = self.ask(kind, (LockRange::WHOLE, wish), None).await;
        asked.map(drop).map_err(|error| error.errno())
    }

    async fn unlock(&self, kind: LockKind) {
        self.attempt(kind, LockWish::Unlock).await.unwrap();
    }

    /// Waits for a lock in a task; it is interrupted when the sender is used or dropped.
    fn wait_for(
        &self,
        kind: LockKind,
        wish: LockWish,
    ) -> (oneshot::Sender<()>, JoinHandle<Result<TakenLock, Errno>>) {
        let (interrupt, interruption) = Interruption::new();
        let this = self.clone();
        let waits = tokio::spawn(async move {
            let range = LockRange::WHOLE;
            let asked = this.ask(kind, (range, wish), Some(interruption)).await;
            asked.map_err(|error| error.errno())
        });
        (interrupt, waits)
    }

    async fn read(&self) -> Vec<u8> {
        self.fs
            .read(self.handle, 0, 1 << 20)
            .await
            .unwrap()
            .to_vec()
    }

    async fn write(&self, bytes: &[u8]) {
        self.fs.write(self.handle, 0, bytes).await.unwrap();
    }

    async fn append(&self, line: &str) {
        let bytes = Bytes::copy_from_slice(line.as_bytes());
        self.fs.append(self.handle, bytes).await.unwrap();
    }
}

async fn settle() {
    tokio::time::sleep(Duration::from_millis(200)).await;
}

async fn shared(world: &TestVolume) -> FileSystem {
    world.share(VfsOptions::default()).await
}

async fn alone(world: &TestVolume) -> FileSystem {
    let options = VfsOptions::default();
    world.mount_as(MountMode::Alone, options).await
}

async fn file(fs: &FileSystem, bytes: &[u8]) -> InodeId {
    let (inode, handle) = new_file(fs, b"file").await;
    fs.write(handle, 0, bytes).await.unwrap();
    fs.release(handle).await.unwrap();
    inode
}

#[tokio::test(start_paused = true)]
async fn a_lock_of_one_mount_keeps_the_others_out_until_it_is_given_up() {
    let world = TestVolume::in_test_time();
    let (first, second) = (shared(&world).await, shared(&world).await);
    let inode = file(&first, b"begin").await;
    for kind in [RANGES, WHOLE] {
        let one = Process::open(&first, inode, 1).await;
        let other = Process::open(&second, inode, 1).await;
        for reader in [&one, &other] {
            reader.attempt(kind, LockWish::Shared).await.unwrap();
        }
        let refused = one.attempt(kind, LockWish::Exclusive).await;
        assert_eq!(refused, Err(Errno::AGAIN), "{kind:?}");
        other.unlock(kind).await;
        one.attempt(kind, LockWish::Exclusive).await.unwrap();
        assert_eq!(
            other.attempt(kind, LockWish::Shared).await,
            Err(Errno::AGAIN)
        );
        // The kinds do not see each other.
        let another = if kind == RANGES { WHOLE } else { RANGES };
        other.attempt(another, LockWish::Exclusive).await.unwrap();
        other.unlock(another).await;
        let (_interrupt, waits) = other.wait_for(kind, LockWish::Exclusive);
        settle().await;
        assert!(!waits.is_finished());
        let asked = Instant::now();
        one.unlock(kind).await;
        timeout(SOON, waits).await.unwrap().unwrap().unwrap();
        assert!(asked.elapsed() < SOON);
        assert_eq!(one.attempt(kind, LockWish::Shared).await, Err(Errno::AGAIN));
        for process in [&one, &other] {
            process.fs.release(process.handle).await.unwrap();
        }
    }
    assert_eq!((first.status().locks, second.status().locks), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn who_takes_a_lock_sees_what_was_written_under_it() {
    let world = TestVolume::in_test_time();
    world.slices.delay.store(300, Ordering::Relaxed);
    let (first, second) = (shared(&world).await, shared(&world).await);
    let inode = file(&first, &[0; 5000]).await;
    let processes = [
        Process::open(&first, inode, 1).await,
        Process::open(&second, inode, 1).await,
    ];
    for round in 0..10_u8 {
        let (one, other) = (
            &processes[usize::from(round % 2)],
            &processes[usize::from(1 - round % 2)],
        );
        one.attempt(RANGES, LockWish::Exclusive).await.unwrap();
        assert_eq!(one.read().await, [round; 5000]);
        let (_interrupt, waits) = other.wait_for(RANGES, LockWish::Exclusive);
        settle().await;
        // Neither is synced or closed.
        one.write(&[round + 1; 5000]).await;
        one.unlock(RANGES).await;
        let taken = timeout(SOON, waits).await.unwrap().unwrap().unwrap();
        let version = taken.drop_pages.expect("the kernel has pages from before");
        // Until it is told that they are gone, it drops them for any lock.
        let again = other
            .ask(RANGES, (LockRange::WHOLE, LockWish::Exclusive), None)
            .await;
        assert_eq!(again.unwrap().drop_pages, Some(version));
        other.fs.dropped_pages(inode, version);
        let again = other
            .ask(RANGES, (LockRange::WHOLE, LockWish::Exclusive), None)
            .await;
        assert_eq!(again.unwrap().drop_pages, None);
        assert_eq!(other.read().await, [round + 1; 5000]);
        other.unlock(RANGES).await;
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_is_interrupted_and_has_no_place_in_the_queue_any_more() {
    for mode in [MountMode::Shared, MountMode::Alone] {
        let world = TestVolume::in_test_time();
        let fs = world.mount_as(mode, VfsOptions::default()).await;
        tokio::time::sleep(SOON).await;
        let inode = file(&fs, b"").await;
        let mut processes = Vec::new();
        for owner in 1..4 {
            processes.push(Process::open(&fs, inode, owner).await);
        }
        processes[0]
            .attempt(RANGES, LockWish::Exclusive)
            .await
            .unwrap();
        let (interrupt, waits) = processes[1].wait_for(RANGES, LockWish::Exclusive);
        settle().await;
        let (_interrupt, reader) = processes[2].wait_for(RANGES, LockWish::Shared);
        settle().await;
        interrupt.send(()).unwrap();
        assert_eq!(waits.await.unwrap(), Err(Errno::INTR), "{mode:?}");
        settle().await;
        assert!(!reader.is_finished(), "{mode:?}");
        processes[0]
            .attempt(RANGES, LockWish::Shared)
            .await
            .unwrap();
        timeout(SOON, reader).await.unwrap().unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_loses_its_locks_when_it_closes_a_file_and_an_open_file_when_it_is_closed() {
    for mode in [MountMode::Shared, MountMode::Alone] {
        let world = TestVolume::in_test_time();
        let fs = world.mount_as(mode, VfsOptions::default()).await;
        tokio::time::sleep(SOON).await;
        let inode = file(&fs, b"").await;
        let other = Process::open(&fs, inode, 9).await;
        let free = async |kind, is_free| {
            let asked = other.attempt(kind, LockWish::Exclusive).await;
            assert_eq!(asked.is_ok(), is_free, "{mode:?} {kind:?}");
            other.unlock(kind).await;
        };
        // Of a process: any descriptor ends them.
        let (one, again) = (
            Process::open(&fs, inode, 1).await,
            Process::open(&fs, inode, 1).await,
        );
        one.attempt(RANGES, LockWish::Exclusive).await.unwrap();
        one.attempt(WHOLE, LockWish::Exclusive).await.unwrap();
        free(RANGES, false).await;
        fs.close_descriptor(again.handle, 2).await.unwrap();
        free(RANGES, false).await;
        fs.close_descriptor(again.handle, 1).await.unwrap();
        free(RANGES, true).await;
        free(WHOLE, false).await;
        // Of an open file: its end, though no process told.
        let file = Process::open(&fs, inode, 77).await;
        file.attempt(RANGES, LockWish::Exclusive).await.unwrap();
        for open in [&one, &again, &file] {
            fs.release(open.handle).await.unwrap();
        }
        free(RANGES, true).await;
        free(WHOLE, true).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_mount_that_is_alone_orders_nothing_for_locks_and_hands_them_over() {
    let world = TestVolume::in_test_time();
    let first = alone(&world).await;
    tokio::time::sleep(SOON).await;
    let inode = file(&first, &[0; 3000]).await;
    let mut here = Vec::new();
    for owner in 1..4 {
        here.push(Process::open(&first, inode, owner).await);
    }
    let before = first.status().operations;
    here[0].attempt(RANGES, LockWish::Exclusive).await.unwrap();
    here[1].attempt(WHOLE, LockWish::Shared).await.unwrap();
    let (_interrupt, second_in_turn) = here[1].wait_for(RANGES, LockWish::Exclusive);
    settle().await;
    let (_interrupt, third) = here[2].wait_for(RANGES, LockWish::Exclusive);
    settle().await;
    assert_eq!(first.status().operations, before, "it is alone");

    let second = alone(&world).await;
    assert!(first.is_shared());
    let there = Process::open(&second, inode, 1).await;
    assert_eq!(
        there.attempt(RANGES, LockWish::Shared).await,
        Err(Errno::AGAIN)
    );
    assert_eq!(
        there.attempt(WHOLE, LockWish::Exclusive).await,
        Err(Errno::AGAIN)
    );
    there.attempt(WHOLE, LockWish::Shared).await.unwrap();
    let (_interrupt, last) = there.wait_for(RANGES, LockWish::Exclusive);
    settle().await;
    here[0].write(&[1; 3000]).await;
    here[0].unlock(RANGES).await;
    timeout(SOON, second_in_turn)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert!(
        !third.is_finished() && !last.is_finished(),
        "first come, first served"
    );
    here[1].unlock(RANGES).await;
    timeout(SOON, third).await.unwrap().unwrap().unwrap();
    assert!(!last.is_finished());
    here[2].unlock(RANGES).await;
    timeout(SOON, last).await.unwrap().unwrap().unwrap();
    assert_eq!(there.read().await, [1; 3000]);
}

#[tokio::test(start_paused = true)]
async fn what_was_written_under_a_lock_while_alone_is_there_for_who_takes_it_next() {
    let world = TestVolume::in_test_time();
    world.slices.delay.store(900, Ordering::Relaxed);
    let first = alone(&world).await;
    tokio::time::sleep(SOON).await;
    let inode = file(&first, &[0; 3000]).await;
    let here = Process::open(&first, inode, 1).await;
    here.attempt(RANGES, LockWish::Exclusive).await.unwrap();
    here.write(&[1; 3000]).await;
    let before = first.status();
    here.unlock(RANGES).await;
    let after = first.status();
    assert_eq!(
        before.operations, after.operations,
        "it does not wait for clouds"
    );
    assert!(after.dirty_bytes > 0);
    let second = alone(&world).await;
    let there = Process::open(&second, inode, 1).await;
    there.attempt(RANGES, LockWish::Exclusive).await.unwrap();
    assert_eq!(there.read().await, [1; 3000]);
}

/// Appends lines through each mount at the same time; returns how many.
async fn append_lines(mounts: &[FileSystem], inode: InodeId, each: usize) -> usize {
    let mut writers = Vec::new();
    for (mount, fs) in mounts.iter().enumerate() {
        for writer in 0..2 {
            let process = Process::open(fs, inode, 1 + writer).await;
            writers.push(tokio::spawn(async move {
                for line in 0..each {
                    let padding = "x".repeat(line % 17 * 40);
                    process
                        .append(&format!("{mount} {writer} {line} {padding}\n"))
                        .await;
                    tokio::time::sleep(Duration::from_millis(7)).await;
                }
                process.fs.release(process.handle).await.unwrap();
            }));
        }
    }
    let count = writers.len();
    for writer in writers {
        timeout(Duration::from_secs(600), writer)
            .await
            .unwrap()
            .unwrap();
    }
    count * each
}

fn assert_whole(bytes: Vec<u8>, lines: usize) {
    let text = String::from_utf8(bytes).unwrap();
    let mut last = std::collections::BTreeMap::new();
    let mut count = 0;
    for line in text.lines() {
        let mut words = line.split(' ');
        let mut next = || words.next().unwrap().parse::<usize>().unwrap();
        let (writer, number) = ((next(), next()), next());
        let padding = words.next().unwrap_or_default();
        assert_eq!(padding.len(), number % 17 * 40, "torn: {line}");
        let before = last.insert(writer, number);
        assert!(
            before.is_none_or(|before| before < number),
            "out of order: {line}"
        );
        count += 1;
    }
    assert_eq!(count, lines, "lines are lost");
}

#[tokio::test(start_paused = true)]
async fn no_line_that_several_mounts_append_is_lost_or_torn() {
    for delay in [0, 200] {
        let world = TestVolume::in_test_time();
        world.slices.delay.store(delay, Ordering::Relaxed);
        let mounts = [
            shared(&world).await,
            shared(&world).await,
            shared(&world).await,
        ];
        let inode = file(&mounts[0], b"").await;
        let lines = append_lines(&mounts, inode, 60).await;
        for fs in &mounts {
            assert_whole(content(fs, inode).await, lines);
        }
        settle().await;
        assert!(mounts.iter().all(|fs| fs.status().locks == 0));
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_appended_while_alone_is_not_overwritten_by_who_comes() {
    // Slower than another mount can be made to wait.
    for delay in [50, 8_000] {
        let world = TestVolume::in_test_time();
        let first = alone(&world).await;
        tokio::time::sleep(SOON).await;
        let inode = file(&first, b"").await;
        let here = Process::open(&first, inode, 1).await;
        world.slices.delay.store(delay, Ordering::Relaxed);
        let padding = "x".repeat(40);
        for line in 0..50 {
            here.append(&format!("{line:04} {padding}\n")).await;
        }
        let second = alone(&world).await;
        let there = Process::open(&second, inode, 1).await;
        for line in 50..100 {
            there.append(&format!("{line:04} {padding}\n")).await;
        }
        there.fs.fsync(there.handle).await.unwrap();
        let text = String::from_utf8(content(&second, inode).await).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 100, "after {delay} ms");
        for (number, line) in lines.iter().enumerate() {
            assert_eq!(*line, format!("{number:04} {padding}"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_locks_of_a_mount_that_was_taken_over_are_free() {
    let world = TestVolume::in_test_time();
    let (first, second) = (shared(&world).await, shared(&world).await);
    let inode = file(&second, b"").await;
    let one = Process::open(&first, inode, 1).await;
    one.attempt(RANGES, LockWish::Exclusive).await.unwrap();
    let other = Process::open(&second, inode, 1).await;
    assert_eq!(
        other.attempt(RANGES, LockWish::Exclusive).await,
        Err(Errno::AGAIN)
    );
    let third = world.mount(VfsOptions::default()).await;
    let another = Process::open(&third, inode, 1).await;
    another.attempt(RANGES, LockWish::Exclusive).await.unwrap();
    assert_eq!(
        one.attempt(RANGES, LockWish::Shared).await,
        Err(Errno::STALE)
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_in_the_way_is_named_wherever_it_is() {
    let world = TestVolume::in_test_time();
    let (first, second) = (shared(&world).await, shared(&world).await);
    let inode = file(&first, b"").await;
    let one = Process::open(&first, inode, 41).await;
    let range = LockRange { start: 5, end: 9 };
    one.ask(RANGES, (range, LockWish::Exclusive), None)
        .await
        .unwrap();
    for (fs, pid) in [(&first, Some(41)), (&second, None)] {
        let asks = Process::open(fs, inode, 3).await;
        let asked = |range| fs.lock_in_the_way(asks.handle, (RANGES, 3), (range, false));
        let found = asked(LockRange::WHOLE).await.unwrap().unwrap();
        assert_eq!(
            (found.range, found.exclusive, found.pid),
            (range, true, pid)
        );
        let free = LockRange { start: 10, end: 10 };
        assert_eq!(asked(free).await.unwrap(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_a_user_ended_is_lost_to_its_process_until_it_closes_the_file() {
    let world = TestVolume::in_test_time();
    let (first, second) = (shared(&world).await, shared(&world).await);
    let inode = file(&first, &[1; 3000]).await;
    let one = Process::open(&first, inode, 1).await;
    let bystander = first
        .open(&root(), inode, OpenMode::READ)
        .await
        .unwrap()
        .handle;
    let other = Process::open(&second, inode, 1).await;
    one.attempt(RANGES, LockWish::Exclusive).await.unwrap();
    one.write(&[2; 3000]).await;
    let (_interrupt, waits) = other.wait_for(RANGES, LockWish::Exclusive);
    settle().await;
    let command = world.command(VfsOptions::default());
    let (listed, _) = command.locks(None).await.unwrap();
    assert_eq!((listed.len(), listed[0].pid, listed[0].waiting), (1, 1, 1));
    let stranger = Caller::user(7, 7, vec![]);
    let refused = command.end_locks(&stranger, inode, None).await;
    assert_eq!(refused.unwrap_err().errno(), Errno::PERM);
    let ended = command.end_locks(&root(), inode, None).await.unwrap();
    assert_eq!(ended, 1);
    timeout(SOON, waits).await.unwrap().unwrap().unwrap();
    tokio::time::sleep(SOON).await;
    assert_eq!(first.status().locks_lost, 1);
    let errno = |outcome: Result<_, VfsError>| outcome.map(drop).map_err(|error| error.errno());
    assert_eq!(
        errno(first.write(one.handle, 0, &[3]).await.map(|_| ())),
        Err(Errno::IO)
    );
    assert_eq!(
        errno(first.read(one.handle, 0, 9).await.map(|_| ())),
        Err(Errno::IO)
    );
    assert_eq!(errno(first.fsync(one.handle).await), Err(Errno::IO));
    assert_eq!(one.attempt(RANGES, LockWish::Shared).await, Err(Errno::IO));
    let cut = AttributeChange {
        size: Some(0),
        ..AttributeChange::default()
    };
    let cut = first.setattr(&root(), inode, Some(one.handle), cut).await;
    assert_eq!(errno(cut.map(drop)), Err(Errno::IO));
    let copied = first
        .clone_range((one.handle, 0), (one.handle, 9000), 9)
        .await;
    assert_eq!(errno(copied.map(drop)), Err(Errno::IO));
    // What was written under the lock is not laid over what the next one writes.
    assert_eq!(
        first.read(bystander, 0, 1 << 20).await.unwrap(),
        [1; 3000].as_slice()
    );
    other.write(&[4; 3000]).await;
    assert!(first.close_descriptor(one.handle, 1).await.is_err());
    assert!(first.release(one.handle).await.is_err());
    other.unlock(RANGES).await;
    tokio::time::sleep(10 * SOON).await;
    assert_eq!(content(&second, inode).await, [4; 3000]);
    let again = Process::open(&first, inode, 1).await;
    again.attempt(RANGES, LockWish::Exclusive).await.unwrap();
    again.read().await;
}
