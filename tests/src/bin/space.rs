//! `space`: writes, overwrites, renames over and removes in a real mount, reconciles, and compares
//! what the clouds hold with what the files need.
//!
//! ```text
//! cargo run --release -p quorumfs-tests --bin space -- --mib 2048 --operations 20000
//! ```
//!
//! It prints one JSON line. It ends with exit code 0 only if every file has its content, those from
//! the trash too, and the clouds hold at most 1.1 times what the files need. It needs what a mount
//! needs.

use clap::Parser;
use quorumfs_tests::space::{SpacePlan, run};
use std::process::ExitCode;

/// The most that the clouds may hold, in what the files need.
const RATIO_MAX: f64 = 1.1;

/// Compares what the clouds hold with what the files need.
#[derive(Parser)]
struct SpaceArguments {
    /// MiB that are written before anything is removed.
    #[arg(long, default_value_t = 2048)]
    mib: u64,
    /// Operations after that.
    #[arg(long, default_value_t = 20_000)]
    operations: u64,
    /// Decides what they are.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = SpaceArguments::parse();
    let report = run(SpacePlan {
        bytes: arguments.mib << 20,
        operations: arguments.operations,
        seed: arguments.seed,
    });
    println!("{}", serde_json::to_string(&report)?);
    Ok(match report.ratio <= RATIO_MAX {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}
