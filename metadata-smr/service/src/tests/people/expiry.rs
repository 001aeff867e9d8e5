//! Principals whose time is over go by themselves, exactly then.

use super::coming::epoch_with;
use super::world::*;
use crate::Metadata;
use crate::error::Error;
use crate::identity::*;
use crate::limits::{MOUNTS_MAX, SESSION_ALLOCATIONS_MAX};
use crate::operation::{Operation, Takeover};
use crate::people::PeopleStep;
use crate::query::Question;
use crate::row::*;
use crate::tests::harness::mount;
use crate::tests::load::recovered;
use quorumfs_bft::identity::{Nanos, Time};
use quorumfs_bft::service::Service;
use quorumfs_bft::state::Area;

fn in_seconds(world: &PeopleWorld, seconds: u64) -> Option<Time> {
    Some(world.service.now().plus(Nanos(seconds * 1_000_000_000)))
}

fn admitting_until(seed: u8, role: MemberRole, expires: Option<Time>) -> PeopleStep {
    let mut statement = statement(seed, role);
    statement.expires = expires;
    PeopleStep::Admit(statement)
}

fn deadline(world: &PeopleWorld) -> Option<Time> {
    let view = world.service.space.view(Area::Service);
    Metadata.next_deadline(&view).unwrap()
}

#[test]
fn an_expired_principal_is_gone_as_if_it_were_dismissed() {
    let mut world = PeopleWorld::new();
    let expires = in_seconds(&world, 100);
    world
        .change(admitting_until(BOB, MemberRole::Administer, expires))
        .unwrap();
    assert_eq!(world.row(BOB).unwrap().expires, expires);
    let (mounted, other) = (world.service.open(id(BOB)), world.service.open(id(BOB)));
    let exclusive = mount(Takeover::Refused, MountMode::Exclusive);
    world.service.run(&mounted, &exclusive).unwrap();
    assert_eq!(deadline(&world), expires);
    world.service.wait(99);
    assert_eq!(world.service.drain(), 0);
    assert!(world.service.ask(&other, Question::WhoAmI).is_ok());
    world.service.wait(1);
    assert_eq!(world.service.drain(), 1);

    let allocate = Operation::Allocate { count: 1 };
    let refused = world.service.run(&other, &allocate).unwrap_err();
    assert_eq!(refused.error, Error::NoSession);
    let refused = world.service.run(&mounted, &allocate).unwrap_err();
    assert!(matches!(refused.error, Error::Fenced { .. }));
    for caller in [&mounted, &other] {
        assert_eq!(
            world.service.ask(caller, Question::WhoAmI),
            Err(Error::NoSession)
        );
    }
    assert_eq!(world.service.try_open(id(BOB)), None);
    assert_eq!(world.rows_of(BOB), [key::former(&id(BOB))]);
    let owner = world.owner;
    assert!(world.service.run(&owner, &exclusive).is_ok(), "it is free");
    // It needs no administrator any more in a key epoch.
    let begin = epoch_with(&world, &[]);
    world
        .service
        .run(&owner, &Operation::BeginEpoch(begin))
        .unwrap();
    for step in [dismissing(BOB), granting(BOB, MemberRole::Read, None)] {
        assert_eq!(world.change(step), Err(Error::NotFound));
    }
    world.change(admitting(BOB, MemberRole::Read)).unwrap();
    assert_eq!(deadline(&world), None);
    let (_, people) = world.known();
    assert_eq!(people.stated[&id(BOB)].rights, rights_of(MemberRole::Read));
}

#[test]
fn an_expiry_is_exact() {
    let mut world = PeopleWorld::new();
    world.change(admitting(BOB, MemberRole::Write)).unwrap();
    // The batch after the next one.
    let at = world.service.now().plus(Nanos(2 * world.service.pace));
    world
        .change(granting(BOB, MemberRole::Write, Some(at)))
        .unwrap();
    assert!(world.row(BOB).is_some());
    world.service.tick();
    assert_eq!(world.service.now(), at);
    assert_eq!(world.row(BOB), None);
    // An end that is now is none.
    world.change(admitting(BOB, MemberRole::Write)).unwrap();
    let next = world.service.now().plus(Nanos(world.service.pace));
    let refused = world.change(granting(BOB, MemberRole::Write, Some(next)));
    assert_eq!(refused, Err(Error::BadPeopleChange));
}

