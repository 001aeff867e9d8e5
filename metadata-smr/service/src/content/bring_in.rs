//! New objects and slices, each under an id of the session's own live allocations, each id once.
//!
//! An id is burned when a commit names it, whatever becomes of the object or slice later: a data
//! key follows from a slice's id, so a second use of an id could seal two plaintexts under one key.

use super::placement;
use super::references::put_object;
use crate::change::{Asker, Change};
use crate::error::Error;
use crate::identity::{AllocationId, Home, ObjectClass, ObjectId, RealmId, SliceId};
use crate::limits::{
    COMMIT_OBJECTS_MAX, COMMIT_SLICES_MAX, OBJECT_BYTES_MAX, SLICE_BYTES_MAX, WRAPPED_KEY_BYTES_MAX,
};
use crate::operation::{NewObject, NewSlice};
use crate::row::{Allocation, Object, ObjectState, Realm, Slice, SliceKey, key};
use crate::rows::{Halt, Outcome, Rows, damaged, require};
use std::collections::BTreeMap;

/// An object before and after the commit.
struct Pending {
    before: Option<Object>,
    after: Object,
}

/// Writes the rows of a commit's objects and slices, the latter without references as yet.
pub(super) fn bring_in(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    (realm, home): (RealmId, Home),
    objects: &[NewObject],
    slices: &[NewSlice],
) -> Outcome<()> {
    if objects.is_empty() && slices.is_empty() {
        return Ok(());
    }
    let too_many = |limit: usize| Error::TooMany {
        limit: u32::try_from(limit).unwrap_or(u32::MAX),
    };
    require(
        objects.len() <= COMMIT_OBJECTS_MAX,
        too_many(COMMIT_OBJECTS_MAX),
    )?;
    require(
        slices.len() <= COMMIT_SLICES_MAX,
        too_many(COMMIT_SLICES_MAX),
    )?;
    let realm = change.realm(realm)?;
    let mut pending: BTreeMap<ObjectId, Pending> = BTreeMap::new();
    for new in objects {
        claim(change, asker, Claimed::Object(new.id))?;
        let after = object(change, asker, &realm, new)?;
        let before = None;
        pending.insert(new.id, Pending { before, after });
    }
    for new in slices {
        claim(change, asker, Claimed::Slice(new.id))?;
        let row = slice(&realm, new)?;
        if let std::collections::btree_map::Entry::Vacant(vacant) = pending.entry(new.object) {
            let own = owns(asker, new.object.allocation);
            require(own, Error::ObjectNotOwned(new.object))?;
            let before: Object = change
                .find(&key::object(new.object))?
                .ok_or(Halt::Refused(Error::NoObject(new.object)))?;
            vacant.insert(Pending {
                after: before.clone(),
                before: Some(before),
            });
        }
        if let Some(Pending { after, .. }) = pending.get_mut(&new.object) {
            let end = new.offset.checked_add(new.sealed_length);
            let fits = end.is_some_and(|end| end <= after.length);
            require(fits, Error::BadContent)?;
            after.slices = after.slices.saturating_add(1);
            after.live_bytes = after
                .live_bytes
                .saturating_add(u64::from(new.sealed_length));
        }
        change.put(key::slice(home, new.id), &row)?;
    }
    for (id, Pending { before, after }) in pending {
        // An object that nothing names would be garbage from the start.
        require(after.slices > 0, Error::BadContent)?;
        put_object(change, id, before.as_ref(), &after)?;
    }
    Ok(())
}

fn object(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    realm: &Realm,
    new: &NewObject,
) -> Outcome<Object> {
    let sensible = new.class == ObjectClass::BLOCK
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
        live_bytes: 0,
        slices: 0,
        pins: 0,
        state: ObjectState::Live,
    })
}

fn slice(realm: &Realm, new: &NewSlice) -> Outcome<Slice> {
    let wrapping_fits = match &new.key {
        SliceKey::Derived(_) => true,
        SliceKey::Wrapped { bytes, .. } => bytes.len() <= WRAPPED_KEY_BYTES_MAX,
    };
    let sensible = (1..=SLICE_BYTES_MAX).contains(&new.length)
        && new.sealed_length > 0
        && new.key.epoch() <= realm.epoch
        && wrapping_fits;
    require(sensible, Error::BadContent)?;
    Ok(Slice {
        object: new.object,
        offset: new.offset,
        length: new.length,
        sealed_length: new.sealed_length,
        codec: new.codec,
        key: new.key.clone(),
        references: 0,
    })
}

/// Whether the allocation is a live one of the session.
pub(super) fn owns(asker: &Asker, allocation: AllocationId) -> bool {
    asker.session.allocations.contains(&allocation)
}

#[derive(Clone, Copy)]
enum Claimed {
    Object(ObjectId),
    Slice(SliceId),
}

/// Burns an id of the session's own.
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
