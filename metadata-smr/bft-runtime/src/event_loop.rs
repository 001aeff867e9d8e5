//! The loop that owns a replica's core: events in, effects out, in order.
//!
//! ```text
//!   inbox ──► step ──► effects, in the order in which they were emitted
//!               ▲         ├─ Sign: signed at once, fed back before anything else
//!               │         ├─ Persist, Flush, TrimJournal: to the disk, which answers to the inbox
//!               │         ├─ Send: to an outbox, or held until its write is durable
//!               └─────────┴─ SetTimer, …: handled here
//! ```
//!
//! It runs as the main task of the replica's own thread, whose other tasks are the connections, so
//! frames travel between the sockets and the core without waking another thread. The disk begins to
//! write when a frame has to wait for it. Records that no frame waits for, such as the decision of
//! a batch, are written with the next ones, or when the status is published: each avoided sync
//! saves time for everything on the machine. The loop takes all waiting inputs, or its share, and
//! then gives way to the sockets; so all frames that a burst produces for one peer leave together.
//!
//! # Invariants
//!
//! * A frame that names a write leaves only after the disk has reported that this write, and every
//!   one before it, is durable. Such frames are held here and nowhere else.
//! * The core receives nothing under the numbers, keys and context of an earlier epoch: a frame is
//!   checked, and its sender numbered, for the epoch of the core at that moment.
//! * The core handles one event at a time, and the event's time is read just before.
//! * Wall clock and monotonic clock are read in `Clock` and nowhere else in a replica.
//! * A poisoned core, or one whose disk failed, is never stepped again and sends nothing more.

mod driven;
mod waste;

use crate::inbox::{Arrival, Inbox, Input, Source};
use crate::link::frame::Frame;
use crate::pace::{Accounts, Volumes};
use crate::roster::{Roster, Route};
use crate::verification::{Raw, Refused, Verification};
use bytes::Bytes;
use quorumfs_bft::authentication::Signer;
use quorumfs_bft::identity::{Incarnation, Monotonic, Now, PublicKey, ReplicaId, Sequence, Time};
use quorumfs_bft::membership::Membership;
use quorumfs_bft::metrics::ReplicaStatus;
use quorumfs_bft::state::{DurableRoot, WriteBatch};
use quorumfs_bft::step::{Effect, Effects, Event, Peer, Timer, Token};
use quorumfs_bft::wire::Verified;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// The longest sleep without a timer, so that the published status stays recent.
const SLEEP_MAX: Duration = Duration::from_millis(200);
/// The interval at which the status is published, however busy the loop is.
const PUBLISH: Duration = Duration::from_millis(20);
/// Inputs taken in one go, before the sockets get their turn: a millisecond or two.
const SHARE: usize = 64;

/// The two clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    /// Starts the monotonic clock at zero.
    pub(crate) fn start() -> Self {
        Self {
            start: Instant::now(),
        }
    }

    /// The time of both clocks.
    pub(crate) fn now(&self) -> Now {
        let wall = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        Now {
            clock: Time(nanos(wall)),
            monotonic: Monotonic(nanos(self.start.elapsed())),
        }
    }

    /// Converts a monotonic time, for waiting.
    fn instant(&self, at: Monotonic) -> Instant {
        self.start + Duration::from_nanos(at.0)
    }
}

fn nanos(length: Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)
}

/// The core, as the loop sees it: a replica, or a substitute in a measurement.
pub trait Core {
    /// Handles one event.
    fn step(&mut self, now: Now, event: Event, effects: &mut Effects);
    /// Reports its status.
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
    /// Appends a journal record, which is written at the latest when the disk is woken. Returns
    /// whether it counts as durable at once.
    fn append(&mut self, record: Bytes, token: Token) -> Result<bool, String>;
    /// Begins to write the appended records.
    fn wake(&mut self);
    /// Writes to the state store.
    fn flush(&mut self, batch: WriteBatch, root: DurableRoot) -> Result<(), String>;
    /// Forgets older journal records.
    fn trim(&mut self, before: Token) -> Result<(), String>;
}

/// Why a loop ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Its owner stopped it.
    Stopped,
    /// Its state or disk failed, and it fell silent.
    Poisoned(String),
    /// The same, because its disk has no free space.
    DiskFull(String),
    /// Another process with its key acts as this replica.
    DuplicateProcess,
}

/// The loop's published state, for other tasks.
#[derive(Debug, Default)]
pub(crate) struct Published {
    status: Mutex<Option<ReplicaStatus>>,
    incarnation: Mutex<Incarnation>,
    membership: Mutex<Option<Arc<Membership>>>,
    /// Whether a record of this process is durable, and with it the journal's first one.
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

