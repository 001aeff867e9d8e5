//! `scrub`: checks the shards of all objects, and restores missing and bad ones.
//!
//! It opens a session of its own, next to a mount if there is one. Its position is stored in the
//! state directory every few seconds, so that after an interruption the next scrub with the same
//! options goes on there; one with other options begins anew. Findings of the interrupted scrubs
//! count in the result of the last one.

mod position;

use super::cloud;
use super::mount_report::PoisonedReport;
use super::opened::{Access, Configured, Opened};
use crate::arguments::{General, ScrubArguments};
use crate::exit::Exit;
use crate::explain::{key_failure, share_failure};
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use crate::stop::Stop;
use position::{Counts, Position, Wanted};
use quorumfs_gateway::blocks::{ScrubConfig, ScrubDepth, ScrubReport};
use quorumfs_gateway::cost::PaidWork;
use quorumfs_gateway::keys::Secret;
use quorumfs_metadata::fleet::CloudState;
use quorumfs_metadata::identity::CloudIndex;
use serde::Serialize;
use std::io::{IsTerminal, Write};
use std::num::NonZeroU64;
use std::time::Duration;

/// The interval of progress lines.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// How long the end waits for objects that are still being completed.
const SETTLE_WITHIN: Duration = Duration::from_secs(10);

#[derive(Serialize)]
struct Progress {
    objects: u64,
    good: u64,
    missing_or_bad: u64,
    unreachable: u64,
    restored: u64,
    bytes: u64,
    seconds: u64,
    position: Option<String>,
}

impl Progress {
    fn of(report: &ScrubReport) -> Self {
        Self {
            objects: report.objects,
            good: report.good(),
            missing_or_bad: report.found(),
            unreachable: report.unreachable(),
            restored: report.restored,
            bytes: report.bytes,
            seconds: report.elapsed().as_secs(),
            position: report.position.map(position::digits),
        }
    }
}

#[derive(Serialize)]
struct CloudLine<'a> {
    name: &'a str,
    good: u64,
    missing: u64,
    damaged: u64,
    unreachable: u64,
}

#[derive(Serialize)]
struct ScrubSummary {
    /// `whole`, `restored`, `lacking`, `poisoned` or `lost`.
    outcome: &'static str,
    /// Whether it went on where an earlier one was stopped.
    resumed: bool,
    #[serde(flatten)]
    counts: Counts,
    lacking: u64,
}

/// Runs the command.
pub(crate) async fn run(
    general: &General,
    arguments: &ScrubArguments,
    output: Output,
) -> CommandResult {
    let configured = Configured::read(general)?;
    let cloud = match &arguments.cloud {
        Some(name) => Some(cloud::named(&configured, name)?.0),
        None => None,
    };
    let _lock = configured.state().lock_as("scrub.lock", "scrub")?;
    let wanted = Wanted {
        cloud,
        per_million: (!arguments.full).then_some(arguments.sample),
        repair: arguments.repair,
    };
    let seed = Secret::random().map_err(|error| key_failure(&error))?;
    let mebibytes = |rate: std::num::NonZeroU32| NonZeroU64::from(rate).saturating_mul(MIB);
    let config = ScrubConfig {
        depth: match wanted.per_million {
            Some(per_million) => ScrubDepth::Sample { per_million },
            None => ScrubDepth::Full,
        },
        cloud: cloud.map(CloudIndex),
        bytes_per_second: arguments.rate.map(mebibytes),
        repair: arguments.repair,
        seed: *seed.expose(),
        ..ScrubConfig::default()
    };
    let position = Position::find(configured.state(), wanted);
    let opened = Opened::open(&configured, Access::Command).await?;
    let is_paid = arguments.over_budget || opened.blocks().allowance().allows(PaidWork::Scrub);
    let outcome = match is_paid {
        true => scrub(&configured, &opened, &config, position, output).await,
        false => Err(over_budget()),
    };
    let closed = opened.close().await;
    let exit = outcome?;
    closed.map(|()| exit)
}

fn over_budget() -> Failure {
    let message = "the budget of this month is spent, so nothing is scrubbed";
    Failure::new(Exit::NoSpace, message)
        .hint("scrub all the same with --over-budget; `quorumfs cost` shows what was spent")
}

const MIB: NonZeroU64 = NonZeroU64::MIN.saturating_add((1 << 20) - 1);

