//! How the last process wrote, on which boot of the machine, and how it ended.
//!
//! One small file, replaced as a whole: a process writes it before it appends anything and again at
//! a clean stop. It shows whether records that were reported persisted are certain to exist.

use super::DiskError;
use super::error::failed;
use super::files::{Layout, read, write_durably};
use quorumfs_bft::durability::Durability;
use std::path::Path;
use std::str::FromStr;

/// Why records that the last process reported persisted may be missing, if they may be.
pub(super) fn possible_loss(layout: &Layout) -> Result<Option<String>, DiskError> {
    let Some(text) = read(&layout.run())? else {
        return Ok(None);
    };
    let mut words = text.split_whitespace();
    let (mode, boot, end) = (words.next(), words.next(), words.next());
    let reason = match (mode.map(Durability::from_str), boot, end) {
        (Some(Ok(Durability::Strict)), Some(_), Some(_)) => None,
        (Some(Ok(Durability::Os)), Some(_), Some("stopped")) => None,
        (Some(Ok(Durability::Os)), Some(boot), Some(_)) if boot == boot_id()? => None,
        (Some(Ok(Durability::Os)), Some(_), Some(_)) => Some(
            "durability was os, and the machine has rebooted since without a clean stop".to_owned(),
        ),
        (Some(Ok(Durability::None)), ..) => {
            Some("durability was none: every restart loses the journal".to_owned())
        }
        _ => Some("the file `run` is damaged".to_owned()),
    };
    Ok(reason)
}

/// A process begins to write.
pub(super) fn begin(layout: &Layout, durability: Durability) -> Result<(), DiskError> {
    write(layout, durability, "running")
}

/// The process ends, and everything is durable.
pub(super) fn end(layout: &Layout, durability: Durability) -> Result<(), DiskError> {
    write(layout, durability, "stopped")
}

fn write(layout: &Layout, durability: Durability, end: &str) -> Result<(), DiskError> {
    let text = format!("{durability} {} {end}\n", boot_id()?);
    write_durably(&layout.run(), &text)
}

fn boot_id() -> Result<String, DiskError> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let text = std::fs::read_to_string(path).map_err(failed("reading", path))?;
    Ok(text.trim().to_owned())
}
