//! New objects and slices, each under an unused id of one of the session's live allocations.
//!
//! An id is burned when a commit names it, whatever happens to the object or slice later: the data
//! key follows from the slice's id, so a second use of an id could seal two plaintexts under one
//! key.
//!
//! A pack has slices of several files, whose commits may come in any order. Each of them describes
//! the pack completely: the first one creates the row, the others find it. The row must be the
//! session's own (of an allocation that is still live) and match the description, its digests above
//! all; only the places of its shards may have changed. If all of its slices were dropped in the
//! meantime the pack becomes live again, because nothing is deleted while its allocation lives.

use super::placement;
use super::references::put_object;
use crate::change::{Asker, Change};
use crate::epoch::require_sealing;
use crate::error::Error;
use crate::identity::{AllocationId, Home, ObjectClass, ObjectId, RealmId, SliceId};
use crate::limits::{
    COMMIT_OBJECTS_MAX, COMMIT_SLICES_MAX, OBJECT_BYTES_MAX, PACK_SLICES_MAX, SLICE_BYTES_MAX,
    SLICE_KEYS_MAX, WRAPPED_KEY_BYTES_MAX,
};
use crate::operation::{NewObject, NewSlice};
use crate::row::{Allocation, Object, PackedSlice, Realm, Slice, SliceKey, key};
use crate::rows::{Halt, Outcome, Rows, damaged, require};
use std::collections::BTreeMap;

/// An object before and after the operation.
pub(super) struct Pending {
    pub(super) before: Option<Object>,
    pub(super) after: Object,
}

impl Pending {
    /// An existing object.
    pub(super) fn found(row: Object) -> Self {
        Self {
            after: row.clone(),
            before: Some(row),
        }
    }

    /// Whether it gained slices.
    pub(super) fn has_gained(&self) -> bool {
        self.after.slices > self.before.as_ref().map_or(0, |before| before.slices)
    }
}

/// Writes the rows of a commit's objects and slices, the slices still without references.
pub(super) fn bring_in(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    (realm_id, home): (RealmId, Home),
    objects: &[NewObject],
    slices: &[NewSlice],
) -> Outcome<()> {
    if objects.is_empty() && slices.is_empty() {
        return Ok(());
    }
    require_at_most(objects.len(), COMMIT_OBJECTS_MAX)?;
    require_at_most(slices.len(), COMMIT_SLICES_MAX)?;
    let realm = change.realm(realm_id)?;
    let mut pending: BTreeMap<ObjectId, Pending> = BTreeMap::new();
    for new in objects {
        let once = !pending.contains_key(&new.id);
        require(once, Error::ObjectUsed(new.id))?;
        pending.insert(new.id, new_or_existing(change, asker, &realm, new)?);
    }
    for new in slices {
        claim(change, asker, Claimed::Slice(new.id))?;
        let row = slice(change, (realm_id, &realm), new)?;
        if let std::collections::btree_map::Entry::Vacant(vacant) = pending.entry(new.object) {
            let own = owns(asker, new.object.allocation);
            require(own, Error::ObjectNotOwned(new.object))?;
            let row: Object = change
                .find(&key::object(new.object))?
                .ok_or(Halt::Refused(Error::NoObject(new.object)))?;
            vacant.insert(Pending::found(row));
        }
        if let Some(Pending { after, .. }) = pending.get_mut(&new.object) {
            let end = new.offset.checked_add(new.sealed_length);
            let fits = end.is_some_and(|end| end <= after.length);
            require(fits, Error::BadContent)?;
            after.gain(new.sealed_length);
            if after.class == ObjectClass::PACK {
                require_free_slot(after)?;
                let place = PackedSlice {
                    offset: new.offset,
                    sealed_length: new.sealed_length,
                };
                change.put(key::packed(new.object, home, new.id), &place)?;
            }
        }
        change.put(key::slice(home, new.id), &row)?;
    }
    for (id, pending) in pending {
        // An object without slices would be garbage from the start.
        require(pending.has_gained(), Error::BadContent)?;
        put_object(change, id, pending.before.as_ref(), &pending.after)?;
    }
    Ok(())
}

/// Refuses a list that exceeds its bound.
pub(super) fn require_at_most(count: usize, most: usize) -> Outcome<()> {
    let limit = u32::try_from(most).unwrap_or(u32::MAX);
    require(count <= most, Error::TooMany { limit })
}

/// An object that an operation describes as new: it is new, or a pack that the session created
/// before and that matches the description.
pub(super) fn new_or_existing(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    realm: &Realm,
    new: &NewObject,
) -> Outcome<Pending> {
    if let Some(row) = existing_pack(change, asker, new)? {
        return Ok(Pending::found(row));
    }
    claim(change, asker, Claimed::Object(new.id))?;
    Ok(Pending {
        before: None,
        after: object(change, asker, realm, new)?,
    })
}

