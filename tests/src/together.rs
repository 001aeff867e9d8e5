//! Programs that share files, each on another mount of one volume: databases, logs, locks, builds.
//!
//! ```text
//!  this process ── starts ──► players, a process each ──► mount 0, 1, 2 of one volume
//!     ▲                            │                        each its own process
//!     └──────── what each did ─────┘
//!  then: what each mount shows, compared with what the players did
//! ```
//!
//! Each *scene* plays in a directory of its own. What has to hold:
//! * `sqlite`: transactions of several processes exclude one another, and none is lost.
//! * `appenders`: no line that was appended is lost, torn, or out of the order of its writer.
//! * `tail`: a reader sees each line whole and in order, and soon after it was synced.
//! * `locks`: a lock excludes, is handed over with what was written under it, and ends with its
//!   process, its descriptors or its mount.
//! * `make`: two builds over one source tree work, and rebuild what a changed header asks for.
//! * `git`: a repository stays sound, in turns and at the same time.
//! * `rsync`: a copy of a tree that changes contains nothing that was never there.
//!
//! A scene ends: past its deadline a watchdog kills its players, and then the mounts, so that every
//! call returns. What a scene finds wrong is an error that says what, where and on which mount.
//!
//! The scenes also run in one local directory, as if it were three mounts. That shows that they ask
//! for nothing that an ordinary file system does not give.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod appenders;
mod copying;
mod git;
mod lines;
mod locks;
mod make;
mod mounts;
mod players;
mod sqlite;
mod tail;

use mounts::ThreeMounts;
use players::SceneRun;
use serde::Serialize;
use serde_json::{Map, Value};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A scene, by the name that chooses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Scene {
    /// One database, and a process on each mount that changes it.
    Sqlite,
    /// One file that four processes append to.
    Appenders,
    /// A file that grows on one mount and is read on the others.
    Tail,
    /// Locks of every kind between processes on all mounts.
    Locks,
    /// A C project that is built on two mounts.
    Make,
    /// A git repository that is used from two mounts.
    Git,
    /// A tree that is copied while another mount changes it.
    Rsync,
}

impl Scene {
    /// All of them, in the order in which they are played.
    pub const ALL: [Self; 7] = [
        Self::Sqlite,
        Self::Appenders,
        Self::Tail,
        Self::Locks,
        Self::Make,
        Self::Git,
        Self::Rsync,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Appenders => "appenders",
            Self::Tail => "tail",
            Self::Locks => "locks",
            Self::Make => "make",
            Self::Git => "git",
            Self::Rsync => "rsync",
        }
    }

    fn play(self, run: &SceneRun) -> anyhow::Result<SceneFigures> {
        match self {
            Self::Sqlite => sqlite::play(run),
            Self::Appenders => appenders::play(run),
            Self::Tail => tail::play(run),
            Self::Locks => locks::play(run),
            Self::Make => make::play(run),
            Self::Git => git::play(run),
            Self::Rsync => copying::play(run),
        }
    }
}

