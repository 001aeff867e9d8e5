//! The model's names: create, link, unlink, rmdir, rename, by the manual pages.

use super::trash::Leaving;
use super::{Inode, Model, ModelKind, StepResult, in_group};
use crate::attributes::Credentials;
use crate::error::Error;
use crate::identity::InodeId;
use crate::operation::{Create, EntryPlace, NewInode, Remove, Rename, RenameMode};
use std::collections::BTreeMap;

impl Model {
    fn entries(&self, directory: InodeId) -> Result<&BTreeMap<Vec<u8>, InodeId>, Error> {
        match &self.get(directory)?.kind {
            ModelKind::Directory { entries, .. } => Ok(entries),
            _ => Err(Error::NotDirectory),
        }
    }

    pub(super) fn entries_mut(
        &mut self,
        at: InodeId,
    ) -> Result<&mut BTreeMap<Vec<u8>, InodeId>, Error> {
        match &mut self.get_mut(at)?.kind {
            ModelKind::Directory { entries, .. } => Ok(entries),
            _ => Err(Error::NotDirectory),
        }
    }

    /// The inode of an entry.
    pub(super) fn entry(&self, place: &EntryPlace) -> Result<Option<InodeId>, Error> {
        let entries = self.entries(place.parent)?;
        Ok(entries.get(&place.name.current.bytes).copied())
    }

    /// The inode of an entry, as seen by `who`.
    pub(super) fn find(
        &self,
        who: &Credentials,
        place: &EntryPlace,
    ) -> Result<Option<InodeId>, Error> {
        self.entries(place.parent)?;
        if !self.get(place.parent)?.allows(who, 1) {
            return Err(Error::Denied);
        }
        self.entry(place)
    }

    fn is_directory(&self, inode: InodeId) -> Result<bool, Error> {
        Ok(matches!(self.get(inode)?.kind, ModelKind::Directory { .. }))
    }

    pub(super) fn may_add(&self, who: &Credentials, directory: InodeId) -> Result<(), Error> {
        let row = self.get(directory)?;
        if row.links == 0 {
            return Err(Error::NotFound);
        }
        if row.allows(who, 3) {
            Ok(())
        } else {
            Err(Error::Denied)
        }
    }

    fn may_remove(&self, who: &Credentials, at: InodeId, inode: InodeId) -> Result<(), Error> {
        let (directory, row) = (self.get(at)?, self.get(inode)?);
        if !directory.allows(who, 3) {
            return Err(Error::Denied);
        }
        let concerned = [0, directory.uid, row.uid].contains(&who.uid.0);
        if directory.mode & 0o1000 != 0 && !concerned {
            return Err(Error::NotPermitted);
        }
        Ok(())
    }

    /// The model has no keys: names are what they were.
    pub(super) fn begin_reseal(&self, who: &Credentials, directory: InodeId) -> StepResult {
        self.entries(directory)?;
        self.may_add(who, directory)?;
        Ok(vec![directory])
    }

    pub(super) fn add_links(&mut self, inode: InodeId, by: i32) -> Result<(), Error> {
        let row = self.get_mut(inode)?;
        row.links = row.links.saturating_add_signed(by);
        Ok(())
    }

