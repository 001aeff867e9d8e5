//! Locks of processes, and the signals that end their waiting.
//!
//! A mount that may share the volume asks the kernel for all requests about locks; in an exclusive
//! one the kernel handles them itself. A request that waits has no deadline: it ends when the lock
//! is granted, or when its process is sent a signal, of which the kernel tells by an *interrupt*.
//!
//! Several threads read requests. So an interrupt may be read before the request that it is about
//! has been entered here. It is remembered then, and the kernel never uses a number twice.
//! Interrupts of requests that do not wait for locks are remembered too, and never found: the
//! oldest of them go.

use crate::serve::Adapter;
use fuser::{Errno, INodeNo, ReplyEmpty, ReplyLock, RequestId};
use quorumfs_gateway::vfs::{
    HandleId, Interruption, LockKind, LockRange, LockWish, LockedBy, TakenLock,
};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// Interrupts that are remembered.
const EARLY_MAX: usize = 1024;
/// The last byte of a file, as the kernel counts.
const LAST_BYTE: u64 = i64::MAX as u64;

/// As in `fcntl(2)`.
const READ_LOCK: i32 = 0;
const WRITE_LOCK: i32 = 1;
const UNLOCK: i32 = 2;

/// Requests that wait for locks, and interrupts.
#[derive(Debug, Default)]
pub(crate) struct Interrupts(Mutex<InterruptTable>);

#[derive(Debug, Default)]
struct InterruptTable {
    waiting: HashMap<u64, oneshot::Sender<()>>,
    early: VecDeque<u64>,
}

/// A request that can be interrupted; it no longer can when this is dropped.
#[derive(Debug)]
struct Interruptible {
    all: Arc<Interrupts>,
    number: u64,
}

impl Interrupts {
    fn table(&self) -> MutexGuard<'_, InterruptTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A process was sent a signal while it waits for this request.
    pub(crate) fn interrupt(&self, RequestId(number): RequestId) {
        let mut table = self.table();
        if table.waiting.remove(&number).is_some() {
            return;
        }
        if table.early.len() >= EARLY_MAX {
            table.early.pop_front();
        }
        table.early.push_back(number);
    }

    fn enter(self: &Arc<Self>, RequestId(number): RequestId) -> (Interruptible, Interruption) {
        let (sender, interruption) = Interruption::new();
        let mut table = self.table();
        match table.early.iter().position(|early| *early == number) {
            // The sender is dropped, and that interrupts.
            Some(at) => drop(table.early.remove(at)),
            None => drop(table.waiting.insert(number, sender)),
        }
        let all = self.clone();
        (Interruptible { all, number }, interruption)
    }
}

impl Drop for Interruptible {
    fn drop(&mut self) {
        self.all.table().waiting.remove(&self.number);
    }
}

/// A lock, as the kernel asks about it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelLock {
    handle: HandleId,
    owner: u64,
    /// The first and the last byte.
    range: (u64, u64),
    of: i32,
    pid: u32,
    flock: bool,
}

impl KernelLock {
    /// Of an open file, for an owner; `flock` says which of the two calls it is.
    pub(crate) const fn new(
        handle: HandleId,
        owner: u64,
        range: (u64, u64),
        of: i32,
        pid: u32,
        flock: bool,
    ) -> Self {
        Self {
            handle,
            owner,
            range,
            of,
            pid,
            flock,
        }
    }

    fn kind(&self) -> LockKind {
        match self.flock {
            true => LockKind::Whole,
            false => LockKind::Ranges,
        }
    }

    fn range(&self) -> LockRange {
        let (start, end) = self.range;
        if self.flock {
            return LockRange::WHOLE;
        }
        // "To the end, wherever that is".
        let end = if end >= LAST_BYTE { u64::MAX } else { end };
        LockRange { start, end }
    }

    fn wish(&self) -> Option<LockWish> {
        match self.of {
            READ_LOCK => Some(LockWish::Shared),
            WRITE_LOCK => Some(LockWish::Exclusive),
            UNLOCK => Some(LockWish::Unlock),
            _ => None,
        }
    }
}

