//! Each cloud as an operator sees it, and the probes that make that current.

use super::{Clouds, Link, Refusal};
use quorumfs_backends::{Deadline, Traffic};
use quorumfs_metadata::fleet::CloudState;
use quorumfs_metadata::identity::CloudIndex;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// One cloud as the gateway sees it.
#[derive(Clone, Debug)]
pub struct CloudStatus {
    /// Its index in the volume's list.
    pub index: CloudIndex,
    /// Whether it takes new shards.
    pub state: CloudState,
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

impl Clouds {
    pub(in crate::blocks) fn status(&self) -> Vec<CloudStatus> {
        let attached = self.attached();
        let status = |link: &Arc<Link>| CloudStatus {
            index: link.index,
            state: attached.state(link),
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
        };
        attached.links().iter().map(status).collect()
    }

    /// Sends each cloud the smallest request, so that its state is known without other traffic;
    /// with `failing`, only clouds that failed and are not suspended.
    pub(in crate::blocks) async fn probe(&self, failing: bool) {
        self.probe_those(|link| {
            let known_good = link.health.is_known() && !link.health.is_failing();
            !failing || !known_good && !link.health.is_suspended()
        })
        .await;
    }

    /// When the next suspended cloud is to be probed.
    pub(in crate::blocks) fn probe_due(&self) -> Option<Instant> {
        let attached = self.attached();
        let due = attached.in_use();
        let due = due.filter_map(|link| link.health.probe_due());
        due.min()
    }

    /// Probes the suspended clouds whose periods have ended.
    pub(in crate::blocks) async fn probe_suspended(&self) {
        let now = Instant::now();
        let is_due = |link: &Link| link.health.probe_due().is_some_and(|due| due <= now);
        let sent = self.probe_those(is_due).await;
        self.probes_sent.fetch_add(sent, Ordering::Relaxed);
    }

    /// How many clouds are suspended, and how many probes were sent to suspended ones.
    pub(in crate::blocks) fn probes(&self) -> (u64, u64) {
        let attached = self.attached();
        let suspended = attached.in_use().filter(|link| link.health.is_suspended());
        let sent = self.probes_sent.load(Ordering::Relaxed);
        (suspended.count() as u64, sent)
    }

    /// Probes some clouds; returns how many.
    async fn probe_those(&self, is_wanted: impl Fn(&Link) -> bool) -> u64 {
        let mut probes = JoinSet::new();
        let attached = self.attached();
        for link in attached.in_use().filter(|link| is_wanted(link)) {
            let link = Arc::clone(link);
            let deadline = Deadline::after(self.config.timeouts.suspect);
            probes.spawn(async move { link.probe(deadline).await });
        }
        probes.join_all().await.len() as u64
    }
}
