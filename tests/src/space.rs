//! What the clouds hold after an evening of writing, overwriting, renaming over and removing:
//! hardly more than what is there.
//!
//! ```text
//! fill ─► churn ─► a file of the trash restored ─► trash emptied ─► reconcile ─► all read again
//!                                                                      └► bytes on clouds / needed
//! ```
//!
//! The operations follow from a seed. A model says what each file contains: bytes of a seed, and
//! ranges of other seeds over them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use crate::harness::{Cluster, drop_caches, mount_in_background, noise, require_fuse};
use quorumfs_bft_simulator::random::Random;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct SpacePlan {
    /// Bytes that are written before anything is removed.
    pub bytes: u64,
    /// Operations after that.
    pub operations: u64,
    /// Decides what they are.
    pub seed: u64,
}

/// The result of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SpaceReport {
    /// Files at the end, and their bytes.
    pub files: usize,
    /// Bytes of the files at the end.
    pub live_bytes: u64,
    /// Bytes that were written in all.
    pub written_bytes: u64,
    /// How often each operation was done.
    pub done: BTreeMap<&'static str, u64>,
    /// Files that came back from the trash with their content, and what it held then.
    pub restored: usize,
    /// Files in the trash before it was emptied.
    pub trashed: u64,
    /// Bytes on all clouds before the collection.
    pub stored_before: u64,
    /// Bytes on all clouds at the end.
    pub stored_bytes: u64,
    /// Those over what the files need: their bytes times n / k.
    pub ratio: f64,
    /// Objects that the collection deleted, in how many seconds, with how many ordered batches.
    pub collected: u64,
    /// Seconds of the command that collected them, its start and end included.
    pub collect_seconds: f64,
    /// Batches that were ordered meanwhile.
    pub collect_batches: u64,
    /// Seconds of the fill and of the operations.
    pub write_seconds: f64,
}

/// n / k of the volume.
const SPREAD: f64 = 4.0 / 2.0;
/// The largest file.
const LENGTH_MAX: u64 = 4 << 20;
/// What is removed younger than this is not kept in the trash.
const TRASH_AGE: Duration = Duration::from_secs(61);
const RESTORED: usize = 20;

/// A file as it should be.
#[derive(Clone, Debug)]
struct ExpectedFile {
    /// When its inode was made.
    born: Instant,
    length: usize,
    seed: u64,
    changed: Vec<(usize, usize, u64)>,
}

impl ExpectedFile {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = noise(self.seed, self.length);
        for (offset, length, seed) in &self.changed {
            bytes[*offset..offset + length].copy_from_slice(&noise(*seed, *length));
        }
        bytes
    }
}

/// From a byte to the largest length, each order of magnitude as often.
fn length(random: &mut Random) -> u64 {
    let bits = random.below(u64::from(LENGTH_MAX.ilog2()) + 1);
    let least = 1 << bits;
    (least + random.below(least)).min(LENGTH_MAX)
}

struct SpaceRun {
    cluster: Cluster,
    point: PathBuf,
    random: Random,
    files: BTreeMap<u64, ExpectedFile>,
    /// Files that were removed and old enough for the trash.
    removed: Vec<(u64, ExpectedFile)>,
    next: u64,
    report: SpaceReport,
}

fn name(number: u64) -> PathBuf {
    PathBuf::from(format!("d{}", number % 32)).join(format!("f{number}"))
}

impl SpaceRun {
    fn done(&mut self, what: &'static str) {
        *self.report.done.entry(what).or_default() += 1;
    }

    fn new_content(&mut self, born: Instant) -> ExpectedFile {
        let length = length(&mut self.random);
        self.report.written_bytes += length;
        self.next += 1;
        ExpectedFile {
            born,
            length: length as usize,
            seed: self.next,
            changed: Vec::new(),
        }
    }

    fn write(&mut self, number: u64) {
        let before = self.files.get(&number).map(|content| content.born);
        let content = self.new_content(before.unwrap_or_else(Instant::now));
        fs::write(self.point.join(name(number)), content.bytes()).unwrap();
        self.files.insert(number, content);
    }

    fn create(&mut self) {
        let number = self.next;
        self.write(number);
    }

    fn any(&mut self) -> Option<u64> {
        let at = self.random.below(self.files.len() as u64) as usize;
        self.files.keys().nth(at).copied()
    }

    fn change(&mut self, number: u64) {
        self.next += 1;
        let seed = self.next;
        let content = self.files.get_mut(&number).unwrap();
        let offset = self.random.below(content.length as u64) as usize;
        let length = (length(&mut self.random) as usize)
            .min(content.length - offset)
            .min(1 << 20);
        self.report.written_bytes += length as u64;
        content.changed.push((offset, length, seed));
        let file = fs::OpenOptions::new()
            .write(true)
            .open(self.point.join(name(number)));
        file.unwrap()
            .write_all_at(&noise(seed, length), offset as u64)
            .unwrap();
    }

