//! Further machines of members: each stated by its person, with its person's rights, and gone with
//! its person; and the invitations by which their keys are handed over.

use super::world::*;
use crate::attributes::Credentials;
use crate::error::Error;
use crate::identity::*;
use crate::limits::*;
use crate::operation::{InviteMachine, Operation, Takeover};
use crate::people::{AddedMachine, PeopleChange, PeopleStep};
use crate::query::{Query, Question};
use crate::reply::{Answer, Done, ListedInvitation, QueryResult, Response};
use crate::row::*;
use crate::tests::harness::mount;
use quorumfs_bft::identity::{Nanos, Time};
use quorumfs_bft::service::Caller;

/// The seeds of Bob's further machines, and of an invitation's key.
const LAPTOP: u8 = 40;
const TABLET: u8 = 41;
const INVITED: u8 = 50;

/// Rows, operations, questions and answers, for the fixtures of the format.
pub(super) fn fixtures() -> Vec<(&'static str, Vec<u8>)> {
    let change = |number, step| {
        let change = PeopleChange {
            volume: VOLUME,
            number,
            epoch: RealmEpoch(2),
            step,
        };
        Operation::ChangePeople(signed_by(BOB, &change)).to_bytes()
    };
    let invitation = Invitation {
        by: id(BOB),
        until: Time(9),
        card: b"card".to_vec(),
        answer: Some(b"answer".to_vec()),
        sessions: 2,
        ended: false,
    };
    let listed = ListedInvitation {
        until: Time(9),
        card: b"card".to_vec(),
        answer: None,
    };
    let query = Query {
        credentials: Credentials::root(),
        question: Question::Invitation(id(INVITED)),
    };
    let invite = Operation::InviteMachine(invite());
    let answer = Operation::AnswerInvitation {
        answer: b"answer".to_vec(),
    };
    let end = Operation::EndInvitation { key: id(INVITED) };
    let done = |done| Response(Ok(done)).to_bytes();
    vec![
        ("row-machine", Machine { of: id(BOB) }.to_bytes()),
        ("row-invitation", invitation.to_bytes()),
        (
            "row-due-invitation",
            DueInvitation { by: id(BOB) }.to_bytes(),
        ),
        ("key-machine", key::machine(&id(LAPTOP))),
        ("key-invitation", key::invitation(&id(INVITED))),
        (
            "key-due-invitation",
            key::due_invitation(Time(258), &id(INVITED)),
        ),
        ("operation-add-machine", change(5, machine_of_bob(LAPTOP))),
        ("operation-drop-machine", change(6, dropping(LAPTOP))),
        ("operation-invite-machine", invite.to_bytes()),
        ("operation-answer-invitation", answer.to_bytes()),
        ("operation-end-invitation", end.to_bytes()),
        ("query-invitation", query.to_bytes()),
        (
            "reply-machine-invited",
            done(Done::MachineInvited { until: Time(9) }),
        ),
        ("reply-invitation-answered", done(Done::InvitationAnswered)),
        ("reply-invitation-ended", done(Done::InvitationEnded)),
        (
            "answer-invitation",
            Answer(Ok(QueryResult::Invitation(listed))).to_bytes(),
        ),
    ]
}

fn dropping(seed: u8) -> PeopleStep {
    PeopleStep::DropMachine {
        principal: id(seed),
    }
}

fn invite() -> InviteMachine {
    InviteMachine {
        key: id(INVITED),
        seconds: 900,
        card: b"card".to_vec(),
    }
}

/// A world in which Bob is a member in a role, with a session.
fn with_bob(role: MemberRole) -> (PeopleWorld, Caller) {
    let mut world = PeopleWorld::new();
    world.change(admitting(BOB, role)).unwrap();
    let bob = world.service.open(id(BOB));
    (world, bob)
}

/// Orders the next change, signed by this key in its session.
fn order_by(
    world: &mut PeopleWorld,
    (seed, caller): (u8, &Caller),
    step: PeopleStep,
) -> Result<u32, Error> {
    let change = world.next(step);
    world.order_as(caller, &signed_by(seed, &change))
}

