//! Principals whose time is over.
//!
//! The row of a principal goes first, and its sessions are refused from then on. Its mounts are
//! fenced within what a tick may write; until the last one is, the queue's row stays, and ticks go
//! on. Nothing is queued while a volume is recovered: its principals come last, and their rows of
//! the queue with them.

use super::ordered::dismiss;
use crate::change::Change;
use crate::identity::{PrincipalId, RealmId};
use crate::limits::{CLOUDS_MAX, FENCED_ROWS, MOUNTS_MAX, TICK_ROWS_MAX};
use crate::log;
use crate::mount::mounts;
use crate::row::{DueExpiry, Principal, key};
use crate::rows::{Outcome, Rows, decode};
use crate::session;
use quorumfs_bft::identity::Time;

// A piece begins in the first half of the bound.
const _: () = assert!(TICK_ROWS_MAX >= 2 * (CLOUDS_MAX + FENCED_ROWS + 8 + log::ROWS_PER_TICK));

/// The first expiry, if there is one.
fn first(rows: &impl Rows) -> Outcome<Option<(Time, PrincipalId)>> {
    let prefix = key::expiries();
    let Some((row_key, bytes)) = rows.scan(&prefix, &prefix, 1)?.pop() else {
        return Ok(None);
    };
    let DueExpiry = decode(&row_key, &bytes)?;
    Ok(key::trailing_expiry(&row_key))
}

/// When a tick has to dismiss a principal.
pub(crate) fn next_deadline(rows: &impl Rows) -> Outcome<Option<Time>> {
    Ok(first(rows)?.map(|(at, _)| at))
}

/// Dismisses the principals whose time is over, within the bound of one tick.
pub(crate) fn tick(change: &mut Change<'_, '_>) -> Outcome<()> {
    while change.rows_written() < TICK_ROWS_MAX / 2 {
        let now = change.time();
        let Some((at, principal)) = first(change)?.filter(|(at, _)| *at <= now) else {
            break;
        };
        expire(change, at, &principal)?;
    }
    Ok(())
}

fn expire(change: &mut Change<'_, '_>, at: Time, principal: &PrincipalId) -> Outcome<()> {
    match change.find::<Principal>(&key::principal(principal))? {
        // Dismissing it deletes the queue's row, which is written again while mounts are left.
        Some(row) if row.expires == Some(at) => dismiss(change, principal, &row)?,
        Some(_) => return change.delete(key::expiry(at, principal)),
        None => {}
    }
    let mounts = mounts(change, RealmId::ROOT, MOUNTS_MAX)?;
    for mount in mounts.iter().filter(|mount| mount.principal == *principal) {
        if change.rows_written() >= TICK_ROWS_MAX / 2 {
            return change.put(key::expiry(at, principal), &DueExpiry);
        }
        // No other session takes the mount over.
        session::fence(change, mount.session, mount.session)?;
    }
    change.delete(key::expiry(at, principal))
}
