//! What goes by itself: the locks of a mount that has ended, and turns that are not taken.

use super::stored::StoredLocks;
use super::table::LockKind;
use crate::change::Change;
use crate::content::Remainder;
use crate::identity::{InodeId, MountEpoch, RealmId};
use crate::limits::{
    LOCK_ROWS_READ_PER_TICK, LOCK_TURNS_MAX, LOCK_WAITERS_DROPPED_MAX, LOCKS_REAPED_PER_PIECE,
    TICK_ROWS_MAX,
};
use crate::log;
use crate::row::key::MountPlace;
use crate::row::{DueTurn, Inode, LockWaiter, LockedInodes, Reap, Session, key};
use crate::rows::{Outcome, Rows};
use quorumfs_bft::identity::{Nanos, SessionId, Time};

/// How often a tick looks whether the lease clock has come to a deadline.
const CHECK_INTERVAL: Nanos = Nanos(1_000_000_000);

/// Rows that a piece of a tick writes at most: what it removes of a mount that has ended, waiters
/// that it drops, turns, and a few more.
const ROWS_PER_PIECE: usize =
    2 * LOCKS_REAPED_PER_PIECE + 4 * LOCK_WAITERS_DROPPED_MAX + 2 * LOCK_TURNS_MAX + 8;
// Pieces begin in the first half of a tick's bound.
const _: () = assert!(TICK_ROWS_MAX >= 2 * (ROWS_PER_PIECE + log::ROWS_PER_TICK));

/// A mount has ended, and its row is gone: so its locks count for nothing. Queues their removal.
pub(crate) fn release_all(
    change: &mut Change<'_, '_>,
    (session, realm): (SessionId, RealmId),
    mount: MountEpoch,
) -> Outcome<()> {
    let by = MountPlace {
        session,
        realm,
        mount,
    };
    let found: Option<LockedInodes> = change.find(&key::locked_inodes(by))?;
    if found.is_some() {
        let since = change.time();
        change.queue(&Reap::Locks {
            session,
            realm,
            mount,
            since,
        })?;
    }
    Ok(())
}

/// Removes some of the locks and waiters of a mount that has ended.
pub(crate) fn reap(change: &mut Change<'_, '_>, by: MountPlace) -> Outcome<Remainder> {
    let prefix = key::locked_by(by);
    let first = change.scan(&prefix, &prefix, 1)?.pop();
    let Some((row_key, (inode, kind))) = first
        .and_then(|(row_key, _)| key::trailing_locked(&row_key).map(|locked| (row_key, locked)))
    else {
        change.delete(key::locked_inodes(by))?;
        return Ok(Remainder::Nothing);
    };
    let mut stored = StoredLocks::read(change, by.realm, (inode, kind))?;
    let is_all = stored.bury(change, by)?;
    // Others may have a turn now.
    stored.drop_late(change.context().lease_clock, None);
    stored.save(change, false)?;
    if is_all {
        change.delete(row_key.to_vec())?;
    }
    Ok(Remainder::Some)
}

/// When a tick has to look at a turn.
pub(crate) fn next_deadline(rows: &impl Rows) -> Outcome<Option<Time>> {
    Ok(first(rows)?.map(|(check, ..)| check))
}

fn first(rows: &impl Rows) -> Outcome<Option<(Time, InodeId, LockKind, u64)>> {
    let prefix = key::due_turns();
    let found = rows.scan(&prefix, &prefix, 1)?.pop();
    Ok(found.and_then(|(row_key, _)| key::trailing_turn(&row_key)))
}

/// Ends turns that were not taken in time, within a part of a tick's bound.
pub(crate) fn tick(change: &mut Change<'_, '_>) -> Outcome<()> {
    let reads_max = change.rows_read().saturating_add(LOCK_ROWS_READ_PER_TICK);
    while change.rows_written() < TICK_ROWS_MAX / 4 && change.rows_read() < reads_max {
        let Some((check, inode, kind, ticket)) = first(change)? else {
            break;
        };
        if check > change.time() {
            break;
        }
        let row_key = key::lock_waiter(inode, kind, ticket);
        let waiter: Option<LockWaiter> = change.find(&row_key)?;
        match waiter {
            Some(waiter) if !is_late(change, &waiter) => {
                put_off(change, (check, inode, kind, ticket), waiter)?;
            }
            Some(waiter) if drop_late(change, (inode, kind), ticket, &waiter)? => {}
            // Of a mount that has ended.
            _ => {
                change.delete(row_key)?;
                change.delete(key::due_turn(check, inode, kind, ticket))?;
            }
        }
    }
    Ok(())
}

fn is_late(change: &Change<'_, '_>, waiter: &LockWaiter) -> bool {
    let lease_clock = change.context().lease_clock;
    waiter.turn.is_none_or(|turn| turn.deadline <= lease_clock)
}

/// The lease clock is behind the agreed one: looks again later.
fn put_off(
    change: &mut Change<'_, '_>,
    (check, inode, kind, ticket): (Time, InodeId, LockKind, u64),
    mut waiter: LockWaiter,
) -> Outcome<()> {
    change.delete(key::due_turn(check, inode, kind, ticket))?;
    let check = change.time().plus(CHECK_INTERVAL);
    if let Some(turn) = &mut waiter.turn {
        turn.check = check;
    }
    change.put(key::due_turn(check, inode, kind, ticket), &DueTurn)?;
    change.put(key::lock_waiter(inode, kind, ticket), &waiter)
}

/// Drops waiters of an inode and kind that are late. Returns whether this one's mount lives.
fn drop_late(
    change: &mut Change<'_, '_>,
    (inode, kind): (InodeId, LockKind),
    ticket: u64,
    waiter: &LockWaiter,
) -> Outcome<bool> {
    let realm = match change.find::<Inode>(&key::inode(inode))? {
        Some(row) => Some(row.realm),
        None => {
            let session = key::session(waiter.wish.owner.session);
            let session: Option<Session> = change.find(&session)?;
            session.and_then(|session| session.mounted)
        }
    };
    let Some(realm) = realm else {
        return Ok(false);
    };
    let mut stored = StoredLocks::read(change, realm, (inode, kind))?;
    if !stored.waiters.contains_key(&ticket) {
        return Ok(false);
    }
    stored.drop_late(change.context().lease_clock, None);
    stored.save(change, false)?;
    Ok(true)
}
