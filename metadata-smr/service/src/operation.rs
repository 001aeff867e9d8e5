//! What a client asks to be done, by order.
//!
//! A [`Compound`] is atomic: its preconditions hold and all of its steps succeed, or nothing
//! changes and the reply says which one failed and why. It speaks for one caller, in the gateway's
//! time: [`Compound::time`] becomes atime and mtime where a step sets them; ctime is the batch's,
//! or where all that is done is to commit and to set attributes, the gateway's if that is near it.
//!
//! Steps are checked against the state that earlier steps left. A step names inodes by number; what
//! an earlier step of the same compound created is not nameable, because sealed names depend on
//! the number of their directory and the number is assigned at execution.
//!
//! An operation that would write more than [`ROWS_WRITTEN_MAX`](crate::limits::ROWS_WRITTEN_MAX)
//! rows is refused with [`Error::TooManyRows`](crate::error::Error::TooManyRows). Only a commit
//! over very many small extents gets there: its sender splits it, for an extent may name any part
//! of a slice, later commits may name slices that an earlier one brought in, and holes and clones
//! can be cut anywhere.

use crate::attributes::{Credentials, Mode, Timestamp};
use crate::codec::{self, DecodeError};
use crate::identity::{
    AllocationId, CloudIndex, Codec, DeviceNumber, Gid, Home, InodeId, InodeVersion, ObjectClass,
    ObjectId, PrincipalId, RealmEpoch, RealmId, ShardIndex, SliceId, Uid,
};
use crate::limits::OPERATION_BYTES_MAX;
use crate::placement::{Policy, Receipt, Shard};
use crate::row::{Epoch, FaultKind, Inline, Member, Sealed, SealedName, SliceKey};
use crate::succession::Succeed;
use borsh::{BorshDeserialize, BorshSerialize};

mod extended;
mod quota;
mod takeover;

pub use extended::{AttributePlace, SetAcl, SetExtended, SetMode};
pub use quota::{QuotaOf, SetQuota};
pub use takeover::Takeover;

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
    /// Gives an allocation back: its unused ids are void from now on.
    CloseAllocation {
        /// Which one.
        allocation: AllocationId,
    },
    /// Makes the session the one that has the realm mounted.
    MountRealm {
        /// Which realm.
        realm: RealmId,
        /// Whether the session that has it now, if there is one, is fenced.
        takeover: Takeover,
    },
    /// Gives the mount back.
    UnmountRealm {
        /// Which realm.
        realm: RealmId,
    },
    /// Clouds have acknowledged shards that were missing, and objects were found to be what their
    /// writers described.
    ConfirmPlaced {
        /// Which shards, of which objects.
        shards: Vec<PlacedShard>,
        /// Objects that were decoded and coded again, so that all of their digests are known to be
        /// those of one content; at most
        /// [`CHECKED_OBJECTS_MAX`](crate::limits::CHECKED_OBJECTS_MAX). Takes the right to
        /// reconcile, and nobody says so of what its own principal wrote.
        checked: Vec<ObjectId>,
    },
    /// A shard was lost or is bad: it is, or will be, put again elsewhere or under its next name.
    ReplacePlacement {
        /// The shard's new place. The attempt must be above the old one if the cloud is the same.
        shard: PlacedShard,
        /// Whether the new place has acknowledged it already.
        acknowledged: bool,
    },
    /// Acknowledgements that do not hold: these shards are not where their clouds said, or are not
    /// what was written. Their objects lack them from now on; whoever restores them looks first,
    /// and takes the next name for what is really gone.
    WithdrawPlaced {
        /// Which shards, at most [`WITHDRAW_SHARDS_MAX`](crate::limits::WITHDRAW_SHARDS_MAX). One
        /// that has another place by now is passed over.
        shards: Vec<PlacedShard>,
    },
    /// Slices of packs lie in other packs from now on, byte for byte as they were sealed: ids, keys
    /// and codecs stay. Takes the right to reconcile, for what is moved is other writers' content.
    /// What a pack loses it need not keep: one that loses its last slice is unreferenced.
    MoveSlices {
        /// By whose policy the new packs are spread.
        realm: RealmId,
        /// The new packs, at most [`MOVE_OBJECTS_MAX`](crate::limits::MOVE_OBJECTS_MAX), under
        /// unused ids of the session's live allocations; or packs that it brought in before, as in
        /// a [`Commit`]. Those that nothing is moved into are not brought in.
        objects: Vec<NewObject>,
        /// Which slices, at most [`MOVE_SLICES_MAX`](crate::limits::MOVE_SLICES_MAX). One that is
        /// not there any more, because it was dropped or moved by others, is passed over.
        moves: Vec<SliceMove>,
    },
    /// What a cloud was found to have done wrong. Takes the right to reconcile. A finding that is
    /// known, or of an object that is not there any more, is passed over.
    Testify {
        /// Which cloud.
        cloud: CloudIndex,
        /// What was found, at most
        /// [`TESTIFY_FINDINGS_MAX`](crate::limits::TESTIFY_FINDINGS_MAX).
        findings: Vec<Finding>,
    },
    /// What is sealed in the realm from now on is sealed under a new epoch. Takes the right to
    /// administer. The same bytes again are the same success; see [`BeginEpoch`].
    BeginEpoch(BeginEpoch),
    /// What a realm or its users may have from now on. Takes the right to administer.
    SetQuota(SetQuota),
    /// Another principal takes the place of one, under the volume root's signature. Takes the
    /// right to administer. The same bytes again are the same success.
    Succeed(Succeed),
}

