//! Ids for new objects and slices, granted by order and handed out one by one.
//!
//! Allocations are requested in bulk, so that an upload does not wait for the order. A used-up
//! allocation is given back once every object with one of its ids is committed or abandoned: an
//! open allocation keeps the collector away from its objects, and a session may have only a few.

use quorumfs_metadata::identity::{AllocationId, ObjectId, SliceId};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A pair of fresh ids. Keep it until the object is committed or abandoned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AllocatedId {
    allocation: Arc<AllocationId>,
    counter: u32,
    turn: u32,
}

impl AllocatedId {
    /// Sets its position in the order of reading: consecutive ones are placed on the clouds so that
    /// reading them loads all clouds equally.
    #[must_use]
    pub fn in_turn(self, turn: u32) -> Self {
        Self { turn, ..self }
    }

    /// Its position in the order of reading; that of the ids if it was not set.
    #[must_use]
    pub fn turn(&self) -> u32 {
        self.turn
    }

    /// The id for an object.
    #[must_use]
    pub fn object(&self) -> ObjectId {
        ObjectId {
            allocation: *self.allocation,
            counter: self.counter,
        }
    }

    /// The id for a slice.
    #[must_use]
    pub fn slice(&self) -> SliceId {
        SliceId {
            allocation: *self.allocation,
            counter: self.counter,
        }
    }
}

/// Granted ids that are not handed out yet.
#[derive(Debug, Default)]
pub(super) struct IdPool {
    current: Option<(Arc<AllocationId>, u32, u32)>,
    /// When an id was handed out last.
    last: Option<Instant>,
    used_up: Vec<Arc<AllocationId>>,
}

impl IdPool {
    /// The next id, if any is left.
    pub(super) fn take(&mut self) -> Option<AllocatedId> {
        let (allocation, next, count) = self.current.as_mut()?;
        self.last = Some(Instant::now());
        let id = AllocatedId {
            allocation: allocation.clone(),
            counter: *next,
            turn: *next,
        };
        *next = next.saturating_add(1);
        if next >= count {
            let (allocation, _, _) = self.current.take()?;
            self.used_up.push(allocation);
        }
        Some(id)
    }

    /// An allocation was granted.
    pub(super) fn grant(&mut self, allocation: AllocationId, count: u32) {
        if count == 0 {
            return;
        }
        if let Some((unused, _, _)) = self.current.replace((Arc::new(allocation), 0, count)) {
            self.used_up.push(unused);
        }
    }

    /// Hands out no more ids of an allocation of which none was wanted for a while.
    pub(super) fn retire_idle(&mut self, after: Duration) {
        let is_idle = self.last.is_none_or(|last| last.elapsed() >= after);
        if is_idle && let Some((idle, _, _)) = self.current.take() {
            self.used_up.push(idle);
        }
    }

    /// Whether ids of an allocation are or were handed out here.
    pub(super) fn knows(&self, allocation: AllocationId) -> bool {
        let current = self.current.iter().map(|(of, _, _)| of);
        current.chain(&self.used_up).any(|of| **of == allocation)
    }

    /// Allocations without any remaining user; to be given back.
    pub(super) fn finished(&mut self) -> Vec<AllocationId> {
        let (finished, held) = std::mem::take(&mut self.used_up)
            .into_iter()
            .partition::<Vec<_>, _>(|allocation| Arc::strong_count(allocation) == 1);
        self.used_up = held;
        finished.into_iter().map(|allocation| *allocation).collect()
    }

    /// An allocation that is finished could not be given back: it stays finished.
    pub(super) fn keep(&mut self, allocation: AllocationId) {
        self.used_up.push(Arc::new(allocation));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_is_finished_when_its_last_id_is_let_go() {
        let mut pool = IdPool::default();
        assert!(pool.take().is_none());
        pool.grant(AllocationId(7), 2);
        let (first, second) = (pool.take().unwrap(), pool.take().unwrap());
        assert!(pool.take().is_none());
        assert_eq!((first.object().counter, second.slice().counter), (0, 1));
        assert_eq!(pool.finished(), []);
        drop(first);
        assert_eq!(pool.finished(), []);
        drop(second);
        assert_eq!(pool.finished(), [AllocationId(7)]);
        assert_eq!(pool.finished(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_allocation_is_given_back_and_one_that_could_not_be_is_tried_again() {
        let minute = Duration::from_secs(60);
        let mut pool = IdPool::default();
        pool.grant(AllocationId(7), 2);
        let id = pool.take().unwrap();
        tokio::time::advance(minute / 2).await;
        pool.retire_idle(minute);
        assert!(pool.finished().is_empty(), "it may be wanted soon");
        tokio::time::advance(minute).await;
        pool.retire_idle(minute);
        assert!(pool.take().is_none());
        assert!(pool.finished().is_empty(), "an id of it is in use");
        drop(id);
        for _ in 0..2 {
            assert_eq!(pool.finished(), [AllocationId(7)]);
            assert!(pool.finished().is_empty());
            pool.keep(AllocationId(7));
        }
    }
}
