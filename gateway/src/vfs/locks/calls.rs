//! What calls ask for: to lock, to unlock, what is in the way.

use super::inode_locks::{Ask, LockedPlace};
use super::owner::{FileLocks, LockedFile};
use crate::error::VfsError;
use crate::vfs::files::HandleId;
use quorumfs_metadata::identity::{InodeId, InodeVersion};
use quorumfs_metadata::locks::{LockKind, LockRange};
use quorumfs_metadata::operation::LockWish;
use rustix::io::Errno;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Tells a process that waits for a lock that it was interrupted.
#[derive(Debug)]
pub struct Interruption(InterruptionState);

#[derive(Debug)]
enum InterruptionState {
    Never,
    Waiting(oneshot::Receiver<()>),
    Came,
}

/// A lock as it was granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TakenLock {
    /// Others have changed the file's content: the kernel has to drop its pages from before this
    /// version before the process goes on.
    pub drop_pages: Option<InodeVersion>,
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
        (sender, Self(InterruptionState::Waiting(receiver)))
    }

    /// One that never comes.
    pub(super) const fn never() -> Self {
        Self(InterruptionState::Never)
    }

    /// Waits until it has come. May be cancelled.
    pub(super) async fn wait(&mut self) {
        match &mut self.0 {
            InterruptionState::Never => std::future::pending().await,
            InterruptionState::Waiting(receiver) => {
                let _ = receiver.await;
                self.0 = InterruptionState::Came;
            }
            InterruptionState::Came => {}
        }
    }
}

/// What a process asks for, through an open file.
#[derive(Clone, Copy, Debug)]
pub(in crate::vfs) struct ProcessLock {
    pub(in crate::vfs) inode: InodeId,
    pub(in crate::vfs) handle: HandleId,
    pub(in crate::vfs) kind: LockKind,
    /// The kernel's number of the owner.
    pub(in crate::vfs) owner: u64,
    pub(in crate::vfs) range: LockRange,
    pub(in crate::vfs) wish: LockWish,
    pub(in crate::vfs) pid: u32,
}

impl ProcessLock {
    const fn place(&self) -> LockedPlace {
        (self.inode, self.kind)
    }

    const fn ask(&self) -> Ask {
        let owner = match self.kind {
            // It belongs to the open file, and the kernel uses its own number again.
            LockKind::Whole => self.handle.0,
            LockKind::Ranges | LockKind::Appends => self.owner,
        };
        Ask {
            owner,
            range: self.range,
            wish: self.wish,
            pid: self.pid,
        }
    }
}

impl FileLocks {
    /// Takes a lock, or gives it up.
    pub(in crate::vfs) async fn lock(
        self: &Arc<Self>,
        lock: &ProcessLock,
        wait: Option<Interruption>,
    ) -> Result<TakenLock, VfsError> {
        let ask = lock.ask();
        if lock.wish == LockWish::Unlock {
            if let Some(locked) = self.find(lock.place()) {
                let unlocked = self.unlock(&locked, ask).await;
                self.retire(locked);
                unlocked?;
            }
            return Ok(TakenLock::default());
        }
        let locked = self.locked(lock.place())?;
        let taken = self.take_and_refresh(&locked, ask, lock.handle, wait);
        let taken = taken.await;
        self.retire(locked);
        taken
    }

    async fn take_and_refresh(
        self: &Arc<Self>,
        locked: &Arc<LockedFile>,
        ask: Ask,
        handle: HandleId,
        mut wait: Option<Interruption>,
    ) -> Result<TakenLock, VfsError> {
        let inode = locked.place.0;
        self.finish_ending(locked, ask.owner).await?;
        let (had, wrote) = {
            let state = locked.state();
            let had = state.has_to_unlock(ask.owner, ask.range);
            (had, state.may_write(ask.owner, ask.range))
        };
        if ask.wish == LockWish::Shared && wrote {
            let commit = self.commit_before_unlock(inode);
            match &mut wait {
                None => commit.await?,
                Some(interruption) => tokio::select! {
                    committed = commit => committed?,
                    () = interruption.wait() => {
                        return Err(VfsError::refused("lock", Errno::INTR));
                    }
                },
            }
        }
        self.take(locked, ask, Some(handle), wait).await?;
        let refreshed = self.refresh(inode).await;
        if refreshed.is_err() && !had {
            // The process is told that it has no lock; one that it had before it keeps.
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
            // Also of names and of other files: a database looks for the journal of the last one
            // that held the lock.
            self.known.hear_all().await?;
            match self.known.confirmed_attributes(inode) {
                Some(attributes) => drop(self.files.seen(&attributes)),
                None => self.files.refresh_attributes(inode).await?,
            }
            if let Some(node) = self.files.node(inode) {
                taken.drop_pages = node.state().old_pages();
            }
        }
        Ok(taken)
    }

    /// What is in the way of a lock.
    pub(in crate::vfs) async fn in_the_way(
        &self,
        lock: &ProcessLock,
    ) -> Result<Option<LockedBy>, VfsError> {
        let (place, ask) = (lock.place(), &lock.ask());
        if self.known.may_be_shared() {
            self.known.revalidate().await;
        }
        let (here, at_servers) = match self.find(place) {
            None => (None, false),
            Some(locked) => {
                let known = {
                    let state = locked.state();
                    (state.in_the_way(ask), !state.may_decide())
                };
                self.retire(locked);
                known
            }
        };
        if let Some(lock) = here {
            return Ok(Some(LockedBy {
                range: lock.range,
                exclusive: lock.exclusive,
                pid: Some(lock.pid),
            }));
        }
        if !at_servers && !self.known.is_shared() {
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
