//! Writing at the end of a file that other mounts write to as well (`O_APPEND`).
//!
//! The end of a file is where the last write has left it, so a mount that appends has to know of
//! all earlier writes. A mount that shares therefore takes the servers' lock of the file's end
//! ([`LockKind::Appends`]), asks for the file's length, and then appends for a moment without
//! asking:
//!
//! ```text
//!   free ──lock, refresh──► held ──── appends of all processes here ────┐
//!     ▲                      ▲                                          │ HELD_FOR
//!     └──────────unlock◄── owed ◄── flush ◄──── no append under way ◄───┘
//! ```
//!
//! * Nothing is appended through another mount between our first append and its commit. So no line
//!   is lost, and none is torn if it was one write.
//! * The others wait in the servers' queue, which is fair. All that is appended here meanwhile goes
//!   into one commit: the more mounts append, the more each commit carries.
//! * Appends here wait for the commit as well, at every tier. If it fails the end is kept, appends
//!   go on, and it is tried again.
//! * From before it is asked for until it was given up for certain, the end is *owed*: whatever
//!   answers are lost, a task goes on giving it up. An end that is owed and not held is taken again
//!   before the next append, since another mount may have had it in between.
//! * A mount that is alone needs no lock. What it has appended is marked, and committed before
//!   another mount is let in ([`super::sharing`]).
//!
//! The kernel computes a position of its own from the length that it knows, and does not count
//! here.

use super::calls::Interruption;
use super::inode_locks::Ask;
use super::owner::FileLocks;
use crate::error::VfsError;
use crate::vfs::files::{Node, NodeState};
use crate::vfs::services::cancel_safe;
use bytes::Bytes;
use quorumfs_metadata::identity::InodeId;
use quorumfs_metadata::limits::FILE_SIZE_MAX;
use quorumfs_metadata::locks::{LockKind, LockRange};
use quorumfs_metadata::operation::LockWish;
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};
use tokio::time::Instant;

/// How long the end of a file is held, while others may wait for it.
const HELD_FOR: Duration = Duration::from_millis(50);
/// How long after a commit that failed the next attempt follows.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// The only owner of ends of files in a mount: itself.
const MOUNT: u64 = 0;

/// The end of a file. Locked for reading while something is appended.
type EndOfFile = Arc<RwLock<HeldEnd>>;

/// What this mount has of the end of a file.
#[derive(Clone, Copy, Debug, Default)]
struct HeldEnd {
    /// Until when it holds it, if it does, and knows where it is.
    until: Option<Instant>,
    /// The servers may have given it to this mount, and it has not been given up.
    owed: bool,
}

/// The ends of files that this mount holds or waits for.
#[derive(Default)]
pub(super) struct EndsOfFiles(Mutex<HashMap<InodeId, EndOfFile>>);

impl EndsOfFiles {
    fn files(&self) -> MutexGuard<'_, HashMap<InodeId, EndOfFile>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, inode: InodeId) -> EndOfFile {
        self.files().entry(inode).or_default().clone()
    }

    /// Forgets one that is not held.
    fn retire(&self, inode: InodeId, end: &EndOfFile) {
        let mut files = self.files();
        if Arc::strong_count(end) <= 2 && end.try_read().is_ok_and(|held| !held.owed) {
            files.remove(&inode);
        }
    }
}

impl HeldEnd {
    fn is_fresh(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() < until)
    }
}

const fn ask(wish: LockWish) -> Ask {
    Ask {
        owner: MOUNT,
        range: LockRange::WHOLE,
        wish,
        pid: 0,
    }
}

/// Where the next append goes.
fn place(state: &NodeState, length: u64) -> Result<u64, VfsError> {
    let end = state.size();
    let fits = end
        .checked_add(length)
        .is_some_and(|to| to <= FILE_SIZE_MAX);
    fits.then_some(end)
        .ok_or(VfsError::refused("write", Errno::FBIG))
}

