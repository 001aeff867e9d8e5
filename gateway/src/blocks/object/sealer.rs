//! Sealing and opening without clouds: the shards of a slice as bytes, for benchmarks and tools.

use super::buffers::{Buffers, PlainBuffers};
use super::code::Code;
use super::compress::{Compression, Squeezed};
use super::error::{BlockError, Failures};
use super::header::HeaderBytes;
use super::layout::Layout;
use super::naming::CloudKeys;
use super::open::{Cells, open_whole};
use super::positions::check;
use super::segment::{SliceCipher, sealed_length};
use super::shard::{cells_range, check_cells, encode};
use super::stored::{SealedSlice, StoredObject};
use super::stream::Content;
use crate::keys::{CloudSecret, Sealing, SliceKey};
use bytes::Bytes;
use quorumfs_bft::identity::Digest;
use quorumfs_metadata::identity::{CloudIndex, Codec, ObjectClass, ObjectId, SliceId, VolumeId};
use quorumfs_metadata::operation::NewObject;
use quorumfs_metadata::placement::{Policy, Shard};

/// Seals slices for the clouds with the given secrets.
#[derive(Debug)]
pub struct Sealer {
    volume: VolumeId,
    policy: Policy,
    keys: Vec<CloudKeys>,
    code: Code,
    buffers: Buffers,
    plain_buffers: PlainBuffers,
    compression: Compression,
}

/// A slice that begins with its object.
fn placed_alone(
    object: ObjectId,
    id: SliceId,
    length: u64,
    squeezed: Option<&Squeezed>,
) -> Result<SealedSlice, BlockError> {
    let too_long = || BlockError::Length {
        what: "a slice",
        length,
        most: u64::from(quorumfs_metadata::limits::SLICE_BYTES_MAX),
    };
    let length = u32::try_from(length).map_err(|_| too_long())?;
    let (codec, sealed) = match squeezed {
        None => (Codec::NONE, sealed_length(length)),
        Some(it) => (Codec::ZSTD, u32::try_from(it.index.sealed_length()).ok()),
    };
    Ok(SealedSlice {
        id,
        object,
        offset: 0,
        length,
        sealed_length: sealed.ok_or_else(too_long)?,
        codec,
    })
}

impl Sealer {
    /// A sealer for one volume and policy; a secret for each cloud.
    ///
    /// # Errors
    /// If the processor is too old or there are not as many secrets as clouds.
    pub fn new(
        volume: VolumeId,
        policy: Policy,
        secrets: &[CloudSecret],
    ) -> Result<Self, BlockError> {
        super::code::check_processor()?;
        if secrets.len() != usize::from(policy.clouds()) {
            let reason = "there is not one secret for each of them".to_owned();
            return Err(BlockError::Configuration { reason });
        }
        let keys = secrets.iter().map(CloudKeys::derive).collect();
        Ok(Self {
            volume,
            policy,
            keys,
            code: Code::new(policy)?,
            buffers: Buffers::new(32 << 20),
            plain_buffers: PlainBuffers::new(16 << 20),
            compression: Compression::Off,
        })
    }

