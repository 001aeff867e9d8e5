//! The scrub: checks shards that are rarely read, and restores them.
//!
//! ```text
//!   all objects, page by page, in the order of their ids
//!     │ each acknowledged shard: present with the right length?    (head)
//!     │   or, of a sample: one random cell, proved by its path     (ranged get)
//!     │   or whole                                                 (get)
//!     ▼
//!   missing or bad ──► withdrawn by order ──► rebuilt from k others under its next name, confirmed
//!     │                        └── after a crash here, the next sweep of any process restores it
//!     ▼
//!   position ──► the next page
//! ```
//!
//! Invariants:
//! * **A cloud that cannot be reached is not missing anything.** Only an answer about the shard
//!   counts against it; shards that could not be checked are counted and reported.
//! * **A shard that was found bad is never read again**, neither to compare nor to rebuild from it.
//!   So restoring takes k shards of an object and no more, whatever is lost of it.
//! * A withdrawal is ordered before anything is written: it raises the object's urgency for all
//!   clients, and a crash after it loses nothing. The position advances after that.
//! * A cloud that lies cannot cause endless traffic; see `repair_backoff`.
//! * Another principal's object without a consistency check is decoded and coded again: all of them
//!   by a full scrub, a sample of them by the others. A poisoned object is reported with its
//!   writer's name, and its shards are not checked: no cloud is to blame.
//!
//! The choice of cells follows from a seed that no cloud knows. The throttle counts all bytes read
//! and written, and concurrent requests are bounded.

use super::Reconciler;
use super::completion::{Completed, SWEEP_CONCURRENCY};
use super::scrub_report::{ScrubReport, ShardObservation};
use super::throttle::Throttle;
use crate::blocks::clouds::{ObjectsPage, PlacementError};
use crate::blocks::object::{ShardFault, StoredObject, shard_index};
use quorumfs_backends::StoreErrorKind;
use quorumfs_metadata::identity::{CloudIndex, ObjectId};
use quorumfs_metadata::limits::WITHDRAW_SHARDS_MAX;
use quorumfs_metadata::operation::PlacedShard;
use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Objects in one page.
const PAGE: u32 = 64;
/// How many times an operation is ordered before a scrub gives up, to be resumed.
const ORDER_TRIES: u32 = 4;
/// Stands for the object itself in place of a shard's index, which is always below it.
const WHOLE_OBJECT: u8 = u8::MAX;

/// How thoroughly a scrub checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScrubDepth {
    /// Whether shards are present with the right length; of a sample, one cell.
    Sample {
        /// The sample: so many of a million shards.
        per_million: u32,
    },
    /// Every byte.
    Full,
}

/// The configuration of a scrub.
#[derive(Clone, Copy, Debug)]
pub struct ScrubConfig {
    /// How thoroughly it checks.
    pub depth: ScrubDepth,
    /// The one cloud to check; `None`: all of them.
    pub cloud: Option<CloudIndex>,
    /// The most bytes that it reads and writes in a second.
    pub bytes_per_second: Option<NonZeroU64>,
    /// The most concurrent requests.
    pub requests_max: usize,
    /// Whether missing and bad shards are withdrawn and restored, or only reported.
    pub repair: bool,
    /// The seed of the choice of cells; no cloud may know it.
    pub seed: [u8; 32],
}

impl Default for ScrubConfig {
    fn default() -> Self {
        Self {
            depth: ScrubDepth::Sample {
                per_million: 10_000,
            },
            cloud: None,
            bytes_per_second: None,
            requests_max: 8,
            repair: true,
            seed: [0; 32],
        }
    }
}

/// The check of one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    Length,
    Cell(u64),
    Whole,
}

impl ScrubConfig {
    /// Whether an unchecked object of another principal is decoded and coded again.
    fn checks(&self, object: &StoredObject) -> bool {
        let ScrubDepth::Sample { per_million } = self.depth else {
            return true;
        };
        let (drawn, _) = self.draw(object, WHOLE_OBJECT);
        drawn % 1_000_000 < u64::from(per_million)
    }

