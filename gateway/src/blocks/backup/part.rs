//! A part of a backup as its point names it: all that it takes to read it.

use crate::blocks::object::{BlockError, SealedSlice, StoredObject};
use crate::keys::{Secret, SliceKey};
use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_bft::identity::Digest;
use quorumfs_metadata::identity::{CloudIndex, Codec, ObjectClass, ObjectId, SliceId};
use quorumfs_metadata::operation::NewObject;
use quorumfs_metadata::placement::{Policy, Shard};
use std::fmt;

/// A part of a backup. It holds the part's key, so it must not be shown.
#[derive(Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct BackupPart {
    /// Its id.
    pub object: ObjectId,
    /// How it is spread.
    pub policy: Policy,
    /// Bytes of sealed stream.
    pub sealed_length: u32,
    /// Bytes of one stored shard.
    pub shard_length: u32,
    /// Bytes of plaintext.
    pub length: u32,
    /// Its compression.
    pub codec: Codec,
    /// Its key, of which nothing else is sealed.
    pub key: [u8; 32],
    /// Its shards, data first.
    pub shards: Vec<PartShard>,
}

/// The place of a part's shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct PartShard {
    /// Its cloud.
    pub cloud: CloudIndex,
    /// The number of its name.
    pub attempt: u8,
    /// The digest of its bytes.
    pub digest: Digest,
    /// Whether it was read back.
    pub confirmed: bool,
}

impl fmt::Debug for BackupPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackupPart")
            .field("object", &self.object)
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

impl BackupPart {
    /// Bytes of all its shards on the clouds.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        u64::from(self.shard_length) * self.shards.len() as u64
    }

    pub(super) fn of(new: &NewObject, slice: &SealedSlice, key: &Secret) -> Self {
        let shard = |shard: &Shard| PartShard {
            cloud: shard.cloud,
            attempt: shard.attempt,
            digest: shard.digest,
            confirmed: shard.acknowledged,
        };
        Self {
            object: new.id,
            policy: new.policy,
            sealed_length: new.length,
            shard_length: new.shard_length,
            length: slice.length,
            codec: slice.codec,
            key: *key.expose(),
            shards: new.shards.iter().map(shard).collect(),
        }
    }

    /// The same as the block store reads it.
    pub(in crate::blocks) fn opened(
        &self,
    ) -> Result<(StoredObject, SealedSlice, SliceKey), BlockError> {
        let shard = |shard: &PartShard| Shard {
            digest: shard.digest,
            cloud: shard.cloud,
            attempt: shard.attempt,
            acknowledged: shard.confirmed,
            withdrawn: false,
            receipt: None,
            coded_for: None,
        };
        let object = StoredObject::of_new(&NewObject {
            id: self.object,
            class: ObjectClass::BACKUP,
            policy: self.policy,
            length: self.sealed_length,
            shard_length: self.shard_length,
            shards: self.shards.iter().map(shard).collect(),
        })?;
        let slice = SealedSlice {
            id: slice_of(self.object),
            object: self.object,
            offset: 0,
            length: self.length,
            sealed_length: self.sealed_length,
            codec: self.codec,
        };
        let key = SliceKey::from_secret(Secret::from_bytes(self.key));
        Ok((object, slice, key))
    }
}

/// The id of the only slice of a part.
pub(super) fn slice_of(object: ObjectId) -> SliceId {
    SliceId {
        allocation: object.allocation,
        counter: object.counter,
    }
}
