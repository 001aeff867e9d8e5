//! Ordered operations of clients.
//!
//! A [`Compound`] is atomic: its preconditions hold and all of its steps succeed, or nothing
//! changes and the reply gives the failed part and the reason. It acts for one caller, in the
//! gateway's time: [`Compound::time`] becomes atime and mtime where a step sets them; ctime is the
//! batch's, or, if all steps commit or set attributes, the gateway's if that is close to it.
//!
//! Steps see the state that earlier steps left. A step names inodes by number. It cannot name an
//! inode that an earlier step of the same compound created, because sealed names depend on the
//! number of their directory and the number is assigned at execution.
//!
//! An operation that would write more than [`ROWS_WRITTEN_MAX`](crate::limits::ROWS_WRITTEN_MAX)
//! rows is refused with [`Error::TooManyRows`](crate::error::Error::TooManyRows). Only a commit
//! over very many small extents gets there. Its sender splits it: an extent may name any part of a
//! slice, later commits may name slices that an earlier one created, and holes and clones can be
//! cut anywhere.

use crate::attributes::{Credentials, Mode, Timestamp};
use crate::codec::{self, DecodeError};
use crate::fleet::ChangeClouds;
use crate::identity::{
    AllocationId, CloudIndex, Codec, DeviceNumber, InodeId, InodeVersion, ObjectClass, ObjectId,
    PrincipalId, RealmEpoch, RealmId, SliceId,
};
use crate::limits::OPERATION_BYTES_MAX;
use crate::people::ChangePeople;
use crate::placement::{Policy, Shard};
use crate::row::{Epoch, Inline, Job, Member, MountMode, RetentionKind, Sealed, SliceKey};
use crate::succession::Succeed;
use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_bft::identity::Sequence;

mod attributes;
mod extended;
mod invite;
mod locks;
mod place;
mod quota;
mod reseal;
mod shards;
mod share;
mod takeover;
mod trash;

pub use attributes::{Accessed, SetAttributes, SetTime};
pub use extended::{AttributePlace, SetAcl, SetExtended, SetMode};
pub use invite::InviteMachine;
pub use locks::{EndLocks, LockRequest, LockWish, StopWaiting};
pub use place::{EntryName, EntryPlace, Precondition};
pub use quota::{QuotaOf, SetQuota};
pub use reseal::{DirectoryNames, ResealNames, ResealSlices, ResealedName, ResealedSlice};
pub use shards::{Finding, PlacedShard, ShardMove, SliceMove};
pub use share::{ChangeShare, NewShare, NewShareWith};
pub use takeover::Takeover;
pub use trash::{KeepTrash, Restore};

