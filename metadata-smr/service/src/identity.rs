//! The identifiers of metadata, as types.
//!
//! Inode numbers carry their *home*, the partition that they were created in, so that rows can be
//! found without the realm, and realms can change without renumbering. Object and slice ids carry
//! the allocation that they were granted in, so that ownership is a comparison.

use crate::limits::COOKIE_COLLISIONS_MAX;
use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_bft::number;
use std::fmt;

/// A principal's identity is its Ed25519 key.
pub type PrincipalId = quorumfs_bft::identity::PublicKey;
/// A volume's id is its cluster's.
pub type VolumeId = quorumfs_bft::identity::ClusterId;

number! {
    /// A partition of the metadata; everything is in home 0 until there are several leaders.
    Home(u16)
}
number! {
    /// An inode's number: volume-unique, never reused, home (16 bits) ‖ counter (48 bits), which
    /// begins with the incarnation (8 bits) that created the inode.
    InodeId(u64)
}
number! {
    /// The scope of key epochs, members and policy.
    RealmId(u32)
}
number! {
    /// A realm's key epoch, counted from 0. A directory's generation of names is the key epoch that
    /// they are sealed under.
    RealmEpoch(u32)
}
number! {
    /// A range of object and slice ids that one session may use; never reused. It begins with the
    /// incarnation (16 bits) that granted it.
    AllocationId(u64)
}
number! {
    /// A principal's index in the volume's list; never reused. Rows that name a principal for each
    /// object use it.
    PrincipalNumber(u32)
}
number! {
    /// A share's number; never reused.
    ShareId(u64)
}
number! {
    /// A user's number in the kernel.
    Uid(u32)
}
number! {
    /// A group's number in the kernel.
    Gid(u32)
}
number! {
    /// A device's number, as the kernel encodes it for user space.
    DeviceNumber(u32)
}
number! {
    /// A cloud's index in the volume's list; never reused.
    CloudIndex(u8)
}
number! {
    /// A shard's index in its object's code: data shards first, then parity.
    ShardIndex(u8)
}
number! {
    /// The purpose of an object; part of its name and its header.
    ObjectClass(u8)
}
number! {
    /// The compression of a slice before encryption; 0 is none.
    Codec(u8)
}
number! {
    /// Counts the changes of one inode.
    InodeVersion(u64)
}
number! {
    /// Counts the mounts of one realm.
    MountEpoch(u64)
}
number! {
    /// A position in a realm's change log, counted from 1; 0 is before the first entry.
    LogPosition(u64)
}
number! {
    /// Counts the recoveries of a volume from its clouds. Ids carry it, because a recovery begins
    /// from an older state: without it, ids would be assigned a second time.
    VolumeIncarnation(u8)
}

impl VolumeIncarnation {
    /// The first allocation's id, and the number before the first session's: incarnation (16 bits)
    /// ‖ counter (48 bits).
    #[must_use]
    pub const fn first_id(self) -> u64 {
        (self.0 as u64) << 48
    }

    /// The number before that of the first share: incarnation times a thousand million, which
    /// people can still type.
    #[must_use]
    pub const fn before_shares(self) -> u64 {
        (self.0 as u64).saturating_mul(1_000_000_000)
    }

    /// The first counter of an inode in any home.
    #[must_use]
    pub const fn first_inode(self) -> u64 {
        (self.0 as u64) << InodeId::INCARNATION_SHIFT
    }

    /// The incarnation of an inode's counter.
    #[must_use]
    pub const fn of_inode(counter: u64) -> Self {
        Self((counter >> InodeId::INCARNATION_SHIFT) as u8)
    }
}

impl ObjectClass {
    /// An object that holds one or several slices of a file.
    pub const BLOCK: Self = Self(1);
    /// An object that holds small slices of several files. It lists them, so that they can be moved
    /// when little of it is still needed.
    pub const PACK: Self = Self(2);
    /// The shares of a secret, one on each cloud: what lock 2 of a realm's key epoch needs in
    /// addition to a member's key. No object row has this class; the epoch's row has the places of
    /// the shares.
    pub const SHARE: Self = Self(3);
    /// Rows of the metadata, backed up on the clouds for a recovery without servers.
    pub const BACKUP: Self = Self(4);
    /// A recovery point: it names the objects of a backup. A whole copy is on each cloud.
    pub const BACKUP_ROOT: Self = Self(5);
    /// The record that an incarnation of the volume has begun. A whole copy is on each cloud.
    pub const INCARNATION: Self = Self(6);
}

impl Codec {
    /// Not compressed.
    pub const NONE: Self = Self(0);
    /// Zstandard, segment by segment.
    pub const ZSTD: Self = Self(1);
}

impl Uid {
    /// The user with all privileges of Linux's superuser over files.
    pub const ROOT: Self = Self(0);
}

impl RealmId {
    /// The realm of a new volume.
    pub const ROOT: Self = Self(0);
}

impl InodeId {
    /// The root directory of the root realm; the number that FUSE gives to a mount's root.
    pub const ROOT: Self = Self(1);
    /// The largest counter within a home.
    pub const COUNTER_MAX: u64 = (1 << 48) - 1;
    /// The bits of a counter below its incarnation: enough for 1,000 new inodes a second for 34
    /// years.
    const INCARNATION_SHIFT: u32 = 40;

