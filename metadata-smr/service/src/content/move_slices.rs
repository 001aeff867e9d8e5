//! Moves slices of sparse packs into other packs.
//!
//! ```text
//!   pack a   #--#-----   -+
//!                         +->   ####   pack c, written to w clouds before this is ordered
//!   pack b   ---#--#--   -+
//! ```
//!
//! Only ciphertext is moved: ids, keys and codecs of the slices stay, and the mover needs no data
//! key. It could still substitute other bytes, so this needs the right to reconcile, even for packs
//! of the session's own: nothing here checks whether the session may still write the files of its
//! slices.
//!
//! Between the copy and the order, slices may be dropped or moved by others; those are skipped, and
//! so is a slice that is in its new place already, so that an order whose answer was lost can be
//! repeated. A pack that loses its last slice is unreferenced from then on. It is not deleted here,
//! because clients that looked up its slices before may still be reading them.

use super::bring_in::{Pending, new_or_existing, require_at_most, require_free_slot};
use super::references::put_object;
use crate::change::{Asker, Change};
use crate::error::Error;
use crate::identity::{Home, ObjectClass, ObjectId, RealmId, SliceId};
use crate::limits::{
    MOVE_OBJECTS_MAX, MOVE_SLICES_MAX, PACK_SLICES_MAX, ROWS_READ_MAX, ROWS_WRITTEN_MAX,
};
use crate::operation::{NewObject, SliceMove};
use crate::row::{Object, PackedSlice, Slice, key};
use crate::rows::{Outcome, Rows, decode, require};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

// In the worst case every slice has a pack of its own: the row and two places of the slice; the
// pack and its three queues. Each new pack has its row, two queues and a row of ids.
const _: () = assert!(MOVE_SLICES_MAX * 7 + MOVE_OBJECTS_MAX * 4 <= ROWS_WRITTEN_MAX);

// The slices of each new pack, each with its old pack, and a few more rows.
const _: () = assert!(
    MOVE_OBJECTS_MAX * (PACK_SLICES_MAX as usize + 8) + MOVE_SLICES_MAX * 4 <= ROWS_READ_MAX
);

/// The runs of a pack that its slices occupy, each with its beginning and its end.
pub(super) type Runs = BTreeMap<u32, u32>;

/// Moves slices; returns the number moved, without those that are not at their expected place.
pub(crate) fn move_slices(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    realm: RealmId,
    objects: &[NewObject],
    moves: &[SliceMove],
) -> Outcome<u32> {
    require(asker.rights.reconcile, Error::NoRight)?;
    require_at_most(objects.len(), MOVE_OBJECTS_MAX)?;
    require_at_most(moves.len(), MOVE_SLICES_MAX)?;
    let realm = change.realm(realm)?;
    let mut packs: BTreeMap<ObjectId, Pending> = BTreeMap::new();
    let mut taken: BTreeMap<ObjectId, Runs> = BTreeMap::new();
    for new in objects {
        require(new.class == ObjectClass::PACK, Error::BadPlacement(new.id))?;
        let once = !packs.contains_key(&new.id);
        require(once, Error::ObjectUsed(new.id))?;
        let pack = new_or_existing(change, asker, &realm, new)?;
        taken.insert(new.id, runs(change, new.id, &pack)?);
        packs.insert(new.id, pack);
    }
    let mut moved = 0_u32;
    for step in moves {
        require(step.home == realm.home, Error::CrossRealm)?;
        let runs = taken.get_mut(&step.to);
        let Some(runs) = runs.filter(|_| step.from != step.to) else {
            return Err(Error::BadContent.into());
        };
        let moves = move_one(change, &mut packs, runs, step)?;
        moved = moved.saturating_add(u32::from(moves));
    }
    put_objects(change, packs)?;
    Ok(moved)
}

/// Writes the objects that have changed, and the new ones that have a slice.
pub(super) fn put_objects(
    change: &mut Change<'_, '_>,
    objects: BTreeMap<ObjectId, Pending>,
) -> Outcome<()> {
    for (id, object) in objects {
        let is_brought_in = object.before.is_some() || object.has_gained();
        if is_brought_in && object.before.as_ref() != Some(&object.after) {
            put_object(change, id, object.before.as_ref(), &object.after)?;
        }
    }
    Ok(())
}