async fn scrub(
    configured: &Configured,
    opened: &Opened,
    config: &ScrubConfig,
    mut position: Position,
    output: Output,
) -> CommandResult {
    let blocks = opened.blocks();
    let mut stop = Stop::of_a_command()?;
    let resumed = position.after.is_some();
    if resumed {
        let counted = position.before.objects;
        output.print_text(&format!(
            "going on after the {counted} objects of last time"
        ))?;
    }
    let from = position.after;
    let work = blocks.scrub(config, from);
    tokio::pin!(work);
    let mut tell = tokio::time::interval(TELL_EVERY);
    let report = loop {
        tokio::select! {
            done = &mut work => break done,
            () = stop.wanted() => {
                let report = blocks.status().scrub.unwrap_or_default();
                position.keep(&report)?;
                clear_line(output);
                let message = format!("stopped after {} objects", position.counts(&report).objects);
                return Err(Failure::new(Exit::Cancelled, message)
                    .hint("`quorumfs scrub` with the same options goes on there"));
            }
            _ = tell.tick() => {
                let report = blocks.status().scrub.unwrap_or_default();
                position.keep(&report)?;
                show(&report, output)?;
            }
        }
    };
    clear_line(output);
    let report = report.map_err(|error| {
        let _ = position.keep(&blocks.status().scrub.unwrap_or_default());
        Failure::new(Exit::QuorumUnreachable, error.to_string()).hint(
            "bring the metadata replicas back; the same command goes on where this one stopped",
        )
    })?;
    let report = match opened.volume().current_shares() {
        Some(shares) => {
            let looked = blocks.scrub_shares(&shares, config).await;
            looked.map_err(|error| share_failure(&error))?
        }
        None => report,
    };
    let lacking = match (config.repair, report.lacking) {
        (false, lacking) => lacking,
        (true, 0) => 0,
        // Some shards may be on their way, from here or from elsewhere.
        (true, _) => blocks.drain(SETTLE_WITHIN).await.lacking as u64,
    };
    let counts = position.counts(&report);
    position.forget()?;
    for poisoned in PoisonedReport::some(&blocks.status().poisoned) {
        output.record("poisoned", &poisoned, |it| {
            format!("{} is poisoned: {} wrote it wrong", it.object, it.writer)
        })?;
    }
    finish(
        configured,
        &report,
        counts,
        (lacking, resumed, config.repair),
        output,
    )
}

fn show(report: &ScrubReport, output: Output) -> CommandResult<()> {
    if output.is_json() {
        return output.record("progress", &Progress::of(report), |_| String::new());
    }
    let mut stderr = std::io::stderr().lock();
    if stderr.is_terminal() {
        let seconds = report.elapsed().as_secs_f64().max(0.001);
        let line = format!(
            "\r\x1b[K{} objects, {} shards good, {} missing or bad, {} restored, {:.1} MiB/s",
            report.objects,
            report.good(),
            report.found(),
            report.restored,
            report.bytes as f64 / seconds / f64::from(1 << 20),
        );
        let _ = stderr
            .write_all(line.as_bytes())
            .and_then(|()| stderr.flush());
    }
    Ok(())
}

fn clear_line(output: Output) {
    let mut stderr = std::io::stderr().lock();
    if !output.is_json() && stderr.is_terminal() {
        let _ = stderr.write_all(b"\r\x1b[K");
    }
}

fn finish(
    configured: &Configured,
    report: &ScrubReport,
    counts: Counts,
    (lacking, resumed, repair): (u64, bool, bool),
    output: Output,
) -> CommandResult {
    for found in &report.clouds {
        let Some(cloud) = configured.clouds().get(usize::from(found.index)) else {
            continue;
        };
        let checked = found.good + found.missing + found.damaged + found.unreachable;
        let state = configured.volume().fleet().state(CloudIndex(found.index));
        if checked == 0 && state != CloudState::Active {
            continue;
        }
        let line = CloudLine {
            name: &cloud.name,
            good: found.good,
            missing: found.missing,
            damaged: found.damaged,
            unreachable: found.unreachable,
        };
        output.record("cloud", &line, |it| {
            format!(
                "{:<12} {} good, {} missing, {} bad, {} could not be checked",
                it.name, it.good, it.missing, it.damaged, it.unreachable
            )
        })?;
    }
    let is_left = lacking > 0 || counts.unreachable > 0 || (counts.found > 0 && !repair);
    let (outcome, exit) = if counts.lost > 0 {
        ("lost", Exit::Damaged)
    } else if counts.poisoned > 0 {
        ("poisoned", Exit::Damaged)
    } else if is_left {
        ("lacking", Exit::Degraded)
    } else if counts.found > 0 {
        ("restored", Exit::Restored)
    } else {
        ("whole", Exit::Success)
    };
    let summary = ScrubSummary {
        outcome,
        resumed,
        counts,
        lacking,
    };
    output.record("scrub", &summary, people)?;
    Ok(exit)
}

fn people(summary: &ScrubSummary) -> String {
    let Counts {
        objects,
        found,
        restored,
        unreachable,
        lost,
        poisoned,
        ..
    } = &summary.counts;
    let text =
        format!("{objects} objects: {found} shards were missing or bad, {restored} restored");
    match summary.outcome {
        "whole" => format!("{objects} objects: all shards that were checked are good"),
        "restored" => text,
        "poisoned" => format!(
            "{text}; {poisoned} objects are poisoned: they cannot be read, and no cloud is to \
             blame; restore their files"
        ),
        "lost" => format!("{text}; {lost} objects cannot be rebuilt"),
        _ => format!(
            "{text}; {} objects still lack shards, {unreachable} shards could not be checked; \
             `quorumfs status` shows which clouds do not answer",
            summary.lacking
        ),
    }
}
