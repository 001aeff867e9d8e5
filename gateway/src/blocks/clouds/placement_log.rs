//! The interface to the metadata: the places of shards, as ordered facts.
//!
//! The block store moves bytes and the metadata determines which bytes count; these calls are all
//! that the block store needs from it. They may fail, be slow, and be repeated: confirming,
//! replacing, withdrawing or moving a second time has no effect.

use crate::blocks::object::{PrincipalName, StoredObject};
use quorumfs_bft::identity::Time;
use quorumfs_metadata::identity::{CloudIndex, Home, ObjectId, PrincipalNumber, SliceId};
use quorumfs_metadata::operation::{Finding, NewObject, PlacedShard, ShardMove, SliceMove};
use quorumfs_metadata::reply::Fate;
use quorumfs_metadata::row::{Drain, Evidence, Job, Object, PackedSlice};
use std::time::Duration;

/// A failed call; it is tried again later.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the placement of shards could not be recorded or read: {reason}")]
pub struct PlacementError {
    /// The reason.
    pub reason: String,
}

/// The cursor of a listing of under-replicated objects: the last one's priority and id.
pub type UnderReplicatedCursor = (u8, ObjectId);

/// A page of under-replicated objects.
#[derive(Clone, Debug, Default)]
pub struct UnderReplicatedPage {
    /// The objects.
    pub objects: Vec<StoredObject>,
    /// The beginning of the next page, if there may be one.
    pub next: Option<UnderReplicatedCursor>,
}

/// A page of all referenced objects.
#[derive(Clone, Debug, Default)]
pub struct ObjectsPage {
    /// The objects, by rising ids.
    pub objects: Vec<StoredObject>,
    /// The last id of the page, behind which the next one begins; `None` if the page is empty. It
    /// may be an id that is not among the objects.
    pub last: Option<ObjectId>,
    /// There are more.
    pub more: bool,
}

/// A pack with the number of its live bytes.
#[derive(Clone, Debug)]
pub struct SparsePack {
    /// The pack.
    pub object: StoredObject,
    /// Sealed bytes of it that are needed.
    pub live_bytes: u64,
}

impl SparsePack {
    /// Sealed bytes of it that are not needed.
    pub(in crate::blocks) fn dead_bytes(&self) -> u64 {
        u64::from(self.object.length()).saturating_sub(self.live_bytes)
    }
}

/// A page of packs of which less than half is needed.
#[derive(Clone, Debug, Default)]
pub struct SparsePage {
    /// The packs, by rising ids.
    pub packs: Vec<SparsePack>,
    /// The id behind which the next page begins, if there may be one.
    pub next: Option<ObjectId>,
}

/// The cursor of a listing of a pack's slices: the home of the last one's row, and its id.
pub type PackedCursor = (Home, SliceId);

/// A page of the slices in a pack.
#[derive(Clone, Debug, Default)]
pub struct PackedPage {
    /// The home of each slice's row, its id, and its position in the pack.
    pub slices: Vec<(Home, SliceId, PackedSlice)>,
    /// The beginning of the next page, if there may be one.
    pub next: Option<PackedCursor>,
}

/// An object that nothing refers to.
#[derive(Clone, Debug)]
pub struct GarbageObject {
    /// The object.
    pub object: StoredObject,
    /// Since when nothing refers to it.
    pub since: Time,
    /// Whether a commit may refer to it again.
    pub open: bool,
    /// Whether a retained point in the past needs it.
    pub retained: bool,
}

/// A page of objects that nothing refers to.
#[derive(Clone, Debug, Default)]
pub struct GarbagePage {
    /// The objects, by rising ids.
    pub garbage: Vec<GarbageObject>,
    /// The id behind which the next page begins, if there may be one.
    pub next: Option<ObjectId>,
}

/// A fresh id for an object, held until its object is committed or abandoned.
pub trait HeldObjectId: Send + Sync {
    /// The id.
    fn object(&self) -> ObjectId;
}

/// The operations of the metadata's client that the block store needs.
#[async_trait::async_trait]
pub trait PlacementLog: Send + Sync {
    /// Orders that these shards are at their intended places.
    async fn confirm_placed(&self, shards: Vec<PlacedShard>) -> Result<(), PlacementError>;

