//! The shape of the tree and how sorted changes are applied to it.
//!
//! `shape(R)` of a set of rows R, all keys in nibbles:
//!
//! ```text
//! R is empty                             nothing
//! R is one row, or within the bound      a leaf with R
//! otherwise, p the longest prefix that   a branch at p: per slot s (the key p itself, or the
//! all keys of R have                     next nibble) the shape of the rows of R in s
//! ```
//!
//! It depends on R alone. Applying changes preserves it: a leaf is merged and rebuilt; a branch
//! passes the changes under its prefix to its slots, then is joined again (it may have become small
//! enough for a leaf, or have one child left, which takes its place unchanged, since prefixes are
//! absolute), and rows without its prefix are grafted on above it.
//!
//! Every node that is replaced is released exactly once: a fresh one is dropped, a durable one
//! becomes garbage that the flush after the next may remove.

use super::cache::Cache;
use super::nibbles::{Prefix, SLOTS, common, slot};
use super::node::{self, Born, BornRow, Encoded, Leaf, Node, NodeId, NodeRef, rows_bytes};
use super::{StateError, Store};
use bytes::{BufMut, Bytes, BytesMut};
use std::cell::RefCell;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A put or a deletion.
pub(super) type RowChange = (Bytes, Option<Born>);
/// Nodes that are not durable yet, with their bytes.
pub(super) type NewNodes = BTreeMap<NodeId, (Arc<Node>, Bytes)>;

const NODE_KEY: u8 = b'n';

/// The store's key of a node.
pub(super) fn node_key(id: NodeId) -> Bytes {
    let mut key = BytesMut::with_capacity(9);
    key.put_u8(NODE_KEY);
    key.put_u64(id.0);
    key.freeze()
}

/// The nodes of the newest tree and of those that are still needed.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) root: Option<NodeRef>,
    /// Nodes made since the last flush.
    pub(super) fresh: NewNodes,
    /// Nodes of a flush that is not durable yet.
    pub(super) in_flight: NewNodes,
    /// Durable nodes that the newest tree does not need any more, since the last flush.
    pub(super) released: Vec<NodeId>,
    pub(super) next_id: NodeId,
    cache: RefCell<Cache>,
    leaf_bytes_max: u64,
}

impl Tree {
    pub(super) fn new(
        root: Option<NodeRef>,
        next_id: NodeId,
        cache_bytes: usize,
        leaf_bytes_max: u64,
    ) -> Self {
        Self {
            root,
            fresh: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            released: Vec::new(),
            next_id,
            cache: RefCell::new(Cache::new(cache_bytes)),
            leaf_bytes_max,
        }
    }

    /// The nodes of the flush are durable: they may go to the cache.
    pub(super) fn landed(&mut self) {
        let cache = self.cache.get_mut();
        for (id, (node, _)) in std::mem::take(&mut self.in_flight) {
            cache.insert(id, node);
        }
    }

    /// Drops a node that was removed from the store.
    pub(super) fn forget(&mut self, id: NodeId) {
        self.cache.get_mut().remove(id);
    }

    pub(super) fn load(&self, store: &dyn Store, named: &NodeRef) -> Result<Arc<Node>, StateError> {
        let new = self.fresh.get(&named.id);
        if let Some((node, _)) = new.or_else(|| self.in_flight.get(&named.id)) {
            return Ok(Arc::clone(node));
        }
        if let Some(node) = self.cache.borrow_mut().get(named.id) {
            return Ok(node);
        }
        let stored = store
            .get(&node_key(named.id))?
            .ok_or_else(|| StateError::Damaged {
                place: format!("node {}", named.id.0),
                reason: "it is missing".to_owned(),
            })?;
        let node = Arc::new(node::verified(&stored, named)?);
        self.cache.borrow_mut().insert(named.id, Arc::clone(&node));
        Ok(node)
    }

