//! Taking backups.
//!
//! ```text
//! 1 take the job ── is a later incarnation on the clouds? ── then nothing, ever
//! 2 retain: all points from now on
//! 3 bring the copy of the servers' rows to a checkpoint behind 2
//! 4 put the rows that changed since the last backup, as parts
//! 5 narrow what is retained to this point, for as long as nothing releases it
//! 6 put the point on each cloud
//! 7 release what earlier points retained, and delete what only those needed
//! ```
//!
//! A process that dies before 5 leaves the backup before as the newest, and points that are
//! retained for a day. One that dies after 5 leaves a point that is retained, published or not; the
//! next backup releases it. So what the newest point on the clouds needs is always retained.
//!
//! All rows are written anew when the changes since have become as many: so a recovery reads at
//! most twice what it needs, and what is written stays within twice what changed. They are written
//! anew too when a cloud that has parts was replaced.

use super::last::Last;
use super::reading::{Read, read_rows};
use super::{Layer, RecoveryError, RecoveryPoint};
use crate::blocks::{BackupStore, PlacementLog};
use crate::keys::KeyFile;
use crate::metadata::MetadataClient;
use crate::volume::Volume;
use bytes::Bytes;
use quorumfs_bft::identity::{Sequence, Time};
use quorumfs_bft::state::Proof;
use quorumfs_bft::state_copy::Copied;
use quorumfs_bft_runtime::client::{Client, ClientConfig};
use quorumfs_bft_runtime::state_copy::StateCopy;
use quorumfs_metadata::identity::{ObjectClass, ObjectId, VolumeIncarnation};
use quorumfs_metadata::operation::Operation;
use quorumfs_metadata::query::Question;
use quorumfs_metadata::reply::{Done, QueryResult};
use quorumfs_metadata::row::{Job, Retention, RetentionKind};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// How long the job is taken for, from one part to the next.
const JOB: Duration = Duration::from_secs(600);
/// How long points stay open if their process dies.
const OPEN_SECONDS: u32 = 24 * 3600;
/// Layers after which all rows are written anew: a recovery holds a part of each.
const LAYERS_MAX: usize = 48;
/// Parts that wait to be put.
const QUEUE: usize = 2;

/// What a maker of backups needs.
#[derive(Debug)]
pub struct BackupConfig {
    /// The volume.
    pub volume: Arc<Volume>,
    /// Its signed genesis.
    pub genesis: Bytes,
    /// This process's key.
    pub key: KeyFile,
    /// The clouds. Their credentials may delete.
    pub store: BackupStore,
    /// Where the copy of the servers' rows lies.
    pub directory: PathBuf,
    /// The servers.
    pub servers: ClientConfig,
}

/// A backup that was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Made {
    /// Its point.
    pub sequence: Sequence,
    /// When it was taken, by the agreed time.
    pub taken: Time,
    /// Whether all rows were written, and not changes alone.
    pub whole: bool,
    /// Rows that were written.
    pub rows: u64,
    /// Their plain bytes.
    pub bytes: u64,
    /// Bytes that were stored on all clouds together, the point included.
    pub stored_bytes: u64,
}

/// What became of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Round {
    /// A backup was taken.
    Made(Made),
    /// Nothing has changed since the last one.
    Unchanged,
    /// Another process of the volume does it.
    Elsewhere,
}

/// Takes backups, one at a time.
#[derive(Debug)]
pub struct BackupMaker {
    config: BackupConfig,
    client: Arc<MetadataClient>,
    session: Client,
    copy: Option<StateCopy>,
    /// The last point, if this machine's copy leads on from it.
    last: Option<Last>,
}

