//! A cloud in memory that may fail and lie.
//!
//! ```text
//! request ─► counted ─► weather: down, hanging, slow, throttling ─► lie or truth ─► answer
//! ```
//!
//! *Weather* happens to honest clouds as well: it makes operations late or refused, never wrong,
//! and an operation whose answer is lost may have been executed. A *character* belongs to lying
//! clouds only. Answers to clients pass through both; the checks look at the true content
//! ([`SimulatedCloud::truth`]).

mod late;
mod names;

use super::ledger::Ledger;
use super::lie::{Character, CloudRequest, Lie};
use bytes::Bytes;
use quorumfs_backends::{Deadline, ObjectName, Operation, Receipt, StoreError, StoreErrorKind};
use quorumfs_bft_simulator::random::Random;
use quorumfs_gateway::blocks::CloudKeys;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The condition of a cloud for a while.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Weather {
    /// Refuses connections.
    Down,
    /// Accepts requests and answers none; some of them take effect.
    Hang,
    /// Answers late, some answers very late.
    Slow,
    /// Asks for fewer requests: 503 and 429, with a time to wait.
    Throttle,
    /// Executes requests and loses half of the answers.
    LoseAnswers,
}

impl Weather {
    pub(super) const ALL: [Self; 5] = [
        Self::Down,
        Self::Hang,
        Self::Slow,
        Self::Throttle,
        Self::LoseAnswers,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Down => "weather_down",
            Self::Hang => "weather_hang",
            Self::Slow => "weather_slow",
            Self::Throttle => "weather_throttle",
            Self::LoseAnswers => "weather_lose_answers",
        }
    }
}

#[derive(Clone, Debug)]
struct Object {
    body: Bytes,
    /// When the cloud loses it.
    lost: Option<Instant>,
}

struct CloudState {
    objects: BTreeMap<ObjectName, Object>,
    /// Deleted or lost objects, which a lie may bring back.
    gone: BTreeMap<ObjectName, Bytes>,
    /// Names that a request has deleted.
    deleted: BTreeSet<ObjectName>,
    /// Puts that are executed long after they were sent, when they have been deleted already; the
    /// chance of that in a thousand deletions.
    late: Vec<(Instant, ObjectName, Bytes)>,
    late_per_mille: u64,
    /// The names of some time ago.
    old_names: Vec<ObjectName>,
    random: Random,
    weather: Option<Weather>,
    /// Weather that never changes: a cloud that is down or hangs for the whole run.
    climate: Option<Weather>,
    character: Option<Character>,
    requests: u64,
    bytes: u64,
}

/// Shared knowledge of liars: the last body that each was given.
#[derive(Default)]
pub(super) struct Collusion(Mutex<BTreeMap<u8, Bytes>>);

/// One simulated cloud.
pub(super) struct SimulatedCloud {
    pub(super) index: u8,
    pub(super) keys: CloudKeys,
    ledger: Arc<Ledger>,
    collusion: Arc<Collusion>,
    state: Mutex<CloudState>,
}

impl SimulatedCloud {
    pub(super) fn new(
        index: u8,
        keys: CloudKeys,
        ledger: Arc<Ledger>,
        collusion: Arc<Collusion>,
        random: Random,
    ) -> Self {
        let state = CloudState {
            objects: BTreeMap::new(),
            gone: BTreeMap::new(),
            deleted: BTreeSet::new(),
            late: Vec::new(),
            late_per_mille: 0,
            old_names: Vec::new(),
            random,
            weather: None,
            climate: None,
            character: None,
            requests: 0,
            bytes: 0,
        };
        Self {
            index,
            keys,
            ledger,
            collusion,
            state: Mutex::new(state),
        }
    }

