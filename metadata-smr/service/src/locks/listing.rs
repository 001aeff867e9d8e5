//! Answers about locks.

use super::stored::{StoredLocks, lock_of};
use super::table::{FileLock, LockKind, LockOwner, LockRange};
use crate::error::Error;
use crate::identity::{InodeId, RealmId};
use crate::limits::LOCK_PAGE_MAX;
use crate::query::Question;
use crate::reply::{ListedLock, QueryResult};
use crate::row::key::LockPlace;
use crate::row::{HeldLock, Inode, key};
use crate::rows::{Outcome, Rows, decode, require};
use quorumfs_bft::service::Caller;

/// Answers a question about locks.
pub(crate) fn answer(
    rows: &impl Rows,
    caller: &Caller,
    question: &Question,
) -> Outcome<QueryResult> {
    match question {
        Question::Lock {
            inode,
            kind,
            owner,
            range,
            exclusive,
        } => blocker(rows, caller, (*inode, *kind), (*owner, *range, *exclusive)),
        Question::Locks {
            realm,
            after,
            limit,
        } => list(rows, *realm, *after, *limit),
        _ => Err(Error::Malformed.into()),
    }
}

/// What is in the way of a lock that an owner of the caller's session would ask for.
fn blocker(
    rows: &impl Rows,
    caller: &Caller,
    (inode, kind): (InodeId, LockKind),
    (number, range, exclusive): (u64, LockRange, bool),
) -> Outcome<QueryResult> {
    // No row covers that there is no lock.
    rows.view().depend_on_everything();
    require(kind.allows(range), Error::Invalid)?;
    let session = caller.session;
    let wish = FileLock {
        owner: LockOwner { session, number },
        range,
        exclusive,
        pid: 0,
    };
    let realm = rows.inode(inode)?.realm;
    let stored = StoredLocks::read(rows, realm, (inode, kind))?;
    let found = stored.in_the_way(&wish, None);
    Ok(QueryResult::Lock(found.map(Into::into)))
}

/// A page of the locks of a realm.
fn list(
    rows: &impl Rows,
    realm: RealmId,
    after: Option<LockPlace>,
    limit: u32,
) -> Outcome<QueryResult> {
    rows.view().depend_on_everything();
    rows.realm(realm)?;
    let limit = usize::try_from(limit.clamp(1, LOCK_PAGE_MAX)).unwrap_or(1);
    let prefix = key::all_locks();
    let mut from = after.map_or_else(|| prefix.clone(), |place| key::lock(&place));
    if after.is_some() {
        // The first key after that one.
        from.push(0);
    }
    let found = rows.scan(&prefix, &from, limit.saturating_add(1))?;
    let more = found.len() > limit;
    let mut locks = Vec::new();
    let mut last = None;
    let mut stored: Option<((InodeId, LockKind), Option<StoredLocks>)> = None;
    for (row_key, bytes) in found.iter().take(limit) {
        let held: HeldLock = decode(row_key, bytes)?;
        let Some(place) = key::trailing_lock(row_key) else {
            continue;
        };
        last = Some(place);
        let of = (place.inode, place.kind);
        let current = match stored.take() {
            Some((before, current)) if before == of => current,
            _ => of_realm(rows, realm, of)?,
        };
        if let Some(current) = &current
            && current.is_live(place.owner.session, held.mount)
        {
            let lock = lock_of(&place, &held);
            let waiters = current.waiters.values();
            let waiters = waiters.filter(|waiter| waiter.wish.conflicts(&lock));
            let waiters = u32::try_from(waiters.count()).unwrap_or(u32::MAX);
            locks.push(ListedLock {
                inode: place.inode,
                kind: place.kind,
                lock,
                waiters,
            });
        }
        stored = Some((of, current));
    }
    let next = last.filter(|_| more);
    Ok(QueryResult::Locks { locks, next })
}

/// The locks and waiters of an inode and kind, unless the inode is another realm's.
fn of_realm(
    rows: &impl Rows,
    realm: RealmId,
    (inode, kind): (InodeId, LockKind),
) -> Outcome<Option<StoredLocks>> {
    let row = rows.find::<Inode>(&key::inode(inode))?;
    if row.is_some_and(|row| row.realm != realm) {
        return Ok(None);
    }
    StoredLocks::read(rows, realm, (inode, kind)).map(Some)
}
