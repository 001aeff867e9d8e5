//! What leaves the trash for good, and when.

use super::TrashWorld;
use crate::error::Error;
use crate::genesis::TRASH_SECONDS;
use crate::identity::*;
use crate::limits::TRASH_SECONDS_MAX;
use crate::operation::*;
use crate::reply::{Done, StepDone};
use crate::row::*;
use crate::tests::harness::*;

#[test]
fn a_directory_is_purged_after_what_was_in_it() {
    let mut world = TrashWorld::new();
    let top = world.mkdir(InodeId::ROOT, "top");
    let file = world.old(top, "file");
    world.unlink(top, "file");
    world.rmdir(InodeId::ROOT, "top");
    let refused = world.step(Step::Purge(vec![top]));
    assert_eq!(refused, Err(Error::NotEmpty));
    let purged = world.step(Step::Purge(vec![file, InodeId(999), top]));
    assert_eq!(purged, Ok(StepDone::Purged { inodes: 2 }));
    assert_eq!(world.trashed(), []);
    world.is_consistent();
}

#[test]
fn the_trash_is_purged_when_its_time_is_over_and_the_oldest_first() {
    let mut world = TrashWorld::new();
    let mut files = Vec::new();
    for name in ["a", "b"] {
        files.push(world.old(InodeId::ROOT, name));
    }
    for name in ["b", "a"] {
        world.unlink(InodeId::ROOT, name);
        world.service.wait(1000);
    }
    files.reverse();
    assert_eq!(world.trashed(), files);
    world.service.wait(TRASH_SECONDS - 2001);
    assert_eq!(world.service.drain(), 0);
    world.service.wait(2);
    world.service.drain();
    assert_eq!(world.trashed(), [files[1]]);
    world.service.wait(1000);
    world.service.drain();
    assert_eq!(world.trashed(), []);
    let usage = world.service.rows(&key::trash_size(RealmId::ROOT));
    assert_eq!(usage, []);
    world.is_consistent();
}

#[test]
fn a_large_trash_is_purged_in_bounded_ticks_and_its_content_freed() {
    let mut world = TrashWorld::new();
    let caller = world.caller;
    let allocation = world.service.allocate(&caller, 1024);
    let large = world.create(InodeId::ROOT, "large");
    for part in 0..4_u32 {
        let runs: Vec<_> = (0..30)
            .map(|run| (u64::from(part * 30 + run) * 4000, 4000))
            .collect();
        let step = Step::Commit(commit(large, allocation, part * 30, &runs));
        world.step(step).unwrap();
    }
    let names: Vec<String> = (0..100).map(|name| format!("n{name}")).collect();
    let directory = |name: usize| InodeId(large.0 + 1 + (name % 20) as u64);
    for name in 0..20 {
        world.mkdir(InodeId::ROOT, &format!("d{name}"));
    }
    for (number, name) in names.iter().enumerate() {
        let file = world.create(directory(number), name);
        let counter = 200 + number as u32;
        let step = Step::Commit(commit(file, allocation, counter, &[(0, 4000)]));
        world.step(step).unwrap();
    }
    world.service.wait(61);
    world.unlink(InodeId::ROOT, "large");
    for (number, name) in names.iter().enumerate() {
        world.unlink(directory(number), name);
    }
    assert_eq!(world.trashed().len(), 101);
    world.service.wait(TRASH_SECONDS);
    // The bound of each tick is checked there.
    assert!(world.service.drain() > 2);
    assert_eq!(world.trashed(), []);
    assert_eq!(
        world.service.rows(b"E/").len() + world.service.rows(b"S/").len(),
        0
    );
    world.is_consistent();
}

#[test]
fn the_realms_limit_is_never_a_reason_to_refuse_what_fits_without_the_trash() {
    let mut world = TrashWorld::new();
    let caller = world.caller;
    let mut files = Vec::new();
    for name in ["a", "b", "c"] {
        files.push(world.old(InodeId::ROOT, name));
    }
    let limit = SetQuota {
        realm: RealmId::ROOT,
        of: QuotaOf::Realm,
        // The root and three files.
        limit: Some(Limit {
            bytes: None,
            inodes: Some(4),
        }),
    };
    world
        .service
        .run(&caller, &Operation::SetQuota(limit))
        .unwrap();
    for name in ["a", "b", "c"] {
        world.unlink(InodeId::ROOT, name);
    }
    assert_eq!(world.service.drain(), 0, "within the limit");
    for name in ["d", "e"] {
        world.create(InodeId::ROOT, name);
    }
    world.service.drain();
    assert_eq!(world.trashed(), [files[2]], "the oldest go first");
    world.create(InodeId::ROOT, "f");
    let back = world.restore(files[2], InodeId::ROOT, "c");
    let of = Resource::Inodes;
    assert_eq!(back, Err(Error::RealmQuota { of, remaining: 0 }));
    world.service.drain();
    assert_eq!(world.trashed(), []);
    world.is_consistent();
}

#[test]
fn servers_without_space_keep_nothing_and_give_the_oldest_up() {
    let mut world = TrashWorld::new();
    let names = ["a", "b", "c", "d", "e", "f"];
    for name in names {
        world.old(InodeId::ROOT, name);
    }
    for name in &names[..5] {
        world.unlink(InodeId::ROOT, name);
    }
    assert_eq!(world.trashed().len(), 5);
    world.service.short_of_space = true;
    world.unlink(InodeId::ROOT, "f");
    assert_eq!(world.trashed().len(), 1);
    world.is_consistent();
}

#[test]
fn a_gateway_with_the_right_to_it_has_the_oldest_purged_for_a_full_cloud() {
    let mut world = TrashWorld::new();
    let (caller, alice) = (world.caller, world.service.open(ALICE));
    world.old(InodeId::ROOT, "a");
    world.unlink(InodeId::ROOT, "a");
    let relieve = Operation::RelieveTrash {
        realm: RealmId::ROOT,
    };
    let refused = world.service.run(&alice, &relieve).unwrap_err();
    assert_eq!(refused.error, Error::NoRight);
    let done = world.service.run(&caller, &relieve);
    assert_eq!(done, Ok(Done::TrashRelieved { inodes: 1 }));
    assert_eq!(world.trashed(), []);
}

#[test]
fn an_administrator_sets_how_long_the_trash_is_kept() {
    let mut world = TrashWorld::new();
    let (caller, alice) = (world.caller, world.service.open(ALICE));
    let keep = |seconds| {
        Operation::KeepTrash(KeepTrash {
            realm: RealmId::ROOT,
            seconds,
        })
    };
    let refused = world.service.run(&alice, &keep(1)).unwrap_err();
    assert_eq!(refused.error, Error::NoRight);
    let refused = world
        .service
        .run(&caller, &keep(TRASH_SECONDS_MAX + 1))
        .unwrap_err();
    assert_eq!(refused.error, Error::Invalid);
    world.old(InodeId::ROOT, "a");
    world.unlink(InodeId::ROOT, "a");
    assert_eq!(world.service.run(&caller, &keep(1000)), Ok(Done::TrashKept));
    world.service.wait(999);
    assert_eq!(world.service.drain(), 0);
    world.service.wait(1);
    world.service.drain();
    assert_eq!(world.trashed(), []);
    world.service.run(&caller, &keep(0)).unwrap();
    world.old(InodeId::ROOT, "b");
    world.unlink(InodeId::ROOT, "b");
    assert_eq!(world.trashed(), []);
    world.is_consistent();
}
