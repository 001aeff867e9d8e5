//! The loop that owns a replica's core: events in, effects out, in order.
//!
//! ```text
//!   inbox ──► step ──► effects, in the order in which they were emitted
//!               ▲         ├─ Sign: signed at once, fed back before anything else
//!               │         ├─ Persist, Flush, TrimJournal: to the disk, which answers to the inbox
//!               │         ├─ Send: to an outbox, or held until its write is durable
//!               └─────────┴─ SetTimer, …: kept here
//! ```
//!
//! It runs as the main task of the replica's own thread, whose other tasks are the connections:
//! what a socket brings reaches the core, and what the core says reaches the sockets, without
//! waking another thread. The disk begins to write when a frame has to wait for it: records that
//! nothing waits for, such as that a batch was decided, go with the next ones, or when the status
//! is published: each sync fewer is one that everybody on the machine need not pay. The loop takes
//! everything that waits, or its share, and then lets the sockets have theirs; so what a burst
//! makes it say to one peer leaves in one piece.
//!
//! # Invariants
//!
//! * A frame that names a write leaves only after the disk has said that this write, and every one
//!   before it, is durable. It is the only place where such frames are held.
//! * The core is told of nothing under the numbers, keys and context of an earlier epoch: a frame
//!   is checked, and its sender numbered, for the epoch in which the core is when it sees it.
//! * The core sees one event at a time, and the event's time is read just before.
//! * Wall clock and monotonic clock are read in `Clock` and nowhere else in a replica.
//! * A poisoned core, or a disk that failed, is never stepped again and sends nothing more.

mod driven;

use crate::inbox::{Arrival, Inbox, Input, Source};
use crate::link::frame::Frame;
use crate::pace::{Accounts, Volumes};
use crate::roster::{Roster, Route};
use crate::verification::{Raw, Refused, Verification};
use bytes::Bytes;
use quorumfs_bft::authentication::Signer;
use quorumfs_bft::identity::{
    ConnectionId, Incarnation, Monotonic, Now, PublicKey, ReplicaId, Sequence, Time,
};
use quorumfs_bft::membership::Membership;
use quorumfs_bft::metrics::ReplicaStatus;
use quorumfs_bft::state::{DurableRoot, WriteBatch};
use quorumfs_bft::step::{Destination, Effect, Effects, Event, Peer, Timer, Token};
use quorumfs_bft::wire::{Message, Verified};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// The longest sleep without a timer, so that the published status does not grow old.
const SLEEP_MAX: Duration = Duration::from_millis(200);
/// The status is published this often, however busy the loop is, and no more often.
const PUBLISH: Duration = Duration::from_millis(20);
/// Inputs taken in one go, before the sockets are looked at again: a millisecond or two.
const SHARE: usize = 64;

/// The two clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    /// Monotonic time counts from now.
    pub(crate) fn start() -> Self {
        Self {
            start: Instant::now(),
        }
    }

    /// What both clocks show.
    pub(crate) fn now(&self) -> Now {
        let wall = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        Now {
            clock: Time(nanos(wall)),
            monotonic: Monotonic(nanos(self.start.elapsed())),
        }
    }

    /// When a monotonic time is, for waiting.
    fn instant(&self, at: Monotonic) -> Instant {
        self.start + Duration::from_nanos(at.0)
    }
}

fn nanos(length: Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)
}

/// The core, as the loop sees it: a replica, or what stands in for one in a measurement.
pub trait Core {
    /// Handles one event.
    fn step(&mut self, now: Now, event: Event, effects: &mut Effects);
    /// Says where it stands.
    fn status(&self) -> ReplicaStatus;
    /// The last committed sequence.
    fn committed(&self) -> Sequence;
}

impl<C: Core + ?Sized> Core for Box<C> {
    fn step(&mut self, now: Now, event: Event, effects: &mut Effects) {
        (**self).step(now, event, effects);
    }

