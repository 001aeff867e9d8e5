//! A replica's disk: the journal with its group commit, and the state.
//!
//! # The files in the directory
//!
//! ```text
//! format              the format of this directory; written by `create`, so that a replica whose
//!                     data have vanished is not mistaken for a new one
//! lock                held by the one process that uses it
//! run                 how the last process wrote, on which boot of the machine, and how it ended
//! incarnation         the incarnation of the first journal here, in hexadecimal digits
//! lost                if present: why the journal was lost; stays until another one has begun
//! journal/N.journal   records N, N+1, … ; see [`segment`] and [`appender`]
//! journal/N.spare     space for the next ones; see [`spare`]
//! journal.lost/       the first journal that was lost; nothing reads it
//! journal.discarded/  a later lost one that is being removed
//! state/              the database, and committed batches in files next to it
//! ```
//!
//! # What always holds
//!
//! * A record is reported persisted after it and every record before it are durable as the
//!   [`Durability`] says; one `fdatasync` serves all waiting records (group commit). A flush of the
//!   state is reported after the database has made it durable as a whole.
//! * The first error is final: nothing more is reported persisted, every call is refused, and the
//!   replica must stop. A failed `fdatasync` is never retried: the kernel may have dropped the
//!   pages and would report success.
//! * A segment exists durably (its directory is synced) before a record in it is reported.
//! * Segments are given up only as a whole, oldest first, when every record in them is below the
//!   token that the core gave up. Some become spares: their old content is never read again.
//! * Records that were read back are made durable before they are handed over: the previous process
//!   may have been killed between writing and syncing.
//!
//! # When the journal is lost
//!
//! A replica that forgets its promises can be made to contradict itself. [`Opened::journal`] has
//! [`Condition::Lost`](quorumfs_bft::journal::Condition) if a segment is missing or damaged, if the
//! previous mode was `os` and the machine has rebooted since without a clean stop, or if it was
//! `none`. This verdict is stored first of all, and stays until the journal that replaces the lost
//! one durably names its own incarnation. The first lost journal is moved aside for inspection, and
//! may be deleted; later ones are removed. An incomplete last group was never reported, hence never
//! acted on: it is dropped.
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
pub use quorumfs_bft::durability::Durability;

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

/// Bytes of records that wait for the disk; beyond it, the appending thread waits.
const JOURNAL_QUEUE_BYTES_MAX: usize = 64 << 20;
/// The same for the state. One flush is in progress at a time; this is for the next one.
const STATE_QUEUE_BYTES_MAX: usize = 256 << 20;
/// Once so many bytes of records wait, they are written although no frame depends on them.
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

/// An opened disk with its content.
pub struct Opened {
    /// Writes to the disk.
    pub disk: Disk,
    /// The records that were reported persisted and not given up since, and whether they are
    /// complete.
    pub journal: Journal,
    /// Reads the state.
    pub store: DiskStore,
    /// The incarnation of the first journal on this disk.
    pub incarnation: Incarnation,
}

/// Writes records and states; one thread for each, and one that prepares spare segments.
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
    /// Makes `directory` an empty disk with a journal of this incarnation, which no other disk of
    /// the same replica ever had.
    ///
    /// # Errors
    /// If it is a replica's disk already, or cannot be written.
    pub fn create(directory: &Path, incarnation: Incarnation) -> Result<(), DiskError> {
        let layout = Layout::new(directory);
        layout.create()?;
        layout.name(incarnation)?;
        let spares = Arc::new(Spares::open(&layout.journal())?);
        Appender::create(&layout.journal(), Token(1), spares)?;
        layout.seal()
    }

    /// Opens the disk of a replica. `report` is called from the writing threads and should not
    /// block for long: it delays the next write.
    ///
    /// # Errors
    /// If there is no replica's disk, another process uses it, a newer release wrote it, or it
    /// cannot be read or written.
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
            // Only this durability waits for the medium.
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

    /// Appends a record to the journal, to be reported as [`Completion::Persisted`]. Blocks while
    /// too many bytes wait. Tokens rise by one, from the last one in [`Opened::journal`], or from
    /// 1.
    ///
    /// # Errors
    /// If the disk has failed before.
    pub fn append(&self, token: Token, record: Bytes) -> Result<(), DiskError> {
        self.append_later(token, record)?;
        self.journal.wake(0);
        Ok(())
    }

    /// Like [`Disk::append`], but writing starts only at [`Disk::wake`], so that several records
    /// need one wake-up. Returns whether the record counts as durable at once, as with
    /// [`Durability::None`]; it is still reported later.
    ///
    /// # Errors
    /// Like [`Disk::append`].
    pub fn append_later(&self, token: Token, record: Bytes) -> Result<bool, DiskError> {
        let bytes = record.len();
        let write = writer::JournalWrite::Append { token, record };
        self.journal.push(write, bytes)?;
        Ok(self.durability == Durability::None)
    }

    /// Starts writing the appended records, because a frame waits for them. With
    /// [`Durability::None`] no frame waits, and records gather first.
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

    /// Gives up the records before this token; their space is reused as segments become free.
    ///
    /// # Errors
    /// If the disk has failed before.
    pub fn trim(&self, before: Token) -> Result<(), DiskError> {
        // Nothing waits for it: it is carried out with the next group.
        self.journal.push(writer::JournalWrite::Trim { before }, 0)
    }

    /// Writes everything that was requested and marks the stop as clean.
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

    /// Ends the threads after their pending work; whether all of it was written.
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
