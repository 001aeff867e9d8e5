//! The journal of a mount: opened under the host key; and the report of pending data.

use super::opened::Configured;
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use quorumfs_gateway::journal::{Directory, JournalError, JournalOptions};
use quorumfs_gateway::vfs::{
    FileSystem, QueuedFile, RESCUE_DIRECTORY, Replay, Replayed, VfsStatus,
};
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

/// Files that `status --queue` lists.
const SHOWN_MAX: usize = 1000;
/// How long a status waits to learn whether data was rescued.
const LOOKED_WITHIN: Duration = Duration::from_secs(3);

/// Opens the journal, if one is configured, or if one with pending data exists.
pub(super) fn open(configured: &Configured) -> CommandResult<Option<Replay>> {
    let section = &configured.configuration().journal;
    let path = configured.state().join(&section.path);
    let wanted = section.always || configured.configuration().mount.tier.is_local();
    let is_there = || std::fs::read_dir(&path).is_ok_and(|mut files| files.next().is_some());
    if !wanted && !is_there() {
        return Ok(None);
    }
    let host_key = configured.host_key()?;
    let options = JournalOptions {
        bytes_max: section.bytes(),
        free_bytes_min: section.free_space_floor(),
    };
    let directory =
        Directory::open(&path).map_err(|error| Failure::file("use the journal", &path, &error))?;
    let volume = configured.volume().id();
    let replay = Replay::open(directory, host_key.journal(), volume, options);
    replay.map(Some).map_err(|error| failure(&error, &path))
}

fn failure(error: &JournalError, path: &Path) -> Failure {
    let (exit, mend) = match error {
        JournalError::Newer { .. } => (Exit::NewerFormat, "mend the disk"),
        JournalError::Disk {
            kind: ErrorKind::StorageFull | ErrorKind::QuotaExceeded,
            ..
        } => (Exit::NoSpace, "free some space there"),
        _ => (Exit::Error, "mend the disk"),
    };
    let hint = format!(
        "data that was written and not yet committed is in {}: {mend}, or move the journal away \
         to go on without it",
        path.display()
    );
    Failure::new(exit, error.to_string()).hint(hint)
}

/// Logs the result of the replay.
pub(super) fn log_replay(replayed: &Replayed) {
    if replayed.in_place > 0 {
        let files = replayed.in_place;
        tracing::info!(files, "the data in the journal was replayed into its files");
    }
    for (inode, reason) in &replayed.rescued {
        tracing::warn!(%inode, %reason, "written bytes were rescued into {RESCUE_DIRECTORY}");
    }
    if let Some(damage) = &replayed.damage {
        tracing::error!(%damage, "the journal is damaged: the part after the damage is set aside");
    }
}

/// The data that waits to be committed, and its durability until then.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct WaitingReport {
    /// What close and fsync wait for.
    pub(crate) tier: String,
    /// Pending bytes.
    pub(crate) bytes: u64,
    /// Files with pending bytes.
    pub(crate) files: u64,
    /// For how long the oldest of them has been pending.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) oldest_seconds: Option<u64>,
    /// Bytes of the journal's files, if there is a journal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) journal_bytes: Option<u64>,
    /// The most bytes that they may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) journal_bytes_max: Option<u64>,
    /// Whether its disk has less free space than the configured floor.
    #[serde(default)]
    pub(crate) journal_disk_full: bool,
    /// Why nothing is written to it any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) journal_broken: Option<String>,
    /// Its damage, if the mount found any when it began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) journal_damaged: Option<String>,
    /// Where to look at rescued bytes, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rescued: Option<String>,
    /// The files, longest pending first.
    #[serde(default)]
    pub(crate) queue: Vec<QueuedReport>,
}

/// A file with data to commit.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct QueuedReport {
    /// Its inode number, as `ls -i` and `find -inum` use it.
    pub(crate) inode: u64,
    /// Bytes that are pending or on their way.
    pub(crate) bytes: u64,
    /// For how long they have been pending; absent if they are on their way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seconds: Option<u64>,
}

impl QueuedReport {
    fn of(file: &QueuedFile) -> Self {
        Self {
            inode: file.inode.0,
            bytes: file.bytes,
            seconds: file.waiting.map(|waited| waited.as_secs()),
        }
    }

    /// The text form.
    pub(crate) fn text(&self) -> String {
        let since = match self.seconds {
            Some(seconds) => format!("pending for {seconds} s"),
            None => "is on its way".to_owned(),
        };
        format!("  inode {}  {} bytes  {since}", self.inode, self.bytes)
    }
}

impl WaitingReport {
    /// Of a mount on `point`, which found `damage` when it began.
    pub(super) async fn of(
        files: &FileSystem,
        point: &Path,
        tier: &str,
        damage: Option<&String>,
    ) -> Self {
        let status: VfsStatus = files.status();
        let looked = tokio::time::timeout(LOOKED_WITHIN, files.rescued()).await;
        let rescued = looked.ok().and_then(Result::ok).flatten();
        let journal = status.journal.unwrap_or_default();
        let exists = journal.bytes_max > 0;
        Self {
            tier: tier.to_owned(),
            bytes: status.dirty_bytes,
            files: status.dirty_files as u64,
            oldest_seconds: status.oldest_waiting.map(|waited| waited.as_secs()),
            journal_bytes: exists.then_some(journal.bytes),
            journal_bytes_max: exists.then_some(journal.bytes_max),
            journal_disk_full: journal.disk_full,
            journal_broken: journal.broken,
            journal_damaged: damage.cloned(),
            rescued: rescued.map(|name| point.join(name).display().to_string()),
            queue: files
                .queue()
                .iter()
                .take(SHOWN_MAX)
                .map(QueuedReport::of)
                .collect(),
        }
    }

    /// The text form, as a continuation of the mount's line.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        if self.files > 0 {
            text.push_str(&format!(
                "; {} bytes of {} files wait to be committed",
                self.bytes, self.files
            ));
            if let Some(seconds) = self.oldest_seconds {
                text.push_str(&format!(", the oldest for {seconds} s"));
            }
        }
        if self.journal_disk_full {
            text.push_str("; the journal's disk is FULL, close and fsync wait for the clouds");
        }
        if let Some(broken) = &self.journal_broken {
            text.push_str(&format!(
                "; THE JOURNAL FAILED, close and fsync wait for the clouds: {broken}"
            ));
        }
        if let Some(damaged) = &self.journal_damaged {
            text.push_str(&format!(
                "; THE JOURNAL WAS DAMAGED, written data may be lost: {damaged}"
            ));
        }
        if let Some(rescued) = &self.rescued {
            text.push_str(&format!(
                "; RESCUED FILES are in {rescued}: look at them and remove it"
            ));
        }
        text
    }
}
