//! What a link says of an object.

use crate::blocks::object::{
    BlockError, HEADER_BYTES, HeaderBytes, SealedSlice, StoredObject, check,
};
use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_bft::identity::Digest;
use quorumfs_metadata::identity::ObjectId;
use quorumfs_metadata::limits::SLICE_BYTES_MAX;
use quorumfs_metadata::placement::Policy;

/// The most bytes that all shards of an object may have: far more than any of ours.
const SHARDS_BYTES_MAX: u64 = 512 << 20;

/// A shard of a linked object.
#[derive(Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct LinkedShard {
    /// The Merkle root over its header and cells.
    pub digest: Digest,
    /// Its header, as it is stored.
    pub header: HeaderBytes,
    /// Where it can be read; `None` if its cloud gives no such URL, or does not have it. A secret.
    pub url: Option<String>,
}

impl std::fmt::Debug for LinkedShard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LinkedShard")
            .field("digest", &self.digest)
            .field("has_url", &self.url.is_some())
            .finish_non_exhaustive()
    }
}

/// An object that can be read without an account.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct LinkedObject {
    /// Its id, for messages.
    pub id: ObjectId,
    /// Its spreading over clouds.
    pub policy: Policy,
    /// Bytes of its sealed stream.
    pub length: u32,
    /// Its n shards, data first.
    pub shards: Vec<LinkedShard>,
}

const _: () = assert!(HEADER_BYTES == 83);

impl LinkedObject {
    /// The same as the metadata describe an object.
    ///
    /// # Errors
    /// If its numbers contradict each other.
    pub(super) fn stored(&self) -> Result<StoredObject, BlockError> {
        let digests = self.shards.iter().map(|shard| shard.digest);
        StoredObject::linked(self.id, self.policy, self.length, digests)
    }

    /// Checks that a slice may lie in it, and that both are of a size that we write.
    ///
    /// # Errors
    /// What cannot be.
    pub fn check(&self, slice: &SealedSlice) -> Result<(), &'static str> {
        let payload = u64::from(self.length).div_ceil(u64::from(self.policy.data()));
        let all = payload.saturating_mul(u64::from(self.policy.clouds()));
        if all > SHARDS_BYTES_MAX {
            return Err("an object is larger than any that this program writes");
        }
        if !(1..=SLICE_BYTES_MAX).contains(&slice.length) {
            return Err("a slice is larger than any that this program writes, or empty");
        }
        let end = slice.offset.checked_add(slice.sealed_length);
        if slice.object != self.id || end.is_none_or(|end| end > self.length) {
            return Err("a slice lies beyond its object");
        }
        check(slice)
    }

    pub(super) fn headers(&self) -> Vec<HeaderBytes> {
        self.shards.iter().map(|shard| shard.header).collect()
    }

    /// How many shards have a URL.
    #[must_use]
    pub fn linked(&self) -> usize {
        self.shards
            .iter()
            .filter(|shard| shard.url.is_some())
            .count()
    }
}
