//! Locks across mounts: who gets them, who waits, and what goes with a mount.

mod bounds;
mod ends;
mod format;
mod model;

pub(super) use format::fixtures;

use super::harness::*;
use super::versions::version_of;
use crate::attributes::Credentials;
use crate::error::Error;
use crate::identity::{InodeId, LogPosition, RealmId, Uid};
use crate::locks::{LockKind, LockRange};
use crate::operation::{
    EndLocks, LockRequest, LockWish, NewInode, Operation, StopWaiting, Takeover,
};
use crate::query::Question;
use crate::reply::{Done, LockBlocker, QueryResult};
use crate::row::MountMode;
use quorumfs_bft::service::Caller;

const REALM: RealmId = RealmId::ROOT;
const UNLOCK: LockWish = LockWish::Unlock;
const SHARED: LockWish = LockWish::Shared;
const EXCLUSIVE: LockWish = LockWish::Exclusive;

/// A request of an owner of each session, to be varied.
fn bytes(inode: InodeId, start: u64, end: u64, wish: LockWish) -> LockRequest {
    LockRequest {
        inode,
        kind: LockKind::Ranges,
        owner: 1,
        range: LockRange { start, end },
        wish,
        pid: 100,
        wait: false,
    }
}

fn whole(inode: InodeId, wish: LockWish) -> LockRequest {
    LockRequest {
        kind: LockKind::Whole,
        range: LockRange::WHOLE,
        ..bytes(inode, 0, 0, wish)
    }
}

fn waiting(request: LockRequest) -> LockRequest {
    LockRequest {
        wait: true,
        ..request
    }
}

