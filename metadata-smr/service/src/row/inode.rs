//! Inodes and their entries.

use crate::acl::{AccessAcl, Acl, Named};
use crate::attributes::{
    AclKinds, Attributes, Detail, Extended, FileType, Mode, NameGenerations, Timestamp,
};
use crate::identity::{Cookie, DeviceNumber, Gid, InodeId, InodeVersion, RealmEpoch, RealmId, Uid};
use crate::limits::{ACL_ENTRY_CHARGE, NAME_CHARGE};
use crate::row::content::Extent;
use crate::row::quota::Amount;
use borsh::{BorshDeserialize, BorshSerialize};

/// Ciphertext and the key epoch that opens it.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Sealed {
    /// The key epoch whose key it is sealed under.
    pub epoch: RealmEpoch,
    /// Nonce, ciphertext and tag: opaque to the servers.
    pub bytes: Vec<u8>,
}

/// An inode's row.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Inode {
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
    /// Last access.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of anything.
    pub ctime: Timestamp,
    /// Creation.
    pub created: Timestamp,
    /// Increases with every change.
    pub version: InodeVersion,
    /// Sessions that hold it open although it has no entry any more.
    pub holders: u32,
    /// The part of its access list that its mode lacks.
    pub acl: Option<AccessAcl>,
    /// A directory's initial list of new entries.
    pub default_acl: Option<Acl>,
    /// Its extended attributes, summarised; `None`: it never had any, nor a list that was set.
    pub extended: Option<Extended>,
    /// Whether a lease on it is held: then every other session's operation on it looks the lease
    /// up.
    pub held: bool,
    /// The part that depends on the kind.
    pub node: InodeBody,
}

/// The part that depends on the kind of inode.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum InodeBody {
    /// A regular file.
    File(FileBody),
    /// A directory.
    Directory {
        /// The inode of `..`; the root is its own parent.
        parent: InodeId,
        /// The generations that its names are sealed under.
        generations: NameGenerations,
        /// Entries in it.
        entries: u64,
    },
    /// A symbolic link.
    Symlink {
        /// Bytes of the plain target.
        length: u16,
        /// The target.
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

/// A regular file's length and content.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct FileBody {
    /// Its length.
    pub size: u64,
    /// Bytes that its extents cover.
    pub allocated: u64,
    /// The bytes or their place.
    pub content: Content,
    /// Extents at this offset and beyond are dead: a truncation left them for the reap queue.
    /// Nothing is written there before they are deleted.
    pub dead_from: Option<u64>,
}

impl FileBody {
    /// A file without content.
    #[must_use]
    pub const fn empty() -> Self {
        Self {
            size: 0,
            allocated: 0,
            content: Content::Empty,
            dead_from: None,
        }
    }

    /// Bytes stored for it, in extents or in its inode: the basis of `st_blocks`, so that no
    /// program mistakes a file that is stored in its inode for one hole.
    #[must_use]
    pub const fn kept(&self) -> u64 {
        match &self.content {
            Content::Inline(inline) => self.allocated.saturating_add(inline.length as u64),
            _ => self.allocated,
        }
    }
}

/// The place of a file's bytes. Gaps between extents read as zeros.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Content {
    /// It has none.
    Empty,
    /// Stored here, because it is tiny.
    Inline(Inline),
    /// One extent, stored here.
    One {
        /// Its offset in the file.
        offset: u64,
        /// The extent.
        extent: Extent,
    },
    /// Extents in rows of their own.
    Extents,
}

/// A tiny file's bytes.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Inline {
    /// The number of valid plain bytes. A truncation lowers it, because the servers cannot cut
    /// ciphertext; bytes that the file regains later read as zeros.
    pub length: u16,
    /// The bytes.
    pub sealed: Sealed,
}

impl Inode {
    /// The kind of inode.
    #[must_use]
    pub const fn file_type(&self) -> FileType {
        match self.node {
            InodeBody::File(_) => FileType::File,
            InodeBody::Directory { .. } => FileType::Directory,
            InodeBody::Symlink { .. } => FileType::Symlink,
            InodeBody::Fifo => FileType::Fifo,
            InodeBody::Socket => FileType::Socket,
            InodeBody::CharacterDevice(_) => FileType::CharacterDevice,
            InodeBody::BlockDevice(_) => FileType::BlockDevice,
        }
    }