impl fmt::Display for Scene {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How much of each scene is played.
#[derive(Clone, Debug, clap::Args)]
pub struct SceneSizes {
    /// Transactions of the scene `sqlite`, of all processes together.
    #[arg(long, default_value_t = 5000)]
    pub transactions: u64,
    /// Lines of each of the four processes of the scene `appenders`.
    #[arg(long, default_value_t = 1000)]
    pub lines: u64,
    /// Lines that the scene `tail` waits for.
    #[arg(long, default_value_t = 300)]
    pub tail_lines: u64,
    /// How often each process of the scene `locks` takes each kind of lock.
    #[arg(long, default_value_t = 200)]
    pub sections: u64,
    /// Source files of the scene `make`.
    #[arg(long, default_value_t = 60)]
    pub sources: usize,
    /// Turns of the scene `git`, and half as many commits at the same time.
    #[arg(long, default_value_t = 30)]
    pub turns: usize,
    /// Copies of the scene `rsync` that are made while the tree changes.
    #[arg(long, default_value_t = 20)]
    pub copies: usize,
}

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct TogetherPlan {
    /// A program whose `player` does [`work`].
    pub program: PathBuf,
    /// The scenes, one after the other.
    pub scenes: Vec<Scene>,
    /// How much of each.
    pub sizes: SceneSizes,
    /// Decides lengths, pauses and the like.
    pub seed: u64,
    /// How long one scene may take.
    pub within: Duration,
    /// A local directory that is used in the place of three mounts.
    pub directory: Option<PathBuf>,
}

/// What a scene counted and measured, and one sentence about it.
#[derive(Debug)]
struct SceneFigures {
    figures: Map<String, Value>,
    sentence: String,
}

impl SceneFigures {
    /// `figures` is a JSON object.
    fn new(figures: Value, sentence: String) -> Self {
        match figures {
            Value::Object(figures) => Self { figures, sentence },
            other => panic!("figures are an object, not {other}"),
        }
    }
}

/// The result of a scene in which nothing was wrong.
#[derive(Clone, Debug, Serialize)]
pub struct SceneReport {
    v: u8,
    r#type: &'static str,
    /// The scene.
    pub scene: Scene,
    /// How long it took.
    pub seconds: f64,
    /// What it counted and measured.
    #[serde(flatten)]
    pub figures: Map<String, Value>,
    /// The same in words.
    #[serde(skip)]
    pub sentence: String,
}

/// The main function of a player's process.
///
/// # Errors
/// If the mount refuses a call, or shows what it must not.
pub fn work(task: &PlayerTask) -> anyhow::Result<()> {
    players::end_with_the_parent()?;
    match task {
        PlayerTask::Count(task) => sqlite::count(task),
        PlayerTask::Check(task) => sqlite::check(task),
        PlayerTask::Append(task) => appenders::append(task),
        PlayerTask::Grow(task) => tail::grow(task),
        PlayerTask::Watch(task) => tail::watch(task),
        PlayerTask::Change(task) => copying::change(task),
    }
}

/// What a player does.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum PlayerTask {
    /// Increments the counter of a database.
    Count(sqlite::CountTask),
    /// Checks a database.
    Check(sqlite::CheckTask),
    /// Appends lines to a file that others append to.
    Append(appenders::AppendTask),
    /// Appends lines to a file that others read.
    Grow(tail::GrowTask),
    /// Reads a file that grows.
    Watch(tail::WatchTask),
    /// Renames directories and replaces files.
    Change(copying::ChangeTask),
}

/// Plays the scenes; calls `report` with the outcome of each. Returns whether nothing was wrong.
///
/// # Panics
/// If the volume cannot be created or mounted.
pub fn run(
    plan: &TogetherPlan,
    mut report: impl FnMut(Scene, &anyhow::Result<SceneReport>),
) -> bool {
    let mounts = Arc::new(match &plan.directory {
        Some(directory) => ThreeMounts::of_directory(directory),
        None => ThreeMounts::of_volume(),
    });
    let (mut sound, mut without_mounts) = (true, None);
    for &scene in &plan.scenes {
        let outcome = match without_mounts {
            None => play(plan, scene, &mounts, &mut without_mounts),
            Some(before) => Err(anyhow::anyhow!(
                "not played: the mounts did not answer in `{before}`, and were ended"
            )),
        };
        sound &= outcome.is_ok();
        report(scene, &outcome);
    }
    mounts.unmount();
    sound
}

fn play(
    plan: &TogetherPlan,
    scene: Scene,
    mounts: &Arc<ThreeMounts>,
    without_mounts: &mut Option<Scene>,
) -> anyhow::Result<SceneReport> {
    let began = Instant::now();
    let run = SceneRun::begin(plan, scene, mounts)?;
    let mut outcome = scene.play(&run);
    if run.is_late() {
        let past = format!("it did not end within {} s", plan.within.as_secs());
        outcome = match outcome {
            Ok(_) => Err(anyhow::Error::msg(past)),
            Err(error) => Err(error.context(past)),
        };
    }
    if run.has_no_mounts() {
        *without_mounts = Some(scene);
    }
    drop(run);
    let SceneFigures { figures, sentence } = outcome?;
    Ok(SceneReport {
        v: 1,
        r#type: "scene",
        scene,
        seconds: (began.elapsed().as_secs_f64() * 10.0).round() / 10.0,
        figures,
        sentence,
    })
}

/// The median and the maximum of durations in nanoseconds, in milliseconds.
fn median_and_maximum(nanoseconds: &mut [u64]) -> (f64, f64) {
    let milliseconds = |it: u64| (it as f64 / 1e4).round() / 100.0;
    nanoseconds.sort_unstable();
    let median = nanoseconds.get(nanoseconds.len() / 2);
    let both = [median, nanoseconds.last()].map(|it| milliseconds(it.copied().unwrap_or(0)));
    (both[0], both[1])
}

/// The monotonic clock of this machine, which is the same for all its processes, in nanoseconds.
fn monotonic() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}
