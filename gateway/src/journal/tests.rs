//! The journal over a simulated disk, against a list of all written records.

use super::disk::Disk;
use super::error::JournalError;
use super::framing::{Generation, PAGE_BYTES};
use super::log::{Identities, Log, Recovered};
use super::record::{Entry, Ground, Record, Sequence};
use super::simulated_disk::{Dice, DiskFault, SimulatedDisk};
use super::writer::{JOURNAL_BYTES_MIN, Journal, JournalOptions};
use super::{Directory, Reason, Verdict};
use crate::keys::Secret;
use bytes::Bytes;
use quorumfs_bft::identity::ClusterId;
use quorumfs_metadata::attributes::Timestamp;
use quorumfs_metadata::identity::{InodeId, InodeVersion, VolumeId};
use std::collections::BTreeMap;
use std::time::Duration;

const VOLUME: VolumeId = ClusterId([1; 16]);
const FILE_BYTES: u64 = 4 * PAGE_BYTES as u64;

fn secret() -> Secret {
    Secret::from_bytes([2; 32])
}

type OpenedLog = (Log<SimulatedDisk>, Recovered, Vec<(Sequence, Entry)>);

fn open(disk: &SimulatedDisk, uses: &mut u64) -> Result<OpenedLog, JournalError> {
    *uses += 1;
    let mut dice = Dice::new(*uses << 32);
    let identities: Identities = Box::new(move || {
        let mut identity = [0; 16];
        identity[..8].copy_from_slice(&dice.roll().to_le_bytes());
        Ok(identity)
    });
    let (mut log, recovered) = Log::open(disk.clone(), secret(), VOLUME, FILE_BYTES, identities)?;
    let mut replayed = Vec::new();
    log.replay(&recovered, |sequence, entry| {
        replayed.push((sequence, entry))
    })?;
    Ok((log, recovered, replayed))
}

fn mtime(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanos: 0 }
}

fn write(inode: u64, length: usize, byte: u8) -> Entry {
    Entry {
        record: Record::Write {
            inode: InodeId(inode),
            offset: u64::from(byte),
            mtime: mtime(byte.into()),
        },
        bytes: Bytes::from(vec![byte; length]),
    }
}

fn stands(inode: u64, through: u64, version: u64) -> Entry {
    Entry::from(Record::Stands {
        inode: InodeId(inode),
        through: Sequence(through),
        ground: Ground {
            version: InodeVersion(version),
            mtime: mtime(0),
        },
    })
}

/// The waiting records, computed from all records that were ever written: slow and simple.
#[derive(Default)]
struct Story(Vec<Entry>);

impl Story {
    /// The waiting records before `next`.
    fn waits(&self, next: Sequence) -> Vec<(Sequence, Entry)> {
        let mut waits: Vec<(Sequence, Entry)> = Vec::new();
        let numbered = (1..next.0).map(Sequence).zip(&self.0);
        for (sequence, entry) in numbered {
            let inode = entry.record.inode();
            match entry.record {
                Record::Stands { through, .. } => {
                    waits.retain(|(at, it)| it.record.inode() != inode || *at > through);
                }
                Record::GivenUp { .. } => waits.retain(|(_, it)| it.record.inode() != inode),
                Record::Write { .. } | Record::Attributes { .. } => {
                    waits.push((sequence, entry.clone()));
                }
                Record::Ordering { .. } => {}
            }
        }
        waits
    }

    /// The ground of each inode with waiting records.
    fn grounds(&self, next: Sequence) -> BTreeMap<InodeId, Ground> {
        let mut grounds = BTreeMap::new();
        for entry in self.0.iter().take(next.0 as usize - 1) {
            if let Record::Stands { inode, ground, .. } = entry.record {
                grounds.insert(inode, ground);
            }
        }
        let waits = self.waits(next);
        grounds.retain(|inode, _| waits.iter().any(|(_, it)| it.record.inode() == *inode));
        grounds
    }

