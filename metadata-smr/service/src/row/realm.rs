//! Realms: whose keys, which policy, who mounts.

use crate::identity::{CloudIndex, Home, InodeId, MountEpoch, ObjectId, PrincipalId, RealmEpoch};
use crate::limits::WRAPPED_KEY_BYTES_MAX;
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

/// One generation of a realm's keys. Whoever begins it signs all of it for each member, so that
/// the servers can change nothing: neither take the second lock away nor swap a digest.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Epoch {
    /// When it was begun, by the clock of who did.
    pub begun: Time,
    /// What it takes to read.
    pub lock: Lock,
    /// The previous epoch's key, sealed under this one's; empty for epoch 0.
    pub previous: Vec<u8>,
    /// Where the secret is that is shared over the clouds; with lock 2 and only then.
    pub shares: Option<Shares>,
}

/// A secret that is shared over the clouds, one share on each.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Shares {
    /// Under whose names the shares lie, with the class
    /// [`SHARE`](crate::identity::ObjectClass::SHARE).
    pub object: ObjectId,
    /// How many of them give the secret: f + 1.
    pub threshold: u8,
    /// Their digests, by cloud.
    pub digests: Vec<Digest>,
    /// The clouds from which they were read back before anything was sealed, in order.
    pub confirmed: Vec<CloudIndex>,
}

impl Epoch {
    /// Whether it can be the epoch of this number in a realm that spreads by `policy`. How many
    /// clouds have confirmed is apart: see [`Shares::is_confirmed`].
    #[must_use]
    pub fn is_sound(&self, number: RealmEpoch, policy: &Policy) -> bool {
        let previous = match number {
            RealmEpoch(0) => self.previous.is_empty(),
            _ => (1..=WRAPPED_KEY_BYTES_MAX).contains(&self.previous.len()),
        };
        previous
            && match (self.lock, &self.shares) {
                (Lock::Members, None) => true,
                (Lock::MembersAndClouds, Some(shares)) => shares.is_sound(policy),
                (Lock::Members, Some(_)) | (Lock::MembersAndClouds, None) => false,
            }
    }
}

impl Shares {
    fn is_sound(&self, policy: &Policy) -> bool {
        let next = |pair: &[CloudIndex]| matches!(pair, [one, other] if one < other);
        self.threshold == policy.faulty().saturating_add(1)
            && self.digests.len() == usize::from(policy.clouds())
            && self.confirmed.windows(2).all(next)
            && self
                .confirmed
                .last()
                .is_none_or(|cloud| cloud.0 < policy.clouds())
    }

    /// How many clouds have to have confirmed: n − f, so that however f of them lie or vanish,
    /// f + 1 remain, and no f clouds can keep an epoch from beginning.
    #[must_use]
    pub const fn wanted(policy: &Policy) -> u8 {
        policy.clouds().saturating_sub(policy.faulty())
    }

    /// Whether that many have.
    #[must_use]
    pub fn is_confirmed(&self, policy: &Policy) -> bool {
        self.confirmed.len() >= usize::from(Self::wanted(policy))
    }
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
    /// How often other sessions have changed something in the realm since then. As long as this
    /// stands still, what the mount has learned is still so.
    pub others: u64,
}
