//! One bound on the memory of everything that is written and not yet committed.
//!
//! A writer reserves memory before its bytes are taken in. When there is none it waits, while the
//! oldest dirty files are flushed. It gives up with an error, instead of hanging, once there was no
//! progress for as long as it is willing to wait: no slice has reached its clouds, and nothing was
//! committed. A slow cloud is waited for. Slices that are uploaded again because a commit has
//! failed are no progress, or a writer would wait for unreachable servers for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// The part of the limit from which on the oldest pending data is flushed before its time.
const PRESSED_FROM: (u64, u64) = (7, 8);

/// Bytes that may be dirty, shared by all files of a mount.
#[derive(Debug)]
pub(in crate::vfs) struct Budget {
    limit: u64,
    used: AtomicU64,
    released: Notify,
    /// Counts events that bring a release nearer.
    progress: AtomicU64,
    /// The last commit has failed.
    failing: AtomicBool,
}

/// Bytes that one writer has reserved; returned when it has booked what it wrote.
#[derive(Debug)]
pub(in crate::vfs) struct Reservation<'a> {
    budget: &'a Budget,
    bytes: u64,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.budget.adjust(self.bytes, 0);
    }
}

impl Budget {
    pub(in crate::vfs) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self {
            limit,
            used: AtomicU64::new(0),
            released: Notify::new(),
            progress: AtomicU64::new(0),
            failing: AtomicBool::new(false),
        })
    }

    /// Bytes in use.
    pub(in crate::vfs) fn used(&self) -> u64 {
        self.used.load(Ordering::Acquire)
    }

    /// Whether so much is in use that the oldest has to go.
    pub(in crate::vfs) fn is_pressed(&self) -> bool {
        self.used() > self.limit / PRESSED_FROM.1 * PRESSED_FROM.0
    }

    /// A slice is on its clouds; its bytes will be released with the rest of its commit.
    pub(in crate::vfs) fn uploaded(&self) {
        if !self.failing.load(Ordering::Acquire) {
            self.progress.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// A commit has ended, well or not.
    pub(in crate::vfs) fn committed(&self, well: bool) {
        self.failing.store(!well, Ordering::Release);
        if well {
            self.progress.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Does `work` as long as there is progress; `None` once there was none for `wait`. Slow is not
    /// stuck.
    pub(in crate::vfs) async fn while_progressing<T>(
        &self,
        wait: Duration,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        tokio::pin!(work);
        loop {
            let progress = self.progress.load(Ordering::Acquire);
            match tokio::time::timeout(wait, work.as_mut()).await {
                Ok(done) => return Some(done),
                Err(_) if self.progress.load(Ordering::Acquire) != progress => {}
                Err(_) => return None,
            }
        }
    }

    /// Reserves so many bytes, if there are any; one writer may overshoot by the size of one write.
    pub(in crate::vfs) fn try_reserve(&self, bytes: u64) -> Option<Reservation<'_>> {
        let take = |used: u64| (used < self.limit).then(|| used.saturating_add(bytes));
        let taken = self
            .used
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, take);
        // Not before this: a reservation that is dropped is returned.
        taken.is_ok().then(|| Reservation {
            budget: self,
            bytes,
        })
    }

    /// Waits until bytes are released. Another writer may take them: try again.
    pub(in crate::vfs) async fn wait(&self) {
        let released = self.released.notified();
        tokio::pin!(released);
        released.as_mut().enable();
        if self.used() >= self.limit {
            released.await;
        }
    }

    /// Books a change of one file's bytes from `before` to `after`.
    pub(in crate::vfs) fn adjust(&self, before: u64, after: u64) {
        if after >= before {
            self.used
                .fetch_add(after.saturating_sub(before), Ordering::AcqRel);
        } else {
            let less = before.saturating_sub(after);
            let _ = self
                .used
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
                    Some(used.saturating_sub(less))
                });
            self.released.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn writers_wait_for_a_release_and_no_more_enter_than_fit() {
        let budget = Budget::new(10);
        budget.adjust(0, 12);
        assert!(budget.try_reserve(1).is_none());
        let waiting = tokio::spawn({
            let budget = budget.clone();
            async move { budget.wait().await }
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!waiting.is_finished());
        budget.adjust(12, 4);
        tokio::time::timeout(Duration::from_secs(5), waiting)
            .await
            .unwrap()
            .unwrap();
        let first = budget.try_reserve(5).unwrap();
        let second = budget.try_reserve(5).unwrap();
        assert!(budget.try_reserve(5).is_none(), "{} of 10", budget.used());
        // Booked bytes take the place of those that were reserved for them.
        budget.adjust(4, 9);
        drop(first);
        assert!(budget.try_reserve(5).is_none(), "{} of 10", budget.used());
        drop(second);
        assert_eq!(budget.used(), 9);
        assert!(budget.try_reserve(5).is_some());
    }
}
