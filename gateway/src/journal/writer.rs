//! The journal's interface for the file system: records are queued at once, and one thread writes
//! them.
//!
//! ```text
//!  write ──push──► queue ──┐                          ┌──► callers that wait for a sequence
//!  write ──push──► queue ──┴─► group ─► write ─► sync ┴──► trim
//! ```
//!
//! Group commit: records that arrive while the disk is busy go in one write, and one sync serves
//! all waiting callers. Without a waiting caller nothing is synced.
//!
//! * The queue is bounded in bytes. So are the files on the disk, by a quota and by a floor of free
//!   space. Writers wait for [space](Journal::wait_for_space); commits do not, because they free
//!   it. Whether other programs have left enough space is checked repeatedly while the disk is
//!   [below its floor](Journal::is_below_floor), even if nothing is written.
//! * After the first error nothing is written any more. The waiting data is still in memory, and
//!   the file system commits it to the clouds; [`status`](Journal::status) shows the error.

use super::disk::Disk;
use super::error::JournalError;
use super::log::{Identities, Log, Recovered, weight};
use super::record::{Entry, Sequence};
use crate::keys::Secret;
use quorumfs_metadata::identity::VolumeId;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// The most bytes of queued records; up to as many again are being written, so that writers and the
/// disk do not wait for each other by turns.
const QUEUE_BYTES_MAX: u64 = 4 << 20;
/// The number of written bytes between two checks of the disk's free space.
const FREE_EVERY_BYTES: u64 = 16 << 20;
/// How long a writer waits for space before it checks again, and the journal for its disk.
const RECHECK_INTERVAL: Duration = Duration::from_millis(500);
/// The least quota of the files, in bytes: below it they could not be trimmed during writing.
pub const JOURNAL_BYTES_MIN: u64 = 64 << 20;
/// The default quota, in bytes.
pub const JOURNAL_BYTES_DEFAULT: u64 = 1 << 30;

/// Bounds of a journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JournalOptions {
    /// The quota of its files, in bytes; beyond it writers wait for commits.
    pub bytes_max: u64,
    /// The least free space of its disk, in bytes; below it no new file should begin to use the
    /// journal.
    pub free_bytes_min: u64,
}

impl Default for JournalOptions {
    fn default() -> Self {
        Self {
            bytes_max: JOURNAL_BYTES_DEFAULT,
            free_bytes_min: 1 << 30,
        }
    }
}

impl JournalOptions {
    /// The length at which a file is ended.
    fn file_bytes(&self) -> u64 {
        self.bytes_max.max(JOURNAL_BYTES_MIN) / 16
    }
}

/// The state of a journal.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct JournalStatus {
    /// Bytes of its files.
    pub bytes: u64,
    /// Their quota.
    pub bytes_max: u64,
    /// Inodes with waiting records.
    pub waiting: usize,
    /// Whether the free space of its disk is below the floor.
    pub disk_full: bool,
    /// Why nothing is written to it any more, if that is so.
    pub broken: Option<String>,
}

#[derive(Debug, Default)]
struct RecordQueue {
    entries: Vec<Entry>,
    /// Their bytes.
    bytes: u64,
    /// The sequence of the next pushed record.
    next: Sequence,
    /// A caller waits until everything below it is durable.
    wanted: Sequence,
    /// Whether the disk's free space has to be checked again.
    checks_space: bool,
    ends: bool,
    status: JournalStatus,
}

struct SharedQueue {
    queue: Mutex<RecordQueue>,
    /// Notified when there is work.
    work: Condvar,
    /// Everything below it is durable; also notified when nothing more will be.
    durable: watch::Sender<Sequence>,
    /// Notified when there may be space.
    space: Notify,
    options: JournalOptions,
}