    /// Sets the incarnation of the first journal on the disk.
    pub(crate) fn set_incarnation(&self, incarnation: Incarnation) {
        *self.named() = incarnation;
    }

    fn named(&self) -> MutexGuard<'_, Incarnation> {
        self.incarnation
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The journal's incarnation: the first one, unless that journal was lost. Nothing as long as a
    /// crash could still change it.
    pub(crate) fn incarnation(&self) -> Option<Incarnation> {
        let reborn = self.get().and_then(|status| status.reborn);
        match reborn {
            None => Some(*self.named()),
            Some(_) => reborn.filter(|_| self.remembers.load(Ordering::Acquire)),
        }
    }

    /// The membership of the replica's epoch; nothing before recovery.
    pub(crate) fn membership(&self) -> Option<Arc<Membership>> {
        let membership = self.membership.lock();
        membership.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Everything a loop works with.
pub(crate) struct LoopContext {
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
    context: LoopContext,
    timers: BTreeMap<Timer, Monotonic>,
    persisted: Option<Token>,
    /// The last write that a frame waits for, and the last one that the disk was woken for.
    awaited: Option<Token>,
    woken: Option<Token>,
    held: BTreeMap<Token, Vec<(Route, Bytes)>>,
    signed: VecDeque<Verified>,
    /// The last record that counted as durable at once.
    durable: Option<Token>,
    published_at: Instant,
    /// Whether an event was handled since the last status.
    changed: bool,
}

impl<C: Core, D: Durable> EventLoop<C, D> {
    pub(crate) fn new(core: C, disk: D, context: LoopContext) -> Self {
        Self {
            core,
            disk,
            context,
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

    /// Carries out the effects of recovery, then runs until the end; returns the disk.
    pub(crate) async fn run(mut self, recovered: Effects) -> (Ending, D) {
        let ending = match self.run_until_end(recovered).await {
            Ok(()) => Ending::Stopped,
            Err(ending) => {
                tracing::error!(?ending, "the replica stops");
                ending
            }
        };
        (ending, self.disk)
    }

    async fn run_until_end(&mut self, mut effects: Effects) -> Result<(), Ending> {
        self.carry_out(&mut effects)?;
        self.publish();
        loop {
            let mut next = self.context.inbox.poll();
            if next.is_none() {
                next = self.context.inbox.wait(self.wake_at()).await;
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
                    _ => self.context.inbox.poll(),
                };
            }
            self.take_frames(frames, &mut effects)?;
            self.run_timers(&mut effects)?;
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

    /// The time of the next work if no input comes.
    fn wake_at(&self) -> Instant {
        let pause = if self.changed { PUBLISH } else { SLEEP_MAX };
        let publish = self.published_at + pause;
        let timer = self.timers.values().min().copied();
        timer.map_or(publish, |at| self.context.clock.instant(at).min(publish))
    }

    fn publish(&mut self) {
        self.context.published.set(self.core.status());
        self.published_at = Instant::now();
        self.changed = false;
        // By then also the records that no frame waits for.
        self.disk.wake();
    }

    /// Handles an input; frames are gathered first. Returns whether the loop goes on after it.
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
            Input::Connected(key) => match self.context.roster.place(&key) {
                Some(replica) => Event::Connected { replica },
                None => return Ok(true),
            },
            Input::Gone(connection) => {
                self.context.roster.release(connection);
                Event::Disconnected { connection }
            }
        };
        self.step(event, effects).map(|()| true)
    }

    /// Handles frames in the order of their arrival, with all their signatures checked at once.
    fn take_frames(
        &mut self,
        mut frames: Vec<(Source, Arrival)>,
        effects: &mut Effects,
    ) -> Result<(), Ending> {
        // Frames of replicas that are no longer members are dropped.
        frames.retain(|(source, _)| self.context.roster.peer(*source).is_some());
        let epoch = self.context.verification.epoch();
        let mut unchecked = Vec::new();
        for (source, arrival) in &frames {
            if let (Arrival::Raw(frame, key), Some(from)) =
                (arrival, self.context.roster.peer(*source))
            {
                let (key, frame) = (*key, frame.clone());
                unchecked.push(Raw { from, key, frame });
            }
        }
        let mut verdicts = self.context.verification.check_all(unchecked).into_iter();
        for (source, arrival) in frames {
            let now = self.context.verification.epoch();
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

    /// Checks a frame again for an epoch that has begun since its check.
    fn check_again(
        &self,
        source: Source,
        key: PublicKey,
        frame: Bytes,
    ) -> Result<Verified, Refused> {
        match self.context.roster.peer(source) {
            Some(from) => self.context.verification.check(from, key, frame),
            None => Err(Refused { blame: None }),
        }
    }

    fn refuse(&self, source: Source, key: PublicKey, bytes: usize, refused: Refused) {
        if let Some(reason) = refused.blame {
            self.context.roster.blacklist(source, &reason);
        } else if matches!(source, Source::Client(_)) {
            self.context.accounts.charge(key, bytes, Instant::now());
        }
    }

    fn take_message(
        &mut self,
        source: Source,
        key: PublicKey,
        message: Verified,
        effects: &mut Effects,
    ) -> Result<(), Ending> {
        let Some(from) = self.context.roster.peer(source) else {
            return Ok(());
        };
        let bytes = message.frame().len();
        let productive = waste::productive_from(&message);
        self.core_step(Event::Received { from, message }, effects);
        if let Peer::Client(client) = from
            && effects
                .iter()
                .any(|it| waste::wastes(it, client, productive))
        {
            // Not ordered: a retry, a query, or beyond a bound.
            self.context.accounts.charge(key, bytes, Instant::now());
        }
        self.after_step(effects)
    }

    /// Runs the timers that are due, each once.
    fn run_timers(&mut self, effects: &mut Effects) -> Result<(), Ending> {
        if self.timers.is_empty() {
            return Ok(());
        }
        let now = self.context.clock.now().monotonic;
        let due: Vec<Timer> = self
            .timers
            .iter()
            .filter(|(_, at)| **at <= now)
            .map(|(timer, _)| *timer)
            .collect();
        for timer in due {
            // An earlier timer's step may have moved or cancelled this one.
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
        self.core.step(self.context.clock.now(), event, effects);
    }

    fn after_step(&mut self, effects: &mut Effects) -> Result<(), Ending> {
        self.carry_out(effects)?;
        let committed = self.core.committed();
        self.context.verification.set_committed(committed);
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
            self.core.step(self.context.clock.now(), event, effects);
        }
    }

    fn apply(&mut self, effect: Effect) -> Result<(), Ending> {
        match effect {
            Effect::Sign { message } => {
                self.signed.push_back(message.sign(&*self.context.signer));
            }
            Effect::Persist { record, token } => {
                let appended = self.disk.append(record, token);
                if appended.map_err(|reason| self.disk_failed(reason))? {
                    self.durable = self.durable.max(Some(token));
                }
            }
            Effect::Send { to, frame, after } => {
                // The number is resolved now: an epoch may begin before the frame leaves.
                let Some(to) = self.context.roster.route(to) else {
                    return Ok(());
                };
                match after {
                    Some(token) if self.persisted < Some(token) => {
                        self.awaited = self.awaited.max(Some(token));
                        self.held.entry(token).or_default().push((to, frame));
                    }
                    _ => self.context.roster.send(to, Frame::message(frame)),
                }
            }
            Effect::Show { to, frame } => {
                self.context
                    .roster
                    .send_to_observers(&to, &Frame::message(frame));
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
                let at = self.context.clock.now().monotonic.plus(after);
                self.timers.insert(timer, at);
            }
            Effect::CancelTimer { timer } => {
                self.timers.remove(&timer);
            }
            Effect::SessionKey {
                id, key, principal, ..
            } => {
                self.context.verification.open(id, key, principal);
                self.context.roster.session_opened(id, principal);
            }
            Effect::SessionClosed { id } => {
                self.context.verification.close(id);
                self.context.roster.session_closed(id);
            }
            Effect::Blacklist { peer, reason } => {
                if let Some(source) = self.context.roster.source(peer) {
                    self.context.roster.blacklist(source, reason);
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
        self.context.verification.enter(&membership);
        self.context.volumes.enter(membership.model);
        self.context.roster.enter(&membership, me);
        self.context.published.set_membership(membership);
    }

    /// The disk's first failure explains more than its later refusals.
    fn disk_failed(&self, reason: String) -> Ending {
        let first = self.context.inbox.failure();
        first.unwrap_or(Ending::Poisoned(reason))
    }

    /// Sends the frames that waited for this write or an earlier one.
    fn release(&mut self, token: Token) {
        self.persisted = self.persisted.max(Some(token));
        self.context
            .published
            .remembers
            .store(true, Ordering::Release);
        while let Some(entry) = self.held.first_entry()
            && Some(*entry.key()) <= self.persisted
        {
            for (to, frame) in entry.remove() {
                self.context.roster.send(to, Frame::message(frame));
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
