//! The command line and its help.
//!
//! Options of several measurements are in one structure each: [`Place`], [`LoadArguments`],
//! [`PolicyArguments`].

use crate::failure::{BenchResult, failed};
use crate::store::{Engine, Layout};
use clap::{Args, Parser, Subcommand, ValueEnum};
use quorumfs_gateway::blocks::{Compression, Preference};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

/// Measures this machine: ordering, sealing, writing to clouds and reading back, a mount.
#[derive(Debug, Parser)]
#[command(name = "quorumfs-bench", version, max_term_width = 100)]
pub(crate) struct BenchArguments {
    /// The measurement.
    #[command(subcommand)]
    pub(crate) command: BenchCommand,
    /// Print NDJSON: one object a line, each with "v":1 and a "type"
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// What to log to standard error: `info`, `quorumfs_gateway=debug`
    #[arg(
        long,
        global = true,
        value_name = "FILTER",
        env = "QUORUMFS_LOG",
        hide_env_values = true
    )]
    pub(crate) log: Option<String>,
}

/// The measurements.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Ordering: replica processes that run a service that does nothing, over TLS on loopback
    Smr(SmrArguments),
    /// Ordering under attack: floods, bad signatures, Byzantine leaders
    SmrAttacks(AttacksArguments),
    /// The parts of ordering, each alone: the core of a replica, signatures, a connection
    SmrParts(PartsArguments),
    /// Sealing and opening of blocks on one core, compared with the primitives inside
    Seal(SealArguments),
    /// Blocks and small files over clouds of stated latency and bandwidth
    Data(DataArguments),
    /// The whole file system through the kernel, compared with the best that FUSE allows
    Fs(FsArguments),
    /// One ordered operation, compared with the disk's fdatasync: replicas in one process, one line
    /// of JSON
    Order(OrderArguments),
    /// Databases and layouts of leaves, under the metadata's access pattern
    Store(StoreArguments),
    /// One replica of a measurement
    #[command(hide = true)]
    SmrReplica,
}

/// Where a measurement puts its files.
#[derive(Debug, Clone, Args)]
pub(crate) struct Place {
    /// Where to put all files meanwhile, on the disk to measure (default: the directory for
    /// temporary files)
    #[arg(long, value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
}

impl Place {
    /// A new directory there, which is removed when the result is dropped.
    pub(crate) fn make(&self) -> BenchResult<tempfile::TempDir> {
        let base = self.directory.clone().unwrap_or_else(std::env::temp_dir);
        let mut named = tempfile::Builder::new();
        let made = named.prefix("quorumfs-bench-").tempdir_in(&base);
        made.map_err(|error| failed(&format!("make a directory in {}", base.display()), &error))
    }
}

/// How long clients load a cluster of replicas, and with what.
#[derive(Debug, Clone, Args)]
pub(crate) struct LoadArguments {
    /// Correct clients, each with a session and connections of its own
    #[arg(long, value_name = "NUMBER", default_value_t = 16,
          value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) clients: u16,
    /// Operations that each client has in flight
    #[arg(long, value_name = "NUMBER", default_value_t = 50,
          value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) in_flight: u16,
    /// When a record counts as durable: strict (fdatasync), os, none
    #[arg(long, value_name = "MODE", default_value = "strict")]
    pub(crate) durability: String,
    /// Seconds of warm-up of each cluster, not measured
    #[arg(long, value_name = "S", default_value_t = 2)]
    pub(crate) warm_up: u64,
    /// Seconds to measure each cluster
    #[arg(long, value_name = "S", default_value_t = 10,
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds: u64,
    /// The replicas' disks.
    #[command(flatten)]
    pub(crate) place: Place,
}

/// How content is coded.
#[derive(Debug, Clone, Args)]
pub(crate) struct PolicyArguments {
    /// Clouds, how many of them may be faulty, and data shards
    #[arg(long, value_name = "N,F,K", default_value = "4,1,2")]
    pub(crate) policy: ShardCounts,
}

/// Whether content is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CompressionChoice {
    /// It is not.
    Off,
    /// With Zstandard, where that gains something.
    Zstd,
}

