//! Being told what happens: replicas' reports, and changes of what the session watches.
//!
//! ```text
//!   readers of the links ──► core ──► Feed (bounded) ──► Observer::next, or a callback's thread
//! ```
//!
//! The core asks every replica, again after each reconnect, and decides what counts
//! (`quorumfs_bft::observer`). Here it waits for its reader, in a queue of its own that never makes
//! anybody else wait.
//!
//! # What always holds
//!
//! * A feed holds so many items at most. When it is full it is emptied, and one
//!   [`Told::Lagging`] stands in the place of all; it says to look at what is watched, like
//!   [`Watched::Revalidate`].
//! * A feed of watches begins with a revalidation, and so does what follows upon a lost connection:
//!   whoever looks at what it watches whenever it is told to has missed nothing.
//! * Nothing that is told is needed for anything to be right.

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

/// What an observer is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// What a replica, or a quorum of them, says that it is.
    Observation(Observation),
    /// What the session watches has changed, or may have.
    Watched(Watched),
    /// This reader was too slow, and so many items were thrown away: look at everything.
    Lagging {
        /// How many.
        dropped: usize,
    },
}

/// Which of it somebody wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    /// What replicas are.
    pub reports: bool,
    /// What changes of what the session watches.
    pub watches: bool,
}

#[derive(Debug, Default)]
struct Queue {
    items: VecDeque<Told>,
    closed: bool,
}

/// The queue of one observer.
#[derive(Debug)]
pub(super) struct Feed {
    interest: Interest,
    queue: Mutex<Queue>,
    changed: Notify,
}

impl Feed {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Each change below is complete before anything can panic.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, told: Told) {
        let mut queue = self.queue();
        if queue.items.len() >= OBSERVER_QUEUE_MAX {
            let dropped = queue.items.drain(..).map(|item| match item {
                Told::Lagging { dropped } => dropped,
                _ => 1,
            });
            let dropped = dropped.sum();
            queue.items.push_back(Told::Lagging { dropped });
        }
        queue.items.push_back(told);
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
    /// Somebody wants to be told.
    pub(super) fn add(&mut self, interest: Interest) -> Arc<Feed> {
        let feed = Arc::new(Feed {
            interest,
            queue: Mutex::default(),
            changed: Notify::new(),
        });
        if interest.watches {
            let up_to = Sequence(0);
            feed.push(Told::Watched(Watched::Revalidate { up_to }));
        }
        self.list.push(feed.clone());
        feed
    }

    /// It does not any more.
    pub(super) fn remove(&mut self, feed: &Arc<Feed>) {
        self.list.retain(|other| !Arc::ptr_eq(other, feed));
    }

    /// What all of them want together.
    pub(super) fn event(&self) -> Event {
        Event::Observe {
            reports: self.list.iter().any(|feed| feed.interest.reports),
            watches: self.list.iter().any(|feed| feed.interest.watches),
        }
    }

    pub(super) fn observed(&self, observation: Observation) {
        for feed in self.list.iter().filter(|feed| feed.interest.reports) {
            feed.push(Told::Observation(observation));
        }
    }

    pub(super) fn watched(&self, watched: &Watched) {
        for feed in self.list.iter().filter(|feed| feed.interest.watches) {
            feed.push(Told::Watched(watched.clone()));
        }
    }

    /// There is no session any more.
    pub(super) fn end(&self) {
        self.list.iter().for_each(|feed| feed.close());
    }
}

/// Somebody who is told what happens; what comes while nobody asks for it waits, up to a bound.
/// When it is dropped the replicas are asked for no more than others still want.
#[derive(Debug)]
pub struct Observer {
    machine: Arc<Machine>,
    feed: Arc<Feed>,
    // Its tasks keep the connections.
    _client: Client,
}

impl Observer {
    /// The next item; `None` once the session has ended. May be cancelled.
    pub async fn next(&mut self) -> Option<Told> {
        loop {
            let changed = self.feed.changed.notified();
            {
                let mut queue = self.feed.queue();
                if let Some(told) = queue.items.pop_front() {
                    return Some(told);
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
    /// Asks all replicas to tell what happens, now and after each reconnect. Any number of
    /// observers share what the client is sent.
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

    /// Asks by order to be told of changes of `what`, in the service's encoding. Whoever then looks
    /// at it, and looks again whenever an [`Observer`] says so, misses nothing that is the last
    /// word. The watch ends with the session.
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

    /// Ends a watch; one that is not there any more has ended.
    ///
    /// # Errors
    /// Like [`Client::execute`].
    pub async fn unwatch(&self, watch: WatchId) -> Result<(), ClientError> {
        let name = Bytes::copy_from_slice(&watch.0.to_le_bytes());
        self.watching(OperationKind::Unwatch, name)
            .await
            .map(|_| ())
    }

    /// Whoever observes has heard everything.
    pub(super) fn end_observers(&self) {
        self.inner.machine.end_feeds();
    }

    async fn watching(
        &self,
        kind: OperationKind,
        operation: Bytes,
    ) -> Result<WatchAnswer, ClientError> {
        let answer = self.submit(kind, operation).await?;
        // Enough replicas said so that one of them is correct, and a correct one says what is one.
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
    fn a_reader_that_is_too_slow_is_told_so_once_and_then_what_is_new() {
        let mut feeds = Feeds::default();
        let feed = feeds.add(WATCHES);
        let count = 2 * OBSERVER_QUEUE_MAX as u64;
        for sequence in 1..=count {
            feeds.watched(&change(sequence));
            assert!(feed.queue().items.len() <= OBSERVER_QUEUE_MAX);
        }
        let mut items = std::mem::take(&mut feed.queue().items);
        let dropped = count as usize + 1 - (items.len() - 1);
        assert_eq!(items.pop_front(), Some(Told::Lagging { dropped }));
        assert_eq!(items.pop_back(), Some(Told::Watched(change(count))));
    }

    #[test]
    fn everybody_gets_what_it_wants_and_the_replicas_are_asked_for_all_of_it() {
        let mut feeds = Feeds::default();
        let wants = |feeds: &Feeds| match feeds.event() {
            Event::Observe { reports, watches } => (reports, watches),
            other => panic!("{other:?}"),
        };
        let watcher = feeds.add(WATCHES);
        assert_eq!(wants(&feeds), (false, true));
        let first = watcher.queue().items.pop_front();
        let up_to = Sequence(0);
        let look = Told::Watched(Watched::Revalidate { up_to });
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
