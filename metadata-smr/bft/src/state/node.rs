//! Leaves and branches: their bytes, their digests, and how they are read back.
//!
//! ```text
//! leaf    01 │ prefix length u16 │ prefix │ rows u32 │
//!              rows × (suffix length u16, value length u32, birth u64, suffix, value)
//! branch  02 │ prefix length in nibbles u16 │ prefix │ slots u32 (bit mask) │
//!              children × (digest 32, bytes u64, rows u64) │ children × id u64
//! ```
//!
//! Integers are little-endian. A row's birth is the sequence of the last batch that wrote it. A
//! digest covers everything but the ids, which only locate a child on this replica. A leaf's prefix
//! is the bytes that its keys have in common; a branch's prefix is absolute, from the start of the
//! key, so that a node knows its place and need not be rewritten when a node above it changes.

use super::nibbles::{Prefix, SLOTS};
use super::{KEY_BYTES_MAX, StateError};
use crate::identity::{Digest, Sequence};
use bytes::{Buf, BufMut, Bytes, BytesMut};

const LEAF_CONTEXT: &str = "quorumfs-bft 2026-11 state tree leaf v1";
const BRANCH_CONTEXT: &str = "quorumfs-bft 2026-11 state tree branch v1";
const LEAF_TAG: u8 = 1;
const BRANCH_TAG: u8 = 2;

/// The overhead of a row beyond its key and value; the tree's bound is in these units.
const ROW_OVERHEAD_BYTES: u64 = 16;
/// The length of the fields before a row's suffix and value in a leaf.
const ROW_HEAD_BYTES: usize = 14;

/// A value and the batch that wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Born {
    /// The sequence of the last batch that wrote the row; 0 for rows of the genesis.
    pub birth: Sequence,
    /// The value.
    pub value: Bytes,
}

/// A row of the tree: its key, and its value with its birth.
pub type BornRow = (Bytes, Born);

/// The location of a node on a replica. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodeId(pub(super) u64);

/// A node as its parent names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeRef {
    /// Its location.
    pub(super) id: NodeId,
    /// Its digest.
    pub(super) digest: Digest,
    /// The sum of [`row_bytes`] over the rows below it.
    pub(super) bytes: u64,
    /// The number of rows below it.
    pub(super) rows: u64,
}

/// The size of a row in the units of the tree's bound.
pub(super) fn row_bytes(key: &[u8], value: &[u8]) -> u64 {
    ROW_OVERHEAD_BYTES
        .saturating_add(key.len() as u64)
        .saturating_add(value.len() as u64)
}

/// The sum over several rows.
pub(super) fn rows_bytes(rows: &[BornRow]) -> u64 {
    rows.iter()
        .map(|(key, born)| row_bytes(key, &born.value))
        .sum()
}

/// All rows under one prefix.
#[derive(Debug)]
pub(super) struct Leaf {
    prefix: Bytes,
    /// Suffix, and value with birth, ordered.
    rows: Vec<BornRow>,
}

impl Leaf {
    pub(super) fn get(&self, key: &[u8]) -> Option<Born> {
        let suffix = key.strip_prefix(self.prefix.as_ref())?;
        let index = self
            .rows
            .binary_search_by(|(own, _)| own.as_ref().cmp(suffix))
            .ok()?;
        self.rows.get(index).map(|(_, born)| born.clone())
    }

    /// The row at `index`, with its whole key.
    pub(super) fn row(&self, index: usize) -> Option<BornRow> {
        let (suffix, born) = self.rows.get(index)?;
        let mut key = BytesMut::with_capacity(self.prefix.len() + suffix.len());
        key.put_slice(&self.prefix);
        key.put_slice(suffix);
        Some((key.freeze(), born.clone()))
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = BornRow> + '_ {
        (0..self.rows.len()).filter_map(|index| self.row(index))
    }

    /// The index of the first row whose key is `key` or greater.
    pub(super) fn seek(&self, key: &[u8]) -> usize {
        match key.strip_prefix(self.prefix.as_ref()) {
            Some(suffix) => self.rows.partition_point(|(own, _)| own.as_ref() < suffix),
            None if key < self.prefix.as_ref() => 0,
            None => self.rows.len(),
        }
    }
}

/// Rows that do not fit a leaf, by the next nibble of their keys.
#[derive(Debug)]
pub(super) struct Branch {
    pub(super) prefix: Prefix,
    /// Slot and child, ordered by slot.
    pub(super) children: Vec<(u8, NodeRef)>,
}

