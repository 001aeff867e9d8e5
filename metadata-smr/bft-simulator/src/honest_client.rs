//! An honest client: the real client core with its keys, its connections and its lanes.

use crate::authentication::{FakeSigner, Keyring};
use crate::clock::EPOCH;
use crate::plan::Plan;
use crate::random::Random;
use bytes::Bytes;
use quorumfs_bft::authentication::Signer as _;
use quorumfs_bft::client::{
    Client, ClientConfig, Effect, Effects, End, Event, Failure, OperationKind, SigningKey, Ticket,
};
use quorumfs_bft::identity::{ClusterId, ConnectionId, Monotonic, Nanos, ReplicaId, SessionId};
use quorumfs_bft::membership::Membership;
use quorumfs_bft::observer::{Observation, Watched};
use quorumfs_bft::sabotage::{Planted, Sabotage};
use std::collections::{BTreeMap, VecDeque};

/// An action that a client wants the simulation to carry out.
#[derive(Debug)]
pub(crate) enum ClientAction {
    Send {
        to: ReplicaId,
        frame: Bytes,
    },
    Timer {
        generation: u64,
        nanos: u64,
    },
    Answered {
        call: usize,
        operation: Bytes,
        result: Bytes,
        version: u64,
    },
    Unanswered {
        call: usize,
        operation: Bytes,
        reason: Failure,
    },
    Opened {
        session: SessionId,
    },
    /// A request for a watch was answered.
    Watching {
        what: Bytes,
        answer: Bytes,
        version: u64,
    },
    Observed {
        observation: Observation,
    },
    Watched {
        watched: Watched,
    },
    Ended {
        end: End,
    },
    /// Its connections have other numbers now.
    Renumber,
}

#[derive(Debug)]
struct PendingCall {
    call: usize,
    operation: Bytes,
}

/// A client's process; a restart makes another one.
#[derive(Debug)]
pub(crate) struct HonestClient {
    core: Client,
    principal: FakeSigner,
    session: FakeSigner,
    keyring: Keyring,
    genesis: Membership,
    pub(crate) generation: u64,
    pub(crate) links: BTreeMap<usize, ConnectionId>,
    pub(crate) session_id: Option<SessionId>,
    /// The newest batch that its session is known to have seen.
    pub(crate) seen: u64,
    pending: BTreeMap<Ticket, PendingCall>,
    next_ticket: u64,
    timer: u64,
    /// Whether it observes the replicas.
    watching: bool,
    /// Its requests for watches that are not answered yet.
    watches: BTreeMap<Ticket, Bytes>,
}

/// How long it waits for the answer to a request for a watch.
const WATCH_PATIENCE: Nanos = Nanos::from_secs(120);

impl HonestClient {
    pub(crate) fn new(
        (cluster, membership): (ClusterId, &Membership),
        (plan, sabotage): (&Plan, Option<Sabotage>),
        principal: FakeSigner,
        keyring: &Keyring,
        generation: u64,
        random: &mut Random,
    ) -> Self {
        let (key, planted) = (principal.public_key(), Planted::new(sabotage));
        let config = ClientConfig {
            lanes: plan.lanes,
            in_flight: plan.in_flight,
            unordered_reads: plan.unordered_reads,
            jitter_seed: random.next(),
            accepts_one_watch_event: planted.flag(Sabotage::WatchOnOneCopy),
            patience_fixed: planted.flag(Sabotage::PatienceFixed),
            earlier_try_dropped: planted.flag(Sabotage::EarlierTryDropped),
            ..ClientConfig::following(cluster, membership.clone(), key)
        };
        Self {
            core: Client::new(config),
            principal,
            session: keyring.generate(random.bytes()),
            keyring: keyring.clone(),
            genesis: membership.clone(),
            generation,
            links: BTreeMap::new(),
            session_id: None,
            seen: 0,
            pending: BTreeMap::new(),
            next_ticket: 0,
            timer: 0,
            watching: plan.watching,
            watches: BTreeMap::new(),
        }
    }

    /// The membership that it knows.
    pub(crate) fn membership(&self) -> &Membership {
        self.core.membership().unwrap_or(&self.genesis)
    }

    /// Opens its session.
    pub(crate) fn open_session(&mut self, now: Monotonic) -> Vec<ClientAction> {
        let event = Event::Open {
            session_key: self.session.public_key(),
            time: EPOCH.plus(Nanos(now.0)),
        };
        let mut actions = Vec::new();
        if self.watching {
            let (reports, watches) = (true, true);
            actions = self.step(now, Event::Observe { reports, watches });
        }
        actions.extend(self.step(now, event));
        actions
    }

