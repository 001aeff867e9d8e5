//! Locks of files, and writes at their end, so that they hold across all mounts of the volume.
//!
//! ```text
//!   process ──fcntl, flock──► LockedFile ──alone──► decided here
//!                                 │  └─────shared─► decided by the servers ──► refresh
//!                                 └ commit before an exclusive lock is given up
//!   process ──O_APPEND──────► EndOfFile ──shared──► the servers' lock of the end ──► write
//! ```
//!
//! While this mount is alone it decides by itself, and the servers know of no lock. Before it lets
//! another mount in it *hands over* what its processes hold and wait for. From then on the servers
//! decide: the same functions, and the queue is theirs. What the servers decide stays with them
//! until the last lock of the file is given up, also when the others have gone.
//!
//! | Module | Content |
//! |---|---|
//! | `inode_locks` | what this mount knows of the locks of one inode and kind |
//! | `owner` | [`FileLocks`]: taking, waiting, giving up |
//! | `closing` | what ends with an open file, or with a process |
//! | `sharing` | what is done before another mount is let in |
//! | `losing` | locks that are lost |
//! | `appends` | writing at the end of a file that others write to as well |
//! | `calls` | what the calls ask for |
//!
//! What always holds:
//! * **Who takes a lock sees what was written under it**, on whichever mount: an exclusive lock is
//!   given up after what was written to the file is committed, and a lock that is granted is
//!   answered after the news were asked for and the kernel has dropped what they name, and the
//!   pages of the file if it has changed.
//! * **One after the other**: the servers are asked about one inode and kind by one task at a time,
//!   so the copy here is what they have granted.
//! * **Nothing is granted here unless this mount acts as alone** ([`standing`]).
//! * **Waiting costs nothing.** A request that waits is repeated when the news name the inode, when
//!   a process of this mount gives something up there, and every ten seconds in case neither was
//!   heard. It ends at once when its process is interrupted.
//! * **A lock that is lost is told.** If the servers refuse to take over a lock, or a user has
//!   ended it, every call on the files through which it was taken answers `EIO` until they are
//!   closed.
//! * `fcntl` locks belong to a process and end when it closes any descriptor of the file; `flock`
//!   and open-file-description locks belong to an open file and end with it. The kernel tells both
//!   by `flush` and `release`. The number of an owner is the kernel's for `fcntl`, and the handle's
//!   for `flock`, since the kernel may use its own again before it has told us of the end.
//!
//! What can go wrong: a commit that fails keeps its lock, until it succeeds, the data is given up,
//! or the mount ends. A process that is killed while the servers do not answer ends when the
//! question does. Deadlocks of processes are not detected: `fcntl` does not answer `EDEADLK`.
//!
//! [`standing`]: super::known

mod appends;
mod calls;
mod closing;
mod inode_locks;
mod losing;
mod owner;
mod sharing;

pub(in crate::vfs) use calls::ProcessLock;
pub use calls::{Interruption, LockedBy, TakenLock};
pub(in crate::vfs) use owner::{FileLocks, spawn};
pub use quorumfs_metadata::locks::{LockKind, LockRange};
pub use quorumfs_metadata::operation::LockWish;
