//! The change log, the news of it, and its bell.

use super::harness::*;
use super::model::chance;
use super::versions::version_of;
use crate::Metadata;
use crate::attributes::{Credentials, Mode, Timestamp};
use crate::error::Error;
use crate::identity::{InodeId, LogPosition, MountEpoch, RealmId};
use crate::limits::LOG_SLOTS;
use crate::operation::{Accessed, Operation, SetAttributes, Step, Takeover};
use crate::query::{Query, Question};
use crate::reply::{Answer, Claimed, Done, QueryResult, Response};
use crate::row::{Bell, Changed, Changes, Grave, GravePlace, Inode, MountMode, OwedBell, Row, key};
use crate::simulation::workload::{Call, Workload};
use proptest::prelude::*;
use quorumfs_bft::identity::{SessionId, Time};
use quorumfs_bft::service::{Caller, Service};
use quorumfs_bft::state::Area;
use std::collections::{BTreeMap, BTreeSet};

const REALM: RealmId = RealmId::ROOT;

/// Rows and messages about the log and the grave.
pub(super) fn fixtures() -> Vec<(&'static str, Vec<u8>)> {
    let at = LogPosition(0x0102);
    let changes = Changes {
        last: at,
        rung: Time(5),
        owed: true,
    };
    let changed = Changed {
        position: at,
        by: Some(SessionId(4)),
        inodes: Some(vec![InodeId(1), InodeId(258)]),
    };
    let everything = Changed {
        by: None,
        inodes: None,
        position: at,
    };
    let bell = Bell {
        position: at,
        mounts: 2,
        slots: 16384,
    };
    let query = |question| {
        let credentials = Credentials::root();
        Query {
            credentials,
            question,
        }
        .to_bytes()
    };
    let news = Question::News {
        realm: REALM,
        after: Some(at),
    };
    let told = QueryResult::News {
        position: at,
        gap: false,
        inodes: vec![InodeId(1), InodeId(258)],
        more: true,
        others: true,
        recalled: true,
    };
    let world = TestService::new();
    let realm = world.rows(&key::realm(REALM)).remove(0).1;
    let mounted = Done::Mounted {
        epoch: MountEpoch(2),
        realm: Row::from_bytes(&realm).unwrap(),
        fenced: vec![SessionId(4)],
        position: at,
        mode: MountMode::Shared,
    };
    let claim = Operation::Claim {
        inodes: vec![InodeId(258)],
    };
    let claimed = vec![Claimed::Held, Claimed::Named, Claimed::Gone];
    vec![
        ("row-changes", changes.to_bytes()),
        ("row-changed", changed.to_bytes()),
        ("row-changed-everything", everything.to_bytes()),
        ("row-bell", bell.to_bytes()),
        ("row-owed-bell", OwedBell.to_bytes()),
        ("row-grave", Grave { check: Time(6) }.to_bytes()),
        (
            "row-grave-place",
            GravePlace { deadline: Time(7) }.to_bytes(),
        ),
        ("key-changes", key::changes(RealmId(3))),
        ("key-changed", key::changed(RealmId(3), 258)),
        ("key-bell", key::bell(RealmId(3))),
        ("key-owed-bell", key::owed_bell(Time(5), RealmId(3))),
        ("key-grave", key::grave(Time(7), InodeId(258))),
        ("key-grave-place", key::grave_place(InodeId(258))),
        ("operation-claim", claim.to_bytes()),
        ("query-news", query(news)),
        ("reply-mounted", Response(Ok(mounted)).to_bytes()),
        ("reply-recalled", super::mounted::recalled().to_bytes()),
        (
            "reply-claimed",
            Response(Ok(Done::Claimed(claimed))).to_bytes(),
        ),
        ("answer-news", Answer(Ok(told)).to_bytes()),
        ("query-mounts", query(Question::Mounts(RealmId(3)))),
        (
            "answer-mounts",
            Answer(Ok(QueryResult::Mounts(Vec::new()))).to_bytes(),
        ),
    ]
}

/// The fields of an answer.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    position: LogPosition,
    gap: bool,
    inodes: Vec<InodeId>,
    more: bool,
    others: bool,
}