fn mounts(world: &mut PeopleWorld, caller: &Caller) -> Result<(), Error> {
    let shared = mount(Takeover::Refused, MountMode::Shared);
    let done = world.service.run(caller, &shared);
    done.map(|_| ()).map_err(|refusal| refusal.error)
}

/// A session whose principal is gone is refused, and fenced if it had a mount.
#[track_caller]
fn refuses(world: &mut PeopleWorld, caller: &Caller) {
    let refused = mounts(world, caller).unwrap_err();
    assert!(
        matches!(refused, Error::NoSession | Error::Fenced { .. }),
        "{refused:?}"
    );
    let asked = world.service.ask(caller, Question::People { after: 0 });
    assert_eq!(asked, Err(Error::NoSession));
}

#[test]
fn a_member_in_any_role_adds_a_machine_which_has_its_role() {
    for role in [MemberRole::Read, MemberRole::Write, MemberRole::Administer] {
        let (mut world, bob) = with_bob(role);
        let added = PeopleStep::AddMachine(added_machine((BOB, role), LAPTOP));
        assert_eq!(order_by(&mut world, (BOB, &bob), added), Ok(2));
        let row = world.row(LAPTOP).unwrap();
        assert_eq!(row.rights, world.row(BOB).unwrap().rights);
        assert_eq!(row.stated.unwrap().signer, id(BOB));
        let laptop = world.service.open(id(LAPTOP));
        mounts(&mut world, &laptop).unwrap();
        let (_, people) = world.known();
        assert_eq!(people.person(&id(LAPTOP)), id(BOB));
        assert_eq!(
            people.credentials[&(id(LAPTOP), CloudIndex(1))],
            [LAPTOP; 20]
        );
        // It adds one of its own, which is Bob's too.
        let tablet = AddedMachine {
            of: id(BOB),
            ..added_machine((BOB, role), TABLET)
        };
        let tablet = PeopleStep::AddMachine(tablet);
        assert_eq!(order_by(&mut world, (LAPTOP, &laptop), tablet), Ok(3));
        assert_eq!(world.known().1.person(&id(TABLET)), id(BOB));
    }
}

#[test]
fn a_founder_adds_a_machine() {
    let mut world = PeopleWorld::new();
    let mut added = added_machine((OWNER, MemberRole::Administer), LAPTOP);
    let owner = world.owner;
    let label = world.row(OWNER).unwrap().label;
    added.statement.label = format!("{label}@laptop");
    let step = PeopleStep::AddMachine(added);
    assert_eq!(order_by(&mut world, (OWNER, &owner), step), Ok(1));
    let laptop = world.service.open(id(LAPTOP));
    // It administers, and changes neither itself nor what the root states.
    let admitted = admitting(BOB, MemberRole::Write);
    assert_eq!(order_by(&mut world, (LAPTOP, &laptop), admitted), Ok(2));
    for refused in [dropping(LAPTOP), dropping(OWNER), dismissing(OWNER)] {
        let refused = order_by(&mut world, (LAPTOP, &laptop), refused);
        assert_eq!(refused, Err(Error::BadPeopleChange));
    }
}

#[test]
fn a_machine_has_no_more_than_its_person_and_is_of_no_one_else() {
    type Change = fn(&mut AddedMachine);
    let wrong: [Change; 13] = [
        |it| it.of = id(FOUNDER),
        |it| it.of = id(LAPTOP),
        |it| it.statement.rights = rights_of(MemberRole::Administer),
        |it| it.statement.rights = rights_of(MemberRole::Read),
        |it| it.statement.expires = Some(Time(u64::MAX)),
        |it| it.statement.label = "laptop".into(),
        |it| it.statement.label = "another@laptop".into(),
        |it| it.statement.label = format!("guest {BOB}@"),
        |it| it.statement.label = format!("guest {BOB}@lap top"),
        |it| it.statement.label = format!("guest {BOB}@{}", "x".repeat(33)),
        |it| it.statement.key = id(BOB),
        |it| it.credentials.push(it.credentials[0].clone()),
        |it| it.credentials[0].0 = CloudIndex(4),
    ];
    let (mut world, bob) = with_bob(MemberRole::Write);
    for (at, change) in wrong.into_iter().enumerate() {
        let mut added = added_machine((BOB, MemberRole::Write), LAPTOP);
        change(&mut added);
        let refused = order_by(&mut world, (BOB, &bob), PeopleStep::AddMachine(added));
        assert_eq!(refused, Err(Error::BadPeopleChange), "{at}");
    }
    // Another one's signature, and a key that is a principal's.
    let change = world.next(machine_of_bob(LAPTOP));
    let forged = world.order_as(&bob, &signed_by(EVE, &change));
    assert_eq!(forged, Err(Error::BadPeopleChange));
    let mut known = added_machine((BOB, MemberRole::Write), FOUNDER);
    known.statement.label = format!("guest {BOB}@founder");
    let known = order_by(&mut world, (BOB, &bob), PeopleStep::AddMachine(known));
    assert_eq!(known, Err(Error::Exists));
}

