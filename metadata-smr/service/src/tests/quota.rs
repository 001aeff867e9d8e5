//! Quotas: counted exactly, and enforced on growth.

mod growth;

use super::harness::*;
use super::model::{chance, consistent};
use crate::attributes::{Credentials, Mode};
use crate::error::{Errno, Error};
use crate::identity::{Gid, InodeId, RealmId, Uid};
use crate::limits::QUOTA_PAGE_MAX;
use crate::operation::*;
use crate::query::{Query, Question};
use crate::reply::{Answer, Done, QueryResult, Response, StepDone};
use crate::row::*;
use crate::simulation::model::Model;
use crate::simulation::place;
use crate::simulation::workload::{Call, Workload};
use proptest::prelude::*;
use quorumfs_bft::service::Caller;
use std::collections::BTreeMap;

const REALM: RealmId = RealmId::ROOT;
/// The bytes that a name counts.
const NAME: u64 = 512;

fn bytes(limit: u64) -> Option<Limit> {
    Some(Limit {
        bytes: Some(limit),
        inodes: None,
    })
}

fn inodes(limit: u64) -> Option<Limit> {
    Some(Limit {
        bytes: None,
        inodes: Some(limit),
    })
}

fn of(of: QuotaOf, limit: Option<Limit>) -> Operation {
    let realm = REALM;
    Operation::SetQuota(SetQuota { realm, of, limit })
}

pub(super) fn fixtures() -> Vec<(&'static str, Vec<u8>)> {
    let query = |question| {
        let credentials = Credentials::root();
        Query {
            credentials,
            question,
        }
    };
    let used = Amount {
        bytes: 4096,
        inodes: 3,
    };
    let realm = RealmQuota {
        used,
        limit: bytes(1 << 40).unwrap(),
        default: inodes(100).unwrap(),
    };
    let user = UserQuota {
        used,
        limit: bytes(7),
    };
    let (uid, remaining) = (Uid(1000), 5);
    let error = |error| Answer(Err(error)).to_bytes();
    vec![
        ("row-realm-quota", realm.to_bytes()),
        ("row-user-quota", user.to_bytes()),
        ("key-quota", key::quota(RealmId(1))),
        ("key-user-quota", key::user_quota(RealmId(1), uid)),
        (
            "operation-set-quota",
            of(QuotaOf::User(uid), bytes(7)).to_bytes(),
        ),
        (
            "query-quota",
            query(Question::Quota { realm: REALM, uid }).to_bytes(),
        ),
        (
            "query-quotas",
            query(Question::Quotas {
                realm: REALM,
                after: Some(uid),
                limit: 9,
            })
            .to_bytes(),
        ),
        ("reply-quota-set", Response(Ok(Done::QuotaSet)).to_bytes()),
        (
            "answer-quota",
            Answer(Ok(QueryResult::Quota { realm, user })).to_bytes(),
        ),
        (
            "answer-quotas",
            Answer(Ok(QueryResult::Quotas {
                realm,
                users: vec![(uid, user)],
                more: true,
            }))
            .to_bytes(),
        ),
        (
            "answer-user-quota",
            error(Error::UserQuota {
                uid,
                of: Resource::Bytes,
                remaining,
            }),
        ),
        (
            "answer-realm-quota",
            error(Error::RealmQuota {
                of: Resource::Inodes,
                remaining,
            }),
        ),
    ]
}

/// The usage of each user, counted from the inodes' rows.
fn counted(world: &TestService) -> BTreeMap<Uid, Amount> {
    let mut all: BTreeMap<Uid, Amount> = BTreeMap::new();
    for (_, value) in world.rows(b"I/") {
        let row = Inode::from_bytes(&value).unwrap();
        if row.links == 0 && row.holders == 0 {
            // In the grave, free of charge.
            continue;
        }
        let sum = all.entry(row.uid).or_default();
        sum.inodes += 1;
        sum.bytes += match &row.node {
            InodeBody::File(file) => match &file.content {
                Content::Inline(inline) => file.allocated + u64::from(inline.length),
                _ => file.allocated,
            },
            InodeBody::Symlink { target, .. } => target.bytes.len() as u64,
            _ => 0,
        };
        let names = if row.is_directory() {
            row.links.min(1)
        } else {
            row.links
        };
        sum.bytes += NAME * u64::from(names);
        sum.bytes += row.extended.map_or(0, |it| u64::from(it.bytes));
        let lists = row.acl.iter().map(|it| &it.named);
        for named in lists.chain(row.default_acl.iter().map(|it| &it.named)) {
            sum.bytes += 8 * (named.users.len() + named.groups.len()) as u64;
        }
    }
    all
}