/// The runs of an existing pack.
pub(super) fn runs(change: &Change<'_, '_>, id: ObjectId, pack: &Pending) -> Outcome<Runs> {
    let Some(before) = &pack.before else {
        return Ok(Runs::new());
    };
    let prefix = key::all_packed(id);
    let limit = usize::try_from(before.slices).unwrap_or(usize::MAX);
    let rows = change.scan(&prefix, &prefix, limit)?;
    rows.iter()
        .map(|(row_key, bytes)| {
            let place: PackedSlice = decode(row_key, bytes)?;
            let end = place.offset.saturating_add(place.sealed_length);
            Ok((place.offset, end))
        })
        .collect()
}

/// Where a slice lies from now on.
pub(super) struct NewPlace {
    pub(super) object: ObjectId,
    pub(super) offset: u32,
    pub(super) sealed_length: u32,
}

/// Moves a slice; returns whether it was at its expected place.
fn move_one(
    change: &mut Change<'_, '_>,
    packs: &mut BTreeMap<ObjectId, Pending>,
    runs: &mut Runs,
    step: &SliceMove,
) -> Outcome<bool> {
    let row_key = key::slice(step.home, step.slice);
    let seen = (step.from, step.from_offset, step.sealed_length);
    let Some(row) = change
        .find::<Slice>(&row_key)?
        .filter(|row| (row.object, row.offset, row.sealed_length) == seen)
    else {
        return Ok(false);
    };
    let from: Option<Object> = match packs.get(&step.from) {
        Some(_) => None,
        None => Some(change.expect_row(&key::object(step.from))?),
    };
    let class = packs.get(&step.from).map(|pack| pack.after.class);
    let class = class.or(from.as_ref().map(|from| from.class));
    require(class == Some(ObjectClass::PACK), Error::BadContent)?;
    let place = NewPlace {
        object: step.to,
        offset: step.to_offset,
        sealed_length: step.sealed_length,
    };
    replace(change, packs, runs, (step.home, step.slice, row), &place)?;
    Ok(true)
}

/// Gives a slice another place: its row, and what both objects list and count. The caller writes
/// the objects.
pub(super) fn replace(
    change: &mut Change<'_, '_>,
    objects: &mut BTreeMap<ObjectId, Pending>,
    runs: &mut Runs,
    (home, slice, mut row): (Home, SliceId, Slice),
    place: &NewPlace,
) -> Outcome<()> {
    let before = (row.object, row.sealed_length);
    if let Entry::Vacant(vacant) = objects.entry(before.0) {
        let object = change.expect_row(&key::object(before.0))?;
        vacant.insert(Pending::found(object));
    }
    let to = objects.get_mut(&place.object).map(|it| &mut it.after);
    let end = place.offset.checked_add(place.sealed_length);
    let (Some(to), Some(end)) = (to, end.filter(|_| place.sealed_length > 0)) else {
        return Err(Error::BadContent.into());
    };
    let before_it = runs.range(..end).next_back();
    let is_free = before_it.is_none_or(|(_, ended)| *ended <= place.offset);
    require(end <= to.length && is_free, Error::BadContent)?;
    runs.insert(place.offset, end);
    to.gain(place.sealed_length);
    let to_pack = to.class == ObjectClass::PACK;
    match to_pack {
        true => require_free_slot(to)?,
        // A block has one slice.
        false => require(to.slices == 1, Error::BadContent)?,
    }
    if let Some(from) = objects.get_mut(&before.0).map(|it| &mut it.after) {
        from.lose(before.1);
        if from.class == ObjectClass::PACK {
            change.delete(key::packed(before.0, home, slice))?;
        }
    }
    row.object = place.object;
    row.offset = place.offset;
    row.sealed_length = place.sealed_length;
    change.put(key::slice(home, slice), &row)?;
    if to_pack {
        let packed = PackedSlice {
            offset: place.offset,
            sealed_length: place.sealed_length,
        };
        change.put(key::packed(place.object, home, slice), &packed)?;
    }
    Ok(())
}
