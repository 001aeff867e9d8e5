//! Signatures that cost nanoseconds and cannot be forged without the key.
//!
//! A signature is a keyed checksum under a secret that only the key's [`FakeSigner`] and the
//! [`Keyring`] hold. The keyring replaces the mathematics: it verifies, and no adversary of the
//! simulation ever signs through it. An adversary gets signers of its own keys only, and computes
//! nothing: a checksum that distinguishes any two messages of a run is enough, and a cryptographic
//! hash would be a third of the cost of a run.

use quorumfs_bft::authentication::{Signer, Verifier};
use quorumfs_bft::identity::{PublicKey, Signature};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Both halves of a product, so that every bit of `left` and `right` reaches the result.
const fn fold(left: u64, right: u64) -> u64 {
    let product = (left as u128).wrapping_mul(right as u128);
    (product as u64) ^ ((product >> 64) as u64)
}

/// A keyed checksum of 64 bits, by folded multiplication (as wyhash does it).
fn checksum(secret: &[u8; 32], message: &[u8]) -> u64 {
    let word = |bytes: &[u8]| {
        let mut padded = [0; 8];
        for (to, from) in padded.iter_mut().zip(bytes) {
            *to = *from;
        }
        u64::from_le_bytes(padded)
    };
    let mut state = message.len() as u64;
    for key in secret.chunks(8) {
        state = fold(state ^ word(key), 0x9e37_79b9_7f4a_7c15);
    }
    let (words, rest) = message.as_chunks::<8>();
    for bytes in words {
        state = fold(state ^ u64::from_le_bytes(*bytes), 0xa076_1d64_78bd_642f);
        // A product with zero would lose everything before it.
        state ^= 0xe703_7ed1_a0b4_28db;
    }
    fold(state ^ word(rest), 0x8ebc_6af0_9c88_c6e3)
}

fn sign(secret: &[u8; 32], message: &[u8]) -> Signature {
    let sum = checksum(secret, message);
    let mut signature = [0; 64];
    // All bytes of the signature matter: the checksum is repeated with small changes.
    for (bytes, part) in signature.chunks_exact_mut(8).zip(0_u64..) {
        let mixed = fold(sum ^ part, 0x5899_65cc_7537_4cc3);
        bytes.copy_from_slice(&mixed.to_le_bytes());
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
    fn only_the_signing_key_and_the_signed_message_verify() {
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

    #[test]
    fn messages_that_differ_in_one_bit_or_in_length_have_different_signatures() {
        let alice = Keyring::default().generate([3; 32]);
        let mut seen = std::collections::BTreeSet::new();
        for length in 0..40 {
            assert!(seen.insert(alice.sign(&vec![0; length]).0));
            for bit in 0..8 * length {
                let mut message = vec![0; length];
                message[bit / 8] ^= 1 << (bit % 8);
                assert!(seen.insert(alice.sign(&message).0));
            }
        }
    }
}
