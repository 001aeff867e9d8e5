//! What the formats have for several people in a volume: what the volume root states does not
//! expire, and what no program does yet is refused wherever it is set.

use super::harness::*;
use crate::attributes::{Credentials, PreviousNames};
use crate::error::Error;
use crate::genesis::{FORMAT, Genesis, GenesisError, SignedGenesis};
use crate::identity::*;
use crate::limits::{LABEL_BYTES_MAX, RIGHTS_LIST_MAX, WRAPPED_KEY_BYTES_MAX};
use crate::operation::{NewInode, Operation, Step};
use crate::placement::Policy;
use crate::query::{Query, Question};
use crate::reply::{Answer, QueryResult};
use crate::row::*;
use crate::simulation::{place, principal, reader, sign, unsigned_genesis};
use crate::statement::WrappedSecret;
use crate::succession::{SignedSuccession, Succeed, Succession};
use quorumfs_bft::identity::{Signature, Time};

mod changes;
pub(super) mod coming;
mod expiry;
mod given;
mod machines;
mod replay;
pub(super) mod world;

const NEVER: Time = Time(u64::MAX);

fn genesis() -> Genesis {
    let mut owner = principal(OWNER, Rights::all());
    let wrapped = |cloud| WrappedSecret {
        cloud: CloudIndex(cloud),
        bytes: vec![cloud; 80],
    };
    owner.cloud_secrets = (0..4).map(wrapped).collect();
    let alice = principal(ALICE, reader(Uid(1000), Gid(100)));
    unsigned_genesis(vec![owner, alice], (1, 1, 4)).unwrap()
}

/// Rows and messages with everything that they have a place for.
pub(super) fn fixtures() -> Vec<(&'static str, Vec<u8>)> {
    let signed = Some(SignedBy {
        signer: OWNER,
        signature: Signature([0x11; 64]),
    });
    let realm = Realm {
        root: InodeId(7),
        home: Home(1),
        policy: Policy::new(4, 1, 2, 4).unwrap(),
        epoch: RealmEpoch(2),
        mounts: MountEpoch(3),
        policy_epoch: 4,
        trash_seconds: 604_800,
        believe: Believe::Members,
        parent: Some(RealmId(5)),
    };
    let principal = Principal {
        wrapping_key: [0x22; 32],
        rights: reader(Uid(1000), Gid(100)),
        label: "alice".to_owned(),
        sessions: 1,
        number: PrincipalNumber(2),
        expires: Some(Time(9)),
        stated: signed,
    };
    let secret = CloudSecretRow {
        bytes: vec![0x33; 80],
        signed,
    };
    let member = Member {
        epoch: RealmEpoch(1),
        role: MemberRole::Read,
        expires: Some(Time(9)),
        wrapped: vec![0x44; 80],
        signer: OWNER,
        signature: Signature([0x55; 64]),
    };
    let slice = Slice {
        object: ObjectId::default(),
        offset: 0,
        length: 4000,
        sealed_length: 4016,
        codec: Codec::NONE,
        keys: vec![
            SliceKey::Derived {
                realm: RealmId(1),
                epoch: RealmEpoch(2),
                salt: SliceSalt([0x66; 16]),
            },
            SliceKey::Wrapped {
                realm: RealmId(3),
                epoch: RealmEpoch(4),
                bytes: vec![0x77; 60],
            },
        ],
        references: 1,
    };
    let succession = Succession {
        volume: genesis().volume,
        number: 1,
        predecessor: ALICE,
        successor: genesis().principals.swap_remove(0),
        epoch: RealmEpoch(1),
    };
    let succeed = Succeed {
        signed: SignedSuccession {
            succession: succession.to_bytes(),
            signature: Signature([0x88; 64]),
        },
        member: member.clone(),
    };
    let query = Query {
        credentials: Credentials::root(),
        question: Question::CloudSecrets,
    };
    let secrets = QueryResult::CloudSecrets(vec![(CloudIndex(3), secret.clone())]);
    let mut fixtures = changes::fixtures();
    fixtures.extend(machines::fixtures());
    fixtures.extend(super::shares::fixtures());
    fixtures.extend([
        ("genesis-with-secrets", sign(&genesis())),
        ("row-realm", realm.to_bytes()),
        ("row-principal", principal.to_bytes()),
        ("row-cloud-secret", secret.to_bytes()),
        ("key-cloud-secret", key::cloud_secret(&OWNER, CloudIndex(3))),
        ("row-member-expires", member.to_bytes()),
        ("row-slice-shared", slice.to_bytes()),
        ("operation-succeed", Operation::Succeed(succeed).to_bytes()),
        ("query-cloud-secrets", query.to_bytes()),
        ("answer-cloud-secrets", Answer(Ok(secrets)).to_bytes()),
    ]);
    fixtures
}

#[test]
fn a_volume_of_another_format_is_refused_with_the_way_on() {
    let mut genesis = genesis();
    genesis.format = FORMAT - 1;
    let older = SignedGenesis::from_bytes(&sign(&genesis)).unwrap_err();
    assert_eq!(older, GenesisError::Older { format: FORMAT - 1 });
    let text = older.to_string();
    assert!(text.contains("copy its content out"), "{text}");
    genesis.format = FORMAT + 1;
    let newer = SignedGenesis::from_bytes(&sign(&genesis)).unwrap_err();
    assert!(newer.to_string().contains("upgrade it"), "{newer}");
}

