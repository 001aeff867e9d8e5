//! The files of the journal.
//!
//! ```text
//! N.journal = header │ record N │ record N+1 │ …       N: twenty decimal digits
//! header    = magic "qfsjrnl\0" │ format u32 │ features u32 │ N u64 │ crc32c of these u32
//! record    = length u32 │ token u64 │ crc32c of these u32 │ crc32c of the body u32 │ body
//! ```
//!
//! Little-endian. The length has a checksum of its own, so that a damaged one is not mistaken for a
//! record that was cut short.

use super::DiskError;
use super::error::failed;
use super::files::{sync, sync_directory};
use bytes::{Buf, BufMut, Bytes};
use quorumfs_bft::step::Token;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"qfsjrnl\0";
const FORMAT: u32 = 1;
const HEADER_BYTES: usize = 28;
const RECORD_HEADER_BYTES: usize = 20;
/// The longest body; a length beyond it is damage.
const RECORD_BYTES_MAX: usize = 1 << 30;
/// A segment that is longer is followed by a new one.
const SEGMENT_BYTES_MAX: u64 = 16 << 20;

/// How the journal ends.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    /// With a whole record.
    Clean,
    /// With one that was cut short: the file must be cut to this length.
    Torn(PathBuf, u64),
    /// Something is wrong before the end.
    Damaged(String),
}

/// What was read back.
#[derive(Debug)]
pub(super) struct ReadBack {
    pub(super) records: Vec<(Token, Bytes)>,
    pub(super) next: Token,
    pub(super) end: End,
}

impl ReadBack {
    /// Cuts off a record that was never whole, so that the next segment follows a clean end.
    pub(super) fn drop_torn_tail(&self) -> Result<(), DiskError> {
        let End::Torn(path, length) = &self.end else {
            return Ok(());
        };
        let file = File::options()
            .write(true)
            .open(path)
            .map_err(failed("opening", path))?;
        file.set_len(*length).map_err(failed("cutting", path))?;
        sync(&file, path)
    }
}

/// Reads all segments in `directory`.
pub(super) fn read_all(directory: &Path) -> Result<ReadBack, DiskError> {
    let mut back = ReadBack {
        records: Vec::new(),
        next: Token(1),
        end: End::Clean,
    };
    let segments = list(directory)?;
    let Some((first, _)) = segments.first() else {
        back.end = End::Damaged("the journal has no segment".to_owned());
        return Ok(back);
    };
    back.next = *first;
    for (first, path) in segments {
        if let End::Torn(path, _) = &back.end {
            // A segment whose header was cut short was given up by the start after it.
            back.end = damaged(path, "ends in the middle of a record and is not the last");
            break;
        }
        if first != back.next {
            back.end = damaged(&path, &format!("begins where {} was due", back.next.0));
            break;
        }
        let bytes = Bytes::from(fs::read(&path).map_err(failed("reading", &path))?);
        back.end = read_segment(&path, bytes, &mut back.records, &mut back.next);
        if matches!(back.end, End::Damaged(_)) {
            break;
        }
    }
    Ok(back)
}

fn damaged(path: &Path, how: &str) -> End {
    End::Damaged(format!("{} {how}", path.display()))
}

fn read_segment(
    path: &Path,
    bytes: Bytes,
    records: &mut Vec<(Token, Bytes)>,
    next: &mut Token,
) -> End {
    let length = bytes.len();
    let mut rest = bytes.clone();
    if length < HEADER_BYTES {
        // Nothing was ever appended behind it.
        return End::Torn(path.to_owned(), 0);
    }
    let header = rest.split_to(HEADER_BYTES);
    if header != header_of(*next) {
        return damaged(path, "has a header that is not this format's, or damaged");
    }
    while !rest.is_empty() {
        let whole = (length - rest.len()) as u64;
        let torn = End::Torn(path.to_owned(), whole);
        if rest.len() < RECORD_HEADER_BYTES {
            return torn;
        }
        let mut header = rest.split_to(RECORD_HEADER_BYTES);
        let expected = crc32c::crc32c(header.get(..12).unwrap_or_default());
        let body_length = header.get_u32_le() as usize;
        let token = Token(header.get_u64_le());
        if header.get_u32_le() != expected || body_length > RECORD_BYTES_MAX || token != *next {
            return damaged(path, &format!("is damaged at byte {whole}"));
        }
        if rest.len() < body_length {
            return torn;
        }
        let body = rest.split_to(body_length);
        if header.get_u32_le() != crc32c::crc32c(&body) {
            return damaged(path, &format!("is damaged in the record at byte {whole}"));
        }
        records.push((token, body));
        *next = Token(token.0 + 1);
    }
    End::Clean
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

fn header_of(first: Token) -> Bytes {
    let mut header = Vec::with_capacity(HEADER_BYTES);
    header.put_slice(MAGIC);
    header.put_u32_le(FORMAT);
    header.put_u32_le(0);
    header.put_u64_le(first.0);
    header.put_u32_le(crc32c::crc32c(&header));
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
        let start = out.len();
        // A body is bounded far below by the limits of the wire.
        out.put_u32_le(u32::try_from(body.len()).unwrap_or(u32::MAX));
        out.put_u64_le(token.0);
        out.put_u32_le(crc32c::crc32c(out.get(start..).unwrap_or_default()));
        out.put_u32_le(crc32c::crc32c(body));
        out.put_slice(body);
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
