//! What the replicas say of themselves, as it is seen from an endpoint of the network.
//!
//! Two ways: [`Reports`] follows what they send by themselves, so that a change is known after the
//! way from the replica to the endpoint, and no connection has to be made first; [`statuses`] asks
//! each once, for its counters too.
//!
//! All replicas are correct here, so each is believed.

use crate::regions::volume::FarVolume;
use anyhow::Context;
use quorumfs_bft::metrics::{ReplicaStatus, Voting};
use quorumfs_bft::observer::{Observation, Report};
use quorumfs_bft_runtime::client::{
    ClientConfig, Member, ObserverItem, observe_replicas, status_of,
};
use quorumfs_bft_runtime::keys::NodeKey;
use quorumfs_bft_runtime::server::first_incarnation;
use quorumfs_metadata::genesis::SignedGenesis;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::runtime::Builder;
use tokio::sync::oneshot;

/// How long a replica may take to answer, over a bad link.
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);
/// How often a wait looks.
const LOOK: Duration = Duration::from_millis(5);

/// How an observer reaches the replicas of a volume. Any key may ask them.
fn observer(volume: &FarVolume) -> anyhow::Result<ClientConfig> {
    let (_, genesis) = SignedGenesis::from_bytes(&volume.genesis()?)?;
    let mut members = Vec::new();
    for replica in &genesis.replicas {
        members.push(Member {
            id: replica.id,
            key: replica.key,
            incarnation: first_incarnation(&replica.key),
            address: replica.address.parse()?,
        });
    }
    let (id, model) = (genesis.volume, genesis.fault_model()?);
    let key = Arc::new(NodeKey::generate()?);
    let mut config = ClientConfig::new(id, model, members, key);
    config.status_deadline = ANSWERS_WITHIN;
    Ok(config)
}

/// What each replica answers when it is asked from an endpoint, by number; those that do not answer
/// are left out.
///
/// # Errors
/// If they cannot be asked at all.
pub(super) fn statuses(
    volume: &FarVolume,
    at: &str,
) -> anyhow::Result<BTreeMap<u16, ReplicaStatus>> {
    let config = observer(volume)?;
    let asking = volume.regions().run_in(at, move || {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        anyhow::Ok(runtime.block_on(status_of(&config))?)
    });
    let answers = asking.join();
    let answers = answers.map_err(|_| anyhow::anyhow!("the thread that asks has panicked"))??;
    let answers = answers.into_iter();
    Ok(answers
        .filter_map(|(id, answer)| Some((id.0, answer.ok()?)))
        .collect())
}

/// The newest report of each replica that is not silent.
type Newest = Arc<Mutex<BTreeMap<u16, Report>>>;

/// The replicas' reports, while this exists.
#[derive(Debug)]
pub(super) struct Reports {
    newest: Newest,
    following: Option<JoinHandle<()>>,
    // Dropping it ends the thread.
    end: Option<oneshot::Sender<()>>,
}

impl Reports {
    /// Follows them from an endpoint.
    ///
    /// # Errors
    /// If they cannot be asked at all.
    pub(super) fn follow(volume: &FarVolume, at: &str) -> anyhow::Result<Self> {
        let config = observer(volume)?;
        let newest = Newest::default();
        let (end, ended) = oneshot::channel();
        let shared = newest.clone();
        let following = volume.regions().run_in(at, move || {
            let Ok(runtime) = Builder::new_current_thread().enable_all().build() else {
                return;
            };
            runtime.block_on(async {
                tokio::select! {
                    () = follow(config, &shared) => {}
                    _ = ended => {}
                }
            });
        });
        Ok(Self {
            newest,
            following: Some(following),
            end: Some(end),
        })
    }

    /// The newest report of each replica that is not silent, by number.
    pub(super) fn newest(&self) -> BTreeMap<u16, Report> {
        let newest = self.newest.lock();
        newest.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until the reports are as they should be, and returns how long that took.
    ///
    /// # Errors
    /// If they are not in this time; the error has the last ones.
    pub(super) fn wait(
        &self,
        what: &str,
        within: Duration,
        holds: impl Fn(&BTreeMap<u16, Report>) -> bool,
    ) -> anyhow::Result<Duration> {
        let began = Instant::now();
        loop {
            let newest = self.newest();
            if holds(&newest) {
                return Ok(began.elapsed());
            }
            if began.elapsed() > within {
                let (within, reports) = (within.as_secs(), described(&newest));
                anyhow::bail!("for {within} s it did not happen that {what}: {reports}");
            }
            std::thread::sleep(LOOK);
        }
    }

    /// The leader on whose view all replicas agree, once they do, all of them vote, and none is
    /// behind.
    ///
    /// # Errors
    /// If that does not happen in this time.
    pub(super) fn settled(&self, replicas: usize, within: Duration) -> anyhow::Result<u16> {
        let what = "all replicas vote in one view, and none is behind";
        self.wait(what, within, |it| it.len() == replicas && are_settled(it))?;
        let newest = self.newest();
        let leader = newest.values().map(|it| it.leader.0).next();
        leader.context("there are no reports")
    }
}

impl Drop for Reports {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(following) = self.following.take() {
            let _ = following.join();
        }
    }
}

/// Batches by which reports that are made at different times may differ.
const APART_MAX: u64 = 32;

/// Whether a replica takes part as it should.
pub(super) fn takes_part(report: &Report) -> bool {
    report.active && report.voting == Voting::Voting && report.transfer.is_none()
}

fn are_settled(reports: &BTreeMap<u16, Report>) -> bool {
    let mut all = reports.values();
    let views = || reports.values().map(|it| it.view.0);
    let executed = || reports.values().map(|it| it.executed.0);
    let apart = executed().max().unwrap_or(0) - executed().min().unwrap_or(0);
    all.all(takes_part) && views().max() == views().min() && apart <= APART_MAX
}

/// The reports in a line.
pub(super) fn described(reports: &BTreeMap<u16, Report>) -> String {
    let each = reports.iter().map(|(number, it)| {
        let (view, executed, voting) = (it.view.0, it.executed.0, it.voting.name());
        let between = if it.active { "" } else { " (not begun)" };
        let transfer = it.transfer.map_or_else(String::new, |checkpoint| {
            format!(", fetching the state after {}", checkpoint.0)
        });
        format!("replica {number} is {voting} in view {view}{between} at {executed}{transfer}")
    });
    let each: Vec<_> = each.collect();
    match each.is_empty() {
        true => "no replica reports anything".to_owned(),
        false => each.join("; "),
    }
}

async fn follow(config: ClientConfig, newest: &Newest) {
    let Ok(mut observer) = observe_replicas(config) else {
        return;
    };
    while let Some(item) = observer.next().await {
        let mut newest = newest.lock().unwrap_or_else(PoisonError::into_inner);
        match item {
            ObserverItem::Observation(Observation::Single {
                replica, report, ..
            }) => {
                newest.insert(replica.0, report);
            }
            ObserverItem::Observation(Observation::Silent { replica }) => {
                newest.remove(&replica.0);
            }
            _ => {}
        }
    }
}
