//! Inodes without a name that this session holds.
//!
//! The servers keep an inode without entries as long as a session may have it open. They cannot
//! know what a mount has open when another client removes a name (of mounts that share, each claims
//! what it has open: `claims`), and we cannot know the outcome of a removal whose answer was lost.
//! So the session's orphans are listed from time to time, and those that are not open here are
//! released.
//!
//! The kernel opens pipes, sockets and devices without telling us: the latest of them that lost
//! their last names are held as if they were open. Nor do we learn of processes that have a path
//! open (`O_PATH`) or work in a directory: the latest attributes of removed inodes are remembered
//! (`gone`), because these processes can ask for nothing else.

use crate::clock;
use crate::error::VfsError;
use crate::vfs::file_system::FileSystemCore;
use crate::vfs::known::Scope;
use quorumfs_metadata::attributes::{Attributes, FileType};
use quorumfs_metadata::identity::InodeId;
use quorumfs_metadata::operation::Step;
use quorumfs_metadata::reply::Removed;
use rustix::io::Errno;
use std::sync::Arc;

/// Whether only the kernel knows if it is open.
pub(in crate::vfs) fn is_special(attributes: &Attributes) -> bool {
    use FileType::{BlockDevice, CharacterDevice, Fifo, Socket};
    let file_type = attributes.file_type();
    matches!(file_type, BlockDevice | CharacterDevice | Fifo | Socket)
}

impl FileSystemCore {
    /// An inode lost an entry, perhaps the last one.
    pub(in crate::vfs) fn removed(self: &Arc<Self>, removed: &Removed) {
        let attributes = &removed.inode;
        if attributes.links > 0 && attributes.file_type() != FileType::Directory {
            self.writeback
                .learn_own(attributes, self.known.unconfirmed());
            return;
        }
        self.known.invalidate(Scope::Inode(attributes.inode));
        let open_directory = self.files.handles.unlink_directory(attributes.inode);
        if removed.held && (open_directory || is_special(attributes)) {
            self.writeback
                .learn_own(attributes, self.known.unconfirmed());
        }
        if removed.held && is_special(attributes) {
            self.hold_special(attributes.inode);
        }
        if !removed.held {
            self.files.gone.note(attributes);
        }
        let Some(node) = self.files.node(attributes.inode) else {
            return;
        };
        {
            let mut state = node.state();
            state.unlinked = true;
            // It will not outlive this mount.
            self.writeback.drop_journalled(&node, &mut state);
            if removed.held {
                drop(state);
                self.writeback
                    .learn_own(attributes, self.known.unconfirmed());
            } else {
                // No process can see its data any more.
                self.writeback.give_up(&node, &mut state);
            }
        }
        self.files.retire(&node);
    }

    /// Releases every orphan of the session that is not open.
    pub(in crate::vfs) async fn release_orphans(self: &Arc<Self>) -> Result<(), VfsError> {
        let mut after = None;
        loop {
            let (inodes, more) = self.services.metadata.orphans(after).await?;
            for inode in inodes {
                self.release_unless_open(inode).await?;
                after = Some(inode);
            }
            if !more {
                return Ok(());
            }
        }
    }

    /// Releases an orphan, or has its last close do so.
    pub(super) async fn release_unless_open(
        self: &Arc<Self>,
        inode: InodeId,
    ) -> Result<(), VfsError> {
        let _closed_to_opens = self.files.namespace_lock(inode).write().await;
        if self.files.handles.unlink_directory(inode) || self.files.specials.holds(inode) {
            return Ok(());
        }
        if let Some(node) = self.files.node(inode) {
            let open = {
                let mut state = node.state();
                // The last close releases it.
                state.unlinked = true;
                self.writeback.drop_journalled(&node, &mut state);
                let open = state.handles > 0;
                if !open {
                    // No process can see its data any more.
                    self.writeback.give_up(&node, &mut state);
                }
                open
            };
            if open {
                return Ok(());
            }
            self.files.retire(&node);
        }
        self.release_orphan(inode).await
    }

    /// A special file lost its last name; beyond the bound the oldest such file is released.
    pub(in crate::vfs) fn hold_special(self: &Arc<Self>, inode: InodeId) {
        if let Some(oldest) = self.files.specials.hold(inode) {
            let inner = self.clone();
            tokio::spawn(async move {
                // If the request fails, the file is found among the orphans.
                if let Err(error) = inner.release_orphan(oldest).await {
                    tracing::debug!(inode = %oldest, %error, "a special file is not released yet");
                }
            });
        }
    }

    /// The last handle of an inode without a name is closed: the servers may delete it.
    pub(in crate::vfs) async fn release_orphan(&self, inode: InodeId) -> Result<(), VfsError> {
        self.known.invalidate(Scope::Inode(inode));
        let credentials = self.services.metadata.own();
        let step = Step::Release { inode };
        match self
            .services
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
