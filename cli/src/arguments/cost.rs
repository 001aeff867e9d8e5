//! The command line of `quorumfs cost`.

use crate::configuration::Prefer;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `quorumfs cost`
#[derive(Debug, Args)]
pub(crate) struct CostArguments {
    /// The command; without it, show what this month costs.
    #[command(subcommand)]
    pub(crate) command: Option<CostCommand>,
    /// A prices file in place of the one that ships with the program
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) prices: Option<PathBuf>,
    /// Show the counted requests of earlier months as well
    #[arg(long)]
    pub(crate) months: bool,
}

/// Commands for costs, except showing this month's.
#[derive(Debug, Subcommand)]
pub(crate) enum CostCommand {
    /// What a volume would cost: needs no volume and no network
    Plan(CostPlanArguments),
}

/// `quorumfs cost plan`
#[derive(Debug, Args)]
pub(crate) struct CostPlanArguments {
    /// Bytes of content: a number, perhaps followed by kB, MB, GB, TB, KiB, MiB, GiB or TiB
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) size: u64,
    /// How many files
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) files: u64,
    /// Bytes that are read from the clouds in a month, not counting what caches answer
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "0")]
    pub(crate) reads: u64,
    /// Bytes that are written in a month over older content
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "0")]
    pub(crate) writes: u64,
    /// A cloud, as a provider or an entry of the prices file; once for each. Without it, the
    /// cheapest choices are shown
    #[arg(long = "cloud", value_name = "PROVIDER")]
    pub(crate) clouds: Vec<String>,
    /// How many clouds may vanish, lie or collude (f)
    #[arg(long, alias = "f", value_name = "F", default_value_t = 1)]
    pub(crate) faulty_clouds: u8,
    /// How many shards rebuild the content (k) (default: as many as the clouds allow)
    #[arg(long, value_name = "K", requires = "clouds")]
    pub(crate) data_shards: Option<u8>,
    /// Which clouds are preferred (default: what costs less)
    #[arg(long, value_name = "HOW", value_enum)]
    pub(crate) prefer: Option<Prefer>,
    /// Small files come one at a time, as through a mount, and share no objects
    #[arg(long)]
    pub(crate) one_by_one: bool,
    /// How many choices to show
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10,
        conflicts_with = "clouds"
    )]
    pub(crate) top: usize,
}

const UNITS: [(&str, u64); 8] = [
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];
/// The most that is planned for: an exabyte.
const SIZE_MAX: u64 = 1_000_000_000_000_000_000;

fn size(text: &str) -> Result<u64, String> {
    let found = UNITS
        .iter()
        .find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?.trim_end(), *bytes)));
    let (number, unit) = found.unwrap_or((text, 1));
    let number: u64 = number.parse().map_err(|_| {
        "expected a whole number, perhaps with kB, MB, GB, TB, KiB, MiB, GiB or TiB".to_owned()
    })?;
    let bytes = number.checked_mul(unit).filter(|bytes| *bytes <= SIZE_MAX);
    bytes.ok_or_else(|| "that is more than an exabyte".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_of_either_kind_of_unit() {
        assert_eq!(size("500GB"), Ok(500_000_000_000));
        assert_eq!(size("2 TiB"), Ok(2 << 40));
        assert_eq!(size("0"), Ok(0));
        for bad in ["", "GB", "-1", "1.5GB", "1PB", "99999999TB"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
