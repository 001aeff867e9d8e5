//! Repair: a shard that a cloud lost or altered is written again.
//!
//! A note is left here about an acknowledged shard that is bad or missing. A worker rebuilds the
//! object from k other shards, puts the shard under its next name, since the old one is taken and
//! create-only, and orders the new place. Notes are bounded and may be lost: the next reader leaves
//! another.

use crate::blocks::engine::Engine;
use crate::blocks::object::{Sabotage, ShardFault, StoredObject, shard_index};
use quorumfs_metadata::identity::ObjectId;
use quorumfs_metadata::operation::PlacedShard;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;

/// The most notes that wait.
const QUEUE_MAX: usize = 1024;
/// The most repairs whose new names are remembered for readers with older rows.
const REPLACEMENTS_MAX: usize = 1 << 14;
/// The most names of a shard; a cloud that spoils so many is not worth writing to.
pub(in crate::blocks) const ATTEMPTS_MAX: u8 = 64;

/// A note.
#[derive(Debug)]
pub(in crate::blocks) struct Note {
    object: Arc<StoredObject>,
    shard: usize,
}

#[derive(Debug, Default)]
struct RepairRecords {
    waiting: BTreeSet<(ObjectId, usize)>,
    replacements: BTreeMap<(ObjectId, usize), u8>,
}

/// The notes, and the new names.
#[derive(Debug)]
pub(in crate::blocks) struct Repairs {
    queue: mpsc::Sender<Note>,
    records: Mutex<RepairRecords>,
}

impl Repairs {
    pub(in crate::blocks) fn new() -> (Self, mpsc::Receiver<Note>) {
        let (queue, notes) = mpsc::channel(QUEUE_MAX);
        (
            Self {
                queue,
                records: Mutex::default(),
            },
            notes,
        )
    }

    fn records(&self) -> MutexGuard<'_, RepairRecords> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::blocks) fn is_idle(&self) -> bool {
        self.records().waiting.is_empty()
    }

    pub(in crate::blocks) fn waiting(&self) -> usize {
        self.records().waiting.len()
    }
}

impl Engine {
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
        let key = (object.id(), shard);
        if self.repairs.records().waiting.insert(key) {
            let note = Note {
                object: Arc::clone(object),
                shard,
            };
            if self.repairs.queue.try_send(note).is_err() {
                self.repairs.records().waiting.remove(&key);
            }
        }
    }

    /// The object with the names that repairs have given to its shards since its row was read.
    pub(in crate::blocks) fn with_replacements(
        &self,
        object: &Arc<StoredObject>,
    ) -> Arc<StoredObject> {
        let records = self.repairs.records();
        let key = object.id();
        let known = records.replacements.range((key, 0)..=(key, usize::MAX));
        let mut renamed = Arc::clone(object);
        for ((_, shard), attempt) in known {
            Arc::make_mut(&mut renamed).set_attempt(*shard, *attempt);
        }
        renamed
    }

    /// Remembers a shard's new name for rows that were read before it was ordered.
    pub(in crate::blocks) fn remember_replacement(&self, placed: PlacedShard) {
        let mut records = self.repairs.records();
        if records.replacements.len() >= REPLACEMENTS_MAX {
            records.replacements.pop_first();
        }
        let key = (placed.object, usize::from(placed.shard.0));
        records.replacements.insert(key, placed.attempt);
    }

    /// Processes the notes until the engine ends.
    pub(in crate::blocks) async fn repair_all(self: Arc<Self>, mut notes: mpsc::Receiver<Note>) {
        while let Some(note) = notes.recv().await {
            let object = self.with_replacements(&note.object);
            if self.repair(&object, note.shard).await {
                self.counters.shards_repaired.add(1);
            } else {
                self.counters.repairs_failed.add(1);
            }
            self.repairs
                .records()
                .waiting
                .remove(&(object.id(), note.shard));
        }
    }

    async fn repair(self: &Arc<Self>, object: &Arc<StoredObject>, shard: usize) -> bool {
        let Some(row) = object.shard(shard) else {
            return false;
        };
        let next = row.attempt.saturating_add(1);
        let trusted = self.is_sabotaged(Sabotage::RepairTrustsTheShard);
        let is_allowed = self.repair_backoff.allows(object.id(), shard);
        if next >= ATTEMPTS_MAX || !is_allowed || self.is_suspended(object, shard) {
            return false;
        }
        // Another repair may have been quicker, or the cloud may have recovered.
        let known = match self.fetch_whole(object, shard).await {
            Ok(_) => return true,
            Err(fault) => vec![(shard, fault)],
        };
        self.repair_backoff.tried(object.id(), shard);
        let rebuilt = match self.gather_unhedged(object, known).await {
            Ok(rebuilt) => rebuilt,
            Err(error) => {
                let error = self.named(error).await;
                tracing::warn!(%error, "a shard cannot be repaired now");
                return false;
            }
        };
        let Some(header) = self.headers(object).get(shard).copied() else {
            return false;
        };
        let made = rebuilt.shard(shard, &header, &self.buffers);
        if made.digest != row.digest {
            self.counters.written_wrong.add(1);
            return false;
        }
        let body = match trusted {
            true => self.found(object, shard).await.unwrap_or(made.body),
            false => made.body,
        };
        match self.place(object, shard, body, next).await {
            Ok(placed) if self.replace(placed).await => {
                tracing::info!(
                    object = %object.id(), shard = %shard_index(shard), cloud = %placed.cloud,
                    attempt = placed.attempt, "a shard was written again"
                );
                self.remember_replacement(placed);
                true
            }
            Ok(_) => false,
            Err(fault) => {
                tracing::warn!(object = %object.id(), shard, %fault, "a shard is not repaired");
                false
            }
        }
    }
}
