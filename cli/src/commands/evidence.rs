//! `cloud evidence`: the recorded faults of clouds, in a form that can be shown to a provider.
//!
//! For each stored finding: the object's name at that cloud, when its commit was ordered, what the
//! cloud acknowledged, what it answers now, and what follows from the two. The command opens a
//! session of its own, because the names follow from the volume's keys.

use super::cloud::named;
use super::files::date;
use super::opened::{Access, Configured, Opened};
use crate::arguments::{CloudEvidenceArguments, General};
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use quorumfs_bft::identity::Time;
use quorumfs_gateway::blocks::{CloudEvidence, Testimony};
use quorumfs_metadata::identity::CloudIndex;
use quorumfs_metadata::row::{FaultKind, Verdict};
use serde::Serialize;

#[derive(Serialize)]
struct Line<'a> {
    cloud: &'a str,
    /// The name that the provider can look up, below the volume's prefix.
    name: &'a str,
    object: String,
    shard: u8,
    attempt: u8,
    fault: &'static str,
    /// `cloud`, `writer` or `undecided`.
    verdict: &'static str,
    /// When the object's commit was ordered; a shard that was written again was put later.
    committed: String,
    /// What the cloud acknowledged.
    receipt: Option<String>,
    /// What it answers now.
    found: Option<String>,
    /// The shard's digest, as it was ordered.
    digest: String,
    writer: String,
    witness: String,
    testified: String,
}

#[derive(Serialize)]
struct EvidenceSummary<'a> {
    cloud: &'a str,
    /// All reported faults.
    total: u64,
    /// How many of them are stored.
    kept: usize,
}

/// Runs the command.
pub(crate) async fn run(
    general: &General,
    arguments: &CloudEvidenceArguments,
    output: Output,
) -> CommandResult {
    let configured = Configured::read(general)?;
    let only = match &arguments.name {
        Some(name) => Some(CloudIndex(named(&configured, name)?.0)),
        None => None,
    };
    let opened = Opened::open(&configured, Access::Reading).await?;
    let found = opened.blocks().evidence(only).await;
    let closed = opened.close().await;
    let found = found.map_err(|error| {
        Failure::new(Exit::QuorumUnreachable, error.to_string())
            .hint("bring the metadata replicas back")
    })?;
    for cloud in &found {
        show(&configured, cloud, output)?;
    }
    closed.map(|()| Exit::Success)
}

fn show(configured: &Configured, found: &CloudEvidence, output: Output) -> CommandResult<()> {
    let known = configured.clouds().get(usize::from(found.index.0));
    let cloud = known.map_or("?", |it| it.name.as_str());
    for testimony in &found.kept {
        output.record("evidence", &line(cloud, testimony), people)?;
    }
    let summary = EvidenceSummary {
        cloud,
        total: found.total,
        kept: found.kept.len(),
    };
    output.record("clouds_evidence", &summary, |it| match it.total {
        0 => format!("{}: no faults were found", it.cloud),
        total => format!(
            "{}: {total} faults were found, {} are stored",
            it.cloud, it.kept
        ),
    })
}

fn line<'a>(cloud: &'a str, testimony: &'a Testimony) -> Line<'a> {
    let evidence = &testimony.evidence;
    Line {
        cloud,
        name: testimony.name.as_deref().unwrap_or("?"),
        object: evidence.object.to_string(),
        shard: evidence.shard.0,
        attempt: evidence.attempt,
        fault: match evidence.fault {
            FaultKind::Missing => "missing",
            FaultKind::WrongBytes => "wrong bytes",
            FaultKind::WrongReceipt => "wrong receipt",
        },
        verdict: match evidence.verdict() {
            Verdict::Cloud => "cloud",
            Verdict::Writer => "writer",
            Verdict::Undecided => "undecided",
        },
        committed: when(evidence.committed),
        receipt: evidence.receipt.map(|it| it.to_string()),
        found: evidence.found.map(|it| it.to_string()),
        digest: evidence.digest.to_string(),
        writer: testimony.writer.to_string(),
        witness: testimony.witness.to_string(),
        testified: when(evidence.testified),
    }
}

fn people(line: &Line<'_>) -> String {
    let taken = line.receipt.as_deref().unwrap_or("nothing that is stored");
    let now = match line.fault {
        "missing" => "that it does not have it",
        _ => line.found.as_deref().unwrap_or("other bytes"),
    };
    let verdict = match line.verdict {
        "cloud" => "the cloud's fault: it does not hold what it acknowledged",
        "writer" => {
            "not the cloud's fault: it holds what it acknowledged, and that differs from what \
             was ordered"
        }
        _ => "undecided: there is no receipt to compare with",
    };
    format!(
        "{}  {}  {}\n  committed {}: the cloud acknowledged {taken}; found {}: it answers {now}\n  \
         by {}; reported by {}\n  {verdict}",
        line.cloud,
        line.name,
        line.fault,
        line.committed,
        line.testified,
        line.writer,
        line.witness
    )
}

fn when(time: Time) -> String {
    let seconds = time.0 / 1_000_000_000;
    date(i64::try_from(seconds).unwrap_or(i64::MAX))
}
