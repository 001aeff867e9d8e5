//! Garbage: objects that nothing refers to, and the end of their rows.
//!
//! A collector deletes the shards of garbage on the clouds, then orders that the rows go:
//!
//! ```text
//! last reference dropped ──► queue of the unreferenced ──grace──► shards deleted ──► forget
//!                              │        ▲
//!                              └────────┘ a commit of the same session names the pack again
//! ```
//!
//! An object is *forgettable* once four things hold:
//! * It has no slice.
//! * Its allocation is closed: then no commit can name it, so it never gets a slice again.
//! * No retained point in the past needs it: none lies after the object's creation and before its
//!   last reference went.
//! * No [capsule](crate::share) needs it: none that lasts was ordered between the two, or in the
//!   batch of one of them.
//!
//! Each of the four is final: an allocation never opens again, and a new point or capsule is of
//! now, after the last reference went. A copy of the metadata is of a point that its maker does not
//! choose: the points are *open* from before the copy on, and narrowed to the copy's when it is
//! known. So there is no step that condemns an object first; a collector that found it forgettable
//! may delete its shards at any later time, die, and do it again. Objects that are not forgettable
//! are skipped, whatever the sender says.
//!
//! Failure mode: a put that a cloud executes after the forget leaves a shard without a row. The
//! sweep of listings finds it, by [`fates`].

use super::bring_in::require_at_most;
use crate::change::{Asker, Change};
use crate::error::Error;
use crate::identity::{AllocationId, ObjectId};
use crate::limits::{FORGET_OBJECTS_MAX, RETENTIONS_MAX};
use crate::reply::{Done, Fate, Garbage};
use crate::row::{Allocation, Counters, Object, Retention, RetentionKind, Unreferenced, key};
use crate::rows::{Halt, Outcome, Rows, decode, require};
use crate::share;
use quorumfs_bft::identity::{Nanos, Sequence};

/// Deletes the rows of forgettable objects; returns their number.
pub(crate) fn forget(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    objects: &[ObjectId],
) -> Outcome<u32> {
    require(asker.rights.reconcile, Error::NoRight)?;
    require_at_most(objects.len(), FORGET_OBJECTS_MAX)?;
    let mut forgotten = 0_u32;
    let retained = retained(change)?;
    for id in objects {
        let Some(garbage) = garbage(change, &retained, *id)? else {
            continue;
        };
        if garbage.is_forgettable() {
            change.delete(key::object(*id))?;
            change.delete(key::unreferenced(*id))?;
            forgotten = forgotten.saturating_add(1);
        }
    }
    Ok(forgotten)
}

/// What is known of an unreferenced object; `None` if it is referenced or gone.
pub(crate) fn garbage(
    rows: &impl Rows,
    retained: &[Retention],
    id: ObjectId,
) -> Outcome<Option<Garbage>> {
    let Some(queued) = rows.find::<Unreferenced>(&key::unreferenced(id))? else {
        return Ok(None);
    };
    let row: Object = rows.expect_row(&key::object(id))?;
    let at_a_point = retained.iter().any(|it| it.needs(row.born, queued.since));
    let by_a_capsule = share::capsule_needs(rows, row.born, queued.since)?;
    Ok(Some(Garbage {
        object: id,
        since: queued.at,
        open: is_open(rows, id.allocation)?,
        retained: at_a_point || by_a_capsule,
        row,
    }))
}

fn is_open(rows: &impl Rows, allocation: AllocationId) -> Outcome<bool> {
    let row = rows.find::<Allocation>(&key::allocation(allocation))?;
    Ok(row.is_some())
}

/// All retained points. One whose time is over counts until its row goes.
pub(crate) fn retained(rows: &impl Rows) -> Outcome<Vec<Retention>> {
    let numbered = numbered(rows)?;
    Ok(numbered
        .into_iter()
        .map(|(_, retention)| retention)
        .collect())
}

/// The same with their numbers.
pub(crate) fn numbered(rows: &impl Rows) -> Outcome<Vec<(u64, Retention)>> {
    let prefix = key::retentions();
    let mut found = Vec::new();
    for (row_key, bytes) in rows.scan(&prefix, &prefix, RETENTIONS_MAX)? {
        if let Some(number) = key::trailing_number(&row_key) {
            found.push((number, decode(&row_key, &bytes)?));
        }
    }
    Ok(found)
}

/// What the metadata know of ids that a cloud's listing showed.
pub(crate) fn fates(rows: &impl Rows, objects: &[ObjectId]) -> Outcome<Vec<Fate>> {
    require_at_most(objects.len(), FORGET_OBJECTS_MAX)?;
    let counters: Counters = rows.find(&key::counters())?.unwrap_or_default();
    let fate = |id: &ObjectId| {
        Ok(Fate {
            granted: id.allocation.0 < counters.next_allocation,
            open: is_open(rows, id.allocation)?,
            row: rows.find(&key::object(*id))?,
        })
    };
    objects.iter().map(fate).collect()
}

/// Retains the present point. Points whose time is over make room.
pub(crate) fn retain(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    kind: RetentionKind,
    open: bool,
    seconds: Option<u32>,
) -> Outcome<Done> {
    require(asker.rights.reconcile, Error::NoRight)?;
    let left = release_expired(change)?;
    let limit = RETENTIONS_MAX as u32;
    require(left < RETENTIONS_MAX, Error::TooMany { limit })?;
    let point = change.context().sequence;
    let now = change.time();
    let number = change.next(|counters| &mut counters.next_retention)?;
    let retention = Retention {
        kind,
        from: point,
        to: (!open).then_some(point),
        at: now,
        until: seconds.map(|seconds| now.plus(Nanos::from_secs(u64::from(seconds)))),
    };
    change.put(key::retention(number), &retention)?;
    Ok(Done::Retained { number, point })
}

/// Releases the points whose time is over; returns how many are left. A collection begins with it.
pub(crate) fn release_expired(change: &mut Change<'_, '_>) -> Outcome<usize> {
    let now = change.time();
    let mut left = 0;
    for (number, row) in numbered(change)? {
        if row.until.is_some_and(|until| until <= now) {
            change.delete(key::retention(number))?;
        } else {
            left += 1;
        }
    }
    Ok(left)
}

/// Releases retained points.
pub(crate) fn release(change: &mut Change<'_, '_>, asker: &Asker, number: u64) -> Outcome<Done> {
    require(asker.rights.reconcile, Error::NoRight)?;
    change.delete(key::retention(number))?;
    Ok(Done::Released)
}

/// Of open retained points keeps one. The same again is the same success.
pub(crate) fn narrow(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    number: u64,
    to: Sequence,
) -> Outcome<Done> {
    require(asker.rights.reconcile, Error::NoRight)?;
    let row_key = key::retention(number);
    let found = change.find::<Retention>(&row_key)?;
    let mut row = found.ok_or(Halt::Refused(Error::NotRetained))?;
    if (row.from, row.to) == (to, Some(to)) {
        return Ok(Done::Narrowed);
    }
    require(row.to.is_none(), Error::NotRetained)?;
    let exists = row.from <= to && to <= change.context().sequence;
    require(exists, Error::Invalid)?;
    (row.from, row.to, row.until) = (to, Some(to), None);
    change.put(row_key, &row)?;
    Ok(Done::Narrowed)
}
