//! The client core with its surroundings: keys, connections and waiting callers.
//!
//! The core identifies replicas by their numbers in the epoch that it knows; here, and on the
//! links, they are identified by their keys. After the core has followed the records to another
//! epoch, the links get the new membership, and the core learns which of its replicas are
//! connected.

use super::copy_feed::{CopyFeed, CopyInput};
use super::observer::{Feed, Feeds, Interest};
use crate::event_loop::Clock;
use crate::keys::Zip215;
use crate::link::frame::Frame;
use crate::link::outbox::Outbox;
use bytes::Bytes;
use quorumfs_bft::authentication::Signer;
use quorumfs_bft::client::event::End;
use quorumfs_bft::client::{
    Client, Effect, Effects, Event, Failure, OperationKind, SigningKey, Ticket,
};
use quorumfs_bft::identity::{Monotonic, Nanos, PublicKey, ReplicaId, Sequence, SessionId};
use quorumfs_bft::membership::Membership;
use quorumfs_bft::wire::message::Kind as FrameKind;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, oneshot, watch};

/// The state of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionState {
    /// It is being opened.
    Opening,
    /// It is open.
    Open(SessionId),
    /// It has ended.
    Ended(End),
}

type RequestResult = Result<Bytes, Failure>;

/// The minimum pause between checks of one replica's records: they may hold hundreds of signatures.
const RECORDS_PAUSE: Nanos = Nanos::from_millis(50);

struct MachineState {
    core: Client,
    membership: Arc<Membership>,
    /// The outboxes of the connected replicas.
    connected: BTreeMap<PublicKey, Arc<Outbox>>,
    /// When records of a replica were checked last.
    followed: BTreeMap<PublicKey, Monotonic>,
    effects: Effects,
    waiting: BTreeMap<Ticket, oneshot::Sender<RequestResult>>,
    next: u64,
    timer: Option<Monotonic>,
    feeds: Feeds,
    /// Those that copy the state.
    copies: Vec<Arc<CopyFeed>>,
}

/// The core, shared by all that have input for it.
pub(crate) struct Machine {
    state: Mutex<MachineState>,
    principal: Arc<dyn Signer + Send + Sync>,
    session: Arc<dyn Signer + Send + Sync>,
    memberships: watch::Sender<Arc<Membership>>,
    clock: Clock,
    session_state: watch::Sender<SessionState>,
    timer_changed: Notify,
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine").finish_non_exhaustive()
    }
}

