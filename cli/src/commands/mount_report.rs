//! What a running mount says of itself, for `status`.

use super::cloud_report::{CloudReport, mebibytes};
use super::cost::BudgetReport;
use super::disk_cache::CacheReport;
use super::journal::WaitingReport;
use super::quota::Used;
use quorumfs_gateway::blocks::Poisoned;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Poisoned objects that a status names.
const POISONED_SHOWN: usize = 16;

/// What a running mount reports about itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct MountReport {
    /// Its mount point.
    #[serde(with = "crate::output::paths")]
    pub(crate) point: PathBuf,
    /// Its process.
    pub(crate) pid: u32,
    /// How long it has been running.
    pub(crate) seconds: u64,
    /// Another mount has taken the volume over.
    pub(crate) fenced: bool,
    /// How it stands towards other mounts: `exclusive`, `alone` or `shared`.
    #[serde(default)]
    pub(crate) mode: Option<String>,
    /// Seconds since the replicas last told it what others have changed.
    #[serde(default)]
    pub(crate) heard_seconds: Option<u64>,
    /// Objects that still have to be completed on all of their clouds.
    pub(crate) completion_queue: u64,
    /// Written data that waits to be committed.
    #[serde(default)]
    pub(crate) waiting: WaitingReport,
    /// Files whose written data was lost.
    pub(crate) files_lost: u64,
    /// Locks of files that processes hold through it.
    #[serde(default)]
    pub(crate) locks: u64,
    /// Locks that processes lost.
    #[serde(default)]
    pub(crate) locks_lost: u64,
    /// Slices under keys that are no longer the newest, once counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) old_epoch_slices: Option<u64>,
    /// Bytes of their content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) old_epoch_bytes: Option<u64>,
    /// Ordered operations.
    pub(crate) operations: u64,
    /// Queries that the replicas answered unordered.
    #[serde(default)]
    pub(crate) queries_unordered: u64,
    /// Queries that had to be ordered, since the replicas did not give the same answer in time.
    #[serde(default)]
    pub(crate) queries_ordered: u64,
    /// Objects written to the clouds since it began.
    pub(crate) objects_written: u64,
    /// Answers of clouds that differed from the written data.
    pub(crate) shards_refused: u64,
    /// Shards that reads replaced by others because they were bad, missing or late.
    pub(crate) shards_replaced: u64,
    /// Bad or lost shards that were written again.
    pub(crate) shards_repaired: u64,
    /// Objects shared by small files that are less than half live and will be compacted.
    #[serde(default)]
    pub(crate) sparse_packs: u64,
    /// Bytes of such objects that compacting has freed.
    #[serde(default)]
    pub(crate) bytes_freed: u64,
    /// Objects that nothing refers to and that are not deleted yet.
    #[serde(default)]
    pub(crate) garbage_objects: u64,
    /// Their stored bytes.
    #[serde(default)]
    pub(crate) garbage_bytes: u64,
    /// Some of them that wait for their writers to end or to need no more ids.
    #[serde(default)]
    pub(crate) garbage_open: u64,
    /// Some of them that a point in the past needs that is kept.
    #[serde(default)]
    pub(crate) garbage_retained: u64,
    /// Some of them that a cloud did not delete.
    #[serde(default)]
    pub(crate) garbage_unreachable: u64,
    /// Objects that were deleted because nothing needed them.
    #[serde(default)]
    pub(crate) objects_collected: u64,
    /// Their stored bytes.
    #[serde(default)]
    pub(crate) bytes_collected: u64,
    /// Number of poisoned objects found, which cannot be read.
    #[serde(default)]
    pub(crate) poisoned: u64,
    /// Some of them, with their writers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) poisoned_by: Vec<PoisonedReport>,
    /// Its memory budget in bytes.
    #[serde(default)]
    pub(crate) memory_bytes: u64,
    /// The source of the budget.
    #[serde(default)]
    pub(crate) memory_from: String,
    /// Its disk cache, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cache: Option<CacheReport>,
    /// The volume's usage and limits, if the servers answered soon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) quota: Option<Used>,
    /// How the volume stands to its budget, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) budget: Option<BudgetReport>,
    /// The condition of each cloud.
    pub(crate) clouds: Vec<CloudReport>,
}

