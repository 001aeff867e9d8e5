//! The client of a replicated service, as a pure state machine.
//!
//! ```text
//!   Submit, Open, Close ──┐                     ┌─► Sign ──► the driver signs, feeds Signed
//!   own signed bytes ─────┤                     ├─► Send{replica, frame}
//!   replies of replicas ──┼─► Client::step ─────┼─► SetTimer
//!   connections up, down ─┤   Client::dispatch  ├─► Deliver{ticket}, Failed{ticket}
//!   its one timer ────────┘                     └─► Opened, Ended
//! ```
//!
//! A client opens a *session* by an ordered request that its principal signs; everything after that
//! is signed by the session's own key. A session has *lanes*: closed loops in which requests are
//! numbered from 1 and at most [`config::ClientConfig::in_flight`] are unanswered. The operations
//! that wait when a lane has capacity are sent together as one *bundle* under one signature; they
//! have independent results.
//!
//! # Invariants
//!
//! * A request that was sent once is never bundled again and never changed. A retry resends the
//!   same bytes to every replica, so an operation runs once, whatever crashes.
//! * A result is delivered when a medium quorum gave the same one for the same request at the same
//!   version, since `read` relies on that; where no client reads out of order, r + 1 replicas
//!   suffice. At least one of them is correct.
//! * Every ticket is answered exactly once: by [`Effect::Deliver`] or by [`Effect::Failed`].
//! * Nothing grows without bound: the queue has a limit and refuses beyond it.
//!
//! # Failures
//!
//! A deadline may pass while the request is pending, or the session may end. The operation may or
//! may not have been executed then: [`failure::Failure::OutcomeUnknown`]. The lane continues to
//! retry the request until it is answered, because the next number must not be used before. The
//! client never reopens a lost session by itself, since its owner has to learn of the loss.
//!
//! A driver handles all ready inputs with [`Client::step`] and then calls [`Client::dispatch`],
//! which closes bundles. So all completions of a reply are delivered, and the operations submitted
//! because of them are queued, before the next bundle is closed.
//!
//! Source: Castro and Liskov, "Practical Byzantine Fault Tolerance" (1999), §4.1; sessions and
//! bundles after Clement, "UpRight Fault Tolerance" (2010), chapter 5.

mod answer;
pub mod config;
mod encoding;
mod epochs;
pub mod event;
pub mod failure;
mod nearest;
mod observing;
mod pending_request;
mod queue;
mod read;
mod read_try;
mod reply_quorum;
mod retry;
mod session;

pub use config::ClientConfig;
pub use event::{Effect, Effects, End, Event, OperationKind, SigningKey, Ticket};
pub use failure::Failure;

use crate::identity::{Lane, Monotonic, PublicKey, ReplicaId, RequestNumber, Sequence, Time};
use crate::round_trip::RoundTrip;
use crate::wire::Verified;
use crate::wire::limits::READ_IN_ORDER_EVERY;
use bytes::Bytes;
use encoding::OwnMessage;
use observing::Observing;
use pending_request::PendingRequest;
use queue::{Pending, Queue};
use read::Reads;
use session::{Asking, SessionPhase};
use std::collections::BTreeSet;

/// A client. See the module's documentation.
#[derive(Debug)]
pub struct Client {
    config: ClientConfig,
    connected: BTreeSet<ReplicaId>,
    queue: Queue,
    reads: Reads,
    observing: Observing,
    /// How long requests take.
    trip: RoundTrip,
    phase: SessionPhase,
    timer: Option<Monotonic>,
    busy: u64,
    retries: u64,
    /// When records of later epochs were last requested.
    epochs_asked: Option<Monotonic>,
    /// The state at which the newest session was opened.
    opened_at: Sequence,
}

/// A bundle that has its lane and number, and has to be signed.
struct Bundle {
    lane: Lane,
    number: RequestNumber,
    operations: Vec<(OperationKind, Bytes)>,
}

impl Client {
    /// A client that has no session yet; nothing happens before [`Event::Open`].
    #[must_use]
    pub fn new(config: ClientConfig) -> Self {
        Self {
            reads: Reads::new(&config),
            observing: Observing::new(&config),
            config,
            connected: BTreeSet::new(),
            queue: Queue::default(),
            trip: RoundTrip::default(),
            phase: SessionPhase::None,
            timer: None,
            busy: 0,
            retries: 0,
            epochs_asked: None,
            opened_at: Sequence(0),
        }
    }