fn news(world: &mut TestService, caller: &Caller, after: Option<LogPosition>) -> Told {
    let question = Question::News {
        realm: REALM,
        after,
    };
    match world.ask(caller, question) {
        Ok(QueryResult::News {
            position,
            gap,
            inodes,
            more,
            others,
            ..
        }) => Told {
            position,
            gap,
            inodes,
            more,
            others,
        },
        other => panic!("{other:?}"),
    }
}

/// Mounts the realm together with others; returns the position at which the mount begins.
fn share(world: &mut TestService, caller: &Caller) -> LogPosition {
    match world.run(caller, &mount(Takeover::Refused, MountMode::Shared)) {
        Ok(Done::Mounted { position, .. }) => position,
        other => panic!("{other:?}"),
    }
}

fn chmod(world: &mut TestService, caller: &Caller, inode: InodeId, mode: u16) {
    let chmod = Step::SetAttributes(SetAttributes {
        mode: Some(Mode(mode)),
        ..SetAttributes::of(inode)
    });
    world.step(caller, &Credentials::root(), chmod).unwrap();
}

/// A log whose ring has so many slots.
pub(super) fn with_slots(slots: u16) -> TestService {
    let mut world = TestService::new();
    let bell = Bell {
        slots,
        ..Bell::default()
    };
    world.put(&key::bell(REALM), &bell);
    world
}

fn two_mounts(world: &mut TestService) -> (Caller, Caller) {
    let (one, other) = (world.open(OWNER), world.open(OWNER));
    share(world, &one);
    share(world, &other);
    (one, other)
}

fn entries(world: &TestService) -> usize {
    world.rows(b"CL/").len()
}

#[test]
fn a_change_is_told_to_other_mounts_and_not_to_its_own() {
    let mut world = TestService::new();
    let (one, other) = (world.open(OWNER), world.open(OWNER));
    let file = world.create(&one, InodeId::ROOT, "f");
    assert_eq!(share(&mut world, &one), LogPosition(0));
    chmod(&mut world, &one, file, 0o600);
    assert_eq!(
        share(&mut world, &other),
        LogPosition(0),
        "alone nothing is logged"
    );
    world.wait(1);
    chmod(&mut world, &one, file, 0o601);
    let told = news(&mut world, &other, Some(LogPosition(0)));
    let expected = Told {
        position: LogPosition(1),
        gap: false,
        inodes: vec![file],
        more: false,
        others: true,
    };
    assert_eq!(told, expected);
    let told = news(&mut world, &one, Some(LogPosition(0)));
    assert_eq!(told.inodes, vec![], "its own");
    assert_eq!(told.position, LogPosition(1));
    let again = news(&mut world, &other, Some(LogPosition(1)));
    assert_eq!((again.inodes, again.gap), (vec![], false));
    let late = world.open(OWNER);
    assert_eq!(share(&mut world, &late), LogPosition(1), "it begins here");
}

#[test]
fn a_mount_alone_writes_no_log_and_is_told_of_sessions_without_a_mount() {
    let mut world = TestService::new();
    let (holder, command) = (world.open(OWNER), world.open(OWNER));
    world
        .run(&holder, &mount(Takeover::Refused, MountMode::Exclusive))
        .unwrap();
    let before = world.rows(b"");
    chmod(&mut world, &holder, InodeId::ROOT, 0o700);
    let after = world.rows(b"");
    assert_eq!(changed_rows(&before, &after), 1, "the inode");
    chmod(&mut world, &command, InodeId::ROOT, 0o701);
    let told = news(&mut world, &holder, Some(LogPosition(0)));
    assert_eq!((told.inodes, told.others), (vec![InodeId::ROOT], false));
}

