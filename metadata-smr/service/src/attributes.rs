//! The attributes that `stat` shows, and a caller's credentials.
//!
//! Types, modes, owners, times and sizes are plain: the servers enforce permissions with them.

use crate::identity::{DeviceNumber, Gid, InodeId, InodeVersion, RealmEpoch, RealmId, Uid};
use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_bft::identity::Time;

/// A point in time with the range of `stat`; before 1970 and after 2554 too.
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
pub struct Timestamp {
    /// Seconds since the Unix epoch.
    pub seconds: i64,
    /// Nanoseconds within the second, below 10⁹.
    pub nanos: u32,
}

impl Timestamp {
    /// Whether the nanoseconds are a fraction of a second.
    #[must_use]
    pub const fn is_valid(self) -> bool {
        self.nanos < 1_000_000_000
    }
}

impl From<Time> for Timestamp {
    fn from(time: Time) -> Self {
        Self {
            // Both quotients fit: u64 / 10⁹ < 2³⁵ and the remainder is below 10⁹.
            seconds: (time.0 / 1_000_000_000) as i64,
            nanos: (time.0 % 1_000_000_000) as u32,
        }
    }
}

/// The kind of an inode.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize,
)]
pub enum FileType {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharacterDevice,
    /// A block device.
    BlockDevice,
}

/// Permission bits, set-id bits and the sticky bit: the low twelve bits of `st_mode`.
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
pub struct Mode(pub u16);

impl Mode {
    /// All valid bits.
    pub const ALL: u16 = 0o7777;
    /// Run as the owner.
    pub const SET_UID: u16 = 0o4000;
    /// Run as the group; on a directory: new entries take its group.
    pub const SET_GID: u16 = 0o2000;
    /// On a directory: only owners remove entries.
    pub const STICKY: u16 = 0o1000;

    /// Whether all of `bits` are set.
    #[must_use]
    pub const fn has(self, bits: u16) -> bool {
        self.0 & bits == bits
    }

    /// Without `bits`.
    #[must_use]
    pub const fn without(self, bits: u16) -> Self {
        Self(self.0 & !bits)
    }

    /// The mode of a file after a change of its owner, group, length or content: set-id bits are
    /// cleared. Only members of the file's group keep the set-gid bit where the group may not
    /// execute, because it then marks no program.
    ///
    /// Source: Linux, `fs/attr.c` (`setattr_should_drop_sgid`).
    #[must_use]
    pub const fn without_set_id(self, in_group: bool) -> Self {
        let mode = self.without(Self::SET_UID);
        if mode.has(0o010) || !in_group {
            mode.without(Self::SET_GID)
        } else {
            mode
        }
    }

    /// With `bits`.
    #[must_use]
    pub const fn with(self, bits: u16) -> Self {
        Self(self.0 | bits)
    }

    /// Whether any of the three execute bits is set.
    #[must_use]
    pub const fn has_execute_bit(self) -> bool {
        self.0 & 0o111 != 0
    }
}

/// Requested access to an inode: the mask of `access(2)`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct Access(pub u8);

impl Access {
    /// Only existence.
    pub const NONE: Self = Self(0);
    /// Execute a file, search a directory.
    pub const EXECUTE: Self = Self(1);
    /// Write a file, change a directory's entries.
    pub const WRITE: Self = Self(2);
    /// Read a file, list a directory.
    pub const READ: Self = Self(4);
    /// Write and search: the access that changing a directory's entries needs.
    pub const CHANGE_ENTRIES: Self = Self(3);

    /// Whether it includes all of `other`.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The identity that an operation acts for. The gateway reads it from the calling process; the
/// servers accept only identities that the principal may assert.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Credentials {
    /// The file-system uid.
    pub uid: Uid,
    /// The file-system gid.
    pub gid: Gid,
    /// Supplementary groups.
    pub groups: Vec<Gid>,
}

impl Credentials {
    /// The superuser.
    #[must_use]
    pub const fn root() -> Self {
        Self {
            uid: Uid::ROOT,
            gid: Gid(0),
            groups: Vec::new(),
        }
    }

    /// A user with one group.
    #[must_use]
    pub const fn user(uid: Uid, gid: Gid) -> Self {
        Self {
            uid,
            gid,
            groups: Vec::new(),
        }
    }

    /// Whether the caller is in `group` or has the superuser's privilege instead.
    #[must_use]
    pub fn may_keep_group(&self, group: Gid) -> bool {
        self.uid == Uid::ROOT || self.in_group(group)
    }

    /// Whether the caller is in `group`.
    #[must_use]
    pub fn in_group(&self, group: Gid) -> bool {
        self.gid == group || self.groups.contains(&group)
    }
}

