//! Processes of the mounts that lock files, as gateways ask on their behalf.
//!
//! A mount has a few owners, which lock a few inodes. A request that has to wait is asked again
//! when the news name its inode, and after many other calls in any case. No two requests of a run
//! that are pending at a time have the same bytes, so that each answer has its place in the order:
//! the process's number counts them.

use super::mounts::Mounts;
use super::{Call, Chance};
use crate::attributes::Credentials;
use crate::error::Error;
use crate::identity::{Gid, InodeId};
use crate::locks::{LockKind, LockRange};
use crate::operation::{EndLocks, LockRequest, LockWish, Operation, StopWaiting};
use crate::query::{Query, Question};
use crate::reply::{Answer, Done, QueryResult, Response, StepDone};
use crate::row::Job;
use crate::simulation::locks::naive::BYTES;
use quorumfs_bft::identity::SessionId;
use std::collections::{BTreeMap, BTreeSet};

/// Inodes that are locked at a time.
const INODES_MAX: usize = 2;
/// Owners of a mount.
const OWNERS: u64 = 2;
/// After so many calls of its client a request that waits is asked again.
const PATIENCE: u32 = 40;

/// A request that waits.
#[derive(Clone, Copy, Debug)]
struct BlockedRequest {
    request: LockRequest,
    /// Whether its inode was in the news since it was asked.
    told: bool,
    calls: u32,
}

/// The owners of one client.
#[derive(Clone, Debug, Default)]
struct Owners {
    waiting: Vec<BlockedRequest>,
    /// What was asked and is not answered.
    pending: BTreeSet<(InodeId, LockKind, u64)>,
    /// What may be held.
    held: BTreeSet<(InodeId, LockKind, u64)>,
}

/// The owners of all clients.
#[derive(Clone, Debug, Default)]
pub struct Locking {
    inodes: Vec<InodeId>,
    clients: BTreeMap<usize, Owners>,
    /// Sessions that were seen in answers.
    sessions: Vec<SessionId>,
    asked: u32,
}

impl Locking {
    /// A call about locks of this client, or `None`: something else is next.
    pub fn next(&mut self, client: usize, mounts: &Mounts, chance: Chance<'_>) -> Option<Call> {
        if !mounts.has(client) {
            self.clients.remove(&client);
            return None;
        }
        let number = u64::try_from(client % 4).unwrap_or(0);
        if chance(16) == 0 {
            return Some(read_clock(number));
        }
        let owners = self.clients.entry(client).or_default();
        for waiting in &mut owners.waiting {
            waiting.calls = waiting.calls.saturating_add(1);
        }
        if let Some(request) = owners.repeated(chance) {
            return Some(execute(Operation::Lock(request)));
        }
        match chance(3) {
            0 => self.call(client, chance),
            _ => None,
        }
    }

    fn call(&mut self, client: usize, chance: Chance<'_>) -> Option<Call> {
        let place = self.place(chance)?;
        let (inode, kind) = place;
        self.asked = self.asked.saturating_add(1);
        let pid = self.asked;
        let owners = self.clients.entry(client).or_default();
        let owner = chance(OWNERS);
        let request = LockRequest {
            inode,
            kind,
            owner,
            range: range(kind, chance),
            wish: match chance(5) {
                0..3 => LockWish::Exclusive,
                _ => LockWish::Shared,
            },
            pid,
            wait: chance(4) > 0,
        };
        let drawn = chance(16);
        match drawn {
            0 if chance(3) == 0 => {
                let session = super::pick(&self.sessions, chance).filter(|_| chance(2) == 0);
                return Some(execute(Operation::EndLocks(EndLocks {
                    credentials: Credentials {
                        groups: vec![Gid(pid)],
                        ..Credentials::root()
                    },
                    inode,
                    kind,
                    session,
                })));
            }
            0..3 => return Some(question(&request)),
            3 => {
                let waiting = owners.waiting.pop()?;
                let LockRequest {
                    inode, kind, owner, ..
                } = waiting.request;
                owners.waiting.retain(|it| {
                    let it = it.request;
                    (it.inode, it.kind, it.owner) != (inode, kind, owner)
                });
                let stop = StopWaiting { inode, kind, owner };
                return Some(execute(Operation::StopWaiting(stop)));
            }
            _ => {}
        }
        let held: Vec<_> = owners.held.iter().copied().collect();
        let unlocked = super::pick(&held, chance).filter(|_| drawn < 10);
        let request = match unlocked {
            Some((inode, kind, owner)) => LockRequest {
                inode,
                kind,
                owner,
                range: match chance(4) {
                    0 => range(kind, chance),
                    _ => LockRange::WHOLE,
                },
                wish: LockWish::Unlock,
                ..request
            },
            None => request,
        };
        let asked = (request.inode, request.kind, request.owner);
        owners
            .pending
            .insert(asked)
            .then(|| execute(Operation::Lock(request)))
    }

