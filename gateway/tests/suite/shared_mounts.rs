//! Several mounts of one volume: what one sees of what the others do, and what that costs.
//!
//! The servers' clock is the test's, which is paused: the bell rings in its time.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use crate::common::{OperationFault, TestVolume, content, new_file, root};
use quorumfs_gateway::vfs::{
    AttributeChange, CACHED_FOR, FileSystem, InodeId, Invalidation, OpenMode, VfsOptions,
};
use quorumfs_metadata::operation::Operation;
use std::sync::atomic::Ordering;
use std::time::Duration;

const FILES: u32 = 40;
/// Until a mount that is used has asked for news after the bell has rung.
const SOON: Duration = Duration::from_millis(600);

fn name(number: u32) -> Vec<u8> {
    format!("f{number}").into_bytes()
}

async fn make(fs: &FileSystem, directory: InodeId, name: &[u8]) -> InodeId {
    let made = fs.mknod(&root(), directory, name, 0o100_644, 0).await;
    made.unwrap().inode
}

async fn directory_of_files(fs: &FileSystem, name_of_it: &[u8]) -> InodeId {
    let made = fs.mkdir(&root(), fs.root(), name_of_it, 0o755).await;
    let directory = made.unwrap().inode;
    for number in 0..FILES {
        make(fs, directory, &name(number)).await;
    }
    directory
}

async fn chmod(fs: &FileSystem, inode: InodeId, mode: u16) {
    let change = AttributeChange {
        mode: Some(mode),
        ..AttributeChange::default()
    };
    fs.setattr(&root(), inode, None, change).await.unwrap();
}

async fn find(fs: &FileSystem, directory: InodeId, name: &[u8]) -> Option<InodeId> {
    let found = fs.lookup(&root(), directory, name).await.unwrap();
    found.map(|found| found.inode)
}

async fn names_in(fs: &FileSystem, directory: InodeId) -> Vec<Vec<u8>> {
    let handle = fs.opendir(&root(), directory, true).await.unwrap();
    let (mut offset, mut names) = (0, Vec::new());
    loop {
        let page = fs.readdir_plus(handle, offset, 100).await.unwrap();
        let Some((last, _)) = page.last() else { break };
        offset = last.cookie.0;
        names.extend(page.into_iter().map(|(entry, _)| entry.name));
    }
    fs.releasedir(handle).await.unwrap();
    names
}

/// Looks at everything in a directory of [`FILES`] files, as `ls -l` does.
async fn look_at_all(fs: &FileSystem, directory: InodeId) {
    assert!(names_in(fs, directory).await.len() >= FILES as usize + 2);
    for number in 0..FILES {
        let found = find(fs, directory, &name(number)).await.unwrap();
        fs.getattr(found).await.unwrap();
    }
    assert!(find(fs, directory, b"absent").await.is_none());
}

/// Two mounts, and two directories that the second one has looked at.
async fn two_mounts(world: &TestVolume) -> (FileSystem, FileSystem, InodeId, InodeId) {
    let first = world.share(VfsOptions::default()).await;
    let here = directory_of_files(&first, b"here").await;
    let there = directory_of_files(&first, b"there").await;
    let second = world.share(VfsOptions::default()).await;
    for directory in [here, there] {
        look_at_all(&second, directory).await;
    }
    // Asked for after the first news.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    for directory in [here, there] {
        look_at_all(&second, directory).await;
    }
    tokio::time::sleep(SOON).await;
    (first, second, here, there)
}

async fn questions_of(fs: &FileSystem, work: impl Future<Output = ()>) -> u64 {
    let before = fs.status().queries;
    work.await;
    fs.status().queries - before
}

#[tokio::test(start_paused = true)]
async fn a_name_made_on_one_mount_is_seen_on_the_other_and_nothing_else_is_asked_for_again() {
    let world = TestVolume::in_test_time();
    let (first, second, here, there) = two_mounts(&world).await;
    let inode = find(&second, here, b"f1").await.unwrap();
    let mut kernel = second.invalidations();
    assert!(second.may_cache_name(here, b"absent", None));

    make(&first, here, b"absent").await;
    let asked = questions_of(&second, look_at_all(&second, there)).await;
    assert_eq!(asked, 0, "another directory");
    tokio::time::sleep(SOON).await;
    let next = kernel.next().await;
    assert_eq!(next, Some(Invalidation::Inodes([here].into())));
    let asked = questions_of(&second, look_at_all(&second, there)).await;
    assert_eq!(asked, 0, "another directory");
    let attributes = async { assert_eq!(second.getattr(inode).await.unwrap().inode, inode) };
    assert_eq!(questions_of(&second, attributes).await, 0, "a file in it");
    assert!(find(&second, here, b"absent").await.is_some());
    assert!(names_in(&second, here).await.contains(&b"absent".to_vec()));
    assert!(second.may_cache_name(here, b"absent", find(&second, here, b"absent").await));

    chmod(&first, inode, 0o600).await;
    tokio::time::sleep(SOON).await;
    let asked = questions_of(&second, async {
        assert_eq!(second.getattr(inode).await.unwrap().mode.0, 0o600);
        assert_eq!(find(&second, here, b"f1").await, Some(inode));
        assert!(find(&second, here, b"f2").await.is_some());
    });
    assert_eq!(asked.await, 1, "its attributes and nothing else");
}

