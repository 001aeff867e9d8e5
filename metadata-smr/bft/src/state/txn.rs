//! Writing: a transaction that is committed as a whole or has no effect.

use super::key_space::Area;
use super::node::Born;
use super::tree::Tree;
use super::view::{PendingWrites, View};
use super::{KEY_BYTES_MAX, Row, StateError, Store, VALUE_BYTES_MAX};
use crate::identity::Sequence;
use bytes::Bytes;
use std::ops::Range;

/// A transaction over the rows of one area: reads see its own earlier writes.
///
/// The service sees its own rows only; the library's (sessions, replies, clock) are under a prefix
/// that no key of the service can reach. Each row that is written has the sequence of the
/// transaction's batch. The writes are kept only if [`Txn::commit`] is called; a transaction that
/// is dropped has no effect. Committed is not durable: [`KeySpace::flush`](super::KeySpace::flush)
/// makes writes durable, and commits since the last flush are recovered by replaying the log.
pub struct Txn<'a> {
    tree: &'a Tree,
    pending: &'a mut PendingWrites,
    store: &'a dyn Store,
    area: Area,
    birth: Sequence,
    /// Where the keys that were written are collected.
    changed: Option<&'a mut Vec<Bytes>>,
    /// The previous value of each written key, oldest first.
    undo: Vec<(Bytes, Option<Option<Born>>)>,
}

/// A point in a transaction to return to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Savepoint(usize);

impl<'a> Txn<'a> {
    pub(super) const fn new(
        (tree, pending): (&'a Tree, &'a mut PendingWrites),
        store: &'a dyn Store,
        area: Area,
        birth: Sequence,
        changed: Option<&'a mut Vec<Bytes>>,
    ) -> Self {
        Self {
            tree,
            pending,
            store,
            area,
            birth,
            changed,
            undo: Vec::new(),
        }
    }

    /// The same rows, for reading.
    #[must_use]
    pub fn view(&self) -> View<'_> {
        View {
            tree: self.tree,
            root: self.tree.root,
            pending: Some(self.pending),
            store: self.store,
            area: self.area,
            noted: None,
        }
    }

    /// The value under `key`.
    ///
    /// # Errors
    /// If the store fails.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        self.view().get(key)
    }

    /// The first `limit` rows with `from` ≤ key < `to`, in the order of their keys.
    ///
    /// # Errors
    /// If the store fails.
    pub fn scan(&self, range: Range<&[u8]>, limit: usize) -> Result<Vec<Row>, StateError> {
        self.view().scan(range, limit)
    }

    /// Writes a row.
    ///
    /// # Errors
    /// If the key is longer than [`KEY_BYTES_MAX`] or the value longer than [`VALUE_BYTES_MAX`].
    /// This is a defect of the caller, which must not let clients choose such lengths.
    pub fn put(&mut self, key: &[u8], value: impl Into<Bytes>) -> Result<(), StateError> {
        let value = value.into();
        if value.len() > VALUE_BYTES_MAX {
            return Err(StateError::TooLong {
                what: "value",
                length: value.len(),
                max: VALUE_BYTES_MAX,
            });
        }
        let birth = self.birth;
        self.write(key, Some(Born { birth, value }))
    }

    /// Removes a row; nothing happens if there is none.
    ///
    /// # Errors
    /// If the key is longer than [`KEY_BYTES_MAX`].
    pub fn delete(&mut self, key: &[u8]) -> Result<(), StateError> {
        self.write(key, None)
    }

    /// Remembers this point.
    #[must_use]
    pub const fn savepoint(&self) -> Savepoint {
        Savepoint(self.undo.len())
    }

    /// Undoes all writes since `savepoint`.
    pub fn rollback(&mut self, savepoint: Savepoint) {
        while self.undo.len() > savepoint.0 {
            match self.undo.pop() {
                Some((key, Some(before))) => self.pending.insert(key, before),
                Some((key, None)) => self.pending.remove(&key),
                None => break,
            };
        }
    }

    /// Keeps the writes.
    pub fn commit(mut self) {
        if let Some(changed) = &mut self.changed {
            // Without the prefix of the area.
            changed.extend(self.undo.iter().map(|(key, _)| key.slice(1..)));
        }
        self.undo.clear();
    }

    fn write(&mut self, key: &[u8], value: Option<Born>) -> Result<(), StateError> {
        if key.len() > KEY_BYTES_MAX {
            return Err(StateError::TooLong {
                what: "key",
                length: key.len(),
                max: KEY_BYTES_MAX,
            });
        }
        let key = self.area.key(key);
        let before = self.pending.insert(key.clone(), value);
        self.undo.push((key, before));
        Ok(())
    }
}

impl Drop for Txn<'_> {
    fn drop(&mut self) {
        self.rollback(Savepoint(0));
    }
}
