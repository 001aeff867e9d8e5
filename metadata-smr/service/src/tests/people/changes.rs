//! Changes of the principals: by an administrator's signature alone, one after the other, and never
//! of what the volume root states.

use super::world::*;
use crate::attributes::Credentials;
use crate::error::{Error, FailedAt, OperationError};
use crate::identity::*;
use crate::limits::{
    LABEL_BYTES_MAX, PEOPLE_CHANGES_MAX, PEOPLE_PAGE_MAX, PRINCIPALS_MAX, RIGHTS_LIST_MAX,
    WRAPPED_KEY_BYTES_MAX,
};
use crate::operation::Operation;
use crate::people::{ChangePeople, PeopleChange, PeopleStep};
use crate::query::{Query, Question};
use crate::reply::{Answer, Done, QueryResult, Response};
use crate::row::*;
use crate::tests::harness::changed_rows;
use proptest::prelude::*;
use quorumfs_bft::identity::Time;

/// Rows, operations, questions and answers, for the fixtures of the format.
pub(super) fn fixtures() -> Vec<(&'static str, Vec<u8>)> {
    let ordered = |number, step| {
        let change = PeopleChange {
            volume: VOLUME,
            number,
            epoch: RealmEpoch(2),
            step,
        };
        signed_by(OWNER, &change)
    };
    let operation = |number, step| Operation::ChangePeople(ordered(number, step)).to_bytes();
    let mut guest = statement(BOB, MemberRole::Write);
    guest.expires = Some(Time(9));
    let admitted = ordered(1, PeopleStep::Admit(guest));
    let former = FormerPrincipal {
        number: PrincipalNumber(3),
        until: Time(9),
    };
    let query = Query {
        credentials: Credentials::root(),
        question: Question::People { after: 2 },
    };
    let answer = QueryResult::People {
        changes: vec![admitted.signed.clone()],
        last: 3,
    };
    let refused = OperationError {
        at: FailedAt::Operation,
        error: Error::BadPeopleChange,
    };
    vec![
        ("row-people-change", admitted.signed.to_bytes()),
        ("row-people-changes", PeopleChanges { last: 3 }.to_bytes()),
        ("row-expiry", DueExpiry.to_bytes()),
        ("row-former-principal", former.to_bytes()),
        ("key-people-change", key::people_change(258)),
        ("key-people-changes", key::people_changes()),
        ("key-expiry", key::expiry(Time(258), &id(BOB))),
        ("key-former-principal", key::former(&id(BOB))),
        (
            "operation-admit",
            Operation::ChangePeople(admitted).to_bytes(),
        ),
        (
            "operation-regrant",
            operation(2, granting(BOB, MemberRole::Read, None)),
        ),
        ("operation-dismiss", operation(3, dismissing(BOB))),
        ("operation-name-group", operation(4, naming(50, "family"))),
        ("query-people", query.to_bytes()),
        (
            "reply-people-changed",
            Response(Ok(Done::PeopleChanged { number: 3 })).to_bytes(),
        ),
        ("reply-bad-people-change", Response(Err(refused)).to_bytes()),
        ("answer-people", Answer(Ok(answer)).to_bytes()),
        (
            "answer-not-member",
            Answer(Err(Error::NotMember)).to_bytes(),
        ),
    ]
}

#[test]
fn the_same_change_again_is_the_same_success_and_another_of_its_number_is_refused() {
    let mut world = PeopleWorld::new();
    let first = signed_by(OWNER, &world.next(admitting(BOB, MemberRole::Write)));
    assert_eq!(world.order(&first), Ok(1));
    let before = world.service.rows(b"");
    assert_eq!(world.order(&first), Ok(1));
    assert_eq!(changed_rows(&before, &world.service.rows(b"")), 0);
    for number in [0, 1, 3, u32::MAX] {
        let mut other = world.next(admitting(EVE, MemberRole::Write));
        other.number = number;
        let refused = world.order(&signed_by(OWNER, &other));
        assert_eq!(refused, Err(Error::Changed), "{number}");
    }
    assert_eq!(changed_rows(&before, &world.service.rows(b"")), 0);
    // Replayed after it was undone, it is known and changes nothing.
    assert_eq!(world.change(dismissing(BOB)), Ok(2));
    let before = world.service.rows(b"");
    assert_eq!(world.order(&first), Ok(1));
    assert_eq!(changed_rows(&before, &world.service.rows(b"")), 0);
    assert_eq!(world.service.try_open(id(BOB)), None);
}

