//! A write: slices are sealed once, put by a quorum write, and described for the metadata.

use super::Writes;
use crate::blocks::object::{
    BlockError, Buffers, Code, Compression, Content, HeaderBytes, Layout, PlainSlice, Sabotage,
    SealedSlice, ShardBytes, SliceCipher, Squeezed, Stored, StoredObject, encode, encode_sealed,
    place,
};
use crate::keys::SliceKey;
use bytes::Bytes;
use quorumfs_metadata::identity::{ObjectClass, ObjectId, SliceId};
use quorumfs_metadata::limits::OBJECT_BYTES_MAX;
use quorumfs_metadata::operation::NewObject;
use std::sync::Arc;

/// A slice, with its compressed segments if it has any.
type Squeezable = (PlainSlice, Option<Squeezed>);

/// Bytes of the stream of consecutive slices.
fn end(placed: &[SealedSlice]) -> u32 {
    let last = placed.last();
    last.map_or(0, |last| last.offset.saturating_add(last.sealed_length))
}

impl Writes {
    /// Writes a slice that is alone in its object.
    pub(in crate::blocks) async fn write(
        self: &Arc<Self>,
        id: ObjectId,
        slice: SliceId,
        key: &SliceKey,
        plain: Bytes,
        turn: u32,
    ) -> Result<Stored, BlockError> {
        let (key, id_of_slice) = (key.clone(), slice);
        let slice = PlainSlice {
            id: id_of_slice,
            key,
            plain,
        };
        let (object, slices) = self
            .write_slices(id, ObjectClass::BLOCK, vec![slice], turn)
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
    pub(in crate::blocks) async fn write_slices(
        self: &Arc<Self>,
        id: ObjectId,
        class: ObjectClass,
        slices: Vec<PlainSlice>,
        turn: u32,
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
        // A compressed slice takes no more of the stream than an uncompressed one.
        let slices: Vec<_> = slices.into_iter().map(|slice| (slice, None)).collect();
        let most = end(&place(id, &slices).ok_or_else(too_long)?);
        let most = Layout::new(most, self.clouds.config().policy.data()).stored_length(0);
        let clouds = u64::from(self.clouds.config().policy.clouds());
        let squeezed = match self.config.compression {
            Compression::Off => 0,
            Compression::Zstd => plain_bytes,
        };
        let held = plain_bytes + squeezed + most * clouds;
        let _memory = self.clouds.hold(held).await?;

        let slices = self.squeeze(slices).await?;
        let placed = place(id, &slices).ok_or_else(too_long)?;
        let sealed = end(&placed);
        let new = self.describe(id, class, sealed, turn)?;
        let bodies = self.seal(&new, &placed, slices).await?;
        let new = self.put_object(new, bodies).await?;
        self.clouds.counters().bytes_written.add(plain_bytes);
        Ok((new, placed))
    }

    /// Writes an object with a previously sealed stream.
    pub(in crate::blocks) async fn write_sealed(
        self: &Arc<Self>,
        id: ObjectId,
        class: ObjectClass,
        stream: Bytes,
    ) -> Result<NewObject, BlockError> {
        let sealed = u32::try_from(stream.len()).unwrap_or(u32::MAX);
        let new = self.describe(id, class, sealed, id.counter)?;
        let shards = u64::from(new.shard_length) * u64::from(self.clouds.config().policy.clouds());
        let _memory = self.clouds.hold(u64::from(sealed) + shards).await?;
        let bodies = self
            .code_shards(&new, move |layout, code, headers, buffers| {
                encode_sealed(layout, code, headers, &stream, buffers)
            })
            .await?;
        self.put_object(new, bodies).await
    }

    /// An object without any shard yet.
    fn describe(
        &self,
        id: ObjectId,
        class: ObjectClass,
        sealed: u32,
        turn: u32,
    ) -> Result<NewObject, BlockError> {
        let stored = Layout::new(sealed, self.clouds.config().policy.data()).stored_length(0);
        let shard_length = u32::try_from(stored).map_err(|_| BlockError::Length {
            what: "an object",
            length: u64::from(sealed),
            most: u64::from(OBJECT_BYTES_MAX),
        })?;
        Ok(NewObject {
            id,
            class,
            policy: self.clouds.config().policy,
            length: sealed,
            shard_length,
            shards: self.clouds.spread(turn),
        })
    }

    /// Puts the shards of an object; returns it as a commit names it.
    async fn put_object(
        self: &Arc<Self>,
        mut new: NewObject,
        bodies: Vec<ShardBytes>,
    ) -> Result<NewObject, BlockError> {
        for (shard, made) in new.shards.iter_mut().zip(&bodies) {
            shard.digest = made.digest;
        }
        for placed in self
            .put_quorum(Arc::new(StoredObject::of_new(&new)?), bodies)
            .await?
        {
            if let Some(shard) = new.shards.get_mut(usize::from(placed.shard.0)) {
                shard.attempt = placed.attempt;
                shard.receipt = placed.receipt;
                shard.acknowledged = true;
            }
        }
        if self.clouds.is_sabotaged(Sabotage::CommittedBeforeQuorum) {
            for shard in &mut new.shards {
                shard.acknowledged = true;
            }
        }
        self.clouds.counters().objects_written.add(1);
        Ok(new)
    }

    /// Compresses slices where it gains something, if enabled; at most one task for each core.
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
        self.clouds.config().workers.run(squeeze).await
    }

    /// Seals slices and makes their object's shards.
    async fn seal(
        &self,
        new: &NewObject,
        placed: &[SealedSlice],
        slices: Vec<Squeezable>,
    ) -> Result<Vec<ShardBytes>, BlockError> {
        let (volume, sealing) = (self.clouds.config().volume, self.config.sealing);
        let mut sealables = Vec::with_capacity(slices.len());
        for ((slice, squeezed), placed) in slices.into_iter().zip(placed) {
            let cipher = SliceCipher::of(&slice.key, volume, placed, sealing)?;
            sealables.push((cipher, slice.plain, squeezed));
        }
        self.code_shards(new, move |layout, code, headers, buffers| {
            let contents: Vec<_> = sealables
                .iter()
                .map(|(cipher, plain, squeezed)| Content {
                    cipher,
                    plain,
                    squeezed: squeezed.as_ref(),
                })
                .collect();
            encode(layout, code, headers, &contents, buffers)
        })
        .await
    }

    /// Makes an object's shards; at most one task for each core.
    async fn code_shards(
        &self,
        new: &NewObject,
        make: impl FnOnce(
            Layout,
            &Code,
            &[HeaderBytes],
            &Buffers,
        ) -> Result<Vec<ShardBytes>, BlockError>
        + Send
        + 'static,
    ) -> Result<Vec<ShardBytes>, BlockError> {
        let object = StoredObject::of_new(new)?;
        let headers = self.clouds.headers(&object);
        let code = self.clouds.code(new.policy)?;
        let turn = Arc::clone(&self.sealers)
            .acquire_owned()
            .await
            .map_err(|_| BlockError::Shut)?;
        let buffers = self.clouds.buffers().clone();
        let make = move || {
            let made = make(object.layout(), &code, &headers, &buffers);
            drop(turn);
            made
        };
        self.clouds.config().workers.run(make).await?
    }
}
