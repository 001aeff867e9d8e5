//! One bound on the memory of everything that is written and not yet committed.
//!
//! A writer takes room before its bytes are taken in; when there is none it waits, while the
//! oldest dirty files are flushed, and gives up after a deadline with an error instead of hanging.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;

/// Bytes that may be dirty, shared by all files of a mount.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    used: AtomicU64,
    released: Notify,
}

impl Budget {
    pub(crate) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self {
            limit,
            used: AtomicU64::new(0),
            released: Notify::new(),
        })
    }

    /// What is in use, in bytes.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Acquire)
    }

    /// The bound, in bytes.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Whether new writers have to wait.
    pub(crate) fn is_full(&self) -> bool {
        self.used() >= self.limit
    }

    /// Waits until there is room. One writer may overshoot by the size of one write.
    pub(crate) async fn room(&self) {
        loop {
            let released = self.released.notified();
            tokio::pin!(released);
            released.as_mut().enable();
            if !self.is_full() {
                return;
            }
            released.await;
        }
    }

    /// Books that what one file holds went from `before` to `after` bytes.
    pub(crate) fn adjust(&self, before: u64, after: u64) {
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
    use std::time::Duration;

    #[tokio::test]
    async fn a_writer_waits_until_something_is_released() {
        let budget = Budget::new(10);
        budget.adjust(0, 12);
        let waiting = tokio::spawn({
            let budget = budget.clone();
            async move { budget.room().await }
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!waiting.is_finished());
        budget.adjust(12, 4);
        tokio::time::timeout(Duration::from_secs(5), waiting)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(budget.used(), 4);
    }
}
