//! Collection: the shards of objects that nothing needs are deleted, then their rows.
//!
//! ```text
//!   queue of the unreferenced      listed by the metadata, a page at a time
//!     | closed, not retained, unreferenced for longer than the grace
//!     v
//!   every name of every shard      deleted on its cloud: attempts 0 to the present one
//!     | all clouds have answered
//!     v
//!   order: these are forgotten     at most 256 in one operation
//! ```
//!
//! Invariants:
//! * **Nothing that can be referenced again is deleted.** The metadata decide it, by facts that are
//!   final (see `content/forget.rs` of the metadata service), and their answer is older than the
//!   deletion, never newer.
//! * **Readers are waited for.** A reader that looked an object up before its last reference went
//!   goes on reading it for at most the grace.
//! * **A row goes only after all of its shards are gone**, so that what a cloud did not delete now
//!   is found again. A round that is cut short anywhere leaves work for the next one, and deleting
//!   twice has no effect.
//! * **The servers are the volume's present ones.** Once it was recovered into a later incarnation,
//!   what is garbage here may be needed there, and nothing is deleted any more.
//! * One process of the volume does it at a time, and every wait has a deadline.
//!
//! **Dead sessions.** A process that dies leaves its ids open until its session ends, 30 minutes
//! later on the lease clock. That clock moves by at most a second with each batch, so in a cluster
//! where nothing else happens it stands still, and the garbage of the dead would stay for ever.
//! While garbage is kept for open ids, the task therefore renews its job every second: each renewal
//! is a batch. It stops after the time that a session lasts: ids that are open then belong to a
//! process that lives, and whose own batches move the clock.
//!
//! Failure modes: *a cloud that cannot be reached* keeps the rows of its objects, and the others'
//! deletions are repeated when it is back. *A cloud that says that it deleted and did not* keeps
//! bytes that are paid for; a sweep of listings finds them. *A put that arrives after its object
//! was forgotten* is found by the sweep too.

use super::Reconciler;
use super::task::{Due, Interval, Task, TaskProgress};
use crate::blocks::clouds::{Link, PlacementError};
use crate::blocks::object::{Sabotage, StoredObject};
use quorumfs_bft::identity::Time;
use quorumfs_metadata::fleet::CloudState;
use quorumfs_metadata::identity::ObjectId;
use quorumfs_metadata::limits::FORGET_OBJECTS_MAX;
use quorumfs_metadata::placement::Shard;
use quorumfs_metadata::row::Job;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Objects in one page of a listing, and in one order.
const PAGE: u32 = FORGET_OBJECTS_MAX as u32;
/// Objects whose shards are deleted at a time.
const CONCURRENCY: usize = 32;
/// How long the job is taken for: several rounds of a queue that never ends.
const JOB: Duration = Duration::from_secs(300);
/// When a round takes it again: a quarter of that, so that a round orders hardly more than what it
/// forgets, 256 objects in each operation.
const JOB_AGAIN: Duration = Duration::from_secs(75);
/// How often the lease clock is moved while ids are open: by as much as one batch moves it.
const CLOCK_STEP: Duration = Duration::from_secs(1);
/// How long: as long as a session lasts, and some renewals that fail.
const CLOCK_MOVES: Duration = Duration::from_secs(35 * 60);

/// How collection works.
#[derive(Clone, Copy, Debug)]
pub struct Collection {
    /// The time between two rounds.
    pub every: Duration,
    /// How long an object has had no reference before it is deleted.
    pub grace: Duration,
    /// The time between two sweeps of the clouds' listings; `None`: never.
    pub sweep_every: Option<Duration>,
}

impl Collection {
    /// The defaults with another grace; rounds are no further apart than that.
    #[must_use]
    pub fn after(grace: Duration) -> Self {
        let usual = Self::default();
        Self {
            every: grace.clamp(Duration::from_secs(1), usual.every),
            grace,
            ..usual
        }
    }
}

