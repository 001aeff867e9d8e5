//! The honest clients: their actions, and their next operations.

use super::{Happening, Simulation, administrator};
use crate::agenda::MILLISECOND;
use crate::history::{Call, OperationKind, SessionRead};
use crate::honest_client::{ClientAction, HonestClient};
use crate::workload::Workload;
use bytes::Bytes;
use quorumfs_bft::client::Failure;
use quorumfs_bft::identity::{Monotonic, Nanos};

/// How many operations a client that mostly reads draws to find a query.
const QUERY_DRAWS: usize = 6;
/// The same where only queries are wanted.
const READ_DRAWS: usize = 64;
/// How long a client waits for an answer.
const PATIENCE: Nanos = Nanos::from_secs(120);

impl<W: Workload> Simulation<'_, W> {
    pub(super) fn with_client(
        &mut self,
        index: usize,
        generation: u64,
        act: impl FnOnce(&mut HonestClient, Monotonic) -> Vec<ClientAction>,
    ) {
        let now = Monotonic(self.agenda.now().0);
        let Some(honest_client) = self.honest_clients.get_mut(index) else {
            return;
        };
        if honest_client.generation == generation {
            let actions = act(honest_client, now);
            self.carry_out_client(index, generation, actions);
        }
    }

    pub(super) fn carry_out_client(
        &mut self,
        index: usize,
        generation: u64,
        actions: Vec<ClientAction>,
    ) {
        for action in actions {
            match action {
                ClientAction::Send { to, frame } => self.send_request(index, to, &frame),
                ClientAction::Timer {
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
                ClientAction::Renumber => self.renumber(index, generation),
                ClientAction::Answered { call, result, .. }
                    if administrator::is_administrative(call) =>
                {
                    self.administrator_answered(call, Some(&result));
                }
                ClientAction::Unanswered { call, .. } if administrator::is_administrative(call) => {
                    self.administrator_answered(call, None);
                }
                ClientAction::Answered {
                    call,
                    operation,
                    result,
                    version,
                } => {
                    let at = self.agenda.now().0;
                    self.answered += 1;
                    self.note_seen(index, call, version, &operation);
                    self.settle(index, call, &operation, Some((at, result)));
                    self.pause(index, generation);
                }
                ClientAction::Unanswered {
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
                ClientAction::Opened { session } => {
                    self.note(|_| format!("client {index} has session {session}"));
                    if let Some(honest_client) = self.honest_clients.get_mut(index) {
                        honest_client.session_id = Some(session);
                    }
                    for _ in 0..2 * self.plan.lanes {
                        self.pause(index, generation);
                    }
                    let now = Monotonic(self.agenda.now().0);
                    for what in self.watched_keys() {
                        self.with_client(index, generation, |it, _| it.watch(now, what));
                    }
                }
                ClientAction::Watching {
                    what,
                    answer,
                    version,
                } => {
                    let honest_client = self.honest_clients.get(index);
                    if let Some(session) = honest_client.and_then(|it| it.session_id) {
                        self.watching.watches(session, what, version, &answer);
                    }
                }
                ClientAction::Observed { observation } => self.observed(index, &observation),
                ClientAction::Watched { watched } => self.watched(index, &watched),
                ClientAction::Ended { end } => {
                    let what = format!("client {index} lost its session: {end}");
                    self.judge.violation(what);
                }
            }
        }
    }

    /// Every call that its client did not give up has an outcome, whichever replicas crash.
    fn unanswered(&mut self, client: usize, call: usize, reason: Failure) {
        let impatient = self.impatient.remove(&call);
        if reason == Failure::OutcomeUnknown && !impatient {
            let what = format!("client {client} has no outcome of call {call}: {reason}");
            self.judge.violation(what);
        }
    }

    /// A client has seen a state of this version.
    fn note_seen(&mut self, client: usize, call: usize, version: u64, operation: &Bytes) {
        let Some(honest_client) = self.honest_clients.get_mut(client) else {
            return;
        };
        honest_client.seen = honest_client.seen.max(version);
        let session = honest_client.session_id.unwrap_or_default();
        let mut state = version;
        if let Some(before) = self.reading.remove(&call) {
            // It is as new as everything that any client had seen before it was submitted.
            state = version.max(before);
            let submitted = (session, OperationKind::Query, operation.clone());
            let at = self.agenda.now().0;
            self.judge.order.read(state, at, call, submitted);
        } else if let Some(call) = self.history.calls.get_mut(call) {
            call.version = Some(version);
        }
        match self.session_reading.get_mut(&call) {
            Some(read) => read.call.version = Some(version),
            None => self.shown = self.shown.max(state),
        }
    }

    /// An operation has ended, with or without an answer.
    fn settle(
        &mut self,
        client: usize,
        call: usize,
        operation: &Bytes,
        answer: Option<(u64, Bytes)>,
    ) {
        let result = answer.as_ref().map(|(_, result)| result);
        self.workload.answered(client, operation, result);
        let session = self.honest_clients.get(client).and_then(|c| c.session_id);
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

    /// A client pauses before its next operation.
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

    /// Whether the clients have sent enough operations.
    pub(super) fn enough(&self) -> bool {
        self.answered >= self.plan.operations && self.agenda.now() >= self.plan.healed
    }

    pub(super) fn next_operation(&mut self, client: usize, generation: u64) {
        let honest_client = self.honest_clients.get(client);
        if honest_client.is_some_and(|honest_client| honest_client.generation == generation)
            && !self.enough()
        {
            self.submit_operation(client);
        }
    }

    /// Submits an unordered query, if the workload has one soon.
    pub(super) fn submit_read(&mut self, client: usize) {
        if !self.plan.unordered_reads {
            return;
        }
        for _ in 0..READ_DRAWS {
            let (kind, operation) = self.workload.next(client, &mut self.client_random);
            if kind == OperationKind::Query {
                self.submit(client, OperationKind::Read, operation, PATIENCE);
                return;
            }
        }
    }

    pub(super) fn submit_operation(&mut self, client: usize) {
        let honest_client = self.honest_clients.get(client);
        if honest_client.is_none_or(|it| it.session_id.is_none()) {
            return;
        }
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
            PATIENCE
        };
        let way = match kind {
            OperationKind::Query if self.plan.unordered_reads => match self.read_random.below(8) {
                0 => OperationKind::Query,
                1..3 => OperationKind::SessionRead,
                _ => OperationKind::Read,
            },
            other => other,
        };
        self.submit(client, way, operation, patience);
    }

    fn submit(&mut self, client: usize, way: OperationKind, operation: Bytes, patience: Nanos) {
        let at = self.agenda.now().0;
        let Some(honest_client) = self.honest_clients.get_mut(client) else {
            return;
        };
        let (Some(session), generation) = (honest_client.session_id, honest_client.generation)
        else {
            return;
        };
        let kind = match way {
            OperationKind::Read | OperationKind::SessionRead => OperationKind::Query,
            other => other,
        };
        let (seen, shown, newest) = (honest_client.seen, self.shown, self.newest.0);
        let submitted = Call {
            client,
            session,
            kind,
            operation: operation.clone(),
            invoked: at,
            answer: None,
            version: None,
        };
        let call = if way == OperationKind::SessionRead {
            self.counters.count("session_reads");
            let read = SessionRead {
                call: submitted,
                session: generation,
                floor: seen,
                newest,
            };
            self.session_calls += 1;
            let call = usize::MAX - self.session_calls;
            self.session_reading.insert(call, read);
            call
        } else {
            self.history.calls.push(submitted);
            self.history.calls.len() - 1
        };
        if patience < PATIENCE {
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
        let actions = honest_client.submit(Monotonic(at), call, way, operation, patience);
        self.carry_out_client(client, generation, actions);
    }
}
