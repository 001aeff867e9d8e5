//! The one row that locates the durable trees.
//!
//! ```text
//! magic "qfsstate" │ format u32 │ features u32 │ next node id u64 │ garbage digest 32 │ newest │
//!   previous │ checksum 32
//! newest, previous = 00, or 01 │ sequence u64 │ rows digest 32 │ tree
//! tree             = 00 (no rows), or 01 │ node id u64 │ node digest 32 │ bytes u64 │ rows u64
//! ```
//!
//! Written with every flush, in the same atomic batch as the nodes. The checksum protects against a
//! medium that errs, not against an attacker: one that can write here can write anything.

use super::node::{NodeId, NodeRef};
use super::{DurableRoot, StateError};
use crate::identity::{Digest, Sequence};
use borsh::{BorshDeserialize, BorshSerialize};
use bytes::Bytes;

/// The store's key of the record.
pub(super) const ROOT_KEY: &[u8] = b"r";

const MAGIC: [u8; 8] = *b"qfsstate";
const FORMAT: u32 = 1;
const CHECKSUM_CONTEXT: &str = "quorumfs-bft 2026-11 state root record v1";
const GARBAGE_CONTEXT: &str = "quorumfs-bft 2026-11 state garbage v1";
const ROWS_CONTEXT: &str = "quorumfs-bft 2026-11 state root v1";

/// A tree that is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Retained {
    pub(super) root: DurableRoot,
    pub(super) tree: Option<NodeRef>,
}

/// The content of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RootRecord {
    pub(super) next_id: NodeId,
    /// [`garbage_digest`] of the list that was written with this record.
    pub(super) garbage: Digest,
    pub(super) newest: Retained,
    pub(super) previous: Option<Retained>,
}

/// The digest of all rows: over their number, their bytes and the root node's digest.
pub(super) fn rows_digest(tree: Option<&NodeRef>) -> Digest {
    let mut hashed = Vec::with_capacity(48);
    if let Some(root) = tree {
        hashed.extend(root.rows.to_le_bytes());
        hashed.extend(root.bytes.to_le_bytes());
        hashed.extend(root.digest.0);
    }
    Digest(blake3::derive_key(ROWS_CONTEXT, &hashed))
}

/// The digest of the list of obsolete nodes: a wrong one would remove nodes that are needed.
pub(super) fn garbage_digest(list: &[u8]) -> Digest {
    Digest(blake3::derive_key(GARBAGE_CONTEXT, list))
}

#[derive(BorshSerialize, BorshDeserialize)]
struct TreeReference {
    id: u64,
    digest: Digest,
    bytes: u64,
    rows: u64,
}

#[derive(BorshSerialize, BorshDeserialize)]
struct Root {
    sequence: Sequence,
    digest: Digest,
    tree: Option<TreeReference>,
}

#[derive(BorshSerialize, BorshDeserialize)]
struct Body {
    next_id: u64,
    garbage: Digest,
    newest: Root,
    previous: Option<Root>,
}

impl From<Retained> for Root {
    fn from(retained: Retained) -> Self {
        Self {
            sequence: retained.root.sequence,
            digest: retained.root.digest,
            tree: retained.tree.map(|tree| TreeReference {
                id: tree.id.0,
                digest: tree.digest,
                bytes: tree.bytes,
                rows: tree.rows,
            }),
        }
    }
}

impl From<Root> for Retained {
    fn from(root: Root) -> Self {
        Self {
            root: DurableRoot {
                sequence: root.sequence,
                digest: root.digest,
            },
            tree: root.tree.map(|tree| NodeRef {
                id: NodeId(tree.id),
                digest: tree.digest,
                bytes: tree.bytes,
                rows: tree.rows,
            }),
        }
    }
}

fn damaged(reason: &str) -> StateError {
    StateError::Damaged {
        place: "the root record".to_owned(),
        reason: reason.to_owned(),
    }
}

impl RootRecord {
    pub(super) fn encode(&self) -> Result<Bytes, StateError> {
        let body = Body {
            next_id: self.next_id.0,
            garbage: self.garbage,
            newest: self.newest.into(),
            previous: self.previous.map(Root::from),
        };
        let mut bytes = Vec::with_capacity(320);
        bytes.extend(MAGIC);
        bytes.extend(FORMAT.to_le_bytes());
        bytes.extend(0_u32.to_le_bytes());
        body.serialize(&mut bytes)
            .map_err(|error| damaged(&error.to_string()))?;
        let checksum = blake3::derive_key(CHECKSUM_CONTEXT, &bytes);
        bytes.extend(checksum);
        Ok(bytes.into())
    }

    pub(super) fn decode(stored: &[u8]) -> Result<Self, StateError> {
        let header = stored.strip_prefix(&MAGIC);
        let (format, rest) = header
            .and_then(<[u8]>::split_first_chunk::<4>)
            .ok_or_else(|| damaged("the magic number is missing"))?;
        let (features, rest) = rest
            .split_first_chunk::<4>()
            .ok_or_else(|| damaged("it is cut short"))?;
        let (body, checksum) = rest
            .split_last_chunk::<32>()
            .ok_or_else(|| damaged("it is cut short"))?;
        let format = u32::from_le_bytes(*format);
        if format != FORMAT || u32::from_le_bytes(*features) != 0 {
            return Err(StateError::Newer {
                found: format,
                known: FORMAT,
            });
        }
        let hashed = stored.get(..stored.len().saturating_sub(32));
        let expected = blake3::derive_key(CHECKSUM_CONTEXT, hashed.unwrap_or_default());
        if *checksum != expected {
            return Err(damaged("its checksum does not match"));
        }
        let body = Body::try_from_slice(body).map_err(|error| damaged(&error.to_string()))?;
        let record = Self {
            next_id: NodeId(body.next_id),
            garbage: body.garbage,
            newest: body.newest.into(),
            previous: body.previous.map(Retained::from),
        };
        if rows_digest(record.newest.tree.as_ref()) != record.newest.root.digest {
            return Err(damaged(
                "its root digest does not follow from its root node",
            ));
        }
        Ok(record)
    }
}
