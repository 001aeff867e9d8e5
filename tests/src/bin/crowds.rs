//! `crowds`: a directory with very many entries in a real mount: made, listed, changed, removed.
//!
//! ```text
//! cargo run --release -p quorumfs-tests --bin crowds -- --entries 1000000
//! ```
//!
//! It prints one JSON line with the measurements, and ends with exit code 0 only if every entry was
//! listed once and the mount and the replicas stayed within their memory. It mounts, and needs what
//! a mount needs.

use clap::Parser;
use quorumfs_tests::crowds::{CrowdPlan, run};

/// A directory with very many entries.
#[derive(Parser)]
struct CrowdArguments {
    /// How many entries.
    #[arg(long, default_value_t = 1_000_000)]
    entries: u32,
    /// How many of them are made and removed in the mount; the others are made with `put` and
    /// removed with `rm`.
    #[arg(long, default_value_t = 10_000)]
    in_the_mount: u32,
    /// How many operations of each kind are timed.
    #[arg(long, default_value_t = 300)]
    timed: u32,
}

fn main() -> anyhow::Result<()> {
    let arguments = CrowdArguments::parse();
    let plan = CrowdPlan {
        entries: arguments.entries,
        in_the_mount: arguments.in_the_mount,
        timed: arguments.timed,
    };
    println!("{}", serde_json::to_string(&run(plan))?);
    Ok(())
}
