//! The part of a scrub that looks at shares of the volume's second lock.
//!
//! They are looked at whole, each time, for they are tiny, and what was lost or damaged is made
//! again from f + 1 others. There is no order to tell: the epoch's row says for good what each
//! share is, and nothing of where a share is now. A share that its cloud never got, because it was
//! out of reach when the epoch began, is one that is missing.

use super::engine::Engine;
use super::scrub::ScrubConfig;
use super::scrub_report::{ScrubReport, ShardObservation};
use super::shares::{STORED_BYTES, ShareError, ShareState, ShareStore};
use quorumfs_metadata::row::Shares;

impl Engine {
    /// ObjectFormat at the shares of an epoch, and adds what it finds to the report of the scrub that ran
    /// last.
    pub(super) async fn scrub_shares(
        &self,
        shares: &Shares,
        config: &ScrubConfig,
    ) -> Result<ScrubReport, ShareError> {
        let store = ShareStore::of(self).map_err(ShareError::made)?;
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
