//! Shares whose time has come.
//!
//! A piece ends one share, in less than a dozen rows. The rows of the queue come behind all others
//! of a share in the order of keys, so one that is loaded in a recovery is whole.

use super::ordered::end_now;
use crate::change::Change;
use crate::identity::ShareId;
use crate::limits::TICK_ROWS_MAX;
use crate::row::{Share, ShareIndexed, key};
use crate::rows::{Outcome, Rows, decode};
use quorumfs_bft::identity::Time;

/// The first expiry, if there is one.
fn first(rows: &impl Rows) -> Outcome<Option<(Time, ShareId)>> {
    let prefix = key::share_expiries();
    let Some((row_key, bytes)) = rows.scan(&prefix, &prefix, 1)?.pop() else {
        return Ok(None);
    };
    let ShareIndexed = decode(&row_key, &bytes)?;
    Ok(key::trailing_share_expiry(&row_key))
}

/// When a tick has to end a share.
pub(crate) fn next_deadline(rows: &impl Rows) -> Outcome<Option<Time>> {
    Ok(first(rows)?.map(|(at, _)| at))
}

/// Ends the shares whose time has come, within the bound of one tick.
pub(crate) fn tick(change: &mut Change<'_, '_>) -> Outcome<()> {
    while change.rows_written() < TICK_ROWS_MAX / 2 {
        let now = change.time();
        let Some((at, id)) = first(change)?.filter(|(at, _)| *at <= now) else {
            break;
        };
        // A copy that was loaded may have a row of the queue alone.
        change.delete(key::share_expiry(at, id))?;
        let row: Option<Share> = change.find(&key::share(id))?;
        if let Some(row) = row.filter(|row| row.expires == Some(at) && !row.ended) {
            end_now(change, id, row)?;
        }
    }
    Ok(())
}
