//! The journal without threads: opened, written to, made durable, trimmed.
//!
//! Everything is decided here and nothing waits here, so that a test drives it over a disk that it
//! made up. After the first error of the disk nothing is written any more: whether a sync that
//! failed has lost something is known to nobody, and the next one would say that all is well.

use super::disk::Disk;
use super::error::JournalError;
use super::framing::{
    Chain, FRAME_OVERHEAD_BYTES, FramePosition, Framing, Generation, Header, PAGE_BYTES,
};
use super::ledger::{Ledger, Orderings};
use super::record::{Entry, Ground, Record, Sequence};
use super::recovery::{ScannedJournal, read};
use super::verdict::{Verdict, verdict};
use crate::keys::Secret;
use quorumfs_metadata::identity::{InodeId, VolumeId};
use std::collections::BTreeMap;

/// Makes identities of files: 16 bytes that nobody had before.
pub(super) type Identities = Box<dyn FnMut() -> Result<[u8; 16], JournalError> + Send>;

/// What waited for an inode when the process ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tail {
    ground: Option<Ground>,
    orderings: Orderings,
    /// Records up to this one are void.
    through: Sequence,
}

impl Tail {
    /// What becomes of it, if the inode is now as `now` says.
    #[must_use]
    pub fn verdict(&self, now: Option<Ground>) -> Verdict {
        verdict(self.ground, &self.orderings, now)
    }
}

/// What was found when a journal was opened.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Recovered {
    /// What waits, by inode.
    pub tails: BTreeMap<InodeId, Tail>,
    /// How the disk has failed to keep what it promised, if it has.
    pub damage: Option<String>,
}

/// See the module.
pub(super) struct Log<D> {
    disk: D,
    secret: Secret,
    volume: VolumeId,
    identities: Identities,
    /// A file of so many bytes is followed by another one.
    file_bytes: u64,
    ledger: Ledger,
    framing: Framing,
    generation: Generation,
    /// Bytes in the file that is being written.
    length: u64,
    next: Sequence,
    chain: Chain,
    durable: Sequence,
    broken: Option<String>,
    /// The group that is being written; kept for its memory.
    group: Vec<u8>,
}

impl<D: Disk> Log<D> {
    /// Reads what is there, and begins a new file behind it.
    pub(super) fn open(
        mut disk: D,
        secret: Secret,
        volume: VolumeId,
        file_bytes: u64,
        mut identities: Identities,
    ) -> Result<(Self, Recovered), JournalError> {
        let mut ledger = Ledger::default();
        let found = read(&mut disk, &secret, volume, |sequence, file, entry| {
            ledger.note(sequence, file, &entry.record);
            // It will be before anything else is written.
            ledger.durable(sequence.next());
        })?;
        ledger.settle();
        clear(&mut disk, &found)?;
        for (file, bytes) in &found.files {
            ledger.file(*file, *bytes);
        }
        let tails = ledger.inodes().iter().map(|(inode, waiting)| {
            let tail = Tail {
                ground: waiting.ground.map(|(_, ground)| ground),
                orderings: waiting.orderings.clone(),
                through: waiting.through,
            };
            (*inode, tail)
        });
        let recovered = Recovered {
            tails: tails.collect(),
            damage: found.damage.map(|(_, how)| how),
        };
        let header = Header {
            volume,
            identity: identities()?,
            generation: Generation(found.newest.0.saturating_add(1)),
            first: found.next,
            chain: found.chain,
        };
        let (page, framing) = header.seal(&secret).map_err(|_| JournalError::Key)?;
        disk.create(header.generation, &page)
            .map_err(JournalError::disk("beginning"))?;
        ledger.file(header.generation, PAGE_BYTES as u64);
        let log = Self {
            disk,
            secret,
            volume,
            identities,
            file_bytes,
            ledger,
            framing,
            generation: header.generation,
            length: PAGE_BYTES as u64,
            next: header.first,
            chain: header.chain,
            durable: header.first,
            broken: None,
            group: Vec::new(),
        };
        Ok((log, recovered))
    }

    /// Hands on, in order, what waits in a journal that was just opened.
    pub(super) fn replay(
        &mut self,
        recovered: &Recovered,
        mut each: impl FnMut(Sequence, Entry),
    ) -> Result<(), JournalError> {
        let tails = &recovered.tails;
        read(
            &mut self.disk,
            &self.secret,
            self.volume,
            |sequence, _, entry| {
                let tail = tails.get(&entry.record.inode());
                if entry.record.waits() && tail.is_some_and(|tail| sequence > tail.through) {
                    each(sequence, entry);
                }
            },
        )?;
        Ok(())
    }

    /// The record that will be written next.
    pub(super) fn next(&self) -> Sequence {
        self.next
    }

    /// Everything below it is durable.
    pub(super) fn durable(&self) -> Sequence {
        self.durable
    }

    /// Bytes on the disk.
    pub(super) fn bytes(&self) -> u64 {
        self.ledger.bytes()
    }

    /// Inodes for which something waits.
    pub(super) fn waiting(&self) -> usize {
        self.ledger.inodes().len()
    }

    /// Whether files could go if what was written were durable.
    pub(super) fn wants_sync(&self) -> bool {
        self.ledger.has_voids() && self.ledger.bytes() > self.length
    }

