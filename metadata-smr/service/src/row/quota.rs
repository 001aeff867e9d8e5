//! The usage and quotas of a realm and each of its users.

use borsh::{BorshDeserialize, BorshSerialize};

/// The resources that quotas count.
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

/// Amounts of both resources.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, BorshSerialize, BorshDeserialize,
)]
pub struct Amount {
    /// Bytes: those of content that extents cover or inodes store (holes cost nothing; bytes that
    /// several files share count for each), and the rest of [`Inode::charge`].
    ///
    /// [`Inode::charge`]: crate::row::Inode::charge
    pub bytes: u64,
    /// Inodes, including those that are only held open.
    pub inodes: u64,
}

impl Amount {
    /// The sum; `None` if it is too large.
    #[must_use]
    pub fn plus(self, other: Self) -> Option<Self> {
        Some(Self {
            bytes: self.bytes.checked_add(other.bytes)?,
            inodes: self.inodes.checked_add(other.inodes)?,
        })
    }

    /// The difference; `None` if it would be negative.
    #[must_use]
    pub fn minus(self, other: Self) -> Option<Self> {
        Some(Self {
            bytes: self.bytes.checked_sub(other.bytes)?,
            inodes: self.inodes.checked_sub(other.inodes)?,
        })
    }
}

/// Limits; `None` is unlimited.
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
    /// The amount of a resource that is left; `u64::MAX` if it is unlimited.
    #[must_use]
    pub fn remaining(&self, of: Resource, used: &Amount) -> u64 {
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
    /// The usage of all of its inodes together.
    pub used: Amount,
    /// The limit of all of them, of any owner.
    pub limit: Limit,
    /// The limit of each user without one of its own; the superuser has none.
    pub default: Limit,
}

/// A user's quota in a realm. Users without usage and limit have no row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct UserQuota {
    /// The usage of the user's inodes.
    pub used: Amount,
    /// The user's limit; `None`: the realm's default.
    pub limit: Option<Limit>,
}
