//! Defects in what the service writes: rows of locks, the change log and its bell. They hide rows
//! from the service for an operation, or change what it has written afterwards.

use super::ServiceDefect;
use bytes::Bytes;
use quorumfs_bft::service::{Caller, Context, Service as _};
use quorumfs_bft::state::{StateError, Txn, prefix_end};
use quorumfs_metadata::Metadata;
use quorumfs_metadata::identity::RealmId;
use quorumfs_metadata::locks::{FileLock, LockRange};
use quorumfs_metadata::operation::{LockRequest, LockWish, Operation};
use quorumfs_metadata::reply::{Done, LockBlocker, Response};
use quorumfs_metadata::row::key::{self, LockPlace};
use quorumfs_metadata::row::{Bell, Changed, Changes, HeldLock, Mount, Row as _};

/// More rows of locks than a run has.
const LOCKS_MAX: usize = 4096;
/// The realm that the clients mount.
const REALM: RealmId = RealmId::ROOT;

/// Executes an operation.
pub(super) fn execute(
    defect: ServiceDefect,
    txn: &mut Txn<'_>,
    context: &Context,
    (caller, bytes): (&Caller, &[u8]),
) -> Result<Bytes, StateError> {
    let operation = Operation::from_bytes(bytes).ok();
    let request = match &operation {
        Some(Operation::Lock(request)) => Some(*request),
        _ => None,
    };
    let inner = |txn: &mut Txn<'_>| Metadata.execute(txn, context, caller, bytes);
    match (defect, request, operation) {
        (ServiceDefect::LockConflictMissed, Some(request), _) => {
            conflict_missed(txn, caller, &request, inner)
        }
        (ServiceDefect::LocksOutliveTheirMount, Some(request), _) => {
            outlived(txn, caller, &request, inner)
        }
        (ServiceDefect::TurnUntold, _, Some(Operation::Lock(_) | Operation::StopWaiting(_))) => {
            untold(txn, inner)
        }
        (
            ServiceDefect::BellNotRung,
            _,
            Some(Operation::MountRealm { .. } | Operation::UnmountRealm { .. }),
        ) => inner(txn),
        (ServiceDefect::BellNotRung, ..) => not_rung(txn, inner),
        _ => inner(txn),
    }
}

/// Ticks.
pub(super) fn tick(
    defect: ServiceDefect,
    txn: &mut Txn<'_>,
    context: &Context,
) -> Result<(), StateError> {
    let inner = |txn: &mut Txn<'_>| Metadata.tick(txn, context);
    match defect {
        ServiceDefect::LocksOutliveTheirMount => {
            let before = locks(txn, &key::all_locks())?;
            inner(txn)?;
            put_ended_back(txn, &before)
        }
        ServiceDefect::TurnUntold => untold(txn, inner),
        ServiceDefect::BellNotRung => not_rung(txn, inner),
        _ => inner(txn),
    }
}

/// A row of a lock.
type LockRow = (Bytes, LockPlace, HeldLock);

/// The rows of locks under a prefix.
fn locks(txn: &Txn<'_>, prefix: &[u8]) -> Result<Vec<LockRow>, StateError> {
    let end = prefix_end(prefix);
    let rows = txn.scan(prefix..end.as_slice(), LOCKS_MAX)?.into_iter();
    let row = |(row_key, bytes): (Bytes, Bytes)| {
        let place = key::trailing_lock(&row_key)?;
        let held = HeldLock::from_bytes(&bytes).ok()?;
        Some((row_key, place, held))
    };
    Ok(rows.filter_map(row).collect())
}