/// The usage of each user and of the realm, according to the quota rows.
fn kept(world: &TestService) -> (BTreeMap<Uid, Amount>, Amount) {
    let users = world.rows(b"QU/").into_iter().map(|(key, value)| {
        let row = UserQuota::from_bytes(&value).unwrap();
        (key::trailing_uid(&key).unwrap(), row.used)
    });
    let users = users.filter(|(_, used)| *used != Amount::default());
    let realm = world.rows(&key::quota(REALM)).remove(0).1;
    (
        users.collect(),
        RealmQuota::from_bytes(&realm).unwrap().used,
    )
}

fn sum(all: &BTreeMap<Uid, Amount>) -> Amount {
    all.values().fold(Amount::default(), |sum, one| Amount {
        bytes: sum.bytes + one.bytes,
        inodes: sum.inodes + one.inodes,
    })
}

/// Checks that the counters equal the rows.
pub(super) fn counts(world: &TestService) -> Result<(), TestCaseError> {
    let expected = counted(world);
    let (users, realm) = kept(world);
    prop_assert_eq!(&users, &expected);
    prop_assert_eq!(realm, sum(&expected));
    Ok(())
}

impl TestService {
    fn quota(&mut self, caller: &Caller, whose: QuotaOf, limit: Option<Limit>) {
        assert_eq!(self.run(caller, &of(whose, limit)), Ok(Done::QuotaSet));
    }

    fn make_as(
        &mut self,
        caller: &Caller,
        who: &Credentials,
        name: &str,
        kind: NewInode,
    ) -> Result<InodeId, Error> {
        let create = Step::Create(Create {
            place: place(InodeId::ROOT, name),
            kind,
            mode: Mode(0o755),
            umask: Mode(0),
            exclusive: true,
            number: None,
        });
        match self.step(caller, who, create)? {
            StepDone::Created { inode, .. } => Ok(inode.inode),
            other => panic!("{other:?}"),
        }
    }

    fn chown(&mut self, caller: &Caller, inode: InodeId, uid: Uid) -> Result<(), Error> {
        let set = SetAttributes {
            uid: Some(uid),
            ..SetAttributes::of(inode)
        };
        let step = Step::SetAttributes(set);
        self.step(caller, &Credentials::root(), step).map(|_| ())
    }
}

fn user(uid: u32) -> Credentials {
    Credentials::user(Uid(uid), Gid(uid))
}

/// A service in whose root directory every user can create.
fn shared() -> (TestService, Caller) {
    let mut world = TestService::new();
    let caller = world.open(OWNER);
    let open = SetAttributes {
        mode: Some(Mode(0o777)),
        ..SetAttributes::of(InodeId::ROOT)
    };
    world
        .step(&caller, &Credentials::root(), Step::SetAttributes(open))
        .unwrap();
    (world, caller)
}

const ALL_KINDS: [NewInode; 4] = [
    NewInode::File,
    NewInode::Directory,
    NewInode::Fifo,
    NewInode::Socket,
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// The histories of the model, with limits that come and go: after each operation the counters
    /// equal the rows, and the refusals are those of the model.
    #[test]
    fn the_counters_equal_the_rows_after_each_operation(seed in any::<u64>()) {
        let mut chance = chance(seed);
        let mut world = TestService::new();
        let caller = world.open(OWNER);
        let mut workload = Workload::of_one_session();
        let mut model = Model::default();
        for _ in 0..150 {
            if chance(12) == 0 {
                let whose = match chance(4) {
                    0 => QuotaOf::Realm,
                    1 => QuotaOf::Default,
                    n => QuotaOf::User(Uid([1000, 1001][n as usize % 2])),
                };
                let limit = Limit {
                    bytes: (chance(2) == 0).then(|| chance(20_000)),
                    inodes: (chance(2) == 0).then(|| chance(12)),
                };
                let limit = (chance(3) > 0).then_some(limit);
                let operation = of(whose, limit).to_bytes();
                let answer = world.run_bytes(&caller, &operation);
                prop_assert!(model.execute(&operation, Some(&answer)));
            }
            let Call::Execute(operation) = workload.next(&mut chance) else {
                continue;
            };
            let root = world.root();
            let answer = world.run_bytes(&caller, &operation);
            let response = Response::from_bytes(&answer).unwrap();
            prop_assert!(
                model.execute(&operation, Some(&answer)),
                "{:#?}\n{response:#?}",
                Operation::from_bytes(&operation),
            );
            if response.0.is_err() {
                prop_assert_eq!(root, world.root(), "a refusal changed the state");
            }
            workload.learn(&answer);
            counts(&world)?;
            let (users, _) = kept(&world);
            prop_assert_eq!(users, model.usage());
        }
        world.close(&caller);
        world.drain();
        counts(&world)?;
        consistent(&world)?;
    }
}

