//! A replica's disk: the journal with its group commit, the state, and what was promised before.
//!
//! # What lies in the directory
//!
//! ```text
//! format              what this directory is; written by `create`, so that a replica whose data
//!                     have vanished is not mistaken for a new one
//! lock                held by the one process that uses it
//! run                 how the last process wrote, on which boot of the machine, and how it ended
//! incarnation         what the first journal here is known by, in hexadecimal digits
//! lost                if there: the journal was lost, and why; until another one has begun
//! journal/N.journal   records N, N+1, … ; see [`segment`] and [`appender`]
//! journal/N.spare     room for the next ones; see [`spare`]
//! journal.lost/       the first journal that was lost; nothing reads it
//! journal.discarded/  a later one, on its way out
//! state/              the database, and committed batches in files beside it
//! ```
//!
//! # What always holds
//!
//! * A record is reported persisted after it and every record before it are durable as the
//!   [`Durability`] says; one `fdatasync` serves all records that waited (group commit). A flush of
//!   the state is reported after the database has made it durable as a whole.
//! * The first error ends it: nothing is reported persisted any more, everything that is asked for
//!   is refused, and the replica must stop. An `fdatasync` that failed is never tried again: the
//!   kernel may have dropped the pages and would report success.
//! * A segment exists durably (its directory is synced) before a record in it is reported.
//! * Segments are given up only as a whole, oldest first, when every record in them is below the
//!   token that the core gave up. Some become spares: what they held is never read again.
//! * What was read back is durable before it is handed over: the process before may have been
//!   killed between writing and syncing.
//!
//! # When the journal is lost
//!
//! A replica that forgot what it said can be made to contradict itself. [`Opened::journal`] says
//! [`Condition::Lost`](quorumfs_bft::journal::Condition) if a segment is missing or damaged, if the
//! mode before was `os` and the machine was booted since without a clean stop, or if it was `none`.
//! The verdict is written down before anything else is, and stays until the journal that takes the
//! lost one's place says durably which incarnation it is. The first lost journal moves aside, for
//! whoever wants to look, and may be deleted; of later ones nothing is kept. A last group that is
//! not whole was never reported, hence never acted on: it is dropped.
//!
//! Source: group commit as in J. Gray and A. Reuter, "Transaction Processing" (1993), 9.4; on
//! `fsync` errors, A. Rebello et al., "Can Applications Recover from fsync Failures?" (2020).

mod appender;
mod error;
mod files;
mod queue;
mod run_mark;
mod segment;
mod spare;
mod writer;

#[cfg(test)]
mod tests;

pub use error::DiskError;
pub(crate) use error::failed;
pub(crate) use files::{sync, sync_directory};
pub use run_mark::Durability;

use crate::store::DiskStore;
use appender::Appender;
use bytes::Bytes;
use files::Layout;
use queue::Queue;
use quorumfs_bft::identity::{Incarnation, Sequence};
use quorumfs_bft::journal::Journal;
use quorumfs_bft::state::{DurableRoot, WriteBatch};
use quorumfs_bft::step::Token;
use spare::Spares;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Bytes of records that wait for the disk; beyond it, the one who appends waits.
const JOURNAL_QUEUE_BYTES_MAX: usize = 64 << 20;
/// The same for the state. One flush is under way at a time; this is for its successor.
const STATE_QUEUE_BYTES_MAX: usize = 256 << 20;
/// Bytes of records that nobody waits for, written at once.
const UNAWAITED_BYTES: usize = 256 << 10;

/// Something has become durable, or never will.
#[derive(Debug)]
pub enum Completion {
    /// This record is durable, and so is every one before it.
    Persisted {
        /// The last record of the group.
        token: Token,
    },
    /// A flush of the state is durable.
    Flushed {
        /// The sequence of its root.
        sequence: Sequence,
    },
    /// The disk failed: the replica must stop. Nothing is reported after this by the part that
    /// failed.
    Failed {
        /// How.
        error: DiskError,
    },
}

/// A disk that was opened, with what was on it.
pub struct Opened {
    /// For writing.
    pub disk: Disk,
    /// The records that were reported persisted and not given up since, with the verdict on them.
    pub journal: Journal,
    /// For reading the state.
    pub store: DiskStore,
    /// What the first journal on this disk is known by.
    pub incarnation: Incarnation,
}

/// Writes records and states; one thread for each, and one that makes room for records.
pub struct Disk {
    layout: Layout,
    durability: Durability,
    journal: Arc<Queue<writer::JournalWrite>>,
    state: Arc<Queue<writer::StateWrite>>,
    spares: Arc<Spares>,
    threads: Vec<JoinHandle<()>>,
    _lock: files::Lock,
}

impl Disk {
    /// Makes `directory` an empty disk, whose journal is known by `incarnation`, which no other
    /// disk of the same replica ever was.
    ///
    /// # Errors
    /// If it is one already, or cannot be written.
    pub fn create(directory: &Path, incarnation: Incarnation) -> Result<(), DiskError> {
        let layout = Layout::new(directory);
        layout.create()?;
        layout.name(incarnation)?;
        let spares = Arc::new(Spares::open(&layout.journal())?);
        Appender::create(&layout.journal(), Token(1), spares)?;
        layout.seal()
    }