#[test]
fn what_is_not_shown_and_what_is_refused_is_not_logged() {
    let mut world = TestService::new();
    let (one, other) = two_mounts(&mut world);
    let file = world.create(&one, InodeId::ROOT, "f");
    let logged = entries(&world);
    let read = Step::Accessed(vec![Accessed {
        inode: file,
        time: Timestamp {
            seconds: 1_950_000_000,
            nanos: 0,
        },
    }]);
    world.step(&one, &Credentials::root(), read).unwrap();
    let steps = vec![
        Step::SetAttributes(SetAttributes {
            mode: Some(Mode(0o600)),
            ..SetAttributes::of(file)
        }),
        Step::Unlink(removal(InodeId::ROOT, "missing", false)),
    ];
    let root = world.root();
    let refused = world.steps(&one, &Credentials::root(), steps);
    assert_eq!(refused, Err(Error::NotFound));
    assert_eq!(root, world.root());
    assert_eq!(entries(&world), logged);
    // What comes after a refused operation is logged.
    chmod(&mut world, &one, file, 0o600);
    world.wait(1);
    world.drain();
    let told = news(&mut world, &other, Some(LogPosition(1)));
    assert_eq!((told.inodes, told.position), (vec![file], LogPosition(2)));
}

#[test]
fn the_bell_rings_at_once_and_then_once_in_a_hundredth_of_a_second() {
    let mut world = TestService::new();
    let (one, other) = two_mounts(&mut world);
    world.wait(1);
    let mut rings = 0;
    let mut last = LogPosition(0);
    for round in 0..100_u16 {
        chmod(&mut world, &one, InodeId::ROOT, round);
        let now = Bell::from_bytes(&world.rows(b"RB/")[0].1).unwrap().position;
        assert!(round > 0 || now == LogPosition(1), "at once");
        rings += usize::from(now != last);
        last = now;
        world.drain();
        let now = Bell::from_bytes(&world.rows(b"RB/")[0].1).unwrap().position;
        rings += usize::from(now != last);
        last = now;
        let behind = u64::from(round) + 1 - last.0;
        assert!(behind <= 10, "{behind} milliseconds behind");
    }
    assert!((10..=12).contains(&rings), "{rings} rings in 100 ms");
    assert!(!world.rows(b"RO/").is_empty());
    world.wait(1);
    world.drain();
    assert!(world.rows(b"RO/").is_empty());
    assert_eq!(
        news(&mut world, &other, Some(last)).position,
        LogPosition(100)
    );
}

#[test]
fn the_news_can_be_watched_and_the_bell_is_all_that_is() {
    let mut world = TestService::new();
    let (one, other) = two_mounts(&mut world);
    world.wait(1);
    let stranger = world.open(OWNER);
    let query = Query {
        credentials: Credentials::root(),
        question: Question::News {
            realm: REALM,
            after: None,
        },
    };
    let watch = |world: &TestService, caller: &Caller| {
        let view = world.space.view(Area::Service);
        Metadata.watch(&view, caller, &query.to_bytes()).unwrap()
    };
    let refused = world.ask(&stranger, query.question.clone());
    assert_eq!(refused, Err(Error::NotMounted));
    assert_eq!(watch(&world, &stranger), None);
    let prefixes = watch(&world, &other).expect("a mount");
    let rung = |world: &mut TestService| {
        let changed = world.space.take_changes();
        world.space.note_changes();
        changed
            .iter()
            .any(|key| prefixes.iter().any(|prefix| key.starts_with(prefix)))
    };
    rung(&mut world);
    chmod(&mut world, &one, InodeId::ROOT, 0o700);
    assert!(rung(&mut world), "at once");
    chmod(&mut world, &one, InodeId::ROOT, 0o701);
    assert!(!rung(&mut world), "not yet");
    world.wait(1);
    world.drain();
    assert!(rung(&mut world), "by a tick");
    world.close(&one);
    assert!(rung(&mut world), "a mount has ended");
    assert!(!news(&mut world, &other, None).others);
}

#[test]
fn an_answer_and_its_version_stay_until_the_bell_rings() {
    let mut world = TestService::new();
    let (one, other) = two_mounts(&mut world);
    world.wait(1);
    chmod(&mut world, &one, InodeId::ROOT, 0o700);
    let question = Question::News {
        realm: REALM,
        after: Some(LogPosition(0)),
    };
    let version = |world: &TestService| version_of(world, &other, question.clone());
    let rung = version(&world);
    for mode in 0..5 {
        chmod(&mut world, &one, InodeId::ROOT, mode);
        assert_eq!(version(&world), rung);
    }
    let told = news(&mut world, &other, Some(LogPosition(0)));
    assert_eq!(told.position, LogPosition(1));
    world.wait(1);
    world.drain();
    assert!(version(&world) > rung);
}