/// An ordered operation. Answered by a [`Response`](crate::reply::Response).
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Operation {
    /// Steps that happen together or not at all.
    Compound(Compound),
    /// Grants ids for `count` objects and as many slices to the session.
    Allocate {
        /// At most [`ALLOCATION_IDS_MAX`](crate::limits::ALLOCATION_IDS_MAX).
        count: u32,
    },
    /// Returns an allocation: its unused ids are void from now on.
    CloseAllocation {
        /// The allocation.
        allocation: AllocationId,
    },
    /// Mounts the realm for the session.
    MountRealm {
        /// The realm.
        realm: RealmId,
        /// Whether sessions that have it mounted are fenced.
        takeover: Takeover,
        /// Whether others may mount it meanwhile. [`MountMode::Alone`] becomes
        /// [`MountMode::Shared`] if others share it already. The mount of a session can change from
        /// one to the other.
        mode: MountMode,
        /// The host, for people; at most [`LABEL_BYTES_MAX`](crate::limits::LABEL_BYTES_MAX).
        label: String,
    },
    /// Ends the mount.
    UnmountRealm {
        /// The realm.
        realm: RealmId,
    },
    /// Clouds have acknowledged shards that were missing, and objects were found to match their
    /// writers' description.
    ConfirmPlaced {
        /// The shards.
        shards: Vec<PlacedShard>,
        /// Objects that were decoded and coded again, so that all of their digests are known to be
        /// of one content; at most [`CHECKED_OBJECTS_MAX`](crate::limits::CHECKED_OBJECTS_MAX).
        /// Needs the right to reconcile; a principal cannot vouch for its own objects.
        checked: Vec<ObjectId>,
    },
    /// A shard was lost or is damaged: it is, or will be, put again elsewhere or under its next
    /// name.
    ReplacePlacement {
        /// The shard's new place. The attempt must be above the old one if the cloud is the same.
        shard: PlacedShard,
        /// Whether the new place has acknowledged it already.
        acknowledged: bool,
    },
    /// Withdraws acknowledgements: these shards are not on their clouds, or are not what was
    /// written. Their objects lack them from now on; a repair checks first, and uses the next name
    /// for shards that are really gone.
    WithdrawPlaced {
        /// The shards, at most [`WITHDRAW_SHARDS_MAX`](crate::limits::WITHDRAW_SHARDS_MAX). Shards
        /// that have moved are skipped.
        shards: Vec<PlacedShard>,
    },
    /// Slices of packs are in other packs from now on, byte for byte as they were sealed: ids, keys
    /// and codecs stay. Needs the right to reconcile, because the content is other writers'. A pack
    /// need not keep the slices that it loses: one that loses its last slice is unreferenced.
    MoveSlices {
        /// The realm whose policy spreads the new packs.
        realm: RealmId,
        /// The new packs, at most [`MOVE_OBJECTS_MAX`](crate::limits::MOVE_OBJECTS_MAX), under
        /// unused ids of the session's live allocations; or packs that it created before, as in a
        /// [`Commit`]. Packs without any moved slice are not created.
        objects: Vec<NewObject>,
        /// The slices, at most [`MOVE_SLICES_MAX`](crate::limits::MOVE_SLICES_MAX). Slices that are
        /// not there any more, because they were dropped or moved by others, are skipped.
        moves: Vec<SliceMove>,
    },
    /// Faults of a cloud. Needs the right to reconcile. Known findings and findings about deleted
    /// objects are skipped.
    Testify {
        /// The cloud.
        cloud: CloudIndex,
        /// The findings, at most [`TESTIFY_FINDINGS_MAX`](crate::limits::TESTIFY_FINDINGS_MAX).
        findings: Vec<Finding>,
    },
    /// Begins a key epoch, which seals everything in the realm from now on. Needs the right to
    /// administer. The same bytes again are the same success; see [`BeginEpoch`].
    BeginEpoch(BeginEpoch),
    /// Sets the quotas of a realm and its users. Needs the right to administer.
    SetQuota(SetQuota),
    /// Replaces a principal by another, under the volume root's signature. Needs the right to
    /// administer. The same bytes again are the same success.
    Succeed(Succeed),
    /// The shards of these objects were deleted on their clouds: their rows go. Needs the right to
    /// reconcile. Objects that are referenced, may be again, or are retained are skipped.
    Forget {
        /// The objects, at most [`FORGET_OBJECTS_MAX`](crate::limits::FORGET_OBJECTS_MAX).
        objects: Vec<ObjectId>,
    },
    /// Takes a job of the volume for some time, or keeps it. Needs the right to reconcile.
    TakeJob {
        /// The job.
        job: Job,
        /// The time, at most [`JOB_SECONDS_MAX`](crate::limits::JOB_SECONDS_MAX).
        seconds: u32,
    },
    /// Gives a job back.
    ReleaseJob {
        /// The job.
        job: Job,
    },
    /// Retains the present point: what is needed now is not forgotten. Needs the right to
    /// reconcile.
    Retain {
        /// Why.
        kind: RetentionKind,
        /// Whether all later points are retained too, until [`Self::Narrow`] chooses one of them.
        open: bool,
        /// For how long; `None`: until it is released.
        seconds: Option<u32>,
    },
    /// Releases retained points; no effect if they are not retained. Needs the right to reconcile.
    Release {
        /// Their number.
        number: u64,
    },
    /// Of open retained points keeps one, for as long as nothing releases it. Needs the right to
    /// reconcile.
    Narrow {
        /// Their number.
        number: u64,
        /// The point, which is not before the first one.
        to: Sequence,
    },
    /// Loads rows of a copy of the metadata into a volume that is being recovered. Needs the
    /// session of the principal that the genesis names for it.
    Load {
        /// The key of the last row that was loaded before; refused if it is another.
        after: Vec<u8>,
        /// Keys and values, in the order of the keys, all behind that one, and at most
        /// [`LOAD_ROWS_MAX`](crate::limits::LOAD_ROWS_MAX). Without any, the answer says how far
        /// the recovery is, whatever `after` is.
        rows: Vec<(Vec<u8>, Vec<u8>)>,
    },
    /// All rows are loaded: admits these principals, and everything else from now on.
    FinishLoading {
        /// The rows of all principals, by their keys; at most
        /// [`PRINCIPALS_READ_MAX`](crate::limits::PRINCIPALS_READ_MAX).
        principals: Vec<(Vec<u8>, Vec<u8>)>,
    },
    /// Sets how long a realm's trash is kept. Needs the right to administer.
    KeepTrash(KeepTrash),
    /// A cloud has no space: some of what was removed first goes for good. Needs the right to
    /// reconcile, or to act for the superuser.
    RelieveTrash {
        /// The realm.
        realm: RealmId,
    },
    /// Adds a cloud or replaces one, as an administrator has signed. Needs the right to administer.
    /// The same bytes again are the same success.
    ChangeClouds(ChangeClouds),
    /// Shards are on other clouds from now on. Needs the right to reconcile. Shards that have moved
    /// are skipped, and so are objects that would have two shards in one failure domain.
    MoveShards {
        /// The shards, at most [`MOVE_SHARDS_MAX`](crate::limits::MOVE_SHARDS_MAX).
        moves: Vec<ShardMove>,
        /// The last object that the present pass over all objects has finished.
        after: Option<ObjectId>,
    },
    /// No needed row names a draining cloud any more. Needs the right to reconcile.
    RetireCloud {
        /// The cloud.
        cloud: CloudIndex,
    },
    /// The session has these inodes open, which have lost their last name while several sessions
    /// had the realm mounted: they stay until it releases them or ends. It may claim an inode that
    /// it never had open, since the servers do not know.
    Claim {
        /// The inodes, at most [`CLAIM_INODES_MAX`](crate::limits::CLAIM_INODES_MAX), of the realm
        /// that the session has mounted.
        inodes: Vec<InodeId>,
    },
    /// Takes, changes or gives up a lock of an inode in the realm that the session has mounted.
    Lock(LockRequest),
    /// A process was interrupted while it waited for a lock: it leaves the queue.
    StopWaiting(StopWaiting),
    /// Ends locks that processes hold.
    EndLocks(EndLocks),
    /// Admits, changes or dismisses a principal, or names a group, as an administrator has signed.
    /// Needs the right to administer. The same bytes again are the same success.
    ChangePeople(ChangePeople),
    /// Names of directories are sealed under the newest key epoch from now on. Needs the right to
    /// administer or to reconcile.
    ResealNames(ResealNames),
    /// Slices are sealed under the newest key epoch from now on, in other objects; their ids and
    /// what refers to them stay. Needs the right to reconcile.
    ResealSlices(ResealSlices),
    /// Shares something with a person or by a link.
    Share(NewShare),
    /// Ends a share: the row of a link goes, that of a share with a person says so.
    EndShare(ChangeShare),
    /// Removes the row of a share that has ended: its access lists are taken back.
    ForgetShare(ChangeShare),
    /// Invites a further machine of the sender: the holder of a key may answer once. An earlier
    /// invitation of the sender ends. The same again is the same success.
    InviteMachine(InviteMachine),
    /// The answer of the machine that was invited. The sender's key is the invitation's, and no
    /// principal's. The same again is the same success.
    AnswerInvitation {
        /// The answer, at most
        /// [`INVITATION_ANSWER_BYTES_MAX`](crate::limits::INVITATION_ANSWER_BYTES_MAX) bytes:
        /// opaque to the servers.
        answer: Vec<u8>,
    },
    /// Ends an invitation of the sender, if it has not ended.
    EndInvitation {
        /// The invitation's key.
        key: PrincipalId,
    },
}

