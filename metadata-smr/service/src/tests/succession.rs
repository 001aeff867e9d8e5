//! A principal's key is replaced: under the root's signature alone, one after the other, and
//! everything of the old key is refused from then on.

use super::harness::*;
use crate::Metadata;
use crate::error::Error;
use crate::genesis::{Genesis, SignedGenesis};
use crate::identity::*;
use crate::limits::WRAPPED_KEY_BYTES_MAX;
use crate::operation::{Operation, Takeover};
use crate::query::Question;
use crate::reply::{Done, QueryResult};
use crate::row::*;
use crate::simulation::{ordinary, principal, unsigned_genesis};
use crate::statement::{Statement, WrappedSecret};
use crate::succession::{SignedSuccession, Succeed, Succession};
use ed25519_zebra::{SigningKey, VerificationKey};
use quorumfs_bft::identity::{PublicKey, Signature, Time};
use quorumfs_bft::service::{Caller, Service};
use quorumfs_bft::state::Area;

/// The kit's principal.
const RECOVERY: PublicKey = PublicKey([7; 32]);
const SUCCESSOR: PublicKey = PublicKey([8; 32]);
const LATER: PublicKey = PublicKey([9; 32]);

fn root() -> SigningKey {
    SigningKey::from([5; 32])
}

/// With a wrapped secret of each cloud.
fn with_secrets(mut statement: Statement) -> Statement {
    let wrapped = |cloud| WrappedSecret {
        cloud: CloudIndex(cloud),
        bytes: vec![statement.key.0[0], cloud],
    };
    statement.cloud_secrets = (0..4).map(wrapped).collect();
    statement
}

fn genesis() -> Genesis {
    let principals = vec![
        with_secrets(principal(OWNER, Rights::all())),
        principal(RECOVERY, Rights::all()),
        principal(ALICE, ordinary(Uid(1000), Gid(100))),
    ];
    unsigned_genesis(principals, (1, 1, 4)).unwrap()
}

fn world() -> TestService {
    let genesis = genesis().to_bytes();
    let signature = root().sign(&Genesis::signed_bytes(&genesis));
    let signed = SignedGenesis {
        genesis,
        root_key: PublicKey(VerificationKey::from(&root()).into()),
        signature: Signature(signature.into()),
    };
    TestService::of(&signed.to_bytes())
}

fn succession(number: u32, predecessor: PublicKey, successor: PublicKey) -> Succession {
    Succession {
        volume: genesis().volume,
        number,
        predecessor,
        successor: with_secrets(principal(successor, Rights::all())),
        epoch: RealmEpoch(0),
    }
}

fn signed_by(key: &SigningKey, succession: &Succession) -> Succeed {
    let bytes = succession.to_bytes();
    let signature = key.sign(&Succession::signed_bytes(&bytes));
    Succeed {
        signed: SignedSuccession {
            succession: bytes,
            signature: Signature(signature.into()),
        },
        member: Member {
            epoch: succession.epoch,
            role: MemberRole::Administer,
            expires: None,
            wrapped: vec![3; 80],
            signer: RECOVERY,
            signature: Signature([4; 64]),
        },
    }
}

fn run(world: &mut TestService, caller: &Caller, succeed: &Succeed) -> Result<u32, Error> {
    match world.run(caller, &Operation::Succeed(succeed.clone())) {
        Ok(Done::Succeeded { number }) => Ok(number),
        Ok(other) => panic!("{other:?}"),
        Err(refusal) => Err(refusal.error),
    }
}

fn administers(world: &TestService, key: PublicKey) -> Option<bool> {
    let view = world.space.view(Area::Service);
    Metadata.administers(&view, &key).unwrap()
}

