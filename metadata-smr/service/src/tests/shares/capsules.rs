//! Capsules as shares: who orders one, what is refused, when it ends, and who is shown it.

use super::*;
use crate::Metadata;
use crate::attributes::Mode;
use crate::tests::harness::{commit, removal};
use quorumfs_bft::service::Service;
use quorumfs_bft::state::Area;

impl Shares {
    /// Writes an object of its own to the file.
    pub(super) fn write(&mut self) {
        let caller = self.founder;
        let service = &mut self.world.service;
        let allocation = service.allocate(&caller, 8);
        let step = commit(self.file, allocation, 1, &[(0, 10)]);
        self.object = step.objects[0].id;
        let step = Step::Commit(step);
        service.step(&caller, &founder(), step).unwrap();
    }

    fn with_content() -> Self {
        let mut shares = Self::new();
        shares.write();
        shares
    }

    /// A capsule of the directory for some seconds.
    pub(super) fn capsule(&self, manifest: &[ObjectId], seconds: u64) -> NewShare {
        let with = NewShareWith::Capsule {
            manifest: manifest.to_vec(),
        };
        NewShare {
            expires: in_seconds(&self.world, seconds),
            ..new_share(&founder(), self.directory, with)
        }
    }

    fn order(&mut self, seconds: u64) -> ShareId {
        self.share(self.capsule(&[self.object], seconds)).unwrap()
    }
}

#[test]
fn a_capsule_is_listed_with_its_manifest_until_it_is_ended() {
    let mut shares = Shares::with_content();
    let new = shares.capsule(&[shares.object], 100);
    let first = shares.share(new.clone()).unwrap();
    let point = Sequence(shares.world.service.sequence);
    let second = shares.share(new.clone()).unwrap();
    assert_ne!(first, second, "each is a share of its own");
    let listed = shares.mine();
    let ids: Vec<_> = listed.iter().map(|it| it.id).collect();
    assert_eq!(ids, [first, second]);
    let share = &listed[0].share;
    let manifest = vec![shares.object];
    assert_eq!(share.with, ShareWith::Capsule { manifest, point });
    assert_eq!((share.inode, share.uid), (shares.directory, FOUNDERS.0));
    assert_eq!(share.expires, new.expires);
    assert!(!share.ended && listed[0].exists);
    let owner = shares.world.owner;
    let all = shares.list(&owner, Credentials::root(), SharesOf::All);
    assert_eq!(all, Ok(listed));
    assert_eq!(shares.with_bob(), []);
    assert_eq!(shares.forget(first), Err(Error::Changed), "it lives");
    let caller = shares.bob;
    let refused = shares.change(&caller, bob(), (first, false));
    assert_eq!(refused, Err(Error::NotPermitted));
    assert_eq!(shares.end(first), Ok(Done::ShareEnded));
    assert_eq!(shares.end(first), Err(Error::NotFound), "its row is gone");
    let root = Credentials::root();
    let ended = shares.change(&owner, root, (second, false));
    assert_eq!(ended, Ok(Done::ShareEnded));
    assert_eq!(shares.mine(), []);
}

#[test]
fn what_is_wrong_with_a_capsule_is_refused() {
    let with_a_foreign_file = || {
        let mut shares = Shares::with_content();
        let owner = shares.world.owner;
        let foreign = shares.world.service.create(&owner, InodeId::ROOT, "roots");
        (shares, foreign)
    };
    let (mut shares, foreign) = with_a_foreign_file();
    let object = shares.object;
    let lost = ObjectId {
        counter: 7,
        ..object
    };
    let limit = MANIFEST_OBJECTS_MAX as u32;
    let good = shares.capsule(&[object; MANIFEST_OBJECTS_MAX], CAPSULE_SECONDS_MAX);
    // The next batch is later by this.
    let pace = Nanos(shares.world.service.pace);
    let longest = good.expires.unwrap().plus(pace);
    let ends = |expires| NewShare {
        expires,
        ..good.clone()
    };
    let named = |manifest: &[ObjectId]| shares.capsule(manifest, 100);
    let cases = [
        (ends(None), Error::Invalid),
        (
            ends(Some(shares.world.service.now().plus(pace))),
            Error::Invalid,
        ),
        (ends(Some(longest.plus(Nanos(1)))), Error::Invalid),
        (named(&[]), Error::Invalid),
        (
            named(&[object; MANIFEST_OBJECTS_MAX + 1]),
            Error::TooMany { limit },
        ),
        (named(&[object, lost]), Error::NoObject(lost)),
        (
            NewShare {
                inode: foreign,
                ..good.clone()
            },
            Error::NotPermitted,
        ),
    ];
    for (new, expected) in cases {
        // Each at the same time, so another one each.
        let (mut other, _) = with_a_foreign_file();
        assert_eq!(other.share(new.clone()), Err(expected), "{new:?}");
    }
    assert_eq!(shares.share(ends(Some(longest))), Ok(ShareId(1)));
    // What nothing refers to may be on its way out.
    let caller = shares.founder;
    let step = Step::Unlink(removal(shares.directory, "one", false));
    let service = &mut shares.world.service;
    service.step(&caller, &founder(), step).unwrap();
    service.wait(crate::genesis::TRASH_SECONDS);
    service.drain();
    assert_eq!(service.rows(&key::unreferenced(object)).len(), 1);
    let unreferenced = shares.share(shares.capsule(&[object], 100));
    assert_eq!(unreferenced, Err(Error::NoObject(object)));
}

