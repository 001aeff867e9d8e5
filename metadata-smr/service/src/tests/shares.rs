//! Shares: who may begin, change, end and forget one, which have ended, and who is shown which.

use super::people::world::*;
use crate::attributes::Credentials;
use crate::error::Error;
use crate::identity::*;
use crate::limits::*;
use crate::operation::*;
use crate::people::PeopleStep;
use crate::query::{Question, SharesOf};
use crate::reply::{Done, ListedShare, QueryResult};
use crate::row::*;
use quorumfs_bft::identity::{Nanos, Sequence, Time};
use quorumfs_bft::service::Caller;

mod capsules;
mod expiry;
mod format;
mod machines;
mod refusals;

pub(super) use format::fixtures;

const FOUNDERS: (Uid, Gid) = (Uid(1000), Gid(100));
const TOKEN: [u8; 32] = [5; 32];

pub(super) fn founder() -> Credentials {
    Credentials::user(FOUNDERS.0, FOUNDERS.1)
}

pub(super) fn sealed(text: &str) -> Sealed {
    Sealed {
        epoch: RealmEpoch(0),
        bytes: text.as_bytes().to_vec(),
    }
}

pub(super) fn with_bob(writes: bool) -> NewShareWith {
    NewShareWith::Person {
        principal: id(BOB),
        uid: BOBS.0,
        writes,
        through: vec![InodeId::ROOT],
    }
}

pub(super) fn new_share(who: &Credentials, inode: InodeId, with: NewShareWith) -> NewShare {
    NewShare {
        credentials: who.clone(),
        inode,
        with,
        expires: None,
        place: sealed("place"),
    }
}

/// A founder that is no administrator and owns a directory and a file, and Bob.
struct Shares {
    world: PeopleWorld,
    founder: Caller,
    bob: Caller,
    directory: InodeId,
    file: InodeId,
    /// The object of the file, once there is one.
    object: ObjectId,
}

impl Shares {
    fn new() -> Self {
        let mut world = PeopleWorld::new();
        world.change(admitting(BOB, MemberRole::Write)).unwrap();
        let bob = world.service.open(id(BOB));
        let founder = world.service.open(id(FOUNDER));
        let owner = world.owner;
        let directory = world.service.mkdir(&owner, InodeId::ROOT, "photos");
        let file = world.service.create(&owner, directory, "one");
        for inode in [directory, file] {
            let give = Step::SetAttributes(SetAttributes {
                uid: Some(FOUNDERS.0),
                gid: Some(FOUNDERS.1),
                ..SetAttributes::of(inode)
            });
            world
                .service
                .step(&owner, &Credentials::root(), give)
                .unwrap();
        }
        Self {
            world,
            founder,
            bob,
            directory,
            file,
            object: ObjectId::FOUNDING,
        }
    }

    fn run(&mut self, caller: &Caller, operation: &Operation) -> Result<Done, Error> {
        let before = self.world.service.root();
        let done = self.world.service.run(caller, operation);
        if done.is_err() {
            assert_eq!(self.world.service.root(), before, "a refusal changed it");
        }
        self.check_rows();
        done.map_err(|refusal| refusal.error)
    }

    fn share(&mut self, new: NewShare) -> Result<ShareId, Error> {
        let founder = self.founder;
        match self.run(&founder, &Operation::Share(new))? {
            Done::Shared { id } => Ok(id),
            other => panic!("{other:?}"),
        }
    }

    fn share_file(&mut self, writes: bool) -> ShareId {
        self.share(new_share(&founder(), self.file, with_bob(writes)))
            .unwrap()
    }

    fn link(&mut self, token: [u8; 32]) -> Result<ShareId, Error> {
        let with = NewShareWith::Link { token };
        self.share(new_share(&founder(), self.directory, with))
    }

    fn change(
        &mut self,
        caller: &Caller,
        who: Credentials,
        (id, forgets): (ShareId, bool),
    ) -> Result<Done, Error> {
        let credentials = who;
        let asked = ChangeShare { credentials, id };
        let operation = match forgets {
            true => Operation::ForgetShare(asked),
            false => Operation::EndShare(asked),
        };
        self.run(caller, &operation)
    }

    fn end(&mut self, id: ShareId) -> Result<Done, Error> {
        let caller = self.founder;
        self.change(&caller, founder(), (id, false))
    }

