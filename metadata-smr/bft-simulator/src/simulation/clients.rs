//! The honest clients: what they wish for, and what they ask next.

use super::{Happening, Simulation, stewards};
use crate::agenda::MILLISECOND;
use crate::customer::{Customer, Wish};
use crate::history::{Call, OperationKind, SessionRead};
use crate::workload::Workload;
use bytes::Bytes;
use quorumfs_bft::client::Failure;
use quorumfs_bft::identity::{Monotonic, Nanos};

/// How often a client that mostly reads looks for something to read.
const QUERY_DRAWS: usize = 6;

impl<W: Workload> Simulation<'_, W> {
    pub(super) fn with_client(
        &mut self,
        index: usize,
        generation: u64,
        act: impl FnOnce(&mut Customer, Monotonic) -> Vec<Wish>,
    ) {
        let now = Monotonic(self.agenda.now().0);
        let Some(customer) = self.customers.get_mut(index) else {
            return;
        };
        if customer.generation == generation {
            let wishes = act(customer, now);
            self.grant(index, generation, wishes);
        }
    }

    pub(super) fn grant(&mut self, index: usize, generation: u64, wishes: Vec<Wish>) {
        for wish in wishes {
            match wish {
                Wish::Send { to, frame } => self.ask(index, to, &frame),
                Wish::Timer {
                    generation: number,
                    nanos,
                } => self.agenda.after(
                    nanos,
                    Happening::ClientTimer {
                        client: index,
                        generation,
                        number,
                    },
                ),
                Wish::Renumber => self.renumber(index, generation),
                Wish::Answered { call, result, .. } if stewards::asked(call) => {
                    self.steward_hears(call, Some(&result));
                }
                Wish::Unanswered { call, .. } if stewards::asked(call) => {
                    self.steward_hears(call, None);
                }
                Wish::Answered {
                    call,
                    operation,
                    result,
                    version,
                } => {
                    let at = self.agenda.now().0;
                    self.answered += 1;
                    self.shows(index, call, version, &operation);
                    self.settle(index, call, &operation, Some((at, result)));
                    self.pause(index, generation);
                }
                Wish::Unanswered {
                    call,
                    operation,
                    reason,
                } => {
                    self.note(|_| format!("client {index} gives up call {call}: {reason}"));
                    self.counters.count("outcomes_unknown");
                    self.unanswered(index, call, reason);
                    self.settle(index, call, &operation, None);
                    self.pause(index, generation);
                }
                Wish::Opened { session } => {
                    self.note(|_| format!("client {index} has session {session}"));
                    if let Some(customer) = self.customers.get_mut(index) {
                        customer.session_id = Some(session);
                    }
                    for _ in 0..2 * self.plan.lanes {
                        self.pause(index, generation);
                    }
                    let now = Monotonic(self.agenda.now().0);
                    for what in self.watched_keys() {
                        self.with_client(index, generation, |it, _| it.watch(now, what));
                    }
                }
                Wish::Watching {
                    what,
                    answer,
                    version,
                } => {
                    let customer = self.customers.get(index);
                    if let Some(session) = customer.and_then(|it| it.session_id) {
                        self.watching.watches(session, what, version, &answer);
                    }
                }
                Wish::Observed { observation } => self.observed(index, &observation),
                Wish::Watched { watched } => self.watched(index, &watched),
                Wish::Ended { end } => {
                    let what = format!("client {index} lost its session: {end}");
                    self.judge.violation(what);
                }
            }
        }
    }

    /// Whoever asks and is patient is told what came of it, whichever replicas crash meanwhile.
    fn unanswered(&mut self, client: usize, call: usize, reason: Failure) {
        let impatient = self.impatient.remove(&call);
        if reason == Failure::OutcomeUnknown && !impatient {
            let what = format!("client {client} was not told what came of call {call}: {reason}");
            self.judge.violation(what);
        }
    }

    /// A client is shown something of this version.
    fn shows(&mut self, client: usize, call: usize, version: u64, operation: &Bytes) {
        let Some(customer) = self.customers.get_mut(client) else {
            return;
        };
        customer.seen = customer.seen.max(version);
        let session = customer.session_id.unwrap_or_default();
        let mut state = version;
        if let Some(before) = self.reading.remove(&call) {
            // It is as new as all that anybody was shown before it was asked.
            state = version.max(before);
            let asked = (session, OperationKind::Query, operation.clone());
            let at = self.agenda.now().0;
            self.judge.order.read(state, at, call, asked);
        } else if let Some(call) = self.history.calls.get_mut(call) {
            call.version = Some(version);
        }
        match self.session_reading.get_mut(&call) {
            Some(read) => read.call.version = Some(version),
            None => self.shown = self.shown.max(state),
        }
    }

    /// An operation is over, for better or worse.
    fn settle(
        &mut self,
        client: usize,
        call: usize,
        operation: &Bytes,
        answer: Option<(u64, Bytes)>,
    ) {
        let result = answer.as_ref().map(|(_, result)| result);
        self.workload.answered(client, operation, result);
        let session = self.customers.get(client).and_then(|c| c.session_id);
        if let Some(mut read) = self.session_reading.remove(&call) {
            read.call.answer = answer;
            read.newest = self.newest.0;
            self.history.session_reads.push(read);
            return;
        }
        let Some(call) = self.history.calls.get_mut(call) else {
            return;
        };
        if let (Some(session), true, OperationKind::Execute) =
            (session, answer.is_some(), call.kind)
        {
            self.judge.answered(session, operation);
        }
        call.answer = answer;
    }

    /// A client thinks before it goes on.
    fn pause(&mut self, client: usize, generation: u64) {
        let mut nanos = self.client_random.between(MILLISECOND, self.plan.pause);
        if let Some((on, off)) = self.plan.bursts {
            let phase = self.agenda.now().0 % (on + off);
            nanos = nanos.min(2 * MILLISECOND);
            if phase >= on {
                nanos += on + off - phase;
            }
        }
        self.agenda
            .after(nanos, Happening::Next { client, generation });
    }

    /// Whether nobody has to ask for anything more.
    pub(super) fn enough(&self) -> bool {
        self.answered >= self.plan.operations && self.agenda.now() >= self.plan.healed
    }

    pub(super) fn next_operation(&mut self, client: usize, generation: u64) {
        let customer = self.customers.get(client);
        if customer.is_some_and(|customer| customer.generation == generation) && !self.enough() {
            self.ask_something(client);
        }
    }

    pub(super) fn ask_something(&mut self, client: usize) {
        let at = self.agenda.now().0;
        let Some(customer) = self.customers.get_mut(client) else {
            return;
        };
        let (Some(session), generation) = (customer.session_id, customer.generation) else {
            return;
        };
        let random = &mut self.client_random;
        let (mut kind, mut operation) = self.workload.next(client, random);
        for _ in 0..QUERY_DRAWS {
            if kind == OperationKind::Query || self.plan.queries == 0 || random.chance(1, 2) {
                break;
            }
            (kind, operation) = self.workload.next(client, random);
        }
        let impatient = random.chance(1, 50);
        let patience = if impatient {
            Nanos::from_millis(random.between(1, 300))
        } else {
            Nanos::from_secs(120)
        };
        let (seen, shown, newest) = (customer.seen, self.shown, self.newest.0);
        let asked = Call {
            client,
            kind,
            operation: operation.clone(),
            invoked: at,
            answer: None,
            version: None,
        };
        let way = match kind {
            OperationKind::Query if self.plan.unordered_reads => match self.read_random.below(8) {
                0 => OperationKind::Query,
                1..3 => OperationKind::SessionRead,
                _ => OperationKind::Read,
            },
            other => other,
        };
        let call = if way == OperationKind::SessionRead {
            self.counters.count("session_reads");
            let read = SessionRead {
                call: asked,
                session: generation,
                floor: seen,
                newest,
            };
            self.session_calls += 1;
            let call = usize::MAX - self.session_calls;
            self.session_reading.insert(call, read);
            call
        } else {
            self.history.calls.push(asked);
            self.history.calls.len() - 1
        };
        if impatient {
            self.impatient.insert(call);
        }
        match way {
            OperationKind::Read => {
                self.reading.insert(call, shown);
            }
            OperationKind::SessionRead => {}
            _ => self.judge.order.submitted(session, kind, &operation, call),
        }
        if kind == OperationKind::Execute {
            self.judge.submitted(session, &operation);
        }
        let wishes = customer.submit(Monotonic(at), call, way, operation, patience);
        self.grant(client, generation, wishes);
    }
}
