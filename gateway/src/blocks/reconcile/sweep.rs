//! The sweep of listings: what a cloud holds and no metadata name is deleted.
//!
//! The queue of the unreferenced shows objects that had a row. Shards without one are left behind
//! by writes that were never committed, by puts that a cloud executed after their object was
//! forgotten, and by clouds that did not delete what they said they had. The sweep lists each
//! cloud, inverts the names with the cloud's key, and asks the metadata about the ids:
//!
//! ```text
//!   name ──invert──► class, object, generation, shard, attempt
//!     | not one of ours, or of a class that this program does not know ─────► left
//!     v
//!   ids, at most 256 in one question ──► granted? open? row?
//!     | never granted, or its allocation is open ───────────────────────────► left
//!     | closed, no row ─────────────────────────────────────────────────────► deleted
//!     | the row says that the shard is elsewhere now: a candidate
//!     v
//!   the grace later: asked again, still so ─────────────────────────────────► deleted
//! ```
//!
//! Invariants:
//! * **What the sweep does not understand stays**: the marker, objects of others, the trial objects
//!   of `doctor`, and above all objects of other classes. The shares of the volume's second lock
//!   have no object row; a sweep without the rule of classes would delete them, and nothing could
//!   read the volume ever again.
//! * **An open allocation protects all of its ids**: a write that is under way has no row yet.
//! * **A listing is no evidence.** It may lie, repeat and omit; it only proposes names, and each
//!   decision comes from the metadata.
//! * A shard that moved is deleted only a grace later: a reader may have the old row.

use super::task::{Due, Interval, Task, TaskProgress};
use super::{Collection, Reconciler};
use crate::blocks::clouds::{Link, PlacementError};
use crate::blocks::object::{Named, Sabotage, ShardFault};
use crate::cost::PaidWork;
use quorumfs_metadata::fleet::CloudState;
use quorumfs_metadata::identity::{CloudIndex, ObjectClass, ObjectId};
use quorumfs_metadata::limits::FORGET_OBJECTS_MAX;
use quorumfs_metadata::reply::Fate;
use quorumfs_metadata::row::Job;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Names in one page of a listing.
const PAGE: usize = 1000;
/// Shards that moved and that wait for the grace; more are left to the next sweep.
const CANDIDATES_MAX: usize = 1 << 16;
/// How long the job is taken for; it is taken again for each page and while the grace passes.
const JOB: Duration = Duration::from_secs(300);
/// How long after the start the first sweep is due, or the interval if that is shorter: a process
/// that runs for a day is to sweep as well.
const FIRST: Duration = Duration::from_secs(3600);
/// When a sweep that the budget did not allow is due again.
const OVER_BUDGET: Duration = Duration::from_secs(3600);

/// The result of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Whether another process does the job.
    pub elsewhere: bool,
    /// Names that were listed.
    pub listed: u64,
    /// Names that are not of this volume's making, or of an unknown class: they stay.
    pub foreign: u64,
    /// Objects that were deleted.
    pub deleted: u64,
    /// Clouds whose listing failed.
    pub failed: u64,
}

/// What a listing's name should become.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// It is needed, may be, or is not understood.
    Stays,
    /// Nothing can ever need it.
    Goes,
    /// The row says that the shard is elsewhere: it goes after a grace.
    Moved,
}

/// Decides about a name by what the metadata know of its object.
pub(super) fn verdict(named: &Named, cloud: CloudIndex, fate: &Fate) -> Verdict {
    if !fate.granted || fate.open {
        return Verdict::Stays;
    }
    let Some(row) = &fate.row else {
        return Verdict::Goes;
    };
    let Some(shard) = row.shards.get(usize::from(named.shard.0)) else {
        // Of another generation with more shards, or of a damaged row.
        return match named.generation < row.generation {
            true => Verdict::Moved,
            false => Verdict::Stays,
        };
    };
    let here = (named.generation, named.attempt);
    let there = (row.generation, shard.attempt);
    let moved = match shard.cloud == cloud {
        true => here < there,
        // A new place begins with attempt 0 as well, so only the generation may be ahead.
        false => named.generation <= row.generation,
    };
    if moved {
        Verdict::Moved
    } else {
        Verdict::Stays
    }
}

/// Whether objects of this class have rows that decide about them.
const fn has_rows(class: ObjectClass) -> bool {
    matches!(class, ObjectClass::BLOCK | ObjectClass::PACK)
}

/// The task that sweeps at long intervals.
pub(super) struct SweepTask {
    reconciler: Arc<Reconciler>,
    collection: Option<Collection>,
    interval: Interval,
}

impl SweepTask {
    pub(super) fn new(reconciler: &Arc<Reconciler>, collection: Option<Collection>) -> Self {
        let every = collection.and_then(|collection| collection.sweep_every);
        Self {
            reconciler: Arc::clone(reconciler),
            collection,
            interval: Interval::from(every.map(|every| Instant::now() + every.min(FIRST))),
        }
    }
}

