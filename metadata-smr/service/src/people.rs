//! People: principals that administrators admit and dismiss while the volume is in use.
//!
//! The volume root states the first principals, in the genesis, and their successors. All others
//! an administrator states, under its own signature. Each *change* has the next number; servers
//! execute it and keep it, and clients verify all of them from the genesis on. So servers can
//! neither invent a principal nor give one more rights than an administrator did.
//!
//! ```text
//!                 Admit                Regrant: label, rights, expiry
//!   any key ───────────────► principal ─────────┐
//!      ▲                      │   │ ▲◄──────────┘
//!      │       Dismiss, or    │   │ └ numbers, sessions and keys stay
//!      └─ former ◄────────────┘   └─► a member of the present key epoch from its admission on;
//!         its time is over            BeginEpoch leaves out whom it does not name
//! ```
//!
//! A member may have *further machines*: principals that it states itself, under its own
//! signature, each with a key of its own, its rights and its end, and with its label, an `@` and
//! the machine's name. All keys of a person may add and drop each other; none can do more than the
//! person, and a dismissed person's machines go with it. The person is known by its first key, even
//! after that is dropped: a dismissal by that key sends away what is left of the person.
//!
//! A principal that goes loses its sessions at once: every operation and question is refused, and
//! its mounts are fenced, so that others need not wait. It keeps what it has read and the keys that
//! it had; the next key epoch is begun without it. Groups have names here too, since people know
//! them by names: clients read those from the changes, and servers do not use them.
//!
//! | Module | Content |
//! |---|---|
//! | this | changes, and what they amount to |
//! | `ordered` | the operation |
//! | `machines` | further machines of members |
//! | `expire` | what goes by itself |
//!
//! Invariants:
//! * **Only an administrator changes the principals**, by its own signature: the servers check that
//!   the sender has the right now and is the signer, and clients check the signature too. A member
//!   changes its own machines, and no others.
//! * **Changes follow each other one by one**, so that of two concurrent ones only one succeeds,
//!   and one that was signed for an earlier state, or for another volume, is refused.
//! * **What the root states the root alone changes.** A change names only principals that
//!   administrators have stated, and never its signer. So a thief of an administrator's key cannot
//!   lock the owner out, and the number of administrators does not fall to zero.
//! * **A key that a succession has replaced does not return.** A key that was dismissed can: its
//!   holder is invited again. It gets another number.
//! * A volume has no more principals than a realm can have members.
//! * An expiry is exact: a batch whose time has come to it dismisses the principal before its first
//!   request.
//!
//! Failure modes: *the answer is lost*. The same bytes again are the same success. *Another key
//! epoch was begun in the meantime*: `WrongEpoch`, and the change is signed anew. *Servers hide a
//! change*. A client then goes on with the principals that it knows; what the servers refuse does
//! not depend on what clients know. *A volume is recovered from a copy that is older than a
//! change*: the change is undone, and has to be made again. *All servers lie about the time*: a
//! principal that expires stays one for them, and clients know the time from the signed statement.

use crate::codec;
use crate::error::Error;
use crate::identity::{CloudIndex, Gid, PrincipalId, RealmEpoch, VolumeId};
use crate::limits::{
    CLOUDS_MAX, LABEL_BYTES_MAX, PEOPLE_CHANGE_BYTES_MAX, PEOPLE_PAGE_MAX,
    SEALED_CREDENTIALS_BYTES_MAX,
};
use crate::reply::QueryResult;
use crate::row::{Member, PeopleChanges, Rights, Row, SignedBy, key};
use crate::rows::{Outcome, Rows, decode};
use crate::statement::{Statement, check_bounds};
use borsh::{BorshDeserialize, BorshSerialize};
use ed25519_zebra::VerificationKey;
use quorumfs_bft::identity::{Signature, Time};
use std::collections::BTreeMap;

mod expire;
mod machines;
mod ordered;

