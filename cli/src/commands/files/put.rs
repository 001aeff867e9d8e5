//! `put`: files and directories of this machine into the volume.
//!
//! Regular files, directories and symbolic links, with their modes and modification times; what is
//! neither is said and skipped. A file that exists is replaced in its content. A copy counts as
//! done once it is closed, which is when the clouds have it and the order names it.
//!
//! Small files share objects on the clouds if they are written at the same time, so many of them
//! are under way at once: read one after the other, as fast as this machine gives them, and closed
//! whenever the clouds have them. Directories, links and large files are done in their turn.

use super::walk::{child, find, missing, parent, shown};
use super::{CHUNK_BYTES, Progress, caller, closing, counted, refused};
use crate::arguments::{General, PutArguments};
use crate::commands::opened::Opened;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use quorumfs_gateway::vfs::{
    AttributeChange, FileSystem, FileType, InodeId, OpenMode, TimeChange, Timestamp,
};
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::task::JoinSet;

/// Files of fewer bytes are under way together.
const SMALL_BYTES: u64 = 512 << 10;
/// How many of them, and how many bytes they may be.
const UNDER_WAY_MAX: usize = 512;
const UNDER_WAY_BYTES_MAX: u64 = 32 << 20;

/// Where something goes: a directory of the volume, and the name there.
struct Place {
    directory: InodeId,
    name: Vec<u8>,
    path: PathBuf,
}

/// Copies in.
pub(crate) async fn put(general: &General, arguments: &PutArguments, output: Output) -> Outcome {
    let opened = Opened::for_a_command(general).await?;
    let mut progress = Progress::new(output);
    let outcome = put_all(opened.file_system(), arguments, &mut progress).await;
    closing(opened, outcome).await?;
    progress.end(|paths, bytes| format!("Copied {}, {bytes} bytes.", counted(paths)))
}

async fn put_all(
    fs: &FileSystem,
    arguments: &PutArguments,
    progress: &mut Progress,
) -> Outcome<()> {
    let target = shown(&arguments.target);
    let into = match find(fs, &target).await {
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
            .hint("leave the last slash away to give the copy that name"));
    }
    for source in &arguments.sources {
        let place = match into {
            Some(directory) => {
                let name_of = |path: &Path| path.file_name().map(|name| name.as_bytes().to_vec());
                // `.` and `..` have a name of their own only when it is known where they lead.
                let name = name_of(source)
                    .or_else(|| name_of(&fs::canonicalize(source).ok()?))
                    .unwrap_or_default();
                let path = target.join(std::ffi::OsStr::from_bytes(&name));
                Place {
                    directory,
                    name,
                    path,
                }
            }
            None => {
                let (directory, name) = parent(fs, &target).await?;
                Place {
                    directory,
                    name: name.as_bytes().to_vec(),
                    path: target.clone(),
                }
            }
        };
        put_tree(fs, source.clone(), place, progress).await?;
    }
    Ok(())
}

/// Copies one source and, without recursion, everything below it.
async fn put_tree(
    fs: &FileSystem,
    source: PathBuf,
    place: Place,
    progress: &mut Progress,
) -> Outcome<()> {
    let mut waiting = vec![(source, place)];
    let mut under_way = UnderWay::default();
    while let Some((source, place)) = waiting.pop() {
        if let Some(metadata) = small_file(&source) {
            under_way.room_for(metadata.len(), progress).await?;
            under_way.begin(fs, source, metadata, place).await;
            continue;
        }
        match put_one(fs, &source, &place).await {
            Ok(Put::File(bytes)) => progress.done(bytes),
            Ok(Put::Directory(inode, children)) => {
                progress.done(0);
                for child in children {
                    let name = child.file_name().unwrap_or_default().as_bytes().to_vec();
                    let path = place.path.join(child.file_name().unwrap_or_default());
                    waiting.push((
                        child,
                        Place {
                            directory: inode,
                            name,
                            path,
                        },
                    ));
                }
            }
            Err(failure) => progress.failed(&source, failure)?,
        }
    }
    under_way.end(progress).await
}

/// The metadata of a file that is small and can be read.
fn small_file(source: &Path) -> Option<Metadata> {
    let metadata = fs::symlink_metadata(source).ok()?;
    (metadata.is_file() && metadata.len() < SMALL_BYTES).then_some(metadata)
}

/// Small files on their way.
#[derive(Default)]
struct UnderWay {
    files: JoinSet<(PathBuf, u64, Outcome<u64>)>,
    bytes: u64,
}

impl UnderWay {
    /// Waits until one more of so many bytes may begin.
    async fn room_for(&mut self, bytes: u64, progress: &mut Progress) -> Outcome<()> {
        while self.files.len() >= UNDER_WAY_MAX
            || (!self.files.is_empty() && self.bytes.saturating_add(bytes) > UNDER_WAY_BYTES_MAX)
        {
            self.one(progress).await?;
        }
        Ok(())
    }

