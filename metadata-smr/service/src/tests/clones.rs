//! Clones and holes: permissions and bounds.

use super::harness::*;
use crate::attributes::{Credentials, Mode};
use crate::error::Error;
use crate::identity::{InodeId, InodeVersion};
use crate::limits::{CLONE_EXTENTS_MAX, ROWS_WRITTEN_MAX};
use crate::operation::{CloneRange, Commit, NewContent, SetAttributes, Step};
use crate::row::{Row, Slice, key};
use quorumfs_bft::service::Caller;

fn of(inode: InodeId, content: NewContent) -> Step {
    Step::Commit(Commit {
        inode,
        expected: None,
        objects: Vec::new(),
        slices: Vec::new(),
        content,
        size: None,
        mtime: None,
    })
}

/// The steps of the format's fixture.
pub(super) fn hole_and_clone() -> Vec<Step> {
    let hole = NewContent::Hole {
        offset: 4096,
        length: 100,
    };
    let clone = NewContent::Clone(CloneRange {
        offset: 1000,
        length: 5000,
        source: InodeId(3),
        source_offset: 70,
        expected: Some(InodeVersion(9)),
    });
    let (mut hole, mut clone) = (of(InodeId(2), hole), of(InodeId(2), clone));
    if let (Step::Commit(hole), Step::Commit(clone)) = (&mut hole, &mut clone) {
        hole.expected = Some(InodeVersion(8));
        clone.size = Some(6000);
    }
    vec![hole, clone]
}

fn clone(to: InodeId, source: InodeId, length: u64) -> Step {
    of(
        to,
        NewContent::Clone(CloneRange {
            offset: 0,
            length,
            source,
            source_offset: 0,
            expected: None,
        }),
    )
}

/// A file of `count` extents of two bytes, three bytes apart.
fn fragments(world: &mut TestService, caller: &Caller, name: &str, count: u32) -> InodeId {
    let inode = world.create(caller, InodeId::ROOT, name);
    let allocation = world.allocate(caller, count);
    let runs: Vec<(u64, u32)> = (0..u64::from(count)).map(|i| (i * 3, 2)).collect();
    for (part, runs) in (0..).zip(runs.chunks(128)) {
        let step = Step::Commit(commit(inode, allocation, part * 128, runs));
        world.step(caller, &Credentials::root(), step).unwrap();
    }
    inode
}

#[test]
fn a_clone_shares_slices_until_the_last_of_its_files_goes() {
    let mut world = TestService::new();
    let (caller, root) = (world.open(OWNER), Credentials::root());
    let source = fragments(&mut world, &caller, "source", 3);
    let copy = world.create(&caller, InodeId::ROOT, "copy");
    let done = world.step(&caller, &root, clone(copy, source, 8));
    assert!(done.is_ok(), "{done:?}");
    let attributes = world.attributes(&caller, copy).unwrap();
    assert_eq!((attributes.size, attributes.allocated), (8, 6));
    let references = |world: &TestService| -> Vec<u32> {
        let rows = world.rows(b"S/");
        let slices = rows.iter().map(|(_, value)| Slice::from_bytes(value));
        slices.map(|slice| slice.unwrap().references).collect()
    };
    assert_eq!(references(&world), [2, 2, 2]);
    for (name, left) in [("source", vec![1, 1, 1]), ("copy", vec![])] {
        let remove = Step::Unlink(removal(InodeId::ROOT, name, false));
        world.step(&caller, &root, remove).unwrap();
        world.drain();
        assert_eq!(references(&world), left);
    }
    assert_eq!(world.rows(b"OG/").len(), 3);
}

