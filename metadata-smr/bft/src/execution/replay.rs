//! An opening that was executed is not executed again after its session has ended.
//!
//! Any process that has seen the frame that opened a session can send it again at any time. So an
//! opening contains the time of its signature, and that must be recent in agreed time when it is
//! executed. If a session ends sooner than that, its opening is remembered as used for as long. A
//! client that is refused for the time alone is given the agreed time, so a client whose clock is
//! wrong, or whose opening took too long, signs again with that time.
//!
//! The memory is bounded: beyond [`OPENINGS_REMEMBERED_MAX`] the opening that would expire next is
//! removed. The worst consequence is an unused session, until it has been idle for too long.

use super::rows::{
    ClockRow, ENDED_PREFIX, IndexRow, SessionRow, damaged, encode, ended_key, index_key,
    name_of_ended_key,
};
use crate::identity::Time;
use crate::state::{StateError, Txn, prefix_end};
use crate::wire::limits::{OPENING_RECENT, OPENINGS_FORGOTTEN_PER_BATCH, OPENINGS_REMEMBERED_MAX};

/// Whether an opening signed at `signed` may open a session at `now`.
pub(super) fn is_recent(signed: Time, now: Time) -> bool {
    now.since(signed) <= OPENING_RECENT && signed.since(now) <= OPENING_RECENT
}

/// Remembers the opening of a session that has ended, for as long as it could be executed again.
pub(super) fn ended(
    txn: &mut Txn<'_>,
    clock: &mut ClockRow,
    row: &SessionRow,
) -> Result<(), StateError> {
    let index = index_key(&row.principal, &row.key);
    let until = row.signed.plus(OPENING_RECENT);
    if until < clock.time {
        return txn.delete(&index);
    }
    if clock.remembered as usize >= OPENINGS_REMEMBERED_MAX {
        forget(txn, clock, 1, Time(u64::MAX))?;
    }
    clock.remembered = clock.remembered.saturating_add(1);
    txn.put(&index, encode(&IndexRow::Ended)?)?;
    txn.put(&ended_key(until, &row.principal, &row.key), Vec::new())
}

/// Removes openings that are too old by now to be executed again.
pub(super) fn forget_old(txn: &mut Txn<'_>, clock: &mut ClockRow) -> Result<(), StateError> {
    if clock.remembered == 0 {
        return Ok(());
    }
    let now = clock.time;
    forget(txn, clock, OPENINGS_FORGOTTEN_PER_BATCH, now)
}

/// Removes at most `limit` openings that need not be remembered after `now`.
fn forget(
    txn: &mut Txn<'_>,
    clock: &mut ClockRow,
    limit: usize,
    now: Time,
) -> Result<(), StateError> {
    let end = prefix_end(ENDED_PREFIX);
    for (key, _) in txn.scan(ENDED_PREFIX..end.as_slice(), limit)? {
        let Some((until, principal, session_key)) = name_of_ended_key(&key) else {
            return Err(damaged(
                "the list of used openings",
                "a key has another length",
            ));
        };
        if until >= now {
            break;
        }
        clock.remembered = clock.remembered.saturating_sub(1);
        txn.delete(&index_key(&principal, &session_key))?;
        txn.delete(&key)?;
    }
    Ok(())
}
