//! What clients make of the changes is what the servers have.

use super::world::*;
use crate::identity::*;
use crate::people::{People, PeopleError, PeopleStep};
use crate::row::*;
use proptest::prelude::*;
use quorumfs_bft::identity::Nanos;
use std::collections::BTreeMap;

/// A step that may or may not be possible.
fn step(world: &PeopleWorld, (kind, seed, role, end): (u8, u8, u8, u8)) -> PeopleStep {
    let seed = BOB + seed;
    let role = [MemberRole::Read, MemberRole::Write, MemberRole::Administer][usize::from(role)];
    let later = world
        .service
        .now()
        .plus(Nanos(u64::from(end) * 1_000_000_000));
    let expires = (end > 0).then_some(later);
    match kind {
        0 | 1 => {
            let mut statement = statement(seed, role);
            statement.expires = expires;
            PeopleStep::Admit(statement)
        }
        2 => granting(seed, role, expires),
        3 => dismissing(seed),
        _ => naming(u32::from(seed), ["", "family"][usize::from(end % 2)]),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn the_changes_amount_to_the_principals_that_the_servers_admit(
        draws in proptest::collection::vec((0_u8..5, 0_u8..3, 0_u8..3, 0_u8..4), 30),
        waiting in proptest::collection::vec(any::<bool>(), 30),
    ) {
        let mut world = PeopleWorld::new();
        let mut accepted = 0;
        for (draw, waits) in draws.into_iter().zip(waiting) {
            let next = step(&world, draw);
            accepted += u32::from(world.change(next).is_ok());
            if waits {
                world.service.wait(1);
                world.service.drain();
            }
        }
        let (_, people) = world.known();
        prop_assert_eq!(people.changes, accepted);
        world.service.drain();
        let now = world.service.now();
        let expected: BTreeMap<_, _> = people
            .now(now)
            .map(|it| (it.key, (it.label.clone(), it.rights.clone(), it.expires)))
            .collect();
        let mut found = BTreeMap::new();
        for (row_key, bytes) in world.service.rows(&key::principals()) {
            let row = Principal::from_bytes(&bytes).unwrap();
            let id = key::trailing_principal(&row_key).unwrap();
            prop_assert!(!world.service.rows(&key::member(RealmId::ROOT, &id)).is_empty());
            if row.stated.is_some() {
                found.insert(id, (row.label, row.rights, row.expires));
            }
        }
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn a_client_refuses_a_change_that_contradicts_those_before_it() {
    let world = PeopleWorld::new();
    let mut people = People::default();
    let change = |number, step| {
        let mut change = world.next(step);
        change.number = number;
        change
    };
    let bob = change(1, admitting(BOB, MemberRole::Write));
    let gap = change(2, admitting(BOB, MemberRole::Write));
    let not_next = |found, last| Err(PeopleError::NotNext { found, last });
    assert_eq!(people.apply(&gap), not_next(2, 0));
    assert_eq!(people.apply(&bob), Ok(()));
    assert_eq!(people.apply(&bob), not_next(1, 1), "replayed");
    let before = people.clone();
    assert_eq!(people.apply(&gap), Err(PeopleError::Known(id(BOB))));
    for step in [granting(EVE, MemberRole::Write, None), dismissing(EVE)] {
        let unknown = Err(PeopleError::Unknown(id(EVE)));
        assert_eq!(people.apply(&change(2, step)), unknown);
    }
    let mut unsound = statement(EVE, MemberRole::Write);
    unsound.label.clear();
    let unsound = people.apply(&change(2, PeopleStep::Admit(unsound)));
    assert!(matches!(unsound, Err(PeopleError::Unsound(_))));
    assert_eq!(people, before);
    assert_eq!(people.apply(&change(2, naming(50, "family"))), Ok(()));
    assert_eq!(people.groups[&Gid(50)], "family");
    assert_eq!(people.apply(&change(3, naming(50, ""))), Ok(()));
    assert!(people.groups.is_empty());
}
