//! Runs simulated clusters, seed by seed, and reports the results.
//!
//! ```text
//! simulate --seeds 5000 --start 1 --json      many seeds, one JSON line at the end
//! simulate --seeds 1 --start 77 --trace       one seed, event by event
//! simulate --sabotage all --seeds 500 --json  each built-in defect, and how many seeds see it
//! simulate --fault-model 0,1 --service metadata
//!                                             two replicas that have to agree on everything: finds
//!                                             a service that is not deterministic
//! simulate --replay FILE --trace              a recording of a real replica, event by event
//! simulate --clouds --seeds 20000 --json      simulated clouds instead, with the block store over
//!                                             them; --policy 4,1,2 fixes n, f and k
//! simulate --clouds --sabotage all            its built-in defects
//! ```
//!
//! A seed sees a defect if it fails with it and passes without; for each defect there is a line
//! with the first seeds that see it. The exit code is 1 in these cases: a seed had a violation or a
//! stall; fewer than five of 500 seeds saw a sabotage; too little happened in a large run of the
//! mixed profile, or of that of regions, for the run to mean anything; a replay differs from the
//! recording. Times are processor times of the thread that did the work, so that they are the same
//! on a busy machine.

mod clouds;

use clap::Parser;
use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft::sabotage::Sabotage;
use quorumfs_bft_simulator::profile::{Profile, UnknownProfile};
use quorumfs_bft_simulator::replay::{End, Replayed};
use quorumfs_bft_simulator::report::Report;
use quorumfs_bft_simulator::simulation::Options;
use quorumfs_metadata::placement::Policy;
use quorumfs_tests::simulate::{
    Service, ServiceDefect, Summary, name, replay, replay_flawed, run_seed,
};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

/// Runs simulated clusters.
#[derive(Parser, Clone, Debug)]
#[command(name = "simulate", version)]
struct SimulateArguments {
    /// How many seeds to run.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    start: u64,
    /// The faults that may occur: mixed, calm, network, crash, disk, byzantine, twins, clock,
    /// clients, membership, reads, mac, distant, regions. With --clouds: mixed, reconcile, replace.
    #[arg(long, default_value = "mixed")]
    profile: RunProfile,
    /// The service: alternate (by the seed's parity), key-value, metadata, unlocked: metadata whose
    /// clients lock nothing, or people: metadata whose clients admit and dismiss each other.
    #[arg(long, default_value = "alternate")]
    service: Service,
    /// Runs every seed with this u,r on 2u + r + 1 replicas, instead of drawing them from the seed.
    #[arg(long, value_name = "U,R", value_parser = fault_model)]
    fault_model: Option<FaultModel>,
    /// Builds a defect into every honest replica; `all` tries each in turn.
    #[arg(long)]
    sabotage: Option<String>,
    /// Goes on to the next defect once this many seeds have seen one, instead of running them all.
    #[arg(long, value_name = "NUMBER", requires = "sabotage")]
    enough: Option<usize>,
    /// Runs simulated clouds under the block store instead of clusters.
    #[arg(long, conflicts_with_all = ["replay", "service", "fault_model"])]
    clouds: bool,
    /// Spreads objects by this policy, instead of one drawn from the seed.
    #[arg(long, value_name = "N,F,K", value_parser = clouds::policy, requires = "clouds")]
    policy: Option<Policy>,
    /// Crashes the first gateway of every seed at each of its steps in turn.
    #[arg(long, requires = "clouds")]
    every_crash: bool,
    /// Instead, feeds the core the events that a replica recorded (`quorumfs replica run
    /// --record`), and compares its effects.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seeds", "start", "profile", "service"])]
    replay: Option<PathBuf>,
    /// Prints only one line of JSON, at the end.
    #[arg(long)]
    json: bool,
    /// Prints the events.
    #[arg(long)]
    trace: bool,
}

/// What may happen in a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RunProfile {
    /// A profile of the simulated clusters; of the clouds, only the mixed one.
    Usual(Profile),
    /// Clouds with collectors.
    Reconcile,
    /// Clouds that are replaced by others.
    Replace,
}

impl FromStr for RunProfile {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "reconcile" => Ok(Self::Reconcile),
            "replace" => Ok(Self::Replace),
            name => name
                .parse()
                .map(Self::Usual)
                .map_err(|e: UnknownProfile| e.to_string()),
        }
    }
}

