//! Many signatures checked together, in half the time of checking them one by one.
//!
//! A signature (R, s) under the key A on a message with hash k holds by ZIP-215 if
//! 8(sB − R − kA) = 0. For n of them one checks 8(Σ zᵢsᵢ B − Σ zᵢRᵢ − Σ zᵢkᵢAᵢ) = 0 with random zᵢ
//! of 128 bits: the doublings that make up most of the work are shared.
//!
//! # What always holds
//!
//! * Signatures that hold one by one hold together: each term is zero, small-order components
//!   included, because everything is multiplied by eight.
//! * If one does not hold, the sum is zero with a probability of 2⁻¹²⁵ at most, because the zᵢ are
//!   unpredictable; so a batch never accepts a signature that would be refused alone.
//! * A failed batch does not show which signature is bad: the caller checks them one by one, and
//!   ignores the sender of the bad one for a while.
//!
//! Source: D. J. Bernstein et al., "High-speed high-security signatures" (2011), section 5; the
//! verdict on small-order components by ZIP-215, as in `ed25519-zebra`, whose batches compute the
//! point of a key anew each time; here it is precomputed.

use super::{PreparedKey, hash_of};
use aws_lc_rs::rand;
use curve25519_dalek::constants::ED25519_BASEPOINT_POINT;
use curve25519_dalek::edwards::{CompressedEdwardsY, EdwardsPoint};
use curve25519_dalek::scalar::Scalar;
use curve25519_dalek::traits::{IsIdentity, VartimeMultiscalarMul};
use quorumfs_bft::identity::{PublicKey, Signature};
use sha2::{Digest, Sha512};

struct Item {
    key: PublicKey,
    point: EdwardsPoint,
    challenge: Scalar,
    nonce: EdwardsPoint,
    response: Scalar,
}

/// Signatures that wait for one check.
#[derive(Default)]
pub struct Batch {
    items: Vec<Item>,
    /// One of them is malformed: no check is needed.
    refused: bool,
}

impl Batch {
    /// The number of signatures.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Adds a signature.
    pub fn push(&mut self, key: &PreparedKey, message: &[u8], signature: &Signature) {
        let (nonce, response) = halves(signature);
        let hash = Sha512::new()
            .chain_update(nonce)
            .chain_update(key.public.0)
            .chain_update(hash_of(message));
        let point = CompressedEdwardsY(nonce).decompress();
        let response = Option::<Scalar>::from(Scalar::from_canonical_bytes(response));
        let (Some(nonce), Some(response)) = (point, response) else {
            self.refused = true;
            return;
        };
        self.items.push(Item {
            key: key.public,
            point: key.point,
            challenge: Scalar::from_hash(hash),
            nonce,
            response,
        });
    }

    /// Whether all of them hold. Without random numbers from the system none does.
    #[must_use]
    pub fn holds(self) -> bool {
        if self.refused || self.items.is_empty() {
            return !self.refused;
        }
        let mut random = vec![0; 16 * self.items.len()];
        if rand::fill(&mut random).is_err() {
            return false;
        }
        let mut base = Scalar::ZERO;
        let mut scalars = Vec::with_capacity(2 * self.items.len() + 1);
        let mut points = Vec::with_capacity(2 * self.items.len() + 1);
        let mut keys: Vec<(PublicKey, EdwardsPoint, Scalar)> = Vec::new();
        for (item, random) in self.items.into_iter().zip(random.as_chunks::<16>().0) {
            let weight = Scalar::from(u128::from_le_bytes(*random));
            base -= weight * item.response;
            scalars.push(weight);
            points.push(item.nonce);
            let share = weight * item.challenge;
            match keys.iter_mut().find(|(key, ..)| *key == item.key) {
                Some((_, _, sum)) => *sum += share,
                None => keys.push((item.key, item.point, share)),
            }
        }
        for (_, point, sum) in keys {
            scalars.push(sum);
            points.push(point);
        }
        scalars.push(base);
        points.push(ED25519_BASEPOINT_POINT);
        let sum = EdwardsPoint::vartime_multiscalar_mul(&scalars, &points);
        sum.mul_by_cofactor().is_identity()
    }
}