    fn forget(&mut self, id: ShareId) -> Result<Done, Error> {
        let caller = self.founder;
        self.change(&caller, founder(), (id, true))
    }

    fn list(
        &mut self,
        caller: &Caller,
        who: Credentials,
        of: SharesOf,
    ) -> Result<Vec<ListedShare>, Error> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let limit = 2;
            let question = Question::Shares { of, after, limit };
            match self.world.service.ask_as(caller, who.clone(), question)? {
                QueryResult::Shares { shares, next } => {
                    assert!(shares.len() <= 2);
                    all.extend(shares);
                    after = next;
                }
                other => panic!("{other:?}"),
            }
            if after.is_none() {
                return Ok(all);
            }
        }
    }

    fn mine(&mut self) -> Vec<ListedShare> {
        let caller = self.founder;
        self.list(&caller, founder(), SharesOf::Mine).unwrap()
    }

    fn with_bob(&mut self) -> Vec<ListedShare> {
        let caller = self.bob;
        let of = SharesOf::With(self.number(BOB));
        self.list(&caller, bob(), of).unwrap()
    }

    fn number(&self, seed: u8) -> PrincipalNumber {
        self.world.row(seed).unwrap().number
    }

    fn of_token(&mut self, token: [u8; 32]) -> Result<ListedShare, Error> {
        let caller = self.world.owner;
        let question = Question::ShareOfToken(token);
        match self.world.service.ask(&caller, question)? {
            QueryResult::Share(found) => Ok(found),
            other => panic!("{other:?}"),
        }
    }

    /// All indexes and counts follow from the rows of the shares.
    fn check_rows(&self) {
        let rows = |prefix: &[u8]| self.world.service.rows(prefix);
        let mut expected = std::collections::BTreeMap::new();
        let mut counts = std::collections::BTreeMap::<Vec<u8>, u32>::new();
        let all = rows(&key::all_shares());
        for (row_key, bytes) in &all {
            let id = key::trailing_share(row_key).unwrap();
            let share = Share::from_bytes(bytes).unwrap();
            let (at, indexed) = (ShareAt { id }.to_bytes(), ShareIndexed.to_bytes());
            expected.insert(key::share_by(share.uid, id), indexed.clone());
            *counts.entry(key::shares_of_user(share.uid)).or_default() += 1;
            match &share.with {
                ShareWith::Link { token } => {
                    expected.insert(key::share_of_token(token), at);
                }
                ShareWith::Capsule { point, .. } => {
                    expected.insert(key::capsule_point(*point, id), indexed.clone());
                    *counts.entry(key::capsules_of_user(share.uid)).or_default() += 1;
                }
                ShareWith::Person { principal, .. } => {
                    expected.insert(key::share_with(*principal, id), indexed.clone());
                    *counts.entry(key::shares_of_person(*principal)).or_default() += 1;
                    let of_inode = key::share_of_inode(share.inode, share.uid, *principal);
                    if !share.ended {
                        expected.insert(of_inode, at);
                    }
                }
            }
            if let Some(at) = share.expires.filter(|_| !share.ended) {
                expected.insert(key::share_expiry(at, id), indexed);
            }
        }
        for (row_key, shares) in counts {
            expected.insert(row_key, ShareCount { shares }.to_bytes());
        }
        let mut found = std::collections::BTreeMap::new();
        for tag in [b"SC/", b"ST/", b"SU/", b"SP/", b"SR/", b"SI/", b"SX/"] {
            found.extend(rows(tag));
        }
        assert_eq!(found, expected);
        let numbers = rows(&key::share_numbers());
        let numbers = numbers.first().map(|row| ShareNumbers::from_bytes(&row.1));
        let shares = numbers.map_or(0, |numbers| numbers.unwrap().shares);
        assert_eq!(shares as usize, all.len());
    }
}

