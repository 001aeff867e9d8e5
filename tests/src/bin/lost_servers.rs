//! `lost_servers`: copies files into a volume, backs its metadata up, deletes all replicas and the
//! owner's machine, and recovers the volume from its clouds, of which one lies and one is gone.
//!
//! ```text
//! cargo run --release -p quorumfs-tests --bin lost_servers -- --files 100000
//! ```
//!
//! It prints one JSON line. It ends with exit code 0 only if every file as of the last backup has
//! its content.

use clap::Parser;
use quorumfs_tests::lost_servers::run;

/// Recovers a volume of many files whose servers are all lost.
#[derive(Parser)]
struct LostServersArguments {
    /// Files.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(100..))]
    files: u32,
}

fn main() -> anyhow::Result<()> {
    let arguments = LostServersArguments::parse();
    let report = run(usize::try_from(arguments.files)?);
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}