#[async_trait::async_trait]
impl Task for SweepTask {
    fn name(&self) -> &'static str {
        "sweep"
    }

    fn next(&self) -> Due {
        self.interval.next()
    }

    async fn run(&self) {
        let Some(collection) = &self.collection else {
            return;
        };
        if !self.reconciler.allowance().allows(PaidWork::Sweep) {
            self.interval.pause(OVER_BUDGET);
            return;
        }
        if let Err(error) = self.reconciler.sweep_listings(collection).await {
            tracing::warn!(%error, "the sweep of listings failed and will be tried again");
        }
        let every = collection.sweep_every.unwrap_or(Duration::MAX);
        self.interval.pause(every);
    }

    fn progress(&self) -> TaskProgress {
        TaskProgress {
            waiting: 0,
            done: self.reconciler.clouds.counters().shards_swept.get(),
        }
    }
}

impl Reconciler {
    /// Goes once through the listings of all clouds; then waits for the grace, once, if shards have
    /// moved, and deletes those.
    pub(in crate::blocks) async fn sweep_listings(
        &self,
        collection: &Collection,
    ) -> Result<Swept, PlacementError> {
        self.require_newest().await?;
        let mut swept = Swept::default();
        let mut moved = Vec::new();
        let attached = self.clouds.attached();
        for link in attached.links() {
            // A spare has nothing, and a retired cloud may be gone.
            let state = attached.state(link);
            if state == CloudState::Spare {
                continue;
            }
            match self.sweep_cloud(link, &mut swept, &mut moved).await {
                Ok(()) => {}
                Err(SweepError::Order(error)) => return Err(error),
                Err(SweepError::Cloud(fault)) if state == CloudState::Retired => {
                    tracing::debug!(%fault, "the listing of a retired cloud failed");
                }
                Err(SweepError::Cloud(fault)) => {
                    tracing::warn!(%fault, "the listing of a cloud failed; its sweep ends here");
                    swept.failed += 1;
                }
            }
            if swept.elsewhere {
                return Ok(swept);
            }
        }
        if !moved.is_empty() {
            self.wait(collection.grace, &mut swept).await?;
        }
        for (link, named) in moved
            .chunk_by(|(one, _), (other, _)| one.index == other.index)
            .filter_map(|run| Some((&run.first()?.0, run.iter().map(|(_, named)| *named))))
        {
            if swept.elsewhere {
                return Ok(swept);
            }
            self.delete_moved(link, named.collect(), &mut swept).await?;
        }
        Ok(swept)
    }

    /// Takes the job or keeps it; notes in the result if another process has it.
    async fn keeps_job(&self, swept: &mut Swept) -> Result<bool, PlacementError> {
        let taken = self.clouds.log().take_job(Job::Sweep, JOB).await?;
        swept.elsewhere = taken.is_none();
        Ok(taken.is_some())
    }

    /// Waits for the grace and keeps the job meanwhile.
    async fn wait(&self, grace: Duration, swept: &mut Swept) -> Result<(), PlacementError> {
        let mut left = grace;
        while !left.is_zero() && self.keeps_job(swept).await? {
            let step = left.min(JOB / 2);
            tokio::time::sleep(step).await;
            left -= step;
        }
        Ok(())
    }

    /// Lists one cloud; deletes what nothing can need, and adds the shards that moved.
    async fn sweep_cloud(
        &self,
        link: &Arc<Link>,
        swept: &mut Swept,
        moved: &mut Vec<(Arc<Link>, Named)>,
    ) -> Result<(), SweepError> {
        let mut cursor = None;
        while self.keeps_job(swept).await? {
            let page = link.list(cursor.as_ref(), PAGE).await?;
            swept.listed += page.names.len() as u64;
            let knows = |named: &Named| {
                has_rows(named.class) || self.clouds.is_sabotaged(Sabotage::SweepWithoutClasses)
            };
            let names = page.names.iter();
            let named: Vec<_> = names
                .filter_map(|name| link.keys.invert(name).filter(knows))
                .collect();
            swept.foreign += (page.names.len() - named.len()) as u64;
            for (named, verdict) in self.judge(link, named).await? {
                match verdict {
                    Verdict::Stays => {}
                    Verdict::Goes => {
                        link.delete(&named).await?;
                        self.note_deleted(swept);
                    }
                    Verdict::Moved if moved.len() < CANDIDATES_MAX => {
                        moved.push((Arc::clone(link), named));
                    }
                    Verdict::Moved => {}
                }
            }
            // A cloud that says that there are more and shows none would be listed for ever.
            let last = page.names.last().cloned();
            let goes_on = page.more && last > cursor;
            if !goes_on {
                break;
            }
            cursor = last;
        }
        Ok(())
    }

    fn note_deleted(&self, swept: &mut Swept) {
        swept.deleted += 1;
        self.clouds.counters().shards_swept.add(1);
    }

