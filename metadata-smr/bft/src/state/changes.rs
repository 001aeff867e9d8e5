//! The rows that differ between two trees, in the order of their keys.
//!
//! Both trees are walked at the same time. A subtree that both have at the same place is passed
//! over unread; of two that differ, or that are at different places, the one that comes first, or
//! that holds the other one's place, is entered. So the cost follows from the changes and not from
//! the rows, and memory is one node per level of each tree.

use super::cursor::Cursor;
use super::key_space::Area;
use super::nibbles::slots;
use super::node::{Born, BornRow, Node, NodeRef};
use super::tree::Tree;
use super::{KeySpace, StateError, Store};
use crate::identity::Digest;
use bytes::Bytes;
use std::cmp::Ordering;

/// A row that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedRow {
    /// Its key, within its area.
    pub key: Bytes,
    /// Its value and birth in the later tree; `None` if it is not there.
    pub now: Option<Born>,
}

/// What comes next in one of the trees.
#[derive(Debug)]
pub(super) enum Next {
    End,
    Row(BornRow),
    /// A subtree that was not entered.
    Subtree(NodeRef),
}

/// The rows that differ between two durable trees.
pub struct Changes<'a> {
    area: Area,
    before: Cursor<'a>,
    now: Cursor<'a>,
    over: bool,
}

impl<'a> Changes<'a> {
    fn between(
        (tree, store): (&'a Tree, &'a dyn Store),
        area: Area,
        before: Option<NodeRef>,
        now: Option<NodeRef>,
    ) -> Result<Self, StateError> {
        let from = area.key(b"");
        let digest = |root: Option<NodeRef>| root.map(|root| root.digest);
        Ok(Self {
            area,
            over: digest(before) == digest(now),
            before: Cursor::seek(tree, store, before, &from)?,
            now: Cursor::seek(tree, store, now, &from)?,
        })
    }

    /// The next row that differs; `None` if there are no more.
    ///
    /// # Errors
    /// If the store fails.
    #[allow(clippy::should_implement_trait)] // an iterator's items cannot end with an error
    pub fn next(&mut self) -> Result<Option<ChangedRow>, StateError> {
        while !self.over {
            match self.step()? {
                DiffStep::Passed => {}
                DiffStep::Over => self.over = true,
                DiffStep::Differs((key, _), _) if !self.area.owns(&key) => self.over = true,
                DiffStep::Differs((key, born), there) => {
                    let key = key.slice(1..);
                    let now = there.then_some(born);
                    return Ok(Some(ChangedRow { key, now }));
                }
            }
        }
        Ok(None)
    }

    fn step(&mut self) -> Result<DiffStep, StateError> {
        Ok(match (self.before.peek(), self.now.peek()) {
            (Next::End, Next::End) => DiffStep::Over,
            (Next::Subtree(old), Next::Subtree(new)) if old.digest == new.digest => {
                self.before.pass();
                self.now.pass();
                DiffStep::Passed
            }
            (Next::Row(old), Next::Row(new)) => match old.0.cmp(&new.0) {
                Ordering::Less => self.gone(old),
                Ordering::Greater => self.here(new),
                Ordering::Equal => {
                    self.before.pass();
                    match old == new {
                        true => {
                            self.now.pass();
                            DiffStep::Passed
                        }
                        false => self.here(new),
                    }
                }
            },
            (Next::Row(old), Next::End) => self.gone(old),
            (Next::End, Next::Row(new)) => self.here(new),
            (Next::Row(old), Next::Subtree(_)) if is_before(&old.0, &self.now.place()) => {
                self.gone(old)
            }
            (Next::Subtree(_), Next::Row(new)) if is_before(&new.0, &self.before.place()) => {
                self.here(new)
            }
            (Next::Subtree(old), Next::End | Next::Row(_)) => self.before.enter(&old)?,
            (Next::End | Next::Row(_), Next::Subtree(new)) => self.now.enter(&new)?,
            (Next::Subtree(old), Next::Subtree(new)) => {
                // A place sorts before the places within it.
                let order = self.before.place().cmp(&self.now.place());
                if order != Ordering::Greater {
                    self.before.enter(&old)?;
                }
                if order != Ordering::Less {
                    self.now.enter(&new)?;
                }
                DiffStep::Passed
            }
        })
    }

