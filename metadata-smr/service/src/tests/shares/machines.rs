//! Shares with a person that has several machines: with all of them, and as long as one is left.

use super::*;

const LAPTOP: u8 = 40;

fn dropping(seed: u8) -> PeopleStep {
    PeopleStep::DropMachine {
        principal: id(seed),
    }
}

/// Bob with a further machine; its session.
fn with_laptop() -> (Shares, Caller) {
    let mut shares = Shares::new();
    let bob = shares.bob;
    let change = shares.world.next(machine_of_bob(LAPTOP));
    shares
        .world
        .order_as(&bob, &signed_by(BOB, &change))
        .unwrap();
    let laptop = shares.world.service.open(id(LAPTOP));
    (shares, laptop)
}

#[test]
fn a_share_is_with_all_machines_of_its_person_and_lasts_as_long_as_one_does() {
    let (mut shares, laptop) = with_laptop();
    let id_of_bob = shares.number(BOB);
    let id_of_laptop = shares.number(LAPTOP);
    let share = shares.share_file(true);
    // By the number of either machine, with the place.
    for number in [id_of_bob, id_of_laptop] {
        let listed = shares.list(&laptop, bob(), SharesOf::With(number)).unwrap();
        assert_eq!(listed.len(), 1);
        assert!(!listed[0].share.ended && !listed[0].share.place.bytes.is_empty());
    }
    // Shared with the machine, it is the same share with the person.
    let with_laptop = NewShareWith::Person {
        principal: id(LAPTOP),
        uid: BOBS.0,
        writes: false,
        through: Vec::new(),
    };
    let again = shares.share(new_share(&founder(), shares.file, with_laptop));
    assert_eq!(again, Ok(share));
    // The first machine is lost.
    let change = shares.world.next(dropping(BOB));
    let dropped = shares.world.order_as(&laptop, &signed_by(LAPTOP, &change));
    dropped.unwrap();
    let listed = shares.list(&laptop, bob(), SharesOf::With(id_of_laptop));
    assert!(!listed.unwrap()[0].share.ended);
    // Its key is another person's number, if it comes again.
    shares
        .world
        .change(admitting(BOB, MemberRole::Write))
        .unwrap();
    let listed = shares.list(&laptop, bob(), SharesOf::With(id_of_bob));
    assert!(listed.unwrap()[0].share.ended);
}

#[test]
fn a_share_ends_with_the_last_machine_of_its_person() {
    let (mut shares, laptop) = with_laptop();
    let number = shares.number(BOB);
    shares.share_file(false);
    let change = shares.world.next(dropping(BOB));
    let dropped = shares.world.order_as(&laptop, &signed_by(LAPTOP, &change));
    dropped.unwrap();
    shares.world.change(dropping(LAPTOP)).unwrap();
    let owner = shares.world.owner;
    let listed = shares.list(&owner, founder(), SharesOf::With(number));
    assert!(listed.unwrap()[0].share.ended);
}

#[test]
fn a_link_ends_with_the_machine_that_made_it() {
    let (mut shares, laptop) = with_laptop();
    let change = shares.world.next(dropping(LAPTOP));
    let mine = NewShare {
        credentials: bob(),
        ..new_share(&bob(), shares.file, NewShareWith::Link { token: TOKEN })
    };
    // Bob owns nothing there.
    let refused = shares.run(&laptop, &Operation::Share(mine.clone()));
    assert_eq!(refused, Err(Error::NotPermitted));
    let owner = shares.world.owner;
    let give = Step::SetAttributes(SetAttributes {
        uid: Some(BOBS.0),
        gid: Some(BOBS.1),
        ..SetAttributes::of(shares.file)
    });
    let given = shares
        .world
        .service
        .step(&owner, &Credentials::root(), give);
    given.unwrap();
    shares.run(&laptop, &Operation::Share(mine)).unwrap();
    shares.of_token(TOKEN).unwrap();
    let bob = shares.bob;
    let dropped = shares.world.order_as(&bob, &signed_by(BOB, &change));
    dropped.unwrap();
    assert_eq!(shares.of_token(TOKEN), Err(Error::NotFound));
}
