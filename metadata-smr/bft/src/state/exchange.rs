//! The exchange of nodes between key spaces: nodes of a durable tree out, a tree from other
//! replicas in.
//!
//! A node is named by its path, the slots on the way down from the root, which is the same on every
//! replica that has the same rows; ids are local. Nodes of the two durable roots can be requested.
//! See [`super::import`] for the other direction.

use super::import::{IMPORT_KEY, Import, Path, Taken};
use super::key_space::{Flush, GARBAGE_KEY, encode_garbage, extra_key};
use super::node::Node;
use super::root_record::{ROOT_KEY, Retained, RootRecord, garbage_digest};
use super::tree::node_key;
use super::{DurableRoot, KeySpace, StateError, Store, WriteBatch};
use crate::identity::{Digest, Sequence};
use crate::sabotage::Flag;
use bytes::Bytes;

impl<D: Store> KeySpace<D> {
    /// Plants a simulation's defect, if the flag is set: it accepts any node.
    pub const fn trust(&mut self, trusting: Flag) {
        self.trusting = trusting;
    }

    /// Whether the tree with this digest of all rows can be read, as one of the durable roots.
    #[must_use]
    pub fn serves(&self, rows: &Digest) -> bool {
        self.retained(rows).is_some()
    }

    pub(super) fn retained(&self, rows: &Digest) -> Option<Retained> {
        let mut both = self.durable.iter().chain(&self.previous);
        both.find(|it| it.root.digest == *rows).copied()
    }

    /// The node at `path` of the durable tree with this digest of all rows, as it is sent to other
    /// replicas. `None` if there is no such tree or node.
    ///
    /// # Errors
    /// If the store fails.
    pub fn export(&self, rows: &Digest, path: &[u8]) -> Result<Option<Bytes>, StateError> {
        let Some(mut at) = self.retained(rows).and_then(|it| it.tree) else {
            return Ok(None);
        };
        for own in path {
            let node = self.tree.load(&self.store, &at)?;
            let child = match &*node {
                Node::Branch(branch) => branch.child(*own),
                Node::Leaf(_) => None,
            };
            match child {
                Some(child) => at = child,
                None => return Ok(None),
            }
        }
        self.stored_node(&at).map(Some)
    }

    /// Begins to take over the rows of `target`, or moves to it from an older one.
    /// [`KeySpace::import_note`] returns `note` after a restart.
    pub fn begin_import(&mut self, target: DurableRoot, note: Bytes) {
        let own = self.durable.and_then(|durable| durable.tree);
        let next_id = self.tree.next_id;
        self.import = Some(match self.import.take() {
            Some(import) => import.moved(target, note, own),
            None => Import::begin(target, note, own, next_id),
        });
    }

    /// The root that is being taken over, if any.
    #[must_use]
    pub fn import_target(&self) -> Option<DurableRoot> {
        self.import.as_ref().map(Import::target)
    }

    /// Its note.
    #[must_use]
    pub fn import_note(&self) -> Option<Bytes> {
        self.import.as_ref().map(|import| import.note().clone())
    }

    /// Continues as far as the own store allows, within a bound. Returns whether more can be done
    /// without further input.
    ///
    /// # Errors
    /// If the store fails.
    pub fn import_advance(&mut self) -> Result<bool, StateError> {
        match &mut self.import {
            Some(import) => import.advance(&self.store),
            None => Ok(false),
        }
    }

    /// The number of nodes that are known to be missing and not requested.
    #[must_use]
    pub fn import_missing(&self) -> usize {
        self.import.as_ref().map_or(0, Import::missing)
    }

    /// Up to `count` nodes to request.
    pub fn import_wanted(&mut self, count: usize) -> Vec<Path> {
        let import = self.import.as_mut().filter(|import| !import.is_saturated());
        import.map_or_else(Vec::new, |import| import.wanted(count))
    }

    /// The peer that was asked for these nodes will not send them.
    pub fn import_give_back(&mut self, paths: &[Path]) {
        if let Some(import) = &mut self.import {
            import.give_back(paths);
        }
    }

