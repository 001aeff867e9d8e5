//! A log file of at most [`BYTES_MAX`] bytes, and its predecessor.
//!
//! When a line would not fit, the log is copied to `FILE.old`, which it replaces, and emptied. It
//! is copied and not renamed because other processes append to it too: it is the standard error of
//! this process, where a panic is written, and of a second mount that finds this one running. Lines
//! written during the copy are lost; a log that grows until the disk is full would cost more. If
//! there is no space for a copy, the file is emptied anyway.

use crate::failure::{CommandResult, Failure};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tracing_subscriber::fmt::MakeWriter;

/// The most bytes of a log; with its predecessor, twice as much.
pub(crate) const BYTES_MAX: u64 = 8 << 20;

/// A log file of bounded size.
#[derive(Debug)]
pub(super) struct Bounded {
    path: PathBuf,
    bytes_max: u64,
    file: Mutex<File>,
}

impl Bounded {
    /// Opens a file for appending.
    pub(super) fn open(path: &Path) -> CommandResult<Self> {
        Self::of(path, BYTES_MAX)
    }

    fn of(path: &Path, bytes_max: u64) -> CommandResult<Self> {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(path)
            .map_err(|error| Failure::file("open the log", path, &error))?;
        Ok(Self {
            path: path.to_owned(),
            bytes_max,
            file: Mutex::new(file),
        })
    }

    fn append(&self, line: &[u8]) -> io::Result<()> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let more = u64::try_from(line.len()).unwrap_or(u64::MAX);
        if file.metadata()?.len().saturating_add(more) > self.bytes_max {
            self.put_aside(&file)?;
        }
        file.write_all(line)
    }

    fn put_aside(&self, file: &File) -> io::Result<()> {
        let with = |end: &str| {
            let mut name = self.path.clone().into_os_string();
            name.push(end);
            PathBuf::from(name)
        };
        let (old, next) = (with(".old"), with(".old.new"));
        let copied = self.copy(&next).and_then(|()| fs::rename(&next, &old));
        if copied.is_err() {
            let _ = fs::remove_file(&next);
        }
        file.set_len(0)
    }

    /// Copies the end of the log: one of an earlier release may have any length.
    fn copy(&self, to: &Path) -> io::Result<()> {
        let mut from = File::open(&self.path)?;
        let length = from.metadata()?.len();
        from.seek(SeekFrom::Start(length.saturating_sub(self.bytes_max)))?;
        let mut to = OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(to)?;
        io::copy(&mut from, &mut to).map(drop)
    }
}

/// Writes one line to the file.
pub(super) struct Line(Arc<Bounded>);

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.append(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line(Arc::clone(&self.0))
    }
}

/// The log of a process, to either destination.
#[derive(Clone, Debug)]
pub(super) struct Log(pub(super) Arc<Bounded>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_put_aside_before_it_has_more_than_its_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mount.log");
        fs::write(&path, "of before\n").unwrap();
        let log = Bounded::of(&path, 100).unwrap();
        // Standard error is the same file.
        let mut stderr = OpenOptions::new().append(true).open(&path).unwrap();
        for number in 0..1000 {
            log.append(format!("line {number}\n").as_bytes()).unwrap();
            let length = fs::metadata(&path).unwrap().len();
            assert!(length <= 100, "{length} bytes after line {number}");
        }
        writeln!(stderr, "a panic").unwrap();
        let now = fs::read_to_string(&path).unwrap();
        assert!(now.ends_with("line 999\na panic\n"), "{now}");
        let old = fs::read_to_string(directory.path().join("mount.log.old")).unwrap();
        assert!(old.len() <= 100 && !old.contains("999"), "{old}");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
    }

    #[test]
    fn without_room_for_a_copy_the_log_is_bounded_all_the_same() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mount.log");
        // A directory takes the copy's place.
        fs::create_dir(directory.path().join("mount.log.old.new")).unwrap();
        let log = Bounded::of(&path, 20).unwrap();
        for _ in 0..10 {
            log.append(b"0123456789\n").unwrap();
        }
        assert_eq!(fs::read(&path).unwrap(), b"0123456789\n");
    }
}
