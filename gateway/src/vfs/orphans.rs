//! Inodes without a name that this session holds.
//!
//! The servers keep an inode whose last entry went for as long as a session may have it open. They
//! cannot know what a mount has open when somebody beside it removes a name, and we cannot know
//! what a removal did whose answer was lost. So the session's orphans are looked through from time
//! to time: what is not open here is released.

use super::file_system::Inner;
use super::{VfsError, clock};
use quorumfs_metadata::identity::InodeId;
use quorumfs_metadata::operation::Step;
use rustix::io::Errno;
use std::sync::Arc;

impl Inner {
    /// Releases every orphan of the session that is not open.
    pub(crate) async fn release_orphans(self: &Arc<Self>) -> Result<(), VfsError> {
        let mut after = None;
        loop {
            let (inodes, more) = self.metadata.orphans(after).await?;
            for inode in inodes {
                self.release_unless_open(inode).await?;
                after = Some(inode);
            }
            if !more {
                return Ok(());
            }
        }
    }

    async fn release_unless_open(self: &Arc<Self>, inode: InodeId) -> Result<(), VfsError> {
        let _closed_to_opens = self.namespace_lock(inode).write().await;
        if self.handles.unlink_directory(inode) {
            return Ok(());
        }
        if let Some(node) = self.node(inode) {
            let open = {
                let mut state = node.state();
                // The last close releases it.
                state.unlinked = true;
                self.forget_kept(&node, &mut state);
                let open = state.handles > 0;
                if !open {
                    // Nobody can see what was written any more.
                    self.give_up(&node, &mut state);
                }
                open
            };
            if open {
                return Ok(());
            }
            self.retire(&node);
        }
        self.release_orphan(inode).await
    }

    /// The last handle of what has no name is closed: the servers may delete it.
    pub(crate) async fn release_orphan(&self, inode: InodeId) -> Result<(), VfsError> {
        self.cache.forget(inode);
        let credentials = self.metadata.own();
        let step = Step::Release { inode };
        match self
            .metadata
            .step("close", credentials, clock::now(), step)
            .await
        {
            Ok(_)
            | Err(VfsError::Refused {
                errno: Errno::STALE | Errno::NOENT,
                ..
            }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
