//! Shards on clouds: the proof that a commit needs, and changes by completion, repair and scrubs.
//!
//! Acknowledgements and withdrawals are claims of their sender. A writer may complete objects of
//! its own session; everything else needs the right to reconcile. A withdrawal changes only the
//! claim: the shard keeps its place, so that a repair checks there first. An unfounded withdrawal
//! costs one check, and the next confirmation undoes it.
//!
//! That an object was *checked* is also a claim: of a principal with the right to reconcile about
//! another principal's object. Readers of a third principal rely on it, because their own check is
//! more expensive.

use super::bring_in::require_at_most;
use super::references::put_object;
use crate::change::{Asker, Change};
use crate::error::Error;
use crate::fleet::CloudState;
use crate::identity::{CloudIndex, ObjectId};
use crate::limits::{CHECKED_OBJECTS_MAX, CONFIRM_SHARDS_MAX, WITHDRAW_SHARDS_MAX};
use crate::operation::PlacedShard;
use crate::placement::{MovedClaim, Policy, Shard};
use crate::row::{Object, key};
use crate::rows::{Halt, Outcome, Rows, require};
use std::collections::{BTreeMap, BTreeSet};

/// Refuses unless the shards are on different clouds in different failure domains, as many as the
/// policy needs, and enough of them are acknowledged.
pub(super) fn check(
    change: &mut Change<'_, '_>,
    id: ObjectId,
    policy: &Policy,
    shards: &[Shard],
) -> Outcome<()> {
    let bad = || Error::BadPlacement(id);
    require(shards.len() == usize::from(policy.clouds()), bad())?;
    require(!shards.iter().any(|shard| shard.withdrawn), bad())?;
    let acknowledged = shards.iter().filter(|shard| shard.acknowledged).count();
    require(acknowledged >= usize::from(policy.write_quorum()), bad())?;
    for shard in shards {
        // A writer that has not learned of a change yet may still name a draining cloud.
        let is_spare = change.cloud_state(shard.cloud)? == CloudState::Spare;
        require(!is_spare && shard.coded_for.is_none(), bad())?;
        change.uses(shard.cloud)?;
    }
    check_spread(change, id, shards)
}

pub(super) fn check_spread(
    change: &mut Change<'_, '_>,
    id: ObjectId,
    shards: &[Shard],
) -> Outcome<()> {
    let bad = || Error::BadPlacement(id);
    let mut clouds: BTreeSet<CloudIndex> = BTreeSet::new();
    let mut domains: BTreeSet<String> = BTreeSet::new();
    for shard in shards {
        let domain = change
            .failure_domain(shard.cloud)?
            .ok_or(Halt::Refused(bad()))?;
        let apart = clouds.insert(shard.cloud) && domains.insert(domain);
        require(apart, bad())?;
    }
    Ok(())
}

pub(super) fn check_right(asker: &Asker, object: &Object) -> Outcome<()> {
    let own = object.writer == asker.caller.session;
    require(own || asker.rights.reconcile, Error::NoRight)
}

/// Records acknowledgements; returns the number of objects that this completes. Shards that have
/// moved are skipped: they were repaired or deleted in the meantime.
pub(crate) fn confirm(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    shards: &[PlacedShard],
) -> Outcome<u32> {
    let mut completed = 0_u32;
    change_claims(
        change,
        asker,
        (shards, CONFIRM_SHARDS_MAX),
        |row, placed| {
            row.acknowledge();
            // The first receipt of an attempt stays: later ones are compared with it.
            row.receipt = row.receipt.or(placed.receipt);
        },
        |before, after| {
            let completes = before.is_under_replicated() && !after.is_under_replicated();
            completed = completed.saturating_add(u32::from(completes));
        },
    )?;
    Ok(completed)
}

/// Records that objects match their writers' description. Deleted and already checked objects are
/// skipped.
pub(crate) fn mark_checked(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    objects: &[ObjectId],
) -> Outcome<()> {
    require(objects.is_empty() || asker.rights.reconcile, Error::NoRight)?;
    require_at_most(objects.len(), CHECKED_OBJECTS_MAX)?;
    for id in objects {
        let Some(mut object) = change.find::<Object>(&key::object(*id))? else {
            continue;
        };
        // A principal that vouched for its own objects could deceive every reader.
        require(object.principal != asker.number, Error::NoRight)?;
        if !object.checked {
            object.checked = true;
            change.put(key::object(*id), &object)?;
        }
    }
    Ok(())
}

/// Withdraws acknowledgements; returns the number of shards that had one. Shards that have moved
/// are skipped: they were restored in the meantime.
pub(crate) fn withdraw(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    shards: &[PlacedShard],
) -> Outcome<u32> {
    let mut withdrawn = 0;
    change_claims(
        change,
        asker,
        (shards, WITHDRAW_SHARDS_MAX),
        |row, _| row.withdraw(),
        |before, after| withdrawn += before.acknowledged().saturating_sub(after.acknowledged()),
    )?;
    Ok(u32::try_from(withdrawn).unwrap_or(u32::MAX))
}

/// Changes the claims of shards at the named places, and calls `changed` with each object before
/// and after.
fn change_claims(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    (shards, most): (&[PlacedShard], usize),
    claim: fn(&mut Shard, &PlacedShard),
    mut changed: impl FnMut(&Object, &Object),
) -> Outcome<()> {
    let limit = u32::try_from(most).unwrap_or(u32::MAX);
    require(shards.len() <= most, Error::TooMany { limit })?;
    let mut by_object: BTreeMap<ObjectId, Vec<&PlacedShard>> = BTreeMap::new();
    for shard in shards {
        by_object.entry(shard.object).or_default().push(shard);
    }
    for (id, placed) in by_object {
        let Some(before) = change.find::<Object>(&key::object(id))? else {
            continue;
        };
        check_right(asker, &before)?;
        let mut after = before.clone();
        for shard in placed {
            let index = usize::from(shard.shard.0);
            if shard.generation == before.generation
                && let Some(row) = after.shards.get_mut(index)
                && (row.cloud, row.attempt) == (shard.cloud, shard.attempt)
            {
                claim(row, shard);
            }
        }
        if after != before {
            put_object(change, id, Some(&before), &after)?;
            changed(&before, &after);
        }
    }
    Ok(())
}

/// Gives a shard a new place.
pub(crate) fn replace(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    placed: &PlacedShard,
    acknowledged: bool,
) -> Outcome<()> {
    let id = placed.object;
    let before: Object = change
        .find(&key::object(id))?
        .ok_or(Halt::Refused(Error::NoObject(id)))?;
    check_right(asker, &before)?;
    let mut after = before.clone();
    let row = after
        .shards
        .get_mut(usize::from(placed.shard.0))
        .ok_or(Halt::Refused(Error::Invalid))?;
    let fresh = placed.generation == before.generation
        && (row.cloud != placed.cloud || placed.attempt > row.attempt);
    require(fresh, Error::Changed)?;
    let claim = match acknowledged {
        true => MovedClaim::Acknowledged,
        false => MovedClaim::Awaited,
    };
    row.move_to(placed.cloud, placed.attempt, claim);
    row.receipt = placed.receipt;
    change.uses(placed.cloud)?;
    check_spread(change, id, &after.shards)?;
    put_object(change, id, Some(&before), &after)
}
