//! Objects and slices: the proof that a commit needs; changes by completion and repair.

use super::harness::*;
use crate::attributes::{Credentials, Mode, Timestamp};
use crate::error::Error;
use crate::identity::{CloudIndex, InodeId, ObjectId, ShardIndex};
use crate::operation::{Create, NewContent, NewInode, Operation, PlacedShard, Step};
use crate::query::Question;
use crate::reply::{Done, QueryResult};
use crate::simulation::{compound, place};
use quorumfs_bft::service::Caller;

fn under_replicated(world: &mut TestService, caller: &Caller) -> Vec<(u8, ObjectId)> {
    let question = Question::UnderReplicated {
        after: None,
        limit: 10,
    };
    match world.ask(caller, question) {
        Ok(QueryResult::UnderReplicated { objects, .. }) => objects
            .into_iter()
            .map(|it| (it.priority, it.object))
            .collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_object_is_queued_until_all_its_shards_are_acknowledged() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let inode = world.create(&caller, InodeId::ROOT, "f");
    let allocation = world.allocate(&caller, 4);
    let step = Step::Commit(commit(inode, allocation, 0, &[(0, 100)]));
    world.step(&caller, &Credentials::root(), step).unwrap();
    let queue = under_replicated(&mut world, &caller);
    let [(1, object)] = queue[..] else {
        panic!("{queue:?}")
    };
    let shard = PlacedShard {
        object,
        shard: ShardIndex(3),
        cloud: CloudIndex(3),
        generation: 0,
        attempt: 0,
        receipt: None,
    };
    let elsewhere = PlacedShard {
        generation: 0,
        attempt: 1,
        ..shard
    };
    let confirm = |shards| Operation::ConfirmPlaced {
        shards,
        checked: vec![],
    };
    let done = world.run(&caller, &confirm(vec![elsewhere]));
    assert_eq!(done, Ok(Done::Confirmed { completed: 0 }));
    let done = world.run(&caller, &confirm(vec![shard]));
    assert_eq!(done, Ok(Done::Confirmed { completed: 1 }));
    assert!(under_replicated(&mut world, &caller).is_empty());

    // A shard was found to be damaged: it is put again under its next name.
    let replace = |attempt, cloud| Operation::ReplacePlacement {
        shard: PlacedShard {
            generation: 0,
            attempt,
            cloud: CloudIndex(cloud),
            ..shard
        },
        acknowledged: false,
    };
    let refused = world.run(&caller, &replace(0, 3)).unwrap_err().error;
    assert_eq!(refused, Error::Changed, "names are used once");
    let refused = world.run(&caller, &replace(0, 2)).unwrap_err().error;
    assert_eq!(refused, Error::BadPlacement(object), "one shard a cloud");
    world.run(&caller, &replace(1, 3)).unwrap();
    assert_eq!(under_replicated(&mut world, &caller), [(1, object)]);
    world.run(&caller, &confirm(vec![elsewhere])).unwrap();
    assert!(under_replicated(&mut world, &caller).is_empty());

    let remove = Step::Unlink(removal(InodeId::ROOT, "f", false));
    world.step(&caller, &Credentials::root(), remove).unwrap();
    let question = Question::Unreferenced {
        after: None,
        limit: 10,
    };
    let found = world.ask(&caller, question);
    let Ok(QueryResult::Unreferenced { objects, more }) = found else {
        panic!("{found:?}");
    };
    let ids: Vec<_> = objects.iter().map(|garbage| garbage.object).collect();
    assert_eq!((ids, more), (vec![object], false));
    assert!(objects[0].open && !objects[0].retained);
}

#[test]
fn a_commit_shows_a_write_quorum_on_clouds_that_fail_apart() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let inode = world.create(&caller, InodeId::ROOT, "f");
    let allocation = world.allocate(&caller, 16);
    let good = commit(inode, allocation, 0, &[(0, 100)]);
    let id = good.objects[0].id;
    let spoil = |change: &dyn Fn(&mut crate::operation::NewObject)| {
        let mut commit = good.clone();
        change(&mut commit.objects[0]);
        Step::Commit(commit)
    };
    let bad = [
        spoil(&|object| object.shards[2].acknowledged = false),
        spoil(&|object| object.shards[1].cloud = CloudIndex(0)),
        spoil(&|object| object.shards[1].cloud = CloudIndex(9)),
        spoil(&|object| object.shards.truncate(3)),
        spoil(&|object| object.length = 0),
        spoil(&|object| object.policy = crate::placement::Policy::new(4, 0, 1, 1).unwrap()),
    ];
    let root = world.root();
    for step in bad {
        let refused = world.step(&caller, &Credentials::root(), step);
        assert_eq!(refused, Err(Error::BadPlacement(id)));
        assert_eq!(root, world.root());
    }
    let step = Step::Commit(good);
    world.step(&caller, &Credentials::root(), step).unwrap();
}

