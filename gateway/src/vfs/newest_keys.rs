//! How a file system that is in use comes by the keys of new epochs.
//!
//! Somebody begins an epoch while a mount is at work. It is noticed at the first directory that
//! was made since, whose names are sealed under it; at the first slice or small value that somebody
//! else has sealed under it; and every minute. Whoever meets what is sealed under an epoch that is
//! not open yet opens it and goes on. What is written is sealed under the newest one
//! that is open.
//!
//! With the second lock the shares of the newest epoch are completed here, too: a cloud that was
//! out of reach when the epoch began gets its share once it is back.
//!
//! How much is still sealed under older epochs is counted as well, now and then, piece by piece:
//! whoever had their keys can read that until it is overwritten.

use super::VfsError;
use super::file_system::Inner;
use crate::blocks::ShareState;
use crate::keys::{KeyError, RealmEpochKey};
use quorumfs_metadata::attributes::{Attributes, Detail};
use quorumfs_metadata::identity::RealmEpoch;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How often to ask whether there is a new epoch.
const EVERY: Duration = Duration::from_secs(60);

/// How often to count what is under older epochs, if there are some. The servers go through all
/// slices for it.
const COUNT_EVERY: Duration = Duration::from_secs(600);
/// Between two pieces of that.
const COUNT_PAUSE: Duration = Duration::from_millis(50);

/// What is sealed under keys that are not the newest any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnderOldEpochs {
    /// Slices.
    pub slices: u64,
    /// Bytes of their content.
    pub bytes: u64,
}

/// What was counted when.
#[derive(Clone, Copy, Debug)]
struct Counted {
    /// The newest epoch then.
    epoch: RealmEpoch,
    /// When it began to be counted.
    at: Instant,
    /// Nothing until the end has come.
    found: Option<UnderOldEpochs>,
}

/// When to ask again.
#[derive(Debug)]
pub(crate) struct NewestKeys {
    asked: Mutex<Instant>,
    /// Something was seen that is sealed under a newer epoch than is open.
    wanted: AtomicBool,
    /// The epoch of which every cloud was seen to hold its share.
    complete: Mutex<Option<RealmEpoch>>,
    counted: Mutex<Option<Counted>>,
}

impl Default for NewestKeys {
    fn default() -> Self {
        Self {
            asked: Mutex::new(Instant::now()),
            wanted: AtomicBool::new(false),
            complete: Mutex::default(),
            counted: Mutex::default(),
        }
    }
}

impl NewestKeys {
    /// Whether it is time, which it is once.
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

    /// What is sealed under older epochs, if it was counted to the end.
    pub(crate) fn under_old_epochs(&self) -> Option<UnderOldEpochs> {
        self.counted().and_then(|counted| counted.found)
    }

    /// Whether it is time to count, which it is once.
    fn begins_to_count(&self, epoch: RealmEpoch) -> bool {
        let mut counted = self.counted();
        let is_fresh = |it: &Counted| it.epoch == epoch && it.at.elapsed() < COUNT_EVERY;
        if epoch == RealmEpoch(0) || counted.as_ref().is_some_and(is_fresh) {
            return false;
        }
        // What was counted before stands until then, unless it was for another epoch.
        let found = counted.filter(|it| it.epoch == epoch);
        *counted = Some(Counted {
            epoch,
            at: Instant::now(),
            found: found.and_then(|it| it.found),
        });
        true
    }
}

impl Inner {
    /// The key of an epoch, asked for if it is not open yet.
    pub(crate) async fn key_of(&self, epoch: RealmEpoch) -> Result<RealmEpochKey, VfsError> {
        match self.volume.epoch_key(epoch) {
            Err(KeyError::NoEpoch { .. }) if self.volume.current_epoch() < Some(epoch) => {
                self.refresh_keys().await?;
                Ok(self.volume.epoch_key(epoch)?)
            }
            found => Ok(found?),
        }
    }

    /// Opens the realm's newest epoch.
    pub(crate) async fn refresh_keys(&self) -> Result<(), VfsError> {
        let clouds = self.slices.shares();
        let before = self.volume.current_epoch();
        let now = self.volume.refresh(&self.metadata, clouds.as_ref()).await?;
        if before != Some(now) {
            tracing::info!(epoch = %now, "what is written is sealed under a new key from now on");
        }
        if before.is_some_and(|before| before != now) {
            // There are shares to complete, and old slices to count.
            self.newest_keys.wanted.store(true, Ordering::Release);
            self.pressure.notify_one();
        }
        Ok(())
    }

    /// Puts shares of the newest epoch where they are missing, until every cloud has its own.
    async fn complete_shares(&self) {
        let epoch = self.volume.current_epoch();
        let complete = &self.newest_keys.complete;
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

    /// Counts what is sealed under older epochs than the newest, if it is time.
    async fn count_old_epochs(&self) -> Result<(), VfsError> {
        let Some(newest) = self.volume.current_epoch() else {
            return Ok(());
        };
        if !self.newest_keys.begins_to_count(newest) {
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
        if let Some(counted) = self.newest_keys.counted().as_mut()
            && counted.epoch == newest
        {
            counted.found = Some(sum);
        }
        Ok(())
    }

    /// Attributes of a directory tell which epoch it was made in.
    pub(crate) fn learn_epoch(&self, attributes: &Attributes) {
        if let Detail::Directory { generations, .. } = attributes.detail
            && Some(generations.current) > self.volume.current_epoch()
        {
            self.newest_keys.wanted.store(true, Ordering::Release);
            self.pressure.notify_one();
        }
    }

    /// Asks for the newest epoch beside everything else, if it is time.
    pub(crate) fn refresh_keys_if_due(self: &Arc<Self>) {
        if !self.newest_keys.is_due() || self.metadata.is_fenced() {
            return;
        }
        let inner = Arc::clone(self);
        tokio::spawn(async move {
            if let Err(error) = inner.refresh_keys().await {
                tracing::warn!(%error, "the volume's newest key could not be opened");
            }
            inner.complete_shares().await;
            if let Err(error) = inner.count_old_epochs().await {
                tracing::debug!(%error, "what is under older epochs could not be counted");
            }
        });
    }
}
