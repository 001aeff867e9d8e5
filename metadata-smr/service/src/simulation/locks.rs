//! Judges what clients are answered about locks, call by call in the order of execution.
//!
//! It knows no rows. Of each inode and kind it keeps the states that the answers so far allow, as
//! naive locks and queues. Most of the time that is one state. What the answers do not show is:
//!
//! * whether an operation without an answer was refused;
//! * whether a waiter that did not take its turn has been dropped. The turn is a time of the lease
//!   clock, which goes no faster than the agreed time, and clients [read](agreed_time) that now and
//!   then: so a waiter may be *late* from some call on;
//! * whether a session that has been idle for long has ended.
//!
//! All of that is followed at each call about the inode and kind: an answer is wrong if no state
//! allows it. If there are too many states, that inode and kind is judged no more.
//!
//! From the states follows also which operations give a waiter its turn, which has to be in the
//! change log: see [`LockNews`].

pub(crate) mod naive;

use crate::error::Error;
use crate::identity::{InodeId, MountEpoch};
use crate::locks::LockKind;
use crate::operation::{EndLocks, LockRequest, LockWish, Operation, StopWaiting};
use crate::query::{Query, Question};
use crate::reply::{Answer, Done, QueryResult, Response};
use naive::{LockedPlace, NaiveLocks, NaiveOwner, NaiveWish};
use quorumfs_bft::identity::{SessionId, Time};
use std::collections::{BTreeMap, BTreeSet};

/// More states of an inode and kind are not followed.
const STATES_MAX: usize = 200;
/// A session that has executed nothing for this long may have ended.
const IDLE: u64 = 30_000_000_000;

/// An operation that was executed.
#[derive(Clone, Copy, Debug)]
pub struct LockCall<'a> {
    /// Its place in the order.
    pub place: usize,
    /// When it was submitted.
    pub at: u64,
    /// The session.
    pub session: SessionId,
    /// The operation or the query.
    pub request: &'a [u8],
    /// Its answer, if that is known.
    pub answer: Option<&'a [u8]>,
}

/// What the change log says of locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockNews {
    /// An operation has added an entry with this inode.
    Entry {
        /// The inode.
        inode: InodeId,
        /// Whether it certainly has.
        certain: bool,
        /// Whether the session itself may be told of it too.
        own: bool,
    },
    /// From now on there may be so many entries more about the inode, at any time.
    Loose {
        /// The inode.
        inode: InodeId,
        /// Their number.
        entries: u64,
    },
    /// A mount has ended and a waiter may go on: ticks add an entry as soon as they are due, unless
    /// an operation on the inode's locks comes first.
    Owed {
        /// The inode.
        inode: InodeId,
    },
    /// Such an operation has come.
    Waived {
        /// The inode.
        inode: InodeId,
    },
}

/// The agreed time that the answer to an operation shows.
#[must_use]
pub fn agreed_time(answer: &[u8]) -> Option<Time> {
    match Response::from_bytes(answer) {
        Ok(Response(Ok(Done::JobTaken { now, .. }))) => Some(now),
        _ => None,
    }
}

/// A state of the locks of one inode and kind that the answers allow.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct PossibleLocks {
    locks: NaiveLocks,
    /// The waiters that may have been dropped.
    late: BTreeSet<NaiveWish>,
}

impl PossibleLocks {
    fn waiting(&self) -> impl Iterator<Item = &(NaiveWish, Option<u64>)> {
        self.locks.waiting.values().flatten()
    }

    /// The waiters whose turn has come since.
    fn turns_since(&self, before: &Self) -> impl Iterator<Item = &NaiveWish> {
        let had = before.waiting().filter(|(_, turn)| turn.is_some());
        let had: BTreeSet<NaiveWish> = had.map(|(wish, _)| *wish).collect();
        let free = self.waiting().filter(|(_, turn)| turn.is_some());
        let free = free.map(|(wish, _)| wish);
        free.filter(move |wish| !had.contains(wish))
    }

    fn sessions(&self) -> BTreeSet<u64> {
        let held = self.locks.held.keys().map(|(_, owner, _)| owner.0);
        held.chain(self.waiting().map(|(wish, _)| wish.owner.0))
            .collect()
    }