/// A realm's next epoch. Signatures in it are the members' to verify, not the servers'.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct BeginEpoch {
    /// Of which realm.
    pub realm: RealmId,
    /// Its number: one more than the realm's epoch is.
    pub number: RealmEpoch,
    /// Its row. Shares lie under an unused id of the session's live allocations, and n − f clouds
    /// have confirmed theirs.
    pub epoch: Epoch,
    /// Who can read from now on: at most [`MEMBERS_MAX`](crate::limits::MEMBERS_MAX) principals,
    /// each once, among them all that may administer. Who is left out is a member no more.
    pub members: Vec<(PrincipalId, Member)>,
}

/// A slice that is moved from one pack into another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct SliceMove {
    /// Where the slice's row lies.
    pub home: Home,
    /// Which slice.
    pub slice: SliceId,
    /// The pack that it was seen in.
    pub from: ObjectId,
    /// Where in that pack's sealed stream.
    pub from_offset: u32,
    /// Its sealed bytes.
    pub sealed_length: u32,
    /// The pack that it lies in from now on, one of the operation's objects.
    pub to: ObjectId,
    /// Where in that pack's sealed stream, apart from all other slices.
    pub to_offset: u32,
}

/// A shard at its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct PlacedShard {
    /// Of which object.
    pub object: ObjectId,
    /// Which shard.
    pub shard: ShardIndex,
    /// On which cloud.
    pub cloud: CloudIndex,
    /// Under which of its names there.
    pub attempt: u8,
    /// What the cloud said that it stored. Whoever withdraws says nothing here, and neither does
    /// whoever found a shard that others put.
    pub receipt: Option<Receipt>,
}

/// A cloud's answer about a shard that was not the right one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Finding {
    /// Of which object.
    pub object: ObjectId,
    /// Which shard.
    pub shard: ShardIndex,
    /// Under which of its names.
    pub attempt: u8,
    /// What was wrong.
    pub fault: FaultKind,
    /// The checksum of what it answered with, of the receipt's kind if there is one.
    pub found: Option<Receipt>,
    /// The receipt that it was compared with. What the row says of a shard that is still where it
    /// was seen takes its place.
    pub receipt: Option<Receipt>,
}

/// Steps that happen together or not at all.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Compound {
    /// On whose behalf.
    pub credentials: Credentials,
    /// The gateway's time, for atime and mtime.
    pub time: Timestamp,
    /// What must hold before the first step.
    pub preconditions: Vec<Precondition>,
    /// What to do, in order.
    pub steps: Vec<Step>,
}