impl Default for Collection {
    fn default() -> Self {
        Self {
            every: Duration::from_secs(60),
            grace: Duration::from_secs(3600),
            sweep_every: Some(Duration::from_secs(7 * 24 * 3600)),
        }
    }
}

/// The result of a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Whether another process does the job.
    pub elsewhere: bool,
    /// Objects that are gone: their shards and their rows.
    pub objects: u64,
    /// Stored bytes of their shards.
    pub bytes: u64,
    /// Objects that nothing refers to and that are kept, by the reason.
    pub kept: Kept,
}

/// Objects that nothing refers to and that are kept, by the reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Unreferenced for less than the grace.
    pub young: u64,
    /// Their writers' sessions have not given their ids back.
    pub open: u64,
    /// A retained point in the past needs them.
    pub retained: u64,
    /// A cloud did not delete a shard.
    pub unreachable: u64,
    /// Stored bytes of all of them.
    pub bytes: u64,
}

impl Kept {
    /// All of them.
    #[must_use]
    pub const fn objects(&self) -> u64 {
        self.young + self.open + self.retained + self.unreachable
    }
}

/// The task that collects at intervals.
pub(super) struct CollectTask {
    reconciler: Arc<Reconciler>,
    collection: Option<Collection>,
    interval: Interval,
    /// Since when each round has kept garbage for open ids.
    open_since: Mutex<Option<Instant>>,
}

impl CollectTask {
    pub(super) fn new(reconciler: &Arc<Reconciler>, collection: Option<Collection>) -> Self {
        let first = collection.map(|collection| Instant::now() + collection.every);
        Self {
            reconciler: Arc::clone(reconciler),
            collection,
            interval: Interval::from(first),
            open_since: Mutex::default(),
        }
    }

    /// Whether the lease clock is to move before the next round, so that dead sessions end.
    fn moves_clock(&self, round: Option<Collected>) -> bool {
        let is_open = round.is_some_and(|it| !it.elsewhere && it.kept.open > 0);
        let mut since = self
            .open_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if !is_open {
            *since = None;
            return false;
        }
        since.get_or_insert_with(Instant::now).elapsed() < CLOCK_MOVES
    }

    /// Moves the lease clock until this much time has passed.
    async fn move_clock(&self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            tokio::time::sleep(CLOCK_STEP.min(time)).await;
            if let Err(error) = self
                .reconciler
                .clouds
                .log()
                .take_job(Job::Collection, JOB)
                .await
            {
                tracing::debug!(%error, "the lease clock was not moved");
            }
        }
    }
}

#[async_trait::async_trait]
impl Task for CollectTask {
    fn name(&self) -> &'static str {
        "collection"
    }

    fn next(&self) -> Due {
        self.interval.next()
    }

    async fn run(&self) {
        let Some(collection) = &self.collection else {
            return;
        };
        let round = match self.reconciler.collect(collection).await {
            Ok(round) => Some(round),
            Err(error) => {
                tracing::warn!(%error, "collection failed and will be tried again");
                None
            }
        };
        if self.moves_clock(round) {
            self.move_clock(collection.every).await;
            self.interval.pause(Duration::ZERO);
        } else {
            self.interval.pause(collection.every);
        }
    }

    fn progress(&self) -> TaskProgress {
        TaskProgress {
            waiting: self.reconciler.last_collected().kept.objects(),
            done: self.reconciler.clouds.counters().objects_collected.get(),
        }
    }
}

