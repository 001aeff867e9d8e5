//! `quorumfs warmup`: prefetches files into the disk cache of the running mount.
//!
//! The paths are walked through the mount, like by any process; the mount is asked to fetch each
//! file, piece by piece, bypassing its cache in memory. Pieces that are cached already are skipped
//! without being read, so that a stopped warmup continues when it is started again. It stops before
//! it would evict its own pieces, and reports how much is left.

use super::disk_cache::CacheReport;
use super::mount_point::within;
use super::mount_report::MountReport;
use crate::arguments::{General, WarmupArguments};
use crate::control::{self, Question};
use crate::directory::StateDirectory;
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use crate::output::{Output, line};
use crate::stop::Stop;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Bytes per request to the mount, which has to answer within a connection's time limit.
const PIECE_BYTES: u64 = 16 << 20;
/// Concurrent requests for files; the mount serves a few more connections than that.
const FILES_AT_ONCE: usize = 6;
/// The interval of progress lines.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// Files that were found and not requested yet.
const FOUND_MAX: usize = 1024;

/// How the mount answers for a piece.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WarmedPiece {
    /// The result, in bytes.
    Done {
        /// Cached before.
        present: u64,
        /// Fetched.
        brought: u64,
        /// Not accepted by the cache.
        refused: u64,
    },
    /// It could not be read.
    Failed {
        /// Why.
        message: String,
    },
}

#[derive(Debug, Clone, Copy, Default, Serialize)]
struct Counts {
    files: u64,
    files_failed: u64,
    bytes_present: u64,
    bytes_brought: u64,
    /// Offered, and not accepted.
    bytes_refused: u64,
    /// Not tried any more: with them, more would be wanted than the cache holds.
    bytes_left_out: u64,
}

impl Counts {
    fn text(&self) -> String {
        let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let mut text = format!(
            "{} files: {:.1} MiB brought, {:.1} MiB were there",
            self.files,
            mebibytes(self.bytes_brought),
            mebibytes(self.bytes_present)
        );
        let lacking = self.bytes_refused.saturating_add(self.bytes_left_out);
        if lacking > 0 {
            text.push_str(&format!("; {:.1} MiB DID NOT FIT", mebibytes(lacking)));
        }
        if self.files_failed > 0 {
            text.push_str(&format!("; {} FILES FAILED", self.files_failed));
        }
        text
    }
}

struct FoundFile {
    path: PathBuf,
    inode: u64,
    length: u64,
}

/// Prefetches the files under the paths.
pub(crate) async fn run(
    general: &General,
    arguments: &WarmupArguments,
    output: Output,
) -> CommandResult {
    let state = StateDirectory::find(general.state.as_deref(), "volume")?;
    let Some(report) = control::ask::<MountReport>(&state, Question::Status).await? else {
        let message = format!("the volume of {} is not mounted", state.path().display());
        return Err(Failure::new(Exit::NoVolume, message).hint("mount it first"));
    };
    let room = Arc::new(AtomicU64::new(room(report.cache.as_ref())?));
    let mut roots = Vec::new();
    for path in &arguments.paths {
        roots.push(within(&report.point, path)?);
    }
    let mut stop = Stop::of_a_command()?;
    let (sender, mut found) = mpsc::channel(FOUND_MAX);
    let walk = tokio::task::spawn_blocking(move || walk(roots, &sender));
    let mut counts = Counts::default();
    let mut files = JoinSet::new();
    let mut tell = tokio::time::interval(TELL_EVERY);
    let mut is_all_found = false;
    while !is_all_found || !files.is_empty() {
        tokio::select! {
            () = stop.wanted() => {
                line::clear(output);
                let message = format!("stopped after {}", counts.text());
                return Err(Failure::new(Exit::Cancelled, message)
                    .hint("the same command goes on where this one stopped"));
            }
            next = found.recv(), if !is_all_found && files.len() < FILES_AT_ONCE => match next {
                None => is_all_found = true,
                Some(file) => {
                    let (state, room) = (state.clone(), room.clone());
                    files.spawn(async move {
                        let counts = warm(&state, &file, &room).await;
                        (file, counts)
                    });
                }
            },
            Some(done) = files.join_next(), if !files.is_empty() => {
                let (file, outcome) = done
                    .map_err(|error| Failure::new(Exit::Error, error.to_string()))?;
                counts.files += 1;
                match outcome {
                    Ok(piece) => counts.add(&piece),
                    Err(failure) => {
                        counts.files_failed += 1;
                        line::clear(output);
                        eprintln!("{}: {}", file.path.display(), failure.message);
                    }
                }
            },
            _ = tell.tick() => show(&counts, output)?,
        }
    }
    line::clear(output);
    let walked = walk.await;
    let unreadable = walked.map_err(|error| Failure::new(Exit::Error, error.to_string()))?;
    for failure in &unreadable {
        eprintln!("{}", failure.message);
    }
    output.record("warmup", &counts, Counts::text)?;
    let is_partial = counts.files_failed > 0 || !unreadable.is_empty();
    let lacks = counts.bytes_refused > 0 || counts.bytes_left_out > 0;
    Ok(match is_partial || lacks {
        true => Exit::Partial,
        false => Exit::Success,
    })
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.bytes_present += other.bytes_present;
        self.bytes_brought += other.bytes_brought;
        self.bytes_refused += other.bytes_refused;
        self.bytes_left_out += other.bytes_left_out;
    }
}

