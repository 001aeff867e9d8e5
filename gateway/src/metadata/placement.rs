//! Where shards are, as the block store tells the order and asks it.

use super::MetadataClient;
use crate::blocks::{
    ObjectsPage, PlacementError, PlacementLog, StoredObject, UnderReplicatedCursor,
    UnderReplicatedPage,
};
use crate::vfs::VfsError;
use async_trait::async_trait;
use quorumfs_metadata::identity::ObjectId;
use quorumfs_metadata::limits::{CONFIRM_SHARDS_MAX, WITHDRAW_SHARDS_MAX};
use quorumfs_metadata::operation::{Operation, PlacedShard};
use quorumfs_metadata::query::Question;
use quorumfs_metadata::reply::{Done, Found};
use quorumfs_metadata::row::{Object, ObjectState};

fn failed(error: &VfsError) -> PlacementError {
    PlacementError {
        reason: error.to_string(),
    }
}

/// The objects of a page. A row that contradicts itself comes from a liar or a defect; the others
/// go on.
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
            let operation = Operation::ConfirmPlaced {
                shards: some.to_vec(),
            };
            match self
                .order("placement", &operation)
                .await
                .map_err(|error| failed(&error))?
            {
                Done::Confirmed { .. } => {}
                other => return Err(failed(&self.mismatch("placement", &other))),
            }
        }
        Ok(())
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
        let Found::Objects { objects, more } = found else {
            return Err(failed(&self.mismatch("placement", &found)));
        };
        let is_needed = |row: &Object| row.slices > 0 && row.state == ObjectState::Live;
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
        let Found::UnderReplicated { objects, more } = found else {
            return Err(failed(&self.mismatch("placement", &found)));
        };
        let last = objects.last().map(|(priority, id, _)| (*priority, *id));
        let objects = stored(objects.iter().map(|(_, id, row)| (id, row)));
        Ok(UnderReplicatedPage {
            objects,
            next: last.filter(|_| more),
        })
    }
}