/// A realm's next key epoch. Members verify the signatures in it, not the servers.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct BeginEpoch {
    /// The realm.
    pub realm: RealmId,
    /// Its number: one more than the realm's current key epoch.
    pub number: RealmEpoch,
    /// Its row. Shares lie under an unused id of the session's live allocations, and n − f clouds
    /// have confirmed theirs.
    pub epoch: Epoch,
    /// The members from now on: at most [`MEMBERS_MAX`](crate::limits::MEMBERS_MAX) principals,
    /// each once, including all administrators. A principal that is not listed is no longer a
    /// member.
    pub members: Vec<(PrincipalId, Member)>,
}

/// Steps that happen together or not at all.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Compound {
    /// The caller.
    pub credentials: Credentials,
    /// The gateway's time, for atime and mtime.
    pub time: Timestamp,
    /// The conditions that must hold before the first step.
    pub preconditions: Vec<Precondition>,
    /// The steps, in order.
    pub steps: Vec<Step>,
}

/// One change.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Step {
    /// create, mknod, mkdir, symlink.
    Create(Create),
    /// A further entry for an inode that is not a directory.
    Link {
        /// The inode.
        inode: InodeId,
        /// The new entry.
        place: EntryPlace,
    },
    /// Removes the entry of anything but a directory.
    Unlink(Remove),
    /// Removes an empty directory.
    RemoveDirectory(Remove),
    /// Moves an entry.
    Rename(Rename),
    /// chmod, chown, utimes, truncate, in one.
    SetAttributes(SetAttributes),
    /// New content of a file.
    Commit(Commit),
    /// Deletes an inode without entries that the session has closed.
    Release {
        /// The inode.
        inode: InodeId,
    },
    /// setxattr.
    SetExtended(SetExtended),
    /// removexattr.
    RemoveExtended(AttributePlace),
    /// Sets or removes an access control list.
    SetAcl(SetAcl),
    /// Inodes were read: their times of access advance, and nothing else of them changes.
    Accessed(Vec<Accessed>),
    /// Gives an inode in the trash an entry again.
    Restore(Restore),
    /// Inodes in the trash go for good: at most
    /// [`TRASH_PURGED_MAX`](crate::limits::TRASH_PURGED_MAX), by their owner or the superuser.
    /// Those that are not in the trash any more are skipped; a directory goes after what was in it.
    Purge(Vec<InodeId>),
    /// New names of a directory are sealed under the newest key epoch from now on; needs the
    /// permissions of a creation in it. No effect while older names wait to be resealed.
    BeginReseal {
        /// The directory.
        directory: InodeId,
    },
}

