//! Credentials of clouds that an administrator gives a principal.

use super::world::*;
use crate::error::Error;
use crate::identity::CloudIndex;
use crate::limits::SEALED_CREDENTIALS_BYTES_MAX;
use crate::people::PeopleStep;
use crate::row::MemberRole;

fn giving(seed: u8, cloud: u8, sealed: &[u8]) -> PeopleStep {
    PeopleStep::GiveCredentials {
        principal: id(seed),
        cloud: CloudIndex(cloud),
        sealed: sealed.to_vec(),
    }
}

#[test]
fn credentials_are_given_to_whom_an_administrator_has_admitted_until_it_goes() {
    let mut world = PeopleWorld::new();
    let unknown = world.change(giving(BOB, 1, b"sealed"));
    assert_eq!(unknown, Err(Error::NotFound));
    world.change(admitting(BOB, MemberRole::Write)).unwrap();
    for (seed, cloud, length) in [
        (OWNER, 1, 3),
        (FOUNDER, 1, 3),
        (BOB, 4, 3),
        (BOB, 1, SEALED_CREDENTIALS_BYTES_MAX + 1),
    ] {
        let refused = world.change(giving(seed, cloud, &vec![7; length]));
        assert_eq!(refused, Err(Error::BadPeopleChange), "{seed} {cloud}");
    }
    let given = |world: &mut PeopleWorld| world.known().1.credentials;
    let longest = vec![7; SEALED_CREDENTIALS_BYTES_MAX];
    world.change(giving(BOB, 3, &longest)).unwrap();
    world.change(giving(BOB, 1, b"sealed")).unwrap();
    world.change(giving(BOB, 1, b"newer")).unwrap();
    let key = |cloud| (id(BOB), CloudIndex(cloud));
    let now = given(&mut world);
    assert_eq!(
        (&now[&key(1)][..], &now[&key(3)]),
        (&b"newer"[..], &longest)
    );
    // Other rights change nothing of it; an empty value takes it away, and so does a dismissal.
    world.change(granting(BOB, MemberRole::Read, None)).unwrap();
    world.change(giving(BOB, 1, b"")).unwrap();
    assert!(given(&mut world).into_keys().eq([key(3)]));
    world.change(dismissing(BOB)).unwrap();
    world.change(admitting(BOB, MemberRole::Write)).unwrap();
    assert!(given(&mut world).is_empty());
}
