//! The queue of a writing thread: bounded by bytes, emptied in one go.
//!
//! Adding an item does not wake the writer, because waking a thread and writing cost more than
//! adding: the producer calls `wake` when something depends on the items. Until then items gather,
//! also while the writer is awake. A full queue wakes the writer by itself.

use super::DiskError;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

struct QueueState<T> {
    items: VecDeque<(T, usize)>,
    bytes: usize,
    /// Whether something waits for the queued items.
    awaited: bool,
    closed: bool,
    failed: bool,
    writer_sleeps: bool,
}

/// A queue between one producer, which may have to wait, and one writer.
pub(super) struct Queue<T> {
    waiting: Mutex<QueueState<T>>,
    filled: Condvar,
    emptied: Condvar,
    bytes_max: usize,
}

impl<T> Queue<T> {
    pub(super) const fn new(bytes_max: usize) -> Self {
        Self {
            waiting: Mutex::new(QueueState {
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

    /// Nothing panics while it holds the lock, so the state is consistent.
    fn lock(&self) -> MutexGuard<'_, QueueState<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an item; blocks while the queue has too many bytes, unless it is the only item.
    pub(super) fn push(&self, item: T, bytes: usize) -> Result<(), DiskError> {
        let full = |waiting: &mut QueueState<T>| {
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

    /// Wakes the writer if at least so many bytes are queued.
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

    /// Waits for a wake-up and takes all queued items, up to about `bytes_max`; `None` once the
    /// queue is closed and empty.
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

    /// Whether nothing is queued.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().items.is_empty()
    }

    /// Accepts no more items: the writer ends after the queued ones.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.filled.notify_one();
        self.emptied.notify_one();
    }

    /// The writer has failed: every waiting and every later call gets an error.
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
