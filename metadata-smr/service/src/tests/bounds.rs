//! Large operations: refused completely, or left to the ticks.

use super::harness::*;
use crate::attributes::Credentials;
use crate::error::Error;
use crate::identity::InodeId;
use crate::limits::ROWS_WRITTEN_MAX;
use crate::operation::{NewContent, SetAttributes, Step};
use crate::query::Question;
use crate::reply::QueryResult;
use quorumfs_bft::service::Caller;

/// Writes `count` extents of 10 bytes, 10 bytes apart, in commits of at most 150.
fn many_extents(world: &mut TestService, caller: &Caller, inode: InodeId, count: u32) {
    let allocation = world.allocate(caller, 1024);
    let runs: Vec<(u64, u32)> = (0..count).map(|i| (u64::from(i) * 20, 10)).collect();
    for (first, part) in (0..).step_by(150).zip(runs.chunks(150)) {
        let before = world.rows(b"");
        let step = Step::Commit(commit(inode, allocation, first, part));
        world.step(caller, &Credentials::root(), step).unwrap();
        let changed = changed_rows(&before, &world.rows(b""));
        assert!(changed <= ROWS_WRITTEN_MAX, "{changed}");
    }
}

fn truncate(
    world: &mut TestService,
    caller: &Caller,
    inode: InodeId,
    size: u64,
) -> Result<(), Error> {
    let set = SetAttributes {
        size: Some(size),
        ..SetAttributes::of(inode)
    };
    let step = Step::SetAttributes(set);
    world.step(caller, &Credentials::root(), step).map(|_| ())
}

#[test]
fn a_long_tail_goes_by_ticks_and_no_old_byte_comes_to_light_meanwhile() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let inode = world.create(&caller, InodeId::ROOT, "large");
    many_extents(&mut world, &caller, inode, 600);
    let before = world.rows(b"");
    truncate(&mut world, &caller, inode, 205).unwrap();
    let changed = changed_rows(&before, &world.rows(b""));
    assert!(
        changed < 20,
        "{changed} rows for a truncation that is queued"
    );

    assert_eq!(
        truncate(&mut world, &caller, inode, 4000),
        Err(Error::Reaping),
        "growing would show old bytes"
    );
    let allocation = world.allocate(&caller, 8);
    let far = Step::Commit(commit(inode, allocation, 0, &[(5000, 10)]));
    let refused = world.step(&caller, &Credentials::root(), far.clone());
    assert_eq!(refused, Err(Error::Reaping));

    assert!(world.drain() > 1);
    truncate(&mut world, &caller, inode, 4000).unwrap();
    let question = Question::Content {
        inode,
        from: 0,
        to: u64::MAX,
        limit: 256,
    };
    let Ok(QueryResult::Content(page)) = world.ask(&caller, question) else {
        panic!()
    };
    assert_eq!(page.extents.len(), 11, "0, 20, …, 180 and half of 200");
    assert_eq!(page.attributes.allocated, 105);
    world.step(&caller, &Credentials::root(), far).unwrap();
}

#[test]
fn a_short_tail_does_not_wait_for_long_ones() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    for name in ["large", "larger"] {
        let inode = world.create(&caller, InodeId::ROOT, name);
        many_extents(&mut world, &caller, inode, 1_000);
        truncate(&mut world, &caller, inode, 0).unwrap();
    }
    let short = world.create(&caller, InodeId::ROOT, "short");
    many_extents(&mut world, &caller, short, 60);
    truncate(&mut world, &caller, short, 5).unwrap();
    assert_eq!(
        truncate(&mut world, &caller, short, 4000),
        Err(Error::Reaping)
    );
    let mut ticks = 0;
    while truncate(&mut world, &caller, short, 4000).is_err() {
        world.tick();
        ticks += 1;
        assert!(ticks < 10, "it waits for the others");
    }
    assert!(world.drain() > 10, "the others are not done yet");
    assert_eq!(world.rows(b"T/").len(), 0);
}

