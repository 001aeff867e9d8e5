//! All pending requests, in the order of their arrival.
//!
//! The requests are in a slab, and a *handle* locates one there. The order of arrival is a list of
//! handles. A removed request stays in the list until it is at the front or until half of the list
//! is removed ones; a number that rises with each arrival shows whether a handle still means the
//! same request. So each step has the same cost on average, however many requests are pending, and
//! the list is never much longer than twice the number of pending requests.
//!
//! A request that has not been proposed is *ready*. Requests are proposed mostly in the order in
//! which they arrive, so a mark that moves forward finds the oldest ready one. It returns to the
//! front only when proposed requests become ready again.

use crate::digest_map::DigestMap;
use crate::identity::{Digest, Monotonic, ReplicaId};
use crate::wire::Envelope;
use std::collections::VecDeque;
use std::sync::Arc;

/// The list may hold this many removed requests before it is checked whether they are half of it.
const GONE_MIN: usize = 64;

/// The location of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Handle(u32);

impl Handle {
    const fn place(self) -> usize {
        self.0 as usize
    }
}

/// A request in the pool.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) body: Arc<Envelope>,
    pub(super) since: Monotonic,
    /// `None` for a request that no leader has to order: a stranger's attempt to open a session.
    pub(super) arrival: Option<u64>,
    /// Whether it has been proposed.
    pub(super) proposed: bool,
    /// The peer that forwarded it, if it has no place of its own here.
    pub(super) forwarded_by: Option<ReplicaId>,
}

impl Waiting {
    fn length(&self) -> usize {
        self.body.frame().len()
    }

    const fn is_ready(&self) -> bool {
        self.arrival.is_some() && !self.proposed
    }
}

/// All pending requests.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    slab: Vec<Option<Waiting>>,
    free: Vec<Handle>,
    index: DigestMap<Handle>,
    order: VecDeque<(u64, Handle)>,
    /// No entry of the list before this one is ready.
    ready_from: usize,
    /// The number of entries of the list that are still pending.
    owed: usize,
    ready: usize,
    ready_bytes: usize,
    bytes: usize,
    /// The number of requests with an arrival, counted from the start.
    arrivals: u64,
}

impl Queue {
    /// The request pending under this digest.
    pub(super) fn find(&self, digest: &Digest) -> Option<&Waiting> {
        self.at(self.handle(digest)?)
    }

    pub(super) fn handle(&self, digest: &Digest) -> Option<Handle> {
        self.index.get(digest).copied()
    }

    pub(super) fn at(&self, handle: Handle) -> Option<&Waiting> {
        self.slab.get(handle.place())?.as_ref()
    }

    /// Adds a request that is not pending yet. With `owed` it counts as an arrival.
    pub(super) fn push(
        &mut self,
        body: &Arc<Envelope>,
        now: Monotonic,
        owed: bool,
        proposed: bool,
        forwarded_by: Option<ReplicaId>,
    ) -> Handle {
        let waiting = Waiting {
            body: Arc::clone(body),
            since: now,
            arrival: owed.then_some(self.arrivals),
            proposed,
            forwarded_by,
        };
        let (length, ready, arrival) = (waiting.length(), waiting.is_ready(), waiting.arrival);
        let handle = match self.free.pop() {
            Some(handle) => handle,
            None => {
                self.slab.push(None);
                // The credit bounds the pending requests far below this.
                Handle(u32::try_from(self.slab.len() - 1).unwrap_or(u32::MAX))
            }
        };
        if let Some(place) = self.slab.get_mut(handle.place()) {
            *place = Some(waiting);
        }
        self.index.insert(body.digest(), handle);
        self.bytes += length;
        if let Some(arrival) = arrival {
            self.arrivals += 1;
            self.owed += 1;
            self.order.push_back((arrival, handle));
        }
        if ready {
            self.ready += 1;
            self.ready_bytes += length;
        }
        self.tidy();
        handle
    }

    /// Removes a request.
    pub(super) fn take(&mut self, handle: Handle) -> Option<Waiting> {
        let gone = self.slab.get_mut(handle.place())?.take()?;
        self.free.push(handle);
        self.index.remove(gone.body.digest_ref());
        self.bytes -= gone.length();
        self.owed -= usize::from(gone.arrival.is_some());
        if gone.is_ready() {
            self.ready -= 1;
            self.ready_bytes -= gone.length();
        }
        self.tidy();
        Some(gone)
    }

    /// Clears the mark that a peer forwarded a request, and returns that peer, if there is one.
    pub(super) fn remove_forwarded(&mut self, handle: Handle) -> Option<ReplicaId> {
        self.slab
            .get_mut(handle.place())?
            .as_mut()?
            .forwarded_by
            .take()
    }

    /// Marks a request as proposed. Returns whether it had not been.
    pub(super) fn mark_proposed(&mut self, handle: Handle) -> bool {
        let place = self.slab.get_mut(handle.place()).and_then(Option::as_mut);
        let Some(waiting) = place.filter(|it| !it.proposed) else {
            return false;
        };
        if waiting.is_ready() {
            self.ready -= 1;
            self.ready_bytes -= waiting.length();
        }
        waiting.proposed = true;
        self.tidy();
        true
    }