    /// The newest state that a quorum has shown the client.
    #[must_use]
    pub fn shown(&self) -> Sequence {
        let before = self.config.shown.max(self.opened_at);
        self.reads.newest_shown().max(before)
    }

    /// How often a replica answered that it is busy.
    #[must_use]
    pub const fn busy(&self) -> u64 {
        self.busy
    }

    /// How often something was sent again because it was not answered in time.
    #[must_use]
    pub const fn retries(&self) -> u64 {
        self.retries
    }

    /// How many queries were answered out of order, and how many had to be ordered.
    #[must_use]
    pub const fn reads(&self) -> (u64, u64) {
        (self.reads.accepted, self.reads.fallen_back)
    }

    /// Whether a query in session is answered sooner than a linearizable one, by what was measured:
    /// the nearest r + 1 replicas are nearer than a quorum.
    #[must_use]
    pub fn near_reads_pay(&self) -> bool {
        self.reads.near_pays(&self.config, &self.connected)
    }

    /// Handles one input.
    pub fn step(&mut self, now: Monotonic, event: Event, effects: &mut Effects) {
        match event {
            Event::Open { session_key, time } => self.open(now, session_key, time, effects),
            Event::Close => match &mut self.phase {
                SessionPhase::Open(session) => session.closing = true,
                SessionPhase::None | SessionPhase::Opening { .. } => self.end(End::Closed, effects),
            },
            Event::Submit {
                ticket,
                kind,
                operation,
                deadline,
            } => {
                let pending = Pending {
                    ticket,
                    kind,
                    operation,
                    deadline,
                };
                if let Err(reason) = self.submit(now, pending) {
                    effects.push(Effect::Failed { ticket, reason });
                }
            }
            Event::Signed { message } => self.signed(&message, effects),
            Event::Received { from, frame } => self.received(now, from, &frame, effects),
            Event::Observe { reports, watches } => {
                let wanted = (reports, watches);
                self.observing.want(wanted, &self.config, now, effects);
            }
            Event::Connected { replica } => {
                self.connected(replica, effects);
                self.observing
                    .connected(replica, &self.config, now, effects);
            }
            Event::Disconnected { replica } => {
                self.connected.remove(&replica);
                self.observing.disconnected(replica, effects);
            }
            Event::Timer => {
                self.timer = None;
                self.expire(now, effects);
                self.retry(now, effects);
                self.observing.expire(&self.config, now, effects);
            }
        }
        self.reads.notified(self.observing.notified());
    }

    /// Closes bundles of waiting operations, ends a session that is to be closed, and sets the
    /// timer. Call it after all ready inputs have been handled.
    pub fn dispatch(&mut self, now: Monotonic, effects: &mut Effects) {
        if let SessionPhase::Open(session) = &self.phase {
            let (config, reads, id) = (&self.config, &mut self.reads, session.id);
            let queue = &mut self.queue;
            reads.hedge(config, id, &self.connected, now, queue, effects);
            reads.dispatch(config, id, &self.connected, now, effects);
        }
        while let Some(bundle) = self.next_bundle(now) {
            if let SessionPhase::Open(session) = &self.phase {
                effects.push(Effect::Sign {
                    key: SigningKey::Session,
                    message: encoding::request(&self.config, session.id, bundle),
                });
            }
        }
        if let SessionPhase::Open(session) = &mut self.phase
            && session.closing
            && session.close.is_none()
            && self.queue.is_empty()
            && self.reads.is_empty()
            && session.pending_requests().next().is_none()
        {
            session.close = Some(Asking::new(&self.config, session.id.0, now));
            effects.push(Effect::Sign {
                key: SigningKey::Session,
                message: encoding::close(&self.config, session.id),
            });
        }
        self.set_timer(now, effects);
    }

    fn open(&mut self, now: Monotonic, key: PublicKey, time: Time, effects: &mut Effects) {
        if matches!(self.phase, SessionPhase::None) {
            let asking = Asking::new(&self.config, time.0, now);
            self.phase = SessionPhase::Opening { key, asking };
            self.reads.ordered(now);
            effects.push(Effect::Sign {
                key: SigningKey::Principal,
                message: encoding::open(&self.config, key, time),
            });
        }
    }

