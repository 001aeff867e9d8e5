//! Limits of what a realm and its users may have.

use crate::identity::{RealmId, Uid};
use crate::row::Limit;
use borsh::{BorshDeserialize, BorshSerialize};

/// Whose limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum QuotaOf {
    /// The realm's: what all of its inodes may have together.
    Realm,
    /// That of each user of the realm who has none of his own.
    Default,
    /// One user's. The superuser can have none.
    User(Uid),
}

/// Sets a limit. What is there already may be more; it only cannot grow then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct SetQuota {
    /// In which realm.
    pub realm: RealmId,
    /// Whose.
    pub of: QuotaOf,
    /// The limit; `None`: none for the realm or by default, and the default one for a user.
    pub limit: Option<Limit>,
}