    /// Submits a request for a watch.
    pub(crate) fn watch(&mut self, now: Monotonic, operation: Bytes) -> Vec<ClientAction> {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.watches.insert(ticket, operation.clone());
        let submit = Event::Submit {
            ticket,
            kind: OperationKind::Watch,
            operation,
            deadline: now.plus(WATCH_PATIENCE),
        };
        self.step(now, submit)
    }

    /// Submits one operation.
    pub(crate) fn submit(
        &mut self,
        now: Monotonic,
        call: usize,
        kind: OperationKind,
        operation: Bytes,
        patience: Nanos,
    ) -> Vec<ClientAction> {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let pending = PendingCall {
            call,
            operation: operation.clone(),
        };
        self.pending.insert(ticket, pending);
        let deadline = now.plus(patience);
        self.step(
            now,
            Event::Submit {
                ticket,
                kind,
                operation,
                deadline,
            },
        )
    }

    /// The timer of this generation has expired.
    pub(crate) fn timer(&mut self, now: Monotonic, generation: u64) -> Vec<ClientAction> {
        if generation != self.timer {
            return Vec::new();
        }
        self.step(now, Event::Timer)
    }

    /// Handles an input, and the signatures that follow from it.
    pub(crate) fn step(&mut self, now: Monotonic, event: Event) -> Vec<ClientAction> {
        let mut actions = Vec::new();
        let mut effects = Effects::default();
        let mut events = VecDeque::from([event]);
        loop {
            match events.pop_front() {
                Some(event) => self.core.step(now, event, &mut effects),
                None => {
                    self.core.dispatch(now, &mut effects);
                    if effects.is_empty() {
                        return actions;
                    }
                }
            }
            let mut follow = Vec::new();
            for effect in effects.drain() {
                match effect {
                    Effect::Sign { key, message } => {
                        let signer = match key {
                            SigningKey::Principal => &self.principal,
                            SigningKey::Session => &self.session,
                        };
                        events.push_back(Event::Signed {
                            message: message.sign(signer),
                        });
                    }
                    Effect::Send { to, frame } => actions.push(ClientAction::Send { to, frame }),
                    Effect::SetTimer { after } => {
                        self.timer += 1;
                        actions.push(ClientAction::Timer {
                            generation: self.timer,
                            nanos: after.0,
                        });
                    }
                    Effect::Deliver {
                        ticket,
                        result,
                        version,
                    } => {
                        if let Some(what) = self.watches.remove(&ticket) {
                            actions.push(ClientAction::Watching {
                                what,
                                answer: result,
                                version: version.0,
                            });
                        } else if let Some(pending) = self.pending.remove(&ticket) {
                            let PendingCall { call, operation } = pending;
                            actions.push(ClientAction::Answered {
                                call,
                                operation,
                                result,
                                version: version.0,
                            });
                        }
                    }
                    Effect::Failed { ticket, reason } => {
                        if let Some(PendingCall { call, operation }) = self.pending.remove(&ticket)
                        {
                            actions.push(ClientAction::Unanswered {
                                call,
                                operation,
                                reason,
                            });
                        }
                    }
                    Effect::Opened { session, .. } => {
                        actions.push(ClientAction::Opened { session })
                    }
                    Effect::Observed { observation } => {
                        actions.push(ClientAction::Observed { observation });
                    }
                    Effect::Watched { watched } => actions.push(ClientAction::Watched { watched }),
                    Effect::Ended { end } => actions.push(ClientAction::Ended { end }),
                    Effect::Follow { frame } => follow.push(frame),
                    Effect::NewEpoch { .. } => actions.push(ClientAction::Renumber),
                }
            }
            for frame in follow {
                self.core.follow(now, &frame, &self.keyring, &mut effects);
            }
        }
    }

    /// How many operations are not answered yet.
    pub(crate) fn outstanding(&self) -> usize {
        self.pending.len()
    }

    /// How many requests were sent again.
    pub(crate) const fn retries(&self) -> u64 {
        self.core.retries()
    }

    /// How many queries were answered unordered, and how many had to be ordered.
    pub(crate) const fn reads(&self) -> (u64, u64) {
        self.core.reads()
    }

    /// How many replies said that a replica was too busy.
    pub(crate) const fn busy(&self) -> u64 {
        self.core.busy()
    }
}
