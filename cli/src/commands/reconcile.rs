//! `reconcile`: what the clouds hold becomes what the metadata says that they should hold.
//!
//! Missing shards are put, sparse objects compacted, and what nothing needs is deleted. A mount
//! does the same by itself where its clouds let it delete. As a service of its own, the command
//! needs no mount, and its machine alone has the collector's credentials, which a thief of a
//! mounting machine then does not get.

use super::backup::BackupLoop;
use super::opened::{Access, Configured, Opened};
use crate::arguments::{General, ReconcileArguments, ReconcileTask};
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use crate::notify;
use crate::output::Output;
use crate::stop::Stop;
use quorumfs_gateway::blocks::{
    BlockStore, Collected, Collection, Compacted, Compaction, CompactionError, Drained,
    PlacementError, Swept,
};
use quorumfs_gateway::cost::PaidWork;
use serde::Serialize;
use std::time::Duration;

/// How long `--once` waits for objects that are being completed.
const COMPLETE_WITHIN: Duration = Duration::from_secs(300);
/// Rounds of compaction in `--once`: a pack is moved in the round after the one that saw it first.
const ROUNDS_MAX: usize = 64;

#[derive(Serialize)]
struct CompletionLine {
    lacking: u64,
    unreachable: u64,
}

#[derive(Serialize)]
struct CompactionLine {
    packs: u64,
    slices: u64,
    bytes: u64,
}

/// What a round of collection did or would do.
#[derive(Serialize)]
struct CollectionLine {
    dry_run: bool,
    /// Another process does it.
    elsewhere: bool,
    objects: u64,
    bytes: u64,
    kept_young: u64,
    kept_open: u64,
    kept_retained: u64,
    kept_unreachable: u64,
    kept_bytes: u64,
}

impl CollectionLine {
    fn of(collected: &Collected, dry_run: bool) -> Self {
        let kept = &collected.kept;
        Self {
            dry_run,
            elsewhere: collected.elsewhere,
            objects: collected.objects,
            bytes: collected.bytes,
            kept_young: kept.young,
            kept_open: kept.open,
            kept_retained: kept.retained,
            kept_unreachable: kept.unreachable,
            kept_bytes: kept.bytes,
        }
    }

    fn text(&self) -> String {
        if self.elsewhere {
            return "collection: another process of the volume does it".to_owned();
        }
        let done = if self.dry_run {
            "would delete"
        } else {
            "deleted"
        };
        let (objects, bytes) = (self.objects, self.bytes);
        let mut text = format!("collection: {done} {objects} objects with {bytes} bytes");
        let reasons = [
            (self.kept_young, "not needed for less than the grace"),
            (self.kept_open, "their writers may refer to them again"),
            (
                self.kept_retained,
                "a point in the past that is kept needs them",
            ),
            (self.kept_unreachable, "a cloud did not delete them"),
        ];
        for (count, reason) in reasons {
            if count > 0 {
                text.push_str(&format!("; {count} kept: {reason}"));
            }
        }
        text
    }
}

#[derive(Serialize)]
struct SweepLine {
    elsewhere: bool,
    listed: u64,
    deleted: u64,
    foreign: u64,
    clouds_failed: u64,
}

#[derive(Serialize)]
struct StartedLine {
    grace_seconds: u64,
}

/// What a service did until it was stopped.
#[derive(Serialize)]
struct StoppedLine {
    objects: u64,
    bytes: u64,
    shards_swept: u64,
}

/// Runs the command.
pub(crate) async fn run(
    general: &General,
    arguments: &ReconcileArguments,
    output: Output,
) -> CommandResult {
    let configured = Configured::read(general)?;
    let collection = Collection::after(arguments.grace);
    let serves = !arguments.once && !arguments.dry_run;
    let access = Access::Reconciler {
        serves: serves.then_some(collection.grace),
    };
    if !arguments.dry_run {
        configured.may_collect()?;
    }
    let opened = Opened::open(&configured, access).await?;
    let newest = match arguments.dry_run {
        true => Ok(()),
        false => opened.is_newest().await,
    };
    if let Err(failure) = newest {
        opened.close().await?;
        return Err(failure);
    }
    let done = match serves {
        true => serve(&configured, &opened, collection.grace, output).await,
        false => once(&configured, &opened, arguments, &collection, output).await,
    };
    let closed = opened.close().await;
    let exit = done?;
    closed.map(|()| exit)
}

/// Runs the tasks in the background until this process is stopped.
async fn serve(
    configured: &Configured,
    opened: &Opened,
    grace: Duration,
    output: Output,
) -> CommandResult {
    let mut stop = Stop::of_a_daemon(false)?;
    let line = StartedLine {
        grace_seconds: grace.as_secs(),
    };
    output.record("reconciling", &line, |_| {
        "Reconciling until stopped.".to_owned()
    })?;
    notify::ready("reconciling");
    let remembered = opened.remember();
    let backups = BackupLoop::default().run(configured, opened, None);
    tokio::select! {
        () = stop.wanted() => {}
        () = backups => {}
        () = remembered => {}
    }
    let counters = opened.block_status().counters;
    let line = StoppedLine {
        objects: counters.objects_collected,
        bytes: counters.bytes_collected,
        shards_swept: counters.shards_swept,
    };
    output.record("reconciled", &line, |line| {
        format!(
            "Deleted {} objects with {} bytes, and {} shards that no row named.",
            line.objects, line.bytes, line.shards_swept
        )
    })?;
    Ok(Exit::Success)
}

