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
use std::collections::BTreeSet;

/// A lock that is in the way of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Obstacle {
    /// The lock.
    pub lock: FileLock,
    /// Whether it is not held: its owner has waited for it for longer.
    pub waits: bool,
}

/// What a request has to wait for: one of the locks that are `held`, or the request of another
/// owner among those that wait. These are in the order of their arrival, and the first `earlier`
/// ones came before this one.
#[must_use]
pub fn in_the_way(
    held: &[FileLock],
    waiting: &[FileLock],
    earlier: usize,
    wish: &FileLock,
) -> Option<Obstacle> {
    if let Some(lock) = conflict(held, wish.owner, wish.range, wish.exclusive) {
        let waits = false;
        return Some(Obstacle { lock, waits });
    }
    let before = waiting.iter().take(earlier).enumerate();
    let mut rivals = before.filter(|(_, other)| other.conflicts(wish)).peekable();
    rivals.peek()?;
    let stuck = stuck_behind(held, waiting, wish.owner);
    let (_, lock) = rivals.find(|(index, _)| !stuck.contains(index))?;
    let waits = true;
    Some(Obstacle { lock: *lock, waits })
}

/// The requests, by their index, that are stuck behind an owner.
fn stuck_behind(held: &[FileLock], waiting: &[FileLock], owner: LockOwner) -> BTreeSet<usize> {
    let mut stuck = BTreeSet::new();
    // The owners whose locks are not unlocked before `owner` goes on, and those of them whose locks
    // have to be looked at.
    let mut owners = BTreeSet::from([owner]);
    let mut to_visit = vec![owner];
    while let Some(visited) = to_visit.pop() {
        let its: Vec<&FileLock> = held.iter().filter(|lock| lock.owner == visited).collect();
        let mut found = Vec::new();
        for (index, request) in waiting.iter().enumerate() {
            let waits_for_it = its.iter().any(|lock| lock.conflicts(request));
            if waits_for_it && stuck.insert(index) {
                found.push(index);
            }
        }
        while let Some(first) = found.pop() {
            let Some(before) = waiting.get(first) else {
                continue;
            };
            if owners.insert(before.owner) {
                to_visit.push(before.owner);
            }
            let behind = waiting.iter().enumerate().skip(first);
            for (index, request) in behind {
                if request.conflicts(before) && stuck.insert(index) {
                    found.push(index);
                }
            }
        }
    }
    stuck
}

#[cfg(test)]
mod tests;
