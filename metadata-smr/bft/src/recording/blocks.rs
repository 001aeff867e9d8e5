//! The file: a head, followed by blocks of entries, each with its checks.
//!
//! ```text
//!  0        6         8
//!  ├────────┼─────────┼─────────────┬─────────┬─────────┬ ─ ─
//!  │ QFSREC │ version │ block: Start│ block   │ block   │ …      entries, many in a block
//!  └────────┴─────────┴─────────────┴─────────┴─────────┴ ─ ─
//!
//!  block:  0        4              12              20
//!          ├────────┼──────────────┼───────────────┼───────────┐
//!          │ length │ header check │ content check │ content … │
//!          └────────┴──────────────┴───────────────┴───────────┘
//! ```
//!
//! Numbers are little-endian. A block is written at once. Both checks are BLAKE3 under a context of
//! their own and cover the block's position, so that no block passes for another.
//!
//! A block that is cut short by the end of the file, or has only zeros after it, was being written
//! when the process or the machine stopped: it is left out. Any other block that does not verify is
//! damage, and the error says where; the entries before it can be read all the same.

use super::{Entry, Start};
use crate::wire::{Malformed, Reader};
use bytes::{BufMut, Bytes};
use std::io::{ErrorKind, Read};

const TAG: [u8; 6] = *b"QFSREC";
const VERSION: u16 = 1;
const HEADER_BYTES: usize = 4 + 8 + 8;
/// More than any writer puts into one block: an entry is well below half of it.
const BLOCK_BYTES_MAX: usize = 256 << 20;
const CONTEXT: &str = "quorumfs 2026 bft recording's block";

/// Why a recording cannot be read any further.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// The file is something else.
    #[error("this file is not a recording of a replica")]
    NoRecording,
    /// A newer release wrote it.
    #[error("the recording has format {version}, this release reads formats up to {VERSION}")]
    Newer {
        /// The format of the recording.
        version: u16,
    },
    /// It is damaged.
    #[error("the recording is damaged at byte {at}: {what}")]
    Damaged {
        /// Where the block begins.
        at: u64,
        /// The damage.
        what: String,
    },
    /// The medium failed.
    #[error("the recording cannot be read: {reason}")]
    Failed {
        /// The error of the operating system.
        reason: String,
    },
}

/// Encodes a recording.
#[derive(Debug)]
pub struct RecordingWriter {
    /// Where the next block will begin.
    at: u64,
    /// That block, with space for its header.
    block: Vec<u8>,
    checks: Checks,
}

impl RecordingWriter {
    /// Begins a recording; returns the first bytes of the file.
    #[must_use]
    pub fn begin(start: &Start) -> (Self, Vec<u8>) {
        let mut head = TAG.to_vec();
        head.put_u16_le(VERSION);
        let mut writer = Self {
            at: head.len() as u64,
            block: vec![0; HEADER_BYTES],
            checks: Checks::default(),
        };
        writer.block.extend_from_slice(&start.encode());
        head.extend_from_slice(&writer.take());
        (writer, head)
    }

    /// Adds an entry to the next block.
    pub fn put(&mut self, entry: &Entry) {
        entry.encode(&mut self.block);
    }

    /// Drops the entries that were added since the last block.
    pub fn forget(&mut self) {
        self.block.truncate(HEADER_BYTES);
    }

    /// The length of the next block so far.
    #[must_use]
    pub const fn waiting(&self) -> usize {
        self.block.len()
    }

    /// The length of the file with all blocks that were taken.
    #[must_use]
    pub const fn written(&self) -> u64 {
        self.at
    }

    /// The added entries, as the next bytes of the file; `None` if there are none.
    #[must_use]
    pub fn take(&mut self) -> Vec<u8> {
        let mut block = std::mem::replace(&mut self.block, vec![0; HEADER_BYTES]);
        let length = block.len() - HEADER_BYTES;
        if length == 0 {
            return Vec::new();
        }
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let (header, content) = block.split_at_mut(HEADER_BYTES);
        let content = self.checks.content(self.at, content);
        let mut rest = header;
        rest.put_u32_le(length);
        rest.put_u64_le(self.checks.header(self.at, length));
        rest.put_u64_le(content);
        self.at += block.len() as u64;
        block
    }
}

#[derive(Debug)]
struct Checks(blake3::Hasher);

impl Default for Checks {
    fn default() -> Self {
        Self(blake3::Hasher::new_derive_key(CONTEXT))
    }
}

impl Checks {
    fn header(&self, at: u64, length: u32) -> u64 {
        self.of(&[&[0], &at.to_le_bytes(), &length.to_le_bytes()])
    }

    fn content(&self, at: u64, content: &[u8]) -> u64 {
        self.of(&[&[1], &at.to_le_bytes(), content])
    }

    fn of(&self, parts: &[&[u8]]) -> u64 {
        let mut hasher = self.0.clone();
        for part in parts {
            hasher.update(part);
        }
        let mut check = [0; 8];
        hasher.finalize_xof().fill(&mut check);
        u64::from_le_bytes(check)
    }
}