/// The row of a pack that the session created before; refused if it does not match `new`.
fn existing_pack(
    change: &Change<'_, '_>,
    asker: &Asker,
    new: &NewObject,
) -> Outcome<Option<Object>> {
    if new.class != ObjectClass::PACK || !owns(asker, new.id.allocation) {
        return Ok(None);
    }
    let Some(row) = change.find::<Object>(&key::object(new.id))? else {
        return Ok(None);
    };
    let digests = row.shards.iter().map(|shard| shard.digest);
    let same = row.class == new.class
        && row.writer == asker.caller.session
        && row.policy == new.policy
        && (row.length, row.shard_length) == (new.length, new.shard_length)
        && digests.eq(new.shards.iter().map(|shard| shard.digest));
    require(same, Error::ObjectUsed(new.id))?;
    Ok(Some(row))
}

/// Refuses a pack that exceeds its bound of slices.
pub(super) fn require_free_slot(pack: &Object) -> Outcome<()> {
    let limit = PACK_SLICES_MAX;
    require(pack.slices <= limit, Error::TooMany { limit })
}

fn object(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    realm: &Realm,
    new: &NewObject,
) -> Outcome<Object> {
    let sensible = matches!(new.class, ObjectClass::BLOCK | ObjectClass::PACK)
        && new.policy == realm.policy
        && (1..=OBJECT_BYTES_MAX).contains(&new.length)
        && new.shard_length > 0;
    require(sensible, Error::BadPlacement(new.id))?;
    placement::check(change, new.id, &new.policy, &new.shards)?;
    Ok(Object {
        class: new.class,
        policy: new.policy,
        length: new.length,
        shard_length: new.shard_length,
        shards: new.shards.clone(),
        writer: asker.caller.session,
        principal: asker.number,
        checked: false,
        committed: change.time(),
        born: change.context().sequence,
        generation: 0,
        live_bytes: 0,
        slices: 0,
    })
}

fn slice(
    change: &Change<'_, '_>,
    (id, realm): (RealmId, &Realm),
    new: &NewSlice,
) -> Outcome<Slice> {
    require_at_most(new.keys.len(), SLICE_KEYS_MAX)?;
    let is_own = |key: &SliceKey| key.realm() == id;
    require(new.keys.iter().all(is_own), Error::CrossRealm)?;
    let fits = |key: &SliceKey| match key {
        SliceKey::Derived { epoch, .. } => *epoch <= realm.epoch,
        SliceKey::Wrapped { epoch, bytes, .. } => {
            *epoch <= realm.epoch && bytes.len() <= WRAPPED_KEY_BYTES_MAX
        }
    };
    let sensible = (1..=SLICE_BYTES_MAX).contains(&new.length)
        && new.sealed_length > 0
        && !new.keys.is_empty()
        && new.keys.iter().all(fits);
    require(sensible, Error::BadContent)?;
    for key in &new.keys {
        require_sealing(change, id, key.epoch())?;
    }
    Ok(Slice {
        object: new.object,
        offset: new.offset,
        length: new.length,
        sealed_length: new.sealed_length,
        codec: new.codec,
        keys: new.keys.clone(),
        references: 0,
    })
}

/// Whether the allocation is a live one of the session.
pub(super) fn owns(asker: &Asker, allocation: AllocationId) -> bool {
    asker.session.allocations.contains(&allocation)
}

/// Burns an object id of the session for something without an object row.
pub(crate) fn claim_object(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    id: ObjectId,
) -> Outcome<()> {
    claim(change, asker, Claimed::Object(id))
}

#[derive(Clone, Copy)]
enum Claimed {
    Object(ObjectId),
    Slice(SliceId),
}

/// Burns an id of the session.
fn claim(change: &mut Change<'_, '_>, asker: &Asker, claimed: Claimed) -> Outcome<()> {
    let (allocation, counter, not_owned, used) = match claimed {
        Claimed::Object(id) => (
            id.allocation,
            id.counter,
            Error::ObjectNotOwned(id),
            Error::ObjectUsed(id),
        ),
        Claimed::Slice(id) => (
            id.allocation,
            id.counter,
            Error::SliceNotOwned(id),
            Error::SliceUsed(id),
        ),
    };
    require(owns(asker, allocation), not_owned.clone())?;
    let row_key = key::allocation(allocation);
    let mut row: Allocation = change.expect_row(&row_key)?;
    let own = row.session == asker.caller.session && counter < row.count;
    require(own, not_owned)?;
    let bits = match claimed {
        Claimed::Object(_) => &mut row.objects_used,
        Claimed::Slice(_) => &mut row.slices_used,
    };
    let byte = usize::try_from(counter / 8)
        .ok()
        .and_then(|index| bits.get_mut(index))
        .ok_or_else(|| damaged::<Allocation>(&row_key, "it has fewer bits than ids"))?;
    let bit = 1_u8 << (counter % 8);
    require(*byte & bit == 0, used)?;
    *byte |= bit;
    change.put(row_key, &row)
}
