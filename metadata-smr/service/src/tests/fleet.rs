//! Clouds are added and replaced: by an administrator's signature alone, one change after the
//! other; shards move, and nothing of them but their places changes.

use super::harness::*;
use crate::attributes::Credentials;
use crate::error::Error;
use crate::fleet::{ChangeClouds, CloudChange, CloudState, CloudStep, Fleet, SignedCloudChange};
use crate::identity::*;
use crate::limits::{CLOUDS_MAX, MOVE_SHARDS_MAX};
use crate::operation::{BeginEpoch, Operation, PlacedShard, ShardMove, Step};
use crate::placement::MovedClaim;
use crate::query::{Query, Question};
use crate::reply::{Answer, Done, QueryResult, Response};
use crate::row::*;
use crate::simulation::{ordinary, principal, sign, unsigned_genesis};
use ed25519_zebra::{SigningKey, VerificationKey};
use quorumfs_bft::identity::{ClusterId, Digest, PublicKey, Signature, Time};
use quorumfs_bft::service::Caller;

const VOLUME: ClusterId = ClusterId([9; 16]);

fn key_of(seed: u8) -> SigningKey {
    SigningKey::from([seed; 32])
}

fn public(key: &SigningKey) -> PublicKey {
    PublicKey(VerificationKey::from(key).into())
}

/// A new cloud with a failure domain of its own.
fn new_cloud(index: u8) -> Cloud {
    Cloud {
        index: CloudIndex(index),
        kind: "local".to_owned(),
        failure_domain: format!("new domain {index}"),
        name: format!("new cloud {index}"),
    }
}

fn adding(number: u32, cloud: Cloud) -> CloudChange {
    let step = CloudStep::Add {
        cloud,
        secret: Digest([7; 32]),
        description: b"sealed".to_vec(),
    };
    numbered(number, step)
}

fn replacing(number: u32, old: u8, new: u8) -> CloudChange {
    let (old, new) = (CloudIndex(old), CloudIndex(new));
    numbered(number, CloudStep::Replace { old, new })
}

fn numbered(number: u32, step: CloudStep) -> CloudChange {
    CloudChange {
        volume: VOLUME,
        number,
        epoch: RealmEpoch(0),
        step,
    }
}

fn signed_by(key: &SigningKey, change: &CloudChange) -> ChangeClouds {
    let bytes = change.to_bytes();
    let signature = key.sign(&CloudChange::signed_bytes(&bytes));
    let secrets = match &change.step {
        CloudStep::Add { .. } => vec![(public(key), vec![5; 80])],
        CloudStep::Replace { .. } => Vec::new(),
    };
    ChangeClouds {
        signed: SignedCloudChange {
            change: bytes,
            signed: SignedBy {
                signer: public(key),
                signature: Signature(signature.into()),
            },
        },
        secrets,
    }
}

/// Rows, questions and answers, for the fixtures of the format.
pub(super) fn fixtures() -> Vec<(&'static str, Vec<u8>)> {
    let owner = key_of(1);
    let change = signed_by(&owner, &adding(1, new_cloud(4)));
    let fleet = Fleet {
        active: vec![CloudIndex(4), CloudIndex(1)],
        former: vec![CloudIndex(0), CloudIndex(2)],
        retired: vec![CloudIndex(2)],
        changes: 3,
        epoch: RealmEpoch(2),
    };
    let object = object(AllocationId(5), 6, 3).id;
    let drain = Drain {
        since: Time(4),
        after: Some(object),
        shards: 5,
        bytes: 6,
    };
    let mut moved = super::fixtures::object_row(&super::harness::object(AllocationId(5), 6, 3));
    moved.shards[0].move_to(CloudIndex(4), 1, MovedClaim::Awaited);
    let query = Query {
        credentials: Credentials::root(),
        question: Question::CloudChanges { after: 2 },
    };
    let answer = QueryResult::CloudChanges {
        changes: vec![change.signed.clone()],
        fleet: fleet.clone(),
        drain,
    };
    let done = |done| Response(Ok(done)).to_bytes();
    let moves = vec![moving(object, 0, (0, 0), 4)];
    let after = Some(object);
    vec![
        ("row-cloud-change", change.signed.to_bytes()),
        ("row-fleet", fleet.to_bytes()),
        ("row-drain", drain.to_bytes()),
        ("row-object-moved", moved.to_bytes()),
        ("key-cloud-change", key::cloud_change(258)),
        ("key-fleet", key::fleet()),
        ("key-drain", key::drain()),
        (
            "operation-change-clouds",
            Operation::ChangeClouds(change).to_bytes(),
        ),
        (
            "operation-replace-cloud",
            Operation::ChangeClouds(signed_by(&owner, &replacing(2, 0, 4))).to_bytes(),
        ),
        (
            "operation-move-shards",
            Operation::MoveShards { moves, after }.to_bytes(),
        ),
        (
            "operation-retire-cloud",
            Operation::RetireCloud {
                cloud: CloudIndex(3),
            }
            .to_bytes(),
        ),
        ("query-cloud-changes", query.to_bytes()),
        (
            "reply-clouds-changed",
            done(Done::CloudsChanged { number: 3 }),
        ),
        ("reply-shards-moved", done(Done::ShardsMoved { shards: 2 })),
        ("reply-cloud-retired", done(Done::CloudRetired)),
        ("answer-cloud-changes", Answer(Ok(answer)).to_bytes()),
    ]
}

