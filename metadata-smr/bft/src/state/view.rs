//! Reading: rows that were written but not settled yet, over a tree.

use super::cursor::Cursor;
use super::key_space::Area;
use super::node::NodeRef;
use super::tree::Tree;
use super::{KEY_BYTES_MAX, Row, StateError, Store};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;

/// Rows written since the tree was last settled; `None` is a deletion.
pub(super) type Pending = BTreeMap<Bytes, Option<Bytes>>;

/// What a query sees: the rows of one area, and no way to write.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub(super) tree: &'a Tree,
    pub(super) root: Option<NodeRef>,
    pub(super) pending: Option<&'a Pending>,
    pub(super) store: &'a dyn Store,
    pub(super) area: Area,
}

impl View<'_> {
    /// The value under `key`.
    ///
    /// # Errors
    /// If the store fails.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        let key = self.area.key(key);
        match self.pending.and_then(|pending| pending.get(&key)) {
            Some(value) => Ok(value.clone()),
            None => self.tree.get(self.store, self.root, &key),
        }
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
        let mut below = cursor.next()?;
        let nothing = Pending::new();
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
                if let Some(value) = value {
                    rows.push((key.slice(1..), value.clone()));
                }
            } else {
                let Some((key, value)) = below.take() else {
                    break;
                };
                rows.push((key.slice(1..), value));
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
