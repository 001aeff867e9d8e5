//! A volume that is recovered from a copy of its metadata is what it was, and belongs to those who
//! had it.

use super::harness::*;
use crate::attributes::Credentials;
use crate::error::Error;
use crate::identity::*;
use crate::limits::LOAD_ROWS_MAX;
use crate::operation::*;
use crate::query::Question;
use crate::reply::{Done, QueryResult};
use crate::row::{
    HomeCounters, Job, Loading, MountMode, Object, Principal, Retention, RetentionKind, Rights,
    Row, Unreferenced, key,
};
use crate::simulation::{principal, reader, sign, unsigned_genesis};
use quorumfs_bft::identity::{PublicKey, Sequence};
use quorumfs_bft::service::Caller;

type RowList = Vec<(Vec<u8>, Vec<u8>)>;

/// The principal of the kit.
const RECOVERY: PublicKey = PublicKey([8; 32]);

/// RowList, operations and replies, for the fixtures of the format.
pub(super) fn fixtures() -> Vec<(&'static str, Vec<u8>)> {
    let done = |done| crate::reply::Response(Ok(done)).to_bytes();
    let rows = || vec![(b"D/1".to_vec(), b"value".to_vec())];
    vec![
        (
            "row-loading",
            Loading {
                by: OWNER,
                last: b"D/1".to_vec(),
                rows: 1,
            }
            .to_bytes(),
        ),
        ("key-loading", key::loading()),
        ("genesis-recovered", genesis(3)),
        (
            "operation-load",
            Operation::Load {
                after: b"D/0".to_vec(),
                rows: rows(),
            }
            .to_bytes(),
        ),
        (
            "operation-finish-loading",
            Operation::FinishLoading { principals: rows() }.to_bytes(),
        ),
        (
            "reply-loaded",
            done(Done::Loaded {
                last: b"D/1".to_vec(),
                rows: 1,
            }),
        ),
        ("reply-loading-finished", done(Done::LoadingFinished)),
    ]
}

/// The genesis of an incarnation.
pub(super) fn genesis(incarnation: u8) -> Vec<u8> {
    let principals = vec![
        principal(OWNER, Rights::all()),
        principal(RECOVERY, Rights::all()),
        principal(ALICE, reader(Uid(1000), Gid(100))),
    ];
    let mut genesis = unsigned_genesis(principals, (1, 1, 4)).unwrap();
    genesis.incarnation = VolumeIncarnation(incarnation);
    genesis.recovered_by = (incarnation > 0).then_some(RECOVERY);
    sign(&genesis)
}

fn load_after(
    world: &mut TestService,
    caller: &Caller,
    after: &[u8],
    rows: &[(Vec<u8>, Vec<u8>)],
) -> Result<(Vec<u8>, u64), Error> {
    let (after, rows) = (after.to_vec(), rows.to_vec());
    match world.run(caller, &Operation::Load { after, rows }) {
        Ok(Done::Loaded { last, rows }) => Ok((last, rows)),
        Ok(other) => panic!("{other:?}"),
        Err(refused) => Err(refused.error),
    }
}

/// Loads the rows behind the last one.
fn load(world: &mut TestService, caller: &Caller, rows: &RowList) -> Result<(Vec<u8>, u64), Error> {
    let mut answer = load_after(world, caller, b"", &[])?;
    for piece in rows.chunks(LOAD_ROWS_MAX) {
        answer = load_after(world, caller, &answer.0, piece)?;
    }
    Ok(answer)
}

/// The rows of a copy: the principals, which come last, and the others.
fn split(rows: RowList) -> (RowList, RowList) {
    rows.into_iter()
        .partition(|(row_key, _)| row_key.starts_with(b"P/"))
}

/// A new world of an incarnation with the rows of another.
pub(super) fn recovered(old: &TestService, incarnation: u8) -> TestService {
    let mut world = TestService::of(&genesis(incarnation));
    let caller = world.open(RECOVERY);
    let (principals, rows) = split(old.rows(b""));
    load(&mut world, &caller, &rows).unwrap();
    let finish = Operation::FinishLoading { principals };
    world.run(&caller, &finish).unwrap();
    world
}

/// A volume in use: files, one held open without a name, garbage, a mount, a job.
struct Before {
    world: TestService,
    kept: InodeId,
    held: InodeId,
    garbage: ObjectId,
}

fn before() -> Before {
    let mut world = TestService::of(&genesis(0));
    let owner = world.open(OWNER);
    let root = Credentials::root();
    let mount = Operation::MountRealm {
        realm: RealmId::ROOT,
        takeover: Takeover::Refused,
        mode: MountMode::Exclusive,
        label: "host".into(),
    };
    world.run(&owner, &mount).unwrap();
    let (job, seconds) = (Job::Collection, 60);
    world
        .run(&owner, &Operation::TakeJob { job, seconds })
        .unwrap();
    let allocation = world.allocate(&owner, 100);
    let file = |world: &mut TestService, name: &str, counter| {
        let inode = world.create(&owner, InodeId::ROOT, name);
        let step = commit(inode, allocation, counter, &[(0, 10)]);
        let object = step.objects[0].id;
        world.step(&owner, &root, Step::Commit(step)).unwrap();
        (inode, object)
    };
    let (kept, _) = file(&mut world, "kept", 1);
    let (held, _) = file(&mut world, "held", 2);
    let (_, garbage) = file(&mut world, "garbage", 3);
    for (name, is_held) in [("held", true), ("garbage", false)] {
        let step = Step::Unlink(removal(InodeId::ROOT, name, is_held));
        world.step(&owner, &root, step).unwrap();
    }
    world.drain();
    Before {
        world,
        kept,
        held,
        garbage,
    }
}

