//! The position of records in a file, each sealed and bound to its place.
//!
//! ```text
//!    page 0                  page 1                      page 2
//!  ──┬──────────────┬───────┬────────┬────────┬───────┬──────────┬───────
//!    │ header       │ zeros │ frame N│ N + 1  │ zeros │ frame N+2│ zeros
//!  ──┴──────────────┴───────┴────────┴────────┴───────┴──────────┴───────
//!                            a group: one write            another one
//!
//!  header   0 "qfswrite" 8 format 2 features 2 volume 16 identity 16
//!           44 generation 8  first sequence 8  chain 16  tag 16
//!  frame    0 length 4  sequence 8  durable 8  chain 16 ‖ sealed record ‖ tag 16
//! ```
//!
//! Numbers are little-endian. Records and the header's check are AES-256-GCM under a key of the
//! file's own: BLAKE3 in derive-key mode (`quorumfs 2026 written journal file`) over the journal's
//! secret, the volume and the *identity*, 16 random bytes. The nonce is 0 (4 bytes) ‖ sequence, the
//! header's is 2³² − 1 (4) ‖ generation; associated data is everything before the sealed bytes. A
//! sequence is sealed once under one identity, because opening a journal begins a new file.
//!
//! * **Owner.** Bytes of another identity do not open: not an old file under a new name, not a page
//!   of one file in another.
//! * **Predecessor.** *Chain* is the tag of the record before, also across two files. A hole or a
//!   swap breaks it.
//! * **Durability.** Every record below *durable* was durable when the frame was sealed. A record
//!   that does not open was never promised to be durable, unless a later frame that opens says so:
//!   then it is damage, and not a tear.
//! * **Resynchronisation.** A group begins at a page, so that records behind damage are found.

use super::record::{Entry, RECORD_BYTES_MAX, Sequence};
use crate::keys::Secret;
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use quorumfs_metadata::identity::VolumeId;

/// Groups begin at multiples of this.
pub(super) const PAGE_BYTES: usize = 4096;
/// The tag of a sealed record.
const TAG_BYTES: usize = 16;
/// The bytes before a sealed record.
const FRAME_HEADER_BYTES: usize = 36;
/// The overhead of a record.
pub(super) const FRAME_OVERHEAD_BYTES: usize = FRAME_HEADER_BYTES + TAG_BYTES;
const HEADER_BYTES: usize = 92;
const MAGIC: [u8; 8] = *b"qfswrite";
/// The format of the files.
pub(super) const FORMAT: u16 = 1;

/// The number of a journal's file: it rises from file to file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Generation(pub u64);

/// The tag of the record before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Chain(pub(super) [u8; TAG_BYTES]);

/// The identity and position of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub(super) volume: VolumeId,
    pub(super) identity: [u8; 16],
    pub(super) generation: Generation,
    /// The first record in the file.
    pub(super) first: Sequence,
    pub(super) chain: Chain,
}

/// Why a header is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HeaderError {
    /// A later release made it.
    Newer(u16),
    /// It does not open: torn, damaged, of another volume or key, or moved.
    Void,
}

/// A record's position, as in its frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FramePosition {
    pub(super) sequence: Sequence,
    /// Records below it were durable when this one was sealed.
    pub(super) durable: Sequence,
    pub(super) chain: Chain,
}

/// A record that opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct OpenedRecord {
    pub(super) place: FramePosition,
    pub(super) entry: Entry,
    /// The chain for the next record.
    pub(super) chain: Chain,
    /// Its bytes in the file.
    pub(super) length: usize,
}

/// The cipher failed, which does not happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CipherRefused;

/// The cipher of one file.
pub(super) struct Framing {
    key: LessSafeKey,
}

fn nonce(domain: u32, number: u64) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    let (first, rest) = nonce.split_at_mut(4);
    first.copy_from_slice(&domain.to_le_bytes());
    rest.copy_from_slice(&number.to_le_bytes());
    Nonce::assume_unique_for_key(nonce)
}

fn tag_of(bytes: &[u8]) -> Option<Chain> {
    Some(Chain(bytes.try_into().ok()?))
}

fn number(bytes: Option<&[u8]>) -> Option<u64> {
    Some(u64::from_le_bytes(bytes?.try_into().ok()?))
}

impl Header {
    fn framing(&self, secret: &Secret) -> Result<Framing, CipherRefused> {
        let parts: [&[u8]; 2] = [&self.volume.0, &self.identity];
        let key = secret.derive("quorumfs 2026 written journal file", &parts);
        let key = UnboundKey::new(&AES_256_GCM, key.expose()).map_err(|_| CipherRefused)?;
        let key = LessSafeKey::new(key);
        Ok(Framing { key })
    }

