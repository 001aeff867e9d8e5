//! Sessions that have ended, but whose requests may still be proposed.
//!
//! Several batches are pending at a time, so a leader may have chosen a request of a session that
//! an earlier batch ends. Its execution has no effect; but a voter has to check its signature, also
//! after a restart. So the key of a session stays known until a window of batches has been executed
//! after its end, and no batch may name it from then on. That point follows from the order alone,
//! so all replicas refuse the same requests.

use super::rows::{
    CLOSED_SESSION_PREFIX, ClockRow, ClosedSessionRow, SessionRow, closed_session_key,
    closed_session_of_key, damaged, decode, encode,
};
use crate::identity::{PublicKey, Sequence, SessionId};
use crate::state::{StateError, Txn, View, prefix_end};
use crate::wire::limits::{BATCH_REQUESTS_MAX, SESSIONS_CLOSED_PER_BATCH, WINDOW};

/// As many as can end within a window, and in one batch more, which then has to remove some.
const CLOSED_SESSIONS_MAX: usize = (WINDOW + 1) * (BATCH_REQUESTS_MAX + SESSIONS_CLOSED_PER_BATCH);

/// A session that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClosedSession {
    /// Its number.
    pub id: SessionId,
    /// The batch that it ended with.
    pub at: Sequence,
    /// What its requests are signed with.
    pub key: PublicKey,
    /// The principal that opened it.
    pub principal: PublicKey,
}

/// Records a session that ends.
pub(super) fn ended(
    txn: &mut Txn<'_>,
    clock: &mut ClockRow,
    at: Sequence,
    id: SessionId,
    row: &SessionRow,
) -> Result<(), StateError> {
    let closed = ClosedSessionRow {
        principal: row.principal,
        key: row.key,
    };
    clock.closed_sessions = clock.closed_sessions.saturating_add(1);
    txn.put(&closed_session_key(at, id), encode(&closed)?)
}

/// All sessions that may still be named, in the order of their ends.
pub(super) fn all(view: &View<'_>) -> Result<Vec<ClosedSession>, StateError> {
    let end = prefix_end(CLOSED_SESSION_PREFIX);
    let rows = view.scan(CLOSED_SESSION_PREFIX..end.as_slice(), CLOSED_SESSIONS_MAX)?;
    let read = rows.into_iter().map(|(key, value)| {
        let wrong = || damaged("the list of ended sessions", "a key has another length");
        let (at, id) = closed_session_of_key(&key).ok_or_else(wrong)?;
        let ClosedSessionRow { principal, key } = decode(&key, &value)?;
        Ok(ClosedSession {
            id,
            at,
            key,
            principal,
        })
    });
    read.collect()
}

/// Removes the sessions that ended a window before `now`, and returns them.
pub(super) fn forget(
    txn: &mut Txn<'_>,
    clock: &mut ClockRow,
    now: Sequence,
) -> Result<Vec<SessionId>, StateError> {
    let mut forgotten = Vec::new();
    if clock.closed_sessions == 0 {
        return Ok(forgotten);
    }
    for closed in all(&txn.view())? {
        if closed.at.0.saturating_add(WINDOW as u64) > now.0 {
            break;
        }
        clock.closed_sessions = clock.closed_sessions.saturating_sub(1);
        txn.delete(&closed_session_key(closed.at, closed.id))?;
        forgotten.push(closed.id);
    }
    Ok(forgotten)
}
