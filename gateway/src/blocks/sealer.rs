//! Sealing without clouds: the shards of a slice as bytes, for benchmarks and tools.

use super::buffers::Buffers;
use super::code::Code;
use super::error::BlockError;
use super::header::HeaderBytes;
use super::layout::Layout;
use super::naming::CloudKeys;
use super::object::StoredObject;
use super::segment::{SliceCipher, sealed_length};
use super::shard::encode;
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
        })
    }

    /// The n shards of a slice that is alone in its object, each with its digest.
    ///
    /// # Errors
    /// `Length` if the slice exceeds what an object can hold.
    pub fn seal(
        &self,
        object: ObjectId,
        slice: SliceId,
        key: &SliceKey,
        plain: &[u8],
    ) -> Result<Vec<(Bytes, Digest)>, BlockError> {
        let too_long = || BlockError::Length {
            what: "a slice",
            length: plain.len() as u64,
            most: u64::from(quorumfs_metadata::limits::SLICE_BYTES_MAX),
        };
        let length = u32::try_from(plain.len()).map_err(|_| too_long())?;
        let sealed = sealed_length(length).ok_or_else(too_long)?;
        let layout = Layout::new(sealed, self.policy.data());
        let shard = |cloud| Shard {
            digest: Digest([0; 32]),
            cloud: CloudIndex(cloud),
            attempt: 0,
            acknowledged: false,
        };
        let object = StoredObject::of_new(&NewObject {
            id: object,
            class: ObjectClass::BLOCK,
            policy: self.policy,
            length: sealed,
            shard_length: u32::try_from(layout.stored_length(0)).map_err(|_| too_long())?,
            shards: (0..self.policy.clouds()).map(shard).collect(),
        })?;
        let headers: Vec<HeaderBytes> = self
            .keys
            .iter()
            .enumerate()
            .filter_map(|(i, keys)| Some(object.header(self.volume, i)?.encode(keys)))
            .collect();
        let cipher = SliceCipher::new(key, self.volume, slice, length, Codec::NONE, Sealing::On)?;
        let shards = encode(layout, &self.code, &headers, &cipher, plain, &self.buffers)?;
        Ok(shards
            .into_iter()
            .map(|shard| (shard.body, shard.digest))
            .collect())
    }
}
