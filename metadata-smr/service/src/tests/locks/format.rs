//! Rows, operations, questions and answers about locks, for the fixtures of the format.

use crate::attributes::Credentials;
use crate::identity::{InodeId, MountEpoch, RealmId};
use crate::locks::{FileLock, LockKind, LockOwner, LockRange};
use crate::operation::{EndLocks, LockRequest, LockWish, Operation, StopWaiting};
use crate::query::{Query, Question};
use crate::reply::{Answer, Done, ListedLock, LockBlocker, QueryResult, Response};
use crate::row::key::{LockPlace, MountPlace};
use crate::row::{
    DueTurn, HeldLock, LockTurn, LockWaiter, LockedInode, LockedInodes, Reap, Row, key,
};
use quorumfs_bft::identity::{SessionId, Time};

const INODE: InodeId = InodeId(258);
const RANGES: LockKind = LockKind::Ranges;
const WHOLE: LockKind = LockKind::Whole;
const BYTES: LockRange = LockRange {
    start: 16,
    end: 0x0102,
};
const PID: u32 = 0x0a0b;

fn rows(wish: FileLock, place: &LockPlace) -> Vec<(&'static str, Vec<u8>)> {
    let mount = MountEpoch(7);
    let by = MountPlace {
        session: SessionId(4),
        realm: RealmId(3),
        mount,
    };
    let held = HeldLock {
        mount,
        end: BYTES.end,
        exclusive: true,
        pid: PID,
    };
    let turn = LockTurn {
        deadline: Time(8),
        check: Time(9),
    };
    let waiter = |turn| LockWaiter { mount, wish, turn };
    let reap = Reap::Locks {
        session: SessionId(4),
        realm: RealmId(3),
        mount,
        since: Time(5),
    };
    vec![
        ("row-lock", held.to_bytes()),
        ("row-lock-waiter", waiter(None).to_bytes()),
        ("row-lock-waiter-turn", waiter(Some(turn)).to_bytes()),
        ("row-due-turn", DueTurn.to_bytes()),
        ("row-locked-inode", LockedInode.to_bytes()),
        ("row-locked-inodes", LockedInodes { count: 2 }.to_bytes()),
        ("row-reap-locks", reap.to_bytes()),
        ("key-lock", key::lock(place)),
        ("key-lock-waiter", key::lock_waiter(INODE, WHOLE, 5)),
        ("key-due-turn", key::due_turn(Time(9), INODE, RANGES, 5)),
        ("key-locked-inode", key::locked_inode(by, INODE, WHOLE)),
        ("key-locked-inodes", key::locked_inodes(by)),
    ]
}

pub(in crate::tests) fn fixtures() -> Vec<(&'static str, Vec<u8>)> {
    let owner = LockOwner {
        session: SessionId(4),
        number: 0x0506,
    };
    let lock = FileLock {
        owner,
        range: BYTES,
        exclusive: true,
        pid: PID,
    };
    let place = LockPlace {
        inode: INODE,
        kind: RANGES,
        start: BYTES.start,
        owner,
    };
    let request = LockRequest {
        inode: INODE,
        kind: RANGES,
        owner: owner.number,
        range: BYTES,
        wish: LockWish::Exclusive,
        pid: PID,
        wait: true,
    };
    let whole = LockRequest {
        kind: WHOLE,
        range: LockRange::WHOLE,
        wish: LockWish::Unlock,
        wait: false,
        ..request
    };
    let appends = LockRequest {
        kind: LockKind::Appends,
        owner: 0,
        range: LockRange::WHOLE,
        pid: 0,
        ..request
    };
    let stop = StopWaiting {
        inode: INODE,
        kind: WHOLE,
        owner: owner.number,
    };
    let end = EndLocks {
        credentials: Credentials::root(),
        inode: INODE,
        kind: RANGES,
        session: Some(owner.session),
    };
    let query = |question| {
        let credentials = Credentials::root();
        Query {
            credentials,
            question,
        }
        .to_bytes()
    };
    let asked = Question::Lock {
        inode: INODE,
        kind: RANGES,
        owner: owner.number,
        range: BYTES,
        exclusive: false,
    };
    let listed = Question::Locks {
        realm: RealmId(3),
        after: Some(place),
        limit: 64,
    };
    let blocker = LockBlocker {
        session: owner.session,
        pid: PID,
        range: BYTES,
        exclusive: true,
        waits: true,
    };
    let page = QueryResult::Locks {
        locks: vec![ListedLock {
            inode: INODE,
            kind: RANGES,
            lock,
            waiters: 2,
        }],
        next: Some(place),
    };
    let done = |done| Response(Ok(done)).to_bytes();
    let answer = |found| Answer(Ok(found)).to_bytes();
    let mut fixtures = rows(lock, &place);
    fixtures.extend([
        ("operation-lock", Operation::Lock(request).to_bytes()),
        ("operation-unlock-whole", Operation::Lock(whole).to_bytes()),
        (
            "operation-lock-appends",
            Operation::Lock(appends).to_bytes(),
        ),
        (
            "operation-stop-waiting",
            Operation::StopWaiting(stop).to_bytes(),
        ),
        ("operation-end-locks", Operation::EndLocks(end).to_bytes()),
        ("query-lock", query(asked)),
        ("query-locks", query(listed)),
        ("reply-locked", done(Done::Locked)),
        ("reply-blocked", done(Done::Blocked(blocker))),
        ("reply-stopped-waiting", done(Done::StoppedWaiting)),
        ("reply-locks-ended", done(Done::LocksEnded { locks: 2 })),
        ("answer-lock", answer(QueryResult::Lock(Some(blocker)))),
        ("answer-locks", answer(page)),
    ]);
    fixtures
}
