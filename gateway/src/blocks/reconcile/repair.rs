//! Repair: a shard that a cloud lost or altered is written again.
//!
//! A reader leaves a note about an acknowledged shard that is bad or missing (`repair_notes` of the
//! clouds). This task rebuilds the object from k other shards, puts the shard under its next name,
//! since the old one is taken and create-only, and orders the new place.

use super::Reconciler;
use super::completion::Completed;
use super::task::{Due, Task, TaskProgress};
use crate::blocks::object::{Sabotage, StoredObject, shard_index};
use std::sync::Arc;
use tokio::sync::Notify;

/// The most names of a shard; a cloud that spoils so many is not worth writing to.
pub(super) const ATTEMPTS_MAX: u8 = 64;

/// The task that works off the notes.
pub(super) struct RepairTask(pub(super) Arc<Reconciler>);

#[async_trait::async_trait]
impl Task for RepairTask {
    fn name(&self) -> &'static str {
        "repair"
    }

    fn next(&self) -> Due {
        match self.0.clouds.repair_notes().has_some() {
            true => Due::Now,
            false => Due::Notified,
        }
    }

    fn wakes(&self) -> Option<&Notify> {
        Some(self.0.clouds.repair_notes().arrived())
    }

    async fn run(&self) {
        self.0.repair_one().await;
    }

    fn progress(&self) -> TaskProgress {
        TaskProgress {
            waiting: self.0.clouds.repair_notes().waiting() as u64,
            done: self.0.clouds.counters().shards_repaired.get(),
        }
    }
}

impl Reconciler {
    /// Works off the first note.
    async fn repair_one(self: &Arc<Self>) {
        let Some(note) = self.clouds.repair_notes().take() else {
            return;
        };
        let object = self.clouds.with_replacements(&note.object);
        let counters = self.clouds.counters();
        if self.repair(&object, note.shard).await {
            counters.shards_repaired.add(1);
        } else {
            counters.repairs_failed.add(1);
        }
        self.clouds.repair_notes().done(object.id(), note.shard);
    }

    async fn repair(self: &Arc<Self>, object: &Arc<StoredObject>, shard: usize) -> bool {
        let Some(row) = object.shard(shard) else {
            return false;
        };
        let next = row.attempt.saturating_add(1);
        let trusted = self.clouds.is_sabotaged(Sabotage::RepairTrustsTheShard);
        let is_allowed = self.repair_backoff.allows(object.id(), shard);
        if next >= ATTEMPTS_MAX || !is_allowed || self.clouds.is_suspended(object, shard) {
            return false;
        }
        if self.leaves(object, shard) {
            // Its cloud takes nothing new: it is written to another one.
            let known = Vec::new();
            let completed = self.complete_without(Arc::clone(object), known).await;
            return completed == Completed::Whole;
        }
        // Another repair may have been quicker, or the cloud may have recovered.
        let known = match self.reads.fetch_whole(object, shard).await {
            Ok(_) => return true,
            Err(fault) => vec![(shard, fault)],
        };
        self.repair_backoff.tried(object.id(), shard);
        let rebuilt = match self.reads.gather_unhedged(object, known).await {
            Ok(rebuilt) => rebuilt,
            Err(error) => {
                let error = self.reads.named(error).await;
                tracing::warn!(%error, "a shard cannot be repaired now");
                return false;
            }
        };
        let Some(header) = self.clouds.headers(object).get(shard).copied() else {
            return false;
        };
        let made = rebuilt.shard(shard, &header, self.clouds.buffers());
        if made.digest != row.digest {
            self.clouds.counters().written_wrong.add(1);
            return false;
        }
        let body = match trusted {
            true => self.clouds.found(object, shard).await.unwrap_or(made.body),
            false => made.body,
        };
        match self.clouds.place(object, shard, body, next).await {
            Ok(placed) if self.replace(placed).await => {
                tracing::info!(
                    object = %object.id(), shard = %shard_index(shard), cloud = %placed.cloud,
                    attempt = placed.attempt, "a shard was written again"
                );
                self.clouds.remember_replacement(placed);
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
