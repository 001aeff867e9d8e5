//! Opening, creating and closing files.
//!
//! **Close to open.** A process that opens a file sees what was closed before, on whichever mount.
//! So while others may mount the volume, opening a file asks the servers for its attributes: their
//! answer contains all that was acknowledged to any client before. Its version is compared with the
//! one of which the kernel has pages, and if they differ the kernel drops them. A mount that is
//! alone learns of changes as of any others, and asks nothing.
//!
//! The kernel fills pages as they are read. So it may have pages of several versions of a file that
//! others changed while it was open here, and no version vouches for them: they go when the file is
//! opened next.

use crate::error::VfsError;
use crate::vfs::attributes::AttributeChange;
use crate::vfs::file_system::{FileSystem, FileSystemCore};
use crate::vfs::files::{FileHandle, HandleId, Node, NodeState, OpenMode, Prefetcher};
use crate::vfs::known::ContentMap;
use crate::vfs::services::{Caller, Tier, cancel_safe};
use async_recursion::async_recursion as boxed;
use quorumfs_metadata::attributes::{Attributes, FileType};
use quorumfs_metadata::identity::InodeId;
use quorumfs_metadata::operation::NewInode;
use rustix::io::Errno;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

/// An open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenedFile {
    /// Its handle.
    pub handle: HandleId,
    /// The file's content did not change since it was last open here, so the kernel's cached pages
    /// are still valid.
    pub keep_pages: bool,
    /// It was not open here before.
    pub first: bool,
    /// The kernel may not cache pages of what is read and written through it: where its writes go
    /// is not for the kernel to say.
    pub uncached: bool,
}

impl FileSystem {
    /// Opens a file.
    ///
    /// The permission check is the caller's: the kernel's, which checks modes itself, or
    /// [`FileSystem::access`].
    ///
    /// # Errors
    /// If it is gone or no file, or the servers do not answer.
    #[boxed]
    pub async fn open(
        &self,
        caller: &Caller,
        inode: InodeId,
        mode: OpenMode,
    ) -> Result<OpenedFile, VfsError> {
        let (inner, caller) = (self.inner.clone(), caller.clone());
        let opening = async move { inner.open(&caller, inode, mode).await };
        let (opening, keep_pages) = if mode.truncate {
            cancel_safe(opening).await?
        } else {
            opening.await?
        };
        let first = opening.node()?.state().handles == 1;
        Ok(OpenedFile {
            handle: opening.deliver(),
            keep_pages,
            first,
            uncached: self.is_uncached(mode),
        })
    }

    /// Creates a file and opens it; opens an existing one unless `exclusive`.
    ///
    /// # Errors
    /// If the name is taken and `exclusive`, or by a directory, or the servers refuse.
    #[boxed]
    pub async fn create(
        &self,
        caller: &Caller,
        directory: InodeId,
        name: &[u8],
        permissions: u32,
        mode: OpenMode,
        exclusive: bool,
    ) -> Result<(Attributes, HandleId), VfsError> {
        let inner = &self.inner;
        let kind = NewInode::File;
        let made = inner
            .make(
                "create",
                caller,
                directory,
                name,
                kind,
                permissions,
                exclusive,
            )
            .await?;
        if made.existed {
            // Another client was faster. The kernel checks permissions only before it opens, so
            // they are checked here.
            let inode = made.attributes.inode;
            self.access(
                caller,
                inode,
                (u8::from(mode.read) << 2) | (u8::from(mode.write) << 1),
            )
            .await?;
            let (opening, _) = inner.open(caller, inode, mode).await?;
            let attributes = inner.files.attributes(inode).await?;
            return Ok((attributes, opening.deliver()));
        }
        let opening = inner.open_handle(&made.attributes, mode, made.tier);
        Ok((made.attributes, opening.deliver()))
    }

    /// Whether the kernel may not cache pages for a file that is opened so: other mounts may write
    /// at its end, so the kernel does not know where that is.
    #[must_use]
    pub fn is_uncached(&self, mode: OpenMode) -> bool {
        mode.append && mode.write && self.inner.known.may_be_shared()
    }

    /// Closes a file. Uncommitted data is committed in the background.
    ///
    /// # Errors
    /// If it could not be committed; it is kept, retried, and reported at the next close.
    #[boxed]
    pub async fn release(&self, handle: HandleId) -> Result<(), VfsError> {
        let inner = self.inner.clone();
        cancel_safe(async move { inner.release(handle).await }).await
    }
}

/// A handle that the caller does not have yet: closed again unless it is delivered.
#[must_use]
pub(in crate::vfs) struct Undelivered {
    inner: Arc<FileSystemCore>,
    handle: HandleId,
    delivered: bool,
}

