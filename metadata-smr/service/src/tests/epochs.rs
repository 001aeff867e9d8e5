//! New key epochs: the right to begin one, their order, and the proof that one needs.

use super::harness::*;
use crate::error::Error;
use crate::identity::*;
use crate::limits::{MEMBERS_MAX, WRAPPED_KEY_BYTES_MAX};
use crate::operation::{BeginEpoch, Operation};
use crate::query::Question;
use crate::reply::{Done, QueryResult, SealedUnder};
use crate::row::*;
use quorumfs_bft::identity::{PublicKey, Signature, Time};
use quorumfs_bft::service::Caller;

fn member(number: u32, role: MemberRole) -> Member {
    Member {
        epoch: RealmEpoch(number),
        role,
        expires: None,
        wrapped: vec![number as u8; 80],
        signer: OWNER,
        signature: Signature([4; 64]),
    }
}

pub(super) fn members_only(number: u32) -> BeginEpoch {
    BeginEpoch {
        realm: RealmId::ROOT,
        number: RealmEpoch(number),
        epoch: Epoch {
            begun: Time(7),
            lock: Lock::Members,
            previous: vec![number as u8; 48],
            shares: None,
        },
        members: vec![
            (OWNER, member(number, MemberRole::Administer)),
            (ALICE, member(number, MemberRole::Write)),
        ],
    }
}

fn with_clouds(number: u32, allocation: AllocationId, confirmed: &[u8]) -> BeginEpoch {
    let mut begin = members_only(number);
    begin.epoch.lock = Lock::MembersAndClouds;
    begin.epoch.shares = Some(Shares {
        object: ObjectId {
            allocation,
            counter: number,
        },
        threshold: 2,
        places: share_places(),
        confirmed: confirmed.iter().copied().map(CloudIndex).collect(),
    });
    begin
}

fn run(world: &mut TestService, caller: &Caller, begin: &BeginEpoch) -> Result<RealmEpoch, Error> {
    match world.run(caller, &Operation::BeginEpoch(begin.clone())) {
        Ok(Done::EpochBegun { number }) => Ok(number),
        Ok(other) => panic!("{other:?}"),
        Err(refusal) => Err(refusal.error),
    }
}

