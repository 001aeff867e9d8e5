//! Segments: the unit of authenticated encryption.
//!
//! A slice's plaintext is cut into segments of 64 KiB, the last one shorter (a slice of no bytes
//! has one segment of no bytes). Each is sealed with AES-256-GCM under the slice's own key, so that
//! any of them can be read alone:
//!
//! ```text
//! sealed segment   ciphertext (as long as the plaintext) ‖ tag 16
//! nonce            0 (7 bytes) ‖ segment index u32 ‖ 1 if it is the slice's last, else 0
//! associated data  "quorumfs segment" ‖ format u16 ‖ volume 16 ‖ slice id 12
//!                  ‖ segment index u32 ‖ slice length u32 ‖ codec u8  (integers big-endian)
//! ```
//!
//! A compressed slice has one more part, its index (see `index`), sealed under the same key. Its
//! nonce is 1 ‖ 0 (11 bytes), which no segment has, and its associated data has `quorumfs lengths`
//! and the number of segments in place of `quorumfs segment` and the index. Of a compressed
//! segment, the compressed bytes are sealed.
//!
//! **A nonce is never used twice under one key**, because a slice's key belongs to its id, and an
//! id is used up by its first sealing: sealing again takes a new id. Segments cannot be reordered,
//! cut off, or moved to another slice or volume, and a slice cannot pass for a shorter one.

use super::error::BlockError;
use super::stored::SealedSlice;
use super::writer::Writer;
use crate::keys::{Sealing, SliceKey};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use quorumfs_metadata::identity::{Codec, SliceId, VolumeId};

/// Bytes of plaintext in a full segment.
pub const SEGMENT_BYTES: u32 = 64 << 10;
/// Bytes of a segment's authentication tag.
pub const TAG_BYTES: u32 = 16;
/// Bytes of a full sealed segment.
pub(super) const SEALED_SEGMENT_BYTES: u32 = SEGMENT_BYTES + TAG_BYTES;

const DOMAIN: &[u8; 16] = b"quorumfs segment";
const INDEX_DOMAIN: &[u8; 16] = b"quorumfs lengths";
const FORMAT: u16 = 1;
const AAD_BYTES: usize = 16 + 2 + 16 + 12 + 4 + 4 + 1;

/// A separately sealed part of a slice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::blocks) enum Part {
    /// The index of a compressed slice.
    Index,
    /// A segment.
    Segment(u32),
}

/// A slice's key, and the data that its segments are bound to.
pub(in crate::blocks) struct SliceCipher {
    key: LessSafeKey,
    volume: VolumeId,
    slice: SliceId,
    length: u32,
    codec: Codec,
    sealing: Sealing,
}

/// Segments of a slice of `length` plain bytes.
pub(in crate::blocks) fn segments(length: u32) -> u32 {
    length.div_ceil(SEGMENT_BYTES).max(1)
}

/// Bytes of the sealed stream of a slice of `length` plain bytes; `None` if they exceed 32 bits.
#[must_use]
pub fn sealed_length(length: u32) -> Option<u32> {
    segments(length).checked_mul(TAG_BYTES)?.checked_add(length)
}

impl SliceCipher {
    pub(in crate::blocks) fn new(
        key: &SliceKey,
        volume: VolumeId,
        slice: SliceId,
        length: u32,
        codec: Codec,
        sealing: Sealing,
    ) -> Result<Self, BlockError> {
        let key = UnboundKey::new(&AES_256_GCM, key.expose())
            .map_err(|_| BlockError::Cipher { slice })?;
        Ok(Self {
            key: LessSafeKey::new(key),
            volume,
            slice,
            length,
            codec,
            sealing,
        })
    }

    /// The cipher of a slice as the metadata describes it.
    pub(in crate::blocks) fn of(
        key: &SliceKey,
        volume: VolumeId,
        slice: &SealedSlice,
        sealing: Sealing,
    ) -> Result<Self, BlockError> {
        Self::new(key, volume, slice.id, slice.length, slice.codec, sealing)
    }

    /// Plain bytes of a segment.
    pub(super) fn segment_length(&self, index: u32) -> u32 {
        self.length
            .saturating_sub(index.saturating_mul(SEGMENT_BYTES))
            .min(SEGMENT_BYTES)
    }

    fn nonce(&self, part: Part) -> Nonce {
        let mut nonce = [0; NONCE_LEN];
        match (part, &mut nonce) {
            (Part::Index, [first, ..]) => *first = 1,
            (Part::Segment(index), [.., a, b, c, d, last]) => {
                [*a, *b, *c, *d] = index.to_be_bytes();
                *last = u8::from(index + 1 == segments(self.length));
            }
        }
        Nonce::assume_unique_for_key(nonce)
    }

    fn associated_data(&self, part: Part) -> Aad<Vec<u8>> {
        let (domain, number) = match part {
            Part::Index => (INDEX_DOMAIN, segments(self.length)),
            Part::Segment(index) => (DOMAIN, index),
        };
        let mut data = Vec::with_capacity(AAD_BYTES);
        data.extend_from_slice(domain);
        data.extend_from_slice(&FORMAT.to_be_bytes());
        data.extend_from_slice(&self.volume.0);
        data.extend_from_slice(&self.slice.to_be_bytes());
        data.extend_from_slice(&number.to_be_bytes());
        data.extend_from_slice(&self.length.to_be_bytes());
        data.push(self.codec.0);
        Aad::from(data)
    }

