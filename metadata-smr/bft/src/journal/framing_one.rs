//! The first framing, of segments that grew with every write: it is still read.
//!
//! ```text
//!  0      4        8       16             24             40
//!  ├──────┼────────┼───────┼──────────────┼──────────────┼──────────┐
//!  │ QFJ1 │ length │ token │ header check │ record check │ record … │
//!  └──────┴────────┴───────┴──────────────┴──────────────┴──────────┘
//! ```
//!
//! Both checks are prefixes of BLAKE3 in derive-key mode: the header's over the first 16 bytes, the
//! record's over those and the record. A record that is cut short by the end of the file, or zeros
//! up to there, were never reported; a full-length record with a bad checksum is damage. A length
//! is believed only if the header's own check holds: otherwise a flipped bit in a length could pass
//! for a cut and make promises disappear.

use super::framing::{End, Why};
use super::recovery::Entry;
use crate::step::Token;
use crate::wire::limits::RECORD_BYTES_MAX;
use bytes::Bytes;

/// Bytes before a record.
const FRAME_HEADER_BYTES: usize = 40;
const MAGIC: [u8; 4] = *b"QFJ1";
const CONTEXT_HEADER: &str = "quorumfs 2026 bft journal header";
const CONTEXT_RECORD: &str = "quorumfs 2026 bft journal record";

fn check<const N: usize>(context: &str, parts: &[&[u8]]) -> [u8; N] {
    let mut hasher = blake3::Hasher::new_derive_key(context);
    for part in parts {
        hasher.update(part);
    }
    let mut output = [0; N];
    hasher.finalize_xof().fill(&mut output);
    output
}

enum Found {
    Record(Entry, usize),
    Ended(Why),
}

const fn damaged(what: &'static str) -> Found {
    Found::Ended(Why::Damaged(what))
}

fn find(segment: &Bytes, at: usize) -> Found {
    let rest = segment.get(at..).unwrap_or_default();
    if rest.is_empty() {
        return Found::Ended(Why::Whole);
    }
    if rest.iter().all(|byte| *byte == 0) {
        return Found::Ended(Why::Torn);
    }
    let Some((header, body)) = rest.split_first_chunk::<FRAME_HEADER_BYTES>() else {
        return Found::Ended(Why::Torn);
    };
    let (named, checks) = header.split_at(16);
    let (header_check, record_check) = checks.split_at(8);
    if header_check != check::<8>(CONTEXT_HEADER, &[named]) {
        return damaged("a record's header does not match its checksum");
    }
    let (magic, numbers) = named.split_at(4);
    let (length, token) = numbers.split_at(4);
    let length = length
        .try_into()
        .map_or(usize::MAX, |bytes| u32::from_le_bytes(bytes) as usize);
    let token = Token(token.try_into().map_or(0, u64::from_le_bytes));
    if magic != MAGIC || length > RECORD_BYTES_MAX {
        return damaged("a record's header makes no sense");
    }
    let Some(record) = body.get(..length) else {
        return Found::Ended(Why::Torn);
    };
    if record_check != check::<16>(CONTEXT_RECORD, &[named, record]) {
        return damaged("a record does not match its checksum");
    }
    let start = at + FRAME_HEADER_BYTES;
    let record = segment.slice(start..start + length);
    Found::Record(Entry { token, record }, start + length)
}

/// Reads the records of a segment, the first of which is called `first`.
pub(super) fn read(segment: &Bytes, first: Token, entries: &mut Vec<Entry>) -> End {
    let (mut at, mut next) = (0, first);
    loop {
        let why = match find(segment, at) {
            Found::Record(entry, end) if entry.token == next => {
                entries.push(entry);
                next = Token(next.0.saturating_add(1));
                at = end;
                continue;
            }
            Found::Record(..) => Why::Damaged("records are missing"),
            Found::Ended(why) => why,
        };
        return End { next, at, why };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{Condition, Journal, Segment, examine};
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// As earlier releases wrote it.
    fn framed(first: u64, records: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (record, token) in records.iter().zip(first..) {
            let mut named = MAGIC.to_vec();
            named.extend_from_slice(&u32::try_from(record.len()).expect("short").to_le_bytes());
            named.extend_from_slice(&token.to_le_bytes());
            bytes.extend_from_slice(&named);
            bytes.extend_from_slice(&check::<8>(CONTEXT_HEADER, &[&named]));
            bytes.extend_from_slice(&check::<16>(CONTEXT_RECORD, &[&named, record]));
            bytes.extend_from_slice(record);
        }
        bytes
    }

    fn examined(first: u64, bytes: &[u8]) -> Journal {
        examine(&[Segment {
            first: Token(first),
            identity: None,
            bytes: Bytes::copy_from_slice(bytes),
        }])
    }

    proptest! {
        #[test]
        fn every_cut_of_the_last_segment_keeps_the_records_before_it(
            records in vec(vec(any::<u8>(), 0..50), 1..6),
            cut in any::<prop::sample::Index>(),
        ) {
            let whole = framed(7, &records);
            let cut = cut.index(whole.len() + 1);
            let journal = examined(7, &whole[..cut]);
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
            let intact = journal.condition == Condition::Intact;
            prop_assert_eq!(intact, good == cut);
            prop_assert!(intact || journal.condition == Condition::TornTail);
        }

        #[test]
        fn a_flipped_bit_anywhere_means_lost(
            records in vec(vec(any::<u8>(), 0..50), 1..6),
            place in any::<prop::sample::Index>(),
            bit in 0..8_u32,
        ) {
            let mut whole = framed(1, &records);
            let place = place.index(whole.len());
            whole[place] ^= 1_u8 << bit;
            let lost = matches!(examined(1, &whole).condition, Condition::Lost { .. });
            prop_assert!(lost);
        }
    }

    #[test]
    fn zeros_behind_the_last_record_were_never_written() {
        let mut bytes = framed(1, &[vec![1]]);
        bytes.extend_from_slice(&[0; 100]);
        assert_eq!(examined(1, &bytes).condition, Condition::TornTail);
    }
}
