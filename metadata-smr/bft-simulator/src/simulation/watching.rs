//! Clients that observe replicas and watch keys, and whether the reports they get are true.
//!
//! The logged services show the real changes, and the honest replicas' reports show the real
//! statuses. A watcher gets every change in order, or is asked to look again; a status reported by
//! a quorum must be one that an honest replica had.

use super::Simulation;
use crate::workload::Workload;
use bytes::Bytes;
use quorumfs_bft::identity::{Epoch, Sequence, SessionId, View};
use quorumfs_bft::observer::{Activity, Fact, Observation, Report, WatchAnswer, WatchId, Watched};
use std::collections::{BTreeMap, BTreeSet};

/// The watches of a session, and how far they are covered.
#[derive(Debug, Default)]
struct Watcher {
    /// The key of each watch, and the batch since which it is watched.
    watches: BTreeMap<WatchId, (Bytes, Sequence)>,
    /// All changes up to here were reported, or the session will look for them.
    covered: Sequence,
}

/// All watchers, and the facts.
#[derive(Debug, Default)]
pub(super) struct Watching {
    /// The changed keys of each batch.
    changed: BTreeMap<Sequence, Vec<Bytes>>,
    watchers: BTreeMap<SessionId, Watcher>,
    /// The highest values that honest replicas have reported.
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

    /// An honest replica reports its status.
    pub(super) fn reported(&mut self, report: &Report) {
        self.epoch = self.epoch.max(report.epoch);
        let view = self.views.entry(report.epoch).or_default();
        *view = report.view.max(*view);
        self.executed = self.executed.max(report.executed);
        self.stable = self.stable.max(report.stable);
        let activity = (report.epoch, report.view, report.leader.0, report.active);
        self.activities.insert(activity);
    }

    /// Whether an observation is wrong for an observer in `epoch`.
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

    /// A session watches a key.
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

    /// Checks what a watcher got; returns the error, if there is one.
    pub(super) fn check_watched(
        &mut self,
        session: SessionId,
        watched: &Watched,
    ) -> Option<String> {
        let watcher = self.watchers.get_mut(&session)?;
        let (up_to, reported) = match watched {
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
            // Of its registration's batch: it may have looked before it got this.
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
                    "a watcher of session {session} got {up_to} but not the change of \
                     watch {watch} at {at}"
                ));
            }
            let (claimed, real) = (reported.contains(watch), now.contains(what));
            if claimed != real && up_to > *since {
                return Some(format!(
                    "a watcher of session {session} got for watch {watch} at {up_to}: \
                     changed {claimed}, but it is {real}"
                ));
            }
        }
        None
    }

    /// The last change that a session has not learned of, if there is one.
    fn missed_change(&self, session: SessionId) -> Option<Sequence> {
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
    /// The keys that clients of this run watch.
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
        let honest_client = self.honest_clients.get(client);
        let epoch = honest_client.map_or(Epoch(0), |it| it.membership().epoch);
        if self.watching.refuted(observation, epoch) {
            let what = format!("client {client} got a status that no correct replica had");
            self.judge.violation(format!("{what}: {observation:?}"));
        }
    }

    pub(super) fn watched(&mut self, client: usize, watched: &Watched) {
        self.note(|_| format!("client {client} gets: {watched:?}"));
        self.counters.count(match watched {
            Watched::Changed { .. } => "changes_told",
            Watched::Revalidate { .. } => "revalidations",
            Watched::Blind => "watchers_blind",
        });
        let honest_client = self.honest_clients.get(client);
        if let Some(session) = honest_client.and_then(|honest_client| honest_client.session_id)
            && let Some(what) = self.watching.check_watched(session, watched)
        {
            self.judge.violation(what);
        }
    }

    /// The watchers that have not learned of the last change.
    pub(super) fn lagging_watchers(&self) -> Vec<String> {
        let sessions = self.honest_clients.iter().filter_map(|it| it.session_id);
        let behind = |session| Some((session, self.watching.missed_change(session)?));
        sessions
            .filter_map(behind)
            .map(|(session, at)| format!("session {session} did not learn of the change at {at}"))
            .collect()
    }
}
