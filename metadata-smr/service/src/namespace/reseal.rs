//! Names get the key of the newest key epoch.
//!
//! A directory's names are sealed under the key epoch that is its *generation*. When a member is
//! left out of a new key epoch, the names of a directory that existed before are still under keys
//! that it has, and so would be new names in it. So a directory gets another generation:
//!
//! ```text
//!   current 1 ──begin──► current 2, previous 1 ──names, one after the other──► current 2
//!                        new names are of generation 2
//! ```
//!
//! Beginning costs one row and takes the permissions of a creation: a client that adds a name does
//! it first. The names that are there are resealed later, by a principal that may administer or
//! reconcile: the servers cannot tell whether a resealed name is the same, and a client that may
//! only write could rename what it may not. Until then an entry is found by either name, so a
//! client gives both.
//!
//! A name's position follows from its hash, which has a key of its generation. So an entry moves
//! when its name is resealed. A client that lists the directory sees by the generations that this
//! is going on, and sees to it that no name is missing or shown twice.
//!
//! Invariants:
//! * While a directory has a previous generation, no entry of that generation is added to it. They
//!   are resealed in the order of their positions, and the directory's row in the queue says how
//!   far that is; the previous generation goes when the end is reached.
//! * A directory has at most two generations. One whose names are being resealed when another key
//!   epoch begins gets that as its generation when it is done. Its new names are of its current
//!   generation until then, although that seals nothing else any more.
//! * Resealing changes neither time nor usage: what is stored stays the same.
//!
//! Failure modes: *the sender lies or fails*. It may give names that do not decrypt, which clients
//! show by stand-ins; none is lost. *It is out of date*. A name of the previous generation that it
//! does not give ends its part of the directory, and names that are not there are skipped.

use super::entry::{check_sealed, free_place};
use crate::attributes::{Access, Credentials, PreviousNames};
use crate::change::{Asker, Change};
use crate::error::Error;
use crate::identity::{Cookie, InodeId, RealmEpoch, RealmId};
use crate::limits::{RESEAL_DIRECTORIES_MAX, RESEAL_NAMES_MAX, ROWS_READ_MAX, ROWS_WRITTEN_MAX};
use crate::operation::{DirectoryNames, ResealNames, ResealedName};
use crate::permission::check;
use crate::reply::{Done, StepDone};
use crate::row::{EntryRow, Inode, InodeBody, Reseal, key};
use crate::rows::{Outcome, Rows, damaged, decode, require};
use std::collections::BTreeSet;

/// Entries that are read at a time.
const SCANNED: usize = 256;
/// Rows that one directory writes beyond its names: its inode, its row in the queue, and what the
/// change log adds.
const DIRECTORY_ROWS: usize = 4;

/// New names of a directory are of the newest key epoch from now on.
pub(crate) fn begin(
    change: &mut Change<'_, '_>,
    who: &Credentials,
    directory: InodeId,
) -> Outcome<StepDone> {
    let mut row = change.directory(directory)?;
    check(&row, who, Access::CHANGE_ENTRIES)?;
    require(row.links > 0, Error::NotFound)?;
    if turn(change, directory, &mut row)? {
        change.save_same_time(directory, &mut row)?;
    }
    Ok(StepDone::Set(row.attributes(directory)))
}

/// Gives a directory another generation, unless it has the newest or two already; returns whether
/// its row changed.
fn turn(change: &mut Change<'_, '_>, directory: InodeId, row: &mut Inode) -> Outcome<bool> {
    let realm = row.realm;
    let newest = change.realm(realm)?.epoch;
    let InodeBody::Directory {
        generations,
        entries,
        ..
    } = &mut row.node
    else {
        return Ok(false);
    };
    if generations.current >= newest || generations.previous.is_some() {
        return Ok(false);
    }
    let epoch = std::mem::replace(&mut generations.current, newest);
    if *entries > 0 {
        generations.previous = Some(PreviousNames { realm, epoch });
        let reseal = Reseal {
            after: Cookie::START,
        };
        change.put(key::reseal(directory), &reseal)?;
    }
    Ok(true)
}

/// Reseals names of directories, as many as fit one operation.
pub(crate) fn reseal(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    operation: &ResealNames,
) -> Outcome<Done> {
    let may = asker.rights.administer || asker.rights.reconcile;
    require(may, Error::NoRight)?;
    change.realm(operation.realm)?;
    let limit = RESEAL_DIRECTORIES_MAX as u32;
    let fits = operation.directories.len() <= RESEAL_DIRECTORIES_MAX;
    require(fits, Error::TooMany { limit })?;
    let names = operation.directories.iter().map(|it| it.names.len());
    let limit = RESEAL_NAMES_MAX as u32;
    require(
        names.sum::<usize>() <= RESEAL_NAMES_MAX,
        Error::TooMany { limit },
    )?;
    let each: BTreeSet<_> = operation
        .directories
        .iter()
        .map(|it| it.directory)
        .collect();
    require(each.len() == operation.directories.len(), Error::Invalid)?;
    let (mut names, mut directories) = (0_u32, 0_u32);
    for part in &operation.directories {
        if !has_room(change) {
            break;
        }
        let (resealed, done) = reseal_directory(change, operation.realm, part)?;
        names = names.saturating_add(resealed);
        directories = directories.saturating_add(u32::from(done));
    }
    Ok(Done::NamesResealed { names, directories })
}

