//! The command line of `quorumfs bench`.

use crate::configuration::CompressionSetting;
use clap::{Args, Subcommand};
use quorumfs_gateway::blocks::Preference;
use std::path::PathBuf;
use std::time::Duration;

/// The measurements.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Ordering: replica processes that run a service that does nothing, over TLS on loopback
    Smr(BenchSmrArguments),
    /// Ordering under attack: floods, bad signatures, Byzantine leaders
    SmrAttacks(BenchAttacksArguments),
    /// The parts of ordering, each alone: the core of a replica, signatures, a connection
    SmrParts(BenchPartsArguments),
    /// Sealing and opening of blocks on one core, compared with the primitives inside
    Seal(BenchSealArguments),
    /// Blocks and small files over clouds of stated latency and bandwidth
    Data(BenchDataArguments),
    /// The whole file system through the kernel, compared with the best that FUSE allows
    Fs(BenchFsArguments),
    /// One replica of a measurement
    #[command(hide = true)]
    SmrReplica,
}

/// `quorumfs bench seal`
#[derive(Debug, Clone, Args)]
pub(crate) struct BenchSealArguments {
    /// Rounds; the medians count
    #[arg(long, value_name = "NUMBER", default_value_t = 400,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) rounds: u32,
    /// KiB of a block
    #[arg(long, value_name = "KIB", default_value_t = 4096,
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) block_kib: u32,
    /// Clouds, how many of them may be faulty, and data shards
    #[arg(long, value_name = "N,F,K", default_value = "4,1,2")]
    pub(crate) policy: ShardCounts,
    /// Compress before sealing
    #[arg(long, value_enum, default_value = "off")]
    pub(crate) compression: CompressionSetting,
    /// How much of each segment of the block is zeros; the rest is noise
    #[arg(long, value_name = "PERCENT", default_value_t = 0,
          value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) zeros: u8,
}

/// `quorumfs bench data`
#[derive(Debug, Clone, Args)]
pub(crate) struct BenchDataArguments {
    /// Clouds, how many of them may be faulty, and data shards
    #[arg(long, value_name = "N,F,K", default_value = "4,1,2")]
    pub(crate) policy: ShardCounts,
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

/// `quorumfs bench fs`
#[derive(Debug, Clone, Args)]
pub(crate) struct BenchFsArguments {
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
    /// Where to make the cluster, on the disk to measure (default: the directory for temporary
    /// files)
    #[arg(long, value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
}

/// `quorumfs bench smr-parts`
#[derive(Debug, Clone, Args)]
pub(crate) struct BenchPartsArguments {
    /// Total duration in seconds
    #[arg(long, value_name = "S", default_value_t = 6,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) seconds: u64,
}

/// `quorumfs bench smr`
#[derive(Debug, Clone, Args)]
pub(crate) struct BenchSmrArguments {
    /// How many replicas may fail in any way while the cluster stays live
    #[arg(long = "u", value_name = "U", default_value_t = 1)]
    pub(crate) up: u16,
    /// How many replicas may lie while answers stay right
    #[arg(long = "r", value_name = "R", default_value_t = 1)]
    pub(crate) right: u16,
    /// Clients, each with a session and connections of its own
    #[arg(long, value_name = "NUMBER", default_value_t = 16,
          value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) clients: u16,
    /// Operations that each client has in flight
    #[arg(long, value_name = "NUMBER", default_value_t = 50,
          value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) in_flight: u16,
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
    /// When a record counts as durable: strict (fdatasync), os, none
    #[arg(long, value_name = "MODE", default_value = "strict")]
    pub(crate) durability: String,
    /// Whether a client's waiting operations share one signature; otherwise each needs a lane
    #[arg(long, value_name = "on|off", default_value = "on", value_parser = switch,
          action = clap::ArgAction::Set)]
    pub(crate) bundling: bool,
    /// How many of a hundred operations are linearizable unordered reads
    #[arg(long, value_name = "PERCENT", default_value_t = 0,
          value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) reads: u8,
    /// Seconds of warm-up, not measured
    #[arg(long, value_name = "S", default_value_t = 2)]
    pub(crate) warm_up: u64,
    /// Seconds to measure
    #[arg(long, value_name = "S", default_value_t = 10,
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds: u64,
    /// Make the clients work and rest in turns: so many milliseconds each on average, from zero to
    /// twice that
    #[arg(long, value_name = "WORK/REST", value_parser = bursts)]
    pub(crate) bursts: Option<Bursts>,
    /// Where to put the replicas' disks meanwhile (default: the directory for temporary files)
    #[arg(long, value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
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

/// `quorumfs bench smr-attacks`
#[derive(Debug, Clone, Args)]
pub(crate) struct BenchAttacksArguments {
    /// Only these attacks
    #[arg(value_name = "ATTACK")]
    pub(crate) only: Vec<String>,
    /// Correct clients, each with a session and connections of its own
    #[arg(long, value_name = "NUMBER", default_value_t = 16,
          value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) clients: u16,
    /// Operations that each client has in flight
    #[arg(long, value_name = "NUMBER", default_value_t = 50,
          value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) in_flight: u16,
    /// When a record counts as durable: strict (fdatasync), os, none
    #[arg(long, value_name = "MODE", default_value = "none")]
    pub(crate) durability: String,
    /// Seconds of warm-up for each attack, not measured
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub(crate) warm_up: u64,
    /// Seconds to measure for each attack
    #[arg(long, value_name = "S", default_value_t = 5,
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds: u64,
    /// Where to put the replicas' disks meanwhile (default: the directory for temporary files)
    #[arg(long, value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
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
