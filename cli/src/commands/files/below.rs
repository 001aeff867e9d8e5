//! A local directory, and writing below it.
//!
//! Names that are copied out of a volume come from its writers, and the target directory may hold
//! the results of an earlier copy. So everything below the directory that the user named is opened
//! relative to it, name by name, and no link is followed: not for a directory on the way, not for a
//! file that is replaced, not for a mode or an owner that is set. The path to that directory is the
//! user's own, links included.
//!
//! A file has no name until it is complete (`O_TMPFILE`; on file systems without it, an unused
//! random name), and replaces an existing file in one step.

use super::{comes_before_the_mode, is_left_out, log_left_out};
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Error;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

const SET_GROUP: u32 = 0o2000;
/// How many random names to try.
const TRIES: usize = 16;

/// An open directory.
#[derive(Debug)]
pub(super) struct Below {
    fd: OwnedFd,
    path: PathBuf,
}

/// Properties of an inode apart from its content. `None` leaves one as it is.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks {
    pub(super) owner: Option<(u32, u32)>,
    pub(super) mode: Option<u32>,
    /// Whether an existing set-group-id bit stays.
    pub(super) keeps_group: bool,
    /// Whether it gets exactly the access control lists among the attributes, and no others.
    pub(super) lists: bool,
    /// Times of access and of modification: seconds since 1970 and nanoseconds.
    pub(super) accessed: Option<(i64, u32)>,
    pub(super) modified: Option<(i64, u32)>,
    /// Extended attributes, access control lists included: a name and a value each.
    pub(super) extended: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Marks {
    fn times(&self) -> Option<Timestamps> {
        let time = |at: Option<(i64, u32)>| match at {
            Some((seconds, nanos)) => Timespec {
                tv_sec: seconds,
                tv_nsec: nanos.into(),
            },
            None => Timespec {
                tv_sec: 0,
                tv_nsec: rustix::fs::UTIME_OMIT,
            },
        };
        (self.accessed.is_some() || self.modified.is_some()).then(|| Timestamps {
            last_access: time(self.accessed),
            last_modification: time(self.modified),
        })
    }

    /// Sets them on an open file or directory. The owner comes first: changing it removes set-id
    /// bits and capabilities, and before that no bit may be set that is meant for another owner.
    fn give(&self, to: &OwnedFd, path: &Path) -> CommandResult<()> {
        let failed = |doing: &str, error: Errno| Failure::file(doing, path, &error.into());
        if let Some((uid, gid)) = self.owner {
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            rustix::fs::fchown(to, Some(uid), Some(gid))
                .map_err(|error| failed("set the owner of", error))?;
        }
        let (first, then): (Vec<_>, Vec<_>) = self
            .extended
            .iter()
            .partition(|(name, _)| comes_before_the_mode(name));
        set_all(to, &first, path)?;
        if self.lists {
            self.drop_lists(to);
        }
        if let Some(mode) = self.mode {
            // The bit that a directory inherits from its parent stays, as with `mkdir`.
            let kept = match self.keeps_group {
                true => rustix::fs::fstat(to).map_or(0, |found| found.st_mode & SET_GROUP),
                false => 0,
            };
            rustix::fs::fchmod(to, Mode::from_raw_mode(mode | kept))
                .map_err(|error| failed("set the mode of", error))?;
        }
        set_all(to, &then, path)?;
        if let Some(times) = self.times() {
            rustix::fs::futimens(to, &times).map_err(|error| failed("set the times of", error))?;
        }
        Ok(())
    }

    /// Removes the access control lists that it inherited: they would give rights that the source
    /// does not.
    fn drop_lists(&self, to: &OwnedFd) {
        for list in [&b"system.posix_acl_access"[..], b"system.posix_acl_default"] {
            if !self.extended.iter().any(|(name, _)| name == list) {
                // It has none, or its file system does not support them.
                let _ = rustix::fs::fremovexattr(to, list);
            }
        }
    }
}

