//! An object as its metadata describes it: everything that reading, completing and repairing it
//! needs.

use super::error::BlockError;
use super::header::Header;
use super::layout::Layout;
use super::naming::Named;
use super::writer::Writer;
use quorumfs_bft::identity::{Digest, SessionId};
use quorumfs_metadata::identity::{
    CloudIndex, ObjectClass, ObjectId, ShardIndex, SliceId, VolumeId,
};
use quorumfs_metadata::operation::{NewObject, NewSlice, PlacedShard};
use quorumfs_metadata::placement::{MovedClaim, Policy, Shard};
use quorumfs_metadata::row::{self, SliceKey};
use quorumfs_metadata::{identity::Codec, limits::OBJECT_BYTES_MAX};

/// An object: its row with its id, checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredObject {
    id: ObjectId,
    class: ObjectClass,
    policy: Policy,
    length: u32,
    shards: Vec<Shard>,
    generation: u8,
    writer: Writer,
    checked: bool,
}

/// The result of [`BlockStore::write`](crate::blocks::BlockStore::write), to be named by a commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stored {
    /// The object, with the acknowledgements that arrived in time.
    pub object: NewObject,
    /// The slice in it.
    pub slice: SealedSlice,
}

/// A slice in its object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SealedSlice {
    /// Its id.
    pub id: SliceId,
    /// Its object.
    pub object: ObjectId,
    /// Its position in the object's stream.
    pub offset: u32,
    /// Bytes of plaintext.
    pub length: u32,
    /// Bytes of sealed stream.
    pub sealed_length: u32,
    /// Its compression.
    pub codec: Codec,
}

impl SealedSlice {
    /// The slice of a row.
    #[must_use]
    pub fn of_row(id: SliceId, row: &row::Slice) -> Self {
        Self {
            id,
            object: row.object,
            offset: row.offset,
            length: row.length,
            sealed_length: row.sealed_length,
            codec: row.codec,
        }
    }

    /// The slice as a commit names it, with the data to find its key.
    #[must_use]
    pub fn into_new(self, key: SliceKey) -> NewSlice {
        NewSlice {
            id: self.id,
            object: self.object,
            offset: self.offset,
            length: self.length,
            sealed_length: self.sealed_length,
            codec: self.codec,
            keys: vec![key],
        }
    }
}

impl StoredObject {
    /// The object of a row.
    ///
    /// # Errors
    /// If the row's numbers contradict each other: it comes from servers of which some may lie.
    pub fn of_row(id: ObjectId, row: &row::Object) -> Result<Self, BlockError> {
        // No ordered row has session 0: it means that this session has just written the object.
        let is_foreign = row.writer != SessionId(0);
        let object = Self {
            id,
            class: row.class,
            policy: row.policy,
            length: row.length,
            shards: row.shards.clone(),
            generation: row.generation,
            writer: Writer {
                session: row.writer,
                principal: is_foreign.then_some(row.principal),
                name: None,
            },
            checked: row.checked,
        };
        object.sensible(row.shard_length)
    }

    /// An object that is about to be committed.
    ///
    /// # Errors
    /// As [`of_row`](Self::of_row).
    pub fn of_new(new: &NewObject) -> Result<Self, BlockError> {
        let object = Self {
            id: new.id,
            class: new.class,
            policy: new.policy,
            length: new.length,
            shards: new.shards.clone(),
            generation: 0,
            writer: Writer::default(),
            checked: false,
        };
        object.sensible(new.shard_length)
    }

    /// An object that is read by a link, which gives the digests of its shards.
    ///
    /// # Errors
    /// As [`of_row`](Self::of_row).
    pub(in crate::blocks) fn linked(
        id: ObjectId,
        policy: Policy,
        length: u32,
        digests: impl Iterator<Item = Digest>,
    ) -> Result<Self, BlockError> {
        let shard = |digest, cloud| Shard {
            digest,
            cloud,
            attempt: 0,
            acknowledged: true,
            withdrawn: false,
            receipt: None,
            coded_for: None,
        };
        let object = Self {
            id,
            class: ObjectClass::BLOCK,
            policy,
            length,
            shards: digests
                .zip((0..=u8::MAX).map(CloudIndex))
                .map(|(digest, cloud)| shard(digest, cloud))
                .collect(),
            generation: 0,
            writer: Writer::default(),
            checked: false,
        };
        let shard_length = object.layout().stored_length(0);
        object.sensible(u32::try_from(shard_length).unwrap_or(u32::MAX))
    }

