//! Reports to observers, and events to watchers.
//!
//! This runs outside the order and never delays it: after a step the short report is compared with
//! the last one, and if it differs, one frame is encoded for all observers. Executed batches make a
//! report only every so often. Frames are sent as [`Effect::Show`], which the driver may drop.
//! Nothing waits for an observer, and an observer that does not read from its connection costs no
//! more than an outbox holds.
//!
//! The STATUS timer, which runs in any case, sends the current state to observers that have
//! received nothing for a second: that is how they learn of dropped frames.
//!
//! Always: a bounded number of observers, two connections for a session's events, and none whose
//! connection is closed. An event may be shown before it is durable here: its batch is committed,
//! so it took place, and a client that received it asks for no older state (`observer::watch`).

use super::Replica;
use crate::identity::{ConnectionId, Monotonic, SessionId};
use crate::observer::{NumberedReport, Observe, Observed, Report, WatchEvent, WatchRefusal};
use crate::service::Service;
use crate::state::{StateError, Store};
use crate::step::{Destination, Effect, Effects};
use crate::wire::limits::{
    OBSERVED_INTERVAL, OBSERVERS_MAX, REPORT_INTERVAL, SESSION_CONNECTIONS_MAX, WATCHERS_MAX,
};
use crate::wire::message::Message;
use std::collections::{BTreeMap, BTreeSet};

/// The observers of this replica.
#[derive(Debug, Default)]
pub(super) struct Observers {
    /// The connections that are sent reports.
    reported: BTreeSet<ConnectionId>,
    /// The connections that are sent events, and of which session.
    watchers: BTreeMap<ConnectionId, SessionId>,
    /// The same the other way round, the newest connection last.
    sessions: BTreeMap<SessionId, Vec<ConnectionId>>,
    /// Reports made so far.
    number: u64,
    last: Option<Report>,
    /// When a report was last sent.
    sent: Monotonic,
    /// When watchers were last sent the current state.
    stood: Monotonic,
}

impl Observers {
    /// A connection is closed.
    pub(super) fn disconnected(&mut self, connection: ConnectionId) {
        self.reported.remove(&connection);
        if let Some(session) = self.watchers.remove(&connection)
            && let Some(connections) = self.sessions.get_mut(&session)
        {
            connections.retain(|it| *it != connection);
            if connections.is_empty() {
                self.sessions.remove(&session);
            }
        }
    }

    fn watch(&mut self, connection: ConnectionId, session: SessionId) -> Result<(), WatchRefusal> {
        if self.watchers.len() >= WATCHERS_MAX {
            return Err(WatchRefusal::Full);
        }
        let connections = self.sessions.entry(session).or_default();
        if connections.len() >= SESSION_CONNECTIONS_MAX {
            self.watchers.remove(&connections.remove(0));
        }
        connections.push(connection);
        self.watchers.insert(connection, session);
        Ok(())
    }
}

impl<S: Service, D: Store> Replica<S, D> {
    /// A client starts or stops observing.
    pub(super) fn observe(
        &mut self,
        connection: ConnectionId,
        observe: &Observe,
        effects: &mut Effects,
    ) -> Result<(), StateError> {
        self.observers.disconnected(connection);
        let mut observed = Ok(());
        if observe.reports {
            if self.observers.reported.len() < OBSERVERS_MAX {
                self.observers.reported.insert(connection);
                let report = self.report();
                self.observers.last.get_or_insert(report);
                let number = self.observers.number;
                let numbered = NumberedReport { number, report };
                self.send_unsigned(
                    Destination::Client(connection),
                    Message::Report(numbered),
                    effects,
                );
            } else {
                observed = Err(WatchRefusal::Full);
            }
        }
        if let Some(session) = observe.session {
            // A wrong state is not shown.
            observed = match self.pool.is_open(session) {
                _ if self.states.finding.is_some() => Err(WatchRefusal::Full),
                true => observed.and(self.observers.watch(connection, session)),
                false => Err(WatchRefusal::NoSession),
            };
        }
        self.counters.observers_refused += u64::from(observed.is_err());
        let observed = match observed {
            Ok(()) => self.observed_state(observe.session)?,
            Err(refusal) => Observed::Refused(refusal),
        };
        let to = Destination::Client(connection);
        self.send_unsigned(to, Message::Observed(observed), effects);
        Ok(())
    }

