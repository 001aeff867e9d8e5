//! Changes of attributes.

use crate::attributes::{Mode, Timestamp};
use crate::identity::{Gid, InodeId, Uid};
use borsh::{BorshDeserialize, BorshSerialize};

/// A time to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum SetTime {
    /// The compound's time; allowed with write permission.
    Now,
    /// This time; allowed for owners only.
    To(Timestamp),
}

/// Changes attributes; `None` leaves one unchanged.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct SetAttributes {
    /// The inode.
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
    /// Whether the size changes through a descriptor that was opened for writing: permission was
    /// checked then, and the mode may have changed since. See [`Commit`](crate::operation::Commit).
    pub by_handle: bool,
}

impl SetAttributes {
    /// An empty change, to be filled in.
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
    /// The inode.
    pub inode: InodeId,
    /// The time, by the reader's clock.
    pub time: Timestamp,
}
