//! `upload`: copies files into the volume with a progress bar, and makes links to them.
//!
//! It copies as `put` does, with two differences. It counts the bytes of its sources first, so that
//! it can say how far it is and how long it will take. And what it has stored of a large file stays
//! if it is killed: the same command goes on from there ([`unfinished`](super::unfinished)).
//!
//! Links are made only once everything is in the volume. If something could not be copied, no link
//! is made: it would lead to a part.

use super::put::{Copying, Moved, cancelled, name_of};
use super::shared_directory::{self, SHARED};
use super::unfinished::Unfinished;
use super::walk::shown;
use super::{CommandProgress, Summary, closing};
use crate::arguments::{General, PutArguments, UploadArguments};
use crate::commands::opened::{Access, Configured, Opened};
use crate::commands::share;
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use crate::output::{Output, line};
use crate::stop::Stop;
use quorumfs_http::page::size;
use serde::Serialize;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::task::spawn_blocking;

const TELL_EVERY: Duration = Duration::from_secs(1);
/// Characters of the bar.
const BAR: u64 = 24;

/// Runs the command.
pub(crate) async fn upload(
    general: &General,
    arguments: &UploadArguments,
    output: Output,
) -> CommandResult {
    let configured = Configured::read(general)?;
    let base = share::link::base(arguments.link, arguments.url.as_deref(), &configured)?;
    share::check_expires(arguments.expires)?;
    let target = arguments.to.as_deref().map_or_else(|| SHARED.into(), shown);
    let mut linked = Vec::new();
    for source in &arguments.sources {
        let name = name_of(source)?;
        linked.push(target.join(std::ffi::OsStr::from_bytes(&name)));
    }
    let mut stop = Stop::of_a_command()?;
    let sources = arguments.sources.clone();
    let opened = tokio::select! {
        opened = Opened::open(&configured, Access::Command) => opened?,
        () = stop.wanted() => return Err(stopped()),
    };
    let uploading = Uploading {
        configured: &configured,
        opened: &opened,
        output,
        sources,
        target,
    };
    let mut progress = CommandProgress::new(output);
    let outcome = uploading.run(&mut progress, &mut stop).await;
    line::clear(output);
    let outcome = outcome.map_err(|failure| progress.stopped(failure, Summary::uploaded));
    let ended = match outcome {
        Ok(()) => progress.end(Summary::uploaded),
        Err(failure) => Err(failure),
    };
    let outcome = match (ended, base) {
        (Ok(Exit::Success), Some(base)) => {
            let linking = {
                let session = (&configured, &opened);
                share::by_links(session, output, base, linked, arguments.expires)
            };
            tokio::select! {
                linked = linking => linked.map(|()| Exit::Success),
                () = stop.wanted() => Err(stopped()),
            }
        }
        (Ok(Exit::Partial), Some(_)) => {
            let told = output.print_text(
                "No link was made, because not everything was uploaded. Run it again once the \
                 reasons above are mended.",
            );
            told.map(|()| Exit::Partial)
        }
        (ended, _) => ended,
    };
    tokio::select! {
        closed = closing(opened, outcome) => closed,
        // The servers end the session by themselves.
        () = stop.wanted() => Err(stopped()),
    }
}

fn stopped() -> Failure {
    Failure::new(Exit::Cancelled, "stopped").hint("the same command goes on where this one stopped")
}

struct Uploading<'a> {
    configured: &'a Configured,
    opened: &'a Opened,
    output: Output,
    sources: Vec<PathBuf>,
    target: PathBuf,
}

impl Uploading<'_> {
    async fn run(&self, progress: &mut CommandProgress, stop: &mut Stop) -> CommandResult<()> {
        let fs = self.opened.file_system();
        let sources = self.sources.clone();
        let preparing = async {
            let total = spawn_blocking(move || bytes_of(sources)).await;
            let total = total.map_err(|error| Failure::new(Exit::Error, error.to_string()))?;
            shared_directory::ensure(fs, &self.target).await?;
            let unfinished = Unfinished::begin(self.configured.state(), fs).await?;
            Ok((total, Arc::new(unfinished)))
        };
        let (total, unfinished) = tokio::select! {
            prepared = preparing => prepared?,
            () = stop.wanted() => return Err(stopped()),
        };
        let moved = Arc::<Moved>::default();
        let copying = Copying {
            configured: self.configured,
            opened: self.opened,
            moved: moved.clone(),
            unfinished: Some(unfinished),
        };
        let arguments = PutArguments {
            sources: self.sources.clone(),
            target: self.target.clone(),
            archive: false,
            all: false,
        };
        let began = Instant::now();
        let state = || State {
            total,
            written: moved.written.load(Ordering::Relaxed),
            unchanged: moved.unchanged.load(Ordering::Relaxed),
            resumed: moved.resumed.load(Ordering::Relaxed),
        };
        let copying = copying.run(&arguments, progress, stop);
        tokio::pin!(copying);
        let mut tell = tokio::time::interval(TELL_EVERY);
        let outcome = loop {
            tokio::select! {
                outcome = &mut copying => break outcome,
                _ = tell.tick() => self.tell(&state(), began.elapsed())?,
            }
        };
        if self.output.is_json() {
            self.tell(&state(), began.elapsed())?;
        }
        outcome.map_err(|failure| match failure == cancelled() {
            true => stopped(),
            false => failure,
        })
    }

    fn tell(&self, state: &State, elapsed: Duration) -> CommandResult<()> {
        line::show(self.output, &state.text(elapsed));
        match self.output.is_json() {
            true => self.output.record("progress", state, |_| String::new()),
            false => Ok(()),
        }
    }
}

