//! Signing and verifying as traits.
//!
//! The runtime implements them with Ed25519 (ZIP-215 rules, so that every replica gives the same
//! verdict on every signature); the simulator with a keyed hash that costs nanoseconds and that no
//! adversary of the simulation can forge without having been given the key.

use crate::identity::{PublicKey, ReplicaId, SessionId, Signature};

/// Checks signatures. Must give the same verdict on every replica.
pub trait Verifier {
    /// Whether `signature` is `key`'s on `message`.
    fn verify(&self, key: &PublicKey, message: &[u8], signature: &Signature) -> bool;
}

/// Makes signatures under one key.
pub trait Signer {
    /// The key that verifies them.
    fn public_key(&self) -> PublicKey;
    /// A signature on `message`.
    fn sign(&self, message: &[u8]) -> Signature;
}

/// Whose key is whose, as far as a replica knows now.
pub trait KeyDirectory {
    /// A voter's key in the current epoch.
    fn replica(&self, id: ReplicaId) -> Option<PublicKey>;
    /// The key of an open session (fed by the effect `SessionKey`).
    fn session(&self, id: SessionId) -> Option<PublicKey>;
}
