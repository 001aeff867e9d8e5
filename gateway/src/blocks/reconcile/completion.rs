//! Completion: from w acknowledged shards to all t.
//!
//! A write returns with w acknowledgements, and the other puts go on in the background within a
//! byte budget. Their results are ordered only after the object's own commit, so the caller reports
//! the commit:
//!
//! ```text
//! writing ─w acknowledged─► stored ─committed()─► committed ─nothing outstanding─► forgotten
//!    │                       │                    each acknowledgement is confirmed by order
//!    └──failed, dropped──────┴──abandoned()──► puts aborted, forgotten
//! ```
//!
//! No state has to survive: the metadata records which shards are not confirmed. The *sweep* goes
//! through the list of under-replicated objects, at start and at intervals. It looks whether the
//! shard is there already, otherwise rebuilds it from k others, puts it, and has it confirmed. A
//! rebuilt shard is identical to the original, so a name taken by the same bytes is a success; if
//! other bytes have taken it, the name of the next attempt is used. A shard whose acknowledgement
//! was withdrawn is first looked for under its old name, since the withdrawal may have been wrong;
//! if it is not there, it takes the next name.
//!
//! Another principal's object is completed only after it has passed the consistency check; see
//! `consistency_check`. A poisoned object is never completed.

use crate::blocks::engine::Engine;
use crate::blocks::object::{BlockError, Rebuilt, ShardFault, StoredObject};
use quorumfs_metadata::identity::ObjectId;
use quorumfs_metadata::limits::CONFIRM_SHARDS_MAX;
use quorumfs_metadata::operation::PlacedShard;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

/// The most objects in flight; beyond it the oldest are forgotten and left to the sweep.
const OBJECTS_MAX: usize = 1 << 14;
/// How many times a confirmation is tried before it is left to the sweep.
const CONFIRMATION_TRIES: u32 = 4;
/// How long confirmations are collected into one operation.
const CONFIRMATION_PAUSE: Duration = Duration::from_millis(20);
/// Objects in one page of a sweep.
const SWEEP_PAGE: u32 = 64;
/// Objects that a sweep works on at a time.
pub(in crate::blocks) const SWEEP_CONCURRENCY: usize = 4;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Writing,
    Stored,
    Committed,
}

#[derive(Debug)]
struct InFlightObject {
    phase: Phase,
    /// Acknowledged and not yet queued for confirmation.
    placed: Vec<PlacedShard>,
    outstanding: BTreeMap<u8, (usize, Option<AbortHandle>)>,
}

/// The objects whose puts this process still tracks.
#[derive(Debug)]
pub(in crate::blocks) struct InFlight {
    objects: BTreeMap<ObjectId, InFlightObject>,
    background_bytes: usize,
    background_bytes_max: usize,
}

impl InFlight {
    pub(in crate::blocks) fn new(background_bytes_max: usize) -> Self {
        Self {
            objects: BTreeMap::new(),
            background_bytes: 0,
            background_bytes_max,
        }
    }

    fn forget(&mut self, object: ObjectId) {
        if let Some(entry) = self.objects.remove(&object) {
            for (bytes, handle) in entry.outstanding.into_values() {
                if entry.phase != Phase::Writing {
                    self.background_bytes = self.background_bytes.saturating_sub(bytes);
                }
                if let Some(handle) = handle {
                    handle.abort();
                }
            }
        }
    }

    fn bound(&mut self) {
        while self.objects.len() > OBJECTS_MAX {
            let settled = |entry: &InFlightObject| entry.phase != Phase::Writing;
            match self.objects.iter().find(|(_, entry)| settled(entry)) {
                Some((oldest, _)) => self.forget(*oldest),
                None => return,
            }
        }
    }

    /// Running puts, and the bytes of those whose writes have returned.
    pub(in crate::blocks) fn outstanding(&self) -> (usize, usize) {
        let puts = self
            .objects
            .values()
            .map(|entry| entry.outstanding.len())
            .sum();
        (puts, self.background_bytes)
    }

    pub(in crate::blocks) fn follows(&self, object: ObjectId) -> bool {
        self.objects.contains_key(&object)
    }

    fn is_idle(&self) -> bool {
        self.objects
            .values()
            .all(|e| e.phase == Phase::Stored && e.outstanding.is_empty())
    }
}

impl Engine {
    pub(in crate::blocks) fn in_flight(&self) -> MutexGuard<'_, InFlight> {
        self.in_flight
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A write begins.
    pub(in crate::blocks) fn begin(&self, object: ObjectId) {
        let mut in_flight = self.in_flight();
        let entry = InFlightObject {
            phase: Phase::Writing,
            placed: Vec::new(),
            outstanding: BTreeMap::new(),
        };
        in_flight.objects.insert(object, entry);
        in_flight.bound();
    }

    /// A put of a write begins.
    pub(in crate::blocks) fn put_begins(&self, object: ObjectId, shard: u8, bytes: usize) {
        if let Some(entry) = self.in_flight().objects.get_mut(&object) {
            entry.outstanding.insert(shard, (bytes, None));
        }
    }

