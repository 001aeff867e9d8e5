//! What waits for a writing thread: bounded by bytes, taken all at once.
//!
//! Adding does not wake the writer, because waking a thread costs more than what is added: whoever
//! adds several items says once that they are there. A full queue wakes it by itself.

use super::DiskError;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

struct Waiting<T> {
    items: VecDeque<(T, usize)>,
    bytes: usize,
    closed: bool,
    failed: bool,
    writer_sleeps: bool,
}

/// A queue between one producer that may have to wait and one writer.
pub(super) struct Queue<T> {
    waiting: Mutex<Waiting<T>>,
    filled: Condvar,
    emptied: Condvar,
    bytes_max: usize,
}

impl<T> Queue<T> {
    pub(super) const fn new(bytes_max: usize) -> Self {
        Self {
            waiting: Mutex::new(Waiting {
                items: VecDeque::new(),
                bytes: 0,
                closed: false,
                failed: false,
                writer_sleeps: false,
            }),
            filled: Condvar::new(),
            emptied: Condvar::new(),
            bytes_max,
        }
    }

    /// Nothing in here can panic while it holds the lock, so what it guards is whole.
    fn lock(&self) -> MutexGuard<'_, Waiting<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an item; waits while there are too many bytes, unless it would be the only item.
    pub(super) fn push(&self, item: T, bytes: usize) -> Result<(), DiskError> {
        let full = |waiting: &mut Waiting<T>| {
            let stopped = waiting.failed || waiting.closed;
            !stopped && waiting.bytes > 0 && waiting.bytes + bytes > self.bytes_max
        };
        let mut waiting = self.lock();
        if full(&mut waiting) {
            self.filled.notify_one();
            let waited = self.emptied.wait_while(waiting, full);
            waiting = waited.unwrap_or_else(PoisonError::into_inner);
        }
        if waiting.failed || waiting.closed {
            return Err(DiskError::Stopped);
        }
        waiting.bytes += bytes;
        waiting.items.push_back((item, bytes));
        Ok(())
    }

    /// Wakes the writer if it sleeps and at least so many bytes wait for it.
    pub(super) fn wake(&self, bytes_min: usize) {
        let mut waiting = self.lock();
        if waiting.writer_sleeps && !waiting.items.is_empty() && waiting.bytes >= bytes_min {
            waiting.writer_sleeps = false;
            drop(waiting);
            self.filled.notify_one();
        }
    }

    /// Waits for items and takes all that are there, up to about `bytes_max`; `None` once the queue
    /// is closed and empty.
    pub(super) fn take(&self, bytes_max: usize) -> Option<Vec<T>> {
        let idle = |waiting: &mut Waiting<T>| waiting.items.is_empty() && !waiting.closed;
        let mut waiting = self.lock();
        while idle(&mut waiting) {
            waiting.writer_sleeps = true;
            let woken = self.filled.wait(waiting);
            waiting = woken.unwrap_or_else(PoisonError::into_inner);
        }
        waiting.writer_sleeps = false;
        let mut taken = Vec::new();
        let mut total = 0;
        while total < bytes_max
            && let Some((item, bytes)) = waiting.items.pop_front()
        {
            waiting.bytes -= bytes;
            total += bytes;
            taken.push(item);
        }
        self.emptied.notify_one();
        (!taken.is_empty()).then_some(taken)
    }

    /// Whether nothing waits for the writer.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().items.is_empty()
    }

    /// No more items: the writer ends after what is there.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.filled.notify_one();
        self.emptied.notify_one();
    }

    /// The writer has failed: whoever waits is told, and everybody after.
    pub(super) fn fail(&self) {
        let mut waiting = self.lock();
        waiting.failed = true;
        waiting.items.clear();
        waiting.bytes = 0;
        drop(waiting);
        self.emptied.notify_one();
    }

    pub(super) fn has_failed(&self) -> bool {
        self.lock().failed
    }
}