/// Creates an inode and its entry.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Create {
    /// The entry.
    pub place: EntryPlace,
    /// The kind.
    pub kind: NewInode,
    /// Its mode.
    pub mode: Mode,
    /// The bits cleared from the mode, unless the directory has a default access control list.
    pub umask: Mode,
    /// If the name is taken: `false` returns the existing inode (only for a [`NewInode::File`], and
    /// not if a directory exists), `true` fails with
    /// [`Error::Exists`](crate::error::Error::Exists).
    pub exclusive: bool,
    /// The number of the new inode, from a range that was granted to the session. Nothing grants
    /// ranges yet, so it must be absent.
    pub number: Option<InodeId>,
}

/// The kind of a new inode.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum NewInode {
    /// An empty regular file.
    File,
    /// An empty directory, whose names will be sealed under the realm's current key epoch.
    Directory,
    /// A symbolic link.
    Symlink {
        /// Bytes of the plain target.
        length: u16,
        /// The target. Its inode number is not known when it is sealed: bind it to something else.
        target: Sealed,
    },
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharacterDevice(DeviceNumber),
    /// A block device.
    BlockDevice(DeviceNumber),
}

/// Removes an entry.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Remove {
    /// The entry.
    pub place: EntryPlace,
    /// The expected inode, if the caller cares.
    pub expected: Option<InodeId>,
    /// Whether the session has the inode open: if this was its last entry it becomes the session's
    /// orphan, until [`Step::Release`] or the session's end.
    pub held: bool,
}

/// What a rename does with an existing target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum RenameMode {
    /// Replaces it, as `rename(2)` does.
    Replace,
    /// Fails: `RENAME_NOREPLACE`.
    NoReplace,
    /// Exchanges the two: `RENAME_EXCHANGE`.
    Exchange,
}

/// Moves an entry.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Rename {
    /// The source.
    pub from: EntryPlace,
    /// The target. With [`RenameMode::Exchange`] each entry keeps its sealed name and its place and
    /// takes the other's inode.
    pub to: EntryPlace,
    /// What happens to an existing target.
    pub mode: RenameMode,
    /// The inode that must be moved, if the caller cares.
    pub expected_source: Option<InodeId>,
    /// The inode that may be replaced: `Some(None)` for none, `None` for any.
    pub expected_target: Option<Option<InodeId>>,
    /// Whether the session has the replaced inode open; see [`Remove::held`].
    pub held: bool,
}

