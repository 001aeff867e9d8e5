//! A volume whose principals have keys that sign: two founders and one that is no administrator.

use crate::attributes::Credentials;
use crate::error::Error;
use crate::genesis::{Genesis, SignedGenesis};
use crate::identity::*;
use crate::operation::Operation;
use crate::people::{
    AddedMachine, ChangePeople, People, PeopleChange, PeopleStep, SignedPeopleChange,
};
use crate::query::Question;
use crate::reply::{Done, QueryResult};
use crate::row::*;
use crate::simulation::{ordinary, principal, reader, unsigned_genesis};
use crate::statement::{Statement, WrappedSecret};
use crate::tests::harness::TestService;
use ed25519_zebra::{SigningKey, VerificationKey};
use quorumfs_bft::identity::{ClusterId, PublicKey, Signature, Time};
use quorumfs_bft::service::Caller;

pub(in crate::tests) const VOLUME: ClusterId = ClusterId([9; 16]);
/// The seed of the volume root key.
pub(in crate::tests) const ROOT: u8 = 5;
/// The seeds of keys: the two founders that administer, one that does not, and guests.
pub(in crate::tests) const OWNER: u8 = 1;
pub(in crate::tests) const RECOVERY: u8 = 7;
pub(in crate::tests) const FOUNDER: u8 = 2;
pub(in crate::tests) const BOB: u8 = 20;
pub(in crate::tests) const EVE: u8 = 21;

/// The uid that a guest may act for, and that of a stranger.
pub(in crate::tests) const BOBS: (Uid, Gid) = (Uid(1003), Gid(1003));

pub(in crate::tests) fn key_of(seed: u8) -> SigningKey {
    SigningKey::from([seed; 32])
}

pub(in crate::tests) fn id(seed: u8) -> PublicKey {
    PublicKey(VerificationKey::from(&key_of(seed)).into())
}

/// Rights to read, to write and to administer, as one user.
pub(in crate::tests) fn rights_of(role: MemberRole) -> Rights {
    let (uid, gid) = BOBS;
    match role {
        MemberRole::Read => reader(uid, gid),
        MemberRole::Write => ordinary(uid, gid),
        MemberRole::Administer => Rights::all(),
    }
}

pub(in crate::tests) fn bob() -> Credentials {
    Credentials::user(BOBS.0, BOBS.1)
}

/// The statement of a guest, with a secret for each cloud.
pub(in crate::tests) fn statement(seed: u8, role: MemberRole) -> Statement {
    let wrapped = |cloud| WrappedSecret {
        cloud: CloudIndex(cloud),
        bytes: vec![seed, cloud],
    };
    Statement {
        key: id(seed),
        wrapping_key: [seed; 32],
        label: format!("guest {seed}"),
        rights: rights_of(role),
        expires: None,
        cloud_secrets: (0..4).map(wrapped).collect(),
    }
}

pub(in crate::tests) fn admitting(seed: u8, role: MemberRole) -> PeopleStep {
    PeopleStep::Admit(statement(seed, role))
}

/// A further machine of Bob, who writes.
pub(in crate::tests) fn machine_of_bob(seed: u8) -> PeopleStep {
    PeopleStep::AddMachine(added_machine((BOB, MemberRole::Write), seed))
}

/// A further machine of a guest.
pub(in crate::tests) fn added_machine((of, role): (u8, MemberRole), seed: u8) -> AddedMachine {
    AddedMachine {
        of: id(of),
        statement: Statement {
            label: format!("guest {of}@machine-{seed}"),
            ..statement(seed, role)
        },
        credentials: vec![(CloudIndex(1), vec![seed; 20])],
    }
}

pub(in crate::tests) fn granting(seed: u8, role: MemberRole, expires: Option<Time>) -> PeopleStep {
    PeopleStep::Regrant {
        principal: id(seed),
        label: "again".to_owned(),
        rights: rights_of(role),
        expires,
    }
}

pub(in crate::tests) fn dismissing(seed: u8) -> PeopleStep {
    PeopleStep::Dismiss {
        principal: id(seed),
    }
}

pub(in crate::tests) fn naming(gid: u32, name: &str) -> PeopleStep {
    PeopleStep::NameGroup {
        gid: Gid(gid),
        name: name.to_owned(),
    }
}

/// The membership that a step needs, in a key epoch.
pub(in crate::tests) fn member_for(step: &PeopleStep, epoch: RealmEpoch) -> Option<Member> {
    let rights = match step {
        PeopleStep::Admit(statement) => &statement.rights,
        PeopleStep::Regrant { rights, .. } => rights,
        PeopleStep::AddMachine(added) => &added.statement.rights,
        PeopleStep::Dismiss { .. }
        | PeopleStep::DropMachine { .. }
        | PeopleStep::NameGroup { .. }
        | PeopleStep::GiveCredentials { .. } => return None,
    };
    Some(Member {
        epoch,
        role: rights.role(),
        expires: None,
        wrapped: vec![6; 80],
        signer: id(OWNER),
        signature: Signature([4; 64]),
    })
}

