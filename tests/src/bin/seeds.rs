//! Writes the seeds of a decoder into a folder, as the fuzzer's starting inputs.

use anyhow::{Context, Result};
use clap::Parser;
use quorumfs_tests::decoders::find;
use std::path::PathBuf;

/// Writes the seeds of a decoder into a folder.
#[derive(Parser)]
struct SeedArguments {
    /// The decoder; see `quorumfs_tests::decoders`.
    target: String,
    /// The folder, which has to exist.
    folder: PathBuf,
}

fn main() -> Result<()> {
    let arguments = SeedArguments::parse();
    let target = find(&arguments.target).context("there is no decoder of that name")?;
    for (number, seed) in (target.seeds)().iter().enumerate() {
        let path = arguments.folder.join(format!("seed-{number}"));
        std::fs::write(&path, seed).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
