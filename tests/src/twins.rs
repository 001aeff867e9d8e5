//! Random twins: the same operations on a mount of ours and on tmpfs, compared after each.
//!
//! ```text
//!              ┌─► four workers, one for each user, in a directory of tmpfs ─┐
//! draw ─► step ┤                                                             ├─► compare ─► next
//!              └─► four workers, one for each user, in a directory of ours ──┘
//! ```
//!
//! [`draw`] draws a step from the seed and from what is there: 37 kinds of system calls, by the
//! superuser and three others, on files that stay open over many steps, names that are there or
//! not, access control lists, extended attributes, links. Both twins do it at the same time
//! ([`act`], in a [`worker`] process of the user's own). Then what came of it is compared, and how
//! everything that it named looks, who sees what changed when included; now and then the whole tree
//! with all content ([`compare`]). Where twins may differ stands in [`differences`], and nowhere
//! else.
//!
//! In between the kernel is made to forget, a while passes, or the mount is mounted anew. A run
//! consists of chapters, each in a directory of its own, so that a difference can be looked for
//! again from the start of its chapter: [`shrink`] leaves out what does not take part. The
//! [`attack`] does all of that while one cloud is damaged all the time, one replica lies, and the
//! mount is killed.

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
pub mod shrink;
pub mod step;
pub mod user;
pub mod worker;

use attack::{Attack, Suffered};
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
/// Reference names are listed again after so many steps.
const LEARN_EVERY: usize = 4;
/// A long run says how far it is.
const SPEAK_EVERY: Duration = Duration::from_secs(30);

/// What is to happen.
#[derive(Clone, Debug)]
pub struct TwinsPlan {
    /// The program whose command `worker` is a user.
    pub program: PathBuf,
    /// How many steps.
    pub steps: usize,
    /// Decides what they are.
    pub seed: u64,
    /// What happens in between.
    pub weather: Weather,
    /// What our twin does wrong on purpose.
    pub defect: Option<String>,
    /// Whether a trace is shortened.
    pub shrinks: bool,
}

/// What came of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TwinsReport {
    /// Steps that were taken and compared.
    pub steps: usize,
    /// Of the operations, those that succeeded, by kind.
    pub succeeded: BTreeMap<String, u64>,
    /// And those that failed, in the same way on both.
    pub refused: BTreeMap<String, u64>,
    /// What else happened.
    pub weather: BTreeMap<&'static str, u64>,
    /// The difference that ended it.
    pub difference: Option<Difference>,
}

/// Where twins differ.
#[derive(Clone, Debug, Serialize)]
pub struct Difference {
    /// Which chapter, and which of its steps.
    pub at: (u64, usize),
    /// What differs.
    pub what: String,
    /// The steps that lead to it.
    pub trace: Vec<String>,
    /// What the shortened trace shows; nothing if it did not come again.
    pub again: Option<String>,
}

/// The usual weather.
pub const FAIR: Weather = Weather {
    drop_caches: 500,
    wait: 700,
    remount: 1500,
    kill: None,
};

/// Takes the steps, until there is a difference.
///
/// # Panics
/// If anything fails that is not one of the steps.
#[must_use]
pub fn run(plan: &TwinsPlan, place: &mut Place) -> TwinsReport {
    let tmpfs = Tmpfs::mount();
    let mut report = TwinsReport::default();
    let (mut chapter, mut spoke) = (0, Instant::now());
    while report.steps < plan.steps && report.difference.is_none() {
        let count = CHAPTER.min(plan.steps - report.steps);
        let mut draw = Draw::new(plan.seed.wrapping_mul(1_000_003) ^ chapter, plan.weather);
        let mut trace = Vec::new();
        let name = format!("chapter-{chapter}");
        let defect = plan.defect.as_deref();
        let mut pair = Pair::new(&plan.program, tmpfs.path(), place, defect, &name);
        let told = tell(
            &mut pair,
            &mut draw,
            count,
            &mut trace,
            &mut report,
            &mut spoke,
        );
        let told = told.and_then(|()| pair.remove());
        if let Err(what) = told {
            report.difference = Some(look_again(plan, &tmpfs, place, (chapter, trace), what));
        }
        chapter += 1;
    }
    report
}

/// The same under an [`attack`]; the program at `liar` is the replica that lies.
///
/// # Panics
/// Like [`run`]; and if there was no difference, but not everything of the attack either.
#[must_use]
pub fn run_under_attack(plan: &TwinsPlan, liar: &Path) -> (TwinsReport, Suffered) {
    let (attack, mount) = Attack::begin(liar, plan.seed);
    let mut place = Place::Mount(Box::new(mount));
    let report = run(plan, &mut place);
    let Place::Mount(mount) = place else {
        unreachable!("it was a mount");
    };
    if report.difference.is_none() {
        attack.reach_a_checkpoint(&mount);
    }
    let suffered = attack.end(*mount);
    if report.difference.is_none() {
        suffered.assert_everything_happened();
    }
    (report, suffered)
}

/// One chapter.
fn tell(
    pair: &mut Pair<'_>,
    draw: &mut Draw,
    count: usize,
    trace: &mut Vec<Step>,
    report: &mut TwinsReport,
    spoke: &mut Instant,
) -> compare::Told {
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
        if spoke.elapsed() > SPEAK_EVERY {
            eprintln!("{} steps", report.steps);
            *spoke = Instant::now();
        }
    }
    pair.compare()
}

/// Runs what led to a difference again and again, with less and less of it.
fn look_again(
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
        let mut told = steps.iter().try_for_each(|step| pair.step(step).map(drop));
        told = told.and_then(|()| pair.compare());
        let removed = pair.remove();
        told.and(removed)
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

/// What is said of a difference, without where and when: another one is no reason to leave out
/// steps that this one needs. What came of a call is of the same kind if it is the same error.
fn shape(what: &str) -> String {
    let is_picture = |line: &&str| line.contains("Picture") || line.ends_with(" was");
    let lines = what.lines().take_while(|line| !is_picture(line));
    let outside = lines
        .flat_map(|line| line.split('"').step_by(2))
        .collect::<String>();
    outside.chars().filter(|it| !it.is_ascii_digit()).collect()
}

/// Steps that are shown of a trace that does not come again.
const LAST_SHOWN: usize = 40;
