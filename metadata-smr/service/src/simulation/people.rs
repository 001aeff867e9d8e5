//! People who come and go: a workload of clients that admit, dismiss and leave out each other, and
//! a plain model of who is then told what.
//!
//! The first two principals are founders that administer. The others are guests, of which some may
//! administer too for a while. Between changes all clients probe: with an operation that needs a
//! writer, one for members, one for every principal, and questions of both kinds. Each answer
//! follows from the changes before it, so a principal that is answered after it was dismissed, or
//! left out, is found by the judge, and so is one that is refused for no reason.
//!
//! Keys of the simulator cannot sign. Each stands for a real one, which [`key_of`] derives from it.

use super::workload::{Call, Chance};
use crate::attributes::{Credentials, Timestamp};
use crate::genesis::Genesis;
use crate::identity::{CloudIndex, Gid, PrincipalId, RealmEpoch, RealmId, Uid, VolumeId};
use crate::operation::{BeginEpoch, Operation};
use crate::people::{ChangePeople, PeopleChange, PeopleStep, SignedPeopleChange};
use crate::placement::PolicyError;
use crate::query::{Query, Question};
use crate::reply::{Answer, Done, QueryResult, Response};
use crate::row::{Assertable, Epoch, Job, Lock, Member, MemberRole, Rights, SignedBy};
use crate::statement::{Statement, WrappedSecret};
use crate::{error::Error, simulation};
use ed25519_zebra::{SigningKey, VerificationKey};
use quorumfs_bft::identity::{ClusterId, PublicKey, Signature, Time};
use std::collections::BTreeMap;

mod model;

pub use model::PeopleModel;

/// The first principals, which the genesis states.
const FOUNDERS: usize = 2;
const VOLUME: VolumeId = ClusterId([9; 16]);
const ROLES: [MemberRole; 3] = [MemberRole::Read, MemberRole::Write, MemberRole::Administer];

fn signing_key(key: &PublicKey) -> SigningKey {
    SigningKey::from(key.0)
}

/// The real key of a simulated one.
#[must_use]
pub fn key_of(key: &PublicKey) -> PrincipalId {
    PublicKey(VerificationKey::from(&signing_key(key)).into())
}

/// Rights to act for every user in a role.
fn rights_of(role: MemberRole) -> Rights {
    Rights {
        uids: Assertable::Any,
        gids: Assertable::Any,
        mount: role != MemberRole::Read,
        reconcile: role == MemberRole::Administer,
        administer: role == MemberRole::Administer,
    }
}

fn member(role: MemberRole, epoch: RealmEpoch, signer: PrincipalId) -> Member {
    Member {
        epoch,
        role,
        expires: None,
        wrapped: b"wrapped".to_vec(),
        signer,
        signature: Signature([3; 64]),
    }
}

/// A genesis with the founders alone.
///
/// # Errors
/// Never, unless the policies of this crate change.
pub fn genesis(keys: &[PublicKey], servers: (u16, u16, u16)) -> Result<Genesis, PolicyError> {
    let founders = keys.iter().take(FOUNDERS);
    let stated = founders.map(|key| simulation::principal(key_of(key), Rights::all()));
    simulation::unsigned_genesis(stated.collect(), servers)
}

/// What the clients do.
#[derive(Clone, Debug, Default)]
pub struct PeopleCalls {
    keys: Vec<PublicKey>,
    /// The number of the last change, as the clients have heard.
    last: u32,
    /// The key epoch, likewise.
    epoch: u32,
    /// The principals and their roles, likewise.
    known: BTreeMap<usize, MemberRole>,
    /// The last change that was sent: it is sent again sometimes.
    sent: Option<Vec<u8>>,
    /// Makes each key epoch another one.
    drawn: u32,
}

