//! The files of the journal.
//!
//! ```text
//! N.journal = header │ record N │ record N+1 │ …       N: twenty decimal digits
//! header    = magic "qfsjrnl\0" │ format u32 │ features u32 │ N u64 │ check 8
//! ```
//!
//! Little-endian. The check is the beginning of BLAKE3, in derive-key mode, of what stands before
//! it: a newer release's header is whole and is refused, a damaged one is damage. Records are
//! framed and judged by [`quorumfs_bft::journal`]; what is added here is only that their files are
//! there, begin as they must and follow one another.

use super::DiskError;
use super::error::failed;
use super::files::{sync, sync_directory};
use bytes::{BufMut, Bytes};
use quorumfs_bft::journal::{Condition, Journal, examine, frame};
use quorumfs_bft::step::Token;
use quorumfs_bft::wire::limits::RECORD_BYTES_MAX;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"qfsjrnl\0";
const FORMAT: u32 = 1;
const CONTEXT: &str = "quorumfs 2026 journal segment header";
/// Bytes of a header before its check.
pub(super) const CHECKED_BYTES: usize = 24;
pub(super) const HEADER_BYTES: usize = CHECKED_BYTES + 8;
/// A segment that is longer is followed by a new one.
const SEGMENT_BYTES_MAX: u64 = 16 << 20;

/// What was read back.
#[derive(Debug)]
pub(super) struct ReadBack {
    pub(super) journal: Journal,
    /// The token of the next record.
    pub(super) next: Token,
    /// The last segment, if there is one.
    last: Option<PathBuf>,
}

impl ReadBack {
    /// Cuts off a record that was never whole, so that the next segment follows a clean end.
    pub(super) fn drop_torn_tail(&self) -> Result<(), DiskError> {
        let (Condition::TornTail { good_bytes }, Some(path)) =
            (&self.journal.condition, &self.last)
        else {
            return Ok(());
        };
        let file = File::options()
            .write(true)
            .open(path)
            .map_err(failed("opening", path))?;
        let length = (HEADER_BYTES + good_bytes) as u64;
        file.set_len(length).map_err(failed("cutting", path))?;
        sync(&file, path)
    }
}

/// Reads all segments in `directory`.
pub(super) fn read_all(directory: &Path) -> Result<ReadBack, DiskError> {
    let segments = list(directory)?;
    let last = segments.last().cloned();
    let mut bodies = Vec::with_capacity(segments.len());
    let mut wrong = last
        .is_none()
        .then(|| "the journal has no segment".to_owned());
    for (first, path) in segments {
        let mut bytes = Bytes::from(fs::read(&path).map_err(failed("reading", &path))?);
        let header = bytes.split_to(HEADER_BYTES.min(bytes.len()));
        // One that was cut short has no records: it is as if the segment were empty.
        if let Some(found) = newer(&header) {
            return Err(DiskError::Format {
                path,
                found,
                known: FORMAT,
            });
        }
        if header.len() == HEADER_BYTES && header != header_of(first) {
            wrong = Some(format!("{} does not begin as it must", path.display()));
            break;
        }
        bodies.push(bytes);
    }
    let mut journal = examine(&bodies);
    if let Some(reason) = wrong {
        journal = Journal::lost(reason);
    }
    let behind = journal.entries.last().map(|entry| Token(entry.token.0 + 1));
    let named = last.as_ref().map(|(first, _)| *first);
    let next = behind.or(named).unwrap_or(Token(1));
    journal.next = next;
    Ok(ReadBack {
        journal,
        next,
        last: last.map(|(_, path)| path),
    })
}

/// What a header says of its format, if only a newer release can have written it.
fn newer(header: &[u8]) -> Option<String> {
    let (checked, check) = header.split_first_chunk::<CHECKED_BYTES>()?;
    if check != check_of(checked) {
        return None;
    }
    let rest = checked.strip_prefix(MAGIC)?;
    let (format, rest) = rest.split_first_chunk::<4>()?;
    let (features, _) = rest.split_first_chunk::<4>()?;
    let (format, features) = (u32::from_le_bytes(*format), u32::from_le_bytes(*features));
    (format > FORMAT || features != 0).then(|| format!("{format} with features {features:#x}"))
}

/// The segments by their first token, in order.
fn list(directory: &Path) -> Result<Vec<(Token, PathBuf)>, DiskError> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed("reading", directory)(error)),
    };
    let mut segments = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed("reading", directory))?.path();
        let digits = path.file_name().and_then(|name| name.to_str());
        let first = digits.and_then(|name| name.strip_suffix(".journal"));
        if let Some(Ok(first)) = first.map(str::parse) {
            segments.push((Token(first), path));
        }
    }
    segments.sort_unstable();
    Ok(segments)
}

