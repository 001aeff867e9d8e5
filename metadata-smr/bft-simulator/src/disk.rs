//! One machine's disk: a journal with group commit, and a state store with atomic batches.
//!
//! An appended record is durable only when a sync that began afterwards has completed. A crash
//! keeps the durable records and, of the rest, some prefix whose last record may be torn in the
//! middle, with any sectors after the tear. Trimming a journal removes whole segments, so it may
//! begin long before the first record that is needed. The journal's segment overwrites an older
//! one: complete records under the same tokens. A *forgetful* disk (it reports a sync that it did
//! not do) loses durable records and batches too; a replica with such a disk breaks its promises
//! unknowingly, and the plan counts it among the r liars. A disk that is going to be *rolled back*
//! keeps copies of itself, journal and state of one moment, and is replaced by one of them.

mod image;

use crate::random::Random;
use bytes::Bytes;
use image::Image;
use quorumfs_bft::identity::Sequence;
use quorumfs_bft::journal::Segment;
use quorumfs_bft::journal::framing::FRAME_HEADER_BYTES;
use quorumfs_bft::state::{WriteBatch, memory::MemoryStore};
use quorumfs_bft::step::Token;
use std::collections::VecDeque;

/// The state of a disk after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The durable part is there, and some of the rest.
    Honest,
    /// The durable part is there, and nothing else.
    Bare,
    /// Some records that were reported durable are lost without a trace.
    Forgetful,
    /// The journal has a byte changed in the middle.
    Damaged,
    /// The journal is lost.
    Wiped,
    /// The journal is lost, and the state with it.
    Bereft,
    /// Journal and state are as they were at one earlier moment.
    RolledBack,
}

/// A copy is made after so many syncs.
const COPY_EVERY: u64 = 6;
/// At most so many copies are kept, always including the first one.
const COPIES_MAX: usize = 10;

/// The durable content at one moment.
#[derive(Debug)]
struct DiskCopy {
    store: MemoryStore,
    records: VecDeque<Record>,
}

/// Earlier copies of a disk.
#[derive(Debug, Default)]
struct Copies {
    syncs: u64,
    list: Vec<DiskCopy>,
}

/// The approximate number of records in a segment.
const SEGMENT_RECORDS: u64 = 256;

#[derive(Clone, Debug)]
struct Record {
    token: Token,
    body: Bytes,
}

impl Record {
    /// Whether a segment begins with it: by its token, so that nothing else in the simulation
    /// depends on it.
    fn begins_segment(&self) -> bool {
        Random::new(self.token.0).chance(1, SEGMENT_RECORDS)
    }

    /// Its length with its framing.
    fn length(&self) -> usize {
        FRAME_HEADER_BYTES + self.body.len()
    }
}

#[derive(Debug)]
struct Flushing {
    number: u64,
    sequence: Sequence,
    batch: WriteBatch,
}

/// The disk. Its owner keeps the time: it starts syncs and reports their completion.
#[derive(Debug)]
pub struct Disk {
    records: VecDeque<Record>,
    durable: usize,
    /// How many of them are no longer needed.
    void: usize,
    syncing: Option<usize>,
    store: MemoryStore,
    flushes: VecDeque<Flushing>,
    flushes_begun: u64,
    older: Option<(MemoryStore, VecDeque<Record>)>,
    remembers_older: bool,
    copies: Option<Copies>,
}

impl Disk {
    /// Creates an empty disk. Whether it is forgetful has to be known from the start.
    #[must_use]
    pub fn new(forgetful: bool) -> Self {
        Self {
            records: VecDeque::new(),
            durable: 0,
            void: 0,
            syncing: None,
            store: MemoryStore::new(),
            flushes: VecDeque::new(),
            flushes_begun: 0,
            older: None,
            remembers_older: forgetful,
            copies: None,
        }
    }

    /// The same disk, with copies.
    #[must_use]
    pub fn copied(self) -> Self {
        Self {
            copies: Some(Copies::default()),
            ..self
        }
    }

    /// Returns a handle on the state store.
    #[must_use]
    pub fn store(&self) -> MemoryStore {
        self.store.clone()
    }

    /// Appends a record. Returns true if a sync has to be started for it.
    pub fn append(&mut self, token: Token, body: Bytes) -> bool {
        self.records.push_back(Record { token, body });
        if self.syncing.is_some() {
            return false;
        }
        self.syncing = Some(self.records.len());
        true
    }

