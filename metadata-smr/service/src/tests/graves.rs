//! Inodes without a name while several mounts share the realm: the grave, and claims.

use super::harness::*;
use super::model::{chance, consistent};
use crate::attributes::Credentials;
use crate::error::Error;
use crate::identity::{InodeId, RealmId, Uid};
use crate::limits::{CLAIM_INODES_MAX, CLAIMS_MAX, TRASH_AGE_SECONDS};
use crate::operation::{Operation, QuotaOf, Restore, SetQuota, Step, Takeover};
use crate::query::Question;
use crate::reply::{Claimed, Done, QueryResult};
use crate::row::{Amount, Inode, Limit, MountMode, Orphan, Row, key};
use crate::simulation::place;
use crate::simulation::workload::{Call, Workload};
use proptest::prelude::*;
use quorumfs_bft::service::Caller;

const REALM: RealmId = RealmId::ROOT;

fn shared() -> (TestService, Caller, Caller) {
    let mut world = TestService::new();
    let (one, other) = (world.open(OWNER), world.open(OWNER));
    for caller in [&one, &other] {
        world
            .run(caller, &mount(Takeover::Refused, MountMode::Shared))
            .unwrap();
    }
    (world, one, other)
}

fn claim(
    world: &mut TestService,
    caller: &Caller,
    inodes: &[InodeId],
) -> Result<Vec<Claimed>, Error> {
    let inodes = inodes.to_vec();
    match world.run(caller, &Operation::Claim { inodes }) {
        Ok(Done::Claimed(claimed)) => Ok(claimed),
        Err(refusal) => Err(refusal.error),
        other => panic!("{other:?}"),
    }
}

fn unlink(world: &mut TestService, caller: &Caller, name: &str, held: bool) {
    let step = Step::Unlink(removal(InodeId::ROOT, name, held));
    world.step(caller, &Credentials::root(), step).unwrap();
}

fn release(world: &mut TestService, caller: &Caller, inode: InodeId) -> Result<(), Error> {
    let step = Step::Release { inode };
    world.step(caller, &Credentials::root(), step).map(|_| ())
}

/// Lets the lease clock move, second by second, as a cluster with graves does.
fn pass(world: &mut TestService, seconds: u64) {
    for _ in 0..seconds {
        world.wait(1);
        world.drain();
    }
}

fn usage(world: &mut TestService, caller: &Caller) -> Amount {
    let question = Question::Quota {
        realm: REALM,
        uid: Uid::ROOT,
    };
    match world.ask(caller, question) {
        Ok(QueryResult::Quota { user, .. }) => user.used,
        other => panic!("{other:?}"),
    }
}

fn nothing_is_left(world: &TestService) {
    for tag in [&b"GR/"[..], b"GI/", b"NO/", b"TO/"] {
        assert_eq!(world.rows(tag), [], "{}", tag.escape_ascii());
    }
    for (_, bytes) in world.rows(b"I/") {
        assert!(Inode::from_bytes(&bytes).unwrap().links > 0);
    }
}

#[test]
fn an_unclaimed_inode_is_there_for_a_minute_and_then_gone() {
    let (mut world, one, other) = shared();
    let file = world.create(&one, InodeId::ROOT, "f");
    unlink(&mut world, &one, "f", false);
    pass(&mut world, 58);
    let attributes = world.attributes(&other, file).expect("it can be read");
    assert_eq!(attributes.links, 0);
    pass(&mut world, 4);
    assert_eq!(world.attributes(&other, file), None);
    nothing_is_left(&world);
    assert_eq!(claim(&mut world, &other, &[file]), Ok(vec![Claimed::Gone]));
}

#[test]
fn an_outage_does_not_move_the_deadline() {
    let (mut world, one, other) = shared();
    let file = world.create(&one, InodeId::ROOT, "f");
    unlink(&mut world, &one, "f", false);
    world.wait(3600);
    world.drain();
    let claimed = claim(&mut world, &other, &[file]);
    assert_eq!(claimed, Ok(vec![Claimed::Held]), "it had no chance before");
}

