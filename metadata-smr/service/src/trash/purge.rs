//! What leaves the trash for good.
//!
//! The oldest goes first, by ticks: when its time is over, and while usage and trash exceed the
//! realm's limit together. While the servers' disks are nearly full each operation takes some
//! along, and a gateway asks for it when a cloud is full. Content goes through the reap queue,
//! which ticks drain before they purge more.

use super::keep::{had_something, take};
use super::{REALMS, find};
use crate::attributes::Credentials;
use crate::change::{Asker, Change};
use crate::content::settle_dropped;
use crate::error::Error;
use crate::identity::{InodeId, RealmId, Uid};
use crate::limits::{TICK_ROWS_MAX, TRASH_PURGED_MAX, TRASH_PURGED_WHEN_SHORT};
use crate::namespace::{Freeing, free};
use crate::permission::owns;
use crate::reply::{Done, StepDone};
use crate::row::{Amount, Limit, Realm, RealmQuota, TrashPlace, TrashSize, Trashed, key};
use crate::rows::{Halt, Outcome, Rows, require};
use quorumfs_bft::identity::{Nanos, Time};

/// Frees inodes of the caller for good.
pub(crate) fn purge(
    change: &mut Change<'_, '_>,
    who: &Credentials,
    inodes: &[InodeId],
) -> Outcome<StepDone> {
    let limit = TRASH_PURGED_MAX as u32;
    let fits = inodes.len() <= TRASH_PURGED_MAX;
    require(fits, Error::TooMany { limit })?;
    let mut purged = 0_u32;
    for inode in inodes {
        let (place, trashed) = match find(change, *inode) {
            Ok(found) => found,
            Err(Halt::Refused(Error::NotTrashed(_))) => continue,
            Err(error) => return Err(error),
        };
        require(owns(&trashed.inode, who), Error::NotPermitted)?;
        // Otherwise what was removed from it could not be restored to its place.
        let left = trashed.inode.is_directory() && had_something(change, *inode)?;
        require(!left, Error::NotEmpty)?;
        purge_one(change, *inode, &place, &trashed)?;
        purged = purged.saturating_add(1);
    }
    Ok(StepDone::Purged { inodes: purged })
}

fn purge_one(
    change: &mut Change<'_, '_>,
    inode: InodeId,
    place: &TrashPlace,
    trashed: &Trashed,
) -> Outcome<()> {
    take(change, inode, place, trashed)?;
    free(change, inode, &trashed.inode, Freeing::Later)
}

/// When the trash needs a tick: when the time of the oldest is over, or at once if it exceeds the
/// realm's limit.
pub(crate) fn next_deadline(rows: &impl Rows) -> Outcome<Option<Time>> {
    let mut next: Option<Time> = None;
    for realm in REALMS {
        let due = due(rows, realm)?;
        next = next.into_iter().chain(due).min();
    }
    Ok(next)
}

fn due(rows: &impl Rows, realm: RealmId) -> Outcome<Option<Time>> {
    let Some(TrashSize { held }) = rows.find(&key::trash_size(realm))? else {
        return Ok(None);
    };
    let Some((at, _)) = oldest(rows, realm)? else {
        return Ok(None);
    };
    let quota: RealmQuota = rows.expect_row(&key::quota(realm))?;
    if exceeds(&quota, &held) {
        return Ok(Some(at));
    }
    let Realm { trash_seconds, .. } = rows.realm(realm)?;
    Ok(Some(at.plus(Nanos::from_secs(trash_seconds))))
}

/// Whether usage and trash together exceed the realm's limit.
fn exceeds(quota: &RealmQuota, held: &Amount) -> bool {
    let Limit { bytes, inodes } = quota.limit;
    let over = |limit: Option<u64>, used: u64, held: u64| {
        limit.is_some_and(|limit| used.saturating_add(held) > limit)
    };
    (over(bytes, quota.used.bytes, held.bytes) && held.bytes > 0)
        || over(inodes, quota.used.inodes, held.inodes)
}

/// The removal that came first.
fn oldest(rows: &impl Rows, realm: RealmId) -> Outcome<Option<(Time, InodeId)>> {
    let prefix = key::all_trashed(realm);
    let found = rows.scan(&prefix, &prefix, 1)?;
    let first = found.first();
    Ok(first.and_then(|(row_key, _)| key::trailing_removal(row_key)))
}

/// Purges what is due, within what the reap queue has left of a tick's bound.
pub(crate) fn tick(change: &mut Change<'_, '_>) -> Outcome<()> {
    for realm in REALMS {
        while change.rows_written() < TICK_ROWS_MAX / 2 {
            let now = change.time();
            let is_due = due(change, realm)?.is_some_and(|due| due <= now);
            if !is_due || purge_oldest(change, realm, 1)? == 0 {
                break;
            }
        }
    }
    Ok(())
}

/// Purges at most `limit` inodes, the first that was removed first; returns their number.
fn purge_oldest(change: &mut Change<'_, '_>, realm: RealmId, limit: usize) -> Outcome<u32> {
    let mut purged = 0_u32;
    for _ in 0..limit {
        let Some((at, inode)) = oldest(change, realm)? else {
            break;
        };
        let trashed: Trashed = change.expect_row(&key::trashed(realm, at, inode))?;
        purge_one(change, inode, &TrashPlace { realm, at }, &trashed)?;
        purged = purged.saturating_add(1);
    }
    settle_dropped(change)?;
    Ok(purged)
}

/// Purges some of the trash because the servers' disks are nearly full.
pub(crate) fn relieve(change: &mut Change<'_, '_>) -> Outcome<()> {
    for realm in REALMS {
        purge_oldest(change, realm, TRASH_PURGED_WHEN_SHORT)?;
    }
    Ok(())
}

/// Purges some of a realm's trash because a cloud has no space.
pub(crate) fn relieve_a_cloud(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    realm: RealmId,
) -> Outcome<Done> {
    let may = asker.rights.reconcile || asker.rights.uids.contains(&Uid::ROOT);
    require(may, Error::NoRight)?;
    change.realm(realm)?;
    let inodes = purge_oldest(change, realm, TRASH_PURGED_MAX)?;
    Ok(Done::TrashRelieved { inodes })
}
