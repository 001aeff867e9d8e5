//! Slices that are sealed under an older key epoch get a key of the newest.
//!
//! ```text
//!   slice 7, key epoch 1, in object a   -->   slice 7, key epoch 2, in object c
//!   extents of any files name slice 7         they still do
//! ```
//!
//! A slice's key follows from its id and from random bytes in its row, so the same slice sealed
//! anew has another key under the same id. Only its row changes: files, clones and times stay what
//! they are. The old object loses the slice, as with a move, and is collected later; until then a
//! client that looked the slice up before reads it there.
//!
//! It takes the right to reconcile, as a move does: the sender could put other content in the
//! slice's place. Other readers decode what it has sealed and code it again, as any other
//! principal's.
//!
//! Failure modes: *the slice was dropped, moved or resealed meanwhile*. It is not where the sender
//! saw it, and is skipped. *Another key epoch has begun*. The operation is refused with
//! [`Error::OldKeys`], and the sender seals once more.

use super::bring_in::{Pending, new_or_existing, require_at_most};
use super::move_slices::{NewPlace, Runs, put_objects, replace, runs};
use crate::change::{Asker, Change};
use crate::epoch::require_sealing;
use crate::error::Error;
use crate::identity::ObjectId;
use crate::limits::{MOVE_OBJECTS_MAX, MOVE_SLICES_MAX};
use crate::operation::{ResealSlices, ResealedSlice};
use crate::row::{Slice, SliceKey, key};
use crate::rows::{Outcome, Rows, require};
use std::collections::BTreeMap;

/// Reseals slices; returns how many were where the sender saw them.
pub(crate) fn reseal_slices(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    operation: &ResealSlices,
) -> Outcome<u32> {
    require(asker.rights.reconcile, Error::NoRight)?;
    require_at_most(operation.objects.len(), MOVE_OBJECTS_MAX)?;
    require_at_most(operation.slices.len(), MOVE_SLICES_MAX)?;
    let realm = change.realm(operation.realm)?;
    let mut objects: BTreeMap<ObjectId, Pending> = BTreeMap::new();
    let mut taken: BTreeMap<ObjectId, Runs> = BTreeMap::new();
    for new in &operation.objects {
        let once = !objects.contains_key(&new.id);
        require(once, Error::ObjectUsed(new.id))?;
        let object = new_or_existing(change, asker, &realm, new)?;
        taken.insert(new.id, runs(change, new.id, &object)?);
        objects.insert(new.id, object);
    }
    let mut resealed = 0_u32;
    for step in &operation.slices {
        require(step.home == realm.home, Error::CrossRealm)?;
        let SliceKey::Derived { realm, epoch, .. } = &step.key else {
            return Err(Error::BadContent.into());
        };
        require(*realm == operation.realm, Error::CrossRealm)?;
        require_sealing(change, operation.realm, *epoch)?;
        let runs = taken.get_mut(&step.to);
        let Some(runs) = runs.filter(|_| step.from != step.to) else {
            return Err(Error::BadContent.into());
        };
        let is_done = reseal_one(change, &mut objects, runs, step)?;
        resealed = resealed.saturating_add(u32::from(is_done));
    }
    put_objects(change, objects)?;
    Ok(resealed)
}

fn reseal_one(
    change: &mut Change<'_, '_>,
    objects: &mut BTreeMap<ObjectId, Pending>,
    runs: &mut Runs,
    step: &ResealedSlice,
) -> Outcome<bool> {
    let seen = (step.from, step.from_offset);
    let row: Option<Slice> = change.find(&key::slice(step.home, step.slice))?;
    let Some(mut row) = row.filter(|row| (row.object, row.offset) == seen) else {
        return Ok(false);
    };
    row.keys = vec![step.key.clone()];
    row.codec = step.codec;
    let place = NewPlace {
        object: step.to,
        offset: step.to_offset,
        sealed_length: step.sealed_length,
    };
    replace(change, objects, runs, (step.home, step.slice, row), &place)?;
    Ok(true)
}
