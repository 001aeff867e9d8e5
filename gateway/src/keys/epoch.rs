//! A realm's key epoch: one secret that members hold, perhaps another in shares on the clouds, and
//! the key from which everything sealed in that epoch is derived.
//!
//! ```text
//! lock 1    M_e, wrapped for each member ──► REK_e
//! lock 2    M_e and C_e, of which each cloud has a share ──► REK_e
//! ```
//!
//! The kind of lock enters the derivation: an epoch's key differs from lock to lock, so removing
//! the second lock yields no usable key.
//!
//! REK_{e−1} lies sealed under REK_e, so a client that can open an epoch can open all before it.

use super::attributes::AttributeKeys;
use super::names::NameKeys;
use super::shamir::{self, Share};
use super::small_value::SmallValueKey;
use super::{KeyError, Sealing, Secret};
use aes_gcm_siv::aead::{Aead, KeyInit, Payload};
use aes_gcm_siv::{Aes256GcmSiv, Nonce};
use quorumfs_metadata::identity::{InodeId, RealmEpoch, RealmId, SliceId, VolumeId};
use quorumfs_metadata::row::SliceSalt;
use zeroize::Zeroizing;

/// Its name in messages.
const PREVIOUS: &str = "key of the epoch before";

/// M_e: the secret that each member of a realm holds for one epoch.
#[derive(Clone, Debug)]
pub struct EpochSecret(Secret);

/// C_e: the secret that f + 1 clouds hold together for one epoch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedSecret(Secret);

/// REK_e: the key from which everything sealed in a realm's epoch is derived.
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
    /// Wraps an existing slice key: an unwrapped one, or a test's.
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

    /// The context that a member's wrapping of it is bound to.
    pub(crate) fn wrapping_info(volume: &VolumeId, realm: RealmId, epoch: RealmEpoch) -> Vec<u8> {
        let mut info = b"quorumfs 2026 realm epoch secret".to_vec();
        info.extend_from_slice(&volume.0);
        info.extend_from_slice(&realm.0.to_be_bytes());
        info.extend_from_slice(&epoch.0.to_be_bytes());
        info
    }

    /// Opens the lock: the second one with the clouds' secret, or the first alone.
    #[must_use]
    pub fn realm_epoch_key(
        &self,
        shared: Option<&SharedSecret>,
        volume: &VolumeId,
        realm: RealmId,
        epoch: RealmEpoch,
    ) -> RealmEpochKey {
        let (realm, number) = (realm.0.to_be_bytes(), epoch.0.to_be_bytes());
        let place: [&[u8]; 3] = [&volume.0, &realm, &number];
        let [volume, realm, number] = place;
        const CONTEXT: &str = "quorumfs 2026 realm epoch key";
        let secret = match shared {
            None => self.0.derive(CONTEXT, &[&[1], volume, realm, number]),
            Some(SharedSecret(shared)) => {
                let shared = shared.expose();
                self.0
                    .derive(CONTEXT, &[&[2], volume, realm, number, shared])
            }
        };
        RealmEpochKey {
            secret,
            epoch,
            sealing: Sealing::On,
        }
    }
}

impl SharedSecret {
    /// A new one.
    ///
    /// # Errors
    /// If there is no randomness.
    pub fn random() -> Result<Self, KeyError> {
        Ok(Self(Secret::random()?))
    }

    /// A share for each of these clouds; any `faulty` + 1 give the secret back.
    ///
    /// # Errors
    /// If there is no randomness.
    pub fn split(
        &self,
        clouds: impl Iterator<Item = u8>,
        faulty: u8,
    ) -> Result<Vec<Share>, KeyError> {
        shamir::split(&self.0, clouds, faulty)
    }

    /// Joins shares, each with its cloud's index: as many as are needed, all of them proved.
    #[must_use]
    pub fn join(shares: &[(u8, Share)]) -> Option<Self> {
        shamir::join(shares).map(Self)
    }

    /// The share of a cloud, from those of others.
    #[must_use]
    pub fn share_of(shares: &[(u8, Share)], cloud: u8) -> Option<Share> {
        shamir::share_of(shares, cloud)
    }
}

impl RealmEpochKey {
    /// The same key for a control run; see [`Sealing`].
    pub(crate) fn with_sealing(self, sealing: Sealing) -> Self {
        Self { sealing, ..self }
    }

    /// The bytes, for tests that search for them in the wrong places.
    #[doc(hidden)]
    #[must_use]
    pub fn expose(&self) -> &[u8; 32] {
        self.secret.expose()
    }

    /// Its epoch.
    #[must_use]
    pub fn epoch(&self) -> RealmEpoch {
        self.epoch
    }

    /// The key of the epoch before, sealed under this one's. The same input gives the same bytes;
    /// the key that is derived for this seals nothing else.
    ///
    /// # Errors
    /// If the cipher refuses, which it does not.
    pub fn seal_previous(
        &self,
        previous: &Self,
        volume: &VolumeId,
        realm: RealmId,
    ) -> Result<Vec<u8>, KeyError> {
        let place = self.place(volume, realm);
        let payload = Payload {
            msg: previous.secret.expose(),
            aad: &place,
        };
        let sealed = self.previous_cipher().encrypt(&Nonce::default(), payload);
        sealed.map_err(|_| KeyError::Forged { what: PREVIOUS })
    }