pub(crate) use expire::{next_deadline, tick};
pub use machines::{AddedMachine, USELESS_WRAPPING_KEYS, is_machine_name, label_of_machine};
pub(crate) use machines::{acts_for, is_of_a_machine, person_number, sessions_of_person};
pub(crate) use ordered::change_people;

/// The context that an administrator signs under, before the change's bytes.
pub const SIGNING_CONTEXT: &[u8] = b"quorumfs 2026 people change v1\0";

/// A change of the principals.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct PeopleChange {
    /// The volume.
    pub volume: VolumeId,
    /// Its number among the volume's changes, from 1 on.
    pub number: u32,
    /// The root realm's key epoch, by which clients know whose signatures count.
    pub epoch: RealmEpoch,
    /// What changes.
    pub step: PeopleStep,
}

/// What changes.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum PeopleStep {
    /// A key becomes a principal's.
    Admit(Statement),
    /// A principal has another label, other rights and another end from now on.
    Regrant {
        /// The principal.
        principal: PrincipalId,
        /// Its name for people.
        label: String,
        /// Its rights.
        rights: Rights,
        /// When it ceases to be a principal, by the agreed time.
        expires: Option<Time>,
    },
    /// A key is no principal's any more.
    Dismiss {
        /// The principal.
        principal: PrincipalId,
    },
    /// A group has a name for people.
    NameGroup {
        /// The group.
        gid: Gid,
        /// Its name; empty: it has none any more.
        name: String,
    },
    /// A principal has these credentials of a cloud from now on.
    GiveCredentials {
        /// The principal.
        principal: PrincipalId,
        /// The cloud.
        cloud: CloudIndex,
        /// The credentials, sealed for it: opaque to the servers. Empty: it has none any more.
        sealed: Vec<u8>,
    },
    /// A further key of the signer.
    AddMachine(AddedMachine),
    /// A key is no principal's any more; its person's other keys are. An administrator may sign it,
    /// or another key of the same person.
    DropMachine {
        /// The principal.
        principal: PrincipalId,
    },
}

/// A change with an administrator's signature over it.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct SignedPeopleChange {
    /// [`PeopleChange::to_bytes`], as signed.
    pub change: Vec<u8>,
    /// The administrator and its signature over [`PeopleChange::signed_bytes`].
    pub signed: SignedBy,
}

/// The ordered operation.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct ChangePeople {
    /// The change.
    pub signed: SignedPeopleChange,
    /// The membership in the root realm's current key epoch of a principal that is admitted or has
    /// other rights; `None` with any other change. Members verify its signature.
    pub member: Option<Member>,
}

/// What all changes amount to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct People {
    /// The principals that administrators have stated, as they are now. Some may have expired.
    pub stated: BTreeMap<PrincipalId, Statement>,
    /// The names of groups.
    pub groups: BTreeMap<Gid, String>,
    /// The credentials of clouds that principals were given, sealed for each.
    pub credentials: BTreeMap<(PrincipalId, CloudIndex), Vec<u8>>,
    /// The further machines of persons, each with its person's first key.
    pub machines: BTreeMap<PrincipalId, PrincipalId>,
    /// The number of changes so far.
    pub changes: u32,
    /// The key epoch of the last change.
    pub epoch: RealmEpoch,
}

/// Why a change contradicts those before it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PeopleError {
    /// It does not follow the last one.
    #[error("change {found} of the principals does not follow change {last}")]
    NotNext {
        /// Its number.
        found: u32,
        /// The last one's number.
        last: u32,
    },
    /// It exceeds a bound, or contradicts itself.
    #[error("{0}")]
    Unsound(&'static str),
    /// The key is a principal's already.
    #[error("the key {0} is a principal's already")]
    Known(PrincipalId),
    /// No administrator has stated this principal.
    #[error("the key {0} is of no principal that an administrator has stated")]
    Unknown(PrincipalId),
}

impl Row for SignedPeopleChange {
    const NAME: &'static str = "change of the principals";
}