#[test]
fn a_user_at_his_limit_makes_no_inode_of_any_kind_and_others_do() {
    let (mut world, caller) = shared();
    world.quota(&caller, QuotaOf::User(Uid(7)), inodes(1));
    let first = world.make_as(&caller, &user(7), "first", NewInode::File);
    first.unwrap();
    let full = Error::UserQuota {
        uid: Uid(7),
        of: Resource::Inodes,
        remaining: 0,
    };
    assert_eq!(full.errno(), Errno::EDQUOT);
    let root = world.root();
    for kind in ALL_KINDS {
        let made = world.make_as(&caller, &user(7), "more", kind);
        assert_eq!(made, Err(full.clone()));
    }
    assert_eq!(world.root(), root, "a refusal leaves nothing");
    for (uid, kind) in (8..).zip(ALL_KINDS) {
        let name = uid.to_string();
        world.make_as(&caller, &user(uid), &name, kind).unwrap();
    }
    let gone = Step::Unlink(removal(InodeId::ROOT, "first", false));
    world.step(&caller, &user(7), gone).unwrap();
    world
        .make_as(&caller, &user(7), "more", NewInode::Directory)
        .unwrap();
}

#[test]
fn a_user_over_the_quota_can_do_anything_but_grow() {
    let (mut world, caller) = shared();
    let file = world
        .make_as(&caller, &user(7), "file", NewInode::File)
        .unwrap();
    let allocation = world.allocate(&caller, 16);
    let who = Credentials::root();
    let write = |world: &mut TestService, first, runs: &[(u64, u32)]| {
        let step = Step::Commit(commit(file, allocation, first, runs));
        world.step(&caller, &who, step).map(|_| ())
    };
    write(&mut world, 0, &[(0, 1000)]).unwrap();
    world.quota(&caller, QuotaOf::User(Uid(7)), bytes(NAME + 600));
    write(&mut world, 1, &[(0, 1000)]).unwrap();
    let full = |remaining| {
        Err(Error::UserQuota {
            uid: Uid(7),
            of: Resource::Bytes,
            remaining,
        })
    };
    assert_eq!(write(&mut world, 2, &[(1000, 1)]), full(0));
    let rename = Step::Rename(rename_of((InodeId::ROOT, "file"), (InodeId::ROOT, "other")));
    world.step(&caller, &user(7), rename).unwrap();
    let cut = SetAttributes {
        size: Some(500),
        ..SetAttributes::of(file)
    };
    world
        .step(&caller, &user(7), Step::SetAttributes(cut))
        .unwrap();
    assert_eq!(write(&mut world, 3, &[(500, 101)]), full(100));
    write(&mut world, 3, &[(500, 100)]).unwrap();
    counts(&world).unwrap();
}

#[test]
fn a_file_is_given_only_to_a_user_whose_quota_allows_it() {
    let (mut world, caller) = shared();
    let file = world.create(&caller, InodeId::ROOT, "file");
    let allocation = world.allocate(&caller, 4);
    let step = Step::Commit(commit(file, allocation, 0, &[(0, 1000)]));
    world.step(&caller, &Credentials::root(), step).unwrap();
    world.quota(&caller, QuotaOf::Default, bytes(NAME + 999));
    let full = Error::UserQuota {
        uid: Uid(7),
        of: Resource::Bytes,
        remaining: NAME + 999,
    };
    assert_eq!(world.chown(&caller, file, Uid(7)), Err(full));
    // A user's own limit overrides the default, even if it is unlimited.
    world.quota(&caller, QuotaOf::User(Uid(7)), Some(Limit::default()));
    world.chown(&caller, file, Uid(7)).unwrap();
    assert_eq!(kept(&world).0[&Uid(7)].bytes, NAME + 1000);
    assert!(!kept(&world).0.contains_key(&Uid(8)));
    world.chown(&caller, file, Uid::ROOT).unwrap();
    assert_eq!(kept(&world).0[&Uid::ROOT].bytes, 2 * NAME + 1000);
    world.quota(&caller, QuotaOf::User(Uid(7)), None);
    assert!(
        world.rows(&key::user_quota(REALM, Uid(7))).is_empty(),
        "a user without usage has no row"
    );
}

