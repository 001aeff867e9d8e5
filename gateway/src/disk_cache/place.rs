//! The place of segments: a directory of the disk cache's own, behind a trait so that tests can use
//! a disk that fails and forgets.

use super::index::SegmentId;
use std::fmt::Debug;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const ENDING: &str = ".segment";

/// The file of a segment.
pub(super) trait SegmentFile: Send + Sync + Debug {
    /// Fills the buffer with the bytes at `offset`.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all bytes at `offset`.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
}

/// The files of all segments.
pub(super) trait SegmentPlace: Send + Sync + Debug {
    /// The existing segments, with the lengths of their files.
    fn list(&self) -> io::Result<Vec<(SegmentId, u64)>>;
    /// Creates a file; an existing one is emptied.
    fn create(&self, id: SegmentId) -> io::Result<Box<dyn SegmentFile>>;
    /// Opens an existing file.
    fn open(&self, id: SegmentId) -> io::Result<Box<dyn SegmentFile>>;
    /// Removes a file; open handles stay usable.
    fn remove(&self, id: SegmentId) -> io::Result<()>;
    /// Bytes that are free for ordinary users.
    fn available(&self) -> io::Result<u64>;
}

/// A directory, locked while this value lives.
#[derive(Debug)]
pub(super) struct SegmentDirectory {
    path: PathBuf,
    _lock: File,
}

impl SegmentDirectory {
    /// Creates it if it is missing, for its owner alone, and takes its lock.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(path.join("lock"))?;
        crate::lock::take(&lock)?;
        Ok(Self {
            path: path.to_owned(),
            _lock: lock,
        })
    }

    fn file(&self, id: SegmentId) -> PathBuf {
        self.path.join(format!("{:08x}{ENDING}", id.0))
    }
}

impl SegmentFile for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }
}

impl SegmentPlace for SegmentDirectory {
    fn list(&self) -> io::Result<Vec<(SegmentId, u64)>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            let name = entry.file_name();
            let digits = name.to_str().and_then(|name| name.strip_suffix(ENDING));
            let digits = digits.filter(|digits| digits.len() == 8);
            // Any other file is not ours.
            if let Some(id) = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()) {
                found.push((SegmentId(id), entry.metadata()?.len()));
            }
        }
        Ok(found)
    }

    fn create(&self, id: SegmentId) -> io::Result<Box<dyn SegmentFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        Ok(Box::new(options.mode(0o600).open(self.file(id))?))
    }

    fn open(&self, id: SegmentId) -> io::Result<Box<dyn SegmentFile>> {
        Ok(Box::new(File::open(self.file(id))?))
    }

    fn remove(&self, id: SegmentId) -> io::Result<()> {
        std::fs::remove_file(self.file(id))
    }

    fn available(&self) -> io::Result<u64> {
        let found = rustix::fs::statvfs(&self.path)?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }
}