    /// Two numbers that are unpredictable without the seed.
    fn draw(&self, object: &StoredObject, of: u8) -> (u64, u64) {
        let mut hasher = blake3::Hasher::new_keyed(&self.seed);
        hasher.update(&object.id().to_be_bytes());
        hasher.update(&[of]);
        let mut drawn = [0; 16];
        hasher.finalize_xof().fill(&mut drawn);
        let (first, second) = drawn.split_at(8);
        let number = |bytes: &[u8]| bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
        (number(first), number(second))
    }

    fn look(&self, object: &StoredObject, shard: usize) -> Look {
        let ScrubDepth::Sample { per_million } = self.depth else {
            return Look::Whole;
        };
        let (first, second) = self.draw(object, shard_index(shard).0);
        if first % 1_000_000 >= u64::from(per_million) {
            return Look::Length;
        }
        match object.layout().shard_cells(shard as u64) {
            // The shard is nothing but a header.
            0 => Look::Whole,
            cells => Look::Cell(second % cells),
        }
    }
}

/// An object with its missing and bad shards.
type FaultyObject = (Arc<StoredObject>, Vec<(usize, ShardFault)>);

impl Reconciler {
    /// Scrubs the objects behind `from`. The status shows the report meanwhile.
    pub(in crate::blocks) async fn scrub(
        self: &Arc<Self>,
        config: &ScrubConfig,
        from: Option<ObjectId>,
    ) -> Result<ScrubReport, PlacementError> {
        let throttle = Arc::new(Throttle::new(config.bytes_per_second));
        let attached = self.clouds.attached();
        self.update_report(|report| *report = ScrubReport::new(from, attached.links()));
        let mut after = from;
        loop {
            let page = self.page_of_objects(after).await?;
            // Suspended clouds get a chance to show that they are back.
            self.clouds.probe(true).await;
            let findings = self.look_at(&page.objects, config, &throttle).await;
            if config.repair && !findings.is_empty() {
                self.withdraw_and_restore(findings, &throttle).await?;
            }
            after = page.last.or(after);
            self.update_report(|report| report.reached(after));
            if !page.more || page.last.is_none() {
                break;
            }
        }
        let (lacking, unreachable) = match config.repair {
            true => self.sweep().await,
            false => (
                usize::try_from(self.current_scrub_report().lacking).unwrap_or(0),
                0,
            ),
        };
        self.update_report(|report| {
            (report.lacking, report.lacking_unreachable) = (lacking as u64, unreachable as u64);
            report.finished = true;
        });
        self.testify().await;
        Ok(self.current_scrub_report())
    }

    pub(super) fn update_report(&self, tell: impl FnOnce(&mut ScrubReport)) {
        let mut scrub = self.scrub.lock().unwrap_or_else(PoisonError::into_inner);
        tell(scrub.get_or_insert_with(ScrubReport::default));
    }

    pub(super) fn current_scrub_report(&self) -> ScrubReport {
        self.last_scrub().unwrap_or_default()
    }

    /// The report of the running or the last scrub.
    pub(super) fn last_scrub(&self) -> Option<ScrubReport> {
        let scrub = self.scrub.lock().unwrap_or_else(PoisonError::into_inner);
        scrub.clone()
    }

    async fn page_of_objects(
        &self,
        after: Option<ObjectId>,
    ) -> Result<ObjectsPage, PlacementError> {
        let mut tries = 0;
        loop {
            match self.clouds.log().list_objects(after, PAGE).await {
                Ok(page) => return Ok(page),
                Err(error) if tries >= ORDER_TRIES => return Err(error),
                Err(_) => tokio::time::sleep(Duration::from_millis(100 << tries)).await,
            }
            tries += 1;
        }
    }

