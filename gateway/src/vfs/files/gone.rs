//! Inodes that lost their names: those that are gone, and special ones that are held.

use quorumfs_metadata::attributes::Attributes;
use quorumfs_metadata::identity::InodeId;
use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Special files without a name that are held.
const SPECIALS_HELD: usize = 256;

/// Attributes of recently removed inodes. Bounded: when the young generation is full, the old one
/// goes.
#[derive(Debug, Default)]
pub(in crate::vfs) struct Gone {
    generations: Mutex<(HashMap<InodeId, Attributes>, HashMap<InodeId, Attributes>)>,
}

/// Inodes in a generation.
const GONE_MAX: usize = 2048;

impl Gone {
    /// It lost its last name.
    pub(in crate::vfs) fn note(&self, attributes: &Attributes) {
        let generations = &self.generations;
        let mut both = generations.lock().unwrap_or_else(PoisonError::into_inner);
        if both.0.len() >= GONE_MAX {
            both.1 = std::mem::take(&mut both.0);
        }
        both.0.insert(attributes.inode, *attributes);
    }

    /// It is there again, restored from the trash.
    pub(in crate::vfs) fn forget(&self, inode: InodeId) {
        let generations = &self.generations;
        let mut both = generations.lock().unwrap_or_else(PoisonError::into_inner);
        both.0.remove(&inode);
        both.1.remove(&inode);
    }

    /// Its last attributes.
    pub(in crate::vfs) fn get(&self, inode: InodeId) -> Option<Attributes> {
        let generations = &self.generations;
        let both = generations.lock().unwrap_or_else(PoisonError::into_inner);
        both.0.get(&inode).or_else(|| both.1.get(&inode)).copied()
    }
}

/// Special files without a name that are held as if they were open: of them the kernel alone knows.
#[derive(Debug, Default)]
pub(in crate::vfs) struct Specials(Mutex<VecDeque<InodeId>>);

impl Specials {
    fn held(&self) -> MutexGuard<'_, VecDeque<InodeId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more is held; returns the oldest if there are too many: it is held no longer.
    pub(in crate::vfs) fn hold(&self, inode: InodeId) -> Option<InodeId> {
        let mut held = self.held();
        held.push_back(inode);
        if held.len() > SPECIALS_HELD {
            held.pop_front()
        } else {
            None
        }
    }

    /// Whether this one is held.
    pub(in crate::vfs) fn holds(&self, inode: InodeId) -> bool {
        self.held().contains(&inode)
    }
}
