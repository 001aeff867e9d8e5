//! The trash: what lost its last name can be restored for some days.
//!
//! ```text
//!   unlink, rmdir, rename over ──► no name is left
//!        │  younger than a minute, a special file, no trash, servers full ──► deleted
//!        │  held open ──► a parting (TO/), until the last holder lets go
//!        ▼
//!   I/inode ──► TR/realm/time/inode, found by number (TI/) and by former directory (TD/)
//!        ├── restore: I/inode and an entry again
//!        ├── claim within a minute: I/inode and a parting again
//!        └── purge: on request, when the time is over, when space is short ──► the reap queue
//! ```
//!
//! The inode's row moves: so an operation that names the inode finds none, as after a deletion,
//! whatever it is and however late it arrives (a handle, a replayed commit, an attribute, a hard
//! link), and no other part of the service has to know of the trash. Extents and attributes stay
//! under their keys, which have the inode's number; so the slices stay referenced, and the clouds
//! keep their objects.
//!
//! Invariants:
//! * An inode has a row in `I/` or in `TR/`, never in both. Each row in `TR/` has one in `TI/` and
//!   one in `TD/`. The size of a realm's trash is the sum of what its inodes would charge.
//! * What is in the trash is charged to no user. Usage and trash together stay within the realm's
//!   limit: growth is never refused for the trash, and ticks purge what exceeds the limit.
//! * A directory in the trash is empty: what was removed from it names it, has its own row, and was
//!   removed before it. So purging what was removed first keeps the parents of what is left. A
//!   young directory is kept as well if something that was removed from it is.
//! * Nothing live lies below a directory in the trash, and an inode is restored into a live
//!   directory: so no restored directory can be its own descendant.
//!
//! Times are the agreed ones. Ticks purge a bounded number; the freeing of content, which may take
//! long, waits in the reap queue.
//!
//! | Module | What it does |
//! |---|---|
//! | `keep` | decides what goes to the trash, and puts it there |
//! | `purge` | what goes for good: on request, by ticks, for space |
//! | `ask` | questions |

mod ask;
mod keep;
mod purge;

pub(crate) use ask::{all, inside, one, size};
pub(crate) use keep::{keep_for, keeps, part, parted, put, queue_tail, take, take_open};
pub(crate) use purge::{next_deadline, purge, relieve, relieve_a_cloud, tick};

use crate::attributes::Credentials;
use crate::error::Error;
use crate::identity::{InodeId, RealmId, Uid};
use crate::row::{TrashPlace, Trashed, key};
use crate::rows::{Halt, Outcome, Rows};

/// The realms with a trash: there is one realm so far.
const REALMS: [RealmId; 1] = [RealmId::ROOT];

/// An inode in the trash and its place.
pub(crate) fn find(rows: &impl Rows, inode: InodeId) -> Outcome<(TrashPlace, Trashed)> {
    let place: TrashPlace = rows
        .find(&key::trash_place(inode))?
        .ok_or(Halt::Refused(Error::NotTrashed(inode)))?;
    let trashed = rows.expect_row(&key::trashed(place.realm, place.at, inode))?;
    Ok((place, trashed))
}

/// Whether `who` may see and restore it: its owner, the user who removed it, and the superuser.
pub(crate) fn may_see(trashed: &Trashed, who: &Credentials) -> bool {
    [Uid::ROOT, trashed.inode.uid, trashed.entry.by].contains(&who.uid)
}
