//! What a principal can do once it is admitted, has other rights, and is dismissed.

use super::world::*;
use crate::Metadata;
use crate::attributes::{Access, Credentials};
use crate::error::Error;
use crate::identity::*;
use crate::operation::{BeginEpoch, Operation, Takeover};
use crate::query::Question;
use crate::reply::{Done, QueryResult};
use crate::row::*;
use crate::succession::{SignedSuccession, Succeed, Succession};
use crate::tests::harness::mount;
use quorumfs_bft::identity::{PublicKey, Signature, Time};
use quorumfs_bft::service::{Caller, Service};
use quorumfs_bft::state::Area;

fn administers(world: &PeopleWorld, key: PublicKey) -> Option<bool> {
    let view = world.service.space.view(Area::Service);
    Metadata.administers(&view, &key).unwrap()
}

fn may_copy(world: &PeopleWorld, key: PublicKey) -> bool {
    let view = world.service.space.view(Area::Service);
    Metadata.may_copy(&view, &key).unwrap()
}

fn allocates(world: &mut PeopleWorld, caller: &Caller) -> Result<(), Error> {
    let done = world.service.run(caller, &Operation::Allocate { count: 1 });
    done.map(|_| ()).map_err(|refusal| refusal.error)
}

fn shared() -> Operation {
    mount(Takeover::Refused, MountMode::Shared)
}

/// A key epoch of the owner's with these members, and the founders that administer.
pub(in crate::tests) fn epoch_with(world: &PeopleWorld, others: &[(u8, MemberRole)]) -> BeginEpoch {
    let number = RealmEpoch(world.epoch().0 + 1);
    let member = |(seed, role): (u8, MemberRole)| {
        let member = Member {
            epoch: number,
            role,
            expires: None,
            wrapped: vec![7; 80],
            signer: id(OWNER),
            signature: Signature([8; 64]),
        };
        (id(seed), member)
    };
    let founders = [OWNER, RECOVERY].map(|seed| (seed, MemberRole::Administer));
    BeginEpoch {
        realm: RealmId::ROOT,
        number,
        epoch: Epoch {
            begun: Time(7),
            lock: Lock::Members,
            previous: vec![1; 48],
            shares: None,
        },
        members: founders
            .into_iter()
            .chain(others.iter().copied())
            .map(member)
            .collect(),
    }
}

#[test]
fn an_admitted_principal_is_what_its_statement_says() {
    let mut world = PeopleWorld::new();
    assert_eq!(world.service.try_open(id(BOB)), None);
    let ordered = signed_by(OWNER, &world.next(admitting(BOB, MemberRole::Write)));
    assert_eq!(world.order(&ordered), Ok(1));
    let caller = world.service.open(id(BOB));
    let Ok(QueryResult::WhoAmI { rights: row, .. }) =
        world.service.ask_as(&caller, bob(), Question::WhoAmI)
    else {
        panic!("not known");
    };
    let stated = statement(BOB, MemberRole::Write);
    assert_eq!(row.wrapping_key, stated.wrapping_key);
    assert_eq!((row.rights, row.label), (stated.rights, stated.label));
    assert_eq!((row.number, row.sessions), (PrincipalNumber(3), 1));
    assert_eq!(
        (row.expires, row.stated),
        (None, Some(ordered.signed.signed))
    );
    let secrets = world.service.ask_as(&caller, bob(), Question::CloudSecrets);
    let wrapped = stated.cloud_secrets.into_iter().map(|it| {
        let row = CloudSecretRow {
            bytes: it.bytes,
            signed: None,
        };
        (it.cloud, row)
    });
    assert_eq!(secrets, Ok(QueryResult::CloudSecrets(wrapped.collect())));
    let realm = Question::Realm(RealmId::ROOT);
    let Ok(QueryResult::Realm { member, .. }) = world.service.ask_as(&caller, bob(), realm) else {
        panic!("no realm");
    };
    assert_eq!(member, ordered.member);
    let found = world
        .service
        .ask_as(&caller, bob(), Question::Principal(row.number));
    let Ok(QueryResult::Principal(numbered)) = found else {
        panic!("{found:?}");
    };
    assert_eq!(numbered.principal, id(BOB));
    assert_eq!(allocates(&mut world, &caller), Ok(()));
    let attributes = Question::Attributes(InodeId::ROOT);
    let strange = world
        .service
        .ask_as(&caller, Credentials::root(), attributes);
    assert_eq!(strange, Err(Error::NoRight));
    // It may have another user than it knows, and learns of it in any name.
    let learned = world
        .service
        .ask_as(&caller, Credentials::root(), Question::People { after: 0 });
    assert!(learned.is_ok());
    let access = Question::Access {
        inode: InodeId::ROOT,
        access: Access::READ,
    };
    let allowed = world.service.ask_as(&caller, bob(), access);
    assert_eq!(allowed, Ok(QueryResult::Allowed));
}

