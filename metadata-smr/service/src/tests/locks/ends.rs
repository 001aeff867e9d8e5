//! What goes by itself: the locks of a mount that ends, and turns that are not taken.

use super::*;

fn unmount(world: &mut TestService, caller: &Caller) {
    let operation = Operation::UnmountRealm { realm: REALM };
    world.run(caller, &operation).unwrap();
}

/// One session has locks of many files, another waits for one of them.
fn many_locks() -> (TestService, [Caller; 3], InodeId, LogPosition) {
    let (mut world, callers, file) = shared();
    let [one, other, _] = &callers;
    let mut directory = InodeId::ROOT;
    for _ in 0..300 {
        directory = world.mkdir(one, directory, "d");
        locked(&mut world, one, whole(directory, SHARED));
        locked(&mut world, one, bytes(directory, 0, 4, EXCLUSIVE));
    }
    for at in 0..200 {
        locked(&mut world, one, bytes(file, 2 * at, 2 * at, EXCLUSIVE));
    }
    let wish = waiting(bytes(file, 0, 9, SHARED));
    assert_eq!(blocked(&mut world, other, wish), (1, false));
    pass(&mut world, 1);
    let (position, _) = news(&mut world, other, LogPosition(0));
    (world, callers, file, position)
}

#[test]
fn the_locks_of_a_mount_end_with_it_at_once_and_go_by_ticks() {
    type End = fn(&mut TestService, &[Caller; 3]);
    let ends: [End; 3] = [
        |world, [one, ..]| unmount(world, one),
        |world, [one, ..]| world.close(one),
        |world, [one, _, third]| {
            let fence = Takeover::Of(one.session);
            unmount(world, third);
            world.run(third, &mount(fence, MountMode::Shared)).unwrap();
        },
    ];
    for end in ends {
        let (mut world, callers, file, _) = many_locks();
        let other = &callers[1];
        let before = world.rows(b"");
        end(&mut world, &callers);
        let changed = changed_rows(&before, &world.rows(b""));
        assert!(changed < 20, "{changed} rows");
        // No tick is needed.
        locked(&mut world, other, bytes(file, 0, 100, EXCLUSIVE));
        world.drain();
        assert_eq!(lock_rows(&world), [1, 1, 1, 1, 1]);
        locked(&mut world, other, waiting(bytes(file, 0, 9, SHARED)));
        locked(&mut world, other, bytes(file, 0, 100, UNLOCK));
        nothing_is_left(&world);
    }
}

#[test]
fn a_waiter_is_told_when_the_mount_that_is_in_its_way_ends() {
    let (mut world, [one, other, _], file, position) = many_locks();
    world.close(&one);
    world.drain();
    pass(&mut world, 1);
    assert_eq!(news(&mut world, &other, position).1, [file]);
    locked(&mut world, &other, waiting(bytes(file, 0, 9, SHARED)));
}

#[test]
fn a_new_mount_of_the_session_does_not_have_the_locks_of_the_old_one() {
    let (mut world, [one, other, _], file, _) = many_locks();
    unmount(&mut world, &one);
    share(&mut world, &one);
    locked(&mut world, &other, whole(file, EXCLUSIVE));
    locked(&mut world, &other, bytes(file, 0, 100, EXCLUSIVE));
    // Of the new mount, at a place that the old one had.
    locked(&mut world, &one, bytes(file, 300, 300, EXCLUSIVE));
    world.drain();
    assert_eq!(
        blocked(&mut world, &other, bytes(file, 300, 300, SHARED)),
        (1, false)
    );
    assert_eq!(world.rows(b"K/").len(), 3);
    locked(&mut world, &one, bytes(file, 300, 300, UNLOCK));
    world.close(&other);
    world.drain();
    nothing_is_left(&world);
}

#[test]
fn a_mount_keeps_its_locks_when_its_mode_changes() {
    let mut world = TestService::new();
    let (one, other) = (world.open(OWNER), world.open(OWNER));
    let mut ask = |caller: &Caller, mode| world.run(caller, &mount(Takeover::Refused, mode));
    ask(&one, MountMode::Alone).unwrap();
    ask(&other, MountMode::Alone).unwrap();
    let file = world.create(&one, InodeId::ROOT, "f");
    locked(&mut world, &one, whole(file, EXCLUSIVE));
    share(&mut world, &one);
    share(&mut world, &other);
    assert_eq!(blocked(&mut world, &other, whole(file, SHARED)), (1, false));
}

