//! `quorumfs sync`: what was written goes to the clouds now, whatever the mount's tier and the
//! file's; or to the journal, if that is enough.
//!
//! The mount is asked again and again, since a control question has a short patience and a slow
//! cloud has not. Interrupting the command interrupts nothing: what was begun goes on.

use super::mount::Report;
use super::mount_point::within;
use crate::arguments::{General, SyncArguments};
use crate::configuration::TierSetting;
use crate::control::{self, Question};
use crate::directory::StateDirectory;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use quorumfs_gateway::vfs::{FileSystem, InodeId, VfsError};
use serde::{Deserialize, Serialize};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// How long one question may take.
const ASKED_FOR: Duration = Duration::from_secs(5);

/// How a mount answers the wish that something be committed.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Synced {
    /// It is.
    Done,
    /// It is on its way: ask again.
    Waiting {
        /// Bytes of the whole mount that wait.
        bytes: u64,
    },
    /// It failed, and is tried again in the background.
    Failed {
        /// Why.
        message: String,
    },
}

/// The mount's side.
pub(super) async fn answer(files: &FileSystem, inode: Option<u64>, tier: TierSetting) -> Synced {
    let work = files.sync_at(inode.map(InodeId), tier.into());
    let outcome: Option<Result<(), VfsError>> = tokio::time::timeout(ASKED_FOR, work).await.ok();
    match outcome {
        Some(Ok(())) => Synced::Done,
        Some(Err(error)) => Synced::Failed {
            message: error.to_string(),
        },
        None => Synced::Waiting {
            bytes: files.status().dirty_bytes,
        },
    }
}

#[derive(Serialize)]
struct Done<'a> {
    path: &'a Path,
    tier: TierSetting,
}

/// Asks until it is done.
pub(crate) async fn run(general: &General, arguments: &SyncArguments, output: Output) -> Outcome {
    let state = StateDirectory::find(general.state.as_deref(), "volume")?;
    let not_mounted = || {
        let message = format!("the volume of {} is not mounted", state.path().display());
        Failure::new(Exit::NoVolume, message).hint("name another one with --state")
    };
    let report = control::ask::<Report>(&state, Question::Status).await?;
    let point = report.ok_or_else(not_mounted)?.point;
    let path = arguments.path.as_deref().unwrap_or(&point);
    let (inode, tier) = (inode_of(path, &point)?, arguments.tier);
    let answer = asked(&state, inode, tier).await?;
    if let Synced::Failed { message } = answer.ok_or_else(not_mounted)? {
        return Err(Failure::new(Exit::CloudsUnreachable, message)
            .hint("it is kept and tried again; see `quorumfs status --queue`"));
    }
    output.record("synced", &Done { path, tier }, |done| {
        let path = done.path.display();
        match done.tier {
            TierSetting::Clouds => format!("All of {path} is in the clouds."),
            TierSetting::Local => {
                format!("All of {path} is in the journal on this machine, or in the clouds.")
            }
            TierSetting::Memory => format!("All of {path} is in the mount's memory at least."),
        }
    })?;
    Ok(Exit::Success)
}

/// Asks as long as it is on its way; nothing if nobody answers.
pub(super) async fn asked(
    state: &StateDirectory,
    inode: Option<u64>,
    tier: TierSetting,
) -> Outcome<Option<Synced>> {
    loop {
        match control::ask::<Synced>(state, Question::Sync { inode, tier }).await? {
            Some(Synced::Waiting { bytes }) => tracing::info!(bytes, "still on its way"),
            answer => return Ok(answer),
        }
    }
}

/// Which file it is; nothing if it is a directory, for which the whole mount is meant.
fn inode_of(path: &Path, point: &Path) -> Outcome<Option<u64>> {
    let found = within(point, path)?;
    let found =
        fs::symlink_metadata(&found).map_err(|error| Failure::file("look at", path, &error))?;
    Ok(found.is_file().then(|| found.ino()))
}
