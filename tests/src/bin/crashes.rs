//! `crashes`: kills real replicas under load, takes their disks, replaces them, again and again,
//! and checks that nothing was lost.
//!
//! ```text
//! cargo run --release -p quorumfs-tests --bin crashes -- --kills 100 --wipes 10 --swaps 10
//! ```
//!
//! It prints one JSON line with the times of recovery, and ends with exit code 0 only if every
//! counter is what was acknowledged. The suite `crashes` does the same with a few of each.

use clap::{Parser, Subcommand};
use quorumfs_tests::crashes::{replica, run};
use std::path::PathBuf;

/// Kills replicas under load and checks what is left.
#[derive(Parser)]
struct CrashArguments {
    /// How often something is killed: one replica, or all of them.
    #[arg(long, default_value_t = 100)]
    kills: u32,
    /// Every so many times it is all of them at once.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    all_every: u32,
    /// How many disks are taken away after that.
    #[arg(long, default_value_t = 1)]
    wipes: u32,
    /// How many replicas are replaced by new ones after that.
    #[arg(long, default_value_t = 1)]
    swaps: u32,
    /// How many journals are damaged after that.
    #[arg(long, default_value_t = 1)]
    damages: u32,
    /// How many disks are put back to older copies of them after that.
    #[arg(long, default_value_t = 1)]
    rollbacks: u32,
    /// Clients.
    #[arg(long, default_value_t = 4)]
    clients: usize,
    /// Counters of each, counted up side by side.
    #[arg(long, default_value_t = 8)]
    hands: usize,
    /// Decides who is killed when.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the replicas' disks lie for the time of the run; a temporary directory by default.
    #[arg(long)]
    directory: Option<PathBuf>,
    #[command(subcommand)]
    role: Option<CrashCommand>,
}

#[derive(Subcommand)]
enum CrashCommand {
    /// Is one replica.
    #[command(hide = true)]
    Replica { file: PathBuf },
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let arguments = CrashArguments::parse();
    if let Some(CrashCommand::Replica { file }) = &arguments.role {
        return replica::run(file).await;
    }
    let directory = match &arguments.directory {
        Some(directory) => tempfile::tempdir_in(directory)?,
        None => tempfile::tempdir()?,
    };
    let plan = run::CrashPlan {
        kills: arguments.kills,
        all_every: arguments.all_every,
        wipes: arguments.wipes,
        swaps: arguments.swaps,
        damages: arguments.damages,
        rollbacks: arguments.rollbacks,
        clients: arguments.clients,
        hands: arguments.hands,
        seed: arguments.seed,
    };
    let report = run::run(plan, &std::env::current_exe()?, directory.path()).await?;
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}
