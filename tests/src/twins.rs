//! Random twins: the same operations on a quorumfs mount and on tmpfs, compared after each.
//!
//! ```text
//!              ┌─► four workers, one for each user, in a directory of tmpfs ─┐
//! draw ─► step ┤                                                             ├─► compare ─► next
//!              └─► four workers, one for each user, in a directory of ours ──┘
//! ```
//!
//! [`draw`] draws a step from the seed and from the existing tree: 37 kinds of system calls, by the
//! superuser and three other users, on files that stay open over many steps, existing and missing
//! names, access control lists, extended attributes, links. Both twins execute it at the same time
//! ([`act`], in a [`worker`] process of the user). Then the results are compared, and the state of
//! everything that the step named, including which times changed; at intervals the whole tree with
//! all content is compared ([`compare`]). All permitted differences are in [`differences`].
//!
//! Between steps, the kernel's caches are dropped, time passes, or the mount is remounted. A run
//! consists of chapters, each in a directory of its own, so that a difference can be reproduced
//! from the start of its chapter: [`shrink`] leaves out steps that do not matter. The [`attack`]
//! does all of that while one cloud is damaged continuously, one replica lies, and the mount is
//! killed.
//!
//! [`several`] compares several mounts of one volume with a model of what is promised to them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

pub mod act;
pub mod attack;
pub mod compare;
pub mod defect;
pub mod differences;
pub mod draw;
pub mod liar;
pub mod pair;
pub mod picture;
pub mod place;
pub mod several;
pub mod shrink;
pub mod step;
pub mod user;
pub mod worker;

use attack::{Attack, AttackCounts};
use draw::{Draw, Weather};
use pair::Pair;
use place::{Place, Tmpfs};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use step::Step;

/// Steps in one directory.
const CHAPTER: usize = 2000;
/// Names of the reference are listed again after this many steps.
const LEARN_EVERY: usize = 4;
/// A long run reports its progress at this interval.
const REPORT_EVERY: Duration = Duration::from_secs(30);

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct TwinsPlan {
    /// The program whose command `worker` acts as a user.
    pub program: PathBuf,
    /// How many steps.
    pub steps: usize,
    /// Decides what the steps are.
    pub seed: u64,
    /// The events between the operations.
    pub weather: Weather,
    /// The defect that our twin has on purpose.
    pub defect: Option<String>,
    /// Whether a trace is shortened.
    pub shrinks: bool,
}

/// The result of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TwinsReport {
    /// Steps that were executed and compared.
    pub steps: usize,
    /// Counts of operations that succeeded, by kind.
    pub succeeded: BTreeMap<String, u64>,
    /// Counts of operations that failed in the same way on both, by kind.
    pub refused: BTreeMap<String, u64>,
    /// Counts of the events between operations.
    pub weather: BTreeMap<&'static str, u64>,
    /// The difference that ended the run.
    pub difference: Option<Difference>,
}

/// A difference between the twins.
#[derive(Clone, Debug, Serialize)]
pub struct Difference {
    /// The chapter, and the step in it.
    pub at: (u64, usize),
    /// A description of it.
    pub what: String,
    /// The steps that lead to it.
    pub trace: Vec<String>,
    /// The difference that the shortened trace shows; `None` if it was not reproduced.
    pub again: Option<String>,
}

/// The usual weather.
pub const FAIR: Weather = Weather {
    drop_caches: 500,
    wait: 700,
    remount: 1500,
    kill: None,
};

/// Executes the steps, until there is a difference.
///
/// # Panics
/// If something fails that is not one of the steps.
#[must_use]
pub fn run(plan: &TwinsPlan, place: &mut Place) -> TwinsReport {
    let tmpfs = Tmpfs::mount();
    let mut report = TwinsReport::default();
    let (mut chapter, mut reported) = (0, Instant::now());
    while report.steps < plan.steps && report.difference.is_none() {
        let count = CHAPTER.min(plan.steps - report.steps);
        let mut draw = Draw::new(plan.seed.wrapping_mul(1_000_003) ^ chapter, plan.weather);
        let mut trace = Vec::new();
        let name = format!("chapter-{chapter}");
        let defect = plan.defect.as_deref();
        let mut pair = Pair::new(&plan.program, tmpfs.path(), place, defect, &name);
        let result = run_chapter(
            &mut pair,
            &mut draw,
            count,
            &mut trace,
            &mut report,
            &mut reported,
        );
        let result = result.and_then(|()| pair.remove());
        if let Err(what) = result {
            report.difference = Some(reproduce(plan, &tmpfs, place, (chapter, trace), what));
        }
        chapter += 1;
    }
    report
}

