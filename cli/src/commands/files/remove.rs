//! `rm`: files, and with `--recursive` directories with all that is in them.

use super::walk::{child, entries, missing, parent, shown};
use super::{Progress, caller, closing, counted, refused};
use crate::arguments::{General, RmArguments};
use crate::commands::opened::Opened;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use quorumfs_gateway::vfs::{FileSystem, FileType, InodeId};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Something to remove, by its entry.
struct Doomed {
    directory: InodeId,
    name: Vec<u8>,
    inode: InodeId,
    kind: FileType,
    path: PathBuf,
    /// Its content is gone already.
    emptied: bool,
}

/// Removes.
pub(crate) async fn rm(general: &General, arguments: &RmArguments, output: Output) -> Outcome {
    let opened = Opened::for_a_command(general).await?;
    let mut progress = Progress::new(output);
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
    progress.end(|paths, _| format!("Removed {}.", counted(paths)))
}

async fn find(fs: &FileSystem, path: &Path, recursive: bool) -> Outcome<Doomed> {
    let (directory, name) = parent(fs, path).await?;
    let found = child(fs, directory, name.as_bytes(), path).await?;
    let found = found.ok_or_else(|| missing(path))?;
    if found.file_type() == FileType::Directory && !recursive {
        let message = format!("{} is a directory", path.display());
        return Err(Failure::new(Exit::Path, message).hint("say --recursive to remove it whole"));
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

/// Removes a tree, children before parents, without recursion.
async fn remove(fs: &FileSystem, doomed: Doomed, progress: &mut Progress) -> Outcome<()> {
    let mut waiting = vec![doomed];
    while let Some(mut doomed) = waiting.pop() {
        let failed = |error| refused(&doomed.path, &error);
        if doomed.kind != FileType::Directory {
            match fs
                .unlink(&caller(), doomed.directory, &doomed.name)
                .await
                .map_err(failed)
            {
                Ok(()) => progress.done(0),
                Err(failure) => progress.failed(&doomed.path, failure)?,
            }
        } else if doomed.emptied {
            match fs
                .rmdir(&caller(), doomed.directory, &doomed.name)
                .await
                .map_err(failed)
            {
                Ok(()) => progress.done(0),
                Err(failure) => progress.failed(&doomed.path, failure)?,
            }
        } else {
            let all = match entries(fs, doomed.inode, &doomed.path).await {
                Ok(all) => all,
                Err(failure) => {
                    progress.failed(&doomed.path, failure)?;
                    continue;
                }
            };
            doomed.emptied = true;
            let (directory, path) = (doomed.inode, doomed.path.clone());
            waiting.push(doomed);
            waiting.extend(all.into_iter().map(|(entry, found)| Doomed {
                directory,
                path: path.join(OsStr::from_bytes(&entry.name)),
                name: entry.name,
                inode: found.inode,
                kind: found.file_type(),
                emptied: false,
            }));
        }
    }
    Ok(())
}
