//! A file that a process on one mount appends to, and that processes on the others read meanwhile.
//!
//! One reader of each mount opens the file for every look; another one keeps a descriptor, asks for
//! the size, and reads what is new, as `tail -f` does. The writer syncs or closes the file after
//! each line. An open that begins after that has to show the line: *close to open*. What is open
//! has to show it within the bound of names and attributes. No reader may see a part of a line, or
//! less than it has seen before.

use super::lines::{line, parse};
use super::mounts::MOUNTS;
use super::players::{SceneRun, text};
use super::{SceneFigures, median_and_maximum, monotonic};
use crate::twins::several::BOUND;
use anyhow::{Context, Result, bail, ensure};
use quorumfs_bft_simulator::random::Random;
use serde_json::json;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const FILLING_MAX: u64 = 400;
const PAUSE_MAX_MICROS: u64 = 30_000;
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The arguments of the process that writes.
#[derive(Clone, Debug, clap::Args)]
pub struct GrowTask {
    /// The file.
    #[arg(long)]
    file: PathBuf,
    /// How many lines it appends.
    #[arg(long)]
    lines: u64,
    /// Decides lengths and pauses.
    #[arg(long)]
    seed: u64,
}

/// The arguments of a process that reads.
#[derive(Clone, Debug, clap::Args)]
pub struct WatchTask {
    /// The file.
    #[arg(long)]
    file: PathBuf,
    /// It ends when it has seen so many lines.
    #[arg(long)]
    lines: u64,
    /// How it looks.
    #[arg(long, value_enum)]
    look: Look,
    /// A part of a line is seen again later, and is no failure.
    #[arg(long)]
    in_parts: bool,
}

/// How a reader looks at a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Look {
    /// It opens, reads and closes the file.
    Reopen,
    /// It asks a descriptor for the size, and reads what is new.
    Follow,
}

impl Look {
    const fn name(self) -> &'static str {
        match self {
            Self::Reopen => "reopen",
            Self::Follow => "follow",
        }
    }
}

/// Appends lines; prints the time at which each was synced.
pub(super) fn grow(task: &GrowTask) -> Result<()> {
    let mut random = Random::new(task.seed);
    let open = || File::options().append(true).open(&task.file);
    let mut file = Some(open()?);
    for number in 1..=task.lines {
        std::thread::sleep(Duration::from_micros(random.below(PAUSE_MAX_MICROS)));
        let mut opened = match file.take() {
            Some(file) => file,
            None => open()?,
        };
        let line = line(0, number, usize::try_from(random.below(FILLING_MAX))?);
        let written = opened.write(line.as_bytes())?;
        ensure!(
            written == line.len(),
            "line {number}: {written} bytes were written"
        );
        if random.chance(1, 2) {
            opened.sync_all()?;
            println!("{}", monotonic());
            file = Some(opened);
        } else {
            drop(opened);
            println!("{}", monotonic());
        }
    }
    Ok(())
}

/// The whole lines that follow `number` lines; a part of a line is left.
fn take_lines(bytes: &[u8], mut number: u64, in_parts: bool) -> Result<(u64, usize)> {
    let mut place = 0;
    for bytes in bytes.split_inclusive(|it| *it == b'\n') {
        if in_parts && !bytes.ends_with(b"\n") {
            break;
        }
        let start = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]);
        let parsed = parse(bytes);
        let expected = Some((0, number + 1));
        ensure!(
            parsed == expected,
            "after line {number}: {} bytes that are not the next line: {start:?}",
            bytes.len()
        );
        (number, place) = (number + 1, place + bytes.len());
    }
    Ok((number, place))
}

