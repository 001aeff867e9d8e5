//! Telling observers what this replica is, and watchers what has changed.
//!
//! It lies beside the order and never in its way: after a step the little that a report says is
//! compared with what was said last, and if there is news, one frame is laid out for all observers.
//! Batches that are executed make a report only every so often. Frames go out as
//! [`Effect::Show`], which the driver may drop. Nothing waits for an observer, and an observer that
//! takes nothing off its connection costs what an outbox holds.
//!
//! The STATUS timer, which runs in any case, tells those who have heard nothing for a second where
//! this replica stands: that is how they learn of what was dropped.
//!
//! Always: so many observers at most, two connections for a session's events, and none whose
//! connection is gone. An event may be shown before it is durable here: its batch is committed, so
//! it took place, and whoever was told asks for no older state (`observer::watch`).

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

/// Who observes this replica.
#[derive(Debug, Default)]
pub(super) struct Observers {
    /// Those who are sent reports.
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
    /// When watchers were last told where this replica stands.
    stood: Monotonic,
}

impl Observers {
    /// A connection is gone.
    pub(super) fn gone(&mut self, connection: ConnectionId) {
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
    /// A client wants to be told what happens, or no longer.
    pub(super) fn observe(
        &mut self,
        connection: ConnectionId,
        observe: &Observe,
        effects: &mut Effects,
    ) -> Result<(), StateError> {
        self.observers.gone(connection);
        let mut observed = Ok(());
        if observe.reports {
            if self.observers.reported.len() < OBSERVERS_MAX {
                self.observers.reported.insert(connection);
                let report = self.report();
                self.observers.last.get_or_insert(report);
                let number = self.observers.number;
                let said = NumberedReport { number, report };
                self.say(
                    Destination::Client(connection),
                    Message::Report(said),
                    effects,
                );
            } else {
                observed = Err(WatchRefusal::Full);
            }
        }
        if let Some(session) = observe.session {
            // What a wrong state has is shown to nobody.
            observed = match self.pool.is_open(session) {
                _ if self.states.finding.is_some() => Err(WatchRefusal::Full),
                true => observed.and(self.observers.watch(connection, session)),
                false => Err(WatchRefusal::NoSession),
            };
        }
        self.counters.observers_refused += u64::from(observed.is_err());
        let observed = match observed {
            Ok(()) => self.standing_of(observe.session)?,
            Err(refusal) => Observed::Refused(refusal),
        };
        let to = Destination::Client(connection);
        self.say(to, Message::Observed(observed), effects);
        Ok(())
    }

    fn standing_of(&self, session: Option<SessionId>) -> Result<Observed, StateError> {
        let last = match session {
            Some(session) => self.executor.last_event(&self.space, session)?,
            None => None,
        };
        let applied = self.tip.sequence;
        Ok(Observed::Accepted { applied, last })
    }

    fn report(&self) -> Report {
        Report {
            epoch: self.context.epoch,
            view: self.views.view,
            leader: self.leader(),
            active: self.views.active(),
            executed: self.tip.sequence,
            stable: self.states.known.stable_sequence(),
            transfer: self.sink.as_ref().map(|it| it.target.checkpoint.sequence),
            voting: self.voting,
        }
    }

    /// After a step: tells observers if there is something to tell.
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
        let said = NumberedReport { number, report };
        let to = self.observers.reported.iter().copied().collect();
        self.show(to, Message::Report(said), effects);
    }

    /// The STATUS timer: whoever has heard nothing for long is told where this replica stands.
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
                true => self.standing_of(Some(session))?,
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
