//! What is copied into the volume: files of this machine, opened name by name and through no link.
//!
//! Others may change the tree while it is read. A directory or file that has become a link between
//! two looks is not followed: it would have the superuser's copy hold what only the superuser may
//! read.

use super::{CHUNK_BYTES, is_taken};
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
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

/// The longest value of an attribute that Linux knows.
const VALUE_BYTES_MAX: usize = 64 << 10;

/// An inode of this machine, by the directory that it is in, opened, and its name there.
#[derive(Clone, Debug)]
pub(super) struct Source {
    directory: Option<Arc<OwnedFd>>,
    name: OsString,
    /// What it is called, for messages.
    pub(super) path: PathBuf,
}

/// What an inode is, without its content.
pub(super) enum Kind {
    File,
    Directory,
    Link,
    Other,
}

impl Source {
    /// What the user named: the way there is the user's own, links included; a link at its end is
    /// copied as a link.
    pub(super) fn named(path: &Path) -> Self {
        Self {
            directory: None,
            // A slash at the end would have a link followed, as it does everywhere.
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

    /// What it is.
    pub(super) fn look(&self) -> Outcome<(Kind, Stat)> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let found = rustix::fs::statat(self.at(), &self.name, flags);
        let found = found.map_err(|error| self.unread(error))?;
        let kind = match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Directory,
            FileType::Symlink => Kind::Link,
            _ => Kind::Other,
        };
        Ok((kind, found))
    }

    /// Opens the file that it is, and says what exactly was opened.
    pub(super) fn open(&self) -> Outcome<(File, Stat)> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(self.at(), &self.name, flags, Mode::empty())
            .map_err(|error| self.unread(error))?;
        let found = rustix::fs::fstat(&fd).map_err(|error| self.unread(error))?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            let message = format!("{} is no file any more", self.path.display());
            return Err(Failure::new(Exit::Path, message));
        }
        Ok((File::from(fd), found))
    }

    /// Where the link leads that it is.
    pub(super) fn leads_to(&self) -> Outcome<Vec<u8>> {
        rustix::fs::readlinkat(self.at(), &self.name, Vec::new())
            .map(|target| target.into_bytes())
            .map_err(|error| self.unread(error))
    }

    /// Opens the directory that it is: itself, and what is in it, sorted by name.
    pub(super) fn enter(&self) -> Outcome<(Arc<OwnedFd>, Vec<Self>)> {
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

    /// What it is called in its directory.
    pub(super) fn name(&self) -> &OsStr {
        &self.name
    }
}

/// The extended attributes of what is open that the user takes along, access control lists among
/// them.
pub(super) fn extended(
    of: impl AsFd,
    path: &Path,
    superuser: bool,
) -> Outcome<Vec<(Vec<u8>, Vec<u8>)>> {
    let unread = |error: Errno| Failure::file("read the attributes of", path, &error.into());
    let mut names = vec![0; VALUE_BYTES_MAX];
    let length = match rustix::fs::flistxattr(&of, &mut names[..]) {
        // A file system without any.
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

/// Of which volume of ours an open directory is, if it is in a mount of one.
pub(super) fn volume_of(directory: impl AsFd) -> Option<Vec<u8>> {
    let mut value = [0; 64];
    let length = rustix::fs::fgetxattr(directory, "user.quorumfs.volume", &mut value[..]).ok()?;
    value.get(..length).map(<[u8]>::to_vec)
}

/// The next place at which a file has content, at or after `offset`, and where that ends; nothing
/// if no more comes. A file system that knows no holes has content everywhere.
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

/// Reads a file from its beginning, as far as it has so many bytes.
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

/// What standard input gives, a chunk at a time, and an error if there is one; closed at its end.
/// It is read by a thread of its own: a read that waits for ever would keep a runtime from ending.
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

/// A name as the volume takes it.
pub(super) fn bytes_of(name: &OsStr) -> Vec<u8> {
    name.as_bytes().to_vec()
}
