//! What `status` shows of one cloud: whether it is usable now, and the mount's counters.

use quorumfs_gateway::blocks::CloudStatus;
use quorumfs_metadata::fleet::CloudState;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A mount's counters of a cloud, and its condition.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct CloudReport {
    /// Its place in the volume's list.
    pub(crate) index: usize,
    /// Its name in the configuration.
    pub(crate) name: String,
    /// Its state in the volume: `active`, `spare`, `draining` or `retired`.
    #[serde(default)]
    pub(crate) state: String,
    /// Whether it is usable now.
    pub(crate) usable: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) problem: Option<String>,
    /// Its last error, as the running mount saw it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_error: Option<String>,
    /// Why it takes no writes, if it permanently refused the running mount's last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) writes_refused: Option<String>,
    /// Whether it is full.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) full: bool,
    /// How many of its answers differed from the written data.
    #[serde(default)]
    pub(crate) shards_refused: u64,
    /// The median latency of its last answers, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) latency_median_us: Option<u64>,
    /// Requests to it since the mount began, retries included.
    #[serde(default)]
    pub(crate) requests: u64,
    /// Those of them that failed.
    #[serde(default)]
    pub(crate) requests_failed: u64,
    /// Bytes of objects that were sent.
    #[serde(default)]
    pub(crate) bytes_sent: u64,
    /// Bytes of objects that were received.
    #[serde(default)]
    pub(crate) bytes_received: u64,
    /// Whether it is suspended because it failed.
    #[serde(default)]
    pub(crate) suspended: bool,
    /// How many faults of it the metadata records; `quorumfs cloud evidence` shows them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) evidence: Option<u64>,
    /// Why what was deleted there is paid for, if its bucket says that it keeps it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) keeps_deleted: Option<String>,
}

impl CloudReport {
    pub(super) fn of(status: &CloudStatus) -> Self {
        let micros = |latency: Duration| u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        Self {
            index: usize::from(status.index.0),
            name: status.place.clone(),
            state: status.state.name().to_owned(),
            usable: status.reachable,
            problem: None,
            last_error: status.last_error.clone(),
            writes_refused: status.writes_refused.as_ref().map(|it| it.reason.clone()),
            full: status.writes_refused.as_ref().is_some_and(|it| it.full),
            shards_refused: status.shards_refused,
            latency_median_us: status.latency_median.map(micros),
            requests: status.traffic.requests(),
            requests_failed: status.traffic.failed,
            bytes_sent: status.traffic.bytes_sent,
            bytes_received: status.traffic.bytes_received,
            suspended: status.suspended,
            evidence: None,
            keeps_deleted: None,
        }
    }

    /// Whether new data goes there.
    pub(crate) fn is_active(&self) -> bool {
        self.state == CloudState::Active.name()
    }

    /// Whether it is usable now and is not known to refuse writes.
    pub(crate) fn takes_writes(&self) -> bool {
        self.usable && self.writes_refused.is_none()
    }

    /// The text form.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("  cloud {}  {}  ", self.index, self.name);
        if !self.is_active() {
            text.push_str(&format!("{}  ", self.state));
        }
        match &self.problem {
            Some(problem) => text.push_str(&format!("UNUSABLE: {problem}")),
            None => match &self.writes_refused {
                Some(reason) => text.push_str(&format!("TAKES NO WRITES: {reason}")),
                None => text.push_str("usable"),
            },
        }
        if self.requests > 0 {
            text.push_str(&format!(
                "; {} requests, {} failed, {} sent, {} received",
                self.requests,
                self.requests_failed,
                mebibytes(self.bytes_sent),
                mebibytes(self.bytes_received)
            ));
        }
        if self.suspended {
            text.push_str("; suspended for now");
        }
        if let Some(faults) = self.evidence.filter(|faults| *faults > 0) {
            text.push_str(&format!(
                "; {faults} FAULTS FOUND, see `quorumfs cloud evidence`"
            ));
        }
        if self.shards_refused > 0 {
            text.push_str(&format!("; RETURNED {} BAD SHARDS", self.shards_refused));
        }
        if let Some(why) = &self.keeps_deleted {
            text.push_str(&format!("; {why}"));
        }
        let problem = self.problem.as_ref().or(self.writes_refused.as_ref());
        if let (None, Some(error)) = (problem, &self.last_error) {
            text.push_str(&format!("; last error: {error}"));
        }
        text
    }
}

pub(super) fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