#[test]
fn a_claimed_inode_goes_when_no_session_holds_it_and_its_time_is_over() {
    let (mut world, one, other) = shared();
    let third = world.open(OWNER);
    world
        .run(&third, &mount(Takeover::Refused, MountMode::Shared))
        .unwrap();
    let (a, b) = (
        world.create(&one, InodeId::ROOT, "a"),
        world.create(&one, InodeId::ROOT, "b"),
    );
    unlink(&mut world, &one, "a", true);
    unlink(&mut world, &one, "b", false);
    let held = Claimed::Held;
    assert_eq!(claim(&mut world, &other, &[a, b]), Ok(vec![held, held]));
    assert_eq!(claim(&mut world, &other, &[a, b]), Ok(vec![held, held]));
    // Let go before its time is over: others may still claim it.
    release(&mut world, &one, a).unwrap();
    release(&mut world, &other, a).unwrap();
    assert_eq!(release(&mut world, &other, a), Err(Error::Stale(a)));
    assert_eq!(claim(&mut world, &third, &[a]), Ok(vec![held]));
    pass(&mut world, 70);
    assert!(world.attributes(&one, a).is_some());
    assert!(world.attributes(&one, b).is_some());
    release(&mut world, &third, a).unwrap();
    assert_eq!(world.attributes(&one, a), None);
    world.close(&other);
    world.drain();
    assert_eq!(world.attributes(&one, b), None);
    nothing_is_left(&world);
}

#[test]
fn a_claim_of_what_is_gone_or_named_fails_no_other_claim() {
    let (mut world, one, other) = shared();
    let named = world.create(&one, InodeId::ROOT, "named");
    let gone = InodeId(999);
    let file = world.create(&one, InodeId::ROOT, "f");
    unlink(&mut world, &one, "f", false);
    let claimed = claim(&mut world, &other, &[gone, named, file]);
    let expected = vec![Claimed::Gone, Claimed::Named, Claimed::Held];
    assert_eq!(claimed, Ok(expected));
    assert_eq!(world.rows(b"NO/").len(), 1);
}

#[test]
fn claims_are_bounded_and_need_a_mount() {
    let (mut world, _, other) = shared();
    let many = vec![InodeId(9); CLAIM_INODES_MAX + 1];
    let limit = CLAIM_INODES_MAX as u32;
    let refused = claim(&mut world, &other, &many);
    assert_eq!(refused, Err(Error::TooMany { limit }));
    let command = world.open(OWNER);
    let refused = claim(&mut world, &command, &[InodeId(9)]);
    assert_eq!(refused, Err(Error::NotMounted));
    for number in 0..CLAIMS_MAX as u64 {
        let row_key = key::orphan(other.session, InodeId(1000 + number));
        world.put(&row_key, &Orphan { realm: REALM });
    }
    let refused = claim(&mut world, &other, &[InodeId(9)]);
    assert_eq!(refused, Err(Error::LimitReached));
}

#[test]
fn next_to_a_mount_that_is_alone_nothing_goes_to_the_grave() {
    let mut world = TestService::new();
    let (holder, command) = (world.open(OWNER), world.open(OWNER));
    world
        .run(&holder, &mount(Takeover::Refused, MountMode::Exclusive))
        .unwrap();
    for (name, by) in [("a", &holder), ("b", &command)] {
        world.create(by, InodeId::ROOT, name);
        unlink(&mut world, by, name, false);
    }
    assert_eq!(world.rows(b"GR/"), []);
    // What another session removes is the holder's orphan.
    assert_eq!(world.rows(&key::orphans(holder.session)).len(), 1);
}

#[test]
fn the_removal_gives_the_space_back_and_a_claim_takes_it_whatever_the_limit() {
    let (mut world, one, other) = shared();
    let before = usage(&mut world, &one);
    let file = world.create(&one, InodeId::ROOT, "f");
    let allocation = world.allocate(&one, 4);
    let step = Step::Commit(commit(file, allocation, 0, &[(0, 100)]));
    world.step(&one, &Credentials::root(), step).unwrap();
    unlink(&mut world, &one, "f", false);
    assert_eq!(usage(&mut world, &one), before);
    let limit = Limit {
        bytes: Some(1),
        inodes: Some(1),
    };
    let set = SetQuota {
        realm: REALM,
        of: QuotaOf::Realm,
        limit: Some(limit),
    };
    world.run(&one, &Operation::SetQuota(set)).unwrap();
    assert_eq!(claim(&mut world, &other, &[file]), Ok(vec![Claimed::Held]));
    let with = usage(&mut world, &one);
    assert_eq!(with.inodes, before.inodes + 1);
    assert_eq!(with.bytes, before.bytes + 100);
    release(&mut world, &other, file).unwrap();
    assert_eq!(usage(&mut world, &one), before);
    consistent(&world).unwrap();
    pass(&mut world, 62);
    consistent(&world).unwrap();
    nothing_is_left(&world);
}