    /// The inode `counter` of `home`; `None` if the counter does not fit 48 bits.
    #[must_use]
    pub const fn new(home: Home, counter: u64) -> Option<Self> {
        if counter > Self::COUNTER_MAX {
            return None;
        }
        Some(Self((home.0 as u64) << 48 | counter))
    }

    /// The partition that the inode was created in.
    #[must_use]
    pub const fn home(self) -> Home {
        Home((self.0 >> 48) as u16)
    }

    /// The inode's number within its home.
    #[must_use]
    pub const fn counter(self) -> u64 {
        self.0 & Self::COUNTER_MAX
    }
}

macro_rules! allocated {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default,
            BorshSerialize, BorshDeserialize,
        )]
        pub struct $name {
            /// The allocation that the id was granted in.
            pub allocation: AllocationId,
            /// Its number there, from 0.
            pub counter: u32,
        }

        impl $name {
            /// Allocation ‖ counter, big-endian: the form in keys and names.
            #[must_use]
            pub fn to_be_bytes(self) -> [u8; 12] {
                let mut bytes = [0; 12];
                let (allocation, counter) = bytes.split_at_mut(8);
                allocation.copy_from_slice(&self.allocation.0.to_be_bytes());
                counter.copy_from_slice(&self.counter.to_be_bytes());
                bytes
            }

            /// Reads what [`Self::to_be_bytes`] wrote; `None` if the length is wrong.
            #[must_use]
            pub fn from_be_bytes(bytes: &[u8]) -> Option<Self> {
                let (allocation, counter) = bytes.split_first_chunk::<8>()?;
                Some(Self {
                    allocation: AllocationId(u64::from_be_bytes(*allocation)),
                    counter: u32::from_be_bytes(counter.try_into().ok()?),
                })
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}.{}", self.allocation, self.counter)
            }
        }
    };
}

allocated! {
    /// The unit of storage, which is coded into shards.
    ObjectId
}
impl ObjectId {
    /// The id of objects that are written when a volume is founded, before servers can grant ids.
    /// No allocation has this number.
    pub const FOUNDING: Self = Self {
        allocation: AllocationId(u64::MAX),
        counter: 0,
    };
}

allocated! {
    /// The unit of encryption: a run of a file's bytes under one data key.
    SliceId
}

/// A directory entry's place: 60 bits of a keyed hash of its name ‖ 3 bits that distinguish
/// collisions. Positive as a signed number, stable, and the position from which `readdir`
/// continues.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Debug,
    Default,
    BorshSerialize,
    BorshDeserialize,
)]
pub struct Cookie(pub u64);

impl Cookie {
    /// Before the first entry.
    pub const START: Self = Self(0);
    /// The entry `.`, which has no row.
    pub const SELF: Self = Self(1);
    /// The entry `..`, which has no row.
    pub const PARENT: Self = Self(2);

    /// The first place for a name whose keyed hash is `prf` (its low 60 bits count). The hash 0
    /// shares the place of 1, because the numbers below 8 are reserved.
    #[must_use]
    pub const fn from_prf(prf: u64) -> Self {
        let hash = prf & ((1 << 60) - 1);
        Self(if hash == 0 { 8 } else { hash << 3 })
    }

    /// The place without the bits that distinguish collisions.
    #[must_use]
    pub const fn base(self) -> Self {
        Self(self.0 & !(COOKIE_COLLISIONS_MAX - 1))
    }

    /// Whether this can be the first place of a name.
    #[must_use]
    pub const fn is_base(self) -> bool {
        self.0 >= COOKIE_COLLISIONS_MAX && self.0 >> 63 == 0 && self.0 == self.base().0
    }
}

/// The place of an extended attribute among those of its inode and namespace: a keyed hash of its
/// name, bound to both, so that names cannot be compared between inodes without the key.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize,
)]
pub struct AttributeHash(pub [u8; 16]);

impl AttributeHash {
    /// The place of the only name that a namespace has.
    pub const ONLY: Self = Self([0; 16]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_inode_is_the_kernels_root() {
        assert_eq!(InodeId::new(Home(0), 1), Some(InodeId::ROOT));
        let far = InodeId::new(Home(7), 9).expect("fits");
        assert_eq!((far.home(), far.counter()), (Home(7), 9));
        assert_eq!(InodeId::new(Home(0), 1 << 48), None);
    }

    #[test]
    fn every_hash_gives_a_place_that_is_no_reserved_one() {
        for prf in [0, 1, u64::MAX, 1 << 60, (1 << 60) - 1] {
            let cookie = Cookie::from_prf(prf);
            assert!(cookie.is_base(), "{cookie:?}");
            assert!(cookie.0 > Cookie::PARENT.0 && cookie.0 <= i64::MAX as u64);
        }
    }

    #[test]
    fn ids_sort_as_their_bytes_do() {
        let low = ObjectId {
            allocation: AllocationId(1),
            counter: u32::MAX,
        };
        let high = ObjectId {
            allocation: AllocationId(2),
            counter: 0,
        };
        assert!(low < high && low.to_be_bytes() < high.to_be_bytes());
        assert_eq!(ObjectId::from_be_bytes(&low.to_be_bytes()), Some(low));
        assert_eq!(ObjectId::from_be_bytes(&[0; 11]), None);
    }
}
