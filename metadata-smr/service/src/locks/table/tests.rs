//! The table against a map of bytes.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const BYTES: u64 = 10;

fn owner(number: u64) -> LockOwner {
    LockOwner {
        session: SessionId(number / 2),
        number: number % 2,
    }
}

/// Which owners hold which bytes, and how.
type Bytes = BTreeMap<(LockOwner, u64), bool>;

fn bytes(locks: &[FileLock]) -> Bytes {
    let mut bytes = Bytes::new();
    for held in locks {
        for at in held.range.start..=held.range.end {
            let before = bytes.insert((held.owner, at), held.exclusive);
            assert_eq!(before, None, "two locks of an owner overlap: {locks:?}");
        }
    }
    bytes
}

fn is_in_the_way(held: &Bytes, by: LockOwner, range: LockRange, exclusive: bool) -> bool {
    let mut held = held.iter();
    held.any(|((other, at), mode)| {
        *other != by && (range.start..=range.end).contains(at) && (exclusive || *mode)
    })
}

/// Locks of an owner that touch and are of one mode are one.
fn is_merged(locks: &[FileLock]) -> bool {
    locks.iter().enumerate().all(|(index, one)| {
        locks.iter().skip(index + 1).all(|other| {
            one.owner != other.owner
                || one.exclusive != other.exclusive
                || !one.range.touches(other.range)
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn a_table_is_what_a_map_of_bytes_is(
        calls in proptest::collection::vec((0..4_u64, 0..BYTES, 0..BYTES, 0..3_u8), 1..60),
    ) {
        let mut locks: Vec<FileLock> = Vec::new();
        let mut expected = Bytes::new();
        for (by, one, other, wish) in calls {
            let (by, range) = (owner(by), LockRange { start: one.min(other), end: one.max(other) });
            let exclusive = wish == 2;
            let found = conflict(&locks, by, range, exclusive);
            prop_assert_eq!(found.is_some(), is_in_the_way(&expected, by, range, exclusive));
            if wish > 0 && found.is_some() {
                continue;
            }
            let pid = u32::try_from(by.number).unwrap();
            locks = apply(&locks, by, range, (wish > 0).then_some(LockGrant { exclusive, pid }));
            for at in range.start..=range.end {
                match wish {
                    0 => expected.remove(&(by, at)),
                    _ => expected.insert((by, at), exclusive),
                };
            }
            prop_assert_eq!(&bytes(&locks), &expected);
            prop_assert!(is_merged(&locks), "{:?}", locks);
            prop_assert!(locks.is_sorted_by_key(|held| (held.range.start, held.owner)));
        }
    }
}

#[test]
fn ranges_reach_to_the_last_byte() {
    let (one, other) = (owner(0), owner(1));
    let grant = Some(LockGrant {
        exclusive: true,
        pid: 7,
    });
    let locks = apply(&[], one, LockRange::WHOLE, grant);
    let last = LockRange {
        start: u64::MAX,
        end: u64::MAX,
    };
    assert!(conflict(&locks, other, last, false).is_some());
    let locks = apply(&locks, one, last, None);
    assert_eq!(locks[0].range.end, u64::MAX - 1);
    assert_eq!(conflict(&locks, other, last, true), None);
    let first = LockRange { start: 0, end: 0 };
    let locks = apply(&locks, one, first, None);
    assert_eq!(locks[0].range.start, 1);
    assert_eq!(locks.len(), 1);
    assert_eq!(apply(&locks, one, LockRange::WHOLE, None), []);
    let whole = apply(&locks, one, LockRange::WHOLE, grant);
    assert_eq!(whole[0].range, LockRange::WHOLE);
}

#[test]
fn the_process_of_a_lock_is_the_last_one_that_extended_it() {
    let by = owner(0);
    let range = |start, end| LockRange { start, end };
    let grant = |exclusive, pid| Some(LockGrant { exclusive, pid });
    let locks = apply(&[], by, range(0, 3), grant(false, 1));
    let locks = apply(&locks, by, range(4, 5), grant(false, 2));
    assert_eq!((locks.len(), locks[0].pid), (1, 2));
    let locks = apply(&locks, by, range(2, 2), grant(true, 3));
    let found: Vec<_> = locks.iter().map(|it| (it.range.start, it.pid)).collect();
    assert_eq!(found, [(0, 2), (2, 3), (3, 2)]);
}

#[test]
fn whole_locks_have_one_range_and_others_any_that_is_not_empty() {
    let range = |start, end| LockRange { start, end };
    for kind in [LockKind::Whole, LockKind::Appends] {
        assert!(kind.allows(LockRange::WHOLE));
        assert!(!kind.allows(range(0, 5)));
    }
    for number in 0..4 {
        let kind = LockKind::of_number(number);
        assert_eq!(kind.map(LockKind::number), (number < 3).then_some(number));
    }
    assert!(LockKind::Ranges.allows(range(5, 5)));
    assert!(!LockKind::Ranges.allows(range(5, 4)));
}
