//! Quotas: the usage of a realm and its users, and its limits.
//!
//! ```text
//!   every write of an inode's row ──► charged: (realm, owner) ± bytes, ± inodes
//!   end of a step ──► settle: checks the limits of growth, then writes the counters
//! ```
//!
//! Invariant, after each operation and each tick: a user's usage in a realm is the sum over the
//! inode rows that the user owns there. Each row counts one inode and the bytes that it takes: its
//! content, 512 for each of its names, a symlink's target, its extended attributes, 8 for each
//! entry of its lists ([`Inode::charge`]). So a user can make the servers store nothing free of
//! charge. A realm's usage is the sum over its users. Usage is counted where rows are written, in
//! [`Change::put_inode`], so no operation can omit it. For work in the reap queue this means:
//! * An inode that a session holds open counts until it is deleted.
//! * An inode in the grave that no session holds does not count.
//! * The content of a deleted inode no longer counts, though ticks may still have to delete it.
//! * A long tail that was cut off counts until ticks have deleted it, unless the file is empty.
//!
//! The owner of an inode pays for it, even if others write to it. A limit refuses only growth
//! beyond it: a user who exceeds it, because it was set later, can still rename, overwrite and
//! remove. A user can link another user's file only with write permission on it
//! (`namespace::link`), because its owner pays for the name. Only the realm's limit binds the
//! superuser's own files; the limits of other users bind what the superuser gives them or writes to
//! their files.
//!
//! The servers' own disks bound all users, including the superuser: while enough replicas report
//! that theirs are nearly full ([`Context::short_of_space`](quorumfs_bft::service::Context)), a
//! realm's usage may only shrink.
//!
//! Source: Linux, `fs/quota/dquot.c` (`dquot_alloc_space`, `dquot_transfer`); `ENOSPC` for a full
//! realm follows XFS's project quotas, because `statfs` shows the same limit.

use crate::change::{Asker, Change};
use crate::error::Error;
use crate::identity::{RealmId, Uid};
use crate::limits::QUOTA_PAGE_MAX;
use crate::operation::{QuotaOf, SetQuota};
use crate::reply::{Done, QueryResult};
use crate::row::{Amount, Inode, Limit, RealmQuota, Resource, Rights, Row, UserQuota, key};
use crate::rows::{Halt, Outcome, Rows, damaged, decode, require};
use std::collections::BTreeMap;

/// A change of an amount: a sum of 64-bit numbers, at most a few for each row that an operation
/// writes, so it cannot overflow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Delta {
    bytes: i128,
    inodes: i128,
}

impl Delta {
    fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            inodes: self.inodes.saturating_add(other.inodes),
        }
    }

    fn of(self, resource: Resource) -> i128 {
        match resource {
            Resource::Bytes => self.bytes,
            Resource::Inodes => self.inodes,
        }
    }
}

/// The changes of each user's usage by an operation.
pub(crate) type Charged = BTreeMap<(RealmId, Uid), Delta>;

/// Charges an inode's new row.
pub(crate) fn add(charged: &mut Charged, row: &Inode) {
    note(charged, row, 1);
}

/// Credits an inode's old row.
pub(crate) fn take(charged: &mut Charged, row: &Inode) {
    note(charged, row, -1);
}

fn note(charged: &mut Charged, row: &Inode, sign: i128) {
    if row.is_let_go() {
        return;
    }
    let Amount { bytes, inodes } = row.charge();
    let by = Delta {
        bytes: i128::from(bytes).saturating_mul(sign),
        inodes: i128::from(inodes).saturating_mul(sign),
    };
    let sum = charged.entry((row.realm, row.uid)).or_default();
    *sum = sum.plus(by);
}

/// Accounts for the charges; refused if a user or realm would exceed its limit.
pub(crate) fn settle(change: &mut Change<'_, '_>) -> Outcome<()> {
    settle_all(change, true)
}

/// Accounts for the charges, whatever the limits: of what was charged before, and was given back
/// too early.
pub(crate) fn settle_regardless(change: &mut Change<'_, '_>) -> Outcome<()> {
    settle_all(change, false)
}

fn settle_all(change: &mut Change<'_, '_>, limited: bool) -> Outcome<()> {
    let mut by_realm: BTreeMap<RealmId, Vec<(Uid, Delta)>> = BTreeMap::new();
    for ((realm, uid), by) in std::mem::take(&mut change.charged) {
        if by != Delta::default() {
            by_realm.entry(realm).or_default().push((uid, by));
        }
    }
    for (realm, users) in by_realm {
        let row_key = key::quota(realm);
        let mut row: RealmQuota = change.expect_row(&row_key)?;
        let mut sum = Delta::default();
        for (uid, by) in users {
            settle_user(change, (realm, uid), (&row.default, limited), by)?;
            sum = sum.plus(by);
        }
        if limited {
            let grows = sum.bytes > 0 || sum.inodes > 0;
            let full = grows && change.context().short_of_space;
            require(!full, Error::ServersFull)?;
            let refusal = |of, remaining| Error::RealmQuota { of, remaining };
            check(&row.limit, &row.used, sum, refusal)?;
        }
        row.used = changed::<RealmQuota>(&row_key, row.used, sum)?;
        // Even if the sum is zero: this row covers questions about its users.
        change.put(row_key, &row)?;
    }
    Ok(())
}

