//! Disks that are restored from a copy.

use super::TestCluster;
use crate::journal::Entry;
use crate::state::MemoryStore;
use crate::step::Token;

/// The durable content of a disk at some moment, journal and state alike.
pub(in crate::replica::tests) struct Copy {
    written: Vec<Entry>,
    store: MemoryStore,
    durable: Token,
}

impl TestCluster {
    /// A copy of a node's disk as it is now.
    pub(in crate::replica::tests) fn copy(&self, node: usize) -> Copy {
        Copy {
            written: self.durable(node).to_vec(),
            store: self.nodes[node].store.snapshot(),
            durable: self.nodes[node].durable_token,
        }
    }

    /// Kills a node and starts it on a copy of its disk.
    pub(in crate::replica::tests) fn restore_copy(&mut self, node: usize, copy: &Copy) {
        self.crash(node);
        self.rolled_back.insert(node);
        let this = &mut self.nodes[node];
        this.written = copy.written.clone();
        this.store = copy.store.snapshot();
        this.durable_token = copy.durable;
        self.start(node);
    }

    /// A node whose disk was never put back does not report a rollback.
    #[track_caller]
    pub(in crate::replica::tests) fn check_no_rollback_noticed(&self, node: usize) {
        if let Some(core) = &self.nodes[node].core
            && !self.rolled_back.contains(&node)
        {
            assert_eq!(core.status().counters.rollbacks_noticed, 0, "node {node}");
        }
    }
}
