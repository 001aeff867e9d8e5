//! Locks across mounts: `fcntl` and `flock`.

mod queue;
mod table;

pub use queue::{Obstacle, in_the_way};
pub use table::{FileLock, LockGrant, LockKind, LockOwner, LockRange, apply, conflict};
