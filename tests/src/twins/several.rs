//! Several mounts of one volume, against a model of what is promised to them.
//!
//! ```text
//!             ┌─► mount of machine 0 ─┐
//! draw ─► step┼─► mount of machine 1 ─┼─► looks, opens, listings ─► promised? ─► next
//!             └─► mount of machine 2 ─┘                                ▲
//!                        └──────── acknowledged ─► expected tree ──────┘
//! ```
//!
//! There is no second file system to compare with: tmpfs has one view. So the program keeps the
//! tree that is promised, with the history of each name and each attribute (`tree`, `promise`),
//! and asks of everything that a mount shows whether that was allowed at that moment. What is
//! promised:
//! * *Close to open.* After a `close` or `fsync` on one mount, an `open` that begins later on any
//!   mount shows exactly those bytes and that size.
//! * *Names and attributes.* The mount that changed them shows them at once, others within the
//!   bound, and none goes back. Each change of a name is atomic, for all mounts together.
//! * *Ranges.* Writes of two mounts to different bytes are both there after both closed.
//! * *Open files* show what is appended within the bound; one without a name stays until its close.
//! * *Trouble* (`trouble`, `doubtful`) loses nothing that was closed, and lets no mount show what
//!   is out of date once it answers again.
//! * *In the end* all mounts show the same tree, byte by byte.
//!
//! A run has three acts. In the first, one driver (`stage`) executes steps one after the other,
//! each on one of the mounts. In the second, two mounts act at the same time in `scenes` and
//! `duels` whose outcomes are known as a set. In the third, two drivers run at the same time on
//! all mounts, each in a directory of its own. Then everything is compared, removed, and has to
//! give its space back.
//!
//! What is drawn follows from the seed; which of two wins, and what a mount has seen already, does
//! not.

mod doubtful;
mod duels;
mod hand;
mod held;
mod look;
mod mounts;
mod promise;
mod scenes;
mod stage;
mod steps;
mod tree;
mod trouble;

pub use promise::{BOUND, BrokenPromise, DelaySummary};
pub use trouble::Troubles;

use crate::harness::{Cluster, require_fuse};
use mounts::Mounts;
use promise::{Kept, StepRecord};
use scenes::Arena;
use serde::Serialize;
use stage::{Stage, StageCounts};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use trouble::Schedule;

/// The parts of the first and the second act, in hundredths of all steps.
const FIRST_PERCENT: usize = 55;
const SECOND_PERCENT: usize = 15;
/// A duel takes as long as twenty other steps.
const SECOND_MAX: usize = 300;
/// In the second act a scene takes the place of a duel in so many steps.
const TAIL_EVERY: usize = 10;
const REPLACED_EVERY: usize = 10;
const LOCAL_EVERY: usize = 40;
/// After everything was removed, its space is given back within this time. A file that was removed
/// while other mounts had it open may take a minute.
const GIVEN_BACK_WITHIN: Duration = Duration::from_secs(150);
/// What the volume may need in addition to before the run.
const LEFT_MAX: u64 = 64 << 10;
const REPORT_EVERY: Duration = Duration::from_secs(30);

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct SeveralPlan {
    /// How many mounts; one is the degenerate case, in which everything holds at once.
    pub mounts: usize,
    /// How many steps.
    pub steps: usize,
    /// Decides what the steps are.
    pub seed: u64,
    /// Whether mounts are killed, stopped and cut off, a replica is killed, and clocks are set.
    pub attack: bool,
    /// How old a name or an attribute may be that a mount shows.
    pub bound: Duration,
    /// Counts opens that fail with `ESTALE` while their name is replaced, instead of failing.
    pub allow_stale_opens: bool,
}

impl SeveralPlan {
    fn first(&self) -> usize {
        self.steps * FIRST_PERCENT / 100
    }

    /// The third act has the rest.
    fn second(&self) -> usize {
        SECOND_MAX.min(self.steps * SECOND_PERCENT / 100)
    }
}

/// The result of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SeveralReport {
    /// How many mounts.
    pub mounts: usize,
    /// The seed.
    pub seed: u64,
    /// Steps of the first act, which has the trouble.
    pub first: usize,
    /// Steps that were executed, by kind.
    pub steps: BTreeMap<&'static str, u64>,
    /// Steps that a mount refused for a name that was there or missing, now or within the bound.
    pub refused: BTreeMap<&'static str, u64>,
    /// Opens that failed with `ESTALE` while their name was replaced.
    pub stale_opens: u64,
    /// How long others took to see a change of names.
    pub names: DelaySummary,
    /// How long others took to see a change of attributes or content without opening the file.
    pub attributes: DelaySummary,
    /// How long a reader took to see what was appended.
    pub appended: DelaySummary,
    /// What was done to mounts, to a replica, and to clocks.
    pub troubles: Troubles,
    /// Files that were compared, and their bytes.
    pub files: u64,
    /// Bytes that were compared.
    pub bytes: u64,
    /// Seconds until the space of everything was given back.
    pub given_back_seconds: f64,
    /// Seconds of the whole run.
    pub seconds: f64,
    /// The promise that was broken.
    pub broken: Option<BrokenPromise>,
}

