//! Quotas of a realm and its users.

use crate::identity::{RealmId, Uid};
use crate::row::Limit;
use borsh::{BorshDeserialize, BorshSerialize};

/// The subject of a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum QuotaOf {
    /// The realm: the limit of all of its inodes together.
    Realm,
    /// Each user of the realm without a limit of its own.
    Default,
    /// One user. The superuser cannot have a limit.
    User(Uid),
}

/// Sets a limit. Existing usage may exceed it; it cannot grow then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct SetQuota {
    /// The realm.
    pub realm: RealmId,
    /// The subject.
    pub of: QuotaOf,
    /// The limit; `None`: no limit for the realm or by default, and the default one for a user.
    pub limit: Option<Limit>,
}
