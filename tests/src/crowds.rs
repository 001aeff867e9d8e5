//! A directory with very many entries: made, listed, changed, asked about and removed in a mount,
//! and what that takes of memory and time.
//!
//! The kernel has one creation at a time in a directory, so most entries are copied in beside
//! the mount with `quorumfs put`, which has hundreds under way; the first and the last ones are
//! made
//! in the mount.
//!
//! What has to hold:
//! * A listing shows every entry once, whether anything was cached or not.
//! * An operation costs the same there as in a smaller directory, by turns with which it is timed:
//!   one that is too large to be listed whole for a single name, as those of a few hundred are.
//! * The mount stays within the memory that it is given, and the replicas within a bound that does
//!   not follow from how many entries there are.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod compared;

use crate::harness::{
    BESIDE_MIB, Cluster, Reaped, drop_caches, mount_in_background, peak_mib, require_fuse,
};
use rustix::process::Pid;
use serde::Serialize;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

pub use compared::Compared;

/// Memory that a mount is given here.
const MEMORY_MIB: u32 = 256;
/// More than this no replica needs, however much it keeps on disk.
const REPLICA_MIB_MAX: u64 = 512;

/// Entries of the directory that the large one is compared with: as few as not to fit one answer.
pub const SMALLER: u32 = 2000;

/// What is to happen.
#[derive(Clone, Copy, Debug)]
pub struct CrowdPlan {
    /// How many entries.
    pub entries: u32,
    /// How many of them are made and removed in the mount; the others with `put` and `rm`.
    pub in_the_mount: u32,
    /// How many operations of each kind are timed.
    pub timed: u32,
}

/// What came of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CrowdReport {
    /// How many entries there were.
    pub entries: u32,
    /// Made in the mount, in entries a second: the first ones, the last ones.
    pub made_per_second: (f64, f64),
    /// Copied in with `put`, in entries a second.
    pub put_per_second: f64,
    /// Most memory that `put` had, in MiB.
    pub put_mib: u64,
    /// Names listed, a second, as `ls -f` does: while the mount knows some, and just mounted.
    pub listed_per_second: (f64, f64),
    /// The same with attributes, as `find -ls` does.
    pub looked_at_per_second: (f64, f64),
    /// What operations took there and in a directory of [`SMALLER`] entries, in microseconds.
    pub compared: Vec<Compared>,
    /// Removed in the mount, in entries a second.
    pub removed_per_second: f64,
    /// Removed with `rm --recursive`, in entries a second.
    pub rm_per_second: f64,
    /// Most memory that `rm` had, in MiB.
    pub rm_mib: u64,
    /// Most memory that the mount had, in MiB, over both of its lives.
    pub mount_mib: u64,
    /// Most memory that any replica had, in MiB.
    pub replica_mib: u64,
}

struct CrowdRun {
    cluster: Cluster,
    point: PathBuf,
    mounted: Pid,
    plan: CrowdPlan,
    report: CrowdReport,
}

/// Does all of it.
///
/// # Panics
/// If anything is not as it has to be.
#[must_use]
pub fn run(plan: CrowdPlan) -> CrowdReport {
    require_fuse();
    let mut cluster = Cluster::prepare();
    cluster.configure(&format!("[data]\nmemory_mib = {MEMORY_MIB}\n"));
    cluster.start();
    let point = cluster.mount_point();
    let mut run = CrowdRun {
        mounted: mount_in_background(&cluster, &point, &[]),
        cluster,
        point,
        plan,
        report: CrowdReport {
            entries: plan.entries,
            ..CrowdReport::default()
        },
    };
    run.make();
    run.report.listed_per_second.0 = run.list();
    run.report.looked_at_per_second.0 = run.look();
    run.mount_again();
    run.report.listed_per_second.1 = run.list();
    run.mount_again();
    run.report.looked_at_per_second.1 = run.look();
    run.put("smaller", 0, SMALLER);
    let smaller = run.point.join("smaller");
    run.report.compared = compared::compare(&run.crowd(), &smaller, plan.timed);
    run.command(&["rm", "--recursive", "/smaller"]);
    run.remove();
    run.measure();
    let report = run.report.clone();
    run.end();
    assert!(
        report.mount_mib <= u64::from(MEMORY_MIB) + BESIDE_MIB,
        "the mount took more memory than it was given: {report:?}"
    );
    assert!(
        report.replica_mib <= REPLICA_MIB_MAX,
        "a replica took too much memory: {report:?}"
    );
    report
}

fn name(number: u32) -> String {
    format!("entry-{number:07}")
}

/// So many a second since then.
fn per_second(count: u32, began: Instant) -> f64 {
    f64::from(count) / began.elapsed().as_secs_f64()
}

