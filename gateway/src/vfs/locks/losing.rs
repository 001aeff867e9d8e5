//! Locks that are lost: those that the servers did not take over, and those that a user has ended.
//!
//! A user who ends a lock (`quorumfs lease revoke`) supposes that its process hangs. The process
//! may go on all the same, and would write where another one has the lock now. So the mount answers
//! every call on the files through which the lock was taken with an error, until they are closed.
//!
//! Of an end the news tell, as of any change of the inode. The mount then asks which locks it has,
//! of each file at most twice a second.

use super::inode_locks::{Ask, LockedPlace};
use super::owner::{FileLocks, LockedFile, Turn};
use crate::error::VfsError;
use crate::vfs::files::Departure;
use crate::vfs::known::Invalidation;
use quorumfs_metadata::identity::InodeId;
use quorumfs_metadata::locks::LockKind;
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
                self.retire(locked);
                continue;
            }
            locked.wake();
            let held = {
                let state = locked.state();
                state.at_servers && state.count() > 0
            };
            if held && locked.place.1 != LockKind::Appends {
                self.doubtful.add(locked.place);
            }
            self.retire(locked);
        }
    }

    /// A lock is lost: its process learns of it by the next call on the file.
    pub(super) async fn lose(&self, _turn: &Turn<'_>, locked: &LockedFile, ask: &Ask) {
        let (inode, pid) = (locked.place.0, ask.pid);
        tracing::error!(%inode, pid, "a lock is lost: its process gets errors");
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
        self.give_up_written(inode);
        // What the kernel has of it is read without asking.
        self.known.drop_pages(inode);
        // It may have others there.
        let unlocked = self
            .services
            .metadata
            .lock(everything.request(locked.place, false))
            .await;
        if unlocked.is_err() {
            locked.state().note_unsure(ask.owner);
        }
        locked.wake();
    }

    /// Gives up what was written under a lost lock and is not committed: another process has the
    /// lock now. If others write the file through this mount as well, it cannot be told apart.
    fn give_up_written(&self, inode: InodeId) {
        let Some(node) = self.files.node(inode) else {
            return;
        };
        if self.files.handles.all_writers_lost(inode) {
            let mut state = node.state();
            let mut written = Departure::default();
            written.end = state.holds_written().then_some(0);
            self.writeback
                .lose(&node, &mut state, &written, &VfsError::LockLost);
            self.writeback.book(&mut state);
        }
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
            let known = locked.state().has(&ask) && !locked.state().is_unsure(ask.owner);
            if known && !own.iter().any(|lock| ask.is_granted_by(lock)) {
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
            let _ = tokio::time::timeout(20 * PAUSE, doubtful.some.notified()).await;
            let Some(locks) = weak.upgrade().filter(|it| !it.services.is_stopped()) else {
                return;
            };
            // News of turns and of lost locks have to arrive, though nothing may use the mount.
            if !locks.all().is_empty() {
                locks.known.keep_hearing();
            }
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