impl Machine {
    pub(super) fn new(
        core: Client,
        principal: Arc<dyn Signer + Send + Sync>,
        session: Arc<dyn Signer + Send + Sync>,
        membership: Membership,
    ) -> Self {
        let membership = Arc::new(membership);
        Self {
            memberships: watch::Sender::new(membership.clone()),
            state: Mutex::new(MachineState {
                core,
                membership,
                connected: BTreeMap::new(),
                followed: BTreeMap::new(),
                effects: Effects::default(),
                waiting: BTreeMap::new(),
                next: 0,
                timer: None,
                feeds: Feeds::default(),
                copies: Vec::new(),
            }),
            principal,
            session,
            clock: Clock::start(),
            session_state: watch::Sender::new(SessionState::Opening),
            timer_changed: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, MachineState> {
        // If a step panics, its caller's answer is dropped and the rest goes on.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state of the session, now and later.
    pub(super) fn session_states(&self) -> watch::Receiver<SessionState> {
        self.session_state.subscribe()
    }

    /// The session, while it is open.
    pub(super) fn session(&self) -> Option<SessionId> {
        match *self.session_state.borrow() {
            SessionState::Open(session) => Some(session),
            SessionState::Opening | SessionState::Ended(_) => None,
        }
    }

    /// Why the session has ended.
    pub(super) fn end(&self) -> Option<End> {
        match *self.session_state.borrow() {
            SessionState::Ended(end) => Some(end),
            _ => None,
        }
    }

    /// The membership of the epoch that the client knows, now and later.
    pub(super) fn memberships(&self) -> watch::Receiver<Arc<Membership>> {
        self.memberships.subscribe()
    }

    /// There is now a connection to this replica.
    pub(super) fn connected(&self, key: PublicKey, outbox: Arc<Outbox>) {
        let mut state = self.state();
        state.connected.insert(key, outbox);
        state.to_copies(|| CopyInput::Connected(key));
        if let Some(replica) = state.membership.place(&key) {
            self.step_in(&mut state, Event::Connected { replica });
        }
    }

    /// The connection to this replica has ended.
    pub(super) fn disconnected(&self, key: PublicKey) {
        let mut state = self.state();
        state.connected.remove(&key);
        state.to_copies(|| CopyInput::Disconnected(key));
        if let Some(replica) = state.membership.place(&key) {
            self.step_in(&mut state, Event::Disconnected { replica });
        }
    }

    /// A replica sent a frame.
    pub(super) fn received(&self, key: PublicKey, frame: Bytes) {
        let mut state = self.state();
        let from = state.membership.place(&key).unwrap_or(ReplicaId::NONE);
        if is_records(&frame) || is_kind(&frame, FrameKind::CopyPart) {
            state.to_copies(|| CopyInput::Frame(key, frame.clone()));
        }
        if is_records(&frame) {
            let now = self.clock.now().monotonic;
            let before = state.followed.insert(key, now);
            if before.is_some_and(|at| now.since(at) < RECORDS_PAUSE) {
                return;
            }
        }
        self.step_in(&mut state, Event::Received { from, frame });
    }

    /// Passes what concerns copies of the state on, from now on; connections first.
    pub(super) fn copy_to(&self, feed: Arc<CopyFeed>) {
        let mut state = self.state();
        for key in state.connected.keys() {
            feed.push(CopyInput::Connected(*key));
        }
        state.copies.push(feed);
    }

    /// Ends that.
    pub(super) fn end_copy(&self, feed: &Arc<CopyFeed>) {
        let mut state = self.state();
        state.copies.retain(|other| !Arc::ptr_eq(other, feed));
    }

    /// Sends a frame to this replica, if it is connected.
    pub(super) fn send(&self, to: &PublicKey, frame: Bytes) {
        if let Some(outbox) = self.state().connected.get(to) {
            outbox.push(Frame::message(frame));
        }
    }

    /// The time of the client's clock.
    pub(super) fn now(&self) -> Monotonic {
        self.clock.now().monotonic
    }

    /// How many queries were answered unordered, and how many became ordered requests.
    pub(super) fn reads(&self) -> (u64, u64) {
        self.state().core.reads()
    }

    /// Whether the nearest r + 1 replicas are nearer than a quorum.
    pub(super) fn near_reads_pay(&self) -> bool {
        self.state().core.near_reads_pay()
    }

    /// The newest state that the session saw.
    pub(super) fn shown(&self) -> Sequence {
        self.state().core.shown()
    }

    /// Handles one input, and closes bundles.
    pub(super) fn step(&self, event: Event) {
        let mut state = self.state();
        self.step_in(&mut state, event);
    }

    fn step_in(&self, state: &mut MachineState, event: Event) {
        let now = self.clock.now().monotonic;
        state.core.step(now, event, &mut state.effects);
        self.carry_out(state);
        state.core.dispatch(now, &mut state.effects);
        self.carry_out(state);
    }

    /// Adds a feed for an observer.
    pub(super) fn feed(&self, interest: Interest) -> Arc<Feed> {
        let mut state = self.state();
        let feed = state.feeds.add(interest);
        let event = state.feeds.event();
        self.step_in(&mut state, event);
        feed
    }

    /// Ends all feeds.
    pub(super) fn end_feeds(&self) {
        self.state().feeds.end();
    }

    /// Removes an observer's feed.
    pub(super) fn forget(&self, feed: &Arc<Feed>) {
        let mut state = self.state();
        state.feeds.remove(feed);
        let event = state.feeds.event();
        self.step_in(&mut state, event);
    }

    /// Submits an operation; the answer comes on the channel.
    pub(super) fn submit(
        &self,
        kind: OperationKind,
        operation: Bytes,
        deadline: Duration,
    ) -> oneshot::Receiver<RequestResult> {
        let (sender, receiver) = oneshot::channel();
        let length = u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX);
        let mut state = self.state();
        state.next += 1;
        let ticket = Ticket(state.next);
        state.waiting.insert(ticket, sender);
        let event = Event::Submit {
            ticket,
            kind,
            operation,
            deadline: self.clock.now().monotonic.plus(Nanos(length)),
        };
        self.step_in(&mut state, event);
        receiver
    }

    fn carry_out(&self, state: &mut MachineState) {
        while !state.effects.is_empty() {
            let effects: Vec<Effect> = state.effects.drain().collect();
            for effect in effects {
                self.apply(state, effect);
            }
        }
    }

    fn apply(&self, state: &mut MachineState, effect: Effect) {
        match effect {
            Effect::Sign { key, message } => {
                let key = match key {
                    SigningKey::Principal => &self.principal,
                    SigningKey::Session => &self.session,
                };
                let message = message.sign(&**key);
                let now = self.clock.now().monotonic;
                state
                    .core
                    .step(now, Event::Signed { message }, &mut state.effects);
            }
            Effect::Send { to, frame } => {
                let key = state.membership.member(to).map(|member| member.key);
                if let Some(outbox) = key.and_then(|key| state.connected.get(&key)) {
                    outbox.push(Frame::message(frame));
                }
            }
            Effect::SetTimer { after } => {
                state.timer = Some(self.clock.now().monotonic.plus(after));
                self.timer_changed.notify_one();
            }
            Effect::Deliver { ticket, result, .. } => answer(state, ticket, Ok(result)),
            Effect::Failed { ticket, reason } => answer(state, ticket, Err(reason)),
            Effect::Opened { session, .. } => {
                tracing::debug!(%session, "the session is open");
                self.session_state.send_replace(SessionState::Open(session));
            }
            Effect::Observed { observation } => state.feeds.observed(observation),
            Effect::Watched { watched } => state.feeds.watched(&watched),
            Effect::Follow { frame } => {
                let now = self.clock.now().monotonic;
                let effects = &mut state.effects;
                state.core.follow(now, &frame, &Zip215, effects);
            }
            Effect::NewEpoch { membership } => self.enter(state, *membership),
            Effect::Ended { end } => {
                state.feeds.end();
                self.session_state.send_replace(SessionState::Ended(end));
            }
        }
    }

    /// The replicas, or their numbers, are different from now on.
    fn enter(&self, state: &mut MachineState, membership: Membership) {
        tracing::debug!(epoch = %membership.epoch, "the client follows to another epoch");
        state.membership = Arc::new(membership);
        let now = self.clock.now().monotonic;
        for key in state.connected.keys() {
            if let Some(replica) = state.membership.place(key) {
                let event = Event::Connected { replica };
                state.core.step(now, event, &mut state.effects);
            }
        }
        self.memberships.send_replace(state.membership.clone());
    }

    fn timer(&self) -> Option<Duration> {
        let at = self.state().timer?;
        Some(Duration::from_nanos(at.since(self.clock.now().monotonic).0))
    }

    fn run_timer(&self) {
        let mut state = self.state();
        let now = self.clock.now().monotonic;
        if state.timer.is_some_and(|at| at <= now) {
            state.timer = None;
            self.step_in(&mut state, Event::Timer);
        }
    }
}

impl MachineState {
    fn to_copies(&self, input: impl Fn() -> CopyInput) {
        self.copies.iter().for_each(|feed| feed.push(input()));
    }
}

fn is_records(frame: &[u8]) -> bool {
    is_kind(frame, FrameKind::Epochs)
}

fn is_kind(frame: &[u8], kind: FrameKind) -> bool {
    frame.get(..8).and_then(FrameKind::of_tag) == Some(kind)
}

fn answer(state: &mut MachineState, ticket: Ticket, answer: RequestResult) {
    if let Some(sender) = state.waiting.remove(&ticket) {
        // The caller may have gone; the answer is then dropped.
        let _ = sender.send(answer);
    }
}

/// Runs the core's timer until it is stopped.
pub(super) async fn drive_timer(machine: Arc<Machine>) {
    loop {
        let changed = machine.timer_changed.notified();
        match machine.timer() {
            None => changed.await,
            Some(left) => {
                tokio::select! {
                    () = tokio::time::sleep(left) => machine.run_timer(),
                    () = changed => {}
                }
            }
        }
    }
}
