//! Where the bytes of files lie that are not open any more.
//!
//! Without this, whoever reads a tree of small files asks the servers once for each, although they
//! were written or read a moment ago. What is kept belongs to one version of an inode, so it is
//! right for as long as the attributes are. Only short maps are kept, and not more than a number.

use super::content::ContentMap;
use super::generations::Generations;
use quorumfs_metadata::identity::{InodeId, InodeVersion};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Extents of a file that is worth keeping.
const PIECES_MAX: usize = 16;

/// See the module.
#[derive(Debug)]
pub(crate) struct KeptContents(Mutex<Generations<InodeId, ContentMap>>);

impl KeptContents {
    /// At most so many of them.
    pub(crate) fn new(most: usize) -> Self {
        Self(Mutex::new(Generations::new(most)))
    }

    fn kept(&self) -> MutexGuard<'_, Generations<InodeId, ContentMap>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn keep(&self, inode: InodeId, content: &ContentMap) {
        if content.is_unknown() || content.pieces() > PIECES_MAX {
            return;
        }
        self.kept().insert(inode, content.clone());
    }

    /// The content of an inode at this version.
    pub(crate) fn get(&self, inode: InodeId, version: InodeVersion) -> Option<ContentMap> {
        let kept = self.kept();
        let found = kept.get(&inode);
        found.filter(|it| it.version() == version).cloned()
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        self.kept().clear();
    }
}