impl FileLocks {
    /// Writes at the end of a file; returns where that was.
    pub(in crate::vfs) async fn append(
        self: &Arc<Self>,
        node: &Arc<Node>,
        data: Bytes,
    ) -> Result<u64, VfsError> {
        let length = data.len() as u64;
        if self.known.may_be_shared() {
            // One that is alone may have been recalled.
            self.known.revalidate().await;
        }
        let alone = |state: &mut NodeState| {
            if self.known.is_shared() {
                return Ok(None);
            }
            // Before another mount is let in, the marks are looked for, which is after this.
            state.commits_before_sharing = true;
            place(state, length).map(Some)
        };
        if !self.known.is_shared()
            && let Some(at) = self
                .writeback
                .write_where(node, data.clone(), alone)
                .await?
        {
            return Ok(at);
        }
        let held = self.hold_end(node).await?;
        let shared = |state: &mut NodeState| place(state, length).map(Some);
        let written = self.writeback.write_where(node, data, shared).await;
        drop(held);
        written.map(|at| at.unwrap_or(0))
    }

    /// Holds the end of a file for as long as the result lives, and a moment longer.
    async fn hold_end(
        self: &Arc<Self>,
        node: &Arc<Node>,
    ) -> Result<OwnedRwLockReadGuard<HeldEnd>, VfsError> {
        let (this, node) = (self.clone(), node.clone());
        // A caller that gives up leaves nothing behind that is held for good.
        cancel_safe(async move {
            let end = this.ends.of(node.inode);
            let held = end.clone().read_owned().await;
            if held.is_fresh() {
                return Ok(held);
            }
            drop(held);
            let mut held = end.clone().write_owned().await;
            if !held.is_fresh() {
                this.commit_end(&node, &mut held).await;
            }
            if held.until.is_none() {
                // From now on the servers may have it, whatever they answer.
                if !std::mem::replace(&mut held.owed, true) {
                    this.give_up_later(&node, end);
                }
                this.take_end(node.inode).await?;
                held.until = Some(Instant::now() + HELD_FOR);
            }
            Ok(held.downgrade())
        })
        .await
    }

    /// Keeps others from appending until what waits is committed.
    pub(super) async fn keep_end(self: &Arc<Self>, node: &Arc<Node>) -> Result<(), VfsError> {
        // If the servers have given it to this mount already, its commit is under way, and it is
        // given up only after that.
        let has = self.find((node.inode, LockKind::Appends));
        if has.is_some_and(|locked| locked.state().count() > 0) {
            return Ok(());
        }
        self.hold_end(node).await.map(drop)
    }

    async fn take_end(self: &Arc<Self>, inode: InodeId) -> Result<(), VfsError> {
        let locked = self.locked((inode, LockKind::Appends))?;
        let exclusive = ask(LockWish::Exclusive);
        let never = Some(Interruption::never());
        let taken = self.take(&locked, exclusive, None, never).await;
        self.retire(locked);
        taken?;
        self.files.refresh_attributes(inode).await
    }

    fn give_up_later(self: &Arc<Self>, node: &Arc<Node>, end: EndOfFile) {
        let (this, node) = (self.clone(), node.clone());
        tokio::spawn(async move {
            let mut pause = HELD_FOR;
            while !this.services.is_stopped() {
                tokio::time::sleep(pause).await;
                let mut held = end.clone().write_owned().await;
                if held.is_fresh() {
                    // It was committed and taken again by an append that came before this.
                    pause = HELD_FOR;
                    continue;
                }
                pause = AGAIN_AFTER;
                this.commit_end(&node, &mut held).await;
                if held.until.is_none() && this.give_up_end(node.inode).await.is_ok() {
                    held.owed = false;
                    break;
                }
            }
            this.ends.retire(node.inode, &end);
        });
    }

    /// Commits what was appended. If that fails the end is held on, and appends here go on.
    async fn commit_end(
        self: &Arc<Self>,
        node: &Arc<Node>,
        held: &mut OwnedRwLockWriteGuard<HeldEnd>,
    ) {
        if held.until.is_none() {
            return;
        }
        held.until = match self.writeback.flush(node).await {
            Ok(()) | Err(VfsError::Fenced) => None,
            Err(error) => {
                let inode = node.inode;
                tracing::warn!(%inode, %error, "other mounts cannot append to a file yet");
                Some(Instant::now() + AGAIN_AFTER)
            }
        };
    }

    /// Gives the end back to the servers. Nothing is appended until it is taken again.
    async fn give_up_end(self: &Arc<Self>, inode: InodeId) -> Result<(), VfsError> {
        let locked = self.locked((inode, LockKind::Appends))?;
        let unlocked = self.take(&locked, ask(LockWish::Unlock), None, None).await;
        self.retire(locked);
        match unlocked {
            Err(VfsError::Fenced) => Ok(()),
            outcome => outcome,
        }
    }
}