#[test]
fn objects_of_a_commit_must_be_used_and_fit() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let inode = world.create(&caller, InodeId::ROOT, "f");
    let allocation = world.allocate(&caller, 16);
    let good = commit(inode, allocation, 0, &[(0, 100), (200, 100)]);
    let spoil = |change: &dyn Fn(&mut crate::operation::Commit)| {
        let mut commit = good.clone();
        change(&mut commit);
        Step::Commit(commit)
    };
    let extents = |commit: &mut crate::operation::Commit,
                   change: &dyn Fn(&mut Vec<crate::operation::NewExtent>)| {
        if let NewContent::Extents(extents) = &mut commit.content {
            change(extents);
        }
    };
    let bad = [
        spoil(&|commit| commit.content = NewContent::Same),
        spoil(&|commit| commit.slices.truncate(1)),
        spoil(&|commit| extents(commit, &|all| all.truncate(1))),
        spoil(&|commit| extents(commit, &|all| all[1].offset = 99)),
        spoil(&|commit| extents(commit, &|all| all.reverse())),
        spoil(&|commit| extents(commit, &|all| all[0].length = 4001)),
        spoil(&|commit| extents(commit, &|all| all[0].length = 0)),
        spoil(&|commit| extents(commit, &|all| all[1].offset = u64::MAX)),
        spoil(&|commit| commit.slices[0].offset = 4000),
        spoil(&|commit| commit.slices[0].sealed_length = u32::MAX),
        spoil(&|commit| commit.size = Some(299)),
    ];
    let root = world.root();
    for (index, step) in bad.into_iter().enumerate() {
        let refused = world.step(&caller, &Credentials::root(), step);
        assert!(refused.is_err(), "{index}");
        assert_eq!(root, world.root(), "{index}");
    }
    let step = Step::Commit(good);
    world.step(&caller, &Credentials::root(), step).unwrap();
}

#[test]
fn a_file_without_write_permission_accepts_writes_of_an_open_handle() {
    let mut world = TestService::new();
    let owner = world.open(OWNER);
    let chmod = crate::operation::SetAttributes {
        mode: Some(Mode(0o1777)),
        ..crate::operation::SetAttributes::of(InodeId::ROOT)
    };
    let step = Step::SetAttributes(chmod);
    world.step(&owner, &Credentials::root(), step).unwrap();
    let caller = world.open(ALICE);
    let create = |name| {
        Step::Create(Create {
            place: place(InodeId::ROOT, name),
            kind: NewInode::File,
            mode: Mode(0o444),
            umask: Mode(0),
            exclusive: true,
            number: None,
        })
    };
    let done = world.step(&caller, &alice(), create("mine")).unwrap();
    let crate::reply::StepDone::Created { inode, .. } = done else {
        panic!()
    };
    let allocation = world.allocate(&caller, 4);
    let write = commit(inode.inode, allocation, 0, &[(0, 10)]);
    world.step(&caller, &alice(), Step::Commit(write)).unwrap();

    let theirs = world.create(&owner, InodeId::ROOT, "theirs");
    let write = commit(theirs, allocation, 1, &[(0, 10)]);
    let refused = world.step(&caller, &alice(), Step::Commit(write));
    assert_eq!(
        refused,
        Err(Error::Denied),
        "no identity that it may act for could"
    );
}