    fn named(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(PAGE_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&FORMAT.to_le_bytes());
        bytes.extend_from_slice(&0_u16.to_le_bytes());
        bytes.extend_from_slice(&self.volume.0);
        bytes.extend_from_slice(&self.identity);
        bytes.extend_from_slice(&self.generation.0.to_le_bytes());
        bytes.extend_from_slice(&self.first.0.to_le_bytes());
        bytes.extend_from_slice(&self.chain.0);
        bytes
    }

    /// The first page of the file, and the cipher of the others.
    pub(super) fn seal(&self, secret: &Secret) -> Result<(Vec<u8>, Framing), CipherRefused> {
        let framing = self.framing(secret)?;
        let mut page = self.named();
        let nonce = nonce(u32::MAX, self.generation.0);
        let tag = framing
            .key
            .seal_in_place_separate_tag(nonce, Aad::from(&page), &mut [])
            .map_err(|_| CipherRefused)?;
        page.extend_from_slice(tag.as_ref());
        page.resize(PAGE_BYTES, 0);
        Ok((page, framing))
    }

    /// Opens the first page of the file with the name of `generation`.
    pub(super) fn open(
        secret: &Secret,
        volume: VolumeId,
        generation: Generation,
        page: &[u8],
    ) -> Result<(Self, Framing), HeaderError> {
        let (named, rest) = page
            .split_at_checked(HEADER_BYTES - TAG_BYTES)
            .ok_or(HeaderError::Void)?;
        let format = named.get(8..10).and_then(|it| it.try_into().ok());
        let format = format.map(u16::from_le_bytes).ok_or(HeaderError::Void)?;
        if named.starts_with(&MAGIC) && format > FORMAT {
            return Err(HeaderError::Newer(format));
        }
        let header = (|| {
            Some(Self {
                volume,
                identity: named.get(28..44)?.try_into().ok()?,
                generation,
                first: Sequence(number(named.get(52..60))?),
                chain: tag_of(named.get(60..76)?)?,
            })
        })();
        let header = header.ok_or(HeaderError::Void)?;
        if header.named() != named {
            return Err(HeaderError::Void);
        }
        let framing = header.framing(secret).map_err(|_| HeaderError::Void)?;
        let tag = rest.get(..TAG_BYTES).ok_or(HeaderError::Void)?;
        let nonce = nonce(u32::MAX, generation.0);
        framing
            .key
            .open_separate_gather(nonce, Aad::from(named), &[], tag, &mut [])
            .map_err(|_| HeaderError::Void)?;
        Ok((header, framing))
    }
}

impl Framing {
    /// Appends a record to a group; returns the chain for the next one.
    pub(super) fn seal(
        &self,
        place: FramePosition,
        entry: &Entry,
        group: &mut Vec<u8>,
    ) -> Result<Chain, CipherRefused> {
        let begin = group.len();
        group.extend_from_slice(&[0; FRAME_HEADER_BYTES]);
        entry.encode(group);
        let (header, plain) = group
            .get_mut(begin..)
            .and_then(|frame| frame.split_at_mut_checked(FRAME_HEADER_BYTES))
            .ok_or(CipherRefused)?;
        let length = u32::try_from(plain.len()).map_err(|_| CipherRefused)?;
        let fields: [&[u8]; 4] = [
            &length.to_le_bytes(),
            &place.sequence.0.to_le_bytes(),
            &place.durable.0.to_le_bytes(),
            &place.chain.0,
        ];
        header.copy_from_slice(&fields.concat());
        let nonce = nonce(0, place.sequence.0);
        let tag = self
            .key
            .seal_in_place_separate_tag(nonce, Aad::from(&*header), plain)
            .map_err(|_| CipherRefused)?;
        let chain = tag_of(tag.as_ref()).ok_or(CipherRefused)?;
        group.extend_from_slice(&chain.0);
        Ok(chain)
    }

