//! Open files and directories.

use super::node::Node;
use super::passes::Passes;
use super::readahead::{Prefetch, Readahead};
use crate::error::VfsError;
use crate::vfs::known::Page;
use quorumfs_metadata::attributes::Attributes;
use quorumfs_metadata::identity::InodeId;
use rustix::io::Errno;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// The number of something open.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HandleId(pub u64);

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenMode {
    /// It can be read.
    pub read: bool,
    /// It can be written.
    pub write: bool,
    /// It is truncated to nothing first.
    pub truncate: bool,
    /// Reading it moves no time of access (`O_NOATIME`): for backups, which read everything.
    pub keep_atime: bool,
    /// It is written at its end (`O_APPEND`).
    pub append: bool,
}

impl OpenMode {
    /// For reading only.
    pub const READ: Self = Self {
        read: true,
        write: false,
        truncate: false,
        keep_atime: false,
        append: false,
    };
    /// For reading and writing.
    pub const READ_WRITE: Self = Self {
        read: true,
        write: true,
        truncate: false,
        keep_atime: false,
        append: false,
    };
}

/// An open file.
#[derive(Debug)]
pub(in crate::vfs) struct FileHandle {
    pub(in crate::vfs) node: Arc<Node>,
    pub(in crate::vfs) mode: OpenMode,
    pub(in crate::vfs) prefetcher: Mutex<Prefetcher>,
    /// A lock that was taken through it is lost.
    pub(in crate::vfs) lock_lost: AtomicBool,
}

/// Prefetches for one reader; stops with the handle.
#[derive(Debug)]
pub(in crate::vfs) struct Prefetcher {
    readahead: Readahead,
    fetching: JoinSet<()>,
}

impl Prefetcher {
    pub(in crate::vfs) fn new(window_max: u64) -> Self {
        Self {
            readahead: Readahead::new(window_max),
            fetching: JoinSet::new(),
        }
    }

    /// A read begins; returns what to prefetch, and stops fetches that are not wanted any more.
    pub(in crate::vfs) fn on_read(&mut self, offset: u64, length: u64) -> Option<Range<u64>> {
        while self.fetching.try_join_next().is_some() {}
        match self.readahead.on_read(offset, length) {
            Prefetch::Fetch(range) => Some(range),
            Prefetch::Enough => None,
            Prefetch::Stop => {
                self.fetching.abort_all();
                None
            }
        }
    }

    /// Begins a fetch that was wanted.
    pub(in crate::vfs) fn begin(&mut self, fetch: impl Future<Output = ()> + Send + 'static) {
        self.fetching.spawn(fetch);
    }
}

/// The page that an open directory holds.
#[derive(Debug, Default)]
pub(in crate::vfs) struct Listing {
    pub(in crate::vfs) page: Option<Arc<Page>>,
    /// The attributes that came with it, entry by entry, and when; none if it was cached.
    pub(in crate::vfs) attributes: Vec<Attributes>,
    pub(in crate::vfs) received: Option<Instant>,
}

/// An open directory.
#[derive(Debug)]
pub(in crate::vfs) struct DirectoryHandle {
    pub(in crate::vfs) directory: InodeId,
    pub(in crate::vfs) listing: tokio::sync::Mutex<(Listing, Passes)>,
}

#[derive(Debug, Clone)]
enum Handle {
    File(Arc<FileHandle>),
    Directory(Arc<DirectoryHandle>),
}

/// Everything that is open. The kernel bounds it by its limits on open files.
#[derive(Debug, Default)]
pub(in crate::vfs) struct Handles {
    next: AtomicU64,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    handles: HashMap<HandleId, Handle>,
    directories: HashMap<InodeId, OpenDirectory>,
}

/// A directory that is open.
#[derive(Debug, Default)]
struct OpenDirectory {
    handles: usize,
    /// It has no name any more: the last close releases it.
    unlinked: bool,
}

const NOT_OPEN: VfsError = VfsError::refused("use of a closed handle", Errno::BADF);

