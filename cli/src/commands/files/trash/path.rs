//! Former paths: names through directories that are in the trash or not.

use super::super::refused;
use super::super::walk::{child, names};
use crate::failure::CommandResult;
use quorumfs_gateway::vfs::{FileSystem, FileType, InTrash, InodeId, VfsError};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Directories that are remembered; beyond it all are asked again.
const REMEMBERED_MAX: usize = 1 << 16;
/// Directories above one another that are followed.
const DEPTH_MAX: usize = 1024;
/// What stands for a part of a path that is not known.
pub(super) const UNKNOWN: &str = "?";

/// The name of something whose name does not decrypt any more.
pub(super) fn name_of(item: &InTrash) -> Vec<u8> {
    let unnamed = || format!("restored-{}", item.inode.inode).into_bytes();
    item.name.clone().unwrap_or_else(unnamed)
}

/// A directory, as part of a path.
#[derive(Clone)]
enum PathPart {
    Root,
    Below(InodeId, Vec<u8>),
    /// It is gone for good, or not shown to this user.
    Unknown,
}

/// Where something was.
pub(super) struct Place {
    /// Its former path, as far as it is known.
    pub(super) path: PathBuf,
    /// The directories above it.
    pub(super) above: Vec<InodeId>,
}

/// The former paths of what is in the trash.
pub(super) struct Paths<'a> {
    fs: &'a FileSystem,
    known: BTreeMap<InodeId, PathPart>,
}

impl<'a> Paths<'a> {
    pub(super) fn new(fs: &'a FileSystem) -> Self {
        Self {
            fs,
            known: BTreeMap::new(),
        }
    }

    /// Where it was.
    pub(super) async fn place(&mut self, item: &InTrash) -> CommandResult<Place> {
        let unnamed = || UNKNOWN.as_bytes().to_vec();
        let mut names = vec![item.name.clone().unwrap_or_else(unnamed)];
        let mut above = Vec::new();
        let mut at = item.directory;
        let mut top = UNKNOWN;
        while above.len() < DEPTH_MAX {
            match self.part(at).await? {
                PathPart::Root => {
                    above.push(at);
                    top = "/";
                    break;
                }
                PathPart::Below(parent, name) => {
                    above.push(at);
                    names.push(name);
                    at = parent;
                }
                PathPart::Unknown => {
                    above.push(at);
                    break;
                }
            }
        }
        let mut path = PathBuf::from(top);
        path.extend(names.iter().rev().map(|name| OsStr::from_bytes(name)));
        Ok(Place { path, above })
    }

    async fn part(&mut self, directory: InodeId) -> CommandResult<PathPart> {
        if directory == self.fs.root() {
            return Ok(PathPart::Root);
        }
        if let Some(known) = self.known.get(&directory) {
            return Ok(known.clone());
        }
        let part = match self.ask(directory).await {
            Ok(part) => part,
            // It is another user's, or gone.
            Err(VfsError::Refused { .. }) => PathPart::Unknown,
            Err(error) => return Err(refused(UNKNOWN.as_ref(), &error)),
        };
        if self.known.len() >= REMEMBERED_MAX {
            self.known.clear();
        }
        self.known.insert(directory, part.clone());
        Ok(part)
    }

    async fn ask(&self, directory: InodeId) -> Result<PathPart, VfsError> {
        if let Some(item) = self.fs.in_trash(&self.fs.this_process(), directory).await? {
            return Ok(match item.name {
                Some(name) => PathPart::Below(item.directory, name),
                None => PathPart::Unknown,
            });
        }
        Ok(match self.fs.name_of(directory).await? {
            Some((parent, name)) => PathPart::Below(parent, name),
            None => PathPart::Unknown,
        })
    }
}

/// All that was removed from a directory, by name: of several with one name the newest, and how
/// many older ones there are.
pub(super) async fn removed_from(
    fs: &FileSystem,
    directory: InodeId,
    path: &Path,
) -> CommandResult<(BTreeMap<Vec<u8>, InTrash>, u64)> {
    let mut newest: BTreeMap<Vec<u8>, InTrash> = BTreeMap::new();
    let mut older = 0;
    let mut after = None;
    loop {
        let page = fs.trashed_in(&fs.this_process(), directory, after).await;
        let (items, next) = page.map_err(|error| refused(path, &error))?;
        for item in items {
            let name = name_of(&item);
            match newest.get(&name) {
                Some(other) if other.at >= item.at => older += 1,
                Some(_) => {
                    older += 1;
                    newest.insert(name, item);
                }
                None => drop(newest.insert(name, item)),
            }
        }
        after = next;
        if after.is_none() {
            return Ok((newest, older));
        }
    }
}

/// What was removed from `path`: the newest, if there is any. Directories on the way may be in the
/// trash too, several of one name.
pub(super) async fn removed_at(fs: &FileSystem, path: &Path) -> CommandResult<Option<InTrash>> {
    let names = names(path);
    let Some((last, way)) = names.split_last() else {
        return Ok(None);
    };
    // Each with whether it is not in the trash.
    let mut here = vec![(fs.root(), true)];
    for name in way {
        let mut next = Vec::new();
        for (directory, is_live) in here {
            if is_live
                && let Some(found) = child(fs, directory, name.as_bytes(), path).await?
                && found.file_type() == FileType::Directory
            {
                next.push((found.inode, true));
            }
            for item in removed_called(fs, directory, name, path).await? {
                if item.inode.file_type() == FileType::Directory {
                    next.push((item.inode.inode, false));
                }
            }
        }
        here = next;
    }
    let mut found: Option<InTrash> = None;
    for (directory, _) in here {
        for item in removed_called(fs, directory, last, path).await? {
            if found.as_ref().is_none_or(|found| found.at < item.at) {
                found = Some(item);
            }
        }
    }
    Ok(found)
}

/// All that was removed from a directory and had this name.
async fn removed_called(
    fs: &FileSystem,
    directory: InodeId,
    name: &OsStr,
    path: &Path,
) -> CommandResult<Vec<InTrash>> {
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let page = fs.trashed_in(&fs.this_process(), directory, after).await;
        let (items, next) = page.map_err(|error| refused(path, &error))?;
        let called = |item: &InTrash| item.name.as_deref() == Some(name.as_bytes());
        found.extend(items.into_iter().filter(called));
        after = next;
        if after.is_none() {
            return Ok(found);
        }
    }
}
