//! Counting and obeying the budget while a volume is open.
//!
//! A task adds the requests of this process to the usage file each minute; the end of the session
//! does so once more. If there is a budget, the same task asks the servers for the volume's bytes,
//! makes up the account of the month, and sets what may go on. Of the last answer something is
//! always in force: servers that do not answer change nothing.

use super::account::{BudgetReport, CostBasis, HeldContent};
use super::month::MonthSoFar;
use super::usage::{CountedUse, FILE, MonthCounts, UsageFile};
use crate::commands::Configured;
use crate::commands::opened::basis_now;
use quorumfs_backends::Traffic;
use quorumfs_gateway::blocks::BlockStore;
use quorumfs_gateway::cost::BudgetLevel;
use quorumfs_gateway::metadata::MetadataClient;
use quorumfs_gateway::volume::Volume;
use quorumfs_metadata::fleet::Fleet;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::AbortHandle;

/// How often the usage is stored.
const EVERY: Duration = Duration::from_secs(60);
/// How long the servers may take to say what is stored.
const ASKED_WITHIN: Duration = Duration::from_secs(10);

/// What the task and the session share.
#[derive(Debug)]
struct SharedSpending {
    /// `None`: a guest in the state directory leaves nothing there.
    file: Option<UsageFile>,
    /// What the costs depend on, and the clouds that were known then.
    basis: Mutex<(Option<Fleet>, CostBasis)>,
    directory: PathBuf,
    volume: Arc<Volume>,
    blocks: BlockStore,
    metadata: Arc<MetadataClient>,
    /// What is in the usage file already, by the number of the cloud.
    stored: Mutex<BTreeMap<u16, Traffic>>,
    report: Mutex<Option<BudgetReport>>,
}

/// The costs of an open volume. When it is dropped, its task ends.
#[derive(Debug)]
pub(in crate::commands) struct Spending {
    shared: Arc<SharedSpending>,
    task: AbortHandle,
}

impl Drop for Spending {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Spending {
    /// Begins to count. A budget that is spent is obeyed from here on.
    pub(in crate::commands) async fn begin(
        configured: &Configured,
        volume: &Arc<Volume>,
        blocks: &BlockStore,
        metadata: &Arc<MetadataClient>,
    ) -> Self {
        let path = configured.state().join(FILE);
        let file = UsageFile::new(path, configured.volume().id());
        let shared = Arc::new(SharedSpending {
            file: (!configured.is_guest()).then_some(file),
            basis: Mutex::new((None, configured.costs().clone())),
            directory: configured.state().path().to_owned(),
            volume: Arc::clone(volume),
            blocks: blocks.clone(),
            metadata: Arc::clone(metadata),
            stored: Mutex::default(),
            report: Mutex::default(),
        });
        shared.obey().await;
        let kept = Arc::clone(&shared);
        let task = tokio::spawn(async move {
            loop {
                tokio::time::sleep(EVERY).await;
                kept.keep();
                kept.obey().await;
            }
        });
        Self {
            shared,
            task: task.abort_handle(),
        }
    }

    /// Stores what was counted since it was stored last.
    pub(in crate::commands) fn keep(&self) {
        self.shared.keep();
    }

    /// How the volume stands to its budget, if it has one.
    pub(in crate::commands) fn report(&self) -> Option<BudgetReport> {
        self.shared.report().clone()
    }
}

impl SharedSpending {
    fn report(&self) -> MutexGuard<'_, Option<BudgetReport>> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self) {
        let Some(file) = &self.file else {
            return;
        };
        let mut stored = self.stored.lock().unwrap_or_else(PoisonError::into_inner);
        let mut counts = MonthCounts::new();
        let mut now = BTreeMap::new();
        for cloud in self.blocks.status().clouds {
            let number = u16::from(cloud.index.0);
            let before = stored.get(&number).copied().unwrap_or_default();
            counts.insert(number, CountedUse::since(&cloud.traffic, &before));
            now.insert(number, cloud.traffic);
        }
        match file.add(&MonthSoFar::now().name, &counts) {
            Ok(()) => stored.extend(now),
            Err(failure) => tracing::warn!(%failure, "the usage of the clouds was not stored"),
        }
    }

    /// What the costs depend on, with the clouds that the volume has now.
    fn basis(&self) -> CostBasis {
        let mut basis = self.basis.lock().unwrap_or_else(PoisonError::into_inner);
        let fleet = self.volume.fleet();
        if basis.0.as_ref() != Some(&fleet) {
            match basis_now(&self.directory, &self.volume) {
                Ok(now) => basis.1 = now,
                Err(failure) => tracing::warn!(%failure, "the prices of new clouds are unknown"),
            }
            basis.0 = Some(fleet);
        }
        basis.1.clone()
    }

    async fn obey(&self) {
        let basis = self.basis();
        let (Some(file), true) = (&self.file, basis.has_budget()) else {
            return;
        };
        let asked = tokio::time::timeout(ASKED_WITHIN, self.metadata.realm_quota()).await;
        let Ok(Ok(realm)) = asked else {
            return;
        };
        let content = HeldContent {
            garbage: self.blocks.status().collected.kept.bytes,
            ..HeldContent::of(&realm.used)
        };
        let month = MonthSoFar::now();
        let counts = file.recall().remove(&month.name).unwrap_or_default();
        let account = basis.account(month, &counts, content);
        let stops = basis.hard_stops_writes();
        self.blocks.allowance().set(account.level, stops);
        let report = basis.report(&account);
        let mut last = self.report();
        let was = last.as_ref().map(|report| report.level.as_str());
        if was.unwrap_or(BudgetLevel::Within.name()) != report.level {
            let (level, spent) = (&report.level, report.spent);
            let stopped = report.writes_stopped;
            tracing::warn!(
                level,
                spent,
                writes_stopped = stopped,
                "the budget of the month"
            );
        }
        *last = Some(report);
    }
}
