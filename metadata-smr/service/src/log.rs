//! The change log: what operations of one session tell the mounts of others.
//!
//! A mount caches attributes, names and maps of content, and takes them for valid until it hears
//! that another session has changed them. So each operation that changes inodes appends one entry,
//! a list of their numbers, if another session has the realm mounted; and a *bell* wakes the other
//! mounts, which ask for the [news](crate::query::Question::News).
//!
//! ```text
//!   save(inode) ──► noted ──end of the operation──► CL/ entry, RC/ the log's end
//!                                                      │ 10 ms since the last ring?
//!                                          yes: now ───┤
//!                                          no: owed, RO/time, and a tick rings
//!                                                      ▼
//!                                 RB/ bell ──watch──► News(after p) ──► inodes in (p, bell]
//! ```
//!
//! What always holds:
//! * An entry is written with its operation, and goes with it if that is refused. It needs no place
//!   in the operation's bounds: an operation that fits without the log fits with it.
//! * Positions have no gaps. An entry stays until the ring is used up, so an answer that needs an
//!   entry which was overwritten, or is about to be, is a *gap*: anything may have changed.
//! * An answer depends on the bell and on entries up to its position, which do not change until the
//!   ring is used up. It never depends on the log's end, which every operation writes: so answers
//!   of replicas match while others write, although they are not ordered. The bell's row is also
//!   written when a mount begins or ends; so it covers how many there are.
//! * The bell is behind the log for at most 10 ms of agreed time and a tick, and is written at most
//!   once in 10 ms but for mounts. Without that, each batch would be a message to each mount.
//! * Without another mount an operation writes nothing here, and reads one row more than before:
//!   a scan of the realm's mounts, which finds the session's own.
//!
//! What a tick does is not to be seen, except that a truncated file loses the space of its tail.
//! That is logged once, when all of it is gone, for mounts that share: the version of the file
//! stays, because no commit depends on its space. Times of access are never logged; no cache
//! depends on them. A new key epoch says that anything may have changed, for a mount has to learn
//! of it.
//!
//! What can go wrong: a client that does not ask for long enough gets a gap and drops what it
//! knows; a client that changes things in a loop fills the ring, which costs others their caches
//! and never shows them old content; one that mounts in a loop rings the bell.
//!
//! Source: design of this project; AFS and NFSv4 keep a promise for each cached file instead
//! (J. Howard et al., "Scale and Performance in a Distributed File System", 1988), which costs the
//! servers a row and an ordered write for each thing that is looked at.

mod news;

pub(crate) use news::{is_covered, news};

use crate::change::Change;
use crate::identity::{InodeId, LogPosition, RealmId};
use crate::limits::{BELL_INTERVAL, LOG_INODES_MAX, LOG_ROWS, MOUNTS_MAX};
use crate::mount::mounts;
use crate::row::{Bell, Changed, Changes, MountMode, OwedBell, key};
use crate::rows::{Outcome, Rows};
use quorumfs_bft::identity::{SessionId, Time};
use std::collections::{BTreeMap, BTreeSet};

/// What an operation has changed so far, by realm; `None`: any inode may have changed.
pub(crate) type Noted = BTreeMap<RealmId, Option<BTreeSet<InodeId>>>;

/// The number of owed bells that one tick rings.
const RUNG_PER_TICK: usize = 3;
/// Rows that one tick writes here at most.
pub(crate) const ROWS_PER_TICK: usize = LOG_ROWS + 3 * RUNG_PER_TICK;

/// Notes that an inode changes by an operation. Changes by ticks are not to be seen.
pub(crate) fn note(change: &mut Change<'_, '_>, realm: RealmId, inode: InodeId) {
    if change.session().is_some() {
        note_always(change, realm, inode);
    }
}

/// Notes that the space of a truncated file has changed by a tick.
pub(crate) fn note_space(change: &mut Change<'_, '_>, realm: RealmId, inode: InodeId) {
    note_always(change, realm, inode);
}

/// Notes that an operation or a tick has given a turn to take a lock of an inode, to another
/// session or to its own.
pub(crate) fn note_lock(change: &mut Change<'_, '_>, realm: RealmId, inode: InodeId, own: bool) {
    change.tells_itself |= own;
    note_always(change, realm, inode);
}

/// The session that need not hear of the entry.
const fn author(change: &Change<'_, '_>) -> Option<SessionId> {
    if change.tells_itself {
        None
    } else {
        change.session()
    }
}

fn note_always(change: &mut Change<'_, '_>, realm: RealmId, inode: InodeId) {
    let noted = change
        .noted
        .entry(realm)
        .or_insert_with(|| Some(BTreeSet::new()));
    if let Some(inodes) = noted {
        inodes.insert(inode);
        if inodes.len() > LOG_INODES_MAX {
            *noted = None;
        }
    }
}