    fn sensible(self, shard_length: u32) -> Result<Self, BlockError> {
        let id = self.id;
        let wrong = |reason| Err(BlockError::Row { object: id, reason });
        if self.length == 0 || self.length > OBJECT_BYTES_MAX {
            return wrong("its length is impossible");
        }
        if self.shards.len() != usize::from(self.policy.clouds()) {
            return wrong("it does not have as many shards as its policy has clouds");
        }
        if self.layout().stored_length(0) != u64::from(shard_length) {
            return wrong("its shards' length does not follow from its own");
        }
        Ok(self)
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// The writer.
    #[must_use]
    pub fn writer(&self) -> Writer {
        self.writer.clone()
    }

    /// Whether another principal's consistency check of it was ordered.
    pub(in crate::blocks) fn is_checked(&self) -> bool {
        self.checked
    }

    /// The coding that its shards are of.
    pub(in crate::blocks) fn generation(&self) -> u8 {
        self.generation
    }

    /// Its shards, data first.
    #[must_use]
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    pub(in crate::blocks) fn policy(&self) -> Policy {
        self.policy
    }

    pub(in crate::blocks) fn length(&self) -> u32 {
        self.length
    }

    /// Stored bytes of all of its shards, headers included.
    pub(in crate::blocks) fn stored_bytes(&self) -> u64 {
        let layout = self.layout();
        (0..self.shards.len() as u64)
            .map(|shard| layout.stored_length(shard))
            .sum()
    }

    pub(in crate::blocks) fn layout(&self) -> Layout {
        Layout::new(self.length, self.policy.data())
    }

    pub(in crate::blocks) fn shard(&self, index: usize) -> Option<&Shard> {
        self.shards.get(index)
    }

    pub(in crate::blocks) fn digest(&self, index: usize) -> Option<&Digest> {
        self.shard(index).map(|shard| &shard.digest)
    }

    /// Gives a shard a later place, where it is acknowledged; a place before its own is ignored.
    pub(in crate::blocks) fn set_place(
        &mut self,
        index: usize,
        (cloud, attempt): (CloudIndex, u8),
    ) {
        if let Some(shard) = self.shards.get_mut(index)
            && attempt > shard.attempt
        {
            if cloud == shard.cloud {
                shard.attempt = attempt;
            } else {
                shard.move_to(cloud, attempt, MovedClaim::Acknowledged);
            }
        }
    }

    /// Moves a shard to the next attempt on another cloud, where nothing is acknowledged.
    pub(in crate::blocks) fn relocate(&mut self, index: usize, to: CloudIndex) {
        if let Some(shard) = self.shards.get_mut(index) {
            let attempt = shard.attempt.saturating_add(1);
            shard.move_to(to, attempt, MovedClaim::Awaited);
        }
    }

    /// Withdraws a cloud's acknowledgement.
    pub(in crate::blocks) fn withdraw(&mut self, index: usize) {
        if let Some(shard) = self.shards.get_mut(index) {
            shard.withdraw();
        }
    }

    /// The position of a shard, by its row.
    pub(in crate::blocks) fn placed(&self, index: usize) -> Option<PlacedShard> {
        self.shard(index).map(|shard| PlacedShard {
            object: self.id,
            shard: shard_index(index),
            cloud: shard.cloud,
            generation: self.generation,
            attempt: shard.attempt,
            receipt: None,
        })
    }

    pub(in crate::blocks) fn named(&self, index: usize, attempt: u8) -> Named {
        Named {
            object: self.id,
            class: self.class,
            shard: shard_index(index),
            attempt,
            generation: self.generation,
        }
    }

    pub(in crate::blocks) fn header(&self, volume: VolumeId, index: usize) -> Option<Header> {
        let shard = self.shard(index)?;
        Some(Header {
            volume,
            object: self.id,
            cloud: shard.header_cloud(),
            class: self.class,
            shard: shard_index(index),
            policy: self.policy,
            length: self.length,
        })
    }
}

/// A shard's index; policies have at most 32 clouds.
pub(in crate::blocks) fn shard_index(index: usize) -> ShardIndex {
    ShardIndex(u8::try_from(index).unwrap_or(u8::MAX))
}
