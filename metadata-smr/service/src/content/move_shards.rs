//! Moves shards of draining clouds to active ones, many in one operation.
//!
//! Only the place of a shard changes: its digest covers its header, which stays as it is. So a
//! process that moves shards can change no content, and what it claims about the new place is a
//! claim like any other confirmation.
//!
//! All moves of an object happen together, since its shards must stay in different failure
//! domains. Whatever does not fit any more is skipped: a shard that was repaired or moved in the
//! meantime, a target that was replaced, an object whose shards would share a domain. A later pass
//! finds those again. So an order whose answer was lost can be repeated.

use super::bring_in::require_at_most;
use super::placement::check_spread;
use super::references::put_object;
use crate::change::{Asker, Change};
use crate::error::Error;
use crate::fleet::CloudState;
use crate::identity::ObjectId;
use crate::limits::{MOVE_SHARDS_MAX, ROWS_WRITTEN_MAX};
use crate::operation::ShardMove;
use crate::row::{Drain, Object, key};
use crate::rows::{Halt, Outcome, Rows, require};
use std::collections::BTreeMap;

// In the worst case every shard is an object's own: its row and its places in queues.
const _: () = assert!(MOVE_SHARDS_MAX * 5 + 2 <= ROWS_WRITTEN_MAX);

/// Moves shards, and records how far the pass is; returns the number moved.
pub(crate) fn move_shards(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    moves: &[ShardMove],
    after: Option<ObjectId>,
) -> Outcome<u32> {
    require(asker.rights.reconcile, Error::NoRight)?;
    require_at_most(moves.len(), MOVE_SHARDS_MAX)?;
    let mut by_object: BTreeMap<ObjectId, Vec<&ShardMove>> = BTreeMap::new();
    for step in moves {
        by_object.entry(step.to.object).or_default().push(step);
    }
    let (mut shards, mut bytes) = (0_u32, 0_u64);
    for (id, steps) in by_object {
        let Some(before) = change.find::<Object>(&key::object(id))? else {
            continue;
        };
        let mut after = before.clone();
        let mut moved = 0;
        for step in steps {
            moved += u32::from(move_one(change, &mut after, step)?);
        }
        if moved == 0 {
            continue;
        }
        match check_spread(change, id, &after.shards) {
            Ok(()) => {}
            Err(Halt::Refused(_)) => continue,
            Err(halt) => return Err(halt),
        }
        put_object(change, id, Some(&before), &after)?;
        shards = shards.saturating_add(moved);
        let stored = u64::from(moved).saturating_mul(u64::from(after.shard_length));
        bytes = bytes.saturating_add(stored);
    }
    let mut drain: Drain = change.find(&key::drain())?.unwrap_or_default();
    drain.after = after;
    drain.shards = drain.shards.saturating_add(u64::from(shards));
    drain.bytes = drain.bytes.saturating_add(bytes);
    change.put(key::drain(), &drain)?;
    Ok(shards)
}

/// Moves one shard, unless it or its target is not what the mover saw.
fn move_one(change: &mut Change<'_, '_>, object: &mut Object, step: &ShardMove) -> Outcome<bool> {
    let to = &step.to;
    if to.generation != object.generation || change.cloud_state(to.cloud)? != CloudState::Active {
        return Ok(false);
    }
    let Some(row) = object.shards.get_mut(usize::from(to.shard.0)) else {
        return Ok(false);
    };
    let is_there = (row.cloud, row.attempt) == (step.from, step.from_attempt);
    if !is_there || to.cloud == row.cloud || to.attempt <= row.attempt {
        return Ok(false);
    }
    row.move_to(to.cloud, to.attempt, step.claim);
    row.receipt = to.receipt;
    Ok(true)
}
