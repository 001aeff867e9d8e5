//! The keys of what was removed and can be restored.

use crate::identity::{InodeId, RealmId};
use quorumfs_bft::identity::Time;

pub(super) const TRASHED: &[u8] = b"TR/";
pub(super) const TRASH_PLACE: &[u8] = b"TI/";
pub(super) const TRASHED_IN: &[u8] = b"TD/";
pub(super) const PARTING: &[u8] = b"TO/";
pub(super) const TRASH_SIZE: &[u8] = b"TU/";

/// All inodes in a realm's trash, the first that was removed first.
#[must_use]
pub fn all_trashed(realm: RealmId) -> Vec<u8> {
    key!(TRASHED, realm.0.to_be_bytes())
}

/// An inode in the trash.
#[must_use]
pub fn trashed(realm: RealmId, at: Time, inode: InodeId) -> Vec<u8> {
    key!(
        TRASHED,
        realm.0.to_be_bytes(),
        at.0.to_be_bytes(),
        inode.0.to_be_bytes()
    )
}

/// The place of an inode in the trash.
#[must_use]
pub fn trash_place(inode: InodeId) -> Vec<u8> {
    key!(TRASH_PLACE, inode.0.to_be_bytes())
}

/// All inodes in the trash that were in a directory.
#[must_use]
pub fn all_trashed_in(directory: InodeId) -> Vec<u8> {
    key!(TRASHED_IN, directory.0.to_be_bytes())
}

/// An inode in the trash, by the directory that it was in.
#[must_use]
pub fn trashed_in(directory: InodeId, inode: InodeId) -> Vec<u8> {
    key!(TRASHED_IN, directory.0.to_be_bytes(), inode.0.to_be_bytes())
}

/// The removal of an inode that is held open.
#[must_use]
pub fn parting(inode: InodeId) -> Vec<u8> {
    key!(PARTING, inode.0.to_be_bytes())
}

/// The size of a realm's trash.
#[must_use]
pub fn trash_size(realm: RealmId) -> Vec<u8> {
    key!(TRASH_SIZE, realm.0.to_be_bytes())
}