/// Reads a part of a file that has this length. A mount shows nothing older than it showed before,
/// so the file may not end earlier.
fn read_to(file: &File, from: u64, length: u64) -> Result<Vec<u8>> {
    let read = || -> Result<Vec<u8>> {
        let (mut bytes, mut filled) = (vec![0; usize::try_from(length - from)?], 0);
        while filled < bytes.len() {
            match file.read_at(&mut bytes[filled..], from + filled as u64)? {
                0 => break,
                count => filled += count,
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    };
    let is_whole = |bytes: &Vec<u8>| bytes.len() as u64 == length - from;
    let (bytes, began) = (read()?, Instant::now());
    if is_whole(&bytes) {
        return Ok(bytes);
    }
    // It is wrong already; how long it stays so helps to find the reason.
    let (mut again, size) = (read()?, file.metadata()?.len());
    while !is_whole(&again) && began.elapsed() < BOUND {
        std::thread::sleep(Duration::from_millis(1));
        again = read()?;
    }
    bail!(
        "fstat said {length} bytes, and a read from {from} ended at {}; then fstat said {size}, \
         and a read ended at {} after {:?}",
        from + bytes.len() as u64,
        from + again.len() as u64,
        began.elapsed()
    )
}

/// Looks until it has seen all lines; prints for each look when it began and ended, and how many
/// lines it showed.
pub(super) fn watch(task: &WatchTask) -> Result<()> {
    let file = File::open(&task.file)?;
    let (mut seen, mut place) = (0, 0);
    while seen < task.lines {
        let began = monotonic();
        let now = match task.look {
            Look::Reopen => take_lines(&fs::read(&task.file)?, 0, task.in_parts)?.0,
            Look::Follow => {
                let length = file.metadata()?.len();
                ensure!(length >= place, "the size went from {place} to {length}");
                let new = read_to(&file, place, length)?;
                let (now, taken) = take_lines(&new, seen, task.in_parts)?;
                place += taken as u64;
                now
            }
        };
        ensure!(
            now >= seen,
            "{now} lines are there, and {seen} were there before"
        );
        seen = now;
        println!("{began} {} {seen}", monotonic());
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// What one reader did: begin, end and number of lines of each look.
fn looks(lines: &[String]) -> Result<Vec<[u64; 3]>> {
    let numbers = lines.iter().map(|line| {
        let numbers: Vec<u64> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        <[u64; 3]>::try_from(numbers).map_err(|_| anyhow::anyhow!("it printed {line}"))
    });
    numbers.collect()
}

/// How long after its sync each line was seen, in nanoseconds. With `close_to_open`, each look has
/// to show what was synced before it began.
fn delays(synced: &[u64], looks: &[[u64; 3]], close_to_open: bool) -> Result<Vec<u64>> {
    let (mut delays, mut at) = (Vec::new(), looks.iter());
    for [began, _, seen] in looks.iter().filter(|_| close_to_open) {
        let due = synced.partition_point(|it| it < began) as u64;
        ensure!(
            *seen >= due,
            "an open showed {seen} lines, and {due} were synced before it began"
        );
    }
    for (synced, number) in synced.iter().zip(1..) {
        // A look may show several lines: it is used for each of them.
        let Some([_, ended, _]) = at.clone().find(|[_, _, seen]| *seen >= number) else {
            bail!("line {number} was never seen");
        };
        while at
            .as_slice()
            .first()
            .is_some_and(|[_, _, seen]| *seen < number)
        {
            at.next();
        }
        delays.push(ended.saturating_sub(*synced));
    }
    Ok(delays)
}

/// Plays the scene.
pub(super) fn play(run: &SceneRun) -> Result<SceneFigures> {
    let name = "growing";
    File::create(run.path(0, name))?.sync_all()?;
    let (lines, seed) = (
        run.plan.sizes.tail_lines.to_string(),
        run.plan.seed.to_string(),
    );
    let watcher = |mount: usize, look: Look| {
        let file: &Path = &run.path(mount, name);
        let task = [
            "watch",
            "--file",
            text(file),
            "--lines",
            &lines,
            "--look",
            look.name(),
        ];
        // A local file system shows a line before it is written to its end.
        let more: &[&str] = match run.mounts.are_real() {
            true => &[],
            false => &["--in-parts"],
        };
        let who = format!(
            "the reader on mount {mount} that looks by `{}`",
            look.name()
        );
        run.player(who, &[&task[..], more].concat())
    };
    let mut watchers = Vec::new();
    for look in [Look::Reopen, Look::Follow] {
        for mount in 1..MOUNTS {
            watchers.push((look, watcher(mount, look)?));
        }
    }
    let file = run.path(0, name);
    let task = [
        "grow",
        "--file",
        text(&file),
        "--lines",
        &lines,
        "--seed",
        &seed,
    ];
    let writer = run.player("the writer on mount 0".into(), &task)?;
    let synced = writer.finish()?.into_iter().map(|it| it.parse());
    let synced: Vec<u64> = synced.collect::<Result<_, _>>()?;
    let mut delayed = [Vec::new(), Vec::new()];
    let mut count = 0;
    for (look, watcher) in watchers {
        let name = watcher.name().to_owned();
        let looks = looks(&watcher.finish()?)?;
        count += looks.len();
        let delays = delays(&synced, &looks, look == Look::Reopen).context(name.clone())?;
        let most = Duration::from_nanos(delays.iter().copied().max().unwrap_or(0));
        ensure!(
            most <= BOUND,
            "{name}: a line was seen {most:?} after its sync"
        );
        delayed[usize::from(look == Look::Follow)].extend(delays);
    }
    let [reopened, followed] = delayed.map(|mut it| median_and_maximum(&mut it));
    let figures = json!({
        "lines": synced.len(), "looks": count,
        "reopen_median_ms": reopened.0, "reopen_maximum_ms": reopened.1,
        "follow_median_ms": followed.0, "follow_maximum_ms": followed.1,
    });
    let sentence = format!(
        "{lines} lines arrived whole and in order on two other mounts; after its sync a line took \
         {} ms to a reader that opens the file, at most {} ms, and {} ms to one that keeps it \
         open, at most {} ms.",
        reopened.0, reopened.1, followed.0, followed.1
    );
    Ok(SceneFigures::new(figures, sentence))
}
