//! Where the bytes of files lie that are not open any more.
//!
//! Without this, whoever reads a tree of small files asks the servers once for each, although they
//! were written or read a moment ago. What is kept belongs to one version of an inode, so it is
//! right for as long as the attributes are. Only short maps are kept; bounded by two generations.

use super::content::ContentMap;
use quorumfs_metadata::identity::{InodeId, InodeVersion};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Extents of a file that is worth keeping.
const PIECES_MAX: usize = 16;

#[derive(Debug, Default)]
struct Generations {
    young: HashMap<InodeId, ContentMap>,
    old: HashMap<InodeId, ContentMap>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct KeptContents {
    kept: Mutex<Generations>,
    most: usize,
}

impl KeptContents {
    /// About twice `most` of them.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            kept: Mutex::default(),
            most,
        }
    }

    fn kept(&self) -> MutexGuard<'_, Generations> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn keep(&self, inode: InodeId, content: &ContentMap) {
        if content.is_unknown() || content.pieces() > PIECES_MAX {
            return;
        }
        let mut kept = self.kept();
        if kept.young.len() >= self.most {
            kept.old = std::mem::take(&mut kept.young);
        }
        kept.old.remove(&inode);
        kept.young.insert(inode, content.clone());
    }

    /// The content of an inode at this version.
    pub(crate) fn get(&self, inode: InodeId, version: InodeVersion) -> Option<ContentMap> {
        let kept = self.kept();
        let found = kept.young.get(&inode).or_else(|| kept.old.get(&inode));
        found.filter(|it| it.version() == version).cloned()
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        *self.kept() = Generations::default();
    }
}
