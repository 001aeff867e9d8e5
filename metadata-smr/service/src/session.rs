//! Sessions, their mounts and their allocations.
//!
//! A realm has at most one mount session, because there are no leases yet that would keep several
//! coherent. A second mount is refused with the holder's identity. A takeover fences the first:
//! from that batch on every operation of the fenced session is refused, however late it arrives.
//!
//! A session's holdings end with it: its mount, its jobs, its allocations (later commits from them
//! are refused, so objects that it had put but not committed are garbage from then on), its
//! orphans.

use crate::change::{Asker, Change};
use crate::error::Error;
use crate::identity::{AllocationId, InodeId, MountEpoch, RealmId};
use crate::job;
use crate::limits::{
    ALLOCATION_IDS_MAX, LABEL_BYTES_MAX, PRINCIPAL_SESSIONS_MAX, SESSION_ALLOCATIONS_MAX,
};
use crate::operation::Takeover;
use crate::reply::Done;
use crate::row::{Allocation, Mount, Orphan, Principal, Reap, Session, key};
use crate::rows::{Outcome, Rows, decode, require};
use quorumfs_bft::identity::{PublicKey, SessionId};
use quorumfs_bft::service::{Caller, Credit};

/// What every session may have in flight.
pub const CREDIT: Credit = Credit {
    lanes: 16,
    bytes: 8 << 20,
};

/// Opens a session for a principal that exists and has fewer than the maximum.
pub(crate) fn open(change: &mut Change<'_, '_>, caller: &Caller) -> Outcome<Option<Credit>> {
    let row_key = key::principal(&caller.principal);
    let Some(mut principal) = change.find::<Principal>(&row_key)? else {
        return Ok(None);
    };
    if principal.sessions >= PRINCIPAL_SESSIONS_MAX || !principal.is_known() {
        return Ok(None);
    }
    principal.sessions = principal.sessions.saturating_add(1);
    change.put(row_key, &principal)?;
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

/// Whether a session would be opened for this principal.
pub(crate) fn may_open(rows: &impl Rows, principal: &PublicKey) -> Outcome<bool> {
    let row = rows.find::<Principal>(&key::principal(principal))?;
    Ok(row.is_some_and(|row| row.sessions < PRINCIPAL_SESSIONS_MAX && row.is_known()))
}

/// Whether this principal may copy all of the metadata: it has the right to reconcile.
pub(crate) fn may_copy(rows: &impl Rows, principal: &PublicKey) -> Outcome<bool> {
    let row = rows.find::<Principal>(&key::principal(principal))?;
    Ok(row.is_some_and(|row| row.rights.reconcile && row.is_known()))
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
        change.delete(key::mount(realm, session))?;
    }
    let prefix = key::orphans(session);
    if !change.scan(&prefix, &prefix, 1)?.is_empty() {
        let since = change.time();
        change.queue(&Reap::Orphans { session, since })?;
    }
    Ok(())
}

/// Mounts the realm for the session.
pub(crate) fn mount(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    realm_id: RealmId,
    (takeover, alone, label): (Takeover, bool, &str),
) -> Outcome<Done> {
    require(asker.rights.mount, Error::NoRight)?;
    require(alone && label.len() <= LABEL_BYTES_MAX, Error::Invalid)?;
    let mut realm = change.realm(realm_id)?;
    let mut session = asker.session.clone();
    let elsewhere = session.mounted.is_some_and(|mounted| mounted != realm_id);
    require(!elsewhere, Error::Invalid)?;
    let mut fenced = None;
    if let Some(holder) = mount_of(change, realm_id)? {
        if holder.session == asker.caller.session {
            return Ok(Done::Mounted {
                epoch: holder.epoch,
                realm,
                fenced: None,
            });
        }
        let mounted = Error::Mounted {
            session: holder.session,
            principal: holder.principal,
            since: holder.since,
            label: holder.label,
        };
        require(takeover.fences(holder.session), mounted)?;
        fence(change, holder.session, asker.caller.session)?;
        fenced = Some(holder.session);
    }
    realm.mounts = MountEpoch(realm.mounts.0.saturating_add(1));
    session.mounted = Some(realm_id);
    let mount = Mount {
        session: asker.caller.session,
        principal: asker.caller.principal,
        epoch: realm.mounts,
        since: change.time(),
        others: 0,
        alone,
        label: label.to_owned(),
    };
    change.put(key::realm(realm_id), &realm)?;
    change.put(key::mount(realm_id, mount.session), &mount)?;
    change.put(key::session(asker.caller.session), &session)?;
    Ok(Done::Mounted {
        epoch: realm.mounts,
        realm,
        fenced,
    })
}

/// The mount of a realm: the first of its mounts, since they cannot share yet.
pub(crate) fn mount_of(rows: &impl Rows, realm: RealmId) -> Outcome<Option<Mount>> {
    let prefix = key::mounts(realm);
    let found = rows.scan(&prefix, &prefix, 1)?;
    let first = found.first();
    first
        .map(|(row_key, bytes)| decode(row_key, bytes))
        .transpose()
}

/// Refuses all further operations of `session`.
pub(crate) fn fence(change: &mut Change<'_, '_>, session: SessionId, by: SessionId) -> Outcome<()> {
    let row_key = key::session(session);
    if let Some(mut row) = change.find::<Session>(&row_key)? {
        release_holdings(change, session, &mut row)?;
        row.fenced_by = Some(by);
        change.put(row_key, &row)?;
    }
    Ok(())
}

/// Notes an imminent change of a realm: it is counted if another session has the realm mounted,
/// once for each operation.
pub(crate) fn note_change(change: &mut Change<'_, '_>, realm: RealmId) -> Outcome<()> {
    let Some(session) = change.session() else {
        // Changes by ticks are invisible, except for the space of a truncated file.
        return Ok(());
    };
    if change.noted.contains(&realm) {
        return Ok(());
    }
    change.noted.insert(realm);
    let mount = mount_of(change, realm)?;
    if let Some(mut mount) = mount.filter(|mount| mount.session != session) {
        mount.others = mount.others.saturating_add(1);
        change.put(key::mount(realm, mount.session), &mount)?;
    }
    Ok(())
}

/// Ends a mount.
pub(crate) fn unmount(change: &mut Change<'_, '_>, asker: &Asker, realm: RealmId) -> Outcome<Done> {
    let mut session = asker.session.clone();
    require(session.mounted == Some(realm), Error::NotMounted)?;
    session.mounted = None;
    change.delete(key::mount(realm, asker.caller.session))?;
    change.put(key::session(asker.caller.session), &session)?;
    Ok(Done::Unmounted)
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
