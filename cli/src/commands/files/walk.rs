//! Paths of the volume as inodes: from the root, name by name.
//!
//! Symbolic links on the way are not followed: otherwise a writer of the volume could lead a
//! command elsewhere. `.` is skipped and `..` goes back, as typed.

use super::refused;
use crate::arguments::PathOrId;
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use quorumfs_gateway::vfs::{Attributes, DirectoryEntry, FileSystem, HandleId, InodeId};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Entries to ask for at a time.
const ENTRIES_MAX: usize = 512;

/// The names of a path, from the root.
pub(in crate::commands) fn names(path: &Path) -> Vec<&OsStr> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => names.push(name),
            Component::ParentDir => drop(names.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    names
}

/// The path in messages: absolute, without `.` and `..`.
pub(in crate::commands) fn shown(path: &Path) -> PathBuf {
    let mut shown = PathBuf::from("/");
    shown.extend(names(path));
    shown
}

/// Something in messages: its path, or its id.
pub(super) fn named(what: &PathOrId) -> PathBuf {
    match what {
        PathOrId::Path(path) => shown(path),
        PathOrId::Id(inode) => format!("id:{}", inode.0).into(),
    }
}

/// The inode at `path`.
pub(in crate::commands) async fn find(fs: &FileSystem, path: &Path) -> CommandResult<Attributes> {
    let mut here = fs.root();
    let names = names(path);
    let mut found = fs
        .getattr(here)
        .await
        .map_err(|error| refused(path, &error))?;
    for name in names {
        found = child(fs, here, name.as_bytes(), path)
            .await?
            .ok_or_else(|| missing(path))?;
        here = found.inode;
    }
    Ok(found)
}

/// The directory that holds the last name of `path`, and that name.
pub(super) async fn parent<'a>(
    fs: &FileSystem,
    path: &'a Path,
) -> CommandResult<(InodeId, &'a OsStr)> {
    let mut names = names(path);
    let Some(last) = names.pop() else {
        let message = format!("{} is the volume's root", path.display());
        return Err(Failure::new(Exit::Path, message).hint("name something in it"));
    };
    let parent: PathBuf = names.iter().collect();
    Ok((find(fs, &parent).await?.inode, last))
}

/// The entry called `name`, if there is one.
pub(in crate::commands) async fn child(
    fs: &FileSystem,
    directory: InodeId,
    name: &[u8],
    path: &Path,
) -> CommandResult<Option<Attributes>> {
    fs.lookup(&fs.this_process(), directory, name)
        .await
        .map_err(|error| refused(path, &error))
}

/// A directory that is being listed, a page at a time.
pub(super) struct Listed<'a> {
    fs: &'a FileSystem,
    handle: HandleId,
    offset: u64,
    path: &'a Path,
}

impl<'a> Listed<'a> {
    /// Opens it; `path` is for messages.
    pub(super) async fn open(
        fs: &'a FileSystem,
        directory: InodeId,
        path: &'a Path,
    ) -> CommandResult<Self> {
        let opened = fs.opendir(&fs.this_process(), directory, false).await;
        Ok(Self {
            fs,
            handle: opened.map_err(|error| refused(path, &error))?,
            offset: 0,
            path,
        })
    }

    /// The next entries but `.` and `..`; none at the end.
    pub(super) async fn page(&mut self) -> CommandResult<Vec<(DirectoryEntry, Attributes)>> {
        loop {
            let page = self
                .fs
                .readdir_plus(self.handle, self.offset, ENTRIES_MAX)
                .await;
            let mut page = page.map_err(|error| refused(self.path, &error))?;
            let Some((last, _)) = page.last() else {
                return Ok(page);
            };
            self.offset = last.cookie.0;
            page.retain(|(entry, _)| entry.name != b"." && entry.name != b"..");
            if !page.is_empty() {
                return Ok(page);
            }
        }
    }
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.fs.leave_directory(self.handle);
    }
}

/// All entries of a directory but `.` and `..`, sorted by name.
pub(super) async fn entries(
    fs: &FileSystem,
    directory: InodeId,
    path: &Path,
) -> CommandResult<Vec<(DirectoryEntry, Attributes)>> {
    let mut listed = Listed::open(fs, directory, path).await?;
    let mut all = Vec::new();
    loop {
        let page = listed.page().await?;
        if page.is_empty() {
            break;
        }
        all.extend(page);
    }
    all.sort_by(|(left, _), (right, _)| left.name.cmp(&right.name));
    Ok(all)
}

pub(in crate::commands) fn missing(path: &Path) -> Failure {
    let message = format!(
        "{}: no such file or directory in the volume",
        path.display()
    );
    Failure::new(Exit::Path, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_start_at_the_root_however_they_are_typed() {
        for (typed, expected) in [
            ("a/b", "/a/b"),
            ("/a//b/", "/a/b"),
            ("./a/../b", "/b"),
            ("../..", "/"),
            ("", "/"),
        ] {
            assert_eq!(shown(Path::new(typed)), Path::new(expected), "{typed}");
        }
    }
}