#[test]
fn a_large_file_is_out_of_sight_at_once_and_leaves_nothing_in_the_end() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let inode = world.create(&caller, InodeId::ROOT, "large");
    many_extents(&mut world, &caller, inode, 700);
    let remove = Step::Unlink(removal(InodeId::ROOT, "large", false));
    world.step(&caller, &Credentials::root(), remove).unwrap();
    assert_eq!(world.attributes(&caller, inode), None);
    assert_eq!(world.rows(b"E/").len(), 700);
    world.drain();
    assert_eq!(world.rows(b"E/").len() + world.rows(b"S/").len(), 0);
    assert_eq!(
        world.rows(b"OG/").len(),
        700,
        "every object can be collected"
    );
}

#[test]
fn an_overwrite_of_too_many_extents_is_refused_whole_and_its_parts_are_done() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let inode = world.create(&caller, InodeId::ROOT, "fragments");
    let allocation = world.allocate(&caller, 1024);
    for part in 0..8_u32 {
        let runs: Vec<(u64, u32)> = (0..128)
            .map(|i| (u64::from(part * 128 + i) * 3, 2))
            .collect();
        let step = Step::Commit(commit(inode, allocation, part * 128, &runs));
        world.step(&caller, &Credentials::root(), step).unwrap();
    }
    let allocation = world.allocate(&caller, 8);
    let whole = commit(inode, allocation, 0, &[(0, 3072)]);
    let root = world.root();
    let refused = world.step(&caller, &Credentials::root(), Step::Commit(whole.clone()));
    assert_eq!(refused, Err(Error::TooManyRows));
    assert_eq!(root, world.root());

    let NewContent::Extents(extents) = &whole.content else {
        panic!()
    };
    for part in 0..4_u32 {
        let mut piece = whole.clone();
        if part > 0 {
            piece.objects.clear();
            piece.slices.clear();
        }
        let mut extent = extents[0];
        extent.offset = u64::from(part) * 768;
        extent.slice_offset = part * 768;
        extent.length = 768;
        piece.content = NewContent::Extents(vec![extent]);
        let before = world.rows(b"");
        let step = Step::Commit(piece);
        world.step(&caller, &Credentials::root(), step).unwrap();
        assert!(changed_rows(&before, &world.rows(b"")) <= ROWS_WRITTEN_MAX);
    }
    world.drain();
    assert_eq!(world.rows(b"E/").len(), 4);
    assert_eq!(world.rows(b"S/").len(), 1);
}

#[test]
fn scattered_overwrites_read_only_the_extents_that_they_touch() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let inode = world.create(&caller, InodeId::ROOT, "database");
    many_extents(&mut world, &caller, inode, 1000);
    let allocation = world.allocate(&caller, 128);
    let runs: Vec<(u64, u32)> = (0..100).map(|i| (i * 200 + 4, 2)).collect();
    let step = Step::Commit(commit(inode, allocation, 0, &runs));
    world.step(&caller, &Credentials::root(), step).unwrap();
    assert_eq!(world.rows(b"E/").len(), 1200);
}

#[test]
fn a_file_that_was_cut_to_nothing_covers_nothing_at_once() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let inode = world.create(&caller, InodeId::ROOT, "log");
    many_extents(&mut world, &caller, inode, 600);
    truncate(&mut world, &caller, inode, 0).unwrap();
    let allocated = |world: &mut TestService| world.attributes(&caller, inode).unwrap().allocated;
    assert!(!world.rows(b"E/").is_empty());
    assert_eq!(allocated(&mut world), 0);
    world.drain();
    assert_eq!(allocated(&mut world), 0);
}

#[test]
fn orphans_go_with_their_session_by_ticks() {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    for index in 0..120 {
        let name = format!("file {index}");
        // At most eight names share a hash: a directory for each separates them.
        let directory = world.mkdir(&caller, InodeId::ROOT, "d");
        world.create(&caller, directory, &name);
        for step in [
            Step::Unlink(removal(directory, &name, true)),
            Step::RemoveDirectory(removal(InodeId::ROOT, "d", true)),
        ] {
            world.step(&caller, &Credentials::root(), step).unwrap();
        }
    }
    assert_eq!(world.rows(b"NO/").len(), 240);
    world.close(&caller);
    world.drain();
    assert_eq!(world.rows(b"NO/").len(), 0);
    assert_eq!(world.rows(b"I/").len(), 1);
}
