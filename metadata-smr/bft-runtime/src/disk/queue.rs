//! What waits for a writing thread: bounded by bytes, taken all at once.
//!
//! Adding does not wake the writer, because waking a thread and writing cost more than what is
//! added: whoever adds says when somebody waits for it. Until then it gathers, also while the
//! writer is awake. A full queue wakes the writer by itself.

use super::DiskError;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

struct Waiting<T> {
    items: VecDeque<(T, usize)>,
    bytes: usize,
    /// Whether somebody waits for what is there.
    awaited: bool,
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
                awaited: false,
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
            waiting.awaited = true;
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

    /// Has what is there written, if it is at least so many bytes.
    pub(super) fn wake(&self, bytes_min: usize) {
        let mut waiting = self.lock();
        if waiting.items.is_empty() || waiting.bytes < bytes_min {
            return;
        }
        waiting.awaited = true;
        if std::mem::take(&mut waiting.writer_sleeps) {
            drop(waiting);
            self.filled.notify_one();
        }
    }

    /// Waits for items that somebody waits for, and takes all that are there, up to about
    /// `bytes_max`; `None` once the queue is closed and empty.
    pub(super) fn take(&self, bytes_max: usize) -> Option<Vec<T>> {
        let mut waiting = self.lock();
        while !waiting.awaited && !waiting.closed {
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
        waiting.awaited &= !waiting.items.is_empty();
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
