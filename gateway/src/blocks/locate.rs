//! Where in its object's stream a slice's segments lie.
//!
//! ```text
//! not compressed                            by arithmetic
//! compressed, its index kept                by the index
//! compressed, wanted near the front         fetch index and segments at once
//! compressed, wanted further behind         fetch the index, then the segments
//! ```
//!
//! A reader who does not have the index cannot know how far the segments reach that it wants, only
//! how far they would reach if nothing had shrunk. It fetches so much with the index if that is not
//! much more than what it wants, and the index alone otherwise: a round trip costs about as much as
//! some cells. What a row says of a slice's lengths is checked before anything is asked for.

use super::engine::Engine;
use super::error::BlockError;
use super::index::{SliceIndex, index_length, sealed_index_length};
use super::layout::CELL_BYTES;
use super::object::{SealedSlice, StoredObject};
use super::open::piece;
use super::read::Cells;
use super::segment::{Part, SEALED_SEGMENT_BYTES, SliceCipher, TAG_BYTES, sealed_length, segments};
use quorumfs_metadata::identity::Codec;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

/// Bytes that may be fetched with an index although they may not be wanted.
const AHEAD_BYTES: u64 = 4 * CELL_BYTES as u64;

/// How a slice's segments follow each other.
#[derive(Clone, Debug)]
pub(super) enum Positions {
    /// Each as long as its plaintext and a tag.
    Regular {
        /// Bytes of the slice's stream.
        sealed_length: u32,
    },
    /// As the index says.
    Indexed(Arc<SliceIndex>),
}

impl Positions {
    /// Where a sealed segment lies in the slice's stream.
    pub(super) fn sealed(&self, segment: u32) -> Range<u64> {
        match self {
            Self::Regular { sealed_length } => {
                let end = u64::from(*sealed_length);
                let begin = u64::from(segment) * u64::from(SEALED_SEGMENT_BYTES);
                begin.min(end)..(begin + u64::from(SEALED_SEGMENT_BYTES)).min(end)
            }
            Self::Indexed(index) => index.sealed(segment),
        }
    }

    /// Bytes that are stored of a segment that has to be expanded; `None` if it has not to be.
    pub(super) fn compressed(&self, segment: u32) -> Option<u32> {
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

/// Where segments lie, and perhaps what lies there.
pub(super) struct Located {
    pub(super) positions: Positions,
    /// Where in the object's stream.
    pub(super) stream: Range<u64>,
    /// The cells there, if they came with the index.
    pub(super) cells: Option<Cells>,
}

/// Whether a slice's row can be right, as far as lengths go; otherwise what is wrong with it.
pub(super) fn check(slice: &SealedSlice) -> Result<(), &'static str> {
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
            can_be
                .then_some(())
                .ok_or("its slice's sealed length cannot be its index's and more")
        }
        _ => Err("its slice is compressed in a way that this version does not know"),
    }
}

/// Where segments would lie behind an index if none had shrunk; the last one's end is the latest.
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
pub(super) fn most_held(slice: &SealedSlice, wanted: &RangeInclusive<u32>) -> u64 {
    let Range { start, end } = unshrunk(slice, wanted);
    let index = match slice.codec {
        Codec::NONE => 0,
        _ => sealed_index_length(slice.length) + AHEAD_BYTES,
    };
    (end - start) * 2 + index
}

/// The index of a slice, out of the cells that hold it.
pub(super) fn opened_index(
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
    /// Finds segments, and fetches the index for it if it is neither needless nor kept.
    pub(super) async fn locate(
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
        self.indexes.keep(slice.id, Arc::clone(&index));
        let mut located = found(Positions::Indexed(index));
        if located.stream.end <= offset + fetched {
            located.cells = Some(cells);
        }
        Ok(located)
    }
}