fn find<R: Row>(world: &TestService, row_key: &[u8]) -> Option<R> {
    let rows = world.rows(row_key);
    let row = rows.first().filter(|(found, _)| found == row_key);
    row.map(|(_, bytes)| R::from_bytes(bytes).unwrap())
}

#[test]
fn a_recovered_volume_is_what_it_was_without_sessions() {
    let Before {
        world: old,
        kept,
        held,
        garbage,
    } = before();
    let mut world = recovered(&old, 1);
    for gone in [
        &key::mounts(RealmId::ROOT)[..],
        b"NA/",
        b"JB/",
        b"G/loading",
    ] {
        assert!(!old.rows(gone).is_empty() || gone == b"G/loading");
        assert_eq!(world.rows(gone), RowList::new(), "{}", gone.escape_ascii());
    }
    for same in [
        &b"D/"[..],
        b"E/",
        b"S/",
        b"R/",
        b"RM/",
        b"PC/",
        b"Q/",
        b"QU/",
        b"G/cloud/",
    ] {
        assert_eq!(world.rows(same), old.rows(same), "{}", same.escape_ascii());
    }
    let owner = world.open(OWNER);
    let attributes = world.attributes(&owner, kept).unwrap();
    assert_eq!(attributes.size, 10);
    // What a session held open without a name goes with the session.
    assert!(world.attributes(&owner, held).is_some());
    world.drain();
    assert_eq!(world.attributes(&owner, held), None);
    let home: HomeCounters = find(&world, &key::home(Home(0))).unwrap();
    assert_eq!((home.inodes, home.next_inode), (2, 1 << 40));
    // The point of the copy is retained, but for what nothing needed at it.
    let object: Object = find(&world, &key::object(garbage)).unwrap();
    let queued: Unreferenced = find(&world, &key::unreferenced(garbage)).unwrap();
    assert_eq!((object.born, queued.since), (Sequence(0), Sequence(0)));
    let objects = vec![garbage];
    let forgotten = world.run(&owner, &Operation::Forget { objects });
    assert_eq!(forgotten, Ok(Done::Forgotten { objects: 1 }));
    let Ok(QueryResult::Retained(points)) = world.ask(&owner, Question::Retained) else {
        panic!("no points");
    };
    let [(0, point)] = points.as_slice() else {
        panic!("{points:?}");
    };
    assert_eq!(point.kind, RetentionKind::RecoveryPoint);
    let removed = Step::Unlink(removal(InodeId::ROOT, "kept", false));
    world.step(&owner, &Credentials::root(), removed).unwrap();
    world.drain();
    let queue: Vec<_> = world.rows(&key::all_unreferenced());
    let objects: Vec<_> = queue
        .iter()
        .filter_map(|(row_key, _)| key::trailing_object(row_key))
        .collect();
    let retained = |world: &mut TestService| {
        let objects = objects.clone();
        world.run(&owner, &Operation::Forget { objects })
    };
    // The orphan's object and this one were needed at the point.
    assert_eq!(objects.len(), 2);
    assert_eq!(retained(&mut world), Ok(Done::Forgotten { objects: 0 }));
    world
        .run(&owner, &Operation::Release { number: 0 })
        .unwrap();
    assert_eq!(retained(&mut world), Ok(Done::Forgotten { objects: 2 }));
}

#[test]
fn until_it_is_finished_a_recovery_admits_its_principal_alone() {
    let Before { world: old, .. } = before();
    let mut world = TestService::of(&genesis(1));
    assert!(world.try_open(OWNER).is_none() && world.try_open(ALICE).is_none());
    let caller = world.open(RECOVERY);
    let (principals, rows) = split(old.rows(b""));
    // A principal comes with the end, never in a load.
    let refused = load(&mut world, &caller, &principals);
    assert_eq!(refused, Err(Error::Invalid));
    load(&mut world, &caller, &rows).unwrap();
    assert!(world.try_open(OWNER).is_none());
    // The one that recovers must be one of the volume's.
    let others = |(row_key, _): &(Vec<u8>, Vec<u8>)| *row_key != key::principal(&RECOVERY);
    let others = principals.iter().filter(|row| others(row)).cloned();
    let finish = Operation::FinishLoading {
        principals: others.collect(),
    };
    assert_eq!(
        world.run(&caller, &finish).unwrap_err().error,
        Error::NoRight
    );
    let finish = Operation::FinishLoading { principals };
    world.run(&caller, &finish).unwrap();
    let open: Principal = find(&world, &key::principal(&OWNER)).unwrap();
    assert_eq!(open.sessions, 0, "those of the old servers are over");
    let owner = world.open(OWNER);
    world.open(ALICE);
    world.open(RECOVERY);
    for caller in [&caller, &owner] {
        let empty = load(&mut world, caller, &vec![(b"D/1".to_vec(), Vec::new())]);
        assert_eq!(empty, Err(Error::NotLoading));
        assert_eq!(
            world.run(caller, &finish).unwrap_err().error,
            Error::NotLoading
        );
    }
}

