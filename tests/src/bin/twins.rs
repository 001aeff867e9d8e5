//! `twins`: the same random operations on a mount and on tmpfs, compared after each.
//!
//! ```text
//! cargo run --release -p quorumfs-tests --bin twins -- --steps 100000 --seed 1
//! ```
//!
//! It ends with exit code 0 only if there was no difference, and otherwise prints the shortest
//! trace that it found. It mounts, acts as several users, and has to be run as root.
//!
//! ```text
//! cargo run --release -p quorumfs-tests --bin twins -- --mounts 3 --steps 20000 --seed 1 --attack
//! ```
//!
//! With `--mounts` it compares several mounts of one volume with what is promised to them. It
//! prints one JSON line, and ends with exit code 0 only if no promise was broken.

use clap::{Parser, Subcommand, ValueEnum};
use quorumfs_tests::harness::Cluster;
use quorumfs_tests::twins::attack::FOUL;
use quorumfs_tests::twins::defect::Defect;
use quorumfs_tests::twins::place::{Mount, Place, Tmpfs};
use quorumfs_tests::twins::several::{self, BOUND, SeveralPlan};
use quorumfs_tests::twins::{FAIR, TwinsPlan, TwinsReport, run, run_under_attack, worker};
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::time::Duration;

/// Does the same on a mount and on tmpfs.
#[derive(Parser)]
struct TwinsArguments {
    /// How many steps.
    #[arg(long, default_value_t = 100_000)]
    steps: usize,
    /// Decides what the steps are.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Damages one cloud, has one replica lie, and kills the mount meanwhile.
    #[arg(long, conflicts_with = "tmpfs")]
    attack: bool,
    /// Compares so many mounts of one volume with a model.
    #[arg(long, conflicts_with_all = ["tmpfs", "defect", "no_shrink"])]
    mounts: Option<NonZeroUsize>,
    /// How many milliseconds a mount may take to show what another one has changed.
    #[arg(long, requires = "mounts")]
    bound_ms: Option<u64>,
    /// Counts opens that fail with ESTALE while their name is replaced, instead of failing.
    #[arg(long, requires = "mounts")]
    allow_stale_opens: bool,
    /// Uses another tmpfs in the place of the mount, to test the comparison.
    #[arg(long)]
    tmpfs: bool,
    /// The defect that the second twin has on purpose.
    #[arg(long)]
    defect: Option<Defect>,
    /// Does not shorten the trace that led to a difference: shortening takes minutes.
    #[arg(long)]
    no_shrink: bool,
    /// Prints one JSON line.
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    command: Option<TwinsCommand>,
}

#[derive(Subcommand)]
enum TwinsCommand {
    /// A user; the program starts these itself.
    #[command(hide = true)]
    Worker {
        user: usize,
        #[arg(long)]
        on_tmpfs: bool,
        #[arg(long)]
        defect: Option<Defect>,
    },
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = TwinsArguments::parse();
    if let Some(TwinsCommand::Worker {
        user,
        on_tmpfs,
        defect,
    }) = arguments.command
    {
        worker::serve(user, on_tmpfs, defect)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(mounts) = arguments.mounts {
        return compare_several(mounts.get(), &arguments);
    }
    let defect = arguments.defect.and_then(|it| it.to_possible_value());
    let plan = TwinsPlan {
        program: std::env::current_exe()?,
        steps: arguments.steps,
        seed: arguments.seed,
        weather: if arguments.attack { FOUL } else { FAIR },
        defect: defect.map(|it| it.get_name().to_owned()),
        shrinks: !arguments.no_shrink,
    };
    let report = if arguments.attack {
        let liar = plan.program.with_file_name("lying_replica");
        let (report, counts) = run_under_attack(&plan, &liar);
        eprintln!("{counts:?}");
        report
    } else if arguments.tmpfs {
        run(&plan, &mut Place::Tmpfs(Tmpfs::mount()))
    } else {
        let mut cluster = Cluster::prepare();
        cluster.start();
        run(&plan, &mut Place::Mount(Box::new(Mount::new(cluster))))
    };
    show(&report, arguments.json)?;
    Ok(match report.difference {
        None => ExitCode::SUCCESS,
        Some(_) => ExitCode::FAILURE,
    })
}

fn compare_several(mounts: usize, arguments: &TwinsArguments) -> anyhow::Result<ExitCode> {
    let bound = arguments.bound_ms.map(Duration::from_millis);
    let report = several::run(SeveralPlan {
        mounts,
        steps: arguments.steps,
        seed: arguments.seed,
        attack: arguments.attack,
        bound: bound.unwrap_or(BOUND),
        allow_stale_opens: arguments.allow_stale_opens,
    });
    if let Some(broken) = &report.broken {
        eprintln!("{broken}");
    }
    println!("{}", serde_json::to_string(&report)?);
    anyhow::ensure!(
        report.broken.is_some() || !arguments.attack || report.troubles.are_all_there(report.first),
        "a part of the attack did not happen"
    );
    Ok(match report.broken {
        None => ExitCode::SUCCESS,
        Some(_) => ExitCode::FAILURE,
    })
}

fn show(report: &TwinsReport, json: bool) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string(report)?);
        return Ok(());
    }
    println!("{} steps", report.steps);
    println!(
        "done: {:?}\nrefused by both: {:?}",
        report.succeeded, report.refused
    );
    println!("events in between: {:?}", report.weather);
    if let Some(difference) = &report.difference {
        let (chapter, step) = difference.at;
        println!("\nstep {step} of chapter {chapter}: {}", difference.what);
        match &difference.again {
            Some(again) => println!("\nthe shortest trace shows: {again}"),
            None => println!("\nit did not happen again; the last steps:"),
        }
        difference
            .trace
            .iter()
            .for_each(|step| println!("  {step}"));
    }
    Ok(())
}