    /// Reads a file and has it copied.
    async fn begin(&mut self, fs: &FileSystem, source: PathBuf, metadata: Metadata, place: Place) {
        let read = tokio::fs::read(&source).await;
        let bytes = read.as_ref().map_or(0, |content| content.len() as u64);
        self.bytes = self.bytes.saturating_add(bytes);
        let fs = fs.clone();
        self.files.spawn(async move {
            let outcome = match read {
                Err(error) => Err(Failure::file("read", &source, &error)),
                Ok(content) => put_content(&fs, &source, &metadata, &place, &content[..]).await,
            };
            (source, bytes, outcome)
        });
    }

    /// Waits for one that is done.
    async fn one(&mut self, progress: &mut Progress) -> Outcome<()> {
        match self.files.join_next().await {
            None => Ok(()),
            Some(Ok((source, bytes, outcome))) => {
                self.bytes = self.bytes.saturating_sub(bytes);
                match outcome {
                    Ok(bytes) => progress.done(bytes),
                    Err(failure) => progress.failed(&source, failure)?,
                }
                Ok(())
            }
            Some(Err(error)) => Err(Failure::new(Exit::Error, error.to_string())),
        }
    }

    /// Waits for all of them.
    async fn end(mut self, progress: &mut Progress) -> Outcome<()> {
        while !self.files.is_empty() {
            self.one(progress).await?;
        }
        Ok(())
    }
}

enum Put {
    File(u64),
    Directory(InodeId, Vec<PathBuf>),
}

async fn put_one(fs: &FileSystem, source: &Path, place: &Place) -> Outcome<Put> {
    let unread = |error| Failure::file("read", source, &error);
    let metadata = fs::symlink_metadata(source).map_err(unread)?;
    let kind = metadata.file_type();
    if kind.is_dir() {
        let mut children = Vec::new();
        for entry in fs::read_dir(source).map_err(unread)? {
            children.push(entry.map_err(unread)?.path());
        }
        children.sort();
        children.reverse();
        Ok(Put::Directory(
            put_directory(fs, &metadata, place).await?,
            children,
        ))
    } else if kind.is_symlink() {
        let target = fs::read_link(source).map_err(unread)?;
        let target = target.as_os_str().as_bytes();
        fs.symlink(&caller(), place.directory, &place.name, target)
            .await
            .map_err(|error| refused(&place.path, &error))?;
        Ok(Put::File(0))
    } else if kind.is_file() {
        put_file(fs, source, &metadata, place).await.map(Put::File)
    } else {
        let message = format!("{} is neither file, directory nor link", source.display());
        Err(Failure::new(Exit::Path, message).hint("it was skipped"))
    }
}

async fn put_directory(fs: &FileSystem, metadata: &Metadata, place: &Place) -> Outcome<InodeId> {
    if let Some(found) = child(fs, place.directory, &place.name, &place.path).await? {
        if found.file_type() == FileType::Directory {
            return Ok(found.inode);
        }
        let message = format!("{} is in the way of a directory", place.path.display());
        return Err(Failure::new(Exit::Path, message).hint("remove it first"));
    }
    let mode = metadata.mode() & 0o7777;
    fs.mkdir(&caller(), place.directory, &place.name, mode)
        .await
        .map(|made| made.inode)
        .map_err(|error| refused(&place.path, &error))
}

async fn put_file(
    fs: &FileSystem,
    source: &Path,
    metadata: &Metadata,
    place: &Place,
) -> Outcome<u64> {
    let unread = |error| Failure::file("read", source, &error);
    let file = tokio::fs::File::open(source).await.map_err(unread)?;
    put_content(fs, source, metadata, place, file).await
}

/// Copies what `file` gives.
async fn put_content(
    fs: &FileSystem,
    source: &Path,
    metadata: &Metadata,
    place: &Place,
    mut file: impl AsyncRead + Unpin,
) -> Outcome<u64> {
    let failed = |error| refused(&place.path, &error);
    let unread = |error| Failure::file("read", source, &error);
    let open = OpenMode {
        read: false,
        write: true,
        truncate: true,
    };
    let mode = metadata.mode() & 0o7777;
    let (made, handle) = fs
        .create(&caller(), place.directory, &place.name, mode, open, false)
        .await
        .map_err(failed)?;
    // One byte more than a small file has shows its end at once.
    let room = metadata.len().saturating_add(1).min(u64::from(CHUNK_BYTES));
    let mut buffer = vec![0; usize::try_from(room).unwrap_or(1)];
    let mut offset = 0;
    let copied = loop {
        let count = match file.read(&mut buffer).await {
            Ok(0) => break Ok(offset),
            Ok(count) => count,
            Err(error) => break Err(unread(error)),
        };
        let chunk = buffer.get(..count).unwrap_or_default();
        if let Err(error) = fs.write(handle, offset, chunk).await {
            break Err(failed(error));
        }
        offset += count as u64;
    };
    let times = AttributeChange {
        mtime: Some(TimeChange::At(Timestamp {
            seconds: metadata.mtime(),
            nanos: u32::try_from(metadata.mtime_nsec()).unwrap_or_default(),
        })),
        ..AttributeChange::default()
    };
    let timed = fs.setattr(&caller(), made.inode, Some(handle), times).await;
    let flushed = fs.flush(handle).await;
    let released = fs.release(handle).await;
    let copied = copied?;
    timed.map_err(failed)?;
    flushed.and(released).map_err(failed)?;
    Ok(copied)
}
