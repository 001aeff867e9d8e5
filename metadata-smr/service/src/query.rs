//! Queries of clients. They change nothing and see one state.
//!
//! Long results come in pages: a query has the last place of the previous page and a bound.

use crate::attributes::{Access, Credentials};
use crate::codec::{self, DecodeError};
use crate::identity::{
    CloudIndex, Cookie, Home, InodeId, LogPosition, ObjectId, PrincipalId, PrincipalNumber,
    RealmEpoch, RealmId, ShareId, SliceId, Uid,
};
use crate::limits::QUERY_BYTES_MAX;
use crate::locks::{LockKind, LockRange};
use crate::operation::EntryPlace;
use crate::row::key::LockPlace;
use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_bft::identity::Time;

/// A question for a caller. Answered by an [`Answer`](crate::reply::Answer).
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Query {
    /// The caller.
    pub credentials: Credentials,
    /// The question.
    pub question: Question,
}

/// Which shares a question is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum SharesOf {
    /// Those of the caller's user.
    Mine,
    /// Those with a person, for every member. Of those that the caller has no part in, the place is
    /// not shown.
    With(PrincipalNumber),
    /// All of them: for the superuser and administrators.
    All,
}

/// A question.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Question {
    /// The inode of an entry; needs search permission on the directory.
    Lookup(EntryPlace),
    /// The attributes of an inode.
    Attributes(InodeId),
    /// Whether the caller has all of this access to an inode.
    Access {
        /// The inode.
        inode: InodeId,
        /// The access.
        access: Access,
    },
    /// Entries after a cookie, in the order of cookies, with their attributes; needs read
    /// permission on the directory, or an open handle on it.
    Directory {
        /// The directory.
        inode: InodeId,
        /// The last cookie of the previous page; [`Cookie::START`] for the beginning.
        after: Cookie,
        /// The bound, at most [`DIRECTORY_PAGE_MAX`](crate::limits::DIRECTORY_PAGE_MAX).
        limit: u32,
        /// Whether permission was checked when the directory was opened.
        by_handle: bool,
    },
    /// A symlink's target.
    Symlink(InodeId),
    /// The extents of a file from an offset on; needs the rights of a handle open for reading.
    Content {
        /// The file.
        inode: InodeId,
        /// The beginning: the extent that covers it comes first.
        from: u64,
        /// The end, exclusive.
        to: u64,
        /// The bound of extents, at most [`EXTENT_PAGE_MAX`](crate::limits::EXTENT_PAGE_MAX).
        limit: u32,
    },
    /// Counts for `statfs`.
    Usage(RealmId),
    /// One object.
    Object(ObjectId),
    /// Objects with unacknowledged shards, the most endangered first.
    UnderReplicated {
        /// The last one of the previous page, with its priority.
        after: Option<(u8, ObjectId)>,
        /// The bound, at most [`QUEUE_PAGE_MAX`](crate::limits::QUEUE_PAGE_MAX).
        limit: u32,
    },
    /// Objects without references.
    Unreferenced {
        /// The last one of the previous page.
        after: Option<ObjectId>,
        /// The bound, at most [`QUEUE_PAGE_MAX`](crate::limits::QUEUE_PAGE_MAX).
        limit: u32,
    },
    /// Inodes that this session holds open without an entry.
    Orphans {
        /// The last one of the previous page.
        after: Option<InodeId>,
        /// The bound, at most [`QUEUE_PAGE_MAX`](crate::limits::QUEUE_PAGE_MAX).
        limit: u32,
    },
    /// The volume's format and clouds.
    Volume,
    /// A realm with its key epochs, this principal's membership, and its mount.
    Realm(RealmId),
    /// This session and its principal.
    WhoAmI,
    /// All objects with their rows, in the order of their ids.
    Objects {
        /// The last one of the previous page.
        after: Option<ObjectId>,
        /// The bound, at most [`QUEUE_PAGE_MAX`](crate::limits::QUEUE_PAGE_MAX).
        limit: u32,
    },
    /// Packs of which less than half is needed, in the order of their ids.
    SparsePacks {
        /// The last one of the previous page.
        after: Option<ObjectId>,
        /// The bound, at most [`QUEUE_PAGE_MAX`](crate::limits::QUEUE_PAGE_MAX).
        limit: u32,
    },
    /// The slices in a pack; none in an object that is not a pack, or does not exist.
    PackedSlices {
        /// The pack.
        pack: ObjectId,
        /// The last one of the previous page.
        after: Option<(Home, SliceId)>,
        /// The bound, at most [`QUEUE_PAGE_MAX`](crate::limits::QUEUE_PAGE_MAX).
        limit: u32,
    },
    /// The principal of a number.
    Principal(PrincipalNumber),
    /// The recorded faults of a cloud, oldest first: at most
    /// [`EVIDENCE_PER_CLOUD`](crate::limits::EVIDENCE_PER_CLOUD) findings.
    Evidence(CloudIndex),
    /// The key epochs of a realm just before one.
    Epochs {
        /// The realm.
        realm: RealmId,
        /// The first epoch that is not included.
        before: RealmEpoch,
        /// The bound, at most [`EPOCHS_PAGE_MAX`](crate::limits::EPOCHS_PAGE_MAX).
        limit: u32,
    },
    /// The members of a realm.
    Members(RealmId),
    /// The number of slices that are sealed under each key epoch, counted in pages in the order of
    /// their ids. Content in inodes, names and symlink targets are not included.
    SlicesByEpoch {
        /// The last slice of the previous page.
        after: Option<(Home, SliceId)>,
        /// The number of slices to count; at most
        /// [`SLICES_COUNTED_MAX`](crate::limits::SLICES_COUNTED_MAX).
        limit: u32,
    },
    /// All extended attributes of an inode that the principal may know of: `trusted` ones if it may
    /// act for the superuser, values of `user` ones if it may read the inode; and its access
    /// control lists.
    Extended(InodeId),
    /// The usage and quotas of a realm and one of its users; of a user for whom the principal may
    /// act, or with the right to administer.
    Quota {
        /// The realm.
        realm: RealmId,
        /// The user.
        uid: Uid,
    },
    /// The usage and quotas of a realm and its users, in the order of their numbers; needs the
    /// right to administer. Users without usage and limit are not included.
    Quotas {
        /// The realm.
        realm: RealmId,
        /// The last user of the previous page.
        after: Option<Uid>,
        /// The bound, at most [`QUOTA_PAGE_MAX`](crate::limits::QUOTA_PAGE_MAX).
        limit: u32,
    },
    /// The caller's mount of a realm, or else another one, the oldest session's.
    Mounted(RealmId),
    /// The principals that were replaced.
    Successions,
    /// What the metadata know of ids that a cloud's listing showed; needs the right to reconcile.
    Fates {
        /// The ids, at most [`FORGET_OBJECTS_MAX`](crate::limits::FORGET_OBJECTS_MAX).
        objects: Vec<ObjectId>,
    },
    /// The clouds' secrets that are wrapped for this principal: one for each cloud, at most
    /// [`CLOUDS_MAX`](crate::limits::CLOUDS_MAX).
    CloudSecrets,
    /// The retained points, with their numbers.
    Retained,
    /// The trash of a realm, what was removed first first: what the caller owns or removed, and all
    /// of it for the superuser.
    Trash {
        /// The realm.
        realm: RealmId,
        /// The last place of the previous page.
        after: Option<(Time, InodeId)>,
        /// The bound of places to look at, at most
        /// [`TRASH_PAGE_MAX`](crate::limits::TRASH_PAGE_MAX).
        limit: u32,
    },
    /// What was removed from a directory and is in the trash, in the order of numbers; the
    /// directory may itself be there.
    TrashedIn {
        /// The directory.
        directory: InodeId,
        /// The last inode of the previous page.
        after: Option<InodeId>,
        /// The bound, at most [`TRASH_PAGE_MAX`](crate::limits::TRASH_PAGE_MAX).
        limit: u32,
    },
    /// One inode in the trash.
    Trashed(InodeId),
    /// The size of a realm's trash, and how long it is kept.
    TrashSize(RealmId),
    /// The changes of the clouds, which of them take new shards, and how far the others are
    /// drained.
    CloudChanges {
        /// The number of the last change that is not included.
        after: u32,
    },
    /// What other sessions have changed in a realm, of a session that has it mounted; others get
    /// [`Error::NotMounted`](crate::error::Error::NotMounted).
    ///
    /// A watch of this question tells when the bell rings: at the latest a hundredth of a second
    /// and a tick after a change by another session, and when a mount begins or ends. Until it
    /// rings the answer stays the same, whatever is changed meanwhile.
    News {
        /// The realm.
        realm: RealmId,
        /// The position up to which everything is known: that of the last answer, or at first the
        /// one at which the mount began; `None`: nothing is known.
        after: Option<LogPosition>,
    },
    /// All mounts of a realm, in the order of their sessions.
    Mounts(RealmId),
    /// What is in the way of a lock that an owner of the caller's session would ask for now: a lock
    /// that is held, or a request that waits.
    Lock {
        /// The inode.
        inode: InodeId,
        /// The kind.
        kind: LockKind,
        /// The kernel's number of the owner.
        owner: u64,
        /// The bytes.
        range: LockRange,
        /// Whether the lock would be exclusive.
        exclusive: bool,
    },
    /// The locks of a realm, in the order of their inodes.
    Locks {
        /// The realm.
        realm: RealmId,
        /// The last place of the previous page.
        after: Option<LockPlace>,
        /// The bound of places to look at, at most
        /// [`LOCK_PAGE_MAX`](crate::limits::LOCK_PAGE_MAX).
        limit: u32,
    },
    /// The changes of the principals, in order: at most
    /// [`PEOPLE_PAGE_MAX`](crate::limits::PEOPLE_PAGE_MAX) of them.
    People {
        /// The number of the last change that is not included.
        after: u32,
    },
    /// The directories that have names under older key epochs than the newest, in pages in the
    /// order of the inodes.
    NamesByEpoch {
        /// The realm.
        realm: RealmId,
        /// The last inode of the previous page.
        after: Option<InodeId>,
        /// The number of inodes to look at, at most
        /// [`INODES_LOOKED_AT_MAX`](crate::limits::INODES_LOOKED_AT_MAX).
        limit: u32,
    },
    /// The names of a directory that are under older key epochs than the newest, in the order of
    /// their positions. Needs the right to administer or to reconcile, and no permission.
    NamesToReseal {
        /// The directory.
        directory: InodeId,
        /// The last position of the previous page.
        after: Cookie,
        /// The number of entries to look at, at most
        /// [`DIRECTORY_PAGE_MAX`](crate::limits::DIRECTORY_PAGE_MAX).
        limit: u32,
    },
    /// The slices that are sealed under older key epochs than the newest, in pages in the order of
    /// their ids. Needs the right to reconcile.
    SlicesToReseal {
        /// The realm.
        realm: RealmId,
        /// The last slice of the previous page.
        after: Option<(Home, SliceId)>,
        /// The number of slices to look at; at most
        /// [`SLICES_COUNTED_MAX`](crate::limits::SLICES_COUNTED_MAX). A page has at most
        /// [`MOVE_SLICES_MAX`](crate::limits::MOVE_SLICES_MAX).
        limit: u32,
    },
    /// Shares, in the order of their numbers.
    Shares {
        /// Which ones.
        of: SharesOf,
        /// The last one of the previous page.
        after: Option<ShareId>,
        /// The bound, at most [`SHARE_PAGE_MAX`](crate::limits::SHARE_PAGE_MAX).
        limit: u32,
    },
    /// The share of a link by the hash of its token, unless it has ended.
    ShareOfToken([u8; 32]),
    /// An invitation of a machine by its key: for the member that made it, and for the holder of
    /// the key, which is no principal.
    Invitation(PrincipalId),
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
