//! Realms: keys, policy, mounts.

use crate::identity::{
    CloudIndex, Home, InodeId, MountEpoch, ObjectId, PrincipalId, RealmEpoch, RealmId,
};
use crate::limits::WRAPPED_KEY_BYTES_MAX;
use crate::placement::Policy;
use crate::row::principal::Rights;
use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_bft::identity::{Digest, SessionId, Signature, Time};

/// The scope of keys, members and policy.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Realm {
    /// Its root directory.
    pub root: InodeId,
    /// The home of its new inodes.
    pub home: Home,
    /// The spreading of its objects.
    pub policy: Policy,
    /// The key epoch that seals everything from now on.
    pub epoch: RealmEpoch,
    /// The number of its mounts so far.
    pub mounts: MountEpoch,
    /// The number of changes of its policy so far: none yet, and clients take the policy from the
    /// genesis.
    pub policy_epoch: u32,
    /// How long what was deleted stays in the trash, in seconds; 0: there is none.
    pub trash_seconds: u64,
    /// Whose content its members believe.
    pub believe: Believe,
    /// The realm that its root directory was in before; none yet.
    pub parent: Option<RealmId>,
}

/// Whose content a reader takes without decoding it and coding it again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Believe {
    /// That of the reader's own principal.
    Principal,
    /// That of every member. Refused so far.
    Members,
}

impl Realm {
    /// Whether nothing in it is unknown to this program.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.policy_epoch == 0 && self.believe == Believe::Principal && self.parent.is_none()
    }
}

/// The secrets that are needed to read what is sealed under a key epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Lock {
    /// A member's key.
    Members,
    /// A member's key and the secret shared over the clouds.
    MembersAndClouds,
}

/// A realm's key epoch. The principal that begins it signs all of it for each member, so that the
/// servers can change nothing: neither remove the second lock nor replace a digest.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Epoch {
    /// When it was begun, by the clock of its initiator.
    pub begun: Time,
    /// Its locks.
    pub lock: Lock,
    /// The previous epoch's key, sealed under this one's; empty for epoch 0.
    pub previous: Vec<u8>,
    /// The shares of the secret on the clouds; with lock 2 and only then.
    pub shares: Option<Shares>,
}

/// When a realm's previous key epoch ceases to seal: what comes later has to be sealed under the
/// newest one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct OldKeys {
    /// Until when it seals, by the agreed time.
    pub until: Time,
}

/// A secret shared over the clouds, one share on each.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Shares {
    /// The id of the shares' names, with the class [`SHARE`](crate::identity::ObjectClass::SHARE).
    pub object: ObjectId,
    /// The number of shares that give the secret: f + 1.
    pub threshold: u8,
    /// Their places, in the order of the clouds: any of the volume's, since providers are replaced.
    pub places: Vec<SharePlace>,
    /// The clouds from which shares were read back before anything was sealed, in order.
    pub confirmed: Vec<CloudIndex>,
}

/// The place of a share. The cloud's index is the share's too.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct SharePlace {
    /// The cloud.
    pub cloud: CloudIndex,
    /// The digest of the stored share.
    pub digest: Digest,
}

impl Epoch {
    /// Whether it can be the epoch of this number in a realm with this `policy`. The number of
    /// confirmations is a separate check: [`Shares::is_confirmed`].
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
        let places: Vec<CloudIndex> = self.places.iter().map(|place| place.cloud).collect();
        let ascending = |clouds: &[CloudIndex]| clouds.is_sorted_by(|one, other| one < other);
        self.threshold == policy.faulty().saturating_add(1)
            && places.len() == usize::from(policy.clouds())
            && ascending(&places)
            && ascending(&self.confirmed)
            && self.confirmed.iter().all(|cloud| places.contains(cloud))
    }

    /// The digest of a cloud's share; `None` if the cloud holds none.
    #[must_use]
    pub fn digest(&self, cloud: CloudIndex) -> Option<Digest> {
        let place = self.places.iter().find(|place| place.cloud == cloud)?;
        Some(place.digest)
    }

    /// The number of confirmations that are needed: n − f, so that f + 1 remain even if f of them
    /// lie or vanish, and f clouds alone cannot prevent an epoch.
    #[must_use]
    pub const fn wanted(policy: &Policy) -> u8 {
        policy.clouds().saturating_sub(policy.faulty())
    }

    /// Whether there are that many.
    #[must_use]
    pub fn is_confirmed(&self, policy: &Policy) -> bool {
        self.confirmed.len() >= usize::from(Self::wanted(policy))
    }
}

/// What a member may do in its realm. It follows from the principal's rights; see
/// [`Rights::role`](crate::row::Rights::role).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, BorshSerialize, BorshDeserialize)]
pub enum MemberRole {
    /// Read: mount with others, ask, take shared locks.
    Read,
    /// Read and write.
    Write,
    /// All that, and begin key epochs.
    Administer,
}

impl MemberRole {
    /// Its number in signed messages.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Read => 0,
            Self::Write => 1,
            Self::Administer => 2,
        }
    }
}

/// A principal that can read a realm.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Member {
    /// The key epoch whose key is wrapped; it opens the earlier ones.
    pub epoch: RealmEpoch,
    /// What it may do.
    pub role: MemberRole,
    /// When its membership ends, apart from the principal. Nothing ends one so, and any other value
    /// than `None` is refused: to ignore it would be worse.
    pub expires: Option<Time>,
    /// The wrapped key: opaque to the servers.
    pub wrapped: Vec<u8>,
    /// The principal that vouches for the member.
    pub signer: PrincipalId,
    /// Its signature; members verify it, the servers do not.
    pub signature: Signature,
}

impl Member {
    /// Whether its role follows from the principal's `rights`, and nothing in it is unknown to this
    /// program.
    #[must_use]
    pub fn fits(&self, rights: &Rights) -> bool {
        self.role == rights.role() && self.expires.is_none()
    }
}

/// A session that has a realm mounted. The key names both.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Mount {
    /// The session.
    pub session: SessionId,
    /// Its principal.
    pub principal: PrincipalId,
    /// The mount's number in the realm.
    pub epoch: MountEpoch,
    /// Since when, by the agreed clock.
    pub since: Time,
    /// Whether others may mount the realm meanwhile.
    pub mode: MountMode,
    /// Another session waits for this one to share the realm; only while it is alone.
    pub recall: Option<Recall>,
    /// The host, for people.
    pub label: String,
}

/// Whether other sessions may mount a realm that a session has mounted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum MountMode {
    /// None may.
    Exclusive,
    /// There is no other one now. One that shares *recalls* this one, which then has to share.
    Alone,
    /// All that share.
    Shared,
}

/// A request to a mount that is alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Recall {
    /// The session that waits.
    pub by: SessionId,
    /// When the mount is fenced if it is still alone and another one is tried, by the lease clock.
    pub deadline: Time,
}
