//! What is open, and what of it waits to be committed: the state of files, without the work on it.
//!
//! ```text
//!  handles ──► node {dirty, early, frozen, pending; base, content}  ◄── one for each inode that
//!  handles ──► directory {listing}                                      is open or has something
//!  gone, specials: inodes without a name        locks: open or unlink   to commit
//! ```
//!
//! What always holds:
//! * **One node for an inode**, found in the table while it is open or dirty; so all processes on
//!   this mount see the same file.
//! * **What callers see is [`Files::seen`]**: committed attributes with pending changes and times
//!   of access over them, the newest that is known.
//! * **Locks are taken in one order**: namespace, content of a node, the table, state of a node.
//!
//! | Module | Content |
//! |---|---|
//! | `owner` | [`Files`]: the table of nodes, and the view of an inode |
//! | `node` | one inode |
//! | `dirty`, `early_upload` | its runs that are not committed |
//! | `commit_state` | how far its commit has come |
//! | `full` | its commit that a quota refused |
//! | `handle`, `readahead` | open files and directories, and how they are read |
//! | `extents` | asking where a file's bytes lie |
//! | `passes` | listing a directory whose names are resealed meanwhile |
//! | `gone` | inodes that lost their names |
//! | `locks` | locks that keep opening and unlinking apart |
//! | `access_times` | times of access that the servers do not have yet |

mod access_times;
mod commit_state;
mod dirty;
mod early_upload;
mod extents;
mod full;
mod gone;
mod handle;
mod locks;
mod node;
mod owner;
mod passes;
mod readahead;

#[cfg(test)]
pub(in crate::vfs) use access_times::tests::file as file_attributes;
pub(in crate::vfs) use dirty::{DirtyRuns, FrozenRuns, RUN_BYTES_MAX, part_of};
pub(in crate::vfs) use early_upload::EarlyUpload;
pub(in crate::vfs) use handle::{DirectoryHandle, FileHandle, Listing, Prefetcher};
pub use handle::{HandleId, OpenMode};
pub(in crate::vfs) use node::{Departure, Node, NodeState, Pending};
pub(in crate::vfs) use owner::Files;
pub use owner::QueuedFile;
