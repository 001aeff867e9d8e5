//! The order among owners that wait for locks of one inode and kind.
//!
//! A request waits for every lock of another owner that conflicts with it, and for every *earlier
//! request* of another owner that does. So readers that arrive behind a waiting writer wait, and
//! the writer has its turn.
//!
//! There is one exception, without which the order itself would be a deadlock. Let X hold a lock
//! that W waits for, and ask for another one, or for another mode. If X now waited behind W, which
//! waits for X, neither would ever go on. So X does not wait for a request that *is stuck behind
//! X*. A request is stuck behind X if it waits
//! * for a lock that X holds;
//! * for a lock of an owner with a request that is stuck behind X: that owner does not go on, so it
//!   may not unlock;
//! * behind an earlier request that is stuck behind X.
//!
//! With that, a circle of owners that wait for each other consists of locks that they hold and of
//! nothing else: it would be one without any order too. For let a circle have an edge "R of X waits
//! behind the earlier W". If it comes back to X by a lock that X holds, W is stuck behind X, and R
//! does not wait for it. Otherwise it comes back to R by its place in the queue, and so on
//! backwards; but places only get earlier along such edges, so at some owner the circle comes in by
//! a lock and leaves by a place, which was just excluded. An owner that holds nothing has no
//! request stuck behind it, and the order is strict for it.
//!
//! Deadlocks by held locks remain, as two owners that each hold a shared lock of a range and want
//! it exclusively; and those over several files.

use super::table::{FileLock, LockOwner, conflict};
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

/// A lock that is in the way of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Obstacle {
    /// The lock.
    pub lock: FileLock,
    /// Whether it is not held: its owner has waited for it for longer.
    pub waits: bool,
}

/// The locks of an inode and kind that are held, and the requests that wait for others, in the
/// order of their arrival.
#[derive(Debug)]
pub struct LockQueue<'a> {
    held: &'a [FileLock],
    waiting: &'a [FileLock],
    edges: OnceCell<QueueEdges>,
}

/// Which requests wait for what. Made once for all questions, because there may be as many as there
/// are requests.
#[derive(Debug)]
struct QueueEdges {
    /// The requests that wait for locks of an owner.
    for_owner: BTreeMap<LockOwner, Requests>,
    /// The requests that wait behind a request.
    behind: Vec<Requests>,
}

impl<'a> LockQueue<'a> {
    /// A queue.
    #[must_use]
    pub const fn new(held: &'a [FileLock], waiting: &'a [FileLock]) -> Self {
        let edges = OnceCell::new();
        Self {
            held,
            waiting,
            edges,
        }
    }

    /// What a request has to wait for that came after the first `earlier` ones of those that wait.
    #[must_use]
    pub fn in_the_way(&self, earlier: usize, wish: &FileLock) -> Option<Obstacle> {
        if let Some(lock) = conflict(self.held, wish.owner, wish.range, wish.exclusive) {
            let waits = false;
            return Some(Obstacle { lock, waits });
        }
        let before = self.waiting.iter().take(earlier).enumerate();
        let mut rivals = before.filter(|(_, other)| other.conflicts(wish)).peekable();
        rivals.peek()?;
        let stuck = self.stuck_behind(wish.owner);
        let (_, lock) = rivals.find(|(index, _)| !stuck.contains(*index))?;
        let waits = true;
        Some(Obstacle { lock: *lock, waits })
    }

    /// The requests that are stuck behind an owner.
    fn stuck_behind(&self, owner: LockOwner) -> Requests {
        let mut stuck = Requests::default();
        if !self.held.iter().any(|lock| lock.owner == owner) {
            return stuck;
        }
        let edges = self.edges.get_or_init(|| self.edges());
        // The owners whose locks are not unlocked before `owner` goes on, and those of them whose
        // locks have to be looked at.
        let mut owners = BTreeSet::from([owner]);
        let mut to_visit = vec![owner];
        while let Some(visited) = to_visit.pop() {
            let waits_for_it = edges.for_owner.get(&visited);
            let mut found = waits_for_it.map_or_else(Vec::new, |it| stuck.add(it));
            while let Some(index) = found.pop() {
                let its_owner = self.waiting.get(index).map(|request| request.owner);
                to_visit.extend(its_owner.filter(|owner| owners.insert(*owner)));
                if let Some(behind) = edges.behind.get(index) {
                    found.append(&mut stuck.add(behind));
                }
            }
        }
        stuck
    }

    fn edges(&self) -> QueueEdges {
        let mut for_owner: BTreeMap<LockOwner, Requests> = BTreeMap::new();
        for lock in self.held {
            for (index, request) in self.waiting.iter().enumerate() {
                if request.conflicts(lock) {
                    for_owner.entry(lock.owner).or_default().insert(index);
                }
            }
        }
        let behind = |(first, before): (usize, &FileLock)| {
            let mut behind = Requests::default();
            for (index, request) in self.waiting.iter().enumerate().skip(first) {
                if request.conflicts(before) {
                    behind.insert(index);
                }
            }
            behind
        };
        let behind = self.waiting.iter().enumerate().map(behind).collect();
        QueueEdges { for_owner, behind }
    }
}

/// A set of requests, one bit for each.
#[derive(Clone, Default, Debug)]
struct Requests(Vec<u64>);

impl Requests {
    const fn bit(index: usize) -> (usize, u64) {
        (index / 64, 1 << (index % 64))
    }

    fn contains(&self, index: usize) -> bool {
        let (word, bit) = Self::bit(index);
        self.0.get(word).is_some_and(|bits| bits & bit != 0)
    }

    fn insert(&mut self, index: usize) {
        let (word, bit) = Self::bit(index);
        if self.0.len() <= word {
            self.0.resize(word.saturating_add(1), 0);
        }
        if let Some(bits) = self.0.get_mut(word) {
            *bits |= bit;
        }
    }

    /// Adds others; returns those that are new.
    fn add(&mut self, others: &Self) -> Vec<usize> {
        let mut added = Vec::new();
        for (word, others) in others.0.iter().enumerate() {
            let mut new = others & !self.0.get(word).copied().unwrap_or(0);
            while new != 0 {
                let index = (word * 64).saturating_add(new.trailing_zeros() as usize);
                self.insert(index);
                added.push(index);
                new &= new - 1;
            }
        }
        added
    }
}

#[cfg(test)]
mod tests;
