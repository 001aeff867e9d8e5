//! Slices on the volume's clouds: the block store with the volume's keys.

use super::outage::Outages;
use super::packer::{Packer, Packing, SMALL_BYTES};
use super::{CHUNK_BYTES, SliceStore, StoredSlice, WrittenSlice};
use crate::blocks::{
    BlockError, BlockErrorKind, BlockStore, LinkFor, LinkedObject, SealedSlice, ShareStore,
    StoredObject,
};
use crate::cost::PaidWork;
use crate::error::VfsError;
use crate::keys::{KeyError, SliceKey};
use crate::memory::LongBytes;
use crate::metadata::AllocatedId;
use crate::volume::Volume;
use async_trait::async_trait;
use bytes::Bytes;
use quorumfs_metadata::identity::{ObjectId, RealmEpoch, RealmId, SliceId};
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
pub(super) fn draw_salt() -> Result<SliceSalt, KeyError> {
    let mut salt = SliceSalt::default();
    getrandom::fill(&mut salt.0).map_err(|error| KeyError::Random {
        reason: error.to_string(),
    })?;
    Ok(salt)
}

const READING: &str = "reading from the clouds";

/// What the key of a slice of the realm `own` alone is derived from.
fn own_key(
    own: RealmId,
    id: SliceId,
    slice: &row::Slice,
) -> Result<(RealmEpoch, SliceSalt), VfsError> {
    match slice.key() {
        Some(row::SliceKey::Derived { realm, epoch, salt }) if *realm == own => Ok((*epoch, *salt)),
        _ => Err(VfsError::Data {
            doing: READING,
            kind: BlockErrorKind::NewerFormat,
            reason: format!(
                "slice {id} is shared with another realm or was copied from one, which this \
                 program cannot read: update it"
            ),
        }),
    }
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
        let realm = self.volume.realm().id();
        let row_key = row::SliceKey::Derived { realm, epoch, salt };
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
        let (epoch, salt) = own_key(self.volume.realm().id(), stored.id, &stored.slice)?;
        let key = self.volume.slice_key(epoch, stored.id, &salt)?;
        let slice = SealedSlice::of_row(stored.id, &stored.slice);
        let object = StoredObject::of_row(stored.slice.object, &stored.object)
            .map_err(|error| failed(READING, &error))?;
        let mut tries = self.outages.tries();
        let bytes = loop {
            match self.blocks.read(&object, &slice, &key, range.clone()).await {
                Ok(bytes) => break bytes,
                Err(error) => tries.retry(failed(READING, &error)).await?,
            }
        };
        self.outages.over();
        // For a run it is a buffer that the next block needs.
        Ok(match bytes.len() > CHUNK_BYTES as usize {
            true => LongBytes::copy_of(&bytes),
            false => bytes,
        })
    }

    async fn link(
        &self,
        stored: &StoredSlice,
        link_for: &mut LinkFor,
    ) -> Result<LinkedObject, VfsError> {
        const DOING: &str = "making a link at the clouds";
        let object = StoredObject::of_row(stored.slice.object, &stored.object)
            .map_err(|error| failed(DOING, &error))?;
        let linked = self.blocks.link(&object, link_for).await;
        linked.map_err(|error| failed(DOING, &error))
    }

    fn key_of(&self, stored: &StoredSlice) -> Result<SliceKey, VfsError> {
        let (epoch, salt) = own_key(self.volume.realm().id(), stored.id, &stored.slice)?;
        Ok(self.volume.slice_key(epoch, stored.id, &salt)?)
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

    fn allows(&self, work: PaidWork) -> bool {
        self.blocks.allowance().allows(work)
    }

    fn committed(&self, object: ObjectId) {
        self.packer.committed(object);
    }

    fn abandoned(&self, object: ObjectId) {
        self.packer.abandoned(object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorumfs_metadata::identity::Codec;

    #[test]
    fn a_slice_of_another_realm_or_with_several_keys_is_not_read() {
        let derived = |realm| row::SliceKey::Derived {
            realm,
            epoch: RealmEpoch(3),
            salt: SliceSalt([4; 16]),
        };
        let wrapped = row::SliceKey::Wrapped {
            realm: RealmId::ROOT,
            epoch: RealmEpoch(3),
            bytes: vec![5; 80],
        };
        let slice = |keys| row::Slice {
            object: ObjectId::default(),
            offset: 0,
            length: 10,
            sealed_length: 26,
            codec: Codec::NONE,
            keys,
            references: 1,
        };
        let id = SliceId::default();
        let own = derived(RealmId::ROOT);
        let read = own_key(RealmId::ROOT, id, &slice(vec![own.clone()])).unwrap();
        assert_eq!(read, (RealmEpoch(3), SliceSalt([4; 16])));
        for keys in [
            vec![],
            vec![derived(RealmId(1))],
            vec![wrapped],
            vec![own, derived(RealmId(1))],
        ] {
            let refused = own_key(RealmId::ROOT, id, &slice(keys))
                .unwrap_err()
                .to_string();
            assert!(refused.contains("another realm"), "{refused}");
        }
    }
}
