//! Sessions: opened, kept alive and closed in order.
//!
//! A session is found by its number (in requests) and by its principal and key (when an opening is
//! sent again). A list sorted by the time of the last activity shows which sessions have been idle
//! for too long; a session's entry moves at most once a minute, so that a busy session does not
//! rewrite it with every request.

use super::rows::{
    ClockRow, IDLE_PREFIX, IndexRow, PrincipalRow, SESSION_PREFIX, SessionRow, damaged, decode,
    encode, idle_key, idle_of_key, index_key, lanes_prefix, principal_key, session_key,
    session_of_key,
};
use super::{credit, replay};
use crate::identity::{Nanos, PublicKey, SessionId, Time};
use crate::service::Caller;
use crate::state::{StateError, Txn, View, prefix_end};
use crate::wire::limits::{SESSION_TOUCHES, SESSIONS_MAX};

/// The open session with this number.
///
/// # Errors
/// If the store fails.
pub fn find(view: &View<'_>, id: SessionId) -> Result<Option<SessionRow>, StateError> {
    let key = session_key(id);
    view.get(&key)?
        .map(|bytes| decode(&key, &bytes))
        .transpose()
}

/// The outcome of an opening that was executed before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Its session is open.
    Open(SessionId, SessionRow),
    /// Its session has ended.
    Ended,
}

/// The session of `principal` whose requests are signed with `key`.
///
/// # Errors
/// If the store fails.
pub fn find_by_key(
    view: &View<'_>,
    principal: &PublicKey,
    key: &PublicKey,
) -> Result<Option<Known>, StateError> {
    let index = index_key(principal, key);
    let Some(bytes) = view.get(&index)? else {
        return Ok(None);
    };
    let IndexRow::Open(id) = decode(&index, &bytes)? else {
        return Ok(Some(Known::Ended));
    };
    match find(view, id)? {
        Some(row) => Ok(Some(Known::Open(id, row))),
        None => Err(damaged(
            "the index of sessions",
            "it names one that does not exist",
        )),
    }
}

/// All open sessions, for a replica that starts.
///
/// # Errors
/// If the store fails.
pub fn all(view: &View<'_>) -> Result<Vec<(SessionId, SessionRow)>, StateError> {
    let end = prefix_end(SESSION_PREFIX);
    view.scan(SESSION_PREFIX..end.as_slice(), SESSIONS_MAX)?
        .into_iter()
        .map(|(key, value)| match session_of_key(&key) {
            Some(id) => Ok((id, decode(&key, &value)?)),
            None => Err(damaged("a session's key", "it has another length")),
        })
        .collect()
}

/// The caller that the service sees.
#[must_use]
pub const fn caller(id: SessionId, row: &SessionRow) -> Caller {
    Caller {
        session: id,
        principal: row.principal,
    }
}

/// The totals of this principal.
pub(super) fn principal(view: &View<'_>, key: &PublicKey) -> Result<PrincipalRow, StateError> {
    let key = principal_key(key);
    let row = view.get(&key)?.map(|bytes| decode(&key, &bytes));
    row.transpose().map(Option::unwrap_or_default)
}

pub(super) fn insert(
    txn: &mut Txn<'_>,
    clock: &mut ClockRow,
    id: SessionId,
    row: &SessionRow,
) -> Result<(), StateError> {
    let mut holder = principal(&txn.view(), &row.principal)?;
    credit::give(clock, &mut holder, row);
    txn.put(&principal_key(&row.principal), encode(&holder)?)?;
    txn.put(&session_key(id), encode(row)?)?;
    txn.put(
        &index_key(&row.principal, &row.key),
        encode(&IndexRow::Open(id))?,
    )?;
    txn.put(&idle_key(row.active, id), Vec::new())
}

pub(super) fn remove(
    txn: &mut Txn<'_>,
    clock: &mut ClockRow,
    id: SessionId,
    row: &SessionRow,
) -> Result<(), StateError> {
    let mut holder = principal(&txn.view(), &row.principal)?;
    credit::take_back(clock, &mut holder, row);
    if holder == PrincipalRow::default() {
        txn.delete(&principal_key(&row.principal))?;
    } else {
        txn.put(&principal_key(&row.principal), encode(&holder)?)?;
    }
    txn.delete(&session_key(id))?;
    replay::ended(txn, clock, row)?;
    txn.delete(&idle_key(row.active, id))?;
    let lanes = lanes_prefix(id);
    let end = prefix_end(&lanes);
    let slots = usize::from(row.credit.lanes).saturating_mul(2);
    for (key, _) in txn.scan(&lanes..end.as_slice(), slots)? {
        txn.delete(&key)?;
    }
    Ok(())
}

/// Whether the activity of a session that is active now has to be written.
pub(super) const fn is_touched((now, idle): (Time, Nanos), row: &SessionRow) -> bool {
    now.since(row.active).0 >= idle.0 / SESSION_TOUCHES
}

/// Notes that the session is active now.
pub(super) fn touch(
    txn: &mut Txn<'_>,
    now: Time,
    id: SessionId,
    row: &SessionRow,
) -> Result<(), StateError> {
    txn.delete(&idle_key(row.active, id))?;
    txn.put(&idle_key(now, id), Vec::new())?;
    txn.put(
        &session_key(id),
        encode(&SessionRow {
            active: now,
            ..*row
        })?,
    )
}

/// The sessions that have been idle for too long, the longest idle first, at most `limit`.
pub(super) fn idle(
    view: &View<'_>,
    (now, idle): (Time, Nanos),
    limit: usize,
) -> Result<Vec<(SessionId, SessionRow)>, StateError> {
    let end = prefix_end(IDLE_PREFIX);
    let mut found = Vec::new();
    for (key, _) in view.scan(IDLE_PREFIX..end.as_slice(), limit)? {
        let Some((active, id)) = idle_of_key(&key) else {
            return Err(damaged(
                "the list of idle sessions",
                "a key has another length",
            ));
        };
        if now.since(active) < idle {
            break;
        }
        match find(view, id)? {
            Some(row) => found.push((id, row)),
            None => {
                return Err(damaged(
                    "the list of idle sessions",
                    "it names one that is closed",
                ));
            }
        }
    }
    Ok(found)
}

/// The longest idle session of a principal that has as many sessions as it may, if it has been idle
/// for some time: it gives way to a new one. With few requests the clock that sessions expire by
/// hardly moves, and the sessions of crashed processes would obstruct new ones for a long time.
pub(super) fn gives_way(
    view: &View<'_>,
    principal: &PublicKey,
    (now, idle): (Time, Nanos),
) -> Result<Option<(SessionId, SessionRow)>, StateError> {
    let end = prefix_end(IDLE_PREFIX);
    for (key, _) in view.scan(IDLE_PREFIX..end.as_slice(), SESSIONS_MAX)? {
        let Some((active, id)) = idle_of_key(&key) else {
            return Err(damaged(
                "the list of idle sessions",
                "a key has another length",
            ));
        };
        if now.since(active).0 < 2 * (idle.0 / SESSION_TOUCHES) {
            break;
        }
        if let Some(row) = find(view, id)?.filter(|row| row.principal == *principal) {
            return Ok(Some((id, row)));
        }
    }
    Ok(None)
}