    /// The agreed time is at most this. Returns whether another waiter is late now.
    fn age(&mut self, latest: u64) -> bool {
        let late = self
            .locks
            .waiting
            .values()
            .flatten()
            .filter(|(_, turn)| turn.is_some_and(|end| end <= latest));
        let before = self.late.len();
        self.late.extend(late.map(|(wish, _)| *wish));
        self.late.len() > before
    }

    fn with(&self, locks: NaiveLocks) -> Self {
        let mut next = Self {
            locks,
            late: BTreeSet::new(),
        };
        let waiting: BTreeSet<NaiveWish> = next.waiting().map(|(wish, _)| *wish).collect();
        next.late = self.late.intersection(&waiting).copied().collect();
        next
    }

    /// The same without a waiter, which was dropped when its turn was over.
    fn without(&self, place: LockedPlace, wish: &NaiveWish) -> Self {
        let mut locks = self.locks.clone();
        let mut end = 0;
        if let Some(waiting) = locks.waiting.get_mut(&place) {
            let turns = waiting.iter().filter(|(it, _)| it == wish);
            end = turns.filter_map(|(_, turn)| *turn).max().unwrap_or(0);
            waiting.retain(|(it, _)| it != wish);
        }
        locks.give_turns(place, end);
        self.with(locks)
    }

    /// The same after the end of a mount.
    fn ended(&self, place: LockedPlace, session: u64, now: u64) -> Self {
        let mut locks = self.locks.clone();
        locks.end(session);
        locks.give_turns(place, now);
        self.with(locks)
    }
}

type PossibleStates = BTreeSet<PossibleLocks>;

/// The states after a call, if a state allows its answer.
type Explain<'a> = &'a dyn Fn(&NaiveLocks) -> Vec<NaiveLocks>;

/// Whether the session knows by itself that it may repeat its requests.
type Gives<'a> = &'a dyn Fn(&NaiveLocks) -> bool;

/// What is known of the locks of all inodes.
#[derive(Clone, Debug, Default)]
pub struct LockJudge {
    /// The agreed time after calls, by their place in the order.
    readings: BTreeMap<usize, u64>,
    /// `None`: too much is possible.
    places: BTreeMap<LockedPlace, Option<PossibleStates>>,
    mounts: BTreeMap<u64, MountEpoch>,
    /// When each session last submitted something that was executed.
    seen: BTreeMap<u64, u64>,
    idle: BTreeSet<u64>,
    /// The time of the present call.
    at: u64,
    /// The bounds of the agreed time.
    earliest: u64,
    latest: u64,
}

impl LockJudge {
    /// A judge of clients that have read the agreed time at these places in the order.
    #[must_use]
    pub fn new(readings: impl IntoIterator<Item = (usize, Time)>) -> Self {
        Self {
            readings: readings
                .into_iter()
                .map(|(at, time)| (at, time.0))
                .collect(),
            ..Self::default()
        }
    }

    /// The order has come to this place, and a call that was submitted then.
    pub fn pass(&mut self, place: usize, at: u64) -> Vec<LockNews> {
        self.at = self.at.max(at);
        let before = self.readings.range(..place).next_back();
        self.earliest = before.map_or(0, |(_, time)| *time);
        let after = self.readings.range(place..).next();
        self.latest = after.map_or(u64::MAX, |(_, time)| *time);
        let mut gone: BTreeSet<u64> = BTreeSet::new();
        for session in self.seen.keys() {
            if self.may_have_ended(*session) && !self.idle.contains(session) {
                gone.insert(*session);
            }
        }
        self.idle.extend(&gone);
        let mut news = Vec::new();
        for ((inode, _), states) in &mut self.places {
            let Some(known) = states else { continue };
            let mut aged: Vec<PossibleLocks> = known.iter().cloned().collect();
            let mut entries = 0;
            for state in &mut aged {
                let is_late = state.age(self.latest);
                if is_late || state.sessions().iter().any(|it| gone.contains(it)) {
                    entries = entries.max(1 + state.waiting().count());
                }
            }
            if entries > 0 {
                *known = aged.into_iter().collect();
                news.push(LockNews::Loose {
                    inode: *inode,
                    entries: entries as u64,
                });
            }
        }
        news
    }