/// A move of a shard from a cloud and attempt to another cloud's next attempt.
fn moving(object: ObjectId, shard: u8, (from, attempt): (u8, u8), to: u8) -> ShardMove {
    ShardMove {
        from: CloudIndex(from),
        from_attempt: attempt,
        to: PlacedShard {
            object,
            shard: ShardIndex(shard),
            cloud: CloudIndex(to),
            generation: 0,
            attempt: attempt + 1,
            receipt: None,
        },
        claim: MovedClaim::Acknowledged,
    }
}

struct FleetWorld {
    service: TestService,
    key: SigningKey,
    owner: Caller,
    allocation: AllocationId,
}

impl FleetWorld {
    fn new() -> Self {
        let key = key_of(1);
        let principals = vec![
            principal(public(&key), Rights::all()),
            principal(ALICE, ordinary(Uid(1000), Gid(100))),
        ];
        let genesis = unsigned_genesis(principals, (1, 1, 4)).unwrap();
        let mut service = TestService::of(&sign(&genesis));
        let owner = service.open(public(&key));
        let allocation = service.allocate(&owner, 1000);
        Self {
            service,
            key,
            owner,
            allocation,
        }
    }

    /// Orders a change, with the secret of a new cloud for the other principal too.
    fn order(&mut self, change: &ChangeClouds) -> Result<u32, Error> {
        let mut change = change.clone();
        if !change.secrets.is_empty() {
            change.secrets.push((ALICE, vec![5; 80]));
        }
        self.order_as_it_is(&change)
    }

    fn order_as_it_is(&mut self, change: &ChangeClouds) -> Result<u32, Error> {
        let operation = Operation::ChangeClouds(change.clone());
        match self.service.run(&self.owner, &operation) {
            Ok(Done::CloudsChanged { number }) => Ok(number),
            Ok(other) => panic!("{other:?}"),
            Err(refusal) => Err(refusal.error),
        }
    }

    fn change(&mut self, change: &CloudChange) -> Result<u32, Error> {
        let signed = signed_by(&self.key, change);
        self.order(&signed)
    }

    fn known(&mut self) -> (Vec<SignedCloudChange>, Fleet, Drain) {
        let question = Question::CloudChanges { after: 0 };
        match self.service.ask(&self.owner, question) {
            Ok(QueryResult::CloudChanges {
                changes,
                fleet,
                drain,
            }) => (changes, fleet, drain),
            other => panic!("{other:?}"),
        }
    }

    fn states(&mut self) -> Vec<CloudState> {
        let (_, fleet, _) = self.known();
        let count = self.service.rows(&key::clouds()).len();
        (0..count)
            .map(|index| fleet.state(CloudIndex(index as u8)))
            .collect()
    }

    /// Adds cloud 4, and lets it replace cloud 0.
    fn replaced() -> Self {
        let mut world = Self::new();
        world.change(&adding(1, new_cloud(4))).unwrap();
        world.change(&replacing(2, 0, 4)).unwrap();
        world
    }

    /// Commits a file with an object of its own, whose shards lie on these clouds.
    fn file_on(&mut self, counter: u32, clouds: [u8; 4]) -> Result<ObjectId, Error> {
        let name = format!("file {counter}");
        let inode = self.service.create(&self.owner, InodeId::ROOT, &name);
        let mut step = commit(inode, self.allocation, counter, &[(0, 10)]);
        for (shard, cloud) in step.objects[0].shards.iter_mut().zip(clouds) {
            shard.cloud = CloudIndex(cloud);
        }
        let id = step.objects[0].id;
        let root = Credentials::root();
        let done = self
            .service
            .steps(&self.owner, &root, vec![Step::Commit(step)]);
        done.map(|_| id)
    }

