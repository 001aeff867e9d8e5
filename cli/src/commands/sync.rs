//! `quorumfs sync`: commits written data to the clouds now, whatever the tier of the mount and the
//! file; or to the journal, if that is enough.
//!
//! The mount is asked repeatedly, since a control question times out soon and a slow cloud may take
//! longer. The first question begins the commit, and the others ask for its result, so that it
//! succeeds or fails as one. Interrupting the command interrupts nothing: a commit that has begun
//! goes on.

use super::mount_point::within;
use super::mount_report::MountReport;
use crate::arguments::{General, SyncArguments};
use crate::configuration::TierSetting;
use crate::control::{self, Question};
use crate::directory::StateDirectory;
use crate::exit::Exit;
use crate::explain::vfs_failure;
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use quorumfs_gateway::vfs::{FileSystem, InodeId, VfsError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// How long one question may take.
const ASKED_FOR: Duration = Duration::from_secs(5);
/// Commits whose result was not asked for; the oldest are forgotten, and go on.
const BEGUN_MAX: usize = 64;

/// How a mount answers a request to commit.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Synced {
    /// It is done.
    Done,
    /// It is under way: ask again.
    Waiting {
        /// Pending bytes of the whole mount.
        bytes: u64,
        /// The commit to ask for.
        ticket: u64,
    },
    /// It failed, and is retried in the background.
    Failed {
        /// Why.
        message: String,
        /// The exit code of that.
        #[serde(default)]
        code: u8,
    },
}

type Ending = watch::Receiver<Option<Result<(), VfsError>>>;

/// Commits of a mount whose results were not delivered yet, by tickets.
#[derive(Debug, Default)]
pub(super) struct Begun(Mutex<(u64, BTreeMap<u64, Ending>)>);

impl Begun {
    fn all(&self) -> MutexGuard<'_, (u64, BTreeMap<u64, Ending>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The result for `ticket`; without one, or if it is unknown, begins a commit.
    pub(super) async fn answer(
        &self,
        files: &FileSystem,
        inode: Option<u64>,
        tier: TierSetting,
        ticket: Option<u64>,
    ) -> Synced {
        let known = ticket.and_then(|ticket| Some((ticket, self.all().1.get(&ticket)?.clone())));
        let (ticket, mut ending) = known.unwrap_or_else(|| {
            let (tell, ending) = watch::channel(None);
            let files = files.clone();
            tokio::spawn(async move {
                let outcome = files.sync_at(inode.map(InodeId), tier.into()).await;
                tell.send_replace(Some(outcome));
            });
            let mut all = self.all();
            let (last, endings) = &mut *all;
            *last = last.saturating_add(1);
            endings.insert(*last, ending.clone());
            if endings.len() > BEGUN_MAX {
                endings.pop_first();
            }
            (*last, ending)
        });
        let ended = tokio::time::timeout(ASKED_FOR, ending.wait_for(Option::is_some)).await;
        let Ok(ended) = ended else {
            return Synced::Waiting {
                bytes: files.status().dirty_bytes,
                ticket,
            };
        };
        self.all().1.remove(&ticket);
        let (message, exit) = match ended.as_deref() {
            Ok(Some(Ok(()))) => return Synced::Done,
            Ok(Some(Err(error))) => (error.to_string(), vfs_failure(error).exit),
            Ok(None) | Err(_) => ("it was cancelled".into(), Exit::Error),
        };
        let code = exit.code();
        Synced::Failed { message, code }
    }
}

#[derive(Serialize)]
struct Done<'a> {
    #[serde(serialize_with = "crate::output::paths::serialize")]
    path: &'a Path,
    tier: TierSetting,
}

/// Asks until it is done.
pub(crate) async fn run(
    general: &General,
    arguments: &SyncArguments,
    output: Output,
) -> CommandResult {
    let state = StateDirectory::find(general.state.as_deref(), "volume")?;
    let not_mounted = || {
        let message = format!("the volume of {} is not mounted", state.path().display());
        Failure::new(Exit::NoVolume, message).hint("name another one with --state")
    };
    let report = control::ask::<MountReport>(&state, Question::Status).await?;
    let point = report.ok_or_else(not_mounted)?.point;
    let path = arguments.path.as_deref().unwrap_or(&point);
    let (inode, tier) = (inode_of(path, &point)?, arguments.tier);
    let answer = asked(&state, inode, tier).await?;
    if let Synced::Failed { message, code } = answer.ok_or_else(not_mounted)? {
        let exit = Exit::ALL.iter().copied().find(|exit| exit.code() == code);
        let exit = exit
            .filter(|exit| *exit != Exit::Success)
            .unwrap_or(Exit::Error);
        return Err(Failure::new(exit, message)
            .hint("the data stays in the mount and is retried; see `quorumfs status --queue`"));
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

/// Asks as long as it is under way; returns nothing if no mount answers.
pub(super) async fn asked(
    state: &StateDirectory,
    inode: Option<u64>,
    tier: TierSetting,
) -> CommandResult<Option<Synced>> {
    let mut ticket = None;
    loop {
        let question = Question::Sync {
            inode,
            tier,
            ticket,
        };
        match control::ask::<Synced>(state, question).await? {
            Some(Synced::Waiting { bytes, ticket: of }) => {
                tracing::info!(bytes, "still under way");
                ticket = Some(of);
            }
            answer => return Ok(answer),
        }
    }
}

/// The file's inode; nothing for a directory, which stands for the whole mount.
fn inode_of(path: &Path, point: &Path) -> CommandResult<Option<u64>> {
    let found = within(point, path)?;
    let found =
        fs::symlink_metadata(&found).map_err(|error| Failure::file("look at", path, &error))?;
    Ok(found.is_file().then(|| found.ino()))
}
