//! Shares end by themselves exactly then, and survive a recovery.

use super::*;
use crate::Metadata;
use crate::tests::load::recovered;
use quorumfs_bft::service::Service;
use quorumfs_bft::state::Area;

fn deadline(shares: &Shares) -> Option<Time> {
    let view = shares.world.service.space.view(Area::Service);
    Metadata.next_deadline(&view).unwrap()
}

#[test]
fn a_share_ends_by_itself_exactly_then() {
    let mut shares = Shares::new();
    let expires = in_seconds(&shares.world, 100);
    let mut new = new_share(&founder(), shares.file, with_bob(false));
    new.expires = expires;
    let person = shares.share(new).unwrap();
    let with = NewShareWith::Link { token: TOKEN };
    let mut new = new_share(&founder(), shares.directory, with);
    new.expires = expires;
    shares.share(new).unwrap();
    assert_eq!(deadline(&shares), expires);
    shares.world.service.wait(99);
    assert_eq!(shares.world.service.drain(), 0);
    assert!(shares.of_token(TOKEN).is_ok());
    assert!(shares.mine().iter().all(|it| !it.share.ended));
    shares.world.service.wait(1);
    assert_eq!(shares.world.service.drain(), 1);
    shares.check_rows();
    assert_eq!(shares.of_token(TOKEN), Err(Error::NotFound));
    let left = shares.mine();
    assert_eq!((left.len(), left[0].id), (1, person));
    assert!(left[0].share.ended, "its lists are to be taken back");
    assert_eq!(deadline(&shares), None);
    shares.forget(person).unwrap();
    assert_eq!(shares.mine(), []);
}

#[test]
fn an_end_that_is_changed_is_another_end() {
    let mut shares = Shares::new();
    let mut new = new_share(&founder(), shares.file, with_bob(false));
    new.expires = in_seconds(&shares.world, 10);
    let id = shares.share(new.clone()).unwrap();
    new.expires = in_seconds(&shares.world, 20);
    assert_eq!(shares.share(new.clone()), Ok(id));
    shares.world.service.wait(10);
    assert_eq!(shares.world.service.drain(), 0);
    new.expires = None;
    assert_eq!(shares.share(new), Ok(id));
    shares.world.service.wait(100);
    assert_eq!(shares.world.service.drain(), 0);
    assert!(!shares.mine()[0].share.ended);
}

#[test]
fn many_that_end_at_once_end_within_the_bound_of_a_tick() {
    let mut shares = Shares::new();
    let expires = in_seconds(&shares.world, 100);
    for byte in 0..200 {
        let token = [byte; 32];
        let mut new = new_share(&founder(), shares.file, NewShareWith::Link { token });
        new.expires = expires;
        let (caller, new) = (shares.founder, Operation::Share(new));
        shares.world.service.run(&caller, &new).unwrap();
    }
    shares.world.service.wait(100);
    let ticks = shares.world.service.drain();
    assert!((2..20).contains(&ticks), "{ticks} ticks");
    shares.check_rows();
    assert_eq!(shares.mine(), []);
}

#[test]
fn a_recovered_volume_has_its_shares_and_gives_other_numbers() {
    use crate::tests::harness::{ALICE, OWNER, TestService};
    let mut old = TestService::of(&crate::tests::load::genesis(0));
    let owner = old.open(OWNER);
    let root = Credentials::root();
    let inodes = ["a", "b", "c"].map(|name| old.create(&owner, InodeId::ROOT, name));
    let alice = NewShareWith::Person {
        principal: ALICE,
        uid: Uid(1000),
        writes: true,
        through: Vec::new(),
    };
    let mut expiring = new_share(&root, inodes[0], alice.clone());
    expiring.expires = Some(old.now().plus(Nanos(5_000_000_000)));
    let link = |token| NewShareWith::Link { token };
    let ended = new_share(&root, inodes[2], alice);
    for new in [expiring, new_share(&root, inodes[1], link(TOKEN)), ended] {
        old.run(&owner, &Operation::Share(new)).unwrap();
    }
    let asked = ChangeShare {
        credentials: root.clone(),
        id: ShareId(3),
    };
    old.run(&owner, &Operation::EndShare(asked)).unwrap();
    let mut world = recovered(&old, 2);
    for tag in [b"SH/", b"SC/", b"ST/", b"SU/", b"SP/", b"SI/", b"SX/"] {
        assert!(!old.rows(tag).is_empty());
        assert_eq!(world.rows(tag), old.rows(tag));
    }
    let owner = world.open(OWNER);
    let new = new_share(&root, inodes[1], link([7; 32]));
    let done = world.run(&owner, &Operation::Share(new)).unwrap();
    let id = ShareId(2_000_000_001);
    assert_eq!(done, Done::Shared { id });
    world.wait(10);
    world.drain();
    let question = Question::Shares {
        of: SharesOf::All,
        after: None,
        limit: 64,
    };
    let Ok(QueryResult::Shares { shares, next: None }) = world.ask(&owner, question) else {
        panic!();
    };
    let ended: Vec<bool> = shares.iter().map(|it| it.share.ended).collect();
    assert_eq!(ended, [true, false, true, false]);
}

#[test]
fn rows_of_shares_that_contradict_each_other_stop_no_server() {
    let mut shares = Shares::new();
    let service = &mut shares.world.service;
    let at = ShareAt { id: ShareId(77) };
    service.put(&key::share_of_token(&TOKEN), &at);
    service.put(&key::share_by(FOUNDERS.0, ShareId(77)), &ShareIndexed);
    service.put(&key::share_expiry(Time(5), ShareId(77)), &ShareIndexed);
    let number = shares.number(BOB);
    let file = shares.file;
    let service = &mut shares.world.service;
    service.put(&key::share_of_inode(file, FOUNDERS.0, number), &at);
    let lonely = Share {
        by: PrincipalNumber(99),
        uid: FOUNDERS.0,
        inode: file,
        with: ShareWith::Link { token: [9; 32] },
        expires: Some(Time(6)),
        created: Time(1),
        ended: false,
        place: sealed("place"),
    };
    service.put(&key::share(ShareId(78)), &lonely);
    service.put(&key::share_expiry(Time(6), ShareId(78)), &ShareIndexed);
    assert_eq!(service.drain(), 1);
    assert_eq!(shares.of_token(TOKEN), Err(Error::NotFound));
    assert_eq!(shares.mine(), []);
    let new = new_share(&founder(), file, with_bob(false));
    let caller = shares.founder;
    let refused = shares
        .world
        .service
        .run(&caller, &Operation::Share(new))
        .unwrap_err();
    assert_eq!(refused.error, Error::NotFound);
}