    /// No peer that was asked for nodes will send them.
    pub fn import_give_back_all(&mut self) {
        if let Some(import) = &mut self.import {
            import.give_back_all();
        }
    }

    /// Accepts a node from a peer.
    ///
    /// # Errors
    /// If the store fails.
    pub fn import_take(&mut self, path: &Path, received: &Bytes) -> Result<Taken, StateError> {
        let Some(import) = &mut self.import else {
            return Ok(Taken::Unasked);
        };
        import.skip_to(self.tree.next_id);
        let taken = import.take(&self.store, path, received, self.trusting)?;
        self.tree.next_id = import.next_id();
        Ok(taken)
    }

    /// Whether so many bytes wait to be written, or all nodes have come.
    #[must_use]
    pub fn import_write_pays(&self, bytes: usize) -> bool {
        let import = self.import.as_ref();
        import.is_some_and(|import| import.unwritten_bytes() >= bytes || import.has_all())
    }

    /// Writes that are due, if there are any: the durable root stays the same.
    pub fn import_write(&mut self) -> Option<(WriteBatch, DurableRoot)> {
        let entries = self.import.as_mut()?.writes_due()?;
        let root = self.durable.map(|durable| durable.root);
        let root = root.unwrap_or(DurableRoot {
            sequence: Sequence(0),
            digest: Digest::default(),
        });
        Some((WriteBatch { entries }, root))
    }

    /// The writes of [`KeySpace::import_write`] are durable.
    pub fn import_written(&mut self) {
        if let Some(import) = &mut self.import {
            import.written();
        }
    }

    /// Whether every node is in the store.
    #[must_use]
    pub fn import_complete(&self) -> bool {
        self.import.as_ref().is_some_and(Import::complete)
    }

    /// Returns the writes that make the imported tree the durable root, with rows outside it. Once
    /// they are durable ([`KeySpace::flushed`]) the key space holds these rows and no others.
    ///
    /// # Errors
    /// If another flush is under way or the import is not complete.
    pub fn finish_import(
        &mut self,
        extra: Vec<(Bytes, Option<Bytes>)>,
    ) -> Result<(WriteBatch, DurableRoot), StateError> {
        let import = self.import.as_ref().filter(|import| import.complete());
        let (Some(import), None) = (import, &self.in_flight) else {
            return Err(StateError::FlushOrder {
                sequence: Sequence(0),
                why: "no import is complete, or another flush is under way",
            });
        };
        let root = import.target();
        let tree = import.root();
        let obsolete = import.obsolete();
        let mut entries: Vec<_> = std::mem::take(&mut self.garbage)
            .into_iter()
            .map(|id| (node_key(id), None))
            .collect();
        self.previous = self.durable;
        self.garbage = obsolete;
        let list = encode_garbage(&mut self.garbage);
        let retained = Retained { root, tree };
        let record = RootRecord {
            next_id: self.tree.next_id,
            garbage: garbage_digest(&list),
            newest: retained,
            previous: self.previous,
        };
        entries.push((Bytes::from_static(GARBAGE_KEY), Some(list)));
        entries.push((Bytes::from_static(ROOT_KEY), Some(record.encode()?)));
        entries.push((Bytes::from_static(IMPORT_KEY), None));
        for (key, value) in &extra {
            entries.push((extra_key(key), value.clone()));
        }
        let extra = extra.into_iter().collect();
        self.in_flight = Some(Flush { retained, extra });
        Ok((WriteBatch { entries }, root))
    }

    /// The imported root is durable: it is the content of this key space now.
    pub(super) fn install_import(&mut self) {
        let durable = self.durable;
        let done = |import: &mut Import| {
            import.complete() && durable.map(|durable| durable.root) == Some(import.target())
        };
        if self.import.take_if(done).is_some() {
            self.pending.clear();
            self.tree.fresh.clear();
            self.tree.released.clear();
            self.tree.root = durable.and_then(|durable| durable.tree);
        }
    }
}
