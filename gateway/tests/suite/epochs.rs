//! New key epochs and the second lock, over a service in this process and clouds that lie.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

#[path = "epochs/removed.rs"]
mod removed;
#[path = "epochs/reseal.rs"]
mod reseal;
#[path = "epochs/world.rs"]
mod world;

use crate::common::{content, new_file, root};
use quorumfs_backends::StoreErrorKind;
use quorumfs_backends::faulty::{Fault, Plan};
use quorumfs_gateway::blocks::{ShareError, ShareState};
use quorumfs_gateway::keys::{KeyError, Secret, ShareCache};
use quorumfs_gateway::vfs::{FileSystem, OpenMode, SetMode, UnderOldEpochs};
use quorumfs_gateway::volume::{Volume, VolumeError};
use quorumfs_metadata::identity::{CloudIndex, InodeId, RealmEpoch, RealmId, SliceId};
use quorumfs_metadata::row::{Lock, SliceSalt};
use std::sync::atomic::Ordering;
use world::*;

async fn write(fs: &FileSystem, directory: InodeId, name: &str, bytes: &[u8]) {
    let (_, handle) = fs
        .create(
            &root(),
            directory,
            name.as_bytes(),
            0o644,
            OpenMode::READ_WRITE,
            true,
        )
        .await
        .unwrap();
    fs.write(handle, 0, bytes).await.unwrap();
    fs.fsync(handle).await.unwrap();
    fs.release(handle).await.unwrap();
}

async fn read(fs: &FileSystem, directory: InodeId, name: &str) -> Vec<u8> {
    let found = fs
        .lookup(&root(), directory, name.as_bytes())
        .await
        .unwrap();
    content(fs, found.unwrap().inode).await
}

async fn mkdir(fs: &FileSystem, name: &str) -> InodeId {
    let made = fs.mkdir(&root(), fs.root(), name.as_bytes(), 0o755).await;
    made.unwrap().inode
}

/// The test's content: in an inode, in a pack, and in a block of its own.
fn contents(seed: u8) -> [Vec<u8>; 3] {
    [100, 9_000, 700_000].map(|length| vec![seed; length])
}

async fn write_all(fs: &FileSystem, directory: InodeId, seed: u8) {
    for (number, bytes) in contents(seed).iter().enumerate() {
        write(fs, directory, &format!("{seed}-{number}"), bytes).await;
    }
}