#[test]
fn another_end_takes_the_place_of_the_first_one() {
    let mut world = PeopleWorld::new();
    let (first, later) = (in_seconds(&world, 100), in_seconds(&world, 200));
    world
        .change(admitting_until(BOB, MemberRole::Write, first))
        .unwrap();
    world
        .change(granting(BOB, MemberRole::Write, later))
        .unwrap();
    assert_eq!(deadline(&world), later);
    world.service.wait(150);
    assert_eq!(world.service.drain(), 0);
    assert!(world.row(BOB).is_some());
    // The same end again, and none.
    world
        .change(granting(BOB, MemberRole::Write, later))
        .unwrap();
    assert_eq!(deadline(&world), later);
    world
        .change(granting(BOB, MemberRole::Write, None))
        .unwrap();
    assert_eq!(deadline(&world), None);
    world
        .change(granting(BOB, MemberRole::Write, later))
        .unwrap();
    world.change(dismissing(BOB)).unwrap();
    assert_eq!(deadline(&world), None);
}

#[test]
fn however_many_mounts_it_has_an_expiry_stays_within_a_ticks_bound() {
    let mut world = PeopleWorld::new();
    let expires = in_seconds(&world, 10_000);
    world
        .change(admitting_until(BOB, MemberRole::Write, expires))
        .unwrap();
    world
        .change(admitting_until(EVE, MemberRole::Read, expires))
        .unwrap();
    let shared = mount(Takeover::Refused, MountMode::Shared);
    let open = |world: &mut PeopleWorld, seed| {
        let caller = world.service.open(id(seed));
        world.service.run(&caller, &shared).unwrap();
        caller
    };
    for _ in 0..MOUNTS_MAX / 2 {
        let caller = open(&mut world, BOB);
        for _ in 0..SESSION_ALLOCATIONS_MAX {
            world.service.allocate(&caller, 8);
        }
        open(&mut world, EVE);
    }
    world.service.wait(10_000);
    world.service.tick();
    assert!(world.row(BOB).is_none() || world.row(EVE).is_none());
    let ticks = world.service.drain();
    assert!(ticks > 0, "all at once");
    assert_eq!(world.service.rows(&key::mounts(RealmId::ROOT)), []);
    assert_eq!(world.service.rows(b"NA/"), []);
    for seed in [BOB, EVE] {
        assert_eq!(world.rows_of(seed), [key::former(&id(seed))]);
    }
}

#[test]
fn a_key_that_is_admitted_again_before_its_mounts_are_fenced_has_none_of_them() {
    let mut world = PeopleWorld::new();
    let expires = in_seconds(&world, 10_000);
    world
        .change(admitting_until(BOB, MemberRole::Write, expires))
        .unwrap();
    let shared = mount(Takeover::Refused, MountMode::Shared);
    let mut callers = Vec::new();
    for _ in 0..MOUNTS_MAX {
        let caller = world.service.open(id(BOB));
        world.service.run(&caller, &shared).unwrap();
        for _ in 0..SESSION_ALLOCATIONS_MAX {
            world.service.allocate(&caller, 8);
        }
        callers.push(caller);
    }
    world.service.wait(10_000);
    world.service.tick();
    assert!(!world.service.rows(&key::mounts(RealmId::ROOT)).is_empty());
    let later = in_seconds(&world, 10_000);
    world
        .change(admitting_until(BOB, MemberRole::Write, later))
        .unwrap();
    assert_eq!(world.service.rows(&key::mounts(RealmId::ROOT)), []);
    world.service.drain();
    assert_eq!(world.row(BOB).unwrap().expires, later);
    assert_eq!(deadline(&world), later);
    let allocate = Operation::Allocate { count: 1 };
    for caller in callers {
        let refused = world.service.run(&caller, &allocate).unwrap_err();
        assert!(matches!(refused.error, Error::Fenced { .. }));
    }
}

#[test]
fn a_volume_that_is_recovered_has_its_expiries_again() {
    let genesis = crate::tests::load::genesis(0);
    let mut old = crate::tests::harness::TestService::of(&genesis);
    old.open(crate::tests::harness::OWNER);
    let expires = old.now().plus(Nanos(1_000_000_000_000));
    let row_key = key::principal(&crate::tests::harness::ALICE);
    let mut row = Principal::from_bytes(&old.rows(&row_key)[0].1).unwrap();
    row.expires = Some(expires);
    old.put(&row_key, &row);
    let at = key::expiry(expires, &crate::tests::harness::ALICE);
    old.put(&at, &DueExpiry);
    let mut world = recovered(&old, 1);
    assert_eq!(world.rows(&key::expiries()), old.rows(&key::expiries()));
    world.wait(1_000);
    world.drain();
    assert_eq!(world.rows(&row_key), []);
    assert_eq!(world.rows(&key::expiries()), []);
}
