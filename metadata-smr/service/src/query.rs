//! What a client asks about. Queries change nothing and see one state.
//!
//! Whatever may be long comes in pages: a query names the last place that was seen and a bound.

use crate::attributes::{Access, Credentials};
use crate::codec::{self, DecodeError};
use crate::identity::{
    CloudIndex, Cookie, Home, InodeId, ObjectId, PrincipalNumber, RealmEpoch, RealmId, SliceId, Uid,
};
use crate::limits::QUERY_BYTES_MAX;
use crate::operation::EntryPlace;
use borsh::{BorshDeserialize, BorshSerialize};

/// A question on behalf of somebody. Answered by an [`Answer`](crate::reply::Answer).
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Query {
    /// On whose behalf.
    pub credentials: Credentials,
    /// What.
    pub question: Question,
}

/// A question.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Question {
    /// Where an entry leads; takes search permission on the directory.
    Lookup(EntryPlace),
    /// What `stat` shows of an inode.
    Attributes(InodeId),
    /// Whether the caller may do all of this to an inode.
    Access {
        /// The inode.
        inode: InodeId,
        /// What.
        access: Access,
    },
    /// Entries behind a cookie, in the order of cookies, with their attributes; takes read
    /// permission on the directory, or an open handle on it.
    Directory {
        /// The directory.
        inode: InodeId,
        /// The last cookie that was seen; [`Cookie::START`] for the beginning.
        after: Cookie,
        /// At most so many; at most [`DIRECTORY_PAGE_MAX`](crate::limits::DIRECTORY_PAGE_MAX).
        limit: u32,
        /// Permission was checked when the directory was opened.
        by_handle: bool,
    },
    /// A symlink's target.
    Symlink(InodeId),
    /// Where a file's bytes are, from an offset on; takes what a handle open for reading takes.
    Content {
        /// The file.
        inode: InodeId,
        /// From here: the extent that covers it comes first.
        from: u64,
        /// Up to here, exclusive.
        to: u64,
        /// At most so many extents; at most [`EXTENT_PAGE_MAX`](crate::limits::EXTENT_PAGE_MAX).
        limit: u32,
    },
    /// Counts for `statfs`.
    Usage(RealmId),
    /// One object.
    Object(ObjectId),
    /// Objects whose shards are not all acknowledged, the most endangered first.
    UnderReplicated {
        /// The last one that was seen, with its priority.
        after: Option<(u8, ObjectId)>,
        /// At most so many; at most [`QUEUE_PAGE_MAX`](crate::limits::QUEUE_PAGE_MAX).
        limit: u32,
    },
    /// Objects that nothing refers to.
    Unreferenced {
        /// The last one that was seen.
        after: Option<ObjectId>,
        /// At most so many; at most [`QUEUE_PAGE_MAX`](crate::limits::QUEUE_PAGE_MAX).
        limit: u32,
    },
    /// Inodes that this session holds open without an entry.
    Orphans {
        /// The last one that was seen.
        after: Option<InodeId>,
        /// At most so many; at most [`QUEUE_PAGE_MAX`](crate::limits::QUEUE_PAGE_MAX).
        limit: u32,
    },
    /// The volume's format and clouds.
    Volume,
    /// A realm with its epochs, this principal's membership, and who has it mounted.
    Realm(RealmId),
    /// This session and its principal.
    WhoAmI,
    /// All objects with their rows, in the order of their ids.
    Objects {
        /// The last one that was seen.
        after: Option<ObjectId>,
        /// At most so many; at most [`QUEUE_PAGE_MAX`](crate::limits::QUEUE_PAGE_MAX).
        limit: u32,
    },
    /// Packs of which less than half is needed, in the order of their ids.
    SparsePacks {
        /// The last one that was seen.
        after: Option<ObjectId>,
        /// At most so many; at most [`QUEUE_PAGE_MAX`](crate::limits::QUEUE_PAGE_MAX).
        limit: u32,
    },
    /// The slices that lie in a pack; none in an object that is no pack, or is not there.
    PackedSlices {
        /// Which pack.
        pack: ObjectId,
        /// The last one that was seen.
        after: Option<(Home, SliceId)>,
        /// At most so many; at most [`QUEUE_PAGE_MAX`](crate::limits::QUEUE_PAGE_MAX).
        limit: u32,
    },
    /// Whose a principal's number is.
    Principal(PrincipalNumber),
    /// What is kept of what a cloud was found to have done wrong, the oldest first: at most
    /// [`EVIDENCE_PER_CLOUD`](crate::limits::EVIDENCE_PER_CLOUD) findings.
    Evidence(CloudIndex),
    /// The epochs of a realm just before one.
    Epochs {
        /// Of which realm.
        realm: RealmId,
        /// Before which.
        before: RealmEpoch,
        /// At most so many; at most [`EPOCHS_PAGE_MAX`](crate::limits::EPOCHS_PAGE_MAX).
        limit: u32,
    },
    /// Who is a member of a realm.
    Members(RealmId),
    /// How many slices are sealed under which epoch, counted piece by piece in the order of their
    /// ids. Content in inodes, names and symlink targets are not among them.
    SlicesByEpoch {
        /// The last slice that was looked at.
        after: Option<(Home, SliceId)>,
        /// Look at so many; at most [`SLICES_COUNTED_MAX`](crate::limits::SLICES_COUNTED_MAX).
        limit: u32,
    },
    /// All extended attributes of an inode that the principal may know of: `trusted` ones if it
    /// may speak for the superuser, values of `user` ones if it may read the inode. And its access
    /// control lists.
    Extended(InodeId),
    /// What a realm and one of its users have and may have; about a user whom the principal may
    /// speak for, or with the right to administer.
    Quota {
        /// Which realm.
        realm: RealmId,
        /// Which user.
        uid: Uid,
    },
    /// What a realm and its users have and may have, users in the order of their numbers; takes
    /// the right to administer. One who has nothing and no limit of his own is not among them.
    Quotas {
        /// Which realm.
        realm: RealmId,
        /// The last user that was seen.
        after: Option<Uid>,
        /// At most so many; at most [`QUOTA_PAGE_MAX`](crate::limits::QUOTA_PAGE_MAX).
        limit: u32,
    },
    /// Who has a realm mounted, and how often others have changed something in it since.
    Mounted(RealmId),
    /// Which principals were replaced.
    Successions,
}

impl Query {
    /// The query's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        codec::encode(self)
    }

    /// Reads a query's bytes.
    ///
    /// # Errors
    /// If they are too many, of a newer version, or do not follow the layout.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        codec::decode(bytes, QUERY_BYTES_MAX)
    }
}
