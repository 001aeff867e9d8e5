//! What was removed and can be restored.

use crate::identity::{InodeId, RealmId, Uid};
use crate::row::{Amount, Inode, SealedName};
use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_bft::identity::Time;

/// The last entry of an inode, when it was removed.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct RemovedEntry {
    /// The directory that it was in.
    pub directory: InodeId,
    /// Its name and its place there.
    pub name: SealedName,
    /// The user who removed it.
    pub by: Uid,
}

/// An inode in the trash. The key has its realm, the time of its removal, and its number.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Trashed {
    /// The inode, without links. No operation finds it but those on the trash, because its own row
    /// is gone.
    pub inode: Inode,
    /// Its last entry.
    pub entry: RemovedEntry,
}

/// Where an inode is in the trash; by its number, and by the directory that it was in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct TrashPlace {
    /// Its realm.
    pub realm: RealmId,
    /// The time of its removal.
    pub at: Time,
}

/// The removal of an inode that sessions hold open, and that goes to the trash when they close it.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Parting {
    /// The time of its removal.
    pub at: Time,
    /// Its last entry.
    pub entry: RemovedEntry,
}

/// The size of a realm's trash. The realm is in the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct TrashSize {
    /// The usage that restoring all of it would charge, without names.
    pub held: Amount,
}
