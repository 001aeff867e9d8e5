//! Places in directories, and conditions for a compound.

use crate::attributes::Timestamp;
use crate::identity::{InodeId, InodeVersion};
use crate::row::SealedName;
use borsh::{BorshDeserialize, BorshSerialize};

/// The name of an entry, in each generation that may occur in its directory.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct EntryName {
    /// In the directory's current generation, which new entries use.
    pub current: SealedName,
    /// In the previous one, while the directory has one.
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

/// A condition for a compound. A violation is [`Error::Changed`](crate::error::Error::Changed),
/// except that a present name which should be absent is
/// [`Error::Exists`](crate::error::Error::Exists) and the reverse
/// [`Error::NotFound`](crate::error::Error::NotFound).
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Precondition {
    /// There is no such entry.
    Absent(EntryPlace),
    /// The entry refers to this inode.
    Entry {
        /// The entry.
        place: EntryPlace,
        /// The expected inode.
        inode: InodeId,
    },
    /// The inode exists and has not changed since it was seen.
    Unchanged {
        /// The inode.
        inode: InodeId,
        /// Its version when it was seen; `None`: it exists.
        version: Option<InodeVersion>,
        /// Its ctime when it was seen; `None`: any.
        ctime: Option<Timestamp>,
    },
}
