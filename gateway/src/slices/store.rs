//! The interface to the store of slices.

use crate::blocks::{LinkFor, LinkedObject, ShareStore};
use crate::cost::PaidWork;
use crate::error::VfsError;
use crate::keys::SliceKey;
use crate::metadata::AllocatedId;
use async_trait::async_trait;
use bytes::Bytes;
use quorumfs_metadata::identity::{ObjectId, SliceId};
use quorumfs_metadata::operation::{NewObject, NewSlice};
use quorumfs_metadata::row::{Object, Slice};
use rustix::io::Errno;
use std::ops::Range;

/// A slice with its object: all that is needed to read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredSlice {
    /// The slice's id, on which its key depends.
    pub id: SliceId,
    /// The slice.
    pub slice: Slice,
    /// The object in which it lies.
    pub object: Object,
}

/// A slice that w clouds have acknowledged, as it is sent to the servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenSlice {
    /// The object that holds it.
    pub object: NewObject,
    /// The slice.
    pub slice: NewSlice,
    /// The id from which the object's id is, if it is not the slice's own. Held, as the slice's,
    /// until the slice is committed or abandoned.
    pub lease: Option<AllocatedId>,
}

/// The outcome of warming, in bytes, rounded up to whole chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Warmed {
    /// They were on the disk already.
    pub present: u64,
    /// They were brought there.
    pub brought: u64,
    /// The disk did not take them.
    pub refused: u64,
}

impl Warmed {
    /// Both together.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            present: self.present.saturating_add(other.present),
            brought: self.brought.saturating_add(other.brought),
            refused: self.refused.saturating_add(other.refused),
        }
    }
}

/// Seals, stores and returns slices.
#[async_trait]
pub trait SliceStore: Send + Sync + 'static {
    /// Seals `plain` under fresh ids and returns once w clouds have acknowledged its shards. The
    /// caller then calls [`SliceStore::committed`] or [`SliceStore::abandoned`].
    async fn write(&self, id: &AllocatedId, plain: Bytes) -> Result<WrittenSlice, VfsError>;

    /// The bytes of `range` of a slice's plaintext, verified. The reader may cache them: they hold
    /// no more memory than their length.
    async fn read(&self, stored: &StoredSlice, range: Range<u32>) -> Result<Bytes, VfsError>;

    /// Brings a range of a slice, in whole chunks, to where it can be read without the clouds.
    async fn warm(&self, _: &StoredSlice, range: Range<u32>) -> Result<Warmed, VfsError> {
        Ok(Warmed {
            refused: u64::from(range.end.saturating_sub(range.start)),
            ..Warmed::default()
        })
    }

    /// Links the object of a slice, so that it can be read without an account.
    ///
    /// # Errors
    /// If too few clouds can link it.
    async fn link(
        &self,
        _: &StoredSlice,
        _link_for: &mut LinkFor,
    ) -> Result<LinkedObject, VfsError> {
        Err(VfsError::refused("link", Errno::OPNOTSUPP))
    }

    /// The key of a slice, to be given away with a link.
    ///
    /// # Errors
    /// If this principal does not have it.
    fn key_of(&self, _: &StoredSlice) -> Result<SliceKey, VfsError> {
        Err(VfsError::refused("link", Errno::OPNOTSUPP))
    }

    /// The servers have the object now. Called once for each written slice; so is the opposite.
    fn committed(&self, object: ObjectId);

    /// The clouds as holders of key shares; `None` if there are none, so that an epoch with a
    /// second lock cannot be opened.
    fn shares(&self) -> Option<ShareStore> {
        None
    }

    /// Free space in bytes; `None` if it is unbounded.
    async fn room(&self) -> Option<u64> {
        None
    }

    /// Whether the budget lets work of this kind go on.
    fn allows(&self, _: PaidWork) -> bool {
        true
    }

    /// The slice will not be committed, or it is unknown whether it was.
    fn abandoned(&self, object: ObjectId);
}