#[test]
fn a_clone_needs_read_permission_on_its_source() {
    let mut world = TestService::new();
    let (owner, root) = (world.open(OWNER), Credentials::root());
    let source = fragments(&mut world, &owner, "secret", 2);
    let copy = world.create(&owner, InodeId::ROOT, "copy");
    let chmod = |inode, mode| {
        Step::SetAttributes(SetAttributes {
            mode: Some(Mode(mode)),
            ..SetAttributes::of(inode)
        })
    };
    let steps = vec![chmod(source, 0o600), chmod(copy, 0o666)];
    world.steps(&owner, &root, steps).unwrap();
    let other = world.open(ALICE);
    let before = world.root();
    let refused = world.step(&other, &alice(), clone(copy, source, 4));
    assert_eq!(refused, Err(Error::Denied));
    assert_eq!(world.root(), before);
    let steps = vec![chmod(source, 0o604)];
    world.steps(&owner, &root, steps).unwrap();
    let done = world.step(&other, &alice(), clone(copy, source, 4));
    assert!(done.is_ok(), "{done:?}");
}

#[test]
fn a_clone_rests_on_its_source_as_it_was_seen() {
    let mut world = TestService::new();
    let (caller, root) = (world.open(OWNER), Credentials::root());
    let source = fragments(&mut world, &caller, "source", 2);
    let copy = world.create(&caller, InodeId::ROOT, "copy");
    let version = world.attributes(&caller, source).unwrap().version;
    let seen = |version| {
        of(
            copy,
            NewContent::Clone(CloneRange {
                offset: 0,
                length: 5,
                source,
                source_offset: 0,
                expected: Some(version),
            }),
        )
    };
    let older = InodeVersion(version.0 - 1);
    let refused = world.step(&caller, &root, seen(older));
    assert_eq!(refused, Err(Error::Changed));
    world.step(&caller, &root, seen(version)).unwrap();
    for length in [0, 6] {
        let refused = world.step(&caller, &root, clone(copy, source, length));
        assert_eq!(refused, Err(Error::BadContent), "{length} bytes of 5");
    }
    let directory = world.mkdir(&caller, InodeId::ROOT, "directory");
    let refused = world.step(&caller, &root, clone(copy, directory, 1));
    assert_eq!(refused, Err(Error::WrongKind));
    let refused = world.step(&caller, &root, clone(copy, InodeId(999), 1));
    assert_eq!(refused, Err(Error::Stale(InodeId(999))));
}

#[test]
fn a_clone_or_hole_over_too_many_extents_is_refused_whole_and_its_parts_are_done() {
    let mut world = TestService::new();
    let (caller, root) = (world.open(OWNER), Credentials::root());
    let source = fragments(&mut world, &caller, "source", 1024);
    let copy = world.create(&caller, InodeId::ROOT, "copy");
    let (before, end) = (world.root(), 1023 * 3 + 2);
    let most = CLONE_EXTENTS_MAX as u64 * 3;
    for length in [end, most + 1] {
        let refused = world.step(&caller, &root, clone(copy, source, length));
        assert_eq!(refused, Err(Error::TooManyRows));
    }
    let hole = |offset, length| of(source, NewContent::Hole { offset, length });
    let refused = world.step(&caller, &root, hole(0, u64::MAX));
    assert_eq!(refused, Err(Error::TooManyRows));
    assert_eq!(world.root(), before);

    let rows = world.rows(b"");
    world
        .step(&caller, &root, clone(copy, source, most))
        .unwrap();
    assert!(changed_rows(&rows, &world.rows(b"")) <= ROWS_WRITTEN_MAX);
    for part in 0..4 {
        let rows = world.rows(b"");
        world.step(&caller, &root, hole(part * 768, 768)).unwrap();
        assert!(changed_rows(&rows, &world.rows(b"")) <= ROWS_WRITTEN_MAX);
    }
    world.drain();
    let found = world.attributes(&caller, source).unwrap();
    assert_eq!((found.size, found.allocated), (end, 0));
    assert_eq!(world.rows(&key::extents(source)).len(), 0);
    assert_eq!(world.rows(&key::extents(copy)).len(), CLONE_EXTENTS_MAX);
    assert_eq!(world.rows(b"S/").len(), CLONE_EXTENTS_MAX);
}
