//! Principals, their sessions, and the ids granted to sessions.

use crate::attributes::Credentials;
use crate::identity::{AllocationId, Gid, PrincipalId, PrincipalNumber, RealmId, Uid};
use crate::row::realm::MemberRole;
use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_bft::identity::{SessionId, Signature, Time};

/// A key pair that may open sessions, as its [statement](crate::statement) says.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Principal {
    /// The X25519 key for wrapping secrets.
    pub wrapping_key: [u8; 32],
    /// Its rights.
    pub rights: Rights,
    /// Its name for people.
    pub label: String,
    /// The number of its open sessions.
    pub sessions: u32,
    /// Its number in rows.
    pub number: PrincipalNumber,
    /// When it ceases to be a principal, by the agreed time.
    pub expires: Option<Time>,
    /// The administrator that stated it last, and its signature of that
    /// [change](crate::people::PeopleChange); `None`: the genesis or a succession states it.
    pub stated: Option<SignedBy>,
}

/// The number of changes of the principals so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct PeopleChanges {
    /// The number of the last one.
    pub last: u32,
}

/// A principal that expires. The time and the principal are in the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct DueExpiry;

/// A key that is no principal's any more; the key is in the row's key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct FormerPrincipal {
    /// Its number in rows.
    pub number: PrincipalNumber,
    /// When it ceased to be a principal, by the agreed time.
    pub until: Time,
}

/// A further machine of a member; its key is in the row's key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Machine {
    /// The first key of the person, whether it is a principal's still or not.
    pub of: PrincipalId,
}

/// An invitation of a member to a further machine; the invitation's key is in the row's key.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Invitation {
    /// The member.
    pub by: PrincipalId,
    /// When it ends, by the agreed time.
    pub until: Time,
    /// What the machine needs to know of the volume: opaque to the servers.
    pub card: Vec<u8>,
    /// What the machine has answered: opaque to the servers.
    pub answer: Option<Vec<u8>>,
    /// How many sessions were opened with it.
    pub sessions: u32,
    /// Whether it was revoked, or replaced by another one of the member.
    pub ended: bool,
}

/// An invitation that ends. The time and the invitation's key are in the row's key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct DueInvitation {
    /// The member that made it.
    pub by: PrincipalId,
}

/// A signature and its signer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct SignedBy {
    /// The signer.
    pub signer: PrincipalId,
    /// The signature.
    pub signature: Signature,
}

/// A cloud's secret, wrapped for a principal; both are in the key.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct CloudSecretRow {
    /// The wrapping: encapsulated key and ciphertext, opaque to the servers.
    pub bytes: Vec<u8>,
    /// The administrator that added its cloud; `None`: the principal's statement has it.
    pub signed: Option<SignedBy>,
}

/// The principal of a number. It stays when the principal goes, because its objects may outlive it.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Numbered {
    /// The key.
    pub principal: PrincipalId,
    /// Its name for people at the time of the number's assignment.
    pub label: String,
}

/// A principal's rights. A gateway, however malicious, can do no more.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Rights {
    /// Uids that it may act for.
    pub uids: Assertable<Uid>,
    /// Gids that it may act for.
    pub gids: Assertable<Gid>,
    /// May mount alone or exclusively, and take a mount over. Any member may mount with others.
    pub mount: bool,
    /// May confirm, repair and replace objects of others.
    pub reconcile: bool,
    /// May change principals, realms and clouds where that is possible at run time.
    pub administer: bool,
}

/// A set of ids that a principal may act for.
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

    /// Whether all of `others` are among them.
    #[must_use]
    pub fn contains_all(&self, others: &Self) -> bool {
        match (self, others) {
            (Self::Any, _) => true,
            (Self::Only(_), Self::Any) => false,
            (Self::Only(_), Self::Only(others)) => others.iter().all(|id| self.contains(id)),
        }
    }
}

impl Rights {
    /// All rights: those of a volume's owner.
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

    /// The role of a member with these rights.
    #[must_use]
    pub const fn role(&self) -> MemberRole {
        if self.administer {
            MemberRole::Administer
        } else if self.mount || self.reconcile {
            MemberRole::Write
        } else {
            MemberRole::Read
        }
    }

    /// Whether the principal may act for `credentials`.
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
    /// Its principal.
    pub principal: PrincipalId,
    /// When it was opened.
    pub opened: Time,
    /// The realm that it has mounted.
    pub mounted: Option<RealmId>,
    /// The session that took its mount over; every write of this session is refused since.
    pub fenced_by: Option<SessionId>,
    /// Its live allocations.
    pub allocations: Vec<AllocationId>,
}

/// A range of ids: objects and slices 0 to `count` of this allocation.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Allocation {
    /// Its session.
    pub session: SessionId,
    /// The number of ids of each kind.
    pub count: u32,
    /// One bit for each object id that a commit has used.
    pub objects_used: Vec<u8>,
    /// One bit for each slice id that a commit has used.
    pub slices_used: Vec<u8>,
}
