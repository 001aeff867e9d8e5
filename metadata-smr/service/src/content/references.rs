//! References to slices, and the live bytes of objects.
//!
//! References that an operation drops are collected and accounted for at its end: at once if they
//! are few, else through the reap queue. All writes of objects go through [`put_object`], which
//! keeps the object queues consistent.

use crate::change::Change;
use crate::error::Error;
use crate::identity::{Home, ObjectClass, ObjectId, SliceId};
use crate::limits::{REAP_SLICES_PER_ROW, SLICES_DROPPED_MAX};
use crate::row::{Object, Reap, Slice, Sparse, UnderReplicated, Unreferenced, key};
use crate::rows::{Halt, Outcome, Rows};
use std::collections::BTreeMap;

/// Adds references to a slice that exists.
pub(super) fn add(
    change: &mut Change<'_, '_>,
    home: Home,
    slice: SliceId,
    references: u32,
) -> Outcome<()> {
    let row_key = key::slice(home, slice);
    let mut row: Slice = change
        .find(&row_key)?
        .ok_or(Halt::Refused(Error::SliceNotOwned(slice)))?;
    row.references = row
        .references
        .checked_add(references)
        .ok_or(Halt::Refused(Error::BadContent))?;
    change.put(row_key, &row)
}

/// Accounts for the references that the operation dropped.
pub(crate) fn settle_dropped(change: &mut Change<'_, '_>) -> Outcome<()> {
    let dropped = std::mem::take(&mut change.dropped);
    if dropped.len() <= SLICES_DROPPED_MAX {
        for ((home, slice), references) in dropped {
            release_slice(change, home, slice, references)?;
        }
        return Ok(());
    }
    let mut by_home: BTreeMap<Home, Vec<(SliceId, u32)>> = BTreeMap::new();
    for ((home, slice), references) in dropped {
        by_home.entry(home).or_default().push((slice, references));
    }
    let since = change.time();
    for (home, slices) in by_home {
        for part in slices.chunks(REAP_SLICES_PER_ROW) {
            let dropped = part.to_vec();
            change.queue(&Reap::Slices {
                home,
                dropped,
                since,
            })?;
        }
    }
    Ok(())
}

/// Removes references to a slice; with the last one the slice goes, and its bytes of the object
/// die.
pub(crate) fn release_slice(
    change: &mut Change<'_, '_>,
    home: Home,
    slice: SliceId,
    references: u32,
) -> Outcome<()> {
    let row_key = key::slice(home, slice);
    let mut row: Slice = change.expect_row(&row_key)?;
    row.references = row.references.saturating_sub(references);
    if row.references > 0 {
        return change.put(row_key, &row);
    }
    change.delete(row_key)?;
    let before: Object = change.expect_row(&key::object(row.object))?;
    let mut after = before.clone();
    after.lose(row.sealed_length);
    if after.class == ObjectClass::PACK {
        change.delete(key::packed(row.object, home, slice))?;
    }
    put_object(change, row.object, Some(&before), &after)
}

/// Writes an object, and updates its queues.
pub(super) fn put_object(
    change: &mut Change<'_, '_>,
    id: ObjectId,
    before: Option<&Object>,
    after: &Object,
) -> Outcome<()> {
    change.put(key::object(id), after)?;
    let was = before.and_then(priority);
    let is = priority(after);
    if was != is {
        let mut since = change.time();
        if let Some(priority) = was {
            let row_key = key::under_replicated(priority, id);
            if let Some(row) = change.find::<UnderReplicated>(&row_key)? {
                since = row.since;
            }
            change.delete(row_key)?;
        }
        if let Some(priority) = is {
            let row_key = key::under_replicated(priority, id);
            change.put(row_key, &UnderReplicated { since })?;
        }
    }
    match (before.is_some_and(Object::is_sparse), after.is_sparse()) {
        (false, true) => {
            let since = change.time();
            change.put(key::sparse(id), &Sparse { since })?;
        }
        (true, false) => change.delete(key::sparse(id))?,
        _ => {}
    }
    let was_idle = before.is_some_and(|object| object.slices == 0);
    match (was_idle, after.slices == 0) {
        (false, true) => {
            let (since, at) = (change.context().sequence, change.time());
            change.put(key::unreferenced(id), &Unreferenced { since, at })
        }
        (true, false) => change.delete(key::unreferenced(id)),
        _ => Ok(()),
    }
}

/// An object's place among the under-replicated, if it is one: the fewer shards it can lose, the
/// earlier.
fn priority(object: &Object) -> Option<u8> {
    (object.slices > 0 && object.is_under_replicated()).then(|| object.spare())
}