    /// Opens the key of the epoch before, sealed by [`seal_previous`](Self::seal_previous).
    ///
    /// # Errors
    /// If it was made for another place or with another key, or was changed.
    pub fn open_previous(
        &self,
        sealed: &[u8],
        volume: &VolumeId,
        realm: RealmId,
    ) -> Result<Self, KeyError> {
        const FORGED: KeyError = KeyError::Forged { what: PREVIOUS };
        let epoch = self.epoch.0.checked_sub(1).ok_or(FORGED)?;
        let place = self.place(volume, realm);
        let payload = Payload {
            msg: sealed,
            aad: &place,
        };
        let opened = self.previous_cipher().decrypt(&Nonce::default(), payload);
        let opened = Zeroizing::new(opened.map_err(|_| FORGED)?);
        let bytes: [u8; 32] = opened.as_slice().try_into().map_err(|_| FORGED)?;
        Ok(Self {
            secret: Secret::from_bytes(bytes),
            epoch: RealmEpoch(epoch),
            sealing: self.sealing,
        })
    }

    fn place(&self, volume: &VolumeId, realm: RealmId) -> Vec<u8> {
        let (realm, epoch) = (realm.0.to_be_bytes(), self.epoch.0.to_be_bytes());
        [volume.0.as_slice(), &realm, &epoch].concat()
    }

    fn previous_cipher(&self) -> Aes256GcmSiv {
        let key = self.secret.derive("quorumfs 2026 previous epoch key", &[]);
        Aes256GcmSiv::new(key.expose().into())
    }

    /// Whether both keys are the same.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.epoch == other.epoch && self.secret == other.secret
    }

    /// The key of one slice, for which its writer drew `salt`.
    #[must_use]
    pub fn slice_key(&self, slice: SliceId, salt: &SliceSalt) -> SliceKey {
        let parts: [&[u8]; 2] = [&slice.to_be_bytes(), &salt.0];
        SliceKey(self.secret.derive("quorumfs 2026 salted slice key", &parts))
    }

    /// The keys of the names in one directory, for the generation of this epoch.
    #[must_use]
    pub fn name_keys(&self, directory: InodeId) -> NameKeys {
        NameKeys::derive(&self.secret, directory, self.epoch, self.sealing)
    }

    /// The keys of the names of one inode's extended attributes, for the generation of this epoch.
    #[must_use]
    pub fn attribute_keys(&self, inode: InodeId) -> AttributeKeys {
        AttributeKeys::derive(&self.secret, inode, self.epoch, self.sealing)
    }

    /// The key of inline content, symlink targets and the values of extended attributes.
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

    const VOLUME: ClusterId = ClusterId([1; 16]);
    const SALT: SliceSalt = SliceSalt([6; 16]);

    fn key_of(shared: Option<u8>, epoch: u32) -> RealmEpochKey {
        let shared = shared.map(|byte| SharedSecret(Secret::from_bytes([byte; 32])));
        EpochSecret::from_secret(Secret::from_bytes([4; 32])).realm_epoch_key(
            shared.as_ref(),
            &VOLUME,
            RealmId::ROOT,
            RealmEpoch(epoch),
        )
    }

    fn key(epoch: u32) -> RealmEpochKey {
        key_of(None, epoch)
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
            key(0).slice_key(slice(1), &SALT).expose(),
            key(0).slice_key(slice(2), &SALT).expose()
        );
        assert_ne!(
            key(0).slice_key(slice(1), &SALT).expose(),
            key(1).slice_key(slice(1), &SALT).expose()
        );
        assert_ne!(
            key(0).slice_key(slice(1), &SALT).expose(),
            key(0).slice_key(slice(1), &SliceSalt([8; 16])).expose()
        );
    }

    #[test]
    fn each_lock_and_each_shared_secret_makes_another_key() {
        let keys = [key(3), key_of(Some(0), 3), key_of(Some(5), 3)];
        assert!(!keys[0].is_same(&keys[1]));
        assert!(!keys[0].is_same(&keys[2]));
        assert!(!keys[1].is_same(&keys[2]));
    }

    #[test]
    fn an_epoch_opens_the_one_before_and_no_other() {
        let (one, two) = (key(1), key_of(Some(5), 2));
        let sealed = two.seal_previous(&one, &VOLUME, RealmId::ROOT).unwrap();
        let opened = two.open_previous(&sealed, &VOLUME, RealmId::ROOT).unwrap();
        assert!(opened.is_same(&one));
        for other in [key_of(Some(6), 2), key(2), key_of(Some(5), 3), key(0)] {
            let opened = other.open_previous(&sealed, &VOLUME, RealmId::ROOT);
            assert!(opened.is_err(), "{:?}", other.epoch());
        }
        assert!(two.open_previous(&sealed, &VOLUME, RealmId(1)).is_err());
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            let opened = two.open_previous(&changed, &VOLUME, RealmId::ROOT);
            assert!(opened.is_err(), "byte {at}");
        }
    }

    #[test]
    fn the_keys_are_pinned_to_their_golden_bytes() {
        let golden = crate::keys::lines::assert_golden;
        golden("slice_key", key(0).slice_key(slice(1), &SALT).expose());
        let two = key_of(Some(5), 2);
        let salted = two.slice_key(slice(1), &SALT);
        golden("slice_key_lock_2", salted.expose());
        let sealed = two.seal_previous(&key(1), &VOLUME, RealmId::ROOT).unwrap();
        golden("previous_epoch_key", &sealed);
    }
}
