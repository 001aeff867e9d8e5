//! Runs simulated clusters, seed by seed, and says what came of it.
//!
//! ```text
//! simulate --seeds 5000 --start 1 --json      many seeds, one JSON line at the end
//! simulate --seeds 1 --start 77 --trace       one seed, event by event
//! simulate --seeds 500 --sabotage all         each built-in defect, and how many seeds see it
//! ```
//!
//! The exit code is 1 if anything was violated or stalled, or if a sabotage was not caught.

use clap::Parser;
use quorumfs_bft::replica::Sabotage;
use quorumfs_bft_simulator::counters::{Counters, KNOWN};
use quorumfs_bft_simulator::profile::Profile;
use quorumfs_bft_simulator::report::Report;
use quorumfs_tests::simulate::{Service, name, run_seed};
use serde_json::{Map, Value, json};
use std::process::ExitCode;
use std::time::Instant;

/// Runs simulated clusters.
#[derive(Parser, Debug)]
#[command(name = "simulate", version)]
struct Arguments {
    /// How many seeds to run.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    start: u64,
    /// What may go wrong: mixed, calm, network, crash, disk, byzantine, twins, clock, clients.
    #[arg(long, default_value = "mixed")]
    profile: Profile,
    /// The service: alternate (by the seed's parity), key-value or metadata.
    #[arg(long, default_value = "alternate")]
    service: Service,
    /// Builds a defect into every honest replica; `all` tries each in turn.
    #[arg(long)]
    sabotage: Option<String>,
    /// Ends with one line of JSON only.
    #[arg(long)]
    json: bool,
    /// Prints what happens.
    #[arg(long)]
    trace: bool,
}

/// How many failed seeds are told one by one.
const TOLD_MAX: usize = 40;
/// A sabotage is caught if at least so many seeds see it.
const CAUGHT_MIN: u64 = 2;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.sabotage.as_deref() {
        Some("all") => sabotages(&arguments),
        Some(wanted) => match Sabotage::ALL.into_iter().find(|s| name(*s) == wanted) {
            Some(sabotage) => seeds(&arguments, Some(sabotage)),
            None => {
                let names = Sabotage::ALL.map(name).join(", ");
                eprintln!("there is no sabotage {wanted:?}; there are all, {names}");
                ExitCode::from(2)
            }
        },
        None => seeds(&arguments, None),
    }
}

/// What many seeds came to.
#[derive(Default)]
struct Summary {
    seeds: u64,
    violations: u64,
    stalls: u64,
    operations: Vec<usize>,
    faults: Vec<usize>,
    milliseconds: Vec<f64>,
    virtual_seconds: f64,
    counters: Counters,
    told: usize,
}

impl Summary {
    fn add(&mut self, report: &Report, milliseconds: f64) {
        self.seeds += 1;
        self.violations += u64::from(!report.violations.is_empty());
        self.stalls += u64::from(!report.stalls.is_empty());
        self.operations.push(report.operations);
        self.faults.push(report.faults);
        self.milliseconds.push(milliseconds);
        self.virtual_seconds += report.virtual_nanos as f64 / 1e9;
        self.counters.merge(&report.counters);
    }

    fn tell(&mut self, arguments: &Arguments, report: &Report) {
        if report.passed() || self.told >= TOLD_MAX {
            return;
        }
        self.told += 1;
        for what in &report.violations {
            eprintln!("seed {}: violation: {what}", report.seed);
        }
        for what in &report.stalls {
            eprintln!("seed {}: stall: {what}", report.seed);
        }
        let mut replay = format!(
            "cargo run --release -p quorumfs-tests --bin simulate -- --seeds 1 --start {} --profile {} --service {} --trace",
            report.seed, arguments.profile, arguments.service
        );
        if let Some(sabotage) = &arguments.sabotage {
            replay.push_str(&format!(" --sabotage {sabotage}"));
        }
        eprintln!("seed {}: replay: {replay}", report.seed);
    }

