//! Where shards are, as the block store tells the order and asks it.

use super::MetadataClient;
use crate::blocks::{
    PlacementError, PlacementLog, StoredObject, UnderReplicatedCursor, UnderReplicatedPage,
};
use crate::vfs::VfsError;
use async_trait::async_trait;
use quorumfs_metadata::limits::CONFIRM_SHARDS_MAX;
use quorumfs_metadata::operation::{Operation, PlacedShard};
use quorumfs_metadata::query::Question;
use quorumfs_metadata::reply::{Done, Found};

fn failed(error: &VfsError) -> PlacementError {
    PlacementError {
        reason: error.to_string(),
    }
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
        let objects = objects
            .iter()
            .filter_map(|(_, id, row)| {
                // A row that contradicts itself comes from a liar or a defect; the others go on.
                StoredObject::of_row(*id, row)
                    .inspect_err(|error| tracing::warn!(object = %id, %error, "a damaged row"))
                    .ok()
            })
            .collect();
        Ok(UnderReplicatedPage {
            objects,
            next: last.filter(|_| more),
        })
    }
}
