//! The reconciler: what the clouds hold becomes what the metadata says that they should hold.
//!
//! ```text
//!   queue of confirmations ─► confirm ──────────────────────────────► ordered
//!   under-replicated ───────► completion ─► rebuilt, put ──confirm──► ordered
//!   notes of bad shards ────► repair ─────► rebuilt, put, renamed ──► ordered
//!   notes of faults ────────► testify ──────────────────────────────► ordered
//!   all objects ────────────► scrub ──────► withdrawn, completed
//!   sparse packs ───────────► compact ────► live slices moved
//!   unreferenced objects ───► collect ────► shards deleted ─────────► forgotten
//!   clouds' listings ───────► sweep ──────► shards without a row deleted
//!   replaced clouds ────────► drain ──────► shards moved to active ones
//!   suspended clouds ───────► probe
//! ```
//!
//! Each of these but the scrub, which a caller starts, is a *task*: it says when its next round is
//! due, and one scheduler begins the rounds. No state has to survive: the metadata lists what is
//! left to do, and the next process finds it there.
//!
//! | Module | Content |
//! |---|---|
//! | `task`, `scheduler` | what a task is, how to add one, and when its rounds begin |
//! | `confirm` | ordering the places of shards |
//! | `completion` | the sweep for under-replicated objects |
//! | `repair`, `repair_backoff` | writing bad shards again, at a bounded rate |
//! | `testify` | ordering faults of clouds, with their receipts |
//! | `probe` | asking suspended clouds |
//! | `scrub`, `scrub_shares`, `scrub_report` | checking data that is rarely read |
//! | `compact` | moving live slices out of sparse packs |
//! | `collect`, `sweep` | deleting what nothing needs: by the metadata's queue, by the listings |
//! | `drain`, `drain_pass`, `relocate` | moving the shards of replaced clouds |
//! | `throttle` | a limit on the bytes per second |
//! | `status` | the operator's view |

mod collect;
mod compact;
mod completion;
mod confirm;
mod drain;
mod drain_pass;
mod probe;
mod relocate;
mod repair;
mod repair_backoff;
mod scheduler;
mod scrub;
mod scrub_report;
mod scrub_shares;
mod status;
mod sweep;
mod task;
mod testify;
mod throttle;

pub use collect::{Collected, Collection, Kept};
pub use compact::{Compacted, Compaction, CompactionError};
pub use drain::{Drainage, Draining};
pub use scrub::{ScrubConfig, ScrubDepth};
pub use scrub_report::{CloudFindings, ScrubReport};
pub use status::BlockStatus;
pub use sweep::Swept;
pub use task::TaskStatus;
pub use testify::{CloudEvidence, Testimony};

pub(super) use scheduler::Scheduler;

use super::backup::{BackupStore, Lineage};
use super::clouds::{Clouds, PlacementError};
use super::read::Reads;
use super::write::Writes;
use crate::cost::Allowance;
use collect::CollectTask;
use compact::CompactTask;
use completion::CompletionTask;
use confirm::ConfirmTask;
use drain::DrainTask;
use probe::ProbeTask;
use quorumfs_metadata::identity::ObjectId;
use repair::RepairTask;
use repair_backoff::RepairBackoff;
use std::collections::BTreeSet;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use sweep::SweepTask;
use testify::TestifyTask;

/// The work that no caller waits for, and what it remembers from one time to the next.
pub(super) struct Reconciler {
    clouds: Arc<Clouds>,
    writes: Arc<Writes>,
    reads: Arc<Reads>,
    /// Objects that the last sweep found under-replicated.
    under_replicated: AtomicUsize,
    /// Held by the running sweep: a second one would repeat its work.
    sweeping: tokio::sync::Mutex<()>,
    /// Sparse packs of the last round of compaction; held by the running round.
    seen_sparse: tokio::sync::Mutex<BTreeSet<ObjectId>>,
    /// Their number.
    sparse: AtomicUsize,
    /// Keeps a lying cloud from causing endless repairs.
    repair_backoff: RepairBackoff,
    /// The report of the running or the last scrub.
    scrub: Mutex<Option<ScrubReport>>,
    /// The result of the last round of collection.
    collected: Mutex<Collected>,
    /// What the budget lets go on.
    allowance: Arc<Allowance>,
    /// The incarnation that this process belongs to, if it is looked for later ones.
    lineage: Option<Lineage>,
    /// How far replaced clouds are drained, as the last pass saw it.
    drainage: Mutex<Drainage>,
    /// Held by the running round of draining.
    draining: tokio::sync::Mutex<()>,
}

impl Reconciler {
    pub(super) fn new(
        clouds: Arc<Clouds>,
        writes: Arc<Writes>,
        reads: Arc<Reads>,
        lineage: Option<Lineage>,
    ) -> Self {
        let pause = clouds.config().timeouts.completion;
        Self {
            clouds,
            writes,
            reads,
            under_replicated: AtomicUsize::new(0),
            sweeping: tokio::sync::Mutex::new(()),
            seen_sparse: tokio::sync::Mutex::default(),
            sparse: AtomicUsize::new(0),
            repair_backoff: RepairBackoff::new(pause),
            scrub: Mutex::default(),
            collected: Mutex::default(),
            allowance: Arc::default(),
            lineage,
            drainage: Mutex::default(),
            draining: tokio::sync::Mutex::default(),
        }
    }

    /// What the budget lets go on.
    pub(super) fn allowance(&self) -> &Arc<Allowance> {
        &self.allowance
    }

    /// Refuses to delete once the volume goes on in a later incarnation, or if too few clouds say
    /// whether it does.
    async fn require_newest(&self) -> Result<(), PlacementError> {
        let Some(lineage) = self.lineage else {
            return Ok(());
        };
        let store = BackupStore::new(Arc::clone(&self.clouds));
        let newest = store.superseded(lineage).await;
        newest.map_err(|error| PlacementError {
            reason: error.to_string(),
        })
    }

    /// Starts all tasks; they end when the scheduler is dropped. Must be called within a Tokio
    /// runtime.
    pub(super) fn start(
        self: &Arc<Self>,
        compaction: Option<Compaction>,
        collection: Option<Collection>,
        draining: Option<Draining>,
    ) -> Scheduler {
        Scheduler::start(vec![
            Arc::new(ConfirmTask(Arc::clone(self))),
            Arc::new(RepairTask(Arc::clone(self))),
            Arc::new(CompletionTask::new(self)),
            Arc::new(ProbeTask(Arc::clone(self))),
            Arc::new(TestifyTask(Arc::clone(self))),
            Arc::new(CompactTask::new(self, compaction)),
            Arc::new(CollectTask::new(self, collection)),
            Arc::new(SweepTask::new(self, collection)),
            Arc::new(DrainTask::new(self, draining)),
        ])
    }
}