    fn operation(&mut self, least: u64) {
        let live: u64 = self.files.values().map(|it| it.length as u64).sum();
        let Some(one) = self.any() else {
            return self.create();
        };
        match self.random.below(10) {
            // Removals are as frequent as creations, and more so while there is much.
            0..3 if live > least => {
                fs::remove_file(self.point.join(name(one))).unwrap();
                let content = self.files.remove(&one).unwrap();
                if content.born.elapsed() > TRASH_AGE {
                    self.removed.push((one, content));
                }
                self.done("removed");
            }
            0..4 => {
                self.create();
                self.done("created");
            }
            4..6 => {
                self.write(one);
                self.done("overwritten");
            }
            6..8 => {
                self.change(one);
                self.done("changed in part");
            }
            _ => {
                let over = self.any().unwrap();
                if over != one {
                    let (from, to) = (name(one), name(over));
                    fs::rename(self.point.join(from), self.point.join(to)).unwrap();
                    let content = self.files.remove(&one).unwrap();
                    self.files.insert(over, content);
                    self.done("renamed over");
                }
            }
        }
    }

    fn records(&self, kind: &str, arguments: &[&str]) -> Vec<Value> {
        let run = self.cluster.quorumfs().run_with(arguments).ok();
        run.records(kind)
    }

    fn stored(&self) -> u64 {
        (0..4)
            .map(|cloud| bytes_below(&self.cluster.cloud(cloud)))
            .sum()
    }

    /// Restores some files that were removed last, and compares them.
    fn restore(&mut self) {
        let trashed = self.records("trashed", &["trash", "ls"]);
        self.report.trashed = trashed.len() as u64;
        let held: Vec<String> = trashed
            .iter()
            .map(|it| it["path"].as_str().unwrap().to_owned())
            .collect();
        let mut removed = std::mem::take(&mut self.removed);
        removed.reverse();
        for (number, content) in removed {
            let path = format!("/{}", name(number).display());
            // Another file of the same name may be there, or may have been removed too.
            let is_held = held.iter().filter(|it| **it == path).count() == 1;
            if self.report.restored == RESTORED || self.files.contains_key(&number) || !is_held {
                continue;
            }
            let restore = self.cluster.quorumfs().args(["trash", "restore"]);
            restore.args([&path]).run().ok();
            self.files.insert(number, content);
            self.report.restored += 1;
        }
        self.compare();
        self.cluster
            .quorumfs()
            .run_with(["trash", "empty", "--yes"])
            .ok();
    }

    /// Reads every file, and nothing else is there.
    fn compare(&self) {
        drop_caches();
        let mut found = 0;
        for directory in fs::read_dir(&self.point).unwrap() {
            let directory = directory.unwrap().path();
            found += fs::read_dir(directory).unwrap().count();
        }
        assert_eq!(found, self.files.len());
        for (number, content) in &self.files {
            let bytes = fs::read(self.point.join(name(*number))).unwrap();
            assert!(bytes == content.bytes(), "file {number}");
        }
    }
}

fn bytes_below(place: &Path) -> u64 {
    let mut bytes = 0;
    for entry in fs::read_dir(place).unwrap() {
        let entry = entry.unwrap();
        let attributes = entry.metadata().unwrap();
        bytes += match attributes.is_dir() {
            true => bytes_below(&entry.path()),
            false => attributes.len(),
        };
    }
    bytes
}

/// Runs the whole test.
///
/// # Panics
/// If a command fails, or a file differs.
#[must_use]
pub fn run(plan: SpacePlan) -> SpaceReport {
    require_fuse();
    let mut cluster = Cluster::prepare();
    cluster.start();
    let point = cluster.mount_point();
    let _ = mount_in_background(&cluster, &point, &[]);
    for number in 0..32 {
        fs::create_dir(point.join(format!("d{number}"))).unwrap();
    }
    let mut run = SpaceRun {
        cluster,
        point: point.clone(),
        random: Random::new(plan.seed),
        files: BTreeMap::new(),
        removed: Vec::new(),
        next: 0,
        report: SpaceReport::default(),
    };
    let began = Instant::now();
    while run.report.written_bytes < plan.bytes {
        run.create();
    }
    std::thread::sleep(TRASH_AGE.saturating_sub(began.elapsed()));
    for _ in 0..plan.operations {
        run.operation(plan.bytes / 2);
    }
    run.report.write_seconds = began.elapsed().as_secs_f64();
    run.restore();
    let unmount = run.cluster.quorumfs().args(["umount"]).args([&point]);
    unmount.run().ok();
    run.report.stored_before = run.stored();
    // A second after the last reference went.
    std::thread::sleep(Duration::from_secs(2));
    let reconcile = ["reconcile", "--once", "--grace", "1s", "--only"];
    let only = |task| [reconcile.as_slice(), &[task]].concat();
    for task in ["completion", "compaction", "backup"] {
        run.cluster.quorumfs().run_with(only(task)).ok();
    }
    std::thread::sleep(Duration::from_secs(2));
    let (began, before) = (Instant::now(), run.cluster.committed());
    let line = run.records("collection", &only("collection")).remove(0);
    eprintln!("{line}");
    run.report.collect_seconds = began.elapsed().as_secs_f64();
    run.report.collect_batches = run.cluster.committed() - before;
    run.report.collected = line["objects"].as_u64().unwrap();
    let _ = mount_in_background(&run.cluster, &point, &[]);
    run.compare();
    let unmount = run.cluster.quorumfs().args(["umount"]).args([&point]);
    unmount.run().ok();
    let live = run.files.values().map(|it| it.length as u64).sum::<u64>();
    run.report.files = run.files.len();
    run.report.live_bytes = live;
    run.report.stored_bytes = run.stored();
    run.report.ratio = run.report.stored_bytes as f64 / (live as f64 * SPREAD);
    run.report
}
