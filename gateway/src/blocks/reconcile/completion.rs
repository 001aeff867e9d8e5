//! Completion: from w acknowledged shards to all t.
//!
//! The *sweep* goes through the metadata's list of under-replicated objects, at start and at
//! intervals: those whose writer died, whose puts failed, or whose shards were withdrawn. It looks
//! whether the shard is there already, otherwise rebuilds it from k others, puts it, and has it
//! confirmed. A rebuilt shard is identical to the original, so a name taken by the same bytes is a
//! success; if other bytes have taken it, the name of the next attempt is used. A shard whose
//! acknowledgement was withdrawn is first looked for under its old name, since the withdrawal may
//! have been wrong; if it is not there, it takes the next name.
//!
//! Another principal's object is completed only after it has passed the consistency check of the
//! reads. A poisoned object is never completed. An object that this process still writes is left to
//! its write.

use super::Reconciler;
use super::relocate::Relocated;
use super::repair::ATTEMPTS_MAX;
use super::task::{Due, Interval, Task, TaskProgress};
use super::throttle::Throttle;
use crate::blocks::object::{BlockError, Rebuilt, ShardFault, StoredObject};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Objects in one page of a sweep.
const SWEEP_PAGE: u32 = 64;
/// Objects that a sweep works on at a time.
pub(super) const SWEEP_CONCURRENCY: usize = 4;

/// The task that sweeps at the start and at intervals.
pub(super) struct CompletionTask {
    reconciler: Arc<Reconciler>,
    interval: Interval,
}

impl CompletionTask {
    pub(super) fn new(reconciler: &Arc<Reconciler>) -> Self {
        Self {
            reconciler: Arc::clone(reconciler),
            interval: Interval::from(Some(Instant::now())),
        }
    }
}

#[async_trait::async_trait]
impl Task for CompletionTask {
    fn name(&self) -> &'static str {
        "completion"
    }

    fn next(&self) -> Due {
        self.interval.next()
    }

    async fn run(&self) {
        let clouds = &self.reconciler.clouds;
        clouds.probe(true).await;
        clouds.log().release_idle_ids().await;
        if clouds.config().restores {
            self.reconciler.sweep().await;
        }
        self.interval.pause(clouds.config().timeouts.completion);
    }

    fn progress(&self) -> TaskProgress {
        TaskProgress {
            waiting: self.reconciler.under_replicated.load(Ordering::Relaxed) as u64,
            done: self.reconciler.clouds.counters().shards_completed.get(),
        }
    }
}

impl Reconciler {
    /// Goes once through the under-replicated objects. Returns how many of them still lack a shard,
    /// and how many of those only because a cloud cannot be reached. A caller that comes during a
    /// sweep waits for it and then has one of its own.
    pub(in crate::blocks) async fn sweep(self: &Arc<Self>) -> (usize, usize) {
        let _alone = self.sweeping.lock().await;
        let (mut lacking, mut unreachable) = (0, 0);
        let mut after = None;
        loop {
            let page = match self
                .clouds
                .log()
                .list_under_replicated(after, SWEEP_PAGE)
                .await
            {
                Ok(page) => page,
                Err(error) => {
                    tracing::warn!(%error, "completion failed and will be tried again");
                    return (lacking + 1, unreachable);
                }
            };
            let mut work = JoinSet::new();
            for object in page.objects {
                if self.writes.follows(object.id()) {
                    lacking += 1;
                    continue;
                }
                while work.len() >= SWEEP_CONCURRENCY {
                    tally(work.join_next().await, &mut lacking, &mut unreachable);
                }
                let reconciler = Arc::clone(self);
                work.spawn(async move { reconciler.complete(Arc::new(object)).await });
            }
            while let Some(done) = work.join_next().await {
                tally(Some(done), &mut lacking, &mut unreachable);
            }
            after = page.next;
            if after.is_none() {
                self.confirm_checked_objects().await;
                self.under_replicated.store(lacking, Ordering::Relaxed);
                return (lacking, unreachable);
            }
        }
    }

    /// Completes one object.
    async fn complete(self: &Arc<Self>, object: Arc<StoredObject>) -> Completed {
        self.complete_without(object, Vec::new()).await
    }

