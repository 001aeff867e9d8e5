//! The file system for the kernel: requests in, replies out, no decisions.
//!
//! `quorumfs-fuse` hands every request of the kernel to a task that calls
//! [`quorumfs_gateway::vfs::FileSystem`] and answers within a deadline. It mounts, unmounts, and
//! aborts a connection that got stuck rather than leave processes that nothing can kill.
//!
//! # The way through
//!
//! | Module | What it holds |
//! |---|---|
//! | `mount` | mounting with checks first, unmounting, waiting |
//! | `adapter` | each kernel request as a call of the file system |
//! | `extents` | requests about where files have bytes |
//! | `serve` | a request while it is served: its task, its deadline, its answer |
//! | `kept` | what the kernel may keep for long, and how it is taken back |
//! | `convert` | attributes, flags and errors between the two vocabularies |
//! | `watchdog` | requests under way, and the abort of a stuck connection |
//! | `held` | who still holds a mount that has left this process's tree |
//! | `mount_table` | what is mounted where, as the kernel tells it |
//! | [`null`] | names and lengths and nothing else: the ceiling that measurements compare with |
//!
//! # What it is not
//!
//! Locks stay with the kernel: a realm has one mount session, so locks that are local to the
//! mount are right.

mod adapter;
mod convert;
mod error;
mod extended;
mod extents;
mod held;
mod kept;
mod mount;
mod mount_table;
pub mod null;
mod null_tree;
mod serve;
mod watchdog;

pub use error::MountError;
pub use held::Holder;
pub use mount::{MountConfig, Mounted, abort_at, check, mount};
