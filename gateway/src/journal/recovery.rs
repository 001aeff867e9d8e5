//! Recovery: the valid records on the disk, and whether durable ones are missing.
//!
//! Reading ends at the first record that does not open or does not follow the one before. Writing
//! was interrupted there, unless there is evidence that more was durable: a record further on, or a
//! later file that does not begin right there. (A file that does was made by an earlier recovery
//! that met the same end.) In that case the disk has lost durable data. The records before the loss
//! count; the files behind it are put aside for people, since the records in between are unknown.

use super::disk::Disk;
use super::error::JournalError;
use super::framing::{Chain, FORMAT, Framing, Generation, Header, HeaderError, PAGE_BYTES};
use super::record::{Entry, Sequence};
use crate::keys::Secret;
use quorumfs_metadata::identity::VolumeId;

/// The result of reading.
#[derive(Debug, Default)]
pub(super) struct ScannedJournal {
    /// Files with valid records, with their lengths.
    pub(super) files: Vec<(Generation, u64)>,
    /// Files that were being created when the process ended.
    pub(super) unmade: Vec<Generation>,
    /// Files behind the damage.
    pub(super) behind: Vec<Generation>,
    /// The damaged file, and its damage.
    pub(super) damage: Option<(Generation, String)>,
    /// The next record, and its chain.
    pub(super) next: Sequence,
    pub(super) chain: Chain,
    /// The highest file number.
    pub(super) newest: Generation,
}

/// A file with a valid header.
struct OpenedFile {
    generation: Generation,
    header: Header,
    framing: Framing,
    bytes: Vec<u8>,
}

/// Reads all files in order, and passes every valid record to `each`.
pub(super) fn read<D: Disk>(
    disk: &mut D,
    secret: &Secret,
    volume: VolumeId,
    mut each: impl FnMut(Sequence, Generation, Entry),
) -> Result<ScannedJournal, JournalError> {
    let mut files = disk.list().map_err(JournalError::disk("listing"))?;
    files.sort_unstable();
    let mut found = ScannedJournal {
        newest: files.last().copied().unwrap_or_default(),
        next: Sequence(1),
        ..ScannedJournal::default()
    };
    // The file before, with the end of its records.
    let mut before: Option<(OpenedFile, usize)> = None;
    for generation in files {
        if found.damage.is_some() {
            found.behind.push(generation);
            continue;
        }
        let bytes = disk
            .read(generation)
            .map_err(JournalError::disk("reading"))?;
        let page = bytes.get(..PAGE_BYTES).unwrap_or(&bytes);
        let (header, framing) = match Header::open(secret, volume, generation, page) {
            Ok(opened) => opened,
            Err(HeaderError::Newer(format)) => {
                return Err(JournalError::Newer {
                    found: format,
                    known: FORMAT,
                });
            }
            // A header is durable before anything is appended.
            Err(HeaderError::Void) if bytes.len() <= PAGE_BYTES => {
                found.unmade.push(generation);
                continue;
            }
            Err(HeaderError::Void) => {
                let how = "its header is not valid".to_owned();
                found.damage = Some((generation, how));
                found.behind.push(generation);
                continue;
            }
        };
        let follows = header.first == found.next && header.chain == found.chain;
        if let Some((last, _)) = before.take()
            && !follows
        {
            let (next, first) = (found.next.0, header.first.0);
            let how = format!("its records end before {next}, and the next file begins at {first}");
            found.damage = Some((last.generation, how));
            found.behind.push(generation);
            continue;
        }
        (found.next, found.chain) = (header.first, header.chain);
        let opened = OpenedFile {
            generation,
            header,
            framing,
            bytes,
        };
        let end = opened.records(&mut found, &mut each);
        let length = opened.bytes.len() as u64;
        found.files.push((generation, length));
        before = Some((opened, end));
    }
    if let Some((last, end)) = before
        && found.damage.is_none()
        && let Some(later) = last.later(end, found.next)
    {
        let next = found.next.0;
        let how = format!("record {next} is not valid, and record {} is", later.0);
        found.damage = Some((last.generation, how));
    }
    Ok(found)
}

impl OpenedFile {
    /// Passes on the consecutive records; returns where they end.
    fn records(
        &self,
        found: &mut ScannedJournal,
        each: &mut impl FnMut(Sequence, Generation, Entry),
    ) -> usize {
        debug_assert_eq!(self.header.first, found.next);
        let mut at = PAGE_BYTES;
        loop {
            let here = self.follows(at, found).map(|opened| (at, opened));
            let group = at.next_multiple_of(PAGE_BYTES);
            let next = here.or_else(|| Some((group, self.follows(group, found)?)));
            let Some((begin, opened)) = next else {
                return at;
            };
            each(opened.place.sequence, self.generation, opened.entry);
            found.next = opened.place.sequence.next();
            found.chain = opened.chain;
            at = begin.saturating_add(opened.length);
        }
    }

    /// The record at `at`, if it is the next one.
    fn follows(&self, at: usize, found: &ScannedJournal) -> Option<super::framing::OpenedRecord> {
        let opened = self.framing.open(self.bytes.get(at..)?)?;
        let place = opened.place;
        (place.sequence == found.next && place.chain == found.chain).then_some(opened)
    }

    /// A record behind `end` that was written when `missing` was durable.
    fn later(&self, end: usize, missing: Sequence) -> Option<Sequence> {
        let begin = end.next_multiple_of(PAGE_BYTES);
        (begin..self.bytes.len())
            .step_by(PAGE_BYTES)
            .filter_map(|at| self.framing.open(self.bytes.get(at..)?))
            .find(|opened| opened.place.durable > missing)
            .map(|opened| opened.place.sequence)
    }
}