    /// The same, with compression where it gains something.
    #[must_use]
    pub fn compressing(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// The n shards of a slice that is alone in its object, each with its digest.
    ///
    /// # Errors
    /// `Length` if the slice exceeds the capacity of an object.
    pub fn seal(
        &self,
        object: ObjectId,
        slice: SliceId,
        key: &SliceKey,
        plain: &[u8],
    ) -> Result<Vec<(Bytes, Digest)>, BlockError> {
        let (_, shards) = self.seal_slice(object, slice, key, plain)?;
        Ok(shards)
    }

    /// The same, with the metadata's description of the slice.
    ///
    /// # Errors
    /// As [`seal`](Self::seal).
    pub fn seal_slice(
        &self,
        object: ObjectId,
        id: SliceId,
        key: &SliceKey,
        plain: &[u8],
    ) -> Result<(SealedSlice, Vec<(Bytes, Digest)>), BlockError> {
        let squeezed = match self.compression {
            Compression::Off => None,
            Compression::Zstd => Squeezed::new(plain),
        };
        let slice = placed_alone(object, id, plain.len() as u64, squeezed.as_ref())?;
        let digests = vec![Digest([0; 32]); usize::from(self.policy.clouds())];
        let object = self.object(object, slice.sealed_length, &digests)?;
        let (layout, headers) = (object.layout(), self.headers(&object));
        let cipher = SliceCipher::of(key, self.volume, &slice, Sealing::On)?;
        let contents = [Content {
            cipher: &cipher,
            plain,
            squeezed: squeezed.as_ref(),
        }];
        let shards = encode(layout, &self.code, &headers, &contents, &self.buffers)?;
        let shards = shards.into_iter().map(|shard| (shard.body, shard.digest));
        Ok((slice, shards.collect()))
    }

    /// The plaintext of an uncompressed slice of `length` bytes from its data shards, each proved
    /// cell by cell.
    ///
    /// # Errors
    /// `TooFewShards` if any of them does not have its digest; `Forged` if they are not the
    /// slice's.
    pub fn open(
        &self,
        object: ObjectId,
        slice: SliceId,
        key: &SliceKey,
        length: u32,
        shards: &[(Bytes, Digest)],
    ) -> Result<Bytes, BlockError> {
        let slice = placed_alone(object, slice, u64::from(length), None)?;
        self.open_slice(&slice, key, shards)
    }

    /// The plaintext of a slice that is alone in its object, as [`open`](Self::open).
    ///
    /// # Errors
    /// As [`open`](Self::open); `SealedWrong` if the slice was compressed wrong; `Row` if its
    /// lengths contradict each other.
    pub fn open_slice(
        &self,
        slice: &SealedSlice,
        key: &SliceKey,
        shards: &[(Bytes, Digest)],
    ) -> Result<Bytes, BlockError> {
        let digests: Vec<Digest> = shards.iter().map(|(_, digest)| *digest).collect();
        let object = self.object(slice.object, slice.sealed_length, &digests)?;
        check(slice).map_err(|reason| BlockError::Row {
            object: slice.object,
            reason,
        })?;
        let (layout, headers) = (object.layout(), self.headers(&object));
        let mut cells = Cells::new();
        for ((shard, (body, digest)), header) in (0..layout.data()).zip(shards).zip(&headers) {
            let rows = 0..layout.shard_cells(shard);
            let range = cells_range(layout, shard, &rows);
            let within = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(body.len());
            let bytes = body.slice(within(range.start)..within(range.end));
            let checked = check_cells(layout, shard, &rows, header, digest, &bytes);
            let checked = checked.ok_or_else(|| BlockError::TooFewShards {
                object: object.id(),
                good: usize::try_from(shard).unwrap_or(usize::MAX),
                wanted: usize::from(self.policy.data()),
                writer: None,
                passing: false,
                failures: Failures(vec![format!("shard {shard} does not have its digest")]),
            })?;
            cells.extend(
                (0..)
                    .zip(checked)
                    .map(|(row, cell)| (row * layout.data() + shard, cell)),
            );
        }
        let cipher = SliceCipher::of(key, self.volume, slice, Sealing::On)?;
        open_whole(cells, slice, cipher, self.plain_buffers.clone())
    }

    fn object(
        &self,
        id: ObjectId,
        sealed: u32,
        digests: &[Digest],
    ) -> Result<StoredObject, BlockError> {
        let too_long = || BlockError::Length {
            what: "a slice",
            length: u64::from(sealed),
            most: u64::from(quorumfs_metadata::limits::SLICE_BYTES_MAX),
        };
        let stored = Layout::new(sealed, self.policy.data()).stored_length(0);
        let shards = (0..self.policy.clouds()).zip(digests);
        let shards = shards.map(|(cloud, digest)| Shard {
            digest: *digest,
            cloud: CloudIndex(cloud),
            attempt: 0,
            acknowledged: false,
            withdrawn: false,
            receipt: None,
            coded_for: None,
        });
        StoredObject::of_new(&NewObject {
            id,
            class: ObjectClass::BLOCK,
            policy: self.policy,
            length: sealed,
            shard_length: u32::try_from(stored).map_err(|_| too_long())?,
            shards: shards.collect(),
        })
    }

    fn headers(&self, object: &StoredObject) -> Vec<HeaderBytes> {
        let numbered = self.keys.iter().enumerate();
        numbered
            .filter_map(|(i, keys)| Some(object.header(self.volume, i)?.encode(keys)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Secret;
    use quorumfs_metadata::identity::AllocationId;

    #[test]
    fn sealed_shards_open_and_a_flipped_bit_is_refused() {
        let policy = Policy::new(4, 1, 2, 4).unwrap();
        let secrets = [0; 4].map(|i| CloudSecret::from_secret(Secret::from_bytes([i; 32])));
        let sealer =
            Sealer::new(quorumfs_bft::identity::ClusterId([1; 16]), policy, &secrets).unwrap();
        let key = SliceKey::from_secret(Secret::from_bytes([9; 32]));
        let (allocation, counter) = (AllocationId(1), 2);
        let (object, slice) = (
            ObjectId {
                allocation,
                counter,
            },
            SliceId {
                allocation,
                counter,
            },
        );
        for length in [0, 1, 65_536, 300_000] {
            let plain: Vec<u8> = (0..length).map(|i| i as u8).collect();
            let mut shards = sealer.seal(object, slice, &key, &plain).unwrap();
            let opened = sealer
                .open(object, slice, &key, length as u32, &shards)
                .unwrap();
            assert_eq!(opened, plain);
            let mut body = shards[0].0.to_vec();
            let last = body.len() - 1;
            body[last] ^= 1;
            shards[0].0 = body.into();
            let error = sealer.open(object, slice, &key, length as u32, &shards);
            assert!(
                matches!(error, Err(BlockError::TooFewShards { .. })),
                "{error:?}"
            );
        }
    }
}
