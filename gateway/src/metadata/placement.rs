//! The places of shards: the block store's operations and queries.

use super::{AllocatedId, MetadataClient};
use crate::blocks::{
    GarbageObject, GarbagePage, HeldObjectId, ObjectsPage, PackedCursor, PackedPage,
    PlacementError, PlacementLog, PrincipalName, SparsePack, SparsePage, StoredObject,
    UnderReplicatedCursor, UnderReplicatedPage,
};
use crate::clock;
use crate::error::VfsError;
use async_trait::async_trait;
use quorumfs_bft::identity::Time;
use quorumfs_metadata::attributes::Timestamp;
use quorumfs_metadata::identity::{CloudIndex, ObjectId, PrincipalNumber};
use quorumfs_metadata::limits::{
    CHECKED_OBJECTS_MAX, CONFIRM_SHARDS_MAX, FORGET_OBJECTS_MAX, JOB_SECONDS_MAX, QUEUE_PAGE_MAX,
    WITHDRAW_SHARDS_MAX,
};
use quorumfs_metadata::operation::{
    Finding, NewObject, Operation, PlacedShard, ShardMove, SliceMove,
};
use quorumfs_metadata::query::Question;
use quorumfs_metadata::reply::{Done, Fate, QueryResult, UnderReplicatedObject};
use quorumfs_metadata::row::{Drain, Evidence, Job, Object};
use rustix::io::Errno;
use std::time::Duration;

/// How long a new object is left to its writer.
const LEFT_TO_WRITER_SECONDS: i64 = 120;

fn failed(error: &VfsError) -> PlacementError {
    PlacementError {
        reason: error.to_string(),
    }
}

/// The objects of a page. A row that contradicts itself comes from a liar or a defect and is
/// skipped.
fn stored<'a>(rows: impl Iterator<Item = (&'a ObjectId, &'a Object)>) -> Vec<StoredObject> {
    rows.filter_map(|(id, row)| {
        StoredObject::of_row(*id, row)
            .inspect_err(|error| tracing::warn!(object = %id, %error, "a damaged row"))
            .ok()
    })
    .collect()
}

#[async_trait]
impl PlacementLog for MetadataClient {
    async fn confirm_placed(&self, shards: Vec<PlacedShard>) -> Result<(), PlacementError> {
        for some in shards.chunks(CONFIRM_SHARDS_MAX) {
            self.confirm(some.to_vec(), Vec::new()).await?;
        }
        Ok(())
    }

    async fn confirm_checked(&self, objects: Vec<ObjectId>) -> Result<(), PlacementError> {
        for some in objects.chunks(CHECKED_OBJECTS_MAX) {
            self.confirm(Vec::new(), some.to_vec()).await?;
        }
        Ok(())
    }

    async fn own_principal(&self) -> Result<Option<PrincipalNumber>, PlacementError> {
        let found = self.ask("placement", self.own(), Question::WhoAmI).await;
        match found.map_err(|error| failed(&error))? {
            QueryResult::WhoAmI { rights, .. } => Ok(Some(rights.number)),
            other => Err(failed(&self.mismatch("placement", &other))),
        }
    }

    async fn principal(
        &self,
        number: PrincipalNumber,
    ) -> Result<Option<PrincipalName>, PlacementError> {
        let question = Question::Principal(number);
        match self.ask("placement", self.own(), question).await {
            Ok(QueryResult::Principal(found)) => Ok(Some(PrincipalName {
                key: found.principal,
                label: found.label,
            })),
            Ok(other) => Err(failed(&self.mismatch("placement", &other))),
            // That answer means that there is none.
            Err(VfsError::Refused { .. }) => Ok(None),
            Err(error) => Err(failed(&error)),
        }
    }

    async fn testify(
        &self,
        cloud: CloudIndex,
        findings: Vec<Finding>,
    ) -> Result<(), PlacementError> {
        let operation = Operation::Testify { cloud, findings };
        let done = self.order("evidence", &operation).await;
        match done.map_err(|error| failed(&error))? {
            Done::Testified { .. } => Ok(()),
            other => Err(failed(&self.mismatch("evidence", &other))),
        }
    }