#[test]
fn the_machines_of_a_dismissed_person_go_with_it() {
    let (mut world, bob) = with_bob(MemberRole::Write);
    for seed in [LAPTOP, TABLET] {
        order_by(&mut world, (BOB, &bob), machine_of_bob(seed)).unwrap();
    }
    world.change(admitting(EVE, MemberRole::Write)).unwrap();
    let laptop = world.service.open(id(LAPTOP));
    mounts(&mut world, &laptop).unwrap();
    world.change(dismissing(BOB)).unwrap();
    for seed in [BOB, LAPTOP, TABLET] {
        assert_eq!(world.row(seed), None);
        let rest = world.rows_of(seed);
        let table = |row: &[u8]| row.starts_with(b"PF/") || row.starts_with(b"N/");
        assert!(rest.iter().all(|row| table(row)), "{rest:?}");
    }
    refuses(&mut world, &laptop);
    let (_, people) = world.known();
    assert!(people.stated.keys().eq([&id(EVE)]));
    assert!(people.machines.is_empty() && people.credentials.is_empty());
}

#[test]
fn a_person_drops_its_own_keys_and_an_administrator_any() {
    let (mut world, bob) = with_bob(MemberRole::Write);
    world.change(admitting(EVE, MemberRole::Write)).unwrap();
    let eve = world.service.open(id(EVE));
    for seed in [LAPTOP, TABLET] {
        order_by(&mut world, (BOB, &bob), machine_of_bob(seed)).unwrap();
    }
    for stranger in [dropping(LAPTOP), dropping(BOB)] {
        let refused = order_by(&mut world, (EVE, &eve), stranger);
        assert_eq!(refused, Err(Error::NoRight));
    }
    let dismissal = order_by(&mut world, (BOB, &bob), dismissing(LAPTOP));
    assert_eq!(dismissal, Err(Error::NoRight));
    order_by(&mut world, (BOB, &bob), dropping(TABLET)).unwrap();
    assert_eq!(world.row(TABLET), None);
    // The machine that was lost is the first one: the other stays, and is Bob still.
    let laptop = world.service.open(id(LAPTOP));
    order_by(&mut world, (LAPTOP, &laptop), dropping(BOB)).unwrap();
    assert_eq!(mounts(&mut world, &bob), Err(Error::NoSession));
    mounts(&mut world, &laptop).unwrap();
    // A key that was dropped does not come back as a machine: it may be in another's hands.
    let again = order_by(&mut world, (LAPTOP, &laptop), machine_of_bob(TABLET));
    assert_eq!(again, Err(Error::Exists));
    let again = order_by(&mut world, (LAPTOP, &laptop), machine_of_bob(TABLET + 1));
    again.unwrap();
    assert_eq!(world.known().1.person(&id(TABLET + 1)), id(BOB));
    world.change(dropping(LAPTOP)).unwrap();
    refuses(&mut world, &laptop);
}

#[test]
fn a_person_has_a_bounded_number_of_machines() {
    let (mut world, bob) = with_bob(MemberRole::Write);
    let limit = MACHINES_OF_PERSON_MAX;
    for seed in 0..limit {
        let machine = machine_of_bob(LAPTOP + seed as u8);
        order_by(&mut world, (BOB, &bob), machine).unwrap();
    }
    let more = order_by(&mut world, (BOB, &bob), machine_of_bob(99));
    assert_eq!(more, Err(Error::TooMany { limit }));
    order_by(&mut world, (BOB, &bob), dropping(LAPTOP)).unwrap();
    order_by(&mut world, (BOB, &bob), machine_of_bob(99)).unwrap();
    // All of them go at once.
    world.change(dismissing(BOB)).unwrap();
    assert!(world.known().1.stated.is_empty());
}