/// Whether the operation may read and write more.
fn has_room(change: &Change<'_, '_>) -> bool {
    let written = change.rows_written().saturating_add(2 * DIRECTORY_ROWS);
    let read = change.rows_read().saturating_add(4 * SCANNED);
    written < ROWS_WRITTEN_MAX && read < ROWS_READ_MAX
}

/// Reseals names of one directory; returns their number, and whether all of its names are of the
/// newest key epoch.
fn reseal_directory(
    change: &mut Change<'_, '_>,
    realm: RealmId,
    part: &DirectoryNames,
) -> Outcome<(u32, bool)> {
    let directory = part.directory;
    let row: Option<Inode> = change.find(&key::inode(directory))?;
    // It is gone, and was a directory when the sender saw it.
    let Some(mut row) = row.filter(|row| row.is_directory() && row.realm == realm) else {
        return Ok((0, false));
    };
    let mut changed = turn(change, directory, &mut row)?;
    let newest = change.realm(realm)?.epoch;
    let generations = match &row.node {
        InodeBody::Directory { generations, .. } => *generations,
        _ => return Ok((0, false)),
    };
    let mut names = 0;
    let mut all = generations.previous.is_none();
    if let Some(previous) = generations.previous {
        let queued = key::reseal(directory);
        let before: Reseal = change.expect_row(&queued)?;
        let moved = move_names(
            change,
            part,
            (generations.current, previous.epoch),
            before.after,
        )?;
        names = moved.names;
        all = moved.end;
        changed |= moved.names > 0 || moved.end;
        if moved.end {
            change.delete(queued)?;
        } else if moved.after != before.after {
            let after = moved.after;
            change.put(queued, &Reseal { after })?;
        }
    }
    if let InodeBody::Directory { generations, .. } = &mut row.node
        && all
    {
        generations.previous = None;
    }
    if changed {
        change.save_same_time(directory, &mut row)?;
    }
    Ok((names, all && generations.current == newest))
}

/// How far one directory's names were resealed.
struct Moved {
    names: u32,
    /// No entry up to here is of the previous generation.
    after: Cookie,
    /// And none behind it.
    end: bool,
}

fn move_names(
    change: &mut Change<'_, '_>,
    part: &DirectoryNames,
    (current, previous): (RealmEpoch, RealmEpoch),
    after: Cookie,
) -> Outcome<Moved> {
    let prefix = key::entries(part.directory);
    let mut given = part.names.iter().peekable();
    let mut moved = Moved {
        names: 0,
        after,
        end: false,
    };
    loop {
        let from = key::entry(part.directory, Cookie(moved.after.0.saturating_add(1)));
        let page = change.scan(&prefix, &from, SCANNED)?;
        for (row_key, bytes) in &page {
            let entry: EntryRow = decode(row_key, bytes)?;
            let at = key::trailing_number(row_key)
                .map(Cookie)
                .ok_or_else(|| damaged::<EntryRow>(row_key, "its key is too short"))?;
            if entry.generation == previous {
                while given.next_if(|name| name.at < at).is_some() {}
                let name = given.next_if(|name| name.at == at);
                let Some(name) = name.filter(|_| has_room(change)) else {
                    return Ok(moved);
                };
                if !move_name(change, part.directory, current, (name, entry))? {
                    return Ok(moved);
                }
                moved.names = moved.names.saturating_add(1);
            }
            moved.after = at;
        }
        if page.len() < SCANNED {
            moved.end = true;
            return Ok(moved);
        }
        if !has_room(change) {
            return Ok(moved);
        }
    }
}

/// Moves an entry to the place of its resealed name; returns whether there is one.
fn move_name(
    change: &mut Change<'_, '_>,
    directory: InodeId,
    current: RealmEpoch,
    (name, entry): (&ResealedName, EntryRow),
) -> Outcome<bool> {
    check_sealed(&name.name)?;
    let is_current = name.name.generation == current;
    require(is_current, Error::OtherGeneration { current })?;
    change.delete(key::entry(directory, name.at))?;
    let Some(place) = free_place(change, directory, name.name.cookie)? else {
        // Eight names with one hash: only their writer can have sought them.
        change.put(key::entry(directory, name.at), &entry)?;
        return Ok(false);
    };
    let resealed = EntryRow {
        generation: current,
        name: name.name.bytes.clone(),
        ..entry
    };
    change.put(key::entry(directory, place), &resealed)?;
    Ok(true)
}
