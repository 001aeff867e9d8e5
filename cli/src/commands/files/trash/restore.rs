//! `trash restore`: from the trash to the old place, or to another directory.
//!
//! One inode is one ordered operation. Directories above come first, if they are in the trash too;
//! then the thing itself, and if it is a directory all that was removed from it, level by level. A
//! command that was killed has restored a part of the tree; the same command goes on with it,
//! because a directory that is not in the trash stands for all that was removed from it.

use super::super::walk::{Listed, child, find, named, shown};
use super::super::{CommandProgress, closing, counted, refused};
use super::path::{name_of, removed_at, removed_from};
use crate::arguments::{General, PathOrId, TrashRestoreArguments};
use crate::commands::opened::Opened;
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use quorumfs_gateway::vfs::{Attributes, FileSystem, FileType, InTrash, InodeId, VfsError};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use tokio::task::JoinSet;

/// How many files are restored at once.
const UNDER_WAY_MAX: usize = 64;
/// Directories above one another that are restored.
const DEPTH_MAX: usize = 1024;

/// A directory to which things come back.
struct Level {
    /// What was removed from here.
    source: InodeId,
    /// Comes back here: it is the same directory, or one that has its name now.
    target: InodeId,
    path: PathBuf,
    /// Whether it was in the trash a moment ago, so that nothing is in it yet.
    is_new: bool,
}

/// Runs `trash restore`.
pub(super) async fn restore(
    general: &General,
    arguments: &TrashRestoreArguments,
    output: Output,
) -> CommandResult {
    let opened = Opened::for_a_command(general).await?;
    let mut restoring = Restoring {
        fs: opened.file_system(),
        progress: CommandProgress::new(output),
        files: JoinSet::new(),
        older: 0,
    };
    let outcome = restoring.all(arguments).await;
    let Restoring {
        progress, older, ..
    } = restoring;
    closing(opened, outcome).await?;
    progress.end(|summary| {
        let restored = format!("Restored {}.", counted(summary.done));
        match older {
            0 => restored,
            _ => format!(
                "{restored} {older} older of the same name stay in the trash: `quorumfs trash ls`."
            ),
        }
    })
}

struct Restoring<'a> {
    fs: &'a FileSystem,
    progress: CommandProgress,
    files: JoinSet<(PathBuf, Result<Attributes, VfsError>)>,
    /// Entries of a name of which a newer one was restored.
    older: u64,
}