    /// The handle that aborts the put.
    pub(in crate::blocks) fn put_runs(&self, object: ObjectId, shard: u8, handle: AbortHandle) {
        if let Some(entry) = self.in_flight().objects.get_mut(&object)
            && let Some((_, place)) = entry.outstanding.get_mut(&shard)
        {
            *place = Some(handle);
        }
    }

    /// A put of a write has ended.
    pub(in crate::blocks) fn put_ends(
        &self,
        object: ObjectId,
        shard: u8,
        result: &Result<PlacedShard, ShardFault>,
    ) {
        match result {
            Ok(_) => self.counters.shards_put.add(1),
            Err(_) => self.counters.puts_failed.add(1),
        }
        let mut in_flight = self.in_flight();
        let Some(entry) = in_flight.objects.get_mut(&object) else {
            return;
        };
        let bytes = entry
            .outstanding
            .remove(&shard)
            .map_or(0, |(bytes, _)| bytes);
        if let Ok(placed) = result {
            entry.placed.push(*placed);
        }
        let phase = entry.phase;
        if phase != Phase::Writing {
            in_flight.background_bytes = in_flight.background_bytes.saturating_sub(bytes);
        }
        if phase == Phase::Committed {
            self.queue_confirmations(&mut in_flight, object);
        }
    }

    /// A write has its w acknowledgements: returns them. The outstanding puts go on in the
    /// background.
    pub(in crate::blocks) fn settle(&self, object: ObjectId) -> Vec<PlacedShard> {
        let mut in_flight = self.in_flight();
        let room = in_flight
            .background_bytes_max
            .saturating_sub(in_flight.background_bytes);
        let Some(entry) = in_flight.objects.get_mut(&object) else {
            return Vec::new();
        };
        entry.phase = Phase::Stored;
        let placed = std::mem::take(&mut entry.placed);
        let bytes: usize = entry.outstanding.values().map(|(bytes, _)| bytes).sum();
        if bytes <= room {
            in_flight.background_bytes += bytes;
        } else {
            self.counters
                .puts_dropped
                .add(entry.outstanding.len() as u64);
            for (_, handle) in std::mem::take(&mut entry.outstanding).into_values() {
                if let Some(handle) = handle {
                    handle.abort();
                }
            }
        }
        placed
    }

    /// The object was committed: later acknowledgements can be ordered.
    pub(in crate::blocks) fn committed(&self, object: ObjectId) {
        let mut in_flight = self.in_flight();
        if let Some(entry) = in_flight.objects.get_mut(&object) {
            entry.phase = Phase::Committed;
            self.queue_confirmations(&mut in_flight, object);
        }
    }

    /// The object will never be committed.
    pub(in crate::blocks) fn abandoned(&self, object: ObjectId) {
        self.in_flight().forget(object);
    }

    fn queue_confirmations(&self, in_flight: &mut InFlight, object: ObjectId) {
        let Some(entry) = in_flight.objects.get_mut(&object) else {
            return;
        };
        for placed in std::mem::take(&mut entry.placed) {
            self.confirm(placed);
        }
        if entry.outstanding.is_empty() {
            in_flight.forget(object);
        }
    }