#[tokio::test(start_paused = true)]
async fn a_listing_shows_what_others_have_changed_since_it_began() {
    let world = TestVolume::in_test_time();
    let (first, second, here, _) = two_mounts(&world).await;
    let last = names_in(&second, here).await.pop().unwrap();
    let inode = find(&second, here, &last).await.unwrap();
    // So that the directory is listed anew.
    chmod(&first, here, 0o711).await;
    tokio::time::sleep(SOON).await;
    let handle = second.opendir(&root(), here, true).await.unwrap();
    let page = second.readdir_plus(handle, 0, 10).await.unwrap();
    chmod(&first, inode, 0o600).await;
    tokio::time::sleep(SOON).await;
    let offset = page.last().unwrap().0.cookie.0;
    let rest = second.readdir_plus(handle, offset, 100).await.unwrap();
    assert_eq!(page.len() + rest.len(), FILES as usize + 2);
    let (entry, shown) = rest.last().unwrap();
    assert_eq!((entry.inode, shown.mode.0), (inode, 0o600));
}

#[tokio::test(start_paused = true)]
async fn what_a_mount_changes_itself_stays_known_to_it() {
    let world = TestVolume::in_test_time();
    let (_first, second, here, there) = two_mounts(&world).await;
    for number in 0..FILES {
        make(&second, here, format!("own{number}").as_bytes()).await;
    }
    tokio::time::sleep(3 * SOON).await;
    let asked = questions_of(&second, async {
        for number in 0..FILES {
            let name = format!("own{number}");
            assert!(find(&second, here, name.as_bytes()).await.is_some());
        }
        look_at_all(&second, there).await;
    });
    assert_eq!(asked.await, 0);
}

