//! What this mount knows of the locks of one inode and kind.
//!
//! While the mount is alone, these are all that there are, and it decides by itself, with the
//! servers' own functions. Once the servers decide, it is a copy of what they have granted to this
//! mount: it says what there is to unlock when a file is closed.

use crate::vfs::files::HandleId;
use quorumfs_bft::identity::SessionId;
use quorumfs_metadata::identity::InodeId;
use quorumfs_metadata::limits::{LOCK_WAITERS_MAX, LOCKS_MAX};
use quorumfs_metadata::locks::{
    FileLock, LockGrant, LockKind, LockOwner, LockQueue, LockRange, apply, conflict,
};
use quorumfs_metadata::operation::{LockRequest, LockWish};
use std::collections::{BTreeMap, BTreeSet};

/// Which locks: of an inode and kind.
pub(super) type LockedPlace = (InodeId, LockKind);

/// What a process asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ask {
    /// The number of its owner.
    pub(super) owner: u64,
    /// The bytes.
    pub(super) range: LockRange,
    /// What is to become of them.
    pub(super) wish: LockWish,
    /// The process.
    pub(super) pid: u32,
}

/// The answer of a mount that decides by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Decision {
    /// It is so now.
    Granted,
    /// This is in the way.
    Blocked(FileLock),
    /// There are too many locks or requests.
    Full,
}

/// The locks of one inode and kind.
#[derive(Debug, Default)]
pub(super) struct InodeLocks {
    /// The servers have these locks, and decide.
    pub(super) at_servers: bool,
    /// What owners of this mount hold.
    held: Vec<FileLock>,
    /// The requests that wait, in the order of their arrival, while the mount decides.
    waiting: Vec<FileLock>,
    /// The open files through which owners have locked something.
    handles: BTreeMap<u64, BTreeSet<HandleId>>,
    /// Owners of whom it is not known what they hold: the servers gave no answer.
    unsure: BTreeSet<u64>,
    /// Owners that have closed the file, whose locks are still to be given up.
    ending: BTreeSet<u64>,
    /// Some of the locks may be at the servers, and not all of them are.
    handing_over: bool,
}

/// All sessions but this one are the servers' business.
const fn owner(number: u64) -> LockOwner {
    LockOwner {
        session: SessionId(0),
        number,
    }
}

impl Ask {
    /// As a lock of this mount.
    const fn lock(&self) -> FileLock {
        FileLock {
            owner: owner(self.owner),
            range: self.range,
            exclusive: matches!(self.wish, LockWish::Exclusive),
            pid: self.pid,
        }
    }

    /// That lock as it was asked for.
    pub(super) const fn of(lock: &FileLock) -> Self {
        let wish = match lock.exclusive {
            true => LockWish::Exclusive,
            false => LockWish::Shared,
        };
        Self {
            owner: lock.owner.number,
            range: lock.range,
            wish,
            pid: lock.pid,
        }
    }

    /// Whether a lock of the servers is, or covers, what is asked for.
    pub(super) fn is_granted_by(&self, lock: &FileLock) -> bool {
        lock.owner.number == self.owner
            && lock.exclusive == matches!(self.wish, LockWish::Exclusive)
            && lock.range.start <= self.range.start
            && lock.range.end >= self.range.end
    }

    /// To the servers.
    pub(super) const fn request(&self, (inode, kind): LockedPlace, wait: bool) -> LockRequest {
        LockRequest {
            inode,
            kind,
            owner: self.owner,
            range: self.range,
            wish: self.wish,
            pid: self.pid,
            wait,
        }
    }
}

impl InodeLocks {
    /// Whether nothing here is worth keeping.
    pub(super) fn is_idle(&self) -> bool {
        self.held.is_empty()
            && self.waiting.is_empty()
            && self.handles.is_empty()
            && self.unsure.is_empty()
            && self.ending.is_empty()
            && !self.handing_over
    }

    /// How many locks are held.
    pub(super) fn count(&self) -> usize {
        self.held.len()
    }

    /// How many of them an owner holds.
    pub(super) fn count_of(&self, number: u64) -> usize {
        let own = self.held.iter();
        own.filter(|held| held.owner.number == number).count()
    }

    /// The locks that are held, as they were asked for.
    pub(super) fn all_held(&self) -> Vec<Ask> {
        self.held.iter().map(Ask::of).collect()
    }

    /// The requests that wait, the first one first.
    pub(super) fn all_waiting(&self) -> Vec<Ask> {
        self.waiting.iter().map(Ask::of).collect()
    }

    /// Decides what an owner asks for. A request that is in the queue already keeps its place.
    pub(super) fn decide(&mut self, kind: LockKind, ask: &Ask, wait: bool) -> Decision {
        let wish = ask.lock();
        let place = self.waiting.iter().position(|waiting| *waiting == wish);
        if ask.wish != LockWish::Unlock {
            let earlier = place.unwrap_or(self.waiting.len());
            let queue = LockQueue::new(&self.held, &self.waiting);
            if let Some(obstacle) = queue.in_the_way(earlier, &wish) {
                if wait && place.is_none() {
                    if self.waiting.len() >= LOCK_WAITERS_MAX {
                        return Decision::Full;
                    }
                    self.waiting.push(wish);
                }
                if wait {
                    self.blocked(kind, ask);
                }
                return Decision::Blocked(obstacle.lock);
            }
        }
        let after = self.after(ask);
        if after.len() > self.held.len() && after.len() > LOCKS_MAX {
            return Decision::Full;
        }
        self.granted(ask);
        Decision::Granted
    }

