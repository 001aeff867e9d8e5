//! The tree as it is promised: every name and inode, with the history of each.
//!
//! A name is a place: the inode of its directory, and its last component. So a directory can be
//! renamed without a change of what is below it. Inodes have their numbers, which all mounts show
//! and which are never used again.

use super::super::picture::{Picture, Time};
use super::promise::{FileBytes, History, Way};
use std::collections::BTreeMap;
use std::time::Instant;

/// The inode of a directory, and a name in it.
pub(super) type NamePlace = (u64, String);

/// What an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InodeKind {
    File,
    Link,
    Directory,
}

impl InodeKind {
    pub(super) fn of(picture: &Picture) -> Self {
        match (picture.is_file(), picture.is_directory()) {
            (true, _) => Self::File,
            (_, true) => Self::Directory,
            _ => Self::Link,
        }
    }
}

/// An inode, with the history of everything that is compared.
#[derive(Clone, Debug)]
pub(super) struct KnownInode {
    pub(super) kind: InodeKind,
    pub(super) mode: History<u32>,
    pub(super) size: History<u64>,
    pub(super) links: History<u64>,
    pub(super) modified: History<Time>,
    pub(super) label: History<Option<Vec<u8>>>,
    /// Of a link, its target.
    pub(super) content: History<FileBytes>,
}

impl KnownInode {
    /// As its mount shows it after its creation.
    pub(super) fn new(mounts: usize, picture: &Picture, content: FileBytes) -> Self {
        Self {
            kind: InodeKind::of(picture),
            mode: History::new(mounts, picture.mode),
            size: History::new(mounts, picture.length),
            links: History::new(mounts, 1),
            modified: History::new(mounts, picture.modified),
            label: History::new(mounts, None),
            content: History::new(mounts, content),
        }
    }

    /// Whether no name is left.
    pub(super) fn is_orphan(&self) -> bool {
        *self.links.now() == 0
    }

    /// The content was changed and committed by a mount, which shows this state of it.
    pub(super) fn changed(&mut self, by: usize, picture: &Picture, content: FileBytes) {
        self.size.change(Some(by), content.length());
        self.modified.change(Some(by), picture.modified);
        self.content.change(Some(by), content);
    }
}

/// All names and inodes.
#[derive(Clone, Debug)]
pub(super) struct ExpectedTree {
    mounts: usize,
    pub(super) root: u64,
    names: BTreeMap<NamePlace, History<Option<u64>>>,
    pub(super) inodes: BTreeMap<u64, KnownInode>,
    /// The directories below the root, with their places.
    directories: BTreeMap<u64, NamePlace>,
}

impl ExpectedTree {
    pub(super) fn new(mounts: usize, root: u64) -> Self {
        Self {
            mounts,
            root,
            names: BTreeMap::new(),
            inodes: BTreeMap::new(),
            directories: BTreeMap::new(),
        }
    }

    /// The history of a name.
    pub(super) fn name(&mut self, place: &NamePlace) -> &mut History<Option<u64>> {
        let names = self.names.entry(place.clone());
        names.or_insert_with(|| History::new(self.mounts, None))
    }

    /// The inode that has a name now.
    pub(super) fn at(&self, place: &NamePlace) -> Option<u64> {
        self.names.get(place).and_then(|name| *name.now())
    }

    /// The inodes that a mount may show at a name.
    pub(super) fn allowed(
        &mut self,
        mount: usize,
        place: &NamePlace,
        horizon: Instant,
    ) -> Vec<Option<u64>> {
        self.name(place).allowed(mount, horizon).copied().collect()
    }

    /// A mount showed an inode at a name.
    pub(super) fn show(
        &mut self,
        mount: usize,
        way: Way,
        place: &NamePlace,
        horizon: Instant,
        seen: Option<u64>,
    ) -> Result<bool, String> {
        self.name(place).show(mount, way, horizon, &seen)
    }

    pub(super) fn inode(&mut self, number: u64) -> &mut KnownInode {
        self.inodes.get_mut(&number).expect("it was made")
    }

    /// The path of a place from the root of the tree.
    pub(super) fn path(&self, place: &NamePlace) -> String {
        let mut path = place.1.clone();
        let mut above = place.0;
        while let Some((parent, name)) = self.directories.get(&above) {
            path = format!("{name}/{path}");
            above = *parent;
        }
        path
    }

