//! Draining: all shards of the clouds that were replaced move to those that take new shards.
//!
//! ```text
//!   a cloud is replaced            by signed order; new objects go to its successor at once
//!     │
//!   all objects, in the order of their ids, from the ordered position on
//!     │ each shard on a cloud that takes nothing new: see `relocate`
//!     ▼
//!   order: these have moved        at most 128 in one operation, with the position
//!     │
//!   a whole pass finds none ──► the cloud is retired
//! ```
//!
//! Invariants:
//! * **Reads and writes go on**: an object's row has its old places until the order, and both
//!   copies are good. What was read before stays readable until the sweep, a grace later.
//! * **A round that is cut short anywhere loses nothing**: the metadata have the position and the
//!   moves, and a shard that was put and not ordered is found by the next try.
//! * **A cloud is retired only after a pass over all objects that found none of its shards.** A
//!   further pass then looks for what a client has committed meanwhile that had not learned of the
//!   change. What is committed later still makes the cloud draining again.
//! * The cloud may be dead, slow or lie. It only costs reads of other clouds.
//! * One process does it at a time, at a limited rate, with bounded memory.
//!
//! What has no slice moves only if a retained point needs it: collection deletes the rest.

use super::Reconciler;
use super::drain_pass::Pages;
use super::task::{Due, Interval, Task, TaskProgress};
use super::throttle::Throttle;
use crate::blocks::clouds::PlacementError;
use quorumfs_bft::identity::Time;
use quorumfs_metadata::fleet::CloudState;
use quorumfs_metadata::identity::CloudIndex;
use std::num::NonZeroU64;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Passes of one round: one that moves, one that finds nothing, one after the end.
const PASSES_MAX: usize = 6;

/// How clouds are drained.
#[derive(Clone, Copy, Debug)]
pub struct Draining {
    /// The time between two rounds, while some shard could not be moved.
    pub every: Duration,
    /// The most bytes that it reads and writes in a second.
    pub bytes_per_second: Option<NonZeroU64>,
}

impl Default for Draining {
    fn default() -> Self {
        Self {
            every: Duration::from_secs(5),
            bytes_per_second: NonZeroU64::new(32 << 20),
        }
    }
}

/// How far the clouds that were replaced are drained.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drainage {
    /// Whether another process does the job.
    pub elsewhere: bool,
    /// When the last cloud was replaced, by the servers' time.
    pub since: Time,
    /// Shards that have moved since then.
    pub shards_moved: u64,
    /// Stored bytes of them.
    pub bytes_moved: u64,
    /// Shards that still have to move, by the last count.
    pub shards_left: u64,
    /// Stored bytes of them.
    pub bytes_left: u64,
    /// Shards that could not be moved in the last pass: a cloud did not take them, or too few
    /// others are readable.
    pub shards_stuck: u64,
    /// Objects of which this process moved shards in the last round.
    pub objects: u64,
    /// Whole shards that this process read in the last round.
    pub shards_read: u64,
    /// Clouds that still hold a share of the newest key.
    pub holding: Vec<CloudIndex>,
    /// Whether nothing is left: every cloud that was replaced is retired.
    pub finished: bool,
    /// The servers' time of this answer.
    pub now: Time,
}

impl Drainage {
    /// When it will be finished, at the present speed; `None` if there is no speed yet.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        let elapsed = Duration::from_nanos(self.now.0.saturating_sub(self.since.0));
        if self.bytes_left == 0 {
            return Some(Duration::ZERO);
        }
        let ratio = self.bytes_left as f64 / (self.bytes_moved as f64);
        let seconds = elapsed.as_secs_f64() * ratio;
        Duration::try_from_secs_f64(seconds).ok()
    }

    /// How much of it is done, in per cent.
    #[must_use]
    pub fn percent(&self) -> u64 {
        let all = self.bytes_moved.saturating_add(self.bytes_left);
        let hundredth = self.bytes_moved.saturating_mul(100).checked_div(all);
        hundredth.unwrap_or(if self.finished { 100 } else { 0 })
    }
}

/// The task that drains in the background.
pub(super) struct DrainTask {
    reconciler: Arc<Reconciler>,
    draining: Option<Draining>,
    interval: Interval,
}

impl DrainTask {
    pub(super) fn new(reconciler: &Arc<Reconciler>, draining: Option<Draining>) -> Self {
        Self {
            reconciler: Arc::clone(reconciler),
            draining,
            interval: Interval::from(Some(Instant::now())),
        }
    }
}