    /// Checks the shards of a page; returns the missing and bad ones.
    async fn look_at(
        self: &Arc<Self>,
        objects: &[StoredObject],
        config: &ScrubConfig,
        throttle: &Arc<Throttle>,
    ) -> Vec<FaultyObject> {
        self.check_all(objects, config, throttle).await;
        let turns = Arc::new(Semaphore::new(config.requests_max.max(1)));
        let mut looks = JoinSet::new();
        let mut found: BTreeMap<ObjectId, FaultyObject> = BTreeMap::new();
        for object in objects {
            let object = self.clouds.with_replacements(&Arc::new(object.clone()));
            let whole = object.shards().iter().all(|shard| shard.acknowledged);
            self.update_report(|report| {
                report.objects += 1;
                report.lacking += u64::from(!whole);
            });
            if self.reads.is_poisoned(object.id()) {
                // Its writer chose whether its shards have their digests.
                self.update_report(|report| report.poisoned += 1);
                continue;
            }
            for shard in 0..object.shards().len() {
                let is_wanted = object.shard(shard).is_some_and(|row| {
                    row.acknowledged && config.cloud.is_none_or(|only| only == row.cloud)
                });
                if !is_wanted {
                    continue;
                }
                // A page is bounded, and so are the tasks that wait here.
                let Ok(turn) = Arc::clone(&turns).acquire_owned().await else {
                    continue;
                };
                let (reconciler, object) = (Arc::clone(self), Arc::clone(&object));
                let (look, throttle) = (config.look(&object, shard), Arc::clone(throttle));
                looks.spawn(async move {
                    let result = reconciler.look(&object, shard, look, &throttle).await;
                    drop(turn);
                    (object, shard, result)
                });
            }
        }
        while let Some(done) = looks.join_next().await {
            let Ok((object, shard, Err(mut fault))) = done else {
                continue;
            };
            if fault.claims_newer() && self.is_known_format(&object, shard, &fault).await {
                let cloud = object.shard(shard).map(|row| row.cloud);
                self.update_report(|report| report.disproved(cloud));
                fault = fault.disproved();
                self.clouds.note_fault(&object, shard, &fault, None);
            }
            if fault.wants_repair() {
                let finding = found.entry(object.id());
                let finding = finding.or_insert_with(|| (object, Vec::new()));
                finding.1.push((shard, fault));
            }
        }
        found.into_values().collect()
    }

    /// Decodes and codes again the unchecked objects of other principals.
    async fn check_all(
        self: &Arc<Self>,
        objects: &[StoredObject],
        config: &ScrubConfig,
        throttle: &Throttle,
    ) {
        let mut checks = JoinSet::new();
        for object in objects {
            if !config.checks(object) || self.reads.check_result(object).await.is_some() {
                continue;
            }
            if checks.len() >= SWEEP_CONCURRENCY {
                checks.join_next().await;
            }
            let moved = u64::from(object.policy().data());
            let moved = moved.saturating_mul(object.layout().stored_length(0));
            throttle.pass(moved).await;
            let object = self.clouds.with_replacements(&Arc::new(object.clone()));
            let reads = Arc::clone(&self.reads);
            checks.spawn(async move {
                // The result is recorded; clouds that do not answer are reported below.
                let _ = reads.gather_unhedged(&object, Vec::new()).await;
            });
        }
        while checks.join_next().await.is_some() {}
        self.confirm_checked_objects().await;
    }

    /// Whether k other shards of an object are of a format that this version reads.
    async fn is_known_format(
        self: &Arc<Self>,
        object: &Arc<StoredObject>,
        shard: usize,
        fault: &ShardFault,
    ) -> bool {
        let known = vec![(shard, fault.clone().disproved())];
        self.reads.gather_unhedged(object, known).await.is_ok()
    }

