//! The service against the model, over random histories.

use super::harness::{OWNER, TestService, object, slice};
use crate::attributes::Credentials;
use crate::codec::decode;
use crate::identity::{InodeId, ObjectId, SliceId};
use crate::operation::{
    CloneRange, Commit, NewContent, NewExtent, NewSlice, Operation, SetAttributes, Step,
};
use crate::query::Question;
use crate::reply::{QueryResult, Response};
use crate::row::{Extent, FileBody, Inode, InodeBody, Object, Row, Slice};
use crate::simulation::model::Model;
use crate::simulation::workload::{Call, Workload};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng};
use quorumfs_bft::service::Caller;
use std::collections::BTreeMap;

/// A stream of random numbers from a seed.
pub(super) fn chance(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    move |bound| {
        use proptest::prelude::Rng as _;
        rng.next_u64() % bound.max(1)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_reply_equals_that_of_a_plain_file_system(seed in any::<u64>()) {
        let (workload, model) = (Workload::of_one_session(), Model::default());
        replies((seed, 200), TestService::new(), (workload, model), |_| {})?;
    }

    #[test]
    fn every_reply_equals_that_of_a_plain_file_system_with_a_trash(seed in any::<u64>()) {
        let mut world = TestService::new();
        world.pace = 61_000_000_000;
        replies((seed, 200), world, (Workload::with_trash(), Model::with_trash()), |_| {})?;
    }

    #[test]
    fn files_have_the_bytes_that_were_committed_last_and_nothing_leaks(seed in any::<u64>()) {
        contents(seed, 60)?;
    }
}

/// Compares the replies to random calls with the model's, and counts all anew at the end. A defect
/// can be planted, which acts after each operation.
pub(super) fn replies(
    (seed, rounds): (u64, usize),
    mut world: TestService,
    (mut workload, mut model): (Workload, Model),
    planted: fn(&mut TestService),
) -> Result<(), TestCaseError> {
    let mut chance = chance(seed);
    let caller = world.open(OWNER);
    for _ in 0..rounds {
        match workload.next(&mut chance) {
            Call::Execute(bytes) => {
                let (sequence, time) = world.next_batch();
                model.next_batch(sequence, time);
                let before = model.clone();
                let root = world.root();
                let answer = world.run_bytes(&caller, &bytes);
                let response = Response::from_bytes(&answer).unwrap();
                prop_assert!(
                    model.execute(&bytes, Some(&answer)),
                    "{:#?}\n{response:#?}\nbefore {before:#?}\nexpected {:?}",
                    Operation::from_bytes(&bytes),
                    match Operation::from_bytes(&bytes) {
                        Ok(Operation::Compound(c)) => Some(before.clone().compound(&c)),
                        _ => None,
                    },
                );
                prop_assert_eq!(world.rows(b"TR/").len(), model.trashed());
                if response.0.is_err() {
                    prop_assert_eq!(root, world.root(), "a refusal changed the state");
                }
                workload.learn(&answer);
                planted(&mut world);
                // What is purged is freed by ticks, before the next question.
                world.drain();
                model.ticked(world.now());
            }
            Call::Query(bytes) => {
                let answer = world.ask_bytes(&caller, &bytes);
                prop_assert!(
                    model.read(&bytes, &answer),
                    "{:?} {:?}",
                    crate::query::Query::from_bytes(&bytes),
                    crate::reply::Answer::from_bytes(&answer),
                );
            }
        }
    }
    for inode in model.inodes() {
        let attributes = world.attributes(&caller, inode).unwrap();
        prop_assert!(model.shows(&attributes));
    }
    prop_assert_eq!(world.rows(b"I/").len(), model.inodes().count());
    prop_assert_eq!(world.rows(b"TR/").len(), model.trashed());
    world.close(&caller);
    world.drain();
    prop_assert_eq!(world.rows(b"NO/").len(), 0);
    consistent(&world)?;
    world.wait(crate::genesis::TRASH_SECONDS);
    world.drain();
    for tag in [&b"TR/"[..], b"TI/", b"TD/", b"TO/", b"TU/"] {
        prop_assert_eq!(world.rows(tag).len(), 0, "the trash leaks");
    }
    consistent(&world)
}

/// Commits and truncates a few files at random, compares each byte's source with the model, and
/// finally counts every reference anew.
fn contents(seed: u64, rounds: usize) -> Result<(), TestCaseError> {
    let mut chance = chance(seed);
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let mut model = Model::default();
    let mut next = 0;
    let allocation = world.allocate(&caller, 1024);
    let mut files = Vec::new();
    let mut old: Vec<SliceId> = Vec::new();
    for name in ["a", "b"] {
        files.push(world.create(&caller, InodeId::ROOT, name));
        let create = crate::operation::Create {
            place: crate::simulation::place(InodeId::ROOT, name),
            kind: crate::operation::NewInode::File,
            mode: crate::attributes::Mode(0o755),
            umask: crate::attributes::Mode(0),
            exclusive: true,
            number: None,
        };
        apply(&mut model, Step::Create(create)).unwrap();
    }
    for _ in 0..rounds {
        let inode = files[chance(2) as usize];
        let step = match chance(9) {
            0 => Step::SetAttributes(SetAttributes {
                size: Some(chance(80)),
                ..SetAttributes::of(inode)
            }),
            1 => {
                let length = 1 + chance(30) as u16;
                let sealed = crate::row::Sealed {
                    epoch: crate::identity::RealmEpoch(0),
                    bytes: vec![1; usize::from(length) + 28],
                };
                let inline = crate::row::Inline { length, sealed };
                Step::Commit(some(inode, NewContent::Inline(inline)))
            }
            2 => {
                let (offset, length) = (chance(80), chance(40));
                Step::Commit(some(inode, NewContent::Hole { offset, length }))
            }
            3 | 4 => {
                let range = CloneRange {
                    offset: chance(80),
                    length: chance(40),
                    source: files[chance(2) as usize],
                    source_offset: chance(40),
                    expected: None,
                };
                Step::Commit(some(inode, NewContent::Clone(range)))
            }
            _ => {
                let mut commit = some(inode, NewContent::Same);
                let mut extents = Vec::new();
                let mut at = chance(20);
                for _ in 0..=chance(3) {
                    let length = 1 + chance(20) as u32;
                    // Sometimes a run of a slice that an earlier commit created.
                    let again = old
                        .iter()
                        .copied()
                        .filter(|id| world_has(&world, *id))
                        .nth(chance(8) as usize);
                    let id = match again {
                        Some(id) => id,
                        None => {
                            let object = object(allocation, next, 3 + chance(2) as usize);
                            let new: NewSlice = slice(allocation, next, &object);
                            next += 1;
                            let id = new.id;
                            commit.objects.push(object);
                            commit.slices.push(new);
                            old.push(id);
                            id
                        }
                    };
                    extents.push(NewExtent {
                        offset: at,
                        slice: id,
                        slice_offset: chance(100) as u32,
                        length,
                    });
                    at += u64::from(length) + chance(2) * chance(9);
                }
                commit.content = NewContent::Extents(extents);
                if chance(4) == 0 {
                    commit.size = Some(at + chance(20));
                }
                Step::Commit(commit)
            }
        };
        let expected = apply(&mut model, step.clone());
        let done = world.step(&caller, &Credentials::root(), step.clone());
        match (&expected, &done) {
            (Err(expected), Err(error)) => prop_assert_eq!(expected, error),
            (Ok(_), Ok(_)) => {}
            _ => prop_assert!(false, "{step:?} {expected:?} {done:?}"),
        }
        for inode in &files {
            compare(&mut world, &caller, &model, *inode)?;
        }
        consistent(&world)?;
    }
    for name in ["a", "b"] {
        let remove = Step::Unlink(super::harness::removal(InodeId::ROOT, name, false));
        world.step(&caller, &Credentials::root(), remove).unwrap();
    }
    world.drain();
    consistent(&world)?;
    prop_assert_eq!(world.rows(b"E/").len() + world.rows(b"S/").len(), 0);
    prop_assert_eq!(world.rows(b"O/").len(), world.rows(b"OG/").len());
    prop_assert_eq!(world.rows(b"U/").len(), 0);
    let usage = world.ask(&caller, Question::Usage(crate::identity::RealmId::ROOT));
    prop_assert_eq!(
        usage,
        Ok(QueryResult::Usage {
            inodes: 1,
            allocated: 0
        })
    );
    Ok(())
}

fn world_has(world: &TestService, id: SliceId) -> bool {
    !world
        .rows(&crate::row::key::slice(crate::identity::Home(0), id))
        .is_empty()
}

fn some(inode: InodeId, content: NewContent) -> Commit {
    Commit {
        inode,
        expected: None,
        objects: Vec::new(),
        slices: Vec::new(),
        content,
        size: None,
        mtime: None,
    }
}

fn apply(model: &mut Model, step: Step) -> Result<(), crate::error::Error> {
    let operation =
        crate::simulation::compound(Credentials::root(), Default::default(), vec![step]);
    let Operation::Compound(compound) = operation else {
        unreachable!()
    };
    model.compound(&compound).map(|_| ())
}

/// Checks that each byte of a file comes from the model's source.
fn compare(
    world: &mut TestService,
    caller: &Caller,
    model: &Model,
    inode: InodeId,
) -> Result<(), TestCaseError> {
    let (size, expected) = model.bytes(inode).unwrap();
    let mut found = BTreeMap::new();
    let mut from = 0;
    loop {
        let question = Question::Content {
            inode,
            from,
            to: u64::MAX,
            limit: 2,
        };
        let Ok(QueryResult::Content(page)) = world.ask(caller, question) else {
            panic!("no content")
        };
        prop_assert_eq!(page.attributes.size, size);
        for listed in &page.extents {
            let extent = listed.extent;
            for step in 0..extent.length {
                let at = listed.offset + u64::from(step);
                found.insert(at, (extent.slice, extent.slice_offset + step));
            }
            from = listed.offset + u64::from(extent.length);
            prop_assert!(page.slices.iter().any(|(id, _)| *id == extent.slice));
        }
        if !page.more {
            break;
        }
    }
    prop_assert_eq!(found, expected);
    Ok(())
}

/// References, live bytes, queues and counters, counted anew from the rows.
pub(super) fn consistent(world: &TestService) -> Result<(), TestCaseError> {
    let read = |bytes: &[u8]| bytes.to_vec();
    let mut references: BTreeMap<SliceId, u32> = BTreeMap::new();
    let mut allocated = 0;
    let mut count = |extent: &Extent| {
        *references.entry(extent.slice).or_default() += 1;
        allocated += u64::from(extent.length);
    };
    for (_, value) in world.rows(b"E/") {
        count(&Extent::from_bytes(&value).unwrap());
    }
    let mut in_inodes = 0;
    let live = world.rows(b"I/").into_iter();
    let live = live.map(|(_, value)| Inode::from_bytes(&value).unwrap());
    let trashed = super::trash::all(world).into_iter();
    for row in live.chain(trashed.map(|(_, trashed)| trashed.inode)) {
        if let InodeBody::File(FileBody {
            content, allocated, ..
        }) = row.node
        {
            in_inodes += allocated;
            if let crate::row::Content::One { extent, .. } = content {
                count(&extent);
            }
        }
    }
    prop_assert_eq!(allocated, in_inodes);
    super::quota::counts(world)?;
    super::trash::counts(world)?;
    let mut live: BTreeMap<ObjectId, (u64, u32)> = BTreeMap::new();
    let mut places = BTreeMap::new();
    for (key, value) in world.rows(b"S/") {
        let slice = Slice::from_bytes(&value).unwrap();
        let id = SliceId::from_be_bytes(&key[key.len() - 12..]).unwrap();
        let place = (slice.offset, slice.sealed_length);
        places.insert((slice.object, id), place);
        prop_assert_eq!(references.remove(&id), Some(slice.references));
        let bytes = live.entry(slice.object).or_default();
        bytes.0 += u64::from(slice.sealed_length);
        bytes.1 += 1;
    }
    prop_assert!(references.is_empty(), "extents without slices");
    let mut garbage = 0;
    let mut lacking = 0;
    let mut sparse = Vec::new();
    for (key, value) in world.rows(b"O/") {
        let object: Object = decode(&read(&value), usize::MAX).unwrap();
        let id = ObjectId::from_be_bytes(&key[key.len() - 12..]).unwrap();
        let (bytes, slices) = live.remove(&id).unwrap_or_default();
        prop_assert_eq!((object.live_bytes, object.slices), (bytes, slices));
        garbage += usize::from(slices == 0);
        lacking += usize::from(slices > 0 && object.is_under_replicated());
        let is_pack = object.class == crate::identity::ObjectClass::PACK;
        if is_pack && slices > 0 && bytes * 2 < u64::from(object.length) {
            sparse.push(crate::row::key::sparse(id));
        }
        if !is_pack {
            places.retain(|(object, _), _| *object != id);
        }
    }
    let listed: Vec<_> = world.rows(b"OC/").into_iter().map(|(key, _)| key).collect();
    prop_assert_eq!(listed, sparse);
    let listed = world.rows(b"OS/").into_iter().map(|(key, value)| {
        let (_, slice) = crate::row::key::trailing_slice(&key).unwrap();
        let object = ObjectId::from_be_bytes(&key[3..15]).unwrap();
        let place = crate::row::PackedSlice::from_bytes(&value).unwrap();
        ((object, slice), (place.offset, place.sealed_length))
    });
    prop_assert_eq!(listed.collect::<BTreeMap<_, _>>(), places);
    prop_assert_eq!(garbage, world.rows(b"OG/").len());
    prop_assert_eq!(lacking, world.rows(b"U/").len());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20, ..ProptestConfig::default() })]

    #[test]
    fn two_replicas_with_the_same_operations_have_the_same_root(seed in any::<u64>()) {
        let mut worlds = [TestService::new(), TestService::new()];
        let mut workload = Workload::of_one_session();
        let mut chance = chance(seed);
        let callers: Vec<_> = worlds.iter_mut().map(|world| world.open(OWNER)).collect();
        for round in 0..150_u64 {
            let Call::Execute(bytes) = workload.next(&mut chance) else {
                continue;
            };
            let answers: Vec<_> = worlds
                .iter_mut()
                .zip(&callers)
                .map(|(world, caller)| world.run_bytes(caller, &bytes))
                .collect();
            prop_assert_eq!(&answers[0], &answers[1]);
            workload.learn(&answers[0]);
            // One of them settles its tree now and then; the roots must not show it.
            if round % 7 == 0 {
                worlds[0].root();
            }
        }
        let roots: Vec<_> = worlds.iter_mut().map(TestService::root).collect();
        prop_assert_eq!(roots[0], roots[1]);
    }
}
