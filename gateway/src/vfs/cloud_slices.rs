//! Slices on the volume's clouds: the block store with the volume's keys.

use super::chunk_cache::CHUNK_BYTES;
use super::outage::Outages;
use super::packer::{Packer, Packing, SMALL_BYTES};
use super::slice_store::{SliceStore, WrittenSlice};
use super::{StoredSlice, VfsError};
use crate::blocks::{
    BlockError, BlockErrorKind, BlockStore, SealedSlice, ShareStore, StoredObject,
};
use crate::keys::KeyError;
use crate::memory::LongBytes;
use crate::metadata::AllocatedId;
use crate::volume::Volume;
use async_trait::async_trait;
use bytes::Bytes;
use quorumfs_metadata::identity::ObjectId;
use quorumfs_metadata::row::{self, SliceSalt};
use rustix::io::Errno;
use std::ops::Range;
use std::sync::Arc;

/// Stores slices in a [`BlockStore`], sealed under the volume's keys.
#[derive(Clone, Debug)]
pub struct CloudSlices {
    volume: Arc<Volume>,
    blocks: BlockStore,
    packer: Arc<Packer>,
    /// As readers see them.
    outages: Arc<Outages>,
}

impl CloudSlices {
    /// Slices of `volume` in `blocks`. Small ones share objects, and wait for each other as
    /// `packing` says.
    #[must_use]
    pub fn new(volume: Arc<Volume>, blocks: BlockStore, packing: Packing) -> Self {
        Self {
            packer: Packer::new(blocks.clone(), packing),
            volume,
            blocks,
            outages: Arc::default(),
        }
    }
}

/// What a slice's key depends on apart from its id: drawn anew whenever a slice is sealed.
fn draw_salt() -> Result<SliceSalt, KeyError> {
    let mut salt = SliceSalt::default();
    getrandom::fill(&mut salt.0).map_err(|error| KeyError::Random {
        reason: error.to_string(),
    })?;
    Ok(salt)
}

fn failed(doing: &'static str, error: &BlockError) -> VfsError {
    match error.kind() {
        BlockErrorKind::NoSpace => {
            tracing::warn!(%error, "too many clouds are full");
            VfsError::refused(doing, Errno::NOSPC)
        }
        kind => VfsError::Data {
            doing,
            kind,
            reason: error.to_string(),
        },
    }
}

#[async_trait]
impl SliceStore for CloudSlices {
    async fn write(&self, id: &AllocatedId, plain: Bytes) -> Result<WrittenSlice, VfsError> {
        const DOING: &str = "writing to the clouds";
        let epoch_key = self.volume.current_key()?;
        let (epoch, salt) = (epoch_key.epoch(), draw_salt()?);
        let row_key = row::SliceKey::Derived { epoch, salt };
        let key = epoch_key.slice_key(id.slice(), &salt);
        if plain.len() < SMALL_BYTES {
            let written = self.packer.write(id.clone(), (row_key, key), plain).await;
            return written.map_err(|error| failed(DOING, &error));
        }
        let stored = self
            .blocks
            .write_in_turn(id.object(), id.slice(), &key, plain, id.turn())
            .await
            .map_err(|error| failed(DOING, &error))?;
        Ok(WrittenSlice {
            object: stored.object,
            slice: stored.slice.into_new(row_key),
            lease: None,
        })
    }

    async fn read(&self, stored: &StoredSlice, range: Range<u32>) -> Result<Bytes, VfsError> {
        const DOING: &str = "reading from the clouds";
        let row::SliceKey::Derived { epoch, salt } = &stored.slice.key else {
            return Err(VfsError::Data {
                doing: DOING,
                kind: BlockErrorKind::NewerFormat,
                reason: format!(
                    "slice {} was copied from another realm, which this program cannot read: \
                     update it",
                    stored.id
                ),
            });
        };
        let key = self.volume.slice_key(*epoch, stored.id, salt)?;
        let slice = SealedSlice::of_row(stored.id, &stored.slice);
        let object = StoredObject::of_row(stored.slice.object, &stored.object)
            .map_err(|error| failed(DOING, &error))?;
        let mut tries = self.outages.tries();
        let bytes = loop {
            match self.blocks.read(&object, &slice, &key, range.clone()).await {
                Ok(bytes) => break bytes,
                Err(error) => tries.retry(failed(DOING, &error)).await?,
            }
        };
        self.outages.over();
        // For a run it is a buffer that the next block needs.
        Ok(match bytes.len() > CHUNK_BYTES as usize {
            true => LongBytes::copy_of(&bytes),
            false => bytes,
        })
    }

    fn shares(&self) -> Option<ShareStore> {
        let shares = self.blocks.shares();
        shares
            .inspect_err(|error| tracing::debug!(%error, "no shares of keys"))
            .ok()
    }

    async fn room(&self) -> Option<u64> {
        self.blocks.capacity().await
    }

    fn committed(&self, object: ObjectId) {
        self.packer.committed(object);
    }

    fn abandoned(&self, object: ObjectId) {
        self.packer.abandoned(object);
    }
}