    async fn look(
        &self,
        object: &StoredObject,
        shard: usize,
        look: Look,
        throttle: &Throttle,
    ) -> Result<(), ShardFault> {
        let cloud = object.shard(shard).map(|row| row.cloud);
        let bytes = match look {
            Look::Length => 0,
            Look::Cell(row) => object.layout().shard_cell_length(shard as u64, row),
            Look::Whole => object.layout().stored_length(shard as u64),
        };
        let result = if self.clouds.is_suspended(object, shard) {
            Err(self.clouds.suspended(object, shard))
        } else {
            throttle.pass(bytes).await;
            match look {
                Look::Length => self.reads.fetch_length(object, shard).await,
                Look::Cell(row) => {
                    let cells = self.reads.fetch_cells(object, shard, row..row + 1).await;
                    cells.map(drop)
                }
                Look::Whole => self.reads.fetch_whole(object, shard).await.map(drop),
            }
        };
        let seen = match &result {
            Ok(()) if look == Look::Length => ShardObservation::Present,
            Ok(()) => ShardObservation::Proved(bytes),
            Err(ShardFault::Store(error)) if error.kind == StoreErrorKind::NotFound => {
                ShardObservation::Missing
            }
            Err(fault) if fault.wants_repair() => ShardObservation::Damaged,
            Err(_) => ShardObservation::Unreachable,
        };
        self.clouds.counters().shards_scrubbed.add(1);
        self.update_report(|report| report.saw(cloud, seen));
        result
    }

    /// Withdraws the missing and bad shards by order, and restores them. The sweep is locked out,
    /// since it would do the same work.
    async fn withdraw_and_restore(
        self: &Arc<Self>,
        findings: Vec<FaultyObject>,
        throttle: &Arc<Throttle>,
    ) -> Result<(), PlacementError> {
        let _alone = self.sweeping.lock().await;
        let placed: Vec<PlacedShard> = findings
            .iter()
            .flat_map(|(object, faults)| faults.iter().map(move |(shard, _)| (object, *shard)))
            .filter_map(|(object, shard)| object.placed(shard))
            .collect();
        for some in placed.chunks(WITHDRAW_SHARDS_MAX) {
            self.withdraw(some.to_vec()).await?;
            self.clouds
                .counters()
                .shards_withdrawn
                .add(some.len() as u64);
            self.update_report(|report| report.withdrawn += some.len() as u64);
        }
        let mut work = JoinSet::new();
        let mut findings = findings.into_iter();
        loop {
            while work.len() < SWEEP_CONCURRENCY
                && let Some((object, faults)) = findings.next()
            {
                let (reconciler, throttle) = (Arc::clone(self), Arc::clone(throttle));
                work.spawn(async move { reconciler.restore(object, faults, &throttle).await });
            }
            match work.join_next().await {
                None => return Ok(()),
                Some(Ok((shards, outcome))) => self.update_report(|report| match outcome {
                    Completed::Whole => report.restored += shards,
                    Completed::Lost => report.lost += 1,
                    Completed::Unreachable | Completed::Lacking | Completed::Poisoned => {}
                }),
                Some(Err(_)) => {}
            }
        }
    }

    async fn withdraw(&self, shards: Vec<PlacedShard>) -> Result<(), PlacementError> {
        let mut tries = 0;
        loop {
            match self.clouds.log().withdraw_placed(shards.clone()).await {
                Ok(()) => return Ok(()),
                Err(error) if tries >= ORDER_TRIES => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "shards not withdrawn by order; trying again");
                    tokio::time::sleep(Duration::from_millis(100 << tries)).await;
                }
            }
            tries += 1;
        }
    }

    async fn restore(
        self: &Arc<Self>,
        object: Arc<StoredObject>,
        faults: Vec<(usize, ShardFault)>,
        throttle: &Throttle,
    ) -> (u64, Completed) {
        let count = faults.len() as u64;
        let mut lacking = (*object).clone();
        for (shard, _) in &faults {
            lacking.withdraw(*shard);
        }
        let moved = u64::from(object.policy().data()) + count;
        throttle
            .pass(moved.saturating_mul(object.layout().stored_length(0)))
            .await;
        let outcome = self.complete_without(Arc::new(lacking), faults).await;
        (count, outcome)
    }
}
