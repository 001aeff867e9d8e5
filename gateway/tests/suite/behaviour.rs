//! What callers of the file system can rely on when things go wrong or happen at the same time.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]

use crate::common::{TRUNCATE, TestVolume, content, new_file, root};
use quorumfs_gateway::metadata::{MetadataClient, MountMode, Takeover};
use quorumfs_gateway::vfs::{
    AttributeChange, Caller, Cookie, OpenMode, RenameMode, VfsError, VfsOptions,
};
use quorumfs_metadata::attributes::{Credentials, Mode, Timestamp};
use quorumfs_metadata::identity::RealmEpoch;
use quorumfs_metadata::operation::{Create, EntryPlace, NewInode, Step};
use quorumfs_metadata::row::SealedName;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

#[tokio::test]
async fn a_failed_commit_is_reported_and_nothing_is_lost() {
    let world = TestVolume::new();
    let fs = world.mount(VfsOptions::default()).await;
    let (inode, handle) = new_file(&fs, b"file").await;
    fs.write(handle, 0, &[1; 5000]).await.unwrap();
    world.slices.failing.store(true, Ordering::Relaxed);
    assert!(matches!(fs.flush(handle).await, Err(VfsError::Data { .. })));
    assert!(matches!(fs.fsync(handle).await, Err(VfsError::Data { .. })));
    assert_eq!(fs.getattr(inode).await.unwrap().size, 5000);
    assert_eq!(content(&fs, inode).await, [1; 5000]);
    world.slices.failing.store(false, Ordering::Relaxed);
    fs.release(handle)
        .await
        .expect("pending data is committed in the end");
    let again = world.mount(VfsOptions::default()).await;
    assert_eq!(content(&again, inode).await, [1; 5000]);
}