#[test]
fn a_recovery_goes_on_behind_its_last_row_and_refuses_wrong_ones() {
    let Before { world: old, .. } = before();
    let (_, rows) = split(old.rows(b""));
    let mut world = TestService::of(&genesis(1));
    let caller = world.open(RECOVERY);
    let half = rows[..rows.len() / 2].to_vec();
    let (last, count) = load(&mut world, &caller, &half).unwrap();
    assert_eq!((&last, count), (&half.last().unwrap().0, half.len() as u64));
    // Neither rows that were loaded nor rows behind a gap.
    assert_eq!(load(&mut world, &caller, &half), Err(Error::Invalid));
    let (next, behind) = rows[half.len()..].split_first().unwrap();
    let gap = load_after(&mut world, &caller, &next.0, behind);
    assert_eq!(gap, Err(Error::Changed));
    assert_eq!(
        load(&mut world, &caller, &RowList::new()),
        Ok((last, count))
    );
    let rest = rows[half.len()..].to_vec();
    let (_, count) = load(&mut world, &caller, &rest).unwrap();
    assert_eq!(count, rows.len() as u64);
    let wrong = |row_key: &[u8], value: &[u8]| vec![(row_key.to_vec(), value.to_vec())];
    for refused in [
        wrong(b"ZZ/1", b"unknown"),
        wrong(b"no tag", b""),
        wrong(&[b"X/", &[7; 600][..]].concat(), b""),
    ] {
        assert_eq!(load(&mut world, &caller, &refused), Err(Error::Invalid));
    }
    let garbled = wrong(b"X/1", b"garbled");
    assert_eq!(load(&mut world, &caller, &garbled), Err(Error::Malformed));
    let descending: RowList = rows.iter().rev().take(2).cloned().collect();
    assert_eq!(load(&mut world, &caller, &descending), Err(Error::Invalid));
    let many = vec![(b"X/1".to_vec(), Vec::new()); LOAD_ROWS_MAX + 1];
    let refused = load_after(&mut world, &caller, b"", &many);
    let limit = LOAD_ROWS_MAX as u32;
    assert_eq!(refused, Err(Error::TooMany { limit }));
}

#[test]
fn an_ordinary_volume_loads_nothing() {
    let mut world = TestService::new();
    let owner = world.open(OWNER);
    let refused = load(&mut world, &owner, &vec![(b"D/1".to_vec(), Vec::new())]);
    assert_eq!(refused, Err(Error::NotLoading));
    let finish = Operation::FinishLoading { principals: vec![] };
    assert_eq!(
        world.run(&owner, &finish).unwrap_err().error,
        Error::NotLoading
    );
}

#[test]
fn an_index_of_capsules_is_loaded_under_its_own_key_alone() {
    let indexed = crate::row::ShareIndexed.to_bytes();
    let right = key::capsule_point(Sequence(9), ShareId(3));
    let longer = [&right[..], b"x"].concat();
    for (row_key, expected) in [
        (right.clone(), Ok((right.clone(), 1))),
        (longer, Err(Error::Invalid)),
        (b"SR/short".to_vec(), Err(Error::Invalid)),
    ] {
        let mut world = TestService::of(&genesis(1));
        let caller = world.open(RECOVERY);
        let rows = vec![(row_key, indexed.clone())];
        assert_eq!(load(&mut world, &caller, &rows), expected);
    }
}

#[test]
fn it_is_decided_for_every_kind_of_row_whether_it_is_loaded() {
    for tag in key::TAGS {
        // Principals come with the end.
        let is_principal = *tag == b"P/";
        let shown = tag.escape_ascii();
        assert_eq!(crate::load::knows(tag), !is_principal, "{shown}");
    }
}

#[test]
fn open_points_retain_all_that_was_needed_since_and_narrow_to_one() {
    let row = |from, to: Option<u64>| Retention {
        kind: RetentionKind::RecoveryPoint,
        from: Sequence(from),
        to: to.map(Sequence),
        at: quorumfs_bft::identity::Time(0),
        until: None,
    };
    // A reference: needed at a point p if born ≤ p < since.
    for from in 0..6 {
        for to in std::iter::once(None).chain((from..6).map(Some)) {
            for born in 0..7 {
                for since in born..8 {
                    let last = to.unwrap_or(u64::MAX);
                    let needed = (0..8).any(|p| from <= p && p <= last && born <= p && p < since);
                    let row = row(from, to);
                    let found = row.needs(Sequence(born), Sequence(since));
                    assert_eq!(found, needed, "{row:?} {born} {since}");
                }
            }
        }
    }
}
