//! The stream of an object: the sealed segments of its slices, one after the other.
//!
//! ```text
//! slice A, three segments           slice B, one
//! │ A0 ‖ tag │ A1 ‖ tag │ A2 ‖ tag │ B0 ‖ tag │          no padding anywhere
//! │ cell 0   │ cell 1   │ cell 2          │ 3 │          cells cut it wherever they end
//! ```
//!
//! A slice begins where the one before it ends, and is independent of its neighbours: each has its
//! own key, and a reader of one of them need not hold the others'. In this way small slices share
//! an object, and clouds see one object of ordinary size.
//!
//! A compressed slice has a sealed index before its segments, which are then of any length; see
//! `index`.
//!
//! [`Stream`] makes the bytes in order, cell by cell. A segment that fits the rest of a cell is
//! sealed directly into the shard's buffer. This is every segment of an uncompressed slice that
//! begins with its object, because a full sealed segment is as long as a cell. A segment that
//! crosses the end of a cell is sealed into a separate buffer and copied.

use super::compress::Squeezed;
use super::error::BlockError;
use super::segment::{Part, SEGMENT_BYTES, SliceCipher, TAG_BYTES, sealed_length, segments};
use super::stored::SealedSlice;
use crate::keys::SliceKey;
use bytes::Bytes;
use quorumfs_metadata::identity::{Codec, ObjectId, SliceId};
use std::borrow::Cow;

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

/// A slice that is being sealed, with its cipher.
#[derive(Clone, Copy)]
pub(in crate::blocks) struct Content<'a> {
    pub(in crate::blocks) cipher: &'a SliceCipher,
    pub(in crate::blocks) plain: &'a [u8],
    /// Its compressed segments, if it is compressed.
    pub(in crate::blocks) squeezed: Option<&'a Squeezed>,
}

/// The next part of a stream, to be sealed.
struct Next<'a> {
    cipher: &'a SliceCipher,
    part: Part,
    stored: Cow<'a, [u8]>,
}

impl<'a> Content<'a> {
    /// Its length; the cipher's maker has checked that it fits.
    fn length(&self) -> u32 {
        u32::try_from(self.plain.len()).unwrap_or(u32::MAX)
    }

    /// Its bytes in the stream.
    fn sealed_length(&self) -> u64 {
        match self.squeezed {
            None => u64::from(self.length()) + tags(self.length()),
            Some(squeezed) => squeezed.index.sealed_length(),
        }
    }

    /// The part of that number, if there is one: an index comes before the segments.
    fn part(&self, number: u32) -> Option<Next<'a>> {
        let segment = match (self.squeezed, number.checked_sub(1)) {
            (None, _) => number,
            (Some(_), Some(before)) => before,
            (Some(squeezed), None) => {
                return Some(Next {
                    cipher: self.cipher,
                    part: Part::Index,
                    stored: squeezed.index.to_bytes().into(),
                });
            }
        };
        if segment >= segments(self.length()) {
            return None;
        }
        let shrunk = self.squeezed.and_then(|squeezed| squeezed.body(segment));
        Some(Next {
            cipher: self.cipher,
            part: Part::Segment(segment),
            stored: shrunk.unwrap_or_else(|| self.segment(segment)).into(),
        })
    }

    fn segment(&self, index: u32) -> &'a [u8] {
        let begin = (index as usize).saturating_mul(SEGMENT_BYTES as usize);
        let rest = self.plain.get(begin..).unwrap_or_default();
        rest.get(..SEGMENT_BYTES as usize).unwrap_or(rest)
    }
}

fn tags(length: u32) -> u64 {
    u64::from(segments(length)) * u64::from(TAG_BYTES)
}

/// The positions of slices that follow each other in an object, each with its compressed segments
/// if it has any; `None` if they exceed 32 bits.
pub(in crate::blocks) fn place(
    object: ObjectId,
    slices: &[(PlainSlice, Option<Squeezed>)],
) -> Option<Vec<SealedSlice>> {
    let mut offset = 0_u32;
    let mut follow = |(slice, squeezed): &(PlainSlice, Option<Squeezed>)| {
        let length = u32::try_from(slice.plain.len()).ok()?;
        let (codec, sealed_length) = match squeezed {
            None => (Codec::NONE, sealed_length(length)?),
            Some(it) => (Codec::ZSTD, u32::try_from(it.index.sealed_length()).ok()?),
        };
        let placed = SealedSlice {
            id: slice.id,
            object,
            offset,
            length,
            sealed_length,
            codec,
        };
        offset = offset.checked_add(sealed_length)?;
        Some(placed)
    };
    slices.iter().map(&mut follow).collect()
}

/// The stream under construction.
pub(super) struct Stream<'a> {
    contents: &'a [Content<'a>],
    /// The next part of the first of them.
    number: u32,
    /// A segment that crosses the end of a cell, and how much of it was copied.
    crossing: Vec<u8>,
    taken: usize,
}

impl<'a> Stream<'a> {
    pub(in crate::blocks) fn new(contents: &'a [Content<'a>]) -> Self {
        Self {
            contents,
            number: 0,
            crossing: Vec::new(),
            taken: 0,
        }
    }

    /// Bytes of the whole stream.
    pub(in crate::blocks) fn length(&self) -> u64 {
        self.contents.iter().map(Content::sealed_length).sum()
    }

    /// Fills the next cell.
    pub(in crate::blocks) fn fill(&mut self, cell: &mut [u8]) -> Result<(), BlockError> {
        let mut cell = self.take_crossing(cell);
        while !cell.is_empty()
            && let Some(next) = self.next()
        {
            let sealed = next.stored.len() + TAG_BYTES as usize;
            if sealed <= cell.len() {
                let (place, behind) = cell.split_at_mut(sealed);
                next.cipher.seal(next.part, &next.stored, place)?;
                cell = behind;
            } else {
                self.crossing.resize(sealed, 0);
                self.taken = 0;
                next.cipher
                    .seal(next.part, &next.stored, &mut self.crossing)?;
                cell = self.take_crossing(cell);
            }
        }
        Ok(())
    }

    /// Copies the rest of the crossing segment; returns the rest of the cell.
    fn take_crossing<'b>(&mut self, cell: &'b mut [u8]) -> &'b mut [u8] {
        let rest = self.crossing.get(self.taken..).unwrap_or_default();
        let (place, behind) = cell.split_at_mut(rest.len().min(cell.len()));
        for (to, from) in place.iter_mut().zip(rest) {
            *to = *from;
        }
        self.taken += place.len();
        behind
    }

    fn next(&mut self) -> Option<Next<'a>> {
        while let Some(content) = self.contents.first() {
            if let Some(next) = content.part(self.number) {
                self.number += 1;
                return Some(next);
            }
            self.contents = self.contents.get(1..).unwrap_or_default();
            self.number = 0;
        }
        None
    }
}
