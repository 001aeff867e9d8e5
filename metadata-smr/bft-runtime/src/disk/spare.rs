//! Spare segments: files of full length whose bytes were written before.
//!
//! ```text
//!  filling ──▶ N.draft ──synced, renamed──▶ N.spare ──▶ taken for the next segment
//!                                              ▲                    │
//!                           directory synced ──┴──── given up ◀─────┘
//! ```
//!
//! A replica that runs for a while goes round in the segments it has and needs no new room. One
//! more is filled ahead, by a thread of its own and a little at a time, so that neither its writing
//! nor its syncing holds up the journal's: if the medium has no room for it, that is said while a
//! whole segment of room is left.
//!
//! What always holds: a file called `N.spare` has its full length durably. A segment that was given
//! up is offered again only after the directory was synced without its old name: otherwise a crash
//! could bring the name back, above what was written since.

use super::DiskError;
use super::error::failed;
use super::files::{sync, sync_directory};
use super::segment::files;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a segment is that was filled, and how long one grows.
pub(super) const SEGMENT_BYTES: u64 = 16 << 20;
/// Segments that were given up are kept up to this number, 64 MiB.
const SPARES_MAX: usize = 4;
/// What is written at once while filling; whoever closes waits for it.
const FILLED_AT_ONCE: usize = 256 << 10;
/// What is not synced while filling: the journal's sync may have to wait for so much.
const UNSYNCED_BYTES: u64 = 1 << 20;
/// How long after a failure it is tried again.
const RETRY: Duration = Duration::from_secs(10);

/// The spare segments of a journal.
pub(super) struct Spares {
    directory: PathBuf,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    ready: Vec<PathBuf>,
    /// Given up, and the directory not synced since.
    returned: Vec<PathBuf>,
    /// The number of the next one.
    number: u64,
    wanted: bool,
    closed: bool,
}

enum Task {
    Offer(Vec<PathBuf>),
    Fill(u64),
    End,
}

impl Spares {
    /// Takes over what an earlier process has left.
    pub(super) fn open(directory: &Path) -> Result<Self, DiskError> {
        let mut ready = Vec::new();
        let mut number = 0;
        for path in files(directory)? {
            let is = |extension: &str| path.extension().is_some_and(|it| it == extension);
            if is("draft") {
                fs::remove_file(&path).map_err(failed("removing", &path))?;
            } else if is("spare") {
                let digits = path.file_stem().and_then(|stem| stem.to_str());
                let found = digits.and_then(|digits| digits.parse::<u64>().ok());
                number = number.max(found.map_or(0, |found| found.saturating_add(1)));
                ready.push(path);
            }
        }
        // What the process before renamed may not be durable yet.
        sync_directory(directory)?;
        Ok(Self {
            directory: directory.to_owned(),
            state: Mutex::new(State {
                ready,
                returned: Vec::new(),
                number,
                wanted: false,
                closed: false,
            }),
            changed: Condvar::new(),
        })
    }

    /// Nothing in here can panic while it holds the lock, so what it guards is whole.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_ready(&self) -> bool {
        !self.lock().ready.is_empty()
    }

    /// From now on one is kept ready.
    pub(super) fn want(&self) {
        let mut state = self.lock();
        if !state.wanted {
            state.wanted = true;
            self.changed.notify_one();
        }
    }

    /// One, if there is one; another is prepared.
    pub(super) fn take(&self) -> Option<PathBuf> {
        let mut state = self.lock();
        let taken = state.ready.pop();
        state.wanted |= taken.is_some();
        self.changed.notify_one();
        taken
    }

    /// Keeps a segment that was given up, or removes it.
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

    /// No more are prepared.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_one();
    }

    /// Prepares spares until it is closed: what the thread does.
    pub(super) fn prepare(&self) {
        let mut complained = false;
        loop {
            let done = match self.next_task() {
                Task::End => return,
                Task::Offer(paths) => self.offer(paths),
                Task::Fill(number) => self.fill(number),
            };
            match done {
                Ok(()) => complained = false,
                Err(error) => {
                    if !complained {
                        tracing::warn!(
                            %error,
                            "the journal has no spare segment: the replica stops when the \
                             segment it writes is full and there is no room for another one"
                        );
                    }
                    complained = true;
                    self.pause();
                }
            }
        }
    }

    fn next_task(&self) -> Task {
        let idle = |state: &mut State| {
            let full = !state.wanted || !state.ready.is_empty();
            !state.closed && state.returned.is_empty() && full
        };
        let waited = self.changed.wait_while(self.lock(), idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        if state.closed {
            return Task::End;
        }
        if !state.returned.is_empty() {
            return Task::Offer(std::mem::take(&mut state.returned));
        }
        state.number += 1;
        Task::Fill(state.number - 1)
    }

    /// Waits before it is tried again, or until something was given up.
    fn pause(&self) {
        let idle = |state: &mut State| !state.closed && state.returned.is_empty();
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
        match self.fill_draft(&draft) {
            Ok(true) => {
                let spare = draft.with_extension("spare");
                fs::rename(&draft, &spare).map_err(failed("renaming", &draft))?;
                self.offer(vec![spare])
            }
            // What is half done gives its room back.
            unfinished => {
                fs::remove_file(&draft).map_err(failed("removing", &draft))?;
                unfinished.map(|_| ())
            }
        }
    }

    /// Writes all of it; whether it was not closed meanwhile.
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