impl PeopleCalls {
    /// The calls of clients with these keys, in their order.
    #[must_use]
    pub fn new(keys: &[PublicKey]) -> Self {
        let founders = 0..keys.len().min(FOUNDERS);
        Self {
            keys: keys.to_vec(),
            known: founders.map(|it| (it, MemberRole::Administer)).collect(),
            ..Self::default()
        }
    }

    /// The next call of a client.
    pub fn next(&mut self, client: usize, chance: Chance<'_>) -> Call {
        let role = self.known.get(&client);
        let changes = match role {
            Some(MemberRole::Administer) => chance(2) == 0,
            _ => chance(12) == 0,
        };
        if changes && self.keys.len() > FOUNDERS {
            return Call::Execute(self.change(client, chance));
        }
        match chance(8) {
            0 => Call::Execute(confirming().to_bytes()),
            1 => Call::Execute(doing_nothing().to_bytes()),
            2 => {
                let job = Job::Collection;
                Call::Execute(Operation::ReleaseJob { job }.to_bytes())
            }
            3 => asking(Question::WhoAmI),
            4 => asking(Question::Members(RealmId::ROOT)),
            5 => {
                let after = u32::try_from(chance(u64::from(self.last) + 2)).unwrap_or(0);
                asking(Question::People { after })
            }
            _ => asking(Question::Usage(RealmId::ROOT)),
        }
    }

    fn change(&mut self, client: usize, chance: Chance<'_>) -> Vec<u8> {
        if let Some(sent) = self.sent.clone().filter(|_| chance(12) == 0) {
            return sent;
        }
        let Some(key) = self.keys.get(client).copied() else {
            return doing_nothing().to_bytes();
        };
        let begins = chance(5) == 0;
        let operation = match begins {
            true => Operation::BeginEpoch(self.epoch(&key, chance)),
            false => Operation::ChangePeople(self.step(&key, chance)),
        };
        let bytes = operation.to_bytes();
        // An epoch's repetition is a success only while no member's row was changed since.
        self.sent = (!begins).then(|| bytes.clone());
        bytes
    }

    /// Some principal, seldom a founder.
    fn any_one(&self, chance: Chance<'_>) -> (usize, PrincipalId) {
        let guests = self.keys.len().saturating_sub(FOUNDERS) as u64;
        let index = match chance(10) {
            0 => chance(FOUNDERS as u64),
            _ => (FOUNDERS as u64).saturating_add(chance(guests)),
        };
        let index = usize::try_from(index).unwrap_or(0);
        let key = self.keys.get(index).map_or(PublicKey([0; 32]), key_of);
        (index, key)
    }

    fn step(&self, key: &PublicKey, chance: Chance<'_>) -> ChangePeople {
        let (index, principal) = self.any_one(chance);
        let role = usize::try_from(chance(3)).ok();
        let role = role.and_then(|role| ROLES.get(role).copied());
        let role = role.unwrap_or(MemberRole::Read);
        let rights = rights_of(role);
        let label = format!("guest {index}");
        let (is_known, drawn) = (self.known.contains_key(&index), chance(8));
        let step = match (is_known, drawn) {
            (_, 0) => PeopleStep::NameGroup {
                gid: Gid(50),
                name: label,
            },
            (false, 1..7) | (true, 1) => PeopleStep::Admit(Statement {
                key: principal,
                wrapping_key: [7; 32],
                label,
                rights: rights.clone(),
                expires: None,
                cloud_secrets: secrets(),
            }),
            (true, 2..5) => PeopleStep::Regrant {
                principal,
                label,
                rights: rights.clone(),
                expires: None,
            },
            _ => PeopleStep::Dismiss { principal },
        };
        let joins = matches!(step, PeopleStep::Admit(_) | PeopleStep::Regrant { .. });
        let late = chance(16) == 0;
        let change = PeopleChange {
            volume: VOLUME,
            number: self.last.saturating_add(u32::from(!late)),
            epoch: RealmEpoch(self.epoch),
            step,
        };
        let signer = key_of(key);
        let bytes = change.to_bytes();
        let message = PeopleChange::signed_bytes(&bytes);
        let mut signature: [u8; 64] = signing_key(key).sign(&message).into();
        if chance(20) == 0 {
            signature[0] ^= 1;
        }
        ChangePeople {
            member: joins.then(|| member(role, change.epoch, signer)),
            signed: SignedPeopleChange {
                change: bytes,
                signed: SignedBy {
                    signer,
                    signature: Signature(signature),
                },
            },
        }
    }