/// An object whose shards do not fit each other.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PoisonedReport {
    /// Its id.
    pub(crate) object: String,
    /// Its writer.
    pub(crate) writer: String,
}

impl PoisonedReport {
    /// Some of the poisoned objects.
    pub(crate) fn some(poisoned: &[Poisoned]) -> Vec<Self> {
        let shown = poisoned.iter().take(POISONED_SHOWN);
        shown
            .map(|it| Self {
                object: it.object.to_string(),
                writer: it.writer.to_string(),
            })
            .collect()
    }
}

impl MountReport {
    /// The text form.
    pub(crate) fn text(&self) -> String {
        let (point, pid, queue) = (self.point.display(), self.pid, self.completion_queue);
        let mut text = format!("Mounted on {point} by process {pid}");
        match self.mode.as_deref() {
            Some("alone") => text.push_str("; alone, and others may join"),
            Some("shared") => text.push_str("; shared with others"),
            _ => {}
        }
        if queue > 0 {
            text.push_str(&format!(
                "; {queue} objects are not on all of their clouds yet"
            ));
        }
        if self.shards_refused > 0 {
            let (refused, repaired) = (self.shards_refused, self.shards_repaired);
            text.push_str(&format!(
                "; {refused} bad shards refused, {repaired} repaired"
            ));
        }
        if self.sparse_packs > 0 || self.bytes_freed > 0 {
            let (packs, freed) = (self.sparse_packs, self.bytes_freed);
            text.push_str(&format!(
                "; {packs} packs wait to be compacted, {freed} bytes freed"
            ));
        }
        if self.queries_ordered > 0 {
            let ordered = self.queries_ordered;
            let all = self.queries_unordered.saturating_add(ordered);
            text.push_str(&format!("; {ordered} of {all} queries had to be ordered"));
        }
        text.push_str(&self.garbage_text());
        let memory = mebibytes(self.memory_bytes);
        text.push_str(&format!("; memory budget {memory} ({})", self.memory_from));
        text.push_str(&self.waiting.text());
        text.push_str(
            &self
                .cache
                .as_ref()
                .map_or_else(String::new, CacheReport::text),
        );
        if let Some(bytes) = self.old_epoch_bytes.filter(|bytes| *bytes > 0) {
            let bytes = mebibytes(bytes);
            text.push_str(&format!("; {bytes} are sealed under old keys"));
        }
        text.extend(self.quota.and_then(|quota| quota.warning()));
        text.extend(self.budget.as_ref().map(BudgetReport::text));
        if self.files_lost > 0 {
            text.push_str(&format!(
                "; WRITTEN DATA OF {} FILES WAS LOST",
                self.files_lost
            ));
        }
        if self.locks_lost > 0 {
            let lost = self.locks_lost;
            text.push_str(&format!(
                "; {lost} LOCKS OF PROGRAMS WERE LOST, which get errors until they close the files"
            ));
        }
        if let Some(first) = self.poisoned_by.first() {
            let (count, writer) = (self.poisoned, &first.writer);
            text.push_str(&format!(
                "; {count} OBJECTS ARE POISONED, one of them by {writer}"
            ));
        }
        if self.fenced {
            text.push_str("; TAKEN OVER by another mount: unmount it");
        }
        text
    }
}

impl MountReport {
    /// What was deleted because nothing needed it, and what waits for that and why.
    fn garbage_text(&self) -> String {
        let mut text = String::new();
        if self.objects_collected > 0 {
            let freed = mebibytes(self.bytes_collected);
            text.push_str(&format!("; {freed} freed on the clouds"));
        }
        if self.garbage_objects > 0 {
            let waiting = mebibytes(self.garbage_bytes);
            text.push_str(&format!("; {waiting} wait to be deleted"));
        }
        let reasons = [
            (self.garbage_open, "wait for their writers"),
            (self.garbage_retained, "are retained"),
            (self.garbage_unreachable, "were not deleted by a cloud"),
        ];
        for (count, reason) in reasons {
            if count > 0 {
                text.push_str(&format!(", {count} objects {reason}"));
            }
        }
        text
    }
}
