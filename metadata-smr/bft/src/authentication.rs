//! Signing and verifying as traits, and which messages are signed at all.
//!
//! The runtime implements them with Ed25519 (ZIP-215 rules, so that every replica gives the same
//! verdict on every signature); the simulator with a keyed hash that costs nanoseconds and that no
//! adversary of the simulation can forge without having been given the key.

//!
//! # Signed votes, or votes that the channel authenticates
//!
//! | | `sig` | `mac` |
//! |---|---|---|
//! | PROPOSAL, PREPARE, COMMIT | signed | the channel says who speaks |
//! | VIEW-CHANGE, NEW-VIEW, SUSPECT, CHECKPOINT | signed | signed |
//! | clients' requests | signed | signed |
//! | what a quorum said can be shown to others | yes | only of checkpoints |
//! | a replica that lacks a batch takes it | with its certificate | on r + 1 equal words |
//!
//! A channel is a mutual TLS connection between two replicas with pinned keys: a message came from
//! whoever is at its other end, and nobody else can be shown that. So a liar may say one thing to
//! one and another to the next, and no two of those who heard it can prove anything to a third;
//! nobody is therefore blacklisted for what others say that he said. What has to be proved to
//! others stays signed. [`crate::ordering::claims`] says how a view changes without certificates.
//!
//! Clients' requests are signed in both. If a request carried one authenticator for each replica
//! instead, a client could make one that its leader finds good and the others bad: the leader
//! proposes it, nobody votes, and a correct leader is replaced; with some good and some bad the
//! replicas are divided (the *Big MAC attack*: A. Clement et al., "Making Byzantine Fault Tolerant
//! Systems Tolerate Byzantine Faults", 2009, §3). One signature means the same to everybody.
//!
//! The mode belongs to the cluster, not to a replica: in a mixed one each side would take the other
//! for liars. Replicas refuse one of another mode when they meet.

use crate::identity::{PublicKey, ReplicaId, SessionId, Signature};

/// How replicas know whose votes they count; all replicas of a cluster do it alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Authentication {
    /// Votes are signed, and certificates of them prove something to anybody.
    #[default]
    Sig,
    /// Votes are authenticated by the channel that they come through.
    Mac,
}

impl Authentication {
    /// Whether votes are signed.
    #[must_use]
    pub const fn signs_votes(self) -> bool {
        matches!(self, Self::Sig)
    }

    /// Its name in configurations and on command lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sig => "sig",
            Self::Mac => "mac",
        }
    }
}

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
