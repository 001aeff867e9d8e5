//! How a running file system gets the keys of new epochs.
//!
//! A key epoch may begin during a mount. The mount notices it at the first directory that was made
//! since, whose names are sealed under it; at the first slice or small value that another client
//! has sealed under it; and every minute. A read of something sealed under an epoch that is not
//! open yet opens it and continues. New data is sealed under the newest open epoch.
//!
//! With the second lock the shares of the newest epoch are completed here, too: a cloud that was
//! out of reach when the epoch began gets its share once it is back.
//!
//! Data that is still sealed under older epochs is counted from time to time, piece by piece: a
//! holder of their keys can read it until it is overwritten.

use super::given::Services;
use crate::blocks::ShareState;
use crate::error::VfsError;
use crate::keys::{KeyError, RealmEpochKey};
use quorumfs_metadata::attributes::{Attributes, Detail};
use quorumfs_metadata::identity::RealmEpoch;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How often to ask whether there is a new epoch.
const EVERY: Duration = Duration::from_secs(60);

/// How often to count data under older epochs, if there are any. The servers go through all slices
/// for it.
const COUNT_EVERY: Duration = Duration::from_secs(600);
/// Pause between two pieces of a count.
const COUNT_PAUSE: Duration = Duration::from_millis(50);

/// Data sealed under keys that are not the newest any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnderOldEpochs {
    /// Slices.
    pub slices: u64,
    /// Bytes of their content.
    pub bytes: u64,
}

/// A count.
#[derive(Clone, Copy, Debug)]
struct Counted {
    /// The newest epoch at the time.
    epoch: RealmEpoch,
    /// When the count began.
    at: Instant,
    /// `None` until it is complete.
    found: Option<UnderOldEpochs>,
}

/// When to ask for a new epoch, to complete shares and to count.
#[derive(Debug)]
pub(in crate::vfs) struct KeyRotation {
    asked: Mutex<Instant>,
    /// Something was seen that is sealed under a newer epoch than the open ones.
    wanted: AtomicBool,
    /// The epoch of which every cloud holds its share.
    complete: Mutex<Option<RealmEpoch>>,
    counted: Mutex<Option<Counted>>,
}

impl Default for KeyRotation {
    fn default() -> Self {
        Self {
            asked: Mutex::new(Instant::now()),
            wanted: AtomicBool::new(false),
            complete: Mutex::default(),
            counted: Mutex::default(),
        }
    }
}

impl KeyRotation {
    /// Whether it is time; true once.
    fn is_due(&self) -> bool {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let due = self.wanted.swap(false, Ordering::AcqRel) || asked.elapsed() >= EVERY;
        if due {
            *asked = Instant::now();
        }
        due
    }

    fn counted(&self) -> MutexGuard<'_, Option<Counted>> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Data sealed under older epochs, if the count is complete.
    fn under_old_epochs(&self) -> Option<UnderOldEpochs> {
        self.counted().and_then(|counted| counted.found)
    }

    /// Whether it is time to count; true once.
    fn begins_to_count(&self, epoch: RealmEpoch) -> bool {
        let mut counted = self.counted();
        let is_fresh = |it: &Counted| it.epoch == epoch && it.at.elapsed() < COUNT_EVERY;
        if epoch == RealmEpoch(0) || counted.as_ref().is_some_and(is_fresh) {
            return false;
        }
        // The previous count stands until then, unless it was for another epoch.
        let found = counted.filter(|it| it.epoch == epoch);
        *counted = Some(Counted {
            epoch,
            at: Instant::now(),
            found: found.and_then(|it| it.found),
        });
        true
    }
}

impl Services {
    /// Data sealed under older epochs, if the count is complete.
    pub(in crate::vfs) fn under_old_epochs(&self) -> Option<UnderOldEpochs> {
        self.key_rotation.under_old_epochs()
    }

    /// The key of an epoch, opened if it is not open yet.
    pub(in crate::vfs) async fn key_of(
        &self,
        epoch: RealmEpoch,
    ) -> Result<RealmEpochKey, VfsError> {
        match self.volume.epoch_key(epoch) {
            Err(KeyError::NoEpoch { .. }) if self.volume.current_epoch() < Some(epoch) => {
                self.refresh_keys().await?;
                Ok(self.volume.epoch_key(epoch)?)
            }
            found => Ok(found?),
        }
    }

