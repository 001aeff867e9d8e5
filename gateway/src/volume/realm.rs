//! A realm as this process has it: which one it is, the directory that it begins with, and its
//! keys.
//!
//! Everything that is sealed under the same keys is of one realm. A volume has one today, its root,
//! and this module alone says so: what seals, opens or asks gets the realm from here.

use super::keyring::Keyring;
use crate::keys::{KeyError, RealmEpochKey, SliceKey};
use quorumfs_metadata::identity::{InodeId, RealmEpoch, RealmId, SliceId};
use quorumfs_metadata::row::SliceSalt;

/// The realm that a volume begins with.
pub(super) const FIRST: RealmId = RealmId::ROOT;

/// See the module.
#[derive(Debug)]
pub struct Realm {
    id: RealmId,
    root: InodeId,
    pub(super) keyring: Keyring,
}

impl Realm {
    /// The realm that a volume begins with; none of its keys is open yet.
    pub(super) fn first() -> Self {
        Self {
            id: FIRST,
            root: InodeId::ROOT,
            keyring: Keyring::default(),
        }
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> RealmId {
        self.id
    }

    /// Its topmost directory.
    #[must_use]
    pub fn root(&self) -> InodeId {
        self.root
    }

    /// The key that seals new data.
    ///
    /// # Errors
    /// If no epoch was opened yet.
    pub fn current_key(&self) -> Result<RealmEpochKey, KeyError> {
        self.keyring.current()
    }

    /// The newest key epoch that was opened.
    #[must_use]
    pub fn current_epoch(&self) -> Option<RealmEpoch> {
        self.keyring.newest()
    }

    /// The key of one key epoch.
    ///
    /// # Errors
    /// If this principal does not have it, or not yet.
    pub fn epoch_key(&self, epoch: RealmEpoch) -> Result<RealmEpochKey, KeyError> {
        self.keyring.find(epoch)
    }

    /// The key of a slice that was sealed in `epoch`, and for which its writer drew `salt`.
    ///
    /// # Errors
    /// If this principal does not have that epoch's key.
    pub fn slice_key(
        &self,
        epoch: RealmEpoch,
        slice: SliceId,
        salt: &SliceSalt,
    ) -> Result<SliceKey, KeyError> {
        Ok(self.epoch_key(epoch)?.slice_key(slice, salt))
    }
}
