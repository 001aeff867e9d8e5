//! Choosing the requests of the next batch.

use super::Pool;
use super::queue::{Handle, Queue};
use super::session_queue::{Choice, SessionQueue};
use crate::identity::{Monotonic, SessionId};
use crate::wire::Envelope;
use crate::wire::limits::{BATCH_BYTES_MAX, BATCH_OPENS_MAX, BATCH_REQUESTS_MAX};
use std::sync::Arc;

impl Pool {
    /// Chooses the next batch: sessions in turn, of each session one request a round and of each
    /// lane one request, the one with the smallest number. The chosen requests are marked as
    /// proposed: they stay pending until they are settled, and are not chosen again.
    ///
    /// A session that was served goes to the end, so the next batch continues where this one ended.
    /// Cost: a step for each chosen request, and a few of O(log sessions) for each session among
    /// them; sessions without pending requests cost nothing.
    pub fn select(&mut self, now: Monotonic) -> Vec<Arc<Envelope>> {
        let mut batch = Selection::default();
        for digest in self.openings.select(BATCH_OPENS_MAX, now) {
            batch.add(&self.queue, self.queue.handle(&digest));
        }
        for digest in self.forwarded.openings() {
            batch.add(&self.queue, self.queue.handle(&digest));
        }
        // First a round of all sessions in turn, then rounds of those that were served, as long as
        // they have more requests.
        let mut round: Vec<Turn> = self.turns.iter().map(Turn::first).collect();
        let mut served = 0;
        let mut last: Vec<Turn> = Vec::new();
        while !batch.full && !round.is_empty() {
            let mut next = Vec::with_capacity(round.len());
            for turn in round.drain(..) {
                let session = self.sessions.get_mut(&turn.id).filter(|_| !batch.full);
                match session.and_then(|session| batch.serve(&self.queue, session, turn.times)) {
                    Some(()) => {
                        served += 1;
                        next.push(turn.served(served));
                    }
                    None if turn.times > 0 => last.push(turn),
                    None => {}
                }
            }
            round = next;
        }
        last.append(&mut round);
        last.sort_unstable_by_key(|turn| turn.last);
        for turn in &last {
            self.turns.remove(&turn.place);
            self.places += 1;
            self.turns.insert(self.places, turn.id);
            if let Some(session) = self.sessions.get_mut(&turn.id) {
                session.place = Some(self.places);
            }
        }
        for handle in &batch.chosen {
            self.mark_proposed_at(*handle);
        }
        batch.bodies
    }
}

/// A session's turn while a batch is filled.
#[derive(Clone, Copy, Debug)]
struct Turn {
    id: SessionId,
    place: u64,
    /// How many of its requests have been chosen.
    times: usize,
    /// The position of the last of these among all that were chosen.
    last: u64,
}

impl Turn {
    const fn first((place, id): (&u64, &SessionId)) -> Self {
        Self {
            id: *id,
            place: *place,
            times: 0,
            last: 0,
        }
    }

    const fn served(self, last: u64) -> Self {
        Self {
            times: self.times + 1,
            last,
            ..self
        }
    }
}

/// A batch that is being filled.
#[derive(Default)]
struct Selection {
    bodies: Vec<Arc<Envelope>>,
    chosen: Vec<Handle>,
    bytes: usize,
    full: bool,
}

impl Selection {
    /// Adds the next request of a session of which `times` have been chosen already. `None` if
    /// there is no other, or the batch is full.
    fn serve(&mut self, queue: &Queue, session: &mut SessionQueue, times: usize) -> Option<()> {
        let mut choice = session.next(times)?;
        if let Choice::Lane(lane, handle) = choice
            && self.has(queue, handle)
        {
            session.served(lane);
            choice = session.next(times)?;
        }
        match choice {
            Choice::Lane(lane, handle) => {
                self.add(queue, Some(handle))?;
                session.served(lane);
                Some(())
            }
            Choice::Other(digest) => self.add(queue, queue.handle(&digest)),
        }
    }

    /// Whether it has been chosen already: a forwarded request may have another place as well.
    fn has(&self, queue: &Queue, handle: Handle) -> bool {
        let forwarded = queue.at(handle).is_some_and(|it| it.forwarded_by.is_some());
        forwarded && self.chosen.contains(&handle)
    }

    /// Adds a request, unless the batch is full or contains it.
    fn add(&mut self, queue: &Queue, handle: Option<Handle>) -> Option<()> {
        let Some((handle, waiting)) = handle.and_then(|it| Some((it, queue.at(it)?))) else {
            return Some(());
        };
        if self.has(queue, handle) {
            return Some(());
        }
        let bytes = self.bytes + waiting.body.frame().len();
        if self.full || self.bodies.len() >= BATCH_REQUESTS_MAX || bytes > BATCH_BYTES_MAX {
            self.full = true;
            return None;
        }
        self.bytes = bytes;
        self.bodies.push(Arc::clone(&waiting.body));
        self.chosen.push(handle);
        Some(())
    }
}
