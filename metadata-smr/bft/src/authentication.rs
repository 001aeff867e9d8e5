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
//! | PROPOSAL, PREPARE, COMMIT | signed | the channel authenticates the sender |
//! | VIEW-CHANGE, NEW-VIEW, SUSPECT, CHECKPOINT | signed | signed |
//! | clients' requests | signed | signed |
//! | a quorum's votes can be shown to others | yes | only those for checkpoints |
//! | a replica that lacks a batch takes it | with its certificate | from r + 1 that agree |
//!
//! A channel is a mutual TLS connection between two replicas with pinned keys. It proves to its
//! receiver which replica sent a message, but the receiver cannot prove that to a third. So a liar
//! may send different messages to different replicas, and none of them can convict it; therefore no
//! replica is blacklisted for what others report about it. Messages that have to be proved to
//! others stay signed. [`crate::ordering::claims`] says how a view changes without certificates.
//!
//! Clients' requests are signed in both modes. If a request carried one authenticator for each
//! replica instead, a client could make one that its leader finds good and the others bad: the
//! leader proposes it, no other replica votes, and a correct leader is replaced; with some good and
//! some bad the replicas are divided (the *Big MAC attack*: A. Clement et al., "Making Byzantine
//! Fault Tolerant Systems Tolerate Byzantine Faults", 2009, §3). A signature is valid for all or
//! for none.
//!
//! The mode belongs to the cluster, not to a replica: in a mixed one each side would take the other
//! for liars. Replicas refuse a peer of another mode when they connect.

use crate::identity::{PublicKey, ReplicaId, SessionId, Signature};
use borsh::{BorshDeserialize, BorshSerialize};

/// How replicas authenticate votes; all replicas of a cluster do it alike.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    BorshSerialize,
    BorshDeserialize,
)]
pub enum Authentication {
    /// Votes are signed, and their certificates prove something to any replica.
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

/// The keys of replicas and sessions, as far as a replica knows them now.
pub trait KeyDirectory {
    /// A voter's key in the current epoch.
    fn replica(&self, id: ReplicaId) -> Option<PublicKey>;
    /// The key of an open session (fed by the effect `SessionKey`).
    fn session(&self, id: SessionId) -> Option<PublicKey>;
}