fn conflict_missed<R>(
    txn: &mut Txn<'_>,
    caller: &Caller,
    request: &LockRequest,
    mut inner: impl FnMut(&mut Txn<'_>) -> Result<R, StateError>,
) -> Result<R, StateError> {
    let mut hidden = Vec::new();
    if request.wish == LockWish::Exclusive {
        hidden = locks(txn, &key::locks(request.inode, request.kind))?;
        hidden.retain(|(_, place, held)| place.owner.session != caller.session && !held.exclusive);
    }
    for (row_key, ..) in &hidden {
        txn.delete(row_key)?;
    }
    let result = inner(txn)?;
    for (row_key, _, held) in hidden {
        txn.put(&row_key, held.to_bytes())?;
    }
    Ok(result)
}

/// Whether the mount of a lock has ended.
fn has_ended(txn: &Txn<'_>, place: &LockPlace, held: &HeldLock) -> Result<bool, StateError> {
    let row = txn.get(&key::mount(REALM, place.owner.session))?;
    let mount = row.and_then(|bytes| Mount::from_bytes(&bytes).ok());
    Ok(mount.is_none_or(|mount| mount.epoch != held.mount))
}

fn outlived(
    txn: &mut Txn<'_>,
    caller: &Caller,
    request: &LockRequest,
    mut inner: impl FnMut(&mut Txn<'_>) -> Result<Bytes, StateError>,
) -> Result<Bytes, StateError> {
    let before = locks(txn, &key::locks(request.inode, request.kind))?;
    let wish = FileLock {
        owner: quorumfs_metadata::locks::LockOwner {
            session: caller.session,
            number: request.owner,
        },
        range: request.range,
        exclusive: request.wish == LockWish::Exclusive,
        pid: request.pid,
    };
    let savepoint = txn.savepoint();
    let response = inner(txn)?;
    let is_locked = Response::from_bytes(&response) == Ok(Response(Ok(Done::Locked)));
    for (_, place, held) in &before {
        let range = LockRange {
            start: place.start,
            end: held.end,
        };
        let lock = FileLock {
            owner: place.owner,
            range,
            exclusive: held.exclusive,
            pid: held.pid,
        };
        let is_in_the_way = is_locked && request.wish != LockWish::Unlock && lock.conflicts(&wish);
        if is_in_the_way && has_ended(txn, place, held)? {
            txn.rollback(savepoint);
            let blocker = LockBlocker {
                session: place.owner.session,
                pid: held.pid,
                range,
                exclusive: held.exclusive,
                waits: false,
            };
            return Ok(Bytes::from(Response(Ok(Done::Blocked(blocker))).to_bytes()));
        }
    }
    put_ended_back(txn, &before)?;
    Ok(response)
}

/// Writes the rows of mounts that have ended again.
fn put_ended_back(txn: &mut Txn<'_>, before: &[LockRow]) -> Result<(), StateError> {
    for (row_key, place, held) in before {
        if has_ended(txn, place, held)? && txn.get(row_key)?.is_none() {
            txn.put(row_key, held.to_bytes())?;
        }
    }
    Ok(())
}

fn log(txn: &Txn<'_>) -> Result<Changes, StateError> {
    let row = txn.get(&key::changes(REALM))?;
    let log = row.and_then(|bytes| Changes::from_bytes(&bytes).ok());
    Ok(log.unwrap_or_default())
}

/// Empties the entry that an operation on locks, or a tick, adds to the log.
fn untold<R>(
    txn: &mut Txn<'_>,
    mut inner: impl FnMut(&mut Txn<'_>) -> Result<R, StateError>,
) -> Result<R, StateError> {
    let before = log(txn)?;
    let result = inner(txn)?;
    let after = log(txn)?;
    if before.last != after.last {
        let slots = u64::from(Bell::default().slots);
        let slot = u16::try_from(after.last.0 % slots).unwrap_or_default();
        let row_key = key::changed(REALM, slot);
        let entry = txn.get(&row_key)?;
        if let Some(entry) = entry.and_then(|bytes| Changed::from_bytes(&bytes).ok()) {
            let inodes = Some(Vec::new());
            txn.put(&row_key, Changed { inodes, ..entry }.to_bytes())?;
        }
    }
    Ok(result)
}

/// Takes back that the bell was rung, or is owed, for an entry.
fn not_rung<R>(
    txn: &mut Txn<'_>,
    mut inner: impl FnMut(&mut Txn<'_>) -> Result<R, StateError>,
) -> Result<R, StateError> {
    let (before, bell) = (log(txn)?, txn.get(&key::bell(REALM))?);
    let result = inner(txn)?;
    let after = log(txn)?;
    if before.last != after.last {
        let owed = key::owed_bells();
        let end = prefix_end(&owed);
        for (row_key, _) in txn.scan(owed.as_slice()..end.as_slice(), LOCKS_MAX)? {
            txn.delete(&row_key)?;
        }
        if let Some(bell) = bell {
            txn.put(&key::bell(REALM), bell)?;
        }
        let log = Changes {
            last: after.last,
            ..before
        };
        txn.put(&key::changes(REALM), log.to_bytes())?;
    }
    Ok(result)
}