/// The same under an [`attack`]; the program at `liar` is the lying replica.
///
/// # Panics
/// Like [`run`]; also if there was no difference, but a part of the attack did not happen.
#[must_use]
pub fn run_under_attack(plan: &TwinsPlan, liar: &Path) -> (TwinsReport, AttackCounts) {
    let (attack, mount) = Attack::begin(liar, plan.seed);
    let mut place = Place::Mount(Box::new(mount));
    let report = run(plan, &mut place);
    let Place::Mount(mount) = place else {
        unreachable!("it was a mount");
    };
    if report.difference.is_none() {
        attack.wait_for_checkpoint(&mount);
    }
    let counts = attack.end(*mount);
    if report.difference.is_none() {
        counts.assert_everything_happened();
    }
    (report, counts)
}

/// Runs one chapter.
fn run_chapter(
    pair: &mut Pair<'_>,
    draw: &mut Draw,
    count: usize,
    trace: &mut Vec<Step>,
    report: &mut TwinsReport,
    reported: &mut Instant,
) -> compare::CheckResult {
    for number in 0..count {
        if number % LEARN_EVERY == 0 {
            draw.learn(pair.reference());
        }
        let step = draw.step();
        trace.push(step.clone());
        let outcome = pair.step(&step)?;
        report.steps += 1;
        let counted = match (&step, outcome) {
            (Step::Does { operation, .. }, Some(Ok(_))) => {
                report.succeeded.entry(operation.kind()).or_default()
            }
            (Step::Does { operation, .. }, _) => {
                report.refused.entry(operation.kind()).or_default()
            }
            (Step::DropCaches, _) => report.weather.entry("caches dropped").or_default(),
            (Step::Wait(_), _) => report.weather.entry("waits").or_default(),
            (Step::Remount, _) => report.weather.entry("remounts").or_default(),
            (Step::Kill, _) => report.weather.entry("kills").or_default(),
        };
        *counted += 1;
        if reported.elapsed() > REPORT_EVERY {
            eprintln!("{} steps", report.steps);
            *reported = Instant::now();
        }
    }
    pair.compare()
}

/// Repeats the steps that led to a difference, and shortens them while the difference remains.
fn reproduce(
    plan: &TwinsPlan,
    tmpfs: &Tmpfs,
    place: &mut Place,
    (chapter, trace): (u64, Vec<Step>),
    what: String,
) -> Difference {
    let at = (chapter, trace.len());
    eprintln!(
        "at step {} of chapter {chapter}: {what}\n  {:?}",
        at.1,
        trace.last()
    );
    let mut tries = 0;
    let mut fails = |steps: &[Step]| {
        tries += 1;
        let name = format!("again-{tries}");
        let defect = plan.defect.as_deref();
        let mut pair = Pair::new(&plan.program, tmpfs.path(), place, defect, &name);
        let mut result = steps.iter().try_for_each(|step| pair.step(step).map(drop));
        result = result.and_then(|()| pair.compare());
        let removed = pair.remove();
        result
            .and(removed)
            .err()
            .filter(|again| shape(again) == shape(&what))
    };
    let shrunk = match plan.shrinks {
        true => shrink::shrink(&trace, &mut fails),
        false => shrink::Shrunk {
            steps: trace,
            shows: None,
        },
    };
    let start = match shrunk.shows {
        Some(_) => 0,
        None if !plan.shrinks => 0,
        None => shrunk.steps.len().saturating_sub(LAST_SHOWN),
    };
    let trace = shrunk.steps[start..].iter().map(|step| format!("{step:?}"));
    Difference {
        at,
        what,
        trace: trace.collect(),
        again: shrunk.shows,
    }
}

/// The description of a difference without place and time: shrinking towards another difference
/// would leave out steps that this one needs. Failed calls match if the error is the same.
fn shape(what: &str) -> String {
    let is_picture = |line: &&str| line.contains("Picture") || line.ends_with(" was");
    let lines = what.lines().take_while(|line| !is_picture(line));
    let outside = lines
        .flat_map(|line| line.split('"').step_by(2))
        .collect::<String>();
    outside.chars().filter(|it| !it.is_ascii_digit()).collect()
}

/// How many steps are shown of a trace that was not reproduced.
const LAST_SHOWN: usize = 40;
