//! Backups of the metadata over clouds that lie and vanish.

use super::harness::{Volume, content, policies, policy};
use crate::blocks::{BackupError, Lineage, incarnation_record};
use crate::keys::VolumeRoot;
use bytes::Bytes;
use quorumfs_backends::StoreErrorKind as Kind;
use quorumfs_backends::faulty::{Fault, Plan};
use quorumfs_metadata::identity::{AllocationId, ObjectClass, ObjectId, VolumeIncarnation};

fn id(counter: u32) -> ObjectId {
    ObjectId {
        allocation: AllocationId(77),
        counter,
    }
}

/// Rows compress somewhat.
fn rows(length: usize) -> Bytes {
    let noise = content(9, length / 2);
    [&noise[..], &vec![b'/'; length - length / 2]]
        .concat()
        .into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_is_read_though_f_clouds_lie_and_others_vanish() {
    for policy in policies() {
        for length in [1, 4_000, 70_000, 4 << 20] {
            let volume = Volume::new(policy);
            let store = volume.blocks.backups();
            let plain = rows(length);
            let part = store.put_part(id(1), plain.clone()).await.unwrap();
            assert!(part.shards.iter().all(|shard| shard.confirmed));
            let read = volume.blocks.read_part(&part).await.unwrap();
            assert!(read == plain, "{policy:?} {length}");
            // Up to n − k clouds may be useless, one way or another.
            let useless = usize::from(policy.clouds() - policy.data());
            for fault in [Fault::FlipBit, Fault::Refuse(Kind::NotFound)] {
                for cloud in volume.clouds.iter().take(useless) {
                    cloud.set_plan(Plan::always(fault));
                }
                let read = volume.blocks.read_part(&part).await.unwrap();
                assert!(read == plain, "{policy:?} {length} {fault:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_n_minus_f_clouds_do_not_give_back_is_not_recorded() {
    for kind in [Fault::AcknowledgeWithoutStoring, Fault::FlipBit] {
        for faulty in [1, 2] {
            let volume = Volume::new(policy(4, 1, 2));
            let store = volume.blocks.backups();
            for cloud in volume.clouds.iter().take(faulty) {
                cloud.set_plan(Plan::always(kind));
            }
            let part = store.put_part(id(1), rows(50_000)).await;
            let point = store.put_point(id(0), rows(900)).await;
            if faulty == 1 {
                let shards = part.unwrap().shards;
                let confirmed = shards.iter().filter(|shard| shard.confirmed);
                assert_eq!(confirmed.count(), 3, "{kind:?}");
                point.unwrap();
                continue;
            }
            for refused in [part.map(|_| ()), point] {
                let error = refused.unwrap_err();
                let few = matches!(error, BackupError::TooFewConfirmed { wanted: 3, .. });
                assert!(few, "{kind:?}: {error}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn points_are_listed_and_deleted_with_their_parts_and_records_never() {
    let volume = Volume::new(policy(4, 1, 2));
    let store = volume.blocks.backups();
    let part = store.put_part(id(1), rows(50_000)).await.unwrap();
    let (one, other) = (rows(1_000), rows(2_000));
    store.put_point(id(0), one.clone()).await.unwrap();
    // A second try at the same point lies under the next name, and both are shown.
    store.put_point(id(0), other.clone()).await.unwrap();
    let mut found = store.points(id(0)).await;
    found.sort_by_key(Bytes::len);
    assert_eq!(found, [one, other]);
    let root = VolumeRoot::random().unwrap();
    let record = incarnation_record(&root, VolumeIncarnation(1), b"genesis");
    store
        .put_record(VolumeIncarnation(1), record)
        .await
        .unwrap();
    let wanted = [
        (ObjectClass::BACKUP, id(1)),
        (ObjectClass::BACKUP_ROOT, id(0)),
    ];
    for listed in store.list().await {
        assert!(listed.found.unwrap().into_iter().eq(wanted));
    }
    assert!(store.delete_part(&part).await);
    assert!(store.delete(ObjectClass::BACKUP_ROOT, id(0)).await);
    assert!(!store.delete(ObjectClass::INCARNATION, id(0)).await);
    for memory in &volume.memories {
        assert_eq!(memory.objects.lock().unwrap().len(), 1, "the record stays");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_later_incarnation_is_noticed_through_one_honest_cloud_and_no_other_way() {
    let volume = Volume::new(policy(4, 1, 2));
    let store = volume.blocks.backups();
    let (root, stranger) = (VolumeRoot::random().unwrap(), VolumeRoot::random().unwrap());
    let lineage = Lineage {
        incarnation: VolumeIncarnation(0),
        root: root.public(),
    };
    let next = VolumeIncarnation(1);
    store.superseded(lineage).await.unwrap();
    let forged = incarnation_record(&stranger, next, b"genesis");
    store.put_record(next, forged).await.unwrap();
    store.superseded(lineage).await.unwrap();
    let record = incarnation_record(&root, next, b"genesis");
    store.put_record(next, record).await.unwrap();
    // Three clouds deny it or lie about it; the fourth tells.
    for fault in [Fault::Refuse(Kind::NotFound), Fault::FlipBit] {
        for cloud in volume.clouds.iter().take(3) {
            cloud.set_plan(Plan::always(fault));
        }
        let noticed = store.superseded(lineage).await.unwrap_err();
        assert!(noticed.is_final(), "{noticed}");
    }
    for cloud in volume.clouds.iter().take(2) {
        cloud.set_plan(Plan::always(Fault::Refuse(Kind::Unavailable)));
    }
    for cloud in volume.clouds.iter().skip(2) {
        cloud.set_plan(Plan::always(Fault::Refuse(Kind::NotFound)));
    }
    let unknown = store.superseded(lineage).await.unwrap_err();
    assert!(matches!(
        unknown,
        BackupError::TooFewAnswer {
            answered: 2,
            wanted: 3
        }
    ));
}