    fn may_have_ended(&self, session: u64) -> bool {
        let seen = self.seen.get(&session).copied().unwrap_or(0);
        seen.saturating_add(IDLE) < self.at
    }

    /// An operation has been executed. Returns what it adds to the change log.
    ///
    /// # Errors
    /// An answer that no state allows.
    pub fn execute(&mut self, call: &LockCall<'_>) -> Result<Vec<LockNews>, String> {
        let mut news = self.pass(call.place, call.at);
        let session = call.session.0;
        self.seen.insert(session, self.at);
        self.idle.remove(&session);
        let Ok(operation) = Operation::from_bytes(call.request) else {
            return Ok(news);
        };
        let done = match call.answer.map(Response::from_bytes) {
            None => None,
            Some(Ok(Response(Ok(done)))) => Some(done),
            Some(Ok(Response(Err(refusal)))) => {
                if refusal.error == Error::NotMounted {
                    self.mounts.remove(&session);
                    news.extend(self.end(session, 0));
                }
                return Ok(news);
            }
            Some(Err(error)) => return Err(format!("not an answer: {error}: {call:?}")),
        };
        let told = match (&operation, &done) {
            (Operation::MountRealm { .. }, Some(Done::Mounted { epoch, fenced, .. })) => {
                let before = self.mounts.insert(session, *epoch);
                let is_other = before.is_some_and(|before| before != *epoch);
                let now = self.earliest;
                let ended = fenced.iter().map(|it| (it.0, now));
                let ended: Vec<_> = ended.chain(is_other.then_some((session, 0))).collect();
                let ended = ended.into_iter();
                ended.flat_map(|(it, since)| self.end(it, since)).collect()
            }
            (Operation::UnmountRealm { .. }, _) => {
                self.mounts.remove(&session);
                self.end(session, self.earliest)
            }
            (Operation::Lock(request), done) => self.lock(session, request, done.as_ref())?,
            (Operation::StopWaiting(stop), _) => self.stop(session, stop, done.is_some())?,
            (Operation::EndLocks(end), done) => self.end_locks(session, end, done.as_ref())?,
            _ => Vec::new(),
        };
        let (Operation::Lock(LockRequest { inode, .. })
        | Operation::StopWaiting(StopWaiting { inode, .. })
        | Operation::EndLocks(EndLocks { inode, .. })) = operation
        else {
            news.extend(told);
            return Ok(news);
        };
        news.push(LockNews::Waived { inode });
        news.extend(told);
        Ok(news)
    }

    /// A mount has ended, and ticks find the waiters that may go on: since this time at the
    /// earliest. A session that finds its mount gone does not tell when that happened.
    fn end(&mut self, session: u64, since: u64) -> Vec<LockNews> {
        let mut news = Vec::new();
        let mut places = std::mem::take(&mut self.places);
        for (place, states) in &mut places {
            let Some(known) = states else { continue };
            let here = |state: &PossibleLocks| state.sessions().contains(&session);
            if !known.iter().any(here) {
                continue;
            }
            let inode = place.0;
            news.push(LockNews::Waived { inode });
            let before = known.clone();
            // A waiter may have been dropped before, and the next one have had its turn.
            let Some(all) = self.explained(*place, known, &|locks| vec![locks.clone()]) else {
                let entries = 1;
                news.push(LockNews::Loose { inode, entries });
                *states = None;
                continue;
            };
            *known = all
                .iter()
                .map(|it| it.ended(*place, session, since))
                .collect();
            let entries = known.iter().map(|it| it.waiting().count()).max();
            if let Some(entries) = entries.filter(|entries| *entries > 0) {
                let entries = entries as u64;
                news.push(LockNews::Loose { inode, entries });
            }
            if let (Some(before), Some(after)) = (single(&before), single(known)) {
                // If it had ended before, a tick may have told the waiter long ago.
                let is_settled = since > 0
                    && before.late.is_empty()
                    && before.sessions().iter().all(|it| !self.idle.contains(it));
                if is_settled && after.turns_since(before).next().is_some() {
                    news.push(LockNews::Owed { inode });
                }
            }
        }
        self.places = places;
        news
    }

