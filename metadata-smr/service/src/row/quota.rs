//! What a realm and each of its users have, and may have.

use borsh::{BorshDeserialize, BorshSerialize};

/// What quotas count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Resource {
    /// Bytes of content.
    Bytes,
    /// Inodes.
    Inodes,
}

impl std::fmt::Display for Resource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Bytes => "bytes",
            Self::Inodes => "inodes",
        })
    }
}

/// So much of both.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, BorshSerialize, BorshDeserialize,
)]
pub struct Amount {
    /// Bytes: of content, what extents cover, and what lies in inodes (holes cost nothing; bytes
    /// that several files share count for each); of everything else, what [`Inode::charge`] says.
    ///
    /// [`Inode::charge`]: crate::row::Inode::charge
    pub bytes: u64,
    /// Inodes, those that are only held open included.
    pub inodes: u64,
}

/// At most so much; what is `None` is not limited.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, BorshSerialize, BorshDeserialize,
)]
pub struct Limit {
    /// Bytes of content.
    pub bytes: Option<u64>,
    /// Inodes.
    pub inodes: Option<u64>,
}

impl Limit {
    /// What is left of a resource by this limit; `u64::MAX` if it has none.
    #[must_use]
    pub fn room(&self, of: Resource, used: &Amount) -> u64 {
        let (limit, used) = match of {
            Resource::Bytes => (self.bytes, used.bytes),
            Resource::Inodes => (self.inodes, used.inodes),
        };
        limit.map_or(u64::MAX, |limit| limit.saturating_sub(used))
    }
}

/// A realm's quota.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct RealmQuota {
    /// What all of its inodes have together.
    pub used: Amount,
    /// What they may have together, whoever owns them.
    pub limit: Limit,
    /// What each user may have who has no limit of his own; the superuser is bound by none.
    pub default: Limit,
}

/// A user's quota in a realm. There is no row for one who has nothing and no limit of his own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct UserQuota {
    /// What the inodes have that he owns.
    pub used: Amount,
    /// What they may have; `None`: what the realm's default says.
    pub limit: Option<Limit>,
}