    /// Some records that a mount could push next, appended to the story.
    fn goes_on(&mut self, dice: &mut Dice) -> Vec<Entry> {
        let before = self.0.len();
        for _ in 0..=dice.below(4) {
            let inode = dice.below(5) + 1;
            let next = Sequence(self.0.len() as u64 + 1);
            let waits = self.waits(next);
            let of: Vec<u64> = waits
                .iter()
                .filter(|(_, it)| it.record.inode() == InodeId(inode))
                .map(|(at, _)| at.0)
                .collect();
            let version = next.0;
            match (of.as_slice(), dice.below(12)) {
                ([], _) => {
                    let length = 1 + dice.below(9000) as usize;
                    self.0.push(stands(inode, 0, version));
                    self.0.push(write(inode, length, version as u8));
                }
                (_, 0) => self.0.push(Entry::from(Record::GivenUp {
                    inode: InodeId(inode),
                })),
                (of, 1..=4) => {
                    let through = of[dice.below(of.len() as u64) as usize];
                    self.0.push(Entry::from(Record::Ordering {
                        inode: InodeId(inode),
                        version: InodeVersion(version),
                        mtime: Some(mtime(9)),
                    }));
                    self.0.push(stands(inode, through, version));
                }
                (_, 5) => self.0.push(Entry::from(Record::Attributes {
                    inode: InodeId(inode),
                    mode: None,
                    atime: None,
                    mtime: Some(mtime(7)),
                })),
                _ => {
                    let length = 1 + dice.below(5000) as usize;
                    self.0.push(write(inode, length, version as u8));
                }
            }
        }
        self.0[before..].to_vec()
    }
}

/// The events of one seed.
#[derive(Default)]
struct SeenOutcomes {
    power_lost: u64,
    refused: u64,
    killed: u64,
    torn: u64,
    trimmed: u64,
}

fn run(seed: u64, seen: &mut SeenOutcomes) {
    let disk = SimulatedDisk::new(seed);
    let mut dice = Dice::new(seed ^ 0xdead);
    let (mut story, mut uses) = (Story::default(), seed << 8);
    let (mut log, ..) = open(&disk, &mut uses).unwrap();
    for _ in 0..6 {
        let mut durable = log.durable();
        let fault = [None, Some(DiskFault::PowerLoss), Some(DiskFault::Refusal)];
        let fault = fault[dice.below(3) as usize];
        if let Some(fault) = fault {
            disk.fault_in(dice.below(25), fault);
        }
        let mut failed = false;
        for _ in 0..dice.below(30) {
            let entries = story.goes_on(&mut dice);
            let mut outcome = log.write(&entries);
            if outcome.is_ok() && dice.one_in(3) {
                outcome = log.sync().and_then(|()| {
                    durable = log.durable();
                    let files = disk.files().len();
                    let trimmed = log.trim();
                    seen.trimmed += (files - disk.files().len()) as u64;
                    trimmed
                });
            }
            durable = durable.max(log.durable());
            if outcome.is_err() {
                failed = true;
                // Nothing is ever promised again.
                assert!(log.write(&entries).is_err() && log.sync().is_err());
                assert!(log.trim().is_err());
                assert_eq!(log.durable(), durable);
                break;
            }
        }
        drop(log);
        let mut power = disk.is_off() || failed || dice.one_in(2);
        seen.power_lost += u64::from(power);
        seen.refused += u64::from(failed && !disk.is_off());
        seen.killed += u64::from(!power);
        if power {
            disk.restart();
        } else {
            disk.heal();
        }
        // It may fail while it is opened, too.
        if dice.one_in(4) {
            disk.fault_in(dice.below(4), DiskFault::PowerLoss);
            let _ = open(&disk, &mut uses);
            disk.restart();
            power = true;
        }
        let (again, recovered, replayed) = open(&disk, &mut uses).unwrap();
        let next = again.next();
        let written = Sequence(story.0.len() as u64 + 1);
        assert!(durable <= next, "{next:?} of {durable:?} that were durable");
        assert!(next <= written);
        assert!(
            power || next == written,
            "a process that ends loses nothing"
        );
        assert_eq!(recovered.damage, None);
        assert!(replayed == story.waits(next), "seed {seed}");
        let grounds = story.grounds(next);
        assert!(recovered.tails.keys().eq(grounds.keys()), "seed {seed}");
        for (inode, tail) in &recovered.tails {
            let as_it_was = Some(grounds[inode]);
            assert_eq!(tail.verdict(as_it_was), Verdict::InPlace);
            assert_eq!(tail.verdict(None), Verdict::Rescue(Reason::Deleted));
        }
        seen.torn += u64::from(next < written);
        story.0.truncate(next.0 as usize - 1);
        log = again;
    }
}

