//! One file that four processes on three mounts append to, one line with each write.
//!
//! The lines have different lengths. They come in bursts; after some bursts the file is synced,
//! after some it is closed and opened again, after most neither. Once all processes have closed the
//! file, every mount has to show every line whole, and the lines of each writer in its order.

use super::lines::{LINE_BYTES_MAX, check, line};
use super::mounts::MOUNTS;
use super::players::{SceneRun, text};
use super::{SceneFigures, monotonic};
use anyhow::{Context, Result, ensure};
use quorumfs_bft_simulator::random::Random;
use serde_json::json;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

const WRITERS: usize = 4;
const BURST_MAX: u64 = 20;
const PAUSE_MAX_MICROS: u64 = 20_000;
/// What a line has in addition to its filling, at most.
const LINE_BYTES_AROUND: u64 = 60;

/// The arguments of a process that appends.
#[derive(Clone, Debug, clap::Args)]
pub struct AppendTask {
    /// The file.
    #[arg(long)]
    file: PathBuf,
    /// Which of the processes this is.
    #[arg(long)]
    writer: u64,
    /// How many lines it appends.
    #[arg(long)]
    lines: u64,
    /// Decides lengths and pauses.
    #[arg(long)]
    seed: u64,
}

fn open(path: &Path) -> Result<File> {
    let open = File::options().append(true).open(path);
    open.context("opening the file to append")
}

/// Appends its lines; prints how many were written.
pub(super) fn append(task: &AppendTask) -> Result<()> {
    let mut random = Random::new(task.seed);
    let mut file = open(&task.file)?;
    let mut number = 1;
    while number <= task.lines {
        let burst = random.between(1, BURST_MAX).min(task.lines - number + 1);
        for number in number..number + burst {
            // Half of the lines are short, as in most logs.
            let most = match random.chance(1, 2) {
                true => 100,
                false => LINE_BYTES_MAX as u64 - LINE_BYTES_AROUND,
            };
            let line = line(task.writer, number, usize::try_from(random.below(most))?);
            let written = file.write(line.as_bytes());
            let written = written.with_context(|| format!("writing line {number}"))?;
            let length = line.len();
            ensure!(
                written == length,
                "line {number}: {written} of {length} bytes were written"
            );
        }
        number += burst;
        match random.below(5) {
            0 => file.sync_all().context("fsync")?,
            1 => file = open(&task.file)?,
            _ => {}
        }
        std::thread::sleep(Duration::from_micros(random.below(PAUSE_MAX_MICROS)));
    }
    file.sync_all().context("the last fsync")?;
    println!("{}", number - 1);
    Ok(())
}

/// Plays the scene.
pub(super) fn play(run: &SceneRun) -> Result<SceneFigures> {
    let name = "log";
    File::create(run.path(0, name))?.sync_all()?;
    let (began, lines) = (monotonic(), run.plan.sizes.lines.to_string());
    let writers = (0..WRITERS).map(|writer| {
        let mount = writer % MOUNTS;
        let file = run.path(mount, name);
        let [number, seed] =
            [writer as u64, run.plan.seed + writer as u64].map(|it| it.to_string());
        let task = ["append", "--file", text(&file), "--writer", &number];
        let more = ["--lines", &lines, "--seed", &seed];
        let name = format!("writer {writer}, on mount {mount}");
        run.player(name, &[&task[..], &more].concat())
    });
    let writers = writers.collect::<Result<Vec<_>>>()?;
    for writer in writers {
        let name = writer.name().to_owned();
        let written = writer.finish()?;
        ensure!(written == [lines.as_str()], "{name} printed {written:?}");
    }
    let seconds = (monotonic() - began) as f64 / 1e9;
    let expected = [run.plan.sizes.lines; WRITERS];
    let (mut bytes, mut changes) = (0, 0);
    for mount in 0..MOUNTS {
        let content = fs::read(run.path(mount, name))?;
        changes = check(&content, &expected)
            .with_context(|| format!("the file `{name}` as mount {mount} shows it"))?;
        bytes = content.len();
    }
    let total = expected.iter().sum::<u64>();
    let rate = (total as f64 / seconds).round();
    let figures = json!({
        "lines": total, "bytes": bytes, "writer_changes": changes, "lines_per_second": rate,
    });
    let sentence = format!(
        "{total} lines that {WRITERS} processes on {MOUNTS} mounts appended to one file are there, \
         whole and in each writer's order, on every mount; the writer changed {changes} times, and \
         {rate} lines came in a second."
    );
    Ok(SceneFigures::new(figures, sentence))
}
