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
//!                  +- keep, replay ----------> journal (on this host)
//!  warm ------------------ past the chunk cache -------------------^
//!  close -- quota: what a commit was refused room for waits, or is given up
//!  lseek -- seek; fallocate -- allocate; copy_file_range -- clone_range
//! ```
//!
//! What always holds:
//! * **Data before metadata**: a commit names only what w clouds have acknowledged.
//! * **Never a false success**: flush, fsync and close return once what was written is as safe as
//!   the mount's tier says, or with an error; what could not be committed is kept, tried again, and
//!   reported again.
//! * **One view**: everybody on this mount sees a write, a new mode or a new name at once.
//! * **Bounded**: dirty bytes, cached attributes, names and content have limits; writers wait for
//!   room, and not for ever.
//! * **A fenced mount says so**: once another mount has taken over, everything answers `ESTALE`.
//!
//! Nothing is remembered of inodes that are neither open nor dirty beyond what the caches hold for
//! a second. docs/SEMANTICS.md says what POSIX behaviour follows, with examples that are tests.

mod access_times;
mod ahead;
mod allocate;
mod at_hand;
mod attributes;
mod background;
mod belief;
mod budget;
mod cache;
mod caller;
mod chunk_cache;
pub(crate) mod clock;
mod clone_range;
mod cloud_slices;
mod commit;
mod confirm;
mod content;
mod directory;
mod dirty;
mod error;
mod extended;
mod file_system;
mod generations;
mod handle;
mod keep;
mod kept_contents;
mod lookups;
mod names;
mod namespace;
mod newest_keys;
mod node;
mod open;
mod orphans;
mod outage;
mod packer;
mod quota;
mod read;
mod readahead;
mod replay;
mod seek;
mod slice_store;
mod uncut;
mod upload;
mod warm;
mod window;
mod write;

pub use allocate::Allocation;
pub use attributes::{AttributeChange, TimeChange, Usage};
pub use caller::{Caller, GroupSource};
pub(crate) use chunk_cache::CHUNK_BYTES;
pub use cloud_slices::CloudSlices;
pub use confirm::KEPT_FOR;
pub use content::StoredSlice;
pub use directory::DirectoryEntry;
pub use error::VfsError;
pub use extended::SetMode;
#[cfg(any(test, feature = "decoders"))]
pub(crate) use extended::decoding as extended_decoding;
pub use file_system::{FileSystem, InQueue, VfsOptions, VfsStatus};
pub use handle::{HandleId, OpenMode};
pub use keep::Tier;
pub use namespace::RenameMode;
pub use newest_keys::UnderOldEpochs;
pub use open::Opened;
pub use packer::Packing;
pub use quorumfs_metadata::attributes::{Attributes, Detail, FileType, Timestamp};
pub use quorumfs_metadata::identity::{Cookie, InodeId};
pub use replay::{RESCUE_DIRECTORY, Replay, Replayed};
pub use seek::Seek;
pub use slice_store::{SliceStore, WrittenSlice};
pub use warm::Warmed;