    fn row(&mut self, id: ObjectId) -> Object {
        match self.service.ask(&self.owner, Question::Object(id)) {
            Ok(QueryResult::Object(row)) => row,
            other => panic!("{other:?}"),
        }
    }

    fn move_shards(&mut self, moves: &[ShardMove], after: Option<ObjectId>) -> Result<u32, Error> {
        let moves = moves.to_vec();
        let operation = Operation::MoveShards { moves, after };
        match self.service.run(&self.owner, &operation) {
            Ok(Done::ShardsMoved { shards }) => Ok(shards),
            Ok(other) => panic!("{other:?}"),
            Err(refusal) => Err(refusal.error),
        }
    }

    fn retire(&mut self, cloud: u8) -> Result<(), Error> {
        let cloud = CloudIndex(cloud);
        let operation = Operation::RetireCloud { cloud };
        let done = self.service.run(&self.owner, &operation);
        match done {
            Ok(Done::CloudRetired) => Ok(()),
            Ok(other) => panic!("{other:?}"),
            Err(refusal) => Err(refusal.error),
        }
    }
}

#[test]
fn a_cloud_is_added_as_a_spare_and_takes_the_place_of_another() {
    use CloudState::{Active, Draining, Retired, Spare};
    let mut world = FleetWorld::new();
    assert_eq!(world.states(), [Active; 4]);
    assert_eq!(world.change(&adding(1, new_cloud(4))), Ok(1));
    assert_eq!(world.states(), [Active, Active, Active, Active, Spare]);
    let secrets = world.service.ask(&world.owner, Question::CloudSecrets);
    let Ok(QueryResult::CloudSecrets(secrets)) = secrets else {
        panic!("{secrets:?}");
    };
    assert_eq!(secrets[0].0, CloudIndex(4));
    assert_eq!(world.change(&replacing(2, 1, 4)), Ok(2));
    assert_eq!(world.states(), [Active, Draining, Active, Active, Active]);
    let (changes, fleet, _) = world.known();
    assert_eq!(changes.len(), 2);
    assert_eq!(fleet.active, [0, 4, 2, 3].map(CloudIndex));
    world.retire(1).unwrap();
    assert_eq!(world.states(), [Active, Retired, Active, Active, Active]);
    // And back again.
    assert_eq!(world.change(&replacing(3, 4, 1)), Ok(3));
    assert_eq!(world.states(), [Active, Active, Active, Active, Draining]);
}

#[test]
fn the_same_change_again_is_the_same_success_and_another_of_its_number_is_refused() {
    let mut world = FleetWorld::new();
    let first = signed_by(&world.key, &adding(1, new_cloud(4)));
    assert_eq!(world.order(&first), Ok(1));
    let before = world.service.rows(b"");
    assert_eq!(world.order(&first), Ok(1));
    assert_eq!(changed_rows(&before, &world.service.rows(b"")), 0);
    let other = adding(1, new_cloud(5));
    assert_eq!(world.change(&other), Err(Error::Changed));
    assert_eq!(world.change(&replacing(3, 0, 4)), Err(Error::Changed));
    assert_eq!(world.change(&replacing(2, 0, 4)), Ok(2));
}

#[test]
fn no_other_than_an_administrator_changes_the_clouds_and_only_in_its_own_name() {
    let mut world = FleetWorld::new();
    let before = world.service.rows(b"");
    let alice = world.service.open(ALICE);
    let right = signed_by(&world.key, &adding(1, new_cloud(4)));
    let by_alice = Operation::ChangeClouds(right.clone());
    let refused = world.service.run(&alice, &by_alice);
    assert_eq!(refused.unwrap_err().error, Error::NoRight);
    // A principal that was left out could not follow the clouds any more.
    assert_eq!(world.order_as_it_is(&right), Err(Error::Changed));
    let foreign = signed_by(&key_of(2), &adding(1, new_cloud(4)));
    assert_eq!(world.order(&foreign), Err(Error::BadCloudChange));
    let mut changed = right.clone();
    *changed.signed.change.last_mut().unwrap() ^= 1;
    assert_eq!(world.order(&changed), Err(Error::BadCloudChange));
    let mut elsewhere = adding(1, new_cloud(4));
    elsewhere.volume.0[0] ^= 1;
    assert_eq!(world.change(&elsewhere), Err(Error::BadCloudChange));
    let mut early = adding(1, new_cloud(4));
    early.epoch = RealmEpoch(1);
    let current = RealmEpoch(0);
    assert_eq!(world.change(&early), Err(Error::WrongEpoch { current }));
    let rights = Operation::RetireCloud {
        cloud: CloudIndex(0),
    };
    let moves = Operation::MoveShards {
        moves: Vec::new(),
        after: None,
    };
    for operation in [rights, moves] {
        let refused = world.service.run(&alice, &operation);
        assert_eq!(refused.unwrap_err().error, Error::NoRight);
    }
    world.service.close(&alice);
    let sessions = |rows: Vec<(Vec<u8>, Vec<u8>)>| {
        let other = |it: &(Vec<u8>, Vec<u8>)| !it.0.starts_with(b"N/") && !it.0.starts_with(b"P/");
        rows.into_iter().filter(other).collect::<Vec<_>>()
    };
    let after = sessions(world.service.rows(b""));
    assert_eq!(changed_rows(&sessions(before), &after), 0);
}

