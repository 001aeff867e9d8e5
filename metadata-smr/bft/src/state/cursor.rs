//! Walks the rows of one tree in the order of their keys.

use super::nibbles::slot;
use super::node::{BornRow, Node, NodeRef};
use super::tree::Tree;
use super::{StateError, Store};
use std::cmp::Ordering;
use std::sync::Arc;

/// A place between two rows. Holds one node per level.
pub(super) struct Cursor<'a> {
    pub(super) tree: &'a Tree,
    pub(super) store: &'a dyn Store,
    /// A node and the index of its next row or child.
    pub(super) path: Vec<(Arc<Node>, usize)>,
}

impl<'a> Cursor<'a> {
    /// A cursor before the first row whose key is `from` or greater.
    pub(super) fn seek(
        tree: &'a Tree,
        store: &'a dyn Store,
        root: Option<NodeRef>,
        from: &[u8],
    ) -> Result<Self, StateError> {
        let mut path = Vec::new();
        let mut at = root;
        while let Some(named) = at.take() {
            let node = tree.load(store, &named)?;
            let next = match &*node {
                Node::Leaf(leaf) => leaf.seek(from),
                Node::Branch(branch) => match branch.prefix.place(from) {
                    Ordering::Less => 0,
                    Ordering::Greater => branch.children.len(),
                    Ordering::Equal => {
                        let own = slot(from, branch.prefix.nibbles());
                        at = branch.child(own);
                        branch.children.partition_point(|(slot, _)| *slot <= own)
                    }
                },
            };
            path.push((node, next));
        }
        Ok(Self { tree, store, path })
    }

    /// The next row.
    pub(super) fn next(&mut self) -> Result<Option<BornRow>, StateError> {
        while let Some((node, next)) = self.path.last_mut() {
            let index = *next;
            *next += 1;
            let child = match &**node {
                Node::Leaf(leaf) => match leaf.row(index) {
                    Some(row) => return Ok(Some(row)),
                    None => None,
                },
                Node::Branch(branch) => branch.children.get(index).map(|(_, child)| *child),
            };
            match child {
                Some(named) => self.path.push((self.tree.load(self.store, &named)?, 0)),
                None => {
                    self.path.pop();
                }
            }
        }
        Ok(None)
    }
}
