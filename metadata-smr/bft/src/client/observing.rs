//! Asking replicas for reports and watch events, and handling their messages.
//!
//! Every connected replica is asked, again after each reconnect, and again if it has sent nothing
//! for a few seconds: asking twice changes nothing. Watches need a session and are requested once
//! it is open. [`crate::observer`] decides what counts; this module only passes it on. In a later
//! epoch the replicas have other numbers, and are asked again once the driver has reported them.

use super::config::ClientConfig;
use super::encoding;
use super::event::{Effect, Effects};
use crate::identity::{Monotonic, ReplicaId, Sequence, SessionId};
use crate::observer::{
    Chain, NumberedReport, Observation, Observe, Observed, Tally, WatchAnswer, WatchEvent, WatchId,
    Watched,
};
use crate::wire::limits::{OBSERVED_INTERVAL, OBSERVED_SILENT};
use std::collections::BTreeMap;

/// A replica that is connected.
#[derive(Clone, Copy, Debug)]
struct Contact {
    /// When it was last asked.
    asked: Monotonic,
    /// When it last sent something, or was connected.
    last_message: Monotonic,
    /// When it last reported its standing with the session.
    last_standing: Monotonic,
}

/// What a client wants to observe.
#[derive(Debug)]
pub(super) struct Observing {
    reports: bool,
    watches: bool,
    session: Option<SessionId>,
    /// The connected replicas.
    contacts: BTreeMap<ReplicaId, Contact>,
    tally: Tally,
    chain: Chain,
    notified: Sequence,
}

impl Observing {
    pub(super) fn new(config: &ClientConfig) -> Self {
        let model = &config.fault_model;
        Self {
            reports: false,
            watches: false,
            session: None,
            contacts: BTreeMap::new(),
            tally: Tally::new(model),
            chain: Chain::sabotaged(model, config.accepts_one_watch_event),
            notified: Sequence(0),
        }
    }

    const fn is_observing(&self) -> bool {
        self.reports || self.watches
    }

    /// Sets what its owner wants to observe from now on.
    pub(super) fn want(
        &mut self,
        (reports, watches): (bool, bool),
        config: &ClientConfig,
        now: Monotonic,
        effects: &mut Effects,
    ) {
        (self.reports, self.watches) = (reports, watches);
        let all: Vec<ReplicaId> = self.contacts.keys().copied().collect();
        for replica in all {
            self.ask(replica, config, now, effects);
        }
    }

    fn ask(
        &mut self,
        replica: ReplicaId,
        config: &ClientConfig,
        now: Monotonic,
        effects: &mut Effects,
    ) {
        if let Some(contact) = self.contacts.get_mut(&replica) {
            contact.asked = now;
        }
        let observe = Observe {
            reports: self.reports,
            session: self.session.filter(|_| self.watches),
        };
        let frame = encoding::observe(config, observe);
        effects.push(Effect::Send { to: replica, frame });
    }

    pub(super) fn connected(
        &mut self,
        replica: ReplicaId,
        config: &ClientConfig,
        now: Monotonic,
        effects: &mut Effects,
    ) {
        let fresh = Contact {
            asked: now,
            last_message: now,
            last_standing: now,
        };
        self.contacts.insert(replica, fresh);
        if self.is_observing() {
            self.ask(replica, config, now, effects);
        }
    }

    pub(super) fn disconnected(&mut self, replica: ReplicaId, effects: &mut Effects) {
        self.contacts.remove(&replica);
        self.chain.lost(replica);
        observed(self.tally.lost(replica), effects);
        self.pass_on(effects);
    }

    /// Enters a later epoch: connected replicas will be reported under their new numbers.
    pub(super) fn enter(&mut self, config: &ClientConfig, effects: &mut Effects) {
        self.contacts.clear();
        self.chain.enter(&config.fault_model);
        observed(self.tally.enter(&config.fault_model), effects);
        self.pass_on(effects);
    }

    /// A session is open.
    pub(super) fn opened(
        &mut self,
        session: SessionId,
        config: &ClientConfig,
        now: Monotonic,
        effects: &mut Effects,
    ) {
        self.session = Some(session);
        if self.watches {
            self.want((self.reports, true), config, now, effects);
        }
    }

    /// The session has ended.
    pub(super) fn ended(&mut self) {
        self.session = None;
        self.notified = Sequence(0);
        self.chain.reset();
    }

