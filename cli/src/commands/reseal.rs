//! Sealing anew what is under old keys: `volume reseal`, and for names the end of `volume rekey`
//! and `people remove`.

use super::opened::{Access, Configured, Opened};
use crate::arguments::{General, VolumeResealArguments};
use crate::exit::Exit;
use crate::explain::{block_failure, vfs_failure, volume_failure};
use crate::failure::CommandResult;
use crate::output::Output;
use quorumfs_gateway::slices::ResealedContent;
use quorumfs_gateway::volume::Resealed;
use serde::Serialize;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// The interval of progress lines.
const SHOWN_EVERY: Duration = Duration::from_millis(500);

/// What was done.
#[derive(Clone, Copy, Serialize)]
pub(super) struct ResealLine {
    pub(super) names: u64,
    pub(super) directories: u64,
    /// Directories that change so much that they could not be completed.
    pub(super) left: u64,
}

impl ResealLine {
    fn of(done: &Resealed) -> Self {
        Self {
            names: done.names,
            directories: done.directories,
            left: done.left,
        }
    }

    pub(super) fn text(&self) -> String {
        let done = match (self.names, self.directories) {
            (0, 0) => "No names were under old keys.".to_owned(),
            (names, directories) => {
                format!("{names} names in {directories} directories are under the new key.")
            }
        };
        match self.left {
            0 => done,
            left => format!(
                "{done}\n{left} directories change too fast: `quorumfs volume reseal` goes on."
            ),
        }
    }

    /// The exit code of a command whose other work has ended so.
    pub(super) const fn exit_after(&self, exit: Exit) -> Exit {
        match (exit, self.left) {
            (Exit::Success, 1..) => Exit::Partial,
            (exit, _) => exit,
        }
    }
}

/// What was done with content.
#[derive(Clone, Copy, Serialize)]
struct ContentLine {
    slices: u64,
    bytes: u64,
    /// Slices that could not be read, and are as they were.
    unreadable: u64,
    /// Slices that changed all the time.
    left: u64,
}

impl ContentLine {
    fn of(done: &ResealedContent) -> Self {
        Self {
            slices: done.slices,
            bytes: done.bytes,
            unreadable: done.unreadable,
            left: done.left,
        }
    }

    fn text(&self) -> String {
        let mebibytes = self.bytes as f64 / f64::from(1 << 20);
        let done = match self.slices {
            0 => "No content was under old keys.".to_owned(),
            _ => format!(
                "{mebibytes:.1} MiB of content are under the new key. The old objects are gone \
                 once `quorumfs reconcile` has deleted them."
            ),
        };
        match (self.unreadable, self.left) {
            (0, 0) => done,
            (0, left) => format!("{done}\n{left} pieces changed meanwhile: the same again."),
            (unreadable, _) => format!(
                "{done}\n{unreadable} pieces cannot be read, and are as they were: see `quorumfs \
                 scrub`."
            ),
        }
    }

    const fn exit_after(&self, exit: Exit) -> Exit {
        match (exit, self.unreadable, self.left) {
            (Exit::Success, 0, 0) => exit,
            (Exit::Success, ..) => Exit::Partial,
            (exit, ..) => exit,
        }
    }
}

/// Runs the command.
pub(crate) async fn run(
    general: &General,
    arguments: &VolumeResealArguments,
    output: Output,
) -> CommandResult {
    let configured = Configured::read(general)?;
    let opened = Opened::open(&configured, Access::Command).await?;
    let done = run_opened(&opened, arguments, output).await;
    let closed = opened.close().await;
    let exit = done?;
    closed.map(|()| exit)
}

async fn run_opened(
    opened: &Opened,
    arguments: &VolumeResealArguments,
    output: Output,
) -> CommandResult {
    let names = reseal(opened, output).await?;
    output.record("resealed", &names, ResealLine::text)?;
    let exit = names.exit_after(Exit::Success);
    if !arguments.content {
        return Ok(exit);
    }
    let content = reseal_content(opened, output).await?;
    output.record("resealed_content", &content, ContentLine::text)?;
    Ok(content.exit_after(exit))
}

async fn reseal_content(opened: &Opened, output: Output) -> CommandResult<ContentLine> {
    let resealer = opened.content_resealer();
    let mut pace = Pace::new();
    let mut told = |done: &ResealedContent| {
        if pace.is_due() {
            let line = ContentLine::of(done);
            show(&line, output, |line| {
                let mebibytes = line.bytes as f64 / f64::from(1 << 20);
                format!("{} pieces, {mebibytes:.1} MiB sealed anew", line.slices)
            });
        }
    };
    let done = resealer.run(&mut told).await;
    clear_line(output);
    let done = done.map_err(|error| {
        vfs_failure(&error).or_hint("what was sealed anew stays so: the same command goes on")
    })?;
    Ok(ContentLine::of(&done))
}

/// When to show progress again.
struct Pace(Instant);

impl Pace {
    fn new() -> Self {
        Self(Instant::now())
    }

    fn is_due(&mut self) -> bool {
        let due = self.0.elapsed() >= SHOWN_EVERY;
        if due {
            self.0 = Instant::now();
        }
        due
    }
}

/// Seals all names anew that are under older keys.
pub(super) async fn reseal(opened: &Opened, output: Output) -> CommandResult<ResealLine> {
    let clouds = opened.blocks().shares();
    let clouds = clouds.map_err(|error| block_failure(&error))?;
    let mut pace = Pace::new();
    let mut told = |done: &Resealed| {
        if pace.is_due() {
            show(&ResealLine::of(done), output, |line| {
                format!(
                    "{} names in {} directories sealed anew",
                    line.names, line.directories
                )
            });
        }
    };
    let volume = opened.volume();
    let done = volume.reseal_names(opened.metadata(), Some(&clouds), &mut told);
    let done = done.await;
    clear_line(output);
    let done = done.map_err(|error| {
        volume_failure(&error)
            .or_hint("what was sealed anew stays so: `quorumfs volume reseal` goes on")
    })?;
    Ok(ResealLine::of(&done))
}

fn show<T: Serialize>(line: &T, output: Output, text: impl FnOnce(&T) -> String) {
    if output.is_json() {
        output.announce("progress", line, |_| String::new());
        return;
    }
    let mut stderr = std::io::stderr().lock();
    if stderr.is_terminal() {
        let _ = write!(stderr, "\r\x1b[K{}", text(line));
        let _ = stderr.flush();
    }
}

fn clear_line(output: Output) {
    let mut stderr = std::io::stderr().lock();
    if !output.is_json() && stderr.is_terminal() {
        let _ = stderr.write_all(b"\r\x1b[K");
    }
}
