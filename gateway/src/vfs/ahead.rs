//! Slices that are put to the clouds while their file is still written, before any commit wants
//! them.
//!
//! ```text
//! dirty ──a run is full, and a commit is under way──► ahead ──the next commit──► frozen
//!   ▲                                                   │
//!   └──── written over meanwhile, or to be put back ────┘
//! ```
//!
//! A commit ends with a wait for its slowest slice and for the servers. Without this the clouds
//! would have nothing to do meanwhile. Nothing is known of these slices outside until the next
//! commit names them; a run that is written over before goes back, and its slice is abandoned.

use super::VfsError;
use super::commit::Stored;
use super::dirty::{DirtyRuns, FrozenRuns};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::task::JoinHandle;

/// A slice on its way; broken off when it is dropped.
#[derive(Debug)]
pub(crate) struct EarlyUpload(JoinHandle<Result<Stored, VfsError>>);

impl EarlyUpload {
    pub(crate) fn new(task: JoinHandle<Result<Stored, VfsError>>) -> Self {
        Self(task)
    }

    /// Waits for it; nothing if it failed, in whichever way.
    pub(crate) async fn finished(mut self) -> Option<Stored> {
        (&mut self.0).await.ok()?.ok()
    }
}

impl Drop for EarlyUpload {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Those of one file.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    runs: FrozenRuns,
    uploads: BTreeMap<u64, EarlyUpload>,
    /// Held once for each that is on its way.
    places: Arc<()>,
}

/// See [`Ahead::place`].
#[derive(Debug)]
pub(crate) struct Place {
    _held: Arc<()>,
}

impl Ahead {
    /// How many are on their way. One that has arrived leaves its place to the next: at the end of
    /// a commit, which is when the clouds would have nothing to do, the first ones are long there.
    pub(crate) fn under_way(&self) -> usize {
        // One holder is here.
        Arc::strong_count(&self.places).saturating_sub(1)
    }

    /// How many there are, arrived or not.
    pub(crate) fn len(&self) -> usize {
        self.uploads.len()
    }

    /// A place among those on their way, until it is dropped.
    pub(crate) fn place(&self) -> Place {
        Place {
            _held: self.places.clone(),
        }
    }

    pub(crate) fn runs(&self) -> &FrozenRuns {
        &self.runs
    }

    pub(crate) fn insert(&mut self, offset: u64, run: Bytes, upload: EarlyUpload) {
        self.runs.insert(offset, run);
        self.uploads.insert(offset, upload);
    }

    /// Takes everything back beneath what is dirty.
    pub(crate) fn put_back(&mut self, dirty: &mut DirtyRuns) {
        let Self { runs, .. } = std::mem::take(self);
        if !runs.is_empty() {
            dirty.put_beneath(runs);
        }
    }

    /// Leaves with what is dirty: all runs, and the uploads of those that were not written over.
    pub(crate) fn depart(
        &mut self,
        dirty: &mut DirtyRuns,
    ) -> (FrozenRuns, BTreeMap<u64, EarlyUpload>) {
        let Self {
            runs, mut uploads, ..
        } = std::mem::take(self);
        let (mut kept, mut stale) = (FrozenRuns::default(), FrozenRuns::default());
        for (start, run) in runs.iter() {
            if dirty.overlaps(start, run.len()) {
                uploads.remove(&start);
                stale.insert(start, run.clone());
            } else {
                kept.insert(start, run.clone());
            }
        }
        if !stale.is_empty() {
            dirty.put_beneath(stale);
        }
        let mut frozen = dirty.freeze();
        for (start, run) in kept.iter() {
            frozen.insert(start, run.clone());
        }
        (frozen, uploads)
    }
}