    pub(super) fn get(
        &self,
        store: &dyn Store,
        root: Option<NodeRef>,
        key: &[u8],
    ) -> Result<Option<Born>, StateError> {
        let mut at = root;
        while let Some(named) = at {
            match &*self.load(store, &named)? {
                Node::Leaf(leaf) => return Ok(leaf.get(key)),
                Node::Branch(branch) => {
                    if branch.prefix.place(key) != Ordering::Equal {
                        return Ok(None);
                    }
                    at = branch.child(slot(key, branch.prefix.nibbles()));
                }
            }
        }
        Ok(None)
    }

    /// Applies changes, sorted by key, each key once.
    pub(super) fn apply(
        &mut self,
        store: &dyn Store,
        changes: &[RowChange],
    ) -> Result<(), StateError> {
        let mut editor = Editor { tree: self, store };
        let root = match editor.tree.root {
            Some(root) => editor.apply(root, changes)?,
            None => editor.build(&puts(changes))?,
        };
        self.root = root;
        Ok(())
    }
}

fn puts(changes: &[RowChange]) -> Vec<BornRow> {
    let row = |(key, value): &RowChange| value.clone().map(|value| (key.clone(), value));
    changes.iter().filter_map(row).collect()
}

type Keyed<T> = (Bytes, T);

/// The part of sorted `items` that falls into `slot`, and the part after it.
fn split_slot<T>(items: &[Keyed<T>], depth: usize, own: u8) -> (&[Keyed<T>], &[Keyed<T>]) {
    items.split_at(items.partition_point(|(key, _)| slot(key, depth) <= own))
}

/// The rows of a leaf with changes applied; `None` if that changes nothing.
fn merge(leaf: &Leaf, changes: &[RowChange]) -> Option<Vec<BornRow>> {
    let mut merged = Vec::new();
    let mut changed = false;
    let mut changes = changes.iter().peekable();
    for row in leaf.rows() {
        while let Some((key, value)) = changes.next_if(|(key, _)| *key < row.0) {
            if let Some(value) = value {
                merged.push((key.clone(), value.clone()));
                changed = true;
            }
        }
        match changes.next_if(|(key, _)| *key == row.0) {
            None => merged.push(row),
            Some((_, Some(value))) => {
                changed |= *value != row.1;
                merged.push((row.0, value.clone()));
            }
            Some((_, None)) => changed = true,
        }
    }
    for (key, value) in changes {
        if let Some(value) = value {
            merged.push((key.clone(), value.clone()));
            changed = true;
        }
    }
    changed.then_some(merged)
}

struct Editor<'a> {
    tree: &'a mut Tree,
    store: &'a dyn Store,
}

