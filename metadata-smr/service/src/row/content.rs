//! Extents over slices over objects, and the queues that follow from them.
//!
//! An *extent* maps a run of a file to a run of a slice; a *slice* is a run of plaintext under one
//! data key; an *object* is what is coded into shards. A slice counts the extents that name it; an
//! object counts the sealed bytes of its slices that are named. An object whose count falls to zero
//! is queued: it may be deleted physically once its allocation is closed and nothing else (a
//! snapshot, a retained checkpoint) needs it, which a collector decides by order.
//!
//! A *pack* is an object that holds slices of several files. It lists them, so that those which
//! live can be moved when most of it is dead; a pack of which that is so is queued too.

use crate::identity::{
    Codec, Home, InodeId, ObjectClass, ObjectId, PrincipalNumber, RealmEpoch, SliceId,
};
use crate::placement::{Policy, Shard};
use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_bft::identity::{Sequence, SessionId, Time};

/// A run of a file. Where in the file it *ends* is in the key, so that a scan from an offset finds
/// the extent that covers it first; it begins `length` bytes before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Extent {
    /// Which slice.
    pub slice: SliceId,
    /// Where in the slice's plaintext it begins.
    pub slice_offset: u32,
    /// How many bytes.
    pub length: u32,
    /// Reserved by `fallocate` and never written: reads as zeros.
    pub unwritten: bool,
}

/// Random bytes of a slice's writer that its data key depends on, besides its id. Ids are the
/// servers' to give, and servers that were put back to a copy, or that lie, give one twice: two
/// plaintexts never have one key for that.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct SliceSalt(pub [u8; 16]);

/// How a slice's data key is found.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum SliceKey {
    /// Derived from the realm epoch's key, the slice's id and what its writer drew for it.
    Derived {
        /// Under which.
        epoch: RealmEpoch,
        /// What the writer drew.
        salt: SliceSalt,
    },
    /// Wrapped under the realm epoch's key, after a copy between realms.
    Wrapped {
        /// Under which.
        epoch: RealmEpoch,
        /// The wrapping.
        bytes: Vec<u8>,
    },
}

/// A run of plaintext under one data key.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Slice {
    /// The object that it lies in.
    pub object: ObjectId,
    /// Where in the object's sealed stream it begins.
    pub offset: u32,
    /// Bytes of plaintext.
    pub length: u32,
    /// Bytes of sealed stream.
    pub sealed_length: u32,
    /// How it was made smaller.
    pub codec: Codec,
    /// How its key is found.
    pub key: SliceKey,
    /// Extents that name it.
    pub references: u32,
}

/// Whether an object is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum ObjectState {
    /// Something refers to it, or may.
    Live,
    /// Condemned by order; its shards may be deleted.
    Condemned(Sequence),
}

/// What is coded into shards and kept on clouds.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Object {
    /// What it is for.
    pub class: ObjectClass,
    /// How it is spread.
    pub policy: Policy,
    /// Bytes of sealed stream.
    pub length: u32,
    /// Bytes of one shard as it is stored.
    pub shard_length: u32,
    /// Its n shards, data first.
    pub shards: Vec<Shard>,
    /// The session that brought it in. Sessions end.
    pub writer: SessionId,
    /// Whose session that was, for as long as the object lives.
    pub principal: PrincipalNumber,
    /// Whether another principal than that one has decoded it, coded it again, and found that every
    /// shard has its digest. Until then nobody but the writer's own principal believes anything of
    /// it without doing that.
    pub checked: bool,
    /// When it was brought in.
    pub committed: Time,
    /// Sealed bytes of it that are named by some extent.
    pub live_bytes: u64,
    /// Slices of it that exist.
    pub slices: u32,
    /// What keeps it although nothing refers to it.
    pub pins: u32,
    /// Whether it is needed.
    pub state: ObjectState,
}

impl Object {
    /// Shards that their clouds have acknowledged.
    #[must_use]
    pub fn acknowledged(&self) -> usize {
        self.shards
            .iter()
            .filter(|shard| shard.acknowledged)
            .count()
    }

    /// Acknowledged shards beyond the k that rebuild it: how many more may be lost.
    #[must_use]
    pub fn spare(&self) -> u8 {
        let spare = self
            .acknowledged()
            .saturating_sub(usize::from(self.policy.data()));
        u8::try_from(spare).unwrap_or(u8::MAX)
    }

    /// A slice of so many sealed bytes lies in it from now on.
    pub(crate) fn gain(&mut self, sealed_length: u32) {
        self.slices = self.slices.saturating_add(1);
        self.live_bytes = self.live_bytes.saturating_add(u64::from(sealed_length));
    }

    /// A slice of so many sealed bytes lies in it no more.
    pub(crate) fn lose(&mut self, sealed_length: u32) {
        self.slices = self.slices.saturating_sub(1);
        self.live_bytes = self.live_bytes.saturating_sub(u64::from(sealed_length));
    }

    /// Whether it is a pack of which less than half is needed. To move what is needed then frees
    /// more than it writes: whatever becomes sparse again and again, moving never doubles what is
    /// written, and packs never take more than twice what is needed of them for long.
    #[must_use]
    pub fn is_sparse(&self) -> bool {
        self.class == ObjectClass::PACK
            && self.state == ObjectState::Live
            && self.slices > 0
            && self.live_bytes.saturating_mul(2) < u64::from(self.length)
    }

    /// Whether shards are still missing at its target.
    #[must_use]
    pub fn is_under_replicated(&self) -> bool {
        self.acknowledged() < usize::from(self.policy.target())
    }
}

/// An object with fewer shards acknowledged than its policy wants. Its priority and id are in the
/// key: the fewer spare shards, the earlier.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct UnderReplicated {
    /// Since when.
    pub since: Time,
}

/// An object that nothing refers to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Unreferenced {
    /// Since which batch.
    pub since: Sequence,
}

/// Where in a pack a slice lies that is in it. Pack and slice are in the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct PackedSlice {
    /// Where in the pack's sealed stream it begins.
    pub offset: u32,
    /// Bytes of sealed stream.
    pub sealed_length: u32,
}

/// A pack of which less than half is needed; see [`Object::is_sparse`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Sparse {
    /// Since when. One that was just brought in has slices that are not committed yet.
    pub since: Time,
}

/// Work that was too large for the operation that caused it.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Reap {
    /// Delete all extents of an inode that is gone.
    Content {
        /// Which one.
        inode: InodeId,
        /// When it was queued.
        since: Time,
    },
    /// Delete the extents of a living inode that a truncation left dead.
    Tail {
        /// Which one.
        inode: InodeId,
        /// When it was queued.
        since: Time,
    },
    /// Drop references to slices.
    Slices {
        /// Where the slices' rows lie.
        home: Home,
        /// Which, and how many references of each.
        dropped: Vec<(SliceId, u32)>,
        /// When it was queued.
        since: Time,
    },
    /// Delete the orphans of a session that has ended.
    Orphans {
        /// Which session.
        session: SessionId,
        /// When it was queued.
        since: Time,
    },
    /// Delete the extended attributes of an inode that is gone.
    Extended {
        /// Which one.
        inode: InodeId,
        /// When it was queued.
        since: Time,
    },
}

impl Reap {
    /// When it was queued.
    #[must_use]
    pub const fn since(&self) -> Time {
        match self {
            Self::Content { since, .. }
            | Self::Tail { since, .. }
            | Self::Slices { since, .. }
            | Self::Orphans { since, .. }
            | Self::Extended { since, .. } => *since,
        }
    }
}
