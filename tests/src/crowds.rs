//! A directory with very many entries: made, listed, changed, queried and removed in a mount, and
//! the memory and time that this takes.
//!
//! The kernel serialises creations in a directory, so most entries are copied in with `quorumfs
//! put`, without the mount; `put` has hundreds under way. The first and the last entries are made
//! in the mount.
//!
//! What has to hold:
//! * A listing shows every entry once, whether anything was cached or not.
//! * An operation costs the same as in a smaller directory; the two are timed alternately. The
//!   smaller one is too large to be listed whole for a single name, as directories of a few hundred
//!   entries are.
//! * The mount stays within its memory setting, and the replicas within a bound that does not
//!   depend on the number of entries.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod compared;

use crate::harness::{
    Cluster, OVERHEAD_MIB, Reaped, drop_caches, mount_in_background, peak_mib, require_fuse,
};
use rustix::process::Pid;
use serde::Serialize;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

pub use compared::Compared;

/// The memory setting of the mount.
const MEMORY_MIB: u32 = 256;
/// No replica needs more than this, however much it stores on disk.
const REPLICA_MIB_MAX: u64 = 512;

/// Entries of the directory that the large one is compared with: too many for a single answer.
pub const SMALLER: u32 = 2000;

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct CrowdPlan {
    /// How many entries.
    pub entries: u32,
    /// How many of them are made and removed in the mount; the others are made with `put` and
    /// removed with `rm`.
    pub in_the_mount: u32,
    /// How many operations of each kind are timed.
    pub timed: u32,
}

/// The result of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CrowdReport {
    /// How many entries there were.
    pub entries: u32,
    /// Made in the mount, in entries a second: the first ones, the last ones.
    pub made_per_second: (f64, f64),
    /// Copied in with `put`, in entries a second.
    pub put_per_second: f64,
    /// Peak memory of `put`, in MiB.
    pub put_mib: u64,
    /// Names listed per second, as `ls -f` does: with a warm cache, and right after mounting.
    pub listed_per_second: (f64, f64),
    /// The same with attributes, as `find -ls` does.
    pub looked_at_per_second: (f64, f64),
    /// Durations of operations there and in a directory of [`SMALLER`] entries, in microseconds.
    pub compared: Vec<Compared>,
    /// Removed in the mount, in entries a second.
    pub removed_per_second: f64,
    /// Removed with `rm --recursive`, in entries a second.
    pub rm_per_second: f64,
    /// Peak memory of `rm`, in MiB.
    pub rm_mib: u64,
    /// Peak memory of the mount, in MiB, over all of its processes.
    pub mount_mib: u64,
    /// Peak memory of any replica, in MiB.
    pub replica_mib: u64,
}

struct CrowdRun {
    cluster: Cluster,
    point: PathBuf,
    mounted: Pid,
    plan: CrowdPlan,
    report: CrowdReport,
}

/// Runs the whole test.
///
/// # Panics
/// If a check fails.
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
    run.report.looked_at_per_second.0 = run.list_with_attributes();
    run.mount_again();
    run.report.listed_per_second.1 = run.list();
    run.mount_again();
    run.report.looked_at_per_second.1 = run.list_with_attributes();
    run.put("smaller", 0, SMALLER);
    let smaller = run.point.join("smaller");
    run.report.compared = compared::compare(&run.crowd(), &smaller, plan.timed);
    run.command(&["rm", "--recursive", "/smaller"]);
    run.remove();
    run.measure();
    let report = run.report.clone();
    run.end();
    assert!(
        report.mount_mib <= u64::from(MEMORY_MIB) + OVERHEAD_MIB,
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

/// The rate of `count` events since then, per second.
fn per_second(count: u32, began: Instant) -> f64 {
    f64::from(count) / began.elapsed().as_secs_f64()
}

impl CrowdRun {
    fn crowd(&self) -> PathBuf {
        self.point.join("crowd")
    }

    /// Applies `work` to the entries `from..to` in the mount.
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

    /// Copies the entries `from..to` into a directory, which may exist already.
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

    /// Runs a command to its end, however long that takes; returns its time in seconds and its
    /// memory.
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

    /// Lists the whole directory: each entry has to be there once.
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

    fn list_with_attributes(&self) -> f64 {
        self.seen(|entry| {
            let found = entry.metadata().unwrap();
            assert!(found.is_file() && found.len() == 0, "{entry:?}");
        })
    }

    /// A removed entry is gone, both by name and from a listing.
    fn remove(&mut self) {
        let (entries, removed) = (self.plan.entries, self.plan.in_the_mount);
        let remove = |path: &Path| fs::remove_file(path).unwrap();
        self.report.removed_per_second = self.each(0, removed, remove);
        assert!(!self.crowd().join(name(0)).exists());
        let (took, peak) = self.command(&["rm", "--recursive", "/crowd"]);
        self.report.rm_per_second = f64::from(entries - removed) / took;
        self.report.rm_mib = peak;
        // A change made without the mount becomes visible after a moment.
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