    fn state(&self) -> MutexGuard<'_, CloudState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_weather(&self, weather: Option<Weather>) {
        self.state().weather = weather;
    }

    pub(super) fn set_climate(&self, climate: Option<Weather>) {
        self.state().climate = climate;
    }

    /// From now on some puts are late.
    pub(super) fn set_late_puts(&self, per_mille: u64) {
        self.state().late_per_mille = per_mille;
    }

    pub(super) fn set_character(&self, character: Option<Character>) {
        self.state().character = character;
    }

    /// The true content under a name.
    pub(super) fn truth(&self, name: &ObjectName) -> Option<Bytes> {
        let mut state = self.state();
        state.forget_lost();
        state.objects.get(name).map(|object| object.body.clone())
    }

    /// All bodies that are stored or ever were.
    pub(super) fn all_bodies(&self) -> Vec<(ObjectName, Bytes)> {
        let state = self.state();
        let objects = state.objects.iter();
        let objects = objects.map(|(name, object)| (name.clone(), object.body.clone()));
        let gone = state.gone.iter();
        objects
            .chain(gone.map(|(name, body)| (name.clone(), body.clone())))
            .collect()
    }

    /// All names that are stored.
    pub(super) fn names(&self) -> Vec<ObjectName> {
        let mut state = self.state();
        state.forget_lost();
        state.objects.keys().cloned().collect()
    }

    /// Stores an object unnoticed, as a malicious client may.
    pub(super) fn plant(&self, name: ObjectName, body: Bytes) {
        let object = Object { body, lost: None };
        self.state().objects.insert(name, object);
    }

    /// Requests and bytes so far.
    pub(super) fn traffic(&self) -> (u64, u64) {
        let state = self.state();
        (state.requests, state.bytes)
    }

    pub(super) fn error(
        &self,
        operation: Operation,
        name: Option<&ObjectName>,
        kind: StoreErrorKind,
    ) -> StoreError {
        StoreError {
            kind,
            operation,
            cloud: format!("cloud {}", self.index),
            object: name.cloned(),
            detail: match kind {
                StoreErrorKind::Throttled => "503, come back in 2 s".to_owned(),
                kind => format!("{kind:?}"),
            },
        }
    }

    /// Waits, but not beyond the deadline.
    async fn wait(
        &self,
        length: Duration,
        operation: Operation,
        name: Option<&ObjectName>,
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        let end = Instant::now() + length;
        tokio::time::sleep_until(end.min(deadline.instant())).await;
        match end > deadline.instant() {
            true => Err(self.error(operation, name, StoreErrorKind::Timeout)),
            false => Ok(()),
        }
    }

    /// The way to the cloud: counts the request, and exposes it to the weather. Returns the delay
    /// of the way back, and whether the answer is lost on it.
    async fn arrive(
        &self,
        operation: Operation,
        name: Option<&ObjectName>,
        deadline: Deadline,
        put: Option<&Bytes>,
    ) -> Result<(Duration, bool), StoreError> {
        let (weather, there, back, draw) = {
            let mut state = self.state();
            state.requests += 1;
            state.bytes += put.map_or(0, |body| body.len() as u64);
            let mut latency = || {
                let tail = state.random.chance(1, 60);
                let most = if tail { 900_000 } else { 15_000 };
                Duration::from_micros(state.random.between(500, most))
            };
            let (there, back) = (latency(), latency());
            (
                state.climate.or(state.weather),
                there,
                back,
                state.random.below(100),
            )
        };
        if let Some(weather) = weather {
            self.ledger.fault(weather.name());
        }
        let slow =
            |draw: u64| Duration::from_millis(100 + draw * draw * if draw > 90 { 3 } else { 1 });
        match weather {
            Some(Weather::Down) => {
                tokio::time::sleep(there).await;
                Err(self.error(operation, name, StoreErrorKind::Unavailable))
            }
            Some(Weather::Hang) => {
                tokio::time::sleep_until(deadline.instant()).await;
                if let (Some(name), Some(body)) = (name, put)
                    && draw < 40
                {
                    self.ledger.count("late_effects");
                    let _ = self.store(name, body.clone(), None);
                }
                Err(self.error(operation, name, StoreErrorKind::Timeout))
            }
            Some(Weather::Slow) => {
                self.wait(there + slow(draw), operation, name, deadline)
                    .await?;
                Ok((back, false))
            }
            Some(Weather::Throttle) if draw < 70 => {
                tokio::time::sleep(there).await;
                Err(self.error(operation, name, StoreErrorKind::Throttled))
            }
            other => {
                self.wait(there, operation, name, deadline).await?;
                Ok((back, other == Some(Weather::LoseAnswers) && draw < 50))
            }
        }
    }

    /// The way back.
    async fn answer<T>(
        &self,
        (back, lost): (Duration, bool),
        operation: Operation,
        name: Option<&ObjectName>,
        deadline: Deadline,
        answer: Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        if lost {
            tokio::time::sleep_until(deadline.instant()).await;
            return Err(self.error(operation, name, StoreErrorKind::Timeout));
        }
        self.wait(back, operation, name, deadline).await?;
        answer
    }

    /// The lie that it answers with, if any.
    fn lie(&self, request: CloudRequest) -> Option<Lie> {
        let state = &mut *self.state();
        state.character.as_ref()?.choose(request, &mut state.random)
    }

    fn record_lie(&self, lie: Lie) {
        self.ledger.fault(lie.name());
        self.ledger
            .note(&format!("cloud {} lies: {lie:?}", self.index));
    }

    fn store(
        &self,
        name: &ObjectName,
        body: Bytes,
        lost: Option<Instant>,
    ) -> Result<(), StoreError> {
        let mut state = self.state();
        state.forget_lost();
        if state.objects.contains_key(name) {
            drop(state);
            return Err(self.error(Operation::Put, Some(name), StoreErrorKind::AlreadyExists));
        }
        if state.random.chance(1, 3) {
            state.old_names = state.objects.keys().cloned().collect();
        }
        state.objects.insert(name.clone(), Object { body, lost });
        let is_late = state.deleted.contains(name);
        drop(state);
        if is_late {
            self.ledger.late(self.index, name);
        }
        Ok(())
    }

    fn refusal(&self) -> StoreErrorKind {
        let kinds = [
            StoreErrorKind::Unavailable,
            StoreErrorKind::Full,
            StoreErrorKind::Denied,
            StoreErrorKind::ReadOnly,
            StoreErrorKind::AlreadyExists,
            StoreErrorKind::NotFound,
            StoreErrorKind::Corrupt,
            StoreErrorKind::Clock,
            StoreErrorKind::NoContainer,
            StoreErrorKind::Other,
        ];
        let picked = self.state().random.pick(&kinds).copied();
        picked.unwrap_or(StoreErrorKind::Other)
    }

    pub(super) async fn put(
        &self,
        name: &ObjectName,
        body: Bytes,
        deadline: Deadline,
    ) -> Result<Option<Receipt>, StoreError> {
        let way = self
            .arrive(Operation::Put, Some(name), deadline, Some(&body))
            .await?;
        // A cloud that stores something else returns a receipt for the body that it was sent.
        let receipt = Receipt::crc32c(&body);
        let answer = self
            .take(name, body)
            .map(|wrong| Some(wrong.unwrap_or(receipt)));
        self.answer(way, Operation::Put, Some(name), deadline, answer)
            .await
    }

    /// Stores an object; returns a receipt if it is a wrong one.
    fn take(&self, name: &ObjectName, body: Bytes) -> Result<Option<Receipt>, StoreError> {
        let lie = self.lie(CloudRequest::Put);
        if self.state().character.is_some() {
            let mut known = self
                .collusion
                .0
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            known.insert(self.index, body.clone());
        }
        let taken = self.truth(name).is_some();
        match lie {
            None => self.store(name, body, None)?,
            Some(Lie::BothWin) => {
                if taken {
                    self.record_lie(Lie::BothWin);
                    self.state().objects.remove(name);
                }
                self.store(name, body, None)?;
            }
            Some(Lie::Refuse) => {
                self.record_lie(Lie::Refuse);
                return Err(self.error(Operation::Put, Some(name), self.refusal()));
            }
            Some(Lie::AcknowledgeWithoutStoring) => {
                self.record_lie(Lie::AcknowledgeWithoutStoring);
            }
            Some(Lie::DropAcknowledgement) => {
                self.record_lie(Lie::DropAcknowledgement);
                let _ = self.store(name, body, None);
                let kind = StoreErrorKind::Unavailable;
                return Err(self.error(Operation::Put, Some(name), kind));
            }
            Some(Lie::WrongReceipt) => {
                self.record_lie(Lie::WrongReceipt);
                self.store(name, body, None)?;
                return Ok(Some(Receipt::crc32c(b"something else")));
            }
            Some(Lie::LoseLater) => {
                self.record_lie(Lie::LoseLater);
                let length = self.state().random.between(10, 20_000);
                let lost = Instant::now() + Duration::from_millis(length);
                self.store(name, body, Some(lost))?;
            }
            Some(lie) => {
                self.record_lie(lie);
                let body = self.distort(&body, lie);
                self.store(name, body, None)?;
            }
        }
        Ok(None)
    }

    pub(super) async fn get(
        &self,
        client: u64,
        name: &ObjectName,
        range: Option<Range<u64>>,
        length_max: u64,
        deadline: Deadline,
    ) -> Result<Bytes, StoreError> {
        let way = self
            .arrive(Operation::Get, Some(name), deadline, None)
            .await?;
        let answer = self.give(client, name, range, length_max);
        if let Ok(body) = &answer {
            self.state().bytes += body.len() as u64;
        }
        self.answer(way, Operation::Get, Some(name), deadline, answer)
            .await
    }

    fn give(
        &self,
        client: u64,
        name: &ObjectName,
        range: Option<Range<u64>>,
        length_max: u64,
    ) -> Result<Bytes, StoreError> {
        let request = match range {
            Some(_) => CloudRequest::GetRange,
            None => CloudRequest::Get,
        };
        let lie = self.lie(request);
        let missing = || self.error(Operation::Get, Some(name), StoreErrorKind::NotFound);
        let corrupt = || self.error(Operation::Get, Some(name), StoreErrorKind::Corrupt);
        let truth = self.truth(name);
        let body = match lie {
            Some(Lie::Refuse) => {
                self.record_lie(Lie::Refuse);
                return Err(self.error(Operation::Get, Some(name), self.refusal()));
            }
            Some(Lie::Deny) if truth.is_some() => {
                self.record_lie(Lie::Deny);
                return Err(missing());
            }
            Some(Lie::DeleteSpontaneously) if truth.is_some() => {
                self.record_lie(Lie::DeleteSpontaneously);
                self.remove(name);
                return Err(missing());
            }
            Some(Lie::Resurrect) if truth.is_none() => self.resurrected(name),
            Some(lie @ (Lie::Swap | Lie::OtherVersion | Lie::Collude)) => {
                match self.another(name, lie) {
                    Some(body) => {
                        self.record_lie(lie);
                        Some(body)
                    }
                    None => truth,
                }
            }
            _ => truth,
        };
        let body = body.ok_or_else(missing)?;
        let part = match range {
            None if body.len() as u64 > length_max => return Err(corrupt()),
            None => body,
            Some(range) => {
                let begin = usize::try_from(range.start).unwrap_or(usize::MAX);
                let end = usize::try_from(range.end).unwrap_or(usize::MAX);
                if begin > end || end > body.len() {
                    return Err(corrupt());
                }
                body.slice(begin..end)
            }
        };
        let alters = match lie {
            Some(Lie::Equivocate) => client % 2 == 1,
            Some(Lie::FlipBit | Lie::Truncate | Lie::Extend | Lie::Zeros | Lie::RangedOnly) => true,
            _ => false,
        };
        match lie {
            Some(lie) if alters => {
                self.record_lie(lie);
                Ok(self.distort(&part, lie))
            }
            _ => Ok(part),
        }
    }

    fn resurrected(&self, name: &ObjectName) -> Option<Bytes> {
        let body = self.state().gone.remove(name)?;
        self.record_lie(Lie::Resurrect);
        self.ledger
            .records()
            .late
            .insert((self.index, name.clone()));
        self.plant(name.clone(), body.clone());
        Some(body)
    }

    fn remove(&self, name: &ObjectName) {
        let state = &mut *self.state();
        if let Some(object) = state.objects.remove(name) {
            state.gone.insert(name.clone(), object.body);
        }
    }

    /// Bytes from another place: under another name here, or at another liar.
    fn another(&self, name: &ObjectName, lie: Lie) -> Option<Bytes> {
        if lie == Lie::Collude {
            let known = self
                .collusion
                .0
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let mut others = known.iter().filter(|(index, _)| **index != self.index);
            return others.next().map(|(_, body)| body.clone());
        }
        let wanted = self.keys.invert(name)?;
        let state = &mut *self.state();
        let others: Vec<&Bytes> = state
            .objects
            .iter()
            .filter(|(other, _)| *other != name)
            .filter(|(other, _)| {
                lie == Lie::Swap
                    || self.keys.invert(other).is_some_and(|found| {
                        (found.object, found.shard) == (wanted.object, wanted.shard)
                    })
            })
            .map(|(_, object)| &object.body)
            .collect();
        state.random.pick(&others).map(|body| (*body).clone())
    }

    fn distort(&self, body: &Bytes, lie: Lie) -> Bytes {
        let mut state = self.state();
        let at = state.random.index(body.len());
        let more = 1 + state.random.index(100);
        let bit = state.random.below(8);
        drop(state);
        let mut bytes = body.to_vec();
        match lie {
            Lie::Truncate => bytes.truncate(at),
            Lie::Extend => bytes.resize(body.len() + more, 0xa5),
            Lie::Zeros => bytes.fill(0),
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << bit;
                }
            }
        }
        bytes.into()
    }
}
