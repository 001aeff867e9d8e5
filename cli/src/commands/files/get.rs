//! `get`: files and directories of the volume onto this machine.
//!
//! What is written here is written under a name of its own and then renamed, so that a copy that
//! was cut short is never taken for the file. Names that come out of the volume are names, never
//! paths: one with a slash or `..` in it is refused.

use super::walk::{entries, find, shown};
use super::{CHUNK_BYTES, Progress, closing, counted, open, printable, refused};
use crate::arguments::{General, GetArguments};
use crate::commands::opened::Opened;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use quorumfs_gateway::vfs::{Attributes, FileSystem, FileType};
use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

/// Copies out.
pub(crate) async fn get(general: &General, arguments: &GetArguments, output: Output) -> Outcome {
    let into = arguments.target.is_dir();
    if !into && arguments.sources.len() > 1 {
        let message = format!("{} is not a directory", arguments.target.display());
        return Err(Failure::new(Exit::Usage, message).hint("several sources need a directory"));
    }
    let opened = Opened::to_read(general).await?;
    let mut progress = Progress::new(output);
    let mut outcome = Ok(());
    for source in &arguments.sources {
        let source = shown(source);
        let target = match source.file_name() {
            Some(name) if into => arguments.target.join(name),
            _ => arguments.target.clone(),
        };
        let got = get_tree(opened.file_system(), source, target, &mut progress).await;
        outcome = outcome.and(got);
    }
    closing(opened, outcome).await?;
    progress.end(|paths, bytes| format!("Copied {}, {bytes} bytes.", counted(paths)))
}

async fn get_tree(
    fs: &FileSystem,
    source: PathBuf,
    target: PathBuf,
    progress: &mut Progress,
) -> Outcome<()> {
    let found = match find(fs, &source).await {
        Ok(found) => found,
        Err(failure) => return progress.failed(&source, failure),
    };
    let mut waiting = vec![(source, target, found)];
    let mut modes = Vec::new();
    while let Some((source, target, found)) = waiting.pop() {
        match get_one(fs, &source, &target, &found).await {
            Ok(bytes) => progress.done(bytes),
            Err(failure) => {
                progress.failed(&source, failure)?;
                continue;
            }
        }
        if found.file_type() != FileType::Directory {
            continue;
        }
        modes.push((target.clone(), found.mode.0));
        match entries(fs, found.inode, &source).await {
            Ok(all) => {
                for (entry, attributes) in all.into_iter().rev() {
                    match safe(&entry.name) {
                        Some(name) => {
                            let (source, target) = (source.join(&name), target.join(&name));
                            waiting.push((source, target, attributes));
                        }
                        None => {
                            let name = printable(&entry.name);
                            let message = format!("`{name}` is no name for a file");
                            progress.failed(&source, Failure::new(Exit::Damaged, message))?;
                        }
                    }
                }
            }
            Err(failure) => progress.failed(&source, failure)?,
        }
    }
    // Last, and from the leaves up: a directory without the right to write could not be filled.
    for (target, mode) in modes.into_iter().rev() {
        let mode = Permissions::from_mode(u32::from(mode));
        if let Err(error) = fs::set_permissions(&target, mode) {
            progress.failed(&target, Failure::file("set the mode of", &target, &error))?;
        }
    }
    Ok(())
}

fn safe(name: &[u8]) -> Option<OsString> {
    let unsafe_name = name.is_empty()
        || name == b"."
        || name == b".."
        || name.iter().any(|b| matches!(b, b'/' | 0));
    (!unsafe_name).then(|| OsString::from_vec(name.to_vec()))
}

async fn get_one(
    fs: &FileSystem,
    source: &Path,
    target: &Path,
    found: &Attributes,
) -> Outcome<u64> {
    let unwritten = |error| Failure::file("write", target, &error);
    match found.file_type() {
        FileType::Directory => match fs::create_dir(target) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists || !target.is_dir() => {
                Err(unwritten(error))
            }
            _ => Ok(0),
        },
        FileType::Symlink => {
            let link = fs
                .readlink(found.inode)
                .await
                .map_err(|error| refused(source, &error))?;
            std::os::unix::fs::symlink(OsStr::from_bytes(&link), target).map_err(unwritten)?;
            Ok(0)
        }
        FileType::File => get_file(fs, source, target, found).await,
        _ => {
            let message = format!("{} is neither file, directory nor link", source.display());
            Err(Failure::new(Exit::Path, message).hint("it was skipped"))
        }
    }
}

async fn get_file(
    fs: &FileSystem,
    source: &Path,
    target: &Path,
    found: &Attributes,
) -> Outcome<u64> {
    let mut name = target.file_name().unwrap_or_default().to_os_string();
    name.push(".quorumfs-part");
    let part = target.with_file_name(name);
    let copied = fill(fs, source, &part, found).await;
    let copied = copied.and_then(|bytes| {
        fs::rename(&part, target)
            .map(|()| bytes)
            .map_err(|error| Failure::file("write", target, &error))
    });
    if copied.is_err() {
        let _ = fs::remove_file(&part);
    }
    copied
}

async fn fill(fs: &FileSystem, source: &Path, part: &Path, found: &Attributes) -> Outcome<u64> {
    let unread = |error| refused(source, &error);
    let unwritten = |error| Failure::file("write", part, &error);
    let mut file = fs::OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(part)
        .map_err(unwritten)?;
    let handle = open(fs, found.inode, source).await?;
    let mut offset = 0;
    let copied = loop {
        match fs.read(handle, offset, CHUNK_BYTES).await {
            Ok(chunk) if chunk.is_empty() => break Ok(offset),
            Ok(chunk) => {
                offset += chunk.len() as u64;
                if let Err(error) = file.write_all(&chunk) {
                    break Err(unwritten(error));
                }
            }
            Err(error) => break Err(unread(error)),
        }
    };
    let _ = fs.release(handle).await;
    let copied = copied?;
    let seconds = u64::try_from(found.mtime.seconds).unwrap_or_default();
    let modified = UNIX_EPOCH + Duration::new(seconds, found.mtime.nanos);
    file.set_modified(modified)
        .and_then(|()| file.set_permissions(Permissions::from_mode(u32::from(found.mode.0))))
        .and_then(|()| file.sync_all())
        .map_err(unwritten)?;
    Ok(copied)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_from_the_volume_is_never_a_path() {
        for name in [&b""[..], b".", b"..", b"../x", b"a/b", b"nul\0"] {
            assert_eq!(safe(name), None);
        }
        assert_eq!(safe(b"..x"), Some("..x".into()));
    }
}