/// A file with an object that has all of its shards; returns the object.
fn whole_object(world: &mut TestService, caller: &Caller, name: &str) -> ObjectId {
    let inode = world.create(caller, InodeId::ROOT, name);
    let allocation = world.allocate(caller, 4);
    let mut write = commit(inode, allocation, 0, &[(0, 100)]);
    write.objects[0] = object(allocation, 0, 4);
    let id = write.objects[0].id;
    let step = Step::Commit(write);
    world.step(caller, &Credentials::root(), step).unwrap();
    id
}

fn placed(object: ObjectId, shard: u8, attempt: u8) -> PlacedShard {
    PlacedShard {
        object,
        shard: ShardIndex(shard),
        cloud: CloudIndex(shard),
        generation: 0,
        attempt,
        receipt: None,
    }
}

fn withdraw(
    world: &mut TestService,
    caller: &Caller,
    shards: Vec<PlacedShard>,
) -> Result<u32, Error> {
    match world.run(caller, &Operation::WithdrawPlaced { shards }) {
        Ok(Done::Withdrawn { shards }) => Ok(shards),
        Err(refusal) => Err(refusal.error),
        other => panic!("{other:?}"),
    }
}

#[test]
fn withdrawn_shards_raise_the_urgency_of_repair() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let first = whole_object(&mut world, &caller, "f");
    let second = whole_object(&mut world, &caller, "g");
    assert!(under_replicated(&mut world, &caller).is_empty());

    assert_eq!(
        withdraw(&mut world, &caller, vec![placed(first, 3, 0)]),
        Ok(1)
    );
    let both = vec![placed(second, 0, 0), placed(second, 2, 0)];
    assert_eq!(withdraw(&mut world, &caller, both), Ok(2));
    assert_eq!(
        under_replicated(&mut world, &caller),
        [(0, second), (1, first)],
        "the fewer shards may still be lost, the earlier"
    );
    // The shard keeps its place: a repair checks there first.
    let row = |world: &mut TestService, id| match world.ask(&caller, Question::Object(id)) {
        Ok(QueryResult::Object(row)) => row,
        other => panic!("{other:?}"),
    };
    let shard = row(&mut world, first).shards[3];
    assert_eq!(
        (shard.acknowledged, shard.withdrawn, shard.attempt),
        (false, true, 0)
    );
    let confirm = |shards| Operation::ConfirmPlaced {
        shards,
        checked: vec![],
    };
    let done = world.run(&caller, &confirm(vec![placed(first, 3, 0)]));
    assert_eq!(
        done,
        Ok(Done::Confirmed { completed: 1 }),
        "it was there after all"
    );
    let shard = row(&mut world, first).shards[3];
    assert_eq!((shard.acknowledged, shard.withdrawn), (true, false));

    // Shards that are really gone take the next name.
    for shard in [0, 2] {
        let replace = Operation::ReplacePlacement {
            shard: placed(second, shard, 1),
            acknowledged: true,
        };
        world.run(&caller, &replace).unwrap();
    }
    assert!(under_replicated(&mut world, &caller).is_empty());
    assert!(
        row(&mut world, second)
            .shards
            .iter()
            .all(|it| it.acknowledged && !it.withdrawn)
    );
}

