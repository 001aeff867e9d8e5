//! The block store, the interface for the file system: it puts the wings together.

use super::backup::{BackupPart, BackupStore};
use super::clouds::{Cloud, Clouds, PlacementError, PlacementLog};
use super::config::BlockConfig;
use super::linked::{LinkFor, LinkedObject};
use super::object::{BlockError, PlainSlice, SealedSlice, Stored, StoredObject};
use super::read::Reads;
use super::reconcile::{
    BlockStatus, CloudEvidence, Collected, Collection, Compacted, Compaction, CompactionError,
    Drainage, Draining, Reconciler, Scheduler, ScrubConfig, ScrubReport, Swept,
};
use super::shares::{ShareError, ShareStore};
use super::write::Writes;
use crate::cost::Allowance;
use crate::keys::SliceKey;
use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use quorumfs_metadata::fleet::Fleet;
use quorumfs_metadata::identity::{CloudIndex, ObjectClass, ObjectId, SliceId};
use quorumfs_metadata::operation::NewObject;
use quorumfs_metadata::row::Shares;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// The pause between two checks of whether completion has finished.
const DRAIN_PAUSE: Duration = Duration::from_millis(50);

/// Slices on several clouds, of which some may lie. Cheap to clone; dropping the last clone stops
/// the background tasks.
#[derive(Clone)]
pub struct BlockStore {
    clouds: Arc<Clouds>,
    writes: Arc<Writes>,
    reads: Arc<Reads>,
    reconciler: Arc<Reconciler>,
    shut: Arc<AtomicBool>,
    scheduler: Arc<Scheduler>,
}

impl fmt::Debug for BlockStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockStore")
            .field("clouds", self.clouds.config())
            .finish_non_exhaustive()
    }
}

/// The outstanding work when waiting for completion ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Drained {
    /// Objects that still lack shards.
    pub lacking: usize,
    /// Those of them that lack shards only on unreachable clouds.
    pub unreachable: usize,
    /// Whether puts, confirmations or repairs were still in progress.
    pub busy: bool,
}

impl Drained {
    /// Whether every object has all its shards.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.lacking == 0 && !self.busy
    }
}

impl BlockStore {
    /// Opens the store over the volume's clouds, which need not be reachable. Must be called within
    /// a Tokio runtime; completion and repair then run on it.
    ///
    /// # Errors
    /// `Configuration` if the clouds do not fit the policy; `Processor` if this one is too old.
    pub fn open(
        config: BlockConfig,
        clouds: &[Cloud],
        log: Arc<dyn PlacementLog>,
    ) -> Result<Self, BlockError> {
        let founding = Fleet {
            active: clouds.iter().map(|cloud| cloud.index).collect(),
            ..Fleet::default()
        };
        Self::open_with(config, clouds, founding, log)
    }

