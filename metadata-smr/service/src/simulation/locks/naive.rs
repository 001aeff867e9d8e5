//! Locks as a machine would keep them that has time for everything: one entry for each byte that an
//! owner holds, and what a request waits for is found by going over all others until nothing
//! changes.
//!
//! Written from the rules of [`crate::locks`], not from its code. The service's own tests compare
//! its rows with this, and the judge of a simulated cluster its answers.

use crate::identity::InodeId;
use crate::limits::LOCK_TURN_TIME;
use crate::locks::{LockKind, LockRange};
use crate::operation::{LockRequest, LockWish};
use crate::reply::LockBlocker;
use std::collections::{BTreeMap, BTreeSet};

/// The last byte that is told apart; all after it count as this one.
pub(crate) const BYTES: u64 = 8;
/// How long a waiter's turn is.
pub(crate) const TURN: u64 = LOCK_TURN_TIME.0;

/// An inode and the kind of its locks.
pub(crate) type LockedPlace = (InodeId, LockKind);
/// A session and its number of an owner.
pub(crate) type NaiveOwner = (u64, u64);

/// A lock that an owner asks for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct NaiveWish {
    pub(crate) owner: NaiveOwner,
    pub(crate) range: LockRange,
    pub(crate) exclusive: bool,
    pub(crate) pid: u32,
}

impl NaiveWish {
    pub(crate) fn of(session: u64, request: &LockRequest) -> Self {
        Self {
            owner: (session, request.owner),
            range: request.range,
            exclusive: request.wish == LockWish::Exclusive,
            pid: request.pid,
        }
    }

    pub(crate) fn bytes(&self) -> impl Iterator<Item = u64> + use<> {
        self.range.start..=self.range.end.min(BYTES)
    }

    pub(crate) fn conflicts(&self, other: &Self) -> bool {
        let both = self.bytes().any(|at| other.bytes().any(|it| it == at));
        self.owner != other.owner && both && (self.exclusive || other.exclusive)
    }
}

/// All locks and waiters.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NaiveLocks {
    /// Whether each held byte is held exclusively.
    pub(crate) held: BTreeMap<(LockedPlace, NaiveOwner, u64), bool>,
    /// With the end of the turn, if it has come.
    pub(crate) waiting: BTreeMap<LockedPlace, Vec<(NaiveWish, Option<u64>)>>,
}

impl NaiveLocks {
    pub(crate) fn waiting(&self, place: LockedPlace) -> Vec<NaiveWish> {
        let waiting = self.waiting.get(&place).into_iter().flatten();
        waiting.map(|(wish, _)| *wish).collect()
    }

    /// Whether there is this lock, or this waiter, and it conflicts with a wish.
    pub(crate) fn shows(
        &self,
        place: LockedPlace,
        wish: &NaiveWish,
        blocker: &LockBlocker,
    ) -> bool {
        if blocker.waits {
            return self.waiting(place).iter().any(|it| {
                (it.owner.0, it.range, it.exclusive, it.pid)
                    == (
                        blocker.session.0,
                        blocker.range,
                        blocker.exclusive,
                        blocker.pid,
                    )
                    && it.conflicts(wish)
            });
        }
        let shown = blocker.range.start..=blocker.range.end.min(BYTES);
        self.held.iter().any(|((_, owner, byte), exclusive)| {
            (owner.0, *exclusive) == (blocker.session.0, blocker.exclusive)
                && *owner != wish.owner
                && (*exclusive || wish.exclusive)
                && shown.contains(byte)
                && wish.bytes().any(|it| it == *byte)
        })
    }

    /// Whether one of these owners holds what a request conflicts with.
    pub(crate) fn is_held(
        &self,
        place: LockedPlace,
        wish: &NaiveWish,
        by: impl Fn(NaiveOwner) -> bool,
    ) -> bool {
        self.held.iter().any(|((at, owner, byte), exclusive)| {
            let there = *at == place && wish.bytes().any(|it| it == *byte);
            there && *owner != wish.owner && (*exclusive || wish.exclusive) && by(*owner)
        })
    }

