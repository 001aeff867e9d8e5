//! Clean nodes cached in memory, within a budget of bytes; the least recently used is evicted
//! first.
//!
//! Ordered maps only, so that the same history evicts the same nodes on every run.

use super::node::{Node, NodeId};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Debug)]
struct CachedNode {
    node: Arc<Node>,
    weight: usize,
    used: u64,
}

/// Nodes by id and by when they were last used.
#[derive(Debug)]
pub(super) struct Cache {
    entries: BTreeMap<NodeId, CachedNode>,
    by_use: BTreeMap<u64, NodeId>,
    clock: u64,
    weight: usize,
    budget: usize,
}

impl Cache {
    pub(super) const fn new(budget: usize) -> Self {
        Self {
            entries: BTreeMap::new(),
            by_use: BTreeMap::new(),
            clock: 0,
            weight: 0,
            budget,
        }
    }

    pub(super) fn get(&mut self, id: NodeId) -> Option<Arc<Node>> {
        let entry = self.entries.get_mut(&id)?;
        self.clock += 1;
        self.by_use.remove(&entry.used);
        entry.used = self.clock;
        self.by_use.insert(self.clock, id);
        Some(Arc::clone(&entry.node))
    }

    pub(super) fn insert(&mut self, id: NodeId, node: Arc<Node>) {
        self.remove(id);
        self.clock += 1;
        let weight = node.weight();
        self.weight += weight;
        self.by_use.insert(self.clock, id);
        self.entries.insert(
            id,
            CachedNode {
                node,
                weight,
                used: self.clock,
            },
        );
        while self.weight > self.budget {
            let Some((_, oldest)) = self.by_use.first_key_value() else {
                break;
            };
            self.remove(*oldest);
        }
    }

    pub(super) fn remove(&mut self, id: NodeId) {
        if let Some(entry) = self.entries.remove(&id) {
            self.by_use.remove(&entry.used);
            self.weight -= entry.weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::node;
    use super::*;
    use crate::identity::Sequence;
    use bytes::Bytes;

    fn node(size: usize) -> Arc<Node> {
        let born = node::Born {
            birth: Sequence(1),
            value: Bytes::from(vec![0; size]),
        };
        Arc::new(
            node::leaf(&[(Bytes::from_static(b"key"), born)])
                .expect("one row is a leaf")
                .node,
        )
    }

    #[test]
    fn the_budget_holds_and_what_was_used_last_stays() {
        let mut cache = Cache::new(8_000);
        for id in 0..100 {
            cache.insert(NodeId(id), node(1_000));
            assert!(cache.get(NodeId(0)).is_some(), "it was used every time");
            assert!(cache.weight <= 8_000);
        }
        assert!(cache.get(NodeId(50)).is_none());
        assert!(cache.get(NodeId(99)).is_some());
        cache.insert(NodeId(200), node(100_000));
        assert!(
            cache.entries.is_empty(),
            "a node that exceeds the budget is not cached"
        );
        assert_eq!((cache.weight, cache.by_use.len()), (0, 0));
    }
}
