//! Spare segments: files of full length whose bytes were written before.
//!
//! ```text
//!  filling ──▶ N.draft ──synced, renamed──▶ N.spare ──▶ taken for the next segment
//!                                              ▲                    │
//!                           directory synced ──┴──── given up ◀─────┘
//! ```
//!
//! A replica that has run for a while reuses its segments and needs no new space. One more is
//! filled in advance, in small steps by a thread of its own, so that neither writing nor syncing it
//! delays the journal. It leaves space for another one: a speed optimisation must not fill the
//! medium, so when that is nearly full, segments grow with each write instead.
//!
//! What always holds: a file called `N.spare` had its full length durably. Its length is checked
//! again when it is taken, since the header of the resulting segment claims that nothing is
//! missing, and a copy may shorten or omit files. A segment that was given up is offered again only
//! after the directory was synced without its old name: otherwise a crash could bring the name
//! back, on top of newer records.

use super::DiskError;
use super::error::failed;
use super::files::{sync, sync_directory};
use super::segment::files;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The length of a filled segment, and the most that a segment grows to.
pub(super) const SEGMENT_BYTES: u64 = 16 << 20;
/// At most so many given-up segments are kept: 64 MiB.
const SPARES_MAX: usize = 4;
/// What is written at once while filling; `close` may have to wait for it.
const FILLED_AT_ONCE: usize = 256 << 10;
/// How many bytes stay unsynced while filling: the journal's sync may have to wait for them.
const UNSYNCED_BYTES: u64 = 1 << 20;
/// The free space that filling one requires: for itself, and as much to grow into.
const ROOM_BYTES_MIN: u64 = 2 * SEGMENT_BYTES;
/// The pause after a failure.
const RETRY: Duration = Duration::from_secs(10);

/// A spare that was taken, of full length.
pub(super) struct SpareSegment {
    pub(super) path: PathBuf,
    pub(super) file: File,
}

/// The spare segments of a journal.
pub(super) struct Spares {
    directory: PathBuf,
    free_bytes_min: u64,
    state: Mutex<SpareState>,
    changed: Condvar,
}

struct SpareState {
    ready: Vec<PathBuf>,
    /// Given up, with the directory not synced since.
    returned: Vec<PathBuf>,
    /// The number of the next spare.
    number: u64,
    wanted: bool,
    closed: bool,
}

enum SpareTask {
    Offer(Vec<PathBuf>),
    Fill(u64),
    End,
}

impl Spares {
    /// Takes over the spares of an earlier process.
    pub(super) fn open(directory: &Path) -> Result<Self, DiskError> {
        let mut ready = Vec::new();
        let mut number = 0;
        for path in files(directory)? {
            let is = |extension: &str| path.extension().is_some_and(|it| it == extension);
            if is("draft") {
                fs::remove_file(&path).map_err(failed("removing", &path))?;
            } else if is("spare") {
                if full(&path).is_none() {
                    fs::remove_file(&path).map_err(failed("removing", &path))?;
                    continue;
                }
                let digits = path.file_stem().and_then(|stem| stem.to_str());
                let found = digits.and_then(|digits| digits.parse::<u64>().ok());
                number = number.max(found.map_or(0, |found| found.saturating_add(1)));
                ready.push(path);
            }
        }
        // Renames of the previous process may not be durable yet.
        sync_directory(directory)?;
        Ok(Self {
            directory: directory.to_owned(),
            free_bytes_min: ROOM_BYTES_MIN,
            state: Mutex::new(SpareState {
                ready,
                returned: Vec::new(),
                number,
                wanted: false,
                closed: false,
            }),
            changed: Condvar::new(),
        })
    }

