//! The sources of a copy into the volume: local files, opened name by name without following links.
//!
//! Others may change the tree while it is read. A directory or file that has become a link since it
//! was inspected is not followed: otherwise the superuser's copy could hold content that only the
//! superuser may read.

use super::{CHUNK_BYTES, is_taken};
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::mpsc::{Receiver, channel};

/// The longest value of an attribute on Linux.
const VALUE_BYTES_MAX: usize = 64 << 10;

/// A local inode, by its open directory and its name there.
#[derive(Clone, Debug)]
pub(super) struct Source {
    directory: Option<Arc<OwnedFd>>,
    name: OsString,
    /// Its path, for messages.
    pub(super) path: PathBuf,
}

/// The kind of an inode.
pub(super) enum SourceKind {
    File,
    Directory,
    Link,
    Other,
}

impl Source {
    /// A source that the user named: the path to it is the user's own, links included; a link at
    /// its end is copied as a link.
    pub(super) fn named(path: &Path) -> Self {
        Self {
            directory: None,
            // A slash at the end follows a link, as everywhere.
            name: path.as_os_str().to_os_string(),
            path: path.to_path_buf(),
        }
    }

    fn at(&self) -> BorrowedFd<'_> {
        match &self.directory {
            Some(directory) => directory.as_fd(),
            None => rustix::fs::CWD,
        }
    }

    fn unread(&self, error: Errno) -> Failure {
        Failure::file("read", &self.path, &error.into())
    }

    /// Its kind and attributes.
    pub(super) fn look(&self) -> CommandResult<(SourceKind, Stat)> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let found = rustix::fs::statat(self.at(), &self.name, flags);
        let found = found.map_err(|error| self.unread(error))?;
        let kind = match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile => SourceKind::File,
            FileType::Directory => SourceKind::Directory,
            FileType::Symlink => SourceKind::Link,
            _ => SourceKind::Other,
        };
        Ok((kind, found))
    }

    /// Opens the file; returns the attributes of the opened one.
    pub(super) fn open(&self) -> CommandResult<(File, Stat)> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(self.at(), &self.name, flags, Mode::empty())
            .map_err(|error| self.unread(error))?;
        let found = rustix::fs::fstat(&fd).map_err(|error| self.unread(error))?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            let message = format!("{} is no longer a file", self.path.display());
            return Err(Failure::new(Exit::Path, message));
        }
        Ok((File::from(fd), found))
    }

    /// The target of the link.
    pub(super) fn leads_to(&self) -> CommandResult<Vec<u8>> {
        rustix::fs::readlinkat(self.at(), &self.name, Vec::new())
            .map(|target| target.into_bytes())
            .map_err(|error| self.unread(error))
    }

    /// Opens the directory; returns it and its entries, sorted by name.
    pub(super) fn enter(&self) -> CommandResult<(Arc<OwnedFd>, Vec<Self>)> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(self.at(), &self.name, flags, Mode::empty())
            .map_err(|error| self.unread(error))?;
        let opened = Arc::new(opened);
        let mut names = Vec::new();
        for entry in Dir::read_from(&opened).map_err(|error| self.unread(error))? {
            let entry = entry.map_err(|error| self.unread(error))?;
            match entry.file_name().to_bytes() {
                b"." | b".." => {}
                name => names.push(OsString::from_vec(name.to_vec())),
            }
        }
        names.sort();
        let children = names.into_iter().map(|name| Self {
            path: self.path.join(&name),
            directory: Some(opened.clone()),
            name,
        });
        let children = children.collect();
        Ok((opened, children))
    }

    /// Its name in its directory.
    pub(super) fn name(&self) -> &OsStr {
        &self.name
    }
}

/// The extended attributes of an open inode that are to be copied, access control lists included.
pub(super) fn extended(
    of: impl AsFd,
    path: &Path,
    superuser: bool,
) -> CommandResult<Vec<(Vec<u8>, Vec<u8>)>> {
    let unread = |error: Errno| Failure::file("read the attributes of", path, &error.into());
    let mut names = vec![0; VALUE_BYTES_MAX];
    let length = match rustix::fs::flistxattr(&of, &mut names[..]) {
        // A file system without attributes.
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        length => length.map_err(unread)?,
    };
    names.truncate(length);
    let mut all = Vec::new();
    let names = names.split(|byte| *byte == 0).filter(|it| !it.is_empty());
    for name in names.filter(|name| is_taken(superuser, name)) {
        let mut value = vec![0; VALUE_BYTES_MAX];
        let length = match rustix::fs::fgetxattr(&of, name, &mut value[..]) {
            // It was removed in between.
            Err(Errno::NODATA) => continue,
            length => length.map_err(unread)?,
        };
        value.truncate(length);
        all.push((name.to_vec(), value));
    }
    Ok(all)
}

/// The volume of ours that an open directory is in, if it is in a mount of one.
pub(super) fn volume_of(directory: impl AsFd) -> Option<Vec<u8>> {
    let mut value = [0; 64];
    let length = rustix::fs::fgetxattr(directory, "user.quorumfs.volume", &mut value[..]).ok()?;
    value.get(..length).map(<[u8]>::to_vec)
}

/// The next range with content at or after `offset`; nothing if there is none. On a file system
/// without holes all of a file is content.
pub(super) fn next_data(
    file: &File,
    offset: u64,
    size: u64,
) -> std::io::Result<Option<(u64, u64)>> {
    if offset >= size {
        return Ok(None);
    }
    match rustix::fs::seek(file, SeekFrom::Data(offset)) {
        Ok(begin) => {
            let end = rustix::fs::seek(file, SeekFrom::Hole(begin))?;
            Ok(Some((begin, end)))
        }
        Err(Errno::NXIO) => Ok(None),
        Err(_) => Ok(Some((offset, u64::MAX))),
    }
}

/// Reads at most so many bytes.
pub(super) fn read_at(file: &File, offset: u64, length: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    let count = loop {
        match file.read_at(&mut bytes, offset) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            count => break count?,
        }
    };
    bytes.truncate(count);
    Ok(bytes)
}

/// Reads a file from its beginning, up to so many bytes.
pub(super) fn read_whole(file: &File, length: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// The content of standard input, a chunk at a time, and an error if there is one; closed at the
/// end. A thread of its own reads it: a read that blocks for ever would keep the runtime from
/// ending.
pub(super) fn standard_input() -> Receiver<std::io::Result<Vec<u8>>> {
    let (sender, receiver) = channel(1);
    std::thread::spawn(move || {
        let mut input = std::io::stdin().lock();
        loop {
            let mut bytes = vec![0; CHUNK_BYTES as usize];
            let read = match input.read(&mut bytes) {
                Ok(0) => return,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Ok(count) => {
                    bytes.truncate(count);
                    Ok(bytes)
                }
                Err(error) => Err(error),
            };
            let last = read.is_err();
            if sender.blocking_send(read).is_err() || last {
                return;
            }
        }
    });
    receiver
}

/// The bytes of a name, as the volume takes it.
pub(super) fn bytes_of(name: &OsStr) -> Vec<u8> {
    name.as_bytes().to_vec()
}
