//! Putting, listing and deleting the objects of backups.

use super::part::{BackupPart, slice_of};
use super::record::{Lineage, is_incarnation_record};
use crate::blocks::clouds::{Clouds, Link, put_whole};
use crate::blocks::object::{
    BlockError, Content, Failures, Layout, Named, PlainSlice, SealedSlice, ShardFault, SliceCipher,
    Squeezed, StoredObject, encode, place,
};
use crate::keys::{KeyError, Sealing, Secret, SliceKey};
use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use futures_util::future::join_all;
use quorumfs_backends::StoreErrorKind;
use quorumfs_metadata::identity::VolumeIncarnation;
use quorumfs_metadata::identity::{AllocationId, CloudIndex, ObjectClass, ObjectId, ShardIndex};
use quorumfs_metadata::operation::NewObject;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Names in one page of a listing.
const PAGE: usize = 1000;
/// The most names of a point or a record on a cloud.
const NAMES_MAX: u8 = 8;
/// The largest point: a million parts.
const POINT_BYTES_MAX: u64 = 256 << 20;

/// Why a backup could not be stored or found.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BackupError {
    /// Fewer than n − f clouds gave back what was put there.
    #[error(
        "the backup of the metadata: only {confirmed} of the {wanted} clouds that it takes hold \
         {what}; the backup before stays valid; fix one of these clouds:{failures}"
    )]
    TooFewConfirmed {
        /// What was put.
        what: &'static str,
        /// The clouds that hold it.
        confirmed: usize,
        /// n − f.
        wanted: usize,
        /// The faults of the others.
        failures: Failures,
    },
    /// It could not be sealed, coded or read.
    #[error("the backup of the metadata: {0}")]
    Blocks(Arc<BlockError>),
    /// The volume goes on in a later incarnation.
    #[error(
        "the volume was recovered from its clouds: incarnation {later} has begun, and these \
         metadata replicas belong to incarnation {own}, so nothing is deleted or backed up for \
         them any more"
    )]
    Superseded {
        /// This process's.
        own: u8,
        /// The later one.
        later: u8,
    },
    /// Too few clouds say whether a later incarnation has begun.
    #[error(
        "only {answered} clouds answer whether the volume was recovered from them meanwhile, and \
         {wanted} are needed"
    )]
    TooFewAnswer {
        /// Those that do.
        answered: usize,
        /// n − f.
        wanted: usize,
    },
    /// No key could be drawn.
    #[error("the backup of the metadata: {0}")]
    Key(Arc<KeyError>),
}

impl BackupError {
    /// Whether no later try can succeed.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        matches!(self, Self::Superseded { .. })
    }
}

impl From<BlockError> for BackupError {
    fn from(error: BlockError) -> Self {
        Self::Blocks(Arc::new(error))
    }
}

impl From<KeyError> for BackupError {
    fn from(error: KeyError) -> Self {
        Self::Key(Arc::new(error))
    }
}

/// A cloud's listing of the objects of backups.
#[derive(Clone, Debug)]
pub struct ListedCloud {
    /// The cloud.
    pub cloud: CloudIndex,
    /// Its name for people.
    pub label: String,
    /// The ids and classes, each once; or why the cloud was not listed.
    pub found: Result<BTreeSet<(ObjectClass, ObjectId)>, String>,
}

/// The volume's clouds as holders of backups. Cheap to clone.
#[derive(Clone)]
pub struct BackupStore {
    clouds: Arc<Clouds>,
}

impl std::fmt::Debug for BackupStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BackupStore(…)")
    }
}

/// The id of the record that an incarnation has begun.
const fn record_id(incarnation: VolumeIncarnation) -> ObjectId {
    ObjectId {
        allocation: AllocationId(incarnation.first_id()),
        counter: 0,
    }
}

impl BackupStore {
    pub(in crate::blocks) const fn new(clouds: Arc<Clouds>) -> Self {
        Self { clouds }
    }

    /// n − f.
    #[must_use]
    pub fn wanted(&self) -> usize {
        let policy = self.clouds.config().policy;
        usize::from(policy.clouds().saturating_sub(policy.faulty()))
    }

