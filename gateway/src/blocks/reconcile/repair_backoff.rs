//! Backoff of repairs: a shard that has to be restored again and again is restored ever more
//! rarely.
//!
//! A cloud that takes a shard and later denies it, or spoils it, could otherwise make a gateway
//! read k shards and write one for every check of it. After each restoration of a shard under a
//! further name, and after each failure except an unreachable cloud, the next attempt waits for a
//! pause that doubles. The number of a shard's names is bounded as well.
//!
//! The pauses are kept in memory and bounded. A forgotten shard begins with the shortest pause
//! again; the bound on names persists, because the attempt is in the metadata.

use quorumfs_metadata::identity::ObjectId;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The most shards that are remembered.
const SHARDS_MAX: usize = 1 << 14;
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(3600);

/// The time from which each shard may be restored again.
#[derive(Debug)]
pub(super) struct RepairBackoff {
    pause_min: Duration,
    shards: Mutex<BTreeMap<(ObjectId, usize), (u32, Instant)>>,
}

impl RepairBackoff {
    /// Begins with pauses of `pause_min`.
    pub(super) fn new(pause_min: Duration) -> Self {
        Self {
            pause_min,
            shards: Mutex::default(),
        }
    }

    /// Whether the shard may be restored now.
    pub(super) fn allows(&self, object: ObjectId, shard: usize) -> bool {
        let shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        let record = shards.get(&(object, shard));
        record.is_none_or(|(_, until)| *until <= Instant::now())
    }

    /// The shard was restored, or could not be: the next attempt waits.
    pub(super) fn tried(&self, object: ObjectId, shard: usize) {
        let now = Instant::now();
        let mut shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        if shards.len() >= SHARDS_MAX {
            shards.retain(|_, (_, until)| *until > now);
            if shards.len() >= SHARDS_MAX {
                shards.pop_first();
            }
        }
        let (times, until) = shards.entry((object, shard)).or_insert((0, now));
        let pause = self.pause_min.saturating_mul(1 << (*times).min(16));
        *until = now + pause.min(PAUSE_MAX);
        *times = times.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorumfs_metadata::identity::AllocationId;

    #[tokio::test(start_paused = true)]
    async fn pauses_double_for_each_shard_by_itself_up_to_an_hour() {
        let object = ObjectId {
            allocation: AllocationId(1),
            counter: 2,
        };
        let repair_backoff = RepairBackoff::new(Duration::from_secs(5));
        for round in 0..14 {
            let pause = Duration::from_secs((5 << round).min(3600));
            assert!(repair_backoff.allows(object, 0), "{round}");
            repair_backoff.tried(object, 0);
            assert!(repair_backoff.allows(object, 1));
            tokio::time::advance(pause - Duration::from_millis(1)).await;
            assert!(!repair_backoff.allows(object, 0), "{round}");
            tokio::time::advance(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_remembered_shards_are_bounded() {
        let repair_backoff = RepairBackoff::new(Duration::from_secs(5));
        for counter in 0..SHARDS_MAX as u32 + 100 {
            let object = ObjectId {
                allocation: AllocationId(1),
                counter,
            };
            repair_backoff.tried(object, 0);
        }
        assert_eq!(repair_backoff.shards.lock().unwrap().len(), SHARDS_MAX);
    }
}