impl Restoring<'_> {
    async fn all(&mut self, arguments: &TrashRestoreArguments) -> CommandResult<()> {
        let to = match &arguments.to {
            None => None,
            Some(directory) => Some(self.directory(directory).await?),
        };
        for what in &arguments.what {
            let path = named(what);
            if let Err(failure) = self.one(what, &path, to.as_ref()).await {
                self.progress.failed(&path, failure)?;
            }
        }
        Ok(())
    }

    async fn directory(&self, path: &Path) -> CommandResult<(InodeId, PathBuf)> {
        let path = shown(path);
        let found = find(self.fs, &path).await?;
        if found.file_type() != FileType::Directory {
            let message = format!("{} is no directory", path.display());
            return Err(Failure::new(Exit::Path, message).hint("name a directory with --to"));
        }
        Ok((found.inode, path))
    }

    async fn one(
        &mut self,
        what: &PathOrId,
        path: &Path,
        to: Option<&(InodeId, PathBuf)>,
    ) -> CommandResult<()> {
        let item = match what {
            PathOrId::Path(path) => removed_at(self.fs, path).await?,
            PathOrId::Id(inode) => self.in_trash(*inode, path).await?,
        };
        let Some(item) = item else {
            return self.below_live(what, path).await;
        };
        let (target, path) = match (to, what) {
            (Some((directory, to)), _) => {
                let name = name_of(&item);
                (*directory, to.join(OsStr::from_bytes(&name)))
            }
            (None, _) => (self.come_back(item.directory, path).await?, path.to_owned()),
        };
        let inode = item.inode.inode;
        let name = name_of(&item);
        let restored = self
            .fs
            .restore(&self.fs.this_process(), inode, target, &name)
            .await;
        restored.map_err(|error| not_restored(&path, &error))?;
        self.progress.done(item.inode.size);
        if item.inode.file_type() != FileType::Directory {
            return Ok(());
        }
        self.levels(Level {
            source: inode,
            target: inode,
            path,
            is_new: true,
        })
        .await
    }

    async fn in_trash(&self, inode: InodeId, path: &Path) -> CommandResult<Option<InTrash>> {
        let found = self.fs.in_trash(&self.fs.this_process(), inode).await;
        found.map_err(|error| not_restored(path, &error))
    }

    /// It is not in the trash: a directory stands for what was removed from it.
    async fn below_live(&mut self, what: &PathOrId, path: &Path) -> CommandResult<()> {
        let nothing = || {
            let message = format!("{} is not in the trash", path.display());
            Failure::new(Exit::Path, message).hint("`quorumfs trash ls` shows what is")
        };
        let found = match what {
            PathOrId::Path(path) => find(self.fs, path).await,
            PathOrId::Id(inode) => {
                let found = self.fs.by_number(*inode).await;
                found.map_err(|error| refused(path, &error))
            }
        };
        let found = match found {
            Ok(found) if found.file_type() == FileType::Directory => found,
            Err(failure) if failure.exit != Exit::Path => return Err(failure),
            _ => return Err(nothing()),
        };
        let (before, failed) = (self.progress.summary.done, self.progress.summary.failed);
        self.levels(Level {
            source: found.inode,
            target: found.inode,
            path: path.to_owned(),
            is_new: false,
        })
        .await?;
        let summary = &self.progress.summary;
        match summary.done == before && summary.failed == failed {
            true => Err(nothing()),
            false => Ok(()),
        }
    }

    /// The directory that something was in, restored if it is in the trash, or the one that has its
    /// name now.
    async fn come_back(&mut self, directory: InodeId, path: &Path) -> CommandResult<InodeId> {
        let mut away = Vec::new();
        let mut at = directory;
        while let Some(item) = self.in_trash(at, path).await? {
            if away.len() >= DEPTH_MAX {
                break;
            }
            at = item.directory;
            away.push(item);
        }
        for item in away.into_iter().rev() {
            let name = name_of(&item);
            let inode = item.inode.inode;
            match self
                .fs
                .restore(&self.fs.this_process(), inode, at, &name)
                .await
            {
                Ok(_) => {
                    self.progress.done(0);
                    at = inode;
                }
                Err(error) if error.errno() == Errno::EXIST => {
                    let there = child(self.fs, at, &name, path).await?;
                    let there = there.filter(|it| it.file_type() == FileType::Directory);
                    at = there.ok_or_else(|| not_restored(path, &error))?.inode;
                }
                Err(error) => return Err(not_restored(path, &error)),
            }
        }
        Ok(at)
    }

    /// Restores all that was removed from a directory and from those below it, without recursion.
    async fn levels(&mut self, top: Level) -> CommandResult<()> {
        let mut waiting = vec![top];
        while let Some(level) = waiting.pop() {
            if let Err(failure) = self.level(&level, &mut waiting).await {
                self.progress.failed(&level.path, failure)?;
            }
        }
        while !self.files.is_empty() {
            self.next_file().await?;
        }
        Ok(())
    }

    async fn level(&mut self, level: &Level, waiting: &mut Vec<Level>) -> CommandResult<()> {
        let (items, older) = removed_from(self.fs, level.source, &level.path).await?;
        self.older += older;
        let mut known = BTreeSet::new();
        for (name, item) in items {
            let path = level.path.join(OsStr::from_bytes(&name));
            let inode = item.inode.inode;
            if item.inode.file_type() != FileType::Directory {
                self.file(inode, level.target, name, path).await?;
                continue;
            }
            let who = self.fs.this_process();
            let restored = self.fs.restore(&who, inode, level.target, &name);
            let (target, is_new) = match restored.await {
                Ok(_) => {
                    self.progress.done(0);
                    (inode, true)
                }
                Err(error) if error.errno() == Errno::EXIST => {
                    let there = child(self.fs, level.target, &name, &path).await?;
                    match there.filter(|it| it.file_type() == FileType::Directory) {
                        Some(there) => (there.inode, false),
                        None => {
                            self.progress.failed(&path, not_restored(&path, &error))?;
                            continue;
                        }
                    }
                }
                Err(error) => {
                    self.progress.failed(&path, not_restored(&path, &error))?;
                    continue;
                }
            };
            known.insert(target);
            waiting.push(Level {
                source: inode,
                target,
                path,
                is_new,
            });
        }
        if level.is_new {
            return Ok(());
        }
        self.live_below(level, &known, waiting).await
    }

    /// Directories that are there may have lost something as well.
    async fn live_below(
        &self,
        level: &Level,
        known: &BTreeSet<InodeId>,
        waiting: &mut Vec<Level>,
    ) -> CommandResult<()> {
        let mut listed = Listed::open(self.fs, level.target, &level.path).await?;
        loop {
            let page = listed.page().await?;
            if page.is_empty() {
                return Ok(());
            }
            for (entry, found) in page {
                if found.file_type() == FileType::Directory && !known.contains(&found.inode) {
                    waiting.push(Level {
                        source: found.inode,
                        target: found.inode,
                        path: level.path.join(OsStr::from_bytes(&entry.name)),
                        is_new: false,
                    });
                }
            }
        }
    }

    /// Begins to restore a file, once fewer than the maximum are in progress.
    async fn file(
        &mut self,
        inode: InodeId,
        target: InodeId,
        name: Vec<u8>,
        path: PathBuf,
    ) -> CommandResult<()> {
        while self.files.len() >= UNDER_WAY_MAX {
            self.next_file().await?;
        }
        let fs = self.fs.clone();
        self.files.spawn(async move {
            let restored = fs.restore(&fs.this_process(), inode, target, &name).await;
            (path, restored)
        });
        Ok(())
    }

    async fn next_file(&mut self) -> CommandResult<()> {
        match self.files.join_next().await {
            None => Ok(()),
            Some(Ok((_, Ok(restored)))) => {
                self.progress.done(restored.size);
                Ok(())
            }
            Some(Ok((path, Err(error)))) => {
                let failure = not_restored(&path, &error);
                self.progress.failed(&path, failure)
            }
            Some(Err(error)) => Err(Failure::new(Exit::Error, error.to_string())),
        }
    }
}

/// Why something was not restored.
fn not_restored(path: &Path, error: &VfsError) -> Failure {
    let said = |what: &str| Failure::new(Exit::Path, format!("{}: {what}", path.display()));
    match error.errno() {
        Errno::EXIST => said("the name is taken")
            .hint("restore it elsewhere with --to DIR, or rename what is there"),
        Errno::STALE | Errno::NOENT => {
            said("the directory that it was in is gone for good, or it is in the trash no more")
                .hint("`quorumfs trash ls` shows what is there; name a directory with --to DIR")
        }
        Errno::PERM => said("it belongs to another user, who removed it")
            .hint("its owner, the user who removed it, and root can restore it"),
        _ => refused(path, error),
    }
}