#[test]
fn a_share_comes_changes_ends_and_is_forgotten() {
    let mut shares = Shares::new();
    let first = shares.share_file(false);
    assert_eq!(first, ShareId(1));
    let listed = shares.mine();
    assert_eq!(listed.len(), 1);
    assert!(listed[0].exists && !listed[0].share.ended);
    assert_eq!(listed[0].share.place, sealed("place"));
    let age = listed[0].share.created;

    let mut again = new_share(&founder(), shares.file, with_bob(true));
    again.expires = Some(shares.world.service.now().plus(Nanos(9_000_000_000)));
    again.place = sealed("elsewhere");
    if let NewShareWith::Person { through, .. } = &mut again.with {
        *through = vec![shares.directory, shares.directory];
    }
    assert_eq!(shares.share(again.clone()), Ok(first));
    let listed = shares.mine();
    let share = &listed[0].share;
    assert_eq!((share.created, share.expires), (age, again.expires));
    assert_eq!(share.place, sealed("elsewhere"));
    let expected = ShareWith::Person {
        principal: shares.number(BOB),
        uid: BOBS.0,
        writes: true,
        through: vec![InodeId::ROOT, shares.directory],
    };
    assert_eq!(share.with, expected);

    assert_eq!(shares.forget(first), Err(Error::Changed), "it lives");
    assert_eq!(shares.end(first), Ok(Done::ShareEnded));
    assert_eq!(shares.end(first), Ok(Done::ShareEnded), "once more");
    assert!(shares.mine()[0].share.ended);
    let second = shares.share_file(false);
    assert_eq!(second, ShareId(2), "the ended one is not changed");
    assert_eq!(shares.forget(first), Ok(Done::ShareForgotten));
    assert_eq!(shares.forget(first), Err(Error::NotFound));
    assert_eq!(shares.end(first), Err(Error::NotFound));
    assert_eq!(shares.mine().len(), 1);
    shares.end(second).unwrap();
    shares.forget(second).unwrap();
    assert_eq!(
        shares.share_file(false),
        ShareId(3),
        "no number is used twice"
    );
}

#[test]
fn a_link_is_found_by_its_token_until_it_ends() {
    let mut shares = Shares::new();
    assert_eq!(shares.of_token(TOKEN), Err(Error::NotFound));
    let link = shares.link(TOKEN).unwrap();
    let found = shares.of_token(TOKEN).unwrap();
    assert_eq!((found.id, found.share.inode), (link, shares.directory));
    assert_eq!(found.share.uid, FOUNDERS.0);
    assert_eq!(shares.link(TOKEN), Err(Error::Exists));
    let other = shares.link([6; 32]).unwrap();
    assert_ne!(other, link, "each link is a share of its own");
    assert_eq!(shares.end(link), Ok(Done::ShareEnded));
    assert_eq!(shares.of_token(TOKEN), Err(Error::NotFound));
    assert_eq!(shares.end(link), Err(Error::NotFound), "its row is gone");
    assert_eq!(shares.of_token([6; 32]).unwrap().id, other);
}

#[test]
fn a_link_ends_with_the_principal_that_made_it() {
    let mut shares = Shares::new();
    let owner = shares.world.owner;
    let give = Step::SetAttributes(SetAttributes {
        uid: Some(BOBS.0),
        ..SetAttributes::of(shares.file)
    });
    let root = Credentials::root();
    shares.world.service.step(&owner, &root, give).unwrap();
    let with = NewShareWith::Link { token: TOKEN };
    let new = Operation::Share(new_share(&bob(), shares.file, with));
    let caller = shares.bob;
    shares.run(&caller, &new).unwrap();
    assert!(shares.of_token(TOKEN).is_ok());
    shares.world.change(dismissing(BOB)).unwrap();
    assert_eq!(shares.of_token(TOKEN), Err(Error::NotFound));
    shares
        .world
        .change(admitting(BOB, MemberRole::Write))
        .unwrap();
    assert_eq!(shares.of_token(TOKEN), Err(Error::NotFound), "for good");
    let all = shares.list(&owner, root.clone(), SharesOf::All).unwrap();
    assert!(all[0].share.ended);
    let id = all[0].id;
    assert_eq!(
        shares.change(&owner, root, (id, true)),
        Ok(Done::ShareForgotten)
    );
}