impl Adapter {
    /// Takes a lock, or gives it up. With `number` the request waits.
    pub(crate) fn lock(
        &self,
        inode: INodeNo,
        lock: KernelLock,
        number: Option<RequestId>,
        reply: ReplyEmpty,
    ) {
        let Some(wish) = lock.wish() else {
            return reply.error(Errno::EINVAL);
        };
        let (fs, inode) = (self.file_system.clone(), self.inode(inode));
        let kernel_cache = self.kernel_cache.clone();
        let (keeper, root) = (fs.clone(), self.shown.root);
        let answer = move |outcome: Result<TakenLock, Errno>| match outcome {
            Ok(TakenLock {
                drop_pages: Some(version),
            }) => {
                // The kernel may have to write back pages, and waits for reads that are under way.
                drop(tokio::task::spawn_blocking(move || {
                    kernel_cache.drop_pages(inode, root);
                    keeper.dropped_pages(inode, version);
                    reply.ok();
                }));
            }
            Ok(_) => reply.ok(),
            Err(error) => reply.error(error),
        };
        let asked = (lock.range(), wish);
        let (kind, owner, pid) = (lock.kind(), lock.owner, lock.pid);
        let dropping = self.kernel_cache.clone();
        let ask = async move |wait: Option<Interruption>| {
            let of = (kind, owner);
            let taken = fs.lock(lock.handle, of, asked, pid, wait).await?;
            if wish != LockWish::Unlock && fs.is_shared() {
                dropping.caught_up(fs.announced()).await;
            }
            Ok(taken)
        };
        match number.filter(|_| wish != LockWish::Unlock) {
            None => self.serve("setlk", async move { ask(None).await }, answer),
            Some(number) => {
                let (entered, interruption) = self.interrupts.enter(number);
                let waits = async move {
                    let outcome = ask(Some(interruption)).await;
                    drop(entered);
                    outcome
                };
                self.serve_without_deadline("setlkw", waits, answer);
            }
        }
    }

    /// What is in the way of a lock.
    pub(crate) fn lock_in_the_way(&self, lock: KernelLock, reply: ReplyLock) {
        let Some(wish) = lock.wish() else {
            return reply.error(Errno::EINVAL);
        };
        let (fs, of) = (self.file_system.clone(), (lock.kind(), lock.owner));
        let asked = (lock.range(), wish == LockWish::Exclusive);
        let work = async move { fs.lock_in_the_way(lock.handle, of, asked).await };
        self.serve("getlk", work, move |outcome| match outcome {
            Ok(Some(LockedBy {
                range,
                exclusive,
                pid,
            })) => {
                let of = if exclusive { WRITE_LOCK } else { READ_LOCK };
                // 0: it is on no machine that shares this one's numbers.
                reply.locked(range.start, range.end.min(LAST_BYTE), of, pid.unwrap_or(0));
            }
            Ok(None) => reply.locked(0, 0, UNLOCK, 0),
            Err(error) => reply.error(error),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_interrupt_is_found_whether_it_is_read_before_or_after_its_request() {
        let interrupts = Arc::new(Interrupts::default());
        interrupts.interrupt(RequestId(7));
        let (entered, _came) = interrupts.enter(RequestId(7));
        assert!(interrupts.table().waiting.is_empty() && interrupts.table().early.is_empty());
        drop(entered);
        let (entered, _comes) = interrupts.enter(RequestId(9));
        assert_eq!(interrupts.table().waiting.len(), 1);
        interrupts.interrupt(RequestId(9));
        assert!(interrupts.table().waiting.is_empty() && interrupts.table().early.is_empty());
        drop(entered);
        // Its request was answered, or does not wait.
        for number in 0..3000 {
            interrupts.interrupt(RequestId(number));
        }
        assert_eq!(interrupts.table().early.len(), EARLY_MAX);
    }

    #[test]
    fn ranges_to_the_end_have_no_end() {
        let lock = |range, flock| KernelLock::new(HandleId(1), 1, range, WRITE_LOCK, 1, flock);
        assert_eq!(lock((0, LAST_BYTE), false).range(), LockRange::WHOLE);
        assert_eq!(lock((0, 0), true).range(), LockRange::WHOLE);
        let some = lock((3, 9), false).range();
        assert_eq!((some.start, some.end), (3, 9));
    }
}