/// The generations of the names in a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct NameGenerations {
    /// The generation of new names.
    pub current: RealmEpoch,
    /// The generation of the names that were not moved yet.
    pub previous: Option<PreviousNames>,
}

/// The key that names of a directory are sealed under until they are moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct PreviousNames {
    /// The realm: only the directory's own is accepted so far. A directory that is put into a realm
    /// of its own will keep names of the one it was in.
    pub realm: RealmId,
    /// The key epoch.
    pub epoch: RealmEpoch,
}

impl NameGenerations {
    /// Whether all names are sealed under keys of this realm.
    #[must_use]
    pub fn is_within(&self, realm: RealmId) -> bool {
        self.previous.is_none_or(|previous| previous.realm == realm)
    }
}

/// Who may read and change an extended attribute: the part of its name before the first dot.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize,
)]
pub enum Namespace {
    /// `user.`: users with read or write permission on the file or directory.
    User,
    /// `trusted.`: the superuser.
    Trusted,
    /// `security.`: all users read, the superuser writes.
    Security,
    /// `security.capability` alone: a permission like the set-id bits, and cleared like them.
    Capability,
}

impl Namespace {
    /// Its number in keys and in sealed values.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::User => 1,
            Self::Trusted => 2,
            Self::Security => 3,
            Self::Capability => 4,
        }
    }

    /// The namespace of a number.
    #[must_use]
    pub const fn of_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::User),
            2 => Some(Self::Trusted),
            3 => Some(Self::Security),
            4 => Some(Self::Capability),
            _ => None,
        }
    }
}

/// An inode's extended attributes, summarised.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct Extended {
    /// Their number.
    pub count: u16,
    /// Bytes of their sealed names and values.
    pub bytes: u32,
    /// The key epoch under whose key their names are sealed; if there are none, the next one
    /// chooses it.
    pub generation: RealmEpoch,
    /// The version of the inode at the last change of its attributes or access control lists: while
    /// it is the same, so are they.
    pub changed: InodeVersion,
}

/// The access control lists of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct AclKinds {
    /// An access list that a mode cannot express.
    pub access: bool,
    /// A default list.
    pub default: bool,
}

/// The part that depends on the kind of inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Detail {
    /// A regular file.
    File,
    /// A directory.
    Directory {
        /// The inode of `..`; the root is its own parent.
        parent: InodeId,
        /// The generations that its names are sealed under.
        generations: NameGenerations,
    },
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharacterDevice(DeviceNumber),
    /// A block device.
    BlockDevice(DeviceNumber),
}

/// The attributes that `stat` shows, and the fields that a gateway needs to work with the inode.
/// Every operation returns them for the inodes that it changed, which saves a second round trip.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Attributes {
    /// Its number.
    pub inode: InodeId,
    /// The realm whose keys seal its contents.
    pub realm: RealmId,
    /// Permission bits.
    pub mode: Mode,
    /// Owner.
    pub uid: Uid,
    /// Group.
    pub gid: Gid,
    /// Entries that refer to it; for a directory 2 and one for each subdirectory.
    pub links: u32,
    /// Bytes of a file or of a symlink's target; 0 for the others.
    pub size: u64,
    /// Bytes stored for it, in extents or in its inode; `st_blocks` is this over 512, rounded up.
    pub allocated: u64,
    /// Last access, as gateways report it.
    pub atime: Timestamp,
    /// Last change of content, as gateways report it.
    pub mtime: Timestamp,
    /// Last change of anything: the agreed time of the batch.
    pub ctime: Timestamp,
    /// Creation: the agreed time of the batch.
    pub created: Timestamp,
    /// Increases with every change of the inode.
    pub version: InodeVersion,
    /// Its access control lists.
    pub acl: AclKinds,
    /// Its extended attributes.
    pub extended: Extended,
    /// The part that depends on the kind.
    pub detail: Detail,
}

impl Attributes {
    /// The kind of inode.
    #[must_use]
    pub const fn file_type(&self) -> FileType {
        match self.detail {
            Detail::File => FileType::File,
            Detail::Directory { .. } => FileType::Directory,
            Detail::Symlink => FileType::Symlink,
            Detail::Fifo => FileType::Fifo,
            Detail::Socket => FileType::Socket,
            Detail::CharacterDevice(_) => FileType::CharacterDevice,
            Detail::BlockDevice(_) => FileType::BlockDevice,
        }
    }

    /// `st_blocks`: units of 512 bytes.
    #[must_use]
    pub const fn blocks(&self) -> u64 {
        self.allocated.div_ceil(512)
    }
}