fn halves(signature: &Signature) -> ([u8; 32], [u8; 32]) {
    let (mut nonce, mut response) = ([0; 32], [0; 32]);
    let (low, high) = signature.0.split_at(32);
    nonce.copy_from_slice(low);
    response.copy_from_slice(high);
    (nonce, response)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::tests::SMALL_ORDER;
    use crate::keys::{NodeKey, Zip215, unhex};
    use proptest::prelude::*;
    use quorumfs_bft::authentication::{Signer, Verifier};

    fn together(signed: &[(PublicKey, Vec<u8>, Signature)]) -> bool {
        let mut batch = Batch::default();
        for (key, message, signature) in signed {
            let Some(key) = PreparedKey::new(key) else {
                return false;
            };
            batch.push(&key, message, signature);
        }
        batch.holds()
    }

    fn each(signed: &[(PublicKey, Vec<u8>, Signature)]) -> bool {
        signed
            .iter()
            .all(|(key, message, signature)| Zip215.verify(key, message, signature))
    }

    fn honest(count: u8) -> Vec<(PublicKey, Vec<u8>, Signature)> {
        let sign = |number: u8| {
            // Some keys sign twice.
            let key = NodeKey::from_seed([number / 2 + 1; 32].into()).expect("key");
            let message = vec![number; 200];
            (key.public(), message.clone(), key.sign(&message))
        };
        (0..count).map(sign).collect()
    }

    #[test]
    fn small_order_components_hold_in_a_batch_as_they_hold_alone() {
        // R = (true R) + T for T of small order: refused by rules without the cofactor.
        let torsion = |encoding: &str| {
            let bytes = *unhex(encoding).expect("hex");
            CompressedEdwardsY(bytes).decompress().expect("point")
        };
        let secret = Scalar::from(7_u64);
        let nonce = Scalar::from(11_u64);
        for number in SMALL_ORDER {
            for other in SMALL_ORDER {
                let mut signed = honest(3);
                let key = ED25519_BASEPOINT_POINT * secret + torsion(number);
                let key = PublicKey(key.compress().to_bytes());
                let commitment = ED25519_BASEPOINT_POINT * nonce + torsion(other);
                let commitment = commitment.compress().to_bytes();
                let hash = Sha512::new()
                    .chain_update(commitment)
                    .chain_update(key.0)
                    .chain_update(hash_of(b"words"));
                let response = nonce + Scalar::from_hash(hash) * secret;
                let mut bytes = [0; 64];
                bytes[..32].copy_from_slice(&commitment);
                bytes[32..].copy_from_slice(response.as_bytes());
                signed.push((key, b"words".to_vec(), Signature(bytes)));
                let mut small = [0; 64];
                small[..32].copy_from_slice(&*unhex(other).expect("hex"));
                let small_key = PublicKey(*unhex(number).expect("hex"));
                signed.push((small_key, b"words".to_vec(), Signature(small)));
                assert!(each(&signed), "{number} {other}");
                assert!(together(&signed), "{number} {other}");
                // A response that is off by one is refused, whatever the torsion.
                let wrong = response + Scalar::ONE;
                signed[3].2.0[32..].copy_from_slice(wrong.as_bytes());
                assert!(!each(&signed) && !together(&signed));
            }
        }
    }

    #[test]
    fn errors_do_not_cancel_out() {
        // Errors that would cancel out if every weight were the same.
        let mut signed = honest(2);
        for (item, error) in signed.iter_mut().zip([Scalar::ONE, -Scalar::ONE]) {
            let (_, response) = halves(&item.2);
            let response = Scalar::from_canonical_bytes(response).expect("canonical") + error;
            item.2.0[32..].copy_from_slice(response.as_bytes());
        }
        assert!(!together(&signed));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_batch_holds_if_each_does(
            count in 1_u8..14, bad in 0_usize..14, place in 0_usize..64, bit in 0_u8..9,
        ) {
            let mut signed = honest(count);
            if bit < 8 && let Some(item) = signed.get_mut(bad) {
                item.2.0[place] ^= 1 << bit;
            }
            prop_assert_eq!(together(&signed), each(&signed));
        }
    }
}
