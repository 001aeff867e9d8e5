//! Reading: rows that were written but not settled yet, over a tree.
//!
//! A view can note the births of the rows that are read through it. The highest of them is the
//! *version* of an answer that was made from these rows: none of them has changed since. Absent
//! rows have no birth; see [`crate::service`] for the consequences.

use super::cursor::Cursor;
use super::key_space::Area;
use super::node::{Born, BornRow, NodeRef};
use super::tree::Tree;
use super::{KEY_BYTES_MAX, Row, StateError, Store};
use crate::identity::Sequence;
use bytes::Bytes;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;

/// Rows written since the tree was last settled; `None` is a deletion.
pub(super) type PendingWrites = BTreeMap<Bytes, Option<Born>>;

/// When the rows that were read last changed.
#[derive(Clone, Debug)]
pub struct LastChange {
    executed: Sequence,
    noted: Cell<Sequence>,
}

impl LastChange {
    /// No row of the state after the batch at `executed` has been read yet.
    #[must_use]
    pub const fn of_state_after(executed: Sequence) -> Self {
        Self {
            executed,
            noted: Cell::new(Sequence(0)),
        }
    }

    /// The sequence of the last batch that wrote any of the rows that were read.
    #[must_use]
    pub const fn sequence(&self) -> Sequence {
        self.noted.get()
    }

    fn note(&self, birth: Sequence) {
        self.noted.set(self.noted.get().max(birth));
    }
}

/// The view of a query: the rows of one area, read-only.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub(super) tree: &'a Tree,
    pub(super) root: Option<NodeRef>,
    pub(super) pending: Option<&'a PendingWrites>,
    pub(super) store: &'a dyn Store,
    pub(super) area: Area,
    pub(super) noted: Option<&'a LastChange>,
}

impl View<'_> {
    /// The same rows; `noted` records when those that are read last changed.
    #[must_use]
    pub const fn noting<'b>(&'b self, noted: &'b LastChange) -> View<'b> {
        View {
            tree: self.tree,
            root: self.root,
            pending: self.pending,
            store: self.store,
            area: self.area,
            noted: Some(noted),
        }
    }

    /// Marks an answer as dependent on more than the rows that were read: its version is the last
    /// batch, of any change. Answers of two replicas then match only if both have executed the same
    /// batches, so this is for rare queries.
    pub fn depend_on_everything(&self) {
        if let Some(noted) = self.noted {
            noted.note(noted.executed);
        }
    }

    /// The value under `key`.
    ///
    /// # Errors
    /// If the store fails.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        let found = self.area.with_key(key, |key| self.find(key))?;
        Ok(found.map(|born| self.note(born)))
    }

    fn find(&self, key: &[u8]) -> Result<Option<Born>, StateError> {
        match self.pending.and_then(|pending| pending.get(key)) {
            Some(written) => Ok(written.clone()),
            None => self.tree.get(self.store, self.root, key),
        }
    }

    fn note(&self, born: Born) -> Bytes {
        if let Some(noted) = self.noted {
            noted.note(born.birth);
        }
        born.value
    }

    fn noted_row(&self, key: &Bytes, born: Born) -> Row {
        (key.slice(1..), self.note(born))
    }

    /// The first `limit` rows with `from` ≤ key < `to`, in the order of their keys.
    ///
    /// [`prefix_end`] gives the end of a range of keys with one prefix.
    ///
    /// # Errors
    /// If the store fails.
    pub fn scan(&self, range: Range<&[u8]>, limit: usize) -> Result<Vec<Row>, StateError> {
        let mut rows = Vec::new();
        if limit == 0 || range.start >= range.end {
            return Ok(rows);
        }
        let (from, to) = (self.area.key(range.start), self.area.key(range.end));
        let mut cursor = Cursor::seek(self.tree, self.store, self.root, &from)?;
        let mut below: Option<BornRow> = cursor.next()?;
        let nothing = PendingWrites::new();
        let pending = self.pending.unwrap_or(&nothing);
        let mut above = pending.range(from..to.clone()).peekable();
        while rows.len() < limit {
            let settled = below.as_ref().filter(|(key, _)| *key < to);
            let newer = above.peek().map(|(key, _)| *key);
            let take_newer = match (settled, newer) {
                (None, None) => break,
                (Some(_), None) => false,
                (None, Some(_)) => true,
                (Some((old, _)), Some(new)) => new <= old,
            };
            if take_newer {
                let Some((key, value)) = above.next() else {
                    break;
                };
                if settled.is_some_and(|(old, _)| old == key) {
                    below = cursor.next()?;
                }
                if let Some(born) = value {
                    rows.push(self.noted_row(key, born.clone()));
                }
            } else {
                let Some((key, born)) = below.take() else {
                    break;
                };
                rows.push(self.noted_row(&key, born));
                if rows.len() < limit {
                    below = cursor.next()?;
                }
            }
        }
        Ok(rows)
    }
}

/// The end of the range of all keys that begin with `prefix`: `scan(prefix..prefix_end(prefix))`.
#[must_use]
pub fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    vec![u8::MAX; KEY_BYTES_MAX + 1]
}