    fn status(&self) -> ReplicaStatus {
        (**self).status()
    }

    fn committed(&self) -> Sequence {
        (**self).committed()
    }
}

/// The disk, as the loop sees it. Completions come to the inbox.
pub(crate) trait Durable {
    /// Appends a journal record, at the latest when it is woken. Says whether it counts as durable
    /// at once.
    fn append(&mut self, record: Bytes, token: Token) -> Result<bool, String>;
    /// Begins to write what was appended.
    fn wake(&mut self);
    /// Writes to the state store.
    fn flush(&mut self, batch: WriteBatch, root: DurableRoot) -> Result<(), String>;
    /// Forgets older journal records.
    fn trim(&mut self, before: Token) -> Result<(), String>;
}

/// Why a loop ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Its owner wanted it to.
    Stopped,
    /// Its state or disk failed, and it fell silent.
    Poisoned(String),
    /// The same, and all that its disk lacks is room.
    DiskFull(String),
    /// Another process with its key is this replica to the others.
    Doubled,
}

/// What the loop shows to everybody else.
#[derive(Debug, Default)]
pub(crate) struct Published {
    status: Mutex<Option<ReplicaStatus>>,
    incarnation: Mutex<Incarnation>,
    membership: Mutex<Option<Arc<Membership>>>,
    /// Whether something of this process is durable, and with it what the journal begins with.
    remembers: AtomicBool,
}

impl Published {
    pub(crate) fn get(&self) -> Option<ReplicaStatus> {
        self.status
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn set(&self, status: ReplicaStatus) {
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
    }

    fn set_membership(&self, membership: Membership) {
        let current = self.membership.lock();
        *current.unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(membership));
    }

    /// What the first journal on the disk is known by.
    pub(crate) fn set_incarnation(&self, incarnation: Incarnation) {
        *self.named() = incarnation;
    }

    fn named(&self) -> MutexGuard<'_, Incarnation> {
        self.incarnation
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// What the journal is known by: the first one, unless that was lost. Nothing as long as a
    /// crash could make it yet another one.
    pub(crate) fn incarnation(&self) -> Option<Incarnation> {
        let reborn = self.get().and_then(|status| status.reborn);
        match reborn {
            None => Some(*self.named()),
            Some(_) => reborn.filter(|_| self.remembers.load(Ordering::Acquire)),
        }
    }

    /// The membership of the epoch that the replica is in; nothing before it has recovered.
    pub(crate) fn membership(&self) -> Option<Arc<Membership>> {
        let membership = self.membership.lock();
        membership.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What a loop works with.
pub(crate) struct Surroundings {
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) roster: Arc<Roster>,
    pub(crate) verification: Arc<Verification>,
    pub(crate) accounts: Arc<Accounts>,
    pub(crate) volumes: Arc<Volumes>,
    pub(crate) published: Arc<Published>,
    pub(crate) signer: Arc<dyn Signer + Send + Sync>,
    pub(crate) clock: Clock,
}

/// Runs one core.
pub(crate) struct EventLoop<C, D> {
    core: C,
    disk: D,
    around: Surroundings,
    timers: BTreeMap<Timer, Monotonic>,
    persisted: Option<Token>,
    /// The last write that a frame waits for, and the last one that the disk was woken for.
    awaited: Option<Token>,
    woken: Option<Token>,
    held: BTreeMap<Token, Vec<(Route, Bytes)>>,
    signed: VecDeque<Verified>,
    /// Durable without having been waited for.
    durable: Option<Token>,
    published_at: Instant,
    /// Whether something happened since.
    changed: bool,
}

impl<C: Core, D: Durable> EventLoop<C, D> {
    pub(crate) fn new(core: C, disk: D, around: Surroundings) -> Self {
        Self {
            core,
            disk,
            around,
            timers: BTreeMap::new(),
            persisted: None,
            awaited: None,
            woken: None,
            held: BTreeMap::new(),
            signed: VecDeque::new(),
            durable: None,
            published_at: Instant::now(),
            changed: false,
        }
    }

