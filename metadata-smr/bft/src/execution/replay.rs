//! An opening that was executed is not executed again after its session has ended.
//!
//! Whoever has seen the frame that opened a session can send it again, for ever. So an opening says
//! when it was signed, and that must be recent in agreed time when it is executed; of a session
//! that ends sooner than that it is remembered for as long that its opening has been used. Who is
//! refused for the time alone is told the agreed one, so a client whose clock is wrong, or whose
//! opening took too long, signs again with that.
//!
//! What is remembered is bounded: beyond [`OPENINGS_REMEMBERED_MAX`] the one that would be
//! forgotten next goes. The worst of that is a session that nobody uses, until it has been idle for
//! too long.

use super::rows::{
    ClockRow, ENDED_PREFIX, IndexRow, SessionRow, damaged, encode, ended_key, index_key,
    name_of_ended_key,
};
use crate::identity::Time;
use crate::state::{StateError, Txn, prefix_end};
use crate::wire::limits::{OPENING_RECENT, OPENINGS_FORGOTTEN_PER_BATCH, OPENINGS_REMEMBERED_MAX};

/// Whether an opening that says `signed` may open a session at `now`.
pub(super) fn is_recent(signed: Time, now: Time) -> bool {
    now.since(signed) <= OPENING_RECENT && signed.since(now) <= OPENING_RECENT
}

/// A session has ended: remembers its opening for as long as that could be executed again.
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

/// Forgets openings that are too old by now to be executed again.
pub(super) fn forget_old(txn: &mut Txn<'_>, clock: &mut ClockRow) -> Result<(), StateError> {
    if clock.remembered == 0 {
        return Ok(());
    }
    let now = clock.time;
    forget(txn, clock, OPENINGS_FORGOTTEN_PER_BATCH, now)
}

/// Forgets at most `limit` that need to be remembered until before `now` only.
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