impl FileHandle {
    /// An error once a lock that was taken through it is lost.
    pub(in crate::vfs) fn keeps_locks(&self) -> Result<(), VfsError> {
        match self.lock_lost.load(Ordering::Acquire) {
            true => Err(VfsError::LockLost),
            false => Ok(()),
        }
    }

    /// Prefetches for this file.
    pub(in crate::vfs) fn prefetcher(&self) -> MutexGuard<'_, Prefetcher> {
        self.prefetcher
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handles {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, handle: Handle) -> HandleId {
        let id = HandleId(self.next.fetch_add(1, Ordering::Relaxed).saturating_add(1));
        self.open().handles.insert(id, handle);
        id
    }

    pub(in crate::vfs) fn len(&self) -> usize {
        self.open().handles.len()
    }

    pub(in crate::vfs) fn add_file(&self, handle: FileHandle) -> HandleId {
        self.insert(Handle::File(Arc::new(handle)))
    }

    pub(in crate::vfs) fn add_directory(&self, handle: DirectoryHandle) -> HandleId {
        {
            let mut open = self.open();
            let directory = open.directories.entry(handle.directory).or_default();
            directory.handles = directory.handles.saturating_add(1);
        }
        self.insert(Handle::Directory(Arc::new(handle)))
    }

    /// Whether the directory is open.
    pub(in crate::vfs) fn has_directory(&self, inode: InodeId) -> bool {
        self.open().directories.contains_key(&inode)
    }

    /// The open directories that have names, as far as is known.
    pub(super) fn directories(&self) -> Vec<InodeId> {
        let open = self.open();
        let named = open.directories.iter().filter(|(_, it)| !it.unlinked);
        named.map(|(inode, _)| *inode).collect()
    }

    /// A directory lost its name. Returns whether it is open, so that the last close releases it.
    pub(in crate::vfs) fn unlink_directory(&self, inode: InodeId) -> bool {
        let mut open = self.open();
        let directory = open.directories.get_mut(&inode);
        directory.map(|it| it.unlinked = true).is_some()
    }

    pub(in crate::vfs) fn file(&self, id: HandleId) -> Result<Arc<FileHandle>, VfsError> {
        match self.open().handles.get(&id) {
            Some(Handle::File(handle)) => Ok(handle.clone()),
            _ => Err(NOT_OPEN),
        }
    }

    /// Whether a lock was lost through every handle by which a file can be written.
    pub(in crate::vfs) fn all_writers_lost(&self, inode: InodeId) -> bool {
        let open = self.open();
        let files = open.handles.values().filter_map(|handle| match handle {
            Handle::File(file) => Some(file),
            Handle::Directory(_) => None,
        });
        let mut writers = files.filter(|file| file.node.inode == inode && file.mode.write);
        writers.all(|file| file.lock_lost.load(Ordering::Acquire))
    }

    pub(in crate::vfs) fn directory(&self, id: HandleId) -> Result<Arc<DirectoryHandle>, VfsError> {
        match self.open().handles.get(&id) {
            Some(Handle::Directory(handle)) => Ok(handle.clone()),
            _ => Err(NOT_OPEN),
        }
    }

    pub(in crate::vfs) fn remove_file(&self, id: HandleId) -> Result<Arc<FileHandle>, VfsError> {
        let mut open = self.open();
        match open.handles.get(&id) {
            Some(Handle::File(handle)) => {
                let handle = handle.clone();
                open.handles.remove(&id);
                Ok(handle)
            }
            _ => Err(NOT_OPEN),
        }
    }

    /// Closes a directory; returns its inode if that was the last handle of one without a name.
    pub(in crate::vfs) fn remove_directory(&self, id: HandleId) -> Option<InodeId> {
        let mut open = self.open();
        let Some(Handle::Directory(handle)) = open.handles.get(&id) else {
            return None;
        };
        let inode = handle.directory;
        open.handles.remove(&id);
        let directory = open.directories.get_mut(&inode)?;
        directory.handles = directory.handles.saturating_sub(1);
        if directory.handles > 0 {
            return None;
        }
        let directory = open.directories.remove(&inode)?;
        directory.unlinked.then_some(inode)
    }
}
