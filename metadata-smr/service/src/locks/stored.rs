//! The rows of the locks of one inode and kind, and of those that wait for them.
//!
//! All are read, changed in memory, and what differs is written. A row of a mount that has ended
//! counts for nothing: it is left out when they are read, and some of those are removed when the
//! rest is written.

use super::queue::{LockQueue, Obstacle};
use super::table::{FileLock, LockKind, LockRange};
use crate::change::Change;
use crate::error::Error;
use crate::identity::{InodeId, MountEpoch, RealmId};
use crate::limits::{
    LOCK_TURN_TIME, LOCK_TURNS_MAX, LOCK_WAITERS_DROPPED_MAX, LOCK_WAITERS_MAX, LOCKED_INODES_MAX,
    LOCKS_BURIED_MAX, LOCKS_MAX, MOUNTS_MAX,
};
use crate::log;
use crate::mount::mounts;
use crate::row::key::{LockPlace, MountPlace};
use crate::row::{DueTurn, HeldLock, LockTurn, LockWaiter, LockedInode, LockedInodes, key};
use crate::rows::{Outcome, Rows, decode, require};
use quorumfs_bft::identity::{SessionId, Time};
use std::collections::{BTreeMap, BTreeSet};

/// A row of a mount that has ended.
struct EndedLock {
    by: MountPlace,
    row_key: Vec<u8>,
    /// The row of a waiter's turn.
    due: Option<Vec<u8>>,
}

/// The locks and waiters of an inode and kind.
pub(super) struct StoredLocks {
    realm: RealmId,
    inode: InodeId,
    kind: LockKind,
    /// The mounts of the realm.
    mounts: BTreeMap<SessionId, MountEpoch>,
    /// The locks that are held.
    pub(super) locks: Vec<FileLock>,
    /// The requests that wait, by their tickets, the first one first.
    pub(super) waiters: BTreeMap<u64, LockWaiter>,
    before: (Vec<FileLock>, BTreeMap<u64, LockWaiter>),
    ended_locks: Vec<EndedLock>,
    ended_waiters: Vec<EndedLock>,
    last_ticket: u64,
}

impl StoredLocks {
    pub(super) fn read(
        rows: &impl Rows,
        realm: RealmId,
        (inode, kind): (InodeId, LockKind),
    ) -> Outcome<Self> {
        let mounts = mounts(rows, realm, MOUNTS_MAX)?.into_iter();
        let mut stored = Self {
            realm,
            inode,
            kind,
            mounts: mounts.map(|mount| (mount.session, mount.epoch)).collect(),
            locks: Vec::new(),
            waiters: BTreeMap::new(),
            before: (Vec::new(), BTreeMap::new()),
            ended_locks: Vec::new(),
            ended_waiters: Vec::new(),
            last_ticket: 0,
        };
        stored.read_locks(rows)?;
        stored.read_waiters(rows)?;
        stored.before = (stored.locks.clone(), stored.waiters.clone());
        Ok(stored)
    }

    fn read_locks(&mut self, rows: &impl Rows) -> Outcome<()> {
        let prefix = key::locks(self.inode, self.kind);
        for (row_key, bytes) in rows.scan(&prefix, &prefix, LOCKS_MAX)? {
            let held: HeldLock = decode(&row_key, &bytes)?;
            let Some(place) = key::trailing_lock(&row_key) else {
                continue;
            };
            if self.is_live(place.owner.session, held.mount) {
                self.locks.push(lock_of(&place, &held));
            } else {
                self.ended_locks.push(EndedLock {
                    by: self.place(place.owner.session, held.mount),
                    row_key: row_key.to_vec(),
                    due: None,
                });
            }
        }
        Ok(())
    }

    fn read_waiters(&mut self, rows: &impl Rows) -> Outcome<()> {
        let prefix = key::lock_waiters(self.inode, self.kind);
        for (row_key, bytes) in rows.scan(&prefix, &prefix, LOCK_WAITERS_MAX)? {
            let waiter: LockWaiter = decode(&row_key, &bytes)?;
            let ticket = key::trailing_number(&row_key).unwrap_or(0);
            self.last_ticket = ticket;
            let session = waiter.wish.owner.session;
            if self.is_live(session, waiter.mount) {
                self.waiters.insert(ticket, waiter);
            } else {
                self.ended_waiters.push(EndedLock {
                    by: self.place(session, waiter.mount),
                    row_key: row_key.to_vec(),
                    due: self.due(ticket, &waiter),
                });
            }
        }
        Ok(())
    }