#[test]
fn the_last_changes_are_left_to_administrators() {
    let (mut world, bob) = with_bob(MemberRole::Write);
    let last = MACHINE_CHANGES_MAX;
    world
        .service
        .put(&key::people_changes(), &PeopleChanges { last });
    let change = PeopleChange {
        number: last + 1,
        ..world.next(machine_of_bob(LAPTOP))
    };
    let refused = world.order_as(&bob, &signed_by(BOB, &change));
    assert_eq!(refused, Err(Error::TooMany { limit: last }));
    let change = PeopleChange {
        number: last + 1,
        ..world.next(dismissing(BOB))
    };
    assert_eq!(world.order(&signed_by(OWNER, &change)), Ok(last + 1));
}

#[test]
fn a_person_is_dismissed_by_its_first_key_after_that_was_dropped() {
    let (mut world, bob) = with_bob(MemberRole::Write);
    for seed in [LAPTOP, TABLET] {
        order_by(&mut world, (BOB, &bob), machine_of_bob(seed)).unwrap();
    }
    let laptop = world.service.open(id(LAPTOP));
    order_by(&mut world, (LAPTOP, &laptop), dropping(BOB)).unwrap();
    world.change(dismissing(BOB)).unwrap();
    refuses(&mut world, &laptop);
    let (_, people) = world.known();
    assert!(people.stated.is_empty() && people.machines.is_empty());
    // Nothing is left to dismiss.
    assert_eq!(world.change(dismissing(BOB)), Err(Error::NotFound));
    // The owner's machine does not make the owner one that can be dismissed.
    let owner = world.owner;
    let mut added = added_machine((OWNER, MemberRole::Administer), 60);
    let label = world.row(OWNER).unwrap().label;
    added.statement.label = format!("{label}@desk");
    order_by(&mut world, (OWNER, &owner), PeopleStep::AddMachine(added)).unwrap();
    let recovery = world.service.open(id(RECOVERY));
    let refused = order_by(&mut world, (RECOVERY, &recovery), dismissing(OWNER));
    assert_eq!(refused, Err(Error::BadPeopleChange));
}

#[test]
fn a_machine_adds_nothing_while_its_person_has_other_rights() {
    let (mut world, bob) = with_bob(MemberRole::Write);
    order_by(&mut world, (BOB, &bob), machine_of_bob(LAPTOP)).unwrap();
    let laptop = world.service.open(id(LAPTOP));
    // The person comes first; its machines follow.
    let demoted = PeopleStep::Regrant {
        principal: id(BOB),
        label: format!("guest {BOB}"),
        rights: rights_of(MemberRole::Read),
        expires: None,
    };
    world.change(demoted).unwrap();
    let racing = order_by(&mut world, (LAPTOP, &laptop), machine_of_bob(TABLET));
    assert_eq!(racing, Err(Error::BadPeopleChange));
}

#[test]
fn no_key_comes_back_as_a_machine_and_none_is_another_persons_first() {
    let (mut world, bob) = with_bob(MemberRole::Write);
    world.change(admitting(EVE, MemberRole::Write)).unwrap();
    let eve = world.service.open(id(EVE));
    order_by(&mut world, (BOB, &bob), machine_of_bob(LAPTOP)).unwrap();
    let laptop = world.service.open(id(LAPTOP));
    order_by(&mut world, (LAPTOP, &laptop), dropping(BOB)).unwrap();
    let mut stolen = added_machine((EVE, MemberRole::Write), BOB);
    stolen.statement.label = format!("guest {EVE}@machine");
    let taken = order_by(&mut world, (EVE, &eve), PeopleStep::AddMachine(stolen));
    assert_eq!(taken, Err(Error::Exists));
    // Nor is a label taken, nor a key to which nothing can be wrapped.
    let mut same = added_machine((EVE, MemberRole::Write), TABLET);
    same.statement.label = format!("guest {EVE}@x");
    let first = PeopleStep::AddMachine(same.clone());
    order_by(&mut world, (EVE, &eve), first).unwrap();
    same.statement.key = id(TABLET + 1);
    let twice = order_by(
        &mut world,
        (EVE, &eve),
        PeopleStep::AddMachine(same.clone()),
    );
    assert_eq!(twice, Err(Error::Exists));
    same.statement.label = format!("guest {EVE}@y");
    for useless in crate::people::USELESS_WRAPPING_KEYS {
        for high in [0, 0x80] {
            same.statement.wrapping_key = useless;
            same.statement.wrapping_key[31] |= high;
            let step = PeopleStep::AddMachine(same.clone());
            let refused = order_by(&mut world, (EVE, &eve), step);
            assert_eq!(refused, Err(Error::BadPeopleChange));
        }
    }
}