    fn after(&self, ask: &Ask) -> Vec<FileLock> {
        let lock = ask.lock();
        let grant = (ask.wish != LockWish::Unlock).then_some(LockGrant {
            exclusive: lock.exclusive,
            pid: lock.pid,
        });
        apply(&self.held, lock.owner, ask.range, grant)
    }

    /// What an owner asked for is so now.
    pub(super) fn granted(&mut self, ask: &Ask) {
        self.held = self.after(ask);
        self.leave_queue(ask);
        if ask.wish == LockWish::Unlock && ask.range == LockRange::WHOLE {
            self.unsure.remove(&ask.owner);
            self.ending.remove(&ask.owner);
        }
        if !self.concerns(ask.owner) {
            self.handles.remove(&ask.owner);
        }
    }

    /// A request has to wait. `flock` gives up the old lock first, as on Linux.
    pub(super) fn blocked(&mut self, kind: LockKind, ask: &Ask) {
        if kind == LockKind::Whole {
            self.held = apply(&self.held, owner(ask.owner), LockRange::WHOLE, None);
        }
    }

    /// Takes a request out of the queue.
    pub(super) fn leave_queue(&mut self, ask: &Ask) {
        let wish = ask.lock();
        self.waiting.retain(|waiting| *waiting != wish);
    }

    /// The locks are about to be given to the servers: this mount decides no more.
    pub(super) const fn begin_handing_over(&mut self) {
        self.handing_over = true;
    }

    /// Whether this mount may decide, if it acts as alone.
    pub(super) const fn may_decide(&self) -> bool {
        !self.at_servers && !self.handing_over
    }

    /// The servers keep the queue from now on.
    pub(super) fn give_to_servers(&mut self) {
        self.at_servers = true;
        self.handing_over = false;
        self.waiting.clear();
    }

    /// An owner has closed the file.
    pub(super) fn begin_ending(&mut self, owner: u64) {
        if self.concerns(owner) {
            self.ending.insert(owner);
        }
    }

    /// Whether the locks of an owner are still to be given up because it has closed the file. The
    /// kernel may use its number again meanwhile.
    pub(super) fn is_ending(&self, owner: u64) -> bool {
        self.ending.contains(&owner)
    }

    /// Whether it is not known what an owner holds.
    pub(super) fn is_unsure(&self, owner: u64) -> bool {
        self.unsure.contains(&owner)
    }

    /// It is not known whether the servers did what an owner asked for.
    pub(super) fn note_unsure(&mut self, owner: u64) {
        self.unsure.insert(owner);
    }

    /// An owner locks through an open file.
    pub(super) fn uses(&mut self, owner: u64, handle: Option<HandleId>) {
        if let Some(handle) = handle {
            self.handles.entry(owner).or_default().insert(handle);
        }
    }

    /// Whether an owner holds what it asks for.
    pub(super) fn has(&self, ask: &Ask) -> bool {
        ask.wish != LockWish::Unlock && self.held.iter().any(|held| ask.is_granted_by(held))
    }

    /// The open files through which an owner has locked something.
    pub(super) fn handles_of(&self, owner: u64) -> Vec<HandleId> {
        let handles = self.handles.get(&owner).into_iter().flatten();
        handles.copied().collect()
    }

    /// Whether an owner holds something, or may hold it.
    pub(super) fn concerns(&self, number: u64) -> bool {
        self.unsure.contains(&number) || self.held.iter().any(|it| it.owner.number == number)
    }

    /// Whether an owner has an exclusive lock of some of these bytes, or may have it.
    pub(super) fn may_write(&self, number: u64, range: LockRange) -> bool {
        let writes = |lock: &FileLock| {
            lock.owner.number == number && lock.exclusive && lock.range.overlaps(range)
        };
        self.unsure.contains(&number) || self.held.iter().any(writes)
    }

    /// Whether anything changes if an owner unlocks these bytes.
    pub(super) fn has_to_unlock(&self, number: u64, range: LockRange) -> bool {
        let concerned = |lock: &FileLock| lock.owner.number == number && lock.range.overlaps(range);
        self.unsure.contains(&number) || self.held.iter().any(concerned)
    }

    /// An open file is closed: the owners that have locked something through it and through no
    /// other one.
    pub(super) fn close(&mut self, handle: HandleId) -> Vec<u64> {
        let mut last = Vec::new();
        self.handles.retain(|owner, handles| {
            if handles.remove(&handle) && handles.is_empty() {
                last.push(*owner);
            }
            !handles.is_empty()
        });
        last
    }