impl Undelivered {
    /// The node of the open file.
    pub(in crate::vfs) fn node(&self) -> Result<Arc<Node>, VfsError> {
        Ok(self.inner.files.handles.file(self.handle)?.node.clone())
    }

    fn deliver(mut self) -> HandleId {
        self.delivered = true;
        self.handle
    }
}

impl Drop for Undelivered {
    fn drop(&mut self) {
        if !self.delivered
            && let Ok(handle) = self.inner.files.handles.remove_file(self.handle)
        {
            // If the file lost its name meanwhile it is found among the orphans.
            self.inner.close(&handle.node, handle.mode);
        }
    }
}

impl FileSystemCore {
    async fn open(
        self: &Arc<Self>,
        caller: &Caller,
        inode: InodeId,
        mode: OpenMode,
    ) -> Result<(Undelivered, bool), VfsError> {
        let _not_removed = self.files.namespace_lock(inode).read().await;
        let attributes = self.files.attributes_at_open(inode).await?;
        match attributes.file_type() {
            FileType::File => {}
            FileType::Directory => return Err(VfsError::refused("open", Errno::ISDIR)),
            FileType::Symlink => return Err(VfsError::refused("open", Errno::LOOP)),
            _ => return Err(VfsError::refused("open", Errno::NXIO)),
        }
        let unchanged = self.known.last_open().is_unchanged(&attributes);
        if mode.read && !mode.keep_atime {
            self.files.access_times.note(&attributes);
        }
        let tier = if mode.write {
            self.own_tier(&attributes).await?
        } else {
            None
        };
        let opening = self.open_handle(&attributes, mode, tier);
        let mixed = std::mem::take(&mut opening.node()?.state().pages_mixed);
        let keep_pages = unchanged && !(mixed && self.known.is_shared());
        // Also if it is opened for reading only: Linux requires the right to write, and truncates.
        if mode.truncate {
            let change = AttributeChange {
                size: Some(0),
                ..AttributeChange::default()
            };
            self.set_attributes(caller, inode, true, change).await?;
        }
        Ok((opening, keep_pages && !mode.truncate))
    }

    /// A new handle on a file; for writing, with the file's own tier.
    pub(in crate::vfs) fn open_handle(
        self: &Arc<Self>,
        attributes: &Attributes,
        mode: OpenMode,
        tier: Option<Tier>,
    ) -> Undelivered {
        let count = |state: &mut NodeState| {
            state.handles = state.handles.saturating_add(1);
            state.writers = state.writers.saturating_add(u32::from(mode.write));
            if mode.write {
                state.learn_tier(attributes, tier);
            }
        };
        let (node, ()) = self.files.node_with(attributes, ContentMap::fresh, count);
        let prefetcher = Mutex::new(Prefetcher::new(self.services.options.readahead_bytes_max));
        let handle = self.files.handles.add_file(FileHandle {
            node,
            mode,
            prefetcher,
            lock_lost: AtomicBool::new(false),
        });
        Undelivered {
            inner: self.clone(),
            handle,
            delivered: false,
        }
    }

    async fn release(self: &Arc<Self>, handle: HandleId) -> Result<(), VfsError> {
        let inode = self.files.handles.file(handle)?.node.inode;
        self.locks.close_handle(inode, handle).await;
        let handle = self.files.handles.remove_file(handle)?;
        let node = &handle.node;
        let last_of_deleted = {
            let state = node.state();
            state.unlinked && state.handles == 1
        };
        let outcome = if handle.mode.write && !last_of_deleted {
            self.writeback.make_safe(node).await
        } else {
            Ok(())
        };
        if handle.mode.write {
            node.state().close_failed |= outcome.is_err();
        }
        let deleted = self.close(node, handle.mode);
        if deleted {
            self.release_orphan(node.inode).await?;
        }
        outcome
    }

    /// Drops a handle. Returns whether that was the last of a file that has no name any more.
    fn close(&self, node: &Arc<Node>, mode: OpenMode) -> bool {
        let gone = {
            let mut state = node.state();
            state.handles = state.handles.saturating_sub(1);
            state.writers = state.writers.saturating_sub(u32::from(mode.write));
            let gone = state.unlinked && state.handles == 0;
            if gone {
                self.writeback.give_up(node, &mut state);
            } else {
                if state.pages_mixed && self.known.is_shared() {
                    self.known.last_open().forget(node.inode);
                } else {
                    self.known.last_open().remember(&state.attributes());
                }
                self.writeback.give_up_if_abandoned(node, &mut state);
            }
            gone
        };
        self.files.retire(node);
        gone
    }
}
