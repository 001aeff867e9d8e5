//! Owners of objects, the right to vouch for them, and the recorded faults of clouds.

use super::harness::*;
use crate::attributes::{Credentials, Mode};
use crate::error::Error;
use crate::identity::{CloudIndex, InodeId, ObjectId, PrincipalNumber, ShardIndex};
use crate::limits::{EVIDENCE_PER_CLOUD, TESTIFY_FINDINGS_MAX};
use crate::operation::{Create, Finding, NewInode, Operation, PlacedShard, Step};
use crate::placement::Receipt;
use crate::query::Question;
use crate::reply::{Done, QueryResult};
use crate::row::{Evidence, FaultKind, Object, Verdict};
use crate::simulation::place;
use quorumfs_bft::service::Caller;

const CLOUD: CloudIndex = CloudIndex(2);

/// A file of the owner that every user may write.
fn shared_file(world: &mut TestService, owner: &Caller) -> InodeId {
    let create = Step::Create(Create {
        place: place(InodeId::ROOT, "f"),
        kind: NewInode::File,
        mode: Mode(0o666),
        umask: Mode(0),
        exclusive: true,
        number: None,
    });
    world.step(owner, &Credentials::root(), create).unwrap();
    let found = world.ask(owner, Question::Lookup(place(InodeId::ROOT, "f")));
    match found {
        Ok(QueryResult::Entry { inode, .. }) => inode.inode,
        other => panic!("{other:?}"),
    }
}

/// An object that `caller` creates.
fn written(world: &mut TestService, caller: &Caller, who: &Credentials, file: InodeId) -> ObjectId {
    let allocation = world.allocate(caller, 4);
    let write = commit(file, allocation, 0, &[(0, 100)]);
    let object = write.objects[0].id;
    world.step(caller, who, Step::Commit(write)).unwrap();
    object
}

fn row(world: &mut TestService, caller: &Caller, object: ObjectId) -> Object {
    match world.ask(caller, Question::Object(object)) {
        Ok(QueryResult::Object(row)) => row,
        other => panic!("{other:?}"),
    }
}

fn vouch(world: &mut TestService, caller: &Caller, object: ObjectId) -> Result<Done, Error> {
    let operation = Operation::ConfirmPlaced {
        shards: vec![],
        checked: vec![object],
    };
    world
        .run(caller, &operation)
        .map_err(|refusal| refusal.error)
}

fn finding(object: ObjectId, shard: u8) -> Finding {
    Finding {
        object,
        shard: ShardIndex(shard),
        generation: 0,
        attempt: 0,
        fault: FaultKind::WrongBytes,
        found: Some(Receipt::Crc32c([9; 4])),
        receipt: None,
    }
}

fn testify(world: &mut TestService, caller: &Caller, findings: Vec<Finding>) -> Result<u32, Error> {
    let operation = Operation::Testify {
        cloud: CLOUD,
        findings,
    };
    match world.run(caller, &operation) {
        Ok(Done::Testified { findings }) => Ok(findings),
        Ok(other) => panic!("{other:?}"),
        Err(refusal) => Err(refusal.error),
    }
}

