//! `rm`: removes files, and with `--recursive` directories with all their content.

use super::walk::{Listed, child, missing, parent, shown};
use super::{CommandProgress, closing, counted, refused};
use crate::arguments::{General, RmArguments};
use crate::commands::opened::Opened;
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use quorumfs_gateway::vfs::{FileSystem, FileType, InodeId, VfsError};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use tokio::task::JoinSet;

/// How many names are removed at once.
const UNDER_WAY_MAX: usize = 256;

/// An entry to remove.
struct Doomed {
    directory: InodeId,
    name: Vec<u8>,
    inode: InodeId,
    kind: FileType,
    path: PathBuf,
    /// Whether its content is gone already.
    emptied: bool,
}

/// Runs the command.
pub(crate) async fn rm(
    general: &General,
    arguments: &RmArguments,
    output: Output,
) -> CommandResult {
    let opened = Opened::for_a_command(general).await?;
    let mut progress = CommandProgress::new(output);
    let mut outcome = Ok(());
    for path in &arguments.paths {
        let path = shown(path);
        match find(opened.file_system(), &path, arguments.recursive).await {
            Ok(doomed) => {
                outcome = outcome.and(remove(opened.file_system(), doomed, &mut progress).await);
            }
            Err(failure) => outcome = outcome.and(progress.failed(&path, failure)),
        }
    }
    closing(opened, outcome).await?;
    progress.end(|summary| format!("Removed {}.", counted(summary.done)))
}

async fn find(fs: &FileSystem, path: &Path, recursive: bool) -> CommandResult<Doomed> {
    let (directory, name) = parent(fs, path).await?;
    let found = child(fs, directory, name.as_bytes(), path).await?;
    let found = found.ok_or_else(|| missing(path))?;
    if found.file_type() == FileType::Directory && !recursive {
        let message = format!("{} is a directory", path.display());
        return Err(Failure::new(Exit::Path, message).hint("use --recursive to remove it whole"));
    }
    Ok(Doomed {
        directory,
        name: name.as_bytes().to_vec(),
        inode: found.inode,
        kind: found.file_type(),
        path: path.to_path_buf(),
        emptied: false,
    })
}

/// Removes a tree, children before parents, without recursion. Files are removed while their
/// directory is listed, many at once, so memory stays bounded.
async fn remove(
    fs: &FileSystem,
    doomed: Doomed,
    progress: &mut CommandProgress,
) -> CommandResult<()> {
    let mut waiting = vec![doomed];
    let mut under_way = UnderWay::default();
    while let Some(mut doomed) = waiting.pop() {
        if doomed.kind != FileType::Directory {
            under_way.begin(fs, doomed, progress).await?;
        } else if doomed.emptied {
            under_way.end(progress).await?;
            let removed = fs
                .rmdir(&fs.this_process(), doomed.directory, &doomed.name)
                .await;
            report(&doomed.path, removed, progress)?;
        } else {
            let (directory, path) = (doomed.inode, doomed.path.clone());
            let listed = Listed::open(fs, directory, &path).await;
            let mut listed = match listed {
                Ok(listed) => listed,
                Err(failure) => {
                    progress.failed(&doomed.path, failure)?;
                    continue;
                }
            };
            doomed.emptied = true;
            waiting.push(doomed);
            loop {
                let page = match listed.page().await {
                    Ok(page) if page.is_empty() => break,
                    Ok(page) => page,
                    Err(failure) => {
                        progress.failed(&path, failure)?;
                        break;
                    }
                };
                for (entry, found) in page {
                    let child = Doomed {
                        directory,
                        path: path.join(OsStr::from_bytes(&entry.name)),
                        name: entry.name,
                        inode: found.inode,
                        kind: found.file_type(),
                        emptied: false,
                    };
                    match child.kind {
                        FileType::Directory => waiting.push(child),
                        _ => under_way.begin(fs, child, progress).await?,
                    }
                }
            }
        }
    }
    under_way.end(progress).await
}

/// Reports the result for one path.
fn report(
    path: &Path,
    removed: Result<(), VfsError>,
    progress: &mut CommandProgress,
) -> CommandResult<()> {
    match removed {
        Ok(()) => {
            progress.done(0);
            Ok(())
        }
        Err(error) => progress.failed(path, refused(path, &error)),
    }
}

/// Files whose names are being removed.
#[derive(Default)]
struct UnderWay {
    files: JoinSet<(PathBuf, Result<(), VfsError>)>,
}

impl UnderWay {
    /// Removes one more, once fewer than the maximum are in progress.
    async fn begin(
        &mut self,
        fs: &FileSystem,
        doomed: Doomed,
        progress: &mut CommandProgress,
    ) -> CommandResult<()> {
        while self.files.len() >= UNDER_WAY_MAX {
            self.one(progress).await?;
        }
        let fs = fs.clone();
        self.files.spawn(async move {
            let removed = fs
                .unlink(&fs.this_process(), doomed.directory, &doomed.name)
                .await;
            (doomed.path, removed)
        });
        Ok(())
    }

    async fn one(&mut self, progress: &mut CommandProgress) -> CommandResult<()> {
        match self.files.join_next().await {
            None => Ok(()),
            Some(Ok((path, removed))) => report(&path, removed, progress),
            Some(Err(error)) => Err(Failure::new(Exit::Error, error.to_string())),
        }
    }

    /// Waits for all of them.
    async fn end(&mut self, progress: &mut CommandProgress) -> CommandResult<()> {
        while !self.files.is_empty() {
            self.one(progress).await?;
        }
        Ok(())
    }
}
