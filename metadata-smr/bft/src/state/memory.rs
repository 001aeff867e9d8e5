//! A store in memory, for tests and for the simulator.

use super::{StateError, Store, WriteBatch};
use bytes::Bytes;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Rows in a sorted map. A clone is another handle on the same rows, as the core and its driver
/// share one store; [`MemoryStore::snapshot`] makes an independent copy.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    rows: Rc<RefCell<BTreeMap<Bytes, Bytes>>>,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Applies a batch, all of it.
    pub fn apply(&self, batch: &WriteBatch) {
        let mut rows = self.rows.borrow_mut();
        for (key, value) in &batch.entries {
            match value {
                Some(value) => rows.insert(key.clone(), value.clone()),
                None => rows.remove(key),
            };
        }
    }

    /// An independent store with the same rows: the content of a disk at this moment.
    #[must_use]
    pub fn snapshot(&self) -> Self {
        Self {
            rows: Rc::new(RefCell::new(self.rows.borrow().clone())),
        }
    }

    /// The number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.borrow().len()
    }

    /// Whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.borrow().is_empty()
    }

    /// Every key, in order: lets a test choose one to damage.
    #[must_use]
    pub fn keys(&self) -> Vec<Bytes> {
        self.rows.borrow().keys().cloned().collect()
    }
}

impl Store for MemoryStore {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        Ok(self.rows.borrow().get(key).cloned())
    }
}