    fn lock(
        &mut self,
        session: u64,
        request: &LockRequest,
        done: Option<&Done>,
    ) -> Result<Vec<LockNews>, String> {
        let place = (request.inode, request.kind);
        let wish = NaiveWish::of(session, request);
        let now = self.earliest;
        let explain = |locks: &NaiveLocks| {
            let mut after = locks.clone();
            let obstacle = after.ask(session, request, now);
            match (done, obstacle) {
                (None, _) => vec![locks.clone(), after],
                (Some(Done::Locked), None) => vec![after],
                (Some(Done::Blocked(blocker)), Some(waits))
                    if waits == blocker.waits && locks.shows(place, &wish, blocker) =>
                {
                    vec![after]
                }
                _ => Vec::new(),
            }
        };
        let unlocks = request.wish == LockWish::Unlock;
        let asked = (!unlocks).then_some(wish);
        let gives = |locks: &NaiveLocks| {
            let gives = match done {
                Some(Done::Blocked(_)) => request.kind == LockKind::Whole,
                _ => !wish.exclusive,
            };
            gives && locks.holds(place, wish.owner)
        };
        let why = || format!("{request:?} of session {session} was answered {done:?}");
        self.step(place, (session, asked), &explain, (&gives, &why))
    }

    fn stop(
        &mut self,
        session: u64,
        stop: &StopWaiting,
        answered: bool,
    ) -> Result<Vec<LockNews>, String> {
        let place = (stop.inode, stop.kind);
        let now = self.earliest;
        let explain = |locks: &NaiveLocks| {
            let mut after = locks.clone();
            after.stop(place, (session, stop.owner));
            after.give_turns(place, now);
            match answered {
                true => vec![after],
                false => vec![locks.clone(), after],
            }
        };
        let why = || format!("{stop:?} of session {session}");
        self.step(place, (session, None), &explain, (&|_| true, &why))
    }

    fn end_locks(
        &mut self,
        session: u64,
        end: &EndLocks,
        done: Option<&Done>,
    ) -> Result<Vec<LockNews>, String> {
        let place = (end.inode, end.kind);
        let now = self.earliest;
        let explain = |locks: &NaiveLocks| {
            let mut after = locks.clone();
            let stays = |of: u64| end.session.is_some_and(|ended| ended.0 != of);
            after.held.retain(|(_, owner, _), _| stays(owner.0));
            let ended = rows(locks).saturating_sub(rows(&after));
            after.give_turns(place, now);
            match done {
                None => vec![locks.clone(), after],
                Some(Done::LocksEnded { locks }) if *locks as usize == ended => vec![after],
                _ => Vec::new(),
            }
        };
        let why = || format!("{end:?} was answered {done:?}");
        let mut news = self.step(place, (session, None), &explain, (&|_| true, &why))?;
        let ended = matches!(done, Some(Done::LocksEnded { locks }) if *locks > 0);
        if ended || done.is_none() {
            news.retain(|it| matches!(it, LockNews::Loose { .. }));
            news.push(LockNews::Entry {
                inode: end.inode,
                certain: ended,
                own: true,
            });
        }
        Ok(news)
    }

