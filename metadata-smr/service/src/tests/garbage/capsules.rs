//! A capsule retains what was needed when it was ordered, for as long as it lasts.

use super::*;
use crate::Metadata;
use crate::row::{Sealed, Share, ShareWith};
use crate::simulation::genesis as without_trash;
use crate::simulation::model::Model;
use crate::simulation::workload::Workload;
use crate::tests::load::{genesis, recovered};
use crate::tests::model::replies;
use proptest::prelude::*;
use quorumfs_bft::identity::Nanos;
use quorumfs_bft::service::Service;
use quorumfs_bft::state::Area;

fn capsule(service: &TestService, manifest: ObjectId, seconds: u64) -> Operation {
    Operation::Share(NewShare {
        credentials: Credentials::root(),
        inode: InodeId::ROOT,
        with: NewShareWith::Capsule {
            manifest: vec![manifest],
        },
        expires: Some(service.now().plus(Nanos::from_secs(seconds))),
        place: Sealed {
            epoch: RealmEpoch(0),
            bytes: b"place".to_vec(),
        },
    })
}

impl GarbageWorld {
    fn order(&mut self, manifest: ObjectId, seconds: u64) -> ShareId {
        let new = capsule(&self.service, manifest, seconds);
        match self.service.run(&self.caller, &new) {
            Ok(Done::Shared { id }) => id,
            other => panic!("{other:?}"),
        }
    }

    fn end(&mut self, id: ShareId) {
        let asked = ChangeShare {
            credentials: Credentials::root(),
            id,
        };
        let end = Operation::EndShare(asked);
        self.service.run(&self.caller, &end).unwrap();
    }

    /// The objects of the garbage that are retained.
    fn retained(&mut self) -> Vec<ObjectId> {
        let garbage = self.garbage().into_iter();
        let retained = garbage.filter(|it| it.retained);
        retained.map(|it| it.object).collect()
    }

    /// Executes operations in one batch.
    fn run_together(&mut self, operations: &[Operation]) {
        let context = self.service.context();
        let mut txn = self.service.space.begin(Area::Service, context.sequence);
        for operation in operations {
            let bytes = operation.to_bytes();
            let answer = Metadata.execute(&mut txn, &context, &self.caller, &bytes);
            let Response(done) = Response::from_bytes(&answer.unwrap()).unwrap();
            done.unwrap();
        }
        txn.commit();
    }
}

fn removing(name: &str) -> Operation {
    let step = Step::Unlink(removal(InodeId::ROOT, name, false));
    let time = crate::attributes::Timestamp::default();
    crate::simulation::compound(Credentials::root(), time, vec![step])
}

#[test]
fn a_capsule_retains_what_was_needed_at_its_point_until_it_ends() {
    let mut world = GarbageWorld::new();
    let (before, early) = (world.file("before", 1), world.file("early", 2));
    let manifest = world.file("manifest", 3);
    world.remove("before");
    let ended = world.order(manifest, 1000);
    let late = world.file("late", 4);
    let lasting = world.order(manifest, 2000);
    let later = world.file("later", 5);
    for name in ["early", "manifest", "late", "later"] {
        world.remove(name);
    }
    world.close();
    let all = [before, early, manifest, late, later];
    assert_eq!(world.retained(), [early, manifest, late]);
    assert_eq!(
        world.forget(&all),
        2,
        "what was dropped before, and what came after"
    );
    assert!(world.row(early).is_some() && world.row(later).is_none());
    world.end(lasting);
    assert_eq!(world.retained(), [early, manifest]);
    assert_eq!(world.forget(&all), 1);
    world.end(ended);
    assert_eq!(world.retained(), []);
    assert_eq!(world.forget(&all), 2);
    assert_eq!(world.garbage(), []);
}

#[test]
fn a_capsule_that_expires_retains_until_then() {
    let mut world = GarbageWorld::new();
    let id = world.file("f", 1);
    world.order(id, 100);
    world.remove("f");
    world.close();
    world.service.wait(99);
    world.service.drain();
    assert_eq!(world.forget(&[id]), 0);
    world.service.wait(1);
    assert_eq!(world.service.drain(), 1);
    assert_eq!(world.forget(&[id]), 1);
}

#[test]
fn several_capsules_of_a_point_retain_until_the_last_one_ends() {
    let mut world = GarbageWorld::new();
    let id = world.file("f", 1);
    let new = capsule(&world.service, id, 1000);
    world.run_together(&[new.clone(), new.clone(), new]);
    world.remove("f");
    world.close();
    for share in [2, 1, 3] {
        assert_eq!(world.forget(&[id]), 0, "{share}");
        world.end(ShareId(share));
    }
    assert_eq!(world.forget(&[id]), 1);
}

