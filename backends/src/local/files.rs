//! The blocking side: system calls on one cloud's directory, in the order that durability needs.
//!
//! Other users with write access can replace directories and files with links. So each operation
//! opens the root once, and everything in it from there, name by name, without following a link
//! ([`Root`]). Only files with a name that this module alone generates are ever deleted.

use crate::error::StoreErrorKind;
use crate::marker::{MARKER_BYTES, MARKER_FILE, Marker, MarkerError};
use crate::name::ObjectName;
use crate::store::{FreeSpace, ObjectInfo, Page};
use bytes::Bytes;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The directory of objects that are being written.
const INCOMING: &str = "incoming";
/// A file in `incoming` that is older than this was left by a crash.
const INCOMING_AGE_MAX: Duration = Duration::from_secs(3600);
/// How many files one sweep of `incoming` looks at.
const SWEEP_MAX: usize = 10_000;
/// The directory in which fsck puts its findings.
const LOST_AND_FOUND: &str = "lost+found";
/// Digits of a name in `incoming`.
const RANDOM_DIGITS: usize = 32;

/// A failure, before the operation and object are added.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) kind: StoreErrorKind,
    pub(super) detail: String,
}

impl Fault {
    pub(super) fn new(kind: StoreErrorKind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            detail: detail.into(),
        }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind as E;
        let kind = match error.kind() {
            E::NotFound => StoreErrorKind::NotFound,
            E::AlreadyExists => StoreErrorKind::AlreadyExists,
            E::PermissionDenied => StoreErrorKind::Denied,
            E::StorageFull | E::QuotaExceeded => StoreErrorKind::Full,
            E::ReadOnlyFilesystem => StoreErrorKind::ReadOnly,
            E::NotADirectory | E::StaleNetworkFileHandle => StoreErrorKind::Unavailable,
            E::TimedOut => StoreErrorKind::Timeout,
            E::UnexpectedEof => StoreErrorKind::Corrupt,
            _ => StoreErrorKind::Other,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<Errno> for Fault {
    fn from(error: Errno) -> Self {
        io::Error::from(error).into()
    }
}

impl From<MarkerError> for Fault {
    fn from(error: MarkerError) -> Self {
        Self::new(error.kind(), format!("{MARKER_FILE}: {error}"))
    }
}

/// A file's device and inode: they change when another file replaces it.
type FileIdentity = (u64, u64);

#[derive(Debug)]
pub(super) struct CloudDirectory {
    path: PathBuf,
    marker: Marker,
    checked: Mutex<Option<FileIdentity>>,
}

fn random_name() -> Result<String, Fault> {
    let mut bytes = [0; RANDOM_DIGITS / 2];
    getrandom::fill(&mut bytes)
        .map_err(|error| Fault::new(StoreErrorKind::Other, format!("no randomness: {error}")))?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

/// Whether a name is one of [`random_name`].
fn is_random(name: &[u8]) -> bool {
    name.len() == RANDOM_DIGITS && name.iter().all(|b| b"0123456789abcdef".contains(b))
}

/// The directories of objects.
fn places() -> impl Iterator<Item = String> {
    (0..=255_u8).map(|number| format!("{number:02x}"))
}

impl CloudDirectory {
    pub(super) fn new(path: PathBuf, marker: Marker) -> Self {
        Self {
            path,
            marker,
            checked: Mutex::new(None),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn describe(&self) -> String {
        format!("cloud {} ({})", self.marker.cloud, self.path.display())
    }

    /// The directory in its current state, whatever its content.
    fn open(&self) -> Result<Root, Fault> {
        // The path to it is the operator's choice, links included. The directory need not be
        // readable.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(&self.path, flags, Mode::empty())?;
        Ok(Root { fd })
    }

    /// The directory, verified to be the expected cloud. If nothing changed, this costs one system
    /// call more than opening it.
    pub(super) fn marked(&self) -> Result<Root, Fault> {
        let root = self.open().map_err(|fault| match fault.kind {
            StoreErrorKind::NotFound => {
                Fault::new(StoreErrorKind::Unavailable, "the directory does not exist")
            }
            _ => fault,
        });
        let root = root.inspect_err(|_| self.forget())?;
        let found = match root.stat(MARKER_FILE) {
            Ok(stat) => (stat.st_dev, stat.st_ino),
            Err(error) => {
                self.forget();
                return Err(root.without_marker(error));
            }
        };
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        if *checked == Some(found) {
            return Ok(root);
        }
        *checked = None;
        let (file, _) = open_to_read(&root.fd, MARKER_FILE)?;
        let mut bytes = Vec::with_capacity(MARKER_BYTES);
        file.take(4096).read_to_end(&mut bytes)?;
        Marker::check(self.marker, &bytes)?;
        *checked = Some(found);
        drop(checked);
        root.sweep();
        Ok(root)
    }

    fn forget(&self) {
        *self.checked.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Creates the directory's structure; the marker comes last, because it states that all is
    /// complete.
    pub(super) fn create(&self) -> Result<(), Fault> {
        fs::create_dir_all(&self.path)?;
        let root = self.open()?;
        if root.has(MARKER_FILE)? {
            self.marked()?;
        } else if let Some(foreign) = root.foreign_entry()? {
            let detail = format!("the directory is not empty: it holds {foreign:?}");
            return Err(Fault::new(StoreErrorKind::Foreign, detail));
        }
        root.check_writable()?;
        for name in std::iter::once(INCOMING.to_owned()).chain(places()) {
            root.make(&name)?;
        }
        root.sync()?;
        let incoming = root.place(INCOMING)?;
        root.write_and_link(
            &incoming,
            &root.readable()?,
            MARKER_FILE,
            &self.marker.encode(),
        )
        .or_else(|fault| match fault.kind {
            StoreErrorKind::AlreadyExists => Ok(()),
            _ => Err(fault),
        })?;
        if let Some(parent) = self.path.canonicalize()?.parent() {
            File::open(parent)?.sync_all()?;
        }
        self.marked().map(drop)
    }
}

/// An open cloud directory: later changes of its path do not affect it.
#[derive(Debug)]
pub(super) struct Root {
    fd: OwnedFd,
}

/// Opens a directory below it. Links are not followed.
fn open_directory(from: impl AsFd, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(from, name, flags, Mode::empty())
}

/// Never follows a link and never blocks on a pipe that another program put there.
fn open_to_read(from: impl AsFd, name: &str) -> io::Result<(File, u64)> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(from, name, flags, Mode::empty())?);
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok((file, metadata.len()))
}

/// Creates a file of this name, which must not exist.
fn create_new(from: impl AsFd, name: &str) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o666);
    Ok(File::from(rustix::fs::openat(from, name, flags, mode)?))
}

fn stat(from: impl AsFd, name: &str) -> io::Result<Stat> {
    Ok(rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?)
}

fn remove_file(from: impl AsFd, name: &str) -> io::Result<()> {
    Ok(rustix::fs::unlinkat(from, name, AtFlags::empty())?)
}

/// The names in an open directory, except `.` and `..`.
fn names(directory: impl AsFd) -> io::Result<impl Iterator<Item = io::Result<Vec<u8>>>> {
    let entries = Dir::read_from(directory)?;
    Ok(entries.filter_map(|entry| match entry {
        Ok(entry) => match entry.file_name().to_bytes() {
            b"." | b".." => None,
            name => Some(Ok(name.to_vec())),
        },
        Err(error) => Some(Err(error.into())),
    }))
}

impl Root {
    fn stat(&self, name: &str) -> io::Result<Stat> {
        stat(&self.fd, name)
    }

    fn has(&self, name: &str) -> io::Result<bool> {
        match self.stat(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            found => found.map(|_| true),
        }
    }

    /// The directory itself, open for listing and syncing.
    fn readable(&self) -> io::Result<OwnedFd> {
        Ok(open_directory(&self.fd, ".")?)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(self.readable()?)?)
    }

    /// One of the cloud's own directories.
    fn place(&self, name: &str) -> Result<OwnedFd, Fault> {
        open_directory(&self.fd, name).map_err(|error| match error {
            Errno::NOTDIR | Errno::LOOP => {
                let detail = format!(
                    "{name} in it is a link or a file and is not followed; it must be a directory"
                );
                Fault::new(StoreErrorKind::Other, detail)
            }
            _ => error.into(),
        })
    }

    /// Makes one of them, if it is missing.
    fn make(&self, name: &str) -> Result<(), Fault> {
        match rustix::fs::mkdirat(&self.fd, name, Mode::from_raw_mode(0o777)) {
            Err(Errno::EXIST) => self.place(name).map(drop),
            made => Ok(made?),
        }
    }

    /// Undoes [`CloudDirectory::create`] if no object was created since; the marker goes last.
    pub(super) fn give_back(&self) -> Result<(), Fault> {
        for name in places() {
            self.remove_directory(&name, "it is in use: it holds objects")?;
        }
        let incoming = self.place(INCOMING)?;
        let left: Vec<_> = names(&incoming)?.collect::<Result<_, _>>()?;
        for name in left.iter().filter(|name| is_random(name)) {
            rustix::fs::unlinkat(&incoming, name.as_slice(), AtFlags::empty())?;
        }
        self.remove_directory(INCOMING, "incoming holds files that are not the cloud's")?;
        remove_file(&self.fd, MARKER_FILE)?;
        Ok(self.sync()?)
    }

    /// Fails if the directory is not empty.
    fn remove_directory(&self, name: &str, otherwise: &str) -> Result<(), Fault> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::NOTEMPTY) => Err(Fault::new(StoreErrorKind::Foreign, otherwise)),
            Err(error) => Err(error.into()),
        }
    }

    /// The first entry that an unfinished creation cannot have left.
    fn foreign_entry(&self) -> Result<Option<String>, Fault> {
        for name in names(self.readable()?)? {
            let name = String::from_utf8_lossy(&name?).into_owned();
            // The entry that mkfs puts into the root of a disk does not show whose disk it is.
            let ours = name == INCOMING
                || name == LOST_AND_FOUND
                || (name.len() == 2 && name.bytes().all(|b| b"0123456789abcdef".contains(&b)));
            if !ours {
                return Ok(Some(name));
            }
            // Objects without a marker belong to another cloud, perhaps another volume's.
            if name.len() == 2
                && let Some(object) = names(self.place(&name)?)?.next()
            {
                let object = String::from_utf8_lossy(&object?).into_owned();
                return Ok(Some(format!("{name}/{object}")));
            }
        }
        Ok(None)
    }

    fn without_marker(&self, error: io::Error) -> Fault {
        if error.kind() != io::ErrorKind::NotFound {
            return error.into();
        }
        let first = self.readable().and_then(names).map(|mut all| all.next());
        match first {
            Err(error) => error.into(),
            Ok(None) => {
                let detail = format!("the directory is empty: its {MARKER_FILE} is missing");
                Fault::new(StoreErrorKind::Foreign, detail)
            }
            Ok(Some(_)) => {
                let detail = format!("the directory holds something else: no {MARKER_FILE}");
                Fault::new(StoreErrorKind::Foreign, detail)
            }
        }
    }

    /// A directory whose mode has no write bit counts as read-only even for root, for whom the
    /// kernel would make an exception.
    fn check_mode(&self) -> Result<(), Fault> {
        if rustix::fs::fstat(&self.fd)?.st_mode & 0o222 == 0 {
            let detail = "its mode lets no user write to it";
            return Err(Fault::new(StoreErrorKind::ReadOnly, detail));
        }
        Ok(())
    }

    /// Whether objects can be created here.
    pub(super) fn check_writable(&self) -> Result<(), Fault> {
        self.check_mode()?;
        let probe = format!("{INCOMING}-{}", random_name()?);
        create_new(&self.fd, &probe)?;
        Ok(remove_file(&self.fd, &probe)?)
    }

    /// The bytes that its file system has free for ordinary users, and its device.
    pub(super) fn free_space(&self) -> Result<FreeSpace, Fault> {
        let found = rustix::fs::fstatvfs(&self.fd)?;
        Ok(FreeSpace {
            pool: rustix::fs::fstat(&self.fd)?.st_dev,
            bytes: found.f_bavail.saturating_mul(found.f_frsize),
        })
    }

    /// Removes files that crashes left in `incoming`. Best effort: they do no harm.
    fn sweep(&self) {
        let Ok(incoming) = open_directory(&self.fd, INCOMING) else {
            return;
        };
        let Ok(all) = names(&incoming) else {
            return;
        };
        for name in all.take(SWEEP_MAX).flatten() {
            if !is_random(&name) {
                continue;
            }
            let Ok(name) = String::from_utf8(name) else {
                continue;
            };
            let old = stat(&incoming, &name).is_ok_and(|found| is_left_over(&found));
            if old {
                let _ = remove_file(&incoming, &name);
            }
        }
    }

    pub(super) fn put(&self, name: &ObjectName, body: &[u8]) -> Result<(), Fault> {
        self.check_mode()?;
        let (place, rest) = name.parts();
        let write = || {
            let (incoming, place) = (self.place(INCOMING)?, self.place(place)?);
            self.write_and_link(&incoming, &place, rest, body)
        };
        match write() {
            Err(fault) if fault.kind == StoreErrorKind::NotFound => {
                // One of our directories was removed: restore it, durably, and retry once.
                for directory in [INCOMING, place] {
                    self.make(directory)?;
                }
                self.sync()?;
                write()
            }
            result => result,
        }
    }

    /// Write, sync, link, sync the directory: each step relies on the one before.
    fn write_and_link(
        &self,
        incoming: &OwnedFd,
        place: &OwnedFd,
        name: &str,
        body: &[u8],
    ) -> Result<(), Fault> {
        let temporary = random_name()?;
        let mut file = create_new(incoming, &temporary)?;
        let link = || rustix::fs::linkat(incoming, &*temporary, place, name, AtFlags::empty());
        let result = file
            .write_all(body)
            .and_then(|()| file.sync_data())
            .map_err(Fault::from)
            .and_then(|()| link().map_err(unlinked));
        drop(file);
        let removed = remove_file(incoming, &temporary);
        match &result {
            Ok(()) => {}
            // The object may be one that a crash left between its link and its sync: make it as
            // durable as our own put.
            Err(fault) if fault.kind == StoreErrorKind::AlreadyExists => {}
            Err(_) => return result,
        }
        rustix::fs::fsync(place)?;
        result?;
        Ok(removed?)
    }

    /// An open object and its length.
    fn open_object(&self, name: &ObjectName) -> Result<(File, u64), Fault> {
        let (place, rest) = name.parts();
        Ok(open_to_read(self.place(place)?, rest)?)
    }

    pub(super) fn get(&self, name: &ObjectName, length_max: u64) -> Result<Bytes, Fault> {
        let (file, length) = self.open_object(name)?;
        if length > length_max {
            let detail = format!("it has {length} bytes where at most {length_max} can be right");
            return Err(Fault::new(StoreErrorKind::Corrupt, detail));
        }
        read_at(&file, 0, length)
    }

    pub(super) fn get_range(&self, name: &ObjectName, range: Range<u64>) -> Result<Bytes, Fault> {
        let (file, length) = self.open_object(name)?;
        if range.end < range.start || range.end > length {
            let detail = format!(
                "it has {length} bytes, and bytes {} to {} were requested",
                range.start, range.end
            );
            return Err(Fault::new(StoreErrorKind::Corrupt, detail));
        }
        read_at(&file, range.start, range.end - range.start)
    }

    pub(super) fn head(&self, name: &ObjectName) -> Result<ObjectInfo, Fault> {
        let (place, rest) = name.parts();
        let found = stat(self.place(place)?, rest)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(io::Error::other("it is not a regular file").into());
        }
        Ok(ObjectInfo {
            length: u64::try_from(found.st_size).unwrap_or_default(),
        })
    }

    pub(super) fn list(
        &self,
        prefix: &str,
        cursor: Option<&ObjectName>,
        limit: usize,
    ) -> Result<Page, Fault> {
        let mut listed = Vec::new();
        let cursor_place = cursor.map(|c| c.parts().0);
        for place in places() {
            let directory = format!("{place}/");
            if !(directory.starts_with(prefix) || prefix.starts_with(&directory))
                || cursor_place.is_some_and(|c| place.as_str() < c)
            {
                continue;
            }
            let opened = match self.place(&place) {
                Err(fault) if fault.kind == StoreErrorKind::NotFound => continue,
                opened => opened?,
            };
            // The smallest names of this directory, one more than fits: the limit bounds memory.
            let room = limit.saturating_sub(listed.len()) + 1;
            let mut found = BTreeSet::new();
            for file in names(opened)? {
                let file = file?;
                let Some(name) = std::str::from_utf8(&file)
                    .ok()
                    .and_then(|f| ObjectName::parse(&format!("{place}/{f}")).ok())
                else {
                    continue; // Not an object of ours.
                };
                if name.as_str().starts_with(prefix) && cursor.is_none_or(|c| &name > c) {
                    found.insert(name);
                    if found.len() > room {
                        found.pop_last();
                    }
                }
            }
            listed.extend(found);
            if listed.len() > limit {
                listed.truncate(limit);
                return Ok(Page {
                    names: listed,
                    more: true,
                });
            }
        }
        Ok(Page {
            names: listed,
            more: false,
        })
    }

    pub(super) fn delete(&self, name: &ObjectName) -> Result<(), Fault> {
        let (place, rest) = name.parts();
        let removed = self.place(place).and_then(|place| {
            remove_file(&place, rest)?;
            Ok(place)
        });
        match removed {
            Err(fault) if fault.kind == StoreErrorKind::NotFound => Ok(()),
            removed => Ok(rustix::fs::fsync(removed?)?),
        }
    }
}

/// Why a complete object could not be linked to its name.
pub(super) fn unlinked(error: Errno) -> Fault {
    match error {
        Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::MLINK => {
            let detail = format!(
                "its file system has no hard links ({error}), which a directory that acts as a \
                 cloud needs; use one on another file system"
            );
            Fault::new(StoreErrorKind::Other, detail)
        }
        _ => error.into(),
    }
}

/// Whether it is a file that a crash left in `incoming`.
fn is_left_over(found: &Stat) -> bool {
    let seconds = u64::try_from(found.st_mtime).unwrap_or_default();
    let age = SystemTime::now().duration_since(UNIX_EPOCH + Duration::from_secs(seconds));
    FileType::from_raw_mode(found.st_mode) == FileType::RegularFile
        && age.is_ok_and(|age| age > INCOMING_AGE_MAX)
}

fn read_at(file: &File, offset: u64, length: u64) -> Result<Bytes, Fault> {
    let length = usize::try_from(length)
        .map_err(|_| Fault::new(StoreErrorKind::Other, "too large for this machine"))?;
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes.into())
}
