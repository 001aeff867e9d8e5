//! The queue of future events, in the order of virtual time.
//!
//! Events at the same instant happen in the order in which they were added, which makes a run a
//! function of its seed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// An instant of virtual time: nanoseconds since the simulation began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(pub u64);

impl Instant {
    /// This instant, `nanos` later.
    #[must_use]
    pub const fn plus(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// Nanoseconds since `earlier`; 0 if it is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// One microsecond.
pub const MICROSECOND: u64 = 1_000;
/// One millisecond.
pub const MILLISECOND: u64 = 1_000_000;
/// One second.
pub const SECOND: u64 = 1_000_000_000;

#[derive(Debug)]
struct AgendaEntry<T> {
    at: Instant,
    number: u64,
    what: T,
}

impl<T> PartialEq for AgendaEntry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}
impl<T> Eq for AgendaEntry<T> {}
impl<T> PartialOrd for AgendaEntry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for AgendaEntry<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// A queue by time, first in first out within an instant.
#[derive(Debug)]
pub struct Agenda<T> {
    heap: BinaryHeap<Reverse<AgendaEntry<T>>>,
    now: Instant,
    next: u64,
}

impl<T> Default for Agenda<T> {
    fn default() -> Self {
        Self {
            heap: BinaryHeap::new(),
            now: Instant(0),
            next: 0,
        }
    }
}

impl<T> Agenda<T> {
    /// The instant of the event that was taken last.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Adds an event at `at`, or now if that has passed.
    pub fn put(&mut self, at: Instant, what: T) {
        let entry = AgendaEntry {
            at: at.max(self.now),
            number: self.next,
            what,
        };
        self.next += 1;
        self.heap.push(Reverse(entry));
    }

    /// Adds an event `nanos` from now.
    pub fn after(&mut self, nanos: u64, what: T) {
        self.put(self.now.plus(nanos), what);
    }

    /// Takes the next event and moves time there.
    pub fn take(&mut self) -> Option<T> {
        let Reverse(entry) = self.heap.pop()?;
        self.now = entry.at;
        Some(entry.what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_orders_and_ties_keep_their_order() {
        let mut agenda = Agenda::default();
        agenda.put(Instant(5), 'c');
        agenda.put(Instant(1), 'a');
        agenda.put(Instant(5), 'd');
        agenda.put(Instant(1), 'b');
        let order: String = std::iter::from_fn(|| agenda.take()).collect();
        assert_eq!(order, "abcd");
        assert_eq!(agenda.now(), Instant(5));
        agenda.put(Instant(2), 'e');
        assert_eq!(agenda.take(), Some('e'));
        assert_eq!(agenda.now(), Instant(5), "time never runs backwards");
    }
}
