//! Who is a principal, who is a member, and what each is answered: written from the documentation,
//! and not from the service.

use super::shares::{NumberNow, ShareModel};
use super::{FOUNDER, FOUNDERS, VOLUME, key_of, rights_of};
use crate::error::{Error, FailedAt, OperationError};
use crate::identity::{PrincipalId, PrincipalNumber, RealmEpoch};
use crate::limits::PEOPLE_PAGE_MAX;
use crate::operation::{BeginEpoch, Operation};
use crate::people::{AddedMachine, ChangePeople, PeopleStep, SignedPeopleChange};
use crate::query::{Query, Question, SharesOf};
use crate::reply::{Answer, Done, QueryResult, Response};
use crate::row::{MemberRole, Row};
use crate::statement::Statement;
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
    /// The numbers of the principals, and the next one.
    numbers: (BTreeMap<PrincipalId, u32>, u32),
    /// The further machines, each with the first key of its person.
    machines: BTreeMap<PrincipalId, PrincipalId>,
    labels: BTreeMap<PrincipalId, String>,
    /// The key that got each number.
    holders: Vec<PrincipalId>,
    shares: ShareModel,
    /// The bytes of each change and its signature, in order.
    changes: Vec<Vec<u8>>,
}

impl PeopleModel {
    /// The founders alone.
    #[must_use]
    pub fn new(keys: &[PublicKey]) -> Self {
        let founders: Vec<_> = keys.iter().take(FOUNDERS).map(key_of).collect();
        let standing = (MemberRole::Administer, false);
        let numbers: BTreeMap<_, _> = founders.iter().copied().zip(0..).collect();
        let next = u32::try_from(numbers.len()).unwrap_or(0);
        Self {
            holders: founders.clone(),
            numbers: (numbers, next),
            labels: founders
                .iter()
                .map(|key| (*key, FOUNDER.to_owned()))
                .collect(),
            principals: founders.iter().map(|key| (*key, standing)).collect(),
            members: founders.into_iter().collect(),
            ..Self::default()
        }
    }

    /// The states that there can be after an operation of a principal; none if the answer is not
    /// possible. Without an answer it was executed, and its answer lost.
    #[must_use]
    pub fn after(
        &self,
        principal: PrincipalId,
        operation: &[u8],
        answer: Option<&[u8]>,
    ) -> Vec<Self> {
        let Ok(operation) = Operation::from_bytes(operation) else {
            return Vec::new();
        };
        let answer = match answer.map(Response::from_bytes) {
            None => None,
            Some(Ok(response)) => Some(response),
            Some(Err(_)) => return Vec::new(),
        };
        let outcomes = match self.share_outcomes(principal, &operation) {
            Some(outcomes) => outcomes,
            None => {
                let mut after = self.clone();
                let done = after.execute(principal, &operation);
                vec![(after, done)]
            }
        };
        let possible = outcomes.into_iter().filter(|(_, expected)| {
            let expected = expected.clone().map_err(|error| OperationError {
                at: FailedAt::Operation,
                error,
            });
            answer.as_ref().is_none_or(|it| *it == Response(expected))
        });
        possible.map(|(after, _)| after).collect()
    }

    /// What an operation on shares can lead to; `None` if it is another one, or not permitted.
    fn share_outcomes(
        &self,
        principal: PrincipalId,
        operation: &Operation,
    ) -> Option<Vec<(Self, Result<Done, Error>)>> {
        let is_about_shares = matches!(
            operation,
            Operation::Share(_) | Operation::EndShare(_) | Operation::ForgetShare(_)
        );
        let (role, _) = *self.principals.get(&principal)?;
        let may = self.members.contains(&principal) && role != MemberRole::Read;
        if !is_about_shares || !may {
            return None;
        }
        let by = *self.numbers.0.get(&principal)?;
        let number_of = |key: &PrincipalId| Some(self.person_number(self.number_of(key)?));
        let current = |number: NumberNow| self.is_current(number);
        let outcomes = self
            .shares
            .outcomes((by, self.epoch), operation, (&number_of, &current));
        let with = |(shares, done)| {
            let mut after = self.clone();
            after.shares = shares;
            (after, done)
        };
        Some(outcomes.into_iter().map(with).collect())
    }