    pub(super) fn reported(
        &mut self,
        from: ReplicaId,
        report: &NumberedReport,
        now: Monotonic,
        effects: &mut Effects,
    ) {
        if self.note_contact(from, now) {
            observed(self.tally.reported(from, report, now), effects);
        }
    }

    pub(super) fn standing(
        &mut self,
        from: ReplicaId,
        standing: &Observed,
        now: Monotonic,
        effects: &mut Effects,
    ) {
        if !self.note_contact(from, now) {
            return;
        }
        if let Some(contact) = self.contacts.get_mut(&from) {
            contact.last_standing = now;
        }
        if self.watches && self.session.is_some() {
            self.chain.standing(from, standing, now);
            self.pass_on(effects);
        }
        if matches!(standing, Observed::Refused(_)) {
            observed(self.tally.lost(from), effects);
        }
    }

    pub(super) fn event(
        &mut self,
        from: ReplicaId,
        event: WatchEvent,
        now: Monotonic,
        effects: &mut Effects,
    ) {
        if self.note_contact(from, now) && self.watches && self.session == Some(event.session) {
            self.chain.event(from, event, now);
            self.pass_on(effects);
        }
    }

    /// Handles the answer to an attempt to watch, or (`ended`) to end a watch.
    pub(super) fn answered(
        &mut self,
        answer: &[u8],
        ended: Option<WatchId>,
        now: Monotonic,
        effects: &mut Effects,
    ) {
        match (WatchAnswer::decode(answer), ended) {
            (Some(WatchAnswer::Ended), Some(watch)) => self.chain.ended(watch),
            (Some(answer), None) => self.chain.answered(&answer, now),
            _ => {}
        }
        self.pass_on(effects);
    }

    /// The timer ran out.
    pub(super) fn expire(&mut self, config: &ClientConfig, now: Monotonic, effects: &mut Effects) {
        self.chain.expire(now);
        self.pass_on(effects);
        observed(self.tally.expire(now), effects);
        if !self.is_observing() {
            return;
        }
        let all: Vec<ReplicaId> = self.contacts.keys().copied().collect();
        for replica in all {
            let Some(contact) = self.contacts.get(&replica).copied() else {
                continue;
            };
            if now.since(contact.last_standing) >= OBSERVED_SILENT {
                self.chain.lost(replica);
            }
            if self.due(replica, &contact) <= now {
                self.ask(replica, config, now, effects);
            }
        }
        self.pass_on(effects);
    }

    /// The next instant at which something is due.
    pub(super) fn next_deadline(&self) -> Option<Monotonic> {
        if !self.is_observing() {
            return None;
        }
        let due = |(replica, contact): (&ReplicaId, &Contact)| self.due(*replica, contact);
        let silent = self.contacts.iter().map(due).min();
        let tally = self.tally.next_deadline();
        let all = [self.chain.next_deadline(), silent, tally];
        all.into_iter().flatten().min()
    }

    /// When a replica is asked again. A replica that lags may not have known the session.
    fn due(&self, replica: ReplicaId, contact: &Contact) -> Monotonic {
        let watches = self.watches && self.session.is_some();
        if watches && !self.chain.is_reporting(replica) {
            return contact.asked.plus(OBSERVED_INTERVAL);
        }
        let last = match watches {
            true => contact.last_message.min(contact.last_standing),
            false => contact.last_message,
        };
        contact.asked.max(last).plus(OBSERVED_SILENT)
    }

    /// Notes that a replica sent something. False if it is not connected, so that it does not
    /// count.
    fn note_contact(&mut self, from: ReplicaId, now: Monotonic) -> bool {
        match self.contacts.get_mut(&from) {
            Some(contact) => {
                contact.last_message = now;
                true
            }
            None => false,
        }
    }

    /// The newest batch that the session was notified of as a watcher.
    pub(super) const fn notified(&self) -> Sequence {
        self.notified
    }

    fn pass_on(&mut self, effects: &mut Effects) {
        for watched in self.chain.take() {
            match &watched {
                Watched::Changed { sequence, .. } => self.notified = self.notified.max(*sequence),
                Watched::Revalidate { up_to } => self.notified = self.notified.max(*up_to),
                Watched::Blind => {}
            }
            effects.push(Effect::Watched { watched });
        }
    }
}

fn observed(news: impl IntoIterator<Item = Observation>, effects: &mut Effects) {
    for observation in news {
        effects.push(Effect::Observed { observation });
    }
}