#[test]
fn a_mount_that_had_no_locks_queues_nothing() {
    let (mut world, [one, other], file) = shared();
    locked(&mut world, &one, whole(file, EXCLUSIVE));
    locked(&mut world, &one, whole(file, UNLOCK));
    world.close(&one);
    unmount(&mut world, &other);
    assert_eq!(world.rows(b"T/"), []);
}

#[test]
fn a_turn_that_is_not_taken_in_time_is_over_by_the_lease_clock() {
    for by_request in [true, false] {
        let (mut world, [a, b, c], file) = shared();
        let (read, write) = (whole(file, SHARED), whole(file, EXCLUSIVE));
        locked(&mut world, &a, write);
        blocked(&mut world, &b, waiting(write));
        blocked(&mut world, &c, waiting(read));
        pass(&mut world, 10);
        locked(&mut world, &a, whole(file, UNLOCK));
        pass(&mut world, 1);
        let (position, _) = news(&mut world, &c, LogPosition(0));
        // An outage does not count.
        world.wait(3600);
        if by_request {
            assert_eq!(blocked(&mut world, &c, waiting(read)), (2, true));
            world.wait(1);
            locked(&mut world, &c, waiting(read));
        } else {
            world.drain();
            assert_eq!(world.rows(b"KW/").len(), 2);
            pass(&mut world, 2);
            assert_eq!(world.rows(b"KW/").len(), 1, "without any request");
            assert_eq!(news(&mut world, &c, position).1, [file]);
            locked(&mut world, &c, waiting(read));
        }
        // The one that was late has to wait now, and is not forgotten.
        assert_eq!(blocked(&mut world, &b, waiting(write)), (3, false));
        locked(&mut world, &c, whole(file, UNLOCK));
        locked(&mut world, &b, waiting(write));
        locked(&mut world, &b, whole(file, UNLOCK));
        nothing_is_left(&world);
    }
}

#[test]
fn a_late_waiter_that_asks_first_has_its_turn() {
    let (mut world, [a, b], file) = shared();
    locked(&mut world, &a, whole(file, EXCLUSIVE));
    blocked(&mut world, &b, waiting(whole(file, EXCLUSIVE)));
    locked(&mut world, &a, whole(file, UNLOCK));
    for _ in 0..5 {
        world.wait(1);
        world.context();
    }
    locked(&mut world, &b, waiting(whole(file, EXCLUSIVE)));
    locked(&mut world, &b, whole(file, UNLOCK));
    nothing_is_left(&world);
}

/// Its gateway cannot know that another session's request has left the queue.
#[test]
fn a_session_hears_of_a_turn_that_comes_by_its_own_operation_on_something_else() {
    let (mut world, [a, b, c], file) = shared();
    locked(&mut world, &a, whole(file, EXCLUSIVE));
    blocked(&mut world, &b, waiting(whole(file, EXCLUSIVE)));
    blocked(&mut world, &c, waiting(whole(file, SHARED)));
    locked(&mut world, &a, whole(file, UNLOCK));
    pass(&mut world, 1);
    let (position, _) = news(&mut world, &c, LogPosition(0));
    for _ in 0..3 {
        world.wait(1);
        world.context();
    }
    let second = LockRequest {
        owner: 2,
        ..waiting(whole(file, EXCLUSIVE))
    };
    assert_eq!(blocked(&mut world, &c, second), (3, true));
    world.tick();
    let (position, told) = news(&mut world, &c, position);
    assert_eq!(told, [file]);
    locked(&mut world, &c, waiting(whole(file, SHARED)));
    // What it gives up itself it knows of.
    locked(&mut world, &c, whole(file, UNLOCK));
    pass(&mut world, 1);
    assert_eq!(news(&mut world, &c, position).1, []);
    locked(&mut world, &c, second);
}
