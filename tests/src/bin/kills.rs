//! `kills`: kills a real mount of tier `local` under load, sometimes with replicas, sometimes while
//! no cloud accepts writes, and checks each time that nothing synced is lost.
//!
//! ```text
//! cargo run --release -p quorumfs-tests --bin kills -- --kills 200
//! ```
//!
//! It prints one JSON line, and ends with exit code 0 only if every byte is correct, at the end
//! with nothing left on this machine. It mounts, and needs what a mount needs. The suite `kills`
//! does the same a few times.

use clap::Parser;
use quorumfs_tests::kills::{KillPlan, run};

/// Kills a mount under load and checks what is left.
#[derive(Parser)]
struct KillArguments {
    /// How often the mount is killed.
    #[arg(long, default_value_t = 200)]
    kills: u32,
    /// How many concurrent writers.
    #[arg(long, default_value_t = 3)]
    writers: usize,
    /// Decides what is written, and what is killed when.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> anyhow::Result<()> {
    let arguments = KillArguments::parse();
    let plan = KillPlan {
        kills: arguments.kills,
        writers: arguments.writers,
        seed: arguments.seed,
    };
    println!("{}", serde_json::to_string(&run(plan))?);
    Ok(())
}
