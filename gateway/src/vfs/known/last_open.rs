//! The content of files of which the kernel may still have pages, by version and length.
//!
//! It is compared with a file's attributes when the file is opened again: if they are the same, the
//! pages are still valid.

use super::segmented_lru::SegmentedLru;
use quorumfs_metadata::attributes::Attributes;
use quorumfs_metadata::identity::{InodeId, InodeVersion};
use std::sync::{Mutex, MutexGuard, PoisonError};

type OpenVersions = SegmentedLru<InodeId, (InodeVersion, u64)>;

/// The content of files of which the kernel may still have pages.
#[derive(Debug)]
pub(in crate::vfs) struct LastOpen(Mutex<OpenVersions>);

impl LastOpen {
    /// Of at most so many files.
    pub(in crate::vfs) fn new(most: usize) -> Self {
        Self(Mutex::new(SegmentedLru::new(most)))
    }

    fn lock(&self) -> MutexGuard<'_, OpenVersions> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A file is closed that looks so.
    pub(in crate::vfs) fn remember(&self, attributes: &Attributes) {
        let seen = (attributes.version, attributes.size);
        self.lock().insert(attributes.inode, seen);
    }

    /// Writes through the kernel are committed, and no other client has changed anything since
    /// version `before`: the kernel's pages are as valid as they were.
    pub(in crate::vfs) fn committed(&self, before: InodeVersion, now: &Attributes) {
        if let Some(last) = self.lock().get_mut(&now.inode)
            && *last == (before, now.size)
        {
            last.0 = now.version;
        }
    }

    /// The kernel's pages of the file may be wrong.
    pub(in crate::vfs) fn forget(&self, inode: InodeId) {
        self.lock().remove(&inode);
    }

    /// Whether it is as it was when it was last closed here.
    pub(in crate::vfs) fn is_unchanged(&self, attributes: &Attributes) -> bool {
        self.lock().get(&attributes.inode) == Some(&(attributes.version, attributes.size))
    }
}