    /// Whether it is a directory.
    #[must_use]
    pub const fn is_directory(&self) -> bool {
        matches!(self.node, InodeBody::Directory { .. })
    }

    /// Whether it is a directory with names of a previous generation.
    #[must_use]
    pub const fn has_old_names(&self) -> bool {
        matches!(&self.node, InodeBody::Directory { generations, .. }
            if generations.previous.is_some())
    }

    /// Whether it has neither a name nor a session that holds it: it is in the grave, or about to
    /// go.
    #[must_use]
    pub const fn is_let_go(&self) -> bool {
        self.links == 0 && self.holders == 0
    }

    /// The usage that it counts for its owner and its realm: all parts that enlarge the servers'
    /// state, which are content, names, a symlink's target, extended attributes and lists.
    #[must_use]
    pub fn charge(&self) -> Amount {
        let own = match &self.node {
            InodeBody::File(file) => file.kept(),
            InodeBody::Symlink { target, .. } => target.bytes.len() as u64,
            _ => 0,
        };
        // A directory has one name; its links count those of its subdirectories.
        let names = match self.is_directory() {
            true => u64::from(self.links > 0),
            false => u64::from(self.links),
        };
        let access = self.acl.as_ref().map(|acl| &acl.named);
        let default = self.default_acl.as_ref().map(|acl| &acl.named);
        let listed: usize = access.into_iter().chain(default).map(Named::len).sum();
        let attributes = self
            .extended
            .map_or(0, |extended| u64::from(extended.bytes));
        let bytes = own
            .saturating_add(names.saturating_mul(NAME_CHARGE))
            .saturating_add((listed as u64).saturating_mul(ACL_ENTRY_CHARGE))
            .saturating_add(attributes);
        Amount { bytes, inodes: 1 }
    }

    /// Its attributes for `stat`.
    #[must_use]
    pub fn attributes(&self, inode: InodeId) -> Attributes {
        let (size, allocated, detail) = match &self.node {
            InodeBody::File(file) => (file.size, file.kept(), Detail::File),
            InodeBody::Directory {
                parent,
                generations,
                ..
            } => (
                0,
                0,
                Detail::Directory {
                    parent: *parent,
                    generations: *generations,
                },
            ),
            InodeBody::Symlink { length, .. } => (u64::from(*length), 0, Detail::Symlink),
            InodeBody::Fifo => (0, 0, Detail::Fifo),
            InodeBody::Socket => (0, 0, Detail::Socket),
            InodeBody::CharacterDevice(number) => (0, 0, Detail::CharacterDevice(*number)),
            InodeBody::BlockDevice(number) => (0, 0, Detail::BlockDevice(*number)),
        };
        Attributes {
            inode,
            realm: self.realm,
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            links: self.links,
            size,
            allocated,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            created: self.created,
            version: self.version,
            acl: AclKinds {
                access: self.acl.is_some(),
                default: self.default_acl.is_some(),
            },
            extended: self.extended.unwrap_or_default(),
            detail,
        }
    }
}

/// A directory entry. Its cookie is in the key.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct EntryRow {
    /// The inode.
    pub inode: InodeId,
    /// The inode's kind, for listings.
    pub file_type: FileType,
    /// The generation that the name is sealed under.
    pub generation: RealmEpoch,
    /// The sealed name; equal ciphertext is the same name.
    pub name: Vec<u8>,
    /// A keyed hash of the case-folded name; reserved for case-insensitive directories.
    pub folded: Option<u64>,
}

/// A directory some of whose names are of its previous generation. The key names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Reseal {
    /// No entry up to this position has a name of the previous generation.
    pub after: Cookie,
}

/// An inode without entries that a session holds open. The key names both.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Orphan {
    /// Its realm.
    pub realm: RealmId,
}

/// A sealed name and its place in the directory.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct SealedName {
    /// The first place for it: [`Cookie::from_prf`] of its keyed hash.
    pub cookie: Cookie,
    /// The generation that it is sealed under.
    pub generation: RealmEpoch,
    /// The ciphertext.
    pub bytes: Vec<u8>,
}