    /// Deletes shards that had moved a grace ago, if they still have.
    async fn delete_moved(
        &self,
        link: &Arc<Link>,
        moved: Vec<Named>,
        swept: &mut Swept,
    ) -> Result<(), PlacementError> {
        for (named, verdict) in self.judge(link, moved).await? {
            if verdict == Verdict::Stays {
                continue;
            }
            match link.delete(&named).await {
                Ok(()) => self.note_deleted(swept),
                Err(fault) => tracing::debug!(%fault, "a shard is not deleted"),
            }
        }
        Ok(())
    }

    /// The verdict about each name of a cloud.
    async fn judge(
        &self,
        link: &Link,
        all: Vec<Named>,
    ) -> Result<Vec<(Named, Verdict)>, PlacementError> {
        let mut judged = Vec::with_capacity(all.len());
        for some in all.chunks(FORGET_OBJECTS_MAX) {
            let mut ids: Vec<ObjectId> = some.iter().map(|named| named.object).collect();
            ids.sort_unstable();
            ids.dedup();
            let fates = self.clouds.log().fates(ids.clone()).await?;
            let fates: BTreeMap<ObjectId, Fate> = ids.into_iter().zip(fates).collect();
            for named in some {
                let known = fates.get(&named.object);
                let found = known.map_or(Verdict::Stays, |fate| verdict(named, link.index, fate));
                judged.push((*named, found));
            }
        }
        Ok(judged)
    }
}

/// Why the sweep of a cloud ends.
#[derive(Debug)]
enum SweepError {
    Order(PlacementError),
    Cloud(ShardFault),
}

impl From<PlacementError> for SweepError {
    fn from(error: PlacementError) -> Self {
        Self::Order(error)
    }
}

impl From<ShardFault> for SweepError {
    fn from(fault: ShardFault) -> Self {
        Self::Cloud(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorumfs_bft::identity::{Digest, Sequence, SessionId, Time};
    use quorumfs_metadata::identity::{AllocationId, PrincipalNumber, ShardIndex};
    use quorumfs_metadata::placement::{Policy, Shard};
    use quorumfs_metadata::row::Object;

    const OBJECT: ObjectId = ObjectId {
        allocation: AllocationId(1),
        counter: 2,
    };
    const CLOUD: CloudIndex = CloudIndex(0);
    const OTHER: CloudIndex = CloudIndex(1);

    /// Shard 0 is on the cloud, of generation 1 and with attempt 2.
    fn row() -> Object {
        Object {
            class: ObjectClass::BLOCK,
            policy: Policy::new(4, 1, 2, 4).unwrap(),
            length: 4,
            shard_length: 4,
            shards: vec![Shard {
                digest: Digest([0; 32]),
                cloud: CLOUD,
                attempt: 2,
                acknowledged: true,
                withdrawn: false,
                receipt: None,
                coded_for: None,
            }],
            writer: SessionId(1),
            principal: PrincipalNumber(1),
            checked: false,
            committed: Time(1),
            born: Sequence(1),
            generation: 1,
            live_bytes: 4,
            slices: 1,
        }
    }

    fn named(shard: u8, generation: u8, attempt: u8) -> Named {
        Named {
            object: OBJECT,
            class: ObjectClass::BLOCK,
            shard: ShardIndex(shard),
            attempt,
            generation,
        }
    }

    #[test]
    fn only_what_the_row_has_left_behind_moved() {
        let fate = Fate {
            granted: true,
            open: false,
            row: Some(row()),
        };
        for (cloud, named, expected) in [
            (CLOUD, named(0, 1, 2), Verdict::Stays),
            (CLOUD, named(0, 1, 1), Verdict::Moved),
            (CLOUD, named(0, 1, 3), Verdict::Stays),
            (CLOUD, named(0, 0, 9), Verdict::Moved),
            (CLOUD, named(0, 2, 0), Verdict::Stays),
            (OTHER, named(0, 1, 9), Verdict::Moved),
            (OTHER, named(0, 0, 0), Verdict::Moved),
            (OTHER, named(0, 2, 0), Verdict::Stays),
            (CLOUD, named(1, 0, 0), Verdict::Moved),
            (CLOUD, named(1, 1, 0), Verdict::Stays),
        ] {
            assert_eq!(
                verdict(&named, cloud, &fate),
                expected,
                "{cloud:?} {named:?}"
            );
            let open = Fate {
                open: true,
                ..fate.clone()
            };
            assert_eq!(verdict(&named, cloud, &open), Verdict::Stays);
        }
    }

    #[test]
    fn without_a_row_it_goes_unless_a_writer_may_still_make_one() {
        for (granted, open, expected) in [
            (true, false, Verdict::Goes),
            (true, true, Verdict::Stays),
            (false, false, Verdict::Stays),
        ] {
            let fate = Fate {
                granted,
                open,
                row: None,
            };
            assert_eq!(verdict(&named(0, 0, 0), CLOUD, &fate), expected);
        }
    }
}