#[test]
fn a_withdrawal_of_a_shard_that_moved_has_no_effect() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let object = whole_object(&mut world, &caller, "f");
    let replace = Operation::ReplacePlacement {
        shard: placed(object, 1, 1),
        acknowledged: true,
    };
    world.run(&caller, &replace).unwrap();
    let root = world.root();
    let elsewhere = PlacedShard {
        cloud: CloudIndex(2),
        ..placed(object, 1, 1)
    };
    let nowhere = placed(object, 9, 0);
    let absent = ObjectId {
        counter: 77,
        ..object
    };
    let passed_over = vec![
        placed(object, 1, 0),
        elsewhere,
        nowhere,
        placed(absent, 0, 0),
    ];
    assert_eq!(withdraw(&mut world, &caller, passed_over), Ok(0));
    assert_eq!(root, world.root());
    let twice = vec![placed(object, 1, 1); 2];
    assert_eq!(withdraw(&mut world, &caller, twice.clone()), Ok(1));
    assert_eq!(withdraw(&mut world, &caller, twice), Ok(0), "and once only");

    let limit = crate::limits::WITHDRAW_SHARDS_MAX;
    let most = |count: usize| -> Vec<_> {
        (0..count)
            .map(|i| {
                placed(
                    ObjectId {
                        counter: i as u32,
                        ..object
                    },
                    0,
                    0,
                )
            })
            .collect()
    };
    assert_eq!(withdraw(&mut world, &caller, most(limit)), Ok(1));
    let refused = withdraw(&mut world, &caller, most(limit + 1));
    let limit = limit as u32;
    assert_eq!(refused, Err(Error::TooMany { limit }));
}

#[test]
fn a_commit_cannot_bring_in_a_withdrawn_object() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let inode = world.create(&caller, InodeId::ROOT, "f");
    let allocation = world.allocate(&caller, 4);
    let mut write = commit(inode, allocation, 0, &[(0, 100)]);
    write.objects[0].shards[3].withdrawn = true;
    let id = write.objects[0].id;
    let refused = world.step(&caller, &Credentials::root(), Step::Commit(write));
    assert_eq!(refused, Err(Error::BadPlacement(id)));
}

#[test]
fn all_objects_are_listed_page_by_page_whatever_happens_meanwhile() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let mut objects: Vec<_> = (0..7)
        .map(|i| whole_object(&mut world, &caller, &format!("f{i}")))
        .collect();
    let (mut after, mut seen) = (None, Vec::new());
    loop {
        let question = Question::Objects { after, limit: 3 };
        let Ok(QueryResult::Objects {
            objects: page,
            more,
        }) = world.ask(&caller, question)
        else {
            panic!("no page")
        };
        assert!(page.len() <= 3 && (!more || page.len() == 3));
        assert!(page.iter().all(|(_, row)| row.shards.len() == 4));
        seen.extend(page.iter().map(|(id, _)| *id));
        after = seen.last().copied();
        if seen.len() == 3 {
            // Objects written in the meantime come later, because ids ascend.
            objects.push(whole_object(&mut world, &caller, "late"));
        }
        if !more {
            break;
        }
    }
    assert_eq!(seen, objects);
    let question = Question::Objects { after, limit: 0 };
    let nothing = QueryResult::Objects {
        objects: Vec::new(),
        more: false,
    };
    assert_eq!(world.ask(&caller, question), Ok(nothing));
}

#[test]
fn content_counts_as_changed_when_it_was_written_if_that_was_about_now_and_never_before() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let inode = world.create(&caller, InodeId::ROOT, "f");
    let allocation = world.allocate(&caller, 10);
    let made = world.attributes(&caller, inode).unwrap().ctime;
    let mut counter = 0;
    let mut changed = |sent: Timestamp| {
        let step = Step::Commit(commit(inode, allocation, counter, &[(0, 100)]));
        counter += 1;
        let operation = compound(Credentials::root(), sent, vec![step]);
        world.run(&caller, &operation).unwrap();
        world.attributes(&caller, inode).unwrap().ctime
    };
    let at = |seconds| Timestamp {
        seconds: made.seconds + seconds,
        nanos: 77,
    };
    // These are milliseconds apart, and so are the batches.
    let later = Timestamp {
        nanos: made.nanos + 1,
        ..made
    };
    assert_eq!(changed(later), later, "as it was shown before the commit");
    assert_eq!(changed(at(-30)), later, "it never goes back");
    let by_the_order = changed(at(-61));
    assert!(
        by_the_order > later && by_the_order < at(1),
        "{by_the_order:?}"
    );
    assert_eq!(changed(at(5)), at(5));
    assert_eq!(changed(at(7)), at(5), "not accepted, and never decreased");
}
