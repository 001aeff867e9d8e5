//! Permissions: principals, sessions, mounts, allocations.

use super::harness::*;
use crate::Metadata;
use crate::attributes::{Access, Credentials, Mode};
use crate::error::Error;
use crate::identity::{AllocationId, Gid, InodeId, RealmId, Uid};
use crate::limits::{PRINCIPAL_SESSIONS_MAX, SESSION_ALLOCATIONS_MAX};
use crate::operation::{Create, NewInode, Operation, SetAttributes, Step, Takeover};
use crate::query::Question;
use crate::reply::{Done, QueryResult};
use crate::row::MountMode;
use crate::simulation::place;
use quorumfs_bft::service::Service;
use quorumfs_bft::state::Area;

const REALM: RealmId = RealmId::ROOT;

fn mount(takeover: Takeover) -> Operation {
    Operation::MountRealm {
        realm: REALM,
        takeover,
        mode: MountMode::Exclusive,
        label: "host".into(),
    }
}

fn chmod(inode: InodeId, mode: u16) -> Step {
    Step::SetAttributes(SetAttributes {
        mode: Some(Mode(mode)),
        ..SetAttributes::of(inode)
    })
}

#[test]
fn only_a_principal_with_the_right_to_reconcile_may_copy_the_rows() {
    let world = TestService::new();
    let may = |world: &TestService, principal| {
        let view = world.space.view(Area::Service);
        Metadata.may_copy(&view, &principal).unwrap()
    };
    assert!(may(&world, OWNER));
    assert!(!may(&world, ALICE), "no right");
    assert!(!may(&world, STRANGER), "no principal");
}

#[test]
fn only_principals_open_sessions_and_not_without_end() {
    let mut world = TestService::new();
    assert!(world.try_open(STRANGER).is_none());
    let first = world.open(OWNER);
    for _ in 1..PRINCIPAL_SESSIONS_MAX {
        world.open(OWNER);
    }
    assert!(world.try_open(OWNER).is_none());
    world.close(&first);
    assert!(world.try_open(OWNER).is_some());
}

#[test]
fn a_principal_speaks_only_for_its_own() {
    let mut world = TestService::new();
    let caller = world.open(ALICE);
    let strangers = [
        Credentials::root(),
        Credentials::user(Uid(1000), Gid(0)),
        Credentials {
            groups: vec![Gid(4)],
            ..alice()
        },
    ];
    for who in strangers {
        let step = chmod(InodeId::ROOT, 0o777);
        assert_eq!(world.step(&caller, &who, step), Err(Error::NoRight));
        let question = Question::Attributes(InodeId::ROOT);
        assert_eq!(world.ask_as(&caller, who, question), Err(Error::NoRight));
    }
    let step = chmod(InodeId::ROOT, 0o777);
    assert_eq!(
        world.step(&caller, &alice(), step),
        Err(Error::NotPermitted)
    );
    let create = Step::Create(Create {
        place: place(InodeId::ROOT, "f"),
        kind: NewInode::File,
        mode: Mode(0o644),
        umask: Mode(0),
        exclusive: true,
        number: None,
    });
    assert_eq!(world.step(&caller, &alice(), create), Err(Error::Denied));
    let question = Question::Access {
        inode: InodeId::ROOT,
        access: Access::READ,
    };
    let allowed = world.ask_as(&caller, alice(), question);
    assert_eq!(allowed, Ok(QueryResult::Allowed));
}

#[test]
fn a_fenced_session_writes_nothing_more() {
    let mut world = TestService::new();
    let (first, second) = (world.open(OWNER), world.open(OWNER));
    world.run(&first, &mount(Takeover::Refused)).unwrap();
    world.run(&first, &mount(Takeover::Refused)).unwrap();
    let file = world.create(&first, InodeId::ROOT, "f");
    let allocation = world.allocate(&first, 4);
    let refused = world
        .run(&second, &mount(Takeover::Refused))
        .unwrap_err()
        .error;
    assert!(matches!(refused, Error::Mounted { session, .. } if session == first.session));

    let done = world.run(&second, &mount(Takeover::OfAny)).unwrap();
    assert!(matches!(done, Done::Mounted { fenced, .. } if fenced == [first.session]));
    let root = world.root();
    let late = [
        mount(Takeover::OfAny),
        Operation::Allocate { count: 1 },
        Operation::CloseAllocation { allocation },
        Operation::UnmountRealm { realm: REALM },
        crate::simulation::compound(
            Credentials::root(),
            Default::default(),
            vec![Step::Commit(commit(file, allocation, 0, &[(0, 10)]))],
        ),
    ];
    for operation in late {
        let refused = world.run(&first, &operation).unwrap_err();
        let by = second.session;
        assert_eq!(refused.error, Error::Fenced { by });
        assert_eq!(refused.errno(), crate::error::Errno::ESTALE);
        assert_eq!(root, world.root());
    }
    // Its end removes nothing of the session that took over.
    world.close(&first);
    let third = world.open(OWNER);
    assert!(world.run(&third, &mount(Takeover::Refused)).is_err());
    let realm = REALM;
    world
        .run(&second, &Operation::UnmountRealm { realm })
        .unwrap();
    world.run(&third, &mount(Takeover::Refused)).unwrap();
    world.close(&third);
    let fourth = world.open(OWNER);
    world.run(&fourth, &mount(Takeover::Refused)).unwrap();
}

