//! The file system as callers see it: POSIX over ordered metadata and sealed slices.
//!
//! ```text
//!  open, create, release -- open -+              +- names -- cache, lookups
//!  lookup, mkdir, rename   - namespace ----------+
//!  readdir --------------- directory ------------+-------------> metadata (ordered)
//!  getattr, setattr ------ attributes -+                              ^
//!  getxattr, setxattr ---- extended ---+                              |
//!  read -- read -- chunk cache --------+-- node {dirty, frozen, content}
//!  write, fsync -- write -- budget ----+      +- commit -- slices (w acknowledgements)
//!                  +- durability, replay ----> journal (on this host)
//!  warm ------------------ bypasses the chunk cache ---------------^
//!  close -- quota: data that a quota refused waits, or is given up
//!  restore, purge -- trash
//!  lseek -- seek; fallocate -- allocate; copy_file_range -- clone_range
//! ```
//!
//! What always holds:
//! * **Data before metadata**: a commit names only slices that w clouds have acknowledged.
//! * **Never a false success**: flush, fsync and close return once written data is as safe as the
//!   mount's tier says, or with an error; data that could not be committed is kept, retried, and
//!   reported again.
//! * **One view**: all processes on this mount see a write, a new mode or a new name at once.
//! * **Bounded**: dirty bytes, cached attributes, names and content have limits; writers wait for
//!   memory, with a time limit.
//! * **A fenced mount reports it**: once another mount has taken over, every call fails with
//!   `ESTALE`.
//!
//! Inodes that are neither open nor dirty have no state beyond the caches, whose entries are valid
//! for a second. docs/SEMANTICS.md lists the POSIX behaviour, with examples that are tests.

mod attributes;
mod background;
mod cached_read;
mod chunk_cache;
mod data;
mod directory;
mod extended;
mod file_system;
mod files;
mod kernel_cache;
mod known;
mod names;
mod namespace;
mod open;
mod orphans;
mod read;
mod rescue;
mod seek;
mod services;
mod trash;
mod warm;
mod writeback;

pub use crate::error::VfsError;
pub use crate::slices::{CloudSlices, Packing, SliceStore, StoredSlice, Warmed, WrittenSlice};
pub use attributes::{AttributeChange, TimeChange, Usage};
pub use extended::SetMode;
#[cfg(any(test, feature = "decoders"))]
pub(crate) use extended::decoding as extended_decoding;
pub use file_system::{FileSystem, VfsStatus};
pub use files::{HandleId, OpenMode, QueuedFile};
pub use known::{CACHED_FOR, DirectoryEntry};
pub use namespace::RenameMode;
pub use open::OpenedFile;
pub use quorumfs_metadata::attributes::{Attributes, Detail, FileType, Timestamp};
pub use quorumfs_metadata::identity::{Cookie, InodeId};
pub use rescue::{RESCUE_DIRECTORY, Replayed};
pub use seek::Seek;
pub use services::{Caller, GroupSource, Tier, UnderOldEpochs, VfsOptions};
pub use trash::{InTrash, PURGED_AT_ONCE};
pub use writeback::{Allocation, Replay};
