//! Puts that go on after their write has returned: from w acknowledged shards towards all t.
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
//! The confirmations wait in a queue, which a task of the reconciler works off. No state has to
//! survive: the metadata records which shards are not confirmed, and the reconciler's sweep finds
//! them.

use super::Writes;
use crate::blocks::object::ShardFault;
use quorumfs_metadata::identity::ObjectId;
use quorumfs_metadata::operation::PlacedShard;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// The most objects in flight; beyond it the oldest are forgotten and left to the sweep.
const OBJECTS_MAX: usize = 1 << 14;
/// The most confirmations that wait.
const CONFIRMATIONS_MAX: usize = 4096;

/// Placed shards that await their confirmation by order.
#[derive(Debug, Default)]
pub(in crate::blocks) struct Confirmations {
    queue: Mutex<VecDeque<PlacedShard>>,
    arrived: Notify,
    /// Those in the queue, and those that are being ordered.
    unconfirmed: AtomicUsize,
    /// Those that were ordered or left to the sweep, since the start.
    settled: AtomicU64,
}

impl Confirmations {
    fn queue(&self) -> MutexGuard<'_, VecDeque<PlacedShard>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues the confirmation of a placement. If the queue is full, the sweep finds the shard
    /// later.
    fn push(&self, placed: PlacedShard) {
        let mut queue = self.queue();
        if queue.len() >= CONFIRMATIONS_MAX {
            return;
        }
        queue.push_back(placed);
        self.unconfirmed.fetch_add(1, Ordering::AcqRel);
        drop(queue);
        self.arrived.notify_one();
    }

    /// Notified when a placement is queued.
    pub(in crate::blocks) fn arrived(&self) -> &Notify {
        &self.arrived
    }

    /// Whether the queue has a placement.
    pub(in crate::blocks) fn has_some(&self) -> bool {
        !self.queue().is_empty()
    }

    /// The first placements of the queue, at most so many. They count as unconfirmed until they
    /// are settled.
    pub(in crate::blocks) fn take(&self, most: usize) -> Vec<PlacedShard> {
        let mut queue = self.queue();
        let count = queue.len().min(most);
        queue.drain(..count).collect()
    }

    /// So many placements have been ordered, or are left to the sweep.
    pub(in crate::blocks) fn settled(&self, count: usize) {
        self.settled.fetch_add(count as u64, Ordering::Relaxed);
        self.unconfirmed.fetch_sub(count, Ordering::AcqRel);
    }

    /// How many placements were ordered or left to the sweep, since the start.
    pub(in crate::blocks) fn all_settled(&self) -> u64 {
        self.settled.load(Ordering::Relaxed)
    }

    /// How many placements await their order.
    pub(in crate::blocks) fn unconfirmed(&self) -> usize {
        self.unconfirmed.load(Ordering::Acquire)
    }
}

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
pub(super) struct InFlight {
    objects: BTreeMap<ObjectId, InFlightObject>,
    background_bytes: usize,
    background_bytes_max: usize,
}

impl InFlight {
    pub(super) fn new(background_bytes_max: usize) -> Self {
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

    fn outstanding(&self) -> (usize, usize) {
        let puts = self
            .objects
            .values()
            .map(|entry| entry.outstanding.len())
            .sum();
        (puts, self.background_bytes)
    }

    fn is_idle(&self) -> bool {
        self.objects
            .values()
            .all(|e| e.phase == Phase::Stored && e.outstanding.is_empty())
    }
}

impl Writes {
    fn in_flight(&self) -> MutexGuard<'_, InFlight> {
        self.in_flight
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Running puts, and the bytes of those whose writes have returned.
    pub(in crate::blocks) fn outstanding(&self) -> (usize, usize) {
        self.in_flight().outstanding()
    }

    /// Whether an object's puts are still followed here.
    pub(in crate::blocks) fn follows(&self, object: ObjectId) -> bool {
        self.in_flight().objects.contains_key(&object)
    }

    /// Whether nothing is under way: no put, no placement without its order.
    pub(in crate::blocks) fn is_idle(&self) -> bool {
        self.in_flight().is_idle() && self.confirmations.unconfirmed() == 0
    }

    /// A write begins.
    pub(super) fn begin(&self, object: ObjectId) {
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
    pub(super) fn put_begins(&self, object: ObjectId, shard: u8, bytes: usize) {
        if let Some(entry) = self.in_flight().objects.get_mut(&object) {
            entry.outstanding.insert(shard, (bytes, None));
        }
    }

    /// The handle that aborts the put.
    pub(super) fn put_runs(&self, object: ObjectId, shard: u8, handle: AbortHandle) {
        if let Some(entry) = self.in_flight().objects.get_mut(&object)
            && let Some((_, place)) = entry.outstanding.get_mut(&shard)
        {
            *place = Some(handle);
        }
    }

    /// A put of a write has ended.
    pub(super) fn put_ends(
        &self,
        object: ObjectId,
        shard: u8,
        result: &Result<PlacedShard, ShardFault>,
    ) {
        match result {
            Ok(_) => self.clouds.counters().shards_put.add(1),
            Err(_) => self.clouds.counters().puts_failed.add(1),
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
    pub(super) fn settle(&self, object: ObjectId) -> Vec<PlacedShard> {
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
            self.clouds
                .counters()
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
            self.confirmations.push(placed);
        }
        if entry.outstanding.is_empty() {
            in_flight.forget(object);
        }
    }
}