    /// The last started sync has completed: returns the last durable record, and whether another
    /// sync has to be started for newer records.
    pub fn synced(&mut self) -> (Option<Token>, bool) {
        let Some(upto) = self.syncing.take() else {
            return (None, false);
        };
        self.durable = upto.min(self.records.len());
        self.copy();
        let token = self
            .durable
            .checked_sub(1)
            .and_then(|last| self.records.get(last))
            .map(|record| record.token);
        let more = self.durable < self.records.len();
        if more {
            self.syncing = Some(self.records.len());
        }
        (token, more)
    }

    fn copy(&mut self) {
        let Some(copies) = &mut self.copies else {
            return;
        };
        copies.syncs += 1;
        if copies.syncs.is_multiple_of(COPY_EVERY) {
            copies.list.push(DiskCopy {
                store: self.store.snapshot(),
                records: self.records.iter().take(self.durable).cloned().collect(),
            });
            if copies.list.len() > COPIES_MAX {
                copies.list.remove(1);
            }
        }
    }

    /// Drops whole segments of records below `before`, if they are durable.
    pub fn trim(&mut self, before: Token) {
        let durable = self.records.iter().take(self.durable);
        let void = durable.take_while(|it| it.token < before).count();
        let begins = |at: &usize| self.records.get(*at).is_some_and(Record::begins_segment);
        let gone = (1..=void).rev().find(begins).unwrap_or(0);
        self.records.drain(..gone);
        self.durable -= gone;
        self.void = void - gone;
        self.syncing = self.syncing.map(|upto| upto.saturating_sub(gone));
    }

    /// Starts writing a batch to the state store; its number is passed to [`Disk::flushed`] later.
    pub fn flush(&mut self, sequence: Sequence, batch: WriteBatch) -> u64 {
        self.flushes_begun += 1;
        self.flushes.push_back(Flushing {
            number: self.flushes_begun,
            sequence,
            batch,
        });
        self.flushes_begun
    }

    /// Batch `number` and those before it are durable; returns the sequence of the last one.
    pub fn flushed(&mut self, number: u64) -> Option<Sequence> {
        let mut last = None;
        while self.flushes.front().is_some_and(|f| f.number <= number) {
            if let Some(flushing) = self.flushes.pop_front() {
                if self.remembers_older {
                    let records = self.records.iter().take(self.durable).cloned().collect();
                    self.older = Some((self.store.snapshot(), records));
                }
                self.store.apply(&flushing.batch);
                last = Some(flushing.sequence);
            }
        }
        last
    }

    /// The power fails. Returns the journal as it is found afterwards. The previous store must not
    /// be used any more: take [`Disk::store`] again.
    pub fn crash(&mut self, how: Crash, random: &mut Random) -> Segment {
        self.syncing = None;
        self.flushes.clear();
        self.store = self.store.snapshot();
        let unsynced = self.records.len().saturating_sub(self.durable);
        let mut kept = self.durable + random.index(unsynced + 1);
        let mut torn = None;
        match how {
            Crash::Honest | Crash::Damaged => {
                if let Some(record) = self.records.get(kept)
                    && random.chance(2, 3)
                {
                    torn = Some((record.clone(), random.index(record.length())));
                }
            }
            Crash::Forgetful => {
                if let Some((store, records)) = self.older.take()
                    && random.chance(1, 3)
                {
                    self.store = store;
                    self.records = records;
                    kept = self.records.len();
                } else {
                    let void = self.void.min(self.durable);
                    kept = void + random.index(self.durable - void + 1);
                }
            }
            Crash::RolledBack => {
                kept = self.durable;
                let mut copies = self.copies.take().unwrap_or_default().list;
                let index = random.index(copies.len());
                if index < copies.len() {
                    let copy = copies.swap_remove(index);
                    (self.store, self.records) = (copy.store, copy.records);
                    kept = self.records.len();
                }
            }
            Crash::Bare => kept = self.durable,
            Crash::Wiped => kept = 0,
            Crash::Bereft => {
                kept = 0;
                self.store = MemoryStore::new();
            }
        }
        self.records.truncate(kept);
        let durable = self.durable.min(kept);
        self.durable = kept;
        let mut image = Image::of(&self.records, durable, torn);
        if how == Crash::Damaged {
            image.damage(random);
        }
        image.segment()
    }

