//! What mounts show, against the promises: names and attributes within the bound, content after a
//! close at once, and everything the same on all mounts once nothing changes.

use super::super::picture::Picture;
use super::hand::{CallResult, Hand};
use super::promise::{BrokenPromise, FileBytes, Kept, Way, first_difference};
use super::stage::Stage;
use super::tree::{InodeKind, NamePlace};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// How often others are asked whether they see a change.
pub(super) const POLL_EVERY: Duration = Duration::from_millis(5);

/// For how long a mount that has broken a promise is looked at.
const KEPT_AT_LAST_WITHIN: Duration = Duration::from_secs(10);

const FRESH: &str = "names and attributes are shown as they were at most the bound ago, and no \
                     mount goes back";
const CLOSE_TO_OPEN: &str =
    "an open after a close on any mount shows exactly that content and size";

/// What a watch waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Changed {
    Names,
    Attributes,
    Label,
}

impl<'a> Stage<'a> {
    pub(super) fn hand(&self, mount: usize) -> Hand<'a> {
        self.mounts.hand(mount, &self.home)
    }

    /// The answer to a question about a path; `None` if there is nothing.
    fn there<T>(
        &self,
        mount: usize,
        call: &str,
        path: &str,
        answer: CallResult<T>,
    ) -> Kept<Option<T>> {
        match answer {
            Ok(answer) => Ok(Some(answer)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(self.failed(mount, call, path, error)),
        }
    }

    fn shows_name(
        &mut self,
        mount: usize,
        way: Way,
        place: &NamePlace,
        horizon: Instant,
        seen: Option<u64>,
    ) -> Kept<bool> {
        let shown = self.tree.show(mount, way, place, horizon, seen);
        let path = self.tree.path(place);
        let broken = |expected| {
            let seen = format!("inode {seen:?} by {way:?}");
            self.broken(mount, FRESH, &path, format!("inode {expected}"), seen)
        };
        shown.map_err(broken)
    }

    /// A mount showed these attributes; whether they are the current ones.
    fn shows_attributes(
        &mut self,
        mount: usize,
        path: &str,
        seen: &Picture,
        began: Instant,
        exact: bool,
    ) -> Kept<bool> {
        let within = self.mounts.horizon(mount, began, false);
        let horizon = self.mounts.horizon(mount, began, exact);
        let Some(inode) = self.tree.inodes.get_mut(&seen.inode) else {
            let seen = format!("inode {}", seen.inode);
            return Err(self.broken(mount, FRESH, path, "an inode that was made", seen));
        };
        if InodeKind::of(seen) != inode.kind {
            let (kind, seen) = (inode.kind, InodeKind::of(seen));
            return Err(self.broken(mount, FRESH, path, format!("{kind:?}"), format!("{seen:?}")));
        }
        if inode.kind == InodeKind::Directory {
            return Ok(true);
        }
        let way = Way::Lookup;
        let shown = [
            ("mode", inode.mode.show(mount, way, within, &seen.mode)),
            ("size", inode.size.show(mount, way, horizon, &seen.length)),
            ("links", inode.links.show(mount, way, within, &seen.links)),
            (
                "mtime",
                inode.modified.show(mount, way, within, &seen.modified),
            ),
        ];
        let mut current = true;
        for (what, shown) in shown {
            match shown {
                Ok(is_current) => current &= is_current,
                Err(expected) => {
                    let promise = if exact && what == "size" {
                        CLOSE_TO_OPEN
                    } else {
                        FRESH
                    };
                    let (expected, seen) = (format!("{what} {expected}"), format!("{seen:?}"));
                    return Err(self.broken(mount, promise, path, expected, seen));
                }
            }
        }
        Ok(current)
    }

    /// What a mount shows at a path without opening it; whether that is current.
    pub(super) fn look(&mut self, mount: usize, place: &NamePlace) -> Kept<bool> {
        let (path, began) = (self.tree.path(place), Instant::now());
        let seen = self.hand(mount).stat(&path);
        let seen = self.there(mount, "stat", &path, seen)?;
        let horizon = self.mounts.horizon(mount, began, false);
        let number = seen.as_ref().map(|seen| seen.inode);
        let mut current = self.shows_name(mount, Way::Lookup, place, horizon, number)?;
        if let Some(seen) = &seen {
            current &= self.shows_attributes(mount, &path, seen, began, false)?;
        }
        Ok(current)
    }

    /// Opens a name on a mount; the inode that it shows need not be the current one of that name,
    /// but its size has to be current.
    pub(super) fn open(
        &mut self,
        mount: usize,
        place: &NamePlace,
        flags: OFlags,
    ) -> Kept<Option<(OwnedFd, u64)>> {
        let (path, began, hand) = (self.tree.path(place), Instant::now(), self.hand(mount));
        let file = hand.open(&path, flags);
        let horizon = self.mounts.horizon(mount, began, false);
        if file.as_ref().is_err_and(|error| *error == Errno::LOOP) {
            // It may still be a link to this mount.
            let allowed = self.tree.allowed(mount, place, horizon);
            if !allowed.iter().flatten().all(|number| self.is_file(*number)) {
                *self.counts.refused.entry("open").or_default() += 1;
                return Ok(None);
            }
        }
        let uncertain = self.tree.allowed(mount, place, horizon).len() > 1;
        if uncertain && file.as_ref().is_err_and(|error| self.mounts.allows(*error)) {
            return Ok(None);
        }
        let Some(file) = self.there(mount, "open", &path, file)? else {
            self.shows_name(mount, Way::Lookup, place, horizon, None)?;
            *self.counts.refused.entry("open").or_default() += 1;
            return Ok(None);
        };
        let seen = hand.state(&file);
        let seen = seen.map_err(|error| self.failed(mount, "fstat", &path, error))?;
        self.shows_name(mount, Way::Lookup, place, horizon, Some(seen.inode))?;
        self.shows_attributes(mount, &path, &seen, began, true)?;
        Ok(Some((file, seen.inode)))
    }

    /// Opens a name to change the inode; not if another mount has removed it already.
    pub(super) fn open_to_change(
        &mut self,
        mount: usize,
        place: &NamePlace,
        flags: OFlags,
    ) -> Kept<Option<(OwnedFd, u64)>> {
        let Some((file, number)) = self.open(mount, place, flags)? else {
            return Ok(None);
        };
        if self.tree.inode(number).is_orphan() {
            if !flags.contains(OFlags::WRONLY) {
                self.read_exactly(mount, &self.tree.path(place), &file, number, Instant::now())?;
            }
            self.hand(mount).close(file);
            return Ok(None);
        }
        Ok(Some((file, number)))
    }

    /// An open file has to have the content that was committed when it was opened.
    fn read_exactly(
        &mut self,
        mount: usize,
        path: &str,
        file: &OwnedFd,
        number: u64,
        opened: Instant,
    ) -> Kept {
        let seen = self.hand(mount).read_from(file, 0);
        let seen = seen.map_err(|error| self.failed(mount, "read", path, error))?;
        self.shows_content(mount, path, number, seen, opened)
    }

    fn shows_content(
        &mut self,
        mount: usize,
        path: &str,
        number: u64,
        seen: Vec<u8>,
        opened: Instant,
    ) -> Kept {
        let horizon = self.mounts.horizon(mount, opened, true);
        let (seen, inode) = (FileBytes::of(seen), self.tree.inode(number));
        let shown = inode.content.show(mount, Way::Lookup, horizon, &seen);
        self.counts.files += 1;
        self.counts.bytes += seen.length();
        shown.map(drop).map_err(|expected| {
            let now = &self.tree.inodes[&number].content.now().0;
            let seen = format!("{seen:?}, {}", first_difference(now, &seen.0));
            self.broken(mount, CLOSE_TO_OPEN, path, expected, seen)
        })
    }

    /// Opens and reads a file, or the target of a link.
    pub(super) fn read_at(&mut self, mount: usize, place: &NamePlace) -> Kept {
        let (path, began) = (self.tree.path(place), Instant::now());
        let Some(number) = self.tree.at(place) else {
            return self.look(mount, place).map(drop);
        };
        let horizon = self.mounts.horizon(mount, began, false);
        let allowed = self.tree.allowed(mount, place, horizon);
        if !allowed.iter().flatten().all(|number| self.is_file(*number)) {
            // Which inode the target belongs to is known only if it is a link in any case.
            self.look(mount, place)?;
            if allowed == [Some(number)] {
                let seen = self.hand(mount).read_link(&path);
                let seen = seen.map_err(|error| self.failed(mount, "readlink", &path, error))?;
                self.shows_content(mount, &path, number, seen, began)?;
            }
            return Ok(());
        }
        if let Some((file, number)) = self.open(mount, place, OFlags::RDONLY)? {
            self.read_exactly(mount, &path, &file, number, began)?;
            self.hand(mount).close(file);
        }
        Ok(())
    }

    /// A step that opens and reads.
    pub(super) fn read(&mut self, mount: usize) -> Kept {
        let Some(place) = self.draw_leaf() else {
            return self.create(mount);
        };
        self.note(mount, "read", &[&self.tree.path(&place)]);
        self.read_at(mount, &place)
    }

    /// A step that asks for attributes.
    pub(super) fn stat(&mut self, mount: usize) -> Kept {
        let place = self.draw_name();
        self.note(mount, "stat", &[&self.tree.path(&place)]);
        self.look(mount, &place).map(drop)
    }

    /// A step that asks for the extended attribute.
    pub(super) fn show_label(&mut self, mount: usize) -> Kept {
        let Some(place) = self.draw_file() else {
            return Ok(());
        };
        self.note(mount, "getxattr", &[&self.tree.path(&place)]);
        self.look_at_label(mount, &place).map(drop)
    }

    /// What a mount shows as the extended attribute of a file; whether it is current.
    fn look_at_label(&mut self, mount: usize, place: &NamePlace) -> Kept<bool> {
        let path = self.tree.path(place);
        let Some((file, number)) = self.open_to_change(mount, place, OFlags::RDONLY)? else {
            return Ok(false);
        };
        let (hand, began) = (self.hand(mount), Instant::now());
        let seen = hand.label(&file);
        hand.close(file);
        let seen = seen.map_err(|error| self.failed(mount, "getxattr", &path, error))?;
        let horizon = self.mounts.horizon(mount, began, false);
        let label = &mut self.tree.inode(number).label;
        let shown = label.show(mount, Way::Lookup, horizon, &seen);
        let broken = |expected| self.broken(mount, FRESH, &path, expected, format!("{seen:?}"));
        shown.map_err(broken)
    }

    /// A step that lists a directory.
    pub(super) fn list(&mut self, mount: usize) -> Kept {
        let directories = self.tree.directories();
        let directory = *self.random.pick(&directories).expect("there is the root");
        self.note(mount, "list", &[&self.tree.directory_path(directory)]);
        self.look_into(mount, directory, false)
    }

    /// What a mount lists: each name for itself, as a listing need not be atomic.
    fn look_into(&mut self, mount: usize, directory: u64, exact: bool) -> Kept {
        let (path, began) = (self.tree.directory_path(directory), Instant::now());
        let listed = self.hand(mount).list(&path);
        let mut listed = listed.map_err(|error| self.failed(mount, "readdir", &path, error))?;
        let horizon = self.mounts.horizon(mount, began, exact);
        for place in self.tree.names_of(directory) {
            let seen = listed.remove(&place.1);
            if !self.reserved.contains(&place) {
                self.shows_name(mount, Way::Listing, &place, horizon, seen)?;
            }
        }
        listed.retain(|name, _| !self.reserved.contains(&(directory, name.clone())));
        match listed.is_empty() {
            true => Ok(()),
            false => Err(self.broken(mount, FRESH, &path, "no other name", format!("{listed:?}"))),
        }
    }

    /// Before a change that is watched: the others know the state before it.
    pub(super) fn draw_watch(&mut self, mount: usize, places: &[&NamePlace]) -> Kept<bool> {
        if !self.random.chance(1, 3) {
            return Ok(false);
        }
        for other in self.others(mount) {
            for place in places {
                self.look(other, place)?;
            }
        }
        Ok(true)
    }

    /// Waits until all others show a change, which was acknowledged now, and measures how long each
    /// takes. What is shown too late is found by the look itself, so that this ends.
    pub(super) fn watch(&mut self, mount: usize, places: &[&NamePlace], changed: Changed) -> Kept {
        let (acknowledged, mut waiting) = (Instant::now(), self.others(mount));
        while !waiting.is_empty() {
            let mut still = Vec::new();
            for other in waiting {
                let mut current = true;
                for place in places {
                    let looked = self.look_for(changed, other, place);
                    current &= looked.map_err(|broken| self.how_long(broken, changed, place))?;
                }
                let delays = match changed {
                    Changed::Names => &mut self.counts.names,
                    _ => &mut self.counts.attributes,
                };
                match current {
                    true => delays.add(acknowledged.elapsed()),
                    false => still.push(other),
                }
            }
            waiting = still;
            if !waiting.is_empty() {
                std::thread::sleep(POLL_EVERY);
            }
        }
        Ok(())
    }

    fn look_for(&mut self, changed: Changed, mount: usize, place: &NamePlace) -> Kept<bool> {
        match changed {
            Changed::Label => self.look_at_label(mount, place),
            _ => self.look(mount, place),
        }
    }

    /// Goes on looking after a promise was broken, so that the report tells a late mount from one
    /// that never learns.
    fn how_long(
        &mut self,
        mut broken: Box<BrokenPromise>,
        changed: Changed,
        place: &NamePlace,
    ) -> Box<BrokenPromise> {
        let began = Instant::now();
        while began.elapsed() < KEPT_AT_LAST_WITHIN {
            if let Ok(true) = self.look_for(changed, broken.mount, place) {
                let late = began.elapsed().as_millis();
                broken.seen.push_str(&format!("; current {late} ms later"));
                return broken;
            }
            std::thread::sleep(POLL_EVERY);
        }
        broken.seen.push_str("; not current ten seconds later");
        broken
    }

    /// After quiescence every mount has exactly this tree, with all attributes and content.
    pub(super) fn compare(&mut self) -> Kept {
        std::thread::sleep(self.mounts.bound);
        self.counts.step("compare everything");
        let mut first: Option<(usize, BTreeMap<String, Picture>)> = None;
        let answering: Vec<_> = self.answering().collect();
        for mount in answering {
            let directories = self.compare_on(mount)?;
            let Some((reference, expected)) = &first else {
                first = Some((mount, directories));
                continue;
            };
            for (path, seen) in &directories {
                let of = |it: &Picture| (it.inode, it.mode, it.links, it.modified);
                let expected = &expected[path];
                if of(seen) != of(expected) {
                    let promise = "after quiescence all mounts show the same directories";
                    let expected = format!("as on mount {reference}: {expected:?}");
                    return Err(self.broken(mount, promise, path, expected, format!("{seen:?}")));
                }
            }
        }
        Ok(())
    }

    /// Compares a whole mount with the tree; returns the attributes of its directories.
    fn compare_on(&mut self, mount: usize) -> Kept<BTreeMap<String, Picture>> {
        let mut directories = BTreeMap::new();
        for number in self.tree.directories() {
            self.look_into(mount, number, true)?;
            let path = self.tree.directory_path(number);
            let seen = self.hand(mount).stat(&path);
            let seen = seen.map_err(|error| self.failed(mount, "stat", &path, error))?;
            let (links, expected) = (seen.links, 2 + self.tree.directories_in(number));
            if links != expected {
                let expected = format!("{expected} links");
                return Err(self.broken(mount, FRESH, &path, expected, format!("{links} links")));
            }
            directories.insert(path, seen);
        }
        for place in self.tree.live_leaves() {
            let began = Instant::now();
            let current = self.look(mount, &place)?;
            let path = self.tree.path(&place);
            if !current {
                let expected = "the last state, as nothing has changed for longer than the bound";
                let seen = format!("an older one, {} ms ago", began.elapsed().as_millis());
                return Err(self.broken(mount, FRESH, &path, expected, seen));
            }
            self.read_at(mount, &place)?;
            if self
                .tree
                .at(&place)
                .is_some_and(|number| self.is_file(number))
            {
                self.look_at_label(mount, &place)?;
            }
        }
        Ok(directories)
    }
}