    fn observed_state(&self, session: Option<SessionId>) -> Result<Observed, StateError> {
        let last = match session {
            Some(session) => self.executor.last_event(&self.space, session)?,
            None => None,
        };
        let applied = self.last_executed.sequence;
        Ok(Observed::Accepted { applied, last })
    }

    fn report(&self) -> Report {
        Report {
            epoch: self.context.epoch,
            view: self.views.view,
            leader: self.leader(),
            active: self.views.active(),
            executed: self.last_executed.sequence,
            stable: self.states.known.stable_sequence(),
            transfer: self.sink.as_ref().map(|it| it.target.checkpoint.sequence),
            voting: self.voting,
        }
    }

    /// After a step: sends a report if there is news.
    pub(super) fn show_report(&mut self, effects: &mut Effects) {
        if self.observers.reported.is_empty() {
            return;
        }
        let report = self.report();
        let since = self.now.monotonic.since(self.observers.sent);
        let news = match &self.observers.last {
            None => true,
            Some(last) if *last == report => return,
            Some(last) => report.differs_beyond_progress(last) || since >= REPORT_INTERVAL,
        };
        if news {
            self.observers.number += 1;
            self.observers.last = Some(report);
            self.send_report(report, effects);
        }
    }

    fn send_report(&mut self, report: Report, effects: &mut Effects) {
        self.observers.sent = self.now.monotonic;
        self.counters.reports += 1;
        let number = self.observers.number;
        let numbered = NumberedReport { number, report };
        let to = self.observers.reported.iter().copied().collect();
        self.show(to, Message::Report(numbered), effects);
    }

    /// The STATUS timer: observers that have received nothing for long are sent the current state.
    pub(super) fn remind_observers(&mut self, effects: &mut Effects) -> Result<(), StateError> {
        let now = self.now.monotonic;
        let quiet = now.since(self.observers.sent) >= OBSERVED_INTERVAL;
        if quiet && !self.observers.reported.is_empty() {
            let report = self.report();
            self.observers.number += u64::from(self.observers.last != Some(report));
            self.observers.last = Some(report);
            self.send_report(report, effects);
        }
        let stood = now.since(self.observers.stood);
        if stood < OBSERVED_INTERVAL || self.states.finding.is_some() {
            return Ok(());
        }
        self.observers.stood = now;
        let sessions: Vec<SessionId> = self.observers.sessions.keys().copied().collect();
        for session in sessions {
            let standing = match self.pool.is_open(session) {
                true => self.observed_state(Some(session))?,
                false => Observed::Refused(WatchRefusal::NoSession),
            };
            let to = self.observers.sessions.get(&session).cloned();
            self.show(to.unwrap_or_default(), Message::Observed(standing), effects);
            if !self.pool.is_open(session) {
                for connection in self
                    .observers
                    .sessions
                    .remove(&session)
                    .into_iter()
                    .flatten()
                {
                    self.observers.watchers.remove(&connection);
                }
            }
        }
        Ok(())
    }

    /// A batch made events.
    pub(super) fn show_events(&mut self, events: Vec<WatchEvent>, effects: &mut Effects) {
        for event in events {
            self.counters.watch_events += 1;
            if let Some(to) = self.observers.sessions.get(&event.session).cloned() {
                self.show(to, Message::WatchEvent(event), effects);
            }
        }
    }

    fn show(&self, to: Vec<ConnectionId>, message: Message, effects: &mut Effects) {
        let header = self.context.header(self.views.view);
        let frame = crate::wire::encode(header, &message);
        effects.push(Effect::Show { to, frame });
    }
}
