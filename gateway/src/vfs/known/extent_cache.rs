//! Extents of files that are not open any more.
//!
//! Without this cache, reading a tree of small files takes a query for each, although they were
//! written or read recently. An entry belongs to one version of an inode, so it is valid as long as
//! the attributes are. Only short maps are cached, and their number is bounded.

use super::content::ContentMap;
use super::segmented_lru::SegmentedLru;
use quorumfs_metadata::identity::{InodeId, InodeVersion};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Extents up to which a file's map is worth caching.
const PIECES_MAX: usize = 16;

/// See the module.
#[derive(Debug)]
pub(in crate::vfs) struct ExtentCache(Mutex<SegmentedLru<InodeId, ContentMap>>);

impl ExtentCache {
    /// At most so many maps.
    pub(in crate::vfs) fn new(most: usize) -> Self {
        Self(Mutex::new(SegmentedLru::new(most)))
    }

    fn lock(&self) -> MutexGuard<'_, SegmentedLru<InodeId, ContentMap>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::vfs) fn insert(&self, inode: InodeId, content: &ContentMap) {
        if content.is_unknown() || content.pieces() > PIECES_MAX {
            return;
        }
        self.lock().insert(inode, content.clone());
    }

    /// The content of an inode at this version.
    pub(in crate::vfs) fn get(&self, inode: InodeId, version: InodeVersion) -> Option<ContentMap> {
        let cached = self.lock();
        let found = cached.get(&inode);
        found.filter(|it| it.version() == version).cloned()
    }

    /// Evicts everything.
    pub(in crate::vfs) fn clear(&self) {
        self.lock().clear();
    }
}