    fn submit(&mut self, now: Monotonic, mut pending: Pending) -> Result<(), Failure> {
        let bytes_max = match &self.phase {
            SessionPhase::None => return Err(Failure::NoSession),
            SessionPhase::Open(session) if session.closing => return Err(Failure::NoSession),
            SessionPhase::Open(session) => encoding::OPERATION_BYTES_MAX.min(session.room_max()),
            SessionPhase::Opening { .. } => encoding::OPERATION_BYTES_MAX,
        };
        let bytes = pending.operation.len();
        if bytes > bytes_max {
            return Err(Failure::TooLarge { bytes, bytes_max });
        }
        let long_ago = now.since(self.reads.last_ordered()) >= READ_IN_ORDER_EVERY;
        match pending.kind {
            OperationKind::Read if self.config.unordered_reads && !long_ago => {}
            OperationKind::SessionRead if !long_ago => {}
            OperationKind::Execute
            | OperationKind::Administer
            | OperationKind::Watch
            | OperationKind::Unwatch
            | OperationKind::Checkpoint => {
                return self.queue.push(&self.config, pending);
            }
            OperationKind::Query | OperationKind::Read | OperationKind::SessionRead => {
                pending.kind = OperationKind::Query;
                return self.queue.push(&self.config, pending);
            }
        }
        self.queue.admit(&self.config, &pending)?;
        self.reads.push(pending);
        Ok(())
    }

    /// Moves waiting operations into a lane that has capacity, as many as credit and one request
    /// allow.
    fn next_bundle(&mut self, now: Monotonic) -> Option<Bundle> {
        let SessionPhase::Open(session) = &mut self.phase else {
            return None;
        };
        let bundle_max = self
            .config
            .bundle_max
            .clamp(1, encoding::BUNDLE_OPERATIONS_MAX);
        let mut room = session.room();
        let (lane, state) = session.free_lane(self.config.in_flight)?;
        let mut bundle = Vec::new();
        while let Some(bytes) = self.queue.peek() {
            let cost = bytes.saturating_add(encoding::OPERATION_OVERHEAD);
            if cost > room || bundle.len() >= bundle_max {
                break;
            }
            room = room.saturating_sub(cost);
            bundle.extend(self.queue.pop());
        }
        if bundle.is_empty() {
            return None;
        }
        self.reads.ordered(now);
        let number = state.take_number();
        let operations = bundle
            .iter()
            .map(|pending| (pending.kind, pending.operation.clone()))
            .collect();
        state.pending_requests.push_back(PendingRequest::new(
            &self.config,
            &self.trip,
            number,
            lane,
            bundle,
            now,
        ));
        Some(Bundle {
            lane,
            number,
            operations,
        })
    }

    fn signed(&mut self, message: &Verified, effects: &mut Effects) {
        let frame = message.frame().clone();
        match (encoding::own_message(message), &mut self.phase) {
            (
                Some(OwnMessage::Open { key: own, digest }),
                SessionPhase::Opening { key, asking },
            ) if own == *key => {
                asking.sign(digest, frame.clone());
            }
            (Some(OwnMessage::Request(own)), SessionPhase::Open(session))
                if own.session == session.id =>
            {
                match session.pending_request(own.lane, own.number) {
                    Some(pending_request) => {
                        pending_request.signed = Some((own.digest, frame.clone()))
                    }
                    None => return,
                }
            }
            (
                Some(OwnMessage::Close {
                    session: own,
                    digest,
                }),
                SessionPhase::Open(session),
            ) if own == session.id => match &mut session.close {
                Some(close) => close.sign(digest, frame.clone()),
                None => return,
            },
            // A message that was signed for a session that has ended meanwhile.
            _ => return,
        }
        for to in &self.connected {
            send(*to, Some(&frame), effects);
        }
    }

    fn connected(&mut self, replica: ReplicaId, effects: &mut Effects) {
        self.connected.insert(replica);
        match &self.phase {
            SessionPhase::None => {}
            SessionPhase::Opening { asking, .. } => send(replica, asking.frame(), effects),
            SessionPhase::Open(session) => {
                for (_, pending_request) in session.pending_requests() {
                    send(replica, pending_request.frame(), effects);
                }
                let close = session.close.as_ref();
                send(replica, close.and_then(Asking::frame), effects);
            }
        }
    }

