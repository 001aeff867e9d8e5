//! Confirming: the places of shards, and the results of consistency checks, become ordered facts.
//!
//! The shards that a write did not wait for are confirmed many at a time: the first waits some
//! milliseconds for others. What cannot be ordered is not lost: the sweep looks at such a shard
//! again, finds it at its place and orders it.

use super::Reconciler;
use super::task::{Due, Task, TaskProgress};
use quorumfs_metadata::limits::CONFIRM_SHARDS_MAX;
use quorumfs_metadata::operation::PlacedShard;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// How many times a confirmation is tried before it is left to the sweep.
const TRIES: u32 = 4;
/// How long confirmations are collected into one operation.
const PAUSE: Duration = Duration::from_millis(20);

/// The task that confirms the shards of this process's writes.
pub(super) struct ConfirmTask(pub(super) Arc<Reconciler>);

#[async_trait::async_trait]
impl Task for ConfirmTask {
    fn name(&self) -> &'static str {
        "confirm"
    }

    fn next(&self) -> Due {
        match self.0.writes.confirmations().has_some() {
            true => Due::Now,
            false => Due::Notified,
        }
    }

    fn wakes(&self) -> Option<&Notify> {
        Some(self.0.writes.confirmations().arrived())
    }

    async fn run(&self) {
        self.0.confirm_some().await;
    }

    fn progress(&self) -> TaskProgress {
        let confirmations = self.0.writes.confirmations();
        TaskProgress {
            waiting: confirmations.unconfirmed() as u64,
            done: confirmations.all_settled(),
        }
    }
}

impl Reconciler {
    /// Confirms the placed shards that wait, many at a time.
    async fn confirm_some(&self) {
        tokio::time::sleep(PAUSE).await;
        let shards = self.writes.confirmations().take(CONFIRM_SHARDS_MAX);
        let count = shards.len();
        // Only a shard under its first name is confirmed; another name is a replacement.
        let (first, renamed): (Vec<_>, Vec<_>) =
            shards.into_iter().partition(|placed| placed.attempt == 0);
        self.confirm_batch(first).await;
        for placed in renamed {
            self.replace(placed).await;
        }
        self.writes.confirmations().settled(count);
    }

    /// Orders that shards are at their places; those that cannot be ordered are left to the sweep.
    pub(super) async fn confirm_batch(&self, shards: Vec<PlacedShard>) {
        if shards.is_empty() {
            return;
        }
        for attempt in 0..TRIES {
            match self.clouds.log().confirm_placed(shards.clone()).await {
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
    pub(super) async fn replace(&self, placed: PlacedShard) -> bool {
        for attempt in 0..TRIES {
            match self.clouds.log().replace_placement(placed).await {
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

    /// Orders which objects were found good, so that others need not check them again.
    pub(super) async fn confirm_checked_objects(&self) {
        if !self.clouds.config().restores {
            return;
        }
        loop {
            let some = self.reads.take_checked();
            if some.is_empty() {
                return;
            }
            let count = some.len();
            if let Err(error) = self.clouds.log().confirm_checked(some).await {
                // The next check of these objects orders it again.
                tracing::debug!(%error, count, "consistency checks could not be ordered");
                return;
            }
        }
    }
}
