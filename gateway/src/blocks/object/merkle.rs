//! The Merkle tree over one shard: from any cell and its path to the shard's digest.
//!
//! ```text
//! leaf      BLAKE3("quorumfs 2026 cell", cell)           rows without a cell: 32 zero bytes
//! node      BLAKE3("quorumfs 2026 cell node", left ‖ right)
//! digest    BLAKE3("quorumfs 2026 shard", header ‖ top)
//! ```
//!
//! All in derive-key mode. The tree has as many leaves as the object has rows, rounded up to a
//! power of two, so every path has the same length. The header is under the digest, and the number
//! of cells and all lengths are in the header, so a path proves a cell's place, length and content
//! at once.

use super::header::HeaderBytes;
use super::layout::HASH_BYTES;
use quorumfs_bft::identity::Digest;
use std::sync::LazyLock;

type Hash = [u8; HASH_BYTES as usize];

static CELL: LazyLock<blake3::Hasher> =
    LazyLock::new(|| blake3::Hasher::new_derive_key("quorumfs 2026 cell"));
static NODE: LazyLock<blake3::Hasher> =
    LazyLock::new(|| blake3::Hasher::new_derive_key("quorumfs 2026 cell node"));
static SHARD: LazyLock<blake3::Hasher> =
    LazyLock::new(|| blake3::Hasher::new_derive_key("quorumfs 2026 shard"));

const NO_CELL: Hash = [0; HASH_BYTES as usize];

/// The hash of a cell.
pub(super) fn leaf(cell: &[u8]) -> Hash {
    CELL.clone().update(cell).finalize().into()
}

fn node(left: &Hash, right: &Hash) -> Hash {
    NODE.clone().update(left).update(right).finalize().into()
}

fn digest(header: &HeaderBytes, top: &Hash) -> Digest {
    Digest(SHARD.clone().update(header).update(top).finalize().into())
}

/// The whole tree of a shard.
pub(super) struct MerkleTree {
    /// From the leaves up; each half as long as the one before.
    levels: Vec<Vec<Hash>>,
}

impl MerkleTree {
    /// Builds the tree over a shard's leaves, for an object whose paths have `depth` hashes.
    pub(in crate::blocks) fn new(mut leaves: Vec<Hash>, depth: u32) -> Self {
        leaves.resize(1 << depth, NO_CELL);
        let mut levels = vec![leaves];
        for _ in 0..depth {
            let below = levels.last().map_or(&[][..], Vec::as_slice);
            let level = below
                .as_chunks::<2>()
                .0
                .iter()
                .map(|[l, r]| node(l, r))
                .collect();
            levels.push(level);
        }
        Self { levels }
    }

    /// The shard's digest.
    pub(in crate::blocks) fn digest(&self, header: &HeaderBytes) -> Digest {
        let top = self
            .levels
            .last()
            .and_then(|level| level.first())
            .unwrap_or(&NO_CELL);
        digest(header, top)
    }

    /// The path of a cell, from its sibling up.
    pub(super) fn path(&self, row: usize) -> impl Iterator<Item = &Hash> {
        let below_top = self.levels.len().saturating_sub(1);
        self.levels
            .iter()
            .take(below_top)
            .enumerate()
            .filter_map(move |(height, level)| level.get((row >> height) ^ 1))
    }
}

/// Whether a cell with its path belongs in this row of the shard with this header and digest.
pub(super) fn proves(
    wanted: &Digest,
    header: &HeaderBytes,
    row: u64,
    cell: &[u8],
    path: &[u8],
    depth: u32,
) -> bool {
    let (hashes, rest) = path.as_chunks::<{ HASH_BYTES as usize }>();
    if !rest.is_empty() || hashes.len() != depth as usize || row >> depth != 0 {
        return false;
    }
    let mut hash = leaf(cell);
    for (height, sibling) in hashes.iter().enumerate() {
        hash = match row >> height & 1 {
            0 => node(&hash, sibling),
            _ => node(sibling, &hash),
        };
    }
    digest(header, &hash) == *wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: HeaderBytes = [3; 83];

    #[test]
    fn every_cell_is_proved_in_its_own_row_and_nowhere_else() {
        for count in 1..=9usize {
            let depth = count.next_power_of_two().trailing_zeros();
            let cells: Vec<Vec<u8>> = (0..count).map(|i| vec![i as u8; 100 + i]).collect();
            let tree = MerkleTree::new(cells.iter().map(|cell| leaf(cell)).collect(), depth);
            let digest = tree.digest(&HEADER);
            for (row, cell) in cells.iter().enumerate() {
                let path: Vec<u8> = tree.path(row).flatten().copied().collect();
                assert_eq!(path.len(), depth as usize * 32);
                for other in 0..count as u64 + 4 {
                    let proved = proves(&digest, &HEADER, other, cell, &path, depth);
                    assert_eq!(proved, other == row as u64, "{count} {row} {other}");
                }
                assert!(!proves(&digest, &[4; 83], row as u64, cell, &path, depth));
                assert!(!proves(
                    &digest,
                    &HEADER,
                    row as u64,
                    &cell[1..],
                    &path,
                    depth
                ));
                for byte in 0..path.len() {
                    let mut bad = path.clone();
                    bad[byte] ^= 1;
                    assert!(!proves(&digest, &HEADER, row as u64, cell, &bad, depth));
                }
            }
        }
    }

    #[test]
    fn a_shard_without_cells_still_has_a_digest_of_its_header() {
        let tree = MerkleTree::new(Vec::new(), 0);
        assert_ne!(tree.digest(&HEADER), tree.digest(&[4; 83]));
    }
}