#[test]
fn synced_records_are_replayed_and_no_others_whatever_the_disk_loses() {
    let mut seen = SeenOutcomes::default();
    for seed in 0..3000 {
        run(seed, &mut seen);
    }
    let all = [
        seen.power_lost,
        seen.refused,
        seen.killed,
        seen.torn,
        seen.trimmed,
    ];
    assert!(all.iter().all(|count| *count > 500), "{all:?}");
}

/// A journal of several full files with waiting records, each one synced; and its files.
fn filled(disk: &SimulatedDisk) -> Vec<Generation> {
    let (mut log, ..) = open(disk, &mut 77).unwrap();
    for number in 0..42 {
        let entries = [stands(number, 0, 1), write(number, 3000, number as u8)];
        log.write(&entries).unwrap();
        log.sync().unwrap();
    }
    let files = disk.files();
    assert!(files.len() > 5);
    files
}

/// The number of replayed records, and the reported damage.
fn reopened(disk: &SimulatedDisk) -> (usize, Option<String>) {
    let (_, recovered, replayed) = open(disk, &mut 78).unwrap();
    (replayed.len(), recovered.damage)
}

#[test]
fn a_flipped_bit_a_hole_a_swap_and_an_old_file_are_detected_and_earlier_records_count() {
    let disk = || {
        let disk = SimulatedDisk::new(1);
        let files = filled(&disk);
        (disk, files)
    };
    let (whole, _) = disk();
    assert_eq!(reopened(&whole), (42, None));
    assert_eq!(reopened(&whole), (42, None), "again");

    let (flipped, files) = disk();
    flipped.change(files[2], |bytes| bytes[PAGE_BYTES + 100] ^= 1);
    let (count, damage) = reopened(&flipped);
    assert!(damage.is_some() && count > 2 && count < 20, "{count}");
    assert_eq!(flipped.aside(), files[2..]);
    assert_eq!(reopened(&flipped), (count, None), "it was reported once");

    let (header, files) = disk();
    header.change(files[2], |bytes| bytes[40] ^= 1);
    assert!(reopened(&header).1.is_some());

    let (hole, files) = disk();
    hole.take(files[2]);
    assert!(reopened(&hole).1.is_some());

    let (swapped, files) = disk();
    let (one, two) = (swapped.take(files[2]), swapped.take(files[3]));
    swapped.change(files[2], |bytes| *bytes = two);
    swapped.change(files[3], |bytes| *bytes = one);
    assert!(reopened(&swapped).1.is_some());

    let (old, files) = disk();
    let first = old.take(files[0]);
    old.change(files[0], |bytes| bytes.clone_from(&first));
    old.change(files[3], |bytes| *bytes = first);
    assert!(reopened(&old).1.is_some());

    // In the last file, where only later groups of its own prove the damage.
    let (inside, files) = disk();
    let last = files.len() - 1;
    inside.change(files[last], |bytes| bytes[PAGE_BYTES + 50] ^= 1);
    assert!(reopened(&inside).1.is_some());
}

#[test]
fn the_wrong_key_and_another_volume_find_no_valid_record() {
    let disk = SimulatedDisk::new(3);
    filled(&disk);
    let identities = || -> Identities { Box::new(|| Ok([9; 16])) };
    let other = Secret::from_bytes([3; 32]);
    let (_, found) = Log::open(disk.clone(), other, VOLUME, FILE_BYTES, identities()).unwrap();
    assert!(found.tails.is_empty() && found.damage.is_some());
    let disk = SimulatedDisk::new(3);
    filled(&disk);
    let volume = ClusterId([9; 16]);
    let (_, found) = Log::open(disk, secret(), volume, FILE_BYTES, identities()).unwrap();
    assert!(found.tails.is_empty() && found.damage.is_some());
}

#[test]
fn a_newer_journal_is_left_alone() {
    let disk = SimulatedDisk::new(4);
    let files = filled(&disk);
    disk.change(files[0], |bytes| bytes[8] = 2);
    let error = open(&disk, &mut 1).map(|_| ()).unwrap_err();
    assert_eq!(error, JournalError::Newer { found: 2, known: 1 });
    assert_eq!(disk.files(), files);
}

#[test]
fn a_journal_without_waiting_records_leaves_no_files() {
    let disk = SimulatedDisk::new(5);
    let (mut log, ..) = open(&disk, &mut 1).unwrap();
    for number in 1..50 {
        log.write(&[stands(1, 0, 1), write(1, 3000, 1)]).unwrap();
        log.write(&[stands(1, 3 * number, 2)]).unwrap();
        log.sync().unwrap();
        log.trim().unwrap();
        assert!(disk.files().len() < 4, "it is trimmed as it goes");
    }
    log.close().unwrap();
    assert_eq!(disk.files(), []);
}

