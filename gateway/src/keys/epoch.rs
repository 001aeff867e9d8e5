//! A realm's epoch: one secret that members hold, and the key that everything sealed in that
//! epoch is derived from.
//!
//! The epoch's row names its kind of lock. Lock 1 (the only one now) derives the realm epoch key
//! from the members' secret M_e alone; lock 2 will mix in a secret that is shared over the clouds,
//! and begins with a new epoch, so that nothing sealed earlier changes.

use super::names::NameKeys;
use super::small_value::SmallValueKey;
use super::{KeyError, Secret};
use quorumfs_bft::identity::ClusterId;

/// How an epoch is locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum LockKind {
    /// The members' secret alone.
    Members = 1,
}

impl LockKind {
    /// The kind as an epoch's row names it.
    ///
    /// # Errors
    /// If this program does not know it.
    pub fn parse(kind: u8, epoch: u64) -> Result<Self, KeyError> {
        match kind {
            1 => Ok(Self::Members),
            kind => Err(KeyError::UnknownLock { epoch, kind }),
        }
    }
}

/// M_e: what each member of a realm holds for one epoch.
#[derive(Clone, Debug)]
pub struct EpochSecret(Secret);

/// REK_e: what everything sealed in a realm's epoch is derived from.
#[derive(Clone, Debug)]
pub struct RealmEpochKey {
    secret: Secret,
    epoch: u64,
}

/// The key of one slice's content.
#[derive(Clone, Debug)]
pub struct SliceKey(Secret);

impl SliceKey {
    /// The bytes, for the cipher.
    #[must_use]
    pub fn expose(&self) -> &[u8; 32] {
        self.0.expose()
    }
}

impl EpochSecret {
    /// A new one.
    ///
    /// # Errors
    /// If there is no randomness.
    pub fn random() -> Result<Self, KeyError> {
        Ok(Self(Secret::random()?))
    }

    pub(crate) fn from_secret(secret: Secret) -> Self {
        Self(secret)
    }

    pub(crate) fn secret(&self) -> &Secret {
        &self.0
    }

    /// What a member's wrapping of it is bound to.
    pub(crate) fn wrapping_info(volume: &ClusterId, realm: u64, epoch: u64) -> Vec<u8> {
        let mut info = b"quorumfs 2026 realm epoch secret".to_vec();
        info.extend_from_slice(&volume.0);
        info.extend_from_slice(&realm.to_be_bytes());
        info.extend_from_slice(&epoch.to_be_bytes());
        info
    }

    /// Opens the lock.
    #[must_use]
    pub fn realm_epoch_key(
        &self,
        lock: LockKind,
        volume: &ClusterId,
        realm: u64,
        epoch: u64,
    ) -> RealmEpochKey {
        let secret = self.0.derive(
            "quorumfs 2026 realm epoch key",
            &[
                &[lock as u8],
                &volume.0,
                &realm.to_be_bytes(),
                &epoch.to_be_bytes(),
            ],
        );
        RealmEpochKey { secret, epoch }
    }
}

impl RealmEpochKey {
    /// Which epoch it is the key of.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The key of one slice.
    #[must_use]
    pub fn slice_key(&self, slice: u64) -> SliceKey {
        SliceKey(
            self.secret
                .derive("quorumfs 2026 slice data key", &[&slice.to_be_bytes()]),
        )
    }

    /// The keys of the names in one directory, of one generation.
    #[must_use]
    pub fn name_keys(&self, directory: u64, generation: u32) -> NameKeys {
        NameKeys::derive(&self.secret, directory, generation)
    }

    /// The key of inline content and symlink targets.
    #[must_use]
    pub fn small_value_key(&self) -> SmallValueKey {
        SmallValueKey::derive(&self.secret)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(epoch: u64) -> RealmEpochKey {
        EpochSecret::from_secret(Secret::from_bytes([4; 32])).realm_epoch_key(
            LockKind::Members,
            &ClusterId([1; 16]),
            1,
            epoch,
        )
    }

    #[test]
    fn epochs_and_slices_have_keys_of_their_own() {
        assert_ne!(key(0).slice_key(1).expose(), key(0).slice_key(2).expose());
        assert_ne!(key(0).slice_key(1).expose(), key(1).slice_key(1).expose());
    }

    #[test]
    fn an_unknown_lock_is_refused() {
        assert!(LockKind::parse(1, 0).is_ok());
        let error = LockKind::parse(2, 7).unwrap_err();
        assert!(
            error.to_string().contains("epoch 7 has lock kind 2"),
            "{error}"
        );
    }

    #[test]
    fn the_slice_key_is_pinned_to_its_golden_bytes() {
        crate::keys::lines::assert_golden("slice_key", key(0).slice_key(1).expose());
    }
}