    /// The same over a volume whose clouds were changed since its creation: all that it ever had,
    /// and which of them take new shards.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(
        config: BlockConfig,
        clouds: &[Cloud],
        fleet: Fleet,
        log: Arc<dyn PlacementLog>,
    ) -> Result<Self, BlockError> {
        let clouds = Arc::new(Clouds::new(config.clouds(), clouds, fleet, log)?);
        let writes = Arc::new(Writes::new(config.writes(), Arc::clone(&clouds)));
        let reads = Arc::new(Reads::new(config.reads(), Arc::clone(&clouds)));
        let reconciler = Reconciler::new(
            clouds.clone(),
            writes.clone(),
            reads.clone(),
            config.lineage,
        );
        let reconciler = Arc::new(reconciler);
        let BlockConfig {
            compaction,
            collection,
            draining,
            ..
        } = config;
        let scheduler = Arc::new(reconciler.start(compaction, collection, draining));
        Ok(Self {
            clouds,
            writes,
            reads,
            reconciler,
            shut: Arc::default(),
            scheduler,
        })
    }

    /// Seals a slice into an object of its own and returns once w clouds have acknowledged it. Both
    /// ids must never have been used before: an id is burned by its first write, successful or not.
    ///
    /// Afterwards, call either [`committed`](Self::committed) or [`abandoned`](Self::abandoned).
    ///
    /// # Errors
    /// `TooFewAcknowledged`; `Length` if the slice is larger than a block.
    #[boxed]
    pub async fn write(
        &self,
        object: ObjectId,
        slice: SliceId,
        key: &SliceKey,
        plain: Bytes,
    ) -> Result<Stored, BlockError> {
        let turn = object.counter;
        self.write_in_turn(object, slice, key, plain, turn).await
    }

    /// The same for one of a series of objects: each has the next `turn` and its data shards on
    /// other clouds than the one before, so that reading the series in order loads all clouds
    /// equally.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    #[boxed]
    pub async fn write_in_turn(
        &self,
        object: ObjectId,
        slice: SliceId,
        key: &SliceKey,
        plain: Bytes,
        turn: u32,
    ) -> Result<Stored, BlockError> {
        if self.shut.load(Ordering::Acquire) {
            return Err(BlockError::Shut);
        }
        self.writes.write(object, slice, key, plain, turn).await
    }

    /// Seals several slices, each under its own key, into one object, in the order given and
    /// without padding between them; otherwise as [`write`](Self::write). The object is written
    /// whole or not at all, and committed or abandoned as one.
    ///
    /// # Errors
    /// `TooFewAcknowledged`; `Length` if the slices together are larger than a block; `Row` if
    /// there is none.
    #[boxed]
    pub async fn write_slices(
        &self,
        object: ObjectId,
        class: ObjectClass,
        slices: Vec<PlainSlice>,
    ) -> Result<(NewObject, Vec<SealedSlice>), BlockError> {
        if self.shut.load(Ordering::Acquire) {
            return Err(BlockError::Shut);
        }
        let turn = object.counter;
        self.writes.write_slices(object, class, slices, turn).await
    }

    /// Reports that the metadata now has the object, so that later acknowledgements can be ordered.
    pub fn committed(&self, object: ObjectId) {
        self.writes.committed(object);
    }

    /// Reports that the object will never be committed; its running puts are aborted.
    pub fn abandoned(&self, object: ObjectId) {
        self.writes.abandoned(object);
    }

    /// Reads a range of a slice's plaintext.
    ///
    /// # Errors
    /// `TooFewShards` if fewer than k good shards are found; `NewerFormat`; `WrittenWrong` or
    /// `Forged`, which name the writer, if the shards have their digests but do not make the slice;
    /// `Row` if the rows contradict themselves.
    #[boxed]
    pub async fn read(
        &self,
        object: &StoredObject,
        slice: &SealedSlice,
        key: &SliceKey,
        range: Range<u32>,
    ) -> Result<Bytes, BlockError> {
        if self.shut.load(Ordering::Acquire) {
            return Err(BlockError::Shut);
        }
        self.reads
            .read(Arc::new(object.clone()), *slice, key, range)
            .await
    }

    /// Links an object, so that it can be read without an account: see
    /// [`LinkedReader`](crate::blocks::LinkedReader).
    ///
    /// # Errors
    /// `Unlinkable` if fewer than k + f of its shards can be.
    #[boxed]
    pub async fn link(
        &self,
        object: &StoredObject,
        link_for: &mut LinkFor,
    ) -> Result<LinkedObject, BlockError> {
        super::linked::link(&self.clouds, object, link_for).await
    }

    /// Checks the shards of all objects behind `from`, and restores missing and bad ones; see
    /// [`ScrubConfig`]. Dropping the future ends the scrub; [`status`](Self::status) shows its
    /// progress. Only one runs at a time.
    ///
    /// # Errors
    /// If an operation cannot be ordered. Earlier findings are withdrawn, and a scrub from the
    /// position in the status continues there.
    #[boxed]
    pub async fn scrub(
        &self,
        config: &ScrubConfig,
        from: Option<ObjectId>,
    ) -> Result<ScrubReport, PlacementError> {
        self.reconciler.scrub(config, from).await
    }

    /// Checks the shares of an epoch of the volume's keys, and restores missing and bad ones. The
    /// findings are added to the report of the last scrub.
    ///
    /// # Errors
    /// If fewer than f + 1 good shares are found, or they are not of one secret.
    #[boxed]
    pub async fn scrub_shares(
        &self,
        shares: &Shares,
        config: &ScrubConfig,
    ) -> Result<ScrubReport, ShareError> {
        self.reconciler.scrub_shares(shares, config).await
    }

    /// Moves the live slices of packs that are sparse, and were so in the round before, into new
    /// ones; [`BlockConfig::compaction`] does the same in the background. Dropping the future ends
    /// it.
    ///
    /// # Errors
    /// If an operation cannot be ordered, or a new pack cannot be written. Finished moves remain.
    #[boxed]
    pub async fn compact(&self, compaction: &Compaction) -> Result<Compacted, CompactionError> {
        self.reconciler.compact(compaction).await
    }

    /// Deletes what nothing has needed for longer than the grace; [`BlockConfig::collection`] does
    /// the same in the background. Dropping the future ends it.
    ///
    /// # Errors
    /// If an operation cannot be ordered. Finished deletions remain.
    #[boxed]
    pub async fn collect(&self, collection: &Collection) -> Result<Collected, PlacementError> {
        self.reconciler.collect(collection).await
    }

    /// Deletes those of these objects that nothing needs, without a grace; returns how many are
    /// gone from all their clouds.
    ///
    /// # Errors
    /// If the metadata do not answer.
    #[boxed]
    pub async fn collect_these(
        &self,
        objects: &BTreeSet<ObjectId>,
    ) -> Result<usize, PlacementError> {
        self.reconciler.collect_these(objects).await
    }

    /// What a round of collection would delete and keep.
    ///
    /// # Errors
    /// If the metadata do not answer.
    #[boxed]
    pub async fn would_collect(&self, grace: Duration) -> Result<Collected, PlacementError> {
        self.reconciler.would_collect(grace).await
    }

    /// Deletes what the clouds hold and no row names. It waits for the grace where shards have
    /// moved.
    ///
    /// # Errors
    /// If the metadata do not answer.
    #[boxed]
    pub async fn sweep_listings(&self, collection: &Collection) -> Result<Swept, PlacementError> {
        self.reconciler.sweep_listings(collection).await
    }

    /// The same clouds as holders of backups of the metadata.
    #[must_use]
    pub fn backups(&self) -> BackupStore {
        BackupStore::new(Arc::clone(&self.clouds))
    }

    /// Reads a part of a backup.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    #[boxed]
    pub async fn read_part(&self, part: &BackupPart) -> Result<Bytes, BlockError> {
        let (object, slice, key) = part.opened()?;
        self.read(&object, &slice, &key, 0..slice.length).await
    }

    /// The volume's clouds have changed: new objects go to those that take new shards now. Clouds
    /// that were given before may be left out. Returns whether that is anything new.
    ///
    /// # Errors
    /// `Configuration` if they do not fit the policy.
    pub fn learn_clouds(&self, clouds: &[Cloud], fleet: Fleet) -> Result<bool, BlockError> {
        self.clouds.learn(clouds, fleet)
    }

    /// Moves the shards of clouds that were replaced to the clouds that take new shards, and has
    /// each of them retired once no row names it. [`BlockConfig::draining`] does the same in the
    /// background. Dropping the future ends it; the next call goes on there.
    ///
    /// # Errors
    /// If an operation cannot be ordered. Finished moves remain.
    #[boxed]
    pub async fn drain_clouds(&self, draining: &Draining) -> Result<Drainage, PlacementError> {
        self.reconciler.drain_clouds(draining).await
    }

    /// How many shards have to move from clouds that were replaced, and how many have.
    ///
    /// # Errors
    /// If the metadata do not answer.
    #[boxed]
    pub async fn drainage(&self) -> Result<Drainage, PlacementError> {
        self.reconciler.drainage().await
    }

    /// The same clouds as holders of shares of keys.
    ///
    /// # Errors
    /// `Configuration` if they do not fit the policy.
    pub fn shares(&self) -> Result<ShareStore, BlockError> {
        ShareStore::of(&self.clouds)
    }

    /// What the budget lets go on; the caller sets it, and tasks that can wait obey it.
    #[must_use]
    pub fn allowance(&self) -> &Arc<Allowance> {
        self.reconciler.allowance()
    }

    /// The most plain bytes in one block.
    #[must_use]
    pub fn block_bytes_max(&self) -> u32 {
        self.writes.block_bytes_max()
    }

    /// The operator's view of the clouds.
    #[must_use]
    pub fn status(&self) -> BlockStatus {
        self.reconciler.status(&self.scheduler)
    }

    /// The stored evidence about one cloud or all of them.
    ///
    /// # Errors
    /// If the servers do not answer.
    #[boxed]
    pub async fn evidence(
        &self,
        only: Option<CloudIndex>,
    ) -> Result<Vec<CloudEvidence>, PlacementError> {
        self.reconciler.evidence(only).await
    }

    /// The number of findings about each cloud.
    ///
    /// # Errors
    /// If the servers do not answer.
    #[boxed]
    pub async fn evidence_counts(&self) -> Result<Vec<(CloudIndex, u64)>, PlacementError> {
        self.reconciler.evidence_counts().await
    }

    /// Reports the queued evidence to the order now, which otherwise takes a second.
    #[boxed]
    pub async fn testify(&self) {
        self.reconciler.testify().await;
    }

    /// The free space of the clouds together, in plain bytes; `None` if no cloud sets a bound.
    #[boxed]
    pub async fn capacity(&self) -> Option<u64> {
        self.clouds.capacity().await
    }

    /// Sends each cloud a request, so that [`status`](Self::status) is current.
    #[boxed]
    pub async fn probe(&self) {
        self.clouds.probe(false).await;
    }

    /// Waits until every object has all its shards, until only shards of unreachable clouds are
    /// missing, or until `patience` ends.
    #[boxed]
    pub async fn drain(&self, patience: Duration) -> Drained {
        let deadline = Instant::now() + patience;
        let mut drained = Drained {
            lacking: 0,
            unreachable: 0,
            busy: true,
        };
        let settled = tokio::time::timeout_at(deadline, async {
            loop {
                while !self.reconciler.is_idle() {
                    tokio::time::sleep(DRAIN_PAUSE).await;
                }
                // Suspended clouds get a chance to show that they are back.
                self.clouds.probe(false).await;
                let (lacking, unreachable) = self.reconciler.sweep().await;
                let busy = !self.reconciler.is_idle();
                drained = Drained {
                    lacking,
                    unreachable,
                    busy,
                };
                if lacking == unreachable && !busy {
                    self.reconciler.testify().await;
                    return;
                }
                tokio::time::sleep(DRAIN_PAUSE).await;
            }
        });
        let _ = settled.await;
        drained
    }

    /// Shuts the store down: new calls are refused and background tasks aborted. The next process
    /// that opens the volume completes unfinished objects.
    pub fn shutdown(&self) {
        self.shut.store(true, Ordering::Release);
        self.scheduler.stop();
    }
}
