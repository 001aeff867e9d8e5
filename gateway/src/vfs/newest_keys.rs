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

use super::VfsError;
use super::file_system::Inner;
use crate::blocks::ShareState;
use crate::keys::{KeyError, RealmEpochKey};
use quorumfs_metadata::attributes::{Attributes, Detail};
use quorumfs_metadata::identity::RealmEpoch;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How often to ask whether there is a new epoch.
const EVERY: Duration = Duration::from_secs(60);

/// When to ask again.
#[derive(Debug)]
pub(crate) struct NewestKeys {
    asked: Mutex<Instant>,
    /// Something was seen that is sealed under a newer epoch than is open.
    wanted: AtomicBool,
    /// The epoch of which every cloud was seen to hold its share.
    complete: Mutex<Option<RealmEpoch>>,
}

impl Default for NewestKeys {
    fn default() -> Self {
        Self {
            asked: Mutex::new(Instant::now()),
            wanted: AtomicBool::new(false),
            complete: Mutex::default(),
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
        });
    }
}
