//! A written slice until the servers have it.

use super::{SliceStore, WrittenSlice};
use crate::metadata::AllocatedId;
use std::fmt;
use std::sync::Arc;

/// A run of a file with its slice. Abandoned when it is dropped uncommitted.
pub(crate) struct Stored {
    pub(crate) offset: u64,
    pub(crate) written: WrittenSlice,
    slices: Arc<dyn SliceStore>,
    committed: bool,
    /// Keeps the allocation open until the commit.
    _id: AllocatedId,
}

impl Stored {
    /// The run at `offset` was written to `slices` under `id`.
    pub(crate) fn new(
        offset: u64,
        written: WrittenSlice,
        slices: Arc<dyn SliceStore>,
        id: AllocatedId,
    ) -> Self {
        Self {
            offset,
            written,
            slices,
            committed: false,
            _id: id,
        }
    }

    /// The servers have it.
    pub(crate) fn committed(&mut self) {
        // It may be committed in several parts.
        if !std::mem::replace(&mut self.committed, true) {
            self.slices.committed(self.written.object.id);
        }
    }

    /// Whether the servers have it.
    pub(crate) fn is_committed(&self) -> bool {
        self.committed
    }
}

impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stored({}, {:?})", self.offset, self.written.slice.id)
    }
}

impl Drop for Stored {
    fn drop(&mut self) {
        if !self.committed {
            self.slices.abandoned(self.written.object.id);
        }
    }
}
