//! Simulated clouds: many seeds, one seed event by event, every crash of a seed, the planted
//! defects.

use super::{REPORTED_MAX, RunProfile, SEEDS_NAMED_MAX, SimulateArguments, milliseconds};
use quorumfs_gateway::blocks::Sabotage;
use quorumfs_metadata::placement::Policy;
use quorumfs_tests::simulate::{CloudOptions, CloudReport, CloudSummary, run_clouds, spelled};
use serde_json::{Map, Value, json};
use std::process::ExitCode;

/// A defect has to be seen within this many seeds.
const SABOTAGE_SEEDS: u64 = 100;

/// Reads `n,f,k`; all n shards are kept.
pub(crate) fn policy(text: &str) -> Result<Policy, String> {
    let numbers: Result<Vec<u8>, _> = text.split(',').map(|part| part.trim().parse()).collect();
    match numbers.map_err(|error| error.to_string())?.as_slice() {
        [n, f, k] => Policy::new(*n, *f, *k, *n).map_err(|error| error.to_string()),
        _ => Err("three numbers with commas between them, such as 4,1,2".to_owned()),
    }
}

pub(crate) fn main(arguments: &SimulateArguments) -> ExitCode {
    match arguments.sabotage.as_deref() {
        None => seeds(arguments, None),
        Some("all") => sabotages(arguments),
        Some(wanted) => match defects(arguments).into_iter().find(|s| name(*s) == wanted) {
            Some(sabotage) => seeds(arguments, Some(sabotage)),
            None => {
                let names: Vec<String> = defects(arguments).into_iter().map(name).collect();
                let names = names.join(", ");
                eprintln!(
                    "there is no sabotage {wanted:?} of clouds; choose all or one of: {names}"
                );
                ExitCode::from(2)
            }
        },
    }
}

fn name(sabotage: Sabotage) -> String {
    spelled(&format!("{sabotage:?}"))
}

fn options(arguments: &SimulateArguments, seed: u64, sabotage: Option<Sabotage>) -> CloudOptions {
    CloudOptions {
        policy: arguments.policy,
        sabotage,
        reconciles: reconciles(arguments),
        replaces: arguments.profile == RunProfile::Replace,
        ..CloudOptions::new(seed)
    }
}

fn reconciles(arguments: &SimulateArguments) -> bool {
    arguments.profile == RunProfile::Reconcile
}

/// The defects that seeds of this profile look for.
fn defects(arguments: &SimulateArguments) -> Vec<Sabotage> {
    match reconciles(arguments) {
        true => Sabotage::OF_COLLECTION.to_vec(),
        false => Sabotage::ALL.to_vec(),
    }
}

fn run(arguments: &SimulateArguments, options: CloudOptions) -> CloudReport {
    let mut print = |line: &str| println!("{line}");
    match arguments.trace {
        true => run_clouds(options, Some(&mut print)),
        false => run_clouds(options, None),
    }
}

/// Reports what failed, and how to reproduce it.
fn report_failure(arguments: &SimulateArguments, report: &CloudReport, crash_at: Option<u64>) {
    let seed = report.seed;
    for what in &report.violations {
        eprintln!("seed {seed}: violation: {what}");
    }
    for what in &report.stalls {
        eprintln!("seed {seed}: stall: {what}");
    }
    if let Some(step) = crash_at {
        eprintln!("seed {seed}: with a crash at step {step} (--every-crash)");
    }
    let mut replay = format!(
        "cargo run --release -p quorumfs-tests --bin simulate -- --clouds --seeds 1 --start {seed} \
         --trace"
    );
    if let Some(policy) = &arguments.policy {
        let (n, f, k) = (policy.clouds(), policy.faulty(), policy.data());
        replay.push_str(&format!(" --policy {n},{f},{k}"));
    }
    if reconciles(arguments) {
        replay.push_str(" --profile reconcile");
    }
    if arguments.profile == RunProfile::Replace {
        replay.push_str(" --profile replace");
    }
    if let Some(sabotage) = &arguments.sabotage {
        replay.push_str(&format!(" --sabotage {sabotage}"));
    }
    eprintln!("seed {seed}: replay: {replay}");
}

fn seeds(arguments: &SimulateArguments, sabotage: Option<Sabotage>) -> ExitCode {
    let mut summary = match reconciles(arguments) {
        true => CloudSummary::of_reconcile(),
        false => CloudSummary::default(),
    };
    let mut reported = 0;
    for seed in arguments.start..arguments.start.saturating_add(arguments.seeds) {
        let mut crash_at = arguments.every_crash.then_some(1);
        loop {
            let begun = milliseconds();
            let options = CloudOptions {
                crash_at,
                ..options(arguments, seed, sabotage)
            };
            let report = run(arguments, options);
            summary.add(&report, milliseconds() - begun);
            if !report.passed() && reported < REPORTED_MAX {
                reported += 1;
                report_failure(arguments, &report, crash_at);
            }
            // Once the first life took fewer steps than this, there is no later step to crash at.
            match crash_at {
                Some(step) if step <= report.first_life_steps => crash_at = Some(step + 1),
                _ => break,
            }
        }
        if !arguments.json && summary.seeds.is_multiple_of(500) {
            eprintln!(
                "{} seeds, {} violations, {} stalls",
                summary.seeds, summary.violations, summary.stalls
            );
        }
    }
    // A chosen policy does not have to exercise everything.
    let whole = arguments.policy.is_none() && sabotage.is_none() && !arguments.every_crash;
    let shortcomings = match whole {
        true => summary.shortcomings(),
        false => Vec::new(),
    };
    for what in &shortcomings {
        eprintln!("too little: {what}");
    }
    let failed = summary.violations + summary.stalls > 0 || !shortcomings.is_empty();
    let mut line = summary.json();
    line.insert("shortcomings".into(), json!(shortcomings));
    let line = Value::Object(line);
    if arguments.json {
        println!("{line}");
    } else if let Ok(text) = serde_json::to_string_pretty(&line) {
        println!("{text}");
    }
    ExitCode::from(u8::from(failed))
}

/// Tries each defect over the same seeds, until enough of them have seen it. A seed sees a defect
/// if it fails with the defect and passes without.
fn sabotages(arguments: &SimulateArguments) -> ExitCode {
    let mut missed = 0;
    let seeds = arguments.seeds.max(SABOTAGE_SEEDS);
    for sabotage in defects(arguments) {
        let range = arguments.start..arguments.start.saturating_add(seeds);
        let seen: Vec<u64> = range
            .filter(|seed| !run_clouds(options(arguments, *seed, Some(sabotage)), None).passed())
            .filter(|seed| run_clouds(options(arguments, *seed, None), None).passed())
            .take(arguments.enough.unwrap_or(usize::MAX).max(1))
            .collect();
        missed += u64::from(seen.is_empty());
        let first: Vec<&u64> = seen.iter().take(SEEDS_NAMED_MAX).collect();
        if arguments.json {
            let mut line = Map::new();
            line.insert("sabotage".into(), json!(name(sabotage)));
            line.insert("seeds".into(), json!(seeds));
            line.insert("caught".into(), json!(seen.len()));
            line.insert("caught_by".into(), json!(first));
            println!("{}", Value::Object(line));
        } else {
            let (name, caught) = (name(sabotage), seen.len());
            println!("{name:40} caught by {caught:4} of {seeds} seeds: {first:?}");
        }
    }
    ExitCode::from(u8::from(missed > 0))
}