#[test]
fn no_other_than_an_administrator_changes_the_principals_and_only_in_its_own_name() {
    let mut world = PeopleWorld::new();
    world.change(admitting(BOB, MemberRole::Write)).unwrap();
    let writer = world.service.open(id(BOB));
    let founder = world.service.open(id(FOUNDER));
    let other = world.service.open(id(RECOVERY));
    let before = world.service.rows(b"");
    let next = world.next(admitting(EVE, MemberRole::Write));
    let right = signed_by(OWNER, &next);
    for (caller, seed) in [(&writer, BOB), (&founder, FOUNDER)] {
        for ordered in [&right, &signed_by(seed, &next)] {
            assert_eq!(world.order_as(caller, ordered), Err(Error::NoRight));
        }
    }
    // An administrator sends another one's change: it may have been signed for an earlier state.
    let bad = Err(Error::BadPeopleChange);
    assert_eq!(world.order_as(&other, &right), bad);
    for seed in [EVE, BOB, RECOVERY] {
        let mut forged = signed_by(seed, &next);
        assert_eq!(world.order(&forged), bad, "signed by {seed}");
        forged.signed.signed.signer = id(OWNER);
        assert_eq!(world.order(&forged), bad, "signed by {seed} as the owner");
    }
    let mut elsewhere = next.clone();
    elsewhere.volume.0[0] ^= 1;
    assert_eq!(world.order(&signed_by(OWNER, &elsewhere)), bad);
    for epoch in [1, u32::MAX] {
        let mut early = next.clone();
        early.epoch = RealmEpoch(epoch);
        let current = RealmEpoch(0);
        for step in [next.step.clone(), dismissing(BOB), naming(50, "family")] {
            early.step = step;
            let refused = world.order(&signed_by(OWNER, &early));
            assert_eq!(refused, Err(Error::WrongEpoch { current }));
        }
    }
    assert_eq!(changed_rows(&before, &world.service.rows(b"")), 0);
    assert_eq!(world.order(&right), Ok(2));
}

#[test]
fn what_the_root_states_and_the_signer_itself_are_not_an_administrators_to_change() {
    let mut world = PeopleWorld::new();
    world
        .change(admitting(BOB, MemberRole::Administer))
        .unwrap();
    let bob = world.service.open(id(BOB));
    let before = world.service.rows(b"");
    for (sender, seed) in [(OWNER, OWNER), (OWNER, RECOVERY), (OWNER, FOUNDER)]
        .into_iter()
        .chain([(BOB, OWNER), (BOB, RECOVERY), (BOB, FOUNDER), (BOB, BOB)])
    {
        let caller = if sender == BOB { bob } else { world.owner };
        for step in [
            granting(seed, MemberRole::Administer, None),
            granting(seed, MemberRole::Read, None),
            dismissing(seed),
        ] {
            let ordered = signed_by(sender, &world.next(step));
            let refused = world.order_as(&caller, &ordered);
            assert_eq!(refused, Err(Error::BadPeopleChange), "{sender} {seed}");
        }
    }
    for seed in [RECOVERY, FOUNDER, BOB] {
        let again = world.change(admitting(seed, MemberRole::Write));
        assert_eq!(again, Err(Error::Exists), "{seed}");
    }
    for step in [granting(EVE, MemberRole::Read, None), dismissing(EVE)] {
        assert_eq!(world.change(step), Err(Error::NotFound));
    }
    assert_eq!(changed_rows(&before, &world.service.rows(b"")), 0);
}

