//! What collection orders: for garbage that is deleted, and for that of a dead writer.

use super::harness::{VOLUME, Volume, attached, content, object_id, policy};
use crate::blocks::{
    BlockConfig, BlockStore, Collection, GarbageObject, GarbagePage, ObjectsPage, PlacementError,
    PlacementLog, StoredObject, UnderReplicatedCursor, UnderReplicatedPage,
};
use async_trait::async_trait;
use quorumfs_bft::identity::Time;
use quorumfs_metadata::identity::ObjectId;
use quorumfs_metadata::operation::{NewObject, PlacedShard};
use quorumfs_metadata::row::Job;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Metadata with unreferenced objects.
struct Garbage {
    objects: Mutex<BTreeMap<ObjectId, StoredObject>>,
    /// Whether their ids are open; otherwise a point in the past needs them, if so set.
    open: AtomicBool,
    retained: AtomicBool,
    /// Orders that took the job, each of which moves the lease clock.
    jobs: AtomicU64,
    /// Orders that forgot objects.
    forgets: AtomicU64,
}

impl Garbage {
    /// So many objects like one that is on the clouds.
    async fn of(volume: &Volume, count: u32) -> Self {
        volume.write(1, &content(1, 1000)).await.unwrap();
        let like = volume.log.row(object_id(1));
        let objects = (1..=count).map(object_id).map(|id| {
            let new = NewObject { id, ..like.clone() };
            (id, StoredObject::of_new(&new).unwrap())
        });
        Self {
            objects: Mutex::new(objects.collect()),
            open: AtomicBool::new(false),
            retained: AtomicBool::new(false),
            jobs: AtomicU64::new(0),
            forgets: AtomicU64::new(0),
        }
    }

    fn jobs(&self) -> u64 {
        self.jobs.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl PlacementLog for Garbage {
    async fn confirm_placed(&self, _: Vec<PlacedShard>) -> Result<(), PlacementError> {
        Ok(())
    }
    async fn replace_placement(&self, _: PlacedShard) -> Result<(), PlacementError> {
        Ok(())
    }
    async fn withdraw_placed(&self, _: Vec<PlacedShard>) -> Result<(), PlacementError> {
        Ok(())
    }
    async fn list_objects(
        &self,
        _: Option<ObjectId>,
        _: u32,
    ) -> Result<ObjectsPage, PlacementError> {
        Ok(ObjectsPage::default())
    }
    async fn list_under_replicated(
        &self,
        _: Option<UnderReplicatedCursor>,
        _: u32,
    ) -> Result<UnderReplicatedPage, PlacementError> {
        Ok(UnderReplicatedPage::default())
    }
    async fn list_garbage(
        &self,
        after: Option<ObjectId>,
        limit: u32,
    ) -> Result<GarbagePage, PlacementError> {
        let objects = self.objects.lock().unwrap();
        let behind = objects.iter().filter(|(id, _)| Some(**id) > after);
        let garbage = behind
            .take(limit as usize)
            .map(|(_, object)| GarbageObject {
                object: object.clone(),
                since: Time(0),
                open: self.open.load(Ordering::Relaxed),
                retained: self.retained.load(Ordering::Relaxed),
            });
        let garbage: Vec<_> = garbage.collect();
        let last = garbage.last().map(|it| it.object.id());
        Ok(GarbagePage {
            next: last.filter(|_| garbage.len() == limit as usize),
            garbage,
        })
    }
    async fn forget(&self, objects: Vec<ObjectId>) -> Result<u32, PlacementError> {
        self.forgets.fetch_add(1, Ordering::Relaxed);
        let mut there = self.objects.lock().unwrap();
        let gone = objects.iter().filter(|id| there.remove(id).is_some());
        Ok(gone.count() as u32)
    }
    async fn take_job(&self, _: Job, _: Duration) -> Result<Option<Time>, PlacementError> {
        self.jobs.fetch_add(1, Ordering::Relaxed);
        // Years after the epoch, at which the garbage began.
        Ok(Some(Time(u64::MAX / 2)))
    }
}

const MINUTE: Duration = Duration::from_secs(60);

fn opened(volume: &Volume, log: &Arc<Garbage>, collection: Option<Collection>) -> BlockStore {
    let config = BlockConfig {
        collection,
        ..BlockConfig::new(VOLUME, volume.policy)
    };
    let clouds = attached(&volume.clouds);
    let log = Arc::clone(log) as Arc<dyn PlacementLog>;
    BlockStore::open_with(config, &clouds, volume.fleet.clone(), log).unwrap()
}

#[tokio::test(start_paused = true)]
async fn hardly_more_is_ordered_than_one_operation_for_256_objects() {
    const OBJECTS: u32 = 5 * 256;
    let volume = Volume::new(policy(4, 1, 2));
    let log = Arc::new(Garbage::of(&volume, OBJECTS).await);
    let blocks = opened(&volume, &log, None);
    let collected = blocks.collect(&Collection::default()).await.unwrap();
    assert_eq!(collected.objects, u64::from(OBJECTS), "{collected:?}");
    let forgets = log.forgets.load(Ordering::Relaxed);
    assert_eq!((forgets, log.jobs()), (5, 1), "and the job");
    blocks.shutdown();
}

#[tokio::test(start_paused = true)]
async fn the_lease_clock_moves_while_garbage_waits_for_a_dead_session() {
    let volume = Volume::new(policy(4, 1, 2));
    let log = Arc::new(Garbage::of(&volume, 1).await);
    log.open.store(true, Ordering::Relaxed);
    let blocks = opened(&volume, &log, Some(Collection::default()));
    // A session lasts 30 minutes of the lease clock, which a batch moves by a second at most.
    tokio::time::sleep(32 * MINUTE).await;
    assert!(log.jobs() >= 30 * 60, "{} batches", log.jobs());
    // What is open then is a living process's.
    tokio::time::sleep(10 * MINUTE).await;
    let before = log.jobs();
    tokio::time::sleep(10 * MINUTE).await;
    assert!(log.jobs() - before <= 11, "{} batches", log.jobs() - before);
    // Once nothing is open the count begins anew.
    log.open.store(false, Ordering::Relaxed);
    log.retained.store(true, Ordering::Relaxed);
    tokio::time::sleep(2 * MINUTE).await;
    let before = log.jobs();
    log.retained.store(false, Ordering::Relaxed);
    log.open.store(true, Ordering::Relaxed);
    tokio::time::sleep(10 * MINUTE).await;
    assert!(
        log.jobs() - before >= 8 * 60,
        "{} batches",
        log.jobs() - before
    );
    blocks.shutdown();
}