    /// The path of a directory; that of the root is empty.
    pub(super) fn directory_path(&self, number: u64) -> String {
        let place = self.directories.get(&number);
        place.map_or_else(String::new, |place| self.path(place))
    }

    /// All directories, the root included.
    pub(super) fn directories(&self) -> Vec<u64> {
        let below = self.directories.keys().copied();
        std::iter::once(self.root).chain(below).collect()
    }

    /// The place of a directory.
    pub(super) fn place_of(&self, number: u64) -> &NamePlace {
        &self.directories[&number]
    }

    /// All names that there are, with their inodes.
    pub(super) fn live(&self) -> impl Iterator<Item = (&NamePlace, u64)> {
        let names = self.names.iter();
        names.filter_map(|(place, name)| Some((place, (*name.now())?)))
    }

    /// The names of files and links.
    pub(super) fn live_leaves(&self) -> Vec<NamePlace> {
        let is_leaf = |number: &u64| self.inodes[number].kind != InodeKind::Directory;
        let leaves = self.live().filter(|(_, number)| is_leaf(number));
        leaves.map(|(place, _)| place.clone()).collect()
    }

    /// The names of files.
    pub(super) fn live_files(&self) -> Vec<NamePlace> {
        let is_file = |number: &u64| self.inodes[number].kind == InodeKind::File;
        let files = self.live().filter(|(_, number)| is_file(number));
        files.map(|(place, _)| place.clone()).collect()
    }

    /// Every name of a directory that there is or was.
    pub(super) fn names_of(&self, directory: u64) -> Vec<NamePlace> {
        let from = (directory, String::new())..(directory + 1, String::new());
        self.names.range(from).map(|it| it.0.clone()).collect()
    }

    /// How many directories are in a directory.
    pub(super) fn directories_in(&self, directory: u64) -> u64 {
        let places = self.directories.values();
        places.filter(|(parent, _)| *parent == directory).count() as u64
    }

    /// A new inode, which has no name yet.
    pub(super) fn add(&mut self, picture: &Picture, content: FileBytes) -> Result<(), String> {
        let inode = KnownInode::new(self.mounts, picture, content);
        match self.inodes.insert(picture.inode, inode) {
            None => Ok(()),
            Some(_) => Err(format!("inode {} was used before", picture.inode)),
        }
    }

    /// An inode loses a name. If the mount was certain which inode it was, it shows the new number
    /// of names at once.
    fn lose(&mut self, by: usize, place: &NamePlace, certain: bool) {
        let Some(number) = self.at(place) else {
            return;
        };
        self.directories.remove(&number);
        let inode = self.inode(number);
        let links = inode.links.now().saturating_sub(1);
        inode.links.change(certain.then_some(by), links);
    }

    /// A mount removed a name.
    pub(super) fn remove(&mut self, by: usize, place: &NamePlace, certain: bool) {
        self.lose(by, place, certain);
        self.name(place).change(Some(by), None);
    }

    /// A mount gave an inode another name.
    pub(super) fn link(&mut self, by: usize, place: &NamePlace, number: u64) {
        let inode = self.inode(number);
        let links = inode.links.now() + 1;
        inode.links.change(Some(by), links);
        self.name(place).change(Some(by), Some(number));
    }

    /// A new inode has its first name, which counts already.
    pub(super) fn bind_new(&mut self, by: usize, place: &NamePlace, number: u64) {
        self.name(place).change(Some(by), Some(number));
        if self.inode(number).kind == InodeKind::Directory {
            self.directories.insert(number, place.clone());
        }
    }

    /// A mount renamed an inode, over another one if there was one.
    pub(super) fn rename(&mut self, by: usize, from: &NamePlace, to: &NamePlace, certain: bool) {
        let moved = self.at(from);
        self.lose(by, to, certain);
        self.name(to).change(Some(by), moved);
        self.name(from).change(Some(by), None);
        let directory = moved.filter(|number| self.directories.contains_key(number));
        if let Some(number) = directory {
            self.directories.insert(number, to.clone());
        }
    }
}
