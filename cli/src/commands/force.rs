//! `quorumfs umount --force`: for a mount whose process does not answer any more.
//!
//! ```text
//! asked as always, for a while ── no answer, or it is in use
//!     └─► abort the kernel's connection ── whoever waits for the mount gets an error
//!             └─► out of the tree ── the point is free
//! ```
//!
//! What always holds: nothing here asks the mount itself, not even for its attributes, since that
//! is what hangs. The process is left alone: if it goes on, it finds its connection gone, commits
//! what it has and ends; with tier `local`, what it does not commit is in its journal.

use super::mount::{Report, Stopped};
use super::mount_point;
use super::umount::{Unmounted, until_released};
use super::volume::CONFIGURATION;
use crate::configuration::{self, VolumeConfiguration};
use crate::control::{self, Question};
use crate::directory::StateDirectory;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the mount may take to say that it is there, before it counts as stuck.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
/// How long it may take to end: as always, and again once its connection is gone.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// Frees the point, whatever it takes.
pub(super) async fn run(state: &StateDirectory, named: Option<&Path>, output: Output) -> Outcome {
    let named = point(state, named);
    let asked = control::ask::<Report>(state, Question::Status);
    let report = tokio::time::timeout(ANSWERS_WITHIN, asked).await;
    let answers = report.ok().and_then(Result::ok).flatten();
    let point = match (&answers, named) {
        (Some(report), Some(named)) if named != report.point => {
            let (named, point) = (named.display(), report.point.display());
            let message = format!("this volume is mounted on {point}, not on {named}");
            return Err(
                Failure::new(Exit::Usage, message).hint("name the state of the other mount")
            );
        }
        (Some(report), _) => report.point.clone(),
        (None, Some(named)) => named,
        (None, None) => {
            let failure = Failure::new(Exit::Usage, "it was not said what to unmount");
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
            return said(&point, false, false, output);
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
    said(&point, true, runs, output)
}

fn said(point: &Path, forced: bool, still_running: bool, output: Output) -> Outcome {
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
                "Unmounted {point} by force. Its process is still there: it ends once it goes on; \
                 if it does not, kill it, and the next `quorumfs mount` goes on from its \
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

/// Where, as it was named or configured, found without looking at the mount itself.
fn point(state: &StateDirectory, named: Option<&Path>) -> Option<PathBuf> {
    let written = || -> Option<PathBuf> {
        let read = configuration::read(&state.join(CONFIGURATION), "volume");
        let configuration: VolumeConfiguration = read.ok()?;
        Some(state.join(configuration.mount.point?))
    };
    let point = named.map(Path::to_path_buf).or_else(written)?;
    Some(mount_point::meant(&point))
}
