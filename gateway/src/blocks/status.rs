//! What an operator sees of the clouds.

use super::consistency_check::Poisoned;
use super::counters::CounterValues;
use super::engine::Engine;
use super::health::Refusal;
use super::scrub_report::ScrubReport;
use quorumfs_backends::{Deadline, Traffic};
use quorumfs_metadata::identity::CloudIndex;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// One cloud as the gateway sees it.
#[derive(Clone, Debug)]
pub struct CloudStatus {
    /// Its place in the volume's list.
    pub index: CloudIndex,
    /// Where it is.
    pub place: String,
    /// Whether its last request did not fail as a whole.
    pub reachable: bool,
    /// Whether requests to it are held back for now.
    pub suspended: bool,
    /// What it last did wrong.
    pub last_error: Option<String>,
    /// Why it takes no writes, if it refused the last one for good.
    pub writes_refused: Option<Refusal>,
    /// Answers of its that were not what had been written.
    pub shards_refused: u64,
    /// What half of its last answers took at most.
    pub latency_median: Option<Duration>,
    /// What nineteen of twenty of its last answers took at most.
    pub latency_95: Option<Duration>,
    /// Puts that it has not answered yet.
    pub puts_in_flight: usize,
    /// What was asked of it so far, where that has to be paid for.
    pub traffic: Traffic,
}

/// The block store's state.
#[derive(Clone, Debug)]
pub struct BlockStatus {
    /// The clouds.
    pub clouds: Vec<CloudStatus>,
    /// w: how many of them a write needs.
    pub write_quorum: usize,
    /// k: how many of them a read needs.
    pub read_quorum: usize,
    /// Puts that are on their way, of all writes.
    pub puts_outstanding: usize,
    /// Bytes of those whose writes have returned.
    pub background_bytes: usize,
    /// Placements that wait to be ordered.
    pub unconfirmed: usize,
    /// Objects that lacked shards when it was last looked.
    pub under_replicated: usize,
    /// Packs of which less than half was needed when it was last looked.
    pub sparse_packs: usize,
    /// Repairs that wait.
    pub repairs_waiting: usize,
    /// Objects that this process found poisoned, at most some thousand: nobody can read them.
    pub poisoned: Vec<Poisoned>,
    /// The scrub that runs, or ran last.
    pub scrub: Option<ScrubReport>,
    /// What happened so far.
    pub counters: CounterValues,
}

impl Engine {
    pub(super) fn status(&self) -> BlockStatus {
        let clouds = self
            .links
            .iter()
            .map(|link| CloudStatus {
                index: link.index,
                place: link.describe(),
                reachable: !link.health.is_failing(),
                suspended: link.health.is_suspended(),
                last_error: link.health.last_error(),
                writes_refused: link.health.writes_refused(),
                shards_refused: link.refused.get(),
                latency_median: link.health.percentile(50),
                latency_95: link.health.percentile(95),
                puts_in_flight: link.puts.load(Ordering::Relaxed),
                traffic: link.traffic(),
            })
            .collect();
        let (puts_outstanding, background_bytes) = self.in_flight().outstanding();
        BlockStatus {
            clouds,
            write_quorum: usize::from(self.config.policy.write_quorum()),
            read_quorum: usize::from(self.config.policy.data()),
            puts_outstanding,
            background_bytes,
            unconfirmed: self.unconfirmed.load(Ordering::Relaxed),
            under_replicated: self.under_replicated.load(Ordering::Relaxed),
            sparse_packs: self.sparse.load(Ordering::Relaxed),
            repairs_waiting: self.repairs.waiting(),
            poisoned: self.consistency.all_poisoned(),
            scrub: self
                .scrub
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
            counters: self.counters.values(),
        }
    }

    /// Asks the clouds for the smallest thing, so that their state is known without other traffic;
    /// those alone that failed, if `failing` says so and none of them is suspended.
    pub(super) async fn probe(&self, failing: bool) {
        let mut probes = JoinSet::new();
        for link in &self.links {
            let health = &link.health;
            let known_good = health.is_known() && !health.is_failing();
            if failing && (known_good || health.is_suspended()) {
                continue;
            }
            let link = std::sync::Arc::clone(link);
            let deadline = Deadline::after(self.config.timeouts.suspect);
            probes.spawn(async move { link.probe(deadline).await });
        }
        probes.join_all().await;
    }

    /// Probes suspended clouds when their time has come, until the engine goes.
    pub(super) async fn probe_suspended(self: std::sync::Arc<Self>) {
        loop {
            let due = self.links.iter().filter_map(|link| link.health.probe_due());
            let Some(due) = due.min() else {
                self.suspensions.notified().await;
                continue;
            };
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(due) => {}
                () = self.suspensions.notified() => continue,
            }
            let now = Instant::now();
            let mut probes = JoinSet::new();
            for link in &self.links {
                if link.health.probe_due().is_some_and(|due| due <= now) {
                    let link = std::sync::Arc::clone(link);
                    let deadline = Deadline::after(self.config.timeouts.suspect);
                    probes.spawn(async move { link.probe(deadline).await });
                }
            }
            probes.join_all().await;
        }
    }
}