fn set_all(to: &OwnedFd, all: &[&(Vec<u8>, Vec<u8>)], path: &Path) -> CommandResult<()> {
    for (name, value) in all {
        let none = rustix::fs::XattrFlags::empty();
        match rustix::fs::fsetxattr(to, name.as_slice(), value, none) {
            Ok(()) => {}
            Err(error) if is_left_out(error) => log_left_out(name, path),
            Err(error) => {
                let doing = format!("set the attribute {} of", String::from_utf8_lossy(name));
                return Err(Failure::file(&doing, path, &error.into()));
            }
        }
    }
    Ok(())
}

impl Below {
    /// A directory that the user named.
    pub(super) fn open(path: &Path) -> CommandResult<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // An empty path is the current directory.
        let named = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        let fd = rustix::fs::open(named, flags, Mode::empty())
            .map_err(|error| Failure::file("open", named, &error.into()))?;
        Ok(Self {
            fd,
            path: path.to_path_buf(),
        })
    }

    /// The path of an entry, for messages.
    pub(super) fn path_of(&self, name: &OsStr) -> PathBuf {
        self.path.join(name)
    }

    /// The entry of this name, if it exists; a link itself, not its target.
    pub(super) fn look(&self, name: &OsStr) -> CommandResult<Option<Stat>> {
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(self.failed("read", name, error)),
        }
    }

    fn failed(&self, doing: &str, name: &OsStr, error: Errno) -> Failure {
        Failure::file(doing, &self.path_of(name), &error.into())
    }

    fn in_the_way(&self, name: &OsStr, of: &str) -> Failure {
        let message = format!("{} is in the way of a {of}", self.path_of(name).display());
        Failure::new(Exit::Path, message)
            .hint("remove it first; links in the target are not followed")
    }

    /// The directory of this name, made if it is missing; and whether it was made.
    pub(super) fn directory(&self, name: &OsStr) -> CommandResult<(Self, bool)> {
        // Closed to other users until it is complete and has its final mode.
        let made = match rustix::fs::mkdirat(&self.fd, name, Mode::from_raw_mode(0o700)) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(self.failed("make", name, error)),
        };
        Ok((self.enter(name)?, made))
    }

    /// A directory of this name that is made, and was not there.
    pub(super) fn new_directory(&self, name: &OsStr) -> CommandResult<Self> {
        match rustix::fs::mkdirat(&self.fd, name, Mode::from_raw_mode(0o700)) {
            Ok(()) => self.enter(name),
            Err(error) => Err(self.not_new(name, error)),
        }
    }

    /// A symbolic link that is made, and was not there.
    pub(super) fn new_symlink(&self, name: &OsStr, leads_to: &OsStr) -> CommandResult<()> {
        let made = rustix::fs::symlinkat(leads_to, &self.fd, name);
        made.map_err(|error| self.not_new(name, error))
    }

    /// Why something new could not be made.
    fn not_new(&self, name: &OsStr, error: Errno) -> Failure {
        match error {
            Errno::EXIST => {
                let path = self.path_of(name);
                let message = format!("{} is there already", path.display());
                Failure::new(Exit::Path, message).hint("remove it first: nothing is replaced")
            }
            error => self.failed("make", name, error),
        }
    }

    /// The directory itself: device, number, mode, owner.
    pub(super) fn itself(&self) -> CommandResult<Stat> {
        rustix::fs::fstat(&self.fd)
            .map_err(|error| Failure::file("read", &self.path, &error.into()))
    }

    /// The volume of ours that it is in, if it is in a mount of one.
    pub(super) fn volume(&self) -> Option<Vec<u8>> {
        super::source::volume_of(&self.fd)
    }

    /// The directory of this name, if it is one and no link.
    pub(super) fn enter(&self, name: &OsStr) -> CommandResult<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => Ok(Self {
                fd,
                path: self.path_of(name),
            }),
            Err(Errno::NOTDIR | Errno::LOOP) => Err(self.in_the_way(name, "directory")),
            Err(error) => Err(self.failed("open", name, error)),
        }
    }

    /// Sets the properties of this directory.
    pub(super) fn mark(&self, marks: &Marks) -> CommandResult<()> {
        marks.give(&self.fd, &self.path)
    }

    /// Sets the properties of a file that has its content already, if it is still the inspected
    /// file and has one name, since another name may lead to another user's file. Returns whether
    /// it was that one.
    pub(super) fn mark_file(
        &self,
        name: &OsStr,
        seen: &Stat,
        marks: &Marks,
    ) -> CommandResult<bool> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(fd) = rustix::fs::openat(&self.fd, name, flags, Mode::empty()) else {
            return Ok(false);
        };
        let found = rustix::fs::fstat(&fd).map_err(|error| self.failed("read", name, error))?;
        let same = (found.st_dev, found.st_ino) == (seen.st_dev, seen.st_ino);
        if !same || found.st_nlink != 1 {
            return Ok(false);
        }
        marks.give(&fd, &self.path_of(name))?;
        Ok(true)
    }

    /// A new file without a name.
    pub(super) fn part(&self, name: &OsStr) -> CommandResult<TemporaryCopy<'_>> {
        let mode = Mode::from_raw_mode(0o600);
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.fd, ".", flags, mode) {
            Ok(fd) => Ok(TemporaryCopy {
                below: self,
                file: File::from(fd),
                temporary: None,
            }),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                let (fd, temporary) = self.under_a_new_name(name, |temporary| {
                    rustix::fs::openat(&self.fd, temporary, flags, mode)
                })?;
                Ok(TemporaryCopy {
                    below: self,
                    file: File::from(fd),
                    temporary: Some(temporary),
                })
            }
            Err(error) => Err(self.failed("write", name, error)),
        }
    }

    /// Calls `make` with random names until one is unused.
    fn under_a_new_name<T>(
        &self,
        name: &OsStr,
        make: impl Fn(&OsStr) -> Result<T, Errno>,
    ) -> CommandResult<(T, OsString)> {
        let mut last = Errno::EXIST;
        for _ in 0..TRIES {
            let mut bytes = [0; 8];
            getrandom::fill(&mut bytes)
                .map_err(|error| Failure::new(Exit::Error, format!("no randomness: {error}")))?;
            let random = u64::from_be_bytes(bytes);
            let temporary = OsString::from(format!(".quorumfs-{random:016x}"));
            match make(&temporary) {
                Ok(made) => return Ok((made, temporary)),
                Err(Errno::EXIST) => {}
                Err(error) => {
                    last = error;
                    break;
                }
            }
        }
        Err(self.failed("write", name, last))
    }

    /// Renames an entry from its temporary name to its final one.
    fn replace(&self, temporary: &OsStr, name: &OsStr) -> CommandResult<()> {
        let renamed = rustix::fs::renameat(&self.fd, temporary, &self.fd, name);
        // Renaming a name onto another of the same inode does nothing, and both stay.
        let _ = rustix::fs::unlinkat(&self.fd, temporary, AtFlags::empty());
        renamed.map_err(|error| match error {
            Errno::ISDIR => self.in_the_way(name, "file or link"),
            _ => self.failed("write", name, error),
        })
    }

    /// Makes a symbolic link, in place of an existing file or link.
    pub(super) fn symlink(
        &self,
        name: &OsStr,
        leads_to: &OsStr,
        marks: &Marks,
    ) -> CommandResult<()> {
        let ((), temporary) = self.under_a_new_name(name, |temporary| {
            rustix::fs::symlinkat(leads_to, &self.fd, temporary)
        })?;
        let given = (|| {
            if let Some((uid, gid)) = marks.owner {
                let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                rustix::fs::chownat(&self.fd, &temporary, Some(uid), Some(gid), flags)?;
            }
            if let Some(times) = marks.times() {
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                rustix::fs::utimensat(&self.fd, &temporary, &times, flags)?;
            }
            Ok(())
        })();
        if let Err(error) = given {
            let _ = rustix::fs::unlinkat(&self.fd, &temporary, AtFlags::empty());
            return Err(self.failed("set the owner and times of", name, error));
        }
        self.replace(&temporary, name)
    }

    /// Makes another name of a file that was copied before, which has the path `names` below `top`.
    pub(super) fn link(&self, name: &OsStr, top: &Self, names: &[OsString]) -> CommandResult<()> {
        let Some((first, directories)) = names.split_last() else {
            return Err(self.failed("link", name, Errno::NOENT));
        };
        let mut here = None::<Self>;
        for directory in directories {
            here = Some(here.as_ref().unwrap_or(top).enter(directory)?);
        }
        let from = here.as_ref().unwrap_or(top);
        let ((), temporary) = self.under_a_new_name(name, |temporary| {
            rustix::fs::linkat(&from.fd, first, &self.fd, temporary, AtFlags::empty())
        })?;
        self.replace(&temporary, name)
    }
}

