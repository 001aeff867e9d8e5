//! Locks that hold across mounts, and those that wait for them.

use crate::identity::MountEpoch;
use crate::locks::FileLock;
use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_bft::identity::Time;

/// A lock. Inode, kind, first byte and owner are in the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct HeldLock {
    /// The mount that holds it: the lock counts for as long as its session has this one. A session
    /// may end a mount and begin another one before ticks have removed the locks of the first.
    pub mount: MountEpoch,
    /// The last byte.
    pub end: u64,
    /// Whether it is exclusive.
    pub exclusive: bool,
    /// The process.
    pub pid: u32,
}

/// A request that waits for a lock. Inode, kind and its place in the queue are in the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct LockWaiter {
    /// The mount, as in [`HeldLock`].
    pub mount: MountEpoch,
    /// The lock that it waits for.
    pub wish: FileLock,
    /// Since its turn has come: until when it may take the lock.
    pub turn: Option<LockTurn>,
}

/// The time that a waiter has to take a lock which nothing is in the way of any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct LockTurn {
    /// The end of it, by the lease clock.
    pub deadline: Time,
    /// When a tick has to look, by the agreed clock: the lease clock may be behind it.
    pub check: Time,
}

/// A waiter whose turn has come. The time when a tick has to look, and the waiter, are in the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct DueTurn;

/// A mount has locks of an inode and a kind, or waits for some. Both are in the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct LockedInode;

/// The number of a mount's [`LockedInode`] rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct LockedInodes {
    /// The number.
    pub count: u32,
}
