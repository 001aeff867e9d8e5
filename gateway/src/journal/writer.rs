//! The journal as the file system uses it: records handed over at once, one thread that writes.
//!
//! ```text
//!  write ──push──► queue ──┐                          ┌──► whoever waits for a sequence
//!  write ──push──► queue ──┴─► group ─► write ─► sync ┴──► trim
//! ```
//!
//! Group commit: whatever came while the disk was busy goes in one write, and one sync is for all
//! who wait. Nobody is synced for who did not ask.
//!
//! * The queue is bounded in bytes; so is what lies on the disk, by a quota and by what must stay
//!   free. Writers wait for [`room`](Journal::room); what commits does not, because it makes room.
//!   Whether others have left the disk enough is looked at again and again while it is
//!   [below its floor](Journal::is_below_floor), also if nothing is written.
//! * After the first error nothing is written any more. What waits is in memory still, and the file
//!   system commits it to the clouds; [`status`](Journal::status) says so.

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

/// Records that wait to be written, in bytes; as many again are being written at the most, so that
/// whoever writes and the disk do not wait for each other by turns.
const QUEUE_BYTES_MAX: u64 = 4 << 20;
/// How often to look what is free on the disk, in bytes written.
const FREE_EVERY_BYTES: u64 = 16 << 20;
/// How long a writer waits for room before it checks_space again, and the journal for room on its disk.
const RECHECK_INTERVAL: Duration = Duration::from_millis(500);
/// The least that the files may take, in bytes: fewer could not be trimmed while one is written.
pub const JOURNAL_BYTES_MIN: u64 = 64 << 20;
/// What they may take if nobody says.
pub const JOURNAL_BYTES_DEFAULT: u64 = 1 << 30;

/// Bounds of a journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JournalOptions {
    /// What its files may take, in bytes; writers then wait for commits.
    pub bytes_max: u64,
    /// What must stay free on its disk, in bytes; below it nothing new should begin here.
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
    /// A file is followed by another one from here on.
    fn file_bytes(&self) -> u64 {
        self.bytes_max.max(JOURNAL_BYTES_MIN) / 16
    }
}

/// How a journal is doing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct JournalStatus {
    /// Bytes of its files.
    pub bytes: u64,
    /// What they may be.
    pub bytes_max: u64,
    /// Inodes for which something waits in it.
    pub waiting: usize,
    /// There is less free on its disk than there must be.
    pub disk_full: bool,
    /// Why nothing is written to it any more, if that is so.
    pub broken: Option<String>,
}

#[derive(Debug, Default)]
struct RecordQueue {
    entries: Vec<Entry>,
    /// Bytes of those.
    bytes: u64,
    /// The sequence of the next record that is pushed.
    next: Sequence,
    /// Somebody waits until everything below it is durable.
    wanted: Sequence,
    /// It is time to ask whether there is room on the disk again.
    checks_space: bool,
    ends: bool,
    status: JournalStatus,
}

struct SharedQueue {
    queue: Mutex<RecordQueue>,
    /// Told when there is something to do.
    work: Condvar,
    /// Everything below it is durable; also told when nothing more will be.
    durable: watch::Sender<Sequence>,
    /// Told when there may be room.
    room: Notify,
    options: JournalOptions,
}

/// See the module. Dropping it leaves on the disk what was written.
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
    /// Opens the journal on `disk`, whose files are sealed under keys derived from `secret`; what
    /// waits in it is handed to `each`, in order and with its place.
    ///
    /// # Errors
    /// If the disk fails, or a later release wrote it.
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
            room: Notify::new(),
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

    /// Hands a record over; answers its place, or nothing if nothing is written any more.
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
    /// Why.
    pub fn usable(&self) -> Result<(), JournalError> {
        let queue = self.shared.queue();
        match &queue.status.broken {
            None => Ok(()),
            Some(reason) => Err(JournalError::Broken {
                reason: reason.clone(),
            }),
        }
    }

    /// Whether a writer finds room now; also once nothing is written any more.
    pub fn has_space(&self) -> bool {
        let queue = self.shared.queue();
        let full = queue.status.disk_full || queue.status.bytes >= self.shared.options.bytes_max;
        queue.status.broken.is_some() || (queue.bytes < QUEUE_BYTES_MAX && !full)
    }

    /// Whether there is less free on its disk than there must be: nothing should begin here.
    pub fn is_below_floor(&self) -> bool {
        let queue = self.shared.queue();
        queue.status.broken.is_none() && queue.status.disk_full
    }

    /// Whether commits should hurry, so that files can go.
    pub fn is_pressed(&self) -> bool {
        let queue = self.shared.queue();
        let much = queue.status.bytes > self.shared.options.bytes_max / 2;
        queue.status.broken.is_none() && (much || queue.status.disk_full)
    }

    /// Waits until there may be room, for somebody, or a little while: whoever waits has to look
    /// again.
    pub async fn wait_for_space(&self) {
        let room = self.shared.room.notified();
        tokio::pin!(room);
        room.as_mut().enable();
        if self.has_space() {
            return;
        }
        let _ = tokio::time::timeout(RECHECK_INTERVAL, room).await;
    }

    /// How it is doing.
    #[must_use]
    pub fn status(&self) -> JournalStatus {
        self.shared.queue().status.clone()
    }

    /// Writes what was handed over and ends; if nothing waits any more, nothing is left on the
    /// disk.
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

/// What the thread is to do next.
struct Work {
    group: Vec<Entry>,
    /// Bytes of it as the queue counted them.
    bytes: u64,
    sync: bool,
    checks_space: bool,
    ends: bool,
}

impl SharedQueue {
    fn queue(&self) -> MutexGuard<'_, RecordQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for something to do.
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
                self.room.notify_waiters();
                return work;
            }
            if queue.status.disk_full {
                // Others may free what they took of the disk without telling us.
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
        // Looks at once.
        let mut unchecked_bytes = FREE_EVERY_BYTES;
        loop {
            let work = self.next(log.durable());
            let mut outcome = log.write(&work.group);
            if outcome.is_ok() && (work.sync || log.wants_sync()) {
                outcome = log.sync().and_then(|()| log.trim());
            }
            if outcome.is_ok() && work.ends {
                // What is pushed from now on is not taken.
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

    /// Keeps whether `free` bytes are enough, and says so where that is new.
    fn record_free_space(&self, status: &mut JournalStatus, free: u64) {
        let floor = self.options.free_bytes_min;
        let full = free < floor;
        if full && !status.disk_full {
            tracing::warn!(
                free,
                floor,
                "too little is free on the journal's disk; what is written now waits for the clouds"
            );
        } else if !full && status.disk_full {
            tracing::info!(free, floor, "the journal's disk has room again");
        }
        status.disk_full = full;
    }

    /// Tells everybody how a round has ended.
    fn publish(&self, error: Option<JournalError>, durable: Sequence) {
        if let Some(error) = error {
            tracing::error!(%error, "what is written is not journalled any more");
            let mut queue = self.queue();
            queue.status.broken = Some(error.to_string());
            queue.entries.clear();
            queue.bytes = 0;
        }
        // Also if it is the same: somebody may wait who has to hear of an error.
        self.durable
            .send_modify(|known| *known = durable.max(*known));
        self.room.notify_waiters();
    }
}