/// A file without a name, or with a temporary one; removed if it is dropped.
#[derive(Debug)]
pub(super) struct TemporaryCopy<'a> {
    below: &'a Below,
    /// The file, for writing its content.
    pub(super) file: File,
    temporary: Option<OsString>,
}

impl TemporaryCopy<'_> {
    /// Gives it its properties and syncs it.
    fn complete(&self, name: &OsStr, marks: &Marks) -> CommandResult<()> {
        let path = self.below.path_of(name);
        let fd = self
            .file
            .try_clone()
            .map_err(|error| Failure::file("write", &path, &error))?;
        marks.give(&fd.into(), &path)?;
        self.file
            .sync_all()
            .map_err(|error| Failure::file("write", &path, &error))
    }

    /// Syncs it and gives it a name that is not taken.
    pub(super) fn finish_new(mut self, name: &OsStr, marks: &Marks) -> CommandResult<()> {
        self.complete(name, marks)?;
        let below = self.below;
        let named = match self.temporary.take() {
            None => {
                let itself = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                let flags = AtFlags::SYMLINK_FOLLOW;
                rustix::fs::linkat(rustix::fs::CWD, &*itself, &below.fd, name, flags)
            }
            Some(temporary) => {
                let none = AtFlags::empty();
                let linked = rustix::fs::linkat(&below.fd, &temporary, &below.fd, name, none);
                let _ = rustix::fs::unlinkat(&below.fd, &temporary, AtFlags::empty());
                linked
            }
        };
        named.map_err(|error| below.not_new(name, error))
    }

    /// Syncs it and puts it in place of an existing file or link.
    pub(super) fn finish(mut self, name: &OsStr, marks: &Marks) -> CommandResult<()> {
        self.complete(name, marks)?;
        let below = self.below;
        if let Some(temporary) = self.temporary.take() {
            return below.replace(&temporary, name);
        }
        // The only way to name it without a superuser's right.
        let itself = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let named = |name: &OsStr| {
            let flags = AtFlags::SYMLINK_FOLLOW;
            rustix::fs::linkat(rustix::fs::CWD, &*itself, &below.fd, name, flags)
        };
        match named(name) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) => {
                let ((), temporary) = below.under_a_new_name(name, named)?;
                below.replace(&temporary, name)
            }
            Err(error) => Err(below.failed("write", name, error)),
        }
    }
}

impl Drop for TemporaryCopy<'_> {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = rustix::fs::unlinkat(&self.below.fd, temporary, AtFlags::empty());
        }
    }
}

/// Writes all of `bytes` at `offset`.
pub(super) fn write_at(file: &File, bytes: &[u8], offset: u64) -> Result<(), Error> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}
