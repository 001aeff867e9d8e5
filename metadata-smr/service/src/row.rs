//! The rows of the servers, one struct for each kind.
//!
//! A row's value is a version byte and the struct in borsh ([`Row::to_bytes`]); [`key`] lays out
//! its key by hand. Sealed values are opaque here. Rows contain no path, so a tree can be moved by
//! changing one of them.
//!
//! | Module | Rows |
//! |---|---|
//! | [`volume`] | format, clouds, their drain, homes and counters |
//! | [`realm`] | realm, epoch, member, mount |
//! | [`principal`] | principal, its number, expiry and wrapped secrets, session, allocation |
//! | [`inode`] | inode, directory entry, orphan |
//! | [`extended`] | extended attribute |
//! | [`content`] | extent, slice, object, slices of packs, queues over objects, the reap queue |
//! | [`quota`] | usage and quotas of a realm and its users |
//! | [`evidence`] | faults of clouds |
//! | [`log`] | what was changed in a realm, and its bell |
//! | [`lock`] | locks across mounts, and those that wait for them |
//! | [`grave`] | inodes without a name that some mount may have open |
//! | [`job`] | jobs of the volume, retained points in the past |
//! | [`trash`] | what was removed and can be restored |
//! | [`share`] | what users have shared |

pub mod content;
pub mod evidence;
pub mod extended;
pub mod grave;
pub mod inode;
pub mod job;
pub mod key;
pub mod lock;
pub mod log;
pub mod principal;
pub mod quota;
pub mod realm;
pub mod share;
pub mod trash;
pub mod volume;

pub use content::{
    Extent, Object, PackedSlice, Reap, Slice, SliceKey, SliceSalt, Sparse, UnderReplicated,
    Unreferenced,
};
pub use evidence::{Evidence, EvidenceCount, FaultKind, Verdict};
pub use extended::ExtendedAttribute;
pub use grave::{Grave, GravePlace};
pub use inode::{
    Content, EntryRow, FileBody, Inline, Inode, InodeBody, Orphan, Reseal, Sealed, SealedName,
};
pub use job::{Job, JobHolder, Retention, RetentionKind};
pub use lock::{DueTurn, HeldLock, LockTurn, LockWaiter, LockedInode, LockedInodes};
pub use log::{Bell, Changed, Changes, OwedBell};
pub use principal::{
    Allocation, Assertable, CloudSecretRow, DueExpiry, DueInvitation, FormerPrincipal, Invitation,
    Machine, Numbered, PeopleChanges, Principal, Rights, Session, SignedBy,
};
pub use quota::{Amount, Limit, RealmQuota, Resource, UserQuota};
pub use realm::{
    Believe, Epoch, Lock, Member, MemberRole, Mount, MountMode, OldKeys, Realm, Recall, SharePlace,
    Shares,
};
pub use share::{Share, ShareAt, ShareCount, ShareIndexed, ShareNumbers, ShareWith};
pub use trash::{Parting, RemovedEntry, TrashPlace, TrashSize, Trashed};
pub use volume::{Cloud, Counters, Drain, Format, HomeCounters, Loading, ReplicaInfo};

use crate::codec::{self, DecodeError};
use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_bft::state::VALUE_BYTES_MAX;

/// A value with a version byte before it.
pub trait Row: BorshSerialize + BorshDeserialize {
    /// The name that an operator reads when such a row is damaged.
    const NAME: &'static str;

    /// The row's bytes.
    fn to_bytes(&self) -> Vec<u8> {
        codec::encode(self)
    }

    /// Reads a row's bytes.
    ///
    /// # Errors
    /// If they are of a newer version or do not follow the layout.
    fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        codec::decode(bytes, VALUE_BYTES_MAX)
    }
}

macro_rules! rows {
    ($($row:ty => $name:literal),* $(,)?) => {
        $(impl Row for $row {
            const NAME: &'static str = $name;
        })*
    };
}

rows! {
    Format => "format",
    Counters => "counters",
    HomeCounters => "home counters",
    Loading => "state of a recovery",
    Cloud => "cloud",
    Drain => "drain",
    Realm => "realm",
    Epoch => "key epoch",
    Member => "realm member",
    OldKeys => "end of the previous key epoch",
    Mount => "mount",
    Changes => "end of a change log",
    Changed => "entry of a change log",
    Bell => "bell",
    OwedBell => "bell that is owed",
    HeldLock => "lock",
    LockWaiter => "waiter for a lock",
    DueTurn => "turn of a waiter",
    LockedInode => "locked inode",
    LockedInodes => "count of locked inodes",
    Grave => "grave",
    GravePlace => "place in the grave",
    Principal => "principal",
    Numbered => "principal's number",
    CloudSecretRow => "wrapped secret of a cloud",
    PeopleChanges => "number of changes of the principals",
    DueExpiry => "expiry of a principal",
    FormerPrincipal => "former principal",
    Machine => "further machine of a member",
    Invitation => "invitation of a machine",
    DueInvitation => "end of an invitation",
    Session => "session",
    Allocation => "allocation",
    Inode => "inode",
    EntryRow => "directory entry",
    Reseal => "directory with names to reseal",
    Orphan => "orphan",
    ExtendedAttribute => "extended attribute",
    Extent => "extent",
    Slice => "slice",
    Object => "object",
    UnderReplicated => "under-replicated object",
    Unreferenced => "unreferenced object",
    PackedSlice => "slice of a pack",
    Sparse => "sparse pack",
    Reap => "reap queue",
    Evidence => "evidence",
    EvidenceCount => "count of evidence",
    RealmQuota => "realm quota",
    UserQuota => "user quota",
    JobHolder => "holder of a job",
    Retention => "retained point",
    Trashed => "inode in the trash",
    TrashPlace => "place in the trash",
    Parting => "removal of an open inode",
    TrashSize => "size of the trash",
    Share => "share",
    ShareAt => "place of a share",
    ShareIndexed => "index of shares",
    ShareNumbers => "numbers of shares",
    ShareCount => "count of shares",
}
