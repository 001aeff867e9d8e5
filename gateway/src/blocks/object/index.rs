//! The index of a compressed slice: where each of its segments lies.
//!
//! ```text
//! in the slice's stream   sealed index ‖ sealed segment 0 ‖ sealed segment 1 ‖ …
//! index                   for each segment, the bytes stored of it: u32, big-endian
//! sealed segment          that many bytes, encrypted ‖ tag 16
//! ```
//! A segment with as many stored bytes as plain bytes is stored uncompressed; one with fewer is
//! compressed. More is impossible. The index's length follows from the slice's length, so a reader
//! with no more than the slice's row can fetch it. Positions are relative to the slice.
//!
//! **The writer is not trusted.** An index that opens was made by a holder of the slice's key, and
//! may still contradict the slice's row. Lengths beyond a segment's, and a sum that is not the
//! slice's sealed length, are refused with the writer's name before anything is fetched by them.

use super::error::BlockError;
use super::segment::{SEGMENT_BYTES, TAG_BYTES, segments};
use super::stored::SealedSlice;
use super::writer::Writer;
use std::ops::Range;

/// Bytes of one length in the index.
const ENTRY_BYTES: u64 = 4;

/// Where the segments of a compressed slice lie.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::blocks) struct SliceIndex {
    /// Plain bytes of the slice.
    length: u32,
    /// Where each sealed segment ends in the slice's stream.
    ends: Vec<u32>,
}

/// Bytes of the index of a slice of `length` plain bytes.
pub(super) fn index_length(length: u32) -> u64 {
    u64::from(segments(length)) * ENTRY_BYTES
}

/// Bytes of the sealed index.
pub(in crate::blocks) fn sealed_index_length(length: u32) -> u64 {
    index_length(length) + u64::from(TAG_BYTES)
}

fn plain_length(length: u32, segment: u32) -> u32 {
    let begin = segment.saturating_mul(SEGMENT_BYTES);
    length.saturating_sub(begin).min(SEGMENT_BYTES)
}

impl SliceIndex {
    /// The index of segments with so many stored bytes each.
    pub(in crate::blocks) fn of_lengths(length: u32, stored: &[usize]) -> Option<Self> {
        let stored = stored.iter().map(|bytes| u32::try_from(*bytes).ok());
        Self::new(length, stored)
    }

    /// `None` if the lengths are impossible.
    fn new(length: u32, stored: impl Iterator<Item = Option<u32>>) -> Option<Self> {
        let mut end = u32::try_from(sealed_index_length(length)).ok()?;
        let mut ends = Vec::with_capacity(segments(length) as usize);
        for (segment, stored) in (0..).zip(stored) {
            let stored = stored.filter(|bytes| *bytes <= plain_length(length, segment))?;
            end = end.checked_add(stored)?.checked_add(TAG_BYTES)?;
            ends.push(end);
        }
        (ends.len() == segments(length) as usize).then_some(Self { length, ends })
    }

    /// Parses an opened index of a slice.
    pub(super) fn parse(slice: &SealedSlice, bytes: &[u8]) -> Result<Self, BlockError> {
        let wrong = |what| BlockError::SealedWrong {
            slice: slice.id,
            what,
            writer: Writer::default(),
        };
        let (entries, rest) = bytes.as_chunks();
        let stored = entries.iter().map(|entry| Some(u32::from_be_bytes(*entry)));
        let index = Self::new(slice.length, stored)
            .filter(|_| rest.is_empty())
            .ok_or_else(|| wrong("its index names impossible segments"))?;
        if index.sealed_length() != u64::from(slice.sealed_length) {
            return Err(wrong("its index does not add up to its length"));
        }
        Ok(index)
    }