    /// Opens the disk of a replica. `report` is called from the writing threads and should not wait
    /// for long: what is written next waits for it.
    ///
    /// # Errors
    /// If there is no disk of a replica, another process uses it, it was written by a newer
    /// release, or it cannot be read or written.
    pub fn open(
        directory: &Path,
        durability: Durability,
        report: impl Fn(Completion) + Send + Sync + 'static,
    ) -> Result<Opened, DiskError> {
        let layout = Layout::new(directory);
        let lock = layout.lock()?;
        layout.check_format()?;
        let incarnation = layout.named()?;
        let (journal, next) = layout.recover()?;
        run_mark::begin(&layout, durability)?;
        let spares = Arc::new(Spares::open(&layout.journal())?);
        let appender = Appender::create(&layout.journal(), next, Arc::clone(&spares))?;
        let store = DiskStore::open(&layout.state())?;
        let report = Arc::new(report);
        let journal_queue = Arc::new(Queue::new(JOURNAL_QUEUE_BYTES_MAX));
        let state_queue = Arc::new(Queue::new(STATE_QUEUE_BYTES_MAX));
        let mut threads = vec![
            writer::journal(
                Arc::clone(&journal_queue),
                appender,
                durability,
                Arc::clone(&report),
            )?,
            writer::state(Arc::clone(&state_queue), store.clone(), report)?,
        ];
        if durability == Durability::Strict {
            // Nobody else waits for the medium.
            threads.push(writer::spares(Arc::clone(&spares))?);
        }
        Ok(Opened {
            disk: Self {
                layout,
                durability,
                journal: journal_queue,
                state: state_queue,
                spares,
                threads,
                _lock: lock,
            },
            journal,
            store,
            incarnation,
        })
    }

    /// Appends a record to the journal, to be reported as [`Completion::Persisted`]. Waits while
    /// too much is under way. Tokens rise by one, from the last one in [`Opened::journal`], or from
    /// 1.
    ///
    /// # Errors
    /// If the disk has failed before.
    pub fn append(&self, token: Token, record: Bytes) -> Result<(), DiskError> {
        self.append_later(token, record)?;
        self.journal.wake(0);
        Ok(())
    }

    /// The same, but the writing begins only at [`Disk::wake`], so that several records cost one
    /// wake-up. Says whether the record counts as durable at once, as with [`Durability::None`] it
    /// does; it is reported later all the same.
    ///
    /// # Errors
    /// Like [`Disk::append`].
    pub fn append_later(&self, token: Token, record: Bytes) -> Result<bool, DiskError> {
        let bytes = record.len();
        let write = writer::JournalWrite::Append { token, record };
        self.journal.push(write, bytes)?;
        Ok(self.durability == Durability::None)
    }

    /// Lets what was appended be written, since somebody waits for it. With [`Durability::None`]
    /// nobody does, and it gathers first.
    pub fn wake(&self) {
        let bytes_min = match self.durability {
            Durability::Strict | Durability::Os => 0,
            Durability::None => UNAWAITED_BYTES,
        };
        self.journal.wake(bytes_min);
    }

    /// Makes a state durable, to be reported as [`Completion::Flushed`].
    ///
    /// # Errors
    /// If the disk has failed before.
    pub fn flush(&self, batch: WriteBatch, root: DurableRoot) -> Result<(), DiskError> {
        let size = |(key, value): &(Bytes, Option<Bytes>)| {
            key.len() + value.as_ref().map_or(0, Bytes::len)
        };
        let bytes = batch.entries.iter().map(size).sum();
        self.state.push(writer::StateWrite { batch, root }, bytes)?;
        self.state.wake(0);
        Ok(())
    }

    /// Gives up the records before this token; their room is reused as segments become free.
    ///
    /// # Errors
    /// If the disk has failed before.
    pub fn trim(&self, before: Token) -> Result<(), DiskError> {
        // Nobody waits for it: it is done with the next group.
        self.journal.push(writer::JournalWrite::Trim { before }, 0)
    }

    /// Writes what was asked for and marks the stop as clean.
    ///
    /// # Errors
    /// If the disk has failed before or fails now; the stop is not clean then.
    pub fn close(mut self) -> Result<(), DiskError> {
        let clean = self.stop();
        if !clean {
            return Err(DiskError::Stopped);
        }
        run_mark::end(&self.layout, self.durability)
    }

    /// Ends the threads after what they have; whether all of it was written.
    fn stop(&mut self) -> bool {
        self.journal.close();
        self.state.close();
        self.spares.close();
        let mut ended = true;
        for thread in self.threads.drain(..) {
            ended &= thread.join().is_ok();
        }
        ended && !self.journal.has_failed() && !self.state.has_failed()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.stop();
    }
}