/// How many bytes may be fetched before they would evict each other: the cache reserves two
/// segments, an eighth of it each at most.
fn room(cache: Option<&CacheReport>) -> CommandResult<u64> {
    let none = |message: String| Failure::new(Exit::Usage, message);
    let Some(cache) = cache else {
        return Err(none("the mount has no disk cache".into())
            .hint("give it one with `size_mib` under [cache] in quorumfs.toml, and mount again"));
    };
    match &cache.problem {
        Some(problem) => Err(none(format!("the disk cache is not written: {problem}"))
            .hint("docs/TROUBLESHOOTING.md, \"The disk cache\"")),
        None => Ok(cache.bytes_max / 8 * 5),
    }
}

/// Finds all files, each once, and returns the errors of those that could not be examined.
fn walk(roots: Vec<PathBuf>, found: &mpsc::Sender<FoundFile>) -> Vec<Failure> {
    let (mut rest, mut failures, mut seen) = (roots, Vec::new(), HashSet::new());
    while let Some(path) = rest.pop() {
        let looked = std::fs::symlink_metadata(&path).and_then(|metadata| {
            if metadata.is_dir() {
                for entry in std::fs::read_dir(&path)? {
                    rest.push(entry?.path());
                }
            }
            Ok(metadata)
        });
        match looked {
            Ok(metadata) if metadata.is_file() && is_new(&metadata, &mut seen) => {
                let file = FoundFile {
                    path,
                    inode: metadata.ino(),
                    length: metadata.len(),
                };
                if found.blocking_send(file).is_err() {
                    return failures;
                }
            }
            Ok(_) => {}
            Err(error) => failures.push(Failure::file("look at", &path, &error)),
        }
    }
    failures
}

/// Whether a file was not found under another name before.
fn is_new(metadata: &Metadata, seen: &mut HashSet<u64>) -> bool {
    metadata.nlink() < 2 || seen.insert(metadata.ino())
}

/// Prefetches one file, as far as there is capacity.
async fn warm(state: &StateDirectory, file: &FoundFile, room: &AtomicU64) -> CommandResult<Counts> {
    let mut counts = Counts::default();
    let mut offset = 0;
    while offset < file.length {
        let length = PIECE_BYTES.min(file.length - offset);
        let take = |left: u64| left.checked_sub(length);
        let taken = room.fetch_update(Ordering::AcqRel, Ordering::Acquire, take);
        if taken.is_err() {
            counts.bytes_left_out = file.length - offset;
            break;
        }
        let question = Question::Warm {
            inode: file.inode,
            offset,
            length,
        };
        match control::ask::<WarmedPiece>(state, question).await? {
            Some(WarmedPiece::Done {
                present,
                brought,
                refused,
            }) => {
                counts.bytes_present += present;
                counts.bytes_brought += brought;
                counts.bytes_refused += refused;
                // A hole needs no capacity.
                let unused = length.saturating_sub(present.saturating_add(brought));
                room.fetch_add(unused, Ordering::AcqRel);
            }
            Some(WarmedPiece::Failed { message }) => {
                return Err(Failure::new(Exit::Error, message));
            }
            None => return Err(Failure::new(Exit::NoVolume, "the mount has ended")),
        }
        offset += length;
    }
    Ok(counts)
}

fn show(counts: &Counts, output: Output) -> CommandResult<()> {
    if output.is_json() {
        return output.record("progress", counts, |_| String::new());
    }
    line::show(output, &counts.text());
    Ok(())
}
