//! The files of the journal.
//!
//! ```text
//! N.journal = header, one page │ group │ group │ …       N: twenty decimal digits
//!  0       8        12         16      24      32         48       56      64
//!  ├───────┼────────┼──────────┼───────┼───────┼──────────┼────────┼───────┤ zeros
//!  │ magic │ format │ features │ N     │ check │ identity │ filled │ check │
//!  └───────┴────────┴──────────┴───────┴───────┴──────────┴────────┴───────┘
//! ```
//!
//! Little-endian; the magic is `qfsjrnl\0`. A check is the beginning of BLAKE3, in derive-key mode,
//! of the bytes before it: another release's header is intact and is refused, a broken header is
//! damage. *Filled* is the preallocated length of the file, 0 if it grows with each record: a file
//! shorter than that has lost something.
//!
//! [`quorumfs_bft::journal`] frames and checks the records; this module only makes sure that their
//! files exist, begin correctly and follow one another.

use super::DiskError;
use super::error::failed;
use super::files::sync;
use bytes::{BufMut, Bytes};
use quorumfs_bft::journal::framing::PAGE_BYTES;
use quorumfs_bft::journal::{Journal, Segment, SegmentIdentity, examine};
use quorumfs_bft::step::Token;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"qfsjrnl\0";
const FORMAT: u32 = 2;
const CONTEXT: &str = "quorumfs 2026 journal segment header";
/// Bytes of a header before its first check, the same in every format.
pub(super) const CHECKED_BYTES: usize = 24;
/// The same with the check, which every release can verify.
pub(super) const HEADER_BYTES: usize = CHECKED_BYTES + CHECK_BYTES;
const CHECK_BYTES: usize = 8;
/// The minimum length of such a file, and the position of its first group.
pub(super) const FIRST_GROUP: u64 = PAGE_BYTES as u64;

/// The result of reading the journal.
#[derive(Debug)]
pub(super) struct ReadBack {
    pub(super) journal: Journal,
    /// The token of the next record.
    pub(super) next: Token,
    paths: Vec<PathBuf>,
}

impl ReadBack {
    /// Makes everything that was read durable: the previous process may have ended between writing
    /// and syncing.
    pub(super) fn make_durable(&self) -> Result<(), DiskError> {
        for path in &self.paths {
            let file = File::open(path).map_err(failed("opening", path))?;
            sync(&file, path)?;
        }
        Ok(())
    }
}

/// Reads all segments in `directory`.
pub(super) fn read_all(directory: &Path) -> Result<ReadBack, DiskError> {
    let listed = list(directory)?;
    let mut segments = Vec::with_capacity(listed.len());
    let mut wrong = listed
        .is_empty()
        .then(|| "the journal has no segment".to_owned());
    for (first, path) in &listed {
        let bytes = Bytes::from(fs::read(path).map_err(failed("reading", path))?);
        if let Some(found) = foreign(&bytes) {
            return Err(DiskError::Format {
                path: path.clone(),
                found,
                known: FORMAT,
            });
        }
        match segment(*first, bytes) {
            Ok(segment) => segments.push(segment),
            Err(what) => {
                wrong = Some(format!("{} {what}", path.display()));
                break;
            }
        }
    }
    let mut journal = examine(&segments);
    if let Some(reason) = wrong {
        journal = Journal::lost(reason);
    }
    let behind = journal.entries.last().map(|entry| Token(entry.token.0 + 1));
    let named = listed.last().map(|(first, _)| *first);
    let next = behind.max(named).unwrap_or(Token(1));
    journal.next = next;
    Ok(ReadBack {
        journal,
        next,
        paths: listed.into_iter().map(|(_, path)| path).collect(),
    })
}

/// Returns the bytes after the header if that is valid, else the error.
fn segment(first: Token, bytes: Bytes) -> Result<Segment, &'static str> {
    const DAMAGED: &str = "has a damaged header";
    let header = bytes.get(..PAGE_BYTES).ok_or(DAMAGED)?;
    let rest = header.get(HEADER_BYTES..).ok_or(DAMAGED)?;
    let (identity, rest) = rest.split_first_chunk::<16>().ok_or(DAMAGED)?;
    let (filled, _) = rest.split_first_chunk::<8>().ok_or(DAMAGED)?;
    let (identity, filled) = (SegmentIdentity(*identity), u64::from_le_bytes(*filled));
    if *header != *header_of(first, identity, filled) {
        return Err(DAMAGED);
    }
    if (bytes.len() as u64) < filled {
        return Err("has been truncated");
    }
    Ok(Segment {
        first,
        identity,
        bytes: bytes.slice(PAGE_BYTES..),
    })
}

/// The format in a header, if only another release can have written it.
fn foreign(header: &[u8]) -> Option<String> {
    let (checked, rest) = header.split_first_chunk::<CHECKED_BYTES>()?;
    if *rest.first_chunk::<CHECK_BYTES>()? != check_of(checked) {
        return None;
    }
    let rest = checked.strip_prefix(MAGIC)?;
    let (format, rest) = rest.split_first_chunk::<4>()?;
    let (features, _) = rest.split_first_chunk::<4>()?;
    let (format, features) = (u32::from_le_bytes(*format), u32::from_le_bytes(*features));
    (format != FORMAT || features != 0).then(|| format!("{format} with features {features:#x}"))
}

/// The segments by their first token, in order.
pub(super) fn list(directory: &Path) -> Result<Vec<(Token, PathBuf)>, DiskError> {
    let mut segments = Vec::new();
    for path in files(directory)? {
        let digits = path.file_name().and_then(|name| name.to_str());
        let first = digits.and_then(|name| name.strip_suffix(".journal"));
        if let Some(Ok(first)) = first.map(str::parse) {
            segments.push((Token(first), path));
        }
    }
    segments.sort_unstable();
    Ok(segments)
}

/// The files in a directory, if it exists.
pub(super) fn files(directory: &Path) -> Result<Vec<PathBuf>, DiskError> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed("reading", directory)(error)),
    };
    let path = |entry: Result<fs::DirEntry, _>| Ok(entry?.path());
    let paths: Result<_, _> = entries.map(path).collect();
    paths.map_err(failed("reading", directory))
}

/// The path of the segment that begins with this record.
pub(super) fn path_of(directory: &Path, first: Token) -> PathBuf {
    directory.join(format!("{:020}.journal", first.0))
}

/// The check of these bytes.
pub(super) fn check_of(checked: &[u8]) -> [u8; CHECK_BYTES] {
    let mut check = [0; CHECK_BYTES];
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    hasher.update(checked).finalize_xof().fill(&mut check);
    check
}

/// The first page of a segment.
pub(super) fn header_of(first: Token, identity: SegmentIdentity, filled: u64) -> Vec<u8> {
    let mut header = Vec::with_capacity(PAGE_BYTES);
    header.put_slice(MAGIC);
    header.put_u32_le(FORMAT);
    header.put_u32_le(0);
    header.put_u64_le(first.0);
    let check = check_of(&header);
    header.put_slice(&check);
    header.put_slice(&identity.0);
    header.put_u64_le(filled);
    let check = check_of(&header);
    header.put_slice(&check);
    header.resize(PAGE_BYTES, 0);
    header
}