    /// The bytes before sealing.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        (0..segments(self.length))
            .flat_map(|segment| self.body_length(segment).to_be_bytes())
            .collect()
    }

    /// Where a sealed segment lies in the slice's stream.
    pub(in crate::blocks) fn sealed(&self, segment: u32) -> Range<u64> {
        let end = |segment: u32| self.ends.get(segment as usize).copied().map(u64::from);
        let begin = match segment.checked_sub(1) {
            None => sealed_index_length(self.length),
            Some(before) => end(before).unwrap_or_default(),
        };
        begin..end(segment).unwrap_or(begin)
    }

    /// The stored bytes of a segment.
    pub(super) fn body_length(&self, segment: u32) -> u32 {
        let Range { start, end } = self.sealed(segment);
        let sealed = u32::try_from(end.saturating_sub(start)).unwrap_or_default();
        sealed.saturating_sub(TAG_BYTES)
    }

    /// Whether a segment has to be expanded.
    pub(super) fn is_compressed(&self, segment: u32) -> bool {
        self.body_length(segment) < plain_length(self.length, segment)
    }

    /// Bytes of the slice's stream.
    pub(in crate::blocks) fn sealed_length(&self) -> u64 {
        self.ends.last().copied().map_or(0, u64::from)
    }

    /// The bytes of the stream without compression.
    pub(super) fn uncompressed_length(&self) -> u64 {
        let tags = u64::from(segments(self.length)) * u64::from(TAG_BYTES);
        u64::from(self.length) + tags
    }

    /// Whether it can be the index of that slice.
    pub(in crate::blocks) fn fits(&self, slice: &SealedSlice) -> bool {
        let sealed = u64::from(slice.sealed_length);
        self.length == slice.length && self.sealed_length() == sealed
    }

    /// The approximate size in memory, in bytes.
    pub(in crate::blocks) fn bytes(&self) -> usize {
        size_of::<Self>() + self.ends.len() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::super::error::BlockErrorKind;
    use super::*;
    use proptest::prelude::*;
    use quorumfs_metadata::identity::{AllocationId, Codec, ObjectId, SliceId};

    fn slice(length: u32, sealed_length: u32) -> SealedSlice {
        let (allocation, counter) = (AllocationId(1), 1);
        SealedSlice {
            id: SliceId {
                allocation,
                counter,
            },
            object: ObjectId {
                allocation,
                counter,
            },
            offset: 0,
            length,
            sealed_length,
            codec: Codec::ZSTD,
        }
    }

    proptest! {
        #[test]
        fn an_index_is_read_back_and_its_segments_lie_end_to_end(
            length in 1_u32..2_000_000, part in 0.0..=1.0_f64,
        ) {
            let stored: Vec<usize> = (0..segments(length))
                .map(|i| (f64::from(plain_length(length, i)) * part) as usize)
                .collect();
            let index = SliceIndex::of_lengths(length, &stored).unwrap();
            let bytes = index.to_bytes();
            prop_assert_eq!(bytes.len() as u64, index_length(length));
            let row = slice(length, index.sealed_length() as u32);
            prop_assert_eq!(&SliceIndex::parse(&row, &bytes).unwrap(), &index);
            let mut end = bytes.len() as u64 + u64::from(TAG_BYTES);
            for (segment, stored) in (0..).zip(&stored) {
                prop_assert_eq!(index.sealed(segment).start, end);
                end += *stored as u64 + u64::from(TAG_BYTES);
                prop_assert_eq!(index.sealed(segment).end, end);
            }
            prop_assert_eq!(end, index.sealed_length());
        }

        #[test]
        fn an_index_that_cannot_be_names_its_writer(
            length in 1_u32..300_000,
            sealed_length: u32,
            bytes in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            if let Err(error) = SliceIndex::parse(&slice(length, sealed_length), &bytes) {
                prop_assert!(error.writer().is_some());
                prop_assert_eq!(error.kind(), BlockErrorKind::Corrupt);
            }
        }
    }

    #[test]
    fn a_segment_cannot_be_stored_in_more_bytes_than_it_has_nor_past_the_slices_end() {
        let right = SliceIndex::of_lengths(100_000, &[5, 34_464]).unwrap();
        let sealed = right.sealed_length() as u32;
        let refused = |row: &SealedSlice, bytes: &[u8]| SliceIndex::parse(row, bytes).is_err();
        let bytes = right.to_bytes();
        assert!(!refused(&slice(100_000, sealed), &bytes));
        assert!(right.is_compressed(0) && !right.is_compressed(1));
        for wrong in [sealed - 1, sealed + 1, 0, u32::MAX] {
            assert!(refused(&slice(100_000, wrong), &bytes));
        }
        assert!(SliceIndex::of_lengths(100_000, &[5, 34_465]).is_none());
        assert!(SliceIndex::of_lengths(100_000, &[65_537, 5]).is_none());
        assert!(refused(&slice(100_000, sealed), &bytes[..4]));
        assert!(refused(
            &slice(100_000, sealed),
            &[&bytes[..], &[0]].concat()
        ));
        assert!(refused(
            &slice(100_000, sealed),
            &[&bytes[..], &[0; 4]].concat()
        ));
        assert!(refused(&slice(100_000, sealed), &[0xff; 8]));
    }
}
