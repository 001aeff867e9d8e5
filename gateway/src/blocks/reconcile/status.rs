//! The operator's view of the clouds.

use super::scrub_report::ScrubReport;
use crate::blocks::clouds::{CounterValues, Refusal};
use crate::blocks::engine::Engine;
use crate::blocks::read::Poisoned;
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
    /// Its index in the volume's list.
    pub index: CloudIndex,
    /// Its location.
    pub place: String,
    /// Whether its last request did not fail as a whole.
    pub reachable: bool,
    /// Whether it is suspended.
    pub suspended: bool,
    /// Its last fault.
    pub last_error: Option<String>,
    /// Why it takes no writes, if it refused the last one permanently.
    pub writes_refused: Option<Refusal>,
    /// Its answers with other bytes than those that were written.
    pub shards_refused: u64,
    /// The median of its last answers' latencies.
    pub latency_median: Option<Duration>,
    /// The 95th percentile of its last answers' latencies.
    pub latency_95: Option<Duration>,
    /// Unanswered puts.
    pub puts_in_flight: usize,
    /// The requests to it so far, where they are charged for.
    pub traffic: Traffic,
}

/// The state of the block store.
#[derive(Clone, Debug)]
pub struct BlockStatus {
    /// The clouds.
    pub clouds: Vec<CloudStatus>,
    /// w: the number of clouds that a write needs.
    pub write_quorum: usize,
    /// k: the number of clouds that a read needs.
    pub read_quorum: usize,
    /// Puts in flight, of all writes.
    pub puts_outstanding: usize,
    /// Bytes of the puts whose writes have returned.
    pub background_bytes: usize,
    /// Placements that await their order.
    pub unconfirmed: usize,
    /// Objects that lacked shards in the last sweep.
    pub under_replicated: usize,
    /// Packs of which less than half was needed in the last round of compaction.
    pub sparse_packs: usize,
    /// Repairs in the queue.
    pub repairs_waiting: usize,
    /// Objects that this process found poisoned, at most some thousand: no reader gets them.
    pub poisoned: Vec<Poisoned>,
    /// The running or the last scrub.
    pub scrub: Option<ScrubReport>,
    /// The event counters.
    pub counters: CounterValues,
}

impl Engine {
    pub(in crate::blocks) fn status(&self) -> BlockStatus {
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

    /// Sends each cloud the smallest request, so that its state is known without other traffic;
    /// with `failing`, only clouds that failed and are not suspended.
    pub(in crate::blocks) async fn probe(&self, failing: bool) {
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

    /// Probes suspended clouds at the end of their periods, until the engine ends.
    pub(in crate::blocks) async fn probe_suspended(self: std::sync::Arc<Self>) {
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
