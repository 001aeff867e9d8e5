//! The owner of this mount's locks: taking, waiting, giving up.

use super::appends::EndsOfFiles;
use super::calls::Interruption;
use super::inode_locks::{Ask, Decision, InodeLocks, LockedPlace};
use super::losing::{self, DoubtfulLocks};
use crate::error::VfsError;
use crate::vfs::files::{Files, HandleId};
use crate::vfs::known::KnownMetadata;
use crate::vfs::services::{Services, cancel_safe};
use crate::vfs::writeback::Writeback;
use quorumfs_metadata::identity::InodeId;
use quorumfs_metadata::limits::LOCKED_INODES_MAX;
use quorumfs_metadata::locks::{LockKind, LockRange};
use quorumfs_metadata::operation::{LockWish, StopWaiting};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How often a request that waits is repeated, in case the news of its turn were not heard.
const AGAIN_AFTER: Duration = Duration::from_secs(10);

/// The locks of one inode and kind, and the right to ask the servers about them.
pub(super) struct LockedFile {
    pub(super) place: LockedPlace,
    /// Held while the servers are asked.
    pub(super) turn: tokio::sync::Mutex<()>,
    state: Mutex<InodeLocks>,
    /// Something may have been given up.
    changed: Notify,
}

/// The right to ask the servers about the locks of one inode and kind.
pub(super) type Turn<'t> = tokio::sync::MutexGuard<'t, ()>;

/// See the module of the wing.
pub(in crate::vfs) struct FileLocks {
    pub(super) services: Arc<Services>,
    pub(super) known: Arc<KnownMetadata>,
    pub(super) files: Arc<Files>,
    pub(super) writeback: Arc<Writeback>,
    inodes: Mutex<BTreeMap<LockedPlace, Arc<LockedFile>>>,
    pub(super) ends: EndsOfFiles,
    pub(super) doubtful: Arc<DoubtfulLocks>,
    /// Since when another mount waits for this one to share.
    pub(super) sharing: Mutex<Option<Instant>>,
    /// Locks that were lost.
    pub(super) lost: AtomicU64,
}

