//! One bound on the memory of everything that is written and not yet committed.
//!
//! A writer takes room before its bytes are taken in; when there is none it waits, while the
//! oldest dirty files are flushed. It gives up with an error, instead of hanging, once nothing has
//! moved for as long as it is willing to wait: no slice has reached its clouds, and nothing was
//! committed. A cloud that is slow is waited for. Slices that go there once more because a commit
//! has failed move nothing, or who waits for servers that are away would wait for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// From which part of the bound on what waits longest is flushed before it is time.
const PRESSED_FROM: (u64, u64) = (7, 8);

/// Bytes that may be dirty, shared by all files of a mount.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    used: AtomicU64,
    released: Notify,
    /// Counts what brought a release nearer.
    moves: AtomicU64,
    /// The last commit has failed.
    failing: AtomicBool,
}

/// Room that one writer has taken; given back when it has booked what it wrote.
#[derive(Debug)]
pub(crate) struct Room<'a> {
    budget: &'a Budget,
    bytes: u64,
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.budget.adjust(self.bytes, 0);
    }
}

impl Budget {
    pub(crate) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self {
            limit,
            used: AtomicU64::new(0),
            released: Notify::new(),
            moves: AtomicU64::new(0),
            failing: AtomicBool::new(false),
        })
    }

    /// What is in use, in bytes.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Acquire)
    }

    /// Whether so much is in use that the oldest of it has to go.
    pub(crate) fn is_pressed(&self) -> bool {
        self.used() > self.limit / PRESSED_FROM.1 * PRESSED_FROM.0
    }

    /// Something is on its clouds, and its bytes will be released when the rest is.
    pub(crate) fn uploaded(&self) {
        if !self.failing.load(Ordering::Acquire) {
            self.moves.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// A commit has come to its end, a good one or not.
    pub(crate) fn committed(&self, well: bool) {
        self.failing.store(!well, Ordering::Release);
        if well {
            self.moves.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Does `work` as long as anything moves; nothing once nothing has moved for `wait`. Slow is
    /// not stuck.
    pub(crate) async fn while_moving<T>(
        &self,
        wait: Duration,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        tokio::pin!(work);
        loop {
            let moves = self.moves.load(Ordering::Acquire);
            match tokio::time::timeout(wait, work.as_mut()).await {
                Ok(done) => return Some(done),
                Err(_) if self.moves.load(Ordering::Acquire) != moves => {}
                Err(_) => return None,
            }
        }
    }

    /// Room for so many bytes, if there is any; one writer may overshoot by the size of one write.
    pub(crate) fn try_take(&self, bytes: u64) -> Option<Room<'_>> {
        let take = |used: u64| (used < self.limit).then(|| used.saturating_add(bytes));
        let taken = self
            .used
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, take);
        // Not before: a room that is made is given back.
        taken.is_ok().then(|| Room {
            budget: self,
            bytes,
        })
    }

    /// Waits until there is room, for somebody: whoever waits has to try again.
    pub(crate) async fn wait(&self) {
        let released = self.released.notified();
        tokio::pin!(released);
        released.as_mut().enable();
        if self.used() >= self.limit {
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

    #[tokio::test]
    async fn writers_wait_until_something_is_released_and_no_more_come_in_than_have_room() {
        let budget = Budget::new(10);
        budget.adjust(0, 12);
        assert!(budget.try_take(1).is_none());
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
        let first = budget.try_take(5).unwrap();
        let second = budget.try_take(5).unwrap();
        assert!(budget.try_take(5).is_none(), "{} of 10", budget.used());
        // What is booked takes the place of what was reserved for it.
        budget.adjust(4, 9);
        drop(first);
        assert!(budget.try_take(5).is_none(), "{} of 10", budget.used());
        drop(second);
        assert_eq!(budget.used(), 9);
        assert!(budget.try_take(5).is_some());
    }
}