impl CrowdRun {
    fn crowd(&self) -> PathBuf {
        self.point.join("crowd")
    }

    /// Does something to entries from `from` on, up to `to`, in the mount.
    fn each(&self, from: u32, to: u32, work: impl Fn(&Path)) -> f64 {
        let (crowd, began) = (self.crowd(), Instant::now());
        (from..to).for_each(|number| work(&crowd.join(name(number))));
        per_second(to - from, began)
    }

    fn make(&mut self) {
        fs::create_dir(self.crowd()).unwrap();
        let (entries, half) = (self.plan.entries, self.plan.in_the_mount / 2);
        let make = |path: &Path| drop(File::create_new(path).unwrap());
        let first = self.each(0, half, make);
        let (took, peak) = self.put("crowd", half, entries - half);
        self.report.put_per_second = f64::from(entries - 2 * half) / took;
        self.report.put_mib = peak;
        let last = self.each(entries - half, entries, make);
        self.report.made_per_second = (first, last);
    }

    /// Copies entries from `from` on, up to `to`, into a directory, which may be there already.
    fn put(&self, directory: &str, from: u32, to: u32) -> (f64, u64) {
        let source = self.cluster.directory().join("source").join(directory);
        fs::create_dir_all(&source).unwrap();
        for number in from..to {
            File::create_new(source.join(name(number))).unwrap();
        }
        let done = self.command(&["put", source.to_str().unwrap(), "/"]);
        fs::remove_dir_all(&source).unwrap();
        done
    }

    /// Runs a command to its end, however long that takes; its time in seconds and its memory.
    fn command(&self, arguments: &[&str]) -> (f64, u64) {
        let mut command = self.cluster.quorumfs().args(arguments).command();
        let began = Instant::now();
        let mut child = Reaped(command.stdout(Stdio::null()).spawn().unwrap());
        let mut peak = 0;
        let status = loop {
            peak = peak.max(peak_mib(child.0.id()).unwrap_or_default());
            if let Some(status) = child.0.try_wait().unwrap() {
                break status;
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        assert!(status.success(), "{arguments:?}: {status}");
        (began.elapsed().as_secs_f64(), peak)
    }

    /// Lists all of it: each entry has to be there once.
    fn seen(&self, mut look: impl FnMut(&fs::DirEntry)) -> f64 {
        let began = Instant::now();
        let mut seen = vec![false; self.plan.entries as usize];
        for entry in fs::read_dir(self.crowd()).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let number: usize = name.strip_prefix("entry-").unwrap().parse().unwrap();
            assert!(!seen[number], "{name} is listed twice");
            seen[number] = true;
            look(&entry);
        }
        let missed = seen.iter().filter(|seen| !**seen).count();
        assert_eq!(missed, 0, "entries that are not listed");
        per_second(self.plan.entries, began)
    }

    fn list(&self) -> f64 {
        self.seen(|_| {})
    }

    fn look(&self) -> f64 {
        self.seen(|entry| {
            let found = entry.metadata().unwrap();
            assert!(found.is_file() && found.len() == 0, "{entry:?}");
        })
    }

    /// What is removed is there no more, neither by name nor in a listing.
    fn remove(&mut self) {
        let (entries, removed) = (self.plan.entries, self.plan.in_the_mount);
        let remove = |path: &Path| fs::remove_file(path).unwrap();
        self.report.removed_per_second = self.each(0, removed, remove);
        assert!(!self.crowd().join(name(0)).exists());
        let (took, peak) = self.command(&["rm", "--recursive", "/crowd"]);
        self.report.rm_per_second = f64::from(entries - removed) / took;
        self.report.rm_mib = peak;
        // What was changed beside the mount is seen after a moment.
        std::thread::sleep(Duration::from_secs(3));
        assert_eq!(fs::read_dir(&self.point).unwrap().count(), 0);
    }

    fn measure(&mut self) {
        let process = u32::try_from(self.mounted.as_raw_pid()).unwrap();
        let mount = peak_mib(process).expect("it is mounted");
        self.report.mount_mib = self.report.mount_mib.max(mount);
        let replicas = self.cluster.processes().filter_map(peak_mib).max();
        self.report.replica_mib = self.report.replica_mib.max(replicas.unwrap());
    }

    fn mount_again(&mut self) {
        self.measure();
        self.cluster.quorumfs().args(["umount"]).run().ok();
        drop_caches();
        self.mounted = mount_in_background(&self.cluster, &self.point, &[]);
    }

    fn end(mut self) {
        self.cluster.quorumfs().args(["umount"]).run().ok();
        self.cluster.stop();
    }
}
