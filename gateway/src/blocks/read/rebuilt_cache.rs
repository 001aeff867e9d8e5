//! A cache of objects that were rebuilt recently, or are being rebuilt.
//!
//! Small sequential reads past a missing cloud then do not fetch everything at every step, and
//! concurrent readers share one rebuild. The oldest are evicted beyond a bound in bytes.

use crate::blocks::object::Rebuilt;
use quorumfs_metadata::identity::ObjectId;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::OnceCell;

type RebuiltCell = Arc<OnceCell<Arc<Rebuilt>>>;

/// Objects that were rebuilt recently, or are being rebuilt.
#[derive(Debug)]
pub(in crate::blocks) struct RebuiltCache {
    bytes_max: usize,
    entries: Mutex<VecDeque<(ObjectId, RebuiltCell)>>,
}

impl RebuiltCache {
    pub(in crate::blocks) fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            entries: Mutex::default(),
        }
    }

    /// A rebuilt object.
    pub(in crate::blocks) fn finished(&self, object: ObjectId) -> Option<Arc<Rebuilt>> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, cell) = entries.iter().find(|(id, _)| *id == object)?;
        cell.get().cloned()
    }

    /// The place of an object that is rebuilt or being rebuilt.
    pub(in crate::blocks) fn cell(&self, object: ObjectId) -> RebuiltCell {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, cell)) = entries.iter().find(|(id, _)| *id == object) {
            return Arc::clone(cell);
        }
        let cell = RebuiltCell::default();
        entries.push_back((object, Arc::clone(&cell)));
        cell
    }

    /// Evicts the oldest beyond the bound, and failed rebuilds.
    pub(in crate::blocks) fn bound(&self) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let size = |cell: &RebuiltCell| cell.get().map_or(0, |rebuilt| rebuilt.bytes());
        entries.retain(|(_, cell)| cell.get().is_some() || Arc::strong_count(cell) > 1);
        while entries.iter().map(|(_, cell)| size(cell)).sum::<usize>() > self.bytes_max {
            entries.pop_front();
        }
    }
}
