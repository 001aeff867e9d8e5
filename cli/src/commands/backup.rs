//! `volume backup`: the metadata, on the clouds.
//!
//! The same is done in the background by the reconciler's service and by a mount that may delete on
//! its clouds ([`BackupLoop`]).

use super::opened::{Access, Configured, Opened};
use crate::arguments::{General, VolumeBackupArguments};
use crate::exit::Exit;
use crate::explain::recovery_failure;
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use crate::stop::Stop;
use quorumfs_gateway::backup::{BackupMaker, Made, RecoveryError, Round};
use quorumfs_gateway::metadata::MetadataClient;
use quorumfs_metadata::query::Question;
use quorumfs_metadata::reply::QueryResult;
use quorumfs_metadata::row::RetentionKind;
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How often a service or a mount takes a backup.
const EVERY: Duration = Duration::from_secs(3600);
/// How long after its start it takes the first.
const FIRST: Duration = Duration::from_secs(600);
/// How often it deletes what backups left behind that died.
const SWEEP_EVERY: Duration = Duration::from_secs(7 * 24 * 3600);

/// A backup that was taken, or why none was.
#[derive(Serialize)]
struct BackupLine {
    /// `taken`, `unchanged` or `elsewhere`.
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence: Option<u64>,
    whole: bool,
    rows: u64,
    bytes: u64,
    stored_bytes: u64,
}

impl BackupLine {
    fn of(round: &Round) -> Self {
        let empty = Self {
            outcome: "unchanged",
            sequence: None,
            whole: false,
            rows: 0,
            bytes: 0,
            stored_bytes: 0,
        };
        match round {
            Round::Unchanged => empty,
            Round::Elsewhere => Self {
                outcome: "elsewhere",
                ..empty
            },
            Round::Made(Made {
                sequence,
                whole,
                rows,
                bytes,
                stored_bytes,
                ..
            }) => Self {
                outcome: "taken",
                sequence: Some(sequence.0),
                whole: *whole,
                rows: *rows,
                bytes: *bytes,
                stored_bytes: *stored_bytes,
            },
        }
    }

    fn text(&self) -> String {
        let (rows, bytes, stored) = (self.rows, self.bytes, self.stored_bytes);
        match (self.outcome, self.sequence, self.whole) {
            ("elsewhere", ..) => "backup: another process of the volume takes it".to_owned(),
            (_, Some(sequence), true) => format!(
                "backup: all {rows} rows of the metadata as of operation {sequence}, {bytes} \
                 bytes; {stored} bytes stored on the clouds together"
            ),
            (_, Some(sequence), false) => format!(
                "backup: {rows} rows of the metadata that changed up to operation {sequence}, \
                 {bytes} bytes; {stored} bytes stored on the clouds together"
            ),
            _ => "backup: nothing has changed since the last one".to_owned(),
        }
    }
}

/// Runs the command.
pub(crate) async fn run(
    general: &General,
    arguments: &VolumeBackupArguments,
    output: Output,
) -> CommandResult {
    let configured = Configured::read(general)?;
    configured.may_collect()?;
    let opened = Opened::open(&configured, Access::Reconciler { serves: None }).await?;
    if let Err(failure) = opened.is_newest().await {
        opened.close().await?;
        return Err(failure);
    }
    let done = match arguments.every {
        None => once(&configured, &opened, output).await,
        Some(every) => serve(&configured, &opened, every, output).await,
    };
    let closed = opened.close().await;
    let exit = done?;
    closed.map(|()| exit)
}

/// Takes one backup.
pub(super) async fn once(
    configured: &Configured,
    opened: &Opened,
    output: Output,
) -> CommandResult {
    let mut stop = Stop::of_a_command()?;
    let mut maker = configured.backup_maker(opened)?;
    tokio::select! {
        round = maker.run() => {
            let round = round.map_err(|error| recovery_failure(&error))?;
            output.record("backup", &BackupLine::of(&round), BackupLine::text)?;
            Ok(Exit::Success)
        }
        () = stop.wanted() => {
            Err(Failure::new(Exit::Cancelled, "stopped")
                .hint("the backup before stays valid; the same command takes another"))
        }
    }
}