    fn gone(&mut self, row: BornRow) -> DiffStep {
        self.before.pass();
        DiffStep::Differs(row, false)
    }

    fn here(&mut self, row: BornRow) -> DiffStep {
        self.now.pass();
        DiffStep::Differs(row, true)
    }
}

/// What a step has found.
enum DiffStep {
    Passed,
    Over,
    /// A row, and whether it is in the later tree.
    Differs(BornRow, bool),
}

/// Whether `key` comes before all keys at `place`.
fn is_before(key: &[u8], place: &[u8]) -> bool {
    let key = slots(key);
    key.as_slice() < place && !key.starts_with(place)
}

impl Cursor<'_> {
    /// What comes next, unread.
    pub(super) fn peek(&mut self) -> Next {
        while let Some((node, next)) = self.path.last() {
            let found = match &**node {
                Node::Leaf(leaf) => leaf.row(*next).map(Next::Row),
                Node::Branch(branch) => {
                    let child = branch.children.get(*next);
                    child.map(|(_, child)| Next::Subtree(*child))
                }
            };
            match found {
                Some(found) => return found,
                None => {
                    self.path.pop();
                }
            }
        }
        Next::End
    }

    /// Passes over what comes next.
    pub(super) fn pass(&mut self) {
        if let Some((_, next)) = self.path.last_mut() {
            *next += 1;
        }
    }

    /// Enters the subtree that comes next.
    fn enter(&mut self, named: &NodeRef) -> Result<DiffStep, StateError> {
        self.pass();
        let node = self.tree.load(self.store, named)?;
        self.path.push((node, 0));
        Ok(DiffStep::Passed)
    }

    /// The slots on the way to the subtree that comes next.
    fn place(&self) -> Vec<u8> {
        let Some((node, next)) = self.path.last() else {
            return Vec::new();
        };
        match &**node {
            Node::Branch(branch) => {
                let mut place = branch.prefix.slots();
                place.extend(branch.children.get(*next).map(|(own, _)| *own));
                place
            }
            Node::Leaf(_) => Vec::new(),
        }
    }
}

impl<D: Store> KeySpace<D> {
    /// The first `limit` rows of `area` in the newest durable root whose keys are `from` or
    /// greater, with their births, in the order of their keys.
    ///
    /// # Errors
    /// If the store fails.
    pub fn durable_rows(
        &self,
        area: Area,
        from: &[u8],
        limit: usize,
    ) -> Result<Vec<BornRow>, StateError> {
        let root = self.durable.and_then(|durable| durable.tree);
        let from = area.key(from);
        let mut cursor = Cursor::seek(&self.tree, &self.store, root, &from)?;
        let mut rows = Vec::new();
        while rows.len() < limit
            && let Some((key, born)) = cursor.next()?
            && area.owns(&key)
        {
            rows.push((key.slice(1..), born));
        }
        Ok(rows)
    }

    /// The rows of `area` that differ between the durable root with this digest and the newest one.
    /// `None` if it is neither the newest nor the one before.
    ///
    /// # Errors
    /// If the store fails.
    pub fn changes_since(
        &self,
        rows: &Digest,
        area: Area,
    ) -> Result<Option<Changes<'_>>, StateError> {
        let (Some(since), Some(now)) = (self.retained(rows), self.durable) else {
            return Ok(None);
        };
        let tree: (&Tree, &dyn Store) = (&self.tree, &self.store);
        Changes::between(tree, area, since.tree, now.tree).map(Some)
    }
}

#[cfg(test)]
mod tests;
