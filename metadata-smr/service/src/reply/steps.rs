//! Results of the steps of a compound.

use crate::attributes::Attributes;
use crate::identity::Cookie;
use borsh::{BorshDeserialize, BorshSerialize};

/// The result of a step.
// At most a few dozen of these exist at a time, and briefly; being Copy is worth more.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum StepDone {
    /// An inode and its entry exist.
    Created {
        /// The inode.
        inode: Attributes,
        /// The entry's place.
        cookie: Cookie,
        /// Its directory.
        parent: Attributes,
        /// Whether it existed before.
        existed: bool,
    },
    /// The inode has one more entry.
    Linked {
        /// The inode.
        inode: Attributes,
        /// The entry's place.
        cookie: Cookie,
        /// Its directory.
        parent: Attributes,
    },
    /// The entry is gone.
    Removed {
        /// Its inode.
        removed: Removed,
        /// Its directory.
        parent: Attributes,
    },
    /// The entry has moved.
    Renamed {
        /// The inode that moved.
        moved: Attributes,
        /// The inode that it replaced.
        replaced: Option<Removed>,
        /// With an exchange: the inode of the other entry.
        exchanged: Option<Attributes>,
        /// The old directory.
        from_parent: Attributes,
        /// The new directory; it may be the same.
        to_parent: Attributes,
        /// The entry's new place.
        cookie: Cookie,
    },
    /// The attributes are set.
    Set(Attributes),
    /// The content is committed.
    Committed(Attributes),
    /// The orphan is gone.
    Released,
    /// The times of access are at least the given ones, where the principal had the right.
    Accessed,
    /// The inodes are gone for good.
    Purged {
        /// Their number; the others were not in the trash.
        inodes: u32,
    },
}

/// An inode that lost an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Removed {
    /// The inode after the loss.
    pub inode: Attributes,
    /// Whether that was its last entry, and a session holds it open so that it lives on as an
    /// orphan.
    pub held: bool,
}