impl PeopleChange {
    /// The change's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        codec::encode(self)
    }

    /// The bytes that an administrator signs: [`SIGNING_CONTEXT`], then the change's bytes.
    #[must_use]
    pub fn signed_bytes(change: &[u8]) -> Vec<u8> {
        [SIGNING_CONTEXT, change].concat()
    }
}

impl PeopleStep {
    /// Checks its bounds, for a volume of so many clouds.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self, clouds: usize) -> Result<(), &'static str> {
        let labelled = |label: &str| match label {
            "" => Err("a principal has no label"),
            _ => Ok(()),
        };
        match self {
            Self::Admit(statement) => {
                labelled(&statement.label)?;
                statement.check(clouds)
            }
            Self::Regrant { label, rights, .. } => {
                labelled(label)?;
                check_bounds(label, rights)
            }
            Self::Dismiss { .. } => Ok(()),
            Self::NameGroup { name, .. } if name.len() > LABEL_BYTES_MAX => {
                Err("a group's name is too long")
            }
            Self::NameGroup { .. } => Ok(()),
            Self::GiveCredentials { sealed, .. } if sealed.len() > SEALED_CREDENTIALS_BYTES_MAX => {
                Err("the credentials of a cloud are too long")
            }
            Self::GiveCredentials { cloud, .. } if usize::from(cloud.0) >= clouds => {
                Err("there is no such cloud")
            }
            Self::GiveCredentials { .. } | Self::DropMachine { .. } => Ok(()),
            Self::AddMachine(added) => added.check(clouds),
        }
    }

    /// Whether a member may sign it, if it is about the member's own machines.
    #[must_use]
    pub const fn is_of_machines(&self) -> bool {
        matches!(self, Self::AddMachine(_) | Self::DropMachine { .. })
    }

    /// The principal that it is about.
    #[must_use]
    pub const fn principal(&self) -> Option<&PrincipalId> {
        match self {
            Self::Admit(statement) => Some(&statement.key),
            Self::AddMachine(added) => Some(&added.statement.key),
            Self::Regrant { principal, .. }
            | Self::Dismiss { principal }
            | Self::DropMachine { principal }
            | Self::GiveCredentials { principal, .. } => Some(principal),
            Self::NameGroup { .. } => None,
        }
    }
}

impl SignedPeopleChange {
    /// The change, without a look at its signature.
    #[must_use]
    pub fn decoded(&self) -> Option<PeopleChange> {
        codec::decode(&self.change, PEOPLE_CHANGE_BYTES_MAX).ok()
    }

    /// The signed change, if the signer that it names signed it for this volume. Whether that
    /// signer may is another question.
    #[must_use]
    pub fn verified(&self, volume: VolumeId) -> Option<PeopleChange> {
        let change = self.decoded()?;
        let key = VerificationKey::try_from(self.signed.signer.0).ok()?;
        let message = PeopleChange::signed_bytes(&self.change);
        let Signature(signature) = self.signed.signature;
        let signature = ed25519_zebra::Signature::from(signature);
        let signed = key.verify(&signature, &message).is_ok();
        (signed && change.volume == volume).then_some(change)
    }
}

