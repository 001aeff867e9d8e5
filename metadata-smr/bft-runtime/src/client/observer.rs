//! Observing a cluster: replicas' reports, and changes of the data that the session watches.
//!
//! ```text
//!   readers of the links ──► core ──► Feed (bounded) ──► Observer::next, or a callback's thread
//! ```
//!
//! The core asks every replica, again after each reconnect, and decides what counts
//! (`quorumfs_bft::observer`). Items wait here for their reader, in a queue of its own that never
//! delays anything else.
//!
//! # What always holds
//!
//! * A feed is bounded. When it is full it is emptied, and one [`ObserverItem::Lagging`] replaces
//!   all its items; it asks the reader to look at the watched data, like [`Watched::Revalidate`].
//! * A feed of watches begins with a revalidation, and so does the part after a lost connection: a
//!   reader that looks at the watched data whenever it is asked to misses nothing.
//! * Correctness depends on no item of a feed.

use super::Client;
use super::error::ClientError;
use super::machine::Machine;
use crate::limits::OBSERVER_QUEUE_MAX;
use bytes::Bytes;
use quorumfs_bft::client::{Event, OperationKind};
use quorumfs_bft::identity::Sequence;
use quorumfs_bft::observer::{Observation, WatchAnswer, WatchId, Watched};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// An item of an observer's feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObserverItem {
    /// A report of a replica, or of a quorum of them, about itself.
    Observation(Observation),
    /// Watched data has changed, or may have.
    Watched(Watched),
    /// This reader was too slow and items were dropped: look at everything.
    Lagging {
        /// How many.
        dropped: usize,
    },
}

/// What an observer wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    /// Reports of replicas.
    pub reports: bool,
    /// Changes of watched data.
    pub watches: bool,
}

#[derive(Debug, Default)]
struct FeedQueue {
    items: VecDeque<ObserverItem>,
    closed: bool,
}

/// The queue of one observer.
#[derive(Debug)]
pub(super) struct Feed {
    interest: Interest,
    queue: Mutex<FeedQueue>,
    changed: Notify,
}

impl Feed {
    fn queue(&self) -> MutexGuard<'_, FeedQueue> {
        // Each change below is complete before anything can panic.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, item: ObserverItem) {
        let mut queue = self.queue();
        if queue.items.len() >= OBSERVER_QUEUE_MAX {
            let dropped = queue.items.drain(..).map(|item| match item {
                ObserverItem::Lagging { dropped } => dropped,
                _ => 1,
            });
            let dropped = dropped.sum();
            queue.items.push_back(ObserverItem::Lagging { dropped });
        }
        queue.items.push_back(item);
        drop(queue);
        self.changed.notify_one();
    }

    fn close(&self) {
        self.queue().closed = true;
        self.changed.notify_one();
    }
}

/// All feeds of a client.
#[derive(Debug, Default)]
pub(super) struct Feeds {
    list: Vec<Arc<Feed>>,
}

impl Feeds {
    /// Adds a feed.
    pub(super) fn add(&mut self, interest: Interest) -> Arc<Feed> {
        let feed = Arc::new(Feed {
            interest,
            queue: Mutex::default(),
            changed: Notify::new(),
        });
        if interest.watches {
            let up_to = Sequence(0);
            feed.push(ObserverItem::Watched(Watched::Revalidate { up_to }));
        }
        self.list.push(feed.clone());
        feed
    }

    /// Removes a feed.
    pub(super) fn remove(&mut self, feed: &Arc<Feed>) {
        self.list.retain(|other| !Arc::ptr_eq(other, feed));
    }

    /// The union of all interests.
    pub(super) fn event(&self) -> Event {
        Event::Observe {
            reports: self.list.iter().any(|feed| feed.interest.reports),
            watches: self.list.iter().any(|feed| feed.interest.watches),
        }
    }

    pub(super) fn observed(&self, observation: Observation) {
        for feed in self.list.iter().filter(|feed| feed.interest.reports) {
            feed.push(ObserverItem::Observation(observation));
        }
    }

    pub(super) fn watched(&self, watched: &Watched) {
        for feed in self.list.iter().filter(|feed| feed.interest.watches) {
            feed.push(ObserverItem::Watched(watched.clone()));
        }
    }

    /// The session has ended.
    pub(super) fn end(&self) {
        self.list.iter().for_each(|feed| feed.close());
    }
}