impl From<CompressionChoice> for Compression {
    fn from(choice: CompressionChoice) -> Self {
        match choice {
            CompressionChoice::Off => Self::Off,
            CompressionChoice::Zstd => Self::Zstd,
        }
    }
}

/// `quorumfs-bench seal`
#[derive(Debug, Clone, Args)]
pub(crate) struct SealArguments {
    /// Rounds; the medians count
    #[arg(long, value_name = "NUMBER", default_value_t = 400,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) rounds: u32,
    /// KiB of a block
    #[arg(long, value_name = "KIB", default_value_t = 4096,
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) block_kib: u32,
    /// How blocks are coded.
    #[command(flatten)]
    pub(crate) code: PolicyArguments,
    /// Compress before sealing
    #[arg(long, value_enum, default_value = "off")]
    pub(crate) compression: CompressionChoice,
    /// How much of each segment of the block is zeros; the rest is noise
    #[arg(long, value_name = "PERCENT", default_value_t = 0,
          value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) zeros: u8,
}

/// `quorumfs-bench data`
#[derive(Debug, Clone, Args)]
pub(crate) struct DataArguments {
    /// How blocks are coded.
    #[command(flatten)]
    pub(crate) code: PolicyArguments,
    /// Shards to keep of each block (default: all)
    #[arg(long, value_name = "NUMBER")]
    pub(crate) target: Option<u8>,
    /// An empty place for each cloud, in the form of docs/CLOUDS.md (default: directories in a
    /// temporary directory). Objects put there are deleted in the end
    #[arg(long, value_name = "LOCATION")]
    pub(crate) cloud: Vec<String>,
    /// Latency of each cloud, or of all; the default is 30 for each unless there are four clouds
    #[arg(
        long,
        value_name = "MS",
        value_delimiter = ',',
        default_value = "20,30,40,200"
    )]
    pub(crate) latency_ms: Vec<u64>,
    /// Bandwidth of each cloud, or of all, in either direction; 0 is unlimited
    #[arg(long, value_name = "MIB", value_delimiter = ',', default_value = "40")]
    pub(crate) mib_per_second: Vec<u64>,
    /// The price of reading from each cloud, in any unit
    #[arg(long, value_name = "PRICE", value_delimiter = ',', default_value = "0")]
    pub(crate) read_price: Vec<u32>,
    /// Which clouds to prefer where there is a choice: fast or cheap
    #[arg(long, value_name = "fast|cheap", default_value = "fast", value_parser = preference)]
    pub(crate) preference: Preference,
    /// Size of the large file
    #[arg(long, value_name = "MIB", default_value_t = 512,
          value_parser = clap::value_parser!(u64).range(16..=65_536))]
    pub(crate) size_mib: u64,
    /// Memory budget of a mount
    #[arg(long, value_name = "MIB", default_value_t = 768,
          value_parser = clap::value_parser!(u32).range(128..=65_536))]
    pub(crate) memory_mib: u32,
    /// Make this cloud, counted from 0, hang during the work
    #[arg(long, value_name = "CLOUD")]
    pub(crate) hang: Option<usize>,
    /// Small files to write and read
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub(crate) files: u32,
    /// Bytes of a small file
    #[arg(long, value_name = "BYTES", default_value_t = 4096,
          value_parser = clap::value_parser!(u32).range(1..=1 << 22))]
    pub(crate) file_bytes: u32,
    /// Small files at a time
    #[arg(long, value_name = "NUMBER", default_value_t = 512)]
    pub(crate) files_at_once: usize,
    /// Concurrent writers, each of its own blocks, to measure peak memory
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub(crate) writers: u32,
    /// Empty the first cloud in the end, and restore it
    #[arg(long)]
    pub(crate) repair: bool,
}

fn preference(text: &str) -> Result<Preference, String> {
    match text {
        "fast" => Ok(Preference::Fast),
        "cheap" => Ok(Preference::Cheap),
        _ => Err("expected fast or cheap".to_string()),
    }
}

/// n, f and k.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShardCounts(pub(crate) [u8; 3]);