#[test]
fn a_genesis_that_says_what_no_program_does_yet_is_refused() {
    type Change = fn(&mut Genesis);
    SignedGenesis::from_bytes(&sign(&genesis())).unwrap();
    let wrong: [Change; 14] = [
        |it| it.believe = Believe::Members,
        |it| it.principals[1].expires = Some(NEVER),
        |it| it.principals[1].label = "x".repeat(LABEL_BYTES_MAX + 1),
        |it| it.principals[1].rights.uids = Assertable::Only(vec![Uid(1); RIGHTS_LIST_MAX + 1]),
        |it| it.principals[1].rights.gids = Assertable::Only(vec![Gid(1); RIGHTS_LIST_MAX + 1]),
        |it| it.principals[0].cloud_secrets.swap(1, 2),
        |it| it.principals[0].cloud_secrets[1].cloud = CloudIndex(0),
        |it| it.principals[0].cloud_secrets[3].cloud = CloudIndex(4),
        |it| it.principals[0].cloud_secrets[0].bytes.clear(),
        |it| it.principals[0].cloud_secrets[0].bytes = vec![1; WRAPPED_KEY_BYTES_MAX + 1],
        |it| it.members[0].1.role = MemberRole::Write,
        |it| it.members[1].1.role = MemberRole::Write,
        |it| it.members[1].1.role = MemberRole::Administer,
        |it| it.members[1].1.expires = Some(NEVER),
    ];
    for (at, change) in wrong.into_iter().enumerate() {
        let mut genesis = genesis();
        change(&mut genesis);
        let refused = SignedGenesis::from_bytes(&sign(&genesis));
        assert!(matches!(refused, Err(GenesisError::Nonsense(_))), "{at}");
    }
}

#[test]
fn the_role_of_a_member_follows_from_its_rights() {
    let none = reader(Uid(1000), Gid(100));
    let with = |mount, reconcile, administer| Rights {
        mount,
        reconcile,
        administer,
        ..none.clone()
    };
    assert_eq!(with(false, false, false).role(), MemberRole::Read);
    assert_eq!(with(true, false, false).role(), MemberRole::Write);
    assert_eq!(with(false, true, false).role(), MemberRole::Write);
    assert_eq!(with(false, false, true).role(), MemberRole::Administer);
    assert_eq!(Rights::all().role(), MemberRole::Administer);
}

#[test]
fn a_directory_with_names_of_another_realm_is_not_searched() {
    for (realm, expected) in [
        (RealmId::ROOT, Error::NotFound),
        (RealmId(1), Error::CrossRealm),
    ] {
        let mut world = TestService::new();
        let owner = world.open(OWNER);
        let directory = world.make(&owner, InodeId::ROOT, "old", NewInode::Directory);
        let row_key = key::inode(directory);
        let mut row = Inode::from_bytes(&world.rows(&row_key)[0].1).unwrap();
        let InodeBody::Directory { generations, .. } = &mut row.node else {
            panic!("no directory");
        };
        generations.previous = Some(PreviousNames {
            realm,
            epoch: RealmEpoch(0),
        });
        world.put(&row_key, &row);
        let mut place = place(directory, "name");
        place.name.previous = Some(place.name.current.clone());
        let found = world.ask(&owner, Question::Lookup(place));
        assert_eq!(found, Err(expected));
    }
}

#[test]
fn a_slice_has_one_key_and_it_is_of_the_files_realm() {
    type Change = fn(&mut Vec<SliceKey>);
    let wrong: [(Change, Error); 5] = [
        (Vec::clear, Error::BadContent),
        (
            |keys| keys.push(keys[0].clone()),
            Error::TooMany { limit: 1 },
        ),
        (
            |keys| *realm_of(&mut keys[0]) = RealmId(1),
            Error::CrossRealm,
        ),
        (
            |keys| {
                keys[0] = SliceKey::Wrapped {
                    realm: RealmId(1),
                    epoch: RealmEpoch(0),
                    bytes: vec![1; 80],
                }
            },
            Error::CrossRealm,
        ),
        (
            |keys| {
                keys[0] = SliceKey::Wrapped {
                    realm: RealmId::ROOT,
                    epoch: RealmEpoch(0),
                    bytes: vec![1; WRAPPED_KEY_BYTES_MAX + 1],
                }
            },
            Error::BadContent,
        ),
    ];
    for (change, expected) in wrong {
        let mut world = TestService::new();
        let owner = world.open(OWNER);
        let inode = world.create(&owner, InodeId::ROOT, "file");
        let allocation = world.allocate(&owner, 8);
        let mut step = commit(inode, allocation, 0, &[(0, 10)]);
        change(&mut step.slices[0].keys);
        let refused = world.step(&owner, &Credentials::root(), Step::Commit(step));
        assert_eq!(refused.map(|_| ()), Err(expected));
    }
}

fn realm_of(key: &mut SliceKey) -> &mut RealmId {
    match key {
        SliceKey::Derived { realm, .. } | SliceKey::Wrapped { realm, .. } => realm,
    }
}

#[test]
fn the_trash_is_kept_as_long_as_the_genesis_says() {
    for seconds in [0, 1, 604_800, u64::MAX] {
        let mut genesis = genesis();
        genesis.trash_seconds = seconds;
        let mut world = TestService::of(&sign(&genesis));
        let owner = world.open(OWNER);
        let Ok(QueryResult::Realm { realm, .. }) =
            world.ask(&owner, Question::Realm(RealmId::ROOT))
        else {
            panic!("no realm");
        };
        assert_eq!(realm.trash_seconds, seconds);
        assert_eq!((realm.policy_epoch, realm.parent), (0, None));
        assert_eq!(realm.believe, Believe::Principal);
    }
}
