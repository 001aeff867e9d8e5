//! After a key epoch has begun: what a mount that has not heard of it does, and names that are
//! sealed anew while they are used.

#![allow(clippy::panic)]

use super::*;
use quorumfs_gateway::slices::{ContentResealer, ResealedContent};
use quorumfs_gateway::vfs::{Attributes, RenameMode};
use quorumfs_metadata::attributes::Detail;
use quorumfs_metadata::identity::Cookie;
use quorumfs_metadata::query::Question;
use quorumfs_metadata::reply::QueryResult;
use std::collections::BTreeSet;

const MINUTES: u64 = 60_000_000_000;

/// The generations that occur among the names of a directory.
async fn generations(gateway: &Gateway, directory: InodeId) -> BTreeSet<u32> {
    let (mut found, mut after) = (BTreeSet::new(), Cookie::START);
    loop {
        let question = Question::Directory {
            inode: directory,
            after,
            limit: 512,
            by_handle: true,
        };
        let metadata = &gateway.metadata;
        let answer = metadata.ask_about_volume("test", question).await.unwrap();
        let QueryResult::Directory(page) = answer else {
            panic!("{answer:?}")
        };
        for entry in &page.entries {
            found.insert(entry.generation.0);
            after = entry.cookie;
        }
        if !page.more {
            return found;
        }
    }
}

async fn mknod(fs: &FileSystem, directory: InodeId, name: &str) {
    let (name, mode) = (name.as_bytes(), 0o100_644);
    fs.mknod(&root(), directory, name, mode, 0).await.unwrap();
}

async fn reseal(gateway: &Gateway) -> quorumfs_gateway::volume::Resealed {
    let (volume, clouds) = (&gateway.volume, Some(&gateway.shares));
    let mut told = |_: &_| {};
    let done = volume.reseal_names(&gateway.metadata, clouds, &mut told);
    done.await.unwrap()
}

