//! Shares that come, go and expire between people who do: a workload, and a plain model.
//!
//! All shares are of the root directory, by the superuser. Some with people expire soon. Capsules
//! are refused, because no file has content here; [`Model`](crate::simulation::model::Model) judges
//! those that are not. The model
//! knows no time. It learns from an answer that a share has ended by itself, and then all that were
//! to end until then have: an answer that shows one of them alive is not possible any more.

use super::asking_as_root;
use crate::attributes::Credentials;
use crate::error::Error;
use crate::identity::{InodeId, ObjectId, PrincipalId, PrincipalNumber, RealmEpoch, ShareId, Uid};
use crate::operation::{ChangeShare, NewShare, NewShareWith, Operation};
use crate::query::{Question, SharesOf};
use crate::reply::{Answer, Done, ListedShare, QueryResult, Response};
use crate::row::{Sealed, Share, ShareWith};
use crate::simulation::workload::{Call, Chance};
use quorumfs_bft::identity::{Nanos, Time};
use std::collections::BTreeMap;

/// Tokens of links.
const TOKENS: u64 = 6;
/// Numbers of principals that are asked about.
const NUMBERS: u64 = 8;
const LIMIT: u32 = 64;

fn place(epoch: u32) -> Sealed {
    Sealed {
        epoch: RealmEpoch(epoch),
        bytes: b"place".to_vec(),
    }
}

fn token(number: u64) -> [u8; 32] {
    [number.to_le_bytes()[0]; 32]
}

/// What the clients do with shares.
#[derive(Clone, Debug, Default)]
pub(super) struct ShareCalls {
    /// The number of the last share, as the clients have heard.
    last: u64,
    /// The latest agreed time that they have seen.
    seen: Time,
}

impl ShareCalls {
    /// The next call: `person` is a key and the number of its client, and `epoch` the newest key
    /// epoch that the clients have heard of. Some of them are behind.
    pub(super) fn next(
        &self,
        (index, person): (usize, PrincipalId),
        epoch: u32,
        chance: Chance<'_>,
    ) -> Call {
        let behind = chance(6).saturating_sub(3);
        let epoch = epoch.saturating_sub(u32::try_from(behind).unwrap_or(0));
        let id = ShareId(chance(self.last.saturating_add(2)));
        let asked = ChangeShare {
            credentials: Credentials::root(),
            id,
        };
        match chance(9) {
            0 => Call::Execute(Operation::EndShare(asked).to_bytes()),
            1 => Call::Execute(Operation::ForgetShare(asked).to_bytes()),
            2 => {
                let token = token(chance(TOKENS));
                let with = NewShareWith::Link { token };
                Call::Execute(new(with, None, epoch).to_bytes())
            }
            3 | 4 => {
                let with = NewShareWith::Person {
                    principal: person,
                    uid: Uid(u32::try_from(index).unwrap_or(0).saturating_add(1000)),
                    writes: chance(2) == 0,
                    through: Vec::new(),
                };
                let after = Nanos(chance(3_000_000_000));
                let soon = self.seen.plus(after);
                let expires = (self.seen > Time(0) && chance(2) == 0).then_some(soon);
                Call::Execute(new(with, expires, epoch).to_bytes())
            }
            5 => asking_as_root(Question::ShareOfToken(token(chance(TOKENS)))),
            6 => {
                let number = u32::try_from(chance(NUMBERS)).unwrap_or(0);
                asking_as_root(shares_of(SharesOf::With(PrincipalNumber(number))))
            }
            7 => {
                let manifest = (0..chance(3)).map(|_| ObjectId::FOUNDING).collect();
                let after = Nanos(chance(3_000_000_000));
                let expires = (chance(4) > 0).then(|| self.seen.plus(after));
                let with = NewShareWith::Capsule { manifest };
                Call::Execute(new(with, expires, epoch).to_bytes())
            }
            _ => asking_as_root(shares_of(SharesOf::All)),
        }
    }

    /// Learns from an answer.
    pub(super) fn learn(&mut self, answer: &[u8]) {
        if let Ok(Response(Ok(Done::Shared { id }))) = Response::from_bytes(answer) {
            self.last = self.last.max(id.0);
        }
        if let Ok(Answer(Ok(QueryResult::Shares { shares, .. }))) = Answer::from_bytes(answer) {
            let times = shares.iter().map(|it| it.share.created);
            self.seen = times.fold(self.seen, Time::max);
        }
    }
}

fn new(with: NewShareWith, expires: Option<Time>, epoch: u32) -> Operation {
    Operation::Share(NewShare {
        credentials: Credentials::root(),
        inode: InodeId::ROOT,
        with,
        expires,
        place: place(epoch),
    })
}

