//! Which mounts can share a realm, and what a takeover fences.

use super::harness::*;
use crate::error::Error;
use crate::identity::{MountEpoch, RealmId};
use crate::limits::MOUNTS_MAX;
use crate::operation::{Operation, Takeover};
use crate::query::Question;
use crate::reply::{Done, QueryResult};
use crate::row::{Bell, Mount, Row, key};
use quorumfs_bft::identity::SessionId;
use quorumfs_bft::service::Caller;

const REALM: RealmId = RealmId::ROOT;

/// The sessions that a mount fences, or the session that it is refused for.
fn try_mount(
    world: &mut TestService,
    caller: &Caller,
    takeover: Takeover,
    alone: bool,
) -> Result<Vec<SessionId>, SessionId> {
    let before = world.rows(b"R");
    match world.run(caller, &mount(takeover, alone)) {
        Ok(Done::Mounted { fenced, .. }) => Ok(fenced),
        Err(refusal) => {
            assert_eq!(before, world.rows(b"R"), "refused, and something changed");
            match refusal.error {
                Error::Mounted { session, .. } => Err(session),
                other => panic!("{other:?}"),
            }
        }
        other => panic!("{other:?}"),
    }
}

fn sessions<const N: usize>(world: &mut TestService) -> [Caller; N] {
    [(); N].map(|()| world.open(OWNER))
}

fn mounted(world: &TestService) -> Vec<(SessionId, bool)> {
    let rows = world.rows(&key::mounts(REALM)).into_iter();
    let mounts = rows.map(|(_, bytes)| Mount::from_bytes(&bytes).unwrap());
    let mounts: Vec<_> = mounts.map(|mount| (mount.session, mount.alone)).collect();
    let bell = world.rows(&key::bell(REALM)).remove(0).1;
    let counted = Bell::from_bytes(&bell).unwrap().mounts;
    assert_eq!(usize::try_from(counted).unwrap(), mounts.len());
    mounts
}

#[test]
fn mounts_share_unless_one_wants_to_be_alone() {
    let mut world = TestService::new();
    let [a, b, c] = sessions(&mut world);
    let refused = Takeover::Refused;
    assert_eq!(try_mount(&mut world, &a, refused, false), Ok(vec![]));
    assert_eq!(try_mount(&mut world, &b, refused, false), Ok(vec![]));
    assert_eq!(try_mount(&mut world, &c, refused, true), Err(a.session));
    let both = vec![(a.session, false), (b.session, false)];
    assert_eq!(mounted(&world), both);
    for caller in [&a, &b] {
        world
            .run(caller, &Operation::UnmountRealm { realm: REALM })
            .unwrap();
    }
    assert_eq!(try_mount(&mut world, &c, refused, true), Ok(vec![]));
    assert_eq!(try_mount(&mut world, &a, refused, true), Err(c.session));
    assert_eq!(try_mount(&mut world, &a, refused, false), Err(c.session));
    world.close(&c);
    assert_eq!(try_mount(&mut world, &a, refused, false), Ok(vec![]));
    assert_eq!(mounted(&world), vec![(a.session, false)]);
}

#[test]
fn a_mount_changes_from_alone_to_shared_and_back_and_keeps_its_number() {
    let mut world = TestService::new();
    let [a, b] = sessions(&mut world);
    let epoch = |done| match done {
        Ok(Done::Mounted { epoch, .. }) => epoch,
        other => panic!("{other:?}"),
    };
    for alone in [true, true, false, false] {
        let done = world.run(&a, &mount(Takeover::Refused, alone));
        assert_eq!(epoch(done), MountEpoch(1));
        assert_eq!(mounted(&world), vec![(a.session, alone)]);
    }
    assert_eq!(
        try_mount(&mut world, &b, Takeover::Refused, false),
        Ok(vec![])
    );
    let alone = try_mount(&mut world, &a, Takeover::Refused, true);
    assert_eq!(alone, Err(b.session));
    world.close(&b);
    let done = world.run(&a, &mount(Takeover::Refused, true));
    assert_eq!(epoch(done), MountEpoch(1));
    assert_eq!(mounted(&world), vec![(a.session, true)]);
}

#[test]
fn a_takeover_fences_whom_it_names_or_all_that_cannot_share() {
    let mut world = TestService::new();
    let [a, b, c, d, e] = sessions(&mut world);
    let of = |caller: &Caller| Takeover::Of(caller.session);
    for caller in [&a, &b] {
        try_mount(&mut world, caller, Takeover::Refused, false).unwrap();
    }
    // Sharing: only the one that is named, which could have stayed.
    assert_eq!(
        try_mount(&mut world, &c, of(&a), false),
        Ok(vec![a.session])
    );
    let asked = world.ask(&a, Question::Mounted(REALM));
    let by = c.session;
    assert_eq!(asked, Err(Error::Fenced { by }));
    // Alone: refused while one remains that is not named, and then nothing is fenced.
    assert_eq!(try_mount(&mut world, &d, of(&b), true), Err(c.session));
    assert_eq!(
        mounted(&world),
        vec![(b.session, false), (c.session, false)]
    );
    let both = vec![b.session, c.session];
    let any = Takeover::OfAny;
    assert_eq!(try_mount(&mut world, &d, any, false), Ok(vec![]));
    let all = [both, vec![d.session]].concat();
    assert_eq!(try_mount(&mut world, &e, any, true), Ok(all));
    assert_eq!(mounted(&world), vec![(e.session, true)]);
    let f = world.open(OWNER);
    assert_eq!(try_mount(&mut world, &f, of(&a), false), Err(e.session));
    assert_eq!(try_mount(&mut world, &f, any, false), Ok(vec![e.session]));
}

#[test]
fn a_realm_has_a_bounded_number_of_mounts_and_all_can_be_fenced_at_once() {
    let mut world = TestService::new();
    for _ in 0..MOUNTS_MAX {
        let caller = world.open(OWNER);
        for _ in 0..16 {
            world.allocate(&caller, 1);
        }
        try_mount(&mut world, &caller, Takeover::Refused, false).unwrap();
    }
    let last = world.open(OWNER);
    let refused = world.run(&last, &mount(Takeover::Refused, false));
    assert_eq!(refused.unwrap_err().error, Error::LimitReached);
    let fenced = try_mount(&mut world, &last, Takeover::OfAny, true).unwrap();
    assert_eq!(fenced.len(), MOUNTS_MAX);
    assert_eq!(mounted(&world), vec![(last.session, true)]);
    assert_eq!(world.rows(b"NA/").len(), 0);
}

#[test]
fn that_a_realm_has_no_mount_depends_on_its_bell_alone() {
    let mut world = TestService::new();
    let [a, b] = sessions(&mut world);
    let unmount = Operation::UnmountRealm { realm: REALM };
    try_mount(&mut world, &a, Takeover::Refused, false).unwrap();
    world.run(&a, &unmount).unwrap();
    let until = world.sequence;
    let directory = crate::identity::InodeId::ROOT;
    world.create(&b, directory, "f");
    let asked = world.ask(&b, Question::Mounted(REALM));
    assert_eq!(asked, Ok(QueryResult::Mounted(None)));
    let question = super::versions::version_of(&world, &b, Question::Mounted(REALM));
    assert!(question <= until, "{question} {until}");
}
