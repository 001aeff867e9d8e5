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
//! nor its syncing holds up the journal's. It leaves room for another: what it does for speed must
//! not be what fills the medium, so near its end segments grow with what is written to them.
//!
//! What always holds: a file called `N.spare` had its full length durably. It is looked at again
//! when it is taken, since the header of the segment that it becomes says that nothing may be
//! missing: files come back shorter from a copy, or not at all. A segment that was given up is
//! offered again only after the directory was synced without its old name: otherwise a crash could
//! bring the name back, above what was written since.

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
/// What has to be free for one to be filled: itself, and as much to grow into.
const ROOM_BYTES_MIN: u64 = 2 * SEGMENT_BYTES;
/// How long after a failure it is tried again.
const RETRY: Duration = Duration::from_secs(10);

/// One that was taken, of full length.
pub(super) struct Spare {
    pub(super) path: PathBuf,
    pub(super) file: File,
}

/// The spare segments of a journal.
pub(super) struct Spares {
    directory: PathBuf,
    room_bytes_min: u64,
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
        // What the process before renamed may not be durable yet.
        sync_directory(directory)?;
        Ok(Self {
            directory: directory.to_owned(),
            room_bytes_min: ROOM_BYTES_MIN,
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
    pub(super) fn take(&self) -> Option<Spare> {
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
                            "no spare segment is prepared: the journal grows into what room there \
                             is, and the replica stops when there is none"
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
        let doing = "preparing a spare segment in";
        let room = rustix::fs::statvfs(&self.directory)
            .map_err(|error| failed(doing, &self.directory)(error.into()))?;
        if room.f_bavail.saturating_mul(room.f_frsize) < self.room_bytes_min {
            let path = self.directory.clone();
            return Err(DiskError::Full { doing, path });
        }
        match self.fill_draft(&draft) {
            Ok(true) => {
                let spare = draft.with_extension("spare");
                fs::rename(&draft, &spare).map_err(failed("renaming", &draft))?;
                self.offer(vec![spare])
            }
            // What is half done gives its room back; why it is not done says more than whether.
            unfinished => {
                let removed = fs::remove_file(&draft).map_err(failed("removing", &draft));
                unfinished.and(removed)
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

/// Opens one, if it is there and has its full length.
fn full(path: &Path) -> Option<Spare> {
    let file = File::options().write(true).open(path).ok()?;
    let whole = file
        .metadata()
        .is_ok_and(|found| found.len() == SEGMENT_BYTES);
    whole.then(|| Spare {
        path: path.to_owned(),
        file,
    })
}

/// Removes all of them, from a journal that is not written any more.
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
    fn none_is_filled_where_that_would_leave_no_room() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut spares = Spares::open(directory.path()).expect("empty");
        spares.room_bytes_min = u64::MAX;
        let refused = spares.fill(7);
        assert!(
            matches!(refused, Err(DiskError::Full { .. })),
            "{refused:?}"
        );
        let left = files(directory.path()).expect("there");
        assert!(left.is_empty() && !spares.is_ready(), "{left:?}");
        spares.room_bytes_min = 1;
        spares.fill(7).expect("room");
        assert!(spares.take().is_some());
    }
}