impl BackupMaker {
    /// A maker in an open session; `session` is the same one's connections.
    ///
    /// # Errors
    /// If the directory of the copy cannot be used.
    pub fn open(
        config: BackupConfig,
        client: Arc<MetadataClient>,
        session: Client,
    ) -> Result<Self, RecoveryError> {
        let failed = |error| RecoveryError::file(&config.directory, &error);
        std::fs::create_dir_all(&config.directory).map_err(failed)?;
        let rows = config.directory.join("rows");
        let copy = StateCopy::open(&rows, config.servers.clone())?;
        // One that does not open costs a backup of all rows.
        let last = Last::load(&config.directory, &config.key);
        Ok(Self {
            config,
            client,
            session,
            copy: Some(copy),
            last,
        })
    }

    fn incarnation(&self) -> VolumeIncarnation {
        self.config.volume.genesis().incarnation
    }

    /// Takes a backup, unless nothing has changed or another process does it.
    ///
    /// # Errors
    /// If it could not be taken; the one before stays valid.
    pub async fn run(&mut self) -> Result<Round, RecoveryError> {
        let Some(taken) = self.client.take_job(Job::Backup, JOB).await? else {
            return Ok(Round::Elsewhere);
        };
        let lineage = self.config.volume.lineage();
        self.config.store.superseded(lineage).await?;
        let before = self.retained().await?;
        let (number, from) = self.retain().await?;
        let made = match self.publish(number, from, taken, &before).await {
            Ok(Some(made)) => made,
            Ok(None) => {
                self.release(number).await?;
                return Ok(Round::Unchanged);
            }
            Err(error) => {
                // If it cannot be released, the next backup does it, or its time is over in a day.
                if let Err(error) = self.release(number).await {
                    tracing::debug!(%error, "points of a failed backup stay retained");
                }
                return Err(error);
            }
        };
        self.retire(&before).await?;
        Ok(Round::Made(made))
    }

    async fn order(
        &self,
        what: &'static str,
        operation: &Operation,
    ) -> Result<Done, RecoveryError> {
        Ok(self.client.order(what, operation).await?)
    }

    async fn retain(&self) -> Result<(u64, Sequence), RecoveryError> {
        let retain = Operation::Retain {
            kind: RetentionKind::RecoveryPoint,
            open: true,
            seconds: Some(OPEN_SECONDS),
        };
        match self.order("retaining", &retain).await? {
            Done::Retained { number, point } => Ok((number, point)),
            other => Err(self.client.mismatch("retaining", &other).into()),
        }
    }

    async fn release(&self, number: u64) -> Result<(), RecoveryError> {
        self.order("releasing", &Operation::Release { number })
            .await?;
        Ok(())
    }

    /// The recovery points that are retained, the newest last.
    async fn retained(&self) -> Result<Vec<(u64, Retention)>, RecoveryError> {
        let what = "retained points";
        match self
            .client
            .ask_about_volume(what, Question::Retained)
            .await?
        {
            QueryResult::Retained(points) => Ok(points
                .into_iter()
                .filter(|(_, it)| it.kind == RetentionKind::RecoveryPoint)
                .collect()),
            other => Err(self.client.mismatch(what, &other).into()),
        }
    }

