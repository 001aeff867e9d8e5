//! `trash`: what was removed.
//!
//! The servers keep a removed inode with the sealed name of its last entry and the directory that
//! it was in, which may itself be in the trash. Paths are put together here, from names that only a
//! member can open.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`path`] | former paths, and what they lead to |
//! | [`list`] | `trash ls` |
//! | [`restore`] | `trash restore` |
//! | [`empty`] | `trash empty` |

mod empty;
mod list;
mod path;
mod restore;

use super::closing;
use crate::arguments::{General, TrashCommand, TrashKeepArguments};
use crate::commands::opened::Opened;
use crate::exit::Exit;
use crate::explain::vfs_failure;
use crate::failure::CommandResult;
use crate::output::Output;
use serde::Serialize;

/// Runs a command for the trash.
pub(crate) async fn trash(
    general: &General,
    command: &TrashCommand,
    output: Output,
) -> CommandResult {
    match command {
        TrashCommand::Ls(arguments) => list::ls(general, arguments, output).await,
        TrashCommand::Restore(arguments) => restore::restore(general, arguments, output).await,
        TrashCommand::Empty(arguments) => empty::empty(general, arguments, output).await,
        TrashCommand::Keep(arguments) => keep(general, arguments, output).await,
    }
}

#[derive(Serialize)]
struct Kept {
    /// 0: there is no trash.
    seconds: u64,
}

async fn keep(general: &General, arguments: &TrashKeepArguments, output: Output) -> CommandResult {
    let opened = Opened::for_a_command(general).await?;
    let seconds = arguments.age.seconds();
    let set = opened.metadata().keep_trash(seconds).await;
    closing(opened, set.map_err(|error| vfs_failure(&error))).await?;
    output.record("trash_kept", &Kept { seconds }, |kept| {
        format!("What is removed is {}.", kept_for(kept.seconds))
    })?;
    Ok(Exit::Success)
}

/// In words, how long the trash is kept.
pub(crate) fn kept_for(seconds: u64) -> String {
    const UNITS: [(u64, &str); 4] = [
        (24 * 60 * 60, "day"),
        (60 * 60, "hour"),
        (60, "minute"),
        (1, "second"),
    ];
    let fits = UNITS
        .iter()
        .find(|(unit, _)| seconds > 0 && seconds.is_multiple_of(*unit));
    match fits {
        None => "not kept".to_owned(),
        Some((unit, name)) if seconds == *unit => format!("kept for 1 {name}"),
        Some((unit, name)) => format!("kept for {} {name}s", seconds / unit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_told_in_the_largest_unit_that_is_exact() {
        assert_eq!(kept_for(0), "not kept");
        assert_eq!(kept_for(604_800), "kept for 7 days");
        assert_eq!(kept_for(86_400), "kept for 1 day");
        assert_eq!(kept_for(90), "kept for 90 seconds");
    }
}