    /// Queues the confirmation of a placement. If the queue is full, the sweep finds the shard
    /// later.
    fn confirm(&self, placed: PlacedShard) {
        self.unconfirmed.fetch_add(1, Ordering::AcqRel);
        if self.confirmations.try_send(placed).is_err() {
            self.unconfirmed.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Confirms placed shards, many at a time, until the engine ends.
    pub(in crate::blocks) async fn confirm_all(
        self: Arc<Self>,
        mut queue: mpsc::Receiver<PlacedShard>,
    ) {
        while let Some(first) = queue.recv().await {
            tokio::time::sleep(CONFIRMATION_PAUSE).await;
            let mut shards = vec![first];
            while shards.len() < CONFIRM_SHARDS_MAX {
                match queue.try_recv() {
                    Ok(placed) => shards.push(placed),
                    Err(_) => break,
                }
            }
            let count = shards.len();
            // Only a shard under its first name is confirmed; another name is a replacement.
            let (first, renamed): (Vec<_>, Vec<_>) =
                shards.into_iter().partition(|placed| placed.attempt == 0);
            self.confirm_batch(first).await;
            for placed in renamed {
                self.replace(placed).await;
            }
            self.unconfirmed.fetch_sub(count, Ordering::AcqRel);
        }
    }

    async fn confirm_batch(&self, shards: Vec<PlacedShard>) {
        if shards.is_empty() {
            return;
        }
        for attempt in 0..CONFIRMATION_TRIES {
            match self.log.confirm_placed(shards.clone()).await {
                Ok(()) => return,
                Err(error) => {
                    let shards = shards.len();
                    tracing::warn!(%error, shards, "shards not confirmed by order; trying again");
                    tokio::time::sleep(Duration::from_millis(100 << attempt)).await;
                }
            }
        }
    }

    /// Orders a new name of a shard; returns whether that succeeded.
    pub(in crate::blocks) async fn replace(&self, placed: PlacedShard) -> bool {
        for attempt in 0..CONFIRMATION_TRIES {
            match self.log.replace_placement(placed).await {
                Ok(()) => return true,
                Err(error) => {
                    let object = placed.object;
                    tracing::warn!(%error, %object, "new name of shard not ordered; trying again");
                    tokio::time::sleep(Duration::from_millis(100 << attempt)).await;
                }
            }
        }
        false
    }

    /// Sweeps for under-replicated objects at intervals until the engine ends.
    pub(in crate::blocks) async fn complete_all(self: Arc<Self>) {
        loop {
            self.probe(true).await;
            if self.config.restores {
                self.sweep().await;
            }
            tokio::time::sleep(self.config.timeouts.completion).await;
        }
    }

    /// Goes once through the under-replicated objects. Returns how many of them still lack a shard,
    /// and how many of those only because a cloud cannot be reached. A caller that comes during a
    /// sweep waits for it and then has one of its own.
    pub(in crate::blocks) async fn sweep(self: &Arc<Self>) -> (usize, usize) {
        let _alone = self.sweeping.lock().await;
        let (mut lacking, mut unreachable) = (0, 0);
        let mut after = None;
        loop {
            let page = match self.log.list_under_replicated(after, SWEEP_PAGE).await {
                Ok(page) => page,
                Err(error) => {
                    tracing::warn!(%error, "completion failed and will be tried again");
                    return (lacking + 1, unreachable);
                }
            };
            let mut work = JoinSet::new();
            for object in page.objects {
                if self.in_flight().follows(object.id()) {
                    lacking += 1;
                    continue;
                }
                while work.len() >= SWEEP_CONCURRENCY {
                    tally(work.join_next().await, &mut lacking, &mut unreachable);
                }
                let engine = Arc::clone(self);
                work.spawn(async move { engine.complete(Arc::new(object)).await });
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
    pub(in crate::blocks) async fn complete_without(
        self: &Arc<Self>,
        object: Arc<StoredObject>,
        known: Vec<(usize, ShardFault)>,
    ) -> Completed {
        if matches!(self.check_result(&object).await, Some(Err(_))) {
            return Completed::Poisoned;
        }
        let is_missing = |i: &usize| object.shard(*i).is_some_and(|shard| !shard.acknowledged);
        let mut missing: Vec<usize> = (0..object.shards().len()).filter(is_missing).collect();
        // No more than t shards are kept; those of clouds that answer come first.
        let there = object.shards().len() - missing.len();
        let lacking = usize::from(object.policy().target()).saturating_sub(there);
        missing.sort_by_key(|shard| self.is_suspended(&object, *shard));
        missing.truncate(lacking);
        let mut outcome = Completed::Whole;
        let (mut absent, mut there) = (Vec::new(), Vec::new());
        for shard in missing {
            if self.is_suspended(&object, shard) {
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
            match self.fetch_whole(&object, shard).await {
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
            self.counters.shards_completed.add(there.len() as u64);
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
        match self.check_result(object).await {
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
        (attempt < super::repair::ATTEMPTS_MAX).then_some(attempt)
    }

    /// Rebuilds an object; if that fails, its shards back off.
    async fn rebuild(
        self: &Arc<Self>,
        object: &Arc<StoredObject>,
        known: Vec<(usize, ShardFault)>,
        concerned: &[usize],
    ) -> Result<Rebuilt, Completed> {
        match self.gather_unhedged(object, known).await {
            Ok(rebuilt) => Ok(rebuilt),
            Err(BlockError::WrittenWrong { .. }) => {
                self.back_off(object, concerned);
                Err(Completed::Poisoned)
            }
            Err(error) => {
                let error = self.named(error).await;
                tracing::warn!(%error, "an object cannot be completed now");
                if (0..object.shards().len()).any(|shard| self.is_suspended(object, shard)) {
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
                self.headers(object).get(shard).copied(),
            ) else {
                continue;
            };
            let made = rebuilt.shard(shard, &header, &self.buffers);
            if made.digest != row.digest {
                self.repair_backoff.tried(object.id(), shard);
                outcome = outcome.max(Completed::Poisoned);
                continue;
            }
            match self.place(object, shard, made.body, attempt).await {
                Ok(placed) if placed.attempt == row.attempt => {
                    self.counters.shards_completed.add(1);
                    self.confirm_batch(vec![placed]).await;
                }
                Ok(placed) => {
                    self.counters.shards_completed.add(1);
                    self.repair_backoff.tried(object.id(), shard);
                    if self.replace(placed).await {
                        self.remember_replacement(placed);
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
        self.in_flight().is_idle()
            && self.unconfirmed.load(Ordering::Acquire) == 0
            && self.repairs.is_idle()
    }
}

/// The outcome for an under-replicated object, the worst last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::blocks) enum Completed {
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