    /// Whether all shards of a part are on clouds that take new shards: those of a cloud that was
    /// replaced do not move.
    #[must_use]
    pub fn is_in_place(&self, part: &BackupPart) -> bool {
        let attached = self.clouds.attached();
        let active = |cloud: CloudIndex| attached.active().any(|link| link.index == cloud);
        part.shards.iter().all(|shard| active(shard.cloud))
    }

    /// Seals some rows and spreads them over the clouds. The id must not have been used before.
    ///
    /// # Errors
    /// `TooFewConfirmed`; `Blocks` if there are too many bytes.
    #[boxed]
    pub async fn put_part(&self, id: ObjectId, plain: Bytes) -> Result<BackupPart, BackupError> {
        let policy = self.clouds.config().policy;
        let _memory = self.clouds.hold(4 * plain.len() as u64).await?;
        let secret = Secret::random()?;
        let slice = PlainSlice {
            id: slice_of(id),
            key: SliceKey::from_secret(secret.clone()),
            plain,
        };
        let workers = self.clouds.config().workers;
        let squeezed = workers
            .run(move || {
                let squeezed = Squeezed::new(&slice.plain);
                vec![(slice, squeezed)]
            })
            .await?;
        let long = |length| BlockError::Length {
            what: "a part of a backup",
            length,
            most: u64::from(u32::MAX),
        };
        let placed: Option<SealedSlice> = place(id, &squeezed).and_then(|it| it.first().copied());
        let placed = placed.ok_or_else(|| long(u64::from(u32::MAX)))?;
        let stored = Layout::new(placed.sealed_length, policy.data()).stored_length(0);
        let mut new = NewObject {
            id,
            class: ObjectClass::BACKUP,
            policy,
            length: placed.sealed_length,
            shard_length: u32::try_from(stored).map_err(|_| long(stored))?,
            shards: self.clouds.spread(id.counter),
        };
        let object = StoredObject::of_new(&new)?;
        let headers = self.clouds.headers(&object);
        let (code, buffers) = (self.clouds.code(policy)?, self.clouds.buffers().clone());
        let volume = self.clouds.config().volume;
        let layout = object.layout();
        let made = workers
            .run(move || {
                let (slice, squeezed) = squeezed.first().ok_or(BlockError::Shut)?;
                let cipher = SliceCipher::of(&slice.key, volume, &placed, Sealing::On)?;
                let contents = [Content {
                    cipher: &cipher,
                    plain: &slice.plain,
                    squeezed: squeezed.as_ref(),
                }];
                encode(layout, &code, &headers, &contents, &buffers)
            })
            .await??;
        for (shard, made) in new.shards.iter_mut().zip(&made) {
            shard.digest = made.digest;
        }
        let object = StoredObject::of_new(&new)?;
        let puts = made
            .into_iter()
            .enumerate()
            .map(async |(shard, made)| self.put_shard(&object, shard, made.body).await);
        let outcomes = join_all(puts).await;
        let mut failures = Vec::new();
        for (shard, outcome) in new.shards.iter_mut().zip(outcomes) {
            match outcome {
                Ok(attempt) => {
                    shard.attempt = attempt;
                    shard.acknowledged = true;
                }
                Err(fault) => failures.push(fault.to_string()),
            }
        }
        let confirmed = new.shards.iter().filter(|it| it.acknowledged).count();
        self.require("a part of the rows", confirmed, failures)?;
        Ok(BackupPart::of(&new, &placed, &secret))
    }

    /// Puts a shard and reads it back; the number of its name.
    async fn put_shard(
        &self,
        object: &StoredObject,
        shard: usize,
        body: Bytes,
    ) -> Result<u8, ShardFault> {
        if self.clouds.is_suspended(object, shard) {
            return Err(self.clouds.suspended(object, shard));
        }
        let placed = self.clouds.place(object, shard, body.clone(), 0).await?;
        let link = self.clouds.link_of(object, shard)?;
        let named = object.named(shard, placed.attempt);
        let found = link.get(&named, body.len() as u64).await?;
        if found == body {
            return Ok(placed.attempt);
        }
        Err(link.refuse(&named, &found))
    }