const fn shares_of(of: SharesOf) -> Question {
    Question::Shares {
        of,
        after: None,
        limit: LIMIT,
    }
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum ModelWith {
    Person { number: u32, uid: u32, writes: bool },
    Link([u8; 32]),
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct ModelShare {
    by: u32,
    with: ModelWith,
    expires: Option<u64>,
    ended: bool,
    /// The key epoch that its place is sealed under.
    epoch: u32,
}

/// The number of a principal, while it is one.
pub(super) type NumberOf<'a> = &'a dyn Fn(&PrincipalId) -> Option<u32>;
/// Says which numbers are principals' now, or of persons, of which some machine is left.
pub(super) type Current<'a> = &'a dyn Fn(NumberNow) -> bool;

/// What is asked of a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NumberNow {
    Principal(u32),
    Person(u32),
}

/// The shares that there are.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) struct ShareModel {
    shares: BTreeMap<u64, ModelShare>,
    last: u64,
}

type Outcomes = Vec<(ShareModel, Result<Done, Error>)>;

impl ShareModel {
    /// What an operation of a writer can lead to.
    pub(super) fn outcomes(
        &self,
        (by, epoch): (u32, u32),
        operation: &Operation,
        (number_of, current): (NumberOf<'_>, Current<'_>),
    ) -> Outcomes {
        let refused = |error| (self.clone(), Err(error));
        match operation {
            Operation::Share(new) => {
                let mut all = Vec::new();
                if new.expires.is_some() {
                    // Its time may have come, and that of a capsule may be too far.
                    all.push(refused(Error::Invalid));
                }
                let sealed = new.place.epoch.0;
                if sealed > epoch {
                    return vec![refused(Error::Invalid)];
                }
                if sealed < epoch {
                    let current = RealmEpoch(epoch);
                    all.push(refused(Error::OldKeys { current }));
                    // The one before seals for two minutes more, and the model has no times.
                    if sealed.saturating_add(1) < epoch {
                        return all;
                    }
                }
                let with = match &new.with {
                    NewShareWith::Link { token } => ModelWith::Link(*token),
                    NewShareWith::Capsule { manifest } => {
                        let lost = manifest.first().filter(|_| new.expires.is_some());
                        let error = lost.map_or(Error::Invalid, |id| Error::NoObject(*id));
                        all.push(refused(error));
                        return all;
                    }
                    NewShareWith::Person {
                        principal,
                        uid,
                        writes,
                        ..
                    } => match number_of(principal) {
                        None => {
                            all.push(refused(Error::NotFound));
                            return all;
                        }
                        Some(number) => ModelWith::Person {
                            number,
                            uid: uid.0,
                            writes: *writes,
                        },
                    },
                };
                let share = ModelShare {
                    by,
                    with,
                    expires: new.expires.map(|at| at.0),
                    ended: false,
                    epoch: new.place.epoch.0,
                };
                all.extend(self.shared(share));
                all
            }
            Operation::EndShare(asked) => {
                let mut after = self.clone();
                let id = asked.id.0;
                let Some(share) = after.shares.get_mut(&id) else {
                    return vec![refused(Error::NotFound)];
                };
                share.ended = true;
                if matches!(share.with, ModelWith::Link(_)) {
                    after.shares.remove(&id);
                }
                vec![(after, Ok(Done::ShareEnded))]
            }
            Operation::ForgetShare(asked) => {
                let id = asked.id.0;
                let Some(share) = self.shares.get(&id) else {
                    return vec![refused(Error::NotFound)];
                };
                let forgotten = |mut after: Self| {
                    after.shares.remove(&id);
                    (after, Ok(Done::ShareForgotten))
                };
                if has_ended(share, current) {
                    return vec![forgotten(self.clone())];
                }
                let mut all = vec![refused(Error::Changed)];
                if let Some(at) = share.expires {
                    all.push(forgotten(self.at(at)));
                }
                all
            }
            _ => vec![refused(Error::Malformed)],
        }
    }