    /// Carries out what recovery emitted, then runs until the end; gives the disk back.
    pub(crate) async fn run(mut self, recovered: Effects) -> (Ending, D) {
        let ending = match self.run_on(recovered).await {
            Ok(()) => Ending::Stopped,
            Err(ending) => {
                tracing::error!(?ending, "the replica stops and stays silent");
                ending
            }
        };
        (ending, self.disk)
    }

    async fn run_on(&mut self, mut effects: Effects) -> Result<(), Ending> {
        self.carry_out(&mut effects)?;
        self.publish();
        loop {
            let mut next = self.around.inbox.poll();
            if next.is_none() {
                next = self.around.inbox.wait(self.wake_at()).await;
            }
            let mut taken = 0;
            let mut frames = Vec::new();
            while let Some(input) = next {
                if !self.take(input, &mut frames, &mut effects)? {
                    self.publish();
                    return Ok(());
                }
                taken += 1;
                next = match taken {
                    SHARE.. => None,
                    _ => self.around.inbox.poll(),
                };
            }
            self.take_frames(frames, &mut effects)?;
            self.ring(&mut effects)?;
            if self.awaited > self.woken {
                self.woken = self.awaited;
                self.disk.wake();
            }
            if self.published_at.elapsed() >= PUBLISH {
                self.publish();
            }
            if taken >= SHARE {
                tokio::task::yield_now().await;
            }
        }
    }

    /// When there is something to do even if nothing comes.
    fn wake_at(&self) -> Instant {
        let pause = if self.changed { PUBLISH } else { SLEEP_MAX };
        let publish = self.published_at + pause;
        let timer = self.timers.values().min().copied();
        timer.map_or(publish, |at| self.around.clock.instant(at).min(publish))
    }

    fn publish(&mut self) {
        self.around.published.set(self.core.status());
        self.published_at = Instant::now();
        self.changed = false;
        // By then also what no frame waits for.
        self.disk.wake();
    }

    /// Takes an input; of frames it gathers several first. Whether it goes on after it.
    fn take(
        &mut self,
        input: Input,
        frames: &mut Vec<(Source, Arrival)>,
        effects: &mut Effects,
    ) -> Result<bool, Ending> {
        let event = match input {
            Input::Stop => return Ok(false),
            Input::Frame(from, arrival) => {
                frames.push((from, arrival));
                return Ok(true);
            }
            Input::Failed(ending) => return Err(ending),
            Input::Persisted(token) => {
                self.release(token);
                Event::Persisted { token }
            }
            Input::Flushed(sequence) => Event::Flushed { sequence },
            Input::Connected(key) => match self.around.roster.place(&key) {
                Some(replica) => Event::Connected { replica },
                None => return Ok(true),
            },
            Input::Gone(connection) => {
                self.around.roster.release(connection);
                Event::Disconnected { connection }
            }
        };
        self.step(event, effects).map(|()| true)
    }