impl LockedFile {
    fn new(place: LockedPlace) -> Self {
        Self {
            place,
            turn: tokio::sync::Mutex::default(),
            state: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// The short lock: never held across an await.
    pub(super) fn state(&self) -> MutexGuard<'_, InodeLocks> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the requests that wait here repeated.
    pub(super) fn wake(&self) {
        self.changed.notify_waiters();
    }
}

impl FileLocks {
    pub(in crate::vfs) fn new(
        services: Arc<Services>,
        known: Arc<KnownMetadata>,
        files: Arc<Files>,
        writeback: Arc<Writeback>,
    ) -> Arc<Self> {
        Arc::new(Self {
            services,
            known,
            files,
            writeback,
            inodes: Mutex::default(),
            ends: EndsOfFiles::default(),
            doubtful: Arc::default(),
            sharing: Mutex::default(),
            lost: AtomicU64::new(0),
        })
    }

    fn inodes(&self) -> MutexGuard<'_, BTreeMap<LockedPlace, Arc<LockedFile>>> {
        self.inodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The locks of an inode and kind, new ones if there were none. There are no more than the
    /// servers would take over.
    pub(super) fn locked(&self, place: LockedPlace) -> Result<Arc<LockedFile>, VfsError> {
        let mut inodes = self.inodes();
        if let Some(locked) = inodes.get(&place) {
            return Ok(locked.clone());
        }
        if inodes.len() >= LOCKED_INODES_MAX as usize {
            return Err(VfsError::refused("lock", Errno::NOLCK));
        }
        let locked = Arc::new(LockedFile::new(place));
        inodes.insert(place, locked.clone());
        Ok(locked)
    }

    /// The locks of an inode and kind, if there are any.
    pub(super) fn find(&self, place: LockedPlace) -> Option<Arc<LockedFile>> {
        self.inodes().get(&place).cloned()
    }

    /// All that there are.
    pub(super) fn all(&self) -> Vec<Arc<LockedFile>> {
        self.inodes().values().cloned().collect()
    }

    /// How many locks are held through this mount.
    pub(in crate::vfs) fn count(&self) -> usize {
        let counts = self.inodes();
        let counts = counts.values().map(|locked| locked.state().count());
        counts.sum()
    }

    /// Locks that were lost.
    pub(in crate::vfs) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Forgets what has no locks any more.
    pub(super) fn retire(&self, locked: Arc<LockedFile>) {
        let mut inodes = self.inodes();
        // One is in the table, and one is the caller's.
        if Arc::strong_count(&locked) <= 2 && locked.state().is_idle() {
            inodes.remove(&locked.place);
        }
        // Under the lock: of two that let go at the same time, the second one sees it.
        drop(locked);
        drop(inodes);
    }

    /// Takes a lock, or gives it up, for an owner that locks through `handle`; waits for it until
    /// the process is interrupted, if it can be.
    pub(super) async fn take(
        self: &Arc<Self>,
        locked: &Arc<LockedFile>,
        ask: Ask,
        handle: Option<HandleId>,
        mut interruption: Option<Interruption>,
    ) -> Result<(), VfsError> {
        let wait = interruption.is_some();
        loop {
            let changed = locked.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.known.may_be_shared() {
                // One that is alone may have been recalled; and news tell of its turn.
                self.known.keep_hearing();
                self.known.revalidate().await;
            }
            let (this, of) = (self.clone(), locked.clone());
            let granted = cancel_safe(async move {
                let turn = of.turn.lock().await;
                this.attempt(&turn, &of, &ask, handle, wait).await
            });
            if granted.await? {
                return Ok(());
            }
            let Some(interruption) = &mut interruption else {
                return Err(VfsError::refused("lock", Errno::AGAIN));
            };
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep(AGAIN_AFTER) => {}
                () = interruption.wait() => {
                    // The servers may have granted it when they took over the queue.
                    if locked.state().has(&ask) {
                        continue;
                    }
                    self.stop_waiting(locked, ask);
                    return Err(VfsError::refused("lock", Errno::INTR));
                }
            }
            if self.services.is_stopped() {
                return Err(VfsError::Fenced);
            }
        }
    }

    /// Asks once. Returns whether it is so now.
    pub(super) async fn attempt(
        &self,
        turn: &Turn<'_>,
        locked: &LockedFile,
        ask: &Ask,
        handle: Option<HandleId>,
        wait: bool,
    ) -> Result<bool, VfsError> {
        if !locked.state().at_servers {
            if let Some(decision) = self.decide_alone(locked, ask, handle, wait) {
                return decision;
            }
            self.hand_over(turn, locked).await?;
        }
        let (inode, kind) = locked.place;
        let answer = self
            .services
            .metadata
            .lock(ask.request((inode, kind), wait))
            .await;
        let mut state = locked.state();
        match answer {
            Ok(None) => {
                let gives = state.has_to_unlock(ask.owner, ask.range);
                state.granted(ask);
                if ask.wish != LockWish::Unlock {
                    state.uses(ask.owner, handle);
                }
                drop(state);
                if gives && ask.wish != LockWish::Exclusive {
                    locked.wake();
                }
                Ok(true)
            }
            Ok(Some(_)) => {
                let gave = wait && kind == LockKind::Whole && state.concerns(ask.owner);
                if wait {
                    state.blocked(kind, ask);
                }
                drop(state);
                if gave {
                    locked.wake();
                }
                Ok(false)
            }
            Err(error) => {
                if !matches!(error, VfsError::Refused { .. } | VfsError::Fenced) {
                    state.note_unsure(ask.owner);
                    state.uses(ask.owner, handle);
                }
                drop(state);
                // It may have been given up, and the servers tell this mount of it by no news.
                locked.wake();
                Err(error)
            }
        }
    }

    /// Decides without the servers, if this mount acts as alone.
    fn decide_alone(
        &self,
        locked: &LockedFile,
        ask: &Ask,
        handle: Option<HandleId>,
        wait: bool,
    ) -> Option<Result<bool, VfsError>> {
        let mut state = locked.state();
        if self.known.is_shared() || !state.may_decide() {
            return None;
        }
        let before = state.count_of(ask.owner);
        let has = state.has_to_unlock(ask.owner, ask.range);
        let decision = state.decide(locked.place.1, ask, wait);
        if decision == Decision::Granted && ask.wish != LockWish::Unlock {
            state.uses(ask.owner, handle);
        }
        // Only if something was given up: the one that waits would wake itself otherwise.
        let gave = match decision {
            Decision::Granted => has && ask.wish != LockWish::Exclusive,
            Decision::Blocked(_) | Decision::Full => state.count_of(ask.owner) < before,
        };
        drop(state);
        if gave {
            locked.wake();
        }
        Some(match decision {
            Decision::Granted => Ok(true),
            Decision::Blocked(_) => Ok(false),
            Decision::Full => Err(VfsError::refused("lock", Errno::NOLCK)),
        })
    }

    /// A process waits no longer. It need not wait for the servers to know.
    fn stop_waiting(self: &Arc<Self>, locked: &Arc<LockedFile>, ask: Ask) {
        let (this, locked) = (self.clone(), locked.clone());
        tokio::spawn(async move {
            let turn = locked.turn.lock().await;
            locked.state().leave_queue(&ask);
            if locked.state().at_servers {
                let (inode, kind) = locked.place;
                let owner = ask.owner;
                let stop = StopWaiting { inode, kind, owner };
                if let Err(error) = this.services.metadata.stop_waiting(stop).await {
                    // Its turn passes by itself.
                    tracing::debug!(%inode, %error, "the servers still queue a request");
                }
            }
            drop(turn);
            // Other threads of the process may have waited too.
            locked.wake();
            this.retire(locked);
        });
    }

    /// Gives up what an owner has of some bytes, after what was written is committed.
    pub(super) async fn unlock(
        self: &Arc<Self>,
        locked: &Arc<LockedFile>,
        ask: Ask,
    ) -> Result<(), VfsError> {
        let (has, wrote) = {
            let state = locked.state();
            let has = state.has_to_unlock(ask.owner, ask.range);
            (has, state.may_write(ask.owner, ask.range))
        };
        if !has {
            return Ok(());
        }
        if wrote {
            self.commit_before_unlock(locked.place.0).await?;
        }
        self.take(locked, ask, None, None).await
    }

    /// What was written to a file under a lock has to be seen by who takes the lock next.
    pub(super) async fn commit_before_unlock(
        self: &Arc<Self>,
        inode: InodeId,
    ) -> Result<(), VfsError> {
        let Some(node) = self.files.node(inode) else {
            return Ok(());
        };
        {
            let mut state = node.state();
            state.commits_before_sharing |= state.is_waiting();
        }
        // Afterwards: before another mount is let in, the marks are looked for.
        if self.known.is_shared() {
            self.writeback.flush(&node).await?;
        }
        Ok(())
    }

    /// All that an owner may have here, as a wish to give it up.
    pub(super) const fn everything_of(owner: u64) -> Ask {
        Ask {
            owner,
            range: LockRange::WHOLE,
            wish: LockWish::Unlock,
            pid: 0,
        }
    }
}

/// Follows the news until the file system is shut down or dropped.
pub(in crate::vfs) fn spawn(locks: &Arc<FileLocks>) {
    losing::spawn(locks);
    let (weak, mut news) = (Arc::downgrade(locks), locks.known.invalidations());
    tokio::spawn(async move {
        while let Some(next) = news.next().await {
            let Some(locks) = Weak::upgrade(&weak) else {
                return;
            };
            if locks.services.is_stopped() {
                return;
            }
            locks.hear(&next);
        }
    });
}
