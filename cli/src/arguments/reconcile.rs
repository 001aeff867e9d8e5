//! The command line of `quorumfs reconcile`.

use clap::{Args, ValueEnum};
use std::time::Duration;

/// `quorumfs reconcile`
#[derive(Debug, Args)]
pub(crate) struct ReconcileArguments {
    /// Do everything once and end; without it, run as a service until stopped
    #[arg(long)]
    pub(crate) once: bool,
    /// Show what would be deleted, and delete nothing
    #[arg(long, conflicts_with = "once")]
    pub(crate) dry_run: bool,
    /// Do this task alone (default: all)
    #[arg(long, value_name = "TASK", requires = "once")]
    pub(crate) only: Option<ReconcileTask>,
    /// How long something has not been needed before it is deleted: a number and s, m, h or d.
    /// Readers that opened a file before it was deleted may go on reading for so long
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = time)]
    pub(crate) grace: Duration,
}

/// A task of the reconciler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReconcileTask {
    /// Put missing shards
    Completion,
    /// Move what is needed out of objects of which little is
    Compaction,
    /// Delete objects that nothing refers to
    Collection,
    /// Delete what the clouds hold and the metadata do not know
    Sweep,
}

/// A number and its unit.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    let wrong = || "it is a number and s, m, h or d, such as 90s or 2h".to_owned();
    let unit = text.chars().last().ok_or_else(wrong)?;
    let seconds: u64 = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 24 * 3600,
        _ => return Err(wrong()),
    };
    let number = text.trim_end_matches(unit);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let seconds = number.checked_mul(seconds).ok_or_else(wrong)?;
    Ok(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_number_and_a_unit() {
        for (text, seconds) in [
            ("0s", 0),
            ("90s", 90),
            ("5m", 300),
            ("2h", 7200),
            ("1d", 86400),
        ] {
            assert_eq!(time(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in [
            "",
            "h",
            "1",
            "1w",
            "-1s",
            "1.5h",
            "ss",
            "99999999999999999999d",
        ] {
            assert!(time(text).is_err(), "{text}");
        }
    }
}