    /// Frames in the order in which they were taken, the signatures of all of them checked at once.
    fn take_frames(
        &mut self,
        mut frames: Vec<(Source, Arrival)>,
        effects: &mut Effects,
    ) -> Result<(), Ending> {
        // Whoever is no member any more has nothing to say.
        frames.retain(|(source, _)| self.around.roster.peer(*source).is_some());
        let epoch = self.around.verification.epoch();
        let mut unchecked = Vec::new();
        for (source, arrival) in &frames {
            if let (Arrival::Raw(frame, key), Some(from)) =
                (arrival, self.around.roster.peer(*source))
            {
                let (key, frame) = (*key, frame.clone());
                unchecked.push(Raw { from, key, frame });
            }
        }
        let mut verdicts = self.around.verification.check_all(unchecked).into_iter();
        for (source, arrival) in frames {
            let now = self.around.verification.epoch();
            let (key, bytes, verdict) = match arrival {
                Arrival::Admitted(message, of, key) => {
                    let frame = message.frame().clone();
                    let bytes = frame.len();
                    match of == now {
                        true => (key, bytes, Ok(*message)),
                        false => (key, bytes, self.check_again(source, key, frame)),
                    }
                }
                Arrival::Raw(frame, key) => {
                    let bytes = frame.len();
                    // One of these frames may have ended the epoch.
                    match verdicts.next() {
                        Some(verdict) if now == epoch => (key, bytes, verdict),
                        _ => (key, bytes, self.check_again(source, key, frame)),
                    }
                }
            };
            match verdict {
                Ok(message) => self.take_message(source, key, message, effects)?,
                Err(refused) => self.refuse(source, key, bytes, refused),
            }
        }
        Ok(())
    }

    /// Checks a frame for the epoch that has begun since it was checked.
    fn check_again(
        &self,
        source: Source,
        key: PublicKey,
        frame: Bytes,
    ) -> Result<Verified, Refused> {
        match self.around.roster.peer(source) {
            Some(from) => self.around.verification.check(from, key, frame),
            None => Err(Refused { blame: None }),
        }
    }

    fn refuse(&self, source: Source, key: PublicKey, bytes: usize, refused: Refused) {
        if let Some(reason) = refused.blame {
            self.around.roster.blacklist(source, &reason);
        } else if matches!(source, Source::Client(_)) {
            self.around.accounts.charge(key, bytes, Instant::now());
        }
    }

    fn take_message(
        &mut self,
        source: Source,
        key: PublicKey,
        message: Verified,
        effects: &mut Effects,
    ) -> Result<(), Ending> {
        let Some(from) = self.around.roster.peer(source) else {
            return Ok(());
        };
        let read = matches!(message.message(), Message::Read(_));
        let bytes = message.frame().len();
        self.core_step(Event::Received { from, message }, effects);
        if let Peer::Client(client) = from
            && !read
            && effects.iter().any(|effect| answers(effect, client))
        {
            // Not put into the order: a retry, a question, or too much.
            self.around.accounts.charge(key, bytes, Instant::now());
        }
        self.after_step(effects)
    }

    /// Lets the timers that are due run out, each once.
    fn ring(&mut self, effects: &mut Effects) -> Result<(), Ending> {
        if self.timers.is_empty() {
            return Ok(());
        }
        let now = self.around.clock.now().monotonic;
        let due: Vec<Timer> = self
            .timers
            .iter()
            .filter(|(_, at)| **at <= now)
            .map(|(timer, _)| *timer)
            .collect();
        for timer in due {
            // An earlier one's step may have moved or cancelled this one.
            if self.timers.get(&timer).is_some_and(|at| *at <= now) {
                self.timers.remove(&timer);
                self.step(Event::Timer { timer }, effects)?;
            }
        }
        Ok(())
    }

    fn step(&mut self, event: Event, effects: &mut Effects) -> Result<(), Ending> {
        self.core_step(event, effects);
        self.after_step(effects)
    }

    fn core_step(&mut self, event: Event, effects: &mut Effects) {
        self.changed = true;
        self.core.step(self.around.clock.now(), event, effects);
    }

    fn after_step(&mut self, effects: &mut Effects) -> Result<(), Ending> {
        self.carry_out(effects)?;
        let committed = self.core.committed();
        self.around.verification.set_committed(committed);
        Ok(())
    }

    /// Carries out effects, and the effects of what was signed, until there are none.
    fn carry_out(&mut self, effects: &mut Effects) -> Result<(), Ending> {
        loop {
            for effect in effects.drain() {
                self.apply(effect)?;
            }
            let event = if let Some(message) = self.signed.pop_front() {
                Event::Signed { message }
            } else if let Some(token) = self.durable.take() {
                self.release(token);
                Event::Persisted { token }
            } else {
                return Ok(());
            };
            self.core.step(self.around.clock.now(), event, effects);
        }
    }