#[test]
fn a_dismissed_principal_is_refused_everything_and_holds_nothing_up() {
    let mut world = PeopleWorld::new();
    world.change(admitting(BOB, MemberRole::Write)).unwrap();
    let mounted = world.service.open(id(BOB));
    let other = world.service.open(id(BOB));
    let exclusive = mount(Takeover::Refused, MountMode::Exclusive);
    world.service.run(&mounted, &exclusive).unwrap();
    assert_eq!(allocates(&mut world, &other), Ok(()));
    assert_eq!(world.change(dismissing(BOB)), Ok(2));

    let owner = world.owner;
    let by = owner.session;
    assert_eq!(allocates(&mut world, &mounted), Err(Error::Fenced { by }));
    assert_eq!(allocates(&mut world, &other), Err(Error::NoSession));
    for caller in [&mounted, &other] {
        for question in [
            Question::WhoAmI,
            Question::Volume,
            Question::People { after: 0 },
        ] {
            let refused = world.service.ask_as(caller, bob(), question);
            assert_eq!(refused, Err(Error::NoSession));
        }
    }
    assert_eq!(world.service.try_open(id(BOB)), None);
    assert_eq!(administers(&world, id(BOB)), Some(false));
    assert!(world.service.run(&owner, &exclusive).is_ok(), "it is free");
    // What is left of it: that it was a principal, and its number.
    assert_eq!(world.rows_of(BOB), [key::former(&id(BOB))]);
    let numbered = Question::Principal(PrincipalNumber(3));
    assert!(world.service.ask(&owner, numbered).is_ok());
    // Its sessions end as any other.
    world.service.close(&mounted);
    world.service.close(&other);
    assert_eq!(world.change(dismissing(BOB)), Err(Error::NotFound));
}

#[test]
fn a_dismissed_key_can_be_admitted_again_and_a_replaced_one_cannot() {
    let mut world = PeopleWorld::new();
    world
        .change(admitting(BOB, MemberRole::Administer))
        .unwrap();
    let fenced = world.service.open(id(BOB));
    world.service.run(&fenced, &shared()).unwrap();
    world.change(dismissing(BOB)).unwrap();
    world.change(admitting(BOB, MemberRole::Write)).unwrap();
    assert_eq!(world.row(BOB).unwrap().number, PrincipalNumber(4));
    assert!(matches!(
        allocates(&mut world, &fenced),
        Err(Error::Fenced { .. })
    ));
    let again = world.service.open(id(BOB));
    assert_eq!(allocates(&mut world, &again), Ok(()));
    assert_eq!(administers(&world, id(BOB)), Some(false), "it may not now");

    let root = |predecessor: u8, successor: u8| {
        let succession = Succession {
            volume: VOLUME,
            number: 1,
            predecessor: id(predecessor),
            successor: statement(successor, MemberRole::Write),
            epoch: RealmEpoch(0),
        };
        let bytes = succession.to_bytes();
        let signature = key_of(ROOT).sign(&Succession::signed_bytes(&bytes));
        let step = admitting(successor, MemberRole::Write);
        Operation::Succeed(Succeed {
            signed: SignedSuccession {
                succession: bytes,
                signature: Signature(signature.into()),
            },
            member: member_for(&step, RealmEpoch(0)).unwrap(),
        })
    };
    let expires = Some(
        world
            .service
            .now()
            .plus(quorumfs_bft::identity::Nanos(1 << 40)),
    );
    world
        .change(granting(BOB, MemberRole::Write, expires))
        .unwrap();
    let owner = world.owner;
    let done = world.service.run(&owner, &root(BOB, EVE));
    assert_eq!(done, Ok(Done::Succeeded { number: 1 }));
    assert_eq!(world.rows_of(BOB), Vec::<Vec<u8>>::new());
    assert_eq!(world.service.rows(&key::expiries()), []);
    assert_eq!(administers(&world, id(BOB)), Some(false));
    let back = world.change(admitting(BOB, MemberRole::Write));
    assert_eq!(back, Err(Error::BadPeopleChange));
    // What the root states is the root's from then on.
    assert_eq!(world.row(EVE).unwrap().stated, None);
    assert_eq!(world.change(dismissing(EVE)), Err(Error::BadPeopleChange));
}

