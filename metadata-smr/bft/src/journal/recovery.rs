//! The framing on disk, and the verdict on what is found there.
//!
//! ```text
//!  0      4        8       16             24             40
//!  ├──────┼────────┼───────┼──────────────┼──────────────┼──────────┐
//!  │ QFJ1 │ length │ token │ header check │ record check │ record … │
//!  └──────┴────────┴───────┴──────────────┴──────────────┴──────────┘
//! ```
//!
//! Numbers are little-endian. Both checks are prefixes of BLAKE3 in derive-key mode: the header's
//! over the first 16 bytes, the record's over those and the record. Tokens rise by one from record
//! to record, also from one segment to the next.
//!
//! The verdict is on raw bytes and has three values:
//!
//! * **intact**: every record holds;
//! * **torn tail**: the last record is cut short by the end of the last segment, or nothing but
//!   zeros follows the last record. Its write never completed, so nothing that waited for it was
//!   ever sent: it is dropped;
//! * **lost**: anything else. A full-length record with a bad checksum, a bad header, a gap. What
//!   stood there may have been promised to others; a replica that votes without knowing its
//!   promises is a liar. It does not vote any more.
//!
//! A length is believed only if the header's own check holds: otherwise a flipped bit in a length
//! could pass for a torn tail and make promises disappear.

use crate::step::Token;
use crate::wire::limits::RECORD_BYTES_MAX;
use bytes::Bytes;

/// Bytes before a record.
pub const FRAME_HEADER_BYTES: usize = 40;
const MAGIC: [u8; 4] = *b"QFJ1";
const CONTEXT_HEADER: &str = "quorumfs 2026 bft journal header";
const CONTEXT_RECORD: &str = "quorumfs 2026 bft journal record";

/// A record as it was read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub token: Token,
    /// Its bytes; see [`super::Record::decode`].
    pub record: Bytes,
}

/// Whether the journal can be relied on.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Condition {
    /// Every record holds.
    #[default]
    Intact,
    /// The last record was cut short. Append behind the good bytes of the last segment only.
    TornTail {
        /// How many bytes of the last segment are good.
        good_bytes: usize,
    },
    /// What was promised is not known any more.
    Lost {
        /// Why, for the operator.
        reason: String,
    },
}

/// What a replica finds of its journal. The default is that of a replica that never ran.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Journal {
    /// The records up to the first damage.
    pub entries: Vec<Entry>,
    /// The verdict.
    pub condition: Condition,
    /// Tokens from this one on were never used; 0 if the entries say enough.
    pub next: Token,
}

impl Journal {
    /// A journal that should be there and is not.
    #[must_use]
    pub fn lost(reason: impl Into<String>) -> Self {
        Self {
            condition: Condition::Lost {
                reason: reason.into(),
            },
            ..Self::default()
        }
    }
}

fn check<const N: usize>(context: &str, parts: &[&[u8]]) -> [u8; N] {
    let mut hasher = blake3::Hasher::new_derive_key(context);
    for part in parts {
        hasher.update(part);
    }
    let mut output = [0; N];
    hasher.finalize_xof().fill(&mut output);
    output
}

/// A record with its framing, as it goes to disk.
#[must_use]
pub fn frame(token: Token, record: &[u8]) -> Bytes {
    let mut bytes = Vec::with_capacity(FRAME_HEADER_BYTES + record.len());
    bytes.extend_from_slice(&MAGIC);
    let length = u32::try_from(record.len()).unwrap_or(u32::MAX);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&token.0.to_le_bytes());
    let header_check: [u8; 8] = check(CONTEXT_HEADER, &[&bytes]);
    let record_check: [u8; 16] = check(CONTEXT_RECORD, &[&bytes, record]);
    bytes.extend_from_slice(&header_check);
    bytes.extend_from_slice(&record_check);
    bytes.extend_from_slice(record);
    Bytes::from(bytes)
}

