//! Locks that are lost: those that the servers did not take over, and those that somebody has ended.
//!
//! Whoever ends a lock (`quorumfs lease revoke`) supposes that its process hangs. The process may go
//! on all the same, and would write where another one has the lock now. So the mount answers every
//! call on the files through which the lock was taken with an error, until they are closed.
//!
//! Of an end the news tell, as of any change of the inode. The mount then asks which locks it has,
//! of each file at most twice a second.

use super::inode_locks::{Ask, LockedPlace};
use super::owner::{FileLocks, LockedFile, Turn};
use crate::error::VfsError;
use crate::vfs::known::Invalidation;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// How long after some locks were asked about the next ones are.
const PAUSE: Duration = Duration::from_millis(500);

/// Files whose locks may have been ended.
#[derive(Debug, Default)]
pub(super) struct DoubtfulLocks {
    places: Mutex<BTreeSet<LockedPlace>>,
    some: Notify,
}

impl DoubtfulLocks {
    fn add(&self, place: LockedPlace) {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.insert(place);
        self.some.notify_one();
    }

    fn take(&self) -> BTreeSet<LockedPlace> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *places)
    }
}

impl FileLocks {
    /// Repeats the requests that wait for what these news name, and doubts the locks of it.
    pub(super) fn hear(&self, news: &Invalidation) {
        for locked in self.all() {
            let concerned = match news {
                Invalidation::Everything => true,
                Invalidation::Inodes(inodes) => inodes.contains(&locked.place.0),
                Invalidation::Pages(_) => false,
            };
            if !concerned {
                continue;
            }
            locked.wake();
            let state = locked.state();
            if state.at_servers && state.count() > 0 {
                self.doubtful.add(locked.place);
            }
        }
    }

    /// A lock is lost: its process learns of it by the next call on the file.
    pub(super) async fn lose(&self, _turn: &Turn<'_>, locked: &LockedFile, ask: &Ask) {
        let (inode, pid) = (locked.place.0, ask.pid);
        tracing::error!(%inode, pid, "a lock is lost; its process gets errors until it closes the file");
        self.lost.fetch_add(1, Ordering::Relaxed);
        let everything = Self::everything_of(ask.owner);
        {
            let mut state = locked.state();
            for handle in state.handles_of(ask.owner) {
                if let Ok(file) = self.files.handles.file(handle) {
                    file.lock_lost.store(true, Ordering::Release);
                }
            }
            state.granted(&everything);
        }
        // What the kernel has of it is read without asking.
        self.known.drop_pages(inode);
        // It may have others there.
        let unlocked = self
            .services
            .metadata
            .lock(everything.request(locked.place, false))
            .await;
        if unlocked.is_err() {
            locked.state().unsure(ask.owner);
        }
        locked.wake();
    }

    /// Finds out which locks of a file have been ended.
    async fn check(&self, locked: &LockedFile) -> Result<(), VfsError> {
        let turn = locked.turn.lock().await;
        let held = locked.state().all_held();
        if held.is_empty() || !locked.state().at_servers {
            return Ok(());
        }
        let own = self.services.metadata.own_locks(locked.place).await?;
        for ask in held {
            // The owner's first loss has taken its other locks along.
            if locked.state().has(&ask) && !own.iter().any(|lock| ask.is_granted_by(lock)) {
                self.lose(&turn, locked, &ask).await;
            }
        }
        Ok(())
    }
}

/// Looks after doubtful locks until the file system is shut down or dropped.
pub(super) fn spawn(locks: &Arc<FileLocks>) {
    let (weak, doubtful) = (Arc::downgrade(locks), locks.doubtful.clone());
    tokio::spawn(async move {
        loop {
            // Once in a while, since the file system may be dropped.
            let _ = tokio::time::timeout(60 * PAUSE, doubtful.some.notified()).await;
            let Some(locks) = weak.upgrade().filter(|it| !it.services.is_stopped()) else {
                return;
            };
            for place in doubtful.take() {
                let Some(locked) = locks.find(place) else {
                    continue;
                };
                if let Err(error) = locks.check(&locked).await {
                    tracing::debug!(%error, "which locks have been ended is not known");
                    if !matches!(error, VfsError::Fenced) {
                        doubtful.add(place);
                    }
                }
                locks.retire(locked);
            }
            drop(locks);
            tokio::time::sleep(PAUSE).await;
        }
    });
}