impl People {
    /// Applies the next change, whose signature is verified.
    ///
    /// A principal whose time is over leaves no change behind. So a key whose principal expires can
    /// be admitted again, and which of those here have expired is for [`now`](Self::now) to say.
    ///
    /// # Errors
    /// If it contradicts those before it; nothing has changed then.
    pub fn apply(&mut self, change: &PeopleChange) -> Result<(), PeopleError> {
        let (found, last) = (change.number, self.changes);
        if last.checked_add(1) != Some(found) {
            return Err(PeopleError::NotNext { found, last });
        }
        change
            .step
            .check(CLOUDS_MAX)
            .map_err(PeopleError::Unsound)?;
        match &change.step {
            PeopleStep::Admit(statement) => {
                self.state(statement)?;
                self.machines.remove(&statement.key);
            }
            PeopleStep::Regrant {
                principal,
                label,
                rights,
                expires,
            } => {
                let known = self.stated.get_mut(principal);
                let known = known.ok_or(PeopleError::Unknown(*principal))?;
                known.label.clone_from(label);
                known.rights.clone_from(rights);
                known.expires = *expires;
            }
            PeopleStep::Dismiss { principal } => {
                let own = self.machines.iter().filter(|(_, of)| *of == principal);
                let own: Vec<_> = own.map(|(machine, _)| *machine).collect();
                // Its first key may be gone already.
                if own.is_empty() || self.stated.contains_key(principal) {
                    self.forget(principal)?;
                }
                for machine in own {
                    self.forget(&machine)?;
                }
            }
            PeopleStep::DropMachine { principal } => self.forget(principal)?,
            PeopleStep::AddMachine(added) => {
                let key = added.statement.key;
                self.state(&added.statement)?;
                self.machines.insert(key, added.of);
                for (cloud, sealed) in &added.credentials {
                    self.credentials.insert((key, *cloud), sealed.clone());
                }
            }
            PeopleStep::NameGroup { gid, name } if name.is_empty() => {
                self.groups.remove(gid);
            }
            PeopleStep::NameGroup { gid, name } => {
                self.groups.insert(*gid, name.clone());
            }
            PeopleStep::GiveCredentials {
                principal,
                cloud,
                sealed,
            } => {
                let known = self.stated.contains_key(principal);
                known
                    .then_some(())
                    .ok_or(PeopleError::Unknown(*principal))?;
                match sealed.is_empty() {
                    true => self.credentials.remove(&(*principal, *cloud)),
                    false => self
                        .credentials
                        .insert((*principal, *cloud), sealed.clone()),
                };
            }
        }
        self.changes = change.number;
        self.epoch = change.epoch;
        Ok(())
    }

    fn state(&mut self, statement: &Statement) -> Result<(), PeopleError> {
        let known = self.stated.get(&statement.key);
        if known.is_some_and(|known| known.expires.is_none()) {
            return Err(PeopleError::Known(statement.key));
        }
        self.stated.insert(statement.key, statement.clone());
        Ok(())
    }

    fn forget(&mut self, principal: &PrincipalId) -> Result<(), PeopleError> {
        let gone = self.stated.remove(principal);
        gone.ok_or(PeopleError::Unknown(*principal))?;
        self.credentials.retain(|(of, _), _| of != principal);
        self.machines.remove(principal);
        Ok(())
    }

    /// The first key of a principal's person: its own, unless it is a further machine.
    #[must_use]
    pub fn person(&self, principal: &PrincipalId) -> PrincipalId {
        self.machines.get(principal).copied().unwrap_or(*principal)
    }

    /// The principals that administrators have stated and that have not expired at a time.
    pub fn now(&self, time: Time) -> impl Iterator<Item = &Statement> {
        let lives = move |it: &&Statement| it.expires.is_none_or(|at| at > time);
        self.stated.values().filter(lives)
    }
}

/// The number of changes so far.
fn changes(rows: &impl Rows) -> Outcome<Option<PeopleChanges>> {
    rows.find(&key::people_changes())
}

/// A page of the changes behind one.
pub(crate) fn answer(rows: &impl Rows, after: u32) -> Outcome<QueryResult> {
    // Each change writes this row, so it covers the others. If there is none there never was one.
    let last = changes(rows)?.unwrap_or_default().last;
    let prefix = key::all_people_changes();
    let from = key::people_change(after.saturating_add(1));
    let mut changes = Vec::new();
    for (row_key, bytes) in rows.scan(&prefix, &from, PEOPLE_PAGE_MAX)? {
        changes.push(decode(&row_key, &bytes)?);
    }
    Ok(QueryResult::People { changes, last })
}

/// What is wrong with a change that is not to be repeated as it is.
const BAD: Error = Error::BadPeopleChange;