#[test]
fn a_member_takes_few_sessions_by_invitations_and_by_machines() {
    let (mut world, bob) = with_bob(MemberRole::Read);
    let limit = INVITATIONS_OF_MEMBER_MAX as u32;
    for number in 0..limit {
        let seed = 100 + number as u8;
        let wish = InviteMachine {
            key: id(seed),
            ..invite()
        };
        run(&mut world, &bob, &Operation::InviteMachine(wish)).unwrap();
        for _ in 0..INVITATION_SESSIONS_MAX {
            world.service.open(id(seed));
        }
        assert!(!world.service.may_open(id(seed)), "{number}");
    }
    let more = run(&mut world, &bob, &Operation::InviteMachine(invite()));
    assert_eq!(more, Err(Error::TooMany { limit }));
    // All keys of a person share a bound, which one key alone does not reach.
    let (mut world, bob) = with_bob(MemberRole::Write);
    order_by(&mut world, (BOB, &bob), machine_of_bob(LAPTOP)).unwrap();
    for _ in 1..PERSON_SESSIONS_MAX {
        assert!(world.service.may_open(id(LAPTOP)));
        world.service.open(id(LAPTOP));
    }
    assert!(!world.service.may_open(id(LAPTOP)));
    assert!(!world.service.may_open(id(BOB)));
    assert!(world.service.may_open(id(OWNER)));
}

fn ask_invitation(world: &mut PeopleWorld, caller: &Caller) -> Result<ListedInvitation, Error> {
    let answer = world.service.ask(caller, Question::Invitation(id(INVITED)));
    answer.map(|found| match found {
        QueryResult::Invitation(listed) => listed,
        other => panic!("{other:?}"),
    })
}

fn run(world: &mut PeopleWorld, caller: &Caller, operation: &Operation) -> Result<Done, Error> {
    let done = world.service.run(caller, operation);
    done.map_err(|refusal| refusal.error)
}

fn answering(bytes: &[u8]) -> Operation {
    Operation::AnswerInvitation {
        answer: bytes.to_vec(),
    }
}