#[async_trait::async_trait]
impl Task for DrainTask {
    fn name(&self) -> &'static str {
        "drain"
    }

    fn next(&self) -> Due {
        let attached = self.reconciler.clouds.attached();
        match (self.draining, attached.fleet().is_draining()) {
            (None, _) => Due::Never,
            (Some(_), false) => Due::Notified,
            (Some(_), true) => self.interval.next(),
        }
    }

    fn wakes(&self) -> Option<&Notify> {
        Some(self.reconciler.clouds.fleet_changed())
    }

    async fn run(&self) {
        let Some(draining) = &self.draining else {
            return;
        };
        match self.reconciler.drain_clouds(draining).await {
            Ok(drainage) if drainage.objects > 0 => tracing::info!(?drainage, "drained"),
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "draining failed and will be tried again"),
        }
        self.interval.pause(draining.every);
    }

    fn progress(&self) -> TaskProgress {
        TaskProgress {
            waiting: self.reconciler.last_drainage().shards_left,
            done: self.reconciler.clouds.counters().shards_moved.get(),
        }
    }
}

impl Reconciler {
    /// How far the clouds are drained, as this process last saw it.
    pub(super) fn last_drainage(&self) -> Drainage {
        let drainage = self.drainage.lock();
        drainage.unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn note_drainage(&self, note: impl FnOnce(&mut Drainage)) {
        note(&mut self.drainage.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Counts what has to move and what has moved.
    pub(in crate::blocks) async fn drainage(&self) -> Result<Drainage, PlacementError> {
        let log = self.clouds.log();
        let row = log.drain_row().await?;
        let attached = self.clouds.attached();
        let mut drainage = Drainage {
            since: row.since,
            shards_moved: row.shards,
            bytes_moved: row.bytes,
            finished: !attached.fleet().is_draining(),
            now: log.now(),
            ..Drainage::default()
        };
        if drainage.finished {
            return Ok(drainage);
        }
        let mut pages = Pages::behind(row.after);
        while let Some(objects) = self.next_page(&mut pages).await? {
            for object in objects {
                let shards = self.relocations(&object).len() as u64;
                let bytes = object.layout().stored_length(0).saturating_mul(shards);
                drainage.shards_left = drainage.shards_left.saturating_add(shards);
                drainage.bytes_left = drainage.bytes_left.saturating_add(bytes);
            }
        }
        Ok(drainage)
    }

    /// Does one round: passes over all objects until nothing is left to move, or only what cannot
    /// be moved now.
    pub(in crate::blocks) async fn drain_clouds(
        self: &Arc<Self>,
        draining: &Draining,
    ) -> Result<Drainage, PlacementError> {
        let _alone = self.draining.lock().await;
        let counted = self.drainage().await?;
        self.note_drainage(|drainage| *drainage = counted.clone());
        if counted.finished {
            return Ok(counted);
        }
        let throttle = Arc::new(Throttle::new(draining.bytes_per_second));
        let read_before = self.clouds.counters().shards_read.get();
        let mut after = self.clouds.log().drain_row().await?.after;
        for _ in 0..PASSES_MAX {
            let is_whole = after.is_none();
            let pass = self.drain_pass(after, &throttle).await?;
            let read = self.clouds.counters().shards_read.get();
            let stuck = pass.found.saturating_sub(pass.moved);
            let row = self.clouds.log().drain_row().await?;
            self.note_drainage(|drainage| {
                (drainage.shards_moved, drainage.bytes_moved) = (row.shards, row.bytes);
                drainage.elsewhere = pass.elsewhere;
                drainage.shards_stuck = stuck;
                drainage.shards_read = read.saturating_sub(read_before);
            });
            if pass.elsewhere || stuck > 0 {
                break;
            }
            if is_whole && pass.found == 0 && self.retire().await? {
                break;
            }
            after = None;
        }
        Ok(self.last_drainage())
    }

    /// Has the replaced clouds retired; returns whether nothing is left to be done by this round.
    async fn retire(&self) -> Result<bool, PlacementError> {
        let attached = self.clouds.attached();
        let mut fleet = attached.fleet().clone();
        let former = fleet.former.iter().copied();
        let draining = former.filter(|cloud| fleet.state(*cloud) == CloudState::Draining);
        let (mut retired, mut holding) = (Vec::new(), Vec::new());
        for cloud in draining.collect::<Vec<_>>() {
            match self.clouds.log().retire_cloud(cloud).await? {
                true => retired.push(cloud),
                false => holding.push(cloud),
            }
        }
        let is_last = retired.is_empty();
        fleet.retired.extend(retired);
        fleet.retired.sort_unstable();
        let finished = !fleet.is_draining();
        let learned = self.clouds.learn(&[], fleet);
        learned.map_err(|error| PlacementError {
            reason: error.to_string(),
        })?;
        self.note_drainage(|drainage| {
            drainage.holding = holding;
            drainage.finished = finished;
            (drainage.shards_left, drainage.bytes_left) = (0, 0);
        });
        Ok(is_last)
    }
}
