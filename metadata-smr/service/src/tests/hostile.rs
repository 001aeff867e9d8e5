//! Hostile bytes.

use super::harness::*;
use crate::attributes::{Credentials, Mode, Timestamp};
use crate::error::Error;
use crate::identity::*;
use crate::limits::*;
use crate::operation::*;
use crate::query::{Query, Question};
use crate::reply::{Answer, Response};

use crate::simulation::workload::{Call, Workload};
use proptest::prelude::*;

fn credentials(groups: usize) -> Credentials {
    Credentials {
        groups: vec![Gid(1); groups],
        ..Credentials::root()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_it_panic_or_change_a_thing(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let mut world = TestService::new();
        let caller = world.open(OWNER);
        let root = world.root();
        for first in [None, Some(crate::VERSION)] {
            let sent: Vec<u8> = first.into_iter().chain(bytes.iter().copied()).collect();
            let answer = world.run_bytes(&caller, &sent);
            if Response::from_bytes(&answer).unwrap().0.is_err() {
                prop_assert_eq!(root, world.root());
            }
            Answer::from_bytes(&world.ask_bytes(&caller, &sent)).unwrap();
        }
    }

    /// Valid operations with some bytes changed pass the decoder.
    #[test]
    fn no_changed_operation_makes_it_panic(
        draws in proptest::collection::vec(any::<u64>(), 400),
        flips in proptest::collection::vec((any::<u16>(), any::<u8>()), 1..4),
    ) {
        let mut world = TestService::new();
        let caller = world.open(OWNER);
        world.run(&caller, &mount(Takeover::Refused, crate::row::MountMode::Shared)).unwrap();
        let mut workload = Workload::of_one_session();
        let mut draws = draws.into_iter().cycle();
        let mut chance = move |bound: u64| draws.next().unwrap_or(0) % bound.max(1);
        for _ in 0..30 {
            let call = match chance(3) {
                0 => Call::Execute(super::locks::any_operation(&mut chance).to_bytes()),
                _ => workload.next(&mut chance),
            };
            let (Call::Execute(mut bytes) | Call::Query(mut bytes)) = call;
            let good = world.run_bytes(&caller, &bytes);
            workload.learn(&good);
            for (at, by) in &flips {
                let at = usize::from(*at) % bytes.len();
                bytes[at] ^= by;
            }
            Response::from_bytes(&world.run_bytes(&caller, &bytes)).unwrap();
            Answer::from_bytes(&world.ask_bytes(&caller, &bytes)).unwrap();
        }
        world.close(&caller);
        world.drain();
    }
}

#[test]
fn newer_and_oversized_requests_have_errors_of_their_own() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let error = |bytes: &[u8]| Response::from_bytes(bytes).unwrap().0.unwrap_err().error;
    let newer = [crate::VERSION + 1, 0, 0];
    assert_eq!(
        error(&world.run_bytes(&caller, &newer)),
        Error::NewerVersion
    );
    let large = vec![crate::VERSION; OPERATION_BYTES_MAX + 1];
    assert_eq!(error(&world.run_bytes(&caller, &large)), Error::Malformed);
    assert_eq!(error(&world.run_bytes(&caller, &[])), Error::Malformed);
}

