//! Importing a tree from other replicas, node by node, from its root down.
//!
//! # Purpose
//!
//! A replica that is too far behind takes the rows of a stable checkpoint from its peers. It knows
//! the digest of all rows from a certificate. Every node that arrives is checked against the digest
//! that its parent names, the root's against the certificate, before it is used.
//! [`crate::state_transfer`] decides which peer sends which node, and when.
//!
//! ```text
//!   open ──pop──► in the store already? ──► look at its children ──► open
//!                     │ no                       ▲
//!                     ▼                          │ the digest holds
//!                  missing ──wanted──► asked ──taken──► unwritten ──► store, with the record
//! ```
//!
//! # Invariants
//!
//! * A node is written under an id of its own, and its children's ids are assigned when it arrives:
//!   so a parent can be written before its children, and after a crash the missing nodes are found
//!   by walking down from the root.
//! * A node that has arrived is asked for no more, also while its write is under way: it would get
//!   other children the second time.
//! * Nodes that are equal to the own durable tree at the same place are kept where they are. The
//!   rest of that tree is listed, for removal once the new root is durable and another one after
//!   it.
//! * Moving to a newer root keeps nodes of the older one at the same place. Nodes that arrived and
//!   are not part of the last root are listed for removal as well.
//! * Memory is bounded: the walk goes down first, and stops while `MISSING_MAX` nodes are missing.

mod counterparts;

use super::nibbles::Prefix;
use super::node::{self, Branch, Node, NodeId, NodeRef};
use super::root_record::rows_digest;
use super::tree::node_key;
use super::{DurableRoot, StateError, Store};
use crate::identity::{Digest, Sequence};
use crate::sabotage::Flag;
use borsh::{BorshDeserialize, BorshSerialize};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};

/// Nodes that are known to be missing and not requested: enough for a few requests.
const MISSING_MAX: usize = 512;
/// Nodes that one step reads back from the store: a few milliseconds' worth.
const READS_PER_STEP: usize = 2_048;
/// With this many bytes waiting to be written, no more nodes are requested.
const UNWRITTEN_MAX: usize = 8 << 20;
/// Slots on the way from a root to a node: no more than there are nibbles in a key.
pub(crate) const PATH_MAX: usize = 2 * (super::KEY_BYTES_MAX + 1);

/// The store's key of the record of an import under way.
pub(super) const IMPORT_KEY: &[u8] = b"t";

/// The place of a node: the slots on the way from the root to it.
pub type Path = Bytes;

/// The result of accepting a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It matches its digest.
    Good,
    /// It does not match its digest: its sender is faulty.
    Wrong,
    /// It is not wanted, or arrived before.
    Unasked,
}

/// A node that its parent names.
#[derive(Clone, Debug)]
struct Open {
    path: Path,
    /// `None` for a root that has not arrived.
    node: Option<NodeRef>,
    /// The node of the own durable tree at this place.
    old: Option<NodeRef>,
    /// The node of an earlier, abandoned import at this place.
    partial: Option<NodeRef>,
}

/// The data needed to continue after a crash.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
struct ImportRecord {
    sequence: Sequence,
    digest: Digest,
    /// The root's id, digest, bytes and rows, once it has arrived.
    root: Option<(u64, Digest, u64, u64)>,
    first_id: u64,
    next_id: u64,
    /// The owner's note.
    note: Vec<u8>,
}

/// A tree that is being imported.
#[derive(Debug)]
pub struct Import {
    target: DurableRoot,
    note: Bytes,
    root: Option<NodeRef>,
    first_id: NodeId,
    /// Ids below this one may be in the store.
    stored_below: NodeId,
    next_id: NodeId,
    open: Vec<Open>,
    missing: VecDeque<Open>,
    asked: BTreeMap<Path, Open>,
    unwritten: Vec<(NodeId, Bytes)>,
    unwritten_bytes: usize,
    writing: bool,
    /// The nodes of the write under way: the store may not have them yet.
    in_flight: Vec<(NodeId, Bytes)>,
    /// Whether the record is to be written although no node has arrived.
    begun: bool,
    /// One bit for each id from the first one on: whether the root needs it.
    live: Vec<u64>,
    /// Parts of the own tree that the root does not need.
    sweep: Vec<NodeRef>,
    released: Vec<NodeId>,
    reads: usize,
}

