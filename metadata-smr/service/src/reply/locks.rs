//! Answers about locks.

use crate::identity::InodeId;
use crate::locks::{FileLock, LockKind, LockRange, Obstacle};
use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_bft::identity::SessionId;

/// What is in the way of a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct LockBlocker {
    /// The session of its owner.
    pub session: SessionId,
    /// The process.
    pub pid: u32,
    /// The bytes.
    pub range: LockRange,
    /// Whether it is exclusive.
    pub exclusive: bool,
    /// Whether its owner does not hold it, but has waited for it for longer.
    pub waits: bool,
}

impl From<Obstacle> for LockBlocker {
    fn from(Obstacle { lock, waits }: Obstacle) -> Self {
        Self {
            session: lock.owner.session,
            pid: lock.pid,
            range: lock.range,
            exclusive: lock.exclusive,
            waits,
        }
    }
}

/// A lock in a listing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct ListedLock {
    /// The inode.
    pub inode: InodeId,
    /// The kind.
    pub kind: LockKind,
    /// The lock.
    pub lock: FileLock,
    /// How many requests wait for it.
    pub waiters: u32,
}
