//! Sessions and their allocations.
//!
//! A session that is *fenced* by another stays open, but all of its operations are refused from
//! that batch on, however late they arrive.
//!
//! A session's holdings end with it: its mount and its locks, its jobs, its allocations (later
//! commits from them are refused, so objects that it had put but not committed are garbage from
//! then on), its orphans.

use crate::change::{Asker, Change};
use crate::error::Error;
use crate::identity::{AllocationId, InodeId};
use crate::invitations;
use crate::job;
use crate::limits::{
    ALLOCATION_IDS_MAX, FENCED_ROWS, PERSON_SESSIONS_MAX, PRINCIPAL_SESSIONS_MAX,
    SESSION_ALLOCATIONS_MAX,
};
use crate::mount;
use crate::people;
use crate::reply::Done;
use crate::roles;
use crate::row::{Allocation, Orphan, Principal, Reap, Session, key};
use crate::rows::{Outcome, Rows, decode, require};
use quorumfs_bft::identity::{PublicKey, SessionId};
use quorumfs_bft::service::{Caller, Credit};

/// What every session may have in flight.
pub const CREDIT: Credit = Credit {
    lanes: 16,
    bytes: 8 << 20,
};

/// Opens a session for a principal that exists and has fewer than the maximum, or for the key of
/// an invitation.
pub(crate) fn open(change: &mut Change<'_, '_>, caller: &Caller) -> Outcome<Option<Credit>> {
    let row_key = key::principal(&caller.principal);
    match change.find::<Principal>(&row_key)? {
        Some(principal) if !has_room(change, &caller.principal, &principal)? => return Ok(None),
        Some(mut principal) => {
            principal.sessions = principal.sessions.saturating_add(1);
            change.put(row_key, &principal)?;
        }
        None if !invitations::open(change, caller)? => return Ok(None),
        None => {}
    }
    let session = Session {
        principal: caller.principal,
        opened: change.time(),
        mounted: None,
        fenced_by: None,
        allocations: Vec::new(),
    };
    change.put(key::session(caller.session), &session)?;
    Ok(Some(CREDIT))
}

/// Whether a principal may have one more session: all machines of a person share what one may have.
fn has_room(rows: &impl Rows, key: &PublicKey, row: &Principal) -> Outcome<bool> {
    let of_person = people::sessions_of_person(rows, key)?;
    let fits = of_person.is_none_or(|sessions| sessions < PERSON_SESSIONS_MAX);
    Ok(fits && row.sessions < PRINCIPAL_SESSIONS_MAX)
}

/// Whether a session would be opened for this principal.
pub(crate) fn may_open(rows: &impl Rows, principal: &PublicKey) -> Outcome<bool> {
    let row = rows.find::<Principal>(&key::principal(principal))?;
    match row {
        Some(row) => has_room(rows, principal, &row),
        None => invitations::may_open(rows, principal),
    }
}

/// Whether this principal may copy all of the metadata: a member with the right to reconcile.
pub(crate) fn may_copy(rows: &impl Rows, principal: &PublicKey) -> Outcome<bool> {
    let row = rows.find::<Principal>(&key::principal(principal))?;
    let reconciles = row.is_some_and(|row| row.rights.reconcile);
    Ok(reconciles && roles::is_member(rows, principal)?)
}

/// Ends a session and all that it holds.
pub(crate) fn close(change: &mut Change<'_, '_>, session: SessionId) -> Outcome<()> {
    let row_key = key::session(session);
    let Some(mut row) = change.find::<Session>(&row_key)? else {
        return Ok(());
    };
    release_holdings(change, session, &mut row)?;
    change.delete(row_key)?;
    let row_key = key::principal(&row.principal);
    if let Some(mut principal) = change.find::<Principal>(&row_key)? {
        principal.sessions = principal.sessions.saturating_sub(1);
        change.put(row_key, &principal)?;
    }
    Ok(())
}

/// Removes a session's mount, allocations and orphans.
fn release_holdings(
    change: &mut Change<'_, '_>,
    session: SessionId,
    row: &mut Session,
) -> Outcome<()> {
    job::release_all(change, session)?;
    for allocation in std::mem::take(&mut row.allocations) {
        change.delete(key::allocation(allocation))?;
    }
    if let Some(realm) = row.mounted.take() {
        mount::end(change, realm, session)?;
    }
    let prefix = key::orphans(session);
    if !change.scan(&prefix, &prefix, 1)?.is_empty() {
        let since = change.time();
        change.queue(&Reap::Orphans { session, since })?;
    }
    Ok(())
}

/// Refuses all further operations of `session`.
pub(crate) fn fence(change: &mut Change<'_, '_>, session: SessionId, by: SessionId) -> Outcome<()> {
    change.reserve(FENCED_ROWS);
    let row_key = key::session(session);
    if let Some(mut row) = change.find::<Session>(&row_key)? {
        release_holdings(change, session, &mut row)?;
        row.fenced_by = Some(by);
        change.put(row_key, &row)?;
    }
    Ok(())
}

/// Grants ids.
pub(crate) fn allocate(change: &mut Change<'_, '_>, asker: &Asker, count: u32) -> Outcome<Done> {
    let limit = ALLOCATION_IDS_MAX;
    require(count <= limit, Error::TooMany { limit })?;
    require(count > 0, Error::Invalid)?;
    let mut session = asker.session.clone();
    let below_limit = session.allocations.len() < SESSION_ALLOCATIONS_MAX;
    require(below_limit, Error::TooManyAllocations)?;
    let allocation = AllocationId(change.next(|counters| &mut counters.next_allocation)?);
    let bits = vec![0; usize::try_from(count.div_ceil(8)).unwrap_or(0)];
    let row = Allocation {
        session: asker.caller.session,
        count,
        objects_used: bits.clone(),
        slices_used: bits,
    };
    session.allocations.push(allocation);
    change.put(key::allocation(allocation), &row)?;
    change.put(key::session(asker.caller.session), &session)?;
    Ok(Done::Allocated { allocation, count })
}

/// Voids the unused ids of an allocation.
pub(crate) fn close_allocation(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    allocation: AllocationId,
) -> Outcome<Done> {
    let mut session = asker.session.clone();
    let before = session.allocations.len();
    session.allocations.retain(|live| *live != allocation);
    require(session.allocations.len() < before, Error::NoAllocation)?;
    change.delete(key::allocation(allocation))?;
    change.put(key::session(asker.caller.session), &session)?;
    Ok(Done::AllocationClosed)
}

/// A session's orphans after `after`.
pub(crate) fn orphans(
    rows: &impl Rows,
    session: SessionId,
    after: Option<InodeId>,
    limit: usize,
) -> Outcome<Vec<InodeId>> {
    let prefix = key::orphans(session);
    let from = match after {
        None => prefix.clone(),
        Some(inode) => {
            let next = InodeId(inode.0.saturating_add(1));
            key::orphan(session, next)
        }
    };
    let mut found = Vec::new();
    for (row_key, bytes) in rows.scan(&prefix, &from, limit)? {
        let _: Orphan = decode(&row_key, &bytes)?;
        if let Some(inode) = key::trailing_number(&row_key) {
            found.push(InodeId(inode));
        }
    }
    Ok(found)
}
