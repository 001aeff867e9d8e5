//! Which mounts can share a realm, and what a takeover fences.

use super::harness::*;
use super::model::chance;
use crate::error::Error;
use crate::identity::{MountEpoch, RealmId};
use crate::limits::{ACTS_ALONE_FOR, MOUNTS_MAX};
use crate::operation::{Operation, Takeover};
use crate::query::Question;
use crate::reply::{Done, QueryResult};
use crate::row::{Bell, Mount, MountMode, Row, key};
use proptest::prelude::*;
use quorumfs_bft::identity::SessionId;
use quorumfs_bft::service::Caller;

const REALM: RealmId = RealmId::ROOT;

const EXCLUSIVE: MountMode = MountMode::Exclusive;
const ALONE: MountMode = MountMode::Alone;
const SHARED: MountMode = MountMode::Shared;

/// The sessions that a mount fences, or the session that it is refused for.
fn try_mount(
    world: &mut TestService,
    caller: &Caller,
    takeover: Takeover,
    mode: MountMode,
) -> Result<Vec<SessionId>, SessionId> {
    let before = world.rows(b"R");
    match world.run(caller, &mount(takeover, mode)) {
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

fn mounted(world: &TestService) -> Vec<(SessionId, MountMode)> {
    let rows = world.rows(&key::mounts(REALM)).into_iter();
    let mounts = rows.map(|(_, bytes)| Mount::from_bytes(&bytes).unwrap());
    let mounts: Vec<_> = mounts.map(|mount| (mount.session, mount.mode)).collect();
    let bell = world.rows(&key::bell(REALM)).remove(0).1;
    let counted = Bell::from_bytes(&bell).unwrap().mounts;
    assert_eq!(usize::try_from(counted).unwrap(), mounts.len());
    mounts
}

#[test]
fn mounts_share_unless_one_is_exclusive() {
    let mut world = TestService::new();
    let [a, b, c] = sessions(&mut world);
    let refused = Takeover::Refused;
    assert_eq!(try_mount(&mut world, &a, refused, SHARED), Ok(vec![]));
    assert_eq!(try_mount(&mut world, &b, refused, SHARED), Ok(vec![]));
    assert_eq!(
        try_mount(&mut world, &c, refused, EXCLUSIVE),
        Err(a.session)
    );
    let both = vec![(a.session, SHARED), (b.session, SHARED)];
    assert_eq!(mounted(&world), both);
    for caller in [&a, &b] {
        world
            .run(caller, &Operation::UnmountRealm { realm: REALM })
            .unwrap();
    }
    assert_eq!(try_mount(&mut world, &c, refused, EXCLUSIVE), Ok(vec![]));
    assert_eq!(
        try_mount(&mut world, &a, refused, EXCLUSIVE),
        Err(c.session)
    );
    assert_eq!(try_mount(&mut world, &a, refused, SHARED), Err(c.session));
    world.close(&c);
    assert_eq!(try_mount(&mut world, &a, refused, SHARED), Ok(vec![]));
    assert_eq!(mounted(&world), vec![(a.session, SHARED)]);
}

#[test]
fn a_mount_changes_its_mode_and_keeps_its_number() {
    let mut world = TestService::new();
    let [a, b] = sessions(&mut world);
    let epoch = |done| match done {
        Ok(Done::Mounted { epoch, .. }) => epoch,
        other => panic!("{other:?}"),
    };
    for mode in [EXCLUSIVE, EXCLUSIVE, ALONE, ALONE, SHARED, SHARED] {
        let done = world.run(&a, &mount(Takeover::Refused, mode));
        assert_eq!(epoch(done), MountEpoch(1));
        assert_eq!(mounted(&world), vec![(a.session, mode)]);
    }
    assert_eq!(
        try_mount(&mut world, &b, Takeover::Refused, SHARED),
        Ok(vec![])
    );
    let exclusive = try_mount(&mut world, &a, Takeover::Refused, EXCLUSIVE);
    assert_eq!(exclusive, Err(b.session));
    world.close(&b);
    let done = world.run(&a, &mount(Takeover::Refused, EXCLUSIVE));
    assert_eq!(epoch(done), MountEpoch(1));
    assert_eq!(mounted(&world), vec![(a.session, EXCLUSIVE)]);
}

#[test]
fn a_takeover_fences_whom_it_names_or_all_that_cannot_share() {
    let mut world = TestService::new();
    let [a, b, c, d, e] = sessions(&mut world);
    let of = |caller: &Caller| Takeover::Of(caller.session);
    for caller in [&a, &b] {
        try_mount(&mut world, caller, Takeover::Refused, SHARED).unwrap();
    }
    // Sharing: only the one that is named, which could have stayed.
    assert_eq!(
        try_mount(&mut world, &c, of(&a), SHARED),
        Ok(vec![a.session])
    );
    let asked = world.ask(&a, Question::Mounted(REALM));
    let by = c.session;
    assert_eq!(asked, Err(Error::Fenced { by }));
    // Exclusive: refused while one remains that is not named, and then nothing is fenced.
    assert_eq!(try_mount(&mut world, &d, of(&b), EXCLUSIVE), Err(c.session));
    assert_eq!(
        mounted(&world),
        vec![(b.session, SHARED), (c.session, SHARED)]
    );
    let both = vec![b.session, c.session];
    let any = Takeover::OfAny;
    assert_eq!(try_mount(&mut world, &d, any, SHARED), Ok(vec![]));
    let all = [both, vec![d.session]].concat();
    assert_eq!(try_mount(&mut world, &e, any, EXCLUSIVE), Ok(all));
    assert_eq!(mounted(&world), vec![(e.session, EXCLUSIVE)]);
    let f = world.open(OWNER);
    assert_eq!(try_mount(&mut world, &f, of(&a), SHARED), Err(e.session));
    assert_eq!(try_mount(&mut world, &f, any, SHARED), Ok(vec![e.session]));
}

#[test]
fn a_realm_has_a_bounded_number_of_mounts_and_all_can_be_fenced_at_once() {
    let mut world = TestService::new();
    for _ in 0..MOUNTS_MAX {
        let caller = world.open(OWNER);
        for _ in 0..16 {
            world.allocate(&caller, 1);
        }
        try_mount(&mut world, &caller, Takeover::Refused, SHARED).unwrap();
    }
    let last = world.open(OWNER);
    let refused = world.run(&last, &mount(Takeover::Refused, SHARED));
    assert_eq!(refused.unwrap_err().error, Error::LimitReached);
    let fenced = try_mount(&mut world, &last, Takeover::OfAny, EXCLUSIVE).unwrap();
    assert_eq!(fenced.len(), MOUNTS_MAX);
    assert_eq!(mounted(&world), vec![(last.session, EXCLUSIVE)]);
    assert_eq!(world.rows(b"NA/").len(), 0);
}

#[test]
fn that_a_realm_has_no_mount_depends_on_its_bell_alone() {
    let mut world = TestService::new();
    let [a, b] = sessions(&mut world);
    let unmount = Operation::UnmountRealm { realm: REALM };
    try_mount(&mut world, &a, Takeover::Refused, SHARED).unwrap();
    world.run(&a, &unmount).unwrap();
    let until = world.sequence;
    let directory = crate::identity::InodeId::ROOT;
    world.create(&b, directory, "f");
    let asked = world.ask(&b, Question::Mounted(REALM));
    assert_eq!(asked, Ok(QueryResult::Mounted(None)));
    let question = super::versions::version_of(&world, &b, Question::Mounted(REALM));
    assert!(question <= until, "{question} {until}");
}

/// What a session that mounts is told.
fn ask_to_mount(world: &mut TestService, caller: &Caller, mode: MountMode) -> Done {
    let takeover = Takeover::OfUnresponsive;
    world.run(caller, &mount(takeover, mode)).unwrap()
}

fn granted(done: &Done) -> Option<MountMode> {
    match done {
        Done::Mounted { mode, .. } => Some(*mode),
        Done::Recalled(_) => None,
        other => panic!("{other:?}"),
    }
}

/// Whether the mount of this session is told that it has to share.
fn is_recalled(world: &mut TestService, caller: &Caller) -> bool {
    let question = Question::News {
        realm: REALM,
        after: None,
    };
    match world.ask(caller, question) {
        Ok(QueryResult::News { recalled, .. }) => recalled,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_mount_that_is_alone_is_recalled_and_shares_and_is_alone_again() {
    let mut world = TestService::new();
    let [a, b] = sessions(&mut world);
    assert_eq!(granted(&ask_to_mount(&mut world, &a, ALONE)), Some(ALONE));
    assert!(!is_recalled(&mut world, &a));
    for mode in [ALONE, SHARED] {
        let done = ask_to_mount(&mut world, &b, mode);
        let Done::Recalled(holder) = done else {
            panic!("{done:?}")
        };
        let recall = holder.recall.unwrap();
        assert_eq!((holder.session, recall.by), (a.session, b.session));
        assert!(
            is_recalled(&mut world, &a),
            "and it stays, though the other has to wait"
        );
    }
    assert_eq!(mounted(&world), vec![(a.session, ALONE)]);
    // What it asks for otherwise does not end the recall.
    for mode in [ALONE, EXCLUSIVE] {
        assert_eq!(granted(&ask_to_mount(&mut world, &a, mode)), Some(ALONE));
        assert!(is_recalled(&mut world, &a));
    }
    assert_eq!(granted(&ask_to_mount(&mut world, &a, SHARED)), Some(SHARED));
    assert!(!is_recalled(&mut world, &a));
    assert_eq!(granted(&ask_to_mount(&mut world, &b, ALONE)), Some(SHARED));
    // With another one it stays shared.
    assert_eq!(granted(&ask_to_mount(&mut world, &a, ALONE)), Some(SHARED));
    world.close(&b);
    assert_eq!(granted(&ask_to_mount(&mut world, &a, ALONE)), Some(ALONE));
    assert_eq!(mounted(&world), vec![(a.session, ALONE)]);
}

#[test]
fn a_recall_rings_the_bell_and_the_next_one_does_not() {
    let mut world = TestService::new();
    let [a, b] = sessions(&mut world);
    ask_to_mount(&mut world, &a, ALONE);
    let question = Question::News {
        realm: REALM,
        after: None,
    };
    let version = |world: &TestService| super::versions::version_of(world, &a, question.clone());
    let before = version(&world);
    ask_to_mount(&mut world, &b, ALONE);
    let recalled = version(&world);
    assert!(recalled > before);
    let row = world.rows(&key::mount(REALM, a.session));
    ask_to_mount(&mut world, &b, ALONE);
    assert_eq!(version(&world), recalled);
    let again = world.rows(&key::mount(REALM, a.session));
    assert_eq!(again, row, "its deadline does not move");
}

#[test]
fn a_mount_that_does_not_share_in_time_is_fenced_by_the_one_that_waits() {
    let mut world = TestService::new();
    let [a, b, c] = sessions(&mut world);
    ask_to_mount(&mut world, &a, ALONE);
    ask_to_mount(&mut world, &b, ALONE);
    // An outage does not count.
    world.wait(60);
    assert_eq!(granted(&ask_to_mount(&mut world, &b, ALONE)), None);
    for _ in 0..8 {
        world.wait(1);
        assert_eq!(granted(&ask_to_mount(&mut world, &b, ALONE)), None);
    }
    world.wait(1);
    let patient = world.run(&b, &mount(Takeover::Refused, ALONE)).unwrap();
    assert_eq!(granted(&patient), None, "it fences nothing");
    // It may be another one than the one that waited, and of any mode that shares.
    let done = ask_to_mount(&mut world, &c, SHARED);
    let Done::Mounted { fenced, mode, .. } = done else {
        panic!("{done:?}")
    };
    assert_eq!((fenced, mode), (vec![a.session], SHARED));
    let asked = world.ask(&a, Question::Mounted(REALM));
    assert_eq!(asked, Err(Error::Fenced { by: c.session }));
    assert_eq!(granted(&ask_to_mount(&mut world, &b, ALONE)), Some(SHARED));
}

#[test]
fn a_takeover_does_not_fence_a_mount_that_would_share_unless_it_names_it() {
    let mut world = TestService::new();
    let [a, b, c] = sessions(&mut world);
    ask_to_mount(&mut world, &a, ALONE);
    let done = world.run(&b, &mount(Takeover::OfAny, ALONE)).unwrap();
    assert_eq!(granted(&done), None);
    let named = Takeover::Of(a.session);
    assert_eq!(try_mount(&mut world, &b, named, ALONE), Ok(vec![a.session]));
    assert_eq!(mounted(&world), vec![(b.session, ALONE)]);
    let refused = try_mount(&mut world, &c, Takeover::Refused, EXCLUSIVE);
    assert_eq!(refused, Err(b.session));
    let any = Takeover::OfAny;
    assert_eq!(
        try_mount(&mut world, &c, any, EXCLUSIVE),
        Ok(vec![b.session])
    );
}

/// A mount as its gateway sees it.
struct MountingGateway {
    caller: Caller,
    mode: Option<MountMode>,
    /// When it sent its last question whose answer told of no recall, by the agreed clock.
    clean: Option<u64>,
}

impl MountingGateway {
    /// Whether it acts as if there were no other mount.
    fn acts_alone(&self, now: u64) -> bool {
        let lately = |sent: u64| now.saturating_sub(sent) < ACTS_ALONE_FOR.0;
        match self.mode {
            Some(EXCLUSIVE) => true,
            Some(ALONE) => self.clean.is_some_and(lately),
            _ => false,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Gateways mount, ask for news, share when they are told to, or hear nothing for a while.
    #[test]
    fn at_no_agreed_instant_does_a_mount_act_as_alone_while_another_one_acts(seed: u64) {
        let mut world = TestService::new();
        let mut chance = chance(seed);
        let mut gateways: Vec<MountingGateway> = sessions::<3>(&mut world)
            .map(|caller| MountingGateway { caller, mode: None, clean: None })
            .into();
        for _ in 0..120 {
            let index = chance(3) as usize;
            let MountingGateway { caller, mode, .. } = &gateways[index];
            let (caller, mode) = (*caller, *mode);
            // What is sent now is answered later.
            let sent = world.now().0;
            if chance(4) == 0 {
                world.wait(chance(3));
            }
            match (chance(8), mode) {
                (0, _) => {
                    world.wait(1 + chance(8));
                    continue;
                }
                (1, Some(_)) => {
                    let _ = world.run(&caller, &Operation::UnmountRealm { realm: REALM });
                    gateways[index].mode = None;
                }
                (2..5, Some(_)) => {
                    let question = Question::News { realm: REALM, after: None };
                    let (mode, clean) = match world.ask(&caller, question) {
                        Ok(QueryResult::News { recalled: false, .. }) => (mode, Some(sent)),
                        Ok(_) => {
                            if chance(2) == 0 {
                                gateways[index].mode = Some(SHARED);
                                ask_to_mount(&mut world, &caller, SHARED);
                            }
                            (gateways[index].mode, gateways[index].clean)
                        }
                        // It was fenced: the next one of this machine.
                        Err(_) => {
                            gateways[index].caller = world.open(OWNER);
                            (None, None)
                        }
                    };
                    (gateways[index].mode, gateways[index].clean) = (mode, clean);
                }
                (what, _) => {
                    let wish = match what {
                        7 => EXCLUSIVE,
                        6 => SHARED,
                        _ => ALONE,
                    };
                    match world.run(&caller, &mount(Takeover::OfUnresponsive, wish)) {
                        Ok(Done::Mounted { mode, .. }) => {
                            let gateway = &mut gateways[index];
                            // Before its first question it does not act as alone.
                            gateway.clean = None;
                            gateway.mode = Some(mode);
                        }
                        Ok(_) => gateways[index].mode = None,
                        Err(refused) if matches!(refused.error, Error::Fenced { .. }) => {
                            gateways[index].caller = world.open(OWNER);
                            gateways[index].mode = None;
                        }
                        Err(_) => {}
                    }
                }
            }
            let now = world.now().0;
            let alone = gateways.iter().filter(|it| it.acts_alone(now)).count();
            let others = gateways
                .iter()
                .filter(|it| !it.acts_alone(now) && holds(&world, it))
                .count();
            prop_assert!(alone == 0 || (alone == 1 && others == 0), "{alone} and {others}");
        }
    }
}

/// Whether the servers know the mount.
fn holds(world: &TestService, gateway: &MountingGateway) -> bool {
    let mounts = mounted_now(world);
    mounts.contains(&gateway.caller.session)
}

fn mounted_now(world: &TestService) -> Vec<SessionId> {
    let rows = world.rows(&key::mounts(REALM)).into_iter();
    rows.map(|(_, bytes)| Mount::from_bytes(&bytes).unwrap().session)
        .collect()
}