impl std::str::FromStr for ShardCounts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Option<Vec<u8>> = text.split(',').map(|part| part.parse().ok()).collect();
        let counts = numbers.and_then(|numbers| numbers.try_into().ok());
        counts
            .map(Self)
            .ok_or_else(|| "expected three numbers, like 4,1,2".to_string())
    }
}

/// `quorumfs-bench fs`
#[derive(Debug, Clone, Args)]
pub(crate) struct FsArguments {
    /// MiB of the large file; up to a fifth of a mount's memory stays in it
    #[arg(long, value_name = "MIB", default_value_t = 128,
          value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub(crate) size_mib: u64,
    /// Small files of each workload that uses them
    #[arg(long, value_name = "NUMBER", default_value_t = 2000,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) files: u32,
    /// Files of the tree that is listed
    #[arg(long, value_name = "NUMBER", default_value_t = 10_000,
          value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(crate) listed: u32,
    /// The cluster and the mounts.
    #[command(flatten)]
    pub(crate) place: Place,
}

/// `quorumfs-bench order`
#[derive(Debug, Clone, Args)]
pub(crate) struct OrderArguments {
    /// Operations of the lone client
    #[arg(long, value_name = "NUMBER", default_value_t = 500)]
    pub(crate) operations: usize,
    /// Concurrent submitters
    #[arg(long, value_name = "NUMBER", default_value_t = 64)]
    pub(crate) submitters: usize,
    /// For how long they submit, in seconds
    #[arg(long, value_name = "S", default_value_t = 5)]
    pub(crate) seconds: u64,
    /// The replicas' disks.
    #[command(flatten)]
    pub(crate) place: Place,
    /// Fail if a lone operation takes more than its budget
    #[arg(long)]
    pub(crate) check: bool,
}

/// `quorumfs-bench store`
#[derive(Debug, Clone, Args)]
pub(crate) struct StoreArguments {
    /// Rows to load
    #[arg(long, value_name = "NUMBER", default_value_t = 1_000_000)]
    pub(crate) rows: u64,
    /// Row writes after the load
    #[arg(long, value_name = "NUMBER", default_value_t = 200_000)]
    pub(crate) changes: u64,
    /// Databases to measure: redb and, in a program with the feature `fjall`, fjall
    #[arg(long, value_delimiter = ',', default_value = "redb")]
    pub(crate) engines: Vec<Engine>,
    /// How leaves hold rows
    #[arg(long, value_delimiter = ',', default_value = "contained,hashed")]
    pub(crate) layouts: Vec<Layout>,
    /// Bounds of a leaf in bytes
    #[arg(
        long,
        value_name = "BYTES",
        value_delimiter = ',',
        default_value = "2048,4096"
    )]
    pub(crate) leaf_bytes: Vec<u64>,
    /// The databases.
    #[command(flatten)]
    pub(crate) place: Place,
    /// Be the process that is measured
    #[arg(long, hide = true)]
    pub(crate) child: bool,
    /// Be the process that opens what a killed one left
    #[arg(long, hide = true)]
    pub(crate) reopen: bool,
}

/// `quorumfs-bench smr-parts`
#[derive(Debug, Clone, Args)]
pub(crate) struct PartsArguments {
    /// Total duration in seconds
    #[arg(long, value_name = "S", default_value_t = 6,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) seconds: u64,
}