    /// A key epoch without some of the guests.
    fn epoch(&mut self, key: &PublicKey, chance: Chance<'_>) -> BeginEpoch {
        let number = RealmEpoch(self.epoch.saturating_add(1));
        let signer = key_of(key);
        let mut members = Vec::new();
        for (index, role) in &self.known {
            let stays = *role == MemberRole::Administer || chance(2) == 0;
            if let Some(key) = self.keys.get(*index).filter(|_| stays) {
                members.push((key_of(key), member(*role, number, signer)));
            }
        }
        self.drawn = self.drawn.saturating_add(1);
        BeginEpoch {
            realm: RealmId::ROOT,
            number,
            epoch: Epoch {
                begun: Time(u64::from(self.drawn)),
                lock: Lock::Members,
                previous: vec![7; 48],
                shares: None,
            },
            members,
        }
    }

    /// Learns from an answer.
    pub fn learn(&mut self, call: &[u8], answer: &[u8]) {
        if let Ok(Answer(Ok(QueryResult::People { last, .. }))) = Answer::from_bytes(answer)
            && Query::from_bytes(call).is_ok()
        {
            self.last = self.last.max(last);
            return;
        }
        let Ok(Response(response)) = Response::from_bytes(answer) else {
            return;
        };
        match (Operation::from_bytes(call), response) {
            (Ok(Operation::ChangePeople(ordered)), Ok(Done::PeopleChanged { number })) => {
                self.last = self.last.max(number);
                if let Some(change) = ordered.signed.decoded() {
                    self.know(&change.step);
                }
            }
            (Ok(Operation::BeginEpoch(begin)), Ok(_)) => {
                self.epoch = self.epoch.max(begin.number.0);
            }
            (_, Err(refusal)) => {
                if let Error::WrongEpoch { current } = refusal.error {
                    self.epoch = self.epoch.max(current.0);
                }
            }
            _ => {}
        }
    }

    fn know(&mut self, step: &PeopleStep) {
        let index = step.principal().and_then(|principal| {
            let mut keys = self.keys.iter();
            keys.position(|key| key_of(key) == *principal)
        });
        let Some(index) = index else {
            return;
        };
        match step {
            PeopleStep::Admit(Statement { rights, .. }) | PeopleStep::Regrant { rights, .. } => {
                self.known.insert(index, rights.role());
            }
            PeopleStep::Dismiss { .. } | PeopleStep::NameGroup { .. } => {
                self.known.remove(&index);
            }
            PeopleStep::GiveCredentials { .. } => {}
        }
    }
}

/// A wrapped secret for each cloud of the genesis.
fn secrets() -> Vec<WrappedSecret> {
    let wrapped = |cloud| WrappedSecret {
        cloud: CloudIndex(cloud),
        bytes: vec![8],
    };
    (0..4).map(wrapped).collect()
}

/// An operation that needs a writer, and changes nothing.
fn confirming() -> Operation {
    Operation::ConfirmPlaced {
        shards: Vec::new(),
        checked: Vec::new(),
    }
}

/// An operation for members, which changes nothing.
fn doing_nothing() -> Operation {
    simulation::compound(Credentials::root(), Timestamp::default(), Vec::new())
}

fn asking(question: Question) -> Call {
    let query = Query {
        credentials: Credentials::user(Uid(1000), Gid(100)),
        question,
    };
    Call::Query(query.to_bytes())
}