fn reference(root: &(u64, Digest, u64, u64)) -> NodeRef {
    NodeRef {
        id: NodeId(root.0),
        digest: root.1,
        bytes: root.2,
        rows: root.3,
    }
}

impl Import {
    fn at(target: DurableRoot, note: Bytes, first_id: NodeId, next_id: NodeId) -> Self {
        Self {
            target,
            note,
            root: None,
            first_id,
            stored_below: next_id,
            next_id,
            open: Vec::new(),
            missing: VecDeque::new(),
            asked: BTreeMap::new(),
            unwritten: Vec::new(),
            unwritten_bytes: 0,
            writing: false,
            in_flight: Vec::new(),
            begun: true,
            live: Vec::new(),
            sweep: Vec::new(),
            released: Vec::new(),
            reads: 0,
        }
    }

    fn start(mut self, old: Option<NodeRef>, partial: Option<NodeRef>) -> Self {
        self.open.push(Open {
            path: Path::new(),
            node: self.root,
            old,
            partial,
        });
        self
    }

    /// Begins, for a replica whose durable tree is `old`.
    pub(super) fn begin(
        target: DurableRoot,
        note: Bytes,
        old: Option<NodeRef>,
        next_id: NodeId,
    ) -> Self {
        Self::at(target, note, next_id, next_id).start(old, None)
    }

    /// Moves to a newer root. Nodes that arrived so far and are not written are written first.
    pub(super) fn moved(self, target: DurableRoot, note: Bytes, old: Option<NodeRef>) -> Self {
        let partial = self.root;
        let next = Self {
            unwritten: self.unwritten,
            unwritten_bytes: self.unwritten_bytes,
            writing: self.writing,
            in_flight: self.in_flight,
            ..Self::at(target, note, self.first_id, self.next_id)
        };
        next.start(old, partial)
    }

    /// Continues after a crash, with the record that was found.
    pub(super) fn resume(stored: &[u8], old: Option<NodeRef>) -> Result<Self, StateError> {
        let record: ImportRecord =
            borsh::from_slice(stored).map_err(|error| StateError::Damaged {
                place: "the record of a state transfer".to_owned(),
                reason: error.to_string(),
            })?;
        let target = DurableRoot {
            sequence: record.sequence,
            digest: record.digest,
        };
        let (first, next) = (NodeId(record.first_id), NodeId(record.next_id));
        let mut import = Self::at(target, Bytes::from(record.note), first, next);
        import.root = record.root.as_ref().map(reference);
        import.begun = false;
        Ok(import.start(old, None))
    }

    fn record(&self) -> ImportRecord {
        ImportRecord {
            sequence: self.target.sequence,
            digest: self.target.digest,
            root: self.root.map(|it| (it.id.0, it.digest, it.bytes, it.rows)),
            first_id: self.first_id.0,
            next_id: self.next_id.0,
            note: self.note.to_vec(),
        }
    }

    pub(super) const fn target(&self) -> DurableRoot {
        self.target
    }

    pub(super) const fn root(&self) -> Option<NodeRef> {
        self.root
    }

    pub(super) const fn next_id(&self) -> NodeId {
        self.next_id
    }

    /// Ids below this one were assigned meanwhile.
    pub(super) fn skip_to(&mut self, id: NodeId) {
        self.next_id = self.next_id.max(id);
    }

    /// The owner's note.
    pub(super) const fn note(&self) -> &Bytes {
        &self.note
    }

