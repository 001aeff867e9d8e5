//! Names and what they lead to: create, link, unlink, rmdir, rename.
//!
//! ```text
//!   entry    finding a name among the few that share its hash, adding, removing
//!   create   a new inode and its entry
//!   remove   entries that go, inodes that go with the last of them, orphans that are held open
//!   rename   all of rename(2) and its flags
//! ```
//!
//! What always holds: every inode but the root has as many entries as it has links (a directory
//! one, and its links are 2 and one for each subdirectory), or none and as many holders as orphan
//! rows; a directory's parent names it in one entry; following parents leads to the root.

mod create;
mod entry;
mod remove;
mod rename;

pub(crate) use create::{create, link};
pub(crate) use entry::lookup;
pub(crate) use remove::{drop_holder, release, remove_directory, unlink};
pub(crate) use rename::rename;