#[test]
fn a_claim_takes_an_inode_out_of_the_trash_until_it_is_released() {
    let (mut world, one, other) = shared();
    let file = world.create(&one, InodeId::ROOT, "f");
    let late = world.create(&one, InodeId::ROOT, "late");
    pass(&mut world, TRASH_AGE_SECONDS as u64 + 1);
    unlink(&mut world, &one, "f", false);
    let trashed = world.rows(b"TR/");
    assert_eq!(trashed.len(), 1, "found in the trash at once");
    assert_eq!(world.rows(b"GR/"), []);
    assert_eq!(claim(&mut world, &other, &[file]), Ok(vec![Claimed::Held]));
    assert_eq!(world.rows(b"TR/"), []);
    assert!(world.attributes(&other, file).is_some());
    consistent(&world).unwrap();
    release(&mut world, &other, file).unwrap();
    let row = |rows: Vec<(Vec<u8>, Vec<u8>)>| rows.into_iter().map(|(row_key, _)| row_key);
    assert!(row(world.rows(b"TR/")).eq(row(trashed)), "at its old place");
    consistent(&world).unwrap();
    let restore = Step::Restore(Restore {
        inode: file,
        place: place(InodeId::ROOT, "f"),
    });
    world.step(&one, &Credentials::root(), restore).unwrap();
    unlink(&mut world, &one, "late", false);
    pass(&mut world, 62);
    assert_eq!(claim(&mut world, &other, &[late]), Ok(vec![Claimed::Gone]));
    assert_eq!(world.rows(b"TR/").len(), 1, "it stays in the trash");
}

#[test]
fn many_graves_are_dug_up_in_bounded_ticks() {
    let (mut world, one, _) = shared();
    for number in 0..300 {
        let at = world.mkdir(&one, InodeId::ROOT, "d");
        world.create(&one, at, &format!("f{number}"));
        for step in [
            Step::Unlink(removal(at, &format!("f{number}"), false)),
            Step::RemoveDirectory(removal(InodeId::ROOT, "d", false)),
        ] {
            world.step(&one, &Credentials::root(), step).unwrap();
        }
    }
    assert_eq!(world.rows(b"GR/").len(), 600);
    pass(&mut world, 62);
    nothing_is_left(&world);
    consistent(&world).unwrap();
}

fn nothing_leaks(seed: u64, pace: u64) -> Result<(), TestCaseError> {
    let mut chance = chance(seed);
    let mut world = TestService::new();
    world.pace = pace;
    let mut workload = Workload::with_trash();
    let callers = [(); 3].map(|()| world.open(OWNER));
    for caller in &callers {
        world
            .run(caller, &mount(Takeover::Refused, MountMode::Shared))
            .unwrap();
    }
    for _ in 0..200 {
        let caller = callers[chance(3) as usize];
        match chance(8) {
            0 => {
                let inodes = [(); 4].map(|()| InodeId(2 + chance(30)));
                claim(&mut world, &caller, &inodes).unwrap();
            }
            1 => {
                let _ = release(&mut world, &caller, InodeId(2 + chance(30)));
            }
            2 => pass(&mut world, chance(20)),
            _ => {
                if let Call::Execute(bytes) = workload.next(&mut chance) {
                    let answer = world.run_bytes(&caller, &bytes);
                    workload.learn(&answer);
                }
            }
        }
        // What is purged is freed by ticks.
        world.drain();
        consistent(&world)?;
    }
    for caller in callers {
        world.close(&caller);
    }
    pass(&mut world, 70);
    nothing_is_left(&world);
    consistent(&world)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn claims_and_removals_of_several_mounts_leak_nothing(seed in any::<u64>()) {
        nothing_leaks(seed, 1_000_000)?;
    }

    #[test]
    fn nor_do_they_with_a_trash(seed in any::<u64>()) {
        nothing_leaks(seed, 20_000_000_000)?;
    }
}