impl Branch {
    pub(super) fn child(&self, slot: u8) -> Option<NodeRef> {
        let index = self.children.binary_search_by_key(&slot, |(own, _)| *own);
        index
            .ok()
            .and_then(|index| self.children.get(index))
            .map(|(_, child)| *child)
    }
}

/// A node in memory.
#[derive(Debug)]
pub(super) enum Node {
    Leaf(Leaf),
    Branch(Branch),
}

impl Node {
    /// The approximate memory that it takes: its content and an overhead for each part.
    pub(super) fn weight(&self) -> usize {
        match self {
            Self::Leaf(leaf) => leaf
                .rows
                .iter()
                .map(|(suffix, born)| suffix.len() + born.value.len() + 80)
                .sum::<usize>()
                .saturating_add(leaf.prefix.len() + 160),
            Self::Branch(branch) => branch.children.len() * 64 + branch.prefix.bytes().len() + 160,
        }
    }
}

impl Node {
    /// The sums over all rows below it, which its parent names: bytes and rows.
    pub(super) fn totals(&self) -> (u64, u64) {
        match self {
            Self::Leaf(leaf) => {
                let bytes = leaf.rows().map(|(key, born)| row_bytes(&key, &born.value));
                (bytes.sum(), leaf.rows.len() as u64)
            }
            Self::Branch(branch) => {
                let children = || branch.children.iter().map(|(_, child)| child);
                let bytes = children().fold(0, |sum: u64, child| sum.saturating_add(child.bytes));
                let rows = children().fold(0, |sum: u64, child| sum.saturating_add(child.rows));
                (bytes, rows)
            }
        }
    }
}

/// The bytes of a node that its digest covers, as they are sent to another replica.
pub(super) fn exported(stored: &Bytes) -> Option<Bytes> {
    match stored.first()? {
        &BRANCH_TAG => {
            let (_, ids_bytes) = decode_branch(stored.slice(1..))?;
            Some(stored.slice(..stored.len().checked_sub(ids_bytes)?))
        }
        _ => Some(stored.clone()),
    }
}

/// A node that another replica has sent, and its digest. The ids of its children are void.
pub(super) fn imported(received: &Bytes) -> Option<(Node, Digest)> {
    if received.first() != Some(&BRANCH_TAG) {
        return decode(received);
    }
    let head = received.get(1..3)?;
    let nibbles = usize::from(u16::from_le_bytes(head.try_into().ok()?));
    let at = nibbles.div_ceil(2).checked_add(3)?;
    let mask = received.get(at..at.checked_add(4)?)?;
    let count = u32::from_le_bytes(mask.try_into().ok()?).count_ones();
    let mut whole = BytesMut::from(received.as_ref());
    whole.put_bytes(0, usize::try_from(count).ok()?.checked_mul(8)?);
    decode(&whole.freeze())
}

/// A node that was just made.
pub(super) struct Encoded {
    pub(super) node: Node,
    pub(super) bytes: Bytes,
    pub(super) digest: Digest,
}

fn digest(context: &str, bytes: &[u8]) -> Digest {
    Digest(blake3::derive_key(context, bytes))
}

#[allow(clippy::cast_possible_truncation)] // keys ≤ 513 B, values ≤ 1 MiB, checked when written
pub(super) fn leaf(rows: &[BornRow]) -> Option<Encoded> {
    let (first, last) = (&rows.first()?.0, &rows.last()?.0);
    let shared = first.iter().zip(last).take_while(|(a, b)| a == b).count();
    let prefix = first.get(..shared)?;
    let row_length = |(key, born): &BornRow| key.len() + born.value.len() + ROW_HEAD_BYTES;
    let length: usize = rows.iter().map(row_length).sum();
    let mut bytes = BytesMut::with_capacity(length + 16);
    bytes.put_u8(LEAF_TAG);
    bytes.put_u16_le(shared as u16);
    bytes.put_slice(prefix);
    bytes.put_u32_le(rows.len() as u32);
    for (key, Born { birth, value }) in rows {
        let suffix = key.get(shared..)?;
        bytes.put_u16_le(suffix.len() as u16);
        bytes.put_u32_le(value.len() as u32);
        bytes.put_u64_le(birth.0);
        bytes.put_slice(suffix);
        bytes.put_slice(value);
    }
    let bytes = bytes.freeze();
    let (node, digest) = decode(&bytes)?;
    Some(Encoded {
        node,
        bytes,
        digest,
    })
}

