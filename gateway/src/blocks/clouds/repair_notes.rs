//! Notes about shards that have to be written again, and the names that repairs gave to shards.
//!
//! A note is left here about an acknowledged shard that is bad or missing; a task of the reconciler
//! works the notes off. They are bounded and may be lost: the next reader leaves another. Rows that
//! were read before a repair or a move was ordered have a shard's old place, so the new ones are
//! remembered.

use super::Clouds;
use crate::blocks::object::{ShardFault, StoredObject};
use quorumfs_metadata::identity::{CloudIndex, ObjectId};
use quorumfs_metadata::operation::PlacedShard;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// The most notes that wait.
const QUEUE_MAX: usize = 1024;
/// The most repairs whose new names are remembered for readers with older rows.
const REPLACEMENTS_MAX: usize = 1 << 14;

/// A note about a shard.
#[derive(Debug)]
pub(in crate::blocks) struct RepairNote {
    pub(in crate::blocks) object: Arc<StoredObject>,
    pub(in crate::blocks) shard: usize,
}

#[derive(Debug, Default)]
struct RepairRecords {
    queue: VecDeque<RepairNote>,
    /// The shards in the queue, and the one that is being repaired.
    waiting: BTreeSet<(ObjectId, usize)>,
    replacements: BTreeMap<(ObjectId, usize), (CloudIndex, u8)>,
}

/// The notes, and the new names.
#[derive(Debug, Default)]
pub(in crate::blocks) struct RepairNotes {
    records: Mutex<RepairRecords>,
    arrived: Notify,
}

impl RepairNotes {
    fn records(&self) -> MutexGuard<'_, RepairRecords> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave(&self, note: RepairNote) {
        let mut records = self.records();
        let is_full = records.queue.len() >= QUEUE_MAX;
        if is_full || !records.waiting.insert((note.object.id(), note.shard)) {
            return;
        }
        records.queue.push_back(note);
        drop(records);
        self.arrived.notify_one();
    }

    /// Notified when a note is left.
    pub(in crate::blocks) fn arrived(&self) -> &Notify {
        &self.arrived
    }

    /// Whether the queue has a note.
    pub(in crate::blocks) fn has_some(&self) -> bool {
        !self.records().queue.is_empty()
    }

    /// The first note; it counts as waiting until it is done.
    pub(in crate::blocks) fn take(&self) -> Option<RepairNote> {
        self.records().queue.pop_front()
    }

    /// A note has been worked off, with or without success.
    pub(in crate::blocks) fn done(&self, object: ObjectId, shard: usize) {
        self.records().waiting.remove(&(object, shard));
    }

    /// How many notes wait or are being worked off.
    pub(in crate::blocks) fn waiting(&self) -> usize {
        self.records().waiting.len()
    }
}

impl Clouds {
    /// Leaves a note if the fault requires a repair.
    pub(in crate::blocks) fn order_repair(
        &self,
        object: &Arc<StoredObject>,
        shard: usize,
        fault: &ShardFault,
    ) {
        let acknowledged = object.shard(shard).is_some_and(|row| row.acknowledged);
        if !self.config.restores || !fault.wants_repair() || !acknowledged {
            return;
        }
        self.repair_notes.leave(RepairNote {
            object: Arc::clone(object),
            shard,
        });
    }

    /// The object with the places that its shards have got since its row was read.
    pub(in crate::blocks) fn with_replacements(
        &self,
        object: &Arc<StoredObject>,
    ) -> Arc<StoredObject> {
        let records = self.repair_notes.records();
        let key = object.id();
        let known = records.replacements.range((key, 0)..=(key, usize::MAX));
        let mut renamed = Arc::clone(object);
        for ((_, shard), place) in known {
            Arc::make_mut(&mut renamed).set_place(*shard, *place);
        }
        renamed
    }

    /// Remembers a shard's new place for rows that were read before it was ordered.
    pub(in crate::blocks) fn remember_replacement(&self, placed: PlacedShard) {
        let mut records = self.repair_notes.records();
        if records.replacements.len() >= REPLACEMENTS_MAX {
            records.replacements.pop_first();
        }
        let key = (placed.object, usize::from(placed.shard.0));
        let place = (placed.cloud, placed.attempt);
        records.replacements.insert(key, place);
    }
}
