//! The check's view of the cluster: only from `quorumfs status --json`.

use crate::directory::StateDirectory;
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::process::Command;

const PAUSE: Duration = Duration::from_millis(200);

/// The state of the cluster at one time.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClusterSnapshot {
    /// The highest view of a quorum.
    pub(crate) view: u64,
    /// The leader of that view.
    pub(crate) leader: usize,
    /// The newest certificate of each replica: its sequence, and the voters in it.
    pub(crate) certificates: Vec<(u64, BTreeSet<usize>)>,
    /// Objects that are not on all their clouds yet; unknown while nothing is mounted.
    pub(crate) completion_queue: Option<u64>,
    /// Answers of clouds that the mount refused since it started.
    pub(crate) shards_refused: u64,
    /// Shards that reads replaced by others.
    pub(crate) shards_replaced: u64,
    /// Requests to each cloud since the mount started, as far as they are counted.
    pub(crate) requests: Vec<u64>,
}

impl ClusterSnapshot {
    /// The last sequence that any replica saw committed.
    pub(crate) fn committed(&self) -> u64 {
        self.certificates
            .iter()
            .map(|(sequence, _)| *sequence)
            .max()
            .unwrap_or_default()
    }

    /// Whether a certificate of a later sequence holds this replica's vote.
    pub(crate) fn voted_since(&self, replica: usize, sequence: u64) -> bool {
        self.certificates
            .iter()
            .any(|(at, signers)| *at > sequence && signers.contains(&replica))
    }
}

/// Asks for the status repeatedly.
#[derive(Debug)]
pub(crate) struct Observer {
    program: PathBuf,
    state: StateDirectory,
}

impl Observer {
    /// Observes the volume in this directory.
    pub(crate) fn new(state: &StateDirectory) -> CommandResult<Self> {
        let program = std::env::current_exe().map_err(|error| {
            Failure::new(
                Exit::Error,
                format!("cannot find this program itself: {error}"),
            )
        })?;
        Ok(Self {
            program,
            state: state.clone(),
        })
    }

    /// The current state.
    pub(crate) async fn everything(&self) -> CommandResult<ClusterSnapshot> {
        let failed = |what: String| Failure::new(Exit::Error, format!("`quorumfs status`: {what}"));
        let output = Command::new(&self.program)
            .args(["status", "--json", "--state"])
            .arg(self.state.path())
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .map_err(|error| failed(error.to_string()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let records: Vec<Value> = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        seen(&records).ok_or_else(|| failed(text.trim().to_string()))
    }

    /// The same, once a leader is known.
    pub(crate) async fn cluster(&self) -> CommandResult<ClusterSnapshot> {
        self.until(Duration::from_secs(60), "a leader is known", |_| true)
            .await
    }

    /// Asks until the state is as expected.
    pub(crate) async fn until(
        &self,
        patience: Duration,
        what: &str,
        enough: impl Fn(&ClusterSnapshot) -> bool,
    ) -> CommandResult<ClusterSnapshot> {
        let began = Instant::now();
        let mut last;
        loop {
            match self.everything().await {
                Ok(seen) if enough(&seen) => return Ok(seen),
                other => last = other,
            }
            if began.elapsed() > patience {
                let seconds = patience.as_secs();
                let saw = last.map_or_else(|failure| failure.message, |seen| format!("{seen:?}"));
                let message = format!("waited {seconds} s until {what}, in vain; last: {saw}");
                return Err(Failure::new(Exit::Error, message));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

fn seen(records: &[Value]) -> Option<ClusterSnapshot> {
    let of = |kind: &'static str| {
        records
            .iter()
            .filter(move |record| record.get("type").and_then(Value::as_str) == Some(kind))
    };
    let number = |record: &Value, key: &str| record.get(key).and_then(Value::as_u64);
    let mut seen = ClusterSnapshot::default();
    let summary = of("summary").next()?;
    seen.view = number(summary, "view")?;
    seen.leader = usize::try_from(number(summary, "leader")?).ok()?;
    for replica in of("replica") {
        let signers = replica.get("certificate").and_then(Value::as_array);
        let signers = signers.into_iter().flatten().filter_map(Value::as_u64);
        let signers = signers
            .filter_map(|signer| usize::try_from(signer).ok())
            .collect();
        let sequence = number(replica, "committed").unwrap_or_default();
        seen.certificates.push((sequence, signers));
    }
    let requests = of("cloud").map(|cloud| number(cloud, "requests").unwrap_or_default());
    seen.requests = requests.collect();
    if let Some(mount) = of("mount").next() {
        seen.shards_refused = number(mount, "shards_refused")?;
        seen.shards_replaced = number(mount, "shards_replaced")?;
        seen.completion_queue = number(mount, "completion_queue");
    }
    Some(seen)
}
