//! Growth of the servers' state by other things than content, and its bounds.

use super::*;
use crate::acl::{Acl, AclKind, Named};
use crate::attributes::Namespace;
use crate::identity::{AttributeHash, RealmEpoch};

/// State that a user can create apart from content: names, targets, attributes, lists.
#[test]
fn symlinks_attributes_and_directories_count_too() {
    let (mut world, caller) = shared();
    let who = user(7);
    world.quota(&caller, QuotaOf::User(Uid(7)), bytes(3 * NAME));
    let file = world
        .make_as(&caller, &who, "file", NewInode::File)
        .unwrap();
    let used = |world: &TestService| kept(world).0[&Uid(7)].bytes;
    assert_eq!(used(&world), NAME);
    let full = |tried: Result<(), Error>| {
        assert!(matches!(tried, Err(Error::UserQuota { .. })), "{tried:?}");
    };
    let link = |target: usize| NewInode::Symlink {
        length: 1,
        target: Sealed {
            epoch: RealmEpoch(0),
            bytes: vec![1; target],
        },
    };
    full(world.make_as(&caller, &who, "link", link(1025)).map(drop));
    world.make_as(&caller, &who, "link", link(400)).unwrap();
    assert_eq!(used(&world), 2 * NAME + 400);
    let attribute = |bytes| {
        Step::SetExtended(SetExtended {
            place: AttributePlace {
                inode: file,
                namespace: Namespace::User,
                generation: RealmEpoch(0),
                hash: AttributeHash([1; 16]),
            },
            name: vec![1; 20],
            value: Sealed {
                epoch: RealmEpoch(0),
                bytes: vec![2; bytes],
            },
            mode: SetMode::Any,
        })
    };
    full(world.step(&caller, &who, attribute(100)).map(drop));
    world.step(&caller, &who, attribute(80)).unwrap();
    assert_eq!(used(&world), 2 * NAME + 500);
    let another = |name: &str| Step::Link {
        inode: file,
        place: place(InodeId::ROOT, name),
    };
    full(world.step(&caller, &who, another("other")).map(drop));
    let list = |users: u32| {
        Step::SetAcl(SetAcl {
            inode: file,
            kind: AclKind::Access,
            acl: Some(Acl {
                owner: 6,
                group: 4,
                other: 4,
                mask: Some(6),
                named: Named {
                    users: (0..users).map(|uid| (Uid(uid), 4)).collect(),
                    groups: Vec::new(),
                },
            }),
        })
    };
    full(world.step(&caller, &who, list(2)).map(drop));
    world.step(&caller, &who, list(1)).unwrap();
    assert_eq!(used(&world), 2 * NAME + 508);
    counts(&world).unwrap();
}

/// The owner pays for each name, so a user without write permission creates none.
#[test]
fn a_hard_link_needs_write_permission_on_the_file() {
    let (mut world, caller) = shared();
    let file = world
        .make_as(&caller, &user(7), "file", NewInode::File)
        .unwrap();
    let link = |world: &mut TestService, uid, name: &str| {
        let place = place(InodeId::ROOT, name);
        let step = Step::Link { inode: file, place };
        world.step(&caller, &user(uid), step).map(drop)
    };
    let mode = |world: &mut TestService, mode| {
        let set = SetAttributes {
            mode: Some(Mode(mode)),
            ..SetAttributes::of(file)
        };
        let step = Step::SetAttributes(set);
        world.step(&caller, &user(7), step).unwrap();
    };
    mode(&mut world, 0o644);
    assert_eq!(link(&mut world, 8, "a"), Err(Error::NotPermitted));
    assert_eq!(link(&mut world, 7, "b"), Ok(()));
    mode(&mut world, 0o666);
    assert_eq!(link(&mut world, 8, "c"), Ok(()));
    for gives_rights in [0o4666, 0o2676] {
        mode(&mut world, gives_rights);
        assert_eq!(link(&mut world, 8, "d"), Err(Error::NotPermitted));
    }
    assert_eq!(link(&mut world, 0, "e"), Ok(()));
    assert_eq!(kept(&world).0[&Uid(7)].bytes, 4 * NAME);
}

#[test]
fn nearly_full_disks_refuse_growth_and_nothing_else() {
    let (mut world, caller) = shared();
    let root = Credentials::root();
    let file = world.create(&caller, InodeId::ROOT, "file");
    let allocation = world.allocate(&caller, 8);
    let write = |first, runs: &[(u64, u32)]| Step::Commit(commit(file, allocation, first, runs));
    world.step(&caller, &root, write(0, &[(0, 1000)])).unwrap();
    world.short_of_space = true;
    let full = Err(Error::ServersFull);
    assert_eq!(Error::ServersFull.errno(), Errno::ENOSPC);
    let made = world.make_as(&caller, &root, "more", NewInode::File);
    assert_eq!(made, Err(Error::ServersFull), "the superuser, too");
    let grown = world.step(&caller, &root, write(1, &[(1000, 1)]));
    assert_eq!(grown.map(drop), full);
    world.step(&caller, &root, write(2, &[(0, 1000)])).unwrap();
    let rename = Step::Rename(rename_of((InodeId::ROOT, "file"), (InodeId::ROOT, "other")));
    world.step(&caller, &root, rename).unwrap();
    let gone = Step::Unlink(removal(InodeId::ROOT, "other", false));
    world.step(&caller, &root, gone).unwrap();
    world.drain();
    world.short_of_space = false;
    world.create(&caller, InodeId::ROOT, "more");
    counts(&world).unwrap();
}
