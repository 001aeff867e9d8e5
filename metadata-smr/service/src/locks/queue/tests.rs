//! The order among owners that wait.

use super::*;
use crate::locks::table::{LockGrant, LockRange, apply};
use proptest::prelude::*;
use quorumfs_bft::identity::SessionId;

fn lock(owner: u64, start: u64, end: u64, exclusive: bool) -> FileLock {
    FileLock {
        owner: LockOwner {
            session: SessionId(owner),
            number: 0,
        },
        range: LockRange { start, end },
        exclusive,
        pid: 0,
    }
}

fn waits_for(held: &[FileLock], waiting: &[FileLock], wish: FileLock) -> Option<(u64, bool)> {
    let found = LockQueue::new(held, waiting).in_the_way(waiting.len(), &wish);
    found.map(|found| (found.lock.owner.session.0, found.waits))
}

#[test]
fn readers_wait_behind_a_writer_that_waits() {
    let held = [lock(1, 0, 9, false)];
    let waiting = [lock(2, 0, 9, true)];
    let reader = lock(3, 4, 4, false);
    assert_eq!(waits_for(&held, &[], reader), None);
    assert_eq!(waits_for(&held, &waiting, reader), Some((2, true)));
    let elsewhere = lock(3, 10, 10, false);
    assert_eq!(waits_for(&held, &waiting, elsewhere), None);
}

#[test]
fn an_owner_does_not_wait_for_a_request_that_waits_for_it() {
    let held = [lock(1, 0, 3, false)];
    let waiting = [lock(2, 0, 9, true)];
    for wish in [
        lock(1, 0, 3, true),
        lock(1, 2, 2, true),
        lock(1, 0, 9, false),
        lock(1, 7, 8, true),
    ] {
        assert_eq!(waits_for(&held, &waiting, wish), None, "{wish:?}");
    }
    // Another reader's lock is in its way all the same.
    let held = [lock(1, 0, 3, false), lock(3, 0, 3, false)];
    let wish = lock(1, 0, 3, true);
    assert_eq!(waits_for(&held, &waiting, wish), Some((3, false)));
}

#[test]
fn nor_for_one_that_is_stuck_behind_another() {
    let held = [lock(1, 0, 0, true)];
    // The second waits behind the first, which waits for 1.
    let waiting = [lock(2, 0, 3, true), lock(3, 3, 5, true)];
    assert_eq!(waits_for(&held, &waiting, lock(1, 5, 5, true)), None);
    // By a lock: 3 waits for 4, which waits for 1.
    let held = [lock(1, 0, 0, true), lock(4, 3, 3, true)];
    let waiting = [lock(3, 3, 5, true), lock(4, 0, 0, true)];
    assert_eq!(waits_for(&held, &waiting, lock(1, 5, 5, true)), None);
    // One that holds nothing waits for both.
    let wish = lock(5, 5, 5, true);
    assert_eq!(waits_for(&held, &waiting, wish), Some((3, true)));
}

/// The owners that an owner's requests wait for: by locks, and by places in the queue.
fn edges(held: &[FileLock], waiting: &[FileLock]) -> Vec<(LockOwner, LockOwner, bool)> {
    let queue = LockQueue::new(held, waiting);
    let mut edges = Vec::new();
    for (index, wish) in waiting.iter().enumerate() {
        let by_lock = held.iter().filter(|it| it.conflicts(wish));
        edges.extend(by_lock.map(|it| (wish.owner, it.owner, false)));
        let stuck = queue.stuck_behind(wish.owner);
        let before = waiting.iter().enumerate().take(index);
        let by_place = before.filter(|(at, it)| it.conflicts(wish) && !stuck.contains(*at));
        edges.extend(by_place.map(|(_, it)| (wish.owner, it.owner, true)));
    }
    edges
}

/// Whether there is a way along the edges from one owner to another.
fn leads(edges: &[(LockOwner, LockOwner, bool)], from: LockOwner, to: LockOwner) -> bool {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(at) = next.pop() {
        if at == to {
            return true;
        }
        if seen.insert(at) {
            next.extend(edges.iter().filter(|it| it.0 == at).map(|it| it.1));
        }
    }
    false
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Each owner has one request at most, as a process has one thread here.
    #[test]
    fn the_order_alone_is_never_a_deadlock(
        holds in proptest::collection::vec((0..6_u64, 0..6_u64, 0..3_u64, any::<bool>()), 0..12),
        wishes in proptest::collection::vec((0..6_u64, 0..4_u64, any::<bool>()), 6),
        order in any::<u64>(),
    ) {
        let mut held = Vec::new();
        for (owner, start, more, exclusive) in holds {
            let it = lock(owner, start, start + more, exclusive);
            if conflict(&held, it.owner, it.range, exclusive).is_none() {
                let grant = LockGrant { exclusive, pid: 0 };
                held = apply(&held, it.owner, it.range, Some(grant));
            }
        }
        let mut waiting: Vec<FileLock> = (0..)
            .zip(wishes)
            .map(|(owner, (start, more, exclusive))| lock(owner, start, start + more, exclusive))
            .collect();
        let places = waiting.len() as u64;
        waiting.rotate_left(usize::try_from(order % places).unwrap());
        if order % 2 == 0 {
            waiting.reverse();
        }
        let edges = edges(&held, &waiting);
        // A circle would consist of locks alone: no place in the queue is part of one.
        for (from, to, _) in edges.iter().filter(|it| it.2) {
            prop_assert!(!leads(&edges, *to, *from), "{:?} {:?}", held, waiting);
        }
    }
}