/// How far it has come, in bytes.
#[derive(Debug, Clone, Copy, Serialize)]
struct State {
    /// All of the sources, as they were found.
    total: u64,
    /// Written by this command.
    written: u64,
    /// Of files that were there already.
    unchanged: u64,
    /// Of files that an earlier command began.
    resumed: u64,
}

impl State {
    /// `[########----------------]  33 %  1.0 GiB of 3.0 GiB, 31.0 MiB/s, 1 min 6 s left`
    fn text(&self, elapsed: Duration) -> String {
        let there = self.written + self.unchanged + self.resumed;
        // Sources may grow meanwhile.
        let total = self.total.max(there);
        let of = |parts: u64| match total {
            0 => parts,
            _ => u64::try_from(u128::from(there) * u128::from(parts) / u128::from(total))
                .unwrap_or(parts),
        };
        let filled = of(BAR);
        let bar: String = (0..BAR)
            .map(|at| if at < filled { '#' } else { '-' })
            .collect();
        let mut text = format!(
            "[{bar}] {:3} %  {} of {}",
            of(100),
            size(there),
            size(total)
        );
        let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        let rate = self
            .written
            .saturating_mul(1000)
            .checked_div(millis)
            .unwrap_or(0);
        if rate > 0 {
            text.push_str(&format!(", {}/s", size(rate)));
        }
        match (total - there).checked_div(rate) {
            Some(0) | None => {}
            Some(seconds) => text.push_str(&format!(", {} left", duration(seconds))),
        }
        text
    }
}

fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// The bytes of all files below the sources. What cannot be read is reported when it is copied.
fn bytes_of(sources: Vec<PathBuf>) -> u64 {
    let (mut rest, mut bytes) = (sources, 0_u64);
    while let Some(path) = rest.pop() {
        let Ok(found) = fs::symlink_metadata(&path) else {
            continue;
        };
        if found.is_file() {
            bytes = bytes.saturating_add(found.len());
        }
        if found.is_dir()
            && let Ok(entries) = fs::read_dir(&path)
        {
            rest.extend(entries.filter_map(|entry| Some(entry.ok()?.path())));
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_bar_says_how_far_it_is_how_fast_and_how_long_it_takes() {
        let state = State {
            total: 300 * MIB,
            written: 50 * MIB,
            unchanged: 20 * MIB,
            resumed: 30 * MIB,
        };
        assert_eq!(
            state.text(Duration::from_secs(5)),
            "[########----------------]  33 %  100.0 MiB of 300.0 MiB, 10.0 MiB/s, 20 s left"
        );
        let nothing = State {
            total: 0,
            written: 0,
            unchanged: 0,
            resumed: 0,
        };
        assert!(nothing.text(Duration::ZERO).contains("100 %  0 B of 0 B"));
        let grown = State {
            total: MIB,
            written: 2 * MIB,
            ..nothing
        };
        assert!(
            grown
                .text(Duration::from_secs(1))
                .contains("100 %  2.0 MiB of 2.0 MiB")
        );
    }

    #[test]
    fn durations_are_said_in_two_units() {
        let said = [59, 60, 3599, 3660].map(duration);
        assert_eq!(said, ["59 s", "1 min 0 s", "59 min 59 s", "1 h 1 min"]);
    }

    #[test]
    fn bytes_are_those_of_files_and_not_of_what_links_lead_to() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("a")).unwrap();
        fs::write(directory.path().join("a/b"), [0; 7]).unwrap();
        fs::write(directory.path().join("c"), [0; 5]).unwrap();
        std::os::unix::fs::symlink("c", directory.path().join("d")).unwrap();
        let missing = directory.path().join("missing");
        assert_eq!(bytes_of(vec![directory.path().to_path_buf(), missing]), 12);
    }
}
