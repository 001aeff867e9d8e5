//! Appends groups of records to the last segment.
//!
//! A group is laid out in memory and written in one call at the next page; its caller syncs it.
//! Once the segment is full, a spare becomes the next one: its header is made durable under the
//! spare's name, and only then the file gets the segment's name, so no crash shows a segment under
//! another one's header. Without a spare the next segment grows with each write, which is slower
//! and otherwise the same, until there is a spare.
//!
//! The first segment of a process always grows, and a spare follows it only after it has reached
//! some length: replicas that are started often and write little neither use up spares nor have to
//! read them.
use super::DiskError;
use super::error::failed;
use super::files::{sync, sync_directory};
use super::segment::{FIRST_GROUP, header_of, list, path_of};
use super::spare::{SEGMENT_BYTES, SpareSegment, Spares};
use quorumfs_bft::journal::framing::{FRAME_HEADER_BYTES, PAGE_BYTES, end_page};
use quorumfs_bft::journal::{Framing, SegmentIdentity};
use quorumfs_bft::step::Token;
use quorumfs_bft::wire::limits::RECORD_BYTES_MAX;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A growing segment with more bytes than this is followed by a spare as soon as there is one.
const GROWN_BYTES: u64 = 64 << 10;
/// How much of the memory for laying out groups is retained.
const GROUP_MEMORY_BYTES: usize = 8 << 20;

/// Appends to the last segment.
pub(super) struct Appender {
    directory: PathBuf,
    spares: Arc<Spares>,
    last: CurrentSegment,
    next: Token,
    /// All segments, the one being written last.
    segments: Vec<(Token, PathBuf)>,
    /// The group that is being laid out.
    group: Vec<u8>,
    /// Its first record.
    behind: Token,
}

/// The segment that is being written.
struct CurrentSegment {
    file: File,
    path: PathBuf,
    framing: Framing,
    /// Where the next group goes.
    position: u64,
    /// The preallocated length; 0 if the file grows.
    filled: u64,
}

impl Appender {
    /// Begins a new segment with record `next`. An empty one of the same name is replaced.
    pub(super) fn create(
        directory: &Path,
        next: Token,
        spares: Arc<Spares>,
    ) -> Result<Self, DiskError> {
        Ok(Self {
            directory: directory.to_owned(),
            last: begin(directory, next, None)?,
            spares,
            next,
            segments: list(directory)?,
            group: Vec::new(),
            behind: next,
        })
    }

    /// Begins a group of records of these lengths.
    pub(super) fn begin_group(
        &mut self,
        lengths: impl Iterator<Item = usize>,
    ) -> Result<(), DiskError> {
        let bytes: usize = lengths.map(|length| FRAME_HEADER_BYTES + length).sum();
        // With a page for the seal behind it.
        let end = self.last.position + bytes.next_multiple_of(PAGE_BYTES) as u64 + FIRST_GROUP;
        let must_end = match self.last.filled {
            0 => end > SEGMENT_BYTES || self.has_grown() && self.spares.is_ready(),
            filled => end > filled,
        };
        // A group longer than any segment gets a segment of its own, which grows for it.
        if must_end && self.last.position > FIRST_GROUP {
            // With any durability: a clean stop syncs only the last segment.
            self.sync()?;
            let spare = match self.has_grown() {
                true => self.spares.take(),
                false => None,
            };
            self.last = begin(&self.directory, self.next, spare)?;
            self.segments.push((self.next, self.last.path.clone()));
        }
        self.group.clear();
        self.group.shrink_to(GROUP_MEMORY_BYTES);
        self.behind = self.next;
        Ok(())
    }

    /// Lays out a record of the group.
    pub(super) fn put(&mut self, token: Token, record: &[u8]) -> Result<(), DiskError> {
        if token != self.next {
            return Err(DiskError::OutOfTurn {
                found: token.0,
                expected: self.next.0,
            });
        }
        if record.len() > RECORD_BYTES_MAX {
            return Err(DiskError::RecordTooLong {
                length: record.len(),
                max: RECORD_BYTES_MAX,
            });
        }
        let framing = &self.last.framing;
        framing.put_record(token, self.behind, record, &mut self.group);
        self.next = Token(token.0 + 1);
        Ok(())
    }

    /// Writes the group.
    pub(super) fn write_group(&mut self) -> Result<(), DiskError> {
        end_page(&mut self.group);
        let last = &mut self.last;
        last.file
            .write_all_at(&self.group, last.position)
            .map_err(failed("writing", &last.path))?;
        last.position += self.group.len() as u64;
        if last.filled == 0 && self.has_grown() {
            self.spares.want();
        }
        Ok(())
    }

    const fn has_grown(&self) -> bool {
        self.last.position > GROWN_BYTES
    }

    /// Makes everything written durable.
    pub(super) fn sync(&self) -> Result<(), DiskError> {
        sync(&self.last.file, &self.last.path)
    }

    /// Marks that all groups are durable and none waits. Not synced: it is only a hint for
    /// recovery.
    pub(super) fn seal(&self) -> Result<(), DiskError> {
        let last = &self.last;
        if last.position == FIRST_GROUP {
            return Ok(());
        }
        last.file
            .write_all_at(&last.framing.seal(self.next), last.position)
            .map_err(failed("writing", &last.path))
    }

    /// Gives up the segments that contain only records before `before`.
    pub(super) fn trim(&mut self, before: Token) -> Result<(), DiskError> {
        if self.last.position == FIRST_GROUP {
            // The last record stays: the next token is derived from it.
            return Ok(());
        }
        let needed = |window: &[(Token, PathBuf)]| window.get(1).is_none_or(|next| next.0 > before);
        let count = self
            .segments
            .windows(2)
            .take_while(|pair| !needed(pair))
            .count();
        // Not synced: a segment that comes back after a crash is trimmed again.
        for (_, path) in self.segments.drain(..count) {
            self.spares.take_back(&path)?;
        }
        Ok(())
    }
}

fn begin(
    directory: &Path,
    first: Token,
    spare: Option<SpareSegment>,
) -> Result<CurrentSegment, DiskError> {
    let mut identity = [0; 16];
    getrandom::fill(&mut identity)
        .map_err(|error| failed("drawing an identity for", directory)(io::Error::other(error)))?;
    let identity = SegmentIdentity(identity);
    let path = path_of(directory, first);
    let (draft, file, filled) = match spare {
        Some(SpareSegment { path, file }) => (path, file, SEGMENT_BYTES),
        None => {
            let draft = directory.join("next.draft");
            let file = File::create(&draft).map_err(failed("creating", &draft))?;
            (draft, file, 0)
        }
    };
    file.write_all_at(&header_of(first, identity, filled), 0)
        .map_err(failed("writing", &draft))?;
    sync(&file, &draft)?;
    fs::rename(&draft, &path).map_err(failed("renaming", &draft))?;
    sync_directory(directory)?;
    Ok(CurrentSegment {
        file,
        path,
        framing: Framing::new(identity),
        position: FIRST_GROUP,
        filled,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Appender {
        /// Makes every later write fail with a full disk.
        pub(in super::super) fn fill_up(&mut self) {
            self.last.path = PathBuf::from("/dev/full");
            let full = File::options().write(true).open(&self.last.path);
            self.last.file = full.expect("every Linux has it");
        }

        /// Makes the next group begin a new segment.
        pub(in super::super) const fn grow_old(&mut self) {
            self.last.position = SEGMENT_BYTES;
        }
    }
}