    /// Makes proposed requests ready again.
    pub(super) fn release_proposed(&mut self) {
        for waiting in self.slab.iter_mut().flatten().filter(|it| it.proposed) {
            waiting.proposed = false;
            if waiting.is_ready() {
                self.ready += 1;
                self.ready_bytes += waiting.length();
            }
        }
        self.ready_from = 0;
        self.tidy();
    }

    /// The request that an entry of the list still means.
    fn resolve(slab: &[Option<Waiting>], (arrival, handle): (u64, Handle)) -> Option<&Waiting> {
        let waiting = slab.get(handle.place())?.as_ref()?;
        (waiting.arrival == Some(arrival)).then_some(waiting)
    }

    /// Drops removed requests from the list, and moves the mark to the first ready one.
    fn tidy(&mut self) {
        let slab = &self.slab;
        let gone = |entry: &mut (u64, Handle)| Self::resolve(slab, *entry).is_none();
        while self.order.pop_front_if(gone).is_some() {
            self.ready_from = self.ready_from.saturating_sub(1);
        }
        if self.order.len() > GONE_MIN + 2 * self.owed {
            self.order
                .retain(|entry| Self::resolve(slab, *entry).is_some());
            self.ready_from = 0;
        }
        let ready =
            |entry: &(u64, Handle)| Self::resolve(slab, *entry).is_some_and(Waiting::is_ready);
        while let Some(entry) = self.order.get(self.ready_from)
            && !ready(entry)
        {
            self.ready_from += 1;
        }
    }

    /// Since when the oldest ready request has been pending.
    pub(super) fn oldest_ready(&self) -> Option<Monotonic> {
        let entry = self.order.get(self.ready_from)?;
        Self::resolve(&self.slab, *entry).map(|waiting| waiting.since)
    }

    /// The number of ready requests, and their total length.
    pub(super) const fn ready(&self) -> (usize, usize) {
        (self.ready, self.ready_bytes)
    }

    /// The requests that a leader has to order, oldest first.
    pub(super) fn owed(&self) -> impl Iterator<Item = &Waiting> {
        let order = self.order.iter();
        order.filter_map(|entry| Self::resolve(&self.slab, *entry))
    }

    /// All pending requests, sorted by digest.
    pub(super) fn all(&self) -> impl Iterator<Item = &Waiting> {
        self.index.values().filter_map(|handle| self.at(*handle))
    }

    /// The number of requests that a leader has to order.
    pub(super) const fn owed_count(&self) -> usize {
        self.owed
    }

    /// The number of pending requests.
    pub(super) fn len(&self) -> usize {
        self.slab.len() - self.free.len()
    }

    /// The number of pending bytes.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The number of requests that have arrived and that a leader has to order.
    pub(super) const fn arrivals(&self) -> u64 {
        self.arrivals
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::samples::body;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_a_list_in_order_of_arrival(
            steps in prop::collection::vec((0..12_u8, any::<prop::sample::Index>()), 1..300),
        ) {
            let mut queue = Queue::default();
            let mut model: Vec<(Handle, Digest, Monotonic, bool, bool)> = Vec::new();
            for (number, (step, index)) in (0..).zip(steps) {
                let at = model.len().checked_sub(1).map(|last| index.index(last + 1));
                match (step, at) {
                    (0..=4, _) | (_, None) => {
                        let (body, now, owed) = (body(number), Monotonic(number), step > 0);
                        let handle = queue.push(&body, now, owed, false, None);
                        model.push((handle, body.digest(), now, owed, false));
                    }
                    (5..=7, Some(at)) => {
                        let (handle, digest, ..) = model.remove(at);
                        let gone = queue.take(handle).expect("it is pending");
                        prop_assert_eq!(gone.body.digest(), digest);
                    }
                    (8..=10, Some(at)) => {
                        prop_assert_eq!(queue.mark_proposed(model[at].0), !model[at].4);
                        model[at].4 = true;
                    }
                    (_, Some(_)) => {
                        queue.release_proposed();
                        model.iter_mut().for_each(|it| it.4 = false);
                    }
                }
                let owed: Vec<_> = model.iter().filter(|it| it.3).collect();
                let ready: Vec<_> = owed.iter().filter(|it| !it.4).collect();
                prop_assert_eq!(queue.oldest_ready(), ready.first().map(|it| it.2));
                prop_assert_eq!(queue.ready().0, ready.len());
                let found: Vec<_> = queue.owed().map(|it| it.body.digest()).collect();
                prop_assert_eq!(found, owed.iter().map(|it| it.1).collect::<Vec<_>>());
                prop_assert_eq!((queue.len(), queue.owed_count()), (model.len(), owed.len()));
                prop_assert!(model.iter().all(|it| queue.handle(&it.1) == Some(it.0)));
                prop_assert!(queue.order.len() <= GONE_MIN + 2 * queue.owed + 1);
            }
        }
    }

    #[test]
    fn however_long_the_oldest_waits_the_list_is_bounded() {
        let mut queue = Queue::default();
        queue.push(&body(0), Monotonic(0), true, false, None);
        for number in 1..10_000 {
            let handle = queue.push(&body(number), Monotonic(number), true, false, None);
            queue.take(handle);
        }
        assert!(queue.order.len() <= GONE_MIN + 3 && queue.slab.len() == 2);
        assert_eq!(queue.oldest_ready(), Some(Monotonic(0)));
    }
}