    /// Opens the record at the beginning of `bytes`; `None` if there is none.
    pub(super) fn open(&self, bytes: &[u8]) -> Option<OpenedRecord> {
        let (header, rest) = bytes.split_at_checked(FRAME_HEADER_BYTES)?;
        let length = header.get(..4)?.try_into().ok().map(u32::from_le_bytes)?;
        let length = usize::try_from(length).ok()?;
        if length == 0 || length > RECORD_BYTES_MAX {
            return None;
        }
        let place = FramePosition {
            sequence: Sequence(number(header.get(4..12))?),
            durable: Sequence(number(header.get(12..20))?),
            chain: tag_of(header.get(20..36)?)?,
        };
        let (sealed, rest) = rest.split_at_checked(length)?;
        let tag = rest.get(..TAG_BYTES)?;
        let mut plain = vec![0; length];
        let nonce = nonce(0, place.sequence.0);
        self.key
            .open_separate_gather(nonce, Aad::from(header), sealed, tag, &mut plain)
            .ok()?;
        Some(OpenedRecord {
            place,
            entry: Entry::decode(&plain)?,
            chain: tag_of(tag)?,
            length: length + FRAME_OVERHEAD_BYTES,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::Record;
    use super::*;
    use bytes::Bytes;
    use quorumfs_bft::identity::ClusterId;
    use quorumfs_metadata::attributes::Timestamp;
    use quorumfs_metadata::identity::InodeId;

    const VOLUME: VolumeId = ClusterId([3; 16]);
    const HEADER: Header = Header {
        volume: VOLUME,
        identity: [4; 16],
        generation: Generation(5),
        first: Sequence(6),
        chain: Chain([7; 16]),
    };

    fn secret() -> Secret {
        Secret::from_bytes([9; 32])
    }

    fn entry() -> Entry {
        Entry {
            record: Record::Write {
                inode: InodeId(1),
                offset: 2,
                mtime: Timestamp::default(),
            },
            bytes: Bytes::from_static(b"planted plaintext"),
        }
    }

    const PLACE: FramePosition = FramePosition {
        sequence: Sequence(6),
        durable: Sequence(4),
        chain: Chain([7; 16]),
    };

    #[test]
    fn a_header_opens_for_its_volume_its_place_and_its_key_only() {
        let (page, _) = HEADER.seal(&secret()).unwrap();
        assert_eq!(page.len(), PAGE_BYTES);
        let open = |secret: &Secret, volume, generation, page: &[u8]| {
            Header::open(secret, volume, generation, page).map(|(header, _)| header)
        };
        let here = HEADER.generation;
        assert_eq!(open(&secret(), VOLUME, here, &page), Ok(HEADER));
        let void = Err(HeaderError::Void);
        let other_key = Secret::from_bytes([8; 32]);
        assert_eq!(open(&other_key, VOLUME, here, &page), void);
        assert_eq!(open(&secret(), ClusterId([1; 16]), here, &page), void);
        assert_eq!(open(&secret(), VOLUME, Generation(6), &page), void);
        for at in 0..HEADER_BYTES {
            let mut changed = page.clone();
            changed[at] ^= 0x40;
            assert!(open(&secret(), VOLUME, here, &changed).is_err(), "{at}");
            assert_eq!(open(&secret(), VOLUME, here, &page[..at]), void);
        }
        let mut newer = page;
        newer[8] = 2;
        let refused = Err(HeaderError::Newer(2));
        assert_eq!(open(&secret(), VOLUME, here, &newer), refused);
    }

    #[test]
    fn a_record_opens_unchanged_whole_and_in_its_file_only() {
        let (_, framing) = HEADER.seal(&secret()).unwrap();
        let mut group = Vec::new();
        let chain = framing.seal(PLACE, &entry(), &mut group).unwrap();
        let opened = framing.open(&group).unwrap();
        assert_eq!(opened.entry, entry());
        assert_eq!((opened.place, opened.chain), (PLACE, chain));
        assert_eq!(opened.length, group.len());
        let shown = group.windows(7).any(|window| window == b"planted");
        assert!(!shown, "plaintext on the disk");
        for at in 0..group.len() {
            let mut changed = group.clone();
            changed[at] ^= 1;
            assert_eq!(framing.open(&changed), None, "{at}");
            assert_eq!(framing.open(&group[..at]), None, "{at}");
        }
        let elsewhere = Header {
            identity: [5; 16],
            ..HEADER
        };
        let (_, elsewhere) = elsewhere.seal(&secret()).unwrap();
        assert_eq!(elsewhere.open(&group), None);
    }

    #[test]
    fn files_are_pinned_to_their_golden_bytes() {
        let (page, framing) = HEADER.seal(&secret()).unwrap();
        let mut group = Vec::new();
        framing.seal(PLACE, &entry(), &mut group).unwrap();
        let header = page.get(..HEADER_BYTES).unwrap();
        crate::keys::assert_golden("written_journal_header", header);
        crate::keys::assert_golden("written_journal_frame", &group);
    }
}
