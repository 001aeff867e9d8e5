//! Proved rows on this machine: what a recovery loads, and what it goes on with after a crash.
//!
//! The file has the bytes of parts ([`super::rows`]), one after the other, and is complete or not
//! there: it is written aside and renamed after the proof. It holds nothing that the servers do not
//! hold, and is readable by its owner alone.

use super::RecoveryError;
use super::rows::{self, PartWriter};
use bytes::{Bytes, BytesMut};
use quorumfs_bft::state::{Born, ChangedRow};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Bytes that are read at a time.
const CHUNK: usize = 1 << 20;

/// A file of rows.
#[derive(Clone, Debug)]
pub struct Spool {
    path: PathBuf,
}

/// A file of rows that is being written.
#[derive(Debug)]
pub(super) struct SpoolWriter {
    file: File,
    aside: PathBuf,
    path: PathBuf,
    writer: PartWriter,
}

impl Spool {
    /// The rows at `path`; whether they are there shows when they are read.
    #[must_use]
    pub const fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// Whether it is there, and so complete.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.path.is_file()
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Begins it anew.
    pub(super) fn create(&self) -> Result<SpoolWriter, RecoveryError> {
        let aside = self.path.with_extension("partial");
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&aside)
            .map_err(|error| RecoveryError::file(&aside, &error))?;
        Ok(SpoolWriter {
            file,
            aside,
            path: self.path.clone(),
            writer: PartWriter::default(),
        })
    }

    /// Reads it from the beginning.
    pub(super) fn read(&self) -> Result<SpoolReader, RecoveryError> {
        let file = File::open(&self.path);
        Ok(SpoolReader {
            file: file.map_err(|error| RecoveryError::file(&self.path, &error))?,
            path: self.path.clone(),
            rest: Bytes::new(),
            over: false,
        })
    }

    /// Removes it.
    ///
    /// # Errors
    /// If it is there and cannot be removed.
    pub fn remove(&self) -> Result<(), RecoveryError> {
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(RecoveryError::file(&self.path, &error))
            }
            _ => Ok(()),
        }
    }
}

impl SpoolWriter {
    /// Adds a row.
    pub(super) fn push(&mut self, row: &ChangedRow) -> Result<(), RecoveryError> {
        match self.writer.push(row) {
            Some(part) => self.write(&part),
            None => Ok(()),
        }
    }

    fn write(&mut self, part: &[u8]) -> Result<(), RecoveryError> {
        let written = self.file.write_all(part);
        written.map_err(|error| RecoveryError::file(&self.aside, &error))
    }

    /// All rows are there and proved.
    pub(super) fn finish(mut self) -> Result<(), RecoveryError> {
        if let Some(part) = std::mem::take(&mut self.writer).finish() {
            self.write(&part)?;
        }
        let done = self
            .file
            .sync_all()
            .and_then(|()| std::fs::rename(&self.aside, &self.path));
        done.map_err(|error| RecoveryError::file(&self.path, &error))
    }
}

/// A file of rows that is being read.
#[derive(Debug)]
pub(super) struct SpoolReader {
    file: File,
    path: PathBuf,
    rest: Bytes,
    over: bool,
}

impl SpoolReader {
    /// The next row; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<(Bytes, Born)>, RecoveryError> {
        loop {
            let before = self.rest.clone();
            match rows::next(&mut self.rest) {
                Some(Ok(ChangedRow {
                    key,
                    now: Some(born),
                })) => return Ok(Some((key, born))),
                Some(Ok(_)) => return Err(RecoveryError::Malformed),
                None if self.over => return Ok(None),
                Some(Err(_)) if self.over => return Err(RecoveryError::Malformed),
                // The row goes on behind the bytes that were read.
                None | Some(Err(_)) => self.fill(&before)?,
            }
        }
    }

    fn fill(&mut self, before: &[u8]) -> Result<(), RecoveryError> {
        let mut more = BytesMut::from(before);
        let begin = more.len();
        more.resize(begin + CHUNK, 0);
        let room = more.get_mut(begin..).unwrap_or_default();
        let read = self.file.read(room);
        let read = read.map_err(|error| RecoveryError::file(&self.path, &error))?;
        more.truncate(begin + read);
        self.over = read == 0;
        self.rest = more.freeze();
        Ok(())
    }
}
