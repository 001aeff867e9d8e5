//! `put`: copies files and directories of this machine into the volume.
//!
//! It copies regular files, directories and symbolic links, with their modes and modification
//! times; other inodes are reported and skipped. A copy is written under a temporary name
//! ([`Aside`]) and renamed once its content is on the clouds and committed: whatever happens
//! meanwhile, the user's name leads to the old content or to all of the copy. A file whose size and
//! time of modification are the same in the volume is not copied again, so that an interrupted copy
//! continues where it was.
//!
//! An existing file keeps its mode, and a directory its owner and times. New inodes get the mode of
//! the source, reduced by the user's umask and without set-id and sticky bits: the copy belongs to
//! the user who makes it. With `--archive` the superuser sets owners first and then all bits.
//!
//! Small files that are written at the same time share objects on the clouds, so many of them are
//! in progress at once: they are read one after the other, as fast as this machine allows, and
//! closed when the clouds have them. Directories, links and large files are copied one at a time.

mod copier;
mod tree;

use super::aside::Aside;
use super::source::Source;
use super::unfinished::Unfinished;
use super::walk::{child, find, missing, names, parent, shown};
use super::{CommandProgress, ROOT_NUMBER, Summary, Taking, closing};
use crate::arguments::{General, PutArguments};
use crate::commands::opened::{Access, Configured, Opened};
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use crate::stop::Stop;
use copier::Copier;
pub(super) use copier::Moved;
use quorumfs_gateway::vfs::{FileType, InodeId};
use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tree::Tree;

/// The target of a copy: a directory of the volume, and the name there.
struct PutTarget {
    directory: InodeId,
    name: Vec<u8>,
    path: PathBuf,
}

/// Runs the command.
pub(crate) async fn put(
    general: &General,
    arguments: &PutArguments,
    output: Output,
) -> CommandResult {
    let configured = Configured::read(general)?;
    let mut stop = Stop::of_a_command()?;
    let opened = tokio::select! {
        opened = Opened::open(&configured, Access::Command) => opened?,
        () = stop.wanted() => return Err(cancelled()),
    };
    let mut progress = CommandProgress::new(output);
    let copying = Copying {
        configured: &configured,
        opened: &opened,
        moved: Arc::default(),
        unfinished: None,
    };
    let outcome = copying.run(arguments, &mut progress, &mut stop).await;
    let outcome = outcome.map_err(|failure| progress.stopped(failure, Summary::copied));
    tokio::select! {
        closed = closing(opened, outcome) => closed?,
        // The servers end the session by themselves.
        () = stop.wanted() => return Err(cancelled()),
    }
    progress.end(Summary::copied)
}

/// A copy into the volume.
pub(super) struct Copying<'a> {
    pub(super) configured: &'a Configured,
    pub(super) opened: &'a Opened,
    pub(super) moved: Arc<Moved>,
    /// Where copies of large files are kept if this command does not finish them.
    pub(super) unfinished: Option<Arc<Unfinished>>,
}

impl Copying<'_> {
    /// Copies, and removes the remains if it was interrupted.
    pub(super) async fn run(
        self,
        arguments: &PutArguments,
        progress: &mut CommandProgress,
        stop: &mut Stop,
    ) -> CommandResult<()> {
        let fs = self.opened.file_system();
        let aside = tokio::select! {
            begun = Aside::begin(self.configured.state(), fs) => begun?,
            () = stop.wanted() => return Err(cancelled()),
        };
        let copier = Copier {
            fs: fs.clone(),
            aside: Arc::new(aside),
            taking: Taking {
                superuser: fs.this_process().uid == 0,
                ..Taking::new(arguments.archive, arguments.all)
            },
            caller: fs.this_process(),
            stopped: Arc::default(),
            moved: self.moved,
            unfinished: self.unfinished,
        };
        let outcome = {
            let copying = copier.all(arguments, progress);
            tokio::pin!(copying);
            tokio::select! {
                outcome = &mut copying => outcome,
                () = stop.wanted() => {
                    // Copies in progress are finished; a second signal ends the process at once.
                    copier.stopped.store(true, Ordering::Relaxed);
                    tokio::select! {
                        outcome = &mut copying => outcome,
                        () = stop.wanted() => Err(cancelled()),
                    }
                }
            }
        };
        tokio::select! {
            () = copier.aside.end(fs) => outcome,
            () = stop.wanted() => Err(cancelled()),
        }
    }
}