#[test]
fn a_principal_that_only_reads_orders_no_capsule() {
    let mut shares = Shares::with_content();
    let owner = shares.world.owner;
    let mut statement = statement(EVE, MemberRole::Read);
    statement.rights.uids = Assertable::Only(vec![FOUNDERS.0]);
    statement.rights.gids = Assertable::Only(vec![FOUNDERS.1]);
    shares.world.change(PeopleStep::Admit(statement)).unwrap();
    let eve = shares.world.service.open(id(EVE));
    let new = Operation::Share(shares.capsule(&[shares.object], 100));
    assert_eq!(shares.run(&eve, &new), Err(Error::NoRight));
    let caller = shares.founder;
    assert_eq!(
        shares.run(&caller, &new),
        Ok(Done::Shared { id: ShareId(1) })
    );
    // A user that may write what another one owns does not share it.
    let open = Step::SetAttributes(SetAttributes {
        mode: Some(Mode(0o777)),
        ..SetAttributes::of(shares.directory)
    });
    let root = Credentials::root();
    shares.world.service.step(&owner, &root, open).unwrap();
    let new = NewShare {
        credentials: bob(),
        ..shares.capsule(&[shares.object], 100)
    };
    let caller = shares.bob;
    let refused = shares.run(&caller, &Operation::Share(new));
    assert_eq!(refused, Err(Error::NotPermitted));
}

#[test]
fn a_capsule_ends_at_the_nanosecond() {
    let mut shares = Shares::with_content();
    let pace = shares.world.service.pace;
    let at = shares.world.service.now().plus(Nanos(4 * pace));
    let mut new = shares.capsule(&[shares.object], 100);
    new.expires = Some(at);
    let first = shares.share(new.clone()).unwrap();
    new.expires = Some(at.plus(Nanos(1)));
    let second = shares.share(new).unwrap();
    let deadline = |shares: &Shares| {
        let view = shares.world.service.space.view(Area::Service);
        Metadata.next_deadline(&view).unwrap()
    };
    let mut after_a_tick = |now: u64| {
        shares.world.service.tick();
        assert_eq!(shares.world.service.now().0, at.0 + now - pace);
        shares.check_rows();
        let listed = shares.mine();
        // A question takes a batch of the tests' time, and nothing else.
        shares.world.service.sequence -= 1;
        (
            deadline(&shares),
            listed.iter().map(|it| it.id).collect::<Vec<_>>(),
        )
    };
    let later = Some(at.plus(Nanos(1)));
    assert_eq!(
        after_a_tick(0),
        (Some(at), vec![first, second]),
        "a batch before"
    );
    assert_eq!(after_a_tick(pace), (later, vec![second]));
    assert_eq!(after_a_tick(2 * pace), (None, vec![]));
}

#[test]
fn a_capsule_ends_with_the_principal_that_made_it() {
    let mut shares = Shares::with_content();
    let owner = shares.world.owner;
    let give = Step::SetAttributes(SetAttributes {
        uid: Some(BOBS.0),
        ..SetAttributes::of(shares.directory)
    });
    let root = Credentials::root();
    shares.world.service.step(&owner, &root, give).unwrap();
    let new = NewShare {
        credentials: bob(),
        ..shares.capsule(&[shares.object], 1000)
    };
    let (caller, new) = (shares.bob, Operation::Share(new));
    for _ in 0..2 {
        shares.run(&caller, &new).unwrap();
    }
    let ended = |shares: &mut Shares| {
        let all = shares.list(&owner, Credentials::root(), SharesOf::All);
        all.unwrap()
            .iter()
            .map(|it| it.share.ended)
            .collect::<Vec<_>>()
    };
    assert_eq!(ended(&mut shares), [false, false]);
    shares.world.change(dismissing(BOB)).unwrap();
    assert_eq!(ended(&mut shares), [true, true]);
    shares
        .world
        .change(admitting(BOB, MemberRole::Write))
        .unwrap();
    assert_eq!(ended(&mut shares), [true, true], "for good");
    assert_eq!(shares.world.service.rows(b"SR/").len(), 2, "they retain");
    let forgotten = shares.change(&owner, root, (ShareId(1), true));
    assert_eq!(forgotten, Ok(Done::ShareForgotten));
    shares.world.service.wait(1000);
    shares.world.service.drain();
    shares.check_rows();
    assert_eq!(shares.world.service.rows(b"SR/").len(), 0);
    assert_eq!(ended(&mut shares), [false; 0]);
}

#[test]
fn no_token_leads_to_a_capsule() {
    let mut shares = Shares::with_content();
    let id = shares.order(100);
    // As no operation writes it.
    let row_key = key::share_of_token(&TOKEN);
    shares.world.service.put(&row_key, &ShareAt { id });
    assert_eq!(shares.of_token(TOKEN), Err(Error::NotFound));
}