#[test]
fn a_persons_share_ends_with_the_person_and_outlives_the_one_that_made_it() {
    let mut shares = Shares::new();
    let first = shares.share_file(true);
    shares.world.change(dismissing(BOB)).unwrap();
    assert!(shares.mine()[0].share.ended);
    shares
        .world
        .change(admitting(BOB, MemberRole::Write))
        .unwrap();
    assert!(shares.mine()[0].share.ended, "it is another one now");
    let second = shares.share_file(true);
    assert_ne!(first, second);
    assert_eq!(shares.forget(first), Ok(Done::ShareForgotten));
    // It acts for another user.
    let mut rights = rights_of(MemberRole::Write);
    rights.uids = Assertable::Only(vec![Uid(2000)]);
    let principal = id(BOB);
    let label = "bob".to_owned();
    let step = PeopleStep::Regrant {
        principal,
        label,
        rights,
        expires: None,
    };
    shares.world.change(step).unwrap();
    assert!(shares.mine()[0].share.ended);
    shares
        .world
        .change(granting(BOB, MemberRole::Write, None))
        .unwrap();
    assert!(!shares.mine()[0].share.ended);

    // A share that Bob made for another one stays.
    let owner = shares.world.owner;
    let mut statement = statement(EVE, MemberRole::Write);
    statement.rights.uids = Assertable::Only(vec![Uid(1004)]);
    shares.world.change(PeopleStep::Admit(statement)).unwrap();
    let mine = shares.world.service.mkdir(&owner, InodeId::ROOT, "bobs");
    let give = Step::SetAttributes(SetAttributes {
        uid: Some(BOBS.0),
        ..SetAttributes::of(mine)
    });
    let root = Credentials::root();
    shares.world.service.step(&owner, &root, give).unwrap();
    let with = NewShareWith::Person {
        principal: id(EVE),
        uid: Uid(1004),
        writes: false,
        through: Vec::new(),
    };
    let (caller, new) = (shares.bob, new_share(&bob(), mine, with));
    shares.run(&caller, &Operation::Share(new)).unwrap();
    shares.world.change(dismissing(BOB)).unwrap();
    let of = SharesOf::With(shares.number(EVE));
    let found = shares.list(&owner, root, of).unwrap();
    assert_eq!((found.len(), found[0].share.ended), (1, false));
}

#[test]
fn only_its_user_the_superuser_and_administrators_end_a_share() {
    let mut shares = Shares::new();
    let owner = shares.world.owner;
    let mut statement = statement(EVE, MemberRole::Administer);
    statement.rights.uids = Assertable::Only(vec![Uid(1004)]);
    statement.rights.gids = Assertable::Only(vec![Gid(1004)]);
    shares.world.change(PeopleStep::Admit(statement)).unwrap();
    let eve = shares.world.service.open(id(EVE));
    let as_eve = Credentials::user(Uid(1004), Gid(1004));
    let bob_caller = shares.bob;
    let ends = [(owner, Credentials::root()), (eve, as_eve)];
    for (caller, who) in ends {
        let id = shares.share_file(false);
        for forgets in [false, true] {
            let refused = shares.change(&bob_caller, bob(), (id, forgets));
            assert_eq!(refused, Err(Error::NotPermitted));
            let refused = shares.change(&bob_caller, founder(), (id, forgets));
            assert_eq!(refused, Err(Error::NoRight));
        }
        for forgets in [false, true] {
            shares.change(&caller, who.clone(), (id, forgets)).unwrap();
        }
    }
    assert_eq!(shares.mine(), []);
}

