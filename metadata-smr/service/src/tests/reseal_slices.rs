//! Slices that are sealed anew: their ids and what refers to them stay, and both objects count what
//! they have.

use super::epochs::members_only;
use super::harness::*;
use super::model::consistent;
use crate::attributes::Credentials;
use crate::error::Error;
use crate::identity::*;
use crate::limits::MOVE_SLICES_MAX;
use crate::operation::*;
use crate::query::{Query, Question};
use crate::reply::{Answer, Done, OldSlice, QueryResult, Response};
use crate::row::{Object, Slice, SliceKey, SliceSalt, key};
use quorumfs_bft::service::Caller;

const REALM: RealmId = RealmId::ROOT;

fn key_of(epoch: u32) -> SliceKey {
    SliceKey::Derived {
        realm: REALM,
        epoch: RealmEpoch(epoch),
        salt: SliceSalt([9; 16]),
    }
}

struct SlicesWorld {
    service: TestService,
    owner: Caller,
    allocation: AllocationId,
    file: InodeId,
}

impl SlicesWorld {
    /// A file of two slices, each in an object of its own, from before a key epoch.
    fn new() -> Self {
        let mut service = TestService::new();
        let owner = service.open(OWNER);
        let file = service.create(&owner, InodeId::ROOT, "file");
        let allocation = service.allocate(&owner, 100);
        let step = Step::Commit(commit(file, allocation, 0, &[(0, 4000), (4000, 4000)]));
        service.step(&owner, &Credentials::root(), step).unwrap();
        let begin = Operation::BeginEpoch(members_only(1));
        service.run(&owner, &begin).unwrap();
        Self {
            service,
            owner,
            allocation,
            file,
        }
    }

    fn slice_id(&self, counter: u32) -> SliceId {
        SliceId {
            allocation: self.allocation,
            counter,
        }
    }

    fn row(&self, counter: u32) -> Slice {
        use crate::row::Row;
        let rows = self
            .service
            .rows(&key::slice(Home(0), self.slice_id(counter)));
        Slice::from_bytes(&rows[0].1).unwrap()
    }

    fn object(&self, counter: u32) -> Object {
        use crate::row::Row;
        let id = object(self.allocation, counter, 3).id;
        let rows = self.service.rows(&key::object(id));
        Object::from_bytes(&rows[0].1).unwrap()
    }

    fn pack(&self, counter: u32) -> NewObject {
        NewObject {
            class: ObjectClass::PACK,
            length: 9000,
            ..object(self.allocation, counter, 3)
        }
    }

    fn resealed(&self, counter: u32, to: &NewObject, to_offset: u32) -> ResealedSlice {
        let row = self.row(counter);
        ResealedSlice {
            home: Home(0),
            slice: self.slice_id(counter),
            from: row.object,
            from_offset: row.offset,
            key: key_of(1),
            to: to.id,
            to_offset,
            sealed_length: 4016,
            codec: Codec::NONE,
        }
    }

    fn reseal(&mut self, objects: &[&NewObject], slices: &[ResealedSlice]) -> Result<u32, Error> {
        let operation = Operation::ResealSlices(ResealSlices {
            realm: REALM,
            objects: objects.iter().copied().cloned().collect(),
            slices: slices.to_vec(),
        });
        let done = self.service.run(&self.owner, &operation);
        consistent(&self.service).unwrap();
        match done {
            Ok(Done::SlicesResealed { slices }) => Ok(slices),
            Ok(other) => panic!("{other:?}"),
            Err(refused) => Err(refused.error),
        }
    }