#[test]
fn a_takeover_from_a_dead_mount_fences_that_mount_alone() {
    let mut world = TestService::new();
    let (dead, other, next) = (world.open(OWNER), world.open(OWNER), world.open(OWNER));
    world.run(&dead, &mount(Takeover::Refused)).unwrap();
    let from_dead = mount(Takeover::Of(dead.session));
    let from_other = mount(Takeover::Of(other.session));
    let refused = world.run(&next, &from_other).unwrap_err().error;
    assert!(matches!(refused, Error::Mounted { session, .. } if session == dead.session));
    // Another session takes it over in the meantime, and is alive.
    world.run(&other, &mount(Takeover::OfAny)).unwrap();
    let refused = world.run(&next, &from_dead).unwrap_err().error;
    assert!(matches!(refused, Error::Mounted { session, .. } if session == other.session));
    let done = world.run(&next, &from_other).unwrap();
    assert!(matches!(done, Done::Mounted { fenced, .. } if fenced == [other.session]));
    // Without a holder no session is fenced.
    world
        .run(&next, &Operation::UnmountRealm { realm: REALM })
        .unwrap();
    let third = world.open(OWNER);
    let done = world.run(&third, &from_dead).unwrap();
    assert!(matches!(done, Done::Mounted { fenced, .. } if fenced.is_empty()));
}

#[test]
fn ids_are_used_once_and_only_by_their_session() {
    let mut world = TestService::new();
    let (first, second) = (world.open(OWNER), world.open(OWNER));
    let root = Credentials::root();
    let file = world.create(&first, InodeId::ROOT, "f");
    let allocation = world.allocate(&first, 9);
    let write = |allocation, counter| Step::Commit(commit(file, allocation, counter, &[(0, 10)]));
    let object = commit(file, allocation, 0, &[(0, 10)]).objects[0].id;
    let refused = world.step(&second, &root, write(allocation, 0));
    assert_eq!(refused, Err(Error::ObjectNotOwned(object)));
    assert!(world.step(&first, &root, write(allocation, 9)).is_err());
    let unknown = AllocationId(77);
    assert!(world.step(&first, &root, write(unknown, 0)).is_err());

    world.step(&first, &root, write(allocation, 0)).unwrap();
    let again = world.step(&first, &root, write(allocation, 0));
    assert_eq!(again, Err(Error::ObjectUsed(object)));

    // The slice alone, in an object of the same session: its id is burned as well, even after its
    // end.
    let mut alone = commit(file, allocation, 0, &[(0, 10)]);
    alone.objects.clear();
    let slice = alone.slices[0].id;
    let again = world.step(&first, &root, Step::Commit(alone.clone()));
    assert_eq!(again, Err(Error::SliceUsed(slice)));
    world.step(&first, &root, write(allocation, 1)).unwrap();
    assert_eq!(world.rows(b"OG/").len(), 1, "the first object is replaced");
    let again = world.step(&first, &root, Step::Commit(alone));
    assert_eq!(again, Err(Error::SliceUsed(slice)));

    // Another session's slice cannot be named.
    let own = world.allocate(&second, 4);
    let mut stolen = commit(file, own, 0, &[(0, 10)]);
    stolen.objects.clear();
    stolen.slices.clear();
    if let crate::operation::NewContent::Extents(extents) = &mut stolen.content {
        extents[0].slice.allocation = allocation;
        extents[0].slice.counter = 1;
    }
    let refused = world.step(&second, &root, Step::Commit(stolen));
    assert!(matches!(refused, Err(Error::SliceNotOwned(_))));

    let close = Operation::CloseAllocation { allocation };
    assert!(world.run(&second, &close).is_err());
    world.run(&first, &close).unwrap();
    let refused = world.step(&first, &root, write(allocation, 2));
    assert!(matches!(refused, Err(Error::ObjectNotOwned(_))));
    for _ in 0..SESSION_ALLOCATIONS_MAX {
        world.allocate(&first, 1);
    }
    let refused = world.run(&first, &Operation::Allocate { count: 1 });
    assert_eq!(refused.unwrap_err().error, Error::TooManyAllocations);
    world.close(&first);
    assert_eq!(world.rows(b"NA/").len(), 1, "they end with their session");
}