    pub(super) fn create(&mut self, who: &Credentials, create: &Create) -> StepResult {
        let at = create.place.parent;
        if let Some(found) = self.find(who, &create.place)? {
            if create.exclusive || create.kind != NewInode::File {
                return Err(Error::Exists);
            }
            if self.is_directory(found)? {
                return Err(Error::IsDirectory);
            }
            return Ok(vec![found, at]);
        }
        self.may_add(who, at)?;
        let parent = self.get(at)?;
        let directory = create.kind.is_directory();
        let mut mode = create.mode.0;
        let mut gid = who.gid.0;
        if parent.mode & 0o2000 != 0 {
            gid = parent.gid;
            let runs_as_group = mode & 0o2010 == 0o2010;
            if directory {
                mode |= 0o2000;
            } else if runs_as_group && who.uid.0 != 0 && !in_group(who, gid) {
                mode &= !0o2000;
            }
        }
        let kind = match &create.kind {
            NewInode::Directory => ModelKind::Directory {
                parent: at,
                entries: BTreeMap::new(),
            },
            NewInode::File => ModelKind::File {
                size: 0,
                inline: 0,
                bytes: BTreeMap::new(),
            },
            NewInode::Symlink { length, target } => {
                mode = 0o777;
                ModelKind::Symlink {
                    length: u64::from(*length),
                    sealed: target.bytes.len() as u64,
                }
            }
            NewInode::Fifo | NewInode::Socket => ModelKind::Special,
            NewInode::CharacterDevice(_) | NewInode::BlockDevice(_) if who.uid.0 != 0 => {
                return Err(Error::NotPermitted);
            }
            NewInode::CharacterDevice(_) | NewInode::BlockDevice(_) => ModelKind::Special,
        };
        let lists = if matches!(create.kind, NewInode::Symlink { .. }) {
            super::acl::Lists::default()
        } else {
            let lists = &self.get(at)?.lists;
            let (lists, given) = lists.inherited(mode, create.umask.0, directory);
            mode = given;
            lists
        };
        let id = InodeId(self.next);
        self.next = self.next.saturating_add(1);
        let row = Inode {
            born: self.trash.now,
            mode,
            uid: who.uid.0,
            gid,
            links: if directory { 2 } else { 1 },
            lists,
            extended: super::extended::Extended::default(),
            kind,
        };
        self.inodes.insert(id, row);
        self.add_links(at, i32::from(directory))?;
        let name = create.place.name.current.bytes.clone();
        self.entries_mut(at)?.insert(name, id);
        Ok(vec![id, at])
    }

    pub(super) fn link(
        &mut self,
        who: &Credentials,
        inode: InodeId,
        place: &EntryPlace,
    ) -> StepResult {
        let links = self.get(inode)?.links;
        if self.find(who, place)?.is_some() {
            return Err(Error::Exists);
        }
        if links == 0 {
            return Err(Error::NotFound);
        }
        self.may_add(who, place.parent)?;
        if self.is_directory(inode)? {
            return Err(Error::NotPermitted);
        }
        // As Linux protects files: a hard link needs write permission on the file.
        let row = self.get(inode)?;
        let own = [0, row.uid].contains(&who.uid.0);
        let gives_rights = row.mode & 0o4000 != 0 || row.mode & 0o2010 == 0o2010;
        let plain = matches!(row.kind, ModelKind::File { .. }) && !gives_rights;
        if !(own || plain && row.allows(who, 6)) {
            return Err(Error::NotPermitted);
        }
        self.add_links(inode, 1)?;
        let name = place.name.current.bytes.clone();
        self.entries_mut(place.parent)?.insert(name, inode);
        Ok(vec![inode, place.parent])
    }

    fn removable(&self, who: &Credentials, remove: &Remove) -> Result<InodeId, Error> {
        let found = self.find(who, &remove.place)?.ok_or(Error::NotFound)?;
        if remove.expected.is_some_and(|expected| expected != found) {
            return Err(Error::Changed);
        }
        self.may_remove(who, remove.place.parent, found)?;
        Ok(found)
    }

    /// Removes a link; an inode without any goes unless it is held.
    fn drop_link(&mut self, inode: InodeId, leaving: Leaving, held: bool) -> Result<(), Error> {
        let all = if self.is_directory(inode)? { -2 } else { -1 };
        self.add_links(inode, all)?;
        if self.get(inode)?.links == 0 {
            self.leave(inode, leaving, held)?;
        }
        Ok(())
    }

    pub(super) fn unlink(&mut self, who: &Credentials, remove: &Remove) -> StepResult {
        let found = self.removable(who, remove)?;
        if self.is_directory(found)? {
            return Err(Error::IsDirectory);
        }
        let at = remove.place.parent;
        self.entries_mut(at)?
            .remove(&remove.place.name.current.bytes);
        self.drop_link(found, leaving(at, who), remove.held)?;
        Ok(vec![found, at])
    }

    pub(super) fn remove_directory(&mut self, who: &Credentials, remove: &Remove) -> StepResult {
        let found = self.removable(who, remove)?;
        if !self.entries(found)?.is_empty() {
            return Err(Error::NotEmpty);
        }
        let at = remove.place.parent;
        self.entries_mut(at)?
            .remove(&remove.place.name.current.bytes);
        self.drop_link(found, leaving(at, who), remove.held)?;
        self.add_links(at, -1)?;
        Ok(vec![found, at])
    }