#[test]
fn each_user_is_shown_what_is_its_own() {
    let mut shares = Shares::new();
    let owner = shares.world.owner;
    let root = Credentials::root();
    let id = shares.share_file(false);
    shares.link(TOKEN).unwrap();
    let directory = new_share(&founder(), shares.directory, with_bob(true));
    let second = shares.share(directory).unwrap();
    let ids = |found: &[ListedShare]| found.iter().map(|it| it.id.0).collect::<Vec<_>>();
    assert_eq!(ids(&shares.mine()), [1, 2, 3]);
    let found = shares.with_bob();
    assert_eq!(ids(&found), [id.0, second.0]);
    assert!(found.iter().all(|it| it.share.place == sealed("place")));
    let all = shares.list(&owner, root.clone(), SharesOf::All).unwrap();
    assert_eq!(ids(&all), [1, 2, 3]);
    let (caller, who) = (shares.founder, founder());
    for (caller, who) in [(caller, who), (shares.bob, bob())] {
        let refused = shares.list(&caller, who, SharesOf::All);
        assert_eq!(refused, Err(Error::NoRight));
    }
    // Others see that there is a share with Bob, and not of what.
    let mut statement = statement(EVE, MemberRole::Read);
    statement.rights.uids = Assertable::Only(vec![Uid(1004)]);
    statement.rights.gids = Assertable::Only(vec![Gid(1004)]);
    shares.world.change(PeopleStep::Admit(statement)).unwrap();
    let eve = shares.world.service.open(super::people::world::id(EVE));
    let as_eve = Credentials::user(Uid(1004), Gid(1004));
    let of = SharesOf::With(shares.number(BOB));
    let found = shares.list(&eve, as_eve.clone(), of).unwrap();
    assert_eq!(ids(&found), [1, 3]);
    assert!(found.iter().all(|it| it.share.place.bytes.is_empty()));
    let mine = shares.list(&eve, as_eve, SharesOf::Mine).unwrap();
    assert_eq!(mine, []);
    // What is gone is shown as such.
    let founder_caller = shares.founder;
    let step = Step::Unlink(super::harness::removal(shares.directory, "one", false));
    shares
        .world
        .service
        .step(&founder_caller, &founder(), step)
        .unwrap();
    let gone: Vec<bool> = shares.mine().iter().map(|it| it.exists).collect();
    assert_eq!(gone, [false, true, true]);
    shares.end(id).unwrap();
    shares.forget(id).unwrap();
}

#[test]
fn shares_are_bounded() {
    let mut shares = Shares::new();
    let count = |shares: &mut Shares, row_key: Vec<u8>, count: u32| {
        let row = ShareCount { shares: count };
        shares.world.service.put(&row_key, &row);
    };
    let link = |shares: &mut Shares, byte: u8| {
        let with = NewShareWith::Link { token: [byte; 32] };
        let new = Operation::Share(new_share(&founder(), shares.directory, with));
        let caller = shares.founder;
        shares.world.service.run(&caller, &new)
    };
    let person = |shares: &mut Shares| {
        let new = Operation::Share(new_share(&founder(), shares.file, with_bob(false)));
        let caller = shares.founder;
        shares.world.service.run(&caller, &new)
    };
    let too_many = |limit| Error::TooMany { limit };
    count(&mut shares, key::shares_of_user(FOUNDERS.0), 4095);
    link(&mut shares, 1).unwrap();
    let refused = link(&mut shares, 2).unwrap_err().error;
    assert_eq!(refused, too_many(SHARES_OF_USER_MAX));
    count(&mut shares, key::shares_of_user(FOUNDERS.0), 1);
    let of_bob = key::shares_of_person(shares.number(BOB));
    count(&mut shares, of_bob.clone(), SHARES_WITH_PERSON_MAX);
    let refused = person(&mut shares).unwrap_err().error;
    assert_eq!(refused, too_many(SHARES_WITH_PERSON_MAX));
    count(&mut shares, of_bob, 0);
    let capsule = |shares: &mut Shares| {
        let new = Operation::Share(shares.capsule(&[shares.object], 9));
        let caller = shares.founder;
        shares.world.service.run(&caller, &new)
    };
    shares.write();
    let capsules = key::capsules_of_user(FOUNDERS.0);
    count(&mut shares, capsules.clone(), CAPSULES_OF_USER_MAX - 1);
    capsule(&mut shares).unwrap();
    let refused = capsule(&mut shares).unwrap_err().error;
    assert_eq!(refused, too_many(CAPSULES_OF_USER_MAX));
    count(&mut shares, capsules, 0);
    let numbers = ShareNumbers {
        last: 7,
        shares: SHARES_MAX,
    };
    let row_key = key::share_numbers();
    shares.world.service.put(&row_key, &numbers);
    let refused = person(&mut shares).unwrap_err().error;
    assert_eq!(refused, too_many(SHARES_MAX));
    let numbers = ShareNumbers {
        last: u64::MAX,
        shares: 1,
    };
    shares.world.service.put(&row_key, &numbers);
    let refused = person(&mut shares).unwrap_err().error;
    assert_eq!(refused, Error::LimitReached);
}

/// The time in some seconds.
fn in_seconds(world: &PeopleWorld, seconds: u64) -> Option<Time> {
    Some(world.service.now().plus(Nanos(seconds * 1_000_000_000)))
}