#[test]
fn placements_are_changed_by_their_writer_or_with_the_right_to_reconcile() {
    let mut world = TestService::new();
    let owner = world.open(OWNER);
    let file = world.create(&owner, InodeId::ROOT, "f");
    let allocation = world.allocate(&owner, 4);
    let write = commit(file, allocation, 0, &[(0, 10)]);
    let object = write.objects[0].id;
    let step = Step::Commit(write);
    world.step(&owner, &Credentials::root(), step).unwrap();
    let shard = crate::operation::PlacedShard {
        object,
        shard: crate::identity::ShardIndex(3),
        cloud: crate::identity::CloudIndex(3),
        generation: 0,
        attempt: 0,
        receipt: None,
    };
    let confirm = Operation::ConfirmPlaced {
        shards: vec![shard],
        checked: vec![],
    };
    let withdraw = Operation::WithdrawPlaced {
        shards: vec![shard],
    };
    let caller = world.open(ALICE);
    for operation in [&confirm, &withdraw] {
        let refused = world.run(&caller, operation).unwrap_err();
        assert_eq!(refused.error, Error::NoRight);
    }
    let later = world.open(OWNER);
    let done = world.run(&later, &confirm);
    assert_eq!(done, Ok(Done::Confirmed { completed: 1 }));
    for who in [&owner, &later] {
        let done = world.run(who, &withdraw);
        assert_eq!(done, Ok(Done::Withdrawn { shards: 1 }));
        world.run(who, &confirm).unwrap();
    }
}

#[test]
fn a_fenced_session_may_ask_only_for_its_identity() {
    let mut world = TestService::new();
    let (first, second) = (world.open(OWNER), world.open(OWNER));
    let inode = world.create(&first, InodeId::ROOT, "file");
    world.run(&first, &mount(Takeover::Refused)).unwrap();
    assert!(world.attributes(&first, inode).is_some());
    world.run(&second, &mount(Takeover::OfAny)).unwrap();
    for question in [
        Question::Attributes(inode),
        Question::Lookup(place(InodeId::ROOT, "file")),
        Question::UnderReplicated {
            after: None,
            limit: 1,
        },
        Question::Usage(REALM),
    ] {
        let refused = world.ask(&first, question);
        let by = second.session;
        assert_eq!(refused, Err(Error::Fenced { by }));
    }
    for question in [Question::WhoAmI, Question::Volume, Question::Realm(REALM)] {
        world.ask(&first, question).unwrap();
    }
    assert!(world.attributes(&second, inode).is_some());
}

#[test]
fn a_truncation_or_chown_by_a_group_member_keeps_the_set_gid_bit_without_group_execute() {
    let member = Credentials {
        groups: vec![Gid(50)],
        ..alice()
    };
    for (who, left) in [(alice(), 0o666), (member, 0o2666)] {
        let mut world = TestService::new();
        let owner = world.open(OWNER);
        let inode = world.create(&owner, InodeId::ROOT, "file");
        let give = Step::SetAttributes(SetAttributes {
            uid: Some(who.uid),
            gid: Some(Gid(50)),
            ..SetAttributes::of(inode)
        });
        let cut = Step::SetAttributes(SetAttributes {
            size: Some(0),
            ..SetAttributes::of(inode)
        });
        let keep = Step::SetAttributes(SetAttributes {
            uid: Some(who.uid),
            ..SetAttributes::of(inode)
        });
        world.step(&owner, &Credentials::root(), give).unwrap();
        for step in [cut, keep] {
            let bits = chmod(inode, 0o6666);
            world.step(&owner, &Credentials::root(), bits).unwrap();
            world.step(&owner, &who, step).unwrap();
            let found = world.attributes(&owner, inode).unwrap();
            assert_eq!(found.mode, Mode(left));
        }
    }
}

#[test]
fn set_id_bits_are_cleared_by_every_write_but_the_superusers() {
    for (principal, expected) in [(OWNER, 0o4755), (ALICE, 0o755)] {
        let mut world = TestService::new();
        let owner = world.open(OWNER);
        let inode = world.create(&owner, InodeId::ROOT, "program");
        let give = Step::SetAttributes(SetAttributes {
            uid: Some(Uid(1000)),
            ..SetAttributes::of(inode)
        });
        let steps = vec![give, chmod(inode, 0o4755)];
        world.steps(&owner, &Credentials::root(), steps).unwrap();
        let caller = world.open(principal);
        let allocation = world.allocate(&caller, 8);
        let who = if principal == ALICE {
            alice()
        } else {
            Credentials::root()
        };
        let step = Step::Commit(commit(inode, allocation, 0, &[(0, 10)]));
        world.step(&caller, &who, step).unwrap();
        let found = world.attributes(&owner, inode).unwrap();
        assert_eq!(found.mode, Mode(expected));
    }
}