/// See the module. Dropping it leaves the written records on the disk.
pub struct Journal {
    shared: Arc<SharedQueue>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal")
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

impl Journal {
    /// Opens the journal on `disk`, whose files are sealed under keys derived from `secret`. Passes
    /// the waiting records to `each`, in order and with their sequences.
    ///
    /// # Errors
    /// If the disk fails, or a later release wrote the journal.
    pub fn open<D: Disk>(
        disk: D,
        secret: Secret,
        volume: VolumeId,
        options: JournalOptions,
        each: impl FnMut(Sequence, Entry),
    ) -> Result<(Self, Recovered), JournalError> {
        let identities: Identities = Box::new(|| {
            let mut identity = [0; 16];
            getrandom::fill(&mut identity).map_err(|_| JournalError::Key)?;
            Ok(identity)
        });
        let (mut log, recovered) =
            Log::open(disk, secret, volume, options.file_bytes(), identities)?;
        log.replay(&recovered, each)?;
        let queue = RecordQueue {
            next: log.next(),
            status: JournalStatus {
                bytes: log.bytes(),
                bytes_max: options.bytes_max,
                waiting: log.waiting(),
                ..JournalStatus::default()
            },
            ..RecordQueue::default()
        };
        let shared = Arc::new(SharedQueue {
            queue: Mutex::new(queue),
            work: Condvar::new(),
            durable: watch::Sender::new(log.durable()),
            space: Notify::new(),
            options,
        });
        let writer = shared.clone();
        let thread = std::thread::Builder::new()
            .name("journal".into())
            .spawn(move || writer.run(log))
            .map_err(|error| JournalError::Thread {
                reason: error.to_string(),
            })?;
        let journal = Self {
            shared,
            thread: Mutex::new(Some(thread)),
        };
        Ok((journal, recovered))
    }

    /// Queues a record; returns its sequence, or `None` if nothing is written any more.
    pub fn push(&self, entry: Entry) -> Option<Sequence> {
        let mut queue = self.shared.queue();
        if queue.status.broken.is_some() || queue.ends {
            return None;
        }
        let sequence = queue.next;
        queue.next = sequence.next();
        queue.bytes = queue.bytes.saturating_add(weight(&entry));
        queue.entries.push(entry);
        drop(queue);
        self.shared.work.notify_one();
        Some(sequence)
    }

    /// Waits until the record at `sequence` and all before it are durable.
    ///
    /// # Errors
    /// If they will never be.
    pub async fn synced(&self, sequence: Sequence) -> Result<(), JournalError> {
        let mut durable = self.shared.durable.subscribe();
        {
            let mut queue = self.shared.queue();
            queue.wanted = queue.wanted.max(sequence.next());
        }
        self.shared.work.notify_one();
        loop {
            if *durable.borrow_and_update() > sequence {
                return Ok(());
            }
            self.usable()?;
            if durable.changed().await.is_err() {
                return self.usable();
            }
        }
    }

    /// An error once nothing is written any more.
    ///
    /// # Errors
    /// The failure.
    pub fn usable(&self) -> Result<(), JournalError> {
        let queue = self.shared.queue();
        match &queue.status.broken {
            None => Ok(()),
            Some(reason) => Err(JournalError::Broken {
                reason: reason.clone(),
            }),
        }
    }

    /// Whether there is space for a writer now; also true once nothing is written any more.
    pub fn has_space(&self) -> bool {
        let queue = self.shared.queue();
        let full = queue.status.disk_full || queue.status.bytes >= self.shared.options.bytes_max;
        queue.status.broken.is_some() || (queue.bytes < QUEUE_BYTES_MAX && !full)
    }

    /// Whether the free space of its disk is below the floor: nothing new should begin to use it.
    pub fn is_below_floor(&self) -> bool {
        let queue = self.shared.queue();
        queue.status.broken.is_none() && queue.status.disk_full
    }

    /// Whether commits should hurry, so that files can be removed.
    pub fn is_pressed(&self) -> bool {
        let queue = self.shared.queue();
        let much = queue.status.bytes > self.shared.options.bytes_max / 2;
        queue.status.broken.is_none() && (much || queue.status.disk_full)
    }

    /// Waits until there may be space, or a short while: the caller has to check again.
    pub async fn wait_for_space(&self) {
        let space = self.shared.space.notified();
        tokio::pin!(space);
        space.as_mut().enable();
        if self.has_space() {
            return;
        }
        let _ = tokio::time::timeout(RECHECK_INTERVAL, space).await;
    }

