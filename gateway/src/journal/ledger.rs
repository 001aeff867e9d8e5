//! Which records of the journal still count, and so which files may be removed.
//!
//! Files are removed from the front only. So a record that voids others is never removed before
//! them, and the files that are left after a crash are always the end of the same history. A file
//! may be removed once nothing in it counts: no waiting byte, and no ground of a waiting byte. A
//! voiding record takes effect when it is durable; a waiting record counts at once.
//!
//! ```text
//! record ──note──► waits: pins its file          void: remembered ──durable──► unpins
//!                        └──────── the first file that is pinned, or the one in use ──► trim
//! ```

use super::framing::Generation;
use super::record::{Ground, Record, Sequence};
use quorumfs_metadata::attributes::Timestamp;
use quorumfs_metadata::identity::{InodeId, InodeVersion};
use std::collections::{BTreeMap, VecDeque};

/// The most times of this mount's operations that are remembered for one inode.
const ORDERINGS_MAX: usize = 64;

/// The waiting records of one inode.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct PendingInode {
    /// The last waiting record in each file that has any.
    pub(super) last: BTreeMap<Generation, Sequence>,
    /// The ground of the waiting bytes, and the file of its record.
    pub(super) ground: Option<(Generation, Ground)>,
    /// The operations that may have been ordered since.
    pub(super) orderings: Orderings,
    /// Records up to this one are void.
    pub(super) through: Sequence,
}

/// This mount's operations on one inode that may or may not have been executed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Orderings {
    /// The lowest version that one of them is based on.
    pub(super) since: Option<InodeVersion>,
    /// The mtimes that they set.
    pub(super) mtimes: VecDeque<Timestamp>,
}

/// The ledger of all inodes.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    inodes: BTreeMap<InodeId, PendingInode>,
    /// Files in use, with their lengths in bytes; the last one is being written.
    files: BTreeMap<Generation, u64>,
    /// Voiding records that are not durable yet.
    voids: VecDeque<(Sequence, Generation, Record)>,
}

impl Ledger {
    /// A file of so many bytes exists.
    pub(super) fn file(&mut self, generation: Generation, bytes: u64) {
        self.files.insert(generation, bytes);
    }

    /// The file was removed.
    pub(super) fn removed(&mut self, generation: Generation) {
        self.files.remove(&generation);
    }

    /// Bytes in all files.
    pub(super) fn bytes(&self) -> u64 {
        self.files.values().sum()
    }

    /// The waiting records, by inode.
    pub(super) fn inodes(&self) -> &BTreeMap<InodeId, PendingInode> {
        &self.inodes
    }

    /// Whether a voiding record awaits durability.
    pub(super) fn has_voids(&self) -> bool {
        !self.voids.is_empty()
    }

    /// A record was written.
    pub(super) fn note(&mut self, sequence: Sequence, generation: Generation, record: &Record) {
        match *record {
            Record::Write { inode, .. } | Record::Attributes { inode, .. } => {
                let waiting = self.inodes.entry(inode).or_default();
                waiting.last.insert(generation, sequence);
            }
            Record::Ordering {
                inode,
                version,
                mtime,
            } => {
                let orderings = &mut self.inodes.entry(inode).or_default().orderings;
                orderings.since.get_or_insert(version);
                if let Some(mtime) = mtime.filter(|time| !orderings.mtimes.contains(time)) {
                    if orderings.mtimes.len() >= ORDERINGS_MAX {
                        orderings.mtimes.pop_front();
                    }
                    orderings.mtimes.push_back(mtime);
                }
            }
            Record::Stands { .. } | Record::GivenUp { .. } => {
                self.voids.push_back((sequence, generation, *record));
            }
        }
    }

    /// Everything below `durable` is durable.
    pub(super) fn durable(&mut self, durable: Sequence) {
        while let Some(&(sequence, generation, record)) = self.voids.front()
            && sequence < durable
        {
            self.voids.pop_front();
            self.apply(sequence, generation, &record);
        }
    }

    fn apply(&mut self, sequence: Sequence, generation: Generation, record: &Record) {
        match *record {
            Record::Stands {
                inode,
                through,
                ground,
            } => {
                let waiting = self.inodes.entry(inode).or_default();
                waiting.ground = Some((generation, ground));
                // The operations up to `through` are known to be done, unless only the ground has
                // changed.
                if through > Sequence(0) {
                    waiting.orderings = Orderings::default();
                }
                void(waiting, through);
            }
            Record::GivenUp { inode } => {
                let waiting = self.inodes.entry(inode).or_default();
                void(waiting, sequence);
                waiting.ground = None;
                waiting.orderings = Orderings::default();
            }
            _ => {}
        }
    }

