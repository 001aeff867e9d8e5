//! `quorumfs umount`: commits everything, unmounts, and returns when the mount's process has ended
//! its session.

use super::force;
use super::mount::Stopped;
use super::{mount_point, sync};
use crate::arguments::{General, UmountArguments};
use crate::configuration::TierSetting;
use crate::control::{self, Question};
use crate::directory::StateDirectory;
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use serde::Serialize;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the process of a mount may take to end its session once nothing is mounted.
const RELEASED_WITHIN: Duration = Duration::from_secs(45);

#[derive(Serialize)]
pub(super) struct Unmounted<'a> {
    #[serde(serialize_with = "crate::output::paths::serialize")]
    pub(super) point: &'a Path,
    /// With `--force`, whether force was needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) forced: Option<bool>,
    /// With `--force`, whether the mount's process still exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) still_running: Option<bool>,
    /// Processes that had it in their own trees, and have it no more.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) taken_from: Vec<String>,
}

impl<'a> Unmounted<'a> {
    fn of(point: &'a Path) -> Self {
        Self {
            point,
            forced: None,
            still_running: None,
            taken_from: Vec::new(),
        }
    }
}

impl Unmounted<'_> {
    fn text(&self) -> String {
        let point = self.point.display();
        match self.taken_from.as_slice() {
            [] => format!("Unmounted {point}."),
            holders => format!(
                "Unmounted {point}. It was mounted elsewhere too and has ended there: {}.",
                holders.join(", ")
            ),
        }
    }
}

/// Unmounts the volume of the state directory.
pub(crate) async fn run(
    general: &General,
    arguments: &UmountArguments,
    output: Output,
) -> CommandResult {
    let state = StateDirectory::find(general.state.as_deref(), "volume")?;
    if arguments.force {
        return force::run(&state, arguments.point.as_deref(), output).await;
    }
    let point = arguments.point.as_deref().map(mount_point::resolve);
    let Some(report) =
        control::ask::<super::mount_report::MountReport>(&state, Question::Status).await?
    else {
        return without_process(&state, point.as_deref(), output);
    };
    if point.as_ref().is_some_and(|point| *point != report.point) {
        let message = format!(
            "the volume of {} is mounted on {}, not there",
            state.path().display(),
            report.point.display()
        );
        return Err(Failure::new(Exit::Usage, message).hint("name its state with --state"));
    }
    // Slow clouds are waited for. If this fails, the mount itself reports it when it stops.
    sync::asked(&state, None, TierSetting::Clouds).await?;
    let taken_from = match control::ask::<Stopped>(&state, Question::Stop).await? {
        Some(Stopped::Clean) => Vec::new(),
        Some(Stopped::TakenFrom { holders }) => holders,
        // The remedy depends on the obstacle, and is part of the mount's message.
        Some(Stopped::Failed { message, code }) => {
            let known = [
                Exit::QuorumUnreachable,
                Exit::CloudsUnreachable,
                Exit::NoSpace,
            ];
            let exit = known.into_iter().find(|exit| exit.code() == code);
            return Err(Failure::new(exit.unwrap_or(Exit::Held), message));
        }
        None => {
            let message = "the mount ended while it was asked to";
            return Err(Failure::new(Exit::Error, message));
        }
    };
    until_released(&state).await?;
    let record = Unmounted {
        taken_from,
        ..Unmounted::of(&report.point)
    };
    output.record("unmounted", &record, Unmounted::text)?;
    Ok(Exit::Success)
}

/// The mount's process ends its session after it has answered; the next mount needs it ended.
pub(super) async fn until_released(state: &StateDirectory) -> CommandResult<()> {
    let began = Instant::now();
    loop {
        match state.lock("mount") {
            Err(failure) if failure.exit == Exit::Held && began.elapsed() < RELEASED_WITHIN => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            other => return other.map(drop),
        }
    }
}

/// No process serves this volume: there may be a mount whose process was killed.
fn without_process(state: &StateDirectory, point: Option<&Path>, output: Output) -> CommandResult {
    match point {
        Some(point) if mount_point::is_dead(point) => {
            mount_point::detach(point)?;
            let record = Unmounted::of(point);
            output.record("unmounted", &record, |r| {
                format!(
                    "Removed the mount on {}; its process was dead already.",
                    r.point.display()
                )
            })?;
            Ok(Exit::Success)
        }
        _ => {
            let message = format!("the volume of {} is not mounted", state.path().display());
            Err(Failure::new(Exit::NoVolume, message).hint("name another one with --state"))
        }
    }
}