fn realm(
    world: &mut TestService,
    caller: &Caller,
) -> (Realm, Vec<(RealmEpoch, Epoch)>, Option<Member>) {
    match world.ask_as(caller, alice(), Question::Realm(RealmId::ROOT)) {
        Ok(QueryResult::Realm {
            realm,
            epochs,
            member,
            ..
        }) => (realm, epochs, member),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_epoch_replaces_the_wrappings_and_is_shown_with_the_ones_before() {
    let mut world = TestService::new();
    let owner = world.open(OWNER);
    let allocation = world.allocate(&owner, 8);
    let begin = with_clouds(1, allocation, &[0, 1, 3]);
    assert_eq!(run(&mut world, &owner, &begin), Ok(RealmEpoch(1)));
    let (row, epochs, mine) = realm(&mut world, &owner);
    assert_eq!(row.epoch, RealmEpoch(1));
    assert_eq!(epochs.len(), 2);
    assert_eq!(epochs[1], (RealmEpoch(1), begin.epoch.clone()));
    assert_eq!(mine, Some(member(1, MemberRole::Administer)));
    let before = Question::Epochs {
        realm: RealmId::ROOT,
        before: RealmEpoch(1),
        limit: 9,
    };
    let Ok(QueryResult::Epochs { epochs: older }) = world.ask(&owner, before) else {
        panic!("no epochs");
    };
    assert_eq!(older, epochs[..1]);
    assert_eq!(run(&mut world, &owner, &members_only(2)), Ok(RealmEpoch(2)));
}

#[test]
fn an_omitted_member_is_removed_and_administrators_cannot_be_omitted() {
    let mut world = TestService::new();
    let (owner, alice) = (world.open(OWNER), world.open(ALICE));
    let mut begin = members_only(1);
    begin.members.remove(0);
    assert_eq!(run(&mut world, &owner, &begin), Err(Error::BadEpoch));
    let mut begin = members_only(1);
    begin.members.remove(1);
    assert_eq!(run(&mut world, &owner, &begin), Ok(RealmEpoch(1)));
    assert_eq!(realm(&mut world, &alice).2, None);
    let members = world.ask(&owner, Question::Members(RealmId::ROOT));
    let alone = vec![(OWNER, member(1, MemberRole::Administer))];
    assert_eq!(members, Ok(QueryResult::Members(alone)));
    assert_eq!(run(&mut world, &owner, &members_only(2)), Ok(RealmEpoch(2)));
    assert_eq!(
        realm(&mut world, &alice).2,
        Some(member(2, MemberRole::Write))
    );
}

#[test]
fn a_repeated_request_succeeds_and_any_other_learns_the_epoch() {
    let mut world = TestService::new();
    let (owner, other) = (world.open(OWNER), world.open(OWNER));
    let allocation = world.allocate(&owner, 8);
    let begin = with_clouds(1, allocation, &[0, 1, 2]);
    assert_eq!(run(&mut world, &owner, &begin), Ok(RealmEpoch(1)));
    let before = world.rows(b"");
    assert_eq!(run(&mut world, &owner, &begin), Ok(RealmEpoch(1)));
    assert_eq!(changed_rows(&before, &world.rows(b"")), 0);
    let wrong = Err(Error::WrongEpoch {
        current: RealmEpoch(1),
    });
    // Another session's race, other members, another number, a skipped number.
    let racing = world.allocate(&other, 8);
    let begin_too = with_clouds(1, racing, &[0, 1, 2]);
    assert_eq!(run(&mut world, &other, &begin_too), wrong);
    let mut fewer = begin.clone();
    fewer.members.pop();
    for begin in [fewer, members_only(1), members_only(0), members_only(3)] {
        assert_eq!(run(&mut world, &owner, &begin), wrong);
    }
    assert_eq!(run(&mut world, &owner, &members_only(2)), Ok(RealmEpoch(2)));
    let wrong = Err(Error::WrongEpoch {
        current: RealmEpoch(2),
    });
    assert_eq!(run(&mut world, &owner, &begin), wrong, "long past");
}

#[test]
fn only_an_administrator_begins_an_epoch() {
    let mut world = TestService::new();
    let alice = world.open(ALICE);
    let refused = run(&mut world, &alice, &members_only(1));
    assert_eq!(refused, Err(Error::NoRight));
}

#[test]
fn fewer_than_n_minus_f_confirmations_do_not_begin_an_epoch() {
    let mut world = TestService::new();
    let owner = world.open(OWNER);
    let allocation = world.allocate(&owner, 8);
    let few = Err(Error::TooFewConfirmed {
        confirmed: 2,
        wanted: 3,
    });
    let begin = with_clouds(1, allocation, &[0, 3]);
    assert_eq!(run(&mut world, &owner, &begin), few);
    // The same cloud does not count twice, and one that does not exist not at all.
    for confirmed in [&[0, 0, 1][..], &[0, 2, 1], &[1, 2, 4]] {
        let begin = with_clouds(1, allocation, confirmed);
        assert_eq!(run(&mut world, &owner, &begin), Err(Error::BadEpoch));
    }
}

#[test]
fn an_epoch_has_to_fit_its_lock_and_its_bounds() {
    type Change = fn(&mut BeginEpoch);
    let mut world = TestService::new();
    let owner = world.open(OWNER);
    let allocation = world.allocate(&owner, 8);
    let wrong: [Change; 13] = [
        |it| it.epoch.lock = Lock::Members,
        |it| it.epoch.shares = None,
        |it| it.epoch.shares.as_mut().unwrap().threshold = 1,
        |it| it.epoch.shares.as_mut().unwrap().places.truncate(3),
        |it| it.epoch.previous.clear(),
        |it| it.epoch.previous = vec![0; WRAPPED_KEY_BYTES_MAX + 1],
        |it| it.members[1].1.wrapped = vec![0; WRAPPED_KEY_BYTES_MAX + 1],
        |it| it.members[1].1.epoch = RealmEpoch(0),
        |it| it.members[1] = it.members[0].clone(),
        |it| it.members[1].0 = PublicKey([99; 32]),
        |it| it.members[0].1.role = MemberRole::Write,
        |it| it.members[1].1.role = MemberRole::Administer,
        |it| it.members[1].1.expires = Some(Time(u64::MAX)),
    ];
    for (at, change) in wrong.into_iter().enumerate() {
        let mut begin = with_clouds(1, allocation, &[0, 1, 2]);
        change(&mut begin);
        let refused = run(&mut world, &owner, &begin);
        assert_eq!(refused, Err(Error::BadEpoch), "{at}");
    }
    let mut begin = members_only(1);
    begin.members = vec![begin.members[0].clone(); MEMBERS_MAX + 1];
    let refused = run(&mut world, &owner, &begin);
    assert!(matches!(refused, Err(Error::TooMany { .. })), "{refused:?}");
    let begin = with_clouds(1, AllocationId(77), &[0, 1, 2]);
    let refused = run(&mut world, &owner, &begin);
    assert!(matches!(refused, Err(Error::ObjectNotOwned(_))));
    assert_eq!(realm(&mut world, &owner).0.epoch, RealmEpoch(0));
}

#[test]
fn slices_are_counted_by_the_epoch_that_they_are_sealed_under() {
    let mut world = TestService::new();
    let owner = world.open(OWNER);
    let inode = world.create(&owner, InodeId::ROOT, "file");
    let allocation = world.allocate(&owner, 64);
    let runs: Vec<(u64, u32)> = (0..5).map(|i| (i * 20, 10)).collect();
    let mut step = commit(inode, allocation, 0, &runs);
    assert_eq!(run(&mut world, &owner, &members_only(1)), Ok(RealmEpoch(1)));
    for slice in &mut step.slices[..2] {
        slice.keys = vec![SliceKey::Derived {
            realm: RealmId::ROOT,
            epoch: RealmEpoch(1),
            salt: SliceSalt::default(),
        }];
    }
    let plain: Vec<u64> = step.slices.iter().map(|it| u64::from(it.length)).collect();
    let who = crate::attributes::Credentials::root();
    let step = crate::operation::Step::Commit(step);
    world.step(&owner, &who, step).unwrap();
    let mut counted = std::collections::BTreeMap::new();
    let (mut after, mut pages) = (None, 0);
    loop {
        let question = Question::SlicesByEpoch { after, limit: 2 };
        let Ok(QueryResult::SlicesByEpoch { epochs, next }) = world.ask(&owner, question) else {
            panic!("no count");
        };
        pages += 1;
        for SealedUnder {
            epoch,
            slices,
            bytes,
        } in epochs
        {
            let sum: &mut (u64, u64) = counted.entry(epoch).or_default();
            *sum = (sum.0 + slices, sum.1 + bytes);
        }
        after = next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(pages, 3);
    let under = |sums: &[u64]| (sums.len() as u64, sums.iter().sum::<u64>());
    let expected = [
        (RealmEpoch(0), under(&plain[2..])),
        (RealmEpoch(1), under(&plain[..2])),
    ];
    assert_eq!(counted.into_iter().collect::<Vec<_>>(), expected);
}