    /// Answers the operations whose deadline has passed.
    fn expire(&mut self, now: Monotonic, effects: &mut Effects) {
        while let Some(pending) = self.queue.pop_expired(now) {
            self.queue.fail(&pending, Failure::Expired, effects);
        }
        for pending in self.reads.take_expired(now) {
            self.queue.fail(&pending, Failure::Expired, effects);
        }
        if let SessionPhase::Open(session) = &mut self.phase {
            for pending_request in session.pending_requests_mut() {
                for pending in pending_request.take_expired(now) {
                    self.queue.fail(&pending, Failure::OutcomeUnknown, effects);
                }
            }
        }
    }

    /// Sends overdue messages again to the replicas that have not answered them.
    fn retry(&mut self, now: Monotonic, effects: &mut Effects) {
        let (config, connected) = (&self.config, &self.connected);
        let mut retries = 0_u64;
        let mut due = |retry: &mut retry::Retry| {
            let due = retry.at <= now;
            if due {
                retry.wait(config, now);
                retries += 1;
            }
            due
        };
        match &mut self.phase {
            SessionPhase::None => {}
            SessionPhase::Opening { asking, .. } => {
                if due(&mut asking.retry) {
                    for to in connected {
                        send(*to, asking.frame(), effects);
                    }
                }
            }
            SessionPhase::Open(session) => {
                for pending_request in session.pending_requests_mut() {
                    if !due(&mut pending_request.retry) {
                        continue;
                    }
                    if let Some(to) =
                        pending_request.next_to_ask(connected, config.replies_needed())
                    {
                        send(to, pending_request.frame(), effects);
                    } else {
                        let all = pending_request.executed(config.fault_model.small());
                        let lacks = |to: &&ReplicaId| all || !pending_request.answered(**to);
                        for to in connected.iter().filter(lacks) {
                            send(*to, pending_request.frame(), effects);
                        }
                    }
                }
                if let Some(close) = &mut session.close
                    && due(&mut close.retry)
                {
                    for to in connected {
                        send(*to, close.frame(), effects);
                    }
                }
            }
        }
        self.retries = self.retries.saturating_add(retries);
    }

    fn set_timer(&mut self, now: Monotonic, effects: &mut Effects) {
        let phase = match &self.phase {
            SessionPhase::None => None,
            SessionPhase::Opening { asking, .. } => Some(asking.retry.at),
            SessionPhase::Open(session) => session.next_deadline(),
        };
        let reads = self.reads.next_deadline();
        let observing = self.observing.next_deadline();
        let next = [phase, self.queue.next_deadline(), reads, observing]
            .into_iter()
            .flatten()
            .min();
        if let Some(next) = next
            && self.timer.is_none_or(|set| next < set)
        {
            self.timer = Some(next);
            let after = next.since(now);
            effects.push(Effect::SetTimer { after });
        }
    }

    /// Answers all tickets and drops the session.
    fn end(&mut self, end: End, effects: &mut Effects) {
        if let SessionPhase::Open(session) = std::mem::replace(&mut self.phase, SessionPhase::None)
        {
            for pending_request in session.into_pending_requests() {
                let reason = match pending_request.signed {
                    Some(_) => Failure::OutcomeUnknown,
                    None => Failure::NoSession,
                };
                for pending in pending_request.operations.into_iter().flatten() {
                    self.queue.fail(&pending, reason, effects);
                }
            }
        }
        for pending in self.reads.take_all() {
            self.queue.fail(&pending, Failure::NoSession, effects);
        }
        while let Some(pending) = self.queue.pop() {
            self.queue.fail(&pending, Failure::NoSession, effects);
        }
        self.observing.ended();
        effects.push(Effect::Ended { end });
    }
}

fn send(to: ReplicaId, frame: Option<&Bytes>, effects: &mut Effects) {
    if let Some(frame) = frame {
        let frame = frame.clone();
        effects.push(Effect::Send { to, frame });
    }
}

#[cfg(test)]
mod tests;
