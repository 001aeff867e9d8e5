//! Committed batches, in files next to the database.
//!
//! A replica keeps the batches since one of its last roots, for replicas that missed them.
//! With long requests they are most of what a flush writes, and a B-tree suits them badly: it
//! rounds each up to a power of two, copies it twice on its way, and reads it again in order to
//! remove it. But they are written once, and are removed in the order in which they came. So a
//! flush writes its batches one after the other to a file of its own; the database has a short row
//! for each with its location.
//!
//! # What always holds
//!
//! * **A row names only durable bytes**: a file is synced, and its directory, before the rows.
//! * **A file that no row names is removed**: after the flush that removed the last such row, or,
//!   if the process ended before that, when the store is opened.
//! * **Files are not rewritten.** A number is not used twice while a process runs.
//!
//! # What can go wrong
//!
//! A file that is missing or short is reported with its name. Its content is not checked here:
//! each batch carries a digest, which the replica compares.

use crate::disk::{DiskError, failed, sync, sync_directory};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

const SUFFIX: &str = ".batches";
/// Small batches are gathered into pieces of this many bytes.
const PIECE_BYTES: usize = 256 << 10;

/// The location of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchLocation {
    file: u64,
    offset: u64,
    length: u32,
}

impl BatchLocation {
    /// Its row: file (8) ‖ offset (8) ‖ length (4), little-endian.
    pub(super) fn encode(self) -> [u8; 20] {
        let mut row = [0; 20];
        let (file, rest) = row.split_at_mut(8);
        let (offset, length) = rest.split_at_mut(8);
        file.copy_from_slice(&self.file.to_le_bytes());
        offset.copy_from_slice(&self.offset.to_le_bytes());
        length.copy_from_slice(&self.length.to_le_bytes());
        row
    }

    pub(super) fn decode(row: &[u8]) -> Option<Self> {
        let (file, rest) = row.split_first_chunk()?;
        let (offset, rest) = rest.split_first_chunk()?;
        Some(Self {
            file: u64::from_le_bytes(*file),
            offset: u64::from_le_bytes(*offset),
            length: u32::from_le_bytes(rest.try_into().ok()?),
        })
    }
}

/// The files of one store.
pub(super) struct BatchFiles {
    directory: PathBuf,
    file_table: Mutex<FileTable>,
}

/// The existing files.
struct FileTable {
    next: u64,
    /// By file: how many rows name it.
    rows: BTreeMap<u64, usize>,
}

impl BatchFiles {
    /// Opens the files in `directory` that these locations name; the others are removed.
    pub(super) fn open(
        directory: &Path,
        named: impl Iterator<Item = BatchLocation>,
    ) -> Result<Self, DiskError> {
        let mut rows = BTreeMap::new();
        for place in named {
            *rows.entry(place.file).or_insert(0) += 1;
        }
        let found = numbers(directory).map_err(failed("listing", directory))?;
        let last = found.last().max(rows.keys().next_back());
        let next = last.map_or(1, |last| last.saturating_add(1));
        for number in found.iter().filter(|number| !rows.contains_key(number)) {
            remove(&path_of(directory, *number));
        }
        Ok(Self {
            directory: directory.to_owned(),
            file_table: Mutex::new(FileTable { next, rows }),
        })
    }

    /// Writes these batches durably to a file of their own; returns their locations.
    pub(super) fn write<'a>(
        &self,
        batches: impl Iterator<Item = &'a Bytes>,
    ) -> Result<Vec<BatchLocation>, DiskError> {
        let mut batches = batches.peekable();
        if batches.peek().is_none() {
            return Ok(Vec::new());
        }
        let number = self.file_table().take_number();
        let path = path_of(&self.directory, number);
        let written = self.write_to(&path, number, batches);
        if written.is_err() {
            // If the disk is full, its space is needed.
            remove(&path);
        }
        written
    }

    fn write_to<'a>(
        &self,
        path: &Path,
        number: u64,
        batches: impl Iterator<Item = &'a Bytes>,
    ) -> Result<Vec<BatchLocation>, DiskError> {
        let file = File::create_new(path).map_err(failed("creating", path))?;
        let (mut places, mut offset) = (Vec::new(), 0);
        let mut out = BufWriter::with_capacity(PIECE_BYTES, &file);
        for batch in batches {
            out.write_all(batch).map_err(failed("writing", path))?;
            let length = u32::try_from(batch.len());
            let too_long = |_| failed("writing", path)(io::ErrorKind::FileTooLarge.into());
            let length = length.map_err(too_long)?;
            places.push(BatchLocation {
                file: number,
                offset,
                length,
            });
            offset += u64::from(length);
        }
        out.flush().map_err(failed("writing", path))?;
        drop(out);
        sync(&file, path)?;
        sync_directory(&self.directory)?;
        Ok(places)
    }

    /// The rows that name `new` are durable, and those that named `gone` are removed.
    pub(super) fn settle(&self, new: &[BatchLocation], gone: &[BatchLocation]) {
        let mut file_table = self.file_table();
        for place in new {
            *file_table.rows.entry(place.file).or_insert(0) += 1;
        }
        for place in gone {
            let Some(rows) = file_table.rows.get_mut(&place.file) else {
                continue;
            };
            *rows = rows.saturating_sub(1);
            if *rows == 0 {
                file_table.rows.remove(&place.file);
                remove(&path_of(&self.directory, place.file));
            }
        }
    }

    /// The batch at `place`.
    pub(super) fn read(&self, place: BatchLocation) -> io::Result<Bytes> {
        let file = File::open(self.path(place))?;
        let mut batch = vec![0; usize::try_from(place.length).unwrap_or(usize::MAX)];
        file.read_exact_at(&mut batch, place.offset)?;
        Ok(batch.into())
    }

    pub(super) fn path(&self, place: BatchLocation) -> PathBuf {
        path_of(&self.directory, place.file)
    }

    fn file_table(&self) -> MutexGuard<'_, FileTable> {
        self.file_table
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl FileTable {
    fn take_number(&mut self) -> u64 {
        let number = self.next;
        self.next = number.saturating_add(1);
        number
    }
}

/// Removes a file that no row names. If that fails the file does no harm, and is removed when the
/// store is opened.
fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::warn!(path = %path.display(), %error, "a file of old batches cannot be removed");
    }
}

fn path_of(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{number:020}{SUFFIX}"))
}

/// The numbers of the files in `directory`.
fn numbers(directory: &Path) -> io::Result<BTreeSet<u64>> {
    let mut numbers = BTreeSet::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let number = name.and_then(|name| name.strip_suffix(SUFFIX)?.parse().ok());
        numbers.extend(number.filter(|number| path_of(directory, *number) == path));
    }
    Ok(numbers)
}