#[test]
fn a_change_that_contradicts_the_clouds_or_hides_a_secret_is_refused() {
    type Change = fn(&mut ChangeClouds);
    let mut world = FleetWorld::new();
    let named = |index, name: &str| Cloud {
        name: name.to_owned(),
        ..new_cloud(index)
    };
    for wrong in [
        adding(1, new_cloud(5)),
        adding(1, new_cloud(3)),
        adding(1, named(4, "cloud-1")),
        adding(1, named(4, "")),
        adding(1, named(4, &"long".repeat(100))),
        replacing(1, 0, 4),
        replacing(1, 0, 1),
        replacing(1, 0, 0),
    ] {
        assert_eq!(
            world.change(&wrong),
            Err(Error::BadCloudChange),
            "{wrong:?}"
        );
    }
    let changes: [Change; 4] = [
        |it| it.secrets.clear(),
        |it| it.secrets[0].1.clear(),
        |it| it.secrets.push(it.secrets[0].clone()),
        |it| it.secrets.push((STRANGER, vec![1; 80])),
    ];
    for (at, change) in changes.into_iter().enumerate() {
        let mut wrong = signed_by(&world.key, &adding(1, new_cloud(4)));
        change(&mut wrong);
        assert_eq!(world.order(&wrong), Err(Error::BadCloudChange), "{at}");
    }
    world.change(&adding(1, new_cloud(4))).unwrap();
    let shared = Cloud {
        failure_domain: "domain-1".to_owned(),
        ..new_cloud(5)
    };
    world.change(&adding(2, shared)).unwrap();
    assert_eq!(
        world.change(&replacing(3, 0, 5)),
        Err(Error::BadCloudChange),
        "two active clouds would fail together"
    );
    assert_eq!(world.change(&replacing(3, 1, 5)), Ok(3));
}

#[test]
fn a_volume_has_a_bounded_number_of_clouds_in_its_life() {
    let mut world = FleetWorld::new();
    for (number, index) in (1..).zip(4..CLOUDS_MAX as u8) {
        assert_eq!(world.change(&adding(number, new_cloud(index))), Ok(number));
    }
    let number = CLOUDS_MAX as u32 - 3;
    let more = adding(number, new_cloud(CLOUDS_MAX as u8));
    assert_eq!(world.change(&more), Err(Error::BadCloudChange));
}

#[test]
fn a_shard_moves_with_its_digest_and_a_move_from_elsewhere_is_skipped() {
    let mut world = FleetWorld::new();
    let id = world.file_on(1, [0, 1, 2, 3]).unwrap();
    let before = world.row(id);
    world.change(&adding(1, new_cloud(4))).unwrap();
    let to_a_spare = moving(id, 0, (0, 0), 4);
    assert_eq!(world.move_shards(&[to_a_spare], None), Ok(0));
    world.change(&replacing(2, 0, 4)).unwrap();
    let (_, _, drain) = world.known();
    assert_eq!((drain.after, drain.shards), (None, 0));
    let wrong = [
        moving(id, 0, (1, 0), 4),
        moving(id, 0, (0, 1), 4),
        moving(id, 9, (0, 0), 4),
        moving(ObjectId::FOUNDING, 0, (0, 0), 4),
        moving(id, 1, (1, 0), 1),
        // Two shards would share a failure domain.
        moving(id, 0, (0, 0), 2),
    ];
    for wrong in wrong {
        assert_eq!(world.move_shards(&[wrong], Some(id)), Ok(0), "{wrong:?}");
        assert_eq!(world.row(id), before);
    }
    let right = moving(id, 0, (0, 0), 4);
    assert_eq!(world.move_shards(&[right], Some(id)), Ok(1));
    assert_eq!(world.move_shards(&[right], Some(id)), Ok(0), "once");
    let after = world.row(id);
    let shard = after.shards[0];
    assert_eq!(shard.digest, before.shards[0].digest);
    assert_eq!((shard.cloud, shard.attempt), (CloudIndex(4), 1));
    assert_eq!(shard.coded_for, Some(CloudIndex(0)));
    let (_, _, drain) = world.known();
    assert_eq!((drain.shards, drain.bytes), (1, 2100));
    assert_eq!(drain.after, Some(id));
    let many = vec![right; MOVE_SHARDS_MAX + 1];
    let limit = MOVE_SHARDS_MAX as u32;
    assert_eq!(
        world.move_shards(&many, None),
        Err(Error::TooMany { limit })
    );
}