#[test]
fn what_is_dropped_or_created_in_the_batch_of_a_capsule_is_retained() {
    let mut world = GarbageWorld::new();
    let (dropped, manifest) = (world.file("dropped", 1), world.file("manifest", 2));
    let inode = world.service.create(&world.caller, InodeId::ROOT, "new");
    let step = commit(inode, world.allocation, 3, &[(0, 10)]);
    let new = step.objects[0].id;
    let time = crate::attributes::Timestamp::default();
    let create = crate::simulation::compound(Credentials::root(), time, vec![Step::Commit(step)]);
    let order = capsule(&world.service, manifest, 1000);
    world.run_together(&[create, order, removing("dropped")]);
    world.service.drain();
    world.remove("new");
    world.close();
    assert_eq!(world.retained(), [dropped, new]);
    assert_eq!(world.forget(&[dropped, new]), 0);
    world.end(ShareId(1));
    assert_eq!(world.forget(&[dropped, new]), 2);
}

#[test]
fn a_pack_that_is_compacted_is_retained() {
    let mut world = GarbageWorld::new();
    let inode = world.service.create(&world.caller, InodeId::ROOT, "f");
    let mut step = commit(inode, world.allocation, 1, &[(0, 10)]);
    step.objects[0].class = ObjectClass::PACK;
    let (old, slice) = (step.objects[0].id, step.slices[0].id);
    let root = Credentials::root();
    world
        .service
        .step(&world.caller, &root, Step::Commit(step))
        .unwrap();
    let share = world.order(old, 1000);
    let pack = NewObject {
        class: ObjectClass::PACK,
        ..object(world.allocation, 2, 3)
    };
    let moving = Operation::MoveSlices {
        realm: RealmId::ROOT,
        moves: vec![SliceMove {
            home: Home(0),
            slice,
            from: old,
            from_offset: 0,
            sealed_length: 4016,
            to: pack.id,
            to_offset: 0,
        }],
        objects: vec![pack],
    };
    let moved = world.service.run(&world.caller, &moving);
    assert_eq!(moved, Ok(Done::Moved { slices: 1 }));
    world.close();
    assert_eq!(world.forget(&[old]), 0);
    world.end(share);
    assert_eq!(world.forget(&[old]), 1);
}

#[test]
fn in_a_recovered_volume_a_capsule_retains_all_objects_of_the_copy() {
    let mut world = GarbageWorld {
        service: TestService::of(&genesis(0)),
        ..GarbageWorld::new()
    };
    world.caller = world.service.open(OWNER);
    world.allocation = world.service.allocate(&world.caller, 1000);
    let (garbage, live) = (world.file("garbage", 1), world.file("live", 2));
    let id = world.order(garbage, 1_000_000);
    world.remove("garbage");
    world.service = recovered(&world.service, 2);
    world.caller = world.service.open(OWNER);
    let rows = world.service.rows(&key::share(id));
    let share = Share::from_bytes(&rows[0].1).unwrap();
    let (manifest, point) = (vec![garbage], Sequence(0));
    assert_eq!(share.with, ShareWith::Capsule { manifest, point });
    let index: Vec<_> = world.service.rows(b"SR/").into_iter().collect();
    assert_eq!(index.len(), 1);
    assert_eq!(index[0].0, key::capsule_point(point, id));
    world.allocation = world.service.allocate(&world.caller, 10);
    let new = world.file("new", 1);
    for name in ["live", "new"] {
        world.remove(name);
    }
    world.close();
    let release = Operation::Release { number: 0 };
    world.service.run(&world.caller, &release).unwrap();
    let all = [garbage, live, new];
    assert_eq!(world.retained(), [garbage, live]);
    assert_eq!(world.forget(&all), 1, "it did not exist");
    world.end(id);
    assert_eq!(world.forget(&all), 2);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn no_object_is_forgotten_that_a_capsule_needs(seed in any::<u64>()) {
        judged(seed, |_| {})?;
    }
}

/// Clients order and end capsules, remove and forget; the model judges each reply.
fn judged(seed: u64, planted: fn(&mut TestService)) -> Result<(), TestCaseError> {
    let mut world = TestService::of(&without_trash(&[OWNER], (1, 1, 4)).unwrap());
    world.pace = 1_000_000_000;
    let calls = (Workload::with_capsules(), Model::with_capsules());
    replies((seed, 500), world, calls, planted)
}

/// A collection that does not look at capsules.
fn without_points(world: &mut TestService) {
    for (row_key, _) in world.rows(&key::capsule_points()) {
        world.remove(&row_key);
    }
}

#[test]
fn the_judge_finds_a_forget_that_ignores_capsules() {
    let found = (0..20).filter(|seed| judged(*seed, without_points).is_err());
    let found = found.count();
    assert!(found > 10, "{found} of 20");
    assert!((0..20).all(|seed| judged(seed, |_| {}).is_ok()));
}