pub(in crate::tests) fn signed_by(seed: u8, change: &PeopleChange) -> ChangePeople {
    let bytes = change.to_bytes();
    let signature = key_of(seed).sign(&PeopleChange::signed_bytes(&bytes));
    ChangePeople {
        member: member_for(&change.step, change.epoch),
        signed: SignedPeopleChange {
            change: bytes,
            signed: SignedBy {
                signer: id(seed),
                signature: Signature(signature.into()),
            },
        },
    }
}

/// The service, and a session of the owner.
pub(in crate::tests) struct PeopleWorld {
    pub(in crate::tests) service: TestService,
    pub(in crate::tests) owner: Caller,
}

impl PeopleWorld {
    pub(in crate::tests) fn new() -> Self {
        let principals = vec![
            principal(id(OWNER), Rights::all()),
            principal(id(RECOVERY), Rights::all()),
            principal(id(FOUNDER), ordinary(Uid(1000), Gid(100))),
        ];
        let genesis = unsigned_genesis(principals, (1, 1, 4)).unwrap();
        let genesis = genesis.to_bytes();
        let signature = key_of(ROOT).sign(&Genesis::signed_bytes(&genesis));
        let signed = SignedGenesis {
            genesis,
            root_key: id(ROOT),
            signature: Signature(signature.into()),
        };
        let mut service = TestService::of(&signed.to_bytes());
        let owner = service.open(id(OWNER));
        Self { service, owner }
    }

    /// The key epoch.
    pub(in crate::tests) fn epoch(&self) -> RealmEpoch {
        let row = &self.service.rows(&key::realm(RealmId::ROOT))[0];
        Realm::from_bytes(&row.1).unwrap().epoch
    }

    /// The change of the next number.
    pub(in crate::tests) fn next(&self, step: PeopleStep) -> PeopleChange {
        PeopleChange {
            volume: VOLUME,
            number: self.service.rows(&key::all_people_changes()).len() as u32 + 1,
            epoch: self.epoch(),
            step,
        }
    }

    pub(in crate::tests) fn order_as(
        &mut self,
        caller: &Caller,
        ordered: &ChangePeople,
    ) -> Result<u32, Error> {
        let operation = Operation::ChangePeople(ordered.clone());
        match self.service.run(caller, &operation) {
            Ok(Done::PeopleChanged { number }) => Ok(number),
            Ok(other) => panic!("{other:?}"),
            Err(refusal) => Err(refusal.error),
        }
    }

    pub(in crate::tests) fn order(&mut self, ordered: &ChangePeople) -> Result<u32, Error> {
        let owner = self.owner;
        self.order_as(&owner, ordered)
    }

    /// Orders the next change, signed by the owner.
    pub(in crate::tests) fn change(&mut self, step: PeopleStep) -> Result<u32, Error> {
        let change = self.next(step);
        self.order(&signed_by(OWNER, &change))
    }

    /// All changes, page by page, and what they amount to.
    pub(in crate::tests) fn known(&mut self) -> (Vec<SignedPeopleChange>, People) {
        let (mut all, mut people) = (Vec::new(), People::default());
        loop {
            let after = people.changes;
            let answer = self.service.ask(&self.owner, Question::People { after });
            let Ok(QueryResult::People { changes, last }) = answer else {
                panic!("{answer:?}");
            };
            for signed in changes {
                people.apply(&signed.verified(VOLUME).unwrap()).unwrap();
                all.push(signed);
            }
            if people.changes == last {
                return (all, people);
            }
            assert!(people.changes > after, "a page without a change");
        }
    }

    /// The row of a principal.
    pub(in crate::tests) fn row(&self, seed: u8) -> Option<Principal> {
        let rows = self.service.rows(&key::principal(&id(seed)));
        let row = rows.first()?;
        Some(Principal::from_bytes(&row.1).unwrap())
    }

    /// The rows of a principal in every table but that of numbers.
    pub(in crate::tests) fn rows_of(&self, seed: u8) -> Vec<Vec<u8>> {
        let key = id(seed).0;
        let names = |row: &[u8]| row.windows(32).any(|part| part == key);
        let rows = self.service.rows(b"").into_iter();
        rows.map(|(row_key, _)| row_key)
            .filter(|row_key| names(row_key))
            .collect()
    }
}