#[test]
fn the_old_key_is_refused_everything_and_the_new_one_has_its_place() {
    let mut world = world();
    let (owner, kit) = (world.open(OWNER), world.open(RECOVERY));
    let mount = Operation::MountRealm {
        realm: RealmId::ROOT,
        takeover: Takeover::Refused,
        mode: MountMode::Exclusive,
        label: "host".into(),
    };
    assert!(matches!(
        world.run(&owner, &mount),
        Ok(Done::Mounted { .. })
    ));
    assert_eq!(administers(&world, OWNER), Some(true));
    let first = signed_by(&root(), &succession(1, OWNER, SUCCESSOR));
    assert_eq!(run(&mut world, &kit, &first), Ok(1));

    let refused = world.run(&owner, &Operation::Allocate { count: 1 });
    assert!(matches!(
        refused.map_err(|refusal| refusal.error),
        Err(Error::Fenced { .. } | Error::NoSession)
    ));
    for question in [Question::Volume, Question::WhoAmI, Question::Successions] {
        assert_eq!(world.ask(&owner, question), Err(Error::NoSession));
    }
    assert_eq!(world.try_open(OWNER), None);
    assert_eq!(administers(&world, OWNER), Some(false));
    assert_eq!(administers(&world, ALICE), None);
    assert_eq!(administers(&world, STRANGER), None);
    assert_eq!(administers(&world, RECOVERY), Some(true));

    let successor = world.open(SUCCESSOR);
    assert!(matches!(
        world.run(&successor, &mount),
        Ok(Done::Mounted { fenced, .. }) if fenced.is_empty()
    ));
    assert_eq!(administers(&world, SUCCESSOR), Some(true));
    let known = world.ask(&kit, Question::Successions);
    assert_eq!(
        known,
        Ok(QueryResult::Successions(vec![first.signed.clone()]))
    );
    let Ok(QueryResult::Members(members)) = world.ask(&kit, Question::Members(RealmId::ROOT))
    else {
        panic!("no members");
    };
    let keys: Vec<_> = members.iter().map(|(key, _)| *key).collect();
    assert_eq!(keys, [ALICE, RECOVERY, SUCCESSOR]);
    // An open session of the old key ends like any other.
    world.close(&owner);
}

#[test]
fn an_administrator_replaces_no_principal_without_the_root() {
    let mut world = world();
    let (owner, kit, alice) = (world.open(OWNER), world.open(RECOVERY), world.open(ALICE));
    let right = signed_by(&root(), &succession(1, RECOVERY, SUCCESSOR));
    assert_eq!(run(&mut world, &alice, &right), Err(Error::NoRight));
    let stranger = SigningKey::from([6; 32]);
    let forged = signed_by(&stranger, &succession(1, RECOVERY, SUCCESSOR));
    assert_eq!(run(&mut world, &owner, &forged), Err(Error::BadSuccession));
    let mut changed = right.clone();
    *changed.signed.succession.last_mut().unwrap() ^= 1;
    assert_eq!(run(&mut world, &owner, &changed), Err(Error::BadSuccession));
    let mut elsewhere = succession(1, RECOVERY, SUCCESSOR);
    elsewhere.volume.0[0] ^= 1;
    let elsewhere = signed_by(&root(), &elsewhere);
    assert_eq!(
        run(&mut world, &owner, &elsewhere),
        Err(Error::BadSuccession)
    );
    let before = world.rows(b"");
    for wrong in [
        (succession(2, OWNER, SUCCESSOR), Error::Changed),
        (succession(0, OWNER, SUCCESSOR), Error::Changed),
        (succession(1, STRANGER, SUCCESSOR), Error::NotFound),
        (succession(1, OWNER, ALICE), Error::Exists),
    ] {
        let (wrong, error) = wrong;
        assert_eq!(
            run(&mut world, &kit, &signed_by(&root(), &wrong)),
            Err(error)
        );
    }
    let mut later = succession(1, OWNER, SUCCESSOR);
    later.epoch = RealmEpoch(1);
    let current = RealmEpoch(0);
    let stale = Err(Error::WrongEpoch { current });
    assert_eq!(run(&mut world, &kit, &signed_by(&root(), &later)), stale);
    assert_eq!(changed_rows(&before, &world.rows(b"")), 0);
}