    /// Seals a part's stored bytes into `sealed`, which is longer by the tag.
    pub(in crate::blocks) fn seal(
        &self,
        part: Part,
        stored: &[u8],
        sealed: &mut [u8],
    ) -> Result<(), BlockError> {
        let failed = || BlockError::Cipher { slice: self.slice };
        let (body, tag) = sealed
            .split_at_mut_checked(stored.len())
            .ok_or_else(failed)?;
        if tag.len() != TAG_BYTES as usize {
            return Err(failed());
        }
        if self.sealing == Sealing::Off {
            body.copy_from_slice(stored);
            tag.fill(0);
            return Ok(());
        }
        let (nonce, data) = (self.nonce(part), self.associated_data(part));
        self.key
            .seal_out_of_place_scatter(nonce, data, stored, body, &[], tag)
            .map_err(|_| failed())
    }

    /// The error of a part that does not open.
    pub(super) fn forged(&self, part: Part) -> BlockError {
        match part {
            Part::Index => self.sealed_wrong("its index does not open with the slice's key"),
            Part::Segment(segment) => BlockError::Forged {
                slice: self.slice,
                segment,
                writer: Writer::default(),
            },
        }
    }

    /// The error of a part that opens and is invalid.
    pub(super) fn sealed_wrong(&self, what: &'static str) -> BlockError {
        BlockError::SealedWrong {
            slice: self.slice,
            what,
            writer: Writer::default(),
        }
    }

    /// Opens a sealed part into `stored`, which has the length of the sealed bytes.
    pub(in crate::blocks) fn open(
        &self,
        part: Part,
        sealed: &[u8],
        stored: &mut [u8],
    ) -> Result<(), BlockError> {
        let forged = || self.forged(part);
        let (body, tag) = sealed.split_at_checked(stored.len()).ok_or_else(forged)?;
        if tag.len() != TAG_BYTES as usize {
            return Err(forged());
        }
        if self.sealing == Sealing::Off {
            stored.copy_from_slice(body);
            return Ok(());
        }
        let (nonce, data) = (self.nonce(part), self.associated_data(part));
        self.key
            .open_separate_gather(nonce, data, body, tag, stored)
            .map_err(|_| forged())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Secret;
    use quorumfs_metadata::identity::AllocationId;

    fn cipher(key: u8, volume: u8, slice: u32, length: u32, codec: u8) -> SliceCipher {
        let key = SliceKey::from_secret(Secret::from_bytes([key; 32]));
        let slice = SliceId {
            allocation: AllocationId(3),
            counter: slice,
        };
        let volume = quorumfs_bft::identity::ClusterId([volume; 16]);
        SliceCipher::new(&key, volume, slice, length, Codec(codec), Sealing::On).unwrap()
    }

    fn opens(cipher: &SliceCipher, index: u32, sealed: &[u8]) -> bool {
        let mut plain = vec![0; cipher.segment_length(index) as usize];
        cipher
            .open(Part::Segment(index), sealed, &mut plain)
            .is_ok()
    }

    #[test]
    fn a_segment_opens_only_where_and_as_what_it_was_sealed() {
        let length = SEGMENT_BYTES + 100;
        let right = cipher(1, 1, 1, length, 0);
        let mut sealed = vec![0; 116];
        right
            .seal(Part::Segment(1), &[9; 100], &mut sealed)
            .unwrap();
        assert!(opens(&right, 1, &sealed));
        assert!(!opens(&right, 0, &sealed));
        for wrong in [
            cipher(2, 1, 1, length, 0),
            cipher(1, 2, 1, length, 0),
            cipher(1, 1, 2, length, 0),
            cipher(1, 1, 1, length, 1),
            cipher(1, 1, 1, length + SEGMENT_BYTES, 0),
            cipher(1, 1, 1, length + 1, 0),
        ] {
            assert!(!opens(&wrong, 1, &sealed));
        }
        for bit in 0..sealed.len() * 8 {
            let mut bad = sealed.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(!opens(&right, 1, &bad), "bit {bit}");
        }
        assert!(!opens(&right, 1, &sealed[1..]) && !opens(&right, 1, &[]));
    }

    #[test]
    fn an_index_is_no_segment_and_a_segment_no_index() {
        let cipher = cipher(1, 1, 1, 100, 1);
        let mut sealed = [0; 20];
        cipher
            .seal(Part::Index, &[0, 0, 0, 84], &mut sealed)
            .unwrap();
        let mut opened = [0; 4];
        assert!(cipher.open(Part::Index, &sealed, &mut opened).is_ok());
        assert_eq!(opened, [0, 0, 0, 84]);
        for segment in [0, 1, 1 << 24] {
            assert!(
                cipher
                    .open(Part::Segment(segment), &sealed, &mut opened)
                    .is_err()
            );
        }
    }

    #[test]
    fn the_segments_of_a_slice_cover_it_exactly() {
        for length in [
            0,
            1,
            SEGMENT_BYTES - 1,
            SEGMENT_BYTES,
            SEGMENT_BYTES + 1,
            4 << 20,
        ] {
            let cipher = cipher(1, 1, 1, length, 0);
            let count = segments(length);
            let sum: u32 = (0..count).map(|i| cipher.segment_length(i)).sum();
            assert_eq!(sum, length);
            assert_eq!(sealed_length(length), Some(length + count * TAG_BYTES));
        }
        assert_eq!(sealed_length(u32::MAX), None);
    }
}