    /// Completes one object of which some shards were just found missing or bad: these are not
    /// checked again.
    pub(super) async fn complete_without(
        self: &Arc<Self>,
        object: Arc<StoredObject>,
        known: Vec<(usize, ShardFault)>,
    ) -> Completed {
        if matches!(self.reads.check_result(&object).await, Some(Err(_))) {
            return Completed::Poisoned;
        }
        let (object, mut outcome) = self.off_replaced_clouds(object, &known).await;
        let is_missing = |i: &usize| object.shard(*i).is_some_and(|shard| !shard.acknowledged);
        let mut missing: Vec<usize> = (0..object.shards().len()).filter(is_missing).collect();
        // No more than t shards are kept; those of clouds that answer come first.
        let there = object.shards().len() - missing.len();
        let lacking = usize::from(object.policy().target()).saturating_sub(there);
        missing.sort_by_key(|shard| self.clouds.is_suspended(&object, *shard));
        missing.truncate(lacking);
        let (mut absent, mut there) = (Vec::new(), Vec::new());
        for shard in missing {
            if self.leaves(&object, shard) {
                outcome = outcome.max(Completed::Unreachable);
                continue;
            }
            if self.clouds.is_suspended(&object, shard) {
                outcome = outcome.max(Completed::Unreachable);
                continue;
            }
            if !self.repair_backoff.allows(object.id(), shard) {
                outcome = outcome.max(Completed::Lacking);
                continue;
            }
            if let Some(fault) = known.iter().find(|(it, _)| *it == shard) {
                absent.push(fault.clone());
                continue;
            }
            match self.reads.fetch_whole(&object, shard).await {
                Ok(_) => there.extend(object.placed(shard)),
                Err(ShardFault::Store(error)) if error.kind.concerns_the_cloud() => {
                    outcome = outcome.max(Completed::Unreachable);
                }
                Err(fault) => absent.push((shard, fault)),
            }
        }
        let lacks = absent.iter().map(|(shard, _)| *shard);
        let named = there.iter().map(|placed| usize::from(placed.shard.0));
        let concerned: Vec<usize> = lacks.chain(named).collect();
        let rebuilt = match self.check(&object, &absent, &concerned).await {
            Ok(rebuilt) => rebuilt,
            Err(why) => return outcome.max(why),
        };
        if !there.is_empty() {
            self.clouds
                .counters()
                .shards_completed
                .add(there.len() as u64);
            self.confirm_batch(there).await;
        }
        let mut missing = Vec::new();
        for (shard, fault) in &absent {
            match self.next_name(&object, *shard, fault) {
                Some(attempt) => missing.push((*shard, attempt)),
                None => outcome = Completed::Lacking,
            }
        }
        if missing.is_empty() {
            return outcome;
        }
        let rebuilt = match rebuilt {
            Some(rebuilt) => rebuilt,
            None => match self.rebuild(&object, absent, &missing_of(&missing)).await {
                Ok(rebuilt) => rebuilt,
                Err(why) => return outcome.max(why),
            },
        };
        outcome.max(self.put_missing(&object, &rebuilt, missing).await)
    }

    /// The object after its shards have left clouds that take nothing new, and what is left there.
    async fn off_replaced_clouds(
        self: &Arc<Self>,
        object: Arc<StoredObject>,
        known: &[(usize, ShardFault)],
    ) -> (Arc<StoredObject>, Completed) {
        if self.relocations(&object).is_empty() {
            return (object, Completed::Whole);
        }
        let throttle = Throttle::new(None);
        let Relocated { moves, outcome } = self.relocate(&object, known, &throttle).await;
        for step in moves.iter().filter(|step| step.is_acknowledged()) {
            if self.replace(step.to).await {
                self.clouds.counters().shards_completed.add(1);
                self.clouds.remember_replacement(step.to);
            }
        }
        (self.clouds.with_replacements(&object), outcome)
    }

    /// Whether an object may be completed: another principal's object with inconsistent shards
    /// never is. If the check had to rebuild the object, the result is returned as well.
    async fn check(
        self: &Arc<Self>,
        object: &Arc<StoredObject>,
        known: &[(usize, ShardFault)],
        concerned: &[usize],
    ) -> Result<Option<Rebuilt>, Completed> {
        if concerned.is_empty() {
            return Ok(None);
        }
        match self.reads.check_result(object).await {
            Some(Ok(())) => Ok(None),
            Some(Err(_)) => Err(Completed::Poisoned),
            None => {
                let rebuilt = self.rebuild(object, known.to_vec(), concerned).await;
                rebuilt.map(Some)
            }
        }
    }

