//! The volume's root: an Ed25519 key that signs genesis and then stays in the recovery kit.

use super::{KeyError, Secret};
use ed25519_zebra::{SigningKey, VerificationKey};
use quorumfs_bft::identity::{ClusterId, PublicKey, Signature};
use std::fmt;
use zeroize::Zeroize;

/// The root's public half, which every key file pins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RootKey(pub PublicKey);

/// The root's secret half.
#[derive(Clone)]
pub struct VolumeRoot {
    seed: Secret,
}

impl fmt::Debug for VolumeRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VolumeRoot({})", self.public().0)
    }
}

impl VolumeRoot {
    /// A new root.
    ///
    /// # Errors
    /// If there is no randomness.
    pub fn random() -> Result<Self, KeyError> {
        Ok(Self {
            seed: Secret::random()?,
        })
    }

    /// The root with this seed, as read from a recovery kit.
    #[must_use]
    pub fn from_seed(seed: Secret) -> Self {
        Self { seed }
    }

    pub(super) fn seed(&self) -> &Secret {
        &self.seed
    }

    /// The key that verifies this root's signatures.
    #[must_use]
    pub fn public(&self) -> RootKey {
        RootKey(public_key(&self.seed))
    }

    /// The volume of this root: its id is a commitment to the key, so that a client that has the id
    /// rejects any other root.
    #[must_use]
    pub fn volume(&self) -> ClusterId {
        self.public().volume()
    }

    /// Signs bytes that carry their own domain tag.
    #[must_use]
    pub fn sign(&self, message: &[u8]) -> Signature {
        sign(&self.seed, message)
    }
}

impl RootKey {
    /// See [`VolumeRoot::volume`].
    #[must_use]
    pub fn volume(&self) -> ClusterId {
        let mut hasher = blake3::Hasher::new_derive_key("quorumfs 2026 volume id");
        hasher.update(&self.0.0);
        let mut id = [0; 16];
        hasher.finalize_xof().fill(&mut id);
        ClusterId(id)
    }

    /// Whether this root signed `message`, by the rules of ZIP-215.
    #[must_use]
    pub fn verify(&self, message: &[u8], signature: &Signature) -> bool {
        verify(&self.0, message, signature)
    }
}

pub(super) fn public_key(seed: &Secret) -> PublicKey {
    let mut key = SigningKey::from_bytes(seed.expose());
    let public = PublicKey(key.verification_key().into());
    key.zeroize();
    public
}

pub(super) fn sign(seed: &Secret, message: &[u8]) -> Signature {
    let mut key = SigningKey::from_bytes(seed.expose());
    let signature = Signature(key.sign(message).into());
    key.zeroize();
    signature
}

/// Whether `key` signed `message`, by the rules of ZIP-215.
#[must_use]
pub fn verify(key: &PublicKey, message: &[u8], signature: &Signature) -> bool {
    VerificationKey::try_from(key.0)
        .and_then(|key| key.verify(&ed25519_zebra::Signature::from(signature.0), message))
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_vouches_for_what_it_signed_and_nothing_else() {
        let root = VolumeRoot::from_seed(Secret::from_bytes([5; 32]));
        let signature = root.sign(b"genesis");
        assert!(root.public().verify(b"genesis", &signature));
        assert!(!root.public().verify(b"genesis!", &signature));
        let other = VolumeRoot::from_seed(Secret::from_bytes([6; 32]));
        assert!(!other.public().verify(b"genesis", &signature));
        assert_ne!(root.volume(), other.volume());
    }

    #[test]
    fn the_volume_id_is_pinned_to_its_golden_bytes() {
        let root = VolumeRoot::from_seed(Secret::from_bytes([5; 32]));
        crate::keys::lines::assert_golden("root_public_key", &root.public().0.0);
        crate::keys::lines::assert_golden("volume_id", &root.volume().0);
    }
}
