//! Opening, creating and closing files.

use super::caller::Caller;
use super::file_system::{FileSystem, Inner};
use super::handle::{FileHandle, HandleId, OpenMode};
use super::node::{Node, State};
use super::readahead::Readahead;
use super::{AttributeChange, VfsError, clock};
use quorumfs_metadata::attributes::{Attributes, FileType};
use quorumfs_metadata::identity::{InodeId, InodeVersion};
use quorumfs_metadata::operation::{NewInode, Step};
use rustix::io::Errno;
use std::sync::{Arc, Mutex};

/// An open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Its handle.
    pub handle: HandleId,
    /// The file's content did not change since it was last open here, so that what the kernel
    /// kept of it is still right.
    pub keep_pages: bool,
}

impl FileSystem {
    /// Opens a file.
    ///
    /// Whether the caller may was decided by whoever asks: the kernel, which checks modes itself,
    /// or [`FileSystem::access`].
    ///
    /// # Errors
    /// If it is gone or no file, or the servers do not answer.
    pub async fn open(
        &self,
        caller: &Caller,
        inode: InodeId,
        mode: OpenMode,
    ) -> Result<Opened, VfsError> {
        let inner = &self.inner;
        let _not_removed = inner.namespace_lock(inode).read().await;
        let attributes = inner.attributes(inode).await?;
        match attributes.file_type() {
            FileType::File => {}
            FileType::Directory => return Err(VfsError::refused("open", Errno::ISDIR)),
            FileType::Symlink => return Err(VfsError::refused("open", Errno::LOOP)),
            _ => return Err(VfsError::refused("open", Errno::NXIO)),
        }
        let keep_pages = inner.last_open.same_as_last_time(&attributes);
        let (handle, node) = inner.open_handle(&attributes, mode);
        if mode.truncate && mode.write {
            let change = AttributeChange {
                size: Some(0),
                ..AttributeChange::default()
            };
            let cut = inner.set_attributes(caller, inode, true, change).await;
            if let Err(error) = cut {
                let _ = inner.handles.remove_file(handle);
                inner.close(&node, mode);
                return Err(error);
            }
        }
        Ok(Opened {
            handle,
            keep_pages: keep_pages && !mode.truncate,
        })
    }

    /// Creates a file and opens it; opens what is there unless `exclusive`.
    ///
    /// # Errors
    /// If the name is taken and `exclusive`, or by a directory, or the servers refuse.
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
            // Somebody else was faster. The kernel asks for permission only before it opens, so
            // here it is asked for.
            let inode = made.attributes.inode;
            self.access(
                caller,
                inode,
                (u8::from(mode.read) << 2) | (u8::from(mode.write) << 1),
            )
            .await?;
            let opened = self.open(caller, inode, mode).await?;
            return Ok((inner.attributes(inode).await?, opened.handle));
        }
        let (handle, _) = inner.open_handle(&made.attributes, mode);
        Ok((made.attributes, handle))
    }

    /// Closes a file. What was written and not yet committed goes on being committed.
    ///
    /// # Errors
    /// If it could not be committed; it is kept, tried again, and reported at the next close.
    pub async fn release(&self, handle: HandleId) -> Result<(), VfsError> {
        let inner = &self.inner;
        let handle = inner.handles.remove_file(handle)?;
        let node = &handle.node;
        let last_of_deleted = {
            let state = node.state();
            state.unlinked && state.handles == 1
        };
        let outcome = if handle.mode.write && !last_of_deleted {
            inner.flush_file(node).await
        } else {
            Ok(())
        };
        let deleted = inner.close(node, handle.mode);
        if deleted {
            inner.release_orphan(node.inode).await?;
        }
        outcome
    }
}

impl Inner {
    /// A new handle on a file, and its node.
    fn open_handle(&self, attributes: &Attributes, mode: OpenMode) -> (HandleId, Arc<Node>) {
        let count = |state: &mut State| {
            state.handles = state.handles.saturating_add(1);
            state.writers = state.writers.saturating_add(u32::from(mode.write));
        };
        let content = || Self::fresh_content(attributes);
        let (node, ()) = self.node_with(attributes, content, count);
        let readahead = Mutex::new(Readahead::new(self.options.readahead_bytes_max));
        let handle = self.handles.add_file(FileHandle {
            node: node.clone(),
            mode,
            readahead,
        });
        (handle, node)
    }

    /// One handle less. Answers whether that was the last of a file that has no name any more.
    fn close(&self, node: &Arc<Node>, mode: OpenMode) -> bool {
        let gone = {
            let mut state = node.state();
            state.handles = state.handles.saturating_sub(1);
            state.writers = state.writers.saturating_sub(u32::from(mode.write));
            let gone = state.unlinked && state.handles == 0;
            if gone {
                state.give_up(None);
                self.book(&mut state);
            } else {
                self.last_open.remember(&state.attributes());
            }
            gone
        };
        self.retire(node);
        gone
    }

    /// The last handle of a file without a name is closed: the servers may delete it.
    async fn release_orphan(&self, inode: InodeId) -> Result<(), VfsError> {
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

/// Which content of which files the kernel may still have pages of.
#[derive(Debug)]
pub(crate) struct LastOpen {
    seen: Mutex<std::collections::HashMap<InodeId, (InodeVersion, u64)>>,
    most: usize,
}

impl LastOpen {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            seen: Mutex::default(),
            most,
        }
    }

    fn remember(&self, attributes: &Attributes) {
        let mut seen = self
            .seen
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if seen.len() >= self.most {
            seen.clear();
        }
        seen.insert(attributes.inode, (attributes.version, attributes.size));
    }

    fn same_as_last_time(&self, attributes: &Attributes) -> bool {
        let seen = self
            .seen
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        seen.get(&attributes.inode) == Some(&(attributes.version, attributes.size))
    }
}
