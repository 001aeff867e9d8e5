//! The stream of an object: the sealed segments of its slices, one after the other.
//!
//! ```text
//! slice A, three segments           slice B, one
//! │ A0 ‖ tag │ A1 ‖ tag │ A2 ‖ tag │ B0 ‖ tag │          no padding anywhere
//! │ cell 0   │ cell 1   │ cell 2          │ 3 │          cells cut it wherever they end
//! ```
//!
//! A slice begins where the one before it ends, and knows nothing of its neighbours: each has its
//! own key, and a reader of one of them need not hold the others'. Small slices share an object
//! that way, and clouds see one object of ordinary size.
//!
//! [`Stream`] makes the bytes in order, cell by cell. A segment that fits what is left of a cell is
//! sealed right into the shard's buffer; this is every segment of an uncompressed slice that
//! begins with its object, because a full sealed segment is as long as a cell. One that crosses the
//! end of a cell is sealed beside it and copied.

use super::error::BlockError;
use super::object::SealedSlice;
use super::segment::{SEGMENT_BYTES, SliceCipher, TAG_BYTES, sealed_length, segments};
use crate::keys::SliceKey;
use bytes::Bytes;
use quorumfs_metadata::identity::{Codec, ObjectId, SliceId};

/// A slice that is to be written.
#[derive(Clone, Debug)]
pub struct PlainSlice {
    /// Its id, never used before.
    pub id: SliceId,
    /// Its own key.
    pub key: SliceKey,
    /// Its content.
    pub plain: Bytes,
}

/// A slice that is being sealed, with what seals it.
#[derive(Clone, Copy)]
pub(super) struct Content<'a> {
    pub(super) cipher: &'a SliceCipher,
    pub(super) plain: &'a [u8],
}

impl<'a> Content<'a> {
    /// Its length; whoever prepared the cipher has checked that it fits.
    fn length(&self) -> u32 {
        u32::try_from(self.plain.len()).unwrap_or(u32::MAX)
    }

    fn segment(&self, index: u32) -> &'a [u8] {
        let begin = (index as usize).saturating_mul(SEGMENT_BYTES as usize);
        let rest = self.plain.get(begin..).unwrap_or_default();
        rest.get(..SEGMENT_BYTES as usize).unwrap_or(rest)
    }
}

/// Where slices lie that follow each other in an object; `None` if they exceed 32 bits.
pub(super) fn place(object: ObjectId, slices: &[PlainSlice]) -> Option<Vec<SealedSlice>> {
    let mut offset = 0_u32;
    let mut follow = |slice: &PlainSlice| {
        let length = u32::try_from(slice.plain.len()).ok()?;
        let placed = SealedSlice {
            id: slice.id,
            object,
            offset,
            length,
            sealed_length: sealed_length(length)?,
            codec: Codec::NONE,
        };
        offset = offset.checked_add(placed.sealed_length)?;
        Some(placed)
    };
    slices.iter().map(&mut follow).collect()
}

/// The stream as it is made.
pub(super) struct Stream<'a> {
    contents: &'a [Content<'a>],
    /// The next segment of the first of them.
    segment: u32,
    /// A segment that crosses the end of a cell, and how much of it was taken.
    crossing: Vec<u8>,
    taken: usize,
}

impl<'a> Stream<'a> {
    pub(super) fn new(contents: &'a [Content<'a>]) -> Self {
        Self {
            contents,
            segment: 0,
            crossing: Vec::new(),
            taken: 0,
        }
    }

    /// Bytes of it that are still to come.
    pub(super) fn length(&self) -> u64 {
        let bytes = |content: &Content<'_>| {
            let tags = u64::from(segments(content.length())) * u64::from(TAG_BYTES);
            u64::from(content.length()) + tags
        };
        self.contents.iter().map(bytes).sum()
    }

    /// Fills the next cell.
    pub(super) fn fill(&mut self, cell: &mut [u8]) -> Result<(), BlockError> {
        let mut cell = self.take_crossing(cell);
        while !cell.is_empty()
            && let Some((content, index)) = self.next()
        {
            let plain = content.segment(index);
            let sealed = plain.len() + TAG_BYTES as usize;
            if sealed <= cell.len() {
                let (place, behind) = cell.split_at_mut(sealed);
                content.cipher.seal(index, plain, place)?;
                cell = behind;
            } else {
                self.crossing.resize(sealed, 0);
                self.taken = 0;
                content.cipher.seal(index, plain, &mut self.crossing)?;
                cell = self.take_crossing(cell);
            }
        }
        Ok(())
    }

    /// Continues with what the cell before had no room for; returns the room behind it.
    fn take_crossing<'b>(&mut self, cell: &'b mut [u8]) -> &'b mut [u8] {
        let rest = self.crossing.get(self.taken..).unwrap_or_default();
        let (place, behind) = cell.split_at_mut(rest.len().min(cell.len()));
        for (to, from) in place.iter_mut().zip(rest) {
            *to = *from;
        }
        self.taken += place.len();
        behind
    }

    fn next(&mut self) -> Option<(Content<'a>, u32)> {
        let content = *self.contents.first()?;
        let index = self.segment;
        self.segment += 1;
        if self.segment == segments(content.length()) {
            self.contents = self.contents.get(1..).unwrap_or_default();
            self.segment = 0;
        }
        Some((content, index))
    }
}
