//! Locks of each kind between processes on three mounts.
//!
//! The processes are Python's, because Rust's safe libraries have neither locks of ranges nor those
//! of open files. They are told line by line what to do ([`rules`]), or take a lock many times on
//! their own ([`sections`]); [`dead`] kills processes and mounts that hold a lock or wait for one.

mod dead;
mod rules;
mod sections;

use super::SceneFigures;
use super::players::{Player, SceneRun};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Map;
use std::fs::{self, File};
use std::process::Command;
use std::time::Duration;

const PROGRAM: &str = include_str!("locks/holder.py");
/// A call that does not wait for a lock returns far sooner.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// A call that has not returned after this time waits.
const WAITS: Duration = Duration::from_millis(400);

/// The three kinds of locks.
const KINDS: [&str; 3] = ["fcntl", "ofd", "flock"];

const DONE: &str = "done";
const REFUSED: &str = "refused";

/// A process that holds locks, on one mount.
struct Holder(Player);

impl Holder {
    /// Starts one, in the directory of the scene, with `file` open as `a`.
    fn start(run: &SceneRun, mount: usize, role: &str) -> Result<Self> {
        let mut command = Command::new("python3");
        command
            .args(["-c", PROGRAM])
            .current_dir(run.path(mount, ""));
        let player = run.start(format!("{role} on mount {mount}"), command);
        let mut holder = Self(player.context("this scene needs python3")?);
        ensure!(
            holder.answer()? == "ready",
            "{} is not ready",
            holder.0.name()
        );
        holder.must("a = opened()", DONE)?;
        Ok(holder)
    }

    fn answer(&mut self) -> Result<String> {
        let answer = self.0.hear(ANSWER_WITHIN)?;
        answer.with_context(|| format!("{} does not answer", self.0.name()))
    }

    /// Executes a line, and returns the answer.
    fn does(&mut self, order: &str) -> Result<String> {
        self.0.tell(order)?;
        let answer = self.answer();
        answer.with_context(|| format!("`{order}`"))
    }

    /// Executes a line, whose answer has to be this one.
    fn must(&mut self, order: &str, answer: &str) -> Result<()> {
        let got = self.does(order)?;
        let name = self.0.name();
        ensure!(
            got == answer,
            "{name}: `{order}` gave `{got}` instead of `{answer}`"
        );
        Ok(())
    }

    /// Begins to execute a line, which has to wait.
    fn waits(&mut self, order: &str) -> Result<()> {
        self.0.tell(order)?;
        self.still_waits(order)
    }

    fn still_waits(&mut self, order: &str) -> Result<()> {
        match self.0.hear(WAITS)? {
            None => Ok(()),
            Some(got) => bail!("{}: `{order}` does not wait: `{got}`", self.0.name()),
        }
    }

    /// Waits for the end of a line that was begun, for at most this time.
    fn comes(&mut self, answer: &str, within: Duration) -> Result<()> {
        let got = self.0.hear(within)?;
        let name = self.0.name();
        ensure!(
            got.as_deref() == Some(answer),
            "{name}: the answer is {got:?} and not `{answer}` within {within:?}"
        );
        Ok(())
    }
}

/// An order to take or release a lock of the whole file.
fn order(kind: &str, how: &str) -> String {
    format!("lock('{kind}', '{how}', a)")
}

/// The same, without waiting.
fn attempt(kind: &str, how: &str) -> String {
    format!("lock('{kind}', '{how}', a, wait=False)")
}

/// Plays the scene. What is wrong in one part does not keep the others from being played.
pub(super) fn play(run: &SceneRun) -> Result<SceneFigures> {
    fs::write(run.path(0, "file"), "content")?;
    let (mut figures, mut sentence, mut broken) = (Map::new(), String::new(), Vec::new());
    for kind in KINDS {
        for name in ["counter", "copy"] {
            let path = run.path(0, &format!("{name}-{kind}"));
            fs::write(&path, "0".repeat(20))?;
            File::open(path)?.sync_all()?;
        }
        match sections::play(run, kind) {
            Ok(report) => {
                sentence += &format!("{kind} locks were handed over {}; ", report.sentence());
                figures.insert(kind.to_owned(), serde_json::to_value(report)?);
            }
            Err(error) => broken.push(error.context(format!("`{kind}`, in sections"))),
        }
    }
    broken.extend(rules::play(run));
    let (died, wrong) = dead::kill_processes(run);
    broken.extend(wrong);
    sentence += &format!(
        "the lock of a killed process came after {} ms",
        died.process_ms
    );
    figures.insert("killed".into(), serde_json::to_value(died)?);
    if run.mounts.are_real() {
        match dead::kill_mount(run) {
            Ok(died) => {
                sentence += &format!(
                    ", that of a killed mount {} ms after the next mount of its machine began.",
                    died.after_mount_began_ms
                );
                figures.insert("killed_mount".into(), serde_json::to_value(died)?);
            }
            Err(error) => broken.push(error.context("a mount is killed")),
        }
    } else {
        sentence += " (a directory is no mount, and none was killed).";
    }
    let said: Vec<String> = broken.iter().map(|error| format!("{error:#}")).collect();
    ensure!(
        said.is_empty(),
        "{} rules are broken: {}",
        said.len(),
        said.join("; ")
    );
    Ok(SceneFigures { figures, sentence })
}
