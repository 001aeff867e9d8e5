//! Replays the recording of a real replica, with the service that the recording names.

use super::panic_text;
use crate::crashes::ledger::{self, Ledger};
use anyhow::{Context as _, anyhow, bail};
use quorumfs_bft::recording::Recording;
use quorumfs_bft::sabotage::Sabotage;
use quorumfs_bft_simulator::key_value::KeyValue;
use quorumfs_bft_simulator::replay::{self, Replayed};
use quorumfs_bft_simulator::simulation::Trace;
use quorumfs_metadata::Metadata;
use std::fs::File;
use std::io::BufReader;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Feeds a core the recorded events, and compares its effects.
///
/// # Errors
/// If there is no recording, its service is not known here, or the core panics.
pub fn replay(
    path: &Path,
    sabotage: Option<Sabotage>,
    trace: Trace<'_>,
) -> anyhow::Result<Replayed> {
    match catch_unwind(AssertUnwindSafe(|| run(path, sabotage, trace))) {
        Ok(replayed) => replayed,
        Err(panic) => {
            // Runs it once more, to find the event.
            let mut last = String::new();
            let mut note = |line: &str| {
                if line.starts_with("event") {
                    line.clone_into(&mut last);
                }
            };
            let note: Trace<'_> = Some(&mut note);
            let _ = catch_unwind(AssertUnwindSafe(|| run(path, sabotage, note)));
            Err(anyhow!("{} at {last}", panic_text(panic.as_ref())))
        }
    }
}

/// The same with each defect that can be planted in a core: where it would have shown.
///
/// # Errors
/// If there is no recording, its service is not known here, or the core panics.
pub fn replay_flawed(path: &Path) -> anyhow::Result<Vec<(String, Replayed)>> {
    let flawed = |sabotage| Ok((super::name(sabotage), replay(path, Some(sabotage), None)?));
    Sabotage::ALL.into_iter().map(flawed).collect()
}

fn run(path: &Path, sabotage: Option<Sabotage>, trace: Trace<'_>) -> anyhow::Result<Replayed> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let recording = Recording::open(BufReader::new(file))?;
    Ok(match recording.start().service.as_str() {
        "metadata" => replay::replay(recording, Metadata, sabotage, trace),
        "key-value" => replay::replay(recording, KeyValue, sabotage, trace),
        ledger::NAME => replay::replay(recording, Ledger, sabotage, trace),
        other => bail!("the recording is of the service {other:?}, which is not known here"),
    })
}