    /// Nothing panics while it holds the lock, so the state is consistent.
    fn lock(&self) -> MutexGuard<'_, SpareState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_ready(&self) -> bool {
        !self.lock().ready.is_empty()
    }

    /// From now on a spare is kept ready.
    pub(super) fn want(&self) {
        let mut state = self.lock();
        if !state.wanted {
            state.wanted = true;
            self.changed.notify_one();
        }
    }

    /// Takes a spare, if one is ready; another is then prepared.
    pub(super) fn take(&self) -> Option<SpareSegment> {
        let mut state = self.lock();
        let taken = state.ready.pop()?;
        state.wanted = true;
        self.changed.notify_one();
        drop(state);
        let spare = full(&taken);
        if spare.is_none() {
            tracing::warn!(path = %taken.display(), "a spare segment is gone or too short");
        }
        spare
    }

    /// Keeps a segment that was given up as a spare, or removes it.
    pub(super) fn take_back(&self, path: &Path) -> Result<(), DiskError> {
        let length = fs::metadata(path).map_err(failed("reading", path))?.len();
        let mut state = self.lock();
        if length != SEGMENT_BYTES || state.ready.len() + state.returned.len() >= SPARES_MAX {
            drop(state);
            return fs::remove_file(path).map_err(failed("removing", path));
        }
        let spare = self.directory.join(format!("{}.spare", state.number));
        state.number += 1;
        fs::rename(path, &spare).map_err(failed("renaming", path))?;
        state.returned.push(spare);
        self.changed.notify_one();
        Ok(())
    }

    /// Stops preparing spares.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_one();
    }

    /// The thread's work: prepares spares until it is closed.
    pub(super) fn prepare(&self) {
        let mut complained = false;
        loop {
            let done = match self.next_task() {
                SpareTask::End => return,
                SpareTask::Offer(paths) => self.offer(paths),
                SpareTask::Fill(number) => self.fill(number),
            };
            match done {
                Ok(()) => complained = false,
                Err(error) => {
                    if !complained {
                        tracing::warn!(
                            %error,
                            "no spare segment is prepared: the journal grows into the remaining \
                             free space, and the replica stops when there is none; free some space"
                        );
                    }
                    complained = true;
                    self.pause();
                }
            }
        }
    }

    fn next_task(&self) -> SpareTask {
        let idle = |state: &mut SpareState| {
            let full = !state.wanted || !state.ready.is_empty();
            !state.closed && state.returned.is_empty() && full
        };
        let waited = self.changed.wait_while(self.lock(), idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        if state.closed {
            return SpareTask::End;
        }
        if !state.returned.is_empty() {
            return SpareTask::Offer(std::mem::take(&mut state.returned));
        }
        state.number += 1;
        SpareTask::Fill(state.number - 1)
    }

    /// Waits before the next attempt, or until a segment was given up.
    fn pause(&self) {
        let idle = |state: &mut SpareState| !state.closed && state.returned.is_empty();
        let waited = self.changed.wait_timeout_while(self.lock(), RETRY, idle);
        drop(waited);
    }

    fn offer(&self, mut paths: Vec<PathBuf>) -> Result<(), DiskError> {
        sync_directory(&self.directory)?;
        self.lock().ready.append(&mut paths);
        Ok(())
    }

    fn fill(&self, number: u64) -> Result<(), DiskError> {
        let draft = self.directory.join(format!("{number}.draft"));
        let doing = "preparing a spare segment in";
        let statistics = rustix::fs::statvfs(&self.directory)
            .map_err(|error| failed(doing, &self.directory)(error.into()))?;
        if statistics.f_bavail.saturating_mul(statistics.f_frsize) < self.free_bytes_min {
            let path = self.directory.clone();
            return Err(DiskError::Full { doing, path });
        }
        match self.fill_draft(&draft) {
            Ok(true) => {
                let spare = draft.with_extension("spare");
                fs::rename(&draft, &spare).map_err(failed("renaming", &draft))?;
                self.offer(vec![spare])
            }
            // An unfinished file is removed; the cause is more useful than the outcome.
            unfinished => {
                let removed = fs::remove_file(&draft).map_err(failed("removing", &draft));
                unfinished.and(removed)
            }
        }
    }

    /// Writes the whole file; returns whether it was finished before `close`.
    fn fill_draft(&self, draft: &Path) -> Result<bool, DiskError> {
        let file = File::create(draft).map_err(failed("creating", draft))?;
        let zeros = vec![0; FILLED_AT_ONCE];
        let mut at = 0;
        while at < SEGMENT_BYTES {
            file.write_all_at(&zeros, at)
                .map_err(failed("filling", draft))?;
            at += zeros.len() as u64;
            if at.is_multiple_of(UNSYNCED_BYTES) {
                sync(&file, draft)?;
            }
            if self.lock().closed {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Opens a spare, if it exists and has its full length.
fn full(path: &Path) -> Option<SpareSegment> {
    let file = File::options().write(true).open(path).ok()?;
    let whole = file
        .metadata()
        .is_ok_and(|found| found.len() == SEGMENT_BYTES);
    whole.then(|| SpareSegment {
        path: path.to_owned(),
        file,
    })
}

/// Removes all spares, of a journal that is no longer written.
pub(super) fn remove_all(directory: &Path) -> Result<(), DiskError> {
    for path in files(directory)? {
        if path.extension().is_some_and(|it| it == "spare") {
            fs::remove_file(&path).map_err(failed("removing", &path))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_spare_is_filled_that_would_leave_too_little_free_space() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut spares = Spares::open(directory.path()).expect("empty");
        spares.free_bytes_min = u64::MAX;
        let refused = spares.fill(7);
        assert!(
            matches!(refused, Err(DiskError::Full { .. })),
            "{refused:?}"
        );
        let left = files(directory.path()).expect("there");
        assert!(left.is_empty() && !spares.is_ready(), "{left:?}");
        spares.free_bytes_min = 1;
        spares.fill(7).expect("enough space");
        assert!(spares.take().is_some());
    }
}