/// What ends a header that begins like this.
pub(super) fn check_of(checked: &[u8]) -> [u8; HEADER_BYTES - CHECKED_BYTES] {
    let mut check = [0; HEADER_BYTES - CHECKED_BYTES];
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    hasher.update(checked).finalize_xof().fill(&mut check);
    check
}

fn header_of(first: Token) -> Bytes {
    let mut header = Vec::with_capacity(HEADER_BYTES);
    header.put_slice(MAGIC);
    header.put_u32_le(FORMAT);
    header.put_u32_le(0);
    header.put_u64_le(first.0);
    let check = check_of(&header);
    header.put_slice(&check);
    header.into()
}

/// Appends to the last segment.
pub(super) struct Writer {
    directory: PathBuf,
    file: File,
    path: PathBuf,
    length: u64,
    next: Token,
    /// All segments, the one being written last.
    segments: Vec<(Token, PathBuf)>,
}

impl Writer {
    /// Begins a new segment with record `next`. An empty one of the same name is replaced.
    pub(super) fn create(directory: &Path, next: Token) -> Result<Self, DiskError> {
        let path = directory.join(format!("{:020}.journal", next.0));
        let file = begin(directory, &path, next)?;
        Ok(Self {
            directory: directory.to_owned(),
            file,
            path,
            length: HEADER_BYTES as u64,
            next,
            segments: list(directory)?,
        })
    }

    /// Lays records out one after the other, for one write.
    pub(super) fn frame(
        &mut self,
        token: Token,
        body: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), DiskError> {
        if token != self.next {
            return Err(DiskError::OutOfTurn {
                found: token.0,
                expected: self.next.0,
            });
        }
        if body.len() > RECORD_BYTES_MAX {
            return Err(DiskError::RecordTooLong {
                length: body.len(),
                max: RECORD_BYTES_MAX,
            });
        }
        out.put_slice(&frame(token, body));
        self.next = Token(token.0 + 1);
        Ok(())
    }

    pub(super) fn write(&mut self, frames: &[u8]) -> Result<(), DiskError> {
        self.file
            .write_all(frames)
            .map_err(failed("writing", &self.path))?;
        self.length += frames.len() as u64;
        Ok(())
    }

    pub(super) fn sync(&self) -> Result<(), DiskError> {
        sync(&self.file, &self.path)
    }

    /// Begins a new segment if the current one is long enough.
    pub(super) fn roll(&mut self) -> Result<(), DiskError> {
        if self.length < SEGMENT_BYTES_MAX {
            return Ok(());
        }
        // Whatever the durability: a clean stop syncs only the last segment.
        self.sync()?;
        *self = Self::create(&self.directory, self.next)?;
        Ok(())
    }

    /// Removes the segments with nothing but records before `before`.
    pub(super) fn trim(&mut self, before: Token) -> Result<(), DiskError> {
        if self.length == HEADER_BYTES as u64 {
            // The last record stays: the token after it is found again by it.
            return Ok(());
        }
        let needed = |window: &[(Token, PathBuf)]| window.get(1).is_none_or(|next| next.0 > before);
        let count = self
            .segments
            .windows(2)
            .take_while(|pair| !needed(pair))
            .count();
        for (_, path) in self.segments.drain(..count) {
            fs::remove_file(&path).map_err(failed("removing", &path))?;
        }
        // Not synced: a segment that comes back after a crash is trimmed again.
        Ok(())
    }
}

fn begin(directory: &Path, path: &Path, first: Token) -> Result<File, DiskError> {
    let mut file = File::options()
        .create(true)
        .write(true)
        .truncate(true)
        .open(path)
        .map_err(failed("creating", path))?;
    file.write_all(&header_of(first))
        .map_err(failed("writing", path))?;
    sync(&file, path)?;
    sync_directory(directory)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Writer {
        /// Lets every later write meet a full disk.
        pub(in super::super) fn fill_up(&mut self) {
            self.path = PathBuf::from("/dev/full");
            let full = File::options().write(true).open(&self.path);
            self.file = full.expect("every Linux has it");
        }

        /// Lets the next write begin a new segment.
        pub(in super::super) const fn grow_old(&mut self) {
            self.length = SEGMENT_BYTES_MAX;
        }
    }
}