    /// Whether `inode` is `ancestor` or below it.
    fn is_below(&self, inode: InodeId, ancestor: InodeId) -> bool {
        let mut at = inode;
        loop {
            if at == ancestor {
                return true;
            }
            match self.kind(at) {
                Some(ModelKind::Directory { parent, .. }) if *parent != at => at = *parent,
                _ => return false,
            }
        }
    }

    pub(super) fn rename(&mut self, who: &Credentials, rename: &Rename) -> StepResult {
        let (from, to) = (rename.from.parent, rename.to.parent);
        self.entries(from)?;
        self.entries(to)?;
        let exchange = rename.mode == RenameMode::Exchange;
        let source = self.find(who, &rename.from);
        let target = self.find(who, &rename.to);
        // Both directories must be searchable before either entry is examined.
        let (source, target) = (source?, target?);
        let source = source.ok_or(Error::NotFound)?;
        let unexpected = rename
            .expected_source
            .is_some_and(|expected| expected != source)
            || rename
                .expected_target
                .is_some_and(|expected| expected != target);
        if unexpected {
            return Err(Error::Changed);
        }
        if rename.mode == RenameMode::NoReplace && target.is_some() {
            return Err(Error::Exists);
        }
        if (exchange && target.is_none()) || self.get(to)?.links == 0 {
            return Err(Error::NotFound);
        }
        if target == Some(source) {
            return Ok(vec![source, from, to]);
        }
        self.may_rename(who, rename, source, target)?;
        let directory = |model: &Self, inode| model.is_directory(inode).map(i32::from);
        let moved = directory(self, source)?;
        let (from_name, to_name) = (
            rename.from.name.current.bytes.clone(),
            rename.to.name.current.bytes.clone(),
        );
        let mut shown = vec![source];
        match target {
            Some(other) if exchange => {
                let back = directory(self, other)?;
                self.entries_mut(from)?.insert(from_name, other);
                self.add_links(from, back - moved)?;
                self.add_links(to, moved - back)?;
                self.set_parent(other, from)?;
                shown.push(other);
            }
            _ => {
                if let Some(other) = target {
                    let replaced = directory(self, other)?;
                    self.drop_link(other, leaving(to, who), rename.held)?;
                    self.add_links(to, -replaced)?;
                    shown.push(other);
                }
                self.entries_mut(from)?.remove(&from_name);
                self.add_links(from, -moved)?;
                self.add_links(to, moved)?;
            }
        }
        self.entries_mut(to)?.insert(to_name, source);
        self.set_parent(source, to)?;
        shown.extend([from, to]);
        Ok(shown)
    }

    fn may_rename(
        &self,
        who: &Credentials,
        rename: &Rename,
        source: InodeId,
        target: Option<InodeId>,
    ) -> Result<(), Error> {
        let (from, to) = (rename.from.parent, rename.to.parent);
        let exchange = rename.mode == RenameMode::Exchange;
        let moved = self.is_directory(source)?;
        if moved && self.is_below(to, source) {
            return Err(Error::IntoItself);
        }
        if let Some(other) = target
            && exchange
            && self.is_directory(other)?
            && self.is_below(from, other)
        {
            return Err(Error::IntoItself);
        }
        self.may_remove(who, from, source)?;
        // Changing a directory's `..` needs write permission on it.
        let may_move = |inode: InodeId| -> Result<(), Error> {
            let row = self.get(inode)?;
            let rewrites = from != to && matches!(row.kind, ModelKind::Directory { .. });
            if rewrites && !row.allows(who, 2) {
                return Err(Error::Denied);
            }
            Ok(())
        };
        match target {
            None => self.may_add(who, to)?,
            Some(other) => {
                self.may_remove(who, to, other)?;
                let onto_directory = self.is_directory(other)?;
                match (exchange, moved, onto_directory) {
                    (true, _, _) => may_move(other)?,
                    (false, true, false) => return Err(Error::NotDirectory),
                    (false, false, true) => return Err(Error::IsDirectory),
                    (false, true, true) if !self.entries(other)?.is_empty() => {
                        return Err(Error::NotEmpty);
                    }
                    _ => {}
                }
            }
        }
        may_move(source)
    }

    fn set_parent(&mut self, inode: InodeId, to: InodeId) -> Result<(), Error> {
        if let ModelKind::Directory { parent, .. } = &mut self.get_mut(inode)?.kind {
            *parent = to;
        }
        Ok(())
    }
}

fn leaving(directory: InodeId, who: &Credentials) -> Leaving {
    Leaving {
        directory,
        by: who.uid.0,
    }
}
