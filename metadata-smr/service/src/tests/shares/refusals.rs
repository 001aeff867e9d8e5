//! What is wrong with a share is refused, each for its reason.

use super::*;

#[test]
fn what_is_wrong_with_a_share_is_refused() {
    let mut shares = Shares::new();
    let owner = shares.world.owner;
    let link = crate::operation::NewInode::Symlink {
        length: 1,
        target: sealed("x"),
    };
    let symlink = shares
        .world
        .service
        .make(&owner, InodeId::ROOT, "link", link);
    let give = Step::SetAttributes(SetAttributes {
        uid: Some(FOUNDERS.0),
        ..SetAttributes::of(symlink)
    });
    let root = Credentials::root();
    shares.world.service.step(&owner, &root, give).unwrap();
    let foreign = shares.world.service.create(&owner, InodeId::ROOT, "roots");
    let good = new_share(&founder(), shares.file, with_bob(false));
    let now = shares.world.service.now();
    let person = |change: fn(&mut PrincipalId, &mut Uid, &mut Vec<InodeId>)| {
        let mut new = good.clone();
        if let NewShareWith::Person {
            principal,
            uid,
            through,
            ..
        } = &mut new.with
        {
            change(principal, uid, through);
        }
        new
    };
    let too_far = SHARE_THROUGH_MAX as u64 + 1;
    let limit = SHARE_THROUGH_MAX as u32;
    let cases = [
        (
            NewShare {
                inode: foreign,
                ..good.clone()
            },
            Error::NotPermitted,
        ),
        (
            NewShare {
                inode: InodeId(9999),
                ..good.clone()
            },
            Error::Stale(InodeId(9999)),
        ),
        (
            NewShare {
                inode: symlink,
                ..good.clone()
            },
            Error::WrongKind,
        ),
        (
            NewShare {
                credentials: root,
                ..good.clone()
            },
            Error::NoRight,
        ),
        (
            NewShare {
                expires: Some(now),
                ..good.clone()
            },
            Error::Invalid,
        ),
        (
            NewShare {
                place: sealed(""),
                ..good.clone()
            },
            Error::Invalid,
        ),
        (
            NewShare {
                place: sealed(&"x".repeat(SHARE_PLACE_BYTES_MAX + SEAL_OVERHEAD_MAX + 1)),
                ..good.clone()
            },
            Error::Invalid,
        ),
        (
            NewShare {
                place: Sealed {
                    epoch: RealmEpoch(1),
                    ..sealed("place")
                },
                ..good.clone()
            },
            Error::Invalid,
        ),
        (person(|key, _, _| *key = id(EVE)), Error::NotFound),
        (person(|_, uid, _| *uid = Uid(1004)), Error::Invalid),
        (
            person(|key, uid, _| (*key, *uid) = (id(OWNER), FOUNDERS.0)),
            Error::Invalid,
        ),
        (
            person(|key, uid, _| (*key, *uid) = (id(OWNER), Uid(u32::MAX))),
            Error::Invalid,
        ),
    ];
    for (new, expected) in cases {
        assert_eq!(shares.share(new.clone()), Err(expected), "{new:?}");
    }
    let mut new = good.clone();
    if let NewShareWith::Person { through, .. } = &mut new.with {
        *through = (2..2 + too_far).map(InodeId).collect();
    }
    assert_eq!(shares.share(new.clone()), Err(Error::TooMany { limit }));
    // Together with those of the share that it changes too.
    if let NewShareWith::Person { through, .. } = &mut new.with {
        through.pop();
    }
    let id = shares.share(good).unwrap();
    assert_eq!(shares.share(new), Err(Error::TooMany { limit }));
    assert_eq!(shares.mine()[0].id, id);
}