    /// Whether a session has this mount of the realm now.
    pub(super) fn is_live(&self, session: SessionId, mount: MountEpoch) -> bool {
        self.mounts.get(&session) == Some(&mount)
    }

    const fn place(&self, session: SessionId, mount: MountEpoch) -> MountPlace {
        MountPlace {
            session,
            realm: self.realm,
            mount,
        }
    }

    fn due(&self, ticket: u64, waiter: &LockWaiter) -> Option<Vec<u8>> {
        let turn = waiter.turn?;
        Some(key::due_turn(turn.check, self.inode, self.kind, ticket))
    }

    fn waiting(&self) -> Vec<FileLock> {
        self.waiters.values().map(|waiter| waiter.wish).collect()
    }

    /// The ticket of a request that waits already.
    pub(super) fn ticket(&self, wish: &FileLock) -> Option<u64> {
        let mut waiters = self.waiters.iter();
        waiters
            .find(|(_, waiter)| waiter.wish == *wish)
            .map(|(ticket, _)| *ticket)
    }

    /// What a request has to wait for, at its place in the queue or at the end of it.
    pub(super) fn in_the_way(&self, wish: &FileLock, ticket: Option<u64>) -> Option<Obstacle> {
        let earlier = match ticket {
            Some(ticket) => self.waiters.range(..ticket).count(),
            None => self.waiters.len(),
        };
        LockQueue::new(&self.locks, &self.waiting()).in_the_way(earlier, wish)
    }

    /// Drops waiters that have not taken their turn in time, but not the one that asks.
    pub(super) fn drop_late(&mut self, lease_clock: Time, asking: Option<u64>) {
        let is_late = |waiter: &LockWaiter| {
            let turn = waiter.turn;
            turn.is_some_and(|turn| turn.deadline <= lease_clock)
        };
        let late = self.waiters.iter();
        let late = late.filter(|(ticket, waiter)| is_late(waiter) && Some(**ticket) != asking);
        let late = late.map(|(ticket, _)| *ticket);
        let late: Vec<u64> = late.take(LOCK_WAITERS_DROPPED_MAX).collect();
        self.waiters.retain(|ticket, _| !late.contains(ticket));
    }

    /// Puts a request at the end of the queue.
    pub(super) fn queue(&mut self, wish: FileLock) -> Outcome<()> {
        let fits = self.waiters.len() < LOCK_WAITERS_MAX;
        require(fits, Error::LimitReached)?;
        let mount = self.mounts.get(&wish.owner.session).copied();
        let waiter = LockWaiter {
            mount: mount.unwrap_or_default(),
            wish,
            turn: None,
        };
        self.last_ticket = self.last_ticket.saturating_add(1);
        self.waiters.insert(self.last_ticket, waiter);
        Ok(())
    }

    /// Removes rows of a mount that has ended, all or some. Returns whether none is left.
    pub(super) fn bury(&mut self, change: &mut Change<'_, '_>, by: MountPlace) -> Outcome<bool> {
        let locks = std::mem::take(&mut self.ended_locks);
        let waiters = std::mem::take(&mut self.ended_waiters);
        let its = locks.into_iter().chain(waiters);
        let mut its = its.filter(|ended| ended.by == by);
        for ended in its.by_ref().take(crate::limits::LOCKS_REAPED_PER_PIECE) {
            remove(change, ended)?;
        }
        Ok(its.next().is_none())
    }

    /// Writes what has changed. The session knows that it may repeat its own requests if it `gives`
    /// something up.
    pub(super) fn save(mut self, change: &mut Change<'_, '_>, gives: bool) -> Outcome<()> {
        let more = self.locks.len() > self.before.0.len();
        let fits = self.locks.len() <= LOCKS_MAX || !more;
        require(fits, Error::LimitReached)?;
        for ended in [&mut self.ended_locks, &mut self.ended_waiters] {
            for ended in ended.drain(..).take(LOCKS_BURIED_MAX) {
                remove(change, ended)?;
            }
        }
        self.give_turns(change, gives);
        self.save_locks(change)?;
        self.save_waiters(change)?;
        self.save_mounts(change)
    }