    /// Forgets inodes without waiting records; later records begin anew.
    pub(super) fn settle(&mut self) {
        let pending: Vec<InodeId> = self.voids.iter().map(|(_, _, it)| it.inode()).collect();
        self.inodes
            .retain(|inode, waiting| !waiting.last.is_empty() || pending.contains(inode));
    }

    /// The unneeded files at the front; never the one that is being written.
    pub(super) fn trim(&self) -> Vec<Generation> {
        let needed = self.inodes.values().filter_map(PendingInode::first).min();
        // A file with only a voiding record is needed until that is durable.
        let pending = self.voids.front().map(|(_, generation, _)| *generation);
        let current = self
            .files
            .last_key_value()
            .map(|(generation, _)| *generation);
        let until = [needed, pending, current].into_iter().flatten().min();
        let until = until.unwrap_or_default();
        self.files.range(..until).map(|(file, _)| *file).collect()
    }
}

impl PendingInode {
    /// The first file that the inode needs.
    fn first(&self) -> Option<Generation> {
        let (first, _) = self.last.first_key_value()?;
        let ground = self.ground.map_or(*first, |(generation, _)| generation);
        Some(ground.min(*first))
    }
}

fn void(waiting: &mut PendingInode, through: Sequence) {
    waiting.through = waiting.through.max(through);
    let through = waiting.through;
    waiting.last.retain(|_, last| *last > through);
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: InodeId = InodeId(1);
    const TWO: InodeId = InodeId(2);

    fn write(inode: InodeId) -> Record {
        Record::Write {
            inode,
            offset: 0,
            mtime: Timestamp::default(),
        }
    }

    fn stands(inode: InodeId, through: u64) -> Record {
        Record::Stands {
            inode,
            through: Sequence(through),
            ground: Ground::default(),
        }
    }

    /// A ledger with a file for each list, of records in order from 1.
    fn ledger(files: &[&[Record]]) -> Ledger {
        let mut ledger = Ledger::default();
        let mut sequence = Sequence(1);
        for (number, records) in (1..).zip(files) {
            ledger.file(Generation(number), 100);
            for record in *records {
                ledger.note(sequence, Generation(number), record);
                sequence = sequence.next();
            }
        }
        ledger
    }

    fn numbers(files: Vec<Generation>) -> Vec<u64> {
        files.into_iter().map(|file| file.0).collect()
    }

    #[test]
    fn a_file_goes_when_all_that_waits_in_it_and_before_is_durably_void() {
        let mut it = ledger(&[
            &[stands(ONE, 0), write(ONE)],
            &[stands(TWO, 0), write(TWO), write(ONE)],
            &[stands(ONE, 5), stands(TWO, 4)],
            &[],
        ]);
        assert_eq!(numbers(it.trim()), [0; 0], "nothing is durable");
        it.durable(Sequence(6));
        assert_eq!(numbers(it.trim()), [0; 0], "the voiding record is not");
        it.durable(Sequence(7));
        assert_eq!(numbers(it.trim()), [1]);
        it.durable(Sequence(8));
        assert_eq!(numbers(it.trim()), [1, 2, 3], "never the last");
        it.settle();
        assert!(it.inodes().is_empty());
        it.removed(Generation(1));
        assert_eq!(it.bytes(), 300);
    }

    #[test]
    fn the_ground_of_waiting_records_is_kept() {
        let mut it = ledger(&[&[stands(ONE, 0)], &[write(ONE)], &[]]);
        it.durable(Sequence(10));
        assert_eq!(numbers(it.trim()), [0; 0]);
        let mut it = ledger(&[
            &[stands(ONE, 0), write(ONE)],
            &[stands(ONE, 2)],
            &[write(ONE)],
        ]);
        it.durable(Sequence(10));
        assert_eq!(numbers(it.trim()), [1], "a newer one takes its place");
    }

    #[test]
    fn writes_after_a_departure_still_wait() {
        let mut it = ledger(&[
            &[stands(ONE, 0), write(ONE), write(ONE), stands(ONE, 2)],
            &[],
        ]);
        it.durable(Sequence(10));
        it.settle();
        assert_eq!(it.inodes().len(), 1);
        assert_eq!(numbers(it.trim()), [0; 0]);
        let mut it = ledger(&[
            &[stands(ONE, 0), write(ONE), Record::GivenUp { inode: ONE }],
            &[],
        ]);
        it.durable(Sequence(10));
        it.settle();
        assert!(it.inodes().is_empty());
        assert_eq!(numbers(it.trim()), [1]);
    }
}