impl SimulateArguments {
    /// The profile of simulated clusters.
    fn usual(&self) -> Profile {
        match self.profile {
            RunProfile::Usual(profile) => profile,
            RunProfile::Reconcile | RunProfile::Replace => Profile::Mixed,
        }
    }

    /// Refuses a profile that the kind of run does not have.
    fn check_profile(&self) -> Result<(), &'static str> {
        match (self.clouds, self.profile) {
            (
                true,
                RunProfile::Usual(Profile::Mixed) | RunProfile::Reconcile | RunProfile::Replace,
            )
            | (false, RunProfile::Usual(_)) => Ok(()),
            (true, RunProfile::Usual(_)) => {
                Err("with --clouds the profile is mixed, reconcile or replace")
            }
            (false, RunProfile::Reconcile) => Err("the profile reconcile needs --clouds"),
            (false, RunProfile::Replace) => Err("the profile replace needs --clouds"),
        }
    }
}

/// How many failed seeds are reported one by one.
const REPORTED_MAX: u64 = 40;
/// A sabotage is caught if at least this many seeds see it.
const CAUGHT_MIN: usize = 5;
/// The seeds for defects of claims: a liar's claims have to meet a batch that only one replica has
/// executed.
const CLAIMS_SEEDS: u64 = 1000;
/// How many of the seeds that see a sabotage are named.
const SEEDS_NAMED_MAX: usize = 10;

fn fault_model(text: &str) -> Result<FaultModel, String> {
    let (up, right) = text
        .split_once(',')
        .ok_or("two numbers with a comma between them, such as 1,1")?;
    let number = |text: &str| text.trim().parse::<u16>().map_err(|e| e.to_string());
    let (up, right) = (number(up)?, number(right)?);
    let replicas = 2 * u32::from(up) + u32::from(right) + 1;
    let replicas = u16::try_from(replicas).map_err(|e| e.to_string())?;
    FaultModel::new(up, right, replicas).map_err(|e| e.to_string())
}

fn main() -> ExitCode {
    let arguments = SimulateArguments::parse();
    if let Err(reason) = arguments.check_profile() {
        eprintln!("{reason}");
        return ExitCode::from(2);
    }
    if arguments.clouds {
        return clouds::main(&arguments);
    }
    match arguments.sabotage.as_deref() {
        Some("all") => match &arguments.replay {
            Some(path) => flawed(path),
            None => sabotages(&arguments),
        },
        Some(wanted) => match Defect::all().find(|defect| defect.name() == wanted) {
            Some(defect) => run(&arguments, Some(defect)),
            None => {
                let names: Vec<_> = Defect::all().map(Defect::name).collect();
                let names = names.join(", ");
                eprintln!("there is no sabotage {wanted:?}; choose all or one of: {names}");
                ExitCode::from(2)
            }
        },
        None => run(&arguments, None),
    }
}

/// A planted defect.
#[derive(Clone, Copy)]
enum Defect {
    /// Of the ordering library.
    Replica(Sabotage),
    /// Of the metadata service.
    Service(ServiceDefect),
}

impl Defect {
    fn all() -> impl Iterator<Item = Self> {
        let replicas = Sabotage::ALL.into_iter().map(Self::Replica);
        replicas.chain(ServiceDefect::ALL.into_iter().map(Self::Service))
    }

    fn name(self) -> String {
        match self {
            Self::Replica(sabotage) => name(sabotage),
            Self::Service(defect) => name(defect),
        }
    }
}

fn run(arguments: &SimulateArguments, defect: Option<Defect>) -> ExitCode {
    match (&arguments.replay, defect) {
        (None, defect) => seeds(arguments, defect),
        (Some(path), None) => replayed(arguments, path, None),
        (Some(path), Some(Defect::Replica(sabotage))) => replayed(arguments, path, Some(sabotage)),
        (Some(_), Some(Defect::Service(_))) => {
            eprintln!("a recording is replayed with defects of the ordering library alone");
            ExitCode::from(2)
        }
    }
}

/// Replays a recording with each defect in turn: where the defect would have shown.
fn flawed(path: &Path) -> ExitCode {
    let all = match replay_flawed(path) {
        Ok(all) => all,
        Err(error) => {
            eprintln!("{error:#}");
            return ExitCode::from(2);
        }
    };
    for (name, replayed) in all {
        let shown = match replayed.end {
            End::Different { place, .. } => place.to_string(),
            _ => "does not show".to_owned(),
        };
        println!("{name:40} {shown}");
    }
    ExitCode::SUCCESS
}

