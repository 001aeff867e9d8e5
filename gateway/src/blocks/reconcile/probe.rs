//! Probing: a suspended cloud is asked at the end of its period, so that no reader has to try it.

use super::Reconciler;
use std::sync::Arc;

impl Reconciler {
    /// Probes suspended clouds at the end of their periods, until the task is aborted.
    pub(in crate::blocks) async fn probe_all(self: Arc<Self>) {
        loop {
            let Some(due) = self.clouds.probe_due() else {
                self.clouds.suspensions().notified().await;
                continue;
            };
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(due) => {}
                () = self.clouds.suspensions().notified() => continue,
            }
            self.clouds.probe_suspended().await;
        }
    }
}
