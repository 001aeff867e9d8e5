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

use super::Reads;
use crate::blocks::object::{
    AHEAD_BYTES, BlockError, Cells, Positions, SealedSlice, SliceCipher, StoredObject,
    opened_index, sealed_index_length, unshrunk,
};
use quorumfs_metadata::identity::Codec;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

/// The position of segments, and perhaps their cells.
pub(super) struct Located {
    pub(in crate::blocks) positions: Positions,
    /// The range in the object's stream.
    pub(in crate::blocks) stream: Range<u64>,
    /// Its cells, if they came with the index.
    pub(in crate::blocks) cells: Option<Cells>,
}

impl Reads {
    /// Locates segments; fetches the index if it is required and not cached.
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
        self.indexes.put(slice.id, Arc::clone(&index));
        let mut located = found(Positions::Indexed(index));
        if located.stream.end <= offset + fetched {
            located.cells = Some(cells);
        }
        Ok(located)
    }
}
