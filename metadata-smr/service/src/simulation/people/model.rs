//! Who is a principal, who is a member, and what each is answered: written from the documentation,
//! and not from the service.

use super::{FOUNDERS, VOLUME, key_of};
use crate::error::{Error, FailedAt, OperationError};
use crate::identity::{PrincipalId, RealmEpoch};
use crate::limits::PEOPLE_PAGE_MAX;
use crate::operation::{BeginEpoch, Operation};
use crate::people::{ChangePeople, PeopleStep, SignedPeopleChange};
use crate::query::{Query, Question};
use crate::reply::{Answer, Done, QueryResult, Response};
use crate::row::{MemberRole, Row};
use quorumfs_bft::identity::PublicKey;
use std::collections::{BTreeMap, BTreeSet};

/// A principal's role, and whether an administrator has stated it.
type Standing = (MemberRole, bool);

/// The principals of a volume and its realm's members.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct PeopleModel {
    principals: BTreeMap<PrincipalId, Standing>,
    members: BTreeSet<PrincipalId>,
    epoch: u32,
    /// The bytes of each change and its signature, in order.
    changes: Vec<Vec<u8>>,
}

impl PeopleModel {
    /// The founders alone.
    #[must_use]
    pub fn new(keys: &[PublicKey]) -> Self {
        let founders: Vec<_> = keys.iter().take(FOUNDERS).map(key_of).collect();
        let standing = (MemberRole::Administer, false);
        Self {
            principals: founders.iter().map(|key| (*key, standing)).collect(),
            members: founders.into_iter().collect(),
            ..Self::default()
        }
    }

    /// The state after an operation of a principal; `None` if the answer is not possible. Without
    /// an answer it was executed, and its answer lost.
    #[must_use]
    pub fn after(
        &self,
        principal: PrincipalId,
        operation: &[u8],
        answer: Option<&[u8]>,
    ) -> Option<Self> {
        let mut after = self.clone();
        let operation = Operation::from_bytes(operation).ok()?;
        let expected = after.execute(principal, &operation);
        let expected = expected.map_err(|error| OperationError {
            at: FailedAt::Operation,
            error,
        });
        let is_right = match answer {
            Some(answer) => Response::from_bytes(answer).ok()? == Response(expected),
            None => true,
        };
        is_right.then_some(after)
    }

    /// Whether a question of a principal can have this answer now.
    #[must_use]
    pub fn answers(&self, principal: PrincipalId, query: &[u8], answer: &[u8]) -> bool {
        let (Ok(query), Ok(Answer(found))) = (Query::from_bytes(query), Answer::from_bytes(answer))
        else {
            return false;
        };
        let is_member = self.members.contains(&principal);
        match (self.principals.get(&principal), &query.question, found) {
            (None, _, found) => found == Err(Error::NoSession),
            (Some((role, _)), Question::WhoAmI, Ok(QueryResult::WhoAmI { rights, .. })) => {
                rights.rights.role() == *role
            }
            (Some(_), Question::Members(_), Ok(QueryResult::Members(members))) => {
                let members = members.into_iter().map(|(key, _)| key);
                members.collect::<BTreeSet<_>>() == self.members
            }
            (Some(_), Question::People { after }, Ok(QueryResult::People { changes, last })) => {
                let after = usize::try_from(*after).unwrap_or(usize::MAX);
                let page = self.changes.iter().skip(after).take(PEOPLE_PAGE_MAX);
                let shown = changes.iter().map(SignedPeopleChange::to_bytes);
                usize::try_from(last) == Ok(self.changes.len())
                    && shown.collect::<Vec<_>>().iter().eq(page)
            }
            (Some(_), Question::Usage(_), Ok(found)) => {
                let (inodes, allocated) = (1, 0);
                is_member && found == QueryResult::Usage { inodes, allocated }
            }
            (Some(_), Question::Usage(_), Err(error)) => !is_member && error == Error::NotMember,
            _ => false,
        }
    }