async fn once(
    configured: &Configured,
    opened: &Opened,
    arguments: &ReconcileArguments,
    collection: &Collection,
    output: Output,
) -> CommandResult {
    let blocks = opened.blocks();
    if arguments.dry_run {
        let planned = blocks.would_collect(arguments.grace).await;
        let line = CollectionLine::of(&planned.map_err(|error| not_ordered(&error))?, true);
        output.record("collection", &line, CollectionLine::text)?;
        return Ok(Exit::Success);
    }
    let allowance = blocks.allowance();
    // What is asked for by name is done whatever it costs.
    let is_paid = |work| arguments.only.is_some() || allowance.allows(work);
    let wants = |task| {
        arguments.only.is_none_or(|only| only == task)
            && match task {
                ReconcileTask::Compaction => is_paid(PaidWork::Compaction),
                ReconcileTask::Sweep => is_paid(PaidWork::Sweep),
                ReconcileTask::Completion | ReconcileTask::Collection | ReconcileTask::Backup => {
                    true
                }
            }
    };
    if !is_paid(PaidWork::Compaction) {
        output.print_text(
            "The budget of this month is spent: compaction and the sweep wait; --only does them.",
        )?;
    }
    let mut exit = Exit::Success;
    let mut stop = Stop::of_a_command()?;
    let work = async {
        if wants(ReconcileTask::Completion) {
            let Drained {
                lacking,
                unreachable,
                ..
            } = blocks.drain(COMPLETE_WITHIN).await;
            let line = CompletionLine {
                lacking: lacking as u64,
                unreachable: unreachable as u64,
            };
            output.record("completion", &line, |line| match line.lacking {
                0 => "completion: every object is on all of its clouds".to_owned(),
                lacking => format!(
                    "completion: {lacking} objects still lack shards, {} of them only on clouds \
                     that do not answer",
                    line.unreachable
                ),
            })?;
            if lacking > 0 {
                exit = Exit::Degraded;
            }
        }
        if wants(ReconcileTask::Compaction) {
            let line = compact(blocks).await?;
            output.record("compaction", &line, |line| {
                format!(
                    "compaction: emptied {} objects, {} bytes of them not needed",
                    line.packs, line.bytes
                )
            })?;
        }
        if wants(ReconcileTask::Backup) {
            // What only the recovery point before needed goes with the collection.
            super::backup::once(configured, opened, output).await?;
        }
        if wants(ReconcileTask::Collection) {
            let collected = blocks.collect(collection).await;
            let collected = collected.map_err(|error| not_ordered(&error))?;
            let line = CollectionLine::of(&collected, false);
            output.record("collection", &line, CollectionLine::text)?;
            if collected.kept.unreachable > 0 {
                exit = Exit::Degraded;
            }
        }
        if wants(ReconcileTask::Sweep) {
            let swept = blocks.sweep_listings(collection).await;
            let swept: Swept = swept.map_err(|error| not_ordered(&error))?;
            let line = SweepLine {
                elsewhere: swept.elsewhere,
                listed: swept.listed,
                deleted: swept.deleted,
                foreign: swept.foreign,
                clouds_failed: swept.failed,
            };
            output.record("sweep", &line, |line| match line.elsewhere {
                true => "sweep: another process of the volume does it".to_owned(),
                false => format!(
                    "sweep: listed {} names, deleted {}, left {} that are not known; {} listings \
                     failed",
                    line.listed, line.deleted, line.foreign, line.clouds_failed
                ),
            })?;
            if swept.failed > 0 {
                exit = Exit::Degraded;
            }
        }
        Ok(())
    };
    tokio::select! {
        done = work => done?,
        () = stop.wanted() => {
            return Err(Failure::new(Exit::Cancelled, "stopped")
                .hint("what was deleted stays deleted; the same command goes on with the rest"));
        }
    }
    Ok(exit)
}

/// Rounds of compaction until nothing moves any more.
async fn compact(blocks: &BlockStore) -> CommandResult<CompactionLine> {
    let eager = Compaction {
        bytes_per_second: None,
        dead_bytes_min: 1,
        ..Compaction::default()
    };
    let mut line = CompactionLine {
        packs: 0,
        slices: 0,
        bytes: 0,
    };
    for round in 0..ROUNDS_MAX {
        let done: Compacted = match blocks.compact(&eager).await {
            Ok(done) => done,
            Err(CompactionError::Order(error)) => return Err(not_ordered(&error)),
            Err(CompactionError::Blocks(error)) => {
                return Err(crate::explain::block_failure(&error));
            }
        };
        line.packs += done.packs;
        line.slices += done.slices;
        line.bytes += done.bytes_freed;
        if done.slices == 0 && round > 0 {
            break;
        }
    }
    Ok(line)
}

fn not_ordered(error: &PlacementError) -> Failure {
    Failure::new(Exit::QuorumUnreachable, error.to_string())
        .hint("bring the metadata replicas back; the same command goes on where this one stopped")
}