    /// Begins the turns of waiters that nothing is in the way of any more, and tells them.
    fn give_turns(&mut self, change: &mut Change<'_, '_>, gives: bool) {
        let (time, lease_clock) = (change.time(), change.context().lease_clock);
        let waiting = self.waiting();
        let queue = LockQueue::new(&self.locks, &waiting);
        let mut left = LOCK_TURNS_MAX;
        for (earlier, waiter) in self.waiters.values_mut().enumerate() {
            let is_free = queue.in_the_way(earlier, &waiter.wish).is_none();
            if is_free == waiter.turn.is_some() {
                continue;
            }
            let own = change.session() == Some(waiter.wish.owner.session);
            if is_free && !(own && gives) {
                log::note_lock(change, self.realm, self.inode, own);
            }
            // The others have heard of it too, and their turn may begin later.
            if left > 0 {
                left = left.saturating_sub(1);
                waiter.turn = is_free.then(|| LockTurn {
                    deadline: lease_clock.plus(LOCK_TURN_TIME),
                    check: time.plus(LOCK_TURN_TIME),
                });
            }
        }
    }

    fn save_locks(&self, change: &mut Change<'_, '_>) -> Outcome<()> {
        let row_key = |lock: &FileLock| {
            key::lock(&LockPlace {
                inode: self.inode,
                kind: self.kind,
                start: lock.range.start,
                owner: lock.owner,
            })
        };
        let before: BTreeMap<_, _> = self.before.0.iter().map(|it| (row_key(it), it)).collect();
        let after: BTreeMap<_, _> = self.locks.iter().map(|it| (row_key(it), it)).collect();
        for row_key in before.keys() {
            if !after.contains_key(row_key) {
                change.delete(row_key.clone())?;
            }
        }
        for (row_key, lock) in after {
            if before.get(&row_key) == Some(&lock) {
                continue;
            }
            let mount = self.mounts.get(&lock.owner.session).copied();
            let row = HeldLock {
                mount: mount.unwrap_or_default(),
                end: lock.range.end,
                exclusive: lock.exclusive,
                pid: lock.pid,
            };
            change.put(row_key, &row)?;
        }
        Ok(())
    }

    fn save_waiters(&self, change: &mut Change<'_, '_>) -> Outcome<()> {
        let before = &self.before.1;
        let tickets: BTreeSet<u64> = before.keys().chain(self.waiters.keys()).copied().collect();
        for ticket in tickets {
            let (old, new) = (before.get(&ticket), self.waiters.get(&ticket));
            if old == new {
                continue;
            }
            let due = |waiter: Option<&LockWaiter>| self.due(ticket, waiter?);
            if let Some(row_key) = due(old) {
                change.delete(row_key)?;
            }
            if let Some(row_key) = due(new) {
                change.put(row_key, &DueTurn)?;
            }
            let row_key = key::lock_waiter(self.inode, self.kind, ticket);
            match new {
                Some(waiter) => change.put(row_key, waiter)?,
                None => change.delete(row_key)?,
            }
        }
        Ok(())
    }

    /// Writes which mounts have something here, so that it is found when they end.
    fn save_mounts(&self, change: &mut Change<'_, '_>) -> Outcome<()> {
        let before = sessions(&self.before.0, &self.before.1);
        let after = sessions(&self.locks, &self.waiters);
        for session in before.symmetric_difference(&after) {
            let Some(mount) = self.mounts.get(session) else {
                continue;
            };
            let by = self.place(*session, *mount);
            let row_key = key::locked_inode(by, self.inode, self.kind);
            let count_key = key::locked_inodes(by);
            let found: Option<LockedInodes> = change.find(&count_key)?;
            let LockedInodes { mut count } = found.unwrap_or_default();
            if after.contains(session) {
                require(count < LOCKED_INODES_MAX, Error::LimitReached)?;
                count = count.saturating_add(1);
                change.put(row_key, &LockedInode)?;
            } else {
                count = count.saturating_sub(1);
                change.delete(row_key)?;
            }
            match count {
                0 => change.delete(count_key)?,
                count => change.put(count_key, &LockedInodes { count })?,
            }
        }
        Ok(())
    }
}

/// The sessions that have locks or wait.
fn sessions(locks: &[FileLock], waiters: &BTreeMap<u64, LockWaiter>) -> BTreeSet<SessionId> {
    let waiting = waiters.values().map(|waiter| &waiter.wish);
    let all = locks.iter().chain(waiting);
    all.map(|lock| lock.owner.session).collect()
}

fn remove(change: &mut Change<'_, '_>, ended: EndedLock) -> Outcome<()> {
    change.delete(ended.row_key)?;
    match ended.due {
        Some(due) => change.delete(due),
        None => Ok(()),
    }
}

/// The lock that a row says.
pub(super) const fn lock_of(place: &LockPlace, held: &HeldLock) -> FileLock {
    FileLock {
        owner: place.owner,
        range: LockRange {
            start: place.start,
            end: held.end,
        },
        exclusive: held.exclusive,
        pid: held.pid,
    }
}