#[test]
fn an_unsound_change_or_membership_is_refused() {
    type Unsound = fn(&mut ChangePeople);
    let mut world = PeopleWorld::new();
    world.change(admitting(BOB, MemberRole::Write)).unwrap();
    let before = world.service.rows(b"");
    let admit = |change: fn(&mut crate::statement::Statement)| {
        let mut statement = statement(EVE, MemberRole::Write);
        change(&mut statement);
        PeopleStep::Admit(statement)
    };
    let long = "x".repeat(LABEL_BYTES_MAX + 1);
    let regrant = |label: &str, uids: usize, expires| PeopleStep::Regrant {
        principal: id(BOB),
        label: label.to_owned(),
        rights: Rights {
            uids: Assertable::Only(vec![Uid(1); uids]),
            ..rights_of(MemberRole::Write)
        },
        expires,
    };
    let steps = [
        admit(|it| it.label.clear()),
        admit(|it| it.label = "x".repeat(LABEL_BYTES_MAX + 1)),
        admit(|it| it.rights.uids = Assertable::Only(vec![Uid(1); RIGHTS_LIST_MAX + 1])),
        admit(|it| it.rights.gids = Assertable::Only(vec![Gid(1); RIGHTS_LIST_MAX + 1])),
        admit(|it| it.cloud_secrets.swap(0, 1)),
        admit(|it| it.cloud_secrets[1].cloud = CloudIndex(0)),
        admit(|it| it.cloud_secrets[3].cloud = CloudIndex(4)),
        admit(|it| it.cloud_secrets[0].bytes.clear()),
        admit(|it| it.cloud_secrets[0].bytes = vec![1; WRAPPED_KEY_BYTES_MAX + 1]),
        admit(|it| it.expires = Some(Time(0))),
        regrant("", 1, None),
        regrant(&long, 1, None),
        regrant("bob", RIGHTS_LIST_MAX + 1, None),
        regrant("bob", 1, Some(world.service.now())),
        naming(50, &long),
    ];
    for step in steps {
        let refused = world.change(step.clone());
        assert_eq!(refused, Err(Error::BadPeopleChange), "{step:?}");
    }
    let members: [Unsound; 6] = [
        |it| it.member = None,
        |it| it.member.as_mut().unwrap().role = MemberRole::Administer,
        |it| it.member.as_mut().unwrap().role = MemberRole::Read,
        |it| it.member.as_mut().unwrap().expires = Some(Time(u64::MAX)),
        |it| it.member.as_mut().unwrap().wrapped.clear(),
        |it| it.member.as_mut().unwrap().wrapped = vec![1; WRAPPED_KEY_BYTES_MAX + 1],
    ];
    for (at, change) in members.into_iter().enumerate() {
        for step in [admitting(EVE, MemberRole::Write), regrant("bob", 1, None)] {
            let mut wrong = signed_by(OWNER, &world.next(step));
            change(&mut wrong);
            assert_eq!(world.order(&wrong), Err(Error::BadPeopleChange), "{at}");
        }
    }
    let mut later = signed_by(OWNER, &world.next(admitting(EVE, MemberRole::Write)));
    let current = RealmEpoch(0);
    later.member.as_mut().unwrap().epoch = RealmEpoch(1);
    assert_eq!(world.order(&later), Err(Error::WrongEpoch { current }));
    for step in [dismissing(BOB), naming(50, "family")] {
        let mut wrong = signed_by(OWNER, &world.next(step));
        wrong.member = later.member.clone();
        assert_eq!(world.order(&wrong), Err(Error::BadPeopleChange));
    }
    assert_eq!(changed_rows(&before, &world.service.rows(b"")), 0);
}

#[test]
fn a_volume_has_a_bounded_number_of_principals_and_of_changes() {
    let mut world = PeopleWorld::new();
    let free = PRINCIPALS_MAX - world.service.rows(&key::principals()).len();
    for seed in 0..free as u8 {
        world
            .change(admitting(100 + seed, MemberRole::Write))
            .unwrap();
    }
    let limit = PRINCIPALS_MAX as u32;
    let full = world.change(admitting(BOB, MemberRole::Write));
    assert_eq!(full, Err(Error::TooMany { limit }));
    world.change(dismissing(100)).unwrap();
    world.change(admitting(BOB, MemberRole::Write)).unwrap();
    let (all, people) = world.known();
    assert!(all.len() > PEOPLE_PAGE_MAX, "more than a page");
    assert_eq!(people.stated.len(), free);

    let last = PEOPLE_CHANGES_MAX;
    let row = PeopleChanges { last };
    world.service.put(&key::people_changes(), &row);
    let mut more = world.next(naming(1, "one"));
    more.number = last + 1;
    let refused = world.order(&signed_by(OWNER, &more));
    assert_eq!(refused, Err(Error::TooMany { limit: last }));
    // An administrator that has used them all up can still be dismissed.
    more.step = dismissing(BOB);
    assert_eq!(world.order(&signed_by(OWNER, &more)), Ok(last + 1));
}

#[test]
fn the_largest_change_and_a_full_page_of_them_have_room() {
    let mut world = PeopleWorld::new();
    let list = |first: u32| (first..).take(RIGHTS_LIST_MAX);
    for seed in 0..PEOPLE_PAGE_MAX as u8 {
        let mut large = statement(100 + seed, MemberRole::Write);
        large.label = "x".repeat(LABEL_BYTES_MAX);
        large.rights.uids = Assertable::Only(list(0).map(Uid).collect());
        large.rights.gids = Assertable::Only(list(7).map(Gid).collect());
        for secret in &mut large.cloud_secrets {
            secret.bytes = vec![seed; WRAPPED_KEY_BYTES_MAX];
        }
        world.change(PeopleStep::Admit(large)).unwrap();
    }
    let answer = world
        .service
        .ask(&world.owner, Question::People { after: 0 });
    let Ok(QueryResult::People { changes, .. }) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(changes.len(), PEOPLE_PAGE_MAX);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Whatever is changed in what an administrator has signed, it admits no principal.
    #[test]
    fn a_changed_statement_admits_no_principal(at in any::<prop::sample::Index>(), bit in 0..8_u8) {
        let mut world = PeopleWorld::new();
        let mut changed = signed_by(OWNER, &world.next(admitting(BOB, MemberRole::Write)));
        let root = world.service.root();
        let bytes = &mut changed.signed.change;
        let place = at.index(bytes.len());
        bytes[place] ^= 1 << bit;
        prop_assert_eq!(world.order(&changed), Err(Error::BadPeopleChange));
        prop_assert_eq!(root, world.service.root());
    }
}
