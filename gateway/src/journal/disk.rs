//! The disk operations of the journal, and the directory that implements them.
//!
//! Assumptions about the medium: synced bytes stay; unsynced bytes may be there or not, sector by
//! sector, in any order. Creating and removing a file are durable: a removed file does not come
//! back, and a created name does not vanish. After an error nothing is assumed.

use super::framing::Generation;
use rustix::fs::Advice;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::num::NonZeroU64;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The place of the journal's files.
pub trait Disk: Send + 'static {
    /// The existing files, in any order, without those that were put aside.
    fn list(&mut self) -> io::Result<Vec<Generation>>;
    /// All bytes of a file.
    fn read(&mut self, file: Generation) -> io::Result<Vec<u8>>;
    /// Makes the bytes that were read of a file durable.
    fn settle(&mut self, file: Generation) -> io::Result<()>;
    /// Creates a file that begins with `header`, durably, including its name; it is then the one to
    /// append to.
    fn create(&mut self, file: Generation, header: &[u8]) -> io::Result<()>;
    /// Appends to the file that was created last.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Makes the appended bytes durable.
    fn sync(&mut self) -> io::Result<()>;
    /// Removes a file, durably.
    fn remove(&mut self, file: Generation) -> io::Result<()>;
    /// Puts a file aside for people; the journal does not use it any more.
    fn put_aside(&mut self, file: Generation) -> io::Result<()>;
    /// Free bytes on the disk.
    fn free_bytes(&mut self) -> io::Result<u64>;
}

/// A directory, for this user alone.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    current: Option<Current>,
}

/// The file that is appended to.
#[derive(Debug)]
struct Current {
    file: File,
    length: u64,
    /// The kernel has begun to write back the bytes before this offset.
    begun: u64,
}

/// Write-back begins after so many bytes, without waiting for a sync, which would otherwise find
/// all of them in memory after the disk had been idle.
const WRITE_BEHIND_BYTES: u64 = 4 << 20;

impl Current {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.length = self.length.saturating_add(bytes.len() as u64);
        let written = self.length.saturating_sub(self.begun);
        if written >= WRITE_BEHIND_BYTES {
            // Linux begins to write back pages that are not wanted in memory, and does not wait. If
            // this fails, the sync writes everything.
            let advice = Advice::DontNeed;
            let _ = rustix::fs::fadvise(&self.file, self.begun, NonZeroU64::new(written), advice);
            self.begun = self.length;
        }
        Ok(())
    }
}

const SUFFIX: &str = ".journal";
const ASIDE: &str = ".damaged";

impl Directory {
    /// The directory at `path`, created if it is missing.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn open(path: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        if let Some(parent) = path.parent().filter(|it| !it.as_os_str().is_empty()) {
            File::open(parent)?.sync_all()?;
        }
        Ok(Self {
            path: path.to_owned(),
            current: None,
        })
    }

    fn file(&self, file: Generation) -> PathBuf {
        self.path.join(format!("{:016x}{SUFFIX}", file.0))
    }

    fn sync_names(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }
}

impl Disk for Directory {
    fn list(&mut self) -> io::Result<Vec<Generation>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_suffix(SUFFIX));
            let number = number.and_then(|digits| u64::from_str_radix(digits, 16).ok());
            found.extend(number.map(Generation));
        }
        Ok(found)
    }

    fn read(&mut self, file: Generation) -> io::Result<Vec<u8>> {
        fs::read(self.file(file))
    }

    fn settle(&mut self, file: Generation) -> io::Result<()> {
        OpenOptions::new()
            .write(true)
            .open(self.file(file))?
            .sync_all()
    }

    fn create(&mut self, file: Generation, header: &[u8]) -> io::Result<()> {
        self.current = None;
        let mut made = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(self.file(file))?;
        made.write_all(header)?;
        made.sync_all()?;
        self.sync_names()?;
        self.current = Some(Current {
            file: made,
            length: header.len() as u64,
            begun: 0,
        });
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.current {
            Some(current) => current.append(bytes),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        match &mut self.current {
            Some(current) => current.file.sync_data(),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn remove(&mut self, file: Generation) -> io::Result<()> {
        fs::remove_file(self.file(file))?;
        self.sync_names()
    }

    fn put_aside(&mut self, file: Generation) -> io::Result<()> {
        let path = self.file(file);
        match fs::hard_link(&path, path.with_extension(ASIDE.trim_start_matches('.'))) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            outcome => outcome,
        }?;
        self.sync_names()
    }

    fn free_bytes(&mut self) -> io::Result<u64> {
        let found = rustix::fs::statvfs(&self.path)?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }
}