/// Runs the whole test, until a promise is broken.
///
/// # Panics
/// If something fails that is no promise, such as a mount that does not start.
#[must_use]
pub fn run(plan: SeveralPlan) -> SeveralReport {
    require_fuse();
    let mut cluster = Cluster::prepare();
    cluster.start();
    let began = Instant::now();
    let mounts = Mounts::new(cluster, &plan);
    let mut run = SeveralRun {
        plan,
        mounts: &mounts,
        counts: StageCounts::default(),
        troubles: Troubles::default(),
        given_back: Duration::ZERO,
    };
    let result = run.acts();
    let mut counts = std::mem::take(&mut run.counts);
    let (troubles, given_back) = (run.troubles, run.given_back);
    if result.is_ok() {
        mounts.unmount();
        mounts.cluster().stop();
    }
    SeveralReport {
        mounts: plan.mounts,
        seed: plan.seed,
        first: plan.first(),
        names: counts.names.summary(),
        attributes: counts.attributes.summary(),
        appended: counts.appended.summary(),
        steps: counts.steps,
        refused: counts.refused,
        troubles,
        files: counts.files,
        bytes: counts.bytes,
        stale_opens: mounts.stale_opens(),
        given_back_seconds: given_back.as_secs_f64(),
        seconds: began.elapsed().as_secs_f64(),
        broken: result.err().map(|broken| *broken),
    }
}

struct SeveralRun<'a> {
    plan: SeveralPlan,
    mounts: &'a Mounts,
    counts: StageCounts,
    troubles: Troubles,
    given_back: Duration,
}

impl SeveralRun<'_> {
    fn acts(&mut self) -> Kept {
        let before = self.used();
        let (first, second) = (self.plan.first(), self.plan.second());
        self.first(first)?;
        self.second(first..first + second)?;
        self.third(first + second..self.plan.steps)?;
        self.give_back(before)
    }

    /// One driver, sometimes with trouble.
    fn first(&mut self, steps: usize) -> Kept {
        let (plan, mut reported) = (self.plan, Instant::now());
        let mut stage = Stage::new(self.mounts, "stage", plan.seed)?;
        let (schedule, mut troubles) = (Schedule::of(steps), self.troubles);
        let mut result = stage.run(0..steps, |stage| {
            if reported.elapsed() > REPORT_EVERY {
                eprintln!("{} steps", stage.record.step);
                reported = Instant::now();
            }
            match plan.attack {
                true => stage.trouble(schedule, &mut troubles),
                false => Ok(()),
            }
        });
        if plan.attack && result.is_ok() {
            stage.end_of_trouble(steps);
            result = stage.compare();
        }
        self.troubles = troubles;
        self.end(stage);
        result
    }

    fn end(&mut self, mut stage: Stage<'_>) {
        (0..self.mounts.count()).for_each(|mount| stage.close_all(mount));
        self.counts.append(stage.counts);
    }

    /// Two mounts at the same time.
    fn second(&mut self, steps: std::ops::Range<usize>) -> Kept {
        let mut arena = Arena::new(self.mounts, "arena", self.plan.seed)?;
        let mut result = Ok(());
        for step in steps {
            arena.begin(step);
            result = match step {
                _ if step % TAIL_EVERY == 2 => arena.tail(),
                _ if step % REPLACED_EVERY == 7 => arena.replaced(),
                _ if step % LOCAL_EVERY == 4 => arena.local(self.plan.attack),
                _ => arena.duel(),
            };
            if result.is_err() {
                break;
            }
        }
        self.counts.append(arena.counts);
        result
    }

    /// Two drivers at the same time, each in a directory of its own.
    fn third(&mut self, steps: std::ops::Range<usize>) -> Kept {
        let middle = steps.start + steps.len() / 2;
        let parts = [("left", steps.start..middle), ("right", middle..steps.end)];
        let (mounts, seed) = (self.mounts, self.plan.seed);
        let results = std::thread::scope(|scope| {
            let drivers = parts.map(|(home, steps)| {
                scope.spawn(move || {
                    let mut stage = Stage::new(mounts, home, seed)?;
                    let result = stage.run(steps, |_| Ok(()));
                    Kept::Ok((stage, result))
                })
            });
            drivers.map(|driver| driver.join().unwrap())
        });
        let mut all = Ok(());
        for result in results {
            let (stage, result) = result?;
            self.end(stage);
            all = all.and(result);
        }
        all
    }

    /// Bytes that count for the volume's quota.
    fn used(&self) -> u64 {
        let shown = self.mounts.quorumfs(0).run_with(["quota"]).ok();
        let volume = shown.records("quota_volume").remove(0);
        volume["bytes"].as_u64().unwrap()
    }

    /// Removes everything, and waits for its space.
    fn give_back(&mut self, before: u64) -> Kept {
        for entry in std::fs::read_dir(self.mounts.point(0)).unwrap() {
            let path = entry.unwrap().path();
            let removed = match path.is_dir() {
                true => std::fs::remove_dir_all(&path),
                false => std::fs::remove_file(&path),
            };
            removed.unwrap_or_else(|error| panic!("{} stays: {error}", path.display()));
        }
        let began = Instant::now();
        loop {
            let used = self.used();
            self.given_back = began.elapsed();
            if used <= before + LEFT_MAX {
                return Ok(());
            }
            if began.elapsed() > GIVEN_BACK_WITHIN {
                let promise = "what was removed gives its space back";
                let expected = format!("{before} bytes, as before the run");
                let record = StepRecord::new(self.plan.seed);
                return Err(record.broken(0, promise, "", expected, format!("{used} bytes")));
            }
            std::thread::sleep(Duration::from_millis(500));
        }
    }
}
