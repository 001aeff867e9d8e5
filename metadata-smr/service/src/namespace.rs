//! Names and their inodes: create, link, unlink, rmdir, rename, restore.
//!
//! ```text
//!   entry    finding a name among the few that share its hash, adding, removing
//!   create   a new inode and its entry
//!   remove   entries; inodes that lose their last entry; orphans that are still open
//!   rename   all of rename(2) and its flags
//!   restore  an inode in the trash gets an entry again
//!   reseal   names get the key of the newest key epoch
//! ```
//!
//! Invariants: every inode but the root has as many entries as it has links (a directory has one,
//! and its links are 2 and one for each subdirectory), or none and as many orphan rows as holders.
//! A directory's parent names it in one entry. Following parents leads to the root.

mod create;
mod entry;
mod remove;
mod rename;
mod reseal;
mod restore;

pub(crate) use create::{create, link};
pub(crate) use entry::lookup;
pub(crate) use remove::{Freeing, drop_holder, expire, free, release, remove_directory, unlink};
pub(crate) use rename::rename;
pub(crate) use reseal::{begin as begin_reseal, reseal};
pub(crate) use restore::restore;