impl Reconciler {
    /// The result of the last round.
    pub(super) fn last_collected(&self) -> Collected {
        *self
            .collected
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes once through the queue of the unreferenced.
    pub(in crate::blocks) async fn collect(
        &self,
        collection: &Collection,
    ) -> Result<Collected, PlacementError> {
        let collected = self.collect_round(collection.grace, true).await?;
        *self
            .collected
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = collected;
        Ok(collected)
    }

    /// Deletes those of these objects that nothing needs, without a grace: no reader of the volume
    /// reads them. Returns how many are gone from all their clouds. Their rows go with a later
    /// round, if this principal may not forget them.
    pub(in crate::blocks) async fn collect_these(
        &self,
        objects: &BTreeSet<ObjectId>,
    ) -> Result<usize, PlacementError> {
        self.require_newest().await?;
        let (mut after, mut gone, mut seen) = (None, Vec::new(), 0);
        loop {
            let page = self.clouds.log().list_garbage(after, PAGE).await?;
            for garbage in page.garbage {
                let id = garbage.object.id();
                if !objects.contains(&id) {
                    continue;
                }
                seen += 1;
                if garbage.retained || garbage.open || self.writes.follows(id) {
                    continue;
                }
                let links = self.links_of(&garbage.object);
                if delete_all(&garbage.object, &links, false).await {
                    gone.push(id);
                }
            }
            after = page.next;
            if after.is_none() || seen == objects.len() {
                break;
            }
        }
        let count = gone.len();
        if count > 0
            && let Err(error) = self.clouds.log().forget(gone).await
        {
            tracing::debug!(%error, "rows of deleted objects are left to the collector");
        }
        Ok(count)
    }

    /// What a round would do.
    pub(in crate::blocks) async fn would_collect(
        &self,
        grace: Duration,
    ) -> Result<Collected, PlacementError> {
        self.collect_round(grace, false).await
    }

    async fn collect_round(
        &self,
        grace: Duration,
        deletes: bool,
    ) -> Result<Collected, PlacementError> {
        let mut collected = Collected::default();
        let (mut after, mut is_newest) = (None, !deletes);
        let mut taken: Option<(Time, Instant)> = None;
        loop {
            let page = self.clouds.log().list_garbage(after, PAGE).await?;
            if page.garbage.is_empty() {
                // Nothing is ordered in a volume without garbage.
                return Ok(collected);
            }
            if !is_newest {
                self.require_newest().await?;
                is_newest = true;
            }
            // The time of an earlier order only makes garbage younger. A plan needs no job.
            let now = match taken {
                _ if !deletes => self.clouds.log().now(),
                Some((now, at)) if at.elapsed() < JOB_AGAIN => now,
                _ => {
                    let job = self.clouds.log().take_job(Job::Collection, JOB).await?;
                    let Some(now) = job else {
                        collected.elsewhere = true;
                        return Ok(collected);
                    };
                    taken = Some((now, Instant::now()));
                    now
                }
            };
            let mut ready = Vec::new();
            for garbage in page.garbage {
                let bytes = garbage.object.stored_bytes();
                let kept = match () {
                    () if garbage.retained
                        && !self.clouds.is_sabotaged(Sabotage::RetentionIgnored) =>
                    {
                        &mut collected.kept.retained
                    }
                    () if garbage.open
                        && !self.clouds.is_sabotaged(Sabotage::AllocationNotChecked) =>
                    {
                        &mut collected.kept.open
                    }
                    // Its last puts may still be under way.
                    () if self.writes.follows(garbage.object.id()) => &mut collected.kept.young,
                    () if !is_over(garbage.since, grace, now) => &mut collected.kept.young,
                    () => {
                        ready.push(Arc::new(garbage.object));
                        continue;
                    }
                };
                *kept += 1;
                collected.kept.bytes += bytes;
            }
            if deletes {
                self.collect_some(&ready, &mut collected).await?;
            } else {
                collected.objects += ready.len() as u64;
                collected.bytes += ready.iter().map(|it| it.stored_bytes()).sum::<u64>();
            }
            after = page.next;
            if after.is_none() {
                return Ok(collected);
            }
        }
    }

    /// Deletes the shards of some objects, then forgets those of which all are gone.
    async fn collect_some(
        &self,
        objects: &[Arc<StoredObject>],
        collected: &mut Collected,
    ) -> Result<(), PlacementError> {
        if self.clouds.is_sabotaged(Sabotage::ForgottenBeforeDeleted) {
            let ids = objects.iter().map(|object| object.id()).collect();
            self.clouds.log().forget(ids).await?;
        }
        let mut work = JoinSet::new();
        let mut gone = Vec::new();
        let mut settle = |outcome: Option<Result<(ObjectId, u64, bool), _>>| match outcome {
            Some(Ok((id, bytes, true))) => gone.push((id, bytes)),
            Some(Ok((_, bytes, false))) => {
                collected.kept.unreachable += 1;
                collected.kept.bytes += bytes;
            }
            // A panic of the task; the next round does it again.
            Some(Err(_)) => collected.kept.unreachable += 1,
            None => {}
        };
        for object in objects {
            while work.len() >= CONCURRENCY {
                settle(work.join_next().await);
            }
            let links = self.links_of(object);
            let object = Arc::clone(object);
            let forgets = self.clouds.is_sabotaged(Sabotage::AttemptForgotten);
            work.spawn(async move {
                let gone = delete_all(&object, &links, forgets).await;
                (object.id(), object.stored_bytes(), gone)
            });
        }
        while !work.is_empty() {
            settle(work.join_next().await);
        }
        if gone.is_empty() {
            return Ok(());
        }
        let ids = gone.iter().map(|(id, _)| *id).collect();
        self.clouds.log().forget(ids).await?;
        let bytes = gone.iter().map(|(_, bytes)| bytes).sum::<u64>();
        collected.objects += gone.len() as u64;
        collected.bytes += bytes;
        let counters = self.clouds.counters();
        counters.objects_collected.add(gone.len() as u64);
        counters.bytes_collected.add(bytes);
        Ok(())
    }

    /// The clouds that may have a name of each shard: its own, and the draining ones if it has had
    /// several names or has moved. A retired cloud is not waited for: it may be gone. `None` for a
    /// shard on a cloud that this process does not know.
    fn links_of(&self, object: &StoredObject) -> Vec<Option<Vec<Arc<Link>>>> {
        let attached = self.clouds.attached();
        let may_have = |shard: &Shard, link: &Link| {
            let has_moved = shard.attempt > 0 || shard.coded_for.is_some();
            let is_its_own = link.index == shard.cloud || Some(link.index) == shard.coded_for;
            match attached.state(link) {
                CloudState::Active | CloudState::Spare => is_its_own,
                CloudState::Draining => is_its_own || has_moved,
                CloudState::Retired => false,
            }
        };
        let links_of = |shard: &Shard| {
            attached.link(shard.cloud)?;
            let links = attached.links().iter();
            Some(
                links
                    .filter(|link| may_have(shard, link))
                    .cloned()
                    .collect(),
            )
        };
        object.shards().iter().map(links_of).collect()
    }
}

/// Whether an object has had no reference for longer than the grace.
fn is_over(since: Time, grace: Duration, now: Time) -> bool {
    Duration::from_nanos(now.0.saturating_sub(since.0)) > grace
}

/// Deletes all names of all shards of an object; returns whether all clouds did.
async fn delete_all(
    object: &StoredObject,
    links: &[Option<Vec<Arc<Link>>>],
    forgets: bool,
) -> bool {
    let mut places = Vec::new();
    for (shard, links) in links.iter().enumerate() {
        let Some(links) = links else {
            return false;
        };
        places.extend(links.iter().map(|link| (shard, link)));
    }
    let deletions = places.into_iter().map(async |(shard, link)| {
        let Some(row) = object.shard(shard) else {
            return false;
        };
        if link.health.is_suspended() {
            return false;
        }
        let first = if forgets { row.attempt } else { 0 };
        for attempt in first..=row.attempt {
            if let Err(fault) = link.delete(&object.named(shard, attempt)).await {
                tracing::debug!(object = %object.id(), shard, %fault, "a shard is not deleted");
                return false;
            }
        }
        true
    });
    let gone = futures_util::future::join_all(deletions).await;
    gone.into_iter().all(|gone| gone)
}