    /// Bytes that are free on the disk, if it says so.
    pub(super) fn free_bytes(&mut self) -> Option<u64> {
        self.disk.free_bytes().ok()
    }

    fn usable(&self) -> Result<(), JournalError> {
        match &self.broken {
            None => Ok(()),
            Some(reason) => Err(JournalError::Broken {
                reason: reason.clone(),
            }),
        }
    }

    /// The first error is the last thing that happens.
    fn guard<T>(&mut self, outcome: Result<T, JournalError>) -> Result<T, JournalError> {
        if let Err(error) = &outcome {
            self.broken.get_or_insert_with(|| error.to_string());
        }
        outcome
    }

    /// Writes records, as one group. Nothing is durable before a sync.
    pub(super) fn write(&mut self, entries: &[Entry]) -> Result<(), JournalError> {
        self.usable()?;
        if entries.is_empty() {
            return Ok(());
        }
        if self.length >= self.file_bytes {
            self.next_file()?;
        }
        let outcome = self.write_group(entries);
        self.guard(outcome)
    }

    fn write_group(&mut self, entries: &[Entry]) -> Result<(), JournalError> {
        let group = &mut self.group;
        group.clear();
        let (first, mut chain) = (self.next, self.chain);
        let mut sequence = first;
        for entry in entries {
            let place = FramePosition {
                sequence,
                durable: self.durable,
                chain,
            };
            chain = self
                .framing
                .seal(place, entry, group)
                .map_err(|_| JournalError::Key)?;
            sequence = sequence.next();
        }
        group.resize(group.len().next_multiple_of(PAGE_BYTES), 0);
        self.disk
            .append(group)
            .map_err(JournalError::disk("writing"))?;
        let written = self.group.len() as u64;
        self.length = self.length.saturating_add(written);
        self.ledger.file(self.generation, self.length);
        (self.next, self.chain) = (sequence, chain);
        let mut sequence = first;
        for entry in entries {
            self.ledger.note(sequence, self.generation, &entry.record);
            sequence = sequence.next();
        }
        Ok(())
    }

    /// Makes everything durable that was written.
    pub(super) fn sync(&mut self) -> Result<(), JournalError> {
        self.usable()?;
        if self.durable < self.next {
            let outcome = self.disk.sync().map_err(JournalError::disk("syncing"));
            self.guard(outcome)?;
            self.durable = self.next;
            self.ledger.durable(self.durable);
            self.ledger.settle();
        }
        Ok(())
    }

    /// Begins the next file. It is there only once everything in this one is durable: that is what
    /// tells a tear from damage.
    fn next_file(&mut self) -> Result<(), JournalError> {
        self.sync()?;
        let outcome = self.begin_file();
        self.guard(outcome)
    }

    fn begin_file(&mut self) -> Result<(), JournalError> {
        let header = Header {
            volume: self.volume,
            identity: (self.identities)()?,
            generation: Generation(self.generation.0.saturating_add(1)),
            first: self.next,
            chain: self.chain,
        };
        let (page, framing) = header.seal(&self.secret).map_err(|_| JournalError::Key)?;
        self.disk
            .create(header.generation, &page)
            .map_err(JournalError::disk("beginning a file of"))?;
        self.framing = framing;
        self.generation = header.generation;
        self.length = PAGE_BYTES as u64;
        self.ledger.file(self.generation, self.length);
        Ok(())
    }

    /// Removes the files that nobody needs.
    pub(super) fn trim(&mut self) -> Result<(), JournalError> {
        self.usable()?;
        for file in self.ledger.trim() {
            let outcome = self
                .disk
                .remove(file)
                .map_err(JournalError::disk("trimming"));
            self.guard(outcome)?;
            self.ledger.removed(file);
        }
        Ok(())
    }

    /// Ends in good order: if nothing waits any more, nothing is left on the disk.
    pub(super) fn close(mut self) -> Result<(), JournalError> {
        self.sync()?;
        self.trim()?;
        if self.ledger.inodes().is_empty() {
            self.disk
                .remove(self.generation)
                .map_err(JournalError::disk("removing"))?;
        }
        Ok(())
    }
}

/// Makes room for a new file behind what was found.
fn clear<D: Disk>(disk: &mut D, found: &ScannedJournal) -> Result<(), JournalError> {
    let failed = || JournalError::disk("clearing");
    if let Some((file, _)) = &found.damage {
        disk.put_aside(*file).map_err(failed())?;
    }
    for file in &found.behind {
        disk.put_aside(*file).map_err(failed())?;
        disk.remove(*file).map_err(failed())?;
    }
    // A process that was killed had not made all durable; a new file behind it says that it is.
    if let Some((last, _)) = found.files.last() {
        disk.settle(*last).map_err(failed())?;
    }
    for file in &found.unmade {
        disk.remove(*file).map_err(failed())?;
    }
    Ok(())
}

/// What a record takes in memory while it waits to be written, in bytes.
pub(super) fn weight(entry: &Entry) -> u64 {
    let record = FRAME_OVERHEAD_BYTES + std::mem::size_of::<Record>();
    (entry.bytes.len() + record) as u64
}