fn settle_user(
    change: &mut Change<'_, '_>,
    (realm, uid): (RealmId, Uid),
    (default, limited): (&Limit, bool),
    by: Delta,
) -> Outcome<()> {
    let row_key = key::user_quota(realm, uid);
    let mut row: UserQuota = change.find(&row_key)?.unwrap_or_default();
    if limited && uid != Uid::ROOT {
        let limit = row.limit.unwrap_or(*default);
        let refusal = |of, remaining| Error::UserQuota { uid, of, remaining };
        check(&limit, &row.used, by, refusal)?;
    }
    row.used = changed::<UserQuota>(&row_key, row.used, by)?;
    put_user(change, row_key, &row)
}

fn put_user(change: &mut Change<'_, '_>, row_key: Vec<u8>, row: &UserQuota) -> Outcome<()> {
    if *row == UserQuota::default() {
        return change.delete(row_key);
    }
    change.put(row_key, row)
}

/// Refuses growth beyond a limit.
fn check(
    limit: &Limit,
    used: &Amount,
    by: Delta,
    refusal: impl Fn(Resource, u64) -> Error,
) -> Outcome<()> {
    for of in [Resource::Inodes, Resource::Bytes] {
        let remaining = limit.remaining(of, used);
        // Without a limit every amount is allowed.
        let fits = by.of(of) <= 0 || remaining == u64::MAX || by.of(of) <= i128::from(remaining);
        require(fits, refusal(of, remaining))?;
    }
    Ok(())
}

/// An amount after a change. A negative result means that rows contradict each other.
fn changed<R: Row>(row_key: &[u8], used: Amount, by: Delta) -> Outcome<Amount> {
    let sum = |used: u64, by: i128| {
        let sum = i128::from(used).saturating_add(by);
        if sum < 0 {
            return Err(Halt::State(damaged::<R>(row_key, "it would be negative")));
        }
        u64::try_from(sum).map_err(|_| Halt::Refused(Error::LimitReached))
    };
    Ok(Amount {
        bytes: sum(used.bytes, by.bytes)?,
        inodes: sum(used.inodes, by.inodes)?,
    })
}

/// Sets a limit.
pub(crate) fn set(change: &mut Change<'_, '_>, asker: &Asker, set: &SetQuota) -> Outcome<Done> {
    require(asker.rights.administer, Error::NoRight)?;
    change.realm(set.realm)?;
    let row_key = key::quota(set.realm);
    let mut row: RealmQuota = change.expect_row(&row_key)?;
    match set.of {
        QuotaOf::Realm => row.limit = set.limit.unwrap_or_default(),
        QuotaOf::Default => row.default = set.limit.unwrap_or_default(),
        QuotaOf::User(uid) => {
            // A limit for the superuser would not be enforced, so it is refused.
            require(uid != Uid::ROOT, Error::Invalid)?;
            let row_key = key::user_quota(set.realm, uid);
            let mut user: UserQuota = change.find(&row_key)?.unwrap_or_default();
            user.limit = set.limit;
            put_user(change, row_key, &user)?;
        }
    }
    change.put(row_key, &row)?;
    Ok(Done::QuotaSet)
}

/// The usage and quotas of a realm and one of its users. The realm's row always exists and is
/// written with every user's, so it covers a missing row of a user.
pub(crate) fn of_user(
    rows: &impl Rows,
    rights: &Rights,
    realm: RealmId,
    uid: Uid,
) -> Outcome<QueryResult> {
    let may = rights.administer || rights.uids.contains(&uid);
    require(may, Error::NoRight)?;
    rows.realm(realm)?;
    Ok(QueryResult::Quota {
        realm: rows.expect_row(&key::quota(realm))?,
        user: rows.find(&key::user_quota(realm, uid))?.unwrap_or_default(),
    })
}

/// A page of a realm's users.
pub(crate) fn of_users(
    rows: &impl Rows,
    rights: &Rights,
    realm: RealmId,
    after: Option<Uid>,
    limit: u32,
) -> Outcome<QueryResult> {
    require(rights.administer, Error::NoRight)?;
    rows.view().depend_on_everything();
    rows.realm(realm)?;
    let limit = usize::try_from(limit.clamp(1, QUOTA_PAGE_MAX)).unwrap_or(1);
    let prefix = key::user_quotas(realm);
    let from = match after {
        None => prefix.clone(),
        Some(uid) => {
            let mut from = key::user_quota(realm, uid);
            from.push(0);
            from
        }
    };
    let found = rows.scan(&prefix, &from, limit.saturating_add(1))?;
    let more = found.len() > limit;
    let mut users = Vec::with_capacity(limit.min(found.len()));
    for (row_key, bytes) in found.iter().take(limit) {
        if let Some(uid) = key::trailing_uid(row_key) {
            users.push((uid, decode(row_key, bytes)?));
        }
    }
    Ok(QueryResult::Quotas {
        realm: rows.expect_row(&key::quota(realm))?,
        users,
        more,
    })
}