    /// Orders that these objects of other principals passed the consistency check. Objects that no
    /// longer exist are skipped.
    async fn confirm_checked(&self, _objects: Vec<ObjectId>) -> Result<(), PlacementError> {
        Ok(())
    }

    /// The number of this process's own principal in rows; `None` trusts no principal.
    async fn own_principal(&self) -> Result<Option<PrincipalNumber>, PlacementError> {
        Ok(None)
    }

    /// The name of a principal; `None` if no principal has this number.
    async fn principal(
        &self,
        _number: PrincipalNumber,
    ) -> Result<Option<PrincipalName>, PlacementError> {
        Ok(None)
    }

    /// Orders findings about a cloud. Known ones are skipped.
    async fn testify(
        &self,
        _cloud: CloudIndex,
        _findings: Vec<Finding>,
    ) -> Result<(), PlacementError> {
        Ok(())
    }

    /// The number of findings about a cloud, and the stored ones.
    async fn evidence(&self, _cloud: CloudIndex) -> Result<(u64, Vec<Evidence>), PlacementError> {
        Ok((0, Vec::new()))
    }

    /// Orders that this shard is at its place under another attempt.
    async fn replace_placement(&self, shard: PlacedShard) -> Result<(), PlacementError>;

    /// Orders that these shards are not at their acknowledged places. A shard that has another
    /// attempt by now is skipped.
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
    /// not move their slices. A log without packs gets neither this call nor the following ones.
    async fn list_sparse(
        &self,
        _after: Option<ObjectId>,
        _limit: u32,
    ) -> Result<SparsePage, PlacementError> {
        Ok(SparsePage::default())
    }

    /// The slices in a pack.
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

    /// Orders that slices are in this pack from now on; returns how many were at their old places.
    async fn move_slices(
        &self,
        _pack: &NewObject,
        _moves: Vec<SliceMove>,
    ) -> Result<u32, PlacementError> {
        Err(no_packs())
    }

    /// Takes a job of the volume for some time, or keeps it; returns the time of the order. `None`:
    /// another process does it.
    async fn take_job(&self, _job: Job, _time: Duration) -> Result<Option<Time>, PlacementError> {
        Ok(None)
    }

    /// The servers' time, as this machine knows it.
    fn now(&self) -> Time {
        Time(0)
    }

    /// Objects that nothing refers to, at most `limit` of them.
    async fn list_garbage(
        &self,
        _after: Option<ObjectId>,
        _limit: u32,
    ) -> Result<GarbagePage, PlacementError> {
        Ok(GarbagePage::default())
    }

    /// Orders that the rows of objects go whose shards were deleted; returns how many went.
    async fn forget(&self, _objects: Vec<ObjectId>) -> Result<u32, PlacementError> {
        Ok(0)
    }

    /// What the metadata know of each of these ids, in their order.
    async fn fates(&self, _objects: Vec<ObjectId>) -> Result<Vec<Fate>, PlacementError> {
        Err(PlacementError {
            reason: "this log knows no ids".to_owned(),
        })
    }

    /// How far the clouds that were replaced are drained.
    async fn drain_row(&self) -> Result<Drain, PlacementError> {
        Ok(Drain::default())
    }

    /// Orders that shards are on other clouds, and how far the pass over all objects is; returns
    /// how many shards were at their old places.
    async fn move_shards(
        &self,
        _moves: Vec<ShardMove>,
        _after: Option<ObjectId>,
    ) -> Result<u32, PlacementError> {
        Err(no_fleet())
    }

    /// Orders that no needed row names a replaced cloud any more; `false`: it holds a share of the
    /// newest key.
    async fn retire_cloud(&self, _cloud: CloudIndex) -> Result<bool, PlacementError> {
        Err(no_fleet())
    }

    /// Gives ids back that this process has not used for a while: they keep the collector away.
    async fn release_idle_ids(&self) {}

    /// The row of an object; `None` if there is none.
    async fn object(&self, _object: ObjectId) -> Result<Option<Object>, PlacementError> {
        Err(no_packs())
    }

    /// Whether the metadata has a row of an object.
    async fn is_known(&self, _object: ObjectId) -> Result<bool, PlacementError> {
        Err(no_packs())
    }
}

fn no_fleet() -> PlacementError {
    PlacementError {
        reason: "this log's clouds never change".to_owned(),
    }
}

fn no_packs() -> PlacementError {
    PlacementError {
        reason: "this log keeps no packs".to_owned(),
    }
}
