//! When a file system looks for shares that have ended, to take back their access lists.

use quorumfs_metadata::identity::ShareId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How often it looks: access is gone within a minute.
const EVERY: Duration = Duration::from_secs(40);

/// When it looks, and what it could not take back when.
pub(in crate::vfs) struct TakingBack {
    looked: Mutex<Instant>,
    /// Held while a look lasts.
    pub(in crate::vfs) failed: Arc<tokio::sync::Mutex<BTreeMap<ShareId, Instant>>>,
}

impl Default for TakingBack {
    fn default() -> Self {
        Self {
            looked: Mutex::new(Instant::now()),
            failed: Arc::default(),
        }
    }
}

impl TakingBack {
    /// Whether it is time; true once.
    pub(in crate::vfs) fn is_due(&self) -> bool {
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = looked.elapsed() >= EVERY;
        if is_due {
            *looked = Instant::now();
        }
        is_due
    }
}