    /// Takes over the records that a recovery accepted, under their current tokens.
    pub fn restore(&mut self, records: impl IntoIterator<Item = (Token, Bytes)>) {
        self.records = records
            .into_iter()
            .map(|(token, body)| Record { token, body })
            .collect();
        self.durable = self.records.len();
        self.void = self.void.min(self.durable);
        self.syncing = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorumfs_bft::journal::{Condition, examine};
    use quorumfs_bft::state::Store as _;

    #[test]
    fn a_damaged_record_is_detected_if_it_was_durable() {
        let mut random = Random::new(1);
        let mut lost = 0;
        for _ in 0..200 {
            let mut disk = Disk::new(false);
            for number in 1..=3 {
                let (token, body) = record(number);
                disk.append(token, body);
                disk.synced();
            }
            let found = examine(&[disk.crash(Crash::Damaged, &mut random)]);
            lost += u32::from(matches!(found.condition, Condition::Lost { .. }));
        }
        // The last record, without a seal after it, may count as torn.
        assert!(lost > 140, "{lost}");
    }

    fn record(number: u64) -> (Token, Bytes) {
        (Token(number), Bytes::from(vec![number as u8; 8]))
    }

    #[test]
    fn a_crash_keeps_the_durable_records_and_at_most_a_prefix_of_the_rest() {
        let mut random = Random::new(1);
        let mut torn_tails = 0;
        for _ in 0..200 {
            let mut disk = Disk::new(false);
            let (token, body) = record(1);
            assert!(disk.append(token, body));
            let (token, body) = record(2);
            assert!(!disk.append(token, body), "one sync at a time");
            assert_eq!(disk.synced(), (Some(Token(1)), true));
            let found = examine(&[disk.crash(Crash::Honest, &mut random)]);
            let kept: Vec<_> = found
                .entries
                .into_iter()
                .map(|it| (it.token, it.record))
                .collect();
            assert!(kept == [record(1)] || kept == [record(1), record(2)]);
            torn_tails += u32::from(found.condition == Condition::TornTail);
        }
        assert!(torn_tails > 20);
    }

    #[test]
    fn a_forgetful_disk_loses_records_that_it_reported_durable() {
        let mut random = Random::new(1);
        let lost = (0..50).any(|_| {
            let mut disk = Disk::new(true);
            let (token, body) = record(1);
            disk.append(token, body);
            disk.synced();
            let found = examine(&[disk.crash(Crash::Forgetful, &mut random)]);
            assert!(!matches!(found.condition, Condition::Lost { .. }));
            found.entries.is_empty()
        });
        assert!(lost);
    }

    #[test]
    fn a_disk_that_is_rolled_back_is_whole_and_older() {
        let mut older = 0;
        for seed in 0..50 {
            let mut disk = Disk::new(false).copied();
            for number in 1..=100 {
                let (token, body) = record(number);
                disk.append(token, body);
                disk.synced();
                let entries = vec![(Bytes::from_static(b"k"), Some(vec![number as u8].into()))];
                let flush = disk.flush(Sequence(number), WriteBatch { entries });
                disk.flushed(flush);
            }
            let found = examine(&[disk.crash(Crash::RolledBack, &mut Random::new(seed))]);
            assert!(!matches!(found.condition, Condition::Lost { .. }));
            let last = found.entries.last().unwrap().token.0;
            let state = disk.store().get(b"k").unwrap().unwrap();
            // The record was durable before the state with its number was.
            assert_eq!(u64::from(state[0]), last - 1);
            older += u64::from(last < 100);
        }
        assert!(older > 40, "{older}");
    }

    #[test]
    fn a_batch_is_applied_whole_or_not_at_all() {
        let mut disk = Disk::new(false);
        let batch = |key: &'static [u8]| WriteBatch {
            entries: vec![(Bytes::from_static(key), Some(Bytes::from_static(b"v")))],
        };
        let first = disk.flush(Sequence(1), batch(b"a"));
        disk.flush(Sequence(2), batch(b"b"));
        assert_eq!(disk.flushed(first), Some(Sequence(1)));
        disk.crash(Crash::Honest, &mut Random::new(1));
        assert!(disk.store().get(b"a").unwrap().is_some());
        assert!(disk.store().get(b"b").unwrap().is_none());
    }
}
