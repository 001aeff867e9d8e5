//! An inode in the trash gets a name again.

use super::entry::{Adjustment, add, adjust, lookup};
use crate::attributes::{Access, Credentials, NameGenerations, Timestamp};
use crate::change::Change;
use crate::error::Error;
use crate::operation::Restore;
use crate::permission::check;
use crate::reply::StepDone;
use crate::row::InodeBody;
use crate::rows::{Outcome, Rows, require};
use crate::trash;

/// Restores an inode from the trash. A directory is empty, so its names are sealed under the
/// realm's key epoch from now on, as a new one's.
pub(crate) fn restore(
    change: &mut Change<'_, '_>,
    who: &Credentials,
    time: Timestamp,
    step: &Restore,
) -> Outcome<StepDone> {
    let parent_id = step.place.parent;
    let parent = change.directory(parent_id)?;
    check(&parent, who, Access::EXECUTE)?;
    let taken = lookup(change, &parent, &step.place)?.is_some();
    require(!taken, Error::Exists)?;
    require(parent.links > 0, Error::NotFound)?;
    check(&parent, who, Access::CHANGE_ENTRIES)?;
    let inode = step.inode;
    let (place, trashed) = trash::find(change, inode)?;
    require(trash::may_see(&trashed, who), Error::NotPermitted)?;
    require(place.realm == parent.realm, Error::CrossRealm)?;
    trash::take(change, inode, &place, &trashed)?;
    let mut row = trashed.inode;
    row.links = if row.is_directory() { 2 } else { 1 };
    let epoch = change.realm(row.realm)?.epoch;
    if let InodeBody::Directory {
        parent,
        generations,
        ..
    } = &mut row.node
    {
        *parent = parent_id;
        *generations = NameGenerations {
            current: epoch,
            previous: None,
        };
    }
    trash::queue_tail(change, inode, &row)?;
    change.save(inode, &mut row)?;
    let cookie = add(change, &step.place, inode, &row)?;
    let by = Adjustment {
        entries: 1,
        links: i32::from(row.is_directory()),
    };
    let parent = adjust(change, parent_id, time, by)?;
    Ok(StepDone::Linked {
        inode: row.attributes(inode),
        cookie,
        parent,
    })
}