    /// Few of them, so that owners meet.
    fn place(&self, chance: Chance<'_>) -> Option<(InodeId, LockKind)> {
        let kind = match chance(8) {
            0..4 => LockKind::Ranges,
            4..7 => LockKind::Whole,
            _ => LockKind::Appends,
        };
        Some((super::pick(&self.inodes, chance)?, kind))
    }

    /// Learns from an answer; `None`: it was lost.
    pub fn learn(&mut self, client: usize, call: &[u8], answer: Option<&[u8]>) {
        match Operation::from_bytes(call) {
            Ok(Operation::Lock(request)) => {
                let answer = answer.and_then(|answer| Response::from_bytes(answer).ok());
                self.answered(client, &request, answer);
            }
            Ok(_) => {
                let answer = answer.and_then(|answer| Response::from_bytes(answer).ok());
                if let Some(Response(Ok(Done::Compound(steps)))) = answer {
                    self.learn_created(&steps);
                }
            }
            Err(_) => {
                let answer = answer.and_then(|answer| Answer::from_bytes(answer).ok());
                if let Some(Answer(Ok(QueryResult::News { gap, inodes, .. }))) = answer {
                    let owners = self.clients.entry(client).or_default();
                    for waiting in &mut owners.waiting {
                        waiting.told |= gap || inodes.contains(&waiting.request.inode);
                    }
                }
            }
        }
    }

    fn learn_created(&mut self, steps: &[StepDone]) {
        for step in steps {
            if let StepDone::Created { inode, .. } = step
                && self.inodes.len() < INODES_MAX
                && !self.inodes.contains(&inode.inode)
            {
                self.inodes.push(inode.inode);
            }
        }
    }

    fn answered(&mut self, client: usize, request: &LockRequest, answer: Option<Response>) {
        let asked = (request.inode, request.kind, request.owner);
        let owners = self.clients.entry(client).or_default();
        owners.pending.remove(&asked);
        owners.waiting.retain(|it| it.request != *request);
        match answer {
            Some(Response(Ok(Done::Blocked(blocker)))) => {
                if !self.sessions.contains(&blocker.session) {
                    self.sessions.push(blocker.session);
                }
                if request.wait {
                    owners.waiting.push(BlockedRequest {
                        request: *request,
                        told: false,
                        calls: 0,
                    });
                }
            }
            Some(Response(Ok(Done::Locked))) => {
                match (request.wish, request.range) {
                    (LockWish::Unlock, LockRange::WHOLE) => owners.held.remove(&asked),
                    (LockWish::Unlock, _) => false,
                    _ => owners.held.insert(asked),
                };
                if request.wish != LockWish::Unlock {
                    owners.repeat_own(request.inode);
                }
            }
            Some(Response(Err(refusal))) => {
                if let Error::Stale(inode) = refusal.error {
                    self.inodes.retain(|it| *it != inode);
                }
            }
            _ => {}
        }
        if request.wish == LockWish::Unlock {
            owners.repeat_own(request.inode);
        }
    }
}

impl Owners {
    /// A mount that gives something up repeats its own requests without being told.
    fn repeat_own(&mut self, inode: InodeId) {
        for waiting in &mut self.waiting {
            waiting.told |= waiting.request.inode == inode;
        }
    }

    /// A request to ask again.
    fn repeated(&mut self, chance: Chance<'_>) -> Option<LockRequest> {
        let pending = &mut self.pending;
        let waiting = self.waiting.iter_mut().find(|it| {
            let LockRequest {
                inode, kind, owner, ..
            } = it.request;
            (it.told || it.calls > PATIENCE) && !pending.contains(&(inode, kind, owner))
        })?;
        if chance(8) == 0 {
            return None;
        }
        (waiting.told, waiting.calls) = (false, 0);
        let request = waiting.request;
        pending.insert((request.inode, request.kind, request.owner));
        Some(request)
    }
}

fn execute(operation: Operation) -> Call {
    Call::Execute(operation.to_bytes())
}

/// The answer shows the agreed time. Each client has a job of its own for that.
fn read_clock(number: u64) -> Call {
    let job = match number {
        0 => Job::Compaction,
        1 => Job::Sweep,
        2 => Job::Backup,
        _ => Job::Drain,
    };
    execute(Operation::TakeJob { job, seconds: 1 })
}

fn range(kind: LockKind, chance: Chance<'_>) -> LockRange {
    let (one, other) = (chance(BYTES), chance(BYTES));
    match kind {
        LockKind::Ranges if chance(4) > 0 => LockRange {
            start: one.min(other),
            end: one.max(other),
        },
        _ => LockRange::WHOLE,
    }
}

fn question(request: &LockRequest) -> Call {
    let query = Query {
        credentials: Credentials::root(),
        question: Question::Lock {
            inode: request.inode,
            kind: request.kind,
            owner: request.owner,
            range: request.range,
            exclusive: request.wish == LockWish::Exclusive,
        },
    };
    Call::Query(query.to_bytes())
}
