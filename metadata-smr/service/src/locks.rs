//! Locks across mounts: `fcntl` and `flock`.

mod expire;
mod listing;
mod ordered;
mod queue;
mod stored;
mod table;

pub(crate) use expire::{next_deadline, reap, release_all, tick};
pub(crate) use listing::{blocker, list};
pub(crate) use ordered::{lock, stop_waiting};
pub use queue::{Obstacle, in_the_way};
pub use table::{FileLock, LockGrant, LockKind, LockOwner, LockRange, apply, conflict};