/// Replays a recording. The last line is the result.
fn replayed(arguments: &SimulateArguments, path: &Path, sabotage: Option<Sabotage>) -> ExitCode {
    let mut print = |line: &str| println!("{line}");
    let trace: Option<&mut dyn FnMut(&str)> = match arguments.trace {
        true => Some(&mut print),
        false => None,
    };
    let replayed = match replay(path, sabotage, trace) {
        Ok(replayed) => replayed,
        Err(error) => {
            eprintln!("{error:#}");
            return ExitCode::from(2);
        }
    };
    let Replayed {
        events,
        effects,
        reads,
        committed,
        end,
    } = replayed;
    let same = matches!(end, End::Same { .. } | End::Poisoned { .. });
    if arguments.json {
        let line = json!({
            "events": events, "effects": effects, "reads": reads, "committed": committed.0,
            "same": same, "end": end.to_string(),
        });
        println!("{line}");
    } else {
        println!("{events} events, {effects} effects, {reads} reads, up to batch {committed}");
        println!("{end}");
    }
    ExitCode::from(u8::from(!same))
}

/// Reports what failed, and how to reproduce it.
fn report_failure(arguments: &SimulateArguments, report: &Report) {
    for what in &report.violations {
        eprintln!("seed {}: violation: {what}", report.seed);
    }
    for what in &report.stalls {
        eprintln!("seed {}: stall: {what}", report.seed);
    }
    let mut replay = format!(
        "cargo run --release -p quorumfs-tests --bin simulate -- --seeds 1 --start {} --profile \
         {} --service {} --trace",
        report.seed,
        arguments.usual(),
        arguments.service
    );
    if let Some(model) = &arguments.fault_model {
        replay.push_str(&format!(" --fault-model {},{}", model.up(), model.right()));
    }
    if let Some(sabotage) = &arguments.sabotage {
        replay.push_str(&format!(" --sabotage {sabotage}"));
    }
    eprintln!("seed {}: replay: {replay}", report.seed);
}

/// Milliseconds of processor time of this thread.
fn milliseconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}

/// Runs every seed; with a defect, until enough seeds have seen it. Returns the summary and the
/// failed seeds: with a defect, those that saw it.
fn run_all(arguments: &SimulateArguments, planted: Option<Defect>) -> (Summary, Vec<u64>) {
    let (sabotage, defect) = match planted {
        None => (None, None),
        Some(Defect::Replica(sabotage)) => (Some(sabotage), None),
        Some(Defect::Service(defect)) => (None, Some(defect)),
    };
    let mut summary = Summary::default();
    let mut failed = Vec::new();
    let mut reported = 0;
    let enough = arguments.enough.unwrap_or(usize::MAX);
    for seed in arguments.start..arguments.start.saturating_add(arguments.seeds) {
        let mut print = |line: &str| println!("{line}");
        let trace: Option<&mut dyn FnMut(&str)> = match arguments.trace {
            true => Some(&mut print),
            false => None,
        };
        let options = Options {
            sabotage,
            fault_model: arguments.fault_model,
            ..Options::new(seed, arguments.usual())
        };
        let begun = milliseconds();
        let report = run_seed(options, arguments.service, defect, trace);
        summary.add(&report, milliseconds() - begun);
        // A seed that fails without the defect has not seen it.
        if !report.passed() && (planted.is_none() || passes(arguments, seed)) {
            failed.push(seed);
        }
        let reports = planted.is_none() || arguments.seeds == 1;
        if reports && !report.passed() && reported < REPORTED_MAX {
            reported += 1;
            report_failure(arguments, &report);
        }
        if !arguments.json && summary.seeds.is_multiple_of(500) {
            eprintln!(
                "{} seeds, {} violations, {} stalls",
                summary.seeds, summary.violations, summary.stalls
            );
        }
        if failed.len() >= enough {
            break;
        }
    }
    (summary, failed)
}

