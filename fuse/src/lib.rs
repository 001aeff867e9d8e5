//! The file system for the kernel: requests in, replies out, no decisions.
//!
//! `quorumfs-fuse` hands every request of the kernel to a task that calls
//! [`quorumfs_gateway::vfs::FileSystem`] and answers within a deadline. It mounts, unmounts, and
//! aborts a stuck connection, which would otherwise leave processes that cannot be killed.
//!
//! # Modules
//!
//! | Module | What it holds |
//! |---|---|
//! | `mount` | mounting with checks first, unmounting, waiting |
//! | `adapter` | each kernel request as a call of the file system |
//! | `extents` | requests about the extents of files |
//! | `data` | reads and writes |
//! | `locks` | locks of processes, and the signals that end their waiting |
//! | `serve` | a request while it is served: its task, its deadline, its answer |
//! | `kernel_cache` | what the kernel may cache, and how it is invalidated |
//! | `convert` | attributes, flags and errors, translated between the kernel and the file system |
//! | `watchdog` | requests under way, and the abort of a stuck connection |
//! | `mount_holders` | processes that still hold a mount that has left this process's tree |
//! | `mount_table` | what is mounted where, as the kernel reports it |
//! | [`terms`] | what a mount agrees on with the kernel |
//!
//! # Locks
//!
//! In an exclusive mount locks stay with the kernel. One that may share the volume handles them for
//! the kernel, since other mounts may lock the same files.

mod adapter;
mod convert;
mod data;
mod error;
mod extended;
mod extents;
mod kernel_cache;
mod locks;
mod mount;
mod mount_holders;
mod mount_table;
mod serve;
mod watchdog;

/// What a mount agrees on with the kernel: for benchmarks, which compare it with another file
/// system on the same terms.
pub mod terms {
    pub use crate::convert::absent;
    pub use crate::mount::options;
    pub use crate::serve::{
        BACKGROUND_MAX, GENERATION, KEEP_LISTING, VALID_FOR, WRITE_BYTES_MAX, capabilities,
    };
}

pub use error::MountError;
pub use mount::{MountConfig, Mounted, abort_at, check, mount};
pub use mount_holders::Holder;