    fn require(
        &self,
        what: &'static str,
        confirmed: usize,
        failures: Vec<String>,
    ) -> Result<(), BackupError> {
        let wanted = self.wanted();
        if confirmed >= wanted {
            for fault in failures {
                tracing::warn!(%fault, "a cloud lacks {what} of the backup of the metadata");
            }
            return Ok(());
        }
        Err(BackupError::TooFewConfirmed {
            what,
            confirmed,
            wanted,
            failures: Failures(failures),
        })
    }

    /// Puts a point on each cloud.
    ///
    /// # Errors
    /// `TooFewConfirmed`.
    #[boxed]
    pub async fn put_point(&self, id: ObjectId, body: Bytes) -> Result<(), BackupError> {
        self.put_whole(ObjectClass::BACKUP_ROOT, id, body, "the recovery point")
            .await
    }

    /// Puts the record that an incarnation has begun on each cloud.
    ///
    /// # Errors
    /// `TooFewConfirmed`.
    #[boxed]
    pub async fn put_record(
        &self,
        incarnation: VolumeIncarnation,
        body: Bytes,
    ) -> Result<(), BackupError> {
        let (class, id) = (ObjectClass::INCARNATION, record_id(incarnation));
        self.put_whole(class, id, body, "the record of the recovery")
            .await
    }

    async fn put_whole(
        &self,
        class: ObjectClass,
        id: ObjectId,
        body: Bytes,
        what: &'static str,
    ) -> Result<(), BackupError> {
        let attached = self.clouds.attached();
        let puts = attached
            .active()
            .map(async |link| put_copy(link, class, id, &body).await);
        let outcomes = join_all(puts).await;
        let failures: Vec<_> = outcomes
            .iter()
            .filter_map(|outcome| outcome.as_ref().err())
            .map(ToString::to_string)
            .collect();
        let confirmed = outcomes.len().saturating_sub(failures.len());
        self.require(what, confirmed, failures)
    }

    /// All copies of a point that the clouds hold, under any name: they have to prove themselves.
    #[boxed]
    pub async fn points(&self, id: ObjectId) -> Vec<Bytes> {
        let (found, _) = self.wholes(ObjectClass::BACKUP_ROOT, id).await;
        found
    }

    /// All copies of the record that an incarnation has begun, and how many clouds have answered.
    #[boxed]
    pub async fn records(&self, incarnation: VolumeIncarnation) -> (Vec<Bytes>, usize) {
        self.wholes(ObjectClass::INCARNATION, record_id(incarnation))
            .await
    }

    /// Refuses if the volume was recovered into a later incarnation.
    ///
    /// # Errors
    /// `Superseded`; `TooFewAnswer` if it cannot be known.
    #[boxed]
    pub async fn superseded(&self, lineage: Lineage) -> Result<(), BackupError> {
        let Lineage {
            incarnation: own,
            root,
        } = lineage;
        let later = VolumeIncarnation(own.0.saturating_add(1));
        let (records, answered) = self.records(later).await;
        if records
            .iter()
            .any(|body| is_incarnation_record(body, &root, later, None))
        {
            return Err(BackupError::Superseded {
                own: own.0,
                later: later.0,
            });
        }
        let wanted = self.wanted();
        if answered < wanted {
            return Err(BackupError::TooFewAnswer { answered, wanted });
        }
        Ok(())
    }

    async fn wholes(&self, class: ObjectClass, id: ObjectId) -> (Vec<Bytes>, usize) {
        let attached = self.clouds.attached();
        let gets = attached.in_use().map(async |link| {
            let mut copies = Vec::new();
            for attempt in 0..NAMES_MAX {
                match link
                    .get(&whole(link, class, id, attempt), POINT_BYTES_MAX)
                    .await
                {
                    Ok(body) => copies.push(body),
                    Err(fault) if is_absent(&fault) => return (copies, true),
                    Err(_) => return (copies, false),
                }
            }
            (copies, true)
        });
        let outcomes = join_all(gets).await;
        let is_active = |link: &Arc<Link>| attached.active().any(|it| it.index == link.index);
        let answered = attached
            .in_use()
            .zip(&outcomes)
            .filter(|(link, (_, answered))| *answered && is_active(link))
            .count();
        let mut copies: Vec<Bytes> = outcomes
            .into_iter()
            .flat_map(|(copies, _)| copies)
            .collect();
        copies.sort();
        copies.dedup();
        (copies, answered)
    }