fn seeds(arguments: &SimulateArguments, defect: Option<Defect>) -> ExitCode {
    let (summary, _) = run_all(arguments, defect);
    // A chosen service or fault model does not have to exercise everything.
    let profile = arguments.usual();
    let whole = arguments.service == Service::Alternate
        && arguments.fault_model.is_none()
        && defect.is_none();
    let shortcomings = match whole {
        true => summary.shortcomings(profile),
        false => Vec::new(),
    };
    for what in &shortcomings {
        eprintln!("too little: {what}");
    }
    let failed = summary.violations + summary.stalls > 0 || !shortcomings.is_empty();
    let mut line = summary.json(profile);
    line.insert("shortcomings".into(), json!(shortcomings));
    let line = Value::Object(line);
    if arguments.json {
        println!("{line}");
    } else if let Ok(text) = serde_json::to_string_pretty(&line) {
        println!("{text}");
    }
    ExitCode::from(u8::from(failed))
}

/// Whether a seed passes without any sabotage.
fn passes(arguments: &SimulateArguments, seed: u64) -> bool {
    let options = Options {
        fault_model: arguments.fault_model,
        ..Options::new(seed, arguments.usual())
    };
    run_seed(options, arguments.service, None, None).passed()
}

/// The arguments under which a defect is looked for. A leader that is replaced for no reason shows
/// only where nothing is wrong. A defect of reading shows only where much is read, of values that
/// change to and fro.
fn tried_with(defect: Defect, arguments: &SimulateArguments) -> SimulateArguments {
    let Defect::Replica(sabotage) = defect else {
        return SimulateArguments {
            service: Service::Metadata,
            ..arguments.clone()
        };
    };
    match sabotage {
        Sabotage::ReadWithoutVersion => SimulateArguments {
            profile: RunProfile::Usual(Profile::Reads),
            service: Service::KeyValue,
            ..arguments.clone()
        },
        Sabotage::ThroughputComparedIdle => SimulateArguments {
            profile: RunProfile::Usual(Profile::Calm),
            ..arguments.clone()
        },
        // Waits and handovers show only over long ways, once all is well.
        Sabotage::HandoverLoops | Sabotage::PatienceFixed | Sabotage::EarlierTryDropped => {
            SimulateArguments {
                profile: RunProfile::Usual(Profile::Regions),
                ..arguments.clone()
            }
        }
        // A leader goes on in its view only where it crashes often, and others are slow to leave.
        Sabotage::OldViewLedAgain => SimulateArguments {
            profile: RunProfile::Usual(Profile::Disk),
            ..arguments.clone()
        },
        // Votes of an earlier membership epoch exist only where there are several epochs.
        Sabotage::OldEpochVoteCounted => SimulateArguments {
            profile: RunProfile::Usual(Profile::Membership),
            ..arguments.clone()
        },
        Sabotage::ClaimNotAccepted
        | Sabotage::NothingInsteadOfWaiting
        | Sabotage::OneVoucher
        | Sabotage::VoteInAnothersName => SimulateArguments {
            profile: RunProfile::Usual(Profile::Mac),
            seeds: arguments.seeds.max(CLAIMS_SEEDS),
            ..arguments.clone()
        },
        _ => arguments.clone(),
    }
}

fn sabotages(arguments: &SimulateArguments) -> ExitCode {
    let mut missed = 0;
    for defect in Defect::all() {
        let arguments = &tried_with(defect, arguments);
        // Over few seeds, one is enough.
        let wanted = match arguments.seeds {
            500.. => CAUGHT_MIN,
            _ => 1,
        };
        let enough = arguments.enough.map(|enough| enough.max(wanted));
        let arguments = &SimulateArguments {
            enough,
            ..arguments.clone()
        };
        let (summary, seen) = run_all(arguments, Some(defect));
        if seen.len() < wanted {
            missed += 1;
        }
        let first: Vec<&u64> = seen.iter().take(SEEDS_NAMED_MAX).collect();
        if arguments.json {
            let mut line = Map::new();
            line.insert("sabotage".into(), json!(defect.name()));
            line.insert("seeds".into(), json!(summary.seeds));
            line.insert("caught".into(), json!(seen.len()));
            line.insert("violations".into(), json!(summary.violations));
            line.insert("stalls".into(), json!(summary.stalls));
            line.insert("caught_by".into(), json!(first));
            println!("{}", Value::Object(line));
        } else {
            let (name, caught, seeds) = (defect.name(), seen.len(), summary.seeds);
            println!("{name:40} caught by {caught:4} of {seeds} seeds: {first:?}");
        }
    }
    ExitCode::from(u8::from(missed > 0))
}
