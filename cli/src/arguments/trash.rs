//! The command line of `quorumfs trash`.

use super::path_or_id::PathOrId;
use super::reconcile::time;
use clap::{Args, Subcommand};
use quorumfs_metadata::limits::TRASH_SECONDS_MAX;
use std::path::PathBuf;
use std::time::Duration;

const DAY: u64 = 24 * 60 * 60;

/// Commands for the trash.
#[derive(Debug, Subcommand)]
pub(crate) enum TrashCommand {
    /// List what was removed and can be restored: your own, what you removed, or as root all
    Ls(TrashLsArguments),
    /// Put back what was removed, a directory with all that was removed from it
    Restore(TrashRestoreArguments),
    /// Delete what was removed for good
    Empty(TrashEmptyArguments),
    /// Set for how long what is removed is kept
    Keep(TrashKeepArguments),
}

/// `quorumfs trash ls`
#[derive(Debug, Args)]
pub(crate) struct TrashLsArguments {
    /// Only what was removed here or below
    #[arg(value_name = "PATH", default_value = "/")]
    pub(crate) path: PathBuf,
}

/// `quorumfs trash restore`
#[derive(Debug, Args)]
pub(crate) struct TrashRestoreArguments {
    /// What was removed: its former path (of several the newest), or its id as `trash ls` shows
    /// it. A directory that is not in the trash stands for all that was removed from it
    #[arg(value_name = "PATH|ID", required = true)]
    pub(crate) what: Vec<PathOrId>,
    /// Put it into this directory of the volume instead of its old place
    #[arg(long, value_name = "DIR")]
    pub(crate) to: Option<PathBuf>,
}

/// `quorumfs trash empty`
#[derive(Debug, Args)]
pub(crate) struct TrashEmptyArguments {
    /// Only this and what was removed below it: a former path, or an id as `trash ls` shows it
    #[arg(value_name = "PATH|ID")]
    pub(crate) what: Vec<PathOrId>,
    /// Only what was removed longer ago: a number and s, m, h or d
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) older_than: Option<Duration>,
    /// Do it: it cannot be restored afterwards
    #[arg(long)]
    pub(crate) yes: bool,
}

/// `quorumfs trash keep`
#[derive(Debug, Args)]
pub(crate) struct TrashKeepArguments {
    /// The number of days; or `off`: what is removed is gone, and what is in the trash goes
    #[arg(value_name = "DAYS", value_parser = trash_age)]
    pub(crate) age: TrashAge,
}

/// For how many days the trash is kept; 0: there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TrashAge(u64);

impl TrashAge {
    pub(crate) const fn seconds(self) -> u64 {
        self.0.saturating_mul(DAY)
    }
}

pub(super) fn trash_age(text: &str) -> Result<TrashAge, String> {
    const MOST: u64 = TRASH_SECONDS_MAX / DAY;
    if text == "off" {
        return Ok(TrashAge(0));
    }
    let days = text.parse().ok().filter(|days| (1..=MOST).contains(days));
    days.map(TrashAge)
        .ok_or_else(|| format!("it is a number of days from 1 to {MOST}, or `off`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_a_number_of_days_or_off() {
        assert_eq!(trash_age("7").unwrap().seconds(), 604_800);
        assert_eq!(trash_age("off").unwrap().seconds(), 0);
        for text in ["0", "", "7d", "-1", "99999", "on"] {
            assert!(trash_age(text).is_err(), "{text}");
        }
    }
}
