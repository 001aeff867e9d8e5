//! Which key epochs still seal.
//!
//! A member that is left out of a key epoch keeps the keys of those before. What is sealed under
//! those keys later it can read, wherever it gets the bytes from. So nothing new is accepted under
//! an older key epoch: the newest one seals, and the one before it for a short time more
//! ([`OLD_KEYS_TIME`]), since mounts have sealed and sent things meanwhile. The time is the agreed
//! one: it goes on while nothing is ordered, and if it jumps ahead, some things are sealed twice.
//!
//! Invariants:
//! * The check is made where something sealed is stored for the first time: slices, inline content,
//!   targets of links, extended attributes, new names. Slices that are moved or cloned keep their
//!   keys: no new content comes with them.
//! * Of several key epochs that begin shortly one after the other, only the last two seal.
//!
//! Failure modes: *a mount has not heard of the key epoch*. Its operation is refused with
//! [`Error::OldKeys`], which says what the newest is; it opens that and seals anew.

use crate::change::Change;
use crate::error::Error;
use crate::identity::{RealmEpoch, RealmId};
use crate::limits::OLD_KEYS_TIME;
use crate::row::{OldKeys, key};
use crate::rows::{Outcome, Rows, require};

/// Another key epoch has begun.
pub(super) fn replaced(change: &mut Change<'_, '_>, realm: RealmId) -> Outcome<()> {
    let until = change.time().plus(OLD_KEYS_TIME);
    change.put(key::old_keys(realm), &OldKeys { until })
}

/// Refuses what is sealed under a key epoch that does not seal any more, or has not begun.
pub(crate) fn require_sealing(
    change: &Change<'_, '_>,
    realm: RealmId,
    epoch: RealmEpoch,
) -> Outcome<()> {
    let current = change.realm(realm)?.epoch;
    if epoch == current {
        return Ok(());
    }
    require(epoch < current, Error::Invalid)?;
    let is_previous = epoch.0.checked_add(1) == Some(current.0);
    let seals = is_previous && {
        let end: Option<OldKeys> = change.find(&key::old_keys(realm))?;
        end.is_some_and(|end| change.time() <= end.until)
    };
    require(seals, Error::OldKeys { current })
}