    fn apply(&mut self, effect: Effect) -> Result<(), Ending> {
        match effect {
            Effect::Sign { message } => {
                self.signed.push_back(message.sign(&*self.around.signer));
            }
            Effect::Persist { record, token } => {
                let appended = self.disk.append(record, token);
                if appended.map_err(|reason| self.disk_failed(reason))? {
                    self.durable = self.durable.max(Some(token));
                }
            }
            Effect::Send { to, frame, after } => {
                // Whom a number means is said now: an epoch may begin before the frame leaves.
                let Some(to) = self.around.roster.route(to) else {
                    return Ok(());
                };
                match after {
                    Some(token) if self.persisted < Some(token) => {
                        self.awaited = self.awaited.max(Some(token));
                        self.held.entry(token).or_default().push((to, frame));
                    }
                    _ => self.around.roster.send(to, Frame::message(frame)),
                }
            }
            Effect::Show { to, frame } => {
                self.around.roster.show(&to, &Frame::message(frame));
            }
            Effect::Flush { batch, root } => {
                let flushed = self.disk.flush(batch, root);
                flushed.map_err(|reason| self.disk_failed(reason))?;
            }
            Effect::TrimJournal { before } => {
                let trimmed = self.disk.trim(before);
                trimmed.map_err(|reason| self.disk_failed(reason))?;
            }
            Effect::SetTimer { timer, after } => {
                let at = self.around.clock.now().monotonic.plus(after);
                self.timers.insert(timer, at);
            }
            Effect::CancelTimer { timer } => {
                self.timers.remove(&timer);
            }
            Effect::SessionKey {
                id, key, principal, ..
            } => {
                self.around.verification.open(id, key, principal);
                self.around.roster.session_opened(id, principal);
            }
            Effect::SessionClosed { id } => {
                self.around.verification.close(id);
                self.around.roster.session_closed(id);
            }
            Effect::Blacklist { peer, reason } => {
                if let Some(source) = self.around.roster.source(peer) {
                    self.around.roster.blacklist(source, reason);
                }
            }
            Effect::NewEpoch { membership, me } => self.enter(*membership, me),
            Effect::Alarm { reason } => tracing::error!("{reason}"),
            Effect::Poison { reason } => return Err(Ending::Poisoned(reason)),
        }
        Ok(())
    }

    /// From now on replicas are numbered, checked and found by this membership.
    fn enter(&self, membership: Membership, me: ReplicaId) {
        let (epoch, from) = (membership.epoch, membership.from);
        tracing::info!(%epoch, %from, replica = %me, "the epoch begins");
        self.around.verification.enter(&membership);
        self.around.volumes.enter(membership.model);
        self.around.roster.enter(&membership, me);
        self.around.published.set_membership(membership);
    }

    /// A disk refuses everything after its first failure, which says more than the refusal does.
    fn disk_failed(&self, reason: String) -> Ending {
        let first = self.around.inbox.failure();
        first.unwrap_or(Ending::Poisoned(reason))
    }

    /// Sends what waited for this write or an earlier one.
    fn release(&mut self, token: Token) {
        self.persisted = self.persisted.max(Some(token));
        self.around
            .published
            .remembers
            .store(true, Ordering::Release);
        while let Some(entry) = self.held.first_entry()
            && Some(*entry.key()) <= self.persisted
        {
            for (to, frame) in entry.remove() {
                self.around.roster.send(to, Frame::message(frame));
            }
        }
    }
}

/// Whether this answers a client's connection.
fn answers(effect: &Effect, client: ConnectionId) -> bool {
    matches!(effect, Effect::Send { to, .. } if *to == Destination::Client(client))
}

#[cfg(test)]
pub(crate) mod tests;
