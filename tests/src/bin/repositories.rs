//! `repositories`: git at work on a large repository in a real mount of tier `local`, beside the
//! same on the local disk.
//!
//! ```text
//! cargo run --release -p quorumfs-tests --bin repositories -- --files 30000 --commits 400
//! ```
//!
//! It prints one JSON line with what each step took in both places, and ends with exit code 0 only
//! if both always said the same. It mounts, and needs what that takes, and git.

use clap::Parser;
use quorumfs_tests::repositories::{RepositoryPlan, run};

/// git at work in a mount.
#[derive(Parser)]
struct RepositoryArguments {
    /// Files of the newest commit, more or less.
    #[arg(long, default_value_t = 30_000)]
    files: usize,
    /// Commits.
    #[arg(long, default_value_t = 400)]
    commits: u32,
    /// Decides what they are.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> anyhow::Result<()> {
    let arguments = RepositoryArguments::parse();
    let plan = RepositoryPlan {
        files: arguments.files,
        commits: arguments.commits,
        seed: arguments.seed,
    };
    println!("{}", serde_json::to_string(&run(plan))?);
    Ok(())
}
