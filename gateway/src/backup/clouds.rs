//! The clouds of a volume whose metadata are gone: backups can be read there and nothing else.

use crate::blocks::{
    BlockConfig, BlockError, BlockStore, Cloud, ObjectsPage, PlacementError, PlacementLog,
    UnderReplicatedCursor, UnderReplicatedPage,
};
use crate::volume::Volume;
use async_trait::async_trait;
use quorumfs_metadata::fleet::Fleet;
use quorumfs_metadata::identity::ObjectId;
use quorumfs_metadata::operation::PlacedShard;
use std::sync::Arc;

/// Metadata without servers: nothing can be ordered, and there are no objects.
struct NoServers;

fn none() -> PlacementError {
    PlacementError {
        reason: "there are no metadata servers".to_owned(),
    }
}

#[async_trait]
impl PlacementLog for NoServers {
    async fn confirm_placed(&self, _shards: Vec<PlacedShard>) -> Result<(), PlacementError> {
        Err(none())
    }

    async fn replace_placement(&self, _shard: PlacedShard) -> Result<(), PlacementError> {
        Err(none())
    }

    async fn withdraw_placed(&self, _shards: Vec<PlacedShard>) -> Result<(), PlacementError> {
        Err(none())
    }

    async fn list_objects(
        &self,
        _after: Option<ObjectId>,
        _limit: u32,
    ) -> Result<ObjectsPage, PlacementError> {
        Ok(ObjectsPage::default())
    }

    async fn list_under_replicated(
        &self,
        _after: Option<UnderReplicatedCursor>,
        _limit: u32,
    ) -> Result<UnderReplicatedPage, PlacementError> {
        Ok(UnderReplicatedPage::default())
    }
}

/// Opens a volume's clouds without its servers. `fleet` says which take new shards, if others do
/// than at the volume's creation.
///
/// # Errors
/// If the clouds do not fit the volume's policy.
pub fn clouds_alone(
    volume: &Volume,
    clouds: &[Cloud],
    fleet: Option<Fleet>,
) -> Result<BlockStore, BlockError> {
    let config = BlockConfig {
        restores: false,
        ..BlockConfig::new(volume.id(), volume.policy())
    };
    let fleet = fleet.unwrap_or_else(|| volume.fleet());
    BlockStore::open_with(config, clouds, fleet, Arc::new(NoServers))
}
