//! Testifying: the notes about faults of clouds are reported to the order, and read back.
//!
//! The report waits a second after the first note, so that the faults of one outage share an
//! operation; no more than one report a second is ordered. What was ordered is the volume's
//! evidence about a cloud: an operator sees it with the names under which the provider can look it
//! up.

use super::Reconciler;
use super::task::{Due, Task, TaskProgress};
use crate::blocks::clouds::{FaultNote, PlacementError, comparable};
use crate::blocks::object::{Named, Writer};
use quorumfs_metadata::identity::CloudIndex;
use quorumfs_metadata::operation::Finding;
use quorumfs_metadata::row::{Evidence, FaultKind};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// How long notes are collected into one operation; also the least time between two operations.
const PAUSE: Duration = Duration::from_secs(1);

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

/// The task that reports to the order.
pub(super) struct TestifyTask(pub(super) Arc<Reconciler>);

#[async_trait::async_trait]
impl Task for TestifyTask {
    fn name(&self) -> &'static str {
        "testify"
    }

    fn next(&self) -> Due {
        match self.0.clouds.fault_notes().has_news() {
            true => Due::Now,
            false => Due::Notified,
        }
    }

    fn wakes(&self) -> Option<&Notify> {
        Some(self.0.clouds.fault_notes().arrived())
    }

    async fn run(&self) {
        self.0.clouds.fault_notes().report_begins();
        tokio::time::sleep(PAUSE).await;
        self.0.testify().await;
    }

    fn progress(&self) -> TaskProgress {
        TaskProgress {
            waiting: self.0.clouds.fault_notes().waiting() as u64,
            done: self.0.clouds.counters().faults_testified.get(),
        }
    }
}

impl Reconciler {
    /// Orders all waiting notes. Notes that cannot be ordered now are dropped and found again.
    pub(in crate::blocks) async fn testify(&self) {
        while let Some((cloud, notes)) = self.clouds.fault_notes().take_some() {
            let mut findings = Vec::with_capacity(notes.len());
            for note in notes {
                findings.push(self.with_checksum(note).await);
            }
            let count = findings.len();
            match self.clouds.log().testify(cloud, findings).await {
                Ok(()) => self.clouds.counters().faults_testified.add(count as u64),
                Err(error) => {
                    tracing::debug!(%error, %cloud, count, "evidence could not be ordered");
                }
            }
        }
    }

    /// A finding with the checksum of the cloud's present answer, if there is a receipt to compare
    /// it with.
    async fn with_checksum(&self, note: FaultNote) -> Finding {
        let mut finding = note.finding;
        let shard = usize::from(finding.shard.0);
        let is_open = finding.fault == FaultKind::WrongBytes && finding.found.is_none();
        if is_open
            && finding.receipt.is_some()
            && !self.clouds.is_suspended(&note.object, shard)
            && let Ok(link) = self.clouds.link_of(&note.object, shard)
        {
            let named = note.object.named(shard, finding.attempt);
            // A body that is too long is refused: it cannot be the acknowledged one.
            let length = note.object.layout().stored_length(shard as u64);
            if let Ok(body) = link.get(&named, length).await
                && !self.clouds.is_shard(&note.object, shard, &body)
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
        let attached = self.clouds.attached();
        let mut counts = Vec::with_capacity(attached.links().len());
        for link in attached.links() {
            let (total, _) = self.clouds.log().evidence(link.index).await?;
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
        let attached = self.clouds.attached();
        let links = attached.links().iter();
        for link in links.filter(|link| wanted(&link.index)) {
            let (total, rows) = self.clouds.log().evidence(link.index).await?;
            let mut kept = Vec::with_capacity(rows.len());
            for evidence in rows {
                for number in [evidence.writer, evidence.witness] {
                    if let Entry::Vacant(unknown) = known.entry(number) {
                        let nameless = Writer {
                            principal: Some(number),
                            ..Writer::default()
                        };
                        unknown.insert(self.reads.with_name(nameless).await);
                    }
                }
                let who = |number| known.get(number).cloned().unwrap_or_default();
                let named = Named {
                    object: evidence.object,
                    class: evidence.class,
                    shard: evidence.shard,
                    attempt: evidence.attempt,
                    generation: evidence.generation,
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