enum Found {
    Record(Entry, usize),
    End,
    CutShort,
    Damaged(&'static str),
}

fn next(segment: &Bytes, at: usize) -> Found {
    let rest = segment.get(at..).unwrap_or_default();
    if rest.is_empty() {
        return Found::End;
    }
    if rest.iter().all(|byte| *byte == 0) {
        return Found::CutShort;
    }
    let Some((header, body)) = rest.split_first_chunk::<FRAME_HEADER_BYTES>() else {
        return Found::CutShort;
    };
    let (named, checks) = header.split_at(16);
    let (header_check, record_check) = checks.split_at(8);
    if header_check != check::<8>(CONTEXT_HEADER, &[named]) {
        return Found::Damaged("a record's header does not match its checksum");
    }
    let (magic, numbers) = named.split_at(4);
    let (length, token) = numbers.split_at(4);
    let length = length
        .try_into()
        .map_or(usize::MAX, |bytes| u32::from_le_bytes(bytes) as usize);
    let token = Token(token.try_into().map_or(0, u64::from_le_bytes));
    if magic != MAGIC || length > RECORD_BYTES_MAX {
        return Found::Damaged("a record's header makes no sense");
    }
    let Some(record) = body.get(..length) else {
        return Found::CutShort;
    };
    if record_check != check::<16>(CONTEXT_RECORD, &[named, record]) {
        return Found::Damaged("a record does not match its checksum");
    }
    let start = at + FRAME_HEADER_BYTES;
    let record = segment.slice(start..start + length);
    Found::Record(Entry { token, record }, start + length)
}

/// The verdict on a journal's segments, oldest first.
#[must_use]
pub fn examine(segments: &[Bytes]) -> Journal {
    let mut entries: Vec<Entry> = Vec::new();
    let lost = |entries, index: usize, at: usize, what: &str| Journal {
        entries,
        condition: Condition::Lost {
            reason: format!("{what} (segment {index} of the journal, byte {at})"),
        },
        next: Token(0),
    };
    for (index, segment) in segments.iter().enumerate() {
        let mut at = 0;
        loop {
            match next(segment, at) {
                Found::End => break,
                Found::Record(entry, end) => {
                    if entries
                        .last()
                        .is_some_and(|last| last.token.0 + 1 != entry.token.0)
                    {
                        return lost(entries, index, at, "records are missing");
                    }
                    entries.push(entry);
                    at = end;
                }
                Found::CutShort if index + 1 == segments.len() => {
                    return Journal {
                        entries,
                        condition: Condition::TornTail { good_bytes: at },
                        next: Token(0),
                    };
                }
                Found::CutShort => return lost(entries, index, at, "a record is cut short"),
                Found::Damaged(what) => return lost(entries, index, at, what),
            }
        }
    }
    Journal {
        entries,
        condition: Condition::Intact,
        next: Token(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn segment(first: u64, records: &[Vec<u8>]) -> Vec<u8> {
        let frames = records
            .iter()
            .zip(first..)
            .map(|(record, token)| frame(Token(token), record));
        frames.flat_map(|frame| frame.to_vec()).collect()
    }

    proptest! {
        #[test]
        fn every_cut_of_the_last_segment_keeps_the_records_before_it(
            records in vec(vec(any::<u8>(), 0..50), 1..6),
            cut in any::<prop::sample::Index>(),
        ) {
            let whole = segment(7, &records);
            let cut = cut.index(whole.len() + 1);
            let journal = examine(&[Bytes::copy_from_slice(&whole[..cut])]);
            let mut good = 0;
            let mut kept = 0;
            for record in &records {
                if good + FRAME_HEADER_BYTES + record.len() > cut {
                    break;
                }
                good += FRAME_HEADER_BYTES + record.len();
                kept += 1;
            }
            prop_assert_eq!(journal.entries.len(), kept);
            let expected = if good == cut {
                Condition::Intact
            } else {
                Condition::TornTail { good_bytes: good }
            };
            prop_assert_eq!(journal.condition, expected);
        }

        #[test]
        fn a_flipped_bit_anywhere_means_lost(
            records in vec(vec(any::<u8>(), 0..50), 1..6),
            place in any::<prop::sample::Index>(),
            bit in 0..8_u32,
        ) {
            let mut whole = segment(1, &records);
            let place = place.index(whole.len());
            whole[place] ^= 1_u8 << bit;
            let journal = examine(&[Bytes::from(whole)]);
            let lost = matches!(journal.condition, Condition::Lost { .. });
            prop_assert!(lost);
        }
    }

    #[test]
    fn a_missing_segment_means_lost() {
        let first = Bytes::from(segment(1, &[vec![1], vec![2]]));
        let third = Bytes::from(segment(4, &[vec![4]]));
        let journal = examine(&[first, third]);
        assert!(matches!(journal.condition, Condition::Lost { .. }));
        assert_eq!(journal.entries.len(), 2);
    }

    #[test]
    fn zeros_behind_the_last_record_were_never_written() {
        let mut bytes = segment(1, &[vec![1]]);
        let good_bytes = bytes.len();
        bytes.extend_from_slice(&[0; 100]);
        let journal = examine(&[Bytes::from(bytes)]);
        assert_eq!(journal.condition, Condition::TornTail { good_bytes });
    }
}