#[test]
fn the_shards_of_an_object_move_together_where_one_alone_would_share_a_domain() {
    let mut world = FleetWorld::new();
    let id = world.file_on(1, [0, 1, 2, 3]).unwrap();
    world.change(&adding(1, new_cloud(4))).unwrap();
    let mut at_0 = new_cloud(5);
    at_0.failure_domain = "domain-0".to_owned();
    world.change(&adding(2, at_0)).unwrap();
    world.change(&replacing(3, 0, 4)).unwrap();
    world.change(&replacing(4, 1, 5)).unwrap();
    let (first, second) = (moving(id, 0, (0, 0), 4), moving(id, 1, (1, 0), 5));
    assert_eq!(
        world.move_shards(&[second], None),
        Ok(0),
        "0 is still there"
    );
    assert_eq!(world.move_shards(&[second, first], None), Ok(2));
}

#[test]
fn a_commit_names_no_spare_and_makes_a_retired_cloud_draining_again() {
    let mut world = FleetWorld::new();
    world.change(&adding(1, new_cloud(4))).unwrap();
    let bad = world.file_on(1, [4, 1, 2, 3]);
    assert!(matches!(bad, Err(Error::BadPlacement(_))), "{bad:?}");
    world.change(&replacing(2, 0, 4)).unwrap();
    world.retire(0).unwrap();
    world.file_on(2, [4, 1, 2, 3]).unwrap();
    assert_eq!(world.states()[0], CloudState::Retired);
    world.file_on(3, [0, 1, 2, 3]).unwrap();
    assert_eq!(world.states()[0], CloudState::Draining);
}

#[test]
fn only_a_replaced_cloud_without_a_share_of_the_newest_key_is_retired() {
    let mut world = FleetWorld::replaced();
    for index in [1, 4, 9] {
        assert_eq!(world.retire(index), Err(Error::BadCloudChange), "{index}");
    }
    let begin = |number, object, places: Vec<SharePlace>| {
        let confirmed = places.iter().map(|place| place.cloud).collect();
        let shares = Shares {
            object,
            threshold: 2,
            places,
            confirmed,
        };
        Operation::BeginEpoch(BeginEpoch {
            realm: RealmId::ROOT,
            number: RealmEpoch(number),
            epoch: Epoch {
                begun: Time(1),
                lock: Lock::MembersAndClouds,
                previous: vec![1; 60],
                shares: Some(shares),
            },
            members: vec![(
                public(&key_of(1)),
                Member {
                    epoch: RealmEpoch(number),
                    role: MemberRole::Administer,
                    expires: None,
                    wrapped: vec![1; 80],
                    signer: public(&key_of(1)),
                    signature: Signature([2; 64]),
                },
            )],
        })
    };
    let id = |counter| ObjectId {
        allocation: world.allocation,
        counter,
    };
    let (old, new) = (id(7), id(8));
    let before = begin(1, old, share_places());
    world.service.run(&world.owner, &before).unwrap();
    let cloud = CloudIndex(0);
    assert_eq!(world.retire(0), Err(Error::CloudHoldsShare(cloud)));
    let mut places = share_places();
    places.remove(0);
    places.push(SharePlace {
        cloud: CloudIndex(4),
        digest: Digest([4; 32]),
    });
    let after = begin(2, new, places);
    world.service.run(&world.owner, &after).unwrap();
    assert_eq!(world.retire(0), Ok(()));
    assert_eq!(world.retire(0), Ok(()), "again");
}