impl Editor<'_> {
    fn apply(&mut self, at: NodeRef, changes: &[RowChange]) -> Result<Option<NodeRef>, StateError> {
        let node = self.tree.load(self.store, &at)?;
        let branch = match &*node {
            Node::Branch(branch) => branch,
            Node::Leaf(leaf) => {
                let Some(rows) = merge(leaf, changes) else {
                    return Ok(Some(at));
                };
                self.release(at.id);
                return self.build(&rows);
            }
        };
        let prefix = &branch.prefix;
        let from = changes.partition_point(|(key, _)| prefix.place(key) == Ordering::Less);
        let (before, rest) = changes.split_at(from);
        let to = rest.partition_point(|(key, _)| prefix.place(key) == Ordering::Equal);
        let (mut inside, after) = rest.split_at(to);
        let mut children = Vec::with_capacity(branch.children.len());
        let mut changed = false;
        for own in 0..SLOTS {
            let (mine, rest) = split_slot(inside, prefix.nibbles(), own);
            inside = rest;
            let old = branch.child(own);
            let new = match old {
                _ if mine.is_empty() => old,
                Some(child) => self.apply(child, mine)?,
                None => self.build(&puts(mine))?,
            };
            changed |= new != old;
            children.extend(new.map(|child| (own, child)));
        }
        let joined = if changed {
            self.release(at.id);
            self.join(prefix, children)?
        } else {
            Some(at)
        };
        let mut outside = puts(before);
        outside.extend(puts(after));
        self.graft(joined, prefix, &outside)
    }

    /// The shape of `rows`.
    fn build(&mut self, rows: &[BornRow]) -> Result<Option<NodeRef>, StateError> {
        let (Some((first, _)), Some((last, _))) = (rows.first(), rows.last()) else {
            return Ok(None);
        };
        if rows.len() == 1 || rows_bytes(rows) <= self.tree.leaf_bytes_max {
            return Ok(self.leaf(rows));
        }
        let depth = common(first, last);
        let mut children = Vec::new();
        let mut rest = rows;
        for own in 0..SLOTS {
            let (mine, after) = split_slot(rest, depth, own);
            rest = after;
            children.extend(self.build(mine)?.map(|child| (own, child)));
        }
        self.join(&Prefix::of(first, depth), children)
    }

    /// The shape of the rows below `children`, which all have `prefix`.
    fn join(
        &mut self,
        prefix: &Prefix,
        children: Vec<(u8, NodeRef)>,
    ) -> Result<Option<NodeRef>, StateError> {
        let bytes = children.iter().map(|(_, child)| child.bytes).sum::<u64>();
        match children.as_slice() {
            [] => Ok(None),
            [(_, only)] => Ok(Some(*only)),
            several if bytes <= self.tree.leaf_bytes_max => {
                let mut rows = Vec::new();
                for (_, child) in several {
                    self.collect(*child, &mut rows)?;
                }
                Ok(self.leaf(&rows))
            }
            several => {
                let rows = several.iter().map(|(_, child)| child.rows).sum();
                let encoded = node::branch(prefix.clone(), children);
                Ok(Some(self.keep(encoded, bytes, rows)))
            }
        }
    }

    /// The shape of the rows below `inside`, which all have `prefix`, and of `outside`, which do
    /// not have it.
    fn graft(
        &mut self,
        inside: Option<NodeRef>,
        prefix: &Prefix,
        outside: &[BornRow],
    ) -> Result<Option<NodeRef>, StateError> {
        let (Some((first, _)), Some((last, _))) = (outside.first(), outside.last()) else {
            return Ok(inside);
        };
        let Some(node) = inside else {
            return self.build(outside);
        };
        let depth = prefix.common(first).min(prefix.common(last));
        let mut children = Vec::new();
        let mut rest = outside;
        for own in 0..SLOTS {
            let (mine, after) = split_slot(rest, depth, own);
            rest = after;
            let child = if own == prefix.slot(depth) {
                self.graft(Some(node), prefix, mine)?
            } else {
                self.build(mine)?
            };
            children.extend(child.map(|child| (own, child)));
        }
        self.join(&prefix.shorter(depth), children)
    }

    /// Takes a small subtree apart into its rows.
    fn collect(&mut self, from: NodeRef, rows: &mut Vec<BornRow>) -> Result<(), StateError> {
        let mut open = vec![from];
        while let Some(named) = open.pop() {
            match &*self.tree.load(self.store, &named)? {
                Node::Leaf(leaf) => rows.extend(leaf.rows()),
                Node::Branch(branch) => {
                    open.extend(branch.children.iter().rev().map(|(_, child)| *child));
                }
            }
            self.release(named.id);
        }
        Ok(())
    }

    fn leaf(&mut self, rows: &[BornRow]) -> Option<NodeRef> {
        let bytes = rows_bytes(rows);
        let encoded = node::leaf(rows)?;
        Some(self.keep(encoded, bytes, rows.len() as u64))
    }

    fn keep(&mut self, encoded: Encoded, bytes: u64, rows: u64) -> NodeRef {
        let id = self.tree.next_id;
        self.tree.next_id = NodeId(id.0 + 1);
        let kept = (Arc::new(encoded.node), encoded.bytes);
        self.tree.fresh.insert(id, kept);
        NodeRef {
            id,
            digest: encoded.digest,
            bytes,
            rows,
        }
    }

    fn release(&mut self, id: NodeId) {
        if self.tree.fresh.remove(&id).is_none() {
            self.tree.released.push(id);
        }
    }
}
