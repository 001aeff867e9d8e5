//! The tree of sorted rows, in one pass and with bounded memory.
//!
//! The rows come in the order of their keys. The branches above the last row are open, as in a
//! stack; a branch is closed when a key comes that does not begin with its prefix. Rows wait in
//! their branch until it is certain that they are no part of a larger leaf, so memory is bounded by
//! the depth of the tree, a branch's slots and the bound on a leaf. Nothing is stored: the result
//! is the root as a parent would name it. [`super::tree`] defines the shape.

use super::nibbles::{Prefix, common, slot};
use super::node::{self, BornRow, Encoded, NodeId, NodeRef, row_bytes, rows_bytes};

/// All rows under one prefix: few enough that they may belong to a larger leaf, or a node.
#[derive(Debug)]
pub(super) enum Part {
    Rows(Vec<BornRow>),
    Node(NodeRef),
}

impl Part {
    fn bytes(&self) -> u64 {
        match self {
            Self::Rows(rows) => rows_bytes(rows),
            Self::Node(node) => node.bytes,
        }
    }

    /// The node that it is if it belongs to no larger leaf; `None` for no rows.
    pub(super) fn node(&self) -> Option<NodeRef> {
        match self {
            Self::Rows(rows) => node::leaf(rows).map(|leaf| reference(&leaf)),
            Self::Node(node) => Some(*node),
        }
    }
}

/// A new node as its parent names it, without a location.
pub(super) fn reference(node: &Encoded) -> NodeRef {
    let (bytes, rows) = node.node.totals();
    NodeRef {
        id: NodeId(0),
        digest: node.digest,
        bytes,
        rows,
    }
}

/// A branch that more rows may belong to.
#[derive(Debug)]
struct OpenBranch {
    /// The length of its prefix, which the last key begins with.
    nibbles: usize,
    /// By slot.
    parts: Vec<(u8, Part)>,
}

impl OpenBranch {
    /// No more rows belong to it; `key` is one of its rows' keys.
    fn close(self, key: &[u8], leaf_bytes_max: u64) -> Part {
        let total = self.parts.iter().map(|(_, part)| part.bytes());
        if total.fold(0, u64::saturating_add) <= leaf_bytes_max {
            let rows = self.parts.into_iter().map(|(_, part)| match part {
                Part::Rows(rows) => rows,
                // A node has more bytes than that.
                Part::Node(_) => Vec::new(),
            });
            return Part::Rows(rows.flatten().collect());
        }
        let children = self.parts.into_iter();
        let children = children.filter_map(|(own, part)| Some((own, part.node()?)));
        let branch = node::branch(Prefix::of(key, self.nibbles), children.collect());
        Part::Node(reference(&branch))
    }
}

/// Rows that have come so far.
#[derive(Debug)]
pub(super) struct Builder {
    leaf_bytes_max: u64,
    open: Vec<OpenBranch>,
    /// The last key, and the part that it is in.
    last: Option<(bytes::Bytes, Part)>,
}

impl Builder {
    pub(super) const fn new(leaf_bytes_max: u64) -> Self {
        Self {
            leaf_bytes_max,
            open: Vec::new(),
            last: None,
        }
    }

    /// Whether this key may come next.
    pub(super) fn follows(&self, key: &[u8]) -> bool {
        self.last.as_ref().is_none_or(|(last, _)| last < key)
    }

    /// The next row; its key is above all before.
    pub(super) fn push(&mut self, row: BornRow) {
        if let Some((last, part)) = self.last.take() {
            let shared = common(&last, &row.0);
            let part = self.close_below(shared, &last, part);
            let part = (slot(&last, shared), part);
            match self.open.last_mut() {
                Some(top) if top.nibbles == shared => top.parts.push(part),
                _ => self.open.push(OpenBranch {
                    nibbles: shared,
                    parts: vec![part],
                }),
            }
        }
        let key = row.0.clone();
        let bytes = row_bytes(&row.0, &row.1.value);
        let mut part = Part::Rows(vec![row]);
        if bytes > self.leaf_bytes_max
            && let Some(leaf) = part.node()
        {
            part = Part::Node(leaf);
        }
        self.last = Some((key, part));
    }

    /// Closes the branches whose prefix is longer than `nibbles`, which `part` is in.
    fn close_below(&mut self, nibbles: usize, key: &[u8], mut part: Part) -> Part {
        while let Some(mut top) = self.open.pop_if(|top| top.nibbles > nibbles) {
            top.parts.push((slot(key, top.nibbles), part));
            part = top.close(key, self.leaf_bytes_max);
        }
        part
    }

    /// All rows have come; `None` if there were none.
    pub(super) fn finish(mut self) -> Option<Part> {
        let (last, mut part) = self.last.take()?;
        while let Some(mut top) = self.open.pop() {
            top.parts.push((slot(&last, top.nibbles), part));
            part = top.close(&last, self.leaf_bytes_max);
        }
        Some(part)
    }
}
