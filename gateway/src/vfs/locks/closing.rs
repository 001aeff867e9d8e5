//! What ends with an open file, or with the descriptor of a process.
//!
//! The kernel calls `flush` for each descriptor that a process closes, and the process's `fcntl`
//! locks of the file end then. It calls `release` when the last descriptor of an open file is gone,
//! and with it go `flock` and open-file-description locks: what was locked through that open file
//! by an owner that has no other one.

use super::owner::{FileLocks, LockedFile};
use crate::error::VfsError;
use crate::vfs::files::HandleId;
use crate::vfs::services::cancel_safe;
use quorumfs_metadata::identity::InodeId;
use quorumfs_metadata::locks::{LockKind, LockRange};
use std::sync::Arc;
use std::time::Duration;

/// How long after a failure to give up a lock the next attempt follows.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

impl FileLocks {
    /// A process has closed a descriptor of a file.
    pub(in crate::vfs) async fn close_process(self: &Arc<Self>, inode: InodeId, owner: u64) {
        if let Some(locked) = self.find((inode, LockKind::Ranges)) {
            self.end(locked, owner).await;
        }
    }

    /// An open file is closed.
    pub(in crate::vfs) async fn close_handle(self: &Arc<Self>, inode: InodeId, handle: HandleId) {
        for kind in [LockKind::Ranges, LockKind::Whole] {
            let Some(locked) = self.find((inode, kind)) else {
                continue;
            };
            let mut ended = locked.state().close(handle);
            if kind == LockKind::Whole && !ended.contains(&handle.0) {
                // The servers may have granted it when they took over the queue.
                ended.push(handle.0);
            }
            for owner in ended {
                self.end(locked.clone(), owner).await;
            }
            self.retire(locked);
        }
    }

    /// Gives up all that an owner has of an inode and kind: now, or as soon as that succeeds.
    async fn end(self: &Arc<Self>, locked: Arc<LockedFile>, owner: u64) {
        locked.state().begin_ending(owner);
        if let Err(error) = self.finish_ending(&locked, owner).await {
            let inode = locked.place.0;
            tracing::warn!(%inode, %error, "a closed file is still locked; trying again");
            let (this, locked) = (self.clone(), locked.clone());
            tokio::spawn(async move {
                while !this.services.is_stopped() {
                    tokio::time::sleep(AGAIN_AFTER).await;
                    match this.finish_ending(&locked, owner).await {
                        Ok(()) | Err(VfsError::Fenced) => break,
                        Err(error) => tracing::debug!(%inode, %error, "still locked"),
                    }
                }
                this.retire(locked);
            });
        }
        self.retire(locked);
    }

    /// Gives up all that an owner had when it closed the file. If the kernel uses its number again,
    /// the first lock of the next owner does it, and this must not end that one.
    pub(super) async fn finish_ending(
        self: &Arc<Self>,
        locked: &Arc<LockedFile>,
        owner: u64,
    ) -> Result<(), VfsError> {
        if !locked.state().is_ending(owner) {
            return Ok(());
        }
        let wrote = locked.state().may_write(owner, LockRange::WHOLE);
        if wrote {
            self.commit_before_unlock(locked.place.0).await?;
        }
        let (this, locked) = (self.clone(), locked.clone());
        cancel_safe(async move {
            let turn = locked.turn.lock().await;
            if locked.state().is_ending(owner) {
                let everything = Self::everything_of(owner);
                this.attempt(&turn, &locked, &everything, None, false)
                    .await?;
            }
            Ok(())
        })
        .await
    }
}