    /// The state of the journal.
    #[must_use]
    pub fn status(&self) -> JournalStatus {
        self.shared.queue().status.clone()
    }

    /// Writes the queued records and ends; without waiting records, no file is left on the disk.
    pub async fn close(&self) {
        self.end();
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread {
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }

    fn end(&self) {
        self.shared.queue().ends = true;
        self.shared.work.notify_one();
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.end();
    }
}

/// The next work of the thread.
struct Work {
    group: Vec<Entry>,
    /// Their bytes, as the queue counted them.
    bytes: u64,
    sync: bool,
    checks_space: bool,
    ends: bool,
}

impl SharedQueue {
    fn queue(&self) -> MutexGuard<'_, RecordQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for work.
    fn next(&self, durable: Sequence) -> Work {
        let mut queue = self.queue();
        loop {
            let sync = queue.wanted > durable;
            if !queue.entries.is_empty() || sync || queue.checks_space || queue.ends {
                let work = Work {
                    group: std::mem::take(&mut queue.entries),
                    bytes: std::mem::take(&mut queue.bytes),
                    sync,
                    checks_space: std::mem::take(&mut queue.checks_space),
                    ends: queue.ends,
                };
                drop(queue);
                self.space.notify_waiters();
                return work;
            }
            if queue.status.disk_full {
                // Other programs may free disk space without notice.
                let waited = self.work.wait_timeout(queue, RECHECK_INTERVAL);
                queue = waited.unwrap_or_else(PoisonError::into_inner).0;
                queue.checks_space = true;
            } else {
                let waited = self.work.wait(queue);
                queue = waited.unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn run<D: Disk>(&self, mut log: Log<D>) {
        // Checks at once.
        let mut unchecked_bytes = FREE_EVERY_BYTES;
        loop {
            let work = self.next(log.durable());
            let mut outcome = log.write(&work.group);
            if outcome.is_ok() && (work.sync || log.wants_sync()) {
                outcome = log.sync().and_then(|()| log.trim());
            }
            if outcome.is_ok() && work.ends {
                // Records pushed from now on are refused.
                let (before, all) = (log.durable(), log.next());
                let closed = log.close();
                let durable = if closed.is_ok() { all } else { before };
                self.publish(closed.err(), durable);
                return;
            }
            unchecked_bytes = unchecked_bytes.saturating_add(work.bytes);
            let free = if work.checks_space || unchecked_bytes >= FREE_EVERY_BYTES {
                unchecked_bytes = 0;
                log.free_bytes()
            } else {
                None
            };
            {
                let mut queue = self.queue();
                queue.status.bytes = log.bytes();
                queue.status.waiting = log.waiting();
                if let Some(free) = free {
                    self.record_free_space(&mut queue.status, free);
                }
            }
            let failed = outcome.is_err();
            self.publish(outcome.err(), log.durable());
            if failed {
                return;
            }
        }
    }

    /// Records whether `free` bytes are enough, and logs a change.
    fn record_free_space(&self, status: &mut JournalStatus, free: u64) {
        let floor = self.options.free_bytes_min;
        let full = free < floor;
        if full && !status.disk_full {
            tracing::warn!(
                free,
                floor,
                "too little is free on the journal's disk; close and fsync now wait for the clouds"
            );
        } else if !full && status.disk_full {
            tracing::info!(
                free,
                floor,
                "the journal's disk has enough free space again"
            );
        }
        status.disk_full = full;
    }

    /// Publishes the result of a round.
    fn publish(&self, error: Option<JournalError>, durable: Sequence) {
        if let Some(error) = error {
            let message = "the journal has failed; close and fsync now wait for the clouds";
            tracing::error!(%error, "{message}");
            let mut queue = self.queue();
            queue.status.broken = Some(error.to_string());
            queue.entries.clear();
            queue.bytes = 0;
        }
        // Also without progress: a waiting caller has to see an error.
        self.durable
            .send_modify(|known| *known = durable.max(*known));
        self.space.notify_waiters();
    }
}