    async fn evidence(&self, cloud: CloudIndex) -> Result<(u64, Vec<Evidence>), PlacementError> {
        let question = Question::Evidence(cloud);
        let found = self.ask("evidence", self.own(), question).await;
        match found.map_err(|error| failed(&error))? {
            QueryResult::Evidence { total, kept } => Ok((total, kept)),
            other => Err(failed(&self.mismatch("evidence", &other))),
        }
    }

    async fn replace_placement(&self, shard: PlacedShard) -> Result<(), PlacementError> {
        let operation = Operation::ReplacePlacement {
            shard,
            acknowledged: true,
        };
        match self
            .order("placement", &operation)
            .await
            .map_err(|error| failed(&error))?
        {
            Done::Replaced => Ok(()),
            other => Err(failed(&self.mismatch("placement", &other))),
        }
    }

    async fn withdraw_placed(&self, shards: Vec<PlacedShard>) -> Result<(), PlacementError> {
        for some in shards.chunks(WITHDRAW_SHARDS_MAX) {
            let operation = Operation::WithdrawPlaced {
                shards: some.to_vec(),
            };
            match self
                .order("placement", &operation)
                .await
                .map_err(|error| failed(&error))?
            {
                Done::Withdrawn { .. } => {}
                other => return Err(failed(&self.mismatch("placement", &other))),
            }
        }
        Ok(())
    }

    async fn list_objects(
        &self,
        after: Option<ObjectId>,
        limit: u32,
    ) -> Result<ObjectsPage, PlacementError> {
        let question = Question::Objects { after, limit };
        let found = self
            .ask("placement", self.own(), question)
            .await
            .map_err(|error| failed(&error))?;
        let QueryResult::Objects { objects, more } = found else {
            return Err(failed(&self.mismatch("placement", &found)));
        };
        let is_needed = |row: &Object| row.slices > 0;
        Ok(ObjectsPage {
            objects: stored(
                objects
                    .iter()
                    .filter(|(_, row)| is_needed(row))
                    .map(|(id, row)| (id, row)),
            ),
            last: objects.last().map(|(id, _)| *id),
            more,
        })
    }

    async fn list_under_replicated(
        &self,
        after: Option<UnderReplicatedCursor>,
        limit: u32,
    ) -> Result<UnderReplicatedPage, PlacementError> {
        let question = Question::UnderReplicated { after, limit };
        let found = self
            .ask("placement", self.own(), question)
            .await
            .map_err(|error| failed(&error))?;
        let QueryResult::UnderReplicated { objects, more } = found else {
            return Err(failed(&self.mismatch("placement", &found)));
        };
        let last = objects.last().map(|it| (it.priority, it.object));
        let mine = objects.iter().filter(|it| !self.is_left_to_its_writer(it));
        let objects = stored(mine.map(|it| (&it.object, &it.row)));
        Ok(UnderReplicatedPage {
            objects,
            next: last.filter(|_| more),
        })
    }

    async fn list_sparse(
        &self,
        after: Option<ObjectId>,
        limit: u32,
    ) -> Result<SparsePage, PlacementError> {
        if after.is_none() && !self.may_reconcile().await? {
            return Ok(SparsePage::default());
        }
        let question = Question::SparsePacks { after, limit };
        let found = self
            .ask("compaction", self.own(), question)
            .await
            .map_err(|error| failed(&error))?;
        let QueryResult::SparsePacks { packs, more } = found else {
            return Err(failed(&self.mismatch("compaction", &found)));
        };
        let next = packs.last().map(|(id, _, _)| *id).filter(|_| more);
        let sparse = packs.iter().filter_map(|(id, row, _)| {
            let object = StoredObject::of_row(*id, row)
                .inspect_err(|error| tracing::warn!(object = %id, %error, "a damaged row"))
                .ok()?;
            Some(SparsePack {
                object,
                live_bytes: row.live_bytes,
            })
        });
        Ok(SparsePage {
            packs: sparse.collect(),
            next,
        })
    }