    fn back_off(&self, object: &StoredObject, shards: &[usize]) {
        for shard in shards {
            self.repair_backoff.tried(object.id(), *shard);
        }
    }

    /// The name under which a missing shard is put; `None` if its names are used up.
    fn next_name(&self, object: &StoredObject, shard: usize, fault: &ShardFault) -> Option<u8> {
        let row = object.shard(shard)?;
        let is_taken = row.withdrawn || fault.is_refused();
        let attempt = row.attempt.saturating_add(u8::from(is_taken));
        (attempt < ATTEMPTS_MAX).then_some(attempt)
    }

    /// Rebuilds an object; if that fails, its shards back off.
    async fn rebuild(
        self: &Arc<Self>,
        object: &Arc<StoredObject>,
        known: Vec<(usize, ShardFault)>,
        concerned: &[usize],
    ) -> Result<Rebuilt, Completed> {
        match self.reads.gather_unhedged(object, known).await {
            Ok(rebuilt) => Ok(rebuilt),
            Err(BlockError::WrittenWrong { .. }) => {
                self.back_off(object, concerned);
                Err(Completed::Poisoned)
            }
            Err(error) => {
                let error = self.reads.named(error).await;
                tracing::warn!(%error, "an object cannot be completed now");
                if (0..object.shards().len()).any(|shard| self.clouds.is_suspended(object, shard)) {
                    return Err(Completed::Lacking);
                }
                self.back_off(object, concerned);
                Err(Completed::Lost)
            }
        }
    }

    async fn put_missing(
        self: &Arc<Self>,
        object: &Arc<StoredObject>,
        rebuilt: &Rebuilt,
        missing: Vec<(usize, u8)>,
    ) -> Completed {
        let mut outcome = Completed::Whole;
        for (shard, attempt) in missing {
            let (Some(row), Some(header)) = (
                object.shard(shard),
                self.clouds.headers(object).get(shard).copied(),
            ) else {
                continue;
            };
            let made = rebuilt.shard(shard, &header, self.clouds.buffers());
            if made.digest != row.digest {
                self.repair_backoff.tried(object.id(), shard);
                outcome = outcome.max(Completed::Poisoned);
                continue;
            }
            match self.clouds.place(object, shard, made.body, attempt).await {
                Ok(placed) if placed.attempt == row.attempt => {
                    self.clouds.counters().shards_completed.add(1);
                    self.confirm_batch(vec![placed]).await;
                }
                Ok(placed) => {
                    self.clouds.counters().shards_completed.add(1);
                    self.repair_backoff.tried(object.id(), shard);
                    if self.replace(placed).await {
                        self.clouds.remember_replacement(placed);
                    } else {
                        outcome = outcome.max(Completed::Lacking);
                    }
                }
                Err(fault) => {
                    tracing::warn!(object = %object.id(), shard, %fault, "shard not completed");
                    let concerns_the_cloud = match &fault {
                        ShardFault::Store(error) => error.kind.concerns_the_cloud(),
                        _ => false,
                    };
                    if !concerns_the_cloud {
                        self.repair_backoff.tried(object.id(), shard);
                    }
                    outcome = outcome.max(Completed::Unreachable);
                }
            }
        }
        outcome
    }

    /// Whether nothing is in flight.
    pub(in crate::blocks) fn is_idle(&self) -> bool {
        self.writes.is_idle() && self.clouds.repair_notes().waiting() == 0
    }
}

/// The outcome for an under-replicated object, the worst last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Completed {
    Whole,
    Unreachable,
    Lacking,
    /// Its shards are inconsistent: it cannot be completed.
    Poisoned,
    /// All clouds answer, and it cannot be rebuilt.
    Lost,
}

fn missing_of(missing: &[(usize, u8)]) -> Vec<usize> {
    missing.iter().map(|(shard, _)| *shard).collect()
}

fn tally(
    done: Option<Result<Completed, tokio::task::JoinError>>,
    lacking: &mut usize,
    unreachable: &mut usize,
) {
    match done {
        // Poisoned objects are reported apart: waiting does not help.
        None | Some(Ok(Completed::Whole | Completed::Poisoned)) => {}
        Some(Ok(Completed::Unreachable)) => {
            *lacking += 1;
            *unreachable += 1;
        }
        Some(Ok(Completed::Lacking | Completed::Lost) | Err(_)) => *lacking += 1,
    }
}
