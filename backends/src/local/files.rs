//! The blocking side: system calls on one cloud's directory, in the order that durability needs.

use crate::error::StoreErrorKind;
use crate::marker::{MARKER_BYTES, MARKER_FILE, Marker, MarkerError};
use crate::name::ObjectName;
use crate::store::{ObjectInfo, Page, Room};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Where objects are while they are being written.
const INCOMING: &str = "incoming";
/// What is older than this in `incoming` was left by a crash.
const INCOMING_AGE_MAX: Duration = Duration::from_secs(3600);
/// How many files one sweep of `incoming` looks at.
const SWEEP_MAX: usize = 10_000;

/// What went wrong, before it is known for whom.
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

impl From<MarkerError> for Fault {
    fn from(error: MarkerError) -> Self {
        Self::new(error.kind(), format!("{MARKER_FILE}: {error}"))
    }
}

/// A file's device and inode: changes when another is put in its place.
type Identity = (u64, u64);

#[derive(Debug)]
pub(super) struct Directory {
    root: PathBuf,
    marker: Marker,
    checked: Mutex<Option<Identity>>,
}

fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Never follows a link and never blocks on a pipe that somebody put there.
fn open_to_read(path: &Path) -> io::Result<(File, fs::Metadata)> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).map_err(io::Error::other)?;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok((file, metadata))
}

fn random_name() -> Result<String, Fault> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| Fault::new(StoreErrorKind::Other, format!("no randomness: {error}")))?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

impl Directory {
    pub(super) fn new(root: PathBuf, marker: Marker) -> Self {
        Self {
            root,
            marker,
            checked: Mutex::new(None),
        }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn describe(&self) -> String {
        format!("cloud {} ({})", self.marker.cloud, self.root.display())
    }

    fn path_of(&self, name: &ObjectName) -> PathBuf {
        let (place, rest) = name.parts();
        self.root.join(place).join(rest)
    }

    /// Creates the directory's structure; the marker comes last, because it says that all is there.
    pub(super) fn create(&self) -> Result<(), Fault> {
        fs::create_dir_all(&self.root)?;
        if self.root.join(MARKER_FILE).try_exists()? {
            self.check_marker()?;
        } else if let Some(stranger) = self.stranger()? {
            let detail = format!("the directory is not empty: it holds {stranger:?}");
            return Err(Fault::new(StoreErrorKind::Foreign, detail));
        }
        self.check_writable()?;
        for name in
            std::iter::once(INCOMING.to_owned()).chain((0..=255u8).map(|i| format!("{i:02x}")))
        {
            match fs::create_dir(self.root.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(error.into());
                }
                _ => {}
            }
        }
        sync_directory(&self.root)?;
        let temporary = self.root.join(INCOMING).join(random_name()?);
        self.write_and_link(
            &temporary,
            &self.root.join(MARKER_FILE),
            &self.marker.encode(),
        )
        .or_else(|fault| match fault.kind {
            StoreErrorKind::AlreadyExists => Ok(()),
            _ => Err(fault),
        })?;
        if let Some(parent) = self.root.canonicalize()?.parent() {
            sync_directory(parent)?;
        }
        self.check_marker()
    }

