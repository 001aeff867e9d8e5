//! The steps that change something: each is executed by one mount, checked against the tree as it
//! is, and noted in it once the mount has acknowledged it.
//!
//! Attributes and content are changed through a descriptor, whose inode is known. So a step on a
//! name that another mount has just replaced is noted for the inode that it changed.

use super::super::picture::Picture;
use super::look::Changed;
use super::promise::{FileBytes, Kept};
use super::stage::Stage;
use super::tree::NamePlace;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::time::Instant;

/// Directories below the root: at least and at most.
const DIRECTORIES_MIN: usize = 2;
const DIRECTORIES_MAX: usize = 6;
const DIRECTORY_NAMES: usize = 12;
/// A write may begin this far after the end, and leave a hole.
const GAP_MAX: u64 = 5000;
const TARGET_MAX: u64 = 200;
const ATOMIC: &str = "names are created, replaced and removed atomically, and by one mount each";
const AT_ONCE: &str = "a mount shows its own changes at once";

/// A file that is open to be changed.
struct BegunChange {
    place: NamePlace,
    path: String,
    file: OwnedFd,
    number: u64,
    watched: bool,
}

impl Stage<'_> {
    /// The result of a call that has to succeed.
    fn must<T>(&self, mount: usize, call: &str, path: &str, result: Result<T, Errno>) -> Kept<T> {
        result.map_err(|error| self.failed(mount, call, path, error))
    }

    /// Commits by a sync or by the close, and notes the new content.
    fn commit(
        &mut self,
        mount: usize,
        path: &str,
        (file, number): (OwnedFd, u64),
        now: Vec<u8>,
    ) -> Kept {
        let hand = self.hand(mount);
        if self.random.chance(1, 3) {
            self.must(mount, "fsync", path, hand.sync(&file))?;
        }
        let seen = self.must(mount, "fstat", path, hand.state(&file))?;
        if seen.length != now.len() as u64 || seen.inode != number {
            let expected = format!("inode {number} of {} bytes", now.len());
            return Err(self.broken(mount, AT_ONCE, path, expected, format!("{seen:?}")));
        }
        hand.close(file);
        self.tree
            .inode(number)
            .changed(mount, &seen, FileBytes::of(now));
        Ok(())
    }

    /// After a change of content: often another mount reads it at once.
    fn changed(&mut self, mount: usize, place: &NamePlace, watched: bool) -> Kept {
        if watched {
            self.watch(mount, &[place], Changed::Attributes)?;
        }
        if self.random.chance(1, 2) {
            let others = self.others(mount);
            if let Some(other) = self.random.pick(&others) {
                self.read_at(*other, place)?;
            }
        }
        Ok(())
    }

    /// Something new has a name: it was not there, and the inode is new.
    fn note_new(
        &mut self,
        mount: usize,
        place: &NamePlace,
        seen: &Picture,
        content: FileBytes,
    ) -> Kept {
        let path = self.tree.path(place);
        if let Some(before) = self.tree.at(place) {
            let expected = format!("EEXIST, as inode {before} has that name");
            return Err(self.broken(mount, ATOMIC, &path, expected, "success"));
        }
        let added = self.tree.add(seen, content);
        added.map_err(|error| self.broken(mount, ATOMIC, &path, "a new inode", error))?;
        self.tree.bind_new(mount, place, seen.inode);
        Ok(())
    }

    pub(super) fn create(&mut self, mount: usize) -> Kept {
        let place = match self.random.chance(9, 10) {
            true => self.draw_free_name(),
            false => Some(self.draw_name()),
        };
        let Some(place) = place else {
            return self.unlink(mount);
        };
        let (path, bytes) = (self.tree.path(&place), self.draw_bytes());
        self.note(mount, "create", &[&path]);
        let watched = self.draw_watch(mount, &[&place])?;
        let (began, hand) = (Instant::now(), self.hand(mount));
        let file = match hand.create(&path) {
            Ok(file) => file,
            Err(error) => return self.refused((mount, "create"), &place, began, error),
        };
        let seen = self.must(mount, "fstat", &path, hand.state(&file))?;
        let number = seen.inode;
        self.note_new(mount, &place, &seen, FileBytes::default())?;
        if !bytes.is_empty() {
            self.must(mount, "write", &path, hand.write(&file, &bytes))?;
        }
        self.commit(mount, &path, (file, number), bytes)?;
        if watched {
            self.watch(mount, &[&place], Changed::Names)?;
        }
        self.changed(mount, &place, false)
    }

    /// A file that is opened to be changed, and its path; nothing if there is none.
    fn begin_change(
        &mut self,
        mount: usize,
        kind: &'static str,
        flags: OFlags,
    ) -> Kept<Option<BegunChange>> {
        let Some(place) = self.draw_file() else {
            return Ok(None);
        };
        let path = self.tree.path(&place);
        self.note(mount, kind, &[&path]);
        let watched = self.draw_watch(mount, &[&place])?;
        let opened = self.open_to_change(mount, &place, flags)?;
        Ok(opened.map(|(file, number)| BegunChange {
            place,
            path,
            file,
            number,
            watched,
        }))
    }

    fn content_of(&self, number: u64) -> Vec<u8> {
        self.tree.inodes[&number].content.now().0.to_vec()
    }

    /// Replaces the whole content in place.
    pub(super) fn rewrite(&mut self, mount: usize) -> Kept {
        let begun = self.begin_change(mount, "rewrite", OFlags::WRONLY)?;
        let Some(BegunChange {
            place,
            path,
            file,
            number,
            watched,
        }) = begun
        else {
            return Ok(());
        };
        let (hand, bytes) = (self.hand(mount), self.draw_bytes());
        self.must(mount, "ftruncate", &path, hand.set_length(&file, 0))?;
        let empty = self.must(mount, "fstat", &path, hand.state(&file))?;
        let of = self.tree.inode(number);
        of.changed(mount, &empty, FileBytes::default());
        self.must(mount, "write", &path, hand.write(&file, &bytes))?;
        self.commit(mount, &path, (file, number), bytes)?;
        self.changed(mount, &place, watched)
    }

    /// Writes a range, which may begin after the end.
    pub(super) fn patch(&mut self, mount: usize) -> Kept {
        let begun = self.begin_change(mount, "patch", OFlags::RDWR)?;
        let Some(BegunChange {
            place,
            path,
            file,
            number,
            watched,
        }) = begun
        else {
            return Ok(());
        };
        let (hand, mut now, mut bytes) = (self.hand(mount), self.content_of(number), Vec::new());
        while bytes.is_empty() {
            bytes = self.draw_bytes();
        }
        let gap = if self.random.chance(1, 6) { GAP_MAX } else { 0 };
        let at = self.random.between(0, now.len() as u64 + gap) as usize;
        self.must(
            mount,
            "write",
            &path,
            hand.write_at(&file, at as u64, &bytes),
        )?;
        now.resize(now.len().max(at + bytes.len()), 0);
        now[at..at + bytes.len()].copy_from_slice(&bytes);
        self.commit(mount, &path, (file, number), now)?;
        self.changed(mount, &place, watched)
    }

    pub(super) fn append(&mut self, mount: usize) -> Kept {
        let begun = self.begin_change(mount, "append", OFlags::WRONLY | OFlags::APPEND)?;
        let Some(BegunChange {
            place,
            path,
            file,
            number,
            watched,
        }) = begun
        else {
            return Ok(());
        };
        let (hand, mut now, bytes) = (self.hand(mount), self.content_of(number), self.draw_bytes());
        self.must(mount, "write", &path, hand.write(&file, &bytes))?;
        now.extend_from_slice(&bytes);
        self.commit(mount, &path, (file, number), now)?;
        self.changed(mount, &place, watched)
    }

    pub(super) fn truncate(&mut self, mount: usize) -> Kept {
        let begun = self.begin_change(mount, "truncate", OFlags::RDWR)?;
        let Some(BegunChange {
            place,
            path,
            file,
            number,
            watched,
        }) = begun
        else {
            return Ok(());
        };
        let (hand, mut now) = (self.hand(mount), self.content_of(number));
        let length = self.random.between(0, now.len() as u64 + GAP_MAX);
        self.must(mount, "ftruncate", &path, hand.set_length(&file, length))?;
        now.resize(length as usize, 0);
        self.commit(mount, &path, (file, number), now)?;
        self.changed(mount, &place, watched)
    }

    /// Attributes that are set while this mount has the file open for writing are committed with
    /// its content.
    fn sync_held(&mut self, mount: usize, path: &str, number: u64) -> Kept {
        let hand = self.hand(mount);
        for held in &self.held {
            if held.writes && (held.mount, held.number) == (mount, number) {
                self.must(mount, "fsync", path, hand.sync(&held.file))?;
            }
        }
        Ok(())
    }

    pub(super) fn change_mode(&mut self, mount: usize) -> Kept {
        let begun = self.begin_change(mount, "chmod", OFlags::RDONLY)?;
        let Some(BegunChange {
            place,
            path,
            file,
            number,
            watched,
        }) = begun
        else {
            return Ok(());
        };
        let (hand, mode) = (self.hand(mount), self.random.below(0o1000) as u32);
        self.must(mount, "fchmod", &path, hand.set_mode(&file, mode))?;
        hand.close(file);
        self.sync_held(mount, &path, number)?;
        self.tree.inode(number).mode.change(Some(mount), mode);
        match watched {
            true => self.watch(mount, &[&place], Changed::Attributes),
            false => Ok(()),
        }
    }

    pub(super) fn change_times(&mut self, mount: usize) -> Kept {
        let begun = self.begin_change(mount, "utimes", OFlags::RDONLY)?;
        let Some(BegunChange {
            place,
            path,
            file,
            number,
            watched,
        }) = begun
        else {
            return Ok(());
        };
        let hand = self.hand(mount);
        let seconds = self.random.between(1, 1_600_000_000) as i64;
        let nanos = self.random.below(1_000_000_000) as u32;
        let set = hand.set_times(&file, seconds, nanos);
        self.must(mount, "futimens", &path, set)?;
        hand.close(file);
        self.sync_held(mount, &path, number)?;
        let modified = &mut self.tree.inode(number).modified;
        modified.change(Some(mount), (seconds, nanos));
        match watched {
            true => self.watch(mount, &[&place], Changed::Attributes),
            false => Ok(()),
        }
    }

    pub(super) fn change_label(&mut self, mount: usize) -> Kept {
        let begun = self.begin_change(mount, "setxattr", OFlags::RDONLY)?;
        let Some(BegunChange {
            place,
            path,
            file,
            number,
            watched,
        }) = begun
        else {
            return Ok(());
        };
        let hand = self.hand(mount);
        let has_one = self.tree.inode(number).label.now().is_some();
        let label = match has_one && self.random.chance(1, 3) {
            true => None,
            false => Some(format!("label {:x}", self.random.next()).into_bytes()),
        };
        match hand.set_label(&file, label.as_deref()) {
            // It may not have seen yet that there is one; and the program asked for no more.
            Err(Errno::NODATA) => *self.counts.refused.entry("removexattr").or_default() += 1,
            set => {
                self.must(mount, "setxattr", &path, set)?;
                self.sync_held(mount, &path, number)?;
                self.tree.inode(number).label.change(Some(mount), label);
            }
        }
        hand.close(file);
        match watched {
            true => self.watch(mount, &[&place], Changed::Label),
            false => Ok(()),
        }
    }

    pub(super) fn link(&mut self, mount: usize) -> Kept {
        let (Some(from), to) = (self.draw_file(), self.draw_name()) else {
            return self.create(mount);
        };
        let (path, new) = (self.tree.path(&from), self.tree.path(&to));
        self.note(mount, "link", &[&path, &new]);
        let watched = self.draw_watch(mount, &[&from, &to])?;
        let opened = self.open_to_change(mount, &from, OFlags::RDONLY)?;
        let Some((file, number)) = opened else {
            return Ok(());
        };
        let (began, hand) = (Instant::now(), self.hand(mount));
        let linked = hand.link(&file, &new);
        hand.close(file);
        match linked {
            Err(error @ Errno::EXIST) => {
                return self.refused((mount, "link"), &to, began, error);
            }
            linked => self.must(mount, "link", &new, linked)?,
        }
        if let Some(before) = self.tree.at(&to) {
            let expected = format!("EEXIST, as inode {before} has that name");
            return Err(self.broken(mount, ATOMIC, &new, expected, "success"));
        }
        self.tree.link(mount, &to, number);
        match watched {
            true => self.watch(mount, &[&to, &from], Changed::Names),
            false => Ok(()),
        }
    }

    pub(super) fn unlink(&mut self, mount: usize) -> Kept {
        let Some(place) = self.draw_leaf() else {
            return self.create(mount);
        };
        let path = self.tree.path(&place);
        self.note(mount, "unlink", &[&path]);
        let watched = self.draw_watch(mount, &[&place])?;
        let certain = self.is_certain(mount, &place);
        let began = Instant::now();
        if let Err(error) = self.hand(mount).unlink(&path) {
            return self.refused((mount, "unlink"), &place, began, error);
        }
        self.tree.remove(mount, &place, certain);
        match watched {
            true => self.watch(mount, &[&place], Changed::Names),
            false => Ok(()),
        }
    }

    pub(super) fn rename(&mut self, mount: usize) -> Kept {
        let (Some(from), to) = (self.draw_leaf(), self.draw_name()) else {
            return self.create(mount);
        };
        if from == to || self.may_be_one_inode(mount, &from, &to) {
            return self.read(mount);
        }
        let (path, new) = (self.tree.path(&from), self.tree.path(&to));
        self.note(mount, "rename", &[&path, &new]);
        let watched = self.draw_watch(mount, &[&from, &to])?;
        let certain = self.is_certain(mount, &to);
        let began = Instant::now();
        if let Err(error) = self.hand(mount).rename(&path, &new) {
            return self.refused((mount, "rename"), &from, began, error);
        }
        self.tree.rename(mount, &from, &to, certain);
        match watched {
            true => self.watch(mount, &[&to, &from], Changed::Names),
            false => Ok(()),
        }
    }

    /// A rename between two names of one inode does nothing, and the kernel decides that by what it
    /// has cached: the outcome is not known then.
    fn may_be_one_inode(&mut self, mount: usize, from: &NamePlace, to: &NamePlace) -> bool {
        let horizon = self.mounts.horizon(mount, Instant::now(), false);
        let others = self.tree.allowed(mount, to, horizon);
        let numbers = self.tree.allowed(mount, from, horizon);
        let mut numbers = numbers.into_iter().flatten();
        numbers.any(|number| others.contains(&Some(number)))
    }

    pub(super) fn make_link(&mut self, mount: usize) -> Kept {
        let Some(place) = self.draw_free_name() else {
            return self.unlink(mount);
        };
        let path = self.tree.path(&place);
        self.note(mount, "symlink", &[&path]);
        let length = self.random.between(1, TARGET_MAX) as usize;
        let target = format!("{:0length$x}", self.random.next());
        let watched = self.draw_watch(mount, &[&place])?;
        let (began, hand) = (Instant::now(), self.hand(mount));
        if let Err(error) = hand.make_link(&target, &path) {
            return self.refused((mount, "symlink"), &place, began, error);
        }
        let seen = self.must(mount, "stat", &path, hand.stat(&path))?;
        self.note_new(mount, &place, &seen, FileBytes::of(target.into_bytes()))?;
        match watched {
            true => self.watch(mount, &[&place], Changed::Names),
            false => Ok(()),
        }
    }

    /// A change of a directory was acknowledged: all mounts show it before the next step.
    fn settle(&mut self, mount: usize, places: &[&NamePlace]) -> Kept {
        self.watch(mount, places, Changed::Names)
    }

    fn draw_directory_name(&mut self) -> NamePlace {
        loop {
            let name = format!("d{}", self.random.index(DIRECTORY_NAMES));
            let place = (self.tree.root, name);
            if self.tree.at(&place).is_none() {
                return place;
            }
        }
    }

    pub(super) fn make_directory(&mut self, mount: usize) -> Kept {
        if self.tree.directories().len() > DIRECTORIES_MAX {
            return self.stat(mount);
        }
        let place = self.draw_directory_name();
        let path = self.tree.path(&place);
        self.note(mount, "mkdir", &[&path]);
        for other in self.others(mount) {
            self.look(other, &place)?;
        }
        let hand = self.hand(mount);
        self.must(mount, "mkdir", &path, hand.make_directory(&path))?;
        let seen = self.must(mount, "stat", &path, hand.stat(&path))?;
        self.note_new(mount, &place, &seen, FileBytes::default())?;
        self.settle(mount, &[&place])
    }

    pub(super) fn remove_directory(&mut self, mount: usize) -> Kept {
        let directories = self.tree.directories();
        let mut empty = directories[1..].to_vec();
        empty.retain(|number| self.tree.live().all(|(place, _)| place.0 != *number));
        if directories.len() <= DIRECTORIES_MIN + 1 {
            return self.stat(mount);
        }
        let Some(number) = self.random.pick(&empty).copied() else {
            return self.unlink(mount);
        };
        let place = self.tree.place_of(number).clone();
        let path = self.tree.path(&place);
        self.note(mount, "rmdir", &[&path]);
        let removed = self.hand(mount).remove_directory(&path);
        self.must(mount, "rmdir", &path, removed)?;
        self.tree.remove(mount, &place, true);
        self.settle(mount, &[&place])
    }

    pub(super) fn rename_directory(&mut self, mount: usize) -> Kept {
        let directories = self.tree.directories();
        let Some(number) = self.random.pick(&directories[1..]).copied() else {
            return self.stat(mount);
        };
        let (from, to) = (
            self.tree.place_of(number).clone(),
            self.draw_directory_name(),
        );
        let (path, new) = (self.tree.path(&from), self.tree.path(&to));
        self.note(mount, "rename a directory", &[&path, &new]);
        for other in self.others(mount) {
            self.look(other, &from)?;
            self.look(other, &to)?;
        }
        let renamed = self.hand(mount).rename(&path, &new);
        self.must(mount, "rename", &path, renamed)?;
        self.tree.rename(mount, &from, &to, true);
        self.settle(mount, &[&from, &to])
    }
}