#[test]
fn the_realms_limit_binds_every_user_and_a_users_limit_not_the_superuser() {
    let (mut world, caller) = shared();
    world.quota(&caller, QuotaOf::Default, inodes(0));
    let whose = QuotaOf::User(Uid::ROOT);
    let refused = world.run(&caller, &of(whose, inodes(0))).unwrap_err();
    assert_eq!(refused.error, Error::Invalid);
    world.create(&caller, InodeId::ROOT, "one");
    world.quota(&caller, QuotaOf::Realm, inodes(2));
    let root = Credentials::root();
    let made = world.make_as(&caller, &root, "two", NewInode::File);
    let full = Error::RealmQuota {
        of: Resource::Inodes,
        remaining: 0,
    };
    assert_eq!(full.errno(), Errno::ENOSPC);
    assert_eq!(made, Err(full));
    world.quota(&caller, QuotaOf::Realm, None);
    world.create(&caller, InodeId::ROOT, "two");
}

#[test]
fn cloned_bytes_count_for_each_file_and_open_files_until_they_are_closed() {
    let (mut world, caller) = shared();
    let one = world.create(&caller, InodeId::ROOT, "one");
    let two = world
        .make_as(&caller, &user(7), "two", NewInode::File)
        .unwrap();
    let allocation = world.allocate(&caller, 4);
    let root = Credentials::root();
    let step = Step::Commit(commit(one, allocation, 0, &[(0, 1000)]));
    world.step(&caller, &root, step).unwrap();
    let clone = NewContent::Clone(CloneRange {
        offset: 0,
        length: 1000,
        source: one,
        source_offset: 0,
        expected: None,
    });
    let clone = Step::Commit(Commit {
        content: clone,
        ..commit(two, allocation, 1, &[])
    });
    world.quota(&caller, QuotaOf::User(Uid(7)), bytes(NAME + 999));
    let refused = world.step(&caller, &root, clone.clone()).unwrap_err();
    assert_eq!(refused.errno(), Errno::EDQUOT);
    world.quota(&caller, QuotaOf::User(Uid(7)), bytes(NAME + 1000));
    world.step(&caller, &root, clone).unwrap();
    assert_eq!(kept(&world).1.bytes, 3 * NAME + 2000);

    let held = Step::Unlink(removal(InodeId::ROOT, "two", true));
    world.step(&caller, &root, held).unwrap();
    assert_eq!(kept(&world).0[&Uid(7)].bytes, 1000);
    world
        .step(&caller, &root, Step::Release { inode: two })
        .unwrap();
    assert!(!kept(&world).0.contains_key(&Uid(7)));
    counts(&world).unwrap();
}

#[test]
fn a_long_tail_counts_until_it_is_gone_and_a_deleted_file_does_not() {
    let (mut world, caller) = shared();
    let file = world.create(&caller, InodeId::ROOT, "file");
    let allocation = world.allocate(&caller, 512);
    let root = Credentials::root();
    for part in 0..3_u32 {
        let runs: Vec<_> = (0..100_u64)
            .map(|i| ((u64::from(part) * 100 + i) * 20, 10))
            .collect();
        let step = Step::Commit(commit(file, allocation, part * 100, &runs));
        world.step(&caller, &root, step).unwrap();
    }
    let cut = |size| {
        Step::SetAttributes(SetAttributes {
            size: Some(size),
            ..SetAttributes::of(file)
        })
    };
    assert_eq!(kept(&world).1.bytes, 2 * NAME + 3000);
    world.step(&caller, &root, cut(20)).unwrap();
    assert_eq!(
        kept(&world).1.bytes,
        2 * NAME + 3000,
        "ticks have yet to delete it"
    );
    counts(&world).unwrap();
    assert!(world.drain() > 0);
    assert_eq!(kept(&world).1.bytes, 2 * NAME + 10);
    let runs: Vec<_> = (1..150_u64).map(|i| (i * 20, 10)).collect();
    let step = Step::Commit(commit(file, allocation, 300, &runs));
    world.step(&caller, &root, step).unwrap();
    let gone = Step::Unlink(removal(InodeId::ROOT, "file", false));
    world.step(&caller, &root, gone).unwrap();
    assert_eq!(kept(&world).1.bytes, NAME, "though its extents are there");
    assert!(!world.rows(b"E/").is_empty());
    world.drain();
    counts(&world).unwrap();
    consistent(&world).unwrap();
}