/// Locks; returns what is in the way.
fn lock(
    world: &mut TestService,
    caller: &Caller,
    request: LockRequest,
) -> Result<Option<LockBlocker>, Error> {
    match world.run(caller, &Operation::Lock(request)) {
        Ok(Done::Locked) => Ok(None),
        Ok(Done::Blocked(blocker)) => Ok(Some(blocker)),
        Err(refusal) => Err(refusal.error),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn locked(world: &mut TestService, caller: &Caller, request: LockRequest) {
    assert_eq!(lock(world, caller, request), Ok(None));
}

/// Returns the session that is in the way, and whether it waits itself.
#[track_caller]
fn blocked(world: &mut TestService, caller: &Caller, request: LockRequest) -> (u64, bool) {
    let found = lock(world, caller, request).expect("no refusal");
    let blocker = found.expect("something is in the way");
    (blocker.session.0, blocker.waits)
}

fn share(world: &mut TestService, caller: &Caller) {
    world
        .run(caller, &mount(Takeover::Refused, MountMode::Shared))
        .unwrap();
}

/// Sessions that share the realm, and a file.
fn shared<const N: usize>() -> (TestService, [Caller; N], InodeId) {
    let mut world = TestService::new();
    let callers = [(); N].map(|()| world.open(OWNER));
    for caller in &callers {
        share(&mut world, caller);
    }
    let file = world.create(&callers[0], InodeId::ROOT, "f");
    (world, callers, file)
}

/// Any operation on locks, of a few owners and inodes.
pub(super) fn any_operation(chance: &mut dyn FnMut(u64) -> u64) -> Operation {
    let kind = [LockKind::Ranges, LockKind::Whole, LockKind::Appends][chance(3) as usize];
    let inode = InodeId(chance(4));
    if chance(6) == 0 {
        let owner = chance(2);
        return Operation::StopWaiting(StopWaiting { inode, kind, owner });
    }
    Operation::Lock(model::random_request(chance, (inode, kind)))
}

/// Lets the lease clock move, second by second.
fn pass(world: &mut TestService, seconds: u64) {
    for _ in 0..seconds {
        world.wait(1);
        world.drain();
    }
}

/// The position up to which a mount knows everything, and the inodes that it was told of.
fn news(
    world: &mut TestService,
    caller: &Caller,
    after: LogPosition,
) -> (LogPosition, Vec<InodeId>) {
    let question = Question::News {
        realm: REALM,
        after: Some(after),
    };
    match world.ask(caller, question) {
        Ok(QueryResult::News {
            position,
            inodes,
            gap: false,
            ..
        }) => (position, inodes),
        other => panic!("{other:?}"),
    }
}

fn lock_rows(world: &TestService) -> Vec<usize> {
    [&b"K/"[..], b"KW/", b"KT/", b"KO/", b"KN/"]
        .map(|tag| world.rows(tag).len())
        .to_vec()
}

#[track_caller]
fn nothing_is_left(world: &TestService) {
    assert_eq!(lock_rows(world), [0; 5]);
}

#[test]
fn a_lock_holds_across_sessions_and_a_refused_attempt_writes_nothing() {
    let (mut world, [one, other], file) = shared();
    locked(&mut world, &one, bytes(file, 2, 5, EXCLUSIVE));
    let root = world.root();
    for wish in [SHARED, EXCLUSIVE] {
        let found = lock(&mut world, &other, bytes(file, 5, 9, wish)).unwrap();
        let expected = LockBlocker {
            session: one.session,
            pid: 100,
            range: LockRange { start: 2, end: 5 },
            exclusive: true,
            waits: false,
        };
        assert_eq!(found, Some(expected));
    }
    assert_eq!(world.root(), root);
    locked(&mut world, &other, bytes(file, 6, 9, EXCLUSIVE));
    locked(&mut world, &other, whole(file, EXCLUSIVE));
    assert_eq!(blocked(&mut world, &one, whole(file, SHARED)), (2, false));
    for caller in [&one, &other] {
        locked(&mut world, caller, bytes(file, 0, u64::MAX, UNLOCK));
        locked(&mut world, caller, whole(file, UNLOCK));
    }
    nothing_is_left(&world);
}

#[test]
fn owners_of_one_session_exclude_each_other_and_no_session_touches_anothers() {
    let (mut world, [one, other], file) = shared();
    let second = LockRequest {
        owner: 2,
        ..bytes(file, 0, 9, EXCLUSIVE)
    };
    locked(&mut world, &one, bytes(file, 0, 9, EXCLUSIVE));
    assert_eq!(blocked(&mut world, &one, second), (1, false));
    // The same number of another session is another owner.
    locked(&mut world, &other, bytes(file, 0, 9, UNLOCK));
    assert_eq!(blocked(&mut world, &one, second), (1, false));
    locked(&mut world, &one, bytes(file, 0, 9, UNLOCK));
    locked(&mut world, &one, second);
}

#[test]
fn a_lock_is_handed_over_by_the_unlock_and_the_repeated_request() {
    let (mut world, [one, other], file) = shared();
    locked(&mut world, &one, bytes(file, 0, 9, EXCLUSIVE));
    let wish = waiting(bytes(file, 3, 3, SHARED));
    assert_eq!(blocked(&mut world, &other, wish), (1, false));
    let root = world.root();
    assert_eq!(blocked(&mut world, &other, wish), (1, false));
    assert_eq!(world.root(), root, "it waits already");
    pass(&mut world, 60);
    assert_eq!(world.rows(b"KW/").len(), 1, "idle, at no cost");
    let (position, _) = news(&mut world, &other, LogPosition(0));
    locked(&mut world, &one, bytes(file, 5, 9, UNLOCK));
    locked(&mut world, &one, bytes(file, 4, 4, SHARED));
    pass(&mut world, 1);
    let (position, told) = news(&mut world, &other, position);
    assert_eq!(told, [], "it still has to wait");
    locked(&mut world, &one, bytes(file, 3, 3, SHARED));
    let (_, told) = news(&mut world, &other, position);
    assert_eq!(told, [file]);
    locked(&mut world, &other, wish);
    assert_eq!(world.rows(b"KW/").len() + world.rows(b"KT/").len(), 0);
    pass(&mut world, 10);
    assert_eq!(
        blocked(&mut world, &one, bytes(file, 3, 3, EXCLUSIVE)),
        (2, false)
    );
}

#[test]
fn readers_wait_behind_a_writer_and_each_keeps_its_place() {
    let (mut world, [a, b, c, d], file) = shared();
    let (read, write) = (whole(file, SHARED), whole(file, EXCLUSIVE));
    locked(&mut world, &a, read);
    assert_eq!(blocked(&mut world, &b, waiting(write)), (1, false));
    assert_eq!(blocked(&mut world, &c, read), (2, true));
    assert_eq!(blocked(&mut world, &c, waiting(read)), (2, true));
    assert_eq!(blocked(&mut world, &d, waiting(write)), (1, false));
    locked(&mut world, &a, whole(file, UNLOCK));
    assert_eq!(blocked(&mut world, &d, waiting(write)), (2, true));
    assert_eq!(blocked(&mut world, &c, waiting(read)), (2, true));
    locked(&mut world, &b, waiting(write));
    locked(&mut world, &b, whole(file, UNLOCK));
    assert_eq!(blocked(&mut world, &d, waiting(write)), (3, true));
    locked(&mut world, &c, waiting(read));
    locked(&mut world, &c, whole(file, UNLOCK));
    locked(&mut world, &d, waiting(write));
    locked(&mut world, &d, whole(file, UNLOCK));
    nothing_is_left(&world);
}

#[test]
fn an_owner_changes_its_lock_though_others_wait_for_it() {
    let (mut world, [a, b], file) = shared();
    locked(&mut world, &a, bytes(file, 0, 9, SHARED));
    assert_eq!(
        blocked(&mut world, &b, waiting(bytes(file, 0, 9, EXCLUSIVE))),
        (1, false)
    );
    locked(&mut world, &a, bytes(file, 0, 4, EXCLUSIVE));
    locked(&mut world, &a, bytes(file, 0, 9, SHARED));
    locked(&mut world, &a, bytes(file, 0, 20, SHARED));
    locked(&mut world, &a, bytes(file, 0, 20, UNLOCK));
    assert_eq!(
        blocked(&mut world, &a, bytes(file, 0, 4, SHARED)),
        (2, true)
    );
    locked(&mut world, &b, waiting(bytes(file, 0, 9, EXCLUSIVE)));
}

/// `flock(2)`: a conversion lets go of the old lock first. `fcntl(2)` keeps it.
#[test]
fn two_readers_of_a_whole_file_can_both_become_writers() {
    let (mut world, [a, b], file) = shared();
    for caller in [&a, &b] {
        locked(&mut world, caller, whole(file, SHARED));
        locked(&mut world, caller, bytes(file, 0, 0, SHARED));
    }
    let write = whole(file, EXCLUSIVE);
    let root = world.root();
    assert_eq!(blocked(&mut world, &a, write), (2, false));
    assert_eq!(world.root(), root, "an attempt keeps the lock");
    assert_eq!(blocked(&mut world, &a, waiting(write)), (2, false));
    locked(&mut world, &b, waiting(write));
    assert_eq!(blocked(&mut world, &a, waiting(write)), (2, false));
    locked(&mut world, &b, whole(file, UNLOCK));
    locked(&mut world, &a, waiting(write));
    let write = bytes(file, 0, 0, EXCLUSIVE);
    assert_eq!(blocked(&mut world, &a, waiting(write)), (2, false));
    assert_eq!(blocked(&mut world, &b, write), (1, false));
}

#[test]
fn an_interrupted_process_leaves_the_queue_and_others_are_told() {
    let (mut world, [a, b, c], file) = shared();
    locked(&mut world, &a, bytes(file, 0, 9, SHARED));
    blocked(&mut world, &b, waiting(bytes(file, 0, 9, EXCLUSIVE)));
    assert_eq!(
        blocked(&mut world, &c, waiting(bytes(file, 0, 9, SHARED))),
        (2, true)
    );
    let stop = StopWaiting {
        inode: file,
        kind: LockKind::Ranges,
        owner: 1,
    };
    let (position, _) = news(&mut world, &c, LogPosition(0));
    for _ in 0..2 {
        let done = world.run(&b, &Operation::StopWaiting(stop));
        assert_eq!(done, Ok(Done::StoppedWaiting));
    }
    pass(&mut world, 1);
    assert_eq!(news(&mut world, &c, position).1, [file]);
    locked(&mut world, &c, waiting(bytes(file, 0, 9, SHARED)));
}

#[test]
fn the_owner_of_a_file_ends_its_locks_and_their_mounts_are_told() {
    let (mut world, [a, b, c], file) = shared();
    let command = world.open(OWNER);
    let end = |uid, session| {
        Operation::EndLocks(EndLocks {
            credentials: Credentials {
                uid: Uid(uid),
                ..Credentials::root()
            },
            inode: file,
            kind: LockKind::Ranges,
            session,
        })
    };
    for caller in [&a, &b] {
        locked(&mut world, caller, bytes(file, 0, 9, SHARED));
    }
    blocked(&mut world, &c, waiting(bytes(file, 0, 9, EXCLUSIVE)));
    let stranger = world.run(&command, &end(1234, None));
    assert_eq!(stranger.unwrap_err().error, Error::NotPermitted);
    let positions = [&a, &b, &c].map(|caller| news(&mut world, caller, LogPosition(0)).0);
    let done = world.run(&command, &end(0, Some(a.session)));
    assert_eq!(done, Ok(Done::LocksEnded { locks: 1 }));
    pass(&mut world, 1);
    for (caller, position) in [&a, &b, &c].into_iter().zip(positions) {
        assert_eq!(news(&mut world, caller, position).1, [file]);
    }
    assert_eq!(
        blocked(&mut world, &c, waiting(bytes(file, 0, 9, EXCLUSIVE))),
        (2, false)
    );
    let done = world.run(&command, &end(0, None));
    assert_eq!(done, Ok(Done::LocksEnded { locks: 1 }));
    locked(&mut world, &c, waiting(bytes(file, 0, 9, EXCLUSIVE)));
    // One that has lost its lock may unlock it all the same.
    locked(&mut world, &a, bytes(file, 0, 9, UNLOCK));
    locked(&mut world, &c, bytes(file, 0, 9, UNLOCK));
    nothing_is_left(&world);
}

#[test]
fn news_after_a_lock_tell_of_everything_from_before_it() {
    let (mut world, [a, b, _], file) = shared();
    let (position, _) = news(&mut world, &b, LogPosition(0));
    // The first one rings the bell, and the others come too soon after it.
    for name in ["one", "two", "three"] {
        world.create(&a, InodeId::ROOT, name);
    }
    locked(&mut world, &a, whole(file, EXCLUSIVE));
    locked(&mut world, &a, whole(file, UNLOCK));
    world.create(&a, InodeId::ROOT, "four");
    locked(&mut world, &b, whole(file, EXCLUSIVE));
    let (after, told) = news(&mut world, &b, position);
    assert_eq!(
        (told.first(), after.0),
        (Some(&InodeId::ROOT), position.0 + 4)
    );
}

#[test]
fn what_makes_no_sense_is_refused() {
    let (mut world, [one, other], file) = shared();
    let command = world.open(OWNER);
    let mut refused = |caller: &Caller, request| lock(&mut world, caller, request).unwrap_err();
    assert_eq!(refused(&one, bytes(file, 5, 4, SHARED)), Error::Invalid);
    assert_eq!(refused(&one, bytes(file, 5, 4, UNLOCK)), Error::Invalid);
    let part = LockRequest {
        kind: LockKind::Whole,
        ..bytes(file, 0, 4, SHARED)
    };
    assert_eq!(refused(&one, part), Error::Invalid);
    let gone = InodeId(999);
    for wish in [SHARED, EXCLUSIVE] {
        assert_eq!(refused(&one, whole(gone, wish)), Error::Stale(gone));
    }
    for wish in [UNLOCK, SHARED] {
        assert_eq!(refused(&command, whole(file, wish)), Error::NotMounted);
        assert_eq!(refused(&command, whole(gone, wish)), Error::NotMounted);
    }
    let stop = StopWaiting {
        inode: file,
        kind: LockKind::Whole,
        owner: 1,
    };
    let stopped = world.run(&command, &Operation::StopWaiting(stop));
    assert_eq!(stopped.unwrap_err().error, Error::NotMounted);
    locked(&mut world, &one, whole(gone, UNLOCK));
    let stop = StopWaiting {
        inode: gone,
        ..stop
    };
    world.run(&one, &Operation::StopWaiting(stop)).unwrap();
    nothing_is_left(&world);
    // Everything that has a number can be locked, as on Linux.
    let directory = world.mkdir(&one, InodeId::ROOT, "d");
    let fifo = world.make(&one, InodeId::ROOT, "p", NewInode::Fifo);
    for inode in [directory, fifo, InodeId::ROOT] {
        locked(&mut world, &one, whole(inode, EXCLUSIVE));
        assert_eq!(
            blocked(&mut world, &other, whole(inode, SHARED)),
            (1, false)
        );
    }
}

#[test]
fn a_lock_of_an_inode_that_goes_can_be_unlocked() {
    let (mut world, [one, other], file) = shared();
    locked(&mut world, &one, bytes(file, 0, 9, EXCLUSIVE));
    blocked(&mut world, &other, waiting(bytes(file, 0, 9, SHARED)));
    let root = crate::attributes::Credentials::root();
    let unlink = crate::operation::Step::Unlink(removal(InodeId::ROOT, "f", false));
    world.step(&one, &root, unlink).unwrap();
    // It lies in the grave first, where it is as good as open.
    assert_eq!(
        blocked(&mut world, &other, bytes(file, 0, 9, SHARED)),
        (1, false)
    );
    pass(&mut world, 62);
    assert_eq!(world.attributes(&one, file), None);
    locked(&mut world, &one, bytes(file, 0, 9, UNLOCK));
    let wish = waiting(bytes(file, 0, 9, SHARED));
    assert_eq!(lock(&mut world, &other, wish), Err(Error::Stale(file)));
    pass(&mut world, 5);
    nothing_is_left(&world);
}

#[test]
fn questions_say_who_is_in_the_way_and_list_all_locks_in_pages() {
    let (mut world, [one, other], file) = shared();
    let ask = |world: &mut TestService, caller: &Caller, exclusive| {
        let question = Question::Lock {
            inode: file,
            kind: LockKind::Ranges,
            owner: 1,
            range: LockRange { start: 0, end: 9 },
            exclusive,
        };
        match world.ask(caller, question) {
            Ok(QueryResult::Lock(found)) => found.map(|it| (it.session.0, it.waits)),
            other => panic!("{other:?}"),
        }
    };
    for at in [0, 3, 6] {
        locked(&mut world, &one, bytes(file, at, at, SHARED));
    }
    locked(&mut world, &other, whole(file, EXCLUSIVE));
    assert_eq!(ask(&mut world, &other, true), Some((1, false)));
    assert_eq!(ask(&mut world, &other, false), None);
    assert_eq!(ask(&mut world, &one, true), None);
    let writer = LockRequest {
        owner: 2,
        ..waiting(bytes(file, 3, 9, EXCLUSIVE))
    };
    blocked(&mut world, &other, writer);
    assert_eq!(ask(&mut world, &other, false), Some((2, true)));
    let mut listed = Vec::new();
    let mut after = None;
    loop {
        let question = Question::Locks {
            realm: REALM,
            after,
            limit: 1,
        };
        let Ok(QueryResult::Locks { locks, next }) = world.ask(&one, question) else {
            panic!()
        };
        assert_eq!(locks.len(), 1);
        listed.extend(locks.iter().map(|it| {
            let (owner, start) = (it.lock.owner, it.lock.range.start);
            (owner.session.0, it.kind, start, it.waiters)
        }));
        after = next;
        if after.is_none() {
            break;
        }
    }
    let ranges = LockKind::Ranges;
    let expected = [
        (1, ranges, 0, 0),
        (1, ranges, 3, 1),
        (1, ranges, 6, 1),
        (2, LockKind::Whole, 0, 0),
    ];
    assert_eq!(listed, expected);
    let unknown = Question::Locks {
        realm: RealmId(9),
        after: None,
        limit: 9,
    };
    assert_eq!(world.ask(&one, unknown.clone()), Err(Error::NoRealm));
    assert_eq!(version_of(&world, &one, unknown), world.sequence);
    let empty = Question::Lock {
        inode: file,
        kind: LockKind::Ranges,
        owner: 1,
        range: LockRange { start: 1, end: 0 },
        exclusive: true,
    };
    assert_eq!(world.ask(&one, empty), Err(Error::Invalid));
}
