//! Opening segments: from the cells that hold them into one run of plaintext.
//!
//! Cells are already proved to be the ones that the metadata names; their content is unchecked. A
//! segment within one cell is opened directly from it; one that crosses the end of a cell is
//! assembled first. A compressed segment is opened into a buffer of its own and expanded into its
//! place, which has exactly its length.
//!
//! Opening is quick enough for the task that received the cells. Expanding takes several times as
//! long, so a slice with an index is opened where sealing is done.

use super::buffers::PlainBuffers;
use super::compress::Expander;
use super::error::BlockError;
use super::layout::CELL_BYTES;
use super::positions::{Positions, opened_index};
use super::segment::{Part, SliceCipher, segments};
use super::stored::SealedSlice;
use bytes::Bytes;
use quorumfs_metadata::identity::Codec;
use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

/// The cells of a stream, by number.
pub(in crate::blocks) type Cells = BTreeMap<u64, Bytes>;

/// Segments that are to be opened.
pub(in crate::blocks) struct Opening {
    pub(in crate::blocks) cells: Cells,
    pub(in crate::blocks) positions: Positions,
    /// The slice's position in its object's stream.
    pub(in crate::blocks) offset: u32,
    pub(in crate::blocks) segments: RangeInclusive<u32>,
    pub(in crate::blocks) cipher: SliceCipher,
    pub(in crate::blocks) buffers: PlainBuffers,
}

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// A piece of the stream; shorter if not all of its cells are present. A piece in several cells is
/// assembled in `crossing`.
pub(super) fn piece<'a>(
    cells: &'a Cells,
    stream: &Range<u64>,
    crossing: &'a mut Vec<u8>,
) -> &'a [u8] {
    let cell_bytes = u64::from(CELL_BYTES);
    let (first, begin) = (stream.start / cell_bytes, stream.start % cell_bytes);
    let length = size(stream.end.saturating_sub(stream.start));
    let (begin, end) = (size(begin), size(begin).saturating_add(length));
    if let Some(within) = cells.get(&first).and_then(|cell| cell.get(begin..end)) {
        return within;
    }
    crossing.clear();
    let mut skip = begin;
    for (number, (cell, bytes)) in (first..).zip(cells.range(first..)) {
        if number != *cell || crossing.len() == length {
            break;
        }
        let part = bytes.get(skip..).unwrap_or_default();
        let missing = length - crossing.len();
        crossing.extend_from_slice(part.get(..missing).unwrap_or(part));
        skip = 0;
    }
    crossing
}

/// Opens all of a slice from the cells that hold it.
pub(in crate::blocks) fn open_whole(
    cells: Cells,
    slice: &SealedSlice,
    cipher: SliceCipher,
    buffers: PlainBuffers,
) -> Result<Bytes, BlockError> {
    let positions = match slice.codec {
        Codec::NONE => Positions::Regular {
            sealed_length: slice.sealed_length,
        },
        _ => Positions::Indexed(Arc::new(opened_index(&cells, slice, &cipher)?)),
    };
    let opening = Opening {
        cells,
        positions,
        offset: slice.offset,
        segments: 0..=segments(slice.length).saturating_sub(1),
        cipher,
        buffers,
    };
    opening.open()
}

impl Opening {
    /// Whether opening takes so long that it belongs where sealing is done.
    pub(in crate::blocks) fn is_long(&self) -> bool {
        matches!(self.positions, Positions::Indexed(_))
    }

    /// The segments' plaintext, one after the other.
    pub(in crate::blocks) fn open(&self) -> Result<Bytes, BlockError> {
        let length = |segment| u64::from(self.cipher.segment_length(segment));
        let all: u64 = self.segments.clone().map(length).sum();
        let mut plain = self.buffers.take(size(all));
        let mut rest = plain.as_mut();
        let (mut crossing, mut shrunk) = (Vec::new(), Vec::new());
        let mut expander = Expander::new();
        for segment in self.segments.clone() {
            let part = Part::Segment(segment);
            let place = rest.split_at_mut_checked(size(length(segment)));
            let (place, behind) = place.ok_or_else(|| self.cipher.forged(part))?;
            let Range { start, end } = self.positions.sealed(segment);
            let stream = start + u64::from(self.offset)..end + u64::from(self.offset);
            let sealed = piece(&self.cells, &stream, &mut crossing);
            match self.positions.compressed(segment) {
                None => self.cipher.open(part, sealed, place)?,
                Some(stored) => {
                    shrunk.resize(stored as usize, 0);
                    self.cipher.open(part, sealed, &mut shrunk)?;
                    if !expander.expand(&shrunk, place) {
                        let what = "a segment does not expand to its length";
                        return Err(self.cipher.sealed_wrong(what));
                    }
                }
            }
            rest = behind;
        }
        Ok(plain.share())
    }
}