    fn json(&mut self) -> Value {
        let mut line = Map::new();
        line.insert("seeds".into(), json!(self.seeds));
        line.insert("violations".into(), json!(self.violations));
        line.insert("stalls".into(), json!(self.stalls));
        self.milliseconds.sort_by(f64::total_cmp);
        self.operations.sort_unstable();
        self.faults.sort_unstable();
        let milliseconds = |share: f64| json!(round(quantile(&self.milliseconds, share)));
        line.insert("median_ms".into(), milliseconds(0.5));
        line.insert("p99_ms".into(), milliseconds(0.99));
        line.insert("max_ms".into(), milliseconds(1.0));
        line.insert(
            "operations_min".into(),
            json!(quantile(&self.operations, 0.0)),
        );
        line.insert(
            "operations_median".into(),
            json!(quantile(&self.operations, 0.5)),
        );
        line.insert(
            "operations_max".into(),
            json!(quantile(&self.operations, 1.0)),
        );
        line.insert("faults_min".into(), json!(quantile(&self.faults, 0.0)));
        line.insert("faults_median".into(), json!(quantile(&self.faults, 0.5)));
        line.insert("virtual_seconds".into(), json!(round(self.virtual_seconds)));
        let zero: Vec<&str> = KNOWN
            .iter()
            .filter(|name| self.counters.get(name) == 0)
            .copied()
            .collect();
        line.insert("counters_at_zero".into(), json!(zero));
        for (name, count) in self.counters.iter() {
            line.insert(name.into(), json!(count));
        }
        Value::Object(line)
    }
}

fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

fn quantile<T: Copy + Default>(sorted: &[T], share: f64) -> T {
    let last = sorted.len().saturating_sub(1);
    let index = (last as f64 * share).round() as usize;
    sorted.get(index).copied().unwrap_or_default()
}

fn run_all(arguments: &Arguments, sabotage: Option<Sabotage>) -> Summary {
    let mut summary = Summary::default();
    for seed in arguments.start..arguments.start.saturating_add(arguments.seeds) {
        let mut print = |line: &str| println!("{line}");
        let trace: Option<&mut dyn FnMut(&str)> = match arguments.trace {
            true => Some(&mut print),
            false => None,
        };
        let begun = Instant::now();
        let report = run_seed(seed, arguments.profile, arguments.service, sabotage, trace);
        summary.add(&report, begun.elapsed().as_secs_f64() * 1e3);
        if sabotage.is_none() || arguments.seeds == 1 {
            summary.tell(arguments, &report);
        }
        if !arguments.json && summary.seeds.is_multiple_of(500) {
            eprintln!(
                "{} seeds, {} violations, {} stalls",
                summary.seeds, summary.violations, summary.stalls
            );
        }
    }
    summary
}

fn seeds(arguments: &Arguments, sabotage: Option<Sabotage>) -> ExitCode {
    let mut summary = run_all(arguments, sabotage);
    let line = summary.json();
    if arguments.json {
        println!("{line}");
    } else if let Ok(text) = serde_json::to_string_pretty(&line) {
        println!("{text}");
    }
    ExitCode::from(u8::from(summary.violations + summary.stalls > 0))
}

fn sabotages(arguments: &Arguments) -> ExitCode {
    let mut line = Map::new();
    let mut missed = 0;
    for sabotage in Sabotage::ALL {
        let summary = run_all(arguments, Some(sabotage));
        let caught = summary.violations + summary.stalls;
        if caught < CAUGHT_MIN {
            missed += 1;
        }
        if !arguments.json {
            println!(
                "{:40} {:5} violations {:5} stalls of {} seeds",
                name(sabotage),
                summary.violations,
                summary.stalls,
                summary.seeds
            );
        }
        line.insert(
            name(sabotage),
            json!({"violations": summary.violations, "stalls": summary.stalls}),
        );
    }
    line.insert("seeds".into(), json!(arguments.seeds));
    line.insert("missed".into(), json!(missed));
    println!("{}", Value::Object(line));
    ExitCode::from(u8::from(missed > 0))
}