/// The name of an entry, under each generation that may live in its directory.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct EntryName {
    /// Under the directory's current generation; new entries take it.
    pub current: SealedName,
    /// Under the previous one, while the directory has one.
    pub previous: Option<SealedName>,
}

impl From<SealedName> for EntryName {
    fn from(current: SealedName) -> Self {
        Self {
            current,
            previous: None,
        }
    }
}

/// A place in a directory.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct EntryPlace {
    /// The directory.
    pub parent: InodeId,
    /// The name in it.
    pub name: EntryName,
}

/// What must hold for a compound to begin; what does not is answered with
/// [`Error::Changed`](crate::error::Error::Changed), except that a present name which should be
/// absent is [`Error::Exists`](crate::error::Error::Exists) and the reverse
/// [`Error::NotFound`](crate::error::Error::NotFound).
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Precondition {
    /// There is no such entry.
    Absent(EntryPlace),
    /// The entry leads to this inode.
    Entry {
        /// The entry.
        place: EntryPlace,
        /// Where it leads.
        inode: InodeId,
    },
    /// The inode exists and was not changed since it was seen.
    Unchanged {
        /// The inode.
        inode: InodeId,
        /// Its version when it was seen; `None`: it exists.
        version: Option<InodeVersion>,
        /// Its ctime when it was seen; `None`: any.
        ctime: Option<Timestamp>,
    },
}

/// One change.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Step {
    /// create, mknod, mkdir, symlink.
    Create(Create),
    /// A further entry for an inode that is no directory.
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
    /// The session has closed an inode that has no entry any more: delete it.
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
    /// Inodes were read: their times of access move on, and nothing else of them changes.
    Accessed(Vec<Accessed>),
}

/// Makes an inode and its entry.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Create {
    /// Where.
    pub place: EntryPlace,
    /// What.
    pub kind: NewInode,
    /// Its mode.
    pub mode: Mode,
    /// What is taken off the mode, unless the directory has a default access control list.
    pub umask: Mode,
    /// If the name is taken: `false` answers with what is there (only for a [`NewInode::File`]
    /// where there is no directory), `true` with [`Error::Exists`](crate::error::Error::Exists).
    pub exclusive: bool,
}

/// The kind of a new inode.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum NewInode {
    /// An empty regular file.
    File,
    /// An empty directory, whose names will be sealed under the realm's current epoch.
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
    /// Where it must lead, if the caller cares.
    pub expected: Option<InodeId>,
    /// The session has the inode open: if this was its last entry it becomes the session's orphan,
    /// until [`Step::Release`] or the session's end.
    pub held: bool,
}

/// What a rename does with what lies at its target.
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
    /// From where.
    pub from: EntryPlace,
    /// To where. With [`RenameMode::Exchange`] each entry keeps its sealed name and its place and
    /// takes the other's inode.
    pub to: EntryPlace,
    /// What happens to what lies there.
    pub mode: RenameMode,
    /// The inode that must be moved, if the caller cares.
    pub expected_source: Option<InodeId>,
    /// The inode that may be replaced: `Some(None)` for none, `None` for whatever is there.
    pub expected_target: Option<Option<InodeId>>,
    /// The session has the replaced inode open; see [`Remove::held`].
    pub held: bool,
}

/// A time to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum SetTime {
    /// The compound's time; whoever may write may do it.
    Now,
    /// This one; only owners may.
    To(Timestamp),
}

/// Changes attributes; what is `None` stays.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct SetAttributes {
    /// Of which inode.
    pub inode: InodeId,
    /// Permission bits.
    pub mode: Option<Mode>,
    /// Owner.
    pub uid: Option<Uid>,
    /// Group.
    pub gid: Option<Gid>,
    /// Length of a file.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of content.
    pub mtime: Option<SetTime>,
    /// The size changes through a descriptor that was opened for writing: permission was checked
    /// then, and the mode may have changed since. See [`Commit`].
    pub by_handle: bool,
}