#[test]
fn the_wrapped_secrets_of_clouds_are_rows_of_their_principal_alone() {
    let mut world = world();
    let (owner, kit) = (world.open(OWNER), world.open(RECOVERY));
    let secrets = |key: PublicKey| {
        let row = |cloud| CloudSecretRow {
            bytes: vec![key.0[0], cloud],
            signed: None,
        };
        let rows = (0..4).map(|cloud| (CloudIndex(cloud), row(cloud)));
        Ok(QueryResult::CloudSecrets(rows.collect()))
    };
    let mine = |world: &mut TestService, caller| world.ask(caller, Question::CloudSecrets);
    assert_eq!(mine(&mut world, &owner), secrets(OWNER));
    assert_eq!(
        mine(&mut world, &kit),
        Ok(QueryResult::CloudSecrets(vec![]))
    );
    let first = signed_by(&root(), &succession(1, OWNER, SUCCESSOR));
    assert_eq!(run(&mut world, &kit, &first), Ok(1));
    assert_eq!(mine(&mut world, &owner), Err(Error::NoSession));
    let successor = world.open(SUCCESSOR);
    assert_eq!(mine(&mut world, &successor), secrets(SUCCESSOR));
    let rows = world.rows(b"PC/");
    let prefix = key::cloud_secrets(&SUCCESSOR);
    assert_eq!(rows.len(), 4);
    assert!(rows.iter().all(|(row, _)| row.starts_with(&prefix)));
}

#[test]
fn a_successor_that_expires_or_has_unsound_secrets_or_another_role_is_refused() {
    type Change = fn(&mut Succession);
    let mut world = world();
    let kit = world.open(RECOVERY);
    let before = world.rows(b"");
    let changes: [Change; 6] = [
        |it| it.successor.expires = Some(Time(u64::MAX)),
        |it| it.successor.cloud_secrets.swap(0, 1),
        |it| it.successor.cloud_secrets[1].cloud = CloudIndex(0),
        |it| it.successor.cloud_secrets[3].cloud = CloudIndex(32),
        |it| it.successor.cloud_secrets[0].bytes.clear(),
        |it| it.successor.cloud_secrets[0].bytes = vec![1; WRAPPED_KEY_BYTES_MAX + 1],
    ];
    for (at, change) in changes.into_iter().enumerate() {
        let mut wrong = succession(1, OWNER, SUCCESSOR);
        change(&mut wrong);
        let refused = run(&mut world, &kit, &signed_by(&root(), &wrong));
        assert_eq!(refused, Err(Error::BadSuccession), "{at}");
    }
    let mut wrong = signed_by(&root(), &succession(1, OWNER, SUCCESSOR));
    wrong.member.role = MemberRole::Write;
    assert_eq!(run(&mut world, &kit, &wrong), Err(Error::BadSuccession));
    wrong.member.role = MemberRole::Administer;
    wrong.member.expires = Some(Time(u64::MAX));
    assert_eq!(run(&mut world, &kit, &wrong), Err(Error::BadSuccession));
    assert_eq!(changed_rows(&before, &world.rows(b"")), 0);
}

#[test]
fn successions_follow_each_other_and_the_same_again_is_the_same_success() {
    let mut world = world();
    let kit = world.open(RECOVERY);
    let first = signed_by(&root(), &succession(1, OWNER, SUCCESSOR));
    assert_eq!(run(&mut world, &kit, &first), Ok(1));
    let before = world.rows(b"");
    assert_eq!(run(&mut world, &kit, &first), Ok(1));
    assert_eq!(changed_rows(&before, &world.rows(b"")), 0);
    let other = signed_by(&root(), &succession(1, RECOVERY, LATER));
    assert_eq!(run(&mut world, &kit, &other), Err(Error::Changed));
    // The replaced key returns neither in its own place nor in another's.
    let back = signed_by(&root(), &succession(2, OWNER, LATER));
    assert_eq!(run(&mut world, &kit, &back), Err(Error::NotFound));
    let next = signed_by(&root(), &succession(2, SUCCESSOR, LATER));
    assert_eq!(run(&mut world, &kit, &next), Ok(2));
    for gone in [OWNER, SUCCESSOR] {
        assert_eq!(world.try_open(gone), None);
        assert_eq!(administers(&world, gone), Some(false));
    }
    assert!(world.try_open(LATER).is_some());
}
