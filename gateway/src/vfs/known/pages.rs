//! Pages of recently listed directories.
//!
//! A page is valid as long as its stamp is, and no change of this mount has overtaken it. It is
//! cached for its names alone: attributes change without their directory.

use super::cache::Stamp;
use super::segmented_lru::SegmentedLru;
use quorumfs_metadata::attributes::{Attributes, Detail, FileType, NameGenerations};
use quorumfs_metadata::identity::{Cookie, InodeId};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An entry as `readdir` shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirectoryEntry {
    /// The inode of the entry.
    pub inode: InodeId,
    /// The inode's type.
    pub file_type: FileType,
    /// Its position: where the next piece continues.
    pub cookie: Cookie,
    /// Its name.
    pub name: Vec<u8>,
}

/// What one query listed.
#[derive(Debug)]
pub(in crate::vfs) struct Page {
    pub(in crate::vfs) after: Cookie,
    pub(in crate::vfs) entries: Vec<DirectoryEntry>,
    pub(in crate::vfs) directory: Attributes,
    pub(in crate::vfs) more: bool,
    /// The directory's state when the query was sent.
    pub(in crate::vfs) stamp: Stamp,
}

type Pages = SegmentedLru<(InodeId, Cookie), Arc<Page>>;

/// Pages of recently listed directories; bounded by their entries.
#[derive(Debug)]
pub(in crate::vfs) struct ListingCache(Mutex<Pages>);

impl ListingCache {
    /// With at most so many entries.
    pub(in crate::vfs) fn new(most: usize) -> Self {
        Self(Mutex::new(SegmentedLru::new(most)))
    }

    fn lock(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::vfs) fn get(&self, directory: InodeId, after: Cookie) -> Option<Arc<Page>> {
        self.lock().get(&(directory, after)).cloned()
    }

    pub(in crate::vfs) fn insert(&self, page: &Arc<Page>) {
        // An empty page takes space as well.
        let weight = page.entries.len().saturating_add(1);
        let place = (page.directory.inode, page.after);
        self.lock().insert_weighted(weight, place, page.clone());
    }

    /// Forgets everything.
    pub(in crate::vfs) fn clear(&self) {
        self.lock().clear();
    }
}

impl Page {
    /// The generations of the directory's names when the page was made.
    pub(in crate::vfs) fn generations(&self) -> Option<NameGenerations> {
        match self.directory.detail {
            Detail::Directory { generations, .. } => Some(generations),
            _ => None,
        }
    }

    /// Whether the entries after `after` are on this page.
    pub(in crate::vfs) fn covers(&self, after: Cookie) -> bool {
        let last = self.entries.last().map_or(self.after, |entry| entry.cookie);
        let after = after.max(Cookie::PARENT);
        after >= self.after && (after < last || !self.more)
    }

    /// How many entries are not after `after`.
    pub(in crate::vfs) fn up_to(&self, after: Cookie) -> usize {
        self.entries.partition_point(|entry| entry.cookie <= after)
    }
}