#[allow(clippy::cast_possible_truncation)] // a prefix has at most 1026 nibbles
pub(super) fn branch(prefix: Prefix, children: Vec<(u8, NodeRef)>) -> Encoded {
    let mut bytes = BytesMut::with_capacity(16 + prefix.bytes().len() + children.len() * 56);
    bytes.put_u8(BRANCH_TAG);
    bytes.put_u16_le(prefix.nibbles() as u16);
    bytes.put_slice(prefix.bytes());
    let mask = children
        .iter()
        .fold(0_u32, |mask, (slot, _)| mask | 1_u32 << slot);
    bytes.put_u32_le(mask);
    for (_, child) in &children {
        bytes.put_slice(&child.digest.0);
        bytes.put_u64_le(child.bytes);
        bytes.put_u64_le(child.rows);
    }
    let digest = digest(BRANCH_CONTEXT, &bytes);
    for (_, child) in &children {
        bytes.put_u64_le(child.id.0);
    }
    Encoded {
        node: Node::Branch(Branch { prefix, children }),
        bytes: bytes.freeze(),
        digest,
    }
}

/// Reads a node back and checks that it is the one that its parent names.
pub(super) fn verified(stored: &Bytes, named: &NodeRef) -> Result<Node, StateError> {
    let damaged = |reason: &str| StateError::Damaged {
        place: format!("node {}", named.id.0),
        reason: reason.to_owned(),
    };
    let (node, digest) = decode(stored).ok_or_else(|| damaged("it does not decode"))?;
    if digest != named.digest {
        return Err(damaged("its digest is not the one that its parent names"));
    }
    Ok(node)
}

fn decode(stored: &Bytes) -> Option<(Node, Digest)> {
    let mut rest = stored.clone();
    match rest.try_get_u8().ok()? {
        LEAF_TAG => {
            let node = decode_leaf(rest)?;
            Some((Node::Leaf(node), digest(LEAF_CONTEXT, stored)))
        }
        BRANCH_TAG => {
            let (node, ids_bytes) = decode_branch(rest)?;
            let hashed = stored.get(..stored.len().checked_sub(ids_bytes)?)?;
            Some((Node::Branch(node), digest(BRANCH_CONTEXT, hashed)))
        }
        _ => None,
    }
}

fn take(rest: &mut Bytes, length: usize) -> Option<Bytes> {
    (length <= rest.len()).then(|| rest.split_to(length))
}

fn decode_leaf(mut rest: Bytes) -> Option<Leaf> {
    let length = usize::from(rest.try_get_u16_le().ok()?);
    let prefix = take(&mut rest, length)?;
    let count = usize::try_from(rest.try_get_u32_le().ok()?).ok()?;
    if count.checked_mul(ROW_HEAD_BYTES)? > rest.len() {
        return None;
    }
    let mut rows = Vec::with_capacity(count);
    for _ in 0..count {
        let suffix_length = usize::from(rest.try_get_u16_le().ok()?);
        let value_length = usize::try_from(rest.try_get_u32_le().ok()?).ok()?;
        let birth = Sequence(rest.try_get_u64_le().ok()?);
        let suffix = take(&mut rest, suffix_length)?;
        let value = take(&mut rest, value_length)?;
        rows.push((suffix, Born { birth, value }));
    }
    rest.is_empty().then_some(Leaf { prefix, rows })
}

fn decode_branch(mut rest: Bytes) -> Option<(Branch, usize)> {
    let nibbles = usize::from(rest.try_get_u16_le().ok()?);
    if nibbles > 2 * (KEY_BYTES_MAX + 1) {
        return None;
    }
    let bytes = take(&mut rest, nibbles.div_ceil(2))?;
    let prefix = Prefix::from_stored(bytes, nibbles)?;
    let mask = rest.try_get_u32_le().ok()?;
    let count = usize::try_from(mask.count_ones()).ok()?;
    if mask >> SLOTS != 0 || rest.len() != count * 56 {
        return None;
    }
    let mut ids = rest.split_off(count * 48);
    let mut children = Vec::with_capacity(count);
    for slot in (0..SLOTS).filter(|slot| mask & 1_u32 << slot != 0) {
        let mut digest = [0; 32];
        rest.try_copy_to_slice(&mut digest).ok()?;
        let child = NodeRef {
            digest: Digest(digest),
            bytes: rest.try_get_u64_le().ok()?,
            rows: rest.try_get_u64_le().ok()?,
            id: NodeId(ids.try_get_u64_le().ok()?),
        };
        children.push((slot, child));
    }
    Some((Branch { prefix, children }, count * 8))
}
