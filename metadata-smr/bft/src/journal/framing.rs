//! How records are laid out in a segment whose bytes were used before.
//!
//! A medium makes a write durable faster where something was written before: no length changes and
//! no block is allocated, so only the bytes themselves have to be made durable. A segment is
//! therefore filled before it is used, with zeros or with the bytes of an older segment. After its
//! last record there are old bytes, perhaps whole old records.
//!
//! ```text
//!    page 0                      page 1          page 2
//!  ──┬──────────┬────────┬───────┬───────────────┬───────────────
//!    │ record N │ N + 1  │ zeros │ record N + 2  │ seal N + 3 │ …     old bytes
//!  ──┴──────────┴────────┴───────┴───────────────┴───────────────
//!     a group: one write, then one sync           no group was waiting
//!
//!  0      4        8       16       24             32             48
//!  ├──────┼────────┼───────┼────────┼──────────────┼──────────────┼──────────┐
//!  │ QFJ2 │ length │ token │ behind │ header check │ record check │ record … │
//!  └──────┴────────┴───────┴────────┴──────────────┴──────────────┴──────────┘
//! ```
//!
//! Numbers are little-endian; tokens rise by one from record to record, also from one segment to
//! the next. Three rules make old bytes harmless and damage visible:
//!
//! * **Identity.** Each use of a segment has an *identity*, 16 random bytes in its header. Both
//!   checks are keyed by it: the header's is over the first 24 bytes, the record's over those and
//!   the record. Bytes that were written under another identity do not verify, whatever they
//!   contain; nor can a client make a request look like a record, since it never sees the identity.
//! * **Durability.** A group is written only after the one before it was durable. *Behind* is the
//!   token of the first record of the group: every record before it was durable when this one was
//!   written. So a record that does not verify was promised to no other process, unless a later
//!   record verifies; then it is damage, and not a torn write.
//! * **Position.** A group begins at a page, so that no page of a durable group is written again,
//!   no page has to be read to be written, and the records after damage are found at a page.
//!
//! When no group waits to be written, a *seal* marks this: a header with the tag `QFJS`, no record,
//! and the token that comes next. The next group overwrites it. It needs no sync of its own, yet
//! the kernel has it at once, and so damage to the last group is distinguished from a torn write
//! after every crash of a process, and after a loss of power that comes later than the kernel's own
//! write-back. Damage to the very last group before a loss of power that came at once cannot be
//! distinguished: it counts as a torn write.

use super::recovery::Entry;
use crate::step::Token;
use crate::wire::limits::RECORD_BYTES_MAX;
use bytes::{BufMut, Bytes};

/// The length of the header before a record.
pub const FRAME_HEADER_BYTES: usize = NAMED_BYTES + 8 + 16;
/// Groups begin at multiples of this, counted from the first one.
pub const PAGE_BYTES: usize = 4096;
const NAMED_BYTES: usize = 24;
const RECORD_TAG: [u8; 4] = *b"QFJ2";
const SEAL_TAG: [u8; 4] = *b"QFJS";
const CONTEXT_HEADER: &str = "quorumfs 2026 bft journal segment's frame header";
const CONTEXT_RECORD: &str = "quorumfs 2026 bft journal segment's record";

/// Identifies one use of a segment's bytes. Random, and never sent anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentIdentity(pub [u8; 16]);

/// Writes and reads the content of one segment.
pub struct Framing {
    header: blake3::Hasher,
    record: blake3::Hasher,
}

/// The fields of a header that verifies.
struct SegmentHeader<'a> {
    named: &'a [u8],
    is_seal: bool,
    length: usize,
    token: Token,
    behind: Token,
}

/// Where reading a segment ended, and why.
pub(super) struct End {
    /// The token after the last record that was read.
    pub(super) next: Token,
    /// The position of the bytes that are not read.
    pub(super) at: usize,
    pub(super) why: Why,
}

/// Why a segment ends.
pub(super) enum Why {
    /// All records are there.
    Whole,
    /// The bytes at this place were never reported to be durable.
    Torn,
    /// A durable record does not verify.
    Damaged(&'static str),
}

impl Framing {
    /// A framing for the segment with this identity.
    #[must_use]
    pub fn new(identity: SegmentIdentity) -> Self {
        let keyed = |context| blake3::Hasher::new_keyed(&blake3::derive_key(context, &identity.0));
        Self {
            header: keyed(CONTEXT_HEADER),
            record: keyed(CONTEXT_RECORD),
        }
    }