#[tokio::test(start_paused = true)]
async fn who_opens_a_file_sees_what_was_closed_before_on_another_mount() {
    let world = TestVolume::in_test_time();
    let first = world.share(VfsOptions::default()).await;
    let second = world.share(VfsOptions::default()).await;
    let (inode, handle) = new_file(&first, b"file").await;
    first.write(handle, 0, &[1; 5000]).await.unwrap();
    first.release(handle).await.unwrap();
    for round in 2..20_u8 {
        assert_eq!(content(&second, inode).await, [round - 1; 5000]);
        let opened = second.open(&root(), inode, OpenMode::READ).await.unwrap();
        second.release(opened.handle).await.unwrap();
        assert!(opened.keep_pages, "nothing has changed");
        assert_eq!(second.getattr(inode).await.unwrap().size, 5000);
        let mode = OpenMode::READ_WRITE;
        let handle = first.open(&root(), inode, mode).await.unwrap().handle;
        first.write(handle, 0, &[round; 5000]).await.unwrap();
        first.release(handle).await.unwrap();
        // At once: no news have arrived.
        let opened = second.open(&root(), inode, OpenMode::READ).await.unwrap();
        assert!(
            !opened.keep_pages,
            "the kernel has pages of the content before"
        );
        let bytes = second.read(opened.handle, 0, 8192).await.unwrap();
        assert_eq!(bytes, [round; 5000].as_slice());
        second.release(opened.handle).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn pages_of_a_file_that_others_changed_while_it_was_open_go_at_the_next_open() {
    let world = TestVolume::in_test_time();
    let first = world.share(VfsOptions::default()).await;
    let second = world.share(VfsOptions::default()).await;
    let (inode, writer) = new_file(&first, b"file").await;
    first.write(writer, 0, &[1; 5000]).await.unwrap();
    first.fsync(writer).await.unwrap();
    let reader = second.open(&root(), inode, OpenMode::READ).await.unwrap();
    second.read(reader.handle, 0, 8192).await.unwrap();
    first.write(writer, 0, &[2; 5000]).await.unwrap();
    first.fsync(writer).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    second.getattr(inode).await.unwrap();
    second.release(reader.handle).await.unwrap();
    for keeps in [false, true] {
        let opened = second.open(&root(), inode, OpenMode::READ).await.unwrap();
        assert_eq!(opened.keep_pages, keeps);
        second.release(opened.handle).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn opening_a_file_costs_a_question_on_a_shared_mount_and_none_alone() {
    let world = TestVolume::in_test_time();
    for (shared, cost) in [(true, 1), (false, 0)] {
        let fs = match shared {
            true => world.share(VfsOptions::default()).await,
            false => world.mount(VfsOptions::default()).await,
        };
        assert_eq!(fs.cached_for() < CACHED_FOR, shared);
        let (inode, handle) = new_file(&fs, if shared { b"a" } else { b"b" }).await;
        fs.release(handle).await.unwrap();
        let open = async {
            let opened = fs.open(&root(), inode, OpenMode::READ).await.unwrap();
            fs.release(opened.handle).await.unwrap();
        };
        assert_eq!(questions_of(&fs, open).await, cost);
        fs.shutdown().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_mount_that_missed_more_than_the_log_holds_asks_for_everything_again() {
    let world = TestVolume::in_test_time();
    let (first, second, here, there) = two_mounts(&world).await;
    let mut kernel = second.invalidations();
    let shown = second.getattr(there).await.unwrap();
    assert!(second.may_cache(&shown));
    let inode = find(&first, here, b"f1").await.unwrap();
    for number in 0..10_000_u16 {
        chmod(&first, inode, number % 0o1000).await;
    }
    tokio::time::sleep(SOON).await;
    assert_eq!(kernel.next().await, Some(Invalidation::Everything));
    assert!(!second.may_cache(&shown));
    let asked = questions_of(&second, look_at_all(&second, there)).await;
    assert!(asked > 0, "it may have changed");
    let asked = questions_of(&second, look_at_all(&second, there)).await;
    assert_eq!(asked, 0, "as of now");
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_looks_from_time_to_time_sees_a_file_grow() {
    let world = TestVolume::in_test_time();
    let first = world.share(VfsOptions::default()).await;
    let second = world.share(VfsOptions::default()).await;
    let (inode, writer) = new_file(&first, b"log").await;
    first.fsync(writer).await.unwrap();
    let reader = second.open(&root(), inode, OpenMode::READ).await.unwrap();
    let (mut written, mut read) = (Vec::new(), Vec::new());
    for round in 0..20_u8 {
        let line = vec![round; 3_000];
        first
            .write(writer, written.len() as u64, &line)
            .await
            .unwrap();
        first.fsync(writer).await.unwrap();
        written.extend(line);
        // It uses the mount, so that it asks for news.
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        let size = second.getattr(inode).await.unwrap().size;
        assert_eq!(size, written.len() as u64, "{round}");
        let next = second.read(reader.handle, read.len() as u64, 1 << 20).await;
        read.extend(next.unwrap());
        assert_eq!(read, written);
    }
}

#[tokio::test(start_paused = true)]
async fn a_mount_that_is_alone_hears_of_commands_inode_by_inode() {
    let world = TestVolume::in_test_time();
    let maker = world.mount(VfsOptions::default()).await;
    let here = directory_of_files(&maker, b"here").await;
    let there = directory_of_files(&maker, b"there").await;
    maker.shutdown().await.unwrap();
    let fs = world.mount(VfsOptions::default()).await;
    for _ in 0..2 {
        look_at_all(&fs, here).await;
        look_at_all(&fs, there).await;
        tokio::time::sleep(Duration::from_millis(1_100)).await;
    }
    let command = world.command(VfsOptions::default());
    command.unlink(&root(), here, b"f7").await.unwrap();
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let asked = questions_of(&fs, look_at_all(&fs, there)).await;
    assert!(asked <= 1, "{asked} questions: news at most");
    assert!(find(&fs, here, b"f7").await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_open_outlives_the_removal_of_its_name_on_another_mount() {
    let world = TestVolume::in_test_time();
    let first = world.share(VfsOptions::default()).await;
    let second = world.share(VfsOptions::default()).await;
    // News are asked for because the mount is used, or because a file is open.
    for idle in [false, true] {
        let (inode, handle) = new_file(&first, b"file").await;
        first.write(handle, 0, &[7; 5000]).await.unwrap();
        first.release(handle).await.unwrap();
        let mode = OpenMode::READ_WRITE;
        let opened = second.open(&root(), inode, mode).await.unwrap();
        if idle {
            tokio::time::sleep(Duration::from_secs(600)).await;
        }
        first.unlink(&root(), first.root(), b"file").await.unwrap();
        // Long after its time in the grave.
        for _ in 0..40 {
            tokio::time::sleep(Duration::from_secs(5)).await;
            first
                .mknod(&root(), first.root(), b"x", 0o100_644, 0)
                .await
                .unwrap();
            first.unlink(&root(), first.root(), b"x").await.unwrap();
        }
        second.drop_caches();
        let bytes = second.read(opened.handle, 0, 8192).await.unwrap();
        assert_eq!(bytes, [7; 5000].as_slice());
        second.write(opened.handle, 0, &[8; 5000]).await.unwrap();
        second.fsync(opened.handle).await.unwrap();
        assert_eq!(second.getattr(inode).await.unwrap().links, 0);
        second.release(opened.handle).await.unwrap();
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert!(first.by_number(inode).await.is_err(), "closed");
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_fails_is_tried_again() {
    let world = TestVolume::in_test_time();
    let first = world.share(VfsOptions::default()).await;
    let (second, wire) = world.share_over(VfsOptions::default()).await;
    let (inode, handle) = new_file(&first, b"file").await;
    first.write(handle, 0, &[7; 5000]).await.unwrap();
    first.release(handle).await.unwrap();
    let opened = second.open(&root(), inode, OpenMode::READ).await.unwrap();
    let claims: fn(&Operation) -> bool = |it| matches!(it, Operation::Claim { .. });
    for fault in [OperationFault::NotSent, OperationFault::AnswerLost] {
        wire.next(claims, fault);
    }
    first.unlink(&root(), first.root(), b"file").await.unwrap();
    // A mount that is not used hears of it within 20 s.
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert!(wire.all_faults_occurred());
    let sent = wire.sent.lock().unwrap().clone();
    assert_eq!(sent.iter().filter(|it| claims(it)).count(), 1);
    second.drop_caches();
    let bytes = second.read(opened.handle, 0, 8192).await.unwrap();
    assert_eq!(bytes, [7; 5000].as_slice());
}

#[tokio::test(start_paused = true)]
async fn news_of_what_is_open_and_has_a_name_order_nothing() {
    let world = TestVolume::in_test_time();
    let first = world.share(VfsOptions::default()).await;
    let second = world.share(VfsOptions::default()).await;
    let (inode, writer) = new_file(&first, b"file").await;
    first.fsync(writer).await.unwrap();
    let opened = second.open(&root(), inode, OpenMode::READ).await.unwrap();
    let before = second.status().operations;
    for round in 0..10_u64 {
        first.write(writer, 1000 * round, &[7; 1000]).await.unwrap();
        first.fsync(writer).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(second.status().operations, before);
    second.release(opened.handle).await.unwrap();
}

/// While news arrive, what is promised to be no older than they are is asked of the nearest
/// servers; an `open` and the news themselves are not.
#[tokio::test(start_paused = true)]
async fn the_nearest_servers_are_asked_what_may_be_as_old_as_the_news() {
    let world = TestVolume::in_test_time();
    let first = world.share(VfsOptions::default()).await;
    let here = directory_of_files(&first, b"here").await;
    let there = directory_of_files(&first, b"there").await;
    let file = make(&first, first.root(), b"file").await;
    let (second, wire) = world.share_over(VfsOptions::default()).await;
    wire.take_asked();
    find(&second, second.root(), b"here").await.unwrap();
    let [quorum, _] = wire.take_asked();
    assert!(quorum > 0, "the news");
    look_at_all(&second, here).await;
    look_at_all(&second, there).await;
    let [quorum, near] = wire.take_asked();
    assert_eq!(quorum, 0, "they are fresh");
    assert!(near >= 2, "a listing of each: {near}");
    let opened = second.open(&root(), file, OpenMode::READ).await.unwrap();
    let [quorum, _] = wire.take_asked();
    assert!(quorum > 0, "close-to-open");
    second.release(opened.handle).await.unwrap();

    // It hears nothing any more, so that a quorum is asked whatever it wants to know.
    wire.unheard.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(5)).await;
    wire.unheard.store(false, Ordering::Relaxed);
    wire.take_asked();
    find(&second, here, b"absent").await;
    assert!(wire.take_asked()[0] > 0);
}
