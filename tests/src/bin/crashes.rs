//! `crashes`: repeatedly kills real replicas under load, wipes their disks and replaces them, and
//! checks that nothing was lost.
//!
//! ```text
//! cargo run --release -p quorumfs-tests --bin crashes -- --kills 100 --wipes 10 --swaps 10
//! ```
//!
//! It prints one JSON line with the recovery times, and ends with exit code 0 only if every counter
//! has its acknowledged value. The suite `crashes` does the same with a few of each.

use clap::{Parser, Subcommand};
use quorumfs_tests::crashes::{replica, run};
use std::path::PathBuf;

/// Kills replicas under load and checks what is left.
#[derive(Parser)]
struct CrashArguments {
    /// How many kills: of one replica, or of all.
    #[arg(long, default_value_t = 100)]
    kills: u32,
    /// Every how many kills all replicas are killed at once.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    all_every: u32,
    /// How many disks are wiped after that.
    #[arg(long, default_value_t = 1)]
    wipes: u32,
    /// How many replicas are replaced by new ones after that.
    #[arg(long, default_value_t = 1)]
    swaps: u32,
    /// How many journals are damaged after that.
    #[arg(long, default_value_t = 1)]
    damages: u32,
    /// How many disks are then put back to older copies.
    #[arg(long, default_value_t = 1)]
    rollbacks: u32,
    /// How many clients.
    #[arg(long, default_value_t = 4)]
    clients: usize,
    /// Counters of each client, counted up concurrently.
    #[arg(long, default_value_t = 8)]
    hands: usize,
    /// Decides which replica is killed when.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where to put the replicas' disks during the run; a temporary directory by default.
    #[arg(long)]
    directory: Option<PathBuf>,
    #[command(subcommand)]
    role: Option<CrashCommand>,
}

#[derive(Subcommand)]
enum CrashCommand {
    /// Runs one replica.
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