fn options() -> JournalOptions {
    JournalOptions {
        bytes_max: JOURNAL_BYTES_MIN,
        free_bytes_min: 1000,
    }
}

fn journal(disk: impl Disk) -> (Journal, Vec<Entry>) {
    let mut replayed = Vec::new();
    let each = |_, entry| replayed.push(entry);
    let (journal, _) = Journal::open(disk, secret(), VOLUME, options(), each).unwrap();
    (journal, replayed)
}

#[tokio::test]
async fn waiting_writers_share_a_sync_and_return_when_it_is_done() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let (first, nothing) = journal(Directory::open(&path).unwrap());
    assert_eq!(nothing, []);
    let mut last = Sequence(0);
    first.push(stands(1, 0, 1)).unwrap();
    for byte in 0..100 {
        last = first.push(write(1, 1000, byte)).unwrap();
    }
    let waits = (0..50).map(|_| first.synced(last));
    for outcome in futures_util::future::join_all(waits).await {
        outcome.unwrap();
    }
    // Like after a killed process: another one finds the first one's records.
    let copy = directory.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    for file in std::fs::read_dir(&path).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), copy.join(file.file_name())).unwrap();
    }
    let (second, replayed) = journal(Directory::open(&copy).unwrap());
    assert_eq!(replayed.len(), 100);
    assert_eq!(replayed[99], write(1, 1000, 99));
    assert_eq!(second.status().waiting, 1);
    second.push(stands(1, last.0, 2)).unwrap();
    second.close().await;
    assert_eq!(std::fs::read_dir(&copy).unwrap().count(), 0);
    assert_eq!(second.push(write(1, 1, 1)), None);
}

#[tokio::test]
async fn after_the_first_error_nothing_is_promised_any_more() {
    let disk = SimulatedDisk::new(6);
    let (journal, _) = journal(disk.clone());
    journal.push(stands(1, 0, 1)).unwrap();
    let last = journal.push(write(1, 10, 1)).unwrap();
    journal.synced(last).await.unwrap();
    disk.fault_in(1, DiskFault::Refusal);
    let last = journal.push(write(1, 10, 2)).unwrap();
    let error = journal.synced(last).await.unwrap_err();
    assert!(matches!(error, JournalError::Broken { .. }), "{error}");
    journal.synced(last).await.unwrap_err();
    assert_eq!(journal.push(write(1, 10, 3)), None);
    assert!(journal.status().broken.is_some());
    assert!(journal.has_space(), "no writer waits for a broken journal");
}

#[tokio::test]
async fn writers_wait_for_space_on_the_disk_and_continue_when_there_is_some() {
    let disk = SimulatedDisk::new(7);
    let (journal, _) = journal(disk.clone());
    journal.push(stands(1, 0, 1)).unwrap();
    let mut last = Sequence(0);
    let mut count = 0;
    while journal.has_space() {
        last = journal.push(write(1, 1 << 20, 1)).unwrap();
        journal.synced(last).await.unwrap();
        count += 1;
        assert!(count < 100, "no bound");
    }
    assert!(count > 50 && journal.is_pressed());
    let mark = journal.push(stands(1, last.0, 2)).unwrap();
    journal.synced(mark).await.unwrap();
    wait_for_space(&journal).await;
    assert!(!journal.is_pressed());
}

/// Waits until there is space; `wait_for_space` gives up after a while, on a busy machine before
/// the journal has checked.
async fn wait_for_space(journal: &Journal) {
    let until = async {
        while !journal.has_space() {
            journal.wait_for_space().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), until)
        .await
        .unwrap();
}

#[tokio::test]
async fn too_little_free_space_counts_as_a_full_journal() {
    let disk = SimulatedDisk::new(8);
    disk.set_free(999);
    let (journal, _) = journal(disk.clone());
    let last = journal.push(stands(1, 0, 1)).unwrap();
    journal.synced(last).await.unwrap();
    assert!(!journal.has_space() && journal.is_pressed() && journal.is_below_floor());
    disk.set_free(1000);
    wait_for_space(&journal).await;
    assert!(!journal.is_below_floor());
}
