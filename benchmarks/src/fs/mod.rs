//! `quorumfs-bench fs`: the whole file system through the kernel, compared with the best that FUSE
//! allows.
//!
//! It starts a cluster of its own with the program `quorumfs`, four replicas and four directories
//! that stand for clouds, mounts it, and mounts a file system that stores only names with the same
//! options ([`null`]). Each workload runs on both in turn, round by round, so that other load on
//! the machine affects both; medians are compared. Workloads that need stored content are compared
//! with a bare loop of the same work, or with the local disk:
//!
//! | Workload | Against |
//! |---|---|
//! | reading in order and at random, from the gateway's memory | the null file system |
//! | reading in order from the disk cache | a loop that reads a local file and decrypts |
//! | writing in order, synced once | a loop that encrypts, writes to a local file, and syncs |
//! | small files made, read, deleted; `tar x` | the null file system |
//! | a tree listed with attributes, again; its directories opened | the null file system |
//! | `git status`, warm | the same repository on the local disk |
//! | one directory made, the median | a budget: 1 ms and three times the machine's fdatasync |
//!
//! Our mount is of tier `local`. Large files are read past the kernel's cache. A ratio is always a
//! fraction of the speed that it is compared with: more is better.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`world`] | the cluster and the two mounts |
//! | [`program`] | the program `quorumfs`: its commands, and the processes that it serves with |
//! | [`null`], [`null_tree`] | the file system that stores only names and lengths |
//! | [`signals`] | the signals that ask for the end |
//! | [`content`] | reading and writing of large files |
//! | [`from_disk`] | reading from the disk cache |
//! | [`trees`] | many small files: made, unpacked, listed, examined by git |
//! | [`latency`] | one operation after the other |

mod content;
mod from_disk;
mod latency;
mod null;
mod null_tree;
mod program;
mod signals;
mod trees;
mod world;

use crate::arguments::FsArguments;
use crate::failure::{BenchFailure, BenchResult};
use crate::median::median;
use crate::output::Printer;
use program::Program;
use serde::Serialize;
use signals::Signals;
use std::path::PathBuf;
use world::MountedCluster;

/// How often each workload runs on each side, after a first round that does not count.
const ROUNDS: usize = 3;

/// A speed in MiB/s, and the speed that it is compared with.
#[derive(Debug, Clone, Copy, Serialize)]
struct Throughput {
    mib_per_second: f64,
    against_mib_per_second: f64,
    ratio: f64,
}

impl Throughput {
    fn of((ours, theirs): (f64, f64)) -> Self {
        Self {
            mib_per_second: ours,
            against_mib_per_second: theirs,
            ratio: ours / theirs,
        }
    }
}

/// A speed in files or operations per second, and the speed that it is compared with.
#[derive(Debug, Clone, Copy, Serialize)]
struct Rate {
    files_per_second: f64,
    against_files_per_second: f64,
    ratio: f64,
}

impl Rate {
    fn of((ours, theirs): (f64, f64)) -> Self {
        Self {
            files_per_second: ours,
            against_files_per_second: theirs,
            ratio: ours / theirs,
        }
    }
}

/// One line.
#[derive(Debug, Serialize)]
struct FsRecord {
    sequential_read: Throughput,
    /// From the disk cache, past the kernel's memory.
    sequential_read_disk: Throughput,
    /// Blocks of 4 KiB, one at a time.
    random_read: Throughput,
    /// Until all of it is in the journal on this machine's disk.
    sequential_write: Throughput,
    create: Rate,
    read_small: Rate,
    remove: Rate,
    untar: Rate,
    list: Rate,
    /// Opened and closed again, one after the other.
    open_directory: Rate,
    git_status: Rate,
    latency: latency::Latencies,
    /// Of one core, while no requests arrive.
    idle_gateway_percent: f64,
    tier: &'static str,
    size_mib: u64,
    files: u32,
    listed: u32,
}

