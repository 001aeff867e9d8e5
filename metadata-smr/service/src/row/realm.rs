//! Realms: whose keys, which policy, who mounts.

use crate::identity::{Home, InodeId, MountEpoch, PrincipalId, RealmEpoch};
use crate::placement::Policy;
use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_bft::identity::{Digest, SessionId, Signature, Time};

/// What lives together.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Realm {
    /// Its root directory.
    pub root: InodeId,
    /// Where its new inodes are created.
    pub home: Home,
    /// How its objects are spread.
    pub policy: Policy,
    /// What is sealed from now on is sealed under this epoch.
    pub epoch: RealmEpoch,
    /// How often it was mounted.
    pub mounts: MountEpoch,
}

/// What it takes to read what is sealed under an epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Lock {
    /// A member's key.
    Members,
    /// A member's key and the secret that is shared over the clouds.
    MembersAndClouds,
}

/// One generation of a realm's keys.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Epoch {
    /// What it takes to read.
    pub lock: Lock,
    /// The previous epoch's key, sealed under this one's; empty for epoch 0.
    pub previous: Vec<u8>,
    /// Digests of the shares on the clouds, by cloud; empty with lock 1.
    pub share_digests: Vec<Digest>,
}

/// Somebody who can read a realm.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Member {
    /// The epoch whose key is wrapped; it opens the earlier ones.
    pub epoch: RealmEpoch,
    /// The wrapped key: opaque to the servers.
    pub wrapped: Vec<u8>,
    /// Who vouches for the member.
    pub signer: PrincipalId,
    /// Their signature; members verify it, the servers do not.
    pub signature: Signature,
}

/// The session that has a realm mounted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Mount {
    /// Which one.
    pub session: SessionId,
    /// Opened by whom.
    pub principal: PrincipalId,
    /// The mount's number in the realm.
    pub epoch: MountEpoch,
    /// Since when, by the agreed clock.
    pub since: Time,
}
