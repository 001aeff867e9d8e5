//! The part of a scrub that checks the shares of the volume's second lock.
//!
//! Shares are tiny, so each is read whole every time; a lost or damaged one is made again from f +
//! 1 others. Nothing is ordered: the epoch's row fixes the digest of each share and does not record
//! its place. A share that its cloud never got, because it was unreachable when the epoch began,
//! counts as missing.

use super::Reconciler;
use super::scrub::ScrubConfig;
use super::scrub_report::{ScrubReport, ShardObservation};
use crate::blocks::shares::{STORED_BYTES, ShareError, ShareState, ShareStore};
use quorumfs_metadata::row::Shares;

impl Reconciler {
    /// Checks the shares of an epoch, and adds the findings to the report of the last scrub.
    pub(in crate::blocks) async fn scrub_shares(
        &self,
        shares: &Shares,
        config: &ScrubConfig,
    ) -> Result<ScrubReport, ShareError> {
        let store = ShareStore::of(&self.clouds).map_err(ShareError::made)?;
        let looked = store.look(shares, config.cloud).await;
        for (cloud, state) in &looked {
            let seen = match state {
                ShareState::Good => ShardObservation::Proved(STORED_BYTES),
                ShareState::Missing => ShardObservation::Missing,
                ShareState::Damaged => ShardObservation::Damaged,
                ShareState::Unreachable { .. } => ShardObservation::Unreachable,
            };
            self.update_report(|report| report.saw(Some(*cloud), seen));
        }
        if config.repair {
            let wanting = looked.iter().filter(|(_, state)| state.wants_repair());
            let wanting: Vec<_> = wanting.map(|(cloud, _)| *cloud).collect();
            let restored = store.restore(shares, &wanting).await?;
            let left = wanting.len().saturating_sub(restored.len());
            self.update_report(|report| {
                report.restored += restored.len() as u64;
                report.lacking += left as u64;
                report.lacking_unreachable += left as u64;
            });
        }
        Ok(self.current_scrub_report())
    }
}
