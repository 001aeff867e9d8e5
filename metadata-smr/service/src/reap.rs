//! The reap queue: work that is too large for the operation that caused it.
//!
//! Ticks take the oldest row first, do a bounded piece of its work, and delete the row when nothing
//! is left. If work is left and other rows wait, the row goes to the end of the queue: a short
//! tail, which its owner wants to overwrite, does not wait for a file of a terabyte. Queued content
//! is invisible already; only space and counters lag behind.

use crate::change::Change;
use crate::content::{Remainder, reap_extents, release_slice, settle_dropped};
use crate::extended;
use crate::identity::{Home, InodeId, SliceId};
use crate::limits::{
    EXTENDED_DROPPED_MAX, EXTENTS_DROPPED_MAX, LOCK_ROWS_READ_PER_TICK, REAPED_PER_PIECE,
    ROWS_PER_EXTENT, SLICES_DROPPED_MAX, TICK_ROWS_MAX,
};
use crate::locks;
use crate::log;
use crate::namespace::drop_holder;
use crate::quota;
use crate::row::key::MountPlace;
use crate::row::{Inode, InodeBody, Reap, key};
use crate::rows::{Halt, Outcome, Rows, decode};
use crate::session::orphans;
use quorumfs_bft::identity::{SessionId, Time};

// Pieces begin in the first half of the bound, so one piece, and the log's rows of a tick, must fit
// the other half.
const _: () = assert!(
    TICK_ROWS_MAX
        >= 2 * (ROWS_PER_EXTENT * REAPED_PER_PIECE
            + EXTENDED_DROPPED_MAX
            + 13
            + log::ROWS_PER_TICK)
);
const _: () = assert!(REAPED_PER_PIECE <= SLICES_DROPPED_MAX);
const _: () = assert!(EXTENTS_DROPPED_MAX <= REAPED_PER_PIECE);

/// When the queue needs a tick: the time when its oldest row was queued.
pub(crate) fn next_deadline(rows: &impl Rows) -> Outcome<Option<Time>> {
    Ok(oldest(rows)?.map(|oldest| oldest.reap.since()))
}

struct Oldest {
    row_key: Vec<u8>,
    reap: Reap,
    /// Whether other rows wait.
    others: bool,
}

fn oldest(rows: &impl Rows) -> Outcome<Option<Oldest>> {
    let prefix = key::reaps();
    let mut found = rows.scan(&prefix, &prefix, 2)?.into_iter();
    let Some((row_key, bytes)) = found.next() else {
        return Ok(None);
    };
    Ok(Some(Oldest {
        reap: decode(&row_key, &bytes)?,
        row_key: row_key.to_vec(),
        others: found.next().is_some(),
    }))
}

/// Works on the queue, within the bound of one tick.
pub(crate) fn tick(change: &mut Change<'_, '_>) -> Outcome<()> {
    let reads_max = change.rows_read().saturating_add(LOCK_ROWS_READ_PER_TICK);
    while change.rows_written() < TICK_ROWS_MAX / 2 {
        let Some(Oldest {
            row_key,
            reap,
            others,
        }) = oldest(change)?
        else {
            break;
        };
        let kept = match reap {
            Reap::Content { inode, .. } => {
                let (_, kept) = reap_extents(change, inode, 0, REAPED_PER_PIECE)?;
                kept
            }
            Reap::Tail { inode, .. } => tail(change, inode)?,
            Reap::Slices {
                home,
                dropped,
                since,
            } => slices(change, &row_key, home, dropped, since)?,
            Reap::Orphans { session, .. } => one_orphan(change, session)?,
            Reap::Extended { inode, .. } => extended::reap(change, inode, REAPED_PER_PIECE)?,
            // Each of these pieces may read much and write little.
            Reap::Locks { .. } if change.rows_read() >= reads_max => break,
            Reap::Locks {
                session,
                realm,
                mount,
                ..
            } => {
                let by = MountPlace {
                    session,
                    realm,
                    mount,
                };
                locks::reap(change, by)?
            }
        };
        settle_dropped(change)?;
        quota::settle(change)?;
        if kept == Remainder::Nothing {
            change.delete(row_key)?;
        } else if others {
            // The row after this piece of work.
            let rest: Reap = change.expect_row(&row_key)?;
            change.delete(row_key)?;
            change.queue(&rest)?;
        }
    }
    Ok(())
}

/// Deletes the dead tail of a live inode, unless the inode was deleted in the meantime.
fn tail(change: &mut Change<'_, '_>, inode: InodeId) -> Outcome<Remainder> {
    let mut row = match change.inode(inode) {
        Ok(row) => row,
        Err(Halt::Refused(_)) => return Ok(Remainder::Nothing),
        Err(error) => return Err(error),
    };
    let InodeBody::File(file) = &mut row.node else {
        return Ok(Remainder::Nothing);
    };
    let Some(from) = file.dead_from else {
        return Ok(Remainder::Nothing);
    };
    let (bytes, kept) = reap_extents(change, inode, from, REAPED_PER_PIECE)?;
    file.allocated = file.allocated.saturating_sub(bytes);
    if kept == Remainder::Nothing {
        file.dead_from = None;
        log::note_space(change, row.realm, inode);
    }
    put_unchanged(change, inode, &row)?;
    Ok(kept)
}

/// Writes an inode after an invisible change: its version and ctime stay.
fn put_unchanged(change: &mut Change<'_, '_>, inode: InodeId, row: &Inode) -> Outcome<()> {
    change.put_inode(inode, row)
}

fn slices(
    change: &mut Change<'_, '_>,
    row_key: &[u8],
    home: Home,
    mut dropped: Vec<(SliceId, u32)>,
    since: Time,
) -> Outcome<Remainder> {
    let rest = dropped.split_off(dropped.len().min(REAPED_PER_PIECE));
    for (slice, references) in dropped {
        release_slice(change, home, slice, references)?;
    }
    if rest.is_empty() {
        return Ok(Remainder::Nothing);
    }
    let dropped = rest;
    let rest = Reap::Slices {
        home,
        dropped,
        since,
    };
    change.put(row_key.to_vec(), &rest)?;
    Ok(Remainder::Some)
}

fn one_orphan(change: &mut Change<'_, '_>, session: SessionId) -> Outcome<Remainder> {
    let found = orphans(change, session, None, 2)?;
    if let Some(inode) = found.first() {
        drop_holder(change, session, *inode)?;
    }
    Ok(if found.len() > 1 {
        Remainder::Some
    } else {
        Remainder::Nothing
    })
}