    fn execute(&mut self, principal: PrincipalId, operation: &Operation) -> Result<Done, Error> {
        let (role, _) = *self.principals.get(&principal).ok_or(Error::NoSession)?;
        if let Operation::ReleaseJob { .. } = operation {
            return Ok(Done::JobReleased);
        }
        if !self.members.contains(&principal) {
            return Err(Error::NotMember);
        }
        if let Operation::Compound(_) = operation {
            return Ok(Done::Compound(Vec::new()));
        }
        match (role, operation) {
            (MemberRole::Read, _) => Err(Error::NoRight),
            (_, Operation::ConfirmPlaced { .. }) => Ok(Done::Confirmed { completed: 0 }),
            (MemberRole::Write, _) => Err(Error::NoRight),
            (_, Operation::BeginEpoch(begin)) => self.begin(begin),
            (_, Operation::ChangePeople(ordered)) => self.change(principal, ordered),
            _ => Err(Error::Malformed),
        }
    }

    fn begin(&mut self, begin: &BeginEpoch) -> Result<Done, Error> {
        if self.epoch.checked_add(1) != Some(begin.number.0) {
            let current = RealmEpoch(self.epoch);
            return Err(Error::WrongEpoch { current });
        }
        let fits = |(key, role): (&PrincipalId, MemberRole)| {
            self.principals.get(key).is_some_and(|(is, _)| *is == role)
        };
        let all_fit = begin.members.iter().all(|(key, it)| fits((key, it.role)));
        let members: BTreeSet<_> = begin.members.iter().map(|(key, _)| *key).collect();
        let mut all = self.principals.iter();
        let left_out =
            all.any(|(key, (role, _))| *role == MemberRole::Administer && !members.contains(key));
        if !all_fit || left_out {
            return Err(Error::BadEpoch);
        }
        (self.members, self.epoch) = (members, begin.number.0);
        let number = begin.number;
        Ok(Done::EpochBegun { number })
    }

    fn change(&mut self, sender: PrincipalId, ordered: &ChangePeople) -> Result<Done, Error> {
        let signed = &ordered.signed;
        let change = signed
            .verified(VOLUME)
            .filter(|_| signed.signed.signer == sender);
        let change = change.ok_or(Error::BadPeopleChange)?;
        let done = Done::PeopleChanged {
            number: change.number,
        };
        let place = usize::try_from(change.number).map_err(|_| Error::Changed)?;
        let place = place.checked_sub(1).ok_or(Error::Changed)?;
        match self.changes.get(place) {
            Some(known) if *known == signed.to_bytes() => return Ok(done),
            None if place == self.changes.len() => {}
            _ => return Err(Error::Changed),
        }
        let current = RealmEpoch(self.epoch);
        if change.epoch != current {
            return Err(Error::WrongEpoch { current });
        }
        let named = change.step.principal().copied();
        if named == Some(sender) {
            return Err(Error::BadPeopleChange);
        }
        let standing = named.and_then(|named| self.principals.get(&named));
        match (&change.step, named, standing) {
            (PeopleStep::NameGroup { .. }, ..) | (_, None, _) => {}
            (PeopleStep::Admit(_), _, Some(_)) => return Err(Error::Exists),
            (PeopleStep::Admit(statement), Some(named), None) => {
                self.principals
                    .insert(named, (statement.rights.role(), true));
                self.members.insert(named);
            }
            (_, _, None) => return Err(Error::NotFound),
            (_, _, Some((_, false))) => return Err(Error::BadPeopleChange),
            (PeopleStep::Regrant { rights, .. }, Some(named), _) => {
                self.principals.insert(named, (rights.role(), true));
                self.members.insert(named);
            }
            (PeopleStep::GiveCredentials { .. }, ..) => {}
            (PeopleStep::Dismiss { .. }, Some(named), _) => {
                self.principals.remove(&named);
                self.members.remove(&named);
            }
        }
        self.changes.push(signed.to_bytes());
        Ok(done)
    }
}