#[test]
fn other_rights_keep_number_keys_and_sessions_and_fence_only_mounts_that_lose() {
    use MemberRole::{Administer, Read, Write};
    for (before, after, fences) in [
        (Read, Write, false),
        (Read, Administer, false),
        (Write, Administer, false),
        (Write, Write, false),
        // It acted for every user.
        (Administer, Write, true),
        (Write, Read, true),
        (Administer, Read, true),
        (Read, Read, false),
    ] {
        let mut world = PeopleWorld::new();
        world.change(admitting(BOB, before)).unwrap();
        let (mounted, other) = (world.service.open(id(BOB)), world.service.open(id(BOB)));
        world.service.run(&mounted, &shared()).unwrap();
        let (old, secrets) = (world.row(BOB).unwrap(), world.service.rows(b"PC/"));
        let ordered = signed_by(OWNER, &world.next(granting(BOB, after, None)));
        assert_eq!(world.order(&ordered), Ok(2), "{before:?} {after:?}");
        let row = world.row(BOB).unwrap();
        assert_eq!(row.rights, rights_of(after));
        assert_eq!(
            (row.label.as_str(), row.stated),
            ("again", Some(ordered.signed.signed))
        );
        assert_eq!((row.number, row.sessions), (old.number, 2));
        assert_eq!(row.wrapping_key, old.wrapping_key);
        assert_eq!(world.service.rows(b"PC/"), secrets);
        let member = &world.service.rows(&key::member(RealmId::ROOT, &id(BOB)))[0];
        assert_eq!(Some(Member::from_bytes(&member.1).unwrap()), ordered.member);
        let question = Question::Attributes(InodeId::ROOT);
        let by = world.owner.session;
        let seen = world.service.ask_as(&mounted, bob(), question.clone());
        match fences {
            true => assert_eq!(seen, Err(Error::Fenced { by })),
            false => assert!(seen.is_ok(), "{seen:?}"),
        }
        assert!(world.service.ask_as(&other, bob(), question).is_ok());
        let writes = match after {
            Read => Err(Error::NoRight),
            Write | Administer => Ok(()),
        };
        assert_eq!(allocates(&mut world, &other), writes);
    }
    // The right to mount alone is lost, and the role stays.
    let mut world = PeopleWorld::new();
    world.change(admitting(BOB, Write)).unwrap();
    let mounted = world.service.open(id(BOB));
    world
        .service
        .run(&mounted, &mount(Takeover::Refused, MountMode::Alone))
        .unwrap();
    let mut step = granting(BOB, Write, None);
    if let crate::people::PeopleStep::Regrant { rights, .. } = &mut step {
        (rights.mount, rights.reconcile) = (false, true);
    }
    world.change(step).unwrap();
    assert!(matches!(
        allocates(&mut world, &mounted),
        Err(Error::Fenced { .. })
    ));
    // And the role is lost, of one that had no right to mount alone.
    let shares = world.service.open(id(BOB));
    world.service.run(&shares, &shared()).unwrap();
    world.change(granting(BOB, Read, None)).unwrap();
    let refused = allocates(&mut world, &shares);
    assert!(matches!(refused, Err(Error::Fenced { .. })));
}

#[test]
fn an_administrator_that_was_admitted_administers_until_it_is_dismissed() {
    let mut world = PeopleWorld::new();
    world
        .change(admitting(BOB, MemberRole::Administer))
        .unwrap();
    let caller = world.service.open(id(BOB));
    assert_eq!(administers(&world, id(BOB)), Some(true));
    assert!(may_copy(&world, id(BOB)));
    let admit = signed_by(BOB, &world.next(admitting(EVE, MemberRole::Read)));
    assert_eq!(world.order_as(&caller, &admit), Ok(2));
    let dismiss = signed_by(BOB, &world.next(dismissing(EVE)));
    assert_eq!(world.order_as(&caller, &dismiss), Ok(3));
    // A key epoch has all administrators, and it is one.
    let without = epoch_with(&world, &[]);
    let refused = world.service.run(&caller, &Operation::BeginEpoch(without));
    assert_eq!(refused.unwrap_err().error, Error::BadEpoch);
    let with = epoch_with(&world, &[(BOB, MemberRole::Administer)]);
    world
        .service
        .run(&caller, &Operation::BeginEpoch(with))
        .unwrap();

    world
        .change(granting(BOB, MemberRole::Write, None))
        .unwrap();
    assert_eq!(administers(&world, id(BOB)), Some(false));
    assert!(!may_copy(&world, id(BOB)));
    let next = signed_by(BOB, &world.next(admitting(EVE, MemberRole::Read)));
    assert_eq!(world.order_as(&caller, &next), Err(Error::NoRight));
}

#[test]
fn a_principal_that_a_key_epoch_leaves_out_copies_no_metadata() {
    let mut world = PeopleWorld::new();
    let mut keeper = statement(BOB, MemberRole::Write);
    keeper.rights.reconcile = true;
    world
        .change(crate::people::PeopleStep::Admit(keeper))
        .unwrap();
    assert!(may_copy(&world, id(BOB)));
    let (without, owner) = (epoch_with(&world, &[]), world.owner);
    world
        .service
        .run(&owner, &Operation::BeginEpoch(without))
        .unwrap();
    assert!(!may_copy(&world, id(BOB)));
    // New rights come with the membership of the present key epoch.
    world
        .change(granting(BOB, MemberRole::Write, None))
        .unwrap();
    let caller = world.service.open(id(BOB));
    assert_eq!(allocates(&mut world, &caller), Ok(()));
}
