//! Which changes a mount that is alone is told of.

use super::harness::*;
use super::model::chance;
use crate::attributes::{Credentials, Mode, Timestamp};
use crate::error::Error;
use crate::identity::{InodeId, MountEpoch, RealmId};
use crate::operation::{Accessed, Operation, SetAttributes, Step, Takeover};
use crate::query::Question;
use crate::reply::{Done, QueryResult, Response};
use crate::row::{Changes, Inode, Mount, MountMode, Recall, Row, key};
use crate::simulation::workload::{Call, Workload};
use proptest::prelude::*;
use quorumfs_bft::identity::{SessionId, Time};
use quorumfs_bft::service::Caller;
use std::collections::BTreeSet;

const REALM: RealmId = RealmId::ROOT;

fn alone() -> Mount {
    Mount {
        session: SessionId(4),
        principal: OWNER,
        epoch: MountEpoch(2),
        since: Time(5),
        mode: MountMode::Alone,
        recall: Some(Recall {
            by: SessionId(5),
            deadline: Time(6),
        }),
        label: "host".into(),
    }
}

/// An answer, for the fixtures of the format.
pub(super) fn found() -> QueryResult {
    QueryResult::Mounted(Some(alone()))
}

/// Another one.
pub(super) fn recalled() -> Response {
    Response(Ok(Done::Recalled(alone())))
}

/// A service in which the first session has the realm mounted.
fn mounted() -> (TestService, Caller, Caller) {
    let mut world = TestService::new();
    let (holder, other) = (world.open(OWNER), world.open(OWNER));
    world.run(&holder, &mount(Takeover::Refused)).unwrap();
    (world, holder, other)
}

fn mount(takeover: Takeover) -> Operation {
    Operation::MountRealm {
        realm: REALM,
        takeover,
        mode: MountMode::Exclusive,
        label: "host".into(),
    }
}

fn change(world: &mut TestService, caller: &Caller, mode: u16) {
    let chmod = Step::SetAttributes(SetAttributes {
        mode: Some(Mode(mode)),
        ..SetAttributes::of(InodeId::ROOT)
    });
    world.step(caller, &Credentials::root(), chmod).unwrap();
}

fn row(world: &mut TestService, caller: &Caller) -> Option<Mount> {
    match world.ask(caller, Question::Mounted(REALM)) {
        Ok(QueryResult::Mounted(mount)) => mount,
        other => panic!("{other:?}"),
    }
}

/// The number of entries in the change log.
fn logged(world: &TestService) -> u64 {
    let rows = world.rows(&key::changes(REALM));
    let log = rows.first().map(|(_, bytes)| Changes::from_bytes(bytes));
    log.map_or(0, |log| log.unwrap().last.0)
}

#[test]
fn changes_by_others_are_logged_and_a_mounts_own_are_not() {
    let (mut world, holder, other) = mounted();
    assert_eq!(logged(&world), 0);
    change(&mut world, &holder, 0o700);
    assert_eq!(logged(&world), 0);
    change(&mut world, &other, 0o701);
    change(&mut world, &other, 0o702);
    assert_eq!(logged(&world), 2);

    let file = world.create(&holder, InodeId::ROOT, "f");
    world.allocate(&other, 4);
    let read = Step::Accessed(vec![Accessed {
        inode: file,
        time: Timestamp {
            seconds: 1_950_000_000,
            nanos: 0,
        },
    }]);
    world.step(&other, &Credentials::root(), read).unwrap();
    assert_eq!(logged(&world), 2, "nothing that is shown");
}

#[test]
fn a_mount_learns_of_its_takeover_and_the_next_begins_anew() {
    let (mut world, holder, other) = mounted();
    change(&mut world, &other, 0o701);
    let first = row(&mut world, &holder).unwrap();
    world.run(&other, &mount(Takeover::OfAny)).unwrap();
    let asked = world.ask(&holder, Question::Mounted(REALM));
    let by = other.session;
    assert_eq!(asked, Err(Error::Fenced { by }));
    let second = row(&mut world, &other).unwrap();
    assert_eq!(second.session, by);
    assert!(second.epoch > first.epoch);
    let unmount = Operation::UnmountRealm { realm: REALM };
    world.run(&other, &unmount).unwrap();
    assert_eq!(row(&mut world, &other), None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Every operation of another session is logged if it changes a row that the mount's answers
    /// come from. The mount's own operations never are.
    #[test]
    fn every_change_of_another_session_is_logged(seed in any::<u64>()) {
        let mut chance = chance(seed);
        let (mut world, holder, other) = mounted();
        let mut workload = Workload::of_one_session();
        let mut moved = 0;
        for round in 0..300 {
            let Call::Execute(bytes) = workload.next(&mut chance) else {
                continue;
            };
            let sender = if round % 3 == 0 { &holder } else { &other };
            let (before, count) = (known(&world), logged(&world));
            let answer = world.run_bytes(sender, &bytes);
            let Response(response) = Response::from_bytes(&answer).unwrap();
            let after = logged(&world);
            let operation = Operation::from_bytes(&bytes);
            if sender == &holder || response.is_err() {
                prop_assert_eq!(after, count, "{:?}", operation);
            } else if before != known(&world) {
                prop_assert_eq!(after, count + 1, "{:?}", operation);
                moved += 1;
            }
            workload.learn(&answer);
        }
        prop_assert!(moved > 0);
    }
}

/// Rows of inodes without their times of access, entries, extents and extended attributes. An inode
/// without a name is visible to its holder alone.
fn known(world: &TestService) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut known = Vec::new();
    let inodes = world.rows(b"I/").into_iter();
    let named: BTreeSet<Vec<u8>> = inodes
        .filter(|(_, bytes)| Inode::from_bytes(bytes).unwrap().links > 0)
        .map(|(key, _)| key[2..10].to_vec())
        .collect();
    for prefix in [b"I/".as_slice(), b"D/", b"E/", b"X/"] {
        for (key, bytes) in world.rows(prefix) {
            if !named.contains(&key[2..10]) {
                continue;
            }
            let mut bytes = bytes;
            if prefix == b"I/" {
                let mut inode = Inode::from_bytes(&bytes).unwrap();
                inode.atime = Timestamp::default();
                bytes = inode.to_bytes();
            }
            known.push((key, bytes));
        }
    }
    known
}
