//! The model's trash: what loses its last name in a later compound than it was created in.
//!
//! Time is counted in compounds, so the service must be run with more than a minute between two.
//! The model has no ticks: nothing leaves its trash by itself.

use super::{Inode, Model, ModelKind, StepResult};
use crate::attributes::Credentials;
use crate::error::Error;
use crate::identity::InodeId;
use crate::limits::TRASH_PURGED_MAX;
use crate::operation::Restore;
use std::collections::BTreeMap;

/// What was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Trash {
    is_kept: bool,
    /// The number of this compound.
    pub(super) now: u64,
    pub(super) removed: BTreeMap<InodeId, (Inode, Leaving)>,
    /// Held inodes that go there when they are released.
    held: BTreeMap<InodeId, Leaving>,
}

/// Where an inode was, and who removed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Leaving {
    pub(super) directory: InodeId,
    pub(super) by: u32,
}

impl Model {
    /// A model of a service with a trash, which executes compounds more than a minute apart.
    #[must_use]
    pub fn with_trash() -> Self {
        let mut model = Self::default();
        model.trash.is_kept = true;
        model
    }

    /// The number of inodes in the trash.
    #[must_use]
    pub fn trashed(&self) -> usize {
        self.trash.removed.len()
    }

    /// An inode has lost its last name.
    pub(super) fn leave(
        &mut self,
        inode: InodeId,
        leaving: Leaving,
        held: bool,
    ) -> Result<(), Error> {
        let row = self.get(inode)?;
        let is_old = row.born < self.trash.now;
        let keeps = match row.kind {
            ModelKind::Special => false,
            ModelKind::Directory { .. } => is_old || self.had_something(inode),
            _ => is_old,
        };
        if keeps && self.trash.is_kept {
            self.trash.held.insert(inode, leaving);
        }
        if held { Ok(()) } else { self.let_go(inode) }
    }

    /// Nothing holds an inode without names any more.
    pub(super) fn let_go(&mut self, inode: InodeId) -> Result<(), Error> {
        if self.keeps_nameless {
            return Ok(());
        }
        let row = self.inodes.remove(&inode).ok_or(Error::Stale(inode))?;
        if self.is_shared {
            self.buried.insert(inode, row);
            return Ok(());
        }
        if let Some(leaving) = self.trash.held.remove(&inode) {
            self.trash.removed.insert(inode, (row, leaving));
        }
        Ok(())
    }

    fn had_something(&self, directory: InodeId) -> bool {
        let mut removed = self.trash.removed.values();
        removed.any(|(_, leaving)| leaving.directory == directory)
    }

    pub(super) fn restore(&mut self, who: &Credentials, restore: &Restore) -> StepResult {
        let at = restore.place.parent;
        if self.find(who, &restore.place)?.is_some() {
            return Err(Error::Exists);
        }
        self.may_add(who, at)?;
        let inode = restore.inode;
        let found = self.trash.removed.get(&inode);
        let (row, leaving) = found.ok_or(Error::NotTrashed(inode))?;
        if ![0, row.uid, leaving.by].contains(&who.uid.0) {
            return Err(Error::NotPermitted);
        }
        let mut row = row.clone();
        self.trash.removed.remove(&inode);
        let mut directories = 0;
        row.links = 1;
        if let ModelKind::Directory { parent, .. } = &mut row.kind {
            *parent = at;
            row.links = 2;
            directories = 1;
        }
        self.inodes.insert(inode, row);
        self.add_links(at, directories)?;
        let name = restore.place.name.current.bytes.clone();
        self.entries_mut(at)?.insert(name, inode);
        Ok(vec![inode, at])
    }

    pub(super) fn purge(&mut self, who: &Credentials, inodes: &[InodeId]) -> StepResult {
        if inodes.len() > TRASH_PURGED_MAX {
            let limit = TRASH_PURGED_MAX as u32;
            return Err(Error::TooMany { limit });
        }
        for inode in inodes {
            let Some((row, _)) = self.trash.removed.get(inode) else {
                continue;
            };
            if ![0, row.uid].contains(&who.uid.0) {
                return Err(Error::NotPermitted);
            }
            if self.had_something(*inode) {
                return Err(Error::NotEmpty);
            }
            self.trash.removed.remove(inode);
        }
        Ok(Vec::new())
    }
}
