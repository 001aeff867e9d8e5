//! How the bytes of a segment are sealed: header, table, chunks.
//!
//! ```text
//! header 64    "quorumfs cache \x01" ‖ entries of the table u16 ‖ 0 (2) ‖ check 12 ‖ salt 32
//! table        entries of 40 bytes: sealed (slice id 12 ‖ number u32 ‖ offset u32 ‖ length u32)
//! chunks       ciphertext ‖ tag 16, one after the other   (integers big-endian)
//! key          derive(cache key, "quorumfs 2026 disk cache segment", salt ‖ entries)
//! nonce        0 for a chunk, 1 for its entry (1 byte) ‖ 0 (9 bytes) ‖ number of the record u16
//! ```
//!
//! AES-256-GCM. **A nonce is never used twice under one key**: each segment has a salt, and so a
//! key, of its own, and is written by one process, which numbers its records; a segment of an
//! earlier process is never appended to. A chunk is bound to its slice, number and length, an entry
//! to its position.

use super::index::{ChunkKey, ChunkLocation, HEADER_BYTES, TABLE_ENTRY_BYTES, TAG_BYTES};
use crate::keys::{KeyError, Secret};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use quorumfs_metadata::identity::SliceId;

const MAGIC: &[u8; 16] = b"quorumfs cache \x01";
const CHUNK: &[u8; 16] = b"quorumfs chunk 1";
const ENTRY: &[u8; 16] = b"quorumfs entry 1";
const SALT_BYTES: usize = 32;
const CHECK_BYTES: usize = 12;
/// Bytes of an entry before it is sealed.
const PLAIN_ENTRY_BYTES: usize = 24;

/// The header of a segment.
pub(super) type SegmentHeader = [u8; HEADER_BYTES as usize];
/// A sealed entry of the table.
pub(super) type TableEntry = [u8; TABLE_ENTRY_BYTES as usize];

/// The cipher of one segment.
pub(super) struct SegmentCipher {
    key: LessSafeKey,
    records: u16,
}

impl std::fmt::Debug for SegmentCipher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SegmentCipher(…)")
    }
}

fn nonce(kind: u8, record: u16) -> Nonce {
    let [high, low] = record.to_be_bytes();
    let nonce: [u8; NONCE_LEN] = [kind, 0, 0, 0, 0, 0, 0, 0, 0, 0, high, low];
    Nonce::assume_unique_for_key(nonce)
}

fn of_chunk(key: ChunkKey, length: u32) -> Aad<[u8; 36]> {
    let mut data = [0; 36];
    let parts: [&[u8]; 4] = [
        CHUNK,
        &key.slice().to_be_bytes(),
        &key.number.to_be_bytes(),
        &length.to_be_bytes(),
    ];
    for (to, from) in data.iter_mut().zip(parts.into_iter().flatten()) {
        *to = *from;
    }
    Aad::from(data)
}

impl SegmentCipher {
    /// For a new segment, with its header.
    pub(super) fn new(cache: &Secret, records: u16) -> Result<(Self, SegmentHeader), KeyError> {
        Self::salted(cache, Secret::random()?.expose(), records)
    }

    /// The same with a given salt, which no other segment may have.
    pub(super) fn salted(
        cache: &Secret,
        salt: &[u8; SALT_BYTES],
        records: u16,
    ) -> Result<(Self, SegmentHeader), KeyError> {
        let (cipher, check) = Self::of(cache, salt, records)?;
        let mut header = [0; HEADER_BYTES as usize];
        let parts: [&[u8]; 5] = [MAGIC, &records.to_be_bytes(), &[0; 2], &check, salt];
        for (to, from) in header.iter_mut().zip(parts.into_iter().flatten()) {
            *to = *from;
        }
        Ok((cipher, header))
    }

    /// For the segment with this header; `None` if its key or format is another.
    pub(super) fn of_header(cache: &Secret, header: &SegmentHeader) -> Option<Self> {
        let (magic, rest) = header.split_first_chunk::<16>()?;
        let (records, rest) = rest.split_first_chunk::<2>()?;
        let (_, rest) = rest.split_first_chunk::<2>()?;
        let (check, salt) = rest.split_first_chunk::<CHECK_BYTES>()?;
        let salt: &[u8; SALT_BYTES] = salt.try_into().ok()?;
        let (cipher, found) = Self::of(cache, salt, u16::from_be_bytes(*records)).ok()?;
        (magic == MAGIC && *check == found).then_some(cipher)
    }

    fn of(
        cache: &Secret,
        salt: &[u8; SALT_BYTES],
        records: u16,
    ) -> Result<(Self, [u8; CHECK_BYTES]), KeyError> {
        let parts: [&[u8]; 2] = [salt, &records.to_be_bytes()];
        let secret = cache.derive("quorumfs 2026 disk cache segment", &parts);
        let check = secret.derive("quorumfs 2026 disk cache check", &[]);
        let check = check.expose().first_chunk::<CHECK_BYTES>();
        let key = UnboundKey::new(&AES_256_GCM, secret.expose());
        let key = key.map_err(|_| KeyError::Forged {
            what: "segment of the disk cache",
        })?;
        let cipher = Self {
            key: LessSafeKey::new(key),
            records,
        };
        Ok((cipher, check.copied().unwrap_or_default()))
    }

    /// Entries of the segment's table.
    pub(super) fn records(&self) -> u16 {
        self.records
    }

    /// Seals a chunk in place; the tag is appended.
    pub(super) fn seal(&self, key: ChunkKey, record: u16, chunk: &mut Vec<u8>) -> Option<()> {
        let length = u32::try_from(chunk.len()).ok()?;
        let aad = of_chunk(key, length);
        let sealed = self
            .key
            .seal_in_place_append_tag(nonce(0, record), aad, chunk);
        sealed.ok()
    }

