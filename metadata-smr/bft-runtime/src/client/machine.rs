//! The client core with what surrounds it: keys, connections, the callers who wait.
//!
//! The core knows replicas by their numbers in the epoch that it knows; here, and on the links,
//! they are known by their keys. When it has followed the records to another epoch, the links are
//! told, and it is told which of those that it finds there are connected.

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

/// How it stands with the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// It is being opened.
    Opening,
    /// It is open.
    Open(SessionId),
    /// There is none any more.
    Ended(End),
}

type Answer = Result<Bytes, Failure>;

/// Records of one replica are looked at no more often: hundreds of signatures may be in them.
const RECORDS_PAUSE: Nanos = Nanos::from_millis(50);

struct State {
    core: Client,
    membership: Arc<Membership>,
    /// What goes out to those that are connected.
    connected: BTreeMap<PublicKey, Arc<Outbox>>,
    /// When records of a replica were looked at last.
    followed: BTreeMap<PublicKey, Monotonic>,
    effects: Effects,
    waiting: BTreeMap<Ticket, oneshot::Sender<Answer>>,
    next: u64,
    timer: Option<Monotonic>,
    feeds: Feeds,
}

/// The core, for whoever has something for it.
pub(crate) struct Machine {
    state: Mutex<State>,
    principal: Arc<dyn Signer + Send + Sync>,
    session: Arc<dyn Signer + Send + Sync>,
    memberships: watch::Sender<Arc<Membership>>,
    clock: Clock,
    notice: watch::Sender<Notice>,
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
            state: Mutex::new(State {
                core,
                membership,
                connected: BTreeMap::new(),
                followed: BTreeMap::new(),
                effects: Effects::default(),
                waiting: BTreeMap::new(),
                next: 0,
                timer: None,
                feeds: Feeds::default(),
            }),
            principal,
            session,
            clock: Clock::start(),
            notice: watch::Sender::new(Notice::Opening),
            timer_changed: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Were a step to panic, its caller's answer is dropped and the rest goes on.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How it stands with the session, now and later.
    pub(super) fn notices(&self) -> watch::Receiver<Notice> {
        self.notice.subscribe()
    }

    /// The session, while it is open.
    pub(super) fn session(&self) -> Option<SessionId> {
        match *self.notice.borrow() {
            Notice::Open(session) => Some(session),
            Notice::Opening | Notice::Ended(_) => None,
        }
    }

    /// Why there is no session any more.
    pub(super) fn end(&self) -> Option<End> {
        match *self.notice.borrow() {
            Notice::Ended(end) => Some(end),
            _ => None,
        }
    }

    /// The membership of the epoch that the client knows, now and later.
    pub(super) fn memberships(&self) -> watch::Receiver<Arc<Membership>> {
        self.memberships.subscribe()
    }

    /// There is a connection to this replica.
    pub(super) fn connected(&self, key: PublicKey, outbox: Arc<Outbox>) {
        let mut state = self.state();
        state.connected.insert(key, outbox);
        if let Some(replica) = state.membership.place(&key) {
            self.step_in(&mut state, Event::Connected { replica });
        }
    }

    /// There is none any more.
    pub(super) fn disconnected(&self, key: PublicKey) {
        let mut state = self.state();
        state.connected.remove(&key);
        if let Some(replica) = state.membership.place(&key) {
            self.step_in(&mut state, Event::Disconnected { replica });
        }
    }

    /// A replica said something.
    pub(super) fn received(&self, key: PublicKey, frame: Bytes) {
        let mut state = self.state();
        let from = state.membership.place(&key).unwrap_or(ReplicaId::NONE);
        if is_records(&frame) {
            let now = self.clock.now().monotonic;
            let before = state.followed.insert(key, now);
            if before.is_some_and(|at| now.since(at) < RECORDS_PAUSE) {
                return;
            }
        }
        self.step_in(&mut state, Event::Received { from, frame });
    }

    /// How many queries were answered out of order, and how many were put into it.
    pub(super) fn reads(&self) -> (u64, u64) {
        self.state().core.reads()
    }

    /// The newest state that the session was shown.
    pub(super) fn shown(&self) -> Sequence {
        self.state().core.shown()
    }

    /// Handles one input, and closes bundles.
    pub(super) fn step(&self, event: Event) {
        let mut state = self.state();
        self.step_in(&mut state, event);
    }

    fn step_in(&self, state: &mut State, event: Event) {
        let now = self.clock.now().monotonic;
        state.core.step(now, event, &mut state.effects);
        self.carry_out(state);
        state.core.dispatch(now, &mut state.effects);
        self.carry_out(state);
    }

    /// Somebody wants to be told what happens.
    pub(super) fn feed(&self, interest: Interest) -> Arc<Feed> {
        let mut state = self.state();
        let feed = state.feeds.add(interest);
        let event = state.feeds.event();
        self.step_in(&mut state, event);
        feed
    }

    /// There will be nothing more to tell.
    pub(super) fn end_feeds(&self) {
        self.state().feeds.end();
    }

    /// It does not any more.
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
    ) -> oneshot::Receiver<Answer> {
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

    fn carry_out(&self, state: &mut State) {
        while !state.effects.is_empty() {
            let effects: Vec<Effect> = state.effects.drain().collect();
            for effect in effects {
                self.apply(state, effect);
            }
        }
    }

    fn apply(&self, state: &mut State, effect: Effect) {
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
                self.notice.send_replace(Notice::Open(session));
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
                self.notice.send_replace(Notice::Ended(end));
            }
        }
    }

    /// The replicas are others from now on, or have other numbers.
    fn enter(&self, state: &mut State, membership: Membership) {
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

    fn ring(&self) {
        let mut state = self.state();
        let now = self.clock.now().monotonic;
        if state.timer.is_some_and(|at| at <= now) {
            state.timer = None;
            self.step_in(&mut state, Event::Timer);
        }
    }
}

fn is_records(frame: &[u8]) -> bool {
    frame.get(..8).and_then(FrameKind::of_tag) == Some(FrameKind::Epochs)
}

fn answer(state: &mut State, ticket: Ticket, answer: Answer) {
    if let Some(sender) = state.waiting.remove(&ticket) {
        // Whoever asked may have gone; the answer is then nobody's.
        let _ = sender.send(answer);
    }
}

/// Rings the core's timer until it is stopped.
pub(super) async fn keep_time(machine: Arc<Machine>) {
    loop {
        let changed = machine.timer_changed.notified();
        match machine.timer() {
            None => changed.await,
            Some(left) => {
                tokio::select! {
                    () = tokio::time::sleep(left) => machine.ring(),
                    () = changed => {}
                }
            }
        }
    }
}
