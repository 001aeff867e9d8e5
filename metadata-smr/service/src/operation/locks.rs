//! Operations on locks that hold across mounts.

use crate::attributes::Credentials;
use crate::identity::InodeId;
use crate::locks::{LockKind, LockRange};
use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_bft::identity::SessionId;

/// What is to become of a range of locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum LockWish {
    /// The owner has no lock there any more.
    Unlock,
    /// A lock that others may have too.
    Shared,
    /// A lock that no other owner may have.
    Exclusive,
}

/// Takes, changes or gives up a lock. The session is part of the owner, so that no session can
/// touch another one's locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct LockRequest {
    /// The inode, of the realm that the session has mounted. Of whichever type it is.
    pub inode: InodeId,
    /// The kind.
    pub kind: LockKind,
    /// The kernel's number of the owner.
    pub owner: u64,
    /// The bytes; all of them for a kind without ranges.
    pub range: LockRange,
    /// The wish.
    pub wish: LockWish,
    /// The process.
    pub pid: u32,
    /// If something is in the way: `false` changes nothing; `true` queues the request. It is sent
    /// again, the same bytes, when the inode is in the [news](crate::query::Question::News), and
    /// keeps its place in the queue.
    pub wait: bool,
}

/// An owner does not wait for any lock of an inode and kind any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct StopWaiting {
    /// The inode.
    pub inode: InodeId,
    /// The kind.
    pub kind: LockKind,
    /// The kernel's number of the owner. If other threads of a process wait for other locks, their
    /// requests leave the queue too and are sent again.
    pub owner: u64,
}

/// Ends locks of an inode and kind that processes hold through any mount: a process hangs, or its
/// machine does. By the inode's owner or the superuser. The mounts learn of it by the news.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct EndLocks {
    /// On whose behalf.
    pub credentials: Credentials,
    /// The inode.
    pub inode: InodeId,
    /// The kind.
    pub kind: LockKind,
    /// Only those of this session's mount; `None`: of all.
    pub session: Option<SessionId>,
}
