//! The operations: to lock, to unlock, and to wait no longer.

use super::stored::StoredLocks;
use super::table::{FileLock, LockGrant, LockKind, LockOwner, LockRange, apply};
use crate::change::{Asker, Change};
use crate::error::Error;
use crate::identity::{InodeId, RealmId};
use crate::limits::LOCK_ROWS;
use crate::log;
use crate::operation::{EndLocks, LockRequest, LockWish, StopWaiting};
use crate::permission::{assert_credentials, owns};
use crate::reply::Done;
use crate::row::{Inode, key};
use crate::rows::{Halt, Outcome, Rows, require};

/// The realm that the session has mounted, which is the inode's if there is that inode.
fn mounted(change: &Change<'_, '_>, asker: &Asker, inode: InodeId) -> Outcome<(RealmId, bool)> {
    let mounted = asker.session.mounted;
    let realm = mounted.ok_or(Halt::Refused(Error::NotMounted))?;
    let row = change.find::<Inode>(&key::inode(inode))?;
    let elsewhere = row.as_ref().is_some_and(|row| row.realm != realm);
    require(!elsewhere, Error::NotMounted)?;
    Ok((realm, row.is_some()))
}

/// Takes, changes or gives up a lock.
pub(crate) fn lock(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    request: &LockRequest,
) -> Outcome<Done> {
    require(request.kind.allows(request.range), Error::Invalid)?;
    let (realm, exists) = mounted(change, asker, request.inode)?;
    let unlocks = request.wish == LockWish::Unlock;
    require(exists || unlocks, Error::Stale(request.inode))?;
    change.reserve(LOCK_ROWS);
    let mut stored = StoredLocks::read(change, realm, (request.inode, request.kind))?;
    let owner = LockOwner {
        session: asker.caller.session,
        number: request.owner,
    };
    let wish = FileLock {
        owner,
        range: request.range,
        exclusive: request.wish == LockWish::Exclusive,
        pid: request.pid,
    };
    let holds = stored.locks.iter().any(|lock| lock.owner == owner);
    let ticket = stored.ticket(&wish).filter(|_| !unlocks);
    stored.drop_late(change.context().lease_clock, ticket);
    if !unlocks && let Some(obstacle) = stored.in_the_way(&wish, ticket) {
        if request.wait {
            if ticket.is_none() {
                stored.queue(wish)?;
            }
            let is_whole = request.kind == LockKind::Whole;
            if is_whole {
                // As on Linux: two owners that want their shared locks exclusively would otherwise
                // wait for each other for ever.
                stored.locks = apply(&stored.locks, owner, LockRange::WHOLE, None);
            }
            stored.save(change, holds && is_whole)?;
        }
        return Ok(Done::Blocked(obstacle.into()));
    }
    if let Some(ticket) = ticket {
        stored.waiters.remove(&ticket);
    }
    let grant = (!unlocks).then_some(LockGrant {
        exclusive: wish.exclusive,
        pid: wish.pid,
    });
    stored.locks = apply(&stored.locks, owner, wish.range, grant);
    stored.save(change, holds && !wish.exclusive)?;
    if !unlocks {
        // Its process relies on what was changed before, and asks for the news of it now.
        log::ring_if_owed(change, realm)?;
    }
    Ok(Done::Locked)
}

/// Takes the requests of an owner out of the queue.
pub(crate) fn stop_waiting(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    stop: &StopWaiting,
) -> Outcome<Done> {
    let (realm, _) = mounted(change, asker, stop.inode)?;
    change.reserve(LOCK_ROWS);
    let mut stored = StoredLocks::read(change, realm, (stop.inode, stop.kind))?;
    let owner = LockOwner {
        session: asker.caller.session,
        number: stop.owner,
    };
    stored
        .waiters
        .retain(|_, waiter| waiter.wish.owner != owner);
    stored.drop_late(change.context().lease_clock, None);
    stored.save(change, true)?;
    Ok(Done::StoppedWaiting)
}

/// Ends locks that processes hold.
pub(crate) fn end(change: &mut Change<'_, '_>, asker: &Asker, end: &EndLocks) -> Outcome<Done> {
    assert_credentials(&asker.rights, &end.credentials)?;
    let row = change.inode(end.inode)?;
    require(owns(&row, &end.credentials), Error::NotPermitted)?;
    change.reserve(LOCK_ROWS);
    let mut stored = StoredLocks::read(change, row.realm, (end.inode, end.kind))?;
    let before = stored.locks.len();
    let stays = |session| end.session.is_some_and(|ended| ended != session);
    stored.locks.retain(|lock| stays(lock.owner.session));
    let ended = before.saturating_sub(stored.locks.len());
    if ended > 0 {
        // Every mount hears of it, also the one that asks.
        log::note_lock(change, row.realm, end.inode, true);
    }
    stored.drop_late(change.context().lease_clock, None);
    stored.save(change, false)?;
    Ok(Done::LocksEnded {
        locks: u32::try_from(ended).unwrap_or(u32::MAX),
    })
}
