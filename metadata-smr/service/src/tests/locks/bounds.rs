//! Full tables, full queues, and work that stays within its bounds.

use super::*;
use crate::identity::MountEpoch;
use crate::limits::{LOCK_WAITERS_MAX, LOCKED_INODES_MAX, LOCKS_MAX, MOUNTS_MAX};
use crate::row::key::MountPlace;
use crate::row::{LockedInodes, key};

/// Fills the table of a file with locks of single bytes.
fn full(world: &mut TestService, caller: &Caller, file: InodeId) {
    for at in 0..LOCKS_MAX as u64 {
        locked(world, caller, bytes(file, 4 * at, 4 * at + 2, EXCLUSIVE));
    }
}

#[test]
fn a_full_table_takes_no_more_and_can_be_emptied_at_once() {
    let (mut world, [one, other], file) = shared();
    full(&mut world, &one, file);
    let root = world.root();
    let far = 1 << 40;
    for request in [
        bytes(file, far, far, SHARED),
        waiting(bytes(file, far, far, SHARED)),
        bytes(file, 1, 1, SHARED),
        // What is left of the lock would be two.
        bytes(file, 1, 1, UNLOCK),
    ] {
        assert_eq!(lock(&mut world, &one, request), Err(Error::LimitReached));
    }
    assert_eq!(world.root(), root);
    locked(&mut world, &one, bytes(file, 0, 2, SHARED));
    locked(&mut world, &other, bytes(file, far, far, UNLOCK));
    locked(&mut world, &one, bytes(file, 0, 100, EXCLUSIVE));
    locked(&mut world, &one, bytes(file, far, far, SHARED));
    locked(&mut world, &one, bytes(file, 0, u64::MAX, UNLOCK));
    nothing_is_left(&world);
    full(&mut world, &one, file);
    locked(&mut world, &one, bytes(file, 0, u64::MAX, EXCLUSIVE));
    assert_eq!(world.rows(b"K/").len(), 1);
}

#[test]
fn a_full_table_of_ended_mounts_takes_more() {
    let (mut world, [one, other], file) = shared();
    for round in 0..3 {
        let caller = if round == 0 { one } else { world.open(OWNER) };
        if round > 0 {
            share(&mut world, &caller);
        }
        full(&mut world, &caller, file);
        assert!(world.rows(b"K/").len() <= LOCKS_MAX);
        world.close(&caller);
    }
    locked(&mut world, &other, bytes(file, 0, u64::MAX, EXCLUSIVE));
    world.drain();
    assert_eq!(lock_rows(&world), [1, 0, 0, 1, 1]);
}

#[test]
fn a_full_queue_takes_no_more_and_all_get_their_turn() {
    let (mut world, [one, other, third], file) = shared();
    locked(&mut world, &one, whole(file, EXCLUSIVE));
    let of = |owner: usize| LockRequest {
        owner: owner as u64,
        ..waiting(whole(file, SHARED))
    };
    for owner in 0..LOCK_WAITERS_MAX {
        assert_eq!(blocked(&mut world, &other, of(owner)), (1, false));
    }
    let one_more = lock(&mut world, &third, waiting(whole(file, SHARED)));
    assert_eq!(one_more, Err(Error::LimitReached));
    assert_eq!(blocked(&mut world, &other, of(7)), (1, false));
    locked(&mut world, &one, whole(file, UNLOCK));
    for owner in 0..LOCK_WAITERS_MAX / 2 {
        locked(&mut world, &other, of(owner));
    }
    // The others never come; the ticks are within their bounds.
    pass(&mut world, 60);
    assert_eq!(world.rows(b"KW/").len(), 0);
    world.close(&other);
    world.drain();
    nothing_is_left(&world);
}

#[test]
fn a_full_queue_of_ended_mounts_takes_more() {
    let (mut world, [one, other], file) = shared();
    locked(&mut world, &one, whole(file, EXCLUSIVE));
    for _ in 0..3 {
        let caller = world.open(OWNER);
        share(&mut world, &caller);
        for owner in 0..LOCK_WAITERS_MAX as u64 {
            let wish = waiting(whole(file, SHARED));
            blocked(&mut world, &caller, LockRequest { owner, ..wish });
        }
        assert!(world.rows(b"KW/").len() <= LOCK_WAITERS_MAX);
        world.close(&caller);
    }
    blocked(&mut world, &other, waiting(whole(file, SHARED)));
    world.drain();
    assert_eq!(lock_rows(&world), [1, 1, 0, 2, 2]);
}

#[test]
fn a_mount_locks_a_bounded_number_of_inodes() {
    let (mut world, [one, other], file) = shared();
    let second = world.create(&one, InodeId::ROOT, "g");
    locked(&mut world, &one, whole(file, EXCLUSIVE));
    let by = MountPlace {
        session: one.session,
        realm: REALM,
        mount: MountEpoch(1),
    };
    let row_key = key::locked_inodes(by);
    let count = LOCKED_INODES_MAX;
    assert_eq!(world.rows(&row_key).len(), 1);
    world.put(&row_key, &LockedInodes { count });
    locked(&mut world, &one, whole(file, SHARED));
    for request in [
        whole(second, SHARED),
        waiting(whole(second, SHARED)),
        bytes(file, 0, 0, SHARED),
    ] {
        locked(
            &mut world,
            &other,
            LockRequest {
                wish: UNLOCK,
                ..request
            },
        );
        assert_eq!(lock(&mut world, &one, request), Err(Error::LimitReached));
    }
    locked(&mut world, &one, whole(file, UNLOCK));
    locked(&mut world, &one, whole(second, SHARED));
}

#[test]
fn all_mounts_can_be_fenced_at_once_with_their_locks() {
    let mut world = TestService::new();
    let mut file = None;
    for number in 0..MOUNTS_MAX as u64 {
        let caller = world.open(OWNER);
        for _ in 0..16 {
            world.allocate(&caller, 1);
        }
        share(&mut world, &caller);
        let file = *file.get_or_insert_with(|| world.create(&caller, InodeId::ROOT, "f"));
        locked(&mut world, &caller, bytes(file, number, number, EXCLUSIVE));
        let wish = waiting(bytes(file, 0, number, EXCLUSIVE));
        let _ = lock(&mut world, &caller, wish).unwrap();
    }
    let last = world.open(OWNER);
    let takeover = mount(Takeover::OfAny, MountMode::Exclusive);
    world.run(&last, &takeover).unwrap();
    locked(&mut world, &last, whole(file.unwrap(), EXCLUSIVE));
    locked(&mut world, &last, bytes(file.unwrap(), 0, 9, EXCLUSIVE));
    world.drain();
    assert_eq!(lock_rows(&world), [2, 0, 0, 2, 1]);
}
