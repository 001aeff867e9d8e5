//! `repositories`: runs git on a large repository in a real mount of tier `local`, and does the
//! same on the local disk.
//!
//! ```text
//! cargo run --release -p quorumfs-tests --bin repositories -- --files 30000 --commits 400
//! ```
//!
//! It prints one JSON line with the duration of each step in both places, and ends with exit code 0
//! only if both always gave the same output. It needs git, and what a mount needs.

use clap::Parser;
use quorumfs_tests::repositories::{RepositoryPlan, run};

/// Runs git in a mount.
#[derive(Parser)]
struct RepositoryArguments {
    /// Files of the newest commit, approximately.
    #[arg(long, default_value_t = 30_000)]
    files: usize,
    /// How many commits.
    #[arg(long, default_value_t = 400)]
    commits: u32,
    /// Decides their content.
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