    /// Appends a record to `group`, whose first one has the token `behind`.
    pub fn put_record(&self, token: Token, behind: Token, record: &[u8], group: &mut Vec<u8>) {
        let length = u32::try_from(record.len()).unwrap_or(u32::MAX);
        let named = named(RECORD_TAG, length, token, behind);
        group.reserve(FRAME_HEADER_BYTES + record.len());
        group.put_slice(&named);
        group.put_slice(&check::<8>(&self.header, &[&named]));
        group.put_slice(&check::<16>(&self.record, &[&named, record]));
        group.put_slice(record);
    }

    /// A page that marks that every record before `next` is durable and none is being written.
    #[must_use]
    pub fn seal(&self, next: Token) -> Vec<u8> {
        let named = named(SEAL_TAG, 0, next, next);
        let mut page = Vec::with_capacity(PAGE_BYTES);
        page.put_slice(&named);
        page.put_slice(&check::<8>(&self.header, &[&named]));
        end_page(&mut page);
        page
    }

    fn header<'a>(&self, bytes: &'a [u8], at: usize) -> Option<SegmentHeader<'a>> {
        let (named, rest) = bytes.get(at..)?.split_at_checked(NAMED_BYTES)?;
        let (found, _) = rest.split_first_chunk::<8>()?;
        if *found != check(&self.header, &[named]) {
            return None;
        }
        let (tag, rest) = named.split_first_chunk::<4>()?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let (token, rest) = rest.split_first_chunk::<8>()?;
        let (behind, _) = rest.split_first_chunk::<8>()?;
        Some(SegmentHeader {
            named,
            is_seal: *tag == SEAL_TAG,
            length: u32::from_le_bytes(*length) as usize,
            token: Token(u64::from_le_bytes(*token)),
            behind: Token(u64::from_le_bytes(*behind)),
        })
    }

    /// The record of this token at `at`, if it verifies, and where it ends.
    fn record(&self, bytes: &Bytes, at: usize, token: Token) -> Option<(Entry, usize)> {
        let header = self.header(bytes, at)?;
        if header.is_seal || header.token != token || header.length > RECORD_BYTES_MAX {
            return None;
        }
        let start = at + FRAME_HEADER_BYTES;
        let found = bytes.get(at + NAMED_BYTES + 8..start)?;
        let end = start + header.length;
        let record = bytes.get(start..end)?;
        (*found == check::<16>(&self.record, &[header.named, record])).then(|| {
            let record = bytes.slice(start..end);
            (Entry { token, record }, end)
        })
    }

    /// Reads the records of a segment, whose first one has the token `first`.
    pub(super) fn read(&self, bytes: &Bytes, first: Token, entries: &mut Vec<Entry>) -> End {
        let (mut at, mut next) = (0_usize, first);
        loop {
            // The page of a group's last record is filled with zeros, which are skipped.
            let page = at.next_multiple_of(PAGE_BYTES);
            let found = self
                .record(bytes, at, next)
                .or_else(|| self.record(bytes, page, next));
            let Some((entry, end)) = found else {
                let why = self.why(bytes, at, next);
                return End { next, at, why };
            };
            entries.push(entry);
            next = Token(next.0.saturating_add(1));
            at = end;
        }
    }

    /// Why no record with the token `next` is found at `at` or the page after it.
    fn why(&self, bytes: &[u8], at: usize, next: Token) -> Why {
        let page = at.next_multiple_of(PAGE_BYTES);
        if at == bytes.len() || page == bytes.len() {
            return Why::Whole;
        }
        let sealed = |header: &SegmentHeader<'_>| header.is_seal && header.token == next;
        if self.header(bytes, page).is_some_and(|it| sealed(&it)) {
            return Why::Whole;
        }
        let pages = (page..bytes.len()).step_by(PAGE_BYTES);
        for place in std::iter::once(at).chain(pages) {
            if self.header(bytes, place).is_some_and(|it| it.behind > next) {
                return Why::Damaged("a durable record does not verify");
            }
        }
        Why::Torn
    }
}

/// Ends a group, so that the next one begins at a page.
pub fn end_page(group: &mut Vec<u8>) {
    group.resize(group.len().next_multiple_of(PAGE_BYTES), 0);
}

fn named(tag: [u8; 4], length: u32, token: Token, behind: Token) -> [u8; NAMED_BYTES] {
    let mut named = [0; NAMED_BYTES];
    let mut rest = named.as_mut_slice();
    rest.put_slice(&tag);
    rest.put_u32_le(length);
    rest.put_u64_le(token.0);
    rest.put_u64_le(behind.0);
    named
}

fn check<const N: usize>(keyed: &blake3::Hasher, parts: &[&[u8]]) -> [u8; N] {
    let mut hasher = keyed.clone();
    for part in parts {
        hasher.update(part);
    }
    let mut output = [0; N];
    hasher.finalize_xof().fill(&mut output);
    output
}