    /// Whether an owner holds anything.
    pub(crate) fn holds(&self, place: LockedPlace, owner: NaiveOwner) -> bool {
        let mut held = self.held.keys();
        held.any(|(at, by, _)| (*at, *by) == (place, owner))
    }

    /// Whether a request has to wait: for a lock, or behind another request.
    pub(crate) fn obstacle(
        &self,
        place: LockedPlace,
        earlier: usize,
        wish: &NaiveWish,
    ) -> Option<bool> {
        if self.is_held(place, wish, |_| true) {
            return Some(false);
        }
        let all = self.waiting(place);
        let mut stuck: BTreeSet<usize> = BTreeSet::new();
        loop {
            let before = stuck.len();
            for (index, one) in all.iter().enumerate() {
                let its: Vec<&NaiveWish> = stuck.iter().filter_map(|it| all.get(*it)).collect();
                let by = |owner| owner == wish.owner || its.iter().any(|it| it.owner == owner);
                let ahead = stuck.iter().filter(|it| **it < index);
                let behind = ahead
                    .filter_map(|it| all.get(*it))
                    .any(|it| it.conflicts(one));
                if behind || self.is_held(place, one, by) {
                    stuck.insert(index);
                }
            }
            if stuck.len() == before {
                break;
            }
        }
        let mut before = all.iter().enumerate().take(earlier);
        let waits = before.any(|(index, it)| it.conflicts(wish) && !stuck.contains(&index));
        waits.then_some(true)
    }

    /// Whether nothing is in the way of a waiter.
    pub(crate) fn is_free(&self, place: LockedPlace, index: usize) -> bool {
        let waiting = self.waiting(place);
        let wish = waiting.get(index);
        wish.is_some_and(|wish| self.obstacle(place, index, wish).is_none())
    }

    fn set(&mut self, place: LockedPlace, wish: &NaiveWish, exclusive: Option<bool>) {
        for byte in wish.bytes() {
            let at = (place, wish.owner, byte);
            match exclusive {
                Some(exclusive) => self.held.insert(at, exclusive),
                None => self.held.remove(&at),
            };
        }
    }

    pub(crate) fn give_turns(&mut self, place: LockedPlace, now: u64) {
        let count = self.waiting(place).len();
        let free: Vec<bool> = (0..count).map(|it| self.is_free(place, it)).collect();
        let waiting = self.waiting.entry(place).or_default();
        for ((_, turn), free) in waiting.iter_mut().zip(free) {
            *turn = free.then(|| turn.unwrap_or(now.saturating_add(TURN)));
        }
    }

    /// What an operation is answered when no waiter is late: what is in the way, if anything is.
    pub(crate) fn ask(&mut self, session: u64, request: &LockRequest, now: u64) -> Option<bool> {
        let place = (request.inode, request.kind);
        let wish = NaiveWish::of(session, request);
        let unlocks = request.wish == LockWish::Unlock;
        let all = self.waiting(place);
        let own = all.iter().position(|it| !unlocks && *it == wish);
        let found = match unlocks {
            true => None,
            false => self.obstacle(place, own.unwrap_or(all.len()), &wish),
        };
        let waiting = self.waiting.entry(place).or_default();
        match (found, own) {
            (Some(_), _) if !request.wait => return found,
            (Some(_), own) => {
                if own.is_none() {
                    waiting.push((wish, None));
                }
                if request.kind == LockKind::Whole {
                    self.set(place, &wish, None);
                }
            }
            (None, own) => {
                if let Some(own) = own {
                    waiting.remove(own);
                }
                self.set(place, &wish, (!unlocks).then_some(wish.exclusive));
            }
        }
        self.give_turns(place, now);
        found
    }

    /// An owner waits for nothing any more.
    pub(crate) fn stop(&mut self, place: LockedPlace, owner: NaiveOwner) {
        let waiting = self.waiting.entry(place).or_default();
        waiting.retain(|(wish, _)| wish.owner != owner);
    }

    /// A mount has ended.
    pub(crate) fn end(&mut self, session: u64) {
        self.held.retain(|(_, owner, _), _| owner.0 != session);
        for waiting in self.waiting.values_mut() {
            waiting.retain(|(wish, _)| wish.owner.0 != session);
        }
    }
}