    /// Puts parts and point; `None` if nothing has changed.
    async fn publish(
        &mut self,
        number: u64,
        from: Sequence,
        taken: Time,
        before: &[(u64, Retention)],
    ) -> Result<Option<Made>, RecoveryError> {
        let Some(mut copy) = self.copy.take() else {
            return Err(quorumfs_bft_runtime::state_copy::CopyError::Failed.into());
        };
        let refreshed = copy.refresh_over(&self.session, from).await;
        let copied = match refreshed {
            Ok(copied) => copied,
            Err(error) => {
                self.copy = Some(copy);
                return Err(error.into());
            }
        };
        // Only while its point is retained are a layer's parts sure to be there.
        let is_kept = |last: &Last| {
            last.point.incarnation == self.config.volume.genesis().incarnation
                && last
                    .point
                    .parts()
                    .all(|part| self.config.store.is_in_place(part))
                && before
                    .iter()
                    .any(|(_, it)| it.to == Some(last.point.sequence))
        };
        let last = self.last.clone().filter(is_kept);
        let (copy, gathered) = self.gather(copy, last, &copied).await;
        self.copy = Some(copy);
        let (layers, whole) = match gathered? {
            Gathered::Unchanged(last) => {
                last.keep_pending(&self.config.directory)?;
                self.last = Some(*last);
                return Ok(None);
            }
            Gathered::Layers(layers, whole) => (layers, whole),
        };
        let proof = match &self.copy {
            Some(copy) => copy.read().proof()?,
            None => Proof::default(),
        };
        let point = RecoveryPoint {
            incarnation: self.incarnation(),
            sequence: copied.sequence,
            taken,
            genesis: self.config.genesis.to_vec(),
            successions: self.config.volume.successions(),
            root: copied.root,
            certificate: copied.certificate.to_vec(),
            records: copied.records.iter().map(|it| it.to_vec()).collect(),
            proof: proof.as_bytes().to_vec(),
            layers,
            people: self.config.volume.people_changes(),
        };
        let body = point.seal(&self.config.volume)?;
        let to = point.sequence;
        self.order("narrowing", &Operation::Narrow { number, to })
            .await?;
        self.config
            .store
            .put_point(point.id(), body.clone())
            .await?;
        Last::keep_point(&self.config.directory, &body)?;
        let newest = point.layers.last();
        let parts = newest.map_or(0, |it| {
            it.parts.iter().map(|part| part.stored_bytes()).sum()
        });
        let clouds = u64::from(self.config.volume.policy().clouds());
        let made = Made {
            sequence: point.sequence,
            taken,
            whole,
            rows: newest.map_or(0, |layer| layer.rows),
            bytes: newest.map_or(0, |layer| layer.bytes),
            stored_bytes: parts + clouds * body.len() as u64,
        };
        self.last = Some(Last::published(point));
        Ok(Some(made))
    }

    /// Puts the rows that changed since `last`, or all of them, as a layer.
    async fn gather(
        &self,
        copy: StateCopy,
        last: Option<Last>,
        copied: &Copied,
    ) -> (StateCopy, Result<Gathered, RecoveryError>) {
        let since = last
            .as_ref()
            .filter(|last| !is_due_anew(&last.point))
            .map(|last| (last.read, last.pending.clone()));
        let (parts, mut queue) = mpsc::channel(QUEUE);
        let reading = tokio::task::spawn_blocking(move || {
            let read = read_rows(&copy, since, &parts);
            (copy, read)
        });
        let put = self.put_parts(copied.sequence, &mut queue).await;
        // If a part could not be put, the reader ends at its next one.
        drop(queue);
        let (copy, read) = match reading.await {
            Ok(ended) => ended,
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        };
        let gathered = put.and_then(|parts| match (read?, last) {
            (Read::Bookkeeping(pending), Some(last)) => Ok(Gathered::Unchanged(Box::new(Last {
                read: copied.root,
                pending,
                ..last
            }))),
            (Read::Rows { whole, rows, bytes }, last) => {
                let before = last.filter(|_| !whole).map(|last| last.point.layers);
                let mut layers = before.unwrap_or_default();
                layers.push(Layer {
                    sequence: copied.sequence,
                    rows,
                    bytes,
                    parts,
                });
                Ok(Gathered::Layers(layers, whole))
            }
            (Read::Bookkeeping(_), None) => Err(RecoveryError::Malformed),
        });
        (copy, gathered)
    }

    async fn put_parts(
        &self,
        sequence: Sequence,
        queue: &mut mpsc::Receiver<Bytes>,
    ) -> Result<Vec<crate::blocks::BackupPart>, RecoveryError> {
        let point = RecoveryPoint::id_of(self.incarnation(), sequence);
        // Of two tries to back the same point up, each has names of its own.
        let mut random = [0; 2];
        getrandom::fill(&mut random)
            .map_err(|_| RecoveryError::damaged("there is no randomness"))?;
        let first = u32::from(u16::from_le_bytes(random)) << 16;
        let mut parts = Vec::new();
        while let Some(part) = queue.recv().await {
            let counter = first.wrapping_add(u32::try_from(parts.len()).unwrap_or(u32::MAX));
            let id = ObjectId { counter, ..point };
            parts.push(self.config.store.put_part(id, part).await?);
            // A long backup keeps the job.
            if parts.len().is_multiple_of(16) {
                self.client.take_job(Job::Backup, JOB).await?;
            }
        }
        Ok(parts)
    }

