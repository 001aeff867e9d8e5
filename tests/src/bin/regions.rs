//! `regions`: a network of places that are far apart, on this machine, and what a volume is like in
//! it.
//!
//! ```text
//! cargo run --release -p quorumfs-tests --bin regions -- measure --repeats 15
//! cargo run --release -p quorumfs-tests --bin regions -- endure --scene cut
//! cargo run --release -p quorumfs-tests --bin regions -- network PLAN.json
//! ```
//!
//! `measure` prints a JSON line for each operation and mount, and one for the queries of each
//! mount; it ends with exit code 0 only if nothing took longer than it may. `endure` prints a line
//! for each finding, and ends with exit code 0 only if everything holds that has to. `network`
//! prints a line for each endpoint: its address, and the process whose network namespace it is
//! (`nsenter --target PID --net`). It then reads changes from standard input, one JSON object a
//! line, answers each, and ends with its input. It needs root.

use anyhow::{Context, anyhow, ensure};
use clap::{Parser, Subcommand};
use quorumfs_tests::regions::Regions;
use quorumfs_tests::regions::endure::{EnduranceScene, EnduranceSizes, endure};
use quorumfs_tests::regions::measure::{Figure, Measuring, predict, too_slow};
use quorumfs_tests::regions::volume::FarVolume;
use serde::Deserialize;
use serde_json::json;
use std::fs;
use std::io::{BufRead, stdin};
use std::path::PathBuf;

/// A network of places that are far apart, on this machine.
#[derive(Parser)]
struct RegionsArguments {
    #[command(subcommand)]
    command: RegionsCommand,
}

#[derive(Subcommand)]
enum RegionsCommand {
    /// Measure what operations take from several places
    Measure {
        /// The places of the replicas; the first one leads at the beginning
        #[arg(
            long,
            value_delimiter = ',',
            default_value = "frankfurt,dublin,virginia,oregon"
        )]
        replicas: Vec<String>,
        /// The places of the mounts
        #[arg(
            long,
            value_delimiter = ',',
            default_value = "frankfurt,virginia,tokyo"
        )]
        mounts: Vec<String>,
        /// How often each operation is done
        #[arg(long, default_value_t = 15)]
        repeats: usize,
        /// How the replicas authenticate votes: sig or mac
        #[arg(long, default_value = "sig")]
        authentication: String,
        /// Print a table, not JSON lines
        #[arg(long)]
        table: bool,
    },
    /// Show what a volume endures over bad links
    Endure {
        /// Only this scene; may be repeated
        #[arg(long, value_enum)]
        scene: Vec<EnduranceScene>,
        #[command(flatten)]
        sizes: EnduranceSizes,
    },
    /// Make a network and change it, as standard input says
    Network {
        /// Places, endpoints and links, in JSON
        plan: PathBuf,
    },
}

/// A change of a running network.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkChange {
    from: String,
    to: String,
    delay_ms: Option<f64>,
    jitter_ms: Option<f64>,
    loss_percent: Option<f64>,
    rate_mbit: Option<f64>,
    cut: Option<bool>,
}

fn main() -> anyhow::Result<()> {
    match RegionsArguments::parse().command {
        RegionsCommand::Measure {
            replicas,
            mounts,
            repeats,
            authentication,
            table,
        } => {
            let measuring = Measuring {
                replicas,
                mounts,
                repeats,
                authentication,
            };
            measure(&measuring, table)
        }
        RegionsCommand::Endure { scene, sizes } => {
            let scenes = match scene.is_empty() {
                true => EnduranceScene::ALL.to_vec(),
                false => scene,
            };
            let mut wrong = Vec::new();
            for scene in scenes {
                let tell = &mut |finding: &str| println!("{scene}: {finding}");
                if let Err(error) = endure(scene, &sizes, tell) {
                    wrong.push(format!("{scene}: {error:#}"));
                }
            }
            ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
            Ok(())
        }
        RegionsCommand::Network { plan } => {
            let text = fs::read_to_string(&plan);
            let text = text.with_context(|| format!("read {}", plan.display()))?;
            let parsed = serde_json::from_str(&text);
            let parsed = parsed.with_context(|| format!("{} is no plan", plan.display()))?;
            run(&Regions::start(parsed)?)
        }
    }
}

fn measure(measuring: &Measuring, table: bool) -> anyhow::Result<()> {
    let volume = FarVolume::start(measuring)?;
    let before = volume.queries()?;
    let mut figures = volume.measure(measuring.repeats)?;
    let after = volume.queries()?;
    predict(measuring, &mut figures)?;
    let slow = too_slow(&figures);
    if table {
        print_table(measuring, &figures)?;
    } else {
        for figure in &figures {
            println!("{}", serde_json::to_string(figure)?);
        }
    }
    for (place, (unordered, ordered)) in after {
        let (unordered_before, ordered_before) = before.get(&place).copied().unwrap_or_default();
        let unordered = unordered.saturating_sub(unordered_before);
        let ordered = ordered.saturating_sub(ordered_before);
        let line = json!({ "mount": place, "queries_unordered": unordered,
            "queries_ordered": ordered });
        match table {
            true => println!("{place}: {unordered} queries unordered, {ordered} ordered"),
            false => println!("{line}"),
        }
    }
    ensure!(slow.is_empty(), "{}", slow.join("\n"));
    Ok(())
}

fn print_table(measuring: &Measuring, figures: &[Figure]) -> anyhow::Result<()> {
    let replicas = measuring.replicas.join(", ");
    println!(
        "Replicas in {replicas}; the first leads; {}.",
        measuring.authentication
    );
    println!(
        "{:<12}{:<10}{:>10}{:>12}{:>8}",
        "mount", "operation", "median", "predicted", "ratio"
    );
    for figure in figures {
        let predicted = figure.predicted_ms;
        let operation = serde_json::to_value(figure.operation)?;
        println!(
            "{:<12}{:<10}{:>7.1} ms{:>12}{:>8}",
            figure.mount,
            operation.as_str().unwrap_or_default(),
            figure.median_ms,
            predicted.map_or_else(String::new, |it| format!("{it:.1} ms")),
            predicted.map_or_else(String::new, |it| format!("{:.2}", figure.median_ms / it)),
        );
    }
    Ok(())
}

fn run(regions: &Regions) -> anyhow::Result<()> {
    for endpoint in &regions.plan().endpoints {
        let (address, process) = (
            regions.address(&endpoint.name),
            regions.process(&endpoint.name),
        );
        let line = json!({ "endpoint": endpoint.name, "address": address, "process": process });
        println!("{line}");
    }
    for line in stdin().lock().lines() {
        let answer = match change(regions, &line?) {
            Ok(()) => json!({ "changed": true }),
            Err(error) => json!({ "error": format!("{error:#}") }),
        };
        println!("{answer}");
    }
    Ok(())
}

fn change(regions: &Regions, line: &str) -> anyhow::Result<()> {
    let change: LinkChange = serde_json::from_str(line).context("the line is no change")?;
    let changed = regions.change(&change.from, &change.to, |link| {
        link.delay_ms = change.delay_ms.unwrap_or(link.delay_ms);
        link.jitter_ms = change.jitter_ms.unwrap_or(link.jitter_ms);
        link.loss_percent = change.loss_percent.unwrap_or(link.loss_percent);
        link.rate_mbit = change.rate_mbit.or(link.rate_mbit);
        link.cut = change.cut.unwrap_or(link.cut);
    });
    changed.map_err(|error| anyhow!("{error}"))
}
