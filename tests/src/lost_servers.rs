//! All metadata servers of a volume are lost, and its clouds bring it back.
//!
//! ```text
//! tree ─► put ─► backup ─► a hundredth more ─► backup ─► fire ─► one cloud lies, another is gone
//!                                                                    └► recover ─► tree compared
//! ```
//!
//! The end-to-end suite of this name uses the same parts with few files, and attacks them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use crate::harness::{Cluster, Quorumfs, noise};
use serde::Serialize;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// The result of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RecoveryReport {
    /// Files that were there at the last backup, and compared after the recovery.
    pub files: usize,
    /// Their bytes.
    pub file_bytes: u64,
    /// Seconds in which they were copied in.
    pub put_seconds: f64,
    /// The first backup, of all rows.
    pub first: Value,
    /// Its seconds.
    pub first_seconds: f64,
    /// The second one, of what had changed.
    pub second: Value,
    /// Its seconds.
    pub second_seconds: f64,
    /// The plain bytes of the second one, in those that the new files take in the first one.
    pub change_ratio: f64,
    /// Seconds from the command to the volume that is recovered.
    pub recover_seconds: f64,
    /// Seconds in which all files were copied out and compared.
    pub compare_seconds: f64,
}

const GROUPS: usize = 100;
/// The longest time for copying everything in, or out.
const COPIED_WITHIN: Duration = Duration::from_secs(1200);

/// Mostly small files, and a few of every size.
fn content(number: usize) -> Vec<u8> {
    let length = match number % 1000 {
        0 => 700_000,
        1..=20 => 60_000,
        _ => [10, 300, 900, 1_500, 5_000][number % 5],
    };
    noise(number as u64 + 1, length)
}

fn place(number: usize) -> PathBuf {
    PathBuf::from(format!("d{}", number % GROUPS)).join(number.to_string())
}

fn write_tree(tree: &Path, numbers: Range<usize>) -> u64 {
    let mut bytes = 0;
    for group in 0..GROUPS {
        fs::create_dir_all(tree.join(format!("d{group}"))).unwrap();
    }
    for number in numbers {
        let content = content(number);
        bytes += content.len() as u64;
        fs::write(tree.join(place(number)), content).unwrap();
    }
    bytes
}

fn put(cluster: &Cluster, tree: &Path) -> f64 {
    let began = Instant::now();
    let put = cluster.quorumfs().args(["put"]).args([tree]).args(["/"]);
    put.start().wait_for(COPIED_WITHIN).ok();
    began.elapsed().as_secs_f64()
}

/// Takes a backup of the metadata.
///
/// # Panics
/// If the command fails.
#[must_use]
pub fn backup(cluster: &Cluster) -> Value {
    let backup = cluster.quorumfs().run_with(["volume", "backup"]).ok();
    let line = backup.records("backup").remove(0);
    println!("{line}");
    line
}

/// All objects of a cloud.
///
/// # Panics
/// If its directory cannot be read.
#[must_use]
pub fn objects(cluster: &Cluster, cloud: usize) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for group in fs::read_dir(cluster.cloud(cloud)).unwrap() {
        let group = group.unwrap().path();
        if group.is_dir() && group.file_name().unwrap().len() == 2 {
            found.extend(fs::read_dir(group).unwrap().map(|it| it.unwrap().path()));
        }
    }
    found.sort();
    found
}

/// A cloud that gives other bytes than it was given.
///
/// # Panics
/// If its objects cannot be changed.
pub fn make_lie(cluster: &Cluster, cloud: usize) {
    for object in objects(cluster, cloud) {
        let mut bytes = fs::read(&object).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&object, bytes).unwrap();
    }
}

/// Prepares new replicas and recovers the volume into the place of its state directory.
///
/// # Panics
/// If the command fails.
#[must_use]
pub fn recover(cluster: &mut Cluster, kit: &Path) -> Value {
    let numbers: Vec<_> = (0..4).map(|_| cluster.prepare_another()).collect();
    let mut recover = cluster.quorumfs().args(["volume", "recover", "--kit"]);
    recover = recover.args([kit]);
    for number in &numbers {
        recover = recover.args(["--new-replica", cluster.replica_argument(*number)]);
    }
    let log = fs::File::create(cluster.directory().join("recover.log")).unwrap();
    let mut command = recover.command();
    let mut process = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
    let mut said = BufReader::new(process.stdout.take().unwrap());
    let mut lines = String::new();
    while !lines.contains("\"type\":\"prepared\"") {
        let log = || fs::read_to_string(cluster.directory().join("recover.log"));
        assert!(
            said.read_line(&mut lines).unwrap() > 0,
            "{lines} {:?}",
            log()
        );
    }
    for number in numbers {
        cluster.start_with(number, &[]);
    }
    said.read_to_string(&mut lines).unwrap();
    assert!(process.wait().unwrap().success(), "{lines}");
    println!("{lines}");
    let last = lines.lines().last().unwrap();
    serde_json::from_str(last).unwrap()
}

/// Every file has its content, and nothing else is there.
fn compare(on: Quorumfs, numbers: Range<usize>) {
    let directory = tempfile::tempdir().unwrap();
    let into = directory.path().join("tree");
    let get = on.args(["get", "/tree"]).args([&into]);
    get.start().wait_for(COPIED_WITHIN).ok();
    let groups = fs::read_dir(&into).unwrap();
    let found = groups.map(|group| fs::read_dir(group.unwrap().path()).unwrap().count());
    assert_eq!(found.sum::<usize>(), numbers.len());
    for number in numbers {
        let found = fs::read(into.join(place(number))).unwrap();
        assert!(found == content(number), "file {number}");
    }
}

/// Runs the whole test with so many files.
///
/// # Panics
/// If a command fails, or a file differs.
#[must_use]
pub fn run(files: usize) -> RecoveryReport {
    let mut cluster = Cluster::prepare();
    cluster.start();
    let (tree, before) = (cluster.directory().join("tree"), files - files / 100);
    let mut report = RecoveryReport {
        files,
        file_bytes: write_tree(&tree, 0..before),
        ..RecoveryReport::default()
    };
    report.put_seconds = put(&cluster, &tree);
    let timed = |cluster: &Cluster| {
        let began = Instant::now();
        (backup(cluster), began.elapsed().as_secs_f64())
    };
    (report.first, report.first_seconds) = timed(&cluster);
    report.file_bytes += write_tree(&tree, before..files);
    report.put_seconds += put(&cluster, &tree);
    (report.second, report.second_seconds) = timed(&cluster);
    let bytes = |backup: &Value| backup["bytes"].as_f64().unwrap();
    let share = (files - before) as f64 / before as f64;
    report.change_ratio = bytes(&report.second) / (bytes(&report.first) * share);
    fs::remove_dir_all(&tree).unwrap();

    let kit = cluster.directory().join("kit");
    fs::rename(cluster.volume().join("recovery-kit.txt"), &kit).unwrap();
    cluster.stop();
    fs::remove_dir_all(cluster.volume()).unwrap();
    make_lie(&cluster, 0);
    fs::remove_dir_all(cluster.cloud(1)).unwrap();
    let began = Instant::now();
    let recovered = recover(&mut cluster, &kit);
    assert_eq!(recovered["type"], "recovered", "{recovered}");
    report.recover_seconds = began.elapsed().as_secs_f64();
    let began = Instant::now();
    compare(cluster.quorumfs(), 0..files);
    report.compare_seconds = began.elapsed().as_secs_f64();
    report
}