    /// Releases what earlier points retained, and deletes what only those needed. None is kept
    /// but the newest, which was read back from n − f clouds: what an older one alone needs is
    /// deleted data that would be paid for.
    async fn retire(&self, before: &[(u64, Retention)]) -> Result<(), RecoveryError> {
        let incarnation = self.incarnation();
        let needed: BTreeSet<ObjectId> = self
            .last
            .iter()
            .flat_map(|last| parts_of(&last.point))
            .collect();
        let chosen = before.iter().filter(|(_, it)| it.to.is_some());
        for (number, retention) in chosen {
            self.release(*number).await?;
            let Some(point) = self.fetch(retention.from).await else {
                continue;
            };
            for part in point.parts().filter(|part| !needed.contains(&part.object)) {
                self.config.store.delete_part(part).await;
            }
            let id = RecoveryPoint::id_of(incarnation, retention.from);
            self.config.store.delete(ObjectClass::BACKUP_ROOT, id).await;
        }
        Ok(())
    }

    /// A point of this incarnation, from the clouds.
    async fn fetch(&self, sequence: Sequence) -> Option<RecoveryPoint> {
        let id = RecoveryPoint::id_of(self.incarnation(), sequence);
        let copies = self.config.store.points(id).await;
        let mut opened = copies
            .iter()
            .filter_map(|body| RecoveryPoint::open(body, &self.config.key).ok());
        opened.next().map(|(point, _)| point)
    }

    /// Deletes what backups left behind that died, and what earlier incarnations needed: objects of
    /// backups that no retained point names and that are older than all of them. Returns their
    /// number.
    ///
    /// # Errors
    /// If the servers do not answer, or a retained point cannot be read.
    pub async fn sweep(&self) -> Result<u64, RecoveryError> {
        let mut needed = BTreeSet::new();
        let mut oldest = None;
        for (_, retention) in self.retained().await? {
            let (Some(sequence), true) = (retention.to, retention.from != Sequence(0)) else {
                // A backup is under way, or the volume lives from a point of another incarnation.
                return Ok(0);
            };
            let Some(point) = self.fetch(sequence).await else {
                return Ok(0);
            };
            needed.extend(parts_of(&point));
            needed.insert(point.id());
            oldest = oldest.into_iter().chain([point.id().allocation]).min();
        }
        let Some(oldest) = oldest else {
            return Ok(0);
        };
        let mut vain = BTreeSet::new();
        for listed in self.config.store.list().await {
            let found = listed.found.unwrap_or_default();
            let is_vain =
                |(_, id): &(ObjectClass, ObjectId)| id.allocation < oldest && !needed.contains(id);
            vain.extend(found.into_iter().filter(is_vain));
        }
        let mut deleted = 0;
        for (class, id) in vain {
            deleted += u64::from(self.config.store.delete(class, id).await);
        }
        Ok(deleted)
    }
}

fn parts_of(point: &RecoveryPoint) -> Vec<ObjectId> {
    point.parts().map(|part| part.object).collect()
}

/// Whether the changes since the last layer with all rows are as many as those.
fn is_due_anew(last: &RecoveryPoint) -> bool {
    let mut bytes = last.layers.iter().map(|layer| layer.bytes);
    let all = bytes.next().unwrap_or(0);
    bytes.sum::<u64>() >= all || last.layers.len() >= LAYERS_MAX
}

/// The layers of a new point.
enum Gathered {
    Unchanged(Box<Last>),
    Layers(Vec<Layer>, bool),
}