    fn number_of(&self, key: &PrincipalId) -> Option<u32> {
        let known = self.principals.contains_key(key);
        self.numbers.0.get(key).copied().filter(|_| known)
    }

    fn holder(&self, number: u32) -> Option<PrincipalId> {
        let index = usize::try_from(number).ok()?;
        self.holders.get(index).copied()
    }

    /// The number of the first key of a number's person.
    fn person_number(&self, number: u32) -> u32 {
        let machine = self.holder(number);
        let first = machine.and_then(|machine| self.machines.get(&machine));
        let first = first.and_then(|first| self.numbers.0.get(first));
        first.copied().unwrap_or(number)
    }

    fn is_current(&self, asked: NumberNow) -> bool {
        let (NumberNow::Principal(number) | NumberNow::Person(number)) = asked;
        let Some(key) = self.holder(number) else {
            return false;
        };
        let is_last = self.numbers.0.get(&key) == Some(&number);
        let is_one = self.principals.contains_key(&key);
        let of_it = self.machines.values().any(|first| *first == key);
        is_last && (is_one || (of_it && asked == NumberNow::Person(number)))
    }

    /// The state after an answer to a question of a principal, if it can have this one now.
    #[must_use]
    pub fn answered(&self, principal: PrincipalId, query: &[u8], answer: &[u8]) -> Option<Self> {
        let (Ok(asked), Ok(Answer(found))) = (Query::from_bytes(query), Answer::from_bytes(answer))
        else {
            return None;
        };
        let about_shares = matches!(
            asked.question,
            Question::Shares { .. } | Question::ShareOfToken(_)
        );
        if !about_shares || !self.principals.contains_key(&principal) {
            let can = self.answers(principal, query, answer);
            return can.then(|| self.clone());
        }
        if !self.members.contains(&principal) {
            return (found == Err(Error::NotMember)).then(|| self.clone());
        }
        let current = |number: NumberNow| self.is_current(number);
        let question = match asked.question {
            Question::Shares { of, after, limit } => Question::Shares {
                of: match of {
                    SharesOf::With(number) => {
                        SharesOf::With(PrincipalNumber(self.person_number(number.0)))
                    }
                    other => other,
                },
                after,
                limit,
            },
            other => other,
        };
        let shares = self.shares.answered(&question, &found, &current)?;
        Some(Self {
            shares,
            ..self.clone()
        })
    }