#[test]
fn what_is_not_in_the_log_is_a_gap() {
    let mut world = with_slots(8);
    let (one, other) = two_mounts(&mut world);
    for round in 0..20 {
        world.wait(1);
        chmod(&mut world, &one, InodeId::ROOT, round);
    }
    for after in 0..=20 {
        let told = news(&mut world, &other, Some(LogPosition(after)));
        assert_eq!(told.position, LogPosition(20));
        assert_eq!(told.gap, after < 16, "{after}");
        let listed = usize::from((16..20).contains(&after));
        assert_eq!(told.inodes.len(), listed, "{after}");
    }
    assert!(news(&mut world, &other, None).gap);
    assert!(
        news(&mut world, &other, Some(LogPosition(21))).gap,
        "never told"
    );
    // Entries for which the bell has not rung overwrite those before it.
    for round in 0..9 {
        chmod(&mut world, &one, InodeId::ROOT, round);
    }
    let told = news(&mut world, &other, Some(LogPosition(17)));
    assert!(told.gap, "{told:?}");
}

#[test]
fn an_operation_that_changes_too_much_says_that_anything_may_have_changed() {
    let mut world = TestService::new();
    let (one, other) = two_mounts(&mut world);
    world.wait(1);
    // 32 steps with three inodes each.
    let mut steps = Vec::new();
    let mut to = InodeId::ROOT;
    for _ in 0..32 {
        let at = world.mkdir(&one, to, "d");
        world.create(&one, at, "f");
        to = world.mkdir(&one, at, "d");
        steps.push(Step::Rename(rename_of((at, "f"), (to, "f"))));
    }
    world.wait(1);
    world.drain();
    let before = news(&mut world, &other, Some(LogPosition(0)));
    assert!(!before.gap);
    world.wait(1);
    world.steps(&one, &Credentials::root(), steps).unwrap();
    let after = news(&mut world, &other, Some(before.position));
    assert!(after.gap, "{after:?}");
    assert_eq!(after.position.0, before.position.0 + 1);
}

#[test]
fn a_long_answer_comes_in_parts() {
    let mut world = TestService::new();
    let (one, other) = two_mounts(&mut world);
    world.pace = 20_000_000;
    for round in 0..1500 {
        chmod(&mut world, &one, InodeId::ROOT, round % 512);
    }
    let first = news(&mut world, &other, Some(LogPosition(0)));
    assert_eq!((first.position, first.more), (LogPosition(1024), true));
    let second = news(&mut world, &other, Some(first.position));
    assert_eq!((second.position, second.more), (LogPosition(1500), false));
}

#[test]
fn a_new_key_epoch_is_told_as_a_gap() {
    let mut world = TestService::new();
    let (one, other) = two_mounts(&mut world);
    world.wait(1);
    let begin = Operation::BeginEpoch(super::epochs::members_only(1));
    world.run(&one, &begin).unwrap();
    assert!(news(&mut world, &other, Some(LogPosition(0))).gap);
}

/// The rows that a mount's answers come from, by inode.
fn known(world: &TestService) -> BTreeMap<InodeId, Vec<Vec<u8>>> {
    let mut known: BTreeMap<InodeId, Vec<Vec<u8>>> = BTreeMap::new();
    for (row_key, bytes) in world.rows(b"I/") {
        let mut row = Inode::from_bytes(&bytes).unwrap();
        row.atime = Timestamp::default();
        row.holders = 0;
        let number = key::trailing_number(&row_key).unwrap();
        known.insert(InodeId(number), vec![row.to_bytes()]);
    }
    for prefix in [b"D/".as_slice(), b"E/", b"X/"] {
        for (row_key, bytes) in world.rows(prefix) {
            let number = u64::from_be_bytes(row_key[2..10].try_into().unwrap());
            let rows = known.entry(InodeId(number)).or_default();
            rows.push(row_key);
            rows.push(bytes);
        }
    }
    known
}

/// The inodes that were there before and that can be seen: one without a name that goes cannot.
fn seen(
    before: &BTreeMap<InodeId, Vec<Vec<u8>>>,
    after: &BTreeMap<InodeId, Vec<Vec<u8>>>,
) -> BTreeSet<InodeId> {
    let is_named = |rows: &[Vec<u8>]| Inode::from_bytes(&rows[0]).is_ok_and(|row| row.links > 0);
    let seen = before
        .iter()
        .filter(|(inode, rows)| is_named(rows) || after.contains_key(inode));
    seen.map(|(inode, _)| *inode).collect()
}