async fn sealed_slices(gateway: &Gateway) -> Vec<(u32, u64)> {
    let (epochs, next) = gateway.metadata.count_by_epoch(None).await.unwrap();
    assert!(next.is_none());
    let all = epochs.iter().map(|it| (it.epoch.0, it.slices));
    all.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mount_that_has_not_heard_of_new_keys_stores_nothing_under_old_ones() {
    let world = World::new(Lock::MembersAndClouds).await;
    let (mounted, other) = (world.gateway(), world.gateway());
    mounted.refresh().await.unwrap();
    let fs = mounted.file_system();
    let there = mkdir(&fs, "there before").await;
    write(&fs, there, "old", b"old").await;
    for way in 0..6 {
        // It wrote before, and commits after.
        let name = format!("large {way}");
        let (_, handle) = fs
            .create(
                &root(),
                there,
                name.as_bytes(),
                0o644,
                OpenMode::READ_WRITE,
                true,
            )
            .await
            .unwrap();
        fs.write(handle, 0, &vec![7; 3_000_000]).await.unwrap();
        let before = mounted.volume.current_epoch().unwrap();
        let now = other.rekey(Lock::MembersAndClouds).await.unwrap();
        world.pass(3 * MINUTES);
        assert_eq!(
            mounted.volume.current_epoch(),
            Some(before),
            "it has not heard"
        );
        let slices_before = sealed_slices(&other).await;
        let name = format!("new {way}");
        match way {
            0 => write(&fs, there, &name, b"tiny").await,
            1 => write(&fs, there, &name, &vec![1; 300_000]).await,
            2 => {
                let made: Attributes = fs
                    .symlink(&root(), there, name.as_bytes(), b"target")
                    .await
                    .unwrap();
                assert_eq!(fs.readlink(made.inode).await.unwrap(), b"target");
            }
            3 => {
                fs.setxattr(&root(), there, b"user.a", b"value", SetMode::Any)
                    .await
                    .unwrap();
            }
            4 => {
                fs.rename(
                    &root(),
                    there,
                    b"old",
                    there,
                    name.as_bytes(),
                    RenameMode::Replace,
                )
                .await
                .unwrap();
            }
            _ => {
                let made = fs.mkdir(&root(), there, name.as_bytes(), 0o755).await;
                made.unwrap();
            }
        }
        fs.fsync(handle).await.unwrap();
        fs.release(handle).await.unwrap();
        assert_eq!(mounted.volume.current_epoch(), Some(now), "{way}");
        let of = |slices: &[(u32, u64)], epoch: RealmEpoch| {
            let found = slices.iter().find(|(it, _)| *it == epoch.0);
            found.map_or(0, |(_, count)| *count)
        };
        let slices = sealed_slices(&other).await;
        assert!(of(&slices, now) > 0, "{way}: {slices:?}");
        for (epoch, count) in slices_before {
            assert_eq!(of(&slices, RealmEpoch(epoch)), count, "{way}: {slices:?}");
        }
        // The next one turns the names again, once these are done.
        other.refresh().await.unwrap();
        reseal(&other).await;
        assert_eq!(generations(&other, there).await, BTreeSet::from([now.0]));
    }
    let large = read(&other.file_system(), there, "large 3").await;
    assert!(!large.is_empty() && large.iter().all(|byte| *byte == 7));
}

#[tokio::test(flavor = "multi_thread")]
async fn names_are_resealed_while_a_directory_is_listed_and_changed() {
    const FILES: usize = 1400;
    let world = World::new(Lock::Members).await;
    let (mounted, other) = (world.gateway(), world.gateway());
    let fs = mounted.file_system();
    let directory = mkdir(&fs, "directory").await;
    for number in 0..FILES {
        let name = format!("file {number}");
        mknod(&fs, directory, &name).await;
    }
    let gone = mkdir(&fs, "gone").await;
    mknod(&fs, gone, "only").await;
    let listing = fs.opendir(&root(), directory, false).await.unwrap();
    let mut shown = fs.readdir(listing, 0, 700).await.unwrap();
    let offset = |shown: &[quorumfs_gateway::vfs::DirectoryEntry]| shown.last().unwrap().cookie.0;
    let rekeyed = other.rekey(Lock::Members).await.unwrap();
    let other = &other;
    let mut steps = 0;
    let (volume, clouds) = (&other.volume, Some(&other.shares));
    // The listing goes on after each operation of the job.
    let (told, mut tell) = tokio::sync::mpsc::unbounded_channel();
    let job = async move {
        let mut hear = move |_: &_| told.send(()).unwrap_or_default();
        let done = volume.reseal_names(&other.metadata, clouds, &mut hear);
        done.await.unwrap()
    };
    let list = async {
        while tell.recv().await.is_some() {
            steps += 1;
            let next = fs.readdir(listing, offset(&shown), 40).await.unwrap();
            shown.extend(next);
            if steps == 2 {
                fs.unlink(&root(), directory, b"file 5").await.unwrap();
                mknod(&fs, directory, "another").await;
                assert!(
                    fs.lookup(&root(), directory, b"file 7")
                        .await
                        .unwrap()
                        .is_some()
                );
            }
            if steps > 8 {
                break;
            }
        }
        loop {
            let next = fs.readdir(listing, offset(&shown), 100).await.unwrap();
            if next.is_empty() {
                break;
            }
            shown.extend(next);
        }
    };
    let (done, ()) = tokio::join!(job, list);
    assert_eq!(done.left, 0);
    let names: BTreeSet<_> = shown.iter().map(|entry| entry.name.clone()).collect();
    let count = |name: &[u8]| shown.iter().filter(|entry| entry.name == name).count();
    for number in (0..FILES).filter(|number| *number != 5) {
        let name = format!("file {number}");
        assert_eq!(count(name.as_bytes()), 1, "{name}");
    }
    assert!(names.contains(b".".as_slice()) && count(b"..") == 1);
    assert_eq!(
        generations(other, directory).await,
        BTreeSet::from([rekeyed.0])
    );
    assert_eq!(generations(other, gone).await, BTreeSet::from([rekeyed.0]));
    assert_eq!(
        generations(other, fs.root()).await,
        BTreeSet::from([rekeyed.0])
    );
    // All caches of the mount still lead where they did.
    let found = fs.lookup(&root(), directory, b"file 11").await.unwrap();
    let Detail::File = found.unwrap().detail else {
        panic!("no file")
    };
    assert!(
        fs.lookup(&root(), directory, b"file 5")
            .await
            .unwrap()
            .is_none()
    );
    fs.drop_caches();
    assert!(
        fs.lookup(&root(), directory, b"another")
            .await
            .unwrap()
            .is_some()
    );
    let again = reseal(other).await;
    assert_eq!((again.names, again.directories), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn content_is_sealed_anew_and_reads_as_before() {
    let world = World::new(Lock::MembersAndClouds).await;
    let (mounted, other) = (world.gateway(), world.gateway());
    mounted.refresh().await.unwrap();
    let fs = mounted.file_system();
    let directory = mkdir(&fs, "directory").await;
    write_all(&fs, directory, 1).await;
    write(&fs, directory, "large", &vec![3; 900_000]).await;
    let now = other.rekey(Lock::MembersAndClouds).await.unwrap();
    write_all(&fs, directory, 2).await;
    let found = fs.lookup(&root(), directory, b"large").await.unwrap();
    let before = fs.getattr(found.unwrap().inode).await.unwrap();
    let old: u64 = sealed_slices(&other).await.iter().map(|it| it.1).sum();
    let resealer = |gateway: &Gateway| {
        let (volume, metadata) = (gateway.volume.clone(), gateway.metadata.clone());
        ContentResealer::new(volume, metadata, gateway.blocks.clone())
    };
    let mut steps = Vec::new();
    let mut told = |done: &ResealedContent| steps.push(*done);
    let done = resealer(&other).run(&mut told).await.unwrap();
    assert_eq!((done.unreadable, done.left), (0, 0));
    assert!(done.slices >= 3 && done.bytes >= 900_000, "{done:?}");
    assert_eq!(steps.last().map(|it| it.slices), Some(done.slices));
    assert_eq!(sealed_slices(&other).await, [(now.0, old)]);
    // The mount goes on, with what it knew, and with what it asks for anew.
    for forgets in [false, true] {
        if forgets {
            fs.drop_caches();
        }
        for seed in [1, 2] {
            check_all(&fs, directory, seed).await;
        }
        assert_eq!(read(&fs, directory, "large").await, vec![3; 900_000]);
    }
    let after = fs.getattr(before.inode).await.unwrap();
    assert_eq!(
        (after.mtime, after.ctime, after.version),
        (before.mtime, before.ctime, before.version)
    );
    let again = resealer(&other).run(&mut |_: &_| {}).await.unwrap();
    assert_eq!(again, ResealedContent::default());
}