    /// An operation on the locks of a place by a session, which may be a request that waits.
    fn step(
        &mut self,
        place: LockedPlace,
        (session, asked): (u64, Option<NaiveWish>),
        explain: Explain<'_>,
        (gives, why): (Gives<'_>, &dyn Fn() -> String),
    ) -> Result<Vec<LockNews>, String> {
        let inode = place.0;
        let unknown = LockNews::Entry {
            inode,
            certain: false,
            own: true,
        };
        let begin = || Some(PossibleStates::from([PossibleLocks::default()]));
        let Some(before) = self.places.entry(place).or_insert_with(begin).clone() else {
            let entries = 1;
            return Ok(vec![LockNews::Loose { inode, entries }]);
        };
        let after = self.explained(place, &before, explain);
        if after.as_ref().is_some_and(PossibleStates::is_empty) {
            return Err(format!("not possible where {before:?} is known: {}", why()));
        }
        self.places.insert(place, after.clone());
        let (Some(only), Some(after)) = (single(&before), after.as_ref().and_then(single)) else {
            return Ok(vec![unknown]);
        };
        let settled = only.late.iter().all(|it| Some(*it) == asked)
            && !only.sessions().iter().any(|it| self.may_have_ended(*it))
            && explain(&only.locks).contains(&after.locks);
        if !settled {
            return Ok(vec![unknown]);
        }
        let free: Vec<u64> = after.turns_since(only).map(|wish| wish.owner.0).collect();
        let own = free.contains(&session) && !gives(&only.locks);
        let certain = free.iter().any(|it| *it != session);
        Ok(match own || certain {
            true => vec![LockNews::Entry {
                inode,
                certain,
                own,
            }],
            false => Vec::new(),
        })
    }

    /// The states after a call; `None`: too many are possible.
    fn explained(
        &self,
        place: LockedPlace,
        before: &PossibleStates,
        explain: Explain<'_>,
    ) -> Option<PossibleStates> {
        let mut seen = before.clone();
        let mut open: Vec<PossibleLocks> = before.iter().cloned().collect();
        let mut found = PossibleStates::new();
        while let Some(state) = open.pop() {
            let after = explain(&state.locks).into_iter();
            found.extend(after.map(|locks| state.with(locks)));
            for next in self.unseen_events(place, &state) {
                if seen.insert(next.clone()) {
                    open.push(next);
                }
            }
            if seen.len() > STATES_MAX {
                return None;
            }
        }
        (found.len() <= STATES_MAX).then_some(found)
    }

    /// The states to which one event leads that no client sees.
    fn unseen_events(&self, place: LockedPlace, state: &PossibleLocks) -> Vec<PossibleLocks> {
        let dropped = state.late.iter().map(|wish| state.without(place, wish));
        let sessions = state.sessions().into_iter();
        let ended = sessions
            .filter(|session| self.may_have_ended(*session))
            .map(|session| state.ended(place, session, 0));
        dropped.chain(ended).map(|state| self.aged(state)).collect()
    }

    fn aged(&self, mut state: PossibleLocks) -> PossibleLocks {
        state.age(self.latest);
        state
    }

    /// Whether the answer to a query about locks is possible now. Other answers are.
    #[must_use]
    pub fn allows(&self, call: &LockCall<'_>) -> bool {
        let Ok(Query { question, .. }) = Query::from_bytes(call.request) else {
            return true;
        };
        let (Question::Lock { .. }, Some(answer)) = (&question, call.answer) else {
            return true;
        };
        let Question::Lock {
            inode,
            kind,
            owner,
            range,
            exclusive,
        } = question
        else {
            return true;
        };
        let Ok(Answer(Ok(QueryResult::Lock(blocker)))) = Answer::from_bytes(answer) else {
            return true;
        };
        let place = (inode, kind);
        let wish = NaiveWish {
            owner: (call.session.0, owner),
            range,
            exclusive,
            pid: 0,
        };
        let explain = |locks: &NaiveLocks| {
            let obstacle = locks.obstacle(place, usize::MAX, &wish);
            let is_it = match (&blocker, obstacle) {
                (None, None) => true,
                (Some(blocker), Some(waits)) => {
                    waits == blocker.waits && locks.shows(place, &wish, blocker)
                }
                _ => false,
            };
            is_it.then(|| locks.clone()).into_iter().collect()
        };
        let nothing = PossibleStates::from([PossibleLocks::default()]);
        let states = match self.places.get(&place) {
            None => &nothing,
            Some(None) => return true,
            Some(Some(states)) => states,
        };
        let explained = self.explained(place, states, &explain);
        explained.is_none_or(|states| !states.is_empty())
    }
}

fn single(states: &PossibleStates) -> Option<&PossibleLocks> {
    states.first().filter(|_| states.len() == 1)
}

/// The number of locks: runs of bytes that one owner holds in one mode.
fn rows(locks: &NaiveLocks) -> usize {
    let begins = |((place, owner, byte), exclusive): &(&(LockedPlace, NaiveOwner, u64), &bool)| {
        let before = byte.checked_sub(1).map(|byte| (*place, *owner, byte));
        before.and_then(|before| locks.held.get(&before)) != Some(*exclusive)
    };
    locks.held.iter().filter(begins).count()
}