    /// Lists each cloud for the objects of backups.
    #[boxed]
    pub async fn list(&self) -> Vec<ListedCloud> {
        let attached = self.clouds.attached();
        let lists = attached.in_use().map(async |link| ListedCloud {
            cloud: link.index,
            label: link.describe(),
            found: list(link).await.map_err(|fault| fault.to_string()),
        });
        join_all(lists).await
    }

    /// Deletes the shards of a part; returns whether all clouds did.
    #[boxed]
    pub async fn delete_part(&self, part: &BackupPart) -> bool {
        let Ok((object, _, _)) = part.opened() else {
            return false;
        };
        let deletions = (0..object.shards().len()).map(async |shard| {
            let (Ok(link), Some(row)) = (self.clouds.link_of(&object, shard), object.shard(shard))
            else {
                return false;
            };
            for attempt in 0..=row.attempt {
                if link.delete(&object.named(shard, attempt)).await.is_err() {
                    return false;
                }
            }
            true
        });
        join_all(deletions).await.into_iter().all(|gone| gone)
    }

    /// Deletes whatever a listing showed under the id of a point or a part, under any name.
    #[boxed]
    pub async fn delete(&self, class: ObjectClass, id: ObjectId) -> bool {
        let shards = match class {
            ObjectClass::BACKUP => 0..self.clouds.config().policy.clouds(),
            ObjectClass::BACKUP_ROOT => 0..1,
            _ => return false,
        };
        let attached = self.clouds.attached();
        let deletions = attached.in_use().map(async |link| {
            for shard in shards.clone() {
                for attempt in 0..NAMES_MAX {
                    let named = match class {
                        ObjectClass::BACKUP => Named {
                            object: id,
                            class,
                            shard: ShardIndex(shard),
                            attempt,
                            generation: 0,
                        },
                        _ => whole(link, class, id, attempt),
                    };
                    match link.head(&named).await {
                        Err(fault) if is_absent(&fault) => break,
                        Err(_) => return false,
                        Ok(_) if link.delete(&named).await.is_err() => return false,
                        Ok(_) => {}
                    }
                }
            }
            true
        });
        join_all(deletions).await.into_iter().all(|gone| gone)
    }
}

/// A whole copy on a cloud.
fn whole(link: &Link, class: ObjectClass, object: ObjectId, attempt: u8) -> Named {
    Named {
        object,
        class,
        shard: ShardIndex(link.index.0),
        attempt,
        generation: 0,
    }
}

fn is_absent(fault: &ShardFault) -> bool {
    matches!(fault, ShardFault::Store(error) if error.kind == StoreErrorKind::NotFound)
}

/// Puts a whole copy under one of its names. Of two tries to back one point up, each puts its own.
async fn put_copy(
    link: &Link,
    class: ObjectClass,
    id: ObjectId,
    body: &Bytes,
) -> Result<(), ShardFault> {
    let names = (0..NAMES_MAX).map(|attempt| whole(link, class, id, attempt));
    put_whole(link, names, body, false).await
}

async fn list(link: &Link) -> Result<BTreeSet<(ObjectClass, ObjectId)>, ShardFault> {
    let mut found = BTreeSet::new();
    let mut cursor = None;
    loop {
        let page = link.list(cursor.as_ref(), PAGE).await?;
        for name in &page.names {
            let is_wanted = |named: &Named| {
                matches!(named.class, ObjectClass::BACKUP | ObjectClass::BACKUP_ROOT)
            };
            if let Some(named) = link.keys.invert(name).filter(is_wanted) {
                found.insert((named.class, named.object));
            }
        }
        cursor = page.names.last().cloned();
        if !page.more || cursor.is_none() {
            return Ok(found);
        }
    }
}
