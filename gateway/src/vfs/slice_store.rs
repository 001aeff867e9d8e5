//! What the file system asks of whoever keeps slices.

use super::content::StoredSlice;
use super::{VfsError, Warmed};
use crate::blocks::ShareStore;
use crate::metadata::AllocatedId;
use async_trait::async_trait;
use bytes::Bytes;
use quorumfs_metadata::identity::ObjectId;
use quorumfs_metadata::operation::{NewObject, NewSlice};
use std::ops::Range;

/// A slice that w clouds have acknowledged, as the servers are told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenSlice {
    /// The object that holds it.
    pub object: NewObject,
    /// The slice.
    pub slice: NewSlice,
    /// The id that the object's is of, if that is not the slice's own. To be kept, as the slice's,
    /// until the slice is committed or abandoned.
    pub lease: Option<AllocatedId>,
}

/// Seals and keeps slices, and gives them back.
#[async_trait]
pub trait SliceStore: Send + Sync + 'static {
    /// Seals `plain` under fresh ids and returns once w clouds have acknowledged its shards. What
    /// becomes of it is then told by [`SliceStore::committed`] or [`SliceStore::abandoned`].
    async fn write(&self, id: &AllocatedId, plain: Bytes) -> Result<WrittenSlice, VfsError>;

    /// The bytes of `range` of a slice's plaintext, verified. They are the reader's to keep: no
    /// more memory is kept with them than they take.
    async fn read(&self, stored: &StoredSlice, range: Range<u32>) -> Result<Bytes, VfsError>;

    /// Brings a range of a slice, in whole chunks, to where it can be read without the clouds.
    async fn warm(&self, _: &StoredSlice, range: Range<u32>) -> Result<Warmed, VfsError> {
        Ok(Warmed {
            refused: u64::from(range.end.saturating_sub(range.start)),
            ..Warmed::default()
        })
    }

    /// The servers know the object now. Said once for each slice that was written; so is the
    /// opposite.
    fn committed(&self, object: ObjectId);

    /// The clouds as those that hold shares of keys; `None` if there are none, so that an epoch
    /// with a second lock cannot be opened.
    fn shares(&self) -> Option<ShareStore> {
        None
    }

    /// How many more bytes there is room for; `None` if nothing sets a bound.
    async fn room(&self) -> Option<u64> {
        None
    }

    /// The slice will not be committed, or nobody knows whether it was.
    fn abandoned(&self, object: ObjectId);
}