#[test]
fn an_invitation_is_answered_once_and_permits_nothing_else() {
    let (mut world, bob) = with_bob(MemberRole::Read);
    let asked = Operation::InviteMachine(invite());
    let now = world.service.now();
    let invited = run(&mut world, &bob, &asked);
    let Ok(Done::MachineInvited { until }) = invited else {
        panic!("{invited:?}");
    };
    let lasts = [900, 901].map(|seconds: u64| now.plus(Nanos(seconds * 1_000_000_000)));
    assert!((lasts[0]..lasts[1]).contains(&until), "{until:?}");
    assert_eq!(run(&mut world, &bob, &asked), invited, "the same again");
    let guest = world.service.open(id(INVITED));
    let listed = ask_invitation(&mut world, &guest).unwrap();
    assert_eq!(
        (listed.card.as_slice(), listed.answer),
        (&b"card"[..], None)
    );
    let answered = Ok(Done::InvitationAnswered);
    assert_eq!(run(&mut world, &guest, &answering(b"mine")), answered);
    assert_eq!(run(&mut world, &guest, &answering(b"mine")), answered);
    let other = run(&mut world, &guest, &answering(b"another"));
    assert_eq!(other, Err(Error::Changed));
    let seen = ask_invitation(&mut world, &bob).unwrap();
    assert_eq!(seen.answer.as_deref(), Some(&b"mine"[..]));
    // It may ask who the principals are, and no more.
    let people = world.service.ask(&guest, Question::People { after: 0 });
    assert!(matches!(people, Ok(QueryResult::People { last: 1, .. })));
    for question in [
        Question::WhoAmI,
        Question::Volume,
        Question::Members(RealmId::ROOT),
        Question::CloudSecrets,
        Question::Attributes(InodeId::ROOT),
        Question::Invitation(id(EVE)),
    ] {
        let refused = world.service.ask(&guest, question);
        assert_eq!(refused, Err(Error::NoSession));
    }
    for refused in [
        Operation::Allocate { count: 1 },
        mount(Takeover::Refused, MountMode::Shared),
        Operation::InviteMachine(invite()),
        Operation::EndInvitation { key: id(INVITED) },
    ] {
        assert_eq!(run(&mut world, &guest, &refused), Err(Error::NoSession));
    }
    // Another member sees nothing of it, and cannot end it or take its key.
    let owner = world.owner;
    let hidden = ask_invitation(&mut world, &owner);
    assert_eq!(hidden, Err(Error::NotFound));
    assert_eq!(run(&mut world, &owner, &asked), Err(Error::Exists));
    let end = Operation::EndInvitation { key: id(INVITED) };
    assert_eq!(run(&mut world, &owner, &end), Err(Error::NoRight));
    assert_eq!(run(&mut world, &bob, &end), Ok(Done::InvitationEnded));
    assert_eq!(run(&mut world, &bob, &end), Ok(Done::InvitationEnded));
    assert_eq!(ask_invitation(&mut world, &guest), Err(Error::NoSession));
}

#[test]
fn an_invitation_ends_with_its_time_its_member_and_the_next_one() {
    for end in 0..3 {
        let (mut world, bob) = with_bob(MemberRole::Write);
        run(&mut world, &bob, &Operation::InviteMachine(invite())).unwrap();
        let guest = world.service.open(id(INVITED));
        ask_invitation(&mut world, &guest).unwrap();
        match end {
            0 => {
                world.service.wait(900);
                world.service.drain();
            }
            1 => {
                world.change(dismissing(BOB)).unwrap();
            }
            _ => {
                let next = InviteMachine {
                    key: id(EVE),
                    ..invite()
                };
                run(&mut world, &bob, &Operation::InviteMachine(next)).unwrap();
            }
        }
        let refused = run(&mut world, &guest, &answering(b"late"));
        assert_eq!(refused, Err(Error::NoSession), "{end}");
        assert_eq!(ask_invitation(&mut world, &guest), Err(Error::NoSession));
        world.service.wait(900);
        world.service.drain();
        let rows = world.service.rows(&key::invitation(&id(INVITED)));
        assert!(rows.is_empty(), "{end}");
    }
}

#[test]
fn an_invitation_is_bounded() {
    let (mut world, bob) = with_bob(MemberRole::Write);
    type Change = fn(&mut InviteMachine);
    let wrong: [(Change, Error); 6] = [
        (|it| it.seconds = 0, Error::Invalid),
        (|it| it.seconds = INVITATION_SECONDS_MAX + 1, Error::Invalid),
        (|it| it.card.clear(), Error::Invalid),
        (
            |it| it.card = vec![1; INVITATION_CARD_BYTES_MAX + 1],
            Error::Invalid,
        ),
        (|it| it.key = id(OWNER), Error::Exists),
        (|it| it.key = id(BOB), Error::Exists),
    ];
    for (change, expected) in wrong {
        let mut wish = invite();
        change(&mut wish);
        let refused = run(&mut world, &bob, &Operation::InviteMachine(wish));
        assert_eq!(refused, Err(expected));
    }
    run(&mut world, &bob, &Operation::InviteMachine(invite())).unwrap();
    let guest = world.service.open(id(INVITED));
    for long in [Vec::new(), vec![1; INVITATION_ANSWER_BYTES_MAX + 1]] {
        let refused = run(&mut world, &guest, &answering(&long));
        assert_eq!(refused, Err(Error::Invalid));
    }
}