    /// Whether a question that is not about shares can have this answer now.
    fn answers(&self, principal: PrincipalId, query: &[u8], answer: &[u8]) -> bool {
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
        if let Operation::ChangePeople(ordered) = operation {
            let change = ordered.signed.verified(VOLUME);
            let of_machines = change.is_some_and(|it| it.step.is_of_machines());
            let may = role == MemberRole::Administer || of_machines;
            may.then_some(()).ok_or(Error::NoRight)?;
            return self.change(principal, ordered);
        }
        match (role, operation) {
            (MemberRole::Read, _) => Err(Error::NoRight),
            (_, Operation::ConfirmPlaced { .. }) => Ok(Done::Confirmed { completed: 0 }),
            (MemberRole::Write, _) => Err(Error::NoRight),
            (_, Operation::BeginEpoch(begin)) => self.begin(begin),
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
        if let PeopleStep::AddMachine(added) = &change.step {
            self.check_added(sender, added)?;
        }
        if let (PeopleStep::Dismiss { .. }, Some(first)) = (&change.step, named) {
            let has_machines = self.machines.values().any(|of| *of == first);
            let standing = self.principals.get(&first);
            if has_machines && standing.is_some_and(|(_, stated)| !stated) {
                return Err(Error::BadPeopleChange);
            }
            if has_machines {
                self.dismiss_all(first);
                self.changes.push(signed.to_bytes());
                return Ok(done);
            }
        }
        let administers = |it: &Standing| it.0 == MemberRole::Administer;
        let sent_by_one = self.principals.get(&sender).is_some_and(administers);
        let standing = named.and_then(|named| self.principals.get(&named));
        match (&change.step, named, standing) {
            (PeopleStep::NameGroup { .. }, ..) | (_, None, _) => {}
            (PeopleStep::Admit(_) | PeopleStep::AddMachine(_), _, Some(_)) => {
                return Err(Error::Exists);
            }
            (PeopleStep::Admit(statement), Some(named), None) => self.admit(named, statement),
            (PeopleStep::AddMachine(added), Some(named), None) => {
                self.admit(named, &added.statement);
                self.machines.insert(named, added.of);
            }
            (_, _, None) => return Err(Error::NotFound),
            (_, _, Some((_, false))) => return Err(Error::BadPeopleChange),
            (PeopleStep::DropMachine { .. }, Some(named), _) => {
                let is_own = self.person(named) == self.person(sender);
                (is_own || sent_by_one)
                    .then_some(())
                    .ok_or(Error::NoRight)?;
                self.dismiss(named);
            }
            (PeopleStep::Regrant { rights, label, .. }, Some(named), _) => {
                self.labels.insert(named, label.clone());
                self.principals.insert(named, (rights.role(), true));
                self.members.insert(named);
            }
            (PeopleStep::GiveCredentials { .. }, ..) => {}
            (PeopleStep::Dismiss { .. }, Some(named), _) => {
                self.dismiss(named);
            }
        }
        self.changes.push(signed.to_bytes());
        Ok(done)
    }

    fn person(&self, of: PrincipalId) -> PrincipalId {
        self.machines.get(&of).copied().unwrap_or(of)
    }

    fn admit(&mut self, named: PrincipalId, statement: &Statement) {
        let standing = (statement.rights.role(), true);
        self.principals.insert(named, standing);
        self.members.insert(named);
        self.labels.insert(named, statement.label.clone());
        let (numbers, next) = &mut self.numbers;
        numbers.insert(named, *next);
        self.holders.push(named);
        *next = next.saturating_add(1);
    }

    /// A person with all machines, whose first key may be gone.
    fn dismiss_all(&mut self, first: PrincipalId) {
        let machines = self.machines.iter().filter(|(_, of)| **of == first);
        let machines: Vec<_> = machines.map(|(machine, _)| *machine).collect();
        machines.into_iter().for_each(|it| self.dismiss(it));
        self.dismiss(first);
    }

    fn dismiss(&mut self, named: PrincipalId) {
        self.principals.remove(&named);
        self.members.remove(&named);
        self.machines.remove(&named);
    }

    /// A machine has its person's first key, name and rights.
    fn check_added(&self, sender: PrincipalId, added: &AddedMachine) -> Result<(), Error> {
        let person = self.person(sender);
        let label = self.labels.get(&sender).map_or("", String::as_str);
        let name = match label.split_once('@') {
            Some((name, _)) if person != sender => name,
            _ => label,
        };
        let named = added.statement.label.split_once('@');
        let role = self.principals.get(&sender).map(|(role, _)| *role);
        let fits = added.of == person
            && added.of != added.statement.key
            && named.is_some_and(|(of, _)| of == name)
            && role.is_some_and(|role| added.statement.rights == rights_of(role));
        // A machine whose person was given another role adds nothing until it has that too.
        let first = self.principals.get(&person).filter(|_| person != sender);
        let as_first = first.is_none_or(|(first, _)| Some(*first) == role);
        (fits && as_first)
            .then_some(())
            .ok_or(Error::BadPeopleChange)?;
        let key = added.statement.key;
        let was_one = self.numbers.0.contains_key(&key);
        let is_now = self.principals.contains_key(&key);
        let mut present = self.principals.keys();
        let is_taken = present.any(|it| self.labels.get(it) == Some(&added.statement.label));
        let is_free = is_now || !was_one;
        (is_free && !is_taken).then_some(()).ok_or(Error::Exists)
    }
}