fn evidence(world: &mut TestService, caller: &Caller) -> (u64, Vec<Evidence>) {
    match world.ask(caller, Question::Evidence(CLOUD)) {
        Ok(QueryResult::Evidence { total, kept }) => (total, kept),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_object_says_whose_it_is_after_its_session_has_ended() {
    let mut world = TestService::new();
    let owner = world.open(OWNER);
    let file = shared_file(&mut world, &owner);
    let user = world.open(ALICE);
    let object = written(&mut world, &user, &alice(), file);
    world.close(&user);
    let number = row(&mut world, &owner, object).principal;
    let found = world.ask(&owner, Question::Principal(number));
    let Ok(QueryResult::Principal(found)) = found else {
        panic!("{found:?}")
    };
    assert_eq!(found.principal, ALICE);
    assert!(!found.label.is_empty());
    let unknown = world.ask(&owner, Question::Principal(PrincipalNumber(99)));
    assert_eq!(unknown, Err(Error::NotFound));
}

#[test]
fn a_principal_cannot_vouch_for_its_own_objects_nor_without_the_right() {
    let mut world = TestService::new();
    let owner = world.open(OWNER);
    let file = shared_file(&mut world, &owner);
    let user = world.open(ALICE);
    let own = written(&mut world, &owner, &Credentials::root(), file);
    let other = written(&mut world, &user, &alice(), file);
    let again = world.open(OWNER);
    assert_eq!(vouch(&mut world, &again, own), Err(Error::NoRight));
    assert_eq!(vouch(&mut world, &user, own), Err(Error::NoRight));
    assert_eq!(vouch(&mut world, &user, other), Err(Error::NoRight));
    for object in [own, other] {
        assert!(!row(&mut world, &owner, object).checked);
    }
    vouch(&mut world, &owner, other).unwrap();
    assert!(row(&mut world, &owner, other).checked);
    let gone = ObjectId {
        counter: 77,
        ..other
    };
    vouch(&mut world, &owner, gone).unwrap();
}

#[test]
fn the_first_receipt_of_an_attempt_stays() {
    let mut world = TestService::new();
    let owner = world.open(OWNER);
    let file = shared_file(&mut world, &owner);
    let object = written(&mut world, &owner, &Credentials::root(), file);
    let placed = |attempt, crc| PlacedShard {
        object,
        shard: ShardIndex(3),
        cloud: CloudIndex(3),
        generation: 0,
        attempt,
        receipt: Some(Receipt::Crc32c([crc; 4])),
    };
    for crc in [1, 2] {
        let confirm = Operation::ConfirmPlaced {
            shards: vec![placed(0, crc)],
            checked: vec![],
        };
        world.run(&owner, &confirm).unwrap();
        let shard = row(&mut world, &owner, object).shards[3];
        assert_eq!(shard.receipt, Some(Receipt::Crc32c([1; 4])));
    }
    let replace = Operation::ReplacePlacement {
        shard: placed(1, 3),
        acknowledged: true,
    };
    world.run(&owner, &replace).unwrap();
    let shard = row(&mut world, &owner, object).shards[3];
    assert_eq!(shard.receipt, Some(Receipt::Crc32c([3; 4])));
}

#[test]
fn findings_are_checked_against_the_row_and_recorded_once() {
    let mut world = TestService::new();
    let owner = world.open(OWNER);
    let file = shared_file(&mut world, &owner);
    let user = world.open(ALICE);
    let object = written(&mut world, &user, &alice(), file);
    let found = finding(object, 2);
    let refused = testify(&mut world, &user, vec![found]);
    assert_eq!(refused, Err(Error::NoRight));
    // It has a receipt that the row does not have, and nothing else is known.
    let claimed = Finding {
        receipt: Some(Receipt::Crc32c([8; 4])),
        ..found
    };
    let unknown = finding(
        ObjectId {
            counter: 77,
            ..object
        },
        2,
    );
    assert_eq!(
        testify(&mut world, &owner, vec![claimed, unknown, claimed]),
        Ok(1)
    );
    assert_eq!(testify(&mut world, &owner, vec![found]), Ok(0));
    let (total, kept) = evidence(&mut world, &owner);
    let row = row(&mut world, &owner, object);
    let [one] = kept[..] else { panic!("{kept:?}") };
    assert_eq!((total, one.digest), (1, row.shards[2].digest));
    assert_eq!((one.writer, one.committed), (row.principal, row.committed));
    assert_ne!(one.witness, one.writer);
    assert_eq!(one.verdict(), Verdict::Cloud);
    let nowhere = Operation::Testify {
        cloud: CloudIndex(30),
        findings: vec![],
    };
    assert_eq!(
        world.run(&owner, &nowhere).unwrap_err().error,
        Error::Invalid
    );
}

#[test]
fn the_oldest_evidence_gives_way_and_is_still_counted() {
    let mut world = TestService::new();
    let owner = world.open(OWNER);
    let file = shared_file(&mut world, &owner);
    let object = written(&mut world, &owner, &Credentials::root(), file);
    let all: Vec<Finding> = (0..=255_u8)
        .flat_map(|attempt| [(attempt, 2), (attempt, 3)])
        .take(usize::from(EVIDENCE_PER_CLOUD) + 10)
        .map(|(attempt, shard)| Finding {
            generation: 0,
            attempt,
            ..finding(object, shard)
        })
        .collect();
    let too_many = all[..=TESTIFY_FINDINGS_MAX].to_vec();
    let limit = TESTIFY_FINDINGS_MAX as u32;
    assert_eq!(
        testify(&mut world, &owner, too_many),
        Err(Error::TooMany { limit })
    );
    for some in all.chunks(TESTIFY_FINDINGS_MAX) {
        let count = u32::try_from(some.len()).unwrap();
        assert_eq!(testify(&mut world, &owner, some.to_vec()), Ok(count));
    }
    let (total, kept) = evidence(&mut world, &owner);
    assert_eq!(total, all.len() as u64);
    let kept: Vec<_> = kept.iter().map(|it| (it.attempt, it.shard)).collect();
    let newest: Vec<_> = all[10..].iter().map(|it| (it.attempt, it.shard)).collect();
    assert_eq!(kept, newest);
}

#[test]
fn a_cloud_is_not_blamed_for_what_nothing_refers_to() {
    let mut world = TestService::new();
    let owner = world.open(OWNER);
    let file = shared_file(&mut world, &owner);
    let object = written(&mut world, &owner, &Credentials::root(), file);
    let found = testify(&mut world, &owner, vec![finding(object, 1)]);
    assert_eq!(found, Ok(1));
    let remove = Step::Unlink(removal(InodeId::ROOT, "f", false));
    world.step(&owner, &Credentials::root(), remove).unwrap();
    assert_eq!(row(&mut world, &owner, object).slices, 0);
    let found = testify(&mut world, &owner, vec![finding(object, 2)]);
    assert_eq!(found, Ok(0), "a collector may have deleted it");
}
