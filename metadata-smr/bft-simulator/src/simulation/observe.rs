//! Observing a run from outside.

use super::Simulation;
use crate::profile::Profile;
use crate::report::Report;
use crate::workload::Workload;
use quorumfs_bft::identity::{Sequence, SessionId, View};
use quorumfs_bft::state::DurableRoot;
use quorumfs_bft::step::Peer;
use quorumfs_bft::wire::Rejection;

impl<W: Workload> Simulation<'_, W> {
    /// Records the batches that a node has executed.
    pub(super) fn observe(&mut self, index: usize) {
        let Some(node) = self.nodes.get(index) else {
            return;
        };
        let (honest, replica) = (node.honest(), node.replica());
        let executed = node.log.take();
        if let (true, Some(status)) = (honest, node.status()) {
            self.newest = self.newest.max(status.sequence);
        }
        if !executed.is_empty() {
            self.advance_ambush(index);
        }
        for batch in executed {
            if honest {
                self.counters.add("service_ticks", u64::from(batch.ticks));
                self.judge.executed(replica, &batch);
                self.watching.ran(batch.sequence, &batch.changed);
                if batch.sequence > self.executed {
                    self.executed = batch.sequence;
                    if let Some(fault) = self.blackout.take() {
                        self.agenda.after(0, super::Happening::Dark(fault));
                    }
                }
            }
        }
    }

    /// A node's state has a root. Before the first one, parts of another state are written under no
    /// root.
    pub(super) fn root_observed(&mut self, index: usize, root: DurableRoot) {
        if let Some(node) = self.nodes.get(index)
            && node.honest()
            && root.sequence > Sequence(0)
        {
            let replica = node.replica();
            self.judge.root(replica, root);
        }
    }

    pub(super) fn poisoned(&mut self, index: usize, reason: &str) {
        let what = format!("node {index} stops: {reason}");
        self.note(|_| what.clone());
        if self.nodes.get(index).is_some_and(|node| node.honest()) {
            self.judge.violation(what);
        }
    }

    /// A node suspects that its disk was rolled back.
    pub(super) fn suspected_disk(&mut self, index: usize) {
        let what = format!("node {index} suspects its disk, which is intact");
        self.judge.violation(what);
    }

    /// A node refused a frame: if the sender is to blame, it ignores the sender for a while.
    pub(super) fn refused(&mut self, index: usize, peer: Peer, rejection: Rejection) {
        let at = self.agenda.now();
        if let Some(node) = self.nodes.get_mut(index)
            && rejection.blames_sender()
        {
            let now = node.clock.now(at);
            node.blame(now, peer);
            self.counters.count("peers_blacklisted");
        }
    }

    /// The honest replicas that have not executed everything that one of them has.
    pub(super) fn lagging_nodes(&self) -> Vec<String> {
        let mut at: Vec<(usize, Option<Sequence>)> = Vec::new();
        for (index, node) in self.nodes.iter().enumerate() {
            if node.honest() {
                at.push((index, node.status().map(|status| status.sequence)));
            }
        }
        let newest = at.iter().filter_map(|(_, sequence)| *sequence).max();
        at.into_iter()
            .filter(|(_, sequence)| *sequence != newest)
            .map(|(index, sequence)| {
                format!("node {index} is at {sequence:?}, another one at {newest:?}")
            })
            .collect()
    }

    /// Compares the states of the honest replicas, which have all executed the same by now.
    pub(super) fn compare_states(&mut self) {
        for index in 0..self.nodes.len() {
            let state = self.nodes.get_mut(index).and_then(crate::node::Node::state);
            match state {
                Some(Ok(root)) => self.root_observed(index, root),
                Some(Err(error)) => self.poisoned(index, &error.to_string()),
                None => {}
            }
        }
    }

    /// Judges the run.
    pub(super) fn report(mut self) -> Report {
        self.compare_states();
        for node in &self.nodes {
            node.collect(&mut self.counters);
        }
        for index in 0..self.nodes.len() {
            let node = self.nodes.get(index);
            if node.is_some_and(crate::node::Node::suspects_own_disk) {
                self.suspected_disk(index);
            }
        }
        for honest_client in &self.honest_clients {
            self.counters.add("retries", honest_client.retries());
            self.counters.add("busy_replies", honest_client.busy());
            let (accepted, fallen_back) = honest_client.reads();
            self.counters.add("reads_accepted", accepted);
            self.counters.add("reads_fallen_back", fallen_back);
        }
        self.counters
            .add("roots_compared", self.judge.roots_compared);
        let byzantine_clients: Vec<SessionId> = self.byzantine_sessions.iter().copied().collect();
        self.judge.close(&byzantine_clients);
        let order = self.judge.order.calls(&self.history.calls);
        (self.history.sequences, self.history.order) = order.into_iter().unzip();
        // A planted defect need not be found twice, and searching for an order that explains
        // impossible answers takes long.
        let caught = !self.judge.violations.is_empty() || !self.stalls.is_empty();
        let enough = caught && self.options.sabotage.is_some();
        if !enough && let Err(what) = self.workload.judge(&self.history) {
            self.judge.violation(what);
        }
        if !enough && let Err(what) = self.workload.judge_sessions(&self.history) {
            self.judge.violation(what);
        }
        if self.options.profile == Profile::Calm {
            for (index, node) in self.nodes.iter().enumerate() {
                if let Some(view) = node.status().map(|status| status.view)
                    && view > View(0)
                {
                    let what = format!("node {index} is in view {view}, though nothing was wrong");
                    self.judge.violation(what);
                }
            }
        }
        let faults = self.faults();
        Report {
            seed: self.options.seed,
            profile: self.options.profile,
            violations: self.judge.violations,
            stalls: self.stalls,
            operations: self.answered,
            faults,
            virtual_nanos: self.agenda.now().0,
            events: self.events,
            counters: self.counters,
        }
    }
}

pub(super) fn config(
    cluster: quorumfs_bft::identity::ClusterId,
    membership: quorumfs_bft::membership::Membership,
    key: quorumfs_bft::identity::PublicKey,
    genesis: bytes::Bytes,
    (checkpoint_interval, leaf_bytes_max): (u64, u64),
    sabotage: Option<quorumfs_bft::sabotage::Sabotage>,
) -> quorumfs_bft::replica::Config {
    let incarnation = super::administrator::first_incarnation(&key);
    let config = quorumfs_bft::replica::Config::member(
        key,
        incarnation,
        quorumfs_bft::identity::Incarnation::default(),
        cluster,
        membership,
        genesis,
    );
    quorumfs_bft::replica::Config {
        sabotage: quorumfs_bft::sabotage::Planted::new(sabotage),
        checkpoint_interval,
        leaf_bytes_max,
        ..config
    }
}
