//! Principals, their sessions, and the ids that sessions were granted.

use crate::attributes::Credentials;
use crate::identity::{AllocationId, Gid, PrincipalId, PrincipalNumber, RealmId, Uid};
use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_bft::identity::{SessionId, Time};

/// A key pair that may open sessions.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Principal {
    /// X25519 key that others wrap for.
    pub wrapping_key: [u8; 32],
    /// What it may do.
    pub rights: Rights,
    /// What people call it.
    pub label: String,
    /// Sessions that it has open.
    pub sessions: u32,
    /// What rows know it by.
    pub number: PrincipalNumber,
}

/// Whose a number is. It stays when the principal goes: what it wrote may outlive it.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Numbered {
    /// The key.
    pub principal: PrincipalId,
    /// What people called it when it got its number.
    pub label: String,
}

/// What a principal may do. A gateway, however malicious, can do no more.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Rights {
    /// Uids that it may speak for.
    pub uids: Assertable<Uid>,
    /// Gids that it may speak for.
    pub gids: Assertable<Gid>,
    /// May mount, and take a mount over.
    pub mount: bool,
    /// May confirm, repair and replace what others have placed.
    pub reconcile: bool,
    /// May change principals, realms and clouds once that is possible at run time.
    pub administer: bool,
}

/// A set of ids that somebody may speak for.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Assertable<T> {
    /// All of them.
    Any,
    /// These.
    Only(Vec<T>),
}

impl<T: PartialEq> Assertable<T> {
    /// Whether `id` is among them.
    #[must_use]
    pub fn contains(&self, id: &T) -> bool {
        match self {
            Self::Any => true,
            Self::Only(ids) => ids.contains(id),
        }
    }
}

impl Rights {
    /// Everything: what the owner of a volume has.
    #[must_use]
    pub const fn all() -> Self {
        Self {
            uids: Assertable::Any,
            gids: Assertable::Any,
            mount: true,
            reconcile: true,
            administer: true,
        }
    }

    /// Whether the principal may speak for `credentials`.
    #[must_use]
    pub fn may_assert(&self, credentials: &Credentials) -> bool {
        self.uids.contains(&credentials.uid)
            && self.gids.contains(&credentials.gid)
            && credentials.groups.iter().all(|gid| self.gids.contains(gid))
    }
}

/// A client process.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Session {
    /// Opened by whom.
    pub principal: PrincipalId,
    /// Since when.
    pub opened: Time,
    /// The realm that it has mounted.
    pub mounted: Option<RealmId>,
    /// The session that took its mount over; every write of this one is refused since.
    pub fenced_by: Option<SessionId>,
    /// Its live allocations.
    pub allocations: Vec<AllocationId>,
}

/// A range of ids: objects and slices 0 to `count` of this allocation.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Allocation {
    /// Whose it is.
    pub session: SessionId,
    /// How many ids of each kind.
    pub count: u32,
    /// One bit for each object id that a commit has brought in.
    pub objects_used: Vec<u8>,
    /// One bit for each slice id that a commit has brought in.
    pub slices_used: Vec<u8>,
}