/// `quorumfs-bench smr`
#[derive(Debug, Clone, Args)]
pub(crate) struct SmrArguments {
    /// The clients.
    #[command(flatten)]
    pub(crate) load: LoadArguments,
    /// How many replicas may fail in any way while the cluster stays live
    #[arg(long = "u", value_name = "U", default_value_t = 1)]
    pub(crate) up: u16,
    /// How many replicas may lie while answers stay right
    #[arg(long = "r", value_name = "R", default_value_t = 1)]
    pub(crate) right: u16,
    /// Closed loops of a session; with bundling, operations that wait for one leave together
    #[arg(long, value_name = "NUMBER", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) lanes: u16,
    /// Bytes of an operation
    #[arg(long, value_name = "BYTES", default_value_t = 0,
          value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    pub(crate) request_bytes: u32,
    /// Bytes of a result
    #[arg(long, value_name = "BYTES", default_value_t = 0,
          value_parser = clap::value_parser!(u32).range(0..=32 << 10))]
    pub(crate) reply_bytes: u32,
    /// How votes are authenticated: sig (signed), mac (by their channels), or none (no signatures
    /// at all, to see what they cost)
    #[arg(long, value_name = "sig|mac|none", default_value = "sig", value_parser = authentication)]
    pub(crate) authentication: &'static str,
    /// Whether a client's waiting operations share one signature; otherwise each needs a lane
    #[arg(long, value_name = "on|off", default_value = "on", value_parser = switch,
          action = clap::ArgAction::Set)]
    pub(crate) bundling: bool,
    /// How many of a hundred operations are linearizable unordered reads
    #[arg(long, value_name = "PERCENT", default_value_t = 0,
          value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) reads: u8,
    /// Make the clients work and rest in turns: so many milliseconds each on average, from zero to
    /// twice that
    #[arg(long, value_name = "WORK/REST", value_parser = bursts)]
    pub(crate) bursts: Option<Bursts>,
    /// Also measure the same messages and signatures without the protocol
    #[arg(long)]
    pub(crate) with_bare: bool,
    /// Replicas that are down
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub(crate) down: u16,
    /// Replicas that hang with their sockets open
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub(crate) hang: u16,
    /// Kill the leader so many seconds after the measurement began
    #[arg(long, value_name = "S")]
    pub(crate) kill_leader_after: Option<u64>,
    /// Delay the proposals of the first leader by so many milliseconds
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub(crate) slow_leader: Option<u64>,
    /// Put the replicas far away: the round trip from the clients to each of them in milliseconds,
    /// up to 1000, in the order of their numbers, or one for all. Between two replicas it is the
    /// mean of theirs. Frames alone are delayed; connections are made at once
    #[arg(long, value_name = "MS,...", value_delimiter = ',',
          value_parser = clap::value_parser!(u64).range(0..=1000))]
    pub(crate) rtt_ms: Vec<u64>,
    /// Additional durable writes of 8 KiB that each replica's process makes a second: they show
    /// what a disk takes from everything else on the same processors
    #[arg(long, value_name = "RATE", default_value_t = 0,
          value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub(crate) flushes: u32,
    /// Observers that read everything they receive
    #[arg(long, value_name = "NUMBER", default_value_t = 0,
          value_parser = clap::value_parser!(u16).range(0..=64))]
    pub(crate) observers: u16,
    /// Observers that hardly ever read
    #[arg(long, value_name = "NUMBER", default_value_t = 0,
          value_parser = clap::value_parser!(u16).range(0..=64))]
    pub(crate) slow_observers: u16,
}

/// `quorumfs-bench smr-attacks`
#[derive(Debug, Clone, Args)]
#[command(
    mut_arg("durability", |it| it.default_value("none")),
    mut_arg("warm_up", |it| it.default_value("1")),
    mut_arg("seconds", |it| it.default_value("5"))
)]
pub(crate) struct AttacksArguments {
    /// Only these attacks
    #[arg(value_name = "ATTACK")]
    pub(crate) only: Vec<String>,
    /// The clients.
    #[command(flatten)]
    pub(crate) load: LoadArguments,
}

fn authentication(text: &str) -> Result<&'static str, String> {
    match text {
        "sig" => Ok("sig"),
        "mac" => Ok("mac"),
        "none" => Ok("none"),
        _ => Err("expected sig, mac or none".into()),
    }
}

/// How long clients work and rest, on average.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bursts {
    pub(crate) work: Duration,
    pub(crate) rest: Duration,
}

fn bursts(text: &str) -> Result<Bursts, String> {
    let millis = |text: &str| {
        text.parse()
            .ok()
            .filter(|millis| (1..=60_000).contains(millis))
    };
    let pair = text.split_once('/');
    match pair.map(|(work, rest)| (millis(work), millis(rest))) {
        Some((Some(work), Some(rest))) => Ok(Bursts {
            work: Duration::from_millis(work),
            rest: Duration::from_millis(rest),
        }),
        _ => Err("expected two numbers of milliseconds, each from 1 to 60000, like 300/700".into()),
    }
}

fn switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("expected on or off".into()),
    }
}