#[test]
fn extreme_numbers_are_refused() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let file = world.create(&caller, InodeId::ROOT, "f");
    let allocation = world.allocate(&caller, 4);
    let size = |size| {
        Step::SetAttributes(SetAttributes {
            size: Some(size),
            ..SetAttributes::of(file)
        })
    };
    let mut far = commit(file, allocation, 0, &[(0, 10)]);
    if let NewContent::Extents(extents) = &mut far.content {
        extents[0].offset = FILE_SIZE_MAX - 5;
        extents[0].slice_offset = u32::MAX;
    }
    let mode = SetAttributes {
        mode: Some(Mode(0xffff)),
        ..SetAttributes::of(file)
    };
    let time = SetAttributes {
        mtime: Some(SetTime::To(Timestamp {
            seconds: i64::MIN,
            nanos: u32::MAX,
        })),
        ..SetAttributes::of(file)
    };
    let long = crate::row::SealedName {
        bytes: vec![1; SEALED_NAME_BYTES_MAX + 1],
        ..crate::simulation::seal_name(InodeId::ROOT, "x")
    };
    let odd = crate::row::SealedName {
        cookie: Cookie(u64::MAX),
        ..crate::simulation::seal_name(InodeId::ROOT, "x")
    };
    let create = |name: crate::row::SealedName| {
        Step::Create(Create {
            place: EntryPlace {
                parent: InodeId::ROOT,
                name: name.into(),
            },
            kind: NewInode::File,
            mode: Mode(0o644),
            umask: Mode(0),
            exclusive: true,
            number: None,
        })
    };
    for step in [
        size(u64::MAX),
        Step::Commit(far),
        Step::SetAttributes(mode),
        Step::SetAttributes(time),
        create(long),
        create(odd),
    ] {
        let refused = world.step(&caller, &Credentials::root(), step.clone());
        assert!(refused.is_err(), "{step:?}");
    }
    world
        .step(&caller, &Credentials::root(), size(FILE_SIZE_MAX))
        .unwrap();
    let steps = vec![size(1); STEPS_MAX + 1];
    let refused = world.steps(&caller, &Credentials::root(), steps);
    assert!(matches!(refused, Err(Error::TooMany { .. })));
    let refused = world.step(&caller, &credentials(GROUPS_MAX + 1), size(1));
    assert!(matches!(refused, Err(Error::TooMany { .. })));
    for count in [0, ALLOCATION_IDS_MAX + 1, u32::MAX] {
        assert!(world.run(&caller, &Operation::Allocate { count }).is_err());
    }
}

#[test]
fn pages_are_bounded_whatever_is_asked_for() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    for name in ["a", "b", "c"] {
        world.create(&caller, InodeId::ROOT, name);
    }
    let mut seen = Vec::new();
    let mut after = Cookie::START;
    loop {
        let question = Question::Directory {
            inode: InodeId::ROOT,
            after,
            limit: 0,
            by_handle: false,
        };
        let Ok(crate::reply::QueryResult::Directory(page)) = world.ask(&caller, question) else {
            panic!()
        };
        assert_eq!(page.entries.len(), 1);
        after = page.entries[0].cookie;
        seen.push(page.entries[0].name.clone());
        if !page.more {
            break;
        }
    }
    seen.sort();
    assert_eq!(seen, [b"a", b"b", b"c"]);
    let query = Query {
        credentials: Credentials::root(),
        question: Question::Directory {
            inode: InodeId::ROOT,
            after: Cookie(u64::MAX),
            limit: u32::MAX,
            by_handle: true,
        },
    };
    Answer::from_bytes(&world.ask_bytes(&caller, &query.to_bytes()))
        .unwrap()
        .0
        .unwrap();
}

#[test]
fn a_ninth_name_with_the_same_hash_is_refused_and_the_others_keep_their_cookies() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let clash = |index: u8| crate::row::SealedName {
        cookie: Cookie::from_prf(77),
        generation: RealmEpoch(0),
        bytes: vec![index; 20],
    };
    let at = |index| EntryPlace {
        parent: InodeId::ROOT,
        name: clash(index).into(),
    };
    let create = |index| {
        Step::Create(Create {
            place: at(index),
            kind: NewInode::File,
            mode: Mode(0o644),
            umask: Mode(0),
            exclusive: true,
            number: None,
        })
    };
    let root = Credentials::root();
    for index in 0..8 {
        world.step(&caller, &root, create(index)).unwrap();
    }
    assert_eq!(
        world.step(&caller, &root, create(8)),
        Err(Error::LimitReached)
    );
    let remove = Remove {
        place: at(0),
        expected: None,
        held: false,
    };
    world.step(&caller, &root, Step::Unlink(remove)).unwrap();
    for index in 1..8_u8 {
        let Ok(crate::reply::QueryResult::Entry { cookie, .. }) =
            world.ask(&caller, Question::Lookup(at(index)))
        else {
            panic!("{index}")
        };
        assert_eq!(cookie.0, (77 << 3) + u64::from(index));
    }
    world.step(&caller, &root, create(8)).unwrap();
}
