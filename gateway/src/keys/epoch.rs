//! A realm's epoch: one secret that members hold, and the key that everything sealed in that
//! epoch is derived from.
//!
//! The epoch's row names its kind of lock. Lock 1 (the only one now) derives the realm epoch key
//! from the members' secret M_e alone; lock 2 will mix in a secret that is shared over the clouds,
//! and begins with a new epoch, so that nothing sealed earlier changes.

use super::names::NameKeys;
use super::small_value::SmallValueKey;
use super::{KeyError, Sealing, Secret};
use quorumfs_metadata::identity::{InodeId, RealmEpoch, RealmId, SliceId, VolumeId};
use quorumfs_metadata::row::Lock;

/// M_e: what each member of a realm holds for one epoch.
#[derive(Clone, Debug)]
pub struct EpochSecret(Secret);

/// REK_e: what everything sealed in a realm's epoch is derived from.
#[derive(Clone, Debug)]
pub struct RealmEpochKey {
    secret: Secret,
    epoch: RealmEpoch,
    sealing: Sealing,
}

/// The key of one slice's content.
#[derive(Clone, Debug)]
pub struct SliceKey(Secret);

impl SliceKey {
    /// Takes a secret that is a slice's key already: one that was wrapped, or a test's.
    #[must_use]
    pub fn from_secret(secret: Secret) -> Self {
        Self(secret)
    }

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
    pub(crate) fn wrapping_info(volume: &VolumeId, realm: RealmId, epoch: RealmEpoch) -> Vec<u8> {
        let mut info = b"quorumfs 2026 realm epoch secret".to_vec();
        info.extend_from_slice(&volume.0);
        info.extend_from_slice(&realm.0.to_be_bytes());
        info.extend_from_slice(&epoch.0.to_be_bytes());
        info
    }

    /// Opens the lock.
    ///
    /// # Errors
    /// If the epoch is locked in a way that this program cannot open.
    pub fn realm_epoch_key(
        &self,
        lock: Lock,
        volume: &VolumeId,
        realm: RealmId,
        epoch: RealmEpoch,
    ) -> Result<RealmEpochKey, KeyError> {
        let kind: u8 = match lock {
            Lock::Members => 1,
            Lock::MembersAndClouds => return Err(KeyError::UnknownLock { epoch, kind: 2 }),
        };
        let secret = self.0.derive(
            "quorumfs 2026 realm epoch key",
            &[
                &[kind],
                &volume.0,
                &realm.0.to_be_bytes(),
                &epoch.0.to_be_bytes(),
            ],
        );
        Ok(RealmEpochKey {
            secret,
            epoch,
            sealing: Sealing::On,
        })
    }
}

impl RealmEpochKey {
    /// The same key for a control run; see [`Sealing`].
    pub(crate) fn with_sealing(self, sealing: Sealing) -> Self {
        Self { sealing, ..self }
    }

    /// Which epoch it is the key of.
    #[must_use]
    pub fn epoch(&self) -> RealmEpoch {
        self.epoch
    }

    /// The key of one slice.
    #[must_use]
    pub fn slice_key(&self, slice: SliceId) -> SliceKey {
        SliceKey(
            self.secret
                .derive("quorumfs 2026 slice data key", &[&slice.to_be_bytes()]),
        )
    }

    /// The keys of the names in one directory, of the generation that this epoch is.
    #[must_use]
    pub fn name_keys(&self, directory: InodeId) -> NameKeys {
        NameKeys::derive(&self.secret, directory, self.epoch, self.sealing)
    }

    /// The key of inline content and symlink targets.
    #[must_use]
    pub fn small_value_key(&self) -> SmallValueKey {
        SmallValueKey::derive(&self.secret, self.sealing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorumfs_bft::identity::ClusterId;
    use quorumfs_metadata::identity::AllocationId;

    fn key(epoch: u32) -> RealmEpochKey {
        EpochSecret::from_secret(Secret::from_bytes([4; 32]))
            .realm_epoch_key(
                Lock::Members,
                &ClusterId([1; 16]),
                RealmId::ROOT,
                RealmEpoch(epoch),
            )
            .unwrap()
    }

    fn slice(counter: u32) -> SliceId {
        SliceId {
            allocation: AllocationId(9),
            counter,
        }
    }

    #[test]
    fn epochs_and_slices_have_keys_of_their_own() {
        assert_ne!(
            key(0).slice_key(slice(1)).expose(),
            key(0).slice_key(slice(2)).expose()
        );
        assert_ne!(
            key(0).slice_key(slice(1)).expose(),
            key(1).slice_key(slice(1)).expose()
        );
    }

    #[test]
    fn an_unknown_lock_is_refused() {
        let secret = EpochSecret::from_secret(Secret::from_bytes([4; 32]));
        let error = secret
            .realm_epoch_key(
                Lock::MembersAndClouds,
                &ClusterId([1; 16]),
                RealmId::ROOT,
                RealmEpoch(7),
            )
            .unwrap_err();
        assert!(
            error.to_string().contains("epoch 7 has lock kind 2"),
            "{error}"
        );
    }

    #[test]
    fn the_slice_key_is_pinned_to_its_golden_bytes() {
        crate::keys::lines::assert_golden("slice_key", key(0).slice_key(slice(1)).expose());
    }
}
