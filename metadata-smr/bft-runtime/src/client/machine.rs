//! The client core with what surrounds it: keys, outboxes, the callers who wait.

use super::observer::{Feed, Feeds, Interest};
use crate::event_loop::Clock;
use crate::link::frame::Frame;
use crate::link::outbox::Outbox;
use bytes::Bytes;
use quorumfs_bft::authentication::Signer;
use quorumfs_bft::client::event::End;
use quorumfs_bft::client::{Client, Effect, Effects, Event, Failure, Kind, SigningKey, Ticket};
use quorumfs_bft::identity::{Monotonic, Nanos, ReplicaId};
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
    Open,
    /// There is none any more.
    Ended(End),
}

type Answer = Result<Bytes, Failure>;

struct State {
    core: Client,
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
    outboxes: BTreeMap<ReplicaId, Arc<Outbox>>,
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
        outboxes: BTreeMap<ReplicaId, Arc<Outbox>>,
    ) -> Self {
        Self {
            state: Mutex::new(State {
                core,
                effects: Effects::default(),
                waiting: BTreeMap::new(),
                next: 0,
                timer: None,
                feeds: Feeds::default(),
            }),
            principal,
            session,
            outboxes,
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

    /// Why there is no session any more.
    pub(super) fn end(&self) -> Option<End> {
        match *self.notice.borrow() {
            Notice::Ended(end) => Some(end),
            _ => None,
        }
    }

    /// How many queries were answered out of order, and how many were put into it.
    pub(super) fn reads(&self) -> (u64, u64) {
        self.state().core.reads()
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
        kind: Kind,
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
                if let Some(outbox) = self.outboxes.get(&to) {
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
                self.notice.send_replace(Notice::Open);
            }
            Effect::Observed { observation } => state.feeds.observed(observation),
            Effect::Watched { watched } => state.feeds.watched(&watched),
            // It was told one membership, for good, and follows nobody.
            Effect::Follow { .. } | Effect::NewEpoch { .. } => {}
            Effect::Ended { end } => {
                state.feeds.end();
                self.notice.send_replace(Notice::Ended(end));
            }
        }
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