    /// What a share that is no refusal by itself can lead to.
    fn shared(&self, share: ModelShare) -> Outcomes {
        let is_same = |it: &ModelShare| match (&it.with, &share.with) {
            (ModelWith::Link(a), ModelWith::Link(b)) => a == b,
            (ModelWith::Person { number: a, .. }, ModelWith::Person { number: b, .. }) => {
                a == b && !it.ended
            }
            _ => false,
        };
        let mut shares = self.shares.iter();
        let same = shares.find(|(_, it)| is_same(it));
        let Some((id, before)) = same else {
            return vec![self.begun(share)];
        };
        let uid = |share: &ModelShare| match &share.with {
            ModelWith::Person { uid, .. } => Some(*uid),
            ModelWith::Link(_) => None,
        };
        // A link's token is its own, and machines of a person that act for other users have shares
        // of other users.
        if matches!(share.with, ModelWith::Link(_)) || uid(before) != uid(&share) {
            let mut all = vec![(self.clone(), Err(Error::Exists))];
            if let Some(at) = before.expires.filter(|_| uid(before).is_some()) {
                all.push(self.at(at).begun(share));
            }
            return all;
        }
        let mut after = self.clone();
        after.shares.insert(*id, share.clone());
        let mut all = vec![(after, Ok(Done::Shared { id: ShareId(*id) }))];
        if let Some(at) = before.expires {
            all.push(self.at(at).begun(share));
        }
        all
    }

    fn begun(&self, share: ModelShare) -> (Self, Result<Done, Error>) {
        let mut after = self.clone();
        after.last = after.last.saturating_add(1);
        after.shares.insert(after.last, share);
        let id = ShareId(after.last);
        (after, Ok(Done::Shared { id }))
    }

    /// The same once it is known that this time has come.
    fn at(&self, time: u64) -> Self {
        let mut after = self.clone();
        for share in after.shares.values_mut() {
            share.ended |= share.expires.is_some_and(|at| at <= time);
        }
        after
    }

    /// What is known after this answer to a question of a member as the superuser, if it is one.
    pub(super) fn answered(
        &self,
        question: &Question,
        answer: &Result<QueryResult, Error>,
        current: Current<'_>,
    ) -> Option<Self> {
        match (question, answer) {
            (Question::Shares { of, .. }, Ok(QueryResult::Shares { shares, next: None })) => {
                let ended = shares.iter().filter(|it| it.share.ended);
                let by_itself = ended.filter_map(|it| {
                    let known = self.shares.get(&it.id.0)?;
                    known.expires.filter(|_| !has_ended(known, current))
                });
                let after = self.at(by_itself.max().unwrap_or(0));
                let listed = |(id, share): (&u64, &ModelShare)| {
                    let is_listed = match (of, &share.with) {
                        (SharesOf::With(of), ModelWith::Person { number, .. }) => of.0 == *number,
                        (SharesOf::With(_), _) => false,
                        (SharesOf::All | SharesOf::Mine, _) => true,
                    };
                    is_listed.then(|| shown(*id, share, current))
                };
                let expected: Vec<_> = after.shares.iter().filter_map(listed).collect();
                let found = shares.iter().cloned().map(without_time);
                (expected == found.collect::<Vec<_>>()).then_some(after)
            }
            (Question::ShareOfToken(token), answer) => {
                let mut all = self.shares.iter();
                let lives = |share: &ModelShare| {
                    share.with == ModelWith::Link(*token) && !has_ended(share, current)
                };
                let expected = match all.find(|(_, share)| lives(share)) {
                    None => Err(Error::NotFound),
                    Some((id, share)) => Ok(shown(*id, share, current)),
                };
                let found = match answer {
                    Ok(QueryResult::Share(found)) => Ok(without_time(found.clone())),
                    Ok(_) => return None,
                    Err(error) => Err(error.clone()),
                };
                (found == expected).then(|| self.clone())
            }
            _ => None,
        }
    }
}

fn has_ended(share: &ModelShare, current: Current<'_>) -> bool {
    let needs = match &share.with {
        ModelWith::Person { number, .. } => NumberNow::Person(*number),
        ModelWith::Link(_) => NumberNow::Principal(share.by),
    };
    share.ended || !current(needs)
}

/// A share as an answer shows it, without the time at which it began.
fn shown(id: u64, share: &ModelShare, current: Current<'_>) -> ListedShare {
    let with = match &share.with {
        ModelWith::Link(token) => ShareWith::Link { token: *token },
        ModelWith::Person {
            number,
            uid,
            writes,
        } => ShareWith::Person {
            principal: PrincipalNumber(*number),
            uid: Uid(*uid),
            writes: *writes,
            through: Vec::new(),
        },
    };
    ListedShare {
        id: ShareId(id),
        share: Share {
            by: PrincipalNumber(share.by),
            uid: Uid::ROOT,
            inode: InodeId::ROOT,
            with,
            expires: share.expires.map(Time),
            created: Time(0),
            ended: has_ended(share, current),
            place: place(share.epoch),
        },
        exists: true,
    }
}

fn without_time(mut listed: ListedShare) -> ListedShare {
    listed.share.created = Time(0);
    listed
}
