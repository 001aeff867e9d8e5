//! The proof that some rows are all rows of the service in a state with a known digest.
//!
//! The shape of the tree follows from its rows alone. So the service's rows determine their part of
//! the tree, and with the top node of the library's part they determine the root:
//!
//! ```text
//!                       root                     both areas in one leaf if they are within its
//!        ┌───────────────┴───────────────┐      bound: then the proof has the library's rows
//!   library's part                service's part
//!   = the proof: one node         = all rows, in order, recomputed
//! ```
//!
//! # Invariants
//!
//! * Rows that are verified are all rows of the service in that state, with their births: a row
//!   that is missing, added or changed makes another digest.
//! * The proof's node can be of the library's part only, so rows of the service cannot hide in it.
//! * Verifying takes one pass in the order of the keys, and bounded memory.
//!
//! # Failures
//!
//! [`ProofError`]: the rows are not in order, the proof is no node of the library's part, or the
//! digest differs. It cannot be said which row is wrong.

use super::builder::{Builder, Part, reference};
use super::key_space::{Area, LEAF_BYTES_MAX};
use super::nibbles::{Prefix, slot};
use super::node::{self, Born, Node, NodeRef};
use super::root_record::rows_digest;
use super::tree::node_key;
use super::{KEY_BYTES_MAX, KeySpace, StateError, Store, VALUE_BYTES_MAX};
use crate::identity::Digest;
use bytes::Bytes;

/// Rows and a proof that do not belong to a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProofError {
    /// A row does not come after the one before.
    #[error("the rows are not in the order of their keys, or one is there twice")]
    OutOfOrder,
    /// A key or value is longer than any may be.
    #[error("a row is longer than any row of a state can be")]
    TooLong,
    /// The proof is no node of the library's part.
    #[error("the proof is not what a proof of this state consists of")]
    NoProof,
    /// The rows are not those of the state.
    #[error("the rows are not the rows of this state: some are missing, added or changed")]
    OtherState,
}

/// What proves, with all rows of the service, the digest of a state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proof {
    /// The top node of the library's part; empty if the library has no rows.
    library: Bytes,
}

impl Proof {
    /// The proof in these bytes, which are checked with the rows.
    #[must_use]
    pub const fn from_bytes(bytes: Bytes) -> Self {
        Self { library: bytes }
    }

    /// The proof as bytes: one node as FORMAT.md describes it, without the ids of its children.
    #[must_use]
    pub const fn as_bytes(&self) -> &Bytes {
        &self.library
    }

    /// Begins to verify rows.
    #[must_use]
    pub fn begin(&self) -> Proving {
        self.begin_shaped(LEAF_BYTES_MAX)
    }

    pub(super) fn begin_shaped(&self, leaf_bytes_max: u64) -> Proving {
        Proving {
            proof: self.clone(),
            rows: Builder::new(leaf_bytes_max),
            leaf_bytes_max,
        }
    }

    /// The library's part: its node, and how a parent names it.
    fn library(&self) -> Result<Option<(Node, NodeRef)>, ProofError> {
        if self.library.is_empty() {
            return Ok(None);
        }
        let (node, digest) = node::imported(&self.library).ok_or(ProofError::NoProof)?;
        let (bytes, rows) = node.totals();
        let inside = match &node {
            Node::Leaf(leaf) => leaf.rows().all(|(key, _)| Area::Library.owns(&key)),
            Node::Branch(branch) => {
                branch.prefix.nibbles() >= 2 && Area::Library.owns(branch.prefix.bytes())
            }
        };
        let named = NodeRef {
            id: node::NodeId(0),
            digest,
            bytes,
            rows,
        };
        match inside && rows > 0 {
            true => Ok(Some((node, named))),
            false => Err(ProofError::NoProof),
        }
    }
}

/// Rows that are being verified.
#[derive(Debug)]
pub struct Proving {
    proof: Proof,
    rows: Builder,
    leaf_bytes_max: u64,
}

impl Proving {
    /// The next row of the service, in the order of the keys.
    ///
    /// # Errors
    /// If it is out of order or too long.
    pub fn push(&mut self, key: &[u8], born: Born) -> Result<(), ProofError> {
        if key.len() > KEY_BYTES_MAX || born.value.len() > VALUE_BYTES_MAX {
            return Err(ProofError::TooLong);
        }
        let key = Area::Service.key(key);
        if !self.rows.follows(&key) {
            return Err(ProofError::OutOfOrder);
        }
        self.rows.push((key, born));
        Ok(())
    }

    /// All rows have come: they are those of the state with this digest.
    ///
    /// # Errors
    /// If they are not, or the proof is none.
    pub fn finish(self, root: &Digest) -> Result<(), ProofError> {
        let library = self.proof.library()?;
        let top = match (library, self.rows.finish()) {
            (library, None) => library.map(|(_, named)| named),
            (None, Some(service)) => service.node(),
            (Some((node, named)), Some(service)) => {
                both((node, named), service, self.leaf_bytes_max)
            }
        };
        match rows_digest(top.as_ref()) == *root {
            true => Ok(()),
            false => Err(ProofError::OtherState),
        }
    }
}

/// The root of a tree with rows of both areas.
fn both((node, named): (Node, NodeRef), service: Part, leaf_bytes_max: u64) -> Option<NodeRef> {
    let part = service.node()?;
    if named.bytes.saturating_add(part.bytes) <= leaf_bytes_max
        && let (Node::Leaf(library), Part::Rows(own)) = (&node, service)
    {
        let rows: Vec<_> = library.rows().chain(own).collect();
        return node::leaf(&rows).map(|leaf| reference(&leaf));
    }
    let (library, service) = (Area::Library.key(b""), Area::Service.key(b""));
    let prefix = Prefix::of(&library, 1);
    let children = vec![(slot(&library, 1), named), (slot(&service, 1), part)];
    Some(reference(&node::branch(prefix, children)))
}

impl<D: Store> KeySpace<D> {
    /// What proves, with all rows of the service, the digest of the newest durable root.
    ///
    /// # Errors
    /// If the store fails.
    pub fn proof(&self) -> Result<Proof, StateError> {
        let Some(root) = self.durable.and_then(|durable| durable.tree) else {
            return Ok(Proof::default());
        };
        let library = match &*self.tree.load(&self.store, &root)? {
            Node::Leaf(leaf) => {
                let rows = leaf.rows().filter(|(key, _)| Area::Library.owns(key));
                let rows: Vec<_> = rows.collect();
                node::leaf(&rows).map(|leaf| leaf.bytes)
            }
            Node::Branch(branch) if branch.prefix.nibbles() < 2 => {
                let own = slot(&Area::Library.key(b""), branch.prefix.nibbles());
                let child = branch.child(own);
                child.map(|child| self.stored_node(&child)).transpose()?
            }
            Node::Branch(branch) if Area::Library.owns(branch.prefix.bytes()) => {
                Some(self.stored_node(&root)?)
            }
            Node::Branch(_) => None,
        };
        Ok(Proof {
            library: library.unwrap_or_default(),
        })
    }

    /// A node of a durable tree, as it is sent to others.
    pub(super) fn stored_node(&self, named: &NodeRef) -> Result<Bytes, StateError> {
        let stored = self.store.get(&node_key(named.id))?;
        let exported = stored.as_ref().and_then(node::exported);
        exported.ok_or_else(|| StateError::Damaged {
            place: format!("node {}", named.id.0),
            reason: "it is missing or does not decode".to_owned(),
        })
    }
}

#[cfg(test)]
mod tests;
