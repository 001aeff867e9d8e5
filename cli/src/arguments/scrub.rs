//! The command lines of `quorumfs scrub` and `quorumfs cloud`.

use super::cloud::{CloudAddArguments, CloudDrainArguments, CloudReplaceArguments};
use clap::{ArgAction, Args, Subcommand};
use std::num::NonZeroU32;

/// `quorumfs scrub`
#[derive(Debug, Args)]
pub(crate) struct ScrubArguments {
    /// The share of shards of which one segment is read and verified; of the others only the length
    /// is checked
    #[arg(long, value_name = "PERCENT", default_value = "1%", value_parser = per_million)]
    pub(crate) sample: u32,
    /// Read and verify all of every shard
    #[arg(long, conflicts_with = "sample")]
    pub(crate) full: bool,
    /// Check this cloud only
    #[arg(long, value_name = "NAME")]
    pub(crate) cloud: Option<String>,
    /// Transfer at most so many MiB a second
    #[arg(long, value_name = "MIB")]
    pub(crate) rate: Option<NonZeroU32>,
    /// Restore missing and bad shards; `--repair=false` only reports them
    #[arg(
        long,
        value_name = "BOOL",
        default_value_t = true,
        action = ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub(crate) repair: bool,
    /// Scrub even if the budget of the month is spent
    #[arg(long)]
    pub(crate) over_budget: bool,
}

/// Commands for one cloud.
#[derive(Debug, Subcommand)]
pub(crate) enum CloudCommand {
    /// Add a cloud to the volume as a spare, which takes nothing before it replaces another
    Add(CloudAddArguments),
    /// Let a cloud take the place of another: new data goes there at once, the rest follows
    Replace(CloudReplaceArguments),
    /// Let a spare take the place of a cloud, as `replace` does
    Drain(CloudDrainArguments),
    /// List the volume's clouds, which of them take new data, and how far the others are emptied
    Ls,
    /// Accept an empty place as the cloud of this name again; `scrub` fills it
    Adopt(CloudAdoptArguments),
    /// Show the evidence of clouds' faults, and what caused each
    Evidence(CloudEvidenceArguments),
}

/// `quorumfs cloud evidence`
#[derive(Debug, Args)]
pub(crate) struct CloudEvidenceArguments {
    /// The cloud's name in the configuration (default: all clouds)
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
}

/// `quorumfs cloud adopt`
#[derive(Debug, Args)]
pub(crate) struct CloudAdoptArguments {
    /// The cloud's name in the configuration
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

/// Per cent, with or without its sign, as parts in a million.
fn per_million(text: &str) -> Result<u32, String> {
    let percent: f64 = text
        .trim_end_matches('%')
        .parse()
        .map_err(|_| "expected per cent, like 1% or 0.5%".to_string())?;
    if !(0.0..=100.0).contains(&percent) {
        return Err("expected a value between 0% and 100%".to_string());
    }
    // Within the range above nothing is truncated.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    Ok((percent * 10_000.0).round() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_said_in_per_cent() {
        assert_eq!(per_million("1%"), Ok(10_000));
        assert_eq!(per_million("0.5"), Ok(5000));
        assert_eq!(per_million("100%"), Ok(1_000_000));
        for wrong in ["", "%", "-1%", "101%", "NaN", "a lot"] {
            assert!(per_million(wrong).is_err(), "{wrong}");
        }
    }
}