    /// Opens the realm's newest epoch.
    pub(in crate::vfs) async fn refresh_keys(&self) -> Result<(), VfsError> {
        let clouds = self.slices.shares();
        let before = self.volume.current_epoch();
        let now = self.volume.refresh(&self.metadata, clouds.as_ref()).await?;
        if before != Some(now) {
            tracing::info!(epoch = %now, "new data is sealed under a new key from now on");
        }
        if before.is_some_and(|before| before != now) {
            // There are shares to complete, and old slices to count.
            self.key_rotation.wanted.store(true, Ordering::Release);
            self.pressure.notify_one();
        }
        Ok(())
    }

    /// After a refusal that says that there are newer keys than this mount knows, opens them.
    /// Returns whether it was one for keys.
    pub(in crate::vfs) async fn catch_up(&self, refusal: &VfsError) -> Result<bool, VfsError> {
        let VfsError::OtherKeys { epoch, .. } = refusal else {
            return Ok(false);
        };
        if self.volume.current_epoch() < Some(*epoch) {
            self.refresh_keys().await?;
        }
        Ok(true)
    }

    /// Puts missing shares of the newest epoch, until every cloud has its own.
    async fn complete_shares(&self) {
        let epoch = self.volume.current_epoch();
        let complete = &self.key_rotation.complete;
        if *complete.lock().unwrap_or_else(PoisonError::into_inner) == epoch {
            return;
        }
        let (Some(shares), Some(clouds)) = (self.volume.current_shares(), self.slices.shares())
        else {
            return;
        };
        let looked = clouds.look(&shares, None).await;
        let wanting = looked.iter().filter(|(_, state)| state.wants_repair());
        let wanting: Vec<_> = wanting.map(|(cloud, _)| *cloud).collect();
        match clouds.restore(&shares, &wanting).await {
            Ok(restored) => {
                let good = looked.iter().filter(|(_, it)| *it == ShareState::Good);
                if good.count() + restored.len() == looked.len() {
                    *complete.lock().unwrap_or_else(PoisonError::into_inner) = epoch;
                }
            }
            Err(error) => tracing::warn!(%error, "shares of the volume's key cannot be restored"),
        }
    }

    /// Counts data sealed under epochs older than the newest, if it is time.
    async fn count_old_epochs(&self) -> Result<(), VfsError> {
        let Some(newest) = self.volume.current_epoch() else {
            return Ok(());
        };
        if !self.key_rotation.begins_to_count(newest) {
            return Ok(());
        }
        let (mut sum, mut after) = (UnderOldEpochs::default(), None);
        loop {
            let (epochs, next) = self.metadata.count_by_epoch(after).await?;
            for it in epochs.iter().filter(|it| it.epoch < newest) {
                sum.slices = sum.slices.saturating_add(it.slices);
                sum.bytes = sum.bytes.saturating_add(it.bytes);
            }
            match next {
                Some(next) => after = Some(next),
                None => break,
            }
            tokio::time::sleep(COUNT_PAUSE).await;
        }
        if let Some(counted) = self.key_rotation.counted().as_mut()
            && counted.epoch == newest
        {
            counted.found = Some(sum);
        }
        Ok(())
    }

    /// The attributes of a directory show in which epoch it was made.
    pub(in crate::vfs) fn learn_epoch(&self, attributes: &Attributes) {
        if let Detail::Directory { generations, .. } = attributes.detail
            && Some(generations.current) > self.volume.current_epoch()
        {
            self.key_rotation.wanted.store(true, Ordering::Release);
            self.pressure.notify_one();
        }
    }

    /// Asks for the newest epoch in a task of its own, if it is time.
    pub(in crate::vfs) fn refresh_keys_if_due(self: &Arc<Self>) {
        if !self.key_rotation.is_due() || self.metadata.is_fenced() {
            return;
        }
        let inner = Arc::clone(self);
        tokio::spawn(async move {
            if let Err(error) = inner.refresh_keys().await {
                tracing::warn!(%error, "the volume's newest key could not be opened");
            }
            inner.complete_shares().await;
            if let Err(error) = inner.count_old_epochs().await {
                tracing::debug!(%error, "data under older epochs could not be counted");
            }
        });
    }
}