    async fn list_packed(
        &self,
        pack: ObjectId,
        after: Option<PackedCursor>,
    ) -> Result<PackedPage, PlacementError> {
        let limit = QUEUE_PAGE_MAX;
        let question = Question::PackedSlices { pack, after, limit };
        let found = self
            .ask("compaction", self.own(), question)
            .await
            .map_err(|error| failed(&error))?;
        let QueryResult::PackedSlices { slices, more } = found else {
            return Err(failed(&self.mismatch("compaction", &found)));
        };
        let next = slices.last().map(|(home, id, _)| (*home, *id));
        Ok(PackedPage {
            slices,
            next: next.filter(|_| more),
        })
    }

    async fn new_object_id(&self) -> Result<Box<dyn HeldObjectId>, PlacementError> {
        let id = self.allocate().await.map_err(|error| failed(&error))?;
        Ok(Box::new(id))
    }

    async fn move_slices(
        &self,
        pack: &NewObject,
        moves: Vec<SliceMove>,
    ) -> Result<u32, PlacementError> {
        let operation = Operation::MoveSlices {
            realm: self.realm(),
            objects: vec![pack.clone()],
            moves,
        };
        match self
            .order("compaction", &operation)
            .await
            .map_err(|error| failed(&error))?
        {
            Done::Moved { slices } => Ok(slices),
            other => Err(failed(&self.mismatch("compaction", &other))),
        }
    }

    async fn take_job(&self, job: Job, time: Duration) -> Result<Option<Time>, PlacementError> {
        let seconds = u32::try_from(time.as_secs()).unwrap_or(JOB_SECONDS_MAX);
        let operation = Operation::TakeJob {
            job,
            seconds: seconds.clamp(1, JOB_SECONDS_MAX),
        };
        match self.order("reconciler", &operation).await {
            Ok(Done::JobTaken { now, .. }) => Ok(Some(now)),
            Ok(other) => Err(failed(&self.mismatch("reconciler", &other))),
            // Another session has it.
            Err(VfsError::Refused {
                errno: Errno::BUSY, ..
            }) => Ok(None),
            Err(error) => Err(failed(&error)),
        }
    }

    fn now(&self) -> Time {
        let now = self.agreed(clock::now());
        let seconds = u64::try_from(now.seconds).unwrap_or_default();
        Time(
            seconds
                .saturating_mul(1_000_000_000)
                .saturating_add(u64::from(now.nanos)),
        )
    }

    async fn list_garbage(
        &self,
        after: Option<ObjectId>,
        limit: u32,
    ) -> Result<GarbagePage, PlacementError> {
        let question = Question::Unreferenced { after, limit };
        let found = self
            .ask("collection", self.own(), question)
            .await
            .map_err(|error| failed(&error))?;
        let QueryResult::Unreferenced { objects, more } = found else {
            return Err(failed(&self.mismatch("collection", &found)));
        };
        let next = objects.last().map(|garbage| garbage.object);
        let garbage = objects.into_iter().filter_map(|garbage| {
            let object = StoredObject::of_row(garbage.object, &garbage.row)
                .inspect_err(|error| {
                    tracing::warn!(object = %garbage.object, %error, "a damaged row");
                })
                .ok()?;
            Some(GarbageObject {
                object,
                since: garbage.since,
                open: garbage.open,
                retained: garbage.retained,
            })
        });
        Ok(GarbagePage {
            garbage: garbage.collect(),
            next: next.filter(|_| more),
        })
    }

    async fn forget(&self, objects: Vec<ObjectId>) -> Result<u32, PlacementError> {
        let mut forgotten = 0_u32;
        for some in objects.chunks(FORGET_OBJECTS_MAX) {
            let objects = some.to_vec();
            let done = self
                .order("collection", &Operation::Forget { objects })
                .await;
            match done.map_err(|error| failed(&error))? {
                Done::Forgotten { objects } => forgotten = forgotten.saturating_add(objects),
                other => return Err(failed(&self.mismatch("collection", &other))),
            }
        }
        Ok(forgotten)
    }

