//! The calls: to lock, to unlock, to ask.

use super::inode_locks::{Ask, LockedPlace};
use super::owner::{FileLocks, LockedFile};
use crate::error::VfsError;
use crate::vfs::file_system::FileSystem;
use crate::vfs::files::HandleId;
use async_recursion::async_recursion as boxed;
use quorumfs_metadata::identity::InodeId;
use quorumfs_metadata::locks::{LockKind, LockRange};
use quorumfs_metadata::operation::LockWish;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Tells a process that waits for a lock that it was interrupted.
#[derive(Debug)]
pub struct Interruption(Pending);

#[derive(Debug)]
enum Pending {
    Never,
    Waiting(oneshot::Receiver<()>),
    Came,
}

/// A lock as it was granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TakenLock {
    /// Others have changed the file's content: the kernel has to drop its pages before the process
    /// goes on.
    pub drop_pages: bool,
}

/// What is in the way of a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockedBy {
    /// The bytes.
    pub range: LockRange,
    /// Whether it is exclusive.
    pub exclusive: bool,
    /// The process, if it is on this mount.
    pub pid: Option<u32>,
}

impl Interruption {
    /// One that comes when something is sent, or the sender is dropped.
    #[must_use]
    pub fn new() -> (oneshot::Sender<()>, Self) {
        let (sender, receiver) = oneshot::channel();
        (sender, Self(Pending::Waiting(receiver)))
    }

    /// One that never comes.
    pub(super) const fn never() -> Self {
        Self(Pending::Never)
    }

    /// Waits until it has come. May be cancelled.
    pub(super) async fn wait(&mut self) {
        match &mut self.0 {
            Pending::Never => std::future::pending().await,
            Pending::Waiting(receiver) => {
                let _ = receiver.await;
                self.0 = Pending::Came;
            }
            Pending::Came => {}
        }
    }
}

/// The number of the owner of a lock.
const fn number(kind: LockKind, handle: HandleId, owner: u64) -> u64 {
    match kind {
        // It belongs to the open file, and the kernel uses its own number again.
        LockKind::Whole => handle.0,
        LockKind::Ranges | LockKind::Appends => owner,
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
    pub async fn lock(
        &self,
        handle: HandleId,
        (kind, owner): (LockKind, u64),
        (range, wish): (LockRange, LockWish),
        pid: u32,
        wait: Option<Interruption>,
    ) -> Result<TakenLock, VfsError> {
        let inner = &self.inner;
        let file = inner.files.handles.file(handle)?;
        file.keeps_locks()?;
        let ask = Ask {
            owner: number(kind, handle, owner),
            range,
            wish,
            pid,
        };
        let place = (file.node.inode, kind);
        if wish == LockWish::Unlock {
            if let Some(locked) = inner.locks.find(place) {
                inner.locks.unlock(&locked, ask).await?;
                inner.locks.retire(locked);
            }
            return Ok(TakenLock::default());
        }
        let locked = inner.locks.locked(place)?;
        let taken = inner.locks.lock(&locked, ask, handle, wait).await;
        inner.locks.retire(locked);
        taken
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
        let inner = &self.inner;
        let file = inner.files.handles.file(handle)?;
        file.keeps_locks()?;
        let ask = Ask {
            owner: number(kind, handle, owner),
            range,
            wish: match exclusive {
                true => LockWish::Exclusive,
                false => LockWish::Shared,
            },
            pid: 0,
        };
        inner.locks.in_the_way((file.node.inode, kind), &ask).await
    }

    /// A process has closed a descriptor of an open file: its `fcntl` locks of the file end. Called
    /// for each `close`, after [`FileSystem::flush`].
    ///
    /// # Errors
    /// If the handle is no file's.
    #[boxed]
    pub async fn end_process_locks(&self, handle: HandleId, owner: u64) -> Result<(), VfsError> {
        let inner = &self.inner;
        let inode = inner.files.handles.file(handle)?.node.inode;
        inner.locks.close_process(inode, owner).await;
        Ok(())
    }
}

impl FileLocks {
    async fn lock(
        self: &Arc<Self>,
        locked: &Arc<LockedFile>,
        ask: Ask,
        handle: HandleId,
        wait: Option<Interruption>,
    ) -> Result<TakenLock, VfsError> {
        let inode = locked.place.0;
        let gives = ask.wish == LockWish::Shared && locked.state().may_write(ask.owner, ask.range);
        if gives {
            self.commit_before_unlock(inode).await?;
        }
        self.take(locked, ask, Some(handle), wait).await?;
        let refreshed = self.refresh(inode).await;
        if refreshed.is_err() {
            // The process is told that it has no lock.
            let unlock = Ask {
                wish: LockWish::Unlock,
                ..ask
            };
            self.take(locked, unlock, None, None).await?;
        }
        refreshed
    }

    /// What was written under the lock before is to be seen now.
    async fn refresh(&self, inode: InodeId) -> Result<TakenLock, VfsError> {
        let mut taken = TakenLock::default();
        if self.known.is_shared() {
            self.files.refresh_attributes(inode).await?;
            if let Some(node) = self.files.node(inode) {
                taken.drop_pages = std::mem::take(&mut node.state().pages_mixed);
            }
        }
        Ok(taken)
    }

    async fn in_the_way(
        &self,
        place: LockedPlace,
        ask: &Ask,
    ) -> Result<Option<LockedBy>, VfsError> {
        if self.known.may_be_shared() {
            self.known.revalidate().await;
        }
        let locked = self.find(place);
        let here = locked.as_ref().and_then(|it| it.state().in_the_way(ask));
        if let Some(lock) = here {
            return Ok(Some(LockedBy {
                range: lock.range,
                exclusive: lock.exclusive,
                pid: Some(lock.pid),
            }));
        }
        if !locked.is_some_and(|it| it.state().at_servers) && !self.known.is_shared() {
            return Ok(None);
        }
        let exclusive = ask.wish == LockWish::Exclusive;
        let asked = (ask.owner, ask.range, exclusive);
        let found = self.services.metadata.lock_in_the_way(place, asked).await?;
        Ok(found.map(|lock| LockedBy {
            range: lock.range,
            exclusive: lock.exclusive,
            pid: None,
        }))
    }
}
