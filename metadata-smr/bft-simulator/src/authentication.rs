//! Signatures that cost nanoseconds and that nobody can forge without the key.
//!
//! A signature is a keyed hash under a secret that only the key's [`FakeSigner`] and the
//! [`Keyring`] hold. The keyring stands for the mathematics: it verifies, and no adversary of the
//! simulation ever signs through it. An adversary is handed signers of its own keys only.

use quorumfs_bft::authentication::{Signer, Verifier};
use quorumfs_bft::identity::{PublicKey, Signature};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

fn sign(secret: &[u8; 32], message: &[u8]) -> Signature {
    let mut signature = [0; 64];
    let (first, second) = signature.split_at_mut(32);
    first.copy_from_slice(blake3::keyed_hash(secret, message).as_bytes());
    // The second half repeats the first one changed, so that all of its bytes matter too.
    for (to, from) in second.iter_mut().zip(first.iter()) {
        *to = !from;
    }
    Signature(signature)
}

/// Every key of a simulation, for verification only.
#[derive(Clone, Debug, Default)]
pub struct Keyring {
    secrets: Rc<RefCell<BTreeMap<PublicKey, [u8; 32]>>>,
}

impl Keyring {
    /// A new key pair made from `secret`.
    #[must_use]
    pub fn generate(&self, secret: [u8; 32]) -> FakeSigner {
        let public = PublicKey(*blake3::hash(&secret).as_bytes());
        self.secrets.borrow_mut().insert(public, secret);
        FakeSigner { secret, public }
    }
}

impl Verifier for Keyring {
    fn verify(&self, key: &PublicKey, message: &[u8], signature: &Signature) -> bool {
        self.secrets
            .borrow()
            .get(key)
            .is_some_and(|secret| sign(secret, message) == *signature)
    }
}

/// Signs under one key of a simulation.
#[derive(Clone, Debug)]
pub struct FakeSigner {
    secret: [u8; 32],
    public: PublicKey,
}

impl Signer for FakeSigner {
    fn public_key(&self) -> PublicKey {
        self.public
    }

    fn sign(&self, message: &[u8]) -> Signature {
        sign(&self.secret, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_key_that_signed_verifies_and_only_what_was_signed() {
        let ring = Keyring::default();
        let (alice, mallory) = (ring.generate([1; 32]), ring.generate([2; 32]));
        let signature = alice.sign(b"yes");
        assert!(ring.verify(&alice.public_key(), b"yes", &signature));
        assert!(!ring.verify(&alice.public_key(), b"no", &signature));
        assert!(!ring.verify(&mallory.public_key(), b"yes", &signature));
        for byte in 0..64 {
            let mut flipped = signature;
            flipped.0[byte] ^= 1;
            assert!(!ring.verify(&alice.public_key(), b"yes", &flipped));
        }
    }
}
