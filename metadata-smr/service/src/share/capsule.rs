//! Capsules: links that need no server of the volume's.
//!
//! A client writes a *manifest* to a file: where on the clouds each object of what is shared is,
//! with leave to get it that a cloud checks by itself. Those who have the capsule read on, even if
//! the files are changed or removed. So what the manifest names must stay on the clouds, and the
//! servers do not know what it names. They retain all that is needed when the capsule is ordered,
//! the manifest too:
//!
//! ```text
//!   object   born ├──── needed ────┤ since: nothing refers to it
//!   capsule          point ├───────────────────────┤ its row goes
//!                          the object is retained ─┤
//! ```
//!
//! What always holds:
//! * **An object that is needed when a capsule is ordered is retained until the capsule's rows
//!   go**: it was born in the batch of the capsule's point or before, and its last reference went
//!   in that batch or later. Rows do not tell what came first in a batch. So what is created or
//!   dropped in the batch of the capsule is retained too, even if the capsule did not need it; and
//!   so is a pack that had no slice then, and came back to life.
//! * **It is retained no longer**: a capsule has an end, which is not far.
//! * **To know it takes one row**, however many capsules there are: of those that are not older
//!   than the object, the first one decides.
//!
//! A capsule whose principal was dismissed has ended, but a dismissal writes nothing here: so its
//! objects are retained until its user or an administrator ends it, or its time has come.
//!
//! What can go wrong: *a shard moves* to another cloud, or is put again under a later attempt. The
//! object is there, and the manifest names the old place. The other shards have to do. *A volume is
//! recovered from a copy*: points and births are 0 then, and each capsule of the copy retains all
//! of the copy's objects.

use crate::change::Change;
use crate::error::Error;
use crate::identity::ObjectId;
use crate::limits::{CAPSULE_SECONDS_MAX, MANIFEST_OBJECTS_MAX};
use crate::row::{Object, ShareIndexed, ShareWith, key};
use crate::rows::{Outcome, Rows, decode, require};
use quorumfs_bft::identity::{Nanos, Sequence, Time};

/// A capsule of this batch, as a row says it.
pub(super) fn begun(
    change: &Change<'_, '_>,
    manifest: &[ObjectId],
    expires: Option<Time>,
) -> Outcome<ShareWith> {
    let longest = Nanos::from_secs(CAPSULE_SECONDS_MAX);
    let latest = change.time().plus(longest);
    require(expires.is_some_and(|at| at <= latest), Error::Invalid)?;
    require(!manifest.is_empty(), Error::Invalid)?;
    let limit = MANIFEST_OBJECTS_MAX as u32;
    let fits = manifest.len() <= MANIFEST_OBJECTS_MAX;
    require(fits, Error::TooMany { limit })?;
    for id in manifest {
        let row: Option<Object> = change.find(&key::object(*id))?;
        // The shards of one that nothing refers to may be on their way out.
        let is_needed = row.is_some_and(|row| row.slices > 0);
        require(is_needed, Error::NoObject(*id))?;
    }
    Ok(ShareWith::Capsule {
        manifest: manifest.to_vec(),
        point: change.context().sequence,
    })
}

/// Whether a capsule needs an object that was created at `born` and has no reference since `since`.
pub(crate) fn capsule_needs(rows: &impl Rows, born: Sequence, since: Sequence) -> Outcome<bool> {
    let from = key::capsules_from(born);
    let Some((row_key, bytes)) = rows.scan(&key::capsule_points(), &from, 1)?.pop() else {
        return Ok(false);
    };
    let ShareIndexed = decode(&row_key, &bytes)?;
    let place = key::trailing_capsule(&row_key);
    Ok(place.is_none_or(|(point, _)| point <= since))
}