    async fn fates(&self, objects: Vec<ObjectId>) -> Result<Vec<Fate>, PlacementError> {
        let count = objects.len();
        let question = Question::Fates { objects };
        let found = self.ask("collection", self.own(), question).await;
        match found.map_err(|error| failed(&error))? {
            QueryResult::Fates(fates) if fates.len() == count => Ok(fates),
            other => Err(failed(&self.mismatch("collection", &other))),
        }
    }

    async fn drain_row(&self) -> Result<Drain, PlacementError> {
        let shown = self.cloud_changes(u32::MAX - 1).await;
        let (_, _, drain) = shown.map_err(|error| failed(&error))?;
        Ok(drain)
    }

    async fn move_shards(
        &self,
        moves: Vec<ShardMove>,
        after: Option<ObjectId>,
    ) -> Result<u32, PlacementError> {
        let operation = Operation::MoveShards { moves, after };
        match self
            .order("drain", &operation)
            .await
            .map_err(|error| failed(&error))?
        {
            Done::ShardsMoved { shards } => Ok(shards),
            other => Err(failed(&self.mismatch("drain", &other))),
        }
    }

    async fn retire_cloud(&self, cloud: CloudIndex) -> Result<bool, PlacementError> {
        let operation = Operation::RetireCloud { cloud };
        match self.order("drain", &operation).await {
            Ok(Done::CloudRetired) => Ok(true),
            Ok(other) => Err(failed(&self.mismatch("drain", &other))),
            // It holds a share of the newest key.
            Err(VfsError::Refused {
                errno: Errno::BUSY, ..
            }) => Ok(false),
            Err(error) => Err(failed(&error)),
        }
    }

    async fn release_idle_ids(&self) {
        self.give_back_idle().await;
    }

    async fn object(&self, object: ObjectId) -> Result<Option<Object>, PlacementError> {
        let question = Question::Object(object);
        match self.ask("an object", self.own(), question).await {
            Ok(QueryResult::Object(row)) => Ok(Some(row)),
            Ok(other) => Err(failed(&self.mismatch("an object", &other))),
            // That answer means that there is none.
            Err(VfsError::Refused { .. }) => Ok(None),
            Err(error) => Err(failed(&error)),
        }
    }

    async fn is_known(&self, object: ObjectId) -> Result<bool, PlacementError> {
        Ok(self.object(object).await?.is_some())
    }
}

impl HeldObjectId for AllocatedId {
    fn object(&self) -> ObjectId {
        Self::object(self)
    }
}

impl MetadataClient {
    async fn confirm(
        &self,
        shards: Vec<PlacedShard>,
        checked: Vec<ObjectId>,
    ) -> Result<(), PlacementError> {
        let operation = Operation::ConfirmPlaced { shards, checked };
        let done = self.order("placement", &operation).await;
        match done.map_err(|error| failed(&error))? {
            Done::Confirmed { .. } => Ok(()),
            other => Err(failed(&self.mismatch("placement", &other))),
        }
    }

    /// Whether the writer of an object is another session that may still be putting its shards:
    /// they would be fetched and put twice.
    fn is_left_to_its_writer(&self, object: &UnderReplicatedObject) -> bool {
        let now = self.agreed(clock::now());
        let age = now.seconds - Timestamp::from(object.row.committed).seconds;
        object.writer_lives && age < LEFT_TO_WRITER_SECONDS
    }

    /// Whether this session may move slices of other writers.
    async fn may_reconcile(&self) -> Result<bool, PlacementError> {
        match self
            .ask("compaction", self.own(), Question::WhoAmI)
            .await
            .map_err(|error| failed(&error))?
        {
            QueryResult::WhoAmI { rights, .. } => Ok(rights.rights.reconcile),
            other => Err(failed(&self.mismatch("compaction", &other))),
        }
    }
}
