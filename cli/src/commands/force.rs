//! `quorumfs umount --force`: for a mount whose process does not answer any more.
//!
//! ```text
//! the ordinary unmount, for a while ── no answer, or it is in use
//!     └─► abort the kernel's connection ── processes that wait for the mount get an error
//!             └─► out of the tree ── the mount point is free
//! ```
//!
//! Invariant: nothing here asks the mount itself, not even for its attributes, since that would
//! hang. The process is left alone: if it goes on, it finds its connection gone, commits its data
//! and ends; with tier `local`, data that it does not commit is in its journal.

use super::mount::Stopped;
use super::mount_point;
use super::mount_report::MountReport;
use super::umount::{Unmounted, until_released};
use crate::configuration::files::CONFIGURATION;
use crate::configuration::{self, VolumeConfiguration};
use crate::control::{self, Question};
use crate::directory::StateDirectory;
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the mount may take to answer before it counts as stuck.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
/// How long it may take to end: in the ordinary way, and again once its connection is gone.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// Frees the mount point by all means.
pub(crate) async fn run(
    state: &StateDirectory,
    named: Option<&Path>,
    output: Output,
) -> CommandResult {
    let named = point(state, named);
    let asked = control::ask::<MountReport>(state, Question::Status);
    let report = tokio::time::timeout(ANSWERS_WITHIN, asked).await;
    let answers = report.ok().and_then(Result::ok).flatten();
    let point = match (&answers, named) {
        (Some(report), Some(named)) if named != report.point => {
            let (named, point) = (named.display(), report.point.display());
            let message = format!("this volume is mounted on {point}, not on {named}");
            return Err(Failure::new(Exit::Usage, message).hint("name its state with --state"));
        }
        (Some(report), _) => report.point.clone(),
        (None, Some(named)) => named,
        (None, None) => {
            let failure = Failure::new(Exit::Usage, "the mount point is not known");
            return Err(failure.hint(
                "a mount that does not answer cannot be asked where it is: name the directory",
            ));
        }
    };
    if answers.is_some() {
        let asked = control::ask::<Stopped>(state, Question::Stop);
        let asked = tokio::time::timeout(ENDS_WITHIN, asked).await;
        if let Ok(Ok(Some(Stopped::Clean | Stopped::TakenFrom { .. }))) = asked {
            until_released(state).await?;
            return show_result(&point, false, false, output);
        }
    }
    if !mount_point::is_ours_at(&point) {
        let message = format!("no quorumfs is mounted on {}", point.display());
        return Err(Failure::new(Exit::NoVolume, message)
            .hint("`findmnt -t fuse.quorumfs` lists what is mounted where"));
    }
    quorumfs_fuse::abort_at(&point);
    // The abort may have been a forced unmount already.
    if mount_point::is_ours_at(&point) {
        mount_point::detach(&point)?;
    }
    let began = Instant::now();
    let mut runs = is_running(state);
    while runs && began.elapsed() < ENDS_WITHIN {
        tokio::time::sleep(Duration::from_millis(50)).await;
        runs = is_running(state);
    }
    show_result(&point, true, runs, output)
}

fn show_result(point: &Path, forced: bool, still_running: bool, output: Output) -> CommandResult {
    let record = Unmounted {
        point,
        forced: Some(forced),
        still_running: Some(still_running),
        taken_from: Vec::new(),
    };
    output.record("unmounted", &record, |record| {
        let point = record.point.display();
        match (forced, still_running) {
            (false, _) => format!("Unmounted {point}."),
            (true, false) => format!("Unmounted {point} by force."),
            (true, true) => format!(
                "Unmounted {point} by force. Its process still exists: it ends once it goes on; \
                 if it does not, kill it, and the next `quorumfs mount` continues from its \
                 journal."
            ),
        }
    })?;
    Ok(Exit::Success)
}

/// Whether a process serves the volume.
fn is_running(state: &StateDirectory) -> bool {
    let locked = state.lock("mount");
    locked.is_err_and(|failure| failure.exit == Exit::Held)
}

/// The mount point, as named or configured, found without looking at the mount itself.
fn point(state: &StateDirectory, named: Option<&Path>) -> Option<PathBuf> {
    let written = || -> Option<PathBuf> {
        let read = configuration::read(&state.join(CONFIGURATION), "volume");
        let configuration: VolumeConfiguration = read.ok()?;
        Some(state.join(configuration.mount.point?))
    };
    let point = named.map(Path::to_path_buf).or_else(written)?;
    Some(mount_point::resolve(&point))
}