/// Receives what happens. Items wait for [`Observer::next`], up to a bound. When it is dropped, the
/// replicas are asked only for what other observers still want.
#[derive(Debug)]
pub struct Observer {
    machine: Arc<Machine>,
    feed: Arc<Feed>,
    // Its tasks maintain the connections.
    _client: Client,
}

impl Observer {
    /// The next item; `None` once the session has ended. May be cancelled.
    pub async fn next(&mut self) -> Option<ObserverItem> {
        loop {
            let changed = self.feed.changed.notified();
            {
                let mut queue = self.feed.queue();
                if let Some(item) = queue.items.pop_front() {
                    return Some(item);
                }
                if queue.closed {
                    return None;
                }
            }
            changed.await;
        }
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.machine.forget(&self.feed);
    }
}

impl Client {
    /// Asks all replicas for reports, now and after each reconnect. Any number of observers share
    /// what the client receives.
    #[must_use]
    pub fn observe(&self, interest: Interest) -> Observer {
        let machine = self.inner.machine.clone();
        let feed = machine.feed(interest);
        Observer {
            machine,
            feed,
            _client: self.clone(),
        }
    }

    /// Registers a watch of `what`, in the service's encoding, as an ordered request. A caller that
    /// then looks at it, and again whenever an [`Observer`] asks, never misses the last change. The
    /// watch ends with the session.
    ///
    /// # Errors
    /// Like [`Client::execute`], and if the service does not allow it or there are too many.
    pub async fn watch(&self, what: Bytes) -> Result<WatchId, ClientError> {
        match self.watching(OperationKind::Watch, what).await? {
            WatchAnswer::Watching { watch, .. } => Ok(watch),
            WatchAnswer::TooMany => Err(ClientError::TooManyWatches),
            _ => Err(ClientError::WatchRefused),
        }
    }

    /// Ends a watch, if it still exists.
    ///
    /// # Errors
    /// Like [`Client::execute`].
    pub async fn unwatch(&self, watch: WatchId) -> Result<(), ClientError> {
        let name = Bytes::copy_from_slice(&watch.0.to_le_bytes());
        self.watching(OperationKind::Unwatch, name)
            .await
            .map(|_| ())
    }

    /// Ends all observers.
    pub(super) fn end_observers(&self) {
        self.inner.machine.end_feeds();
    }

    async fn watching(
        &self,
        kind: OperationKind,
        operation: Bytes,
    ) -> Result<WatchAnswer, ClientError> {
        let answer = self.submit(kind, operation).await?;
        // Enough replicas gave this answer that one of them is correct, so it is well-formed.
        Ok(WatchAnswer::decode(&answer).unwrap_or(WatchAnswer::Refused))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WATCHES: Interest = Interest {
        reports: false,
        watches: true,
    };

    fn change(sequence: u64) -> Watched {
        Watched::Changed {
            sequence: Sequence(sequence),
            watches: vec![WatchId(1)],
        }
    }

    #[test]
    fn a_slow_reader_gets_one_lagging_item_and_then_new_ones() {
        let mut feeds = Feeds::default();
        let feed = feeds.add(WATCHES);
        let count = 2 * OBSERVER_QUEUE_MAX as u64;
        for sequence in 1..=count {
            feeds.watched(&change(sequence));
            assert!(feed.queue().items.len() <= OBSERVER_QUEUE_MAX);
        }
        let mut items = std::mem::take(&mut feed.queue().items);
        let dropped = count as usize + 1 - (items.len() - 1);
        assert_eq!(items.pop_front(), Some(ObserverItem::Lagging { dropped }));
        assert_eq!(items.pop_back(), Some(ObserverItem::Watched(change(count))));
    }

    #[test]
    fn each_feed_gets_what_it_wants_and_the_replicas_are_asked_for_the_union() {
        let mut feeds = Feeds::default();
        let wants = |feeds: &Feeds| match feeds.event() {
            Event::Observe { reports, watches } => (reports, watches),
            other => panic!("{other:?}"),
        };
        let watcher = feeds.add(WATCHES);
        assert_eq!(wants(&feeds), (false, true));
        let first = watcher.queue().items.pop_front();
        let up_to = Sequence(0);
        let look = ObserverItem::Watched(Watched::Revalidate { up_to });
        assert_eq!(first, Some(look), "it looks once at the beginning");
        let (reports, watches) = (true, false);
        let reader = feeds.add(Interest { reports, watches });
        assert_eq!(wants(&feeds), (true, true));
        feeds.watched(&change(1));
        assert!(reader.queue().items.is_empty());
        feeds.remove(&watcher);
        assert_eq!(wants(&feeds), (true, false));
    }
}