async fn check_all(fs: &FileSystem, directory: InodeId, seed: u8) {
    for (number, bytes) in contents(seed).iter().enumerate() {
        let found = read(fs, directory, &format!("{seed}-{number}")).await;
        assert_eq!(found.len(), bytes.len(), "{seed}-{number}");
        assert_eq!(&found, bytes, "{seed}-{number}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cached_shares_open_an_epoch_without_clouds_and_wrong_ones_are_dropped() {
    let world = World::new(Lock::MembersAndClouds).await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("clouds.shares");
    let host_key = Secret::from_bytes([4; 32]);
    let owner = world.gateway();
    let keeper = || ShareCache::new(path.clone(), host_key.clone(), owner.volume.id());
    let opens_alone = async || {
        let late = world.gateway();
        late.volume.cache_shares(keeper());
        for cloud in &late.faulty {
            cloud.set_plan(Plan::always(Fault::Refuse(StoreErrorKind::Unavailable)));
        }
        late.refresh().await
    };
    assert!(opens_alone().await.is_err(), "nothing is cached yet");
    let keeping = world.gateway();
    keeping.volume.cache_shares(keeper());
    keeping.refresh().await.unwrap();
    assert_eq!(opens_alone().await.unwrap(), RealmEpoch(0));

    // Shares of an epoch that was begun elsewhere are cached only once it was opened here.
    owner.rekey(Lock::MembersAndClouds).await.unwrap();
    assert!(opens_alone().await.is_err(), "of another epoch");
    keeping.refresh().await.unwrap();
    assert_eq!(opens_alone().await.unwrap(), RealmEpoch(1));

    // A share that opens and does not match the signed row is neither used nor left there.
    let kept = keeper();
    let good = kept.load(RealmId::ROOT, RealmEpoch(1)).unwrap().unwrap();
    let with = |index: u8, share: &Secret| vec![good[0].clone(), (index, share.clone())];
    let (second, stranger) = (&good[1], Secret::from_bytes([9; 32]));
    for wrong in [
        with(second.0, &stranger),
        with(good[0].0, &good[0].1),
        with(200, &second.1),
        vec![good[0].clone()],
        [good.clone(), vec![good[0].clone()]].concat(),
    ] {
        kept.store(RealmId::ROOT, RealmEpoch(1), &wrong).unwrap();
        assert!(opens_alone().await.is_err(), "{wrong:?}");
        assert!(!path.exists(), "{wrong:?} stays");
    }
    // With the clouds it is as if there had been no shares.
    std::fs::write(&path, "something else").unwrap();
    let late = world.gateway();
    late.volume.cache_shares(keeper());
    assert_eq!(late.refresh().await.unwrap(), RealmEpoch(1));
    let found = kept.load(RealmId::ROOT, RealmEpoch(1)).unwrap();
    assert_eq!(found.map(|found| found.len()), Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mount_reads_data_from_before_during_and_after_new_epochs() {
    let world = World::new(Lock::MembersAndClouds).await;
    let (mounted, other) = (world.gateway(), world.gateway());
    assert!(
        mounted.volume.current_key().is_err(),
        "nothing opens by a key alone"
    );
    assert_eq!(mounted.refresh().await.unwrap(), RealmEpoch(0));
    let fs = mounted.file_system();
    let before = mkdir(&fs, "before").await;
    write_all(&fs, before, 1).await;
    assert_eq!(
        other.rekey(Lock::MembersAndClouds).await.unwrap(),
        RealmEpoch(1)
    );
    // The mount does not have the new epoch: it writes under the old one.
    write_all(&fs, before, 2).await;
    assert_eq!(mounted.volume.current_epoch(), Some(RealmEpoch(0)));
    // A new directory shows it.
    let after = mkdir(&fs, "after").await;
    write_all(&fs, after, 3).await;
    assert_eq!(mounted.volume.current_epoch(), Some(RealmEpoch(1)));
    write_all(&fs, before, 4).await;
    let (counted, next) = mounted.metadata.count_by_epoch(None).await.unwrap();
    assert_eq!(next, None);
    let slices: Vec<_> = counted.iter().map(|it| (it.epoch.0, it.slices)).collect();
    assert_eq!(slices, [(0, 4), (1, 4)]);
    // Back to one lock, and to two again.
    assert_eq!(other.rekey(Lock::Members).await.unwrap(), RealmEpoch(2));
    assert_eq!(
        other.rekey(Lock::MembersAndClouds).await.unwrap(),
        RealmEpoch(3)
    );
    let late = world.gateway();
    assert_eq!(late.refresh().await.unwrap(), RealmEpoch(3));
    let late = late.file_system();
    let latest = mkdir(&late, "latest").await;
    write_all(&late, latest, 5).await;
    for fs in [&fs, &late, &other.file_system()] {
        fs.drop_caches();
        for (directory, seed) in [
            (before, 1),
            (before, 2),
            (after, 3),
            (before, 4),
            (latest, 5),
        ] {
            check_all(fs, directory, seed).await;
        }
    }
    assert_eq!(mounted.volume.current_epoch(), Some(RealmEpoch(3)));
    // The mount counts by itself how much is left under older epochs: all but the latest.
    let (counted, _) = mounted.metadata.count_by_epoch(None).await.unwrap();
    let old = counted.iter().filter(|it| it.epoch < RealmEpoch(3));
    let (slices, bytes) = old.fold((0, 0), |(slices, bytes), it| {
        (slices + it.slices, bytes + it.bytes)
    });
    assert!(slices >= 8 && bytes > 0);
    let patience = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while fs.status().under_old_epochs != Some(UnderOldEpochs { slices, bytes }) {
        let status = fs.status();
        assert!(std::time::Instant::now() < patience, "{status:?}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn extended_attributes_outlive_new_epochs() {
    let world = World::new(Lock::Members).await;
    let (mounted, other) = (world.gateway(), world.gateway());
    mounted.refresh().await.unwrap();
    let fs = mounted.file_system();
    let inode = mkdir(&fs, "directory").await;
    let set = |fs: &FileSystem, name: &'static [u8], value: &'static [u8]| {
        let fs = fs.clone();
        async move {
            let done = fs.setxattr(&root(), inode, name, value, SetMode::Any).await;
            done.unwrap();
        }
    };
    set(&fs, b"user.old", b"1").await;
    set(&fs, b"user.both", b"1").await;
    assert_eq!(other.rekey(Lock::Members).await.unwrap(), RealmEpoch(1));
    let later = other.file_system();
    set(&later, b"user.new", b"2").await;
    set(&later, b"user.both", b"2").await;
    for fs in [&fs, &later] {
        fs.drop_caches();
        for (name, value) in [("user.old", "1"), ("user.both", "2"), ("user.new", "2")] {
            let found = fs.getxattr(&root(), inode, name.as_bytes()).await;
            assert_eq!(found.unwrap(), value, "{name}");
        }
    }
    // An inode without attributes takes the current key.
    for name in [b"user.old".as_slice(), b"user.both", b"user.new"] {
        later.removexattr(&root(), inode, name).await.unwrap();
    }
    set(&later, b"user.both", b"3").await;
    let generation = later.getattr(inode).await.unwrap().extended.generation;
    assert_eq!(generation, RealmEpoch(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn shares_are_found_with_f_clouds_lying_or_gone_and_not_with_more() {
    let world = World::new(Lock::MembersAndClouds).await;
    for fault in [
        Fault::Zeros,
        Fault::FlipBit,
        Fault::WrongObject,
        Fault::Hang,
        Fault::Stale,
        Fault::Refuse(StoreErrorKind::Unavailable),
        Fault::Refuse(StoreErrorKind::NotFound),
    ] {
        let gateway = world.gateway();
        gateway.faulty[0].set_plan(Plan::always(fault));
        assert_eq!(gateway.refresh().await.unwrap(), RealmEpoch(0), "{fault:?}");
        gateway.volume.current_key().unwrap();
        let refused = gateway.blocks.status().clouds[0].shards_refused;
        let lies = matches!(fault, Fault::Zeros | Fault::FlipBit);
        assert!(!lies || refused > 0, "{fault:?}: the lie is not on record");
    }
    let gateway = world.gateway();
    for cloud in [0, 1, 3] {
        gateway.faulty[cloud].set_plan(Plan::always(Fault::Refuse(StoreErrorKind::Unavailable)));
    }
    let error = gateway.refresh().await.unwrap_err();
    let VolumeError::Shares(ShareError::TooFew { good, wanted, .. }) = &error else {
        panic!("{error:?}");
    };
    assert_eq!((*good, *wanted), (1, 2));
    let error = error.to_string();
    assert!(error.contains("only 1 of the 2 clouds"), "{error}");
    assert!(
        error.contains("bring one of these clouds back:\n"),
        "{error}"
    );
    assert_eq!(error.matches("a planned fault").count(), 3, "{error}");
}

/// An attacker with a member's key, the genesis, every server, and f clouds.
#[tokio::test(flavor = "multi_thread")]
async fn a_members_key_with_f_clouds_opens_nothing_and_with_one_more_it_does() {
    let world = World::new(Lock::MembersAndClouds).await;
    let thief = world.gateway();
    for cloud in 1..4 {
        thief.faulty[cloud].set_plan(Plan::always(Fault::Refuse(StoreErrorKind::Denied)));
    }
    assert!(thief.volume.unlock(&thief.shares).await.is_err());
    assert!(thief.refresh().await.is_err());
    let locked = thief.volume.current_key().unwrap_err();
    assert!(matches!(locked, KeyError::Locked { .. }), "{locked}");
    thief.faulty[3].set_plan(Plan::honest());
    thief.volume.unlock(&thief.shares).await.unwrap();
    let (slice, salt) = (SliceId::default(), SliceSalt::default());
    let owner = world.gateway();
    owner.refresh().await.unwrap();
    let key = |gateway: &Gateway| {
        let key = gateway
            .volume
            .slice_key(RealmEpoch(0), slice, &salt)
            .unwrap();
        *key.expose()
    };
    assert_eq!(key(&thief), key(&owner));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rekey_with_too_few_clouds_changes_nothing_and_can_be_retried() {
    let world = World::new(Lock::Members).await;
    let gateway = world.gateway();
    for cloud in 0..2 {
        gateway.faulty[cloud].set_plan(Plan::always(Fault::AcknowledgeWithoutStoring));
    }
    let error = gateway.rekey(Lock::MembersAndClouds).await.unwrap_err();
    let error = error.to_string();
    assert!(error.contains("only 2 of the 3"), "{error}");
    assert_eq!(gateway.refresh().await.unwrap(), RealmEpoch(0));
    gateway.faulty[0].set_plan(Plan::honest());
    let (volume, clouds) = (&gateway.volume, &gateway.shares);
    let lock = Lock::MembersAndClouds;
    let done = volume.rekey(&gateway.metadata, clouds, lock, NOW).await;
    let done = done.unwrap();
    assert_eq!(done.number, RealmEpoch(1));
    assert_eq!(done.confirmed, [0, 2, 3].map(CloudIndex));
    assert_eq!(done.failures.0.len(), 1);
    // The cloud without a share gets one later.
    gateway.faulty[1].set_plan(Plan::honest());
    let shares = gateway.volume.current_shares().unwrap();
    let looked = gateway.shares.look(&shares, None).await;
    assert_eq!(looked[1], (CloudIndex(1), ShareState::Missing));
    let restored = gateway.shares.restore(&shares, &[CloudIndex(1)]).await;
    assert_eq!(restored.unwrap(), [CloudIndex(1)]);
    let looked = gateway.shares.look(&shares, None).await;
    assert!(looked.iter().all(|(_, state)| *state == ShareState::Good));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rekey_that_dies_at_any_step_leaves_one_epoch_or_the_other() {
    let world = World::new(Lock::MembersAndClouds).await;
    let (gateway, line) = world.gateway_on_a_line();
    let (volume, clouds) = (&gateway.volume, &gateway.shares);
    let (metadata, lock) = (&gateway.metadata, Lock::MembersAndClouds);
    // Shares are on the clouds, and no session has used them.
    let prepared = volume.prepare_epoch(metadata, clouds, lock, &[]).await;
    drop(prepared.unwrap());
    assert_eq!(world.gateway().refresh().await.unwrap(), RealmEpoch(0));
    // The order never arrives.
    *line.fate.lock().unwrap() = Some(Fate::NotSent);
    assert!(gateway.rekey(lock).await.is_err());
    assert_eq!(world.gateway().refresh().await.unwrap(), RealmEpoch(0));
    // It arrives, and the answer does not.
    *line.fate.lock().unwrap() = Some(Fate::AnswerLost);
    assert_eq!(gateway.rekey(lock).await.unwrap(), RealmEpoch(1));
    assert_eq!(world.gateway().refresh().await.unwrap(), RealmEpoch(1));
    // The process that ordered it dies before opening it: the others open it.
    let heir = world.gateway();
    assert_eq!(heir.rekey(lock).await.unwrap(), RealmEpoch(2));
    assert_eq!(gateway.refresh().await.unwrap(), RealmEpoch(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_concurrent_rekeys_one_succeeds_and_the_other_fails() {
    let world = World::new(Lock::MembersAndClouds).await;
    let (one, other) = (world.gateway(), world.gateway());
    let prepare = async |gateway: &Gateway| {
        let (volume, clouds) = (&gateway.volume, &gateway.shares);
        let lock = Lock::MembersAndClouds;
        let prepared = volume.prepare_epoch(&gateway.metadata, clouds, lock, &[]);
        prepared.await.unwrap()
    };
    let (first, second) = (prepare(&one).await, prepare(&other).await);
    let begin = async |gateway: &Gateway, prepared| {
        let (volume, clouds) = (&gateway.volume, &gateway.shares);
        let begun = volume.begin_epoch(&gateway.metadata, clouds, prepared, NOW);
        begun.await
    };
    assert_eq!(begin(&one, first).await.unwrap().number, RealmEpoch(1));
    let error = begin(&other, second).await.unwrap_err();
    let VolumeError::Raced { current } = error else {
        panic!("{error}");
    };
    assert_eq!(current, RealmEpoch(1));
    let (slice, salt) = (SliceId::default(), SliceSalt::default());
    let key = |it: &Gateway| {
        *it.volume
            .slice_key(RealmEpoch(1), slice, &salt)
            .unwrap()
            .expose()
    };
    assert_eq!(key(&one), key(&other));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_or_replayed_epoch_is_refused() {
    let world = World::new(Lock::MembersAndClouds).await;
    let (gateway, line) = world.gateway_on_a_line();
    gateway.refresh().await.unwrap();
    world.gateway().rekey(Lock::MembersAndClouds).await.unwrap();
    for lie in [
        WITHOUT_LOCK,
        OTHER_DIGEST,
        OTHER_PREVIOUS,
        OTHER_NUMBER,
        NO_MEMBER,
    ] {
        line.lie.store(lie, Ordering::Relaxed);
        let error = gateway.refresh().await.unwrap_err();
        let refused = matches!(
            error,
            VolumeError::Key(KeyError::Untrusted { .. } | KeyError::NoMember { .. })
        );
        assert!(refused, "lie {lie}: {error:?}");
        assert_eq!(gateway.volume.current_epoch(), Some(RealmEpoch(0)), "{lie}");
    }
    // The older answer was true then: a client that has not seen a newer epoch accepts it.
    line.lie.store(OLD, Ordering::Relaxed);
    assert_eq!(gateway.refresh().await.unwrap(), RealmEpoch(0));
    let old = line.old.lock().unwrap().clone();
    line.lie.store(HONEST, Ordering::Relaxed);
    assert_eq!(gateway.refresh().await.unwrap(), RealmEpoch(1));
    line.old.lock().unwrap().clone_from(&old);
    line.lie.store(OLD, Ordering::Relaxed);
    let error = gateway.refresh().await.unwrap_err();
    assert!(matches!(error, VolumeError::WentBack(_)), "{error:?}");
    assert_eq!(gateway.volume.current_epoch(), Some(RealmEpoch(1)));
    // Nor by another process that has seen that epoch before.
    let (next, line) = world.gateway_on_a_line();
    next.volume.epoch_shown_before(RealmEpoch(1));
    *line.old.lock().unwrap() = old;
    line.lie.store(OLD, Ordering::Relaxed);
    let error = next.refresh().await.unwrap_err();
    assert!(matches!(error, VolumeError::WentBack(_)), "{error:?}");
    line.lie.store(HONEST, Ordering::Relaxed);
    assert_eq!(next.refresh().await.unwrap(), RealmEpoch(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_hold_the_secrets_of_the_statement_and_no_other_signature_counts() {
    let world = World::new(Lock::Members).await;
    let (gateway, line) = world.gateway_on_a_line();
    let held = gateway.metadata.cloud_secrets().await.unwrap();
    assert_eq!(held, gateway.volume.genesis().principals[0].cloud_secrets);
    assert_eq!(held.len(), 4);
    line.lie.store(SIGNED_SECRET, Ordering::Relaxed);
    let refused = gateway.metadata.cloud_secrets().await;
    assert!(refused.is_err(), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_realm_with_properties_that_no_program_has_yet_is_refused() {
    let world = World::new(Lock::Members).await;
    let (gateway, line) = world.gateway_on_a_line();
    for lie in [OTHER_POLICY, BELIEVING, WITH_PARENT] {
        line.lie.store(lie, Ordering::Relaxed);
        let error = gateway.refresh().await.unwrap_err().to_string();
        assert!(error.contains("does not know"), "lie {lie}: {error}");
    }
    line.lie.store(HONEST, Ordering::Relaxed);
    assert_eq!(gateway.refresh().await.unwrap(), RealmEpoch(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_administrator_is_left_out() {
    let world = World::new(Lock::Members).await;
    let gateway = world.gateway();
    let recovery = world.created.recovery_kit.recovery.id().signing;
    let (volume, clouds) = (&gateway.volume, &gateway.shares);
    let prepared = volume
        .prepare_epoch(&gateway.metadata, clouds, Lock::Members, &[recovery])
        .await;
    let error = prepared.unwrap_err().to_string();
    assert!(error.contains("recovery administers"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_or_damaged_share_is_rebuilt_from_the_others() {
    let world = World::new(Lock::MembersAndClouds).await;
    let gateway = world.gateway();
    gateway.refresh().await.unwrap();
    let shares = gateway.volume.current_shares().unwrap();
    let (lost, damaged) = (world.share_file(2), world.share_file(3));
    let was = std::fs::read(&lost).unwrap();
    std::fs::remove_file(&lost).unwrap();
    let mut bytes = std::fs::read(&damaged).unwrap();
    bytes[STORED_BYTES as usize - 1] ^= 1;
    std::fs::write(&damaged, bytes).unwrap();
    let states = [
        ShareState::Good,
        ShareState::Good,
        ShareState::Missing,
        ShareState::Damaged,
    ];
    let looked = gateway.shares.look(&shares, None).await;
    let looked: Vec<_> = looked.into_iter().map(|(_, state)| state).collect();
    assert_eq!(looked, states);
    let only = gateway.shares.look(&shares, Some(CloudIndex(3))).await;
    assert_eq!(only, [(CloudIndex(3), ShareState::Damaged)]);
    let both = [2, 3].map(CloudIndex);
    let restored = gateway.shares.restore(&shares, &both).await.unwrap();
    assert_eq!(restored, both);
    assert_eq!(std::fs::read(&lost).unwrap(), was, "byte for byte");
    // Those two alone open the volume now.
    let late = world.gateway();
    for cloud in 0..2 {
        late.faulty[cloud].set_plan(Plan::always(Fault::Refuse(StoreErrorKind::Unavailable)));
    }
    assert_eq!(late.refresh().await.unwrap(), RealmEpoch(0));
    // Shares that do not fit each other are the fault of their signer.
    let mut wrong = shares.clone();
    wrong.places[2].digest.0[0] ^= 1;
    let error = gateway.shares.restore(&wrong, &[CloudIndex(2)]).await;
    let error = error.unwrap_err();
    assert!(matches!(error, ShareError::WrittenWrong { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_mount_puts_a_missing_share_back() {
    let world = World::new(Lock::MembersAndClouds).await;
    let gateway = world.gateway();
    gateway.refresh().await.unwrap();
    let file = world.share_file(3);
    let was = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let _mounted = gateway.file_system();
    tokio::time::sleep(std::time::Duration::from_secs(70)).await;
    assert_eq!(std::fs::read(&file).unwrap(), was);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_recovery_kit_opens_the_second_lock_without_any_server() {
    let world = World::new(Lock::MembersAndClouds).await;
    let kit = &world.created.recovery_kit;
    let key = quorumfs_gateway::keys::KeyFile {
        principal: kit.recovery.clone(),
        root: kit.root.public(),
    };
    let volume = Volume::open(&kit.genesis, &key).unwrap();
    let gateway = world.gateway();
    volume.unlock(&gateway.shares).await.unwrap();
    assert_eq!(volume.current_epoch(), Some(RealmEpoch(0)));
    assert!(kit.to_text().contains("f + 1 of the clouds"));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_file_is_sealed_under_two_epochs() {
    let world = World::new(Lock::Members).await;
    let (mounted, other) = (world.gateway(), world.gateway());
    let fs = mounted.file_system();
    let (inode, handle) = new_file(&fs, b"file").await;
    fs.write(handle, 0, &[1; 300_000]).await.unwrap();
    fs.fsync(handle).await.unwrap();
    fs.release(handle).await.unwrap();
    other.rekey(Lock::MembersAndClouds).await.unwrap();
    let theirs = other.file_system();
    let at = theirs
        .open(&root(), inode, OpenMode::READ_WRITE)
        .await
        .unwrap()
        .handle;
    theirs.write(at, 100_000, &[2; 100_000]).await.unwrap();
    theirs.fsync(at).await.unwrap();
    fs.drop_caches();
    let found = content(&fs, inode).await;
    let expected = [vec![1; 100_000], vec![2; 100_000], vec![1; 100_000]].concat();
    assert!(found == expected);
    assert_eq!(mounted.volume.current_epoch(), Some(RealmEpoch(1)));
}
