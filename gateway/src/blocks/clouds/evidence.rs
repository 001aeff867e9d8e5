//! Evidence: faults of clouds, reported to the order.
//!
//! Reads, completions, repairs and scrubs leave a note about an acknowledged shard that its cloud
//! denies or answers with other bytes, and about a put that it acknowledged as something else. A
//! worker orders the notes, some at a time and apart from every operation that a caller waits for:
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

use super::placement_log::PlacementError;
use crate::blocks::engine::Engine;
use crate::blocks::object::{Named, ShardFault, StoredObject, Writer, shard_index};
use quorumfs_backends as backends;
use quorumfs_backends::StoreErrorKind;
use quorumfs_metadata::identity::{CloudIndex, ObjectId};
use quorumfs_metadata::limits::TESTIFY_FINDINGS_MAX;
use quorumfs_metadata::operation::Finding;
use quorumfs_metadata::placement::Receipt;
use quorumfs_metadata::row::{Evidence, FaultKind};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// The most notes that wait.
const QUEUE_MAX: usize = 1024;
/// The most faults that are remembered, so that each is reported once.
const REPORTED_MAX: usize = 1 << 14;
/// How long notes are collected into one operation; also the least time between two operations.
const PAUSE: Duration = Duration::from_secs(1);

type NotedFault = (ObjectId, u8, u8, FaultKind);

/// A note.
#[derive(Clone, Debug)]
struct Note {
    cloud: CloudIndex,
    object: Arc<StoredObject>,
    finding: Finding,
}

#[derive(Debug, Default)]
struct EvidenceRecords {
    waiting: VecDeque<Note>,
    reported: BTreeSet<NotedFault>,
}

/// The waiting notes, and the reported faults.
#[derive(Debug, Default)]
pub(in crate::blocks) struct Notes {
    records: Mutex<EvidenceRecords>,
    arrived: Notify,
}

/// A finding as an operator sees it.
#[derive(Clone, Debug)]
pub struct Testimony {
    /// The finding, as ordered.
    pub evidence: Evidence,
    /// The object's name at its cloud, which its provider can look up; `None` for a cloud that is
    /// not configured.
    pub name: Option<String>,
    /// The object's writer.
    pub writer: Writer,
    /// The principal that reported it.
    pub witness: Writer,
}

/// The evidence about one cloud.
#[derive(Clone, Debug)]
pub struct CloudEvidence {
    /// Its index in the volume's list.
    pub index: CloudIndex,
    /// The number of findings.
    pub total: u64,
    /// The findings that were stored, the oldest first.
    pub kept: Vec<Testimony>,
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

impl Notes {
    fn records(&self) -> MutexGuard<'_, EvidenceRecords> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave(&self, note: Note) {
        let finding = &note.finding;
        let fault = (
            finding.object,
            finding.shard.0,
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
        drop(records);
        self.arrived.notify_one();
    }

    /// Some waiting notes about one cloud.
    fn take_some(&self) -> Option<(CloudIndex, Vec<Note>)> {
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

impl Engine {
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
        self.notes.leave(Note {
            cloud: row.cloud,
            object: Arc::new(object.clone()),
            finding: Finding {
                object: object.id(),
                shard: shard_index(shard),
                attempt: row.attempt,
                fault,
                found,
                receipt: row.receipt,
            },
        });
    }

    /// The same for a put that was acknowledged as a put of something else.
    pub(in crate::blocks) fn note_wrong_receipt(
        &self,
        object: &StoredObject,
        placed: &Named,
        cloud: CloudIndex,
        (said, sent): (Receipt, Receipt),
    ) {
        if !self.config.restores {
            return;
        }
        self.notes.leave(Note {
            cloud,
            object: Arc::new(object.clone()),
            finding: Finding {
                object: object.id(),
                shard: placed.shard,
                attempt: placed.attempt,
                fault: FaultKind::WrongReceipt,
                found: Some(sent),
                receipt: Some(said),
            },
        });
    }

    /// Reports to the order at intervals until the engine ends.
    pub(in crate::blocks) async fn testify_all(self: Arc<Self>) {
        loop {
            self.notes.arrived.notified().await;
            tokio::time::sleep(PAUSE).await;
            self.testify().await;
        }
    }

    /// Orders all waiting notes. Notes that cannot be ordered now are dropped and found again.
    pub(in crate::blocks) async fn testify(&self) {
        while let Some((cloud, notes)) = self.notes.take_some() {
            let mut findings = Vec::with_capacity(notes.len());
            for note in notes {
                findings.push(self.with_checksum(note).await);
            }
            let count = findings.len();
            match self.log.testify(cloud, findings).await {
                Ok(()) => self.counters.faults_testified.add(count as u64),
                Err(error) => {
                    tracing::debug!(%error, %cloud, count, "evidence could not be ordered");
                }
            }
        }
    }

    /// A finding with the checksum of the cloud's present answer, if there is a receipt to compare
    /// it with.
    async fn with_checksum(&self, note: Note) -> Finding {
        let mut finding = note.finding;
        let shard = usize::from(finding.shard.0);
        let is_open = finding.fault == FaultKind::WrongBytes && finding.found.is_none();
        if is_open
            && finding.receipt.is_some()
            && !self.is_suspended(&note.object, shard)
            && let Ok(link) = self.link_of(&note.object, shard)
        {
            let named = note.object.named(shard, finding.attempt);
            // A body that is too long is refused: it cannot be the acknowledged one.
            let length = note.object.layout().stored_length(shard as u64);
            if let Ok(body) = link.get(&named, length).await
                && !self.is_shard(&note.object, shard, &body)
            {
                finding.found = Some(comparable(finding.receipt, &body));
            }
        }
        finding
    }

    /// The number of findings about each cloud.
    pub(in crate::blocks) async fn evidence_counts(
        &self,
    ) -> Result<Vec<(CloudIndex, u64)>, PlacementError> {
        let mut counts = Vec::with_capacity(self.links.len());
        for link in &self.links {
            let (total, _) = self.log.evidence(link.index).await?;
            counts.push((link.index, total));
        }
        Ok(counts)
    }

    /// The evidence about each cloud, with names.
    pub(in crate::blocks) async fn evidence(
        &self,
        only: Option<CloudIndex>,
    ) -> Result<Vec<CloudEvidence>, PlacementError> {
        let mut all = Vec::new();
        let mut known: BTreeMap<_, Writer> = BTreeMap::new();
        let wanted = |index: &CloudIndex| only.is_none_or(|only| only == *index);
        for link in self.links.iter().filter(|link| wanted(&link.index)) {
            let (total, rows) = self.log.evidence(link.index).await?;
            let mut kept = Vec::with_capacity(rows.len());
            for evidence in rows {
                for number in [evidence.writer, evidence.witness] {
                    if let Entry::Vacant(unknown) = known.entry(number) {
                        let nameless = Writer {
                            principal: Some(number),
                            ..Writer::default()
                        };
                        unknown.insert(self.with_name(nameless).await);
                    }
                }
                let who = |number| known.get(number).cloned().unwrap_or_default();
                let named = Named {
                    object: evidence.object,
                    class: evidence.class,
                    shard: evidence.shard,
                    attempt: evidence.attempt,
                };
                let name = link.keys.name(&named).ok();
                kept.push(Testimony {
                    evidence,
                    name: name.map(|name| name.as_str().to_owned()),
                    writer: who(&evidence.writer),
                    witness: who(&evidence.witness),
                });
            }
            all.push(CloudEvidence {
                index: link.index,
                total,
                kept,
            });
        }
        Ok(all)
    }
}