async fn serve(
    configured: &Configured,
    opened: &Opened,
    every: Duration,
    output: Output,
) -> CommandResult {
    let mut stop = Stop::of_a_daemon(false)?;
    let backups = BackupLoop {
        every,
        first: Duration::ZERO,
    };
    crate::notify::ready("backing up");
    tokio::select! {
        () = backups.run(configured, opened, Some(output)) => {}
        () = opened.remember() => {}
        () = stop.wanted() => {}
    }
    Ok(Exit::Success)
}

/// Backups in the background.
#[derive(Clone, Copy, Debug)]
pub(super) struct BackupLoop {
    every: Duration,
    first: Duration,
}

impl Default for BackupLoop {
    fn default() -> Self {
        Self {
            every: EVERY,
            first: FIRST,
        }
    }
}

impl BackupLoop {
    /// Takes backups for as long as the process lives. A failure is logged, and the next one tries
    /// again; once the volume goes on in a later incarnation, none is taken any more.
    pub(super) async fn run(
        self,
        configured: &Configured,
        opened: &Opened,
        output: Option<Output>,
    ) {
        let mut maker = match configured.backup_maker(opened) {
            Ok(maker) => maker,
            Err(failure) => {
                tracing::warn!(%failure, "the metadata are not backed up");
                return std::future::pending().await;
            }
        };
        tokio::time::sleep(self.first).await;
        let mut until_swept = Duration::ZERO;
        loop {
            match maker.run().await {
                Ok(round) => {
                    let line = BackupLine::of(&round);
                    tracing::info!(outcome = line.outcome, rows = line.rows, "backup");
                    if let Some(output) = output {
                        output.announce("backup", &line, BackupLine::text);
                    }
                }
                Err(RecoveryError::Backup(error)) if error.is_final() => {
                    tracing::error!(%error, "the metadata are not backed up any more");
                    return std::future::pending().await;
                }
                Err(error) => tracing::warn!(%error, "no backup was taken; it is tried again"),
            }
            if until_swept.is_zero() {
                sweep(&maker).await;
                until_swept = SWEEP_EVERY;
            }
            until_swept = until_swept.saturating_sub(self.every);
            tokio::time::sleep(self.every).await;
        }
    }
}

async fn sweep(maker: &BackupMaker) {
    match maker.sweep().await {
        Ok(0) => {}
        Ok(deleted) => tracing::info!(deleted, "objects of earlier backups were deleted"),
        Err(error) => tracing::warn!(%error, "objects of earlier backups could not be deleted"),
    }
}

/// The newest recovery point, for `status`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct RecoveryPointReport {
    /// Whether there is one.
    exists: bool,
    /// How old it is, by the servers' clock and this machine's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seconds: Option<u64>,
    /// Its operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sequence: Option<u64>,
}

impl RecoveryPointReport {
    /// Asks the servers; `None` if they do not answer.
    pub(super) async fn of(metadata: &MetadataClient) -> Option<Self> {
        let asked = metadata.ask_about_volume("retained points", Question::Retained);
        let Ok(QueryResult::Retained(points)) = asked.await else {
            return None;
        };
        let newest = points
            .iter()
            .map(|(_, point)| point)
            .filter(|point| point.kind == RetentionKind::RecoveryPoint)
            .filter_map(|point| Some((point.to?, point.at)))
            .max();
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Some(Self {
            exists: newest.is_some(),
            seconds: newest.map(|(_, at)| now.saturating_sub(Duration::from_nanos(at.0)).as_secs()),
            sequence: newest.map(|(sequence, _)| sequence.0),
        })
    }

    /// The text form.
    pub(super) fn text(&self) -> String {
        match (self.seconds, self.sequence) {
            (Some(seconds), Some(sequence)) => format!(
                "Recovery point: {} old, as of operation {sequence}.",
                age(seconds)
            ),
            _ => "NO RECOVERY POINT: if all replicas are lost, the volume is lost. `quorumfs \
                  volume backup` takes one."
                .to_owned(),
        }
    }
}

/// A duration for people.
fn age(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_in_units_that_fit() {
        for (seconds, text) in [
            (0, "0 s"),
            (119, "119 s"),
            (120, "2 min"),
            (7199, "119 min"),
            (7200, "2 h"),
            (172_800, "2 days"),
        ] {
            assert_eq!(age(seconds), text);
        }
    }
}
