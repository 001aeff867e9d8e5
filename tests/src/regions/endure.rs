//! What a volume endures whose replicas and mounts are far apart, and the links between them bad.
//!
//! Each *scene* starts a volume of its own: four replicas and a mount or two, real processes at
//! endpoints of a network.
//!
//! * `load`: two mounts are used over slow links that lose packets. No view ends, nearly no query
//!   has to be ordered, and all content is right.
//! * `cut`: the region of the leader is cut off and returns, again and again. The others go on
//!   soon, nothing acknowledged is lost, and the region that returns is up to date again.
//! * `return`: a replica returns that has missed thousands of batches. It has what it missed at
//!   half of what its link carries.
//!
//! Invariants: a scene ends, since every wait has a deadline and every call of a mount does; it
//! leaves no process and no mount behind, however it ends; it says every figure before it fails
//! because of one.

mod cut;
mod load;
mod reports;
mod returning;
mod work;

use super::volume::FarVolume;
use anyhow::{Context, bail};
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// A scene, by the name that chooses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum EnduranceScene {
    /// Two mounts are used over slow links that lose packets.
    Load,
    /// The region of the leader is cut off, again and again.
    Cut,
    /// A replica returns that has missed thousands of batches.
    Return,
}

impl EnduranceScene {
    /// All of them, in the order in which they are played.
    pub const ALL: [Self; 3] = [Self::Load, Self::Cut, Self::Return];
}

impl fmt::Display for EnduranceScene {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Load => "load",
            Self::Cut => "cut",
            Self::Return => "return",
        })
    }
}

/// How much of each scene is played.
#[derive(Clone, Debug, clap::Args)]
pub struct EnduranceSizes {
    /// How many seconds the mounts of the scene `load` are used.
    #[arg(long, default_value_t = 600)]
    pub seconds: u64,
    /// Packets of a hundred that are lost in the scene `load`. Above one, views may fail and
    /// queries be ordered.
    #[arg(long, default_value_t = 1.0)]
    pub loss_percent: f64,
    /// How often the scene `cut` cuts the leader's region off in both directions. If it is more
    /// than one, each direction is cut once more by itself.
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Seconds that the next change of the scene `cut` may take besides three round trips.
    #[arg(long, default_value_t = 1)]
    pub beyond: u64,
    /// Batches that the replica of the scene `return` misses.
    #[arg(long, default_value_t = 5000)]
    pub batches: u64,
    /// Bytes of content in each of these batches, which the replica has to fetch in any case.
    #[arg(long, default_value_t = 6000)]
    pub batch_bytes: usize,
    /// Megabits a second of the link over which the replica of the scene `return` returns.
    #[arg(long, default_value_t = 20.0)]
    pub rate_mbit: f64,
    /// The part of that rate at which what it needs has to come.
    #[arg(long, default_value_t = 0.5)]
    pub rate_part: f64,
    /// Copies the logs of the replicas and mounts to this directory in the end.
    #[arg(long)]
    pub logs: Option<PathBuf>,
}

/// Plays a scene, and hands over a sentence for each finding.
///
/// # Errors
/// If what has to hold does not; the error says what. If the network cannot be made.
///
/// # Panics
/// If a command fails.
pub fn endure(
    scene: EnduranceScene,
    sizes: &EnduranceSizes,
    tell: &mut dyn FnMut(&str),
) -> anyhow::Result<()> {
    let mut findings = Findings {
        wrong: Vec::new(),
        tell,
    };
    match scene {
        EnduranceScene::Load => load::play(sizes, &mut findings)?,
        EnduranceScene::Cut => cut::play(sizes, &mut findings)?,
        EnduranceScene::Return => returning::play(sizes, &mut findings)?,
    }
    match findings.wrong.is_empty() {
        true => Ok(()),
        false => bail!("{}", findings.wrong.join("; ")),
    }
}

/// What a scene has found.
struct Findings<'a> {
    wrong: Vec<String>,
    tell: &'a mut dyn FnMut(&str),
}

impl Findings<'_> {
    fn say(&mut self, sentence: &str) {
        (self.tell)(sentence);
    }

    /// Says a figure, and notes that it is wrong unless this holds.
    fn require(&mut self, holds: bool, sentence: String) {
        match holds {
            true => self.say(&sentence),
            false => {
                self.say(&format!("WRONG: {sentence}"));
                self.wrong.push(sentence);
            }
        }
    }

    /// Says that something is right, or what is wrong.
    fn check(&mut self, right: &str, outcome: anyhow::Result<()>) {
        match outcome {
            Ok(()) => self.say(right),
            Err(error) => self.require(false, format!("{error:#}")),
        }
    }
}

/// Plays a part with a volume, and then copies its logs if that is wanted, however the part ended.
fn with_logs(
    sizes: &EnduranceSizes,
    volume: &mut FarVolume,
    part: impl FnOnce(&mut FarVolume) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let outcome = part(volume);
    match &sizes.logs {
        Some(logs) => outcome.and(volume.copy_logs(logs).context("copy the logs")),
        None => outcome,
    }
}

/// A time in seconds, for people.
fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}
