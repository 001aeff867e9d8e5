//! Calls on locks: taking and giving up those of processes, and looking at all of them.

use super::file_system::FileSystem;
use super::files::HandleId;
use super::locks::{Interruption, LockedBy, ProcessLock, TakenLock};
use super::services::{Caller, cancel_safe};
use crate::error::VfsError;
use async_recursion::async_recursion as boxed;
use quorumfs_bft::identity::SessionId;
use quorumfs_metadata::identity::{InodeId, InodeVersion};
use quorumfs_metadata::locks::{LockKind, LockRange};
use quorumfs_metadata::operation::LockWish;
use quorumfs_metadata::reply::ListedLock;
use quorumfs_metadata::row::key::LockPlace;

/// A lock that a process holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeldByProcess {
    /// Of this inode.
    pub inode: InodeId,
    /// The kind.
    pub kind: LockKind,
    /// The bytes.
    pub range: LockRange,
    /// Whether it is exclusive.
    pub exclusive: bool,
    /// The session of its mount.
    pub session: SessionId,
    /// The process, on the machine of that mount; 0 for the mount itself.
    pub pid: u32,
    /// How many requests it keeps waiting.
    pub waiting: u32,
}

/// Where the next page of a listing begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockCursor(LockPlace);

impl From<ListedLock> for HeldByProcess {
    fn from(listed: ListedLock) -> Self {
        Self {
            inode: listed.inode,
            kind: listed.kind,
            range: listed.lock.range,
            exclusive: listed.lock.exclusive,
            session: listed.lock.owner.session,
            pid: listed.lock.pid,
            waiting: listed.waiters,
        }
    }
}

impl FileSystem {
    /// Takes a lock of an open file, or gives it up (`fcntl` and `flock`). `owner` is the kernel's
    /// number of the owner. With `wait` it waits until nothing is in the way, or the interruption
    /// comes.
    ///
    /// # Errors
    /// `EAGAIN` if something is in the way, `EINTR` after an interruption, `ENOLCK` if there are
    /// too many locks, `EIO` if one was lost before.
    #[boxed]
    pub async fn lock(
        &self,
        handle: HandleId,
        (kind, owner): (LockKind, u64),
        (range, wish): (LockRange, LockWish),
        pid: u32,
        wait: Option<Interruption>,
    ) -> Result<TakenLock, VfsError> {
        let file = self.inner.files.handles.file(handle)?;
        file.keeps_locks()?;
        let lock = ProcessLock {
            inode: file.node.inode,
            handle,
            kind,
            owner,
            range,
            wish,
            pid,
        };
        self.inner.locks.lock(&lock, wait).await
    }

    /// The kernel has dropped its pages of a file, as [`TakenLock`] says.
    pub fn dropped_pages(&self, inode: InodeId, version: InodeVersion) {
        if let Some(node) = self.inner.files.node(inode) {
            node.state().dropped_pages(version);
        }
    }

    /// What is in the way of a lock.
    ///
    /// # Errors
    /// If the servers do not answer, or a lock was lost before.
    #[boxed]
    pub async fn lock_in_the_way(
        &self,
        handle: HandleId,
        (kind, owner): (LockKind, u64),
        (range, exclusive): (LockRange, bool),
    ) -> Result<Option<LockedBy>, VfsError> {
        let file = self.inner.files.handles.file(handle)?;
        file.keeps_locks()?;
        let lock = ProcessLock {
            inode: file.node.inode,
            handle,
            kind,
            owner,
            range,
            wish: match exclusive {
                true => LockWish::Exclusive,
                false => LockWish::Shared,
            },
            pid: 0,
        };
        self.inner.locks.in_the_way(&lock).await
    }

    /// A process has closed a descriptor of an open file: as [`FileSystem::flush`], and its `fcntl`
    /// locks of the file end, whatever becomes of what was written. Both run to their end.
    ///
    /// # Errors
    /// As [`FileSystem::flush`].
    #[boxed]
    pub async fn close_descriptor(&self, handle: HandleId, owner: u64) -> Result<(), VfsError> {
        if !self.may_be_shared() {
            // The kernel keeps the locks.
            return self.flush(handle).await;
        }
        let fs = self.clone();
        cancel_safe(async move {
            let inode = fs.inner.files.handles.file(handle)?.node.inode;
            let flushed = fs.flush(handle).await;
            fs.inner.locks.close_process(inode, owner).await;
            flushed
        })
        .await
    }

    /// The locks that the servers have: a page of them behind `after`, and where the next one
    /// begins, if there is one. Those of a mount that is alone are its own business.
    ///
    /// # Errors
    /// If the servers do not answer.
    #[boxed]
    pub async fn locks(
        &self,
        after: Option<LockCursor>,
    ) -> Result<(Vec<HeldByProcess>, Option<LockCursor>), VfsError> {
        let metadata = &self.inner.services.metadata;
        let (locks, next) = metadata.locks(after.map(|after| after.0)).await?;
        let locks = locks.into_iter().map(HeldByProcess::from).collect();
        Ok((locks, next.map(LockCursor)))
    }

    /// Ends all locks of a file that processes hold, through one mount or through any; their
    /// number. What was opened to take them is answered with `EIO` from then on.
    ///
    /// # Errors
    /// `EPERM` unless the caller owns the file or is the superuser; or if the servers do not
    /// answer.
    #[boxed]
    pub async fn end_locks(
        &self,
        caller: &Caller,
        inode: InodeId,
        session: Option<SessionId>,
    ) -> Result<u32, VfsError> {
        let services = &self.inner.services;
        let mut ended = 0_u32;
        // The end of a file a mount gives up by itself, unless it hangs; then it is named.
        let ends = session.map(|_| LockKind::Appends);
        for kind in [LockKind::Ranges, LockKind::Whole].into_iter().chain(ends) {
            let who = services.credentials(caller);
            let of_kind = services.metadata.end_locks(who, (inode, kind), session);
            ended = ended.saturating_add(of_kind.await?);
        }
        Ok(ended)
    }
}
