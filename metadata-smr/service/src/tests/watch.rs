//! Watches: which queries have one, and that it covers the answer.

use super::harness::*;
use crate::Metadata;
use crate::attributes::{Credentials, Mode};
use crate::identity::{Cookie, InodeId, RealmId};
use crate::operation::{SetAttributes, Step};
use crate::query::{Query, Question};
use bytes::Bytes;
use quorumfs_bft::service::{Caller, Service};
use quorumfs_bft::state::Area;

fn watched(
    world: &TestService,
    caller: &Caller,
    who: &Credentials,
    question: Question,
) -> Option<Vec<Bytes>> {
    let query = Query {
        credentials: who.clone(),
        question,
    };
    let view = world.space.view(Area::Service);
    Metadata.watch(&view, caller, &query.to_bytes()).unwrap()
}

fn listing(inode: InodeId) -> Question {
    Question::Directory {
        inode,
        after: Cookie::START,
        limit: 10,
        by_handle: false,
    }
}

/// Whether the writes since the last call are covered.
fn is_covered(world: &mut TestService, prefixes: &[Bytes]) -> bool {
    let changed = world.space.take_changes();
    world.space.note_changes();
    let covers = |key: &Bytes| prefixes.iter().any(|prefix| key.starts_with(prefix));
    changed.iter().any(covers)
}

#[test]
fn a_watched_directory_tells_of_its_entries_and_of_nothing_else() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let root = Credentials::root();
    let directory = world.mkdir(&caller, InodeId::ROOT, "a");
    let other = world.mkdir(&caller, InodeId::ROOT, "b");
    let prefixes = watched(&world, &caller, &root, listing(directory)).expect("allowed");
    is_covered(&mut world, &prefixes);
    let file = world.create(&caller, directory, "file");
    assert!(is_covered(&mut world, &prefixes), "a name appears");
    let step = Step::Unlink(removal(directory, "file", false));
    let attributes = watched(&world, &caller, &root, Question::Attributes(file));
    let attributes = attributes.expect("allowed");
    world.create(&caller, other, "file");
    assert!(!is_covered(&mut world, &prefixes), "elsewhere");
    world.step(&caller, &root, step).expect("removed");
    let changed = world.space.take_changes();
    let covered = |prefixes: &[Bytes]| {
        let mut keys = changed.iter();
        keys.any(|key| prefixes.iter().any(|prefix| key.starts_with(prefix)))
    };
    assert!(covered(&prefixes), "a name goes");
    assert!(covered(&attributes), "and its inode");
}

#[test]
fn a_forbidden_query_cannot_be_watched() {
    let mut world = TestService::new();
    let (owner, caller) = (world.open(OWNER), world.open(ALICE));
    let private = world.mkdir(&owner, InodeId::ROOT, "private");
    let step = Step::SetAttributes(SetAttributes {
        mode: Some(Mode(0o700)),
        ..SetAttributes::of(private)
    });
    let root = Credentials::root();
    world.step(&owner, &root, step).expect("changed");
    assert_eq!(watched(&world, &caller, &alice(), listing(private)), None);
    assert_eq!(watched(&world, &caller, &root, listing(private)), None);
    assert!(watched(&world, &owner, &root, listing(private)).is_some());
    let attributes = Question::Attributes(private);
    assert!(watched(&world, &caller, &alice(), attributes).is_some());
}

#[test]
fn queries_without_a_covering_row_are_not_watched() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let root = Credentials::root();
    let usage = Question::Usage(RealmId::ROOT);
    assert_eq!(watched(&world, &caller, &root, usage), None);
    let nowhere = InodeId::new(crate::identity::Home(0), 77).unwrap();
    let nothing = Question::Attributes(nowhere);
    assert_eq!(watched(&world, &caller, &root, nothing), None);
    let view = world.space.view(Area::Service);
    assert_eq!(Metadata.watch(&view, &caller, b"rubbish").unwrap(), None);
}
