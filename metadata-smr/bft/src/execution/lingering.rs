//! Sessions that have ended, but whose requests may still be proposed.
//!
//! Several batches are pending at a time, so a leader may have chosen a request of a session that
//! an earlier batch ends. Its execution has no effect; but a voter has to check its signature, also
//! after a restart. So the key of a session stays known until a window of batches has been executed
//! after its end, and no batch may name it from then on. That point follows from the order alone,
//! so all replicas refuse the same requests.

use super::rows::{
    ClockRow, LINGERING_PREFIX, LingeringRow, SessionRow, damaged, decode, encode, lingering_key,
    lingering_of_key,
};
use crate::identity::{PublicKey, Sequence, SessionId};
use crate::state::{StateError, Txn, View, prefix_end};
use crate::wire::limits::{BATCH_REQUESTS_MAX, SESSIONS_CLOSED_PER_BATCH, WINDOW};

/// As many as can end within a window, and in one batch more, which then has to remove some.
const LINGERING_MAX: usize = (WINDOW + 1) * (BATCH_REQUESTS_MAX + SESSIONS_CLOSED_PER_BATCH);

/// A session that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lingering {
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
    let lingering = LingeringRow {
        principal: row.principal,
        key: row.key,
    };
    clock.lingering = clock.lingering.saturating_add(1);
    txn.put(&lingering_key(at, id), encode(&lingering)?)
}

/// All sessions that may still be named, in the order of their ends.
pub(super) fn all(view: &View<'_>) -> Result<Vec<Lingering>, StateError> {
    let end = prefix_end(LINGERING_PREFIX);
    let rows = view.scan(LINGERING_PREFIX..end.as_slice(), LINGERING_MAX)?;
    let read = rows.into_iter().map(|(key, value)| {
        let wrong = || damaged("the list of ended sessions", "a key has another length");
        let (at, id) = lingering_of_key(&key).ok_or_else(wrong)?;
        let LingeringRow { principal, key } = decode(&key, &value)?;
        Ok(Lingering {
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
    if clock.lingering == 0 {
        return Ok(forgotten);
    }
    for lingering in all(&txn.view())? {
        if lingering.at.0.saturating_add(WINDOW as u64) > now.0 {
            break;
        }
        clock.lingering = clock.lingering.saturating_sub(1);
        txn.delete(&lingering_key(lingering.at, lingering.id))?;
        forgotten.push(lingering.id);
    }
    Ok(forgotten)
}
