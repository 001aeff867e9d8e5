//! The journal without threads: opened, written to, made durable, trimmed.
//!
//! Everything is decided here without waiting, so that a test drives the log over a simulated disk.
//! After the first error of the disk nothing is written any more: nothing tells whether a failed
//! sync has lost data, and the next sync would succeed all the same.

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

/// Makes identities of files: 16 bytes that were never used before.
pub(super) type Identities = Box<dyn FnMut() -> Result<[u8; 16], JournalError> + Send>;

/// The waiting records of an inode at the end of the process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tail {
    ground: Option<Ground>,
    orderings: Orderings,
    /// Records up to this one are void.
    through: Sequence,
}

impl Tail {
    /// The fate of its bytes, given the inode's present state `now`.
    #[must_use]
    pub fn verdict(&self, now: Option<Ground>) -> Verdict {
        verdict(self.ground, &self.orderings, now)
    }
}

/// The content of a journal at its opening.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Recovered {
    /// The waiting records, by inode.
    pub tails: BTreeMap<InodeId, Tail>,
    /// How the disk lost durable data, if it did.
    pub damage: Option<String>,
}

/// See the module.
pub(super) struct Log<D> {
    disk: D,
    secret: Secret,
    volume: VolumeId,
    identities: Identities,
    /// A file is ended at so many bytes.
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
    /// The group that is being written; reused for its memory.
    group: Vec<u8>,
}

impl<D: Disk> Log<D> {
    /// Reads the existing files, and begins a new one behind them.
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
            // It will be durable before anything else is written.
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

    /// Passes on, in order, the waiting records of a journal that was just opened.
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

    /// The sequence of the next record.
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

    /// The number of inodes with waiting records.
    pub(super) fn waiting(&self) -> usize {
        self.ledger.inodes().len()
    }

    /// Whether files could be removed if all records were durable.
    pub(super) fn wants_sync(&self) -> bool {
        self.ledger.has_voids() && self.ledger.bytes() > self.length
    }

    /// Free bytes on the disk, if it reports them.
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

    /// Records the first error, after which nothing more is done.
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

    /// Begins the next file. It exists only once everything in this one is durable: that tells a
    /// tear from damage.
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

    /// Removes the unneeded files.
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

    /// Closes the journal: without waiting records, no file is left on the disk.
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

/// Prepares the disk for a new file behind the existing ones.
fn clear<D: Disk>(disk: &mut D, found: &ScannedJournal) -> Result<(), JournalError> {
    let failed = || JournalError::disk("clearing");
    if let Some((file, _)) = &found.damage {
        disk.put_aside(*file).map_err(failed())?;
    }
    for file in &found.behind {
        disk.put_aside(*file).map_err(failed())?;
        disk.remove(*file).map_err(failed())?;
    }
    // A killed process had not made everything durable; a new file behind it claims that it is.
    if let Some((last, _)) = found.files.last() {
        disk.settle(*last).map_err(failed())?;
    }
    for file in &found.unmade {
        disk.remove(*file).map_err(failed())?;
    }
    Ok(())
}

/// The memory that a record takes while it waits to be written, in bytes.
pub(super) fn weight(entry: &Entry) -> u64 {
    let record = FRAME_OVERHEAD_BYTES + std::mem::size_of::<Record>();
    (entry.bytes.len() + record) as u64
}