    /// Undoes [`create`](Self::create) where no object came in between; the marker goes last.
    pub(super) fn give_back(&self) -> Result<(), Fault> {
        for name in (0..=255u8).map(|i| format!("{i:02x}")) {
            // Fails if an object is in it.
            match fs::remove_dir(self.root.join(name)) {
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                    let detail = "it is in use: it holds objects";
                    return Err(Fault::new(StoreErrorKind::Foreign, detail));
                }
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
                _ => {}
            }
        }
        fs::remove_dir_all(self.root.join(INCOMING))?;
        fs::remove_file(self.root.join(MARKER_FILE))?;
        Ok(sync_directory(&self.root)?)
    }

    /// The first entry that an unfinished creation cannot have left.
    fn stranger(&self) -> Result<Option<String>, Fault> {
        for entry in fs::read_dir(&self.root)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let ours = name == INCOMING
                || (name.len() == 2 && name.bytes().all(|b| b"0123456789abcdef".contains(&b)));
            if !ours {
                return Ok(Some(name));
            }
            // Objects without a marker are somebody's, perhaps another volume's.
            let directory = self.root.join(&name);
            if name != INCOMING
                && let Some(object) = fs::read_dir(directory)?.next()
            {
                let object = object?.file_name().to_string_lossy().into_owned();
                return Ok(Some(format!("{name}/{object}")));
            }
        }
        Ok(None)
    }

    /// Whether this directory is the cloud it should be; costs one system call if nothing changed.
    pub(super) fn check_marker(&self) -> Result<(), Fault> {
        let path = self.root.join(MARKER_FILE);
        let found = match fs::symlink_metadata(&path) {
            Ok(metadata) => (metadata.dev(), metadata.ino()),
            Err(error) => {
                *self.checked.lock().unwrap_or_else(PoisonError::into_inner) = None;
                return Err(self.without_marker(error));
            }
        };
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        if *checked == Some(found) {
            return Ok(());
        }
        *checked = None;
        let (file, _) = open_to_read(&path)?;
        let mut bytes = Vec::with_capacity(MARKER_BYTES);
        file.take(4096).read_to_end(&mut bytes)?;
        Marker::check(self.marker, &bytes)?;
        *checked = Some(found);
        drop(checked);
        self.sweep();
        Ok(())
    }

    fn without_marker(&self, error: io::Error) -> Fault {
        if !matches!(
            error.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
        ) {
            return error.into();
        }
        match fs::read_dir(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Fault::new(StoreErrorKind::Unavailable, "the directory does not exist")
            }
            Err(error) => Fault::from(error),
            Ok(mut entries) => {
                let detail = match entries.next() {
                    None => format!("the directory is empty: its {MARKER_FILE} is missing"),
                    Some(_) => format!("the directory holds something else: no {MARKER_FILE}"),
                };
                Fault::new(StoreErrorKind::Foreign, detail)
            }
        }
    }

    /// Whether objects can be created here. A directory that nobody may write counts as read-only
    /// even for root, for whom the kernel would make an exception.
    pub(super) fn check_writable(&self) -> Result<(), Fault> {
        if fs::metadata(&self.root)?.mode() & 0o222 == 0 {
            let detail = "nobody may write the directory";
            return Err(Fault::new(StoreErrorKind::ReadOnly, detail));
        }
        let probe = self.root.join(format!("{INCOMING}-{}", random_name()?));
        File::create_new(&probe)?;
        Ok(fs::remove_file(&probe)?)
    }

    /// What its file system has left for those who are not its superuser, by which device.
    pub(super) fn room(&self) -> Result<Room, Fault> {
        let found = rustix::fs::statvfs(&self.root).map_err(io::Error::from)?;
        Ok(Room {
            pool: fs::metadata(&self.root)?.dev(),
            bytes: found.f_bavail.saturating_mul(found.f_frsize),
        })
    }

    /// Removes what crashes left in `incoming`. Best effort: rubbish does no harm.
    fn sweep(&self) {
        let Ok(entries) = fs::read_dir(self.root.join(INCOMING)) else {
            return;
        };
        for entry in entries.take(SWEEP_MAX).flatten() {
            let age = entry
                .metadata()
                .and_then(|m| m.modified())
                .map(|t| t.elapsed());
            if matches!(age, Ok(Ok(age)) if age > INCOMING_AGE_MAX) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    pub(super) fn put(&self, name: &ObjectName, body: &[u8]) -> Result<(), Fault> {
        if fs::metadata(&self.root)?.mode() & 0o222 == 0 {
            let detail = "nobody may write the directory";
            return Err(Fault::new(StoreErrorKind::ReadOnly, detail));
        }
        let target = self.path_of(name);
        let temporary = self.root.join(INCOMING).join(random_name()?);
        match self.write_and_link(&temporary, &target, body) {
            Err(fault) if fault.kind == StoreErrorKind::NotFound => {
                // Somebody removed one of our directories: restore it, durably, and try once more.
                for directory in [INCOMING, name.parts().0] {
                    match fs::create_dir(self.root.join(directory)) {
                        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e.into()),
                        _ => {}
                    }
                }
                sync_directory(&self.root)?;
                self.write_and_link(&temporary, &target, body)
            }
            result => result,
        }
    }

    /// Write, sync, link, sync the directory: each step rests on the one before.
    fn write_and_link(&self, temporary: &Path, target: &Path, body: &[u8]) -> Result<(), Fault> {
        let mut file = File::create_new(temporary)?;
        let result = file
            .write_all(body)
            .and_then(|()| file.sync_data())
            .and_then(|()| fs::hard_link(temporary, target));
        drop(file);
        let removed = fs::remove_file(temporary);
        match &result {
            Ok(()) => {}
            // It may be what a crash left between its link and its sync: as durable as a put of
            // ours.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(_) => return Ok(result?),
        }
        sync_directory(target.parent().unwrap_or(&self.root))?;
        result?;
        Ok(removed?)
    }

    pub(super) fn get(&self, name: &ObjectName, length_max: u64) -> Result<Bytes, Fault> {
        let (file, metadata) = open_to_read(&self.path_of(name))?;
        let length = metadata.len();
        if length > length_max {
            let detail = format!("it has {length} bytes where at most {length_max} can be right");
            return Err(Fault::new(StoreErrorKind::Corrupt, detail));
        }
        read_at(&file, 0, length)
    }

    pub(super) fn get_range(&self, name: &ObjectName, range: Range<u64>) -> Result<Bytes, Fault> {
        let (file, metadata) = open_to_read(&self.path_of(name))?;
        if range.end < range.start || range.end > metadata.len() {
            let detail = format!(
                "it has {} bytes, and bytes {} to {} were wanted",
                metadata.len(),
                range.start,
                range.end
            );
            return Err(Fault::new(StoreErrorKind::Corrupt, detail));
        }
        read_at(&file, range.start, range.end - range.start)
    }

    pub(super) fn head(&self, name: &ObjectName) -> Result<ObjectInfo, Fault> {
        let metadata = fs::symlink_metadata(self.path_of(name))?;
        Ok(ObjectInfo {
            length: metadata.len(),
        })
    }

    pub(super) fn list(
        &self,
        prefix: &str,
        cursor: Option<&ObjectName>,
        limit: usize,
    ) -> Result<Page, Fault> {
        let mut names = Vec::new();
        let cursor_place = cursor.map(|c| c.parts().0);
        for place in (0..=255u8).map(|i| format!("{i:02x}")) {
            let directory = format!("{place}/");
            if !(directory.starts_with(prefix) || prefix.starts_with(&directory))
                || cursor_place.is_some_and(|c| place.as_str() < c)
            {
                continue;
            }
            let entries = match fs::read_dir(self.root.join(&place)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                entries => entries?,
            };
            // The smallest of this place, one more than fits: memory is bounded by the limit.
            let room = limit.saturating_sub(names.len()) + 1;
            let mut found = BTreeSet::new();
            for entry in entries {
                let file = entry?.file_name();
                let Some(name) = file
                    .to_str()
                    .and_then(|f| ObjectName::parse(&format!("{place}/{f}")).ok())
                else {
                    continue; // Not an object: nothing of ours.
                };
                if name.as_str().starts_with(prefix) && cursor.is_none_or(|c| &name > c) {
                    found.insert(name);
                    if found.len() > room {
                        found.pop_last();
                    }
                }
            }
            names.extend(found);
            if names.len() > limit {
                names.truncate(limit);
                return Ok(Page { names, more: true });
            }
        }
        Ok(Page { names, more: false })
    }

    pub(super) fn delete(&self, name: &ObjectName) -> Result<(), Fault> {
        let target = self.path_of(name);
        match fs::remove_file(&target) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => {
                result?;
                Ok(sync_directory(target.parent().unwrap_or(&self.root))?)
            }
        }
    }
}

fn read_at(file: &File, offset: u64, length: u64) -> Result<Bytes, Fault> {
    let length = usize::try_from(length)
        .map_err(|_| Fault::new(StoreErrorKind::Other, "too large for this machine"))?;
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes.into())
}
