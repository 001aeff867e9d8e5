//! The position of a slice's segments in its object's stream.
//!
//! ```text
//! not compressed                            by arithmetic
//! compressed, index cached                  by the index
//! compressed, wanted near the front         fetch index and segments at once
//! compressed, wanted further behind         fetch the index, then the segments
//! ```
//!
//! Without the index, a reader does not know how far its segments reach, only how far they would
//! reach uncompressed. If that is not much more than it wants, it fetches so much together with the
//! index; otherwise the index alone: a round trip costs about as much as some cells. The lengths in
//! a row are checked before any request.

use super::range::Cells;
use crate::blocks::engine::Engine;
use crate::blocks::object::{
    BlockError, CELL_BYTES, Part, SEALED_SEGMENT_BYTES, SealedSlice, SliceCipher, SliceIndex,
    StoredObject, TAG_BYTES, index_length, piece, sealed_index_length, sealed_length, segments,
};
use quorumfs_metadata::identity::Codec;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

/// The most unneeded bytes that are fetched together with an index.
const AHEAD_BYTES: u64 = 4 * CELL_BYTES as u64;

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

    fn all(&self, segments: &RangeInclusive<u32>) -> Range<u64> {
        self.sealed(*segments.start()).start..self.sealed(*segments.end()).end
    }
}

/// The position of segments, and perhaps their cells.
pub(in crate::blocks) struct Located {
    pub(in crate::blocks) positions: Positions,
    /// The range in the object's stream.
    pub(in crate::blocks) stream: Range<u64>,
    /// Its cells, if they came with the index.
    pub(in crate::blocks) cells: Option<Cells>,
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
fn unshrunk(slice: &SealedSlice, wanted: &RangeInclusive<u32>) -> Range<u64> {
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

impl Engine {
    /// Locates segments; fetches the index if it is required and not cached.
    pub(in crate::blocks) async fn locate(
        self: &Arc<Self>,
        object: &Arc<StoredObject>,
        slice: &SealedSlice,
        cipher: &SliceCipher,
        wanted: RangeInclusive<u32>,
    ) -> Result<Located, BlockError> {
        let offset = u64::from(slice.offset);
        let found = |positions: Positions| {
            let Range { start, end } = positions.all(&wanted);
            Located {
                positions,
                stream: start + offset..end + offset,
                cells: None,
            }
        };
        if slice.codec == Codec::NONE {
            let sealed_length = slice.sealed_length;
            return Ok(found(Positions::Regular { sealed_length }));
        }
        if let Some(index) = self.indexes.get(slice) {
            return Ok(found(Positions::Indexed(index)));
        }
        let index = sealed_index_length(slice.length);
        let latest = unshrunk(slice, &wanted);
        let ahead = latest.end.min(u64::from(slice.sealed_length));
        let needless = ahead.saturating_sub(latest.end - latest.start);
        let fetched = if needless <= AHEAD_BYTES {
            ahead
        } else {
            index
        };
        let cells = self.read_cells(object, &(offset..offset + fetched)).await?;
        let index = Arc::new(opened_index(&cells, slice, cipher)?);
        self.indexes.put(slice.id, Arc::clone(&index));
        let mut located = found(Positions::Indexed(index));
        if located.stream.end <= offset + fetched {
            located.cells = Some(cells);
        }
        Ok(located)
    }
}