pub(super) fn cancelled() -> Failure {
    Failure::new(Exit::Cancelled, "stopped").hint("run it again to copy the rest")
}

impl Copier {
    async fn all(
        &self,
        arguments: &PutArguments,
        progress: &mut CommandProgress,
    ) -> CommandResult<()> {
        let target = shown(&arguments.target);
        let into = match find(&self.fs, &target).await {
            Ok(found) if found.file_type() == FileType::Directory => Some(found.inode),
            Ok(_) => None,
            Err(failure) if failure == missing(&target) => None,
            Err(failure) => return Err(failure),
        };
        if into.is_none() && arguments.sources.len() > 1 {
            let message = format!("{} is not a directory", target.display());
            return Err(Failure::new(Exit::Path, message).hint("several sources need a directory"));
        }
        if into.is_none() && arguments.target.as_os_str().as_bytes().ends_with(b"/") {
            let message = format!("{} is not a directory", target.display());
            return Err(Failure::new(Exit::Path, message)
                .hint("omit the trailing slash to give the copy that name"));
        }
        let mut taken = BTreeSet::new();
        let mut copies = Vec::new();
        for source in &arguments.sources {
            let place = match into {
                Some(directory) => {
                    let name = name_of(source)?;
                    if !taken.insert(name.clone()) {
                        let message =
                            format!("{} and another source have the same name", source.display());
                        return Err(Failure::new(Exit::Usage, message)
                            .hint("copy them one after the other"));
                    }
                    let path = target.join(std::ffi::OsStr::from_bytes(&name));
                    PutTarget {
                        directory,
                        name,
                        path,
                    }
                }
                None => {
                    let (directory, name) = parent(&self.fs, &target).await?;
                    PutTarget {
                        directory,
                        name: name.as_bytes().to_vec(),
                        path: target.clone(),
                    }
                }
            };
            copies.push((source, place));
        }
        let above = self.above(&target).await?;
        for (source, place) in copies {
            if source.as_os_str() == "-" {
                match self.standard_input(&place).await {
                    Ok(bytes) => progress.done(bytes),
                    Err(failure) => progress.failed(source, failure)?,
                }
                continue;
            }
            let mut tree = Tree::new(self, &above);
            tree.copy(Source::named(source), place, progress).await?;
        }
        Ok(())
    }

    /// The target and all of its parents, by the inode numbers that the kernel sees in a mount.
    async fn above(&self, target: &Path) -> CommandResult<BTreeSet<u64>> {
        let mut above = BTreeSet::from([ROOT_NUMBER, self.fs.root().0]);
        let mut here = self.fs.root();
        for name in names(target) {
            match child(&self.fs, here, name.as_bytes(), target).await? {
                Some(found) if found.file_type() == FileType::Directory => {
                    above.insert(found.inode.0);
                    here = found.inode;
                }
                _ => break,
            }
        }
        Ok(above)
    }
}

/// The name of a source in its target directory.
pub(super) fn name_of(source: &Path) -> CommandResult<Vec<u8>> {
    if source.as_os_str() == "-" {
        return Err(Failure::new(Exit::Usage, "standard input has no name")
            .hint("give the name of the new file as the target"));
    }
    let name_of = |path: &Path| path.file_name().map(|name| name.as_bytes().to_vec());
    // `.` and `..` have a name only once they are resolved.
    let name = name_of(source).or_else(|| name_of(&std::fs::canonicalize(source).ok()?));
    name.ok_or_else(|| {
        let message = format!("{} has no name for its copy", source.display());
        Failure::new(Exit::Usage, message).hint("give the copy a name of its own as the target")
    })
}

fn in_the_way(place: &PutTarget, of: &str) -> Failure {
    let message = format!("{} is in the way of a {of}", place.path.display());
    Failure::new(Exit::Path, message).hint("remove it first")
}