impl FsRecord {
    fn text(&self) -> String {
        let throughput = |name: &str, it: &Throughput, against: &str| {
            format!(
                "\n  {name:<18} {:9.1} MiB/s    {against} {:.1}: {:.2}",
                it.mib_per_second, it.against_mib_per_second, it.ratio
            )
        };
        let rate = |name: &str, it: &Rate, against: &str| {
            format!(
                "\n  {name:<18} {:9.0} files/s  {against} {:.0}: {:.2}",
                it.files_per_second, it.against_files_per_second, it.ratio
            )
        };
        let (null, bare, disk) = ("null FUSE", "bare loop", "local disk");
        [
            format!(
                "a mount of tier {} over four replicas and four directories",
                self.tier
            ),
            throughput("read in order", &self.sequential_read, null),
            throughput("read from disk", &self.sequential_read_disk, bare),
            throughput("read at random", &self.random_read, null),
            throughput("write in order", &self.sequential_write, bare),
            rate("create 4 KiB", &self.create, null),
            rate("read 4 KiB", &self.read_small, null),
            rate("remove", &self.remove, null),
            rate("tar x", &self.untar, null),
            rate("list, again", &self.list, null),
            rate("open directories", &self.open_directory, null),
            rate("git status, warm", &self.git_status, disk),
            self.latency.text(),
            format!(
                "\n  idle               {:9.2} % of a core in the gateway",
                self.idle_gateway_percent
            ),
        ]
        .concat()
    }
}

/// Runs the command.
pub(crate) async fn run(arguments: &FsArguments, output: Printer) -> BenchResult {
    let mut signals = Signals::listen()?;
    let (place, size_mib) = (arguments.place.clone(), arguments.size_mib);
    let world = blocking(move || MountedCluster::start(&place, size_mib)).await?;
    let outcome = tokio::select! {
        outcome = measure(&world, arguments) => outcome,
        () = signals.next() => Err(BenchFailure::cancelled()),
    };
    let stopped = blocking(move || world.stop()).await;
    let record = outcome?;
    stopped?;
    output.record("fs", &record, FsRecord::text)?;
    Ok(())
}

fn note(text: &str) {
    eprintln!("bench fs: {text}");
}

async fn measure(world: &MountedCluster, arguments: &FsArguments) -> BenchResult<FsRecord> {
    let places = world.places();
    let (size_mib, files, listed) = (arguments.size_mib, arguments.files, arguments.listed);
    let size = size_mib << 20;

    note("large files");
    let at = places.clone();
    let sequential_write = blocking(move || content::write_in_order(&at, size)).await?;
    let at = places.clone();
    let (sequential_read, random_read) = blocking(move || content::read(&at, size)).await?;
    note("the disk cache");
    let at = places.clone();
    let sequential_read_disk = blocking(move || from_disk::read(&at, size)).await?;
    note("small files");
    let at = places.clone();
    let small = blocking(move || trees::small_files(&at, files)).await?;
    note("tar x");
    let at = places.clone();
    let untar = blocking(move || trees::untar(&at, files)).await?;
    note("git status");
    let at = places.clone();
    let git_status = blocking(move || trees::git_status(&at, files)).await?;
    note("a tree listed");
    let at = places.clone();
    let looks = blocking(move || trees::list(&at, listed)).await?;
    note("one operation after the other");
    let latency = blocking(move || latency::measure(&places)).await?;
    note("nothing");
    let idle_gateway_percent = world.idle_percent().await?;
    Ok(FsRecord {
        sequential_read: Throughput::of(sequential_read),
        sequential_read_disk: Throughput::of(sequential_read_disk),
        random_read: Throughput::of(random_read),
        sequential_write: Throughput::of(sequential_write),
        create: Rate::of(small.create),
        read_small: Rate::of(small.read),
        remove: Rate::of(small.remove),
        untar: Rate::of(untar),
        list: Rate::of(looks.list),
        open_directory: Rate::of(looks.open_directory),
        git_status: Rate::of(git_status),
        latency,
        idle_gateway_percent,
        tier: "local",
        size_mib,
        files,
        listed,
    })
}

/// The directories of the workloads.
#[derive(Debug, Clone)]
struct WorkloadPlaces {
    /// The mount.
    ours: PathBuf,
    /// The null file system.
    null: PathBuf,
    /// A directory of the local disk.
    local: PathBuf,
    /// The state directory of the mount.
    state: PathBuf,
    /// The program that serves it.
    program: Program,
}

/// The outcome of `work`, which may block.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> BenchResult<T> + Send + 'static,
) -> BenchResult<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(BenchFailure::new(error.to_string())))
}

/// Medians of a workload on either side, in turns; the first round does not count.
fn in_turns(
    mut ours: impl FnMut(usize) -> BenchResult<f64>,
    mut theirs: impl FnMut(usize) -> BenchResult<f64>,
) -> BenchResult<(f64, f64)> {
    let (mut left, mut right) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let (one, other) = (ours(round)?, theirs(round)?);
        if round > 0 {
            left.push(one);
            right.push(other);
        }
    }
    Ok((median(&mut left), median(&mut right)))
}
