//! Parts of objects as a cloud or a writer may present them.
//!
//! | Piece | Treatment |
//! |---|---|
//! | 0 | the beginning of a supposed object |
//! | 1 | length and sealed length of a slice (4 each); its index, opened |
//! | 2 | the bits that change in a header |
//! | 3 | how many cells a shard has (1, below 16), and which is shown where (1, 1); its path |

use super::header::{Header, ObjectFormat, object_format};
use super::index::SliceIndex;
use super::merkle::{MerkleTree, leaf, proves};
use super::naming::CloudKeys;
use super::segment::segments;
use super::stored::SealedSlice;
use crate::decoders::{Piece, Seed};
use crate::keys::{CloudSecret, Secret};
use quorumfs_bft::identity::ClusterId;
use quorumfs_metadata::identity::{
    AllocationId, CloudIndex, Codec, ObjectClass, ObjectId, ShardIndex, SliceId,
};
use quorumfs_metadata::placement::Policy;

const ALLOCATION: AllocationId = AllocationId(1);

fn begins(bytes: &[u8]) -> bool {
    object_format(bytes) == ObjectFormat::Known
}

fn index(length: u32, sealed_length: u32, bytes: &[u8]) -> bool {
    let slice = SealedSlice {
        id: SliceId {
            allocation: ALLOCATION,
            counter: 1,
        },
        object: ObjectId {
            allocation: ALLOCATION,
            counter: 1,
        },
        offset: 0,
        length,
        sealed_length,
        codec: Codec::ZSTD,
    };
    let Ok(index) = SliceIndex::parse(&slice, bytes) else {
        return false;
    };
    assert_eq!(index.to_bytes(), bytes, "there is one encoding of it");
    assert!(index.fits(&slice) && index.bytes() <= 64 + bytes.len());
    let mut end = index.sealed(0).start;
    for segment in 0..segments(length) {
        let sealed = index.sealed(segment);
        assert!(sealed.start == end && sealed.end > end);
        assert!(sealed.end <= u64::from(sealed_length));
        end = sealed.end;
    }
    true
}

fn header(changes: &[u8]) -> Option<bool> {
    let secret = CloudSecret::from_secret(Secret::from_bytes([5; 32]));
    let header = Header {
        volume: ClusterId([7; 16]),
        object: ObjectId {
            allocation: ALLOCATION,
            counter: 2,
        },
        cloud: CloudIndex(3),
        class: ObjectClass::BLOCK,
        shard: ShardIndex(1),
        policy: Policy::new(4, 1, 2, 4).ok()?,
        length: 300_000,
    };
    let mut bytes = header.encode(&CloudKeys::derive(&secret));
    assert!(begins(&bytes));
    let changed = bytes.iter_mut().zip(changes);
    changed.for_each(|(byte, change)| *byte ^= change);
    let other = |from: usize, until: usize| changes.iter().take(until).skip(from).any(|it| *it > 0);
    if other(0, 8) || other(10, 18) {
        assert!(!begins(&bytes), "another word, or a feature");
    }
    Some(begins(&bytes))
}

fn path(cells: u8, shown: u8, row: u8, path: &[u8]) -> bool {
    let cells: Vec<[u8; 2]> = (0..=cells % 16).map(|cell| [cell, 9]).collect();
    let depth = cells.len().next_power_of_two().trailing_zeros();
    let leaves = cells.iter().map(|cell| leaf(cell)).collect();
    let (tree, header) = (MerkleTree::new(leaves, depth), [3; 83]);
    let (shown, row) = (usize::from(shown) % cells.len(), usize::from(row));
    let cell = cells.get(shown).map_or(&[][..], |cell| &cell[..]);
    let digest = tree.digest(&header);
    let proved = proves(&digest, &header, row as u64, cell, path, depth);
    let right: Vec<u8> = tree.path(row).flatten().copied().collect();
    assert_eq!(proved, shown == row && path == right, "{shown} in {row}");
    proved
}

/// Reads each piece. Returns how many were accepted.
///
/// # Panics
/// If invalid data is accepted.
pub(crate) fn read(pieces: &[Piece<'_>]) -> usize {
    let held = pieces
        .iter()
        .filter(|(kind, piece)| match (kind % 4, *piece) {
            (0, bytes) => begins(bytes),
            (1, bytes) => match bytes.split_first_chunk::<4>() {
                Some((length, rest)) => match rest.split_first_chunk::<4>() {
                    Some((sealed, rest)) => {
                        let (length, sealed) = (*length, *sealed);
                        index(u32::from_be_bytes(length), u32::from_be_bytes(sealed), rest)
                    }
                    None => false,
                },
                None => false,
            },
            (2, changes) => header(changes) == Some(true),
            (_, [cells, shown, row, rest @ ..]) => path(*cells, *shown, *row, rest),
            _ => false,
        });
    held.count()
}

/// One of each.
pub(crate) fn seeds() -> Vec<Seed> {
    let begins = b"QFSOBJCT\0\x01\0\0\0\0\0\0\0\0and more".to_vec();
    let stored = SliceIndex::of_lengths(100_000, &[5, 34_464]);
    let index = stored.map_or_else(Vec::new, |index| {
        let sealed = u32::try_from(index.sealed_length()).unwrap_or_default();
        let lengths = [100_000_u32.to_be_bytes(), sealed.to_be_bytes()].concat();
        [lengths, index.to_bytes()].concat()
    });
    let cells: Vec<_> = (0..6_u8).map(|cell| leaf(&[cell, 9])).collect();
    let tree = MerkleTree::new(cells, 3);
    let path = tree.path(2).flatten().copied();
    let path = [5, 2, 2].into_iter().chain(path).collect();
    vec![
        vec![(0, begins)],
        vec![(1, index)],
        vec![(2, vec![0; 40])],
        vec![(3, path)],
        vec![(3, vec![0, 0, 0])],
    ]
}
