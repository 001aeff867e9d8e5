//! Which inodes others have changed lately, and up to where in the log.
//!
//! What is asked for later than an inode's last change is newer than that change; so one position
//! an inode is enough. Bounded, in two generations: when the young one is full, the old one goes
//! and raises the *floor*, the position below which any inode may have been changed. Since
//! positions only go up, whatever is in either generation lies at the floor or above it.

use quorumfs_metadata::identity::{InodeId, LogPosition};
use std::collections::HashMap;
use tokio::time::Instant;

/// The last change of an inode by others, as far as is known.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct LastChange {
    /// It lies at this position or before.
    pub(super) position: LogPosition,
    /// When the answer arrived that told of it; `None` if there was none yet. A query that was sent
    /// before that may have been answered without it.
    pub(super) told: Option<Instant>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct ChangedInodes {
    young: HashMap<InodeId, LastChange>,
    old: HashMap<InodeId, LastChange>,
    /// The last change in the old generation.
    old_last: LastChange,
    /// The last change that was noted.
    last: LastChange,
    floor: LastChange,
    generation_max: usize,
}

impl ChangedInodes {
    /// Remembers about so many inodes, and twice as many at most.
    pub(super) fn new(most: usize) -> Self {
        Self {
            young: HashMap::new(),
            old: HashMap::new(),
            old_last: LastChange::default(),
            last: LastChange::default(),
            floor: LastChange::default(),
            generation_max: most.max(1),
        }
    }

    /// Others changed `inode`. Positions only go up.
    pub(super) fn note(&mut self, inode: InodeId, change: LastChange) {
        if self.young.len() >= self.generation_max && !self.young.contains_key(&inode) {
            self.floor = self.old_last;
            self.old = std::mem::take(&mut self.young);
            self.old_last = self.last;
        }
        self.last = change;
        self.young.insert(inode, change);
    }

    /// Others may have changed any inode.
    pub(super) fn note_all(&mut self, change: LastChange) {
        self.young.clear();
        self.old.clear();
        (self.floor, self.old_last, self.last) = (change, change, change);
    }

    /// The last change of `inode`, or a later one if it is not remembered.
    pub(super) fn last(&self, inode: InodeId) -> LastChange {
        let noted = self.young.get(&inode).or_else(|| self.old.get(&inode));
        noted.copied().unwrap_or(self.floor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(position: u64) -> LastChange {
        LastChange {
            position: LogPosition(position),
            told: None,
        }
    }

    #[test]
    fn no_change_is_forgotten_and_memory_is_bounded() {
        let mut changed = ChangedInodes::new(8);
        let mut truth = HashMap::new();
        for position in 1..500_u64 {
            let inode = InodeId(position * 7 % 40);
            changed.note(inode, at(position));
            truth.insert(inode, position);
            assert!(changed.young.len() + changed.old.len() <= 16);
            assert_eq!(changed.last(inode), at(position));
            for (inode, position) in &truth {
                assert!(changed.last(*inode).position.0 >= *position, "{inode}");
            }
            assert!(
                changed.last(InodeId(99)).position.0 + 8 <= position.max(8),
                "not all"
            );
        }
    }

    #[test]
    fn after_a_change_of_anything_no_inode_is_older() {
        let mut changed = ChangedInodes::new(8);
        changed.note(InodeId(1), at(3));
        changed.note_all(at(5));
        for inode in [InodeId(1), InodeId(2)] {
            assert_eq!(changed.last(inode), at(5));
        }
        changed.note(InodeId(1), at(6));
        assert_eq!(changed.last(InodeId(1)), at(6));
        assert_eq!(changed.last(InodeId(2)), at(5));
    }
}