    /// Continues as far as it can without further input, within a bound. Returns whether it stopped
    /// only because of that bound.
    pub(super) fn advance(&mut self, store: &dyn Store) -> Result<bool, StateError> {
        self.reads = 0;
        while self.reads < READS_PER_STEP {
            if let Some(old) = self.sweep.pop() {
                self.sweep_one(store, old)?;
            } else if self.missing.len() < MISSING_MAX
                && let Some(open) = self.open.pop()
            {
                self.look(store, open)?;
            } else {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn load(&mut self, store: &dyn Store, named: &NodeRef) -> Result<Option<Node>, StateError> {
        self.reads += 1;
        let stored = store.get(&node_key(named.id))?;
        stored
            .map(|bytes| node::verified(&bytes, named))
            .transpose()
    }

    fn load_own(&mut self, store: &dyn Store, named: &NodeRef) -> Result<Node, StateError> {
        self.load(store, named)?.ok_or_else(|| StateError::Damaged {
            place: format!("node {}", named.id.0),
            reason: "it is missing".to_owned(),
        })
    }

    /// One node of the own tree that the root does not need.
    fn sweep_one(&mut self, store: &dyn Store, old: NodeRef) -> Result<(), StateError> {
        self.released.push(old.id);
        if let Node::Branch(branch) = self.load_own(store, &old)? {
            let children = branch.children.iter().map(|(_, child)| *child);
            self.sweep.extend(children);
        }
        Ok(())
    }

    /// A node that has arrived and may not be in the store yet. If it were asked for again, its
    /// children would get other ids the second time, and the first ones be looked for in the store.
    fn arrived(&self, id: NodeId) -> Option<Bytes> {
        let mut nodes = self.unwritten.iter().chain(&self.in_flight);
        let node = nodes.find(|(own, _)| *own == id);
        node.map(|(_, bytes)| bytes.clone())
    }

    /// Visits a node that is open: it may have arrived already.
    fn look(&mut self, store: &dyn Store, open: Open) -> Result<(), StateError> {
        let Some(named) = open.node.filter(|named| named.id < self.stored_below) else {
            self.missing.push_back(open);
            return Ok(());
        };
        let found = match self.arrived(named.id) {
            Some(bytes) => Some(node::verified(&bytes, &named)?),
            None => self.load(store, &named)?,
        };
        match found {
            None => self.missing.push_back(open),
            Some(Node::Leaf(_)) => {
                self.mark(named.id);
                self.sweep.extend(open.old);
            }
            Some(Node::Branch(branch)) => {
                self.mark(named.id);
                let (old, partial) = self.counterparts(store, &open, &branch.prefix)?;
                for (own, child) in &branch.children {
                    let (old, partial) = (of(&old, *own), of(&partial, *own));
                    if child.id >= self.first_id {
                        self.push(&open.path, *own, *child, old, partial);
                    }
                }
                self.sweep_rest(&old, &branch);
            }
        }
        Ok(())
    }

    fn push(
        &mut self,
        path: &Path,
        own: u8,
        child: NodeRef,
        old: Option<NodeRef>,
        partial: Option<NodeRef>,
    ) {
        let mut longer = path.to_vec();
        longer.push(own);
        self.open.push(Open {
            path: longer.into(),
            node: Some(child),
            old,
            partial,
        });
    }

    /// The parts of the own tree at this place without a counterpart in `branch`.
    fn sweep_rest(&mut self, old: &[(u8, NodeRef)], branch: &Branch) {
        let rest = old.iter().filter(|(own, _)| branch.child(*own).is_none());
        self.sweep.extend(rest.map(|(_, child)| *child));
    }

    fn mark(&mut self, id: NodeId) {
        let Some(index) = id.0.checked_sub(self.first_id.0) else {
            return;
        };
        let word = usize::try_from(index / 64).unwrap_or(usize::MAX);
        if self.live.len() <= word {
            self.live.resize(word + 1, 0);
        }
        if let Some(word) = self.live.get_mut(word) {
            *word |= 1 << (index % 64);
        }
    }

    fn is_live(&self, id: u64) -> bool {
        let index = id - self.first_id.0;
        let word = usize::try_from(index / 64).unwrap_or(usize::MAX);
        self.live
            .get(word)
            .is_some_and(|word| word & 1 << (index % 64) != 0)
    }

    /// The number of nodes that are known to be missing and not requested.
    pub(super) fn missing(&self) -> usize {
        self.missing.len()
    }

    /// Up to `count` nodes to request. They count as requested from now on.
    pub fn wanted(&mut self, count: usize) -> Vec<Path> {
        let count = count.min(self.missing.len());
        let wanted: Vec<Open> = self.missing.drain(..count).collect();
        let paths = wanted.iter().map(|open| open.path.clone()).collect();
        let asked = wanted.into_iter().map(|open| (open.path.clone(), open));
        self.asked.extend(asked);
        paths
    }

    /// The peer that was asked for these nodes will not send them.
    pub fn give_back(&mut self, paths: &[Path]) {
        for path in paths {
            if let Some(open) = self.asked.remove(path) {
                self.missing.push_front(open);
            }
        }
    }

    /// No peer will send what it was asked for.
    pub(super) fn give_back_all(&mut self) {
        self.missing
            .extend(std::mem::take(&mut self.asked).into_values());
    }

    /// Marks a missing node as wanted. One that was given back may come from any peer.
    fn wants(&self, path: &Path) -> Option<&Open> {
        let given_back = || self.missing.iter().find(|open| open.path == *path);
        self.asked.get(path).or_else(given_back)
    }

    fn remove(&mut self, path: &Path) -> Option<Open> {
        let asked = self.asked.remove(path);
        asked.or_else(|| {
            let at = self.missing.iter().position(|open| open.path == *path)?;
            self.missing.remove(at)
        })
    }

    /// Accepts a node from a peer.
    pub(super) fn take(
        &mut self,
        store: &dyn Store,
        path: &Path,
        bytes: &Bytes,
        trusting: Flag,
    ) -> Result<Taken, StateError> {
        let Some(open) = self.wants(path) else {
            return Ok(Taken::Unasked);
        };
        let Some((node, digest)) = node::imported(bytes) else {
            return Ok(Taken::Wrong);
        };
        let named = match open.node {
            Some(named) if named.digest == digest || trusting.is_set() => named,
            Some(_) => return Ok(Taken::Wrong),
            None => {
                let (bytes, rows) = node.totals();
                let root = NodeRef {
                    id: self.next_id,
                    digest,
                    bytes,
                    rows,
                };
                if rows_digest(Some(&root)) != self.target.digest {
                    return Ok(Taken::Wrong);
                }
                root
            }
        };
        let Some(open) = self.remove(path) else {
            return Ok(Taken::Unasked);
        };
        let arrived = (named, node, bytes);
        match open.node {
            None => self.root_arrived(store, open, arrived)?,
            Some(_) => self.node_arrived(store, open, arrived)?,
        }
        Ok(Taken::Good)
    }

    /// The root of the tree: the own tree, or an earlier import, may have the same.
    fn root_arrived(
        &mut self,
        store: &dyn Store,
        open: Open,
        (named, node, bytes): (NodeRef, Node, &Bytes),
    ) -> Result<(), StateError> {
        let same = |it: &NodeRef| it.digest == named.digest;
        if let Some(old) = open.old.filter(same) {
            self.root = Some(old);
        } else if let Some(partial) = open.partial.filter(same) {
            self.root = Some(partial);
            let node = Some(partial);
            self.open.push(Open { node, ..open });
        } else {
            self.root = Some(named);
            self.next_id = NodeId(named.id.0 + 1);
            self.node_arrived(store, open, (named, node, bytes))?;
        }
        Ok(())
    }

    /// Adds a missing node that matches its digest.
    fn node_arrived(
        &mut self,
        store: &dyn Store,
        open: Open,
        (named, node, bytes): (NodeRef, Node, &Bytes),
    ) -> Result<(), StateError> {
        self.mark(named.id);
        let bytes = match node {
            Node::Leaf(_) => {
                self.sweep.extend(open.old);
                bytes.clone()
            }
            Node::Branch(mut branch) => {
                let (old, partial) = self.counterparts(store, &open, &branch.prefix)?;
                for (own, child) in &mut branch.children {
                    let (old, partial) = (of(&old, *own), of(&partial, *own));
                    let same = |it: &NodeRef| it.digest == child.digest;
                    if let Some(kept) = old.filter(same) {
                        child.id = kept.id;
                        continue;
                    }
                    let arrived = partial.filter(|it| same(it) && it.id >= self.first_id);
                    child.id = arrived.map_or(self.next_id, |arrived| arrived.id);
                    if arrived.is_none() {
                        self.next_id = NodeId(self.next_id.0 + 1);
                    }
                    self.push(&open.path, *own, *child, old, partial);
                }
                self.sweep_rest(&old, &branch);
                node::branch(branch.prefix, branch.children).bytes
            }
        };
        self.unwritten_bytes += bytes.len();
        self.unwritten.push((named.id, bytes));
        Ok(())
    }

    /// The writes that are due, with the record for continuing after a crash; at the beginning the
    /// record alone, since the beginning must be recorded too. One write at a time; nodes that
    /// arrive meanwhile are in the next one.
    pub(super) fn writes_due(&mut self) -> Option<Vec<(Bytes, Option<Bytes>)>> {
        if self.writing || (self.unwritten.is_empty() && !self.begun) {
            return None;
        }
        self.begun = false;
        self.writing = true;
        self.unwritten_bytes = 0;
        self.in_flight = std::mem::take(&mut self.unwritten);
        let nodes = self.in_flight.iter();
        let mut entries: Vec<(Bytes, Option<Bytes>)> = nodes
            .map(|(id, bytes)| (node_key(*id), Some(bytes.clone())))
            .collect();
        let record = borsh::to_vec(&self.record()).unwrap_or_default();
        entries.push((Bytes::from_static(IMPORT_KEY), Some(record.into())));
        Some(entries)
    }

    /// The writes that were returned are durable.
    pub(super) fn written(&mut self) {
        self.writing = false;
        self.in_flight.clear();
    }

    /// Whether so much waits to be written that no more nodes should be requested.
    #[must_use]
    pub const fn is_saturated(&self) -> bool {
        self.unwritten_bytes >= UNWRITTEN_MAX
    }

    /// How many bytes wait to be written.
    pub(super) const fn unwritten_bytes(&self) -> usize {
        self.unwritten_bytes
    }

    /// Whether every node has arrived.
    pub(super) fn has_all(&self) -> bool {
        let nothing_open = self.open.is_empty() && self.missing.is_empty() && self.asked.is_empty();
        self.root.is_some() && nothing_open && self.sweep.is_empty()
    }

    /// Whether every node is in the store.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.has_all() && self.unwritten.is_empty() && !self.writing
    }

    /// The ids of all nodes that only the old tree needs, and of those that arrived needlessly.
    pub(super) fn obsolete(&self) -> Vec<NodeId> {
        let vain = (self.first_id.0..self.next_id.0).filter(|id| !self.is_live(*id));
        let released = self.released.iter().copied();
        released.chain(vain.map(NodeId)).collect()
    }
}

type Slots = Vec<(u8, NodeRef)>;

fn of(slots: &Slots, own: u8) -> Option<NodeRef> {
    let index = slots.binary_search_by_key(&own, |(own, _)| *own).ok()?;
    slots.get(index).map(|(_, child)| *child)
}

#[cfg(test)]
mod tests;
