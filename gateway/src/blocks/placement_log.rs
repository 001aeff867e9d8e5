//! The border to the metadata: where shards are, as ordered facts.
//!
//! The block store moves bytes and the metadata says which bytes count; these calls are all
//! that the one asks of the other. They may fail, be slow, and be repeated: confirming what is
//! confirmed, replacing what is replaced, withdrawing what is withdrawn and moving what was moved
//! are without effect.

use super::compact::SparsePack;
use super::object::StoredObject;
use super::writer::PrincipalName;
use quorumfs_metadata::identity::{CloudIndex, Home, ObjectId, PrincipalNumber, SliceId};
use quorumfs_metadata::operation::{Finding, NewObject, PlacedShard, SliceMove};
use quorumfs_metadata::row::{Evidence, PackedSlice};

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

/// A page of packs of which less than half is needed.
#[derive(Clone, Debug, Default)]
pub struct SparsePage {
    /// The packs, by rising ids.
    pub packs: Vec<SparsePack>,
    /// The id that the next page begins behind, if there may be one.
    pub next: Option<ObjectId>,
}

/// Where a listing of a pack's slices goes on: where the last one's row lies, and its id.
pub type PackedCursor = (Home, SliceId);

/// A page of the slices that lie in a pack.
#[derive(Clone, Debug, Default)]
pub struct PackedPage {
    /// Where the row of each lies, its id, and its place in the pack.
    pub slices: Vec<(Home, SliceId, PackedSlice)>,
    /// Where the next page begins, if there may be one.
    pub next: Option<PackedCursor>,
}

/// A fresh id for an object, held until what carries it is committed or given up.
pub trait HeldObjectId: Send + Sync {
    /// The id.
    fn object(&self) -> ObjectId;
}

/// What the metadata's client does for the block store.
#[async_trait::async_trait]
pub trait PlacementLog: Send + Sync {
    /// Orders that these shards are where they were meant to be.
    async fn confirm_placed(&self, shards: Vec<PlacedShard>) -> Result<(), PlacementError>;

    /// Orders that these objects were decoded and coded again, and are what their writers, who are
    /// not this process's own principal, described. One that is not there any more is passed over.
    async fn confirm_checked(&self, _objects: Vec<ObjectId>) -> Result<(), PlacementError> {
        Ok(())
    }

    /// What rows know this process's own principal by; `None` trusts nobody.
    async fn own_principal(&self) -> Result<Option<PrincipalNumber>, PlacementError> {
        Ok(None)
    }

    /// Who a principal is; `None` if there never was one of this number.
    async fn principal(
        &self,
        _number: PrincipalNumber,
    ) -> Result<Option<PrincipalName>, PlacementError> {
        Ok(None)
    }

    /// Orders that a cloud was found to have done this wrong. What is known is passed over.
    async fn testify(
        &self,
        _cloud: CloudIndex,
        _findings: Vec<Finding>,
    ) -> Result<(), PlacementError> {
        Ok(())
    }

    /// How much a cloud was found to have done wrong, and what is kept of that.
    async fn evidence(&self, _cloud: CloudIndex) -> Result<(u64, Vec<Evidence>), PlacementError> {
        Ok((0, Vec::new()))
    }

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

    /// Packs of which less than half is needed, at most `limit` of them; none if this session may
    /// not move what lives of them. This and what follows is never asked of a log without packs.
    async fn list_sparse(
        &self,
        _after: Option<ObjectId>,
        _limit: u32,
    ) -> Result<SparsePage, PlacementError> {
        Ok(SparsePage::default())
    }

    /// The slices that lie in a pack.
    async fn list_packed(
        &self,
        _pack: ObjectId,
        _after: Option<PackedCursor>,
    ) -> Result<PackedPage, PlacementError> {
        Ok(PackedPage::default())
    }

    /// A fresh id for an object.
    async fn new_object_id(&self) -> Result<Box<dyn HeldObjectId>, PlacementError> {
        Err(no_packs())
    }

    /// Orders that slices lie in this pack from now on; answers how many were where they were seen.
    async fn move_slices(
        &self,
        _pack: &NewObject,
        _moves: Vec<SliceMove>,
    ) -> Result<u32, PlacementError> {
        Err(no_packs())
    }

    /// Whether the metadata knows an object.
    async fn is_known(&self, _object: ObjectId) -> Result<bool, PlacementError> {
        Err(no_packs())
    }
}

fn no_packs() -> PlacementError {
    PlacementError {
        reason: "this log keeps no packs".to_owned(),
    }
}
