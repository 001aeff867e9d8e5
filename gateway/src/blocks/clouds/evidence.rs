//! Evidence: notes about faults of clouds, until they are reported to the order.
//!
//! Reads, completions, repairs and scrubs leave a note about an acknowledged shard that its cloud
//! denies or answers with other bytes, and about a put that it acknowledged as something else. A
//! task of the reconciler, `testify`, orders the notes, some at a time and apart from every
//! operation that a caller waits for:
//!
//! ```text
//!   a fault ──note, once per process──► queue ──a second──► its checksum, if there is a receipt
//!                                        │                   to compare with and it is not known
//!                                        └─full: forgotten         │
//!                                                                  ▼
//!                                           one operation for each cloud, of a few findings
//! ```
//!
//! The meaning of a receipt is described at
//! [`FaultKind::verdict`](quorumfs_metadata::row::FaultKind::verdict). Notes are bounded and may be
//! lost, like those for repairs: a fault that persists is found again.

use super::Clouds;
use crate::blocks::object::{Named, ShardFault, StoredObject, shard_index};
use quorumfs_backends as backends;
use quorumfs_backends::StoreErrorKind;
use quorumfs_metadata::identity::{CloudIndex, ObjectId};
use quorumfs_metadata::limits::TESTIFY_FINDINGS_MAX;
use quorumfs_metadata::operation::Finding;
use quorumfs_metadata::placement::Receipt;
use quorumfs_metadata::row::FaultKind;
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// The most notes that wait.
const QUEUE_MAX: usize = 1024;
/// The most faults that are remembered, so that each is reported once.
const REPORTED_MAX: usize = 1 << 14;

type NotedFault = (ObjectId, u8, u8, u8, FaultKind);

/// A note about a fault.
#[derive(Clone, Debug)]
pub(in crate::blocks) struct FaultNote {
    pub(in crate::blocks) cloud: CloudIndex,
    pub(in crate::blocks) object: Arc<StoredObject>,
    pub(in crate::blocks) finding: Finding,
}

#[derive(Debug, Default)]
struct EvidenceRecords {
    waiting: VecDeque<FaultNote>,
    /// Whether a note was left since the last report began.
    news: bool,
    reported: BTreeSet<NotedFault>,
}

/// The waiting notes, and the reported faults.
#[derive(Debug, Default)]
pub(in crate::blocks) struct FaultNotes {
    records: Mutex<EvidenceRecords>,
    arrived: Notify,
}

/// A receipt as it is ordered.
pub(in crate::blocks) fn ordered(receipt: backends::Receipt) -> Receipt {
    match receipt {
        backends::Receipt::Crc32(bytes) => Receipt::Crc32(bytes),
        backends::Receipt::Crc32c(bytes) => Receipt::Crc32c(bytes),
        backends::Receipt::Crc64(bytes) => Receipt::Crc64(bytes),
        backends::Receipt::Md5(bytes) => Receipt::Md5(bytes),
    }
}

/// The checksum of these bytes that a receipt can be compared with; a cheap one without a receipt.
pub(in crate::blocks) fn comparable(receipt: Option<Receipt>, body: &[u8]) -> Receipt {
    ordered(match receipt {
        Some(Receipt::Crc32(_)) => backends::Receipt::crc32(body),
        Some(Receipt::Crc64(_)) => backends::Receipt::crc64(body),
        Some(Receipt::Md5(_)) => backends::Receipt::md5(body),
        Some(Receipt::Crc32c(_)) | None => backends::Receipt::crc32c(body),
    })
}

impl FaultNotes {
    fn records(&self) -> MutexGuard<'_, EvidenceRecords> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave(&self, note: FaultNote) {
        let finding = &note.finding;
        let fault = (
            finding.object,
            finding.shard.0,
            finding.generation,
            finding.attempt,
            finding.fault,
        );
        let mut records = self.records();
        if records.waiting.len() >= QUEUE_MAX || !records.reported.insert(fault) {
            return;
        }
        if records.reported.len() > REPORTED_MAX {
            records.reported.pop_first();
        }
        records.waiting.push_back(note);
        records.news = true;
        drop(records);
        self.arrived.notify_one();
    }

    /// Notified when a note is left.
    pub(in crate::blocks) fn arrived(&self) -> &Notify {
        &self.arrived
    }

    /// Whether a note was left since the last report began.
    pub(in crate::blocks) fn has_news(&self) -> bool {
        self.records().news
    }

    /// A report begins.
    pub(in crate::blocks) fn report_begins(&self) {
        self.records().news = false;
    }

    /// How many notes wait.
    pub(in crate::blocks) fn waiting(&self) -> usize {
        self.records().waiting.len()
    }

    /// Some waiting notes about one cloud.
    pub(in crate::blocks) fn take_some(&self) -> Option<(CloudIndex, Vec<FaultNote>)> {
        let mut records = self.records();
        let cloud = records.waiting.front()?.cloud;
        let (mut some, mut others) = (Vec::new(), VecDeque::new());
        for note in std::mem::take(&mut records.waiting) {
            match note.cloud == cloud && some.len() < TESTIFY_FINDINGS_MAX {
                true => some.push(note),
                false => others.push_back(note),
            }
        }
        records.waiting = others;
        Some((cloud, some))
    }
}

impl Clouds {
    /// Leaves a note about a shard that its cloud had acknowledged, if the fault can be proved to
    /// others. `found` is the checksum of the cloud's answer, where it is known.
    pub(in crate::blocks) fn note_fault(
        &self,
        object: &StoredObject,
        shard: usize,
        fault: &ShardFault,
        found: Option<Receipt>,
    ) {
        let Some(row) = object.shard(shard).filter(|row| row.acknowledged) else {
            return;
        };
        let fault = match fault {
            ShardFault::Refused { newer: None, .. } => FaultKind::WrongBytes,
            ShardFault::Store(error) if error.kind == StoreErrorKind::Corrupt => {
                FaultKind::WrongBytes
            }
            ShardFault::Store(error) if error.kind == StoreErrorKind::NotFound => {
                FaultKind::Missing
            }
            _ => return,
        };
        if !self.config.restores {
            return;
        }
        self.fault_notes.leave(FaultNote {
            cloud: row.cloud,
            object: Arc::new(object.clone()),
            finding: Finding {
                object: object.id(),
                shard: shard_index(shard),
                generation: object.generation(),
                attempt: row.attempt,
                fault,
                found,
                receipt: row.receipt,
            },
        });
    }

    /// The same for a put that was acknowledged as a put of something else.
    pub(super) fn note_wrong_receipt(
        &self,
        object: &StoredObject,
        placed: &Named,
        cloud: CloudIndex,
        (said, sent): (Receipt, Receipt),
    ) {
        if !self.config.restores {
            return;
        }
        self.fault_notes.leave(FaultNote {
            cloud,
            object: Arc::new(object.clone()),
            finding: Finding {
                object: object.id(),
                shard: placed.shard,
                generation: placed.generation,
                attempt: placed.attempt,
                fault: FaultKind::WrongReceipt,
                found: Some(sent),
                receipt: Some(said),
            },
        });
    }
}