#[tokio::test(start_paused = true)]
async fn data_that_a_close_could_not_commit_is_committed_in_the_background() {
    let world = TestVolume::new();
    let options = VfsOptions {
        commit_after: Duration::from_millis(50),
        ..VfsOptions::default()
    };
    let fs = world.mount(options).await;
    let (inode, handle) = new_file(&fs, b"file").await;
    fs.write(handle, 0, &[1; 5000]).await.unwrap();
    world.slices.failing.store(true, Ordering::Relaxed);
    assert!(fs.release(handle).await.is_err());
    world.slices.failing.store(false, Ordering::Relaxed);
    let patience = Instant::now() + Duration::from_secs(20);
    while fs.status().dirty_files > 0 {
        assert!(Instant::now() < patience);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(fs.status().dirty_bytes, 0);
    let again = world.mount(VfsOptions::default()).await;
    assert_eq!(content(&again, inode).await, [1; 5000]);
}

#[tokio::test]
async fn a_fenced_mount_refuses_everything_and_reports_lost_data() {
    let world = TestVolume::new();
    let first = world.mount(VfsOptions::default()).await;
    let (inode, handle) = new_file(&first, b"file").await;
    first.write(handle, 0, &[1; 5000]).await.unwrap();
    let second = world.mount(VfsOptions::default()).await;
    let error = first.fsync(handle).await.unwrap_err();
    assert_eq!(error.errno(), Errno::STALE);
    // Callers always see the same errno, even if the background commit meets the fence first.
    let lost = first.fsync(handle).await.unwrap_err();
    assert!(matches!(lost, VfsError::Lost { .. }), "{lost}");
    assert_eq!(lost.errno(), Errno::STALE);
    assert!(matches!(
        first.write(handle, 0, b"x").await,
        Err(VfsError::Fenced)
    ));
    assert!(
        first
            .mkdir(&root(), first.root(), b"d", 0o755)
            .await
            .is_err()
    );
    let status = first.status();
    assert!(
        status.fenced && status.files_lost == 1 && status.dirty_bytes == 0,
        "{status:?}"
    );
    assert_eq!(content(&second, inode).await, b"");
}

#[tokio::test]
async fn a_second_mount_is_refused_unless_it_takes_over() {
    let world = TestVolume::new();
    let _first = world.mount(VfsOptions::default()).await;
    let own = world.volume.own_credentials();
    let client = MetadataClient::new(Arc::new(world.session()), own);
    assert_eq!(
        client
            .mount(Takeover::Refused, MountMode::Exclusive)
            .await
            .unwrap_err()
            .errno(),
        Errno::BUSY
    );
    client
        .mount(Takeover::OfAny, MountMode::Exclusive)
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_writer_without_memory_gets_an_error_and_does_not_hang() {
    let world = TestVolume::new();
    let options = VfsOptions {
        dirty_bytes_max: 64 << 10,
        write_wait: Duration::from_millis(300),
        ..VfsOptions::default()
    };
    let fs = world.mount(options).await;
    let (_, handle) = new_file(&fs, b"file").await;
    world.slices.failing.store(true, Ordering::Relaxed);
    let started = Instant::now();
    let error = loop {
        let size = fs.status().dirty_bytes;
        assert!(size <= 80 << 10, "the bound holds");
        if let Err(error) = fs.write(handle, size, &[1; 16 << 10]).await {
            break error;
        }
    };
    assert!(matches!(error, VfsError::NoRoom { .. }), "{error}");
    assert!(started.elapsed() < Duration::from_secs(5));
    world.slices.failing.store(false, Ordering::Relaxed);
    fs.fsync(handle).await.unwrap();
    fs.write(handle, 0, b"memory is free again").await.unwrap();
}

#[tokio::test]
async fn a_forged_name_is_shown_under_a_stand_in_and_can_be_removed() {
    let world = TestVolume::new();
    let fs = world.mount(VfsOptions::default()).await;
    new_file(&fs, b"honest").await;
    let own = world.volume.own_credentials();
    let forger = MetadataClient::new(Arc::new(world.session()), own);
    let forged = SealedName {
        cookie: Cookie(0x1234_5678),
        generation: RealmEpoch(0),
        bytes: vec![7; 40],
    };
    let place = EntryPlace {
        parent: fs.root(),
        name: forged.into(),
    };
    let create = Create {
        place,
        kind: NewInode::File,
        mode: Mode(0o644),
        umask: Mode(0),
        exclusive: true,
        number: None,
    };
    let time = Timestamp {
        seconds: 1,
        nanos: 0,
    };
    forger
        .step("create", Credentials::root(), time, Step::Create(create))
        .await
        .unwrap();

    let handle = fs.opendir(&root(), fs.root(), false).await.unwrap();
    let entries = fs.readdir(handle, 0, 100).await.unwrap();
    let names: Vec<_> = entries
        .iter()
        .map(|entry| String::from_utf8(entry.name.clone()).unwrap())
        .collect();
    let stand_in = ".quorumfs-undecryptable-0000000012345678";
    assert_eq!(names.len(), 4, "{names:?}");
    assert!(names.iter().any(|name| name == stand_in), "{names:?}");
    let found = fs
        .lookup(&root(), fs.root(), stand_in.as_bytes())
        .await
        .unwrap();
    assert!(found.is_some());
    fs.unlink(&root(), fs.root(), stand_in.as_bytes())
        .await
        .unwrap();
    fs.drop_caches();
    assert!(
        fs.lookup(&root(), fs.root(), stand_in.as_bytes())
            .await
            .unwrap()
            .is_none()
    );
    assert!(
        fs.lookup(&root(), fs.root(), b"honest")
            .await
            .unwrap()
            .is_some()
    );
}

#[tokio::test(start_paused = true)]
async fn changes_by_a_command_are_seen_by_the_mount_after_a_second() {
    let world = TestVolume::in_test_time();
    let fs = world.mount(VfsOptions::default()).await;
    assert!(
        fs.lookup(&root(), fs.root(), b"file")
            .await
            .unwrap()
            .is_none()
    );
    let command = world.command(VfsOptions::default());
    let (inode, handle) = new_file(&command, b"file").await;
    command.write(handle, 0, b"one").await.unwrap();
    command.release(handle).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let found = fs
        .lookup(&root(), fs.root(), b"file")
        .await
        .unwrap()
        .unwrap();
    assert_eq!((found.inode, found.size), (inode, 3));
    assert_eq!(content(&fs, inode).await, b"one");
    let handle = command
        .open(&root(), inode, OpenMode::READ_WRITE)
        .await
        .unwrap()
        .handle;
    command.write(handle, 0, &[2; 3000]).await.unwrap();
    command.release(handle).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert_eq!(content(&fs, inode).await, [2; 3000]);
    command
        .unlink(&root(), command.root(), b"file")
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert!(
        fs.lookup(&root(), fs.root(), b"file")
            .await
            .unwrap()
            .is_none()
    );
    // A stale entry of a name does not stop its owner from using it.
    new_file(&fs, b"file").await;
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert!(
        fs.lookup(&root(), fs.root(), b"file")
            .await
            .unwrap()
            .is_some()
    );
    command
        .unlink(&root(), command.root(), b"file")
        .await
        .unwrap();
    let error = fs.unlink(&root(), fs.root(), b"file").await.unwrap_err();
    assert_eq!(error.errno(), Errno::NOENT);
}

#[tokio::test]
async fn a_rename_over_a_name_that_another_client_replaced_is_retried() {
    let world = TestVolume::new();
    let fs = world.mount(VfsOptions::default()).await;
    let (inode, handle) = new_file(&fs, b"new").await;
    fs.release(handle).await.unwrap();
    let (_, handle) = new_file(&fs, b"old").await;
    fs.release(handle).await.unwrap();
    let command = world.command(VfsOptions::default());
    command
        .unlink(&root(), command.root(), b"old")
        .await
        .unwrap();
    let (_, handle) = new_file(&command, b"old").await;
    command.release(handle).await.unwrap();
    let root_directory = fs.root();
    fs.rename(
        &root(),
        root_directory,
        b"new",
        root_directory,
        b"old",
        RenameMode::Replace,
    )
    .await
    .unwrap();
    assert_eq!(
        fs.lookup(&root(), fs.root(), b"old")
            .await
            .unwrap()
            .unwrap()
            .inode,
        inode
    );
}

#[tokio::test]
async fn new_names_in_a_directory_cost_one_query_for_many() {
    let world = TestVolume::new();
    let fs = world.mount(VfsOptions::default()).await;
    let directory = fs
        .mkdir(&root(), fs.root(), b"d", 0o755)
        .await
        .unwrap()
        .inode;
    let (_, before) = world.embedded.counters();
    for number in 0..100 {
        let name = format!("f{number}");
        assert!(
            fs.lookup(&root(), directory, name.as_bytes())
                .await
                .unwrap()
                .is_none()
        );
        fs.mknod(&root(), directory, name.as_bytes(), 0o100_644, 0)
            .await
            .unwrap();
        let found = fs
            .lookup(&root(), directory, name.as_bytes())
            .await
            .unwrap();
        assert!(found.is_some());
    }
    let asked = world.embedded.counters().1 - before;
    assert!(asked <= 4, "{asked} queries");
}

#[tokio::test]
async fn a_user_cannot_change_files_of_another() {
    let world = TestVolume::new();
    let fs = world.mount(VfsOptions::default()).await;
    let (inode, handle) = new_file(&fs, b"file").await;
    let stranger = Caller::user(1000, 1000, vec![]);
    let change = AttributeChange {
        mode: Some(0o666),
        ..AttributeChange::default()
    };
    // Not even while a change by the owner could ride along.
    fs.write(handle, 0, b"content").await.unwrap();
    let error = fs
        .setattr(&stranger, inode, None, change)
        .await
        .unwrap_err();
    assert_eq!(error.errno(), Errno::PERM);
    let error = fs.unlink(&stranger, fs.root(), b"file").await.unwrap_err();
    assert_eq!(error.errno(), Errno::ACCESS);
    assert_eq!(
        fs.access(&stranger, inode, 2).await.unwrap_err().errno(),
        Errno::ACCESS
    );
    assert!(fs.access(&stranger, inode, 4).await.is_ok());
    let made = fs
        .mkdir(&stranger, fs.root(), b"d", 0o755)
        .await
        .unwrap_err();
    assert_eq!(made.errno(), Errno::ACCESS);
}

#[tokio::test(start_paused = true)]
async fn a_writer_waits_for_slow_clouds_as_long_as_there_is_progress() {
    let world = TestVolume::new();
    let options = VfsOptions {
        dirty_bytes_max: 16 << 20,
        write_wait: Duration::from_millis(2500),
        slices_in_flight: 1,
        ..VfsOptions::default()
    };
    let fs = world.mount(options).await;
    // A commit of two slices, one after the other, takes longer than a writer waits.
    world.slices.delay.store(1500, Ordering::Relaxed);
    let (inode, handle) = new_file(&fs, b"file").await;
    let started = Instant::now();
    for number in 0..6_u64 {
        let written = fs.write(handle, number << 22, &vec![7; 4 << 20]).await;
        assert_eq!(written.unwrap(), 4 << 20);
    }
    assert!(started.elapsed() > Duration::from_secs(2), "it had to wait");
    world.slices.delay.store(0, Ordering::Relaxed);
    fs.fsync(handle).await.unwrap();
    assert_eq!(fs.getattr(inode).await.unwrap().size, 24 << 20);
}

#[tokio::test]
async fn readers_and_writers_of_one_file_do_not_deadlock() {
    let world = TestVolume::new();
    let options = VfsOptions {
        file_dirty_bytes_max: 64 << 10,
        commit_after: Duration::from_millis(20),
        ..VfsOptions::default()
    };
    let fs = world.mount(options).await;
    // So that most reads meet bytes in flight.
    world.slices.delay.store(3, Ordering::Relaxed);
    let (inode, handle) = new_file(&fs, b"file").await;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..8_u64 {
        let fs = fs.clone();
        tasks.spawn(async move {
            for round in 0..50_u64 {
                let value = [number as u8 + 1; 4096];
                fs.write(handle, number * 4096, &value).await.unwrap();
                let found = fs.read(handle, number * 4096, 4096).await.unwrap();
                assert_eq!(found, value.as_slice());
                if round % 10 == number {
                    fs.fsync(handle).await.unwrap();
                }
            }
        });
    }
    let all = async {
        while let Some(done) = tasks.join_next().await {
            done.unwrap()
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all)
        .await
        .expect("no deadlock");
    fs.release(handle).await.unwrap();
    let again = world.mount(VfsOptions::default()).await;
    let found = content(&again, inode).await;
    assert!((0..8_usize).all(|n| found[n * 4096..][..4096].iter().all(|b| *b == n as u8 + 1)));
}

#[tokio::test(start_paused = true)]
async fn data_in_flight_is_read_as_it_was_written() {
    let world = TestVolume::new();
    let fs = world.mount(VfsOptions::default()).await;
    world.slices.delay.store(300, Ordering::Relaxed);
    let (inode, handle) = new_file(&fs, b"file").await;
    fs.write(handle, 0, &[1; 5000]).await.unwrap();
    let change = AttributeChange {
        mode: Some(0o600),
        ..AttributeChange::default()
    };
    fs.setattr(&root(), inode, None, change).await.unwrap();
    let flush = tokio::spawn({
        let fs = fs.clone();
        async move { fs.fsync(handle).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    fs.write(handle, 4000, &[2; 500]).await.unwrap();
    let found = fs.read(handle, 0, 10_000).await.unwrap();
    assert!(found[..4000] == [1; 4000] && found[4000..4500] == [2; 500]);
    assert!(found[4500..] == [1; 500]);
    let seen = fs.getattr(inode).await.unwrap();
    assert_eq!((seen.size, seen.mode), (5000, Mode(0o600)));
    assert!(!flush.is_finished());
    flush.await.unwrap().unwrap();
    assert_eq!(fs.read(handle, 0, 10_000).await.unwrap(), found);
}

#[tokio::test]
async fn slices_are_reported_committed_or_abandoned() {
    let world = TestVolume::new();
    let fs = world.mount(VfsOptions::default()).await;
    let (_, handle) = new_file(&fs, b"file").await;
    fs.write(handle, 0, &vec![1; 9 << 20]).await.unwrap();
    fs.fsync(handle).await.unwrap();
    let count = |counter: &std::sync::atomic::AtomicU32| counter.load(Ordering::Relaxed);
    assert_eq!(
        (
            count(&world.slices.committed),
            count(&world.slices.abandoned)
        ),
        (3, 0)
    );
    fs.write(handle, 0, &[2; 5000]).await.unwrap();
    let _taken_over = world.mount(VfsOptions::default()).await;
    assert!(fs.fsync(handle).await.is_err());
    let (committed, abandoned) = (
        count(&world.slices.committed),
        count(&world.slices.abandoned),
    );
    assert_eq!(committed, 3);
    assert!(
        abandoned <= 1,
        "the fence is met before or after the upload"
    );
}

#[tokio::test]
async fn a_file_opened_read_only_with_truncation_is_truncated() {
    let world = TestVolume::new();
    let fs = world.mount(VfsOptions::default()).await;
    let (inode, handle) = new_file(&fs, b"file").await;
    fs.write(handle, 0, b"content").await.unwrap();
    fs.release(handle).await.unwrap();
    let mode = OpenMode {
        truncate: true,
        keep_atime: false,
        append: false,
        ..OpenMode::READ
    };
    let handle = fs.open(&root(), inode, mode).await.unwrap().handle;
    fs.release(handle).await.unwrap();
    let again = world.mount(VfsOptions::default()).await;
    assert_eq!(content(&again, inode).await, b"");
}

#[tokio::test]
async fn a_mount_that_was_taken_over_without_noticing_reads_no_more() {
    let world = TestVolume::new();
    let first = world.mount(VfsOptions::default()).await;
    let (inode, handle) = new_file(&first, b"file").await;
    first.release(handle).await.unwrap();
    let _second = world.mount(VfsOptions::default()).await;
    first.drop_caches();
    let error = first.getattr(inode).await.unwrap_err();
    assert_eq!(error.errno(), Errno::STALE);
    assert!(first.status().fenced);
}

#[tokio::test]
async fn chown_of_an_open_file_to_its_owner_moves_its_ctime_and_takes_its_bits() {
    let world = TestVolume::new();
    let fs = world.mount(VfsOptions::default()).await;
    let (inode, handle) = new_file(&fs, b"file").await;
    let change = |mode, uid| AttributeChange {
        mode,
        uid,
        ..AttributeChange::default()
    };
    // Also if neither owner nor group is named.
    let mine = [
        (root(), change(None, Some(0))),
        (root(), change(None, None)),
    ];
    for (mode, (caller, mine)) in [0o644, 0o4755]
        .into_iter()
        .flat_map(|it| mine.clone().map(|mine| (it, mine)))
    {
        let mode = change(Some(mode), None);
        let before = fs.setattr(&root(), inode, None, mode).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
        let after = fs.setattr(&caller, inode, None, mine).await.unwrap();
        assert!(after.ctime > before.ctime);
        assert_eq!(after.mode, before.mode.without_set_id(true));
        fs.fsync(handle).await.unwrap();
        let kept = fs.getattr(inode).await.unwrap();
        assert_eq!((kept.mode, kept.ctime), (after.mode, after.ctime));
    }
    // Another user takes no bits; of an open file that user may be about to write.
    let stranger = Caller::user(7, 7, Vec::new());
    let chown_to_same = async || fs.setattr(&stranger, inode, None, change(None, None)).await;
    let plain = fs.getattr(inode).await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert!(chown_to_same().await.unwrap().ctime > plain.ctime);
    let bits = change(Some(0o4755), None);
    let set = fs.setattr(&root(), inode, None, bits).await.unwrap();
    assert_eq!(chown_to_same().await.unwrap(), set);
    fs.release(handle).await.unwrap();
    assert_eq!(chown_to_same().await.unwrap_err().errno(), Errno::PERM);
    assert_eq!(fs.getattr(inode).await.unwrap().mode, set.mode);
}

#[tokio::test]
async fn truncating_an_empty_file_takes_set_id_bits_for_its_owner_but_not_for_the_superuser() {
    let world = TestVolume::new();
    let fs = world.mount(VfsOptions::default()).await;
    let (inode, handle) = new_file(&fs, b"file").await;
    let owner = Caller::user(7, 7, Vec::new());
    let owned = AttributeChange {
        uid: Some(7),
        gid: Some(7),
        ..AttributeChange::default()
    };
    fs.setattr(&root(), inode, None, owned).await.unwrap();
    let stranger = Caller::user(8, 8, Vec::new());
    // If the group may not execute, its bit is no set-id bit, and its members keep it.
    let tries = [
        (root(), 0o6777, 0o6777),
        (owner.clone(), 0o6777, 0o777),
        (owner, 0o6767, 0o2767),
        (stranger, 0o6767, 0o767),
    ];
    for (caller, mode, left) in tries {
        let bits = AttributeChange {
            mode: Some(mode),
            ..AttributeChange::default()
        };
        fs.setattr(&root(), inode, None, bits).await.unwrap();
        // Open for writing, where changes may wait for a commit.
        let cut = fs.open(&caller, inode, TRUNCATE).await.unwrap().handle;
        assert_eq!(fs.getattr(inode).await.unwrap().mode.0, left);
        fs.release(cut).await.unwrap();
        assert_eq!(fs.getattr(inode).await.unwrap().mode.0, left);
    }
    fs.release(handle).await.unwrap();
}
