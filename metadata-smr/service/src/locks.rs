//! Locks across mounts: `fcntl` and `flock`.
//!
//! Processes on several mounts of a volume lock the same files, so the servers say who has a lock.
//! An owner is a session and the number that its kernel gives to a process's or an open file's
//! locks; a lock is a range of bytes, or the whole file for `flock`, of an inode. A mount that is
//! alone asks the servers for nothing and keeps a table of its own, with the same functions.
//!
//! ```text
//!   Lock ── nothing in the way ──► Locked: rows K/
//!     │
//!     ├─ in the way, wait: no ──► Blocked, and nothing is written
//!     └─ in the way, wait: yes ─► Blocked, and a row KW/ is its place in the queue
//!                                       │ an unlock, a downgrade, the end of a mount
//!                                       ▼
//!          its turn: noted in the change log ──bell──► the same Lock again ──► Locked
//!                                       │ 3 s of the lease clock, and it was not asked again
//!                                       ▼
//!                        out of the queue, and the next one has its turn
//! ```
//!
//! | Module | Content |
//! |---|---|
//! | `table` | what conflicts, and what is held after a grant or an unlock |
//! | `queue` | what a request waits for, and why that is no deadlock |
//! | `stored` | the rows |
//! | `ordered` | the operations |
//! | `expire` | what goes by itself |
//! | `listing` | the questions |
//!
//! What always holds:
//! * Two locks of mounts that live never conflict.
//! * First come, first served: what is asked for is granted if nothing that is held, and nothing
//!   that was asked for earlier and waits, conflicts with it. `queue` has the one exception.
//! * A lock and a waiter carry the number of their mount, and count while their session has that
//!   mount. So all of them end with it, in a row or two; ticks remove the rows later, by the list
//!   in `KO/`. A change of the mount's mode changes nothing.
//! * When nothing is in a waiter's way any more, its inode is in the news of its mount, if that
//!   shares. A gateway repeats by itself the requests that wait for an inode when one of its owners
//!   there gives something up: it unlocks what it holds or takes it shared, has to wait for another
//!   mode of a whole lock, or stops waiting. The news does not tell it of that: then its cache of a
//!   file would end with each lock that one of its processes hands to another.
//! * A waiter that can go on and does not is dropped after 3 s of the lease clock, by the next
//!   operation on that inode or by a tick. So one that hangs holds up others for a bounded time. It
//!   can ask again, and is at the end of the queue then. One that has to wait costs nothing.
//! * What was changed before a lock is granted is told to who has it: the grant rings a bell that
//!   is owed, so the news that are asked for after it leave nothing out.
//! * The owner of a file, and the superuser, may end its locks. The inode is in the news then, and
//!   a mount that has lost a lock finds that out by a question about its locks.
//! * All locks and waiters of an inode and kind are read by each operation on them, so their
//!   numbers are bounded, and so is the number of inodes of a mount. What exceeds that is refused
//!   with `LimitReached`, which is `ENOLCK`; also an unlock in a full table that leaves two parts
//!   of a lock. Any other unlock succeeds, also of an inode that is gone.
//!
//! `flock` changes a lock as Linux does: if another one is in the way, the old lock is given up
//! before the wait begins, so that two readers which both want to write do not wait for each other.
//! `fcntl` keeps the old lock. An attempt that does not wait keeps it in both cases.
//!
//! What can go wrong: two owners that each hold what the other one wants wait until one of them is
//! interrupted; the servers look for no deadlocks. Who may lock a file is for the gateway to say,
//! from how it was opened: a member that lies can lock what it may not read, as it can hold any
//! file open. A lock is no fence: a mount that was suspended learns that it has lost its locks when
//! its next operation is refused.
//!
//! Source: `fcntl(2)`, `flock(2)`. The queue and the repeated request are those of NFSv4.1 (RFC
//! 8881, sections 9.6 and 20.11), where the server may keep a place for a client that is told.

mod expire;
mod listing;
mod ordered;
mod queue;
mod stored;
mod table;

pub(crate) use expire::{next_deadline, reap, release_all, tick};
pub(crate) use listing::answer;
pub(crate) use ordered::{end, lock, stop_waiting};
pub use queue::{LockQueue, Obstacle};
pub use table::{FileLock, LockGrant, LockKind, LockOwner, LockRange, apply, conflict};