    /// Opens a chunk in place: its tag follows it.
    pub(super) fn open(
        &self,
        key: ChunkKey,
        place: ChunkLocation,
        sealed: &mut [u8],
    ) -> Option<()> {
        let aad = of_chunk(key, place.length);
        let opened = self.key.open_in_place(nonce(0, place.record), aad, sealed);
        let length = opened.ok()?.len();
        (length == place.length as usize).then_some(())
    }

    /// Seals a chunk's entry in the table.
    pub(super) fn seal_entry(&self, key: ChunkKey, place: ChunkLocation) -> Option<TableEntry> {
        let mut entry = [0; TABLE_ENTRY_BYTES as usize];
        let parts: [&[u8]; 4] = [
            &key.slice().to_be_bytes(),
            &key.number.to_be_bytes(),
            &place.offset.to_be_bytes(),
            &place.length.to_be_bytes(),
        ];
        for (to, from) in entry.iter_mut().zip(parts.into_iter().flatten()) {
            *to = *from;
        }
        let (body, tail) = entry.split_at_mut_checked(PLAIN_ENTRY_BYTES)?;
        let aad = Aad::from(ENTRY);
        let sealed = self
            .key
            .seal_in_place_separate_tag(nonce(1, place.record), aad, body);
        tail.copy_from_slice(sealed.ok()?.as_ref());
        Some(entry)
    }

    /// Opens the entry of the record with this number; `None` if it was not written here.
    pub(super) fn open_entry(
        &self,
        record: u16,
        mut entry: TableEntry,
    ) -> Option<(ChunkKey, ChunkLocation)> {
        let nonce = nonce(1, record);
        let plain = self.key.open_in_place(nonce, Aad::from(ENTRY), &mut entry);
        let plain: &[u8] = plain.ok()?;
        let (slice, rest) = plain.split_first_chunk::<12>()?;
        let (number, rest) = rest.split_first_chunk::<4>()?;
        let (offset, length) = rest.split_first_chunk::<4>()?;
        let place = ChunkLocation {
            record,
            offset: u32::from_be_bytes(*offset),
            length: u32::from_be_bytes(length.try_into().ok()?),
        };
        let slice = SliceId::from_be_bytes(slice)?;
        Some((ChunkKey::new(slice, u32::from_be_bytes(*number)), place))
    }
}

const _: () = assert!(PLAIN_ENTRY_BYTES + TAG_BYTES as usize == TABLE_ENTRY_BYTES as usize);

#[cfg(test)]
mod tests {
    use super::*;
    use quorumfs_metadata::identity::AllocationId;

    const CACHE: [u8; 32] = [5; 32];

    fn key(counter: u32, number: u32) -> ChunkKey {
        let allocation = AllocationId(3);
        ChunkKey::new(
            SliceId {
                allocation,
                counter,
            },
            number,
        )
    }

    fn place(record: u16, length: u32) -> ChunkLocation {
        ChunkLocation {
            record,
            offset: 7000,
            length,
        }
    }

    #[test]
    fn a_chunk_opens_in_its_segment_and_place_and_as_what_it_is_alone() {
        let cache = Secret::from_bytes(CACHE);
        let (cipher, header) = SegmentCipher::new(&cache, 64).unwrap();
        let (other, _) = SegmentCipher::new(&cache, 64).unwrap();
        let mut sealed = b"content".to_vec();
        cipher.seal(key(1, 2), 9, &mut sealed).unwrap();
        let open = |cipher: &SegmentCipher, key, place| {
            let mut bytes = sealed.clone();
            cipher.open(key, place, &mut bytes)?;
            bytes.truncate(place.length as usize);
            Some(bytes)
        };
        let again = SegmentCipher::of_header(&cache, &header).unwrap();
        assert_eq!(
            open(&again, key(1, 2), place(9, 7)).unwrap(),
            b"content".to_vec()
        );
        assert!(open(&other, key(1, 2), place(9, 7)).is_none());
        assert!(open(&cipher, key(2, 2), place(9, 7)).is_none());
        assert!(open(&cipher, key(1, 3), place(9, 7)).is_none());
        assert!(open(&cipher, key(1, 2), place(8, 7)).is_none());
        assert!(open(&cipher, key(1, 2), place(9, 6)).is_none());
        for at in 0..sealed.len() {
            let mut bytes = sealed.clone();
            bytes[at] ^= 1;
            assert!(cipher.open(key(1, 2), place(9, 7), &mut bytes).is_none());
        }
    }

    #[test]
    fn an_entry_opens_under_its_number_alone() {
        let cache = Secret::from_bytes(CACHE);
        let (cipher, header) = SegmentCipher::new(&cache, 64).unwrap();
        let entry = cipher.seal_entry(key(1, 2), place(9, 7)).unwrap();
        assert_eq!(cipher.open_entry(9, entry), Some((key(1, 2), place(9, 7))));
        assert!(cipher.open_entry(8, entry).is_none());
        assert!(cipher.open_entry(9, [0; 40]).is_none());
        assert!(SegmentCipher::of_header(&Secret::from_bytes([6; 32]), &header).is_none());
        for at in (0..20).chain(32..64) {
            let mut changed = header;
            changed[at] ^= 1;
            let cipher = SegmentCipher::of_header(&cache, &changed);
            // Two bytes carry no information yet.
            assert_eq!(cipher.is_some(), (18..20).contains(&at), "byte {at}");
        }
    }
}
