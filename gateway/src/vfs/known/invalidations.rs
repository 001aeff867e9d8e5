//! What the kernel has to drop of what it was allowed to cache.
//!
//! ```text
//!   news ──► one item an answer ──► a bounded queue for each receiver ──► the FUSE layer
//! ```
//!
//! A receiver that is too slow for its queue gets [`Invalidation::Everything`] for what it missed,
//! so the queue is bounded and nothing is lost. An item is sent after the entries here have become
//! invalid: whatever is shown later rests on newer answers.

use quorumfs_metadata::identity::InodeId;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

/// Items that wait for a receiver.
const ITEMS_MAX: usize = 16;

/// What the kernel may not use any more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Invalidation {
    /// What it has cached of these inodes: attributes, the listing, and the names in them. Content
    /// goes when a file is opened whose version has changed.
    Inodes(Arc<[InodeId]>),
    /// The pages of this file: a process with a descriptor of it may read nothing more.
    Pages(InodeId),
    /// All that it has cached, but for pages of files.
    Everything,
}

/// The invalidations from now on.
#[derive(Debug)]
pub struct Invalidations {
    receiver: broadcast::Receiver<(u64, Invalidation)>,
    sent: Arc<Mutex<u64>>,
    last: u64,
}

impl Invalidations {
    /// The next one; `None` once the file system is dropped. May be cancelled.
    pub async fn next(&mut self) -> Option<Invalidation> {
        match self.receiver.recv().await {
            Ok((number, next)) => {
                self.last = self.last.max(number);
                Some(next)
            }
            Err(RecvError::Lagged(_)) => {
                self.last = *self.sent.lock().unwrap_or_else(PoisonError::into_inner);
                Some(Invalidation::Everything)
            }
            Err(RecvError::Closed) => None,
        }
    }

    /// The number of the last one that was returned, or that it stands for; before the first, of
    /// the last one that does not concern this receiver.
    #[must_use]
    pub const fn last(&self) -> u64 {
        self.last
    }

    /// Whether one is waiting.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        !self.receiver.is_empty()
    }
}

/// Where they come from. They are numbered.
#[derive(Debug)]
pub(super) struct Announcements {
    sender: broadcast::Sender<(u64, Invalidation)>,
    sent: Arc<Mutex<u64>>,
}

impl Default for Announcements {
    fn default() -> Self {
        Self {
            sender: broadcast::Sender::new(ITEMS_MAX),
            sent: Arc::default(),
        }
    }
}

impl Announcements {
    pub(super) fn subscribe(&self) -> Invalidations {
        let sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        Invalidations {
            receiver: self.sender.subscribe(),
            sent: self.sent.clone(),
            last: *sent,
        }
    }

    pub(super) fn send(&self, next: Invalidation) {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        *sent = sent.saturating_add(1);
        // Without a receiver, no kernel has cached anything.
        let _ = self.sender.send((*sent, next));
    }

    /// The number of the last one that was sent.
    pub(super) fn sent(&self) -> u64 {
        *self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_receiver_that_is_too_slow_is_told_that_everything_goes() {
        let announcements = Announcements::default();
        let mut invalidations = announcements.subscribe();
        assert!(!invalidations.is_waiting());
        let of = |number: u64| Invalidation::Inodes([InodeId(number)].into());
        announcements.send(of(1));
        assert_eq!(invalidations.next().await, Some(of(1)));
        for number in 0..=ITEMS_MAX as u64 {
            announcements.send(of(number));
        }
        let next = invalidations.next().await;
        assert_eq!(next, Some(Invalidation::Everything));
        for number in 1..=ITEMS_MAX as u64 {
            assert_eq!(invalidations.next().await, Some(of(number)));
        }
        assert_eq!(invalidations.last(), announcements.sent());
        drop(announcements);
        assert_eq!(invalidations.next().await, None);
    }
}
