//! What goes to the trash, and how it gets there and out again.

use super::find;
use crate::attributes::Timestamp;
use crate::change::{Asker, Change};
use crate::error::Error;
use crate::identity::{InodeId, RealmId};
use crate::limits::{GRAVE_TIME, TRASH_AGE_SECONDS, TRASH_SECONDS_MAX};
use crate::operation::KeepTrash;
use crate::reply::Done;
use crate::row::{
    Amount, Inode, InodeBody, Parting, Realm, Reap, TrashPlace, TrashSize, Trashed, key,
};
use crate::rows::{Halt, Outcome, Rows, damaged, require};

/// Whether an inode that has just lost its last name goes to the trash.
pub(crate) fn keeps(change: &Change<'_, '_>, inode: InodeId, row: &Inode) -> Outcome<bool> {
    let restorable = matches!(
        row.node,
        InodeBody::File(_) | InodeBody::Directory { .. } | InodeBody::Symlink { .. }
    );
    if !restorable || change.context().short_of_space || !has_trash(change, row)? {
        return Ok(false);
    }
    Ok(is_old(change, row) || (row.is_directory() && had_something(change, inode)?))
}

fn has_trash(change: &Change<'_, '_>, row: &Inode) -> Outcome<bool> {
    let realm: Realm = change.expect_row(&key::realm(row.realm))?;
    Ok(realm.trash_seconds > 0)
}

fn is_old(change: &Change<'_, '_>, row: &Inode) -> bool {
    let from = Timestamp {
        seconds: row.created.seconds.saturating_add(TRASH_AGE_SECONDS),
        ..row.created
    };
    from <= Timestamp::from(change.time())
}

/// Whether something that was removed from this directory is in the trash.
pub(super) fn had_something(rows: &impl Rows, directory: InodeId) -> Outcome<bool> {
    let prefix = key::all_trashed_in(directory);
    Ok(!rows.scan(&prefix, &prefix, 1)?.is_empty())
}

/// Remembers the removal of an inode that is held open.
pub(crate) fn part(change: &mut Change<'_, '_>, inode: InodeId, parting: &Parting) -> Outcome<()> {
    change.put(key::parting(inode), parting)
}

/// Forgets the removal of an inode that the last holder lets go; returns it if the inode goes to
/// the trash.
pub(crate) fn parted(
    change: &mut Change<'_, '_>,
    inode: InodeId,
    row: &Inode,
) -> Outcome<Option<Parting>> {
    let Some(parting) = change.find::<Parting>(&key::parting(inode))? else {
        return Ok(None);
    };
    change.delete(key::parting(inode))?;
    let keeps = !change.context().short_of_space && has_trash(change, row)?;
    Ok(keeps.then_some(parting))
}

/// Moves an inode without names and holders to the trash.
pub(crate) fn put(
    change: &mut Change<'_, '_>,
    inode: InodeId,
    row: &Inode,
    parting: Parting,
) -> Outcome<()> {
    let Parting { at, entry } = parting;
    let place = TrashPlace {
        realm: row.realm,
        at,
    };
    change.delete_inode(inode)?;
    resize(change, row, Amount::plus)?;
    change.put(key::trash_place(inode), &place)?;
    change.put(key::trashed_in(entry.directory, inode), &place)?;
    let inode_row = row.clone();
    let trashed = Trashed {
        inode: inode_row,
        entry,
    };
    change.put(key::trashed(place.realm, at, inode), &trashed)
}

/// Takes an inode out of the trash; the caller gives it a row and a name, or frees its content.
pub(crate) fn take(
    change: &mut Change<'_, '_>,
    inode: InodeId,
    place: &TrashPlace,
    trashed: &Trashed,
) -> Outcome<()> {
    resize(change, &trashed.inode, Amount::minus)?;
    change.delete(key::trash_place(inode))?;
    change.delete(key::trashed_in(trashed.entry.directory, inode))?;
    change.delete(key::trashed(place.realm, place.at, inode))
}

/// Takes an inode out of the trash that was put there within the last minute, for a session that
/// has it open. It goes back when that lets it go; the caller writes its row.
pub(crate) fn take_open(
    change: &mut Change<'_, '_>,
    realm: RealmId,
    inode: InodeId,
) -> Outcome<Option<Inode>> {
    let (place, trashed) = match find(change, inode) {
        Ok(found) => found,
        Err(Halt::Refused(Error::NotTrashed(_))) => return Ok(None),
        Err(error) => return Err(error),
    };
    if place.realm != realm || place.at.plus(GRAVE_TIME) < change.time() {
        return Ok(None);
    }
    take(change, inode, &place, &trashed)?;
    let Trashed { inode: row, entry } = trashed;
    let at = place.at;
    part(change, inode, &Parting { at, entry })?;
    queue_tail(change, inode, &row)?;
    Ok(Some(row))
}

/// Queues the work for the cut tail of an inode that comes out of the trash: the work that was
/// queued before may have found no inode.
pub(crate) fn queue_tail(change: &mut Change<'_, '_>, inode: InodeId, row: &Inode) -> Outcome<()> {
    match &row.node {
        InodeBody::File(file) if file.dead_from.is_some() => {
            let since = change.time();
            change.queue(&Reap::Tail { inode, since })
        }
        _ => Ok(()),
    }
}

/// Changes the size of the trash by an inode.
fn resize(
    change: &mut Change<'_, '_>,
    row: &Inode,
    by: fn(Amount, Amount) -> Option<Amount>,
) -> Outcome<()> {
    let row_key = key::trash_size(row.realm);
    let TrashSize { held } = change.find(&row_key)?.unwrap_or_default();
    let held = by(held, row.charge())
        .ok_or_else(|| damaged::<TrashSize>(&row_key, "it would be negative or too large"))?;
    if held == Amount::default() {
        return change.delete(row_key);
    }
    change.put(row_key, &TrashSize { held })
}

/// Sets how long a realm's trash is kept.
pub(crate) fn keep_for(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    set: &KeepTrash,
) -> Outcome<Done> {
    require(asker.rights.administer, Error::NoRight)?;
    require(set.seconds <= TRASH_SECONDS_MAX, Error::Invalid)?;
    let mut realm = change.realm(set.realm)?;
    realm.trash_seconds = set.seconds;
    change.put(key::realm(set.realm), &realm)?;
    Ok(Done::TrashKept)
}