/// A recording that is being read.
#[derive(Debug)]
pub struct Recording<R> {
    source: R,
    start: Start,
    /// Where the block that is being read begins, and where the next one does.
    block: u64,
    at: u64,
    /// The rest of the block.
    rest: Bytes,
    torn: bool,
    checks: Checks,
}

impl<R: Read> Recording<R> {
    /// Begins to read.
    ///
    /// # Errors
    /// If the file is no recording, or its beginning is damaged.
    pub fn open(mut source: R) -> Result<Self, Unreadable> {
        let head = take(&mut source, TAG.len() + 2)?;
        let version = head.strip_prefix(&TAG[..]).unwrap_or_default();
        let version = version.try_into().map(u16::from_le_bytes);
        match version {
            Ok(VERSION) => {}
            Ok(version) => return Err(Unreadable::Newer { version }),
            Err(_) => return Err(Unreadable::NoRecording),
        }
        let checks = Checks::default();
        let at = head.len() as u64;
        let damaged = |what: String| Unreadable::Damaged { at, what };
        let block = read_block(&mut source, at, &checks)?.unwrap_or_default();
        if block.is_empty() {
            return Err(damaged("it ends before its first entry".to_owned()));
        }
        let start = Start::decode(&block).map_err(|error| damaged(nonsense(&error)))?;
        Ok(Self {
            source,
            start,
            block: at,
            at: at + (HEADER_BYTES + block.len()) as u64,
            rest: Bytes::new(),
            torn: false,
            checks,
        })
    }

    /// The start of the replica.
    pub const fn start(&self) -> &Start {
        &self.start
    }

    /// Whether the recording ended in an unfinished block; known at the end.
    pub const fn torn(&self) -> bool {
        self.torn
    }

    /// The next entry; `None` at the end.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, Unreadable> {
        if self.torn {
            return Ok(None);
        }
        if self.rest.is_empty() {
            self.block = self.at;
            match read_block(&mut self.source, self.at, &self.checks)? {
                Some(block) => {
                    self.at += (HEADER_BYTES + block.len()) as u64;
                    self.rest = block;
                }
                None => {
                    self.torn = true;
                    return Ok(None);
                }
            }
            if self.rest.is_empty() {
                return Ok(None);
            }
        }
        let mut reader = Reader::new(&self.rest);
        let entry = Entry::decode(&mut reader).map_err(|error| Unreadable::Damaged {
            at: self.block,
            what: nonsense(&error),
        })?;
        self.rest = reader.rest();
        Ok(Some(entry))
    }
}

fn nonsense(error: &Malformed) -> String {
    format!("an entry is malformed ({error})")
}

/// The block at `at`: empty at the end of the file, `None` if it was being written.
fn read_block(
    source: &mut impl Read,
    at: u64,
    checks: &Checks,
) -> Result<Option<Bytes>, Unreadable> {
    let header = take(source, HEADER_BYTES)?;
    if header.is_empty() {
        return Ok(Some(Bytes::new()));
    }
    let (length, rest) = header.split_first_chunk::<4>().unwrap_or((&[0; 4], &[]));
    let length = u32::from_le_bytes(*length);
    let Ok(found) = <&[u8; 16]>::try_from(rest) else {
        return Ok(None);
    };
    let [header_check, content_check] = [found.first_chunk::<8>(), found.last_chunk::<8>()]
        .map(|it| it.map_or(0, |bytes| u64::from_le_bytes(*bytes)));
    let damaged = |what: &str| Unreadable::Damaged {
        at,
        what: what.to_owned(),
    };
    if header_check != checks.header(at, length) {
        let zeros = header.iter().all(|byte| *byte == 0) && only_zeros(source)?;
        return match zeros {
            true => Ok(None),
            false => Err(damaged("a block's header does not verify")),
        };
    }
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > BLOCK_BYTES_MAX {
        return Err(damaged("a block is longer than the limit"));
    }
    let content = take(source, length)?;
    if content.len() < length {
        return Ok(None);
    }
    match content_check == checks.content(at, &content) {
        true => Ok(Some(content.into())),
        false => Err(damaged("a block's content does not verify")),
    }
}

/// Reads as many bytes as there are, `bytes` at most.
fn take(source: &mut impl Read, bytes: usize) -> Result<Vec<u8>, Unreadable> {
    let mut taken = Vec::new();
    let read = source.take(bytes as u64).read_to_end(&mut taken);
    match read {
        Ok(_) => Ok(taken),
        Err(error) => Err(Unreadable::Failed {
            reason: error.to_string(),
        }),
    }
}

fn only_zeros(source: &mut impl Read) -> Result<bool, Unreadable> {
    let mut bytes = [0; 4096];
    loop {
        let read = match source.read(&mut bytes) {
            Ok(0) => return Ok(true),
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => {
                let reason = error.to_string();
                return Err(Unreadable::Failed { reason });
            }
        };
        if bytes.iter().take(read).any(|byte| *byte != 0) {
            return Ok(false);
        }
    }
}
