//! The operator's view of the block store.

use super::{Collected, Drainage, Reconciler, Scheduler, ScrubReport, TaskStatus};
use crate::blocks::clouds::{CloudStatus, CounterValues};
use crate::blocks::read::Poisoned;
use std::sync::atomic::Ordering;

/// The state of the block store.
#[derive(Clone, Debug)]
pub struct BlockStatus {
    /// The clouds.
    pub clouds: Vec<CloudStatus>,
    /// w: the number of clouds that a write needs.
    pub write_quorum: usize,
    /// k: the number of clouds that a read needs.
    pub read_quorum: usize,
    /// Puts in flight, of all writes.
    pub puts_outstanding: usize,
    /// Bytes of the puts whose writes have returned.
    pub background_bytes: usize,
    /// Placements that await their order.
    pub unconfirmed: usize,
    /// Objects that lacked shards in the last sweep.
    pub under_replicated: usize,
    /// Packs of which less than half was needed in the last round of compaction.
    pub sparse_packs: usize,
    /// The last round of collection.
    pub collected: Collected,
    /// How far replaced clouds are drained, as this process last saw it.
    pub drainage: Drainage,
    /// Repairs in the queue.
    pub repairs_waiting: usize,
    /// Objects that this process found poisoned, at most some thousand: no reader gets them.
    pub poisoned: Vec<Poisoned>,
    /// The running or the last scrub.
    pub scrub: Option<ScrubReport>,
    /// The tasks of the reconciler.
    pub tasks: Vec<TaskStatus>,
    /// The event counters.
    pub counters: CounterValues,
}

impl Reconciler {
    pub(in crate::blocks) fn status(&self, scheduler: &Scheduler) -> BlockStatus {
        let config = self.clouds.config();
        let (puts_outstanding, background_bytes) = self.writes.outstanding();
        BlockStatus {
            clouds: self.clouds.status(),
            write_quorum: usize::from(config.policy.write_quorum()),
            read_quorum: usize::from(config.policy.data()),
            puts_outstanding,
            background_bytes,
            unconfirmed: self.writes.confirmations().unconfirmed(),
            under_replicated: self.under_replicated.load(Ordering::Relaxed),
            sparse_packs: self.sparse.load(Ordering::Relaxed),
            collected: self.last_collected(),
            drainage: self.last_drainage(),
            repairs_waiting: self.clouds.repair_notes().waiting(),
            poisoned: self.reads.all_poisoned(),
            scrub: self.last_scrub(),
            tasks: scheduler.status(),
            counters: self.clouds.counters().values(),
        }
    }
}
