//! Collection in the background, of garbage whose writer has died.

use super::harness::{VOLUME, Volume, attached, content, object_id, policy};
use crate::blocks::{
    BlockConfig, BlockStore, Collection, GarbageObject, GarbagePage, ObjectsPage, PlacementError,
    PlacementLog, StoredObject, UnderReplicatedCursor, UnderReplicatedPage,
};
use async_trait::async_trait;
use quorumfs_bft::identity::Time;
use quorumfs_metadata::identity::ObjectId;
use quorumfs_metadata::operation::PlacedShard;
use quorumfs_metadata::row::Job;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Metadata with one unreferenced object.
struct OneGarbage {
    object: StoredObject,
    /// Whether its ids are open.
    open: AtomicBool,
    /// Orders that took the job, each of which moves the lease clock.
    jobs: AtomicU64,
}

impl OneGarbage {
    fn jobs(&self) -> u64 {
        self.jobs.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl PlacementLog for OneGarbage {
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
        _: Option<ObjectId>,
        _: u32,
    ) -> Result<GarbagePage, PlacementError> {
        let garbage = GarbageObject {
            object: self.object.clone(),
            since: Time(0),
            open: self.open.load(Ordering::Relaxed),
            retained: true,
        };
        Ok(GarbagePage {
            garbage: vec![GarbageObject {
                retained: !garbage.open,
                ..garbage
            }],
            next: None,
        })
    }
    async fn take_job(&self, _: Job, _: Duration) -> Result<Option<Time>, PlacementError> {
        self.jobs.fetch_add(1, Ordering::Relaxed);
        Ok(Some(Time(2_000_000_000)))
    }
}

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn the_lease_clock_moves_while_garbage_waits_for_a_dead_session() {
    let volume = Volume::new(policy(4, 1, 2));
    volume.write(1, &content(1, 1000)).await.unwrap();
    let row = volume.log.row(object_id(1));
    let log = Arc::new(OneGarbage {
        object: StoredObject::of_new(&row).unwrap(),
        open: AtomicBool::new(true),
        jobs: AtomicU64::new(0),
    });
    let config = BlockConfig {
        collection: Some(Collection::default()),
        ..BlockConfig::new(VOLUME, volume.policy)
    };
    let clouds = attached(&volume.clouds);
    let placements = Arc::clone(&log) as Arc<dyn PlacementLog>;
    let blocks = BlockStore::open_with(config, &clouds, volume.fleet.clone(), placements).unwrap();
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
    tokio::time::sleep(2 * MINUTE).await;
    let before = log.jobs();
    log.open.store(true, Ordering::Relaxed);
    tokio::time::sleep(10 * MINUTE).await;
    assert!(
        log.jobs() - before >= 8 * 60,
        "{} batches",
        log.jobs() - before
    );
    blocks.shutdown();
}
