//! A write: sealed once, put by a quorum write, described for the metadata.

use super::compress::{Compression, Squeezed};
use super::engine::Engine;
use super::error::BlockError;
use super::layout::Layout;
use super::object::{SealedSlice, Stored, StoredObject};
use super::sabotage::Sabotage;
use super::segment::SliceCipher;
use super::shard::{ShardBytes, encode};
use super::stream::{Content, PlainSlice, place};
use crate::keys::SliceKey;
use bytes::Bytes;
use quorumfs_metadata::identity::{ObjectClass, ObjectId, SliceId};
use quorumfs_metadata::operation::NewObject;
use std::sync::Arc;

/// A slice, with what it was compressed to if it was.
type Squeezable = (PlainSlice, Option<Squeezed>);

/// Bytes of the stream of slices that follow each other.
fn end(placed: &[SealedSlice]) -> u32 {
    let last = placed.last();
    last.map_or(0, |last| last.offset.saturating_add(last.sealed_length))
}

impl Engine {
    /// Writes a slice that is alone in its object.
    pub(super) async fn write(
        self: &Arc<Self>,
        id: ObjectId,
        slice: SliceId,
        key: &SliceKey,
        plain: Bytes,
    ) -> Result<Stored, BlockError> {
        let (key, id_of_slice) = (key.clone(), slice);
        let slice = PlainSlice {
            id: id_of_slice,
            key,
            plain,
        };
        let (object, slices) = self
            .write_slices(id, ObjectClass::BLOCK, vec![slice])
            .await?;
        match slices.first() {
            Some(slice) => Ok(Stored {
                object,
                slice: *slice,
            }),
            None => Err(BlockError::Cipher { slice: id_of_slice }),
        }
    }

    /// Writes slices that share an object, in the order given and without padding.
    pub(super) async fn write_slices(
        self: &Arc<Self>,
        id: ObjectId,
        class: ObjectClass,
        slices: Vec<PlainSlice>,
    ) -> Result<(NewObject, Vec<SealedSlice>), BlockError> {
        let plain_bytes: u64 = slices.iter().map(|slice| slice.plain.len() as u64).sum();
        let too_long = || BlockError::Length {
            what: "a block",
            length: plain_bytes,
            most: u64::from(self.config.block_bytes_max),
        };
        if plain_bytes > u64::from(self.config.block_bytes_max) {
            return Err(too_long());
        }
        // What is compressed takes no more of the stream than it would as it is.
        let slices: Vec<_> = slices.into_iter().map(|slice| (slice, None)).collect();
        let most = end(&place(id, &slices).ok_or_else(too_long)?);
        let most = Layout::new(most, self.config.policy.data()).stored_length(0);
        let clouds = self.links.len() as u64;
        let squeezed = match self.config.compression {
            Compression::Off => 0,
            Compression::Zstd => plain_bytes,
        };
        let held = plain_bytes + squeezed + most * clouds;
        let _memory = self.memory.hold(held).await?;

        let slices = self.squeeze(slices).await?;
        let placed = place(id, &slices).ok_or_else(too_long)?;
        let sealed = end(&placed);
        let layout = Layout::new(sealed, self.config.policy.data());
        let shard_length = layout.stored_length(0);
        let mut new = NewObject {
            id,
            class,
            policy: self.config.policy,
            length: sealed,
            shard_length: u32::try_from(shard_length).map_err(|_| too_long())?,
            shards: self.spread(id),
        };
        let bodies = self.seal(&new, &placed, slices).await?;
        for (shard, made) in new.shards.iter_mut().zip(&bodies) {
            shard.digest = made.digest;
        }
        for placed in self
            .put_quorum(Arc::new(StoredObject::of_new(&new)?), bodies)
            .await?
        {
            if let Some(shard) = new.shards.get_mut(usize::from(placed.shard.0)) {
                shard.attempt = placed.attempt;
                shard.acknowledged = true;
            }
        }
        if self.is_sabotaged(Sabotage::CommittedBeforeQuorum) {
            for shard in &mut new.shards {
                shard.acknowledged = true;
            }
        }
        self.counters.objects_written.add(1);
        self.counters.bytes_written.add(plain_bytes);
        Ok((new, placed))
    }

    /// Compresses what gains by it, if that is wanted; no more at a time than there are cores.
    async fn squeeze(&self, mut slices: Vec<Squeezable>) -> Result<Vec<Squeezable>, BlockError> {
        if self.config.compression == Compression::Off {
            return Ok(slices);
        }
        let turn = Arc::clone(&self.sealers)
            .acquire_owned()
            .await
            .map_err(|_| BlockError::Shut)?;
        let squeeze = move || {
            for (slice, squeezed) in &mut slices {
                *squeezed = Squeezed::new(&slice.plain);
            }
            drop(turn);
            slices
        };
        self.config.workers.run(squeeze).await
    }

    /// Seals, no more at a time than there are cores.
    async fn seal(
        &self,
        new: &NewObject,
        placed: &[SealedSlice],
        slices: Vec<Squeezable>,
    ) -> Result<Vec<ShardBytes>, BlockError> {
        let object = StoredObject::of_new(new)?;
        let headers = self.headers(&object);
        let code = self.code(new.policy)?;
        let (volume, sealing) = (self.config.volume, self.config.sealing);
        let mut sealables = Vec::with_capacity(slices.len());
        for ((slice, squeezed), placed) in slices.into_iter().zip(placed) {
            let cipher = SliceCipher::of(&slice.key, volume, placed, sealing)?;
            sealables.push((cipher, slice.plain, squeezed));
        }
        let turn = Arc::clone(&self.sealers)
            .acquire_owned()
            .await
            .map_err(|_| BlockError::Shut)?;
        let buffers = self.buffers.clone();
        let seal = move || {
            let contents: Vec<_> = sealables
                .iter()
                .map(|(cipher, plain, squeezed)| Content {
                    cipher,
                    plain,
                    squeezed: squeezed.as_ref(),
                })
                .collect();
            let sealed = encode(object.layout(), &code, &headers, &contents, &buffers);
            drop(turn);
            sealed
        };
        self.config.workers.run(seal).await?
    }
}
