//! The file system as callers see it: POSIX over ordered metadata and sealed slices.
//!
//! ```text
//!  calls    data ── read, write, fsync, seek, …       names ── lookup, rename, readdir, open, …
//!                                                        └► attributes ── stat, setattr, xattr, …
//!  ────────────────────────────────────────────────────────────────────────────────────────────
//!  owners   read {chunks}    locks {of files, ends} ──► writeback {memory, window, journal}
//!             └────────► files {nodes, handles} ◄──────────┘
//!                            └► known {attributes, names, extents}
//!           services {volume, keys, servers, slices, options}
//! ```
//!
//! The owners have all state, each behind a surface of its own; an owner knows only those below it.
//! Calls own none: they check their arguments and stand on the owners. `file_system` holds the
//! owners together, `assemble` makes them, `background` looks after them, `kernel_cache` says what
//! the kernel may keep of what they show, and `rescue` saves what a crash left.
//! docs/architecture/gateway.md draws the arrows, and a test keeps them.
//!
//! | Part | Content |
//! |---|---|
//! | `services` | what all work with: the volume's keys, the servers, the slices; the caller |
//! | `shared` | what others share with this mount's person, as a directory of the root |
//! | `known` | what is known of metadata without asking |
//! | `files` | what is open, and what of it waits to be committed |
//! | `writeback` | from written bytes to committed content |
//! | `locks` | locks of files, and writes at their ends, across mounts |
//! | `read` | content, from memory or from slices, and ahead of the reader |
//! | `attributes`, `names`, `data`, `locking` | the calls |
//! | `linking` | where content lies, for links |
//! | `sharing` | sharing with a person: access control lists over a tree |
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

mod assemble;
mod attributes;
mod background;
mod data;
mod file_system;
mod files;
mod kernel_cache;
mod known;
mod linking;
mod locking;
mod locks;
mod names;
mod read;
mod rescue;
mod services;
mod shared;
mod sharing;
mod writeback;

pub use crate::error::VfsError;
pub use crate::slices::{CloudSlices, Packing, SliceStore, StoredSlice, Warmed, WrittenSlice};
#[cfg(any(test, feature = "decoders"))]
pub(crate) use attributes::decoding as extended_decoding;
pub use attributes::{AttributeChange, SetMode, TimeChange, Usage};
pub use file_system::{FileSystem, VfsStatus};
pub use files::{HandleId, OpenMode, QueuedFile};
pub use known::{CACHED_FOR, DirectoryEntry, Invalidation, Invalidations};
pub use linking::{ContentRun, ContentSource};
pub use locking::{HeldByProcess, LockCursor};
pub use locks::{Interruption, LockKind, LockRange, LockWish, LockedBy, TakenLock};
pub use names::{
    InTrash, OpenedFile, PURGED_AT_ONCE, RenameMode, RenamedInodes, is_temporary_name,
    temporary_name,
};
pub use quorumfs_metadata::attributes::{Attributes, Detail, FileType, Timestamp};
pub use quorumfs_metadata::identity::{Cookie, InodeId, InodeVersion};
pub use read::Seek;
pub use rescue::{RESCUE_DIRECTORY, Replayed};
pub use services::{Caller, GroupSource, Identities, Tier, UnderOldEpochs, VfsOptions};
pub use shared::{SHARED_NAME, SharedPlace};
pub use sharing::{Grants, KnownShare, NewSharing, Passage, Settled, Settling};
pub use writeback::{Allocation, Replay};
