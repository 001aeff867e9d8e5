//! People who come and go: a workload of clients that admit, dismiss and leave out each other, and
//! a plain model of who is then told what.
//!
//! The first two principals are founders that administer. The others are guests, of which some may
//! administer too for a while. Between changes all clients probe: with an operation that needs a
//! writer, one for members, one for every principal, and questions of both kinds. Each answer
//! follows from the changes before it. So a principal that is answered after it was dismissed, or
//! left out, is found by the judge, and so is one that is refused for no reason. Writers share
//! something with each other and by links meanwhile.
//!
//! Keys of the simulator cannot sign. Each stands for a real one, which [`key_of`] derives from it.

use super::workload::{Call, Chance};
use crate::attributes::{Credentials, Timestamp};
use crate::genesis::Genesis;
use crate::identity::{CloudIndex, Gid, PrincipalId, RealmEpoch, RealmId, Uid, VolumeId};
use crate::operation::{BeginEpoch, Operation};
use crate::people::{AddedMachine, ChangePeople, PeopleChange, PeopleStep, SignedPeopleChange};
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
mod shares;

pub use model::PeopleModel;
use shares::ShareCalls;

/// The first principals, which the genesis states.
const FOUNDERS: usize = 2;
/// The label of each founder.
const FOUNDER: &str = "founder";
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
    let stated = founders.map(|key| Statement {
        label: FOUNDER.to_owned(),
        ..simulation::principal(key_of(key), Rights::all())
    });
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
    /// The further machines, each with its person, likewise.
    machines: BTreeMap<usize, usize>,
    /// The last change that was sent: it is sent again sometimes.
    sent: Option<Vec<u8>>,
    /// Makes each key epoch another one.
    drawn: u32,
    shares: ShareCalls,
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
            _ => chance(4) == 0,
        };
        if changes && self.keys.len() > FOUNDERS {
            return Call::Execute(self.change(client, chance));
        }
        if chance(3) == 0 {
            let person = self.any_one(chance);
            return self.shares.next(person, self.epoch, chance);
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
            false => Operation::ChangePeople(self.step((client, &key), chance)),
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

    /// The label of a principal that was not changed since it came.
    fn label(&self, index: usize) -> String {
        match (index < FOUNDERS, self.machines.get(&index)) {
            (true, _) => FOUNDER.to_owned(),
            (false, Some(person)) => format!("{}@{index}", self.label(*person)),
            (false, None) => format!("guest {index}"),
        }
    }

    /// A further machine of a client, seldom with rights that the client has not.
    fn machine(&self, client: usize, of: (usize, PrincipalId), chance: Chance<'_>) -> AddedMachine {
        let person = self.machines.get(&client).copied().unwrap_or(client);
        let known = self.known.get(&client).copied();
        let role = match chance(8) {
            0 => MemberRole::Administer,
            _ => known.unwrap_or(MemberRole::Read),
        };
        let (index, key) = of;
        AddedMachine {
            of: self.keys.get(person).map_or(key, key_of),
            statement: Statement {
                key,
                wrapping_key: [7; 32],
                label: format!("{}@{index}", self.label(person)),
                rights: rights_of(role),
                expires: None,
                cloud_secrets: secrets(),
            },
            credentials: Vec::new(),
        }
    }

    /// Who is dismissed: mostly a guest that has machines, because their machines go with them.
    fn leaving(&self, drawn: PrincipalId, chance: Chance<'_>) -> PrincipalId {
        let with_machines = self.machines.values().find(|it| **it >= FOUNDERS);
        let key = with_machines.and_then(|index| self.keys.get(*index));
        match key {
            Some(key) if chance(4) != 0 => key_of(key),
            _ => drawn,
        }
    }

    /// The admission of a guest in a role.
    fn admission(&self, index: usize, principal: PrincipalId, role: MemberRole) -> PeopleStep {
        PeopleStep::Admit(Statement {
            key: principal,
            wrapping_key: [7; 32],
            label: self.label(index),
            rights: rights_of(role),
            expires: None,
            cloud_secrets: secrets(),
        })
    }

    fn step(&self, (client, key): (usize, &PublicKey), chance: Chance<'_>) -> ChangePeople {
        let (index, principal) = self.any_one(chance);
        let role = usize::try_from(chance(3)).ok();
        let role = role.and_then(|role| ROLES.get(role).copied());
        let role = role.unwrap_or(MemberRole::Read);
        let rights = rights_of(role);
        let label = self.label(index);
        let administers = self.known.get(&client) == Some(&MemberRole::Administer);
        // Others may change their own machines alone, and try the rest sometimes.
        let drawn = match administers || chance(4) == 0 {
            true => chance(12),
            false => chance(2).saturating_add(8),
        };
        let is_known = self.known.contains_key(&index);
        let step = match (is_known, drawn) {
            (_, 0) => naming(label),
            // A key that was a principal's is no machine's later: every other guest seldom comes
            // in another way.
            (false, 2..=6) if !index.is_multiple_of(2) => naming(label),
            // A founder is never dismissed, so the machines of guests show more.
            (false, 8..=10) if client < FOUNDERS && !index.is_multiple_of(2) => naming(label),
            (false, 9..=10) if client < FOUNDERS => self.admission(index, principal, role),
            (false, 8..=10) | (true, 8) => {
                PeopleStep::AddMachine(self.machine(client, (index, principal), chance))
            }
            (true, 9) => PeopleStep::DropMachine { principal },
            (false, 1..=6) | (true, 1) => self.admission(index, principal, role),
            (true, 2..5) => PeopleStep::Regrant {
                principal,
                label,
                rights: rights.clone(),
                expires: None,
            },
            _ => PeopleStep::Dismiss {
                principal: self.leaving(principal, chance),
            },
        };
        let joins = match &step {
            PeopleStep::Admit(_) | PeopleStep::Regrant { .. } => Some(role),
            PeopleStep::AddMachine(added) => Some(added.statement.rights.role()),
            _ => None,
        };
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
            member: joins.map(|role| member(role, change.epoch, signer)),
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
        self.shares.learn(answer);
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
            PeopleStep::AddMachine(added) => {
                let role = added.statement.rights.role();
                self.known.insert(index, role);
                let mut keys = self.keys.iter();
                let person = keys.position(|key| key_of(key) == added.of);
                self.machines.extend(person.map(|person| (index, person)));
            }
            PeopleStep::Dismiss { .. } => {
                let of_it = |(_, person): &(&usize, &usize)| **person == index;
                let gone = self.machines.iter().filter(of_it);
                let mut gone: Vec<_> = gone.map(|(machine, _)| *machine).collect();
                gone.push(index);
                for index in gone {
                    self.known.remove(&index);
                    self.machines.remove(&index);
                }
            }
            PeopleStep::DropMachine { .. } | PeopleStep::NameGroup { .. } => {
                self.known.remove(&index);
                self.machines.remove(&index);
            }
            PeopleStep::GiveCredentials { .. } => {}
        }
    }
}

fn naming(name: String) -> PeopleStep {
    PeopleStep::NameGroup { gid: Gid(50), name }
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
    asking_as(Credentials::user(Uid(1000), Gid(100)), question)
}

fn asking_as_root(question: Question) -> Call {
    asking_as(Credentials::root(), question)
}

fn asking_as(credentials: Credentials, question: Question) -> Call {
    let query = Query {
        credentials,
        question,
    };
    Call::Query(query.to_bytes())
}
