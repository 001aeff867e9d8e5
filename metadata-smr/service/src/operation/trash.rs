//! Operations on the trash.

use crate::identity::{InodeId, RealmId};
use crate::operation::EntryPlace;
use borsh::{BorshDeserialize, BorshSerialize};

/// Gives an inode in the trash an entry again. Its owner, the user who removed it and the superuser
/// may, who need the permissions of a creation at the new place. A directory comes back empty: what
/// was removed from it is restored after it.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Restore {
    /// The inode.
    pub inode: InodeId,
    /// The new entry. The name is sealed anew, for this directory.
    pub place: EntryPlace,
}

/// Sets how long what is removed stays in a realm's trash.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct KeepTrash {
    /// The realm.
    pub realm: RealmId,
    /// The time, at most [`TRASH_SECONDS_MAX`](crate::limits::TRASH_SECONDS_MAX); 0: there is no
    /// trash, and what is in it goes.
    pub seconds: u64,
}