impl SetAttributes {
    /// A change of nothing, to be filled in.
    #[must_use]
    pub const fn of(inode: InodeId) -> Self {
        Self {
            inode,
            mode: None,
            uid: None,
            gid: None,
            size: None,
            atime: None,
            mtime: None,
            by_handle: false,
        }
    }
}

/// When an inode was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Accessed {
    /// Which.
    pub inode: InodeId,
    /// When, by the clock of who did.
    pub time: Timestamp,
}

/// New content of a file.
///
/// Permission was checked when the file was opened, and may have been taken away since without
/// effect on open descriptors. So a commit is allowed if *some* identity that the principal may
/// assert could write the file or owns it (an owner could always give itself the right): never more
/// than the principal's rights, never less than POSIX.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Commit {
    /// Of which file.
    pub inode: InodeId,
    /// The version of the inode that this rests on; `None`: whatever it is.
    pub expected: Option<InodeVersion>,
    /// Objects that it brings in, under unused ids of the session's live allocations. Several
    /// commits may name the same pack, in whatever order they come: it is brought in by the first,
    /// and the others must say the same of it in everything but where its shards are by now.
    pub objects: Vec<NewObject>,
    /// Slices that it brings in, likewise, each in one of its `objects` or in an object that the
    /// same session brought in under a live allocation.
    pub slices: Vec<NewSlice>,
    /// The bytes.
    pub content: NewContent,
    /// The length of the file afterwards; `None`: what it was, or the end of the last extent if
    /// that is larger. The last commit of several carries it.
    pub size: Option<u64>,
    /// When the bytes were written, by the gateway's clock; `None`: mtime stays.
    pub mtime: Option<Timestamp>,
}

/// What a commit does to the bytes.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum NewContent {
    /// Nothing.
    Same,
    /// All of them, tiny, kept in the inode. Whatever the file had is dropped.
    Inline(Inline),
    /// Some runs. Whatever lay there is replaced; a file that had its bytes inline must have all
    /// of them covered.
    Extents(Vec<NewExtent>),
    /// A run of them reads as zeros and takes no space; what lies beyond the file's end is passed
    /// over. A file that had its bytes inline must have all of them covered, or none.
    Hole {
        /// Where it begins.
        offset: u64,
        /// How many bytes.
        length: u64,
    },
    /// Some of them become what another run, of this file or of another in the same realm, is:
    /// both refer to the same slices from then on. This is the only way for a slice to get into
    /// another inode, and the servers look up themselves which slices those are.
    Clone(CloneRange),
}

/// A run of a file that takes its bytes from another run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct CloneRange {
    /// Where in the file it begins.
    pub offset: u64,
    /// How many bytes; at least one.
    pub length: u64,
    /// The file that has the bytes, not inline. Whoever commits could read it.
    pub source: InodeId,
    /// Where in that file they begin; all of them lie before its end, and none in the run that is
    /// to become them.
    pub source_offset: u64,
    /// The version of the source that this rests on; `None`: whatever it is.
    pub expected: Option<InodeVersion>,
}

/// An object that a commit brings in.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct NewObject {
    /// Its id.
    pub id: ObjectId,
    /// What it is for.
    pub class: ObjectClass,
    /// How it is spread.
    pub policy: Policy,
    /// Bytes of sealed stream.
    pub length: u32,
    /// Bytes of one shard as it is stored.
    pub shard_length: u32,
    /// Its n shards, data first, each on a cloud of its own and in a failure domain of its own; at
    /// least w = k + f of them acknowledged.
    pub shards: Vec<Shard>,
}

/// A slice that a commit brings in.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct NewSlice {
    /// Its id.
    pub id: SliceId,
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
}

/// A run of a file that a commit sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct NewExtent {
    /// Where in the file it begins.
    pub offset: u64,
    /// Which slice.
    pub slice: SliceId,
    /// Where in the slice's plaintext it begins.
    pub slice_offset: u32,
    /// How many bytes.
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
    /// The realm epoch that the slice's key depends on.
    #[must_use]
    pub const fn epoch(&self) -> RealmEpoch {
        match self {
            Self::Derived { epoch, .. } | Self::Wrapped { epoch, .. } => *epoch,
        }
    }
}