    /// What is in the way of a lock, of what this mount knows.
    pub(super) fn in_the_way(&self, ask: &Ask) -> Option<FileLock> {
        let exclusive = ask.wish == LockWish::Exclusive;
        conflict(&self.held, owner(ask.owner), ask.range, exclusive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HANDLE: HandleId = HandleId(7);

    fn ask(owner: u64, wish: LockWish) -> Ask {
        Ask {
            owner,
            range: LockRange::WHOLE,
            wish,
            pid: 1,
        }
    }

    fn decide(locks: &mut InodeLocks, kind: LockKind, ask: &Ask) -> bool {
        locks.decide(kind, ask, true) == Decision::Granted
    }

    #[test]
    fn a_mount_that_decides_grants_in_the_order_of_arrival() {
        let mut locks = InodeLocks::default();
        let kind = LockKind::Ranges;
        let [one, two, three] = [1, 2, 3].map(|owner| ask(owner, LockWish::Exclusive));
        let reader = ask(4, LockWish::Shared);
        assert!(decide(&mut locks, kind, &one));
        for waits in [&two, &three, &reader] {
            assert!(!decide(&mut locks, kind, waits));
        }
        assert_eq!(locks.all_waiting(), [two, three, reader]);
        assert!(decide(&mut locks, kind, &ask(1, LockWish::Unlock)));
        assert!(!decide(&mut locks, kind, &three), "before its turn");
        assert!(!decide(&mut locks, kind, &reader), "before its turn");
        assert!(decide(&mut locks, kind, &two));
        assert_eq!(locks.all_waiting(), [three, reader]);
        locks.leave_queue(&three);
        assert!(decide(&mut locks, kind, &ask(2, LockWish::Unlock)));
        assert!(decide(&mut locks, kind, &reader));
        assert!(decide(&mut locks, kind, &ask(4, LockWish::Unlock)));
        assert!(locks.is_idle());
    }

    #[test]
    fn who_does_not_wait_is_in_no_queue_and_flock_gives_up_its_lock_to_wait() {
        let mut locks = InodeLocks::default();
        let kind = LockKind::Whole;
        let readers = [1, 2].map(|owner| ask(owner, LockWish::Shared));
        assert!(
            readers
                .iter()
                .all(|reader| decide(&mut locks, kind, reader))
        );
        let writer = ask(1, LockWish::Exclusive);
        assert_ne!(locks.decide(kind, &writer, false), Decision::Granted);
        assert!(locks.all_waiting().is_empty() && locks.concerns(1));
        assert!(!decide(&mut locks, kind, &writer));
        assert!(
            !locks.concerns(1),
            "two readers that both want to write would wait for ever"
        );
        assert!(decide(&mut locks, kind, &ask(2, LockWish::Unlock)));
        assert!(decide(&mut locks, kind, &writer));
    }

    #[test]
    fn the_last_open_file_of_an_owner_ends_its_locks() {
        let mut locks = InodeLocks::default();
        for handle in [HANDLE, HandleId(8)] {
            locks.uses(1, Some(handle));
            assert!(decide(
                &mut locks,
                LockKind::Ranges,
                &ask(1, LockWish::Exclusive)
            ));
        }
        assert!(locks.close(HANDLE).is_empty());
        assert_eq!(locks.handles_of(1), [HandleId(8)]);
        assert!(locks.may_write(1, LockRange { start: 3, end: 3 }));
        assert_eq!(locks.close(HandleId(8)), [1]);
        assert!(locks.has_to_unlock(1, LockRange::WHOLE));
        locks.granted(&ask(1, LockWish::Unlock));
        assert!(locks.is_idle());
    }

    #[test]
    fn an_owner_of_whom_nothing_is_known_unlocks_all_the_same() {
        let mut locks = InodeLocks::default();
        locks.note_unsure(1);
        assert!(locks.has_to_unlock(1, LockRange { start: 0, end: 0 }));
        assert!(!locks.has_to_unlock(2, LockRange::WHOLE));
        locks.granted(&ask(1, LockWish::Unlock));
        assert!(locks.is_idle());
    }

    #[test]
    fn the_numbers_of_locks_and_of_requests_are_bounded() {
        let mut locks = InodeLocks::default();
        let kind = LockKind::Ranges;
        let at = |owner, start, wish| Ask {
            range: LockRange { start, end: start },
            ..ask(owner, wish)
        };
        for start in 0..LOCKS_MAX as u64 {
            assert!(decide(
                &mut locks,
                kind,
                &at(1, 2 * start, LockWish::Exclusive)
            ));
        }
        let more = at(1, 1 << 40, LockWish::Shared);
        assert_eq!(locks.decide(kind, &more, true), Decision::Full);
        for owner in 0..LOCK_WAITERS_MAX as u64 {
            assert!(!decide(
                &mut locks,
                kind,
                &at(2 + owner, 0, LockWish::Shared)
            ));
        }
        let more = at(1 << 40, 0, LockWish::Shared);
        assert_eq!(locks.decide(kind, &more, true), Decision::Full);
        assert!(matches!(
            locks.decide(kind, &more, false),
            Decision::Blocked(_)
        ));
    }
}
