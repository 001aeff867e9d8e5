//! The rules of changes, one by one.

use super::*;
use crate::identity::Incarnation;

const ADMINISTRATOR: PublicKey = PublicKey([200; 32]);

fn member(number: u8) -> Member {
    Member {
        key: PublicKey([number; 32]),
        incarnation: Incarnation([number; 16]),
        address: Bytes::from(vec![number]),
        since: Sequence(0),
    }
}

fn four() -> Membership {
    let model = FaultModel::new(1, 1, 4).expect("a valid model");
    let voters = (1..=4).map(member).collect();
    Membership {
        checkpoint_interval: 10,
        ..Membership::genesis(model, voters, vec![ADMINISTRATOR])
    }
}

fn nothing(_: &PublicKey) -> Announcement {
    Announcement::default()
}

fn ready(_: &PublicKey) -> Announcement {
    Announcement {
        ready: Sequence(100),
        behaviour: 2,
    }
}

fn admit(number: u8) -> Command {
    let Member {
        key,
        incarnation,
        address,
        ..
    } = member(number);
    Command::Admit {
        key,
        incarnation,
        address,
    }
}

fn next(applied: Result<Applied, CommandRefusal>) -> Membership {
    match applied {
        Ok(Applied::Next(membership)) => *membership,
        other => panic!("no new membership: {other:?}"),
    }
}

fn ask(now: &Membership, command: &Command, at: u64) -> Result<Applied, CommandRefusal> {
    apply(now, command, (&ADMINISTRATOR, None), Sequence(at), &ready)
}

#[test]
fn a_replica_is_replaced_by_a_learner_that_has_caught_up_and_its_key_never_returns() {
    let now = next(ask(&four(), &admit(5), 101));
    assert_eq!((now.epoch, now.from), (Epoch(1), Sequence(101)));
    assert_eq!(now.place(&PublicKey([5; 32])), Some(ReplicaId(4)));
    assert!(!now.votes(ReplicaId(4)));
    let swap = Command::Replace {
        out: PublicKey([2; 32]),
        into: PublicKey([5; 32]),
    };
    let early = apply(&now, &swap, (&ADMINISTRATOR, None), Sequence(102), &nothing);
    assert!(
        matches!(early, Err(CommandRefusal::NotReady(_))),
        "{early:?}"
    );
    let late = ask(&now, &swap, 100 + 10 * READY + 1);
    assert!(matches!(late, Err(CommandRefusal::NotReady(_))), "{late:?}");
    let now = next(ask(&now, &swap, 110));
    assert_eq!(now.place(&PublicKey([5; 32])), Some(ReplicaId(1)));
    assert_eq!(now.place(&PublicKey([2; 32])), Some(ReplicaId(4)));
    assert_eq!(ask(&now, &admit(2), 120), Err(CommandRefusal::Known));
    let gone = Command::Dismiss {
        key: PublicKey([2; 32]),
    };
    let now = next(ask(&now, &gone, 120));
    assert_eq!(ask(&now, &admit(2), 130), Err(CommandRefusal::Retired));
    let decoded = Membership::decode(&now.encode()).expect("its own bytes");
    assert_eq!(decoded, now);
}

const READY: u64 = crate::wire::limits::READY_INTERVALS;

#[test]
fn only_authorised_keys_change_anything_and_one_change_ends_an_epoch() {
    let refused = apply(
        &four(),
        &admit(5),
        (&PublicKey([1; 32]), None),
        Sequence(9),
        &ready,
    );
    assert_eq!(refused, Err(CommandRefusal::NotAdministrator));
    let incarnation = Incarnation([77; 16]);
    let rejoin = Command::Rejoin { incarnation };
    assert_eq!(ask(&four(), &rejoin, 9), Err(CommandRefusal::NotReplica));
    let now = next(ask(&four(), &admit(5), 9));
    assert_eq!(ask(&now, &admit(6), 9), Err(CommandRefusal::UnderWay));
    let fewer = Command::Remove {
        key: PublicKey([1; 32]),
        up: 1,
        right: 1,
    };
    assert!(matches!(
        ask(&now, &fewer, 20),
        Err(CommandRefusal::Model(_))
    ));
}

#[test]
fn a_replica_rejoins_once_in_an_interval() {
    let one = PublicKey([1; 32]);
    let rejoin = |number: u8| Command::Rejoin {
        incarnation: Incarnation([number; 16]),
    };
    let ask = |now: &Membership, number, at| {
        apply(now, &rejoin(number), (&one, None), Sequence(at), &ready)
    };
    assert_eq!(ask(&four(), 1, 5), Err(CommandRefusal::Known));
    let now = next(ask(&four(), 50, 5));
    assert_eq!(now.voters[0].incarnation, Incarnation([50; 16]));
    assert_eq!(
        ask(&now, 51, 14),
        Err(CommandRefusal::TooSoon(Sequence(15)))
    );
    assert_eq!(next(ask(&now, 51, 15)).epoch, Epoch(2));
}