    fn old(&mut self, limit: u32) -> (Vec<SliceId>, Option<(Home, SliceId)>) {
        let question = Question::SlicesToReseal {
            realm: REALM,
            after: None,
            limit,
        };
        match self.service.ask(&self.owner, question) {
            Ok(QueryResult::SlicesToReseal { slices, next }) => {
                (slices.iter().map(|it| it.id).collect(), next)
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn slices_get_new_keys_in_a_pack_and_files_stay_what_they_are() {
    let mut world = SlicesWorld::new();
    assert_eq!(
        world.old(1),
        (vec![world.slice_id(0)], Some((Home(0), world.slice_id(0))))
    );
    assert_eq!(world.old(100).0, [world.slice_id(0), world.slice_id(1)]);
    let before = world.service.attributes(&world.owner, world.file);
    let pack = world.pack(50);
    let both = [world.resealed(0, &pack, 0), world.resealed(1, &pack, 4016)];
    assert_eq!(world.reseal(&[&pack], &both), Ok(2));
    let row = world.row(1);
    assert_eq!((row.object, row.offset, row.length), (pack.id, 4016, 4000));
    assert_eq!((row.keys, row.references), (vec![key_of(1)], 1));
    assert_eq!(
        (world.object(50).slices, world.object(50).live_bytes),
        (2, 8032)
    );
    assert_eq!(
        world.object(0).slices,
        0,
        "the old ones wait for the collector"
    );
    assert_eq!(world.old(100).0, []);
    let after = world.service.attributes(&world.owner, world.file);
    assert_eq!(after, before);
    // The answer was lost, and the same is sent again.
    assert_eq!(world.reseal(&[&pack], &both), Ok(0));
    // Out of the pack into a block.
    let begin = Operation::BeginEpoch(members_only(2));
    world.service.run(&world.owner, &begin).unwrap();
    let block = object(world.allocation, 60, 3);
    let mut one = world.resealed(1, &block, 0);
    one.key = key_of(2);
    assert_eq!(world.reseal(&[&block], &[one]), Ok(1));
    assert_eq!((world.object(50).slices, world.object(60).slices), (1, 1));
}

#[test]
fn what_does_not_fit_is_refused_and_what_is_gone_is_skipped() {
    let mut world = SlicesWorld::new();
    let pack = world.pack(50);
    let good = world.resealed(0, &pack, 0);
    let with = |change: &dyn Fn(&mut ResealedSlice)| {
        let mut changed = good.clone();
        change(&mut changed);
        vec![changed]
    };
    let mut refused = |slices: Vec<ResealedSlice>, error: Error| {
        assert_eq!(world.reseal(&[&pack], &slices), Err(error));
    };
    refused(with(&|it| it.key = key_of(2)), Error::Invalid);
    refused(with(&|it| it.to_offset = 9000), Error::BadContent);
    refused(with(&|it| it.sealed_length = 0), Error::BadContent);
    refused(with(&|it| it.home = Home(1)), Error::CrossRealm);
    refused(with(&|it| it.to.counter = 51), Error::BadContent);
    refused(
        with(&|it| {
            it.key = SliceKey::Wrapped {
                realm: REALM,
                epoch: RealmEpoch(1),
                bytes: vec![1; 48],
            };
        }),
        Error::BadContent,
    );
    let other = world.resealed(1, &pack, 4000);
    let overlapping = [good.clone(), other];
    assert_eq!(world.reseal(&[&pack], &overlapping), Err(Error::BadContent));
    let limit = MOVE_SLICES_MAX as u32;
    let many = vec![good.clone(); MOVE_SLICES_MAX + 1];
    assert_eq!(world.reseal(&[&pack], &many), Err(Error::TooMany { limit }));
    // A block takes one slice.
    let mut block = object(world.allocation, 70, 3);
    block.length = 9000;
    let both = [
        world.resealed(0, &block, 0),
        world.resealed(1, &block, 4016),
    ];
    assert_eq!(world.reseal(&[&block], &both), Err(Error::BadContent));
    // It has moved, or is gone: nothing of the pack is created.
    let mut elsewhere = good.clone();
    elsewhere.from_offset = 1;
    let mut gone = good;
    gone.slice.counter = 99;
    assert_eq!(world.reseal(&[&pack], &[elsewhere, gone]), Ok(0));
    assert!(world.service.rows(&key::object(pack.id)).is_empty());
}

/// Golden bytes.
pub(super) fn fixtures() -> Vec<(&'static str, Vec<u8>)> {
    let new = object(AllocationId(5), 6, 3);
    let id = SliceId {
        allocation: AllocationId(4),
        counter: 3,
    };
    let resealed = ResealedSlice {
        home: Home(1),
        slice: id,
        from: object(AllocationId(4), 3, 3).id,
        from_offset: 7,
        key: key_of(2),
        to: new.id,
        to_offset: 0,
        sealed_length: 4016,
        codec: Codec::NONE,
    };
    let question = Question::SlicesToReseal {
        realm: REALM,
        after: Some((Home(1), id)),
        limit: 4096,
    };
    let credentials = Credentials::root();
    let found = slice(AllocationId(4), 3, &new);
    let old = OldSlice {
        home: Home(1),
        id,
        slice: Slice {
            object: new.id,
            offset: found.offset,
            length: found.length,
            sealed_length: found.sealed_length,
            codec: found.codec,
            keys: found.keys,
            references: 2,
        },
        object: super::fixtures::object_row(&new),
    };
    let answer = QueryResult::SlicesToReseal {
        slices: vec![old],
        next: Some((Home(1), id)),
    };
    let operation = ResealSlices {
        realm: REALM,
        objects: vec![new],
        slices: vec![resealed],
    };
    vec![
        (
            "operation-reseal-slices",
            Operation::ResealSlices(operation).to_bytes(),
        ),
        (
            "query-slices-to-reseal",
            Query {
                credentials,
                question,
            }
            .to_bytes(),
        ),
        ("answer-slices-to-reseal", Answer(Ok(answer)).to_bytes()),
        (
            "reply-slices-resealed",
            Response(Ok(Done::SlicesResealed { slices: 3 })).to_bytes(),
        ),
    ]
}