/// Notes that anything in a realm may be different from now on.
pub(crate) fn note_everything(change: &mut Change<'_, '_>, realm: RealmId) {
    change.noted.insert(realm, None);
}

/// Appends an entry for what was noted, at the end of an operation or a tick.
pub(crate) fn append(change: &mut Change<'_, '_>) -> Outcome<()> {
    for (realm, inodes) in std::mem::take(&mut change.noted) {
        change.reserve(LOG_ROWS);
        if tells(change, realm)? {
            append_entry(change, realm, inodes)?;
        }
    }
    Ok(())
}

/// Whether there is a mount that has to be told.
fn tells(change: &mut Change<'_, '_>, realm: RealmId) -> Outcome<bool> {
    // Of two mounts at least one is another session's.
    let first = mounts(change, realm, 2)?;
    let Some(session) = author(change) else {
        return Ok(first.iter().any(|mount| mount.mode == MountMode::Shared));
    };
    Ok(first.iter().any(|mount| mount.session != session))
}

fn append_entry(
    change: &mut Change<'_, '_>,
    realm: RealmId,
    inodes: Option<BTreeSet<InodeId>>,
) -> Outcome<()> {
    let mut log: Changes = change.find(&key::changes(realm))?.unwrap_or_default();
    let bell: Bell = change.find(&key::bell(realm))?.unwrap_or_default();
    log.last = LogPosition(log.last.0.saturating_add(1));
    let entry = Changed {
        position: log.last,
        by: author(change),
        inodes: inodes.map(|inodes| inodes.into_iter().collect()),
    };
    change.put(key::changed(realm, bell.slot(log.last)), &entry)?;
    let due = log.rung.plus(BELL_INTERVAL);
    if due <= change.time() {
        return ring(change, realm, log, bell);
    }
    if !log.owed {
        log.owed = true;
        change.put(key::owed_bell(due, realm), &OwedBell)?;
    }
    change.put(key::changes(realm), &log)
}

/// Rings the bell of a realm for all entries.
fn ring(
    change: &mut Change<'_, '_>,
    realm: RealmId,
    mut log: Changes,
    mut bell: Bell,
) -> Outcome<()> {
    if log.owed {
        change.delete(key::owed_bell(log.rung.plus(BELL_INTERVAL), realm))?;
        log.owed = false;
    }
    bell.position = log.last;
    change.put(key::bell(realm), &bell)?;
    // Without any entry there is nothing to ring for again.
    if log.last == LogPosition(0) {
        return Ok(());
    }
    log.rung = change.time();
    change.put(key::changes(realm), &log)
}

/// Rings a bell that is owed, so that the news that are asked for from now on tell of everything.
pub(crate) fn ring_if_owed(change: &mut Change<'_, '_>, realm: RealmId) -> Outcome<()> {
    match change.find::<Changes>(&key::changes(realm))? {
        Some(log) if log.owed => {
            let bell: Bell = change.find(&key::bell(realm))?.unwrap_or_default();
            ring(change, realm, log, bell)
        }
        _ => Ok(()),
    }
}

/// A mount of the realm has begun or ended, or has changed, or is recalled: counts them, and rings
/// the bell.
pub(crate) fn count_mounts(change: &mut Change<'_, '_>, realm: RealmId) -> Outcome<LogPosition> {
    let log: Changes = change.find(&key::changes(realm))?.unwrap_or_default();
    let mut bell: Bell = change.find(&key::bell(realm))?.unwrap_or_default();
    let number = mounts(change, realm, MOUNTS_MAX.saturating_add(1))?.len();
    bell.mounts = u32::try_from(number).unwrap_or(u32::MAX);
    ring(change, realm, log, bell)?;
    Ok(log.last)
}

/// When a bell that is owed is due.
pub(crate) fn next_deadline(rows: &impl Rows) -> Outcome<Option<Time>> {
    let prefix = key::owed_bells();
    let found = rows.scan(&prefix, &prefix, 1)?;
    let first = found
        .first()
        .and_then(|(row_key, _)| key::trailing_bell(row_key));
    Ok(first.map(|(due, _)| due))
}

/// Rings the bells that are due.
pub(crate) fn tick(change: &mut Change<'_, '_>) -> Outcome<()> {
    let prefix = key::owed_bells();
    for (row_key, _) in change.scan(&prefix, &prefix, RUNG_PER_TICK)? {
        let owed = key::trailing_bell(&row_key);
        if let Some((_, realm)) = owed.filter(|(due, _)| *due <= change.time()) {
            let log: Changes = change.expect_row(&key::changes(realm))?;
            let bell: Bell = change.find(&key::bell(realm))?.unwrap_or_default();
            ring(change, realm, log, bell)?;
        }
    }
    Ok(())
}