#[test]
fn quotas_are_set_by_an_administrator_and_shown_to_the_users_that_they_bind() {
    let (mut world, caller) = shared();
    let alice_there = world.open(ALICE);
    let refused = world.run(&alice_there, &of(QuotaOf::Realm, bytes(0)));
    assert_eq!(refused.unwrap_err().error, Error::NoRight);
    let strange = Operation::SetQuota(SetQuota {
        realm: RealmId(9),
        of: QuotaOf::Realm,
        limit: None,
    });
    let refused = world.run(&caller, &strange).unwrap_err();
    assert_eq!(refused.error, Error::NoRealm);
    world.quota(&caller, QuotaOf::User(Uid(1000)), bytes(5));
    let question = |uid| Question::Quota {
        realm: REALM,
        uid: Uid(uid),
    };
    let own = world.ask_as(&alice_there, alice(), question(1000));
    let Ok(QueryResult::Quota { user, realm }) = own else {
        panic!("{own:?}")
    };
    assert_eq!((user.limit, realm.used.inodes), (bytes(5), 1));
    for refused in [
        question(1001),
        Question::Quotas {
            realm: REALM,
            after: None,
            limit: 1,
        },
    ] {
        let refused = world.ask_as(&alice_there, alice(), refused);
        assert_eq!(refused, Err(Error::NoRight));
    }
}

#[test]
fn users_are_listed_page_by_page_each_once() {
    let (mut world, caller) = shared();
    let many = QUOTA_PAGE_MAX + 5;
    for uid in 1..=many {
        world.quota(&caller, QuotaOf::User(Uid(uid)), bytes(u64::from(uid)));
    }
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let question = Question::Quotas {
            realm: REALM,
            after,
            limit: u32::MAX,
        };
        let Ok(QueryResult::Quotas { users, more, .. }) = world.ask(&caller, question) else {
            panic!()
        };
        assert!(users.len() <= QUOTA_PAGE_MAX as usize);
        after = users.last().map(|(uid, _)| *uid);
        seen.extend(users.into_iter().map(|(uid, _)| uid.0));
        if !more {
            break;
        }
    }
    // The superuser owns the root directory.
    assert_eq!(seen, (0..=many).collect::<Vec<_>>());
}

#[test]
fn extreme_limits_and_steps_that_take_turns_are_counted_right() {
    let (mut world, caller) = shared();
    for limit in [0, 1, u64::MAX - 1, u64::MAX] {
        let limit = Some(Limit {
            bytes: Some(limit),
            inodes: Some(limit),
        });
        world.quota(&caller, QuotaOf::Realm, limit);
        world.quota(&caller, QuotaOf::User(Uid(7)), limit);
    }
    world.quota(&caller, QuotaOf::User(Uid(7)), inodes(1));
    let create = |name| {
        Step::Create(Create {
            place: place(InodeId::ROOT, name),
            kind: NewInode::File,
            mode: Mode(0o644),
            umask: Mode(0),
            exclusive: true,
            number: None,
        })
    };
    let gone = |name| Step::Unlink(removal(InodeId::ROOT, name, false));
    // Each step sees the results of the earlier ones.
    let steps = vec![create("a"), gone("a"), create("b")];
    world.steps(&caller, &user(7), steps).unwrap();
    let root = world.root();
    let steps = vec![create("c"), gone("b")];
    let refused = world.steps(&caller, &user(7), steps).unwrap_err();
    assert_eq!(refused.errno(), Errno::EDQUOT);
    assert_eq!(world.root(), root);
}
