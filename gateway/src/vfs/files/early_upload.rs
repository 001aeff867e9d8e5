//! Slices that are uploaded while their file is still being written, before a commit needs them.
//!
//! ```text
//! dirty ──a run is full, and a commit is under way──► early ──the next commit──► frozen
//!   ▲                                                   │
//!   └──── written over meanwhile, or to be put back ────┘
//! ```
//!
//! A commit ends with waiting for its slowest slice and for the servers. Without early uploads the
//! clouds would be idle meanwhile. The servers do not have these slices until the next commit names
//! them. A run that is overwritten before that goes back, and its slice is abandoned.

use super::dirty::{DirtyRuns, FrozenRuns};
use crate::error::VfsError;
use crate::slices::Stored;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::task::JoinHandle;

/// A slice being uploaded; aborted when this is dropped.
#[derive(Debug)]
pub(in crate::vfs) struct EarlyUpload(JoinHandle<Result<Stored, VfsError>>);

impl EarlyUpload {
    pub(in crate::vfs) fn new(task: JoinHandle<Result<Stored, VfsError>>) -> Self {
        Self(task)
    }

    /// Waits for it; `None` if it failed.
    pub(in crate::vfs) async fn finished(mut self) -> Option<Stored> {
        (&mut self.0).await.ok()?.ok()
    }
}

impl Drop for EarlyUpload {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The early uploads of one file.
#[derive(Debug, Default)]
pub(in crate::vfs) struct EarlyUploads {
    runs: FrozenRuns,
    uploads: BTreeMap<u64, EarlyUpload>,
    /// One clone for each upload in flight.
    positions: Arc<()>,
}

/// See [`EarlyUploads::position`].
#[derive(Debug)]
pub(in crate::vfs) struct UploadPosition {
    _held: Arc<()>,
}

impl EarlyUploads {
    /// How many are in flight. One that has arrived frees its position for the next: at the end of
    /// a commit, when the clouds would be idle, the first ones have long arrived.
    pub(in crate::vfs) fn under_way(&self) -> usize {
        // One reference is ours.
        Arc::strong_count(&self.positions).saturating_sub(1)
    }

    /// How many there are, arrived or not.
    pub(in crate::vfs) fn len(&self) -> usize {
        self.uploads.len()
    }

    /// A position among those in flight, until it is dropped.
    pub(in crate::vfs) fn position(&self) -> UploadPosition {
        UploadPosition {
            _held: self.positions.clone(),
        }
    }

    pub(in crate::vfs) fn runs(&self) -> &FrozenRuns {
        &self.runs
    }

    pub(in crate::vfs) fn insert(&mut self, offset: u64, run: Bytes, upload: EarlyUpload) {
        self.runs.insert(offset, run);
        self.uploads.insert(offset, upload);
    }

    /// Moves everything back beneath the dirty runs.
    pub(in crate::vfs) fn put_back(&mut self, dirty: &mut DirtyRuns) {
        let Self { runs, .. } = std::mem::take(self);
        if !runs.is_empty() {
            dirty.put_beneath(runs);
        }
    }

    /// Departs with the dirty runs: returns all runs, and the uploads of those that were not
    /// overwritten.
    pub(in crate::vfs) fn depart(
        &mut self,
        dirty: &mut DirtyRuns,
    ) -> (FrozenRuns, BTreeMap<u64, EarlyUpload>) {
        let Self {
            runs, mut uploads, ..
        } = std::mem::take(self);
        let (mut current, mut stale) = (FrozenRuns::default(), FrozenRuns::default());
        for (start, run) in runs.iter() {
            if dirty.overlaps(start, run.len()) {
                uploads.remove(&start);
                stale.insert(start, run.clone());
            } else {
                current.insert(start, run.clone());
            }
        }
        if !stale.is_empty() {
            dirty.put_beneath(stale);
        }
        let mut frozen = dirty.freeze();
        for (start, run) in current.iter() {
            frozen.insert(start, run.clone());
        }
        (frozen, uploads)
    }
}
