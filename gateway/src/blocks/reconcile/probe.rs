//! Probing: a suspended cloud is asked at the end of its period, so that no reader has to try it.

use super::Reconciler;
use super::task::{Due, Task, TaskProgress};
use std::sync::Arc;
use tokio::sync::Notify;

/// The task that probes suspended clouds.
pub(super) struct ProbeTask(pub(super) Arc<Reconciler>);

#[async_trait::async_trait]
impl Task for ProbeTask {
    fn name(&self) -> &'static str {
        "probe"
    }

    fn next(&self) -> Due {
        let due = self.0.clouds.probe_due();
        due.map_or(Due::Notified, Due::At)
    }

    fn wakes(&self) -> Option<&Notify> {
        Some(self.0.clouds.suspensions())
    }

    async fn run(&self) {
        self.0.clouds.probe_suspended().await;
    }

    /// The suspended clouds, and the probes that were sent to suspended ones.
    fn progress(&self) -> TaskProgress {
        let (waiting, done) = self.0.clouds.probes();
        TaskProgress { waiting, done }
    }
}