/// New content of a file.
///
/// Permission was checked when the file was opened, and may have been revoked since, which has no
/// effect on open descriptors. So a commit is allowed if *some* identity that the principal may
/// assert could write the file or owns it (an owner could always give itself the right): never more
/// than the principal's rights, never less than POSIX.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Commit {
    /// The file.
    pub inode: InodeId,
    /// The version of the inode that this relies on; `None`: any.
    pub expected: Option<InodeVersion>,
    /// Objects that it creates, under unused ids of the session's live allocations. Several commits
    /// may name the same pack, in any order: the first one creates it, and the others must describe
    /// it identically, except for the current places of its shards.
    pub objects: Vec<NewObject>,
    /// Slices that it creates, likewise, each in one of its `objects` or in an object that the same
    /// session created in a live allocation.
    pub slices: Vec<NewSlice>,
    /// The bytes.
    pub content: NewContent,
    /// The length of the file afterwards; `None`: unchanged, or the end of the last extent if that
    /// is larger. The last commit of several carries it.
    pub size: Option<u64>,
    /// The time of the writing, by the gateway's clock; `None`: mtime stays.
    pub mtime: Option<Timestamp>,
}

/// The effect of a commit on the bytes.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum NewContent {
    /// None.
    Same,
    /// All bytes of a tiny file, stored in the inode. The old content is dropped.
    Inline(Inline),
    /// Replaces some runs; the extents must cover all bytes of a file that was stored inline.
    Extents(Vec<NewExtent>),
    /// Makes a run read as zeros and frees its space; the part beyond the file's end is ignored. It
    /// must cover all bytes of a file that is stored inline, or none.
    Hole {
        /// The beginning.
        offset: u64,
        /// The number of bytes.
        length: u64,
    },
    /// Replaces a run by a clone of another run, of this file or of another in the same realm: both
    /// refer to the same slices from then on. This is the only way for a slice to get into another
    /// inode, and the servers look up themselves which slices those are.
    Clone(CloneRange),
}

/// A run of a file that becomes a clone of another run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct CloneRange {
    /// Its offset in the file.
    pub offset: u64,
    /// The number of bytes; at least one.
    pub length: u64,
    /// The source file, not stored inline, which the principal must be allowed to read.
    pub source: InodeId,
    /// Its offset in the source; the run lies before the source's end and does not overlap the
    /// destination.
    pub source_offset: u64,
    /// The version of the source that this relies on; `None`: any.
    pub expected: Option<InodeVersion>,
}

/// An object that a commit creates.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct NewObject {
    /// Its id.
    pub id: ObjectId,
    /// Its purpose.
    pub class: ObjectClass,
    /// Its spreading over clouds.
    pub policy: Policy,
    /// Bytes of sealed stream.
    pub length: u32,
    /// Bytes of one stored shard.
    pub shard_length: u32,
    /// Its n shards, data first, each on a different cloud in a different failure domain; at least
    /// w = k + f of them acknowledged.
    pub shards: Vec<Shard>,
}

/// A slice that a commit creates.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct NewSlice {
    /// Its id.
    pub id: SliceId,
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
    /// The sources of its key: exactly one, of the file's realm, so far.
    pub keys: Vec<SliceKey>,
}

/// A run of a file that a commit sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct NewExtent {
    /// Its offset in the file.
    pub offset: u64,
    /// The slice.
    pub slice: SliceId,
    /// Its offset in the slice's plaintext.
    pub slice_offset: u32,
    /// The number of bytes.
    pub length: u32,
}

impl Operation {
    /// The operation's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        codec::encode(self)
    }

    /// Reads an operation's bytes.
    ///
    /// # Errors
    /// If they are too many, of a newer version, or do not follow the layout.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        codec::decode(bytes, OPERATION_BYTES_MAX)
    }
}

impl NewInode {
    /// Whether the new inode is a directory.
    #[must_use]
    pub const fn is_directory(&self) -> bool {
        matches!(self, Self::Directory)
    }
}

impl SliceKey {
    /// The key epoch that the slice's key depends on.
    #[must_use]
    pub const fn epoch(&self) -> RealmEpoch {
        match self {
            Self::Derived { epoch, .. } | Self::Wrapped { epoch, .. } => *epoch,
        }
    }

    /// The realm whose key the slice's key depends on.
    #[must_use]
    pub const fn realm(&self) -> RealmId {
        match self {
            Self::Derived { realm, .. } | Self::Wrapped { realm, .. } => *realm,
        }
    }
}
