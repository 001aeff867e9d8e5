//! A reader's mount: next to others, with shared locks, and without a trace.

use crate::attributes::Credentials;
use crate::error::Error;
use crate::identity::*;
use crate::locks::{LockKind, LockRange};
use crate::operation::{LockRequest, LockWish, Operation, Step, Takeover};
use crate::query::Question;
use crate::reply::{Claimed, Done, QueryResult, StepDone};
use crate::row::{MemberRole, MountMode};
use crate::tests::harness::{mount, removal};
use crate::tests::people::world::*;
use quorumfs_bft::service::Caller;

fn reading() -> (PeopleWorld, Caller) {
    let mut world = PeopleWorld::new();
    world.change(admitting(BOB, MemberRole::Read)).unwrap();
    let reader = world.service.open(id(BOB));
    (world, reader)
}

fn lock(inode: InodeId, kind: LockKind, wish: LockWish) -> Operation {
    Operation::Lock(LockRequest {
        inode,
        kind,
        owner: 1,
        range: LockRange::WHOLE,
        wish,
        pid: 2,
        wait: false,
    })
}

#[test]
fn a_reader_mounts_with_others_and_keeps_none_of_them_out() {
    let (mut world, reader) = reading();
    let owner = world.owner;
    let asked = |takeover, mode| mount(takeover, mode);
    for (takeover, mode) in [
        (Takeover::Refused, MountMode::Exclusive),
        (Takeover::Refused, MountMode::Alone),
        (Takeover::OfUnresponsive, MountMode::Alone),
        (Takeover::OfAny, MountMode::Shared),
        (Takeover::Of(owner.session), MountMode::Shared),
    ] {
        let refused = world.service.run(&reader, &asked(takeover, mode));
        assert_eq!(refused.unwrap_err().error, Error::NoRight);
    }
    // One that is alone is recalled, and an exclusive one stays.
    let shared = asked(Takeover::Refused, MountMode::Shared);
    let exclusive = asked(Takeover::Refused, MountMode::Exclusive);
    world.service.run(&owner, &exclusive).unwrap();
    let refused = world.service.run(&reader, &shared).unwrap_err().error;
    assert!(matches!(refused, Error::Mounted { .. }));
    let alone = asked(Takeover::Refused, MountMode::Alone);
    world.service.run(&owner, &alone).unwrap();
    let recalled = world.service.run(&reader, &shared);
    assert!(matches!(recalled, Ok(Done::Recalled(_))));
    world.service.run(&owner, &shared).unwrap();
    let mounted = world.service.run(&reader, &shared);
    assert!(matches!(
        mounted,
        Ok(Done::Mounted {
            mode: MountMode::Shared,
            ..
        })
    ));
    // Its own mount whose process has ended gives way, and no other.
    let again = asked(Takeover::Of(reader.session), MountMode::Shared);
    world.service.run(&reader, &again).unwrap();
    let unmounted = world.service.run(
        &reader,
        &Operation::UnmountRealm {
            realm: RealmId::ROOT,
        },
    );
    assert_eq!(unmounted, Ok(Done::Unmounted));
}

#[test]
fn a_readers_locks_are_shared_and_it_holds_what_it_has_open() {
    let (mut world, reader) = reading();
    let owner = world.owner;
    let file = world.service.create(&owner, InodeId::ROOT, "file");
    let shared = mount(Takeover::Refused, MountMode::Shared);
    for caller in [&owner, &reader] {
        world.service.run(caller, &shared).unwrap();
    }
    for kind in [LockKind::Ranges, LockKind::Whole] {
        let taken = world
            .service
            .run(&reader, &lock(file, kind, LockWish::Shared));
        assert_eq!(taken, Ok(Done::Locked));
        let refused = world
            .service
            .run(&reader, &lock(file, kind, LockWish::Exclusive));
        assert_eq!(refused.unwrap_err().error, Error::NoRight);
        let waits = world
            .service
            .run(&owner, &lock(file, kind, LockWish::Exclusive));
        assert!(matches!(waits, Ok(Done::Blocked(_))));
        let unlocked = world
            .service
            .run(&reader, &lock(file, kind, LockWish::Unlock));
        assert_eq!(unlocked, Ok(Done::Locked));
    }
    let appends = lock(file, LockKind::Appends, LockWish::Shared);
    let refused = world.service.run(&reader, &appends);
    assert_eq!(refused.unwrap_err().error, Error::NoRight);

    let root = Credentials::root();
    let removed = Step::Unlink(removal(InodeId::ROOT, "file", false));
    world.service.step(&owner, &root, removed).unwrap();
    let claim = Operation::Claim { inodes: vec![file] };
    let held = world.service.run(&reader, &claim);
    assert_eq!(held, Ok(Done::Claimed(vec![Claimed::Held])));
    let question = Question::Orphans {
        after: None,
        limit: 9,
    };
    let Ok(QueryResult::Orphans { inodes, .. }) = world.service.ask_as(&reader, bob(), question)
    else {
        panic!("no orphans");
    };
    assert_eq!(inodes, [file]);
    let released = world
        .service
        .step(&reader, &bob(), Step::Release { inode: file });
    assert_eq!(released, Ok(StepDone::Released));
}