/// A mount of the property's model: where it is, and what it knows.
struct Sharer {
    caller: Caller,
    position: Option<LogPosition>,
}

/// What the model says of an entry.
struct Logged {
    by: SessionId,
    seen: BTreeSet<InodeId>,
    changed: BTreeSet<InodeId>,
}

fn listed_exactly(seed: u64, slots: u16) -> Result<(), TestCaseError> {
    let mut chance = chance(seed);
    let mut world = with_slots(slots);
    let mut sharers = Vec::new();
    for _ in 0..3 {
        let caller = world.open(OWNER);
        let position = Some(share(&mut world, &caller));
        sharers.push(Sharer { caller, position });
    }
    let mut workload = Workload::of_one_session();
    let mut log: Vec<Logged> = Vec::new();
    let mut told_of = 0;
    for _ in 0..300 {
        let at = chance(3) as usize;
        let caller = sharers[at].caller;
        match chance(12) {
            0 => world.wait(1),
            1 => {
                if sharers[at].position.take().is_some() {
                    world
                        .run(&caller, &Operation::UnmountRealm { realm: REALM })
                        .unwrap();
                } else {
                    sharers[at].position = Some(share(&mut world, &caller));
                }
            }
            2..5 => {
                let Some(after) = sharers[at].position else {
                    continue;
                };
                let told = news(&mut world, &caller, Some(after));
                prop_assert!(told.position >= after && told.position.0 <= log.len() as u64);
                let range = after.0 as usize..told.position.0 as usize;
                let others = log[range.clone()].iter();
                let others = others.filter(|entry| entry.by != caller.session);
                let expected = others.clone().flat_map(|entry| &entry.changed);
                let expected: BTreeSet<InodeId> = expected.copied().collect();
                if told.gap {
                    prop_assert!(range.len() > usize::from(slots) / 2 || slots < 16);
                } else {
                    told_of += expected.len();
                    let told: BTreeSet<InodeId> = told.inodes.into_iter().collect();
                    prop_assert!(told.is_superset(&expected), "{:?} {:?}", told, expected);
                    // A compound may change what it has created, and remove it.
                    let unseen = |inode| others.clone().any(|entry| !entry.seen.contains(inode));
                    prop_assert!(told.difference(&expected).all(unseen));
                }
                let mounted = sharers.iter().filter(|sharer| sharer.position.is_some());
                prop_assert_eq!(told.others, mounted.count() > 1);
                sharers[at].position = Some(told.position);
            }
            _ => {
                let Call::Execute(bytes) = workload.next(&mut chance) else {
                    continue;
                };
                let before = known(&world);
                let answer = world.run_bytes(&caller, &bytes);
                let after = known(&world);
                let seen = seen(&before, &after);
                let differ = |inode: &&InodeId| before.get(*inode) != after.get(*inode);
                let entry = Logged {
                    by: caller.session,
                    changed: seen.iter().filter(differ).copied().collect(),
                    seen,
                };
                let other = |sharer: &Sharer| {
                    sharer.position.is_some() && sharer.caller.session != caller.session
                };
                if !entry.changed.is_empty() && sharers.iter().any(other) {
                    log.push(entry);
                }
                workload.learn(&answer);
            }
        }
        if chance(3) == 0 {
            world.drain();
        }
    }
    world.wait(1);
    world.drain();
    for sharer in sharers {
        if let Some(after) = sharer.position {
            let told = news(&mut world, &sharer.caller, Some(after));
            prop_assert_eq!(told.position.0, log.len() as u64, "a bell was not rung");
        }
    }
    prop_assert!(told_of > 0 || slots < 16);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn the_news_list_exactly_what_others_have_changed(seed in any::<u64>()) {
        listed_exactly(seed, LOG_SLOTS)?;
    }

    #[test]
    fn a_full_ring_never_hides_a_change(seed in any::<u64>()) {
        listed_exactly(seed, 8)?;
    }
}
