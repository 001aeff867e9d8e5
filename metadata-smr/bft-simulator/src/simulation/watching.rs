//! Clients that observe replicas and watch keys, and whether what they are told is so.
//!
//! The truth about changes comes from whoever looks over the services' shoulders, that about
//! replicas from what the honest ones said. A watcher is told of every change in order, or told to
//! look again; what a quorum is said to be, an honest replica was.

use super::Simulation;
use crate::workload::Workload;
use bytes::Bytes;
use quorumfs_bft::identity::{Epoch, Sequence, SessionId, View};
use quorumfs_bft::observer::{Activity, Fact, Observation, Report, WatchAnswer, WatchId, Watched};
use std::collections::{BTreeMap, BTreeSet};

/// What a session watches, and how far it was told.
#[derive(Debug, Default)]
struct Watcher {
    /// What, and since which batch.
    watches: BTreeMap<WatchId, (Bytes, Sequence)>,
    /// All changes up to here were told, or will be looked for.
    covered: Sequence,
}

/// All watchers, and what is true.
#[derive(Debug, Default)]
pub(super) struct Watching {
    /// What changed in which batch.
    changed: BTreeMap<Sequence, Vec<Bytes>>,
    watchers: BTreeMap<SessionId, Watcher>,
    /// The most that an honest replica ever said.
    epoch: Epoch,
    views: BTreeMap<Epoch, View>,
    executed: Sequence,
    stable: Sequence,
    activities: BTreeSet<(Epoch, View, u16, bool)>,
}

impl Watching {
    pub(super) fn ran(&mut self, sequence: Sequence, changed: &[Bytes]) {
        if !changed.is_empty() {
            self.changed
                .entry(sequence)
                .or_insert_with(|| changed.to_vec());
        }
    }

    /// An honest replica says what it is.
    pub(super) fn said(&mut self, report: &Report) {
        self.epoch = self.epoch.max(report.epoch);
        let view = self.views.entry(report.epoch).or_default();
        *view = report.view.max(*view);
        self.executed = self.executed.max(report.executed);
        self.stable = self.stable.max(report.stable);
        let activity = (report.epoch, report.view, report.leader.0, report.active);
        self.activities.insert(activity);
    }

    /// Whether what an observer in `epoch` was told is wrong.
    fn refuted(&self, observation: &Observation, epoch: Epoch) -> bool {
        match *observation {
            Observation::Fact(fact) => match fact {
                Fact::Epoch(began) => began > self.epoch,
                Fact::View(view) => self.views.get(&epoch).is_none_or(|most| view > *most),
                Fact::Executed(sequence) => sequence > self.executed,
                Fact::Stable(sequence) => sequence > self.stable,
            },
            Observation::Activity(activity) => {
                let Activity {
                    epoch,
                    view,
                    leader,
                    active,
                } = activity;
                !self.activities.contains(&(epoch, view, leader.0, active))
            }
            Observation::Single { .. } | Observation::Silent { .. } => false,
        }
    }

    /// A session watches something.
    pub(super) fn watches(&mut self, session: SessionId, what: Bytes, at: u64, answer: &[u8]) {
        if let Some(WatchAnswer::Watching { watch, .. }) = WatchAnswer::decode(answer) {
            let at = Sequence(at);
            let fresh = || Watcher {
                covered: at,
                ..Watcher::default()
            };
            let watcher = self.watchers.entry(session).or_insert_with(fresh);
            watcher.watches.insert(watch, (what, at));
        }
    }

    /// A watcher was told something. What is wrong with it, if something is.
    pub(super) fn told(&mut self, session: SessionId, watched: &Watched) -> Option<String> {
        let watcher = self.watchers.get_mut(&session)?;
        let (up_to, told) = match watched {
            Watched::Blind => return None,
            Watched::Revalidate { up_to } => {
                watcher.covered = watcher.covered.max(*up_to);
                return None;
            }
            Watched::Changed { sequence, watches } => (*sequence, watches),
        };
        let covered = watcher.covered;
        watcher.covered = covered.max(up_to);
        if up_to <= covered {
            // Of a batch that it had registered in: it may have looked before it was told.
            return None;
        }
        let nothing = Vec::new();
        let now = self.changed.get(&up_to).unwrap_or(&nothing);
        for (watch, (what, since)) in &watcher.watches {
            let missed = self
                .changed
                .range(covered.next()..up_to)
                .find(|(at, changed)| *at > since && changed.contains(what));
            if let Some((at, _)) = missed {
                return Some(format!(
                    "a watcher of session {session} was told of {up_to} and not of the change of \
                     watch {watch} at {at}"
                ));
            }
            let (says, is) = (told.contains(watch), now.contains(what));
            if says != is && up_to > *since {
                return Some(format!(
                    "a watcher of session {session} was told that watch {watch} changed at \
                     {up_to}: {says}, but it did: {is}"
                ));
            }
        }
        None
    }

    /// Until when a session has not been told what happened, if something did.
    fn behind(&self, session: SessionId) -> Option<Sequence> {
        let watcher = self.watchers.get(&session)?;
        let all = self.changed.range(watcher.covered.next()..).rev();
        let covers = |at: &Sequence, changed: &Vec<Bytes>| {
            let mut watches = watcher.watches.values();
            watches.any(|(what, since)| at > since && changed.contains(what))
        };
        all.into_iter()
            .find(|(at, changed)| covers(at, changed))
            .map(|(at, _)| *at)
    }
}

impl<W: Workload> Simulation<'_, W> {
    /// What clients of this run watch.
    pub(super) fn watched_keys(&self) -> Vec<Bytes> {
        match self.plan.watching {
            true => self.workload.watches(),
            false => Vec::new(),
        }
    }

    pub(super) fn observed(&mut self, client: usize, observation: &Observation) {
        match observation {
            Observation::Single { missed, .. } => self.counters.add("reports_missed", *missed),
            Observation::Silent { .. } => self.counters.count("replicas_silent"),
            Observation::Fact(_) => self.counters.count("facts"),
            Observation::Activity(_) => self.counters.count("activities"),
        }
        let customer = self.customers.get(client);
        let epoch = customer.map_or(Epoch(0), |it| it.membership().epoch);
        if self.watching.refuted(observation, epoch) {
            let what = format!("client {client} was told what no correct replica was");
            self.judge.violation(format!("{what}: {observation:?}"));
        }
    }

    pub(super) fn watched(&mut self, client: usize, watched: &Watched) {
        self.note(|_| format!("client {client} is told: {watched:?}"));
        self.counters.count(match watched {
            Watched::Changed { .. } => "changes_told",
            Watched::Revalidate { .. } => "revalidations",
            Watched::Blind => "watchers_blind",
        });
        let customer = self.customers.get(client);
        if let Some(session) = customer.and_then(|customer| customer.session_id)
            && let Some(what) = self.watching.told(session, watched)
        {
            self.judge.violation(what);
        }
    }

    /// The watchers that were not told of the last change.
    pub(super) fn watchers_behind(&self) -> Vec<String> {
        let sessions = self.customers.iter().filter_map(|it| it.session_id);
        let behind = |session| Some((session, self.watching.behind(session)?));
        sessions
            .filter_map(behind)
            .map(|(session, at)| format!("session {session} was not told of the change at {at}"))
            .collect()
    }
}
