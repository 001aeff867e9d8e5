//! The position of a slice's segments in its object's stream: arithmetic, or an index.
//!
//! The lengths in a slice's row are checked here before any request. A compressed slice has its
//! index in front; without it, only an upper bound of a segment's position is known.

use super::error::BlockError;
use super::index::{SliceIndex, index_length, sealed_index_length};
use super::layout::CELL_BYTES;
use super::open::{Cells, piece};
use super::segment::{Part, SEALED_SEGMENT_BYTES, SliceCipher, TAG_BYTES, sealed_length, segments};
use super::stored::SealedSlice;
use quorumfs_metadata::identity::Codec;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

/// The most unneeded bytes that are fetched together with an index.
pub(in crate::blocks) const AHEAD_BYTES: u64 = 4 * CELL_BYTES as u64;

/// How a slice's segments follow each other.
#[derive(Clone, Debug)]
pub(in crate::blocks) enum Positions {
    /// Each as long as its plaintext and a tag.
    Regular {
        /// Bytes of the slice's stream.
        sealed_length: u32,
    },
    /// By the index.
    Indexed(Arc<SliceIndex>),
}

impl Positions {
    /// Where a sealed segment lies in the slice's stream.
    pub(in crate::blocks) fn sealed(&self, segment: u32) -> Range<u64> {
        match self {
            Self::Regular { sealed_length } => {
                let end = u64::from(*sealed_length);
                let begin = u64::from(segment) * u64::from(SEALED_SEGMENT_BYTES);
                begin.min(end)..(begin + u64::from(SEALED_SEGMENT_BYTES)).min(end)
            }
            Self::Indexed(index) => index.sealed(segment),
        }
    }

    /// The stored bytes of a compressed segment; `None` if it is not compressed.
    pub(in crate::blocks) fn compressed(&self, segment: u32) -> Option<u32> {
        match self {
            Self::Indexed(index) if index.is_compressed(segment) => {
                Some(index.body_length(segment))
            }
            Self::Indexed(_) | Self::Regular { .. } => None,
        }
    }

    /// Where consecutive segments lie.
    pub(in crate::blocks) fn all(&self, segments: &RangeInclusive<u32>) -> Range<u64> {
        self.sealed(*segments.start()).start..self.sealed(*segments.end()).end
    }
}

/// Checks the lengths in a slice's row.
pub(in crate::blocks) fn check(slice: &SealedSlice) -> Result<(), &'static str> {
    let plain = sealed_length(slice.length).map(u64::from);
    let sealed = u64::from(slice.sealed_length);
    match slice.codec {
        Codec::NONE if plain == Some(sealed) => Ok(()),
        Codec::NONE => Err("its slice's sealed length does not follow from the plain one"),
        Codec::ZSTD => {
            let index = sealed_index_length(slice.length);
            let tags = u64::from(segments(slice.length)) * u64::from(TAG_BYTES);
            let most = plain.map_or(0, |plain| plain + index);
            let can_be = (index + tags..=most).contains(&sealed);
            can_be.then_some(()).ok_or(
                "its slice's sealed length is too short or too long for its index and segments",
            )
        }
        _ => Err("its slice is compressed with a codec that this version does not support"),
    }
}

/// The range of segments behind an index without any compression; the last one's end is an upper
/// bound.
pub(in crate::blocks) fn unshrunk(slice: &SealedSlice, wanted: &RangeInclusive<u32>) -> Range<u64> {
    let sealed_length = sealed_length(slice.length).unwrap_or(u32::MAX);
    let regular = Positions::Regular { sealed_length }.all(wanted);
    let index = match slice.codec {
        Codec::NONE => 0,
        _ => sealed_index_length(slice.length),
    };
    regular.start + index..regular.end + index
}

/// The most bytes that reading segments holds, fetched and opened.
pub(in crate::blocks) fn most_held(slice: &SealedSlice, wanted: &RangeInclusive<u32>) -> u64 {
    let Range { start, end } = unshrunk(slice, wanted);
    let index = match slice.codec {
        Codec::NONE => 0,
        _ => sealed_index_length(slice.length) + AHEAD_BYTES,
    };
    (end - start) * 2 + index
}

/// Opens the index of a slice from the cells that hold it.
pub(in crate::blocks) fn opened_index(
    cells: &Cells,
    slice: &SealedSlice,
    cipher: &SliceCipher,
) -> Result<SliceIndex, BlockError> {
    let begin = u64::from(slice.offset);
    let stream = begin..begin + sealed_index_length(slice.length);
    let mut crossing = Vec::new();
    let sealed = piece(cells, &stream, &mut crossing);
    let mut index = vec![0; usize::try_from(index_length(slice.length)).unwrap_or(0)];
    cipher.open(Part::Index, sealed, &mut index)?;
    SliceIndex::parse(slice, &index)
}