#[test]
fn a_behaviour_is_raised_when_every_voter_knows_it() {
    let raise = |version| Command::Behave { version };
    let unannounced = apply(
        &four(),
        &raise(2),
        (&ADMINISTRATOR, None),
        Sequence(1),
        &nothing,
    );
    assert_eq!(unannounced, Err(CommandRefusal::Unannounced));
    assert_eq!(ask(&four(), &raise(3), 1), Err(CommandRefusal::Unannounced));
    assert_eq!(next(ask(&four(), &raise(2), 1)).behaviour_version, 2);
    assert_eq!(ask(&four(), &raise(1), 1), Err(CommandRefusal::Behind(1)));
}

#[test]
fn every_command_and_answer_is_decoded_as_it_was_encoded() {
    let key = PublicKey([3; 32]);
    for command in [
        admit(1),
        Command::Dismiss { key },
        Command::Promote {
            key,
            up: 1,
            right: 1,
        },
        Command::Replace {
            out: key,
            into: key,
        },
        Command::Remove {
            key,
            up: 2,
            right: 0,
        },
        Command::Behave { version: 4 },
        Command::Entrust {
            administrators: vec![key],
        },
        Command::Rejoin {
            incarnation: Incarnation([4; 16]),
        },
        Command::Ready {
            checkpoint: Sequence(5),
        },
        Command::Announce { behaviour: 6 },
        Command::Show,
        Command::Disk { short: true },
        Command::Disk { short: false },
        Command::Move {
            key,
            address: Bytes::from_static(b"replica.example:7000"),
        },
        Command::Lead { key },
    ] {
        assert_eq!(Command::decode(&command.encode()), Ok(command));
    }
    for answer in [
        Answer::Noted,
        Answer::Begins(Epoch(7)),
        Answer::Shown(four().encode()),
        Answer::from(CommandRefusal::UnderWay),
        Answer::from(CommandRefusal::Known),
    ] {
        assert_eq!(Answer::decode(&answer.encode()), Ok(answer));
    }
}

#[test]
fn the_service_may_decide_which_keys_administer() {
    let now = four();
    let stranger = PublicKey([77; 32]);
    let ask = |who, decided| {
        let decided = (who, decided);
        apply(&now, &admit(5), decided, Sequence(9), &nothing).map(drop)
    };
    let refused = Err(CommandRefusal::NotAdministrator);
    assert_eq!(ask(&ADMINISTRATOR, None), Ok(()));
    assert_eq!(ask(&ADMINISTRATOR, Some(false)), refused, "it was replaced");
    assert_eq!(ask(&stranger, Some(true)), Ok(()));
    assert_eq!(ask(&stranger, None), refused);
    // A command that a replica makes for itself is not the service's decision.
    let one = now.voters.first().expect("four").key;
    let rejoin = Command::Rejoin {
        incarnation: Incarnation([9; 16]),
    };
    let own = apply(&now, &rejoin, (&one, Some(false)), Sequence(9), &nothing);
    assert!(own.is_ok(), "{own:?}");
}

#[test]
fn a_replica_that_was_moved_is_the_same_one_elsewhere() {
    let to = |number: u8, address: &'static [u8]| Command::Move {
        key: PublicKey([number; 32]),
        address: Bytes::from_static(address),
    };
    let moved = next(ask(&four(), &to(2, b"elsewhere:1"), 7));
    let mut expected = four();
    expected.voters[1].address = Bytes::from_static(b"elsewhere:1");
    (expected.epoch, expected.from) = (Epoch(1), Sequence(7));
    assert_eq!(moved, expected);
    assert_eq!(
        ask(&moved, &to(2, b"elsewhere:1"), 8),
        Err(CommandRefusal::SameAddress)
    );
    assert_eq!(
        ask(&moved, &to(9, b"elsewhere:1"), 8),
        Err(CommandRefusal::NoMember)
    );
    let stranger = (&PublicKey([77; 32]), None);
    let refused = apply(&moved, &to(3, b"x:1"), stranger, Sequence(8), &nothing);
    assert_eq!(refused, Err(CommandRefusal::NotAdministrator));
}

#[test]
fn a_voter_is_put_first_and_the_others_keep_their_order() {
    let keys = |membership: &Membership| -> Vec<u8> {
        membership.voters.iter().map(|it| it.key.0[0]).collect()
    };
    let lead = |number: u8| Command::Lead {
        key: PublicKey([number; 32]),
    };
    let before = keys(&four());
    let (first, third) = (before[0], before[2]);
    let led = next(ask(&four(), &lead(third), 7));
    assert_eq!(keys(&led), [third, first, before[1], before[3]]);
    assert_eq!(
        (led.epoch, led.from, led.model),
        (Epoch(1), Sequence(7), four().model)
    );
    // One that is first begins an epoch too, in a view that it leads.
    let again = next(ask(&led, &lead(third), 8));
    assert_eq!((keys(&again), again.epoch), (keys(&led), Epoch(2)));
    assert_eq!(ask(&led, &lead(99), 8), Err(CommandRefusal::NoVoter));
    let back = next(ask(&led, &lead(first), 8));
    assert_eq!(keys(&back), [first, third, before[1], before[3]]);
    let stranger = (&PublicKey([77; 32]), None);
    let refused = apply(&led, &lead(first), stranger, Sequence(8), &nothing);
    assert_eq!(refused, Err(CommandRefusal::NotAdministrator));
}
