//! Extents over slices over objects, and the queues derived from them.
//!
//! An *extent* maps a run of a file to a run of a slice; a *slice* is a run of plaintext under one
//! data key; an *object* is coded into shards. A slice counts the extents that name it; an object
//! counts the sealed bytes of its referenced slices. An object whose count falls to zero is queued:
//! its shards may be deleted once its allocation is closed, since nothing can name it again then,
//! and no retained point in the past needs it.
//!
//! A *pack* is an object that holds slices of several files. It lists them, so that the live ones
//! can be moved when most of it is dead; such a pack is queued too.

use crate::identity::{
    Codec, Home, InodeId, MountEpoch, ObjectClass, ObjectId, PrincipalNumber, RealmEpoch, RealmId,
    SliceId,
};
use crate::placement::{Policy, Shard};
use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_bft::identity::{Sequence, SessionId, Time};

/// A run of a file. Its *end* in the file is in the key, so that a scan from an offset finds the
/// extent that covers it first; it begins `length` bytes before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Extent {
    /// The slice.
    pub slice: SliceId,
    /// Its offset in the slice's plaintext.
    pub slice_offset: u32,
    /// The number of bytes.
    pub length: u32,
    /// Whether it was reserved by `fallocate` and never written: it then reads as zeros.
    pub unwritten: bool,
}

/// Random bytes of a slice's writer. The data key depends on them and on the slice's id. The
/// servers assign ids, and servers that were restored from a copy, or that lie, may assign one
/// twice: even then two plaintexts never share a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct SliceSalt(pub [u8; 16]);

/// The source of a slice's data key.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum SliceKey {
    /// Derived from the key of a realm's key epoch, the slice's id and the writer's random bytes.
    Derived {
        /// The realm.
        realm: RealmId,
        /// The key epoch.
        epoch: RealmEpoch,
        /// The writer's random bytes.
        salt: SliceSalt,
    },
    /// Wrapped under the key of a realm's key epoch, after a copy between realms.
    Wrapped {
        /// The realm.
        realm: RealmId,
        /// The key epoch.
        epoch: RealmEpoch,
        /// The wrapping.
        bytes: Vec<u8>,
    },
}

/// A run of plaintext under one data key.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Slice {
    /// Its object.
    pub object: ObjectId,
    /// Its offset in the object's sealed stream.
    pub offset: u32,
    /// Bytes of plaintext.
    pub length: u32,
    /// Bytes of sealed stream.
    pub sealed_length: u32,
    /// Its compression.
    pub codec: Codec,
    /// The sources of its key, one for each realm that can read it: exactly one so far.
    pub keys: Vec<SliceKey>,
    /// Extents that name it.
    pub references: u32,
}

impl Slice {
    /// The source of its key; `None` if there are several, which this program does not know.
    #[must_use]
    pub fn key(&self) -> Option<&SliceKey> {
        match self.keys.as_slice() {
            [key] => Some(key),
            _ => None,
        }
    }

    /// The newest key epoch that it is sealed under.
    #[must_use]
    pub fn epoch(&self) -> RealmEpoch {
        let epochs = self.keys.iter().map(SliceKey::epoch);
        epochs.max().unwrap_or_default()
    }
}

/// The unit that is coded into shards and stored on clouds.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Object {
    /// Its purpose.
    pub class: ObjectClass,
    /// Its spreading over clouds.
    pub policy: Policy,
    /// Bytes of sealed stream.
    pub length: u32,
    /// Bytes of one stored shard.
    pub shard_length: u32,
    /// Its n shards, data first.
    pub shards: Vec<Shard>,
    /// The session that created it. Sessions end.
    pub writer: SessionId,
    /// The principal of that session, for as long as the object lives.
    pub principal: PrincipalNumber,
    /// Whether another principal has decoded it, coded it again, and found that every shard has its
    /// digest. Until then only the writer's own principal trusts its shards without doing that.
    pub checked: bool,
    /// The time of its creation.
    pub committed: Time,
    /// The batch of its creation. A retained point in the past needs the object if it was created
    /// before that point and lost its last reference after it.
    pub born: Sequence,
    /// How often it was coded anew under another policy. Part of the names of its shards, so that
    /// shards of two codings never share one.
    pub generation: u8,
    /// Its sealed bytes that some extent refers to.
    pub live_bytes: u64,
    /// Slices of it that exist.
    pub slices: u32,
}

impl Object {
    /// The number of shards that their clouds have acknowledged.
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

    /// Adds a slice of so many sealed bytes.
    pub(crate) fn gain(&mut self, sealed_length: u32) {
        self.slices = self.slices.saturating_add(1);
        self.live_bytes = self.live_bytes.saturating_add(u64::from(sealed_length));
    }

    /// Removes a slice of so many sealed bytes.
    pub(crate) fn lose(&mut self, sealed_length: u32) {
        self.slices = self.slices.saturating_sub(1);
        self.live_bytes = self.live_bytes.saturating_sub(u64::from(sealed_length));
    }

    /// Whether it is a pack of which less than half is needed. Moving the needed part then frees
    /// more than it writes: even if packs become sparse again and again, moving never doubles the
    /// written bytes, and packs never take more than twice their needed bytes for long.
    #[must_use]
    pub fn is_sparse(&self) -> bool {
        self.class == ObjectClass::PACK
            && self.slices > 0
            && self.live_bytes.saturating_mul(2) < u64::from(self.length)
    }

    /// Whether it lacks shards of its target.
    #[must_use]
    pub fn is_under_replicated(&self) -> bool {
        self.acknowledged() < usize::from(self.policy.target())
    }
}

/// An object with fewer acknowledged shards than its policy requires. Its priority and id are in
/// the key: the fewer spare shards, the earlier.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct UnderReplicated {
    /// Since when.
    pub since: Time,
}

/// An object without references.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Unreferenced {
    /// The batch since which it has none.
    pub since: Sequence,
    /// That batch's time.
    pub at: Time,
}

/// The place of a slice in its pack. Pack and slice are in the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct PackedSlice {
    /// Its offset in the pack's sealed stream.
    pub offset: u32,
    /// Bytes of sealed stream.
    pub sealed_length: u32,
}

/// A pack of which less than half is needed; see [`Object::is_sparse`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Sparse {
    /// Since when. A new pack has slices that are not committed yet.
    pub since: Time,
}

/// Work that is too large for the operation that caused it.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Reap {
    /// Deletes all extents of a deleted inode.
    Content {
        /// The inode.
        inode: InodeId,
        /// When it was queued.
        since: Time,
    },
    /// Deletes the extents of a live inode that a truncation left dead.
    Tail {
        /// The inode.
        inode: InodeId,
        /// When it was queued.
        since: Time,
    },
    /// Drops references to slices.
    Slices {
        /// The home of the slices' rows.
        home: Home,
        /// The slices, with the number of dropped references of each.
        dropped: Vec<(SliceId, u32)>,
        /// When it was queued.
        since: Time,
    },
    /// Deletes the orphans of a session that has ended.
    Orphans {
        /// The session.
        session: SessionId,
        /// When it was queued.
        since: Time,
    },
    /// Deletes the extended attributes of a deleted inode.
    Extended {
        /// The inode.
        inode: InodeId,
        /// When it was queued.
        since: Time,
    },
    /// Deletes the locks of a mount that has ended, and what it waited for.
    Locks {
        /// The session.
        session: SessionId,
        /// The realm.
        realm: RealmId,
        /// The mount's number.
        mount: MountEpoch,
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
            | Self::Extended { since, .. }
            | Self::Locks { since, .. } => *since,
        }
    }
}
