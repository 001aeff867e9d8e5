//! The border to the metadata: where shards are, as ordered facts.
//!
//! The block store moves bytes and the metadata says which bytes count; these five calls are all
//! that the one asks of the other. They may fail, be slow, and be repeated: confirming what is
//! confirmed, replacing what is replaced and withdrawing what is withdrawn are without effect.

use super::object::StoredObject;
use quorumfs_metadata::identity::ObjectId;
use quorumfs_metadata::operation::PlacedShard;

/// A failed call; it is tried again later.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the placement of shards could not be recorded or read: {reason}")]
pub struct PlacementError {
    /// Why.
    pub reason: String,
}

/// Where a listing of under-replicated objects goes on: the last one's priority and id.
pub type UnderReplicatedCursor = (u8, ObjectId);

/// A page of under-replicated objects.
#[derive(Clone, Debug, Default)]
pub struct UnderReplicatedPage {
    /// The objects.
    pub objects: Vec<StoredObject>,
    /// Where the next page begins, if there may be one.
    pub next: Option<UnderReplicatedCursor>,
}

/// A page of all objects that something refers to.
#[derive(Clone, Debug, Default)]
pub struct ObjectsPage {
    /// The objects, by rising ids.
    pub objects: Vec<StoredObject>,
    /// The last id of the page, which the next one begins behind; `None` if it is empty. It may be
    /// one that is not among the objects.
    pub last: Option<ObjectId>,
    /// There are more.
    pub more: bool,
}

/// What the metadata's client does for the block store.
#[async_trait::async_trait]
pub trait PlacementLog: Send + Sync {
    /// Orders that these shards are where they were meant to be.
    async fn confirm_placed(&self, shards: Vec<PlacedShard>) -> Result<(), PlacementError>;

    /// Orders that this shard is to be found under another attempt, and that it is there.
    async fn replace_placement(&self, shard: PlacedShard) -> Result<(), PlacementError>;

    /// Orders that these shards are not where they were acknowledged to be. One that is to be found
    /// under another attempt by now is passed over.
    async fn withdraw_placed(&self, shards: Vec<PlacedShard>) -> Result<(), PlacementError>;

    /// Objects in the order of their ids, at most `limit` of them.
    async fn list_objects(
        &self,
        after: Option<ObjectId>,
        limit: u32,
    ) -> Result<ObjectsPage, PlacementError>;

    /// Objects that lack shards, the most endangered first, at most `limit` of them.
    async fn list_under_replicated(
        &self,
        after: Option<UnderReplicatedCursor>,
        limit: u32,
    ) -> Result<UnderReplicatedPage, PlacementError>;
}
