//! How records lie in a segment whose bytes were used before.
//!
//! A medium makes a write durable faster where something was written before: no length changes and
//! no block is given out, so that nothing but the bytes themselves has to be made durable. A
//! segment is therefore filled before it is used, with zeros or with what an older segment left.
//! Behind its last record stand old bytes, perhaps whole old records.
//!
//! ```text
//!    page 0                      page 1          page 2
//!  ──┬──────────┬────────┬───────┬───────────────┬───────────────
//!    │ record N │ N + 1  │ zeros │ record N + 2  │ seal N + 3 │ …     what was there before
//!  ──┴──────────┴────────┴───────┴───────────────┴───────────────
//!     a group: one write, then one sync           nobody waited to be written
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
//! * **Whose bytes.** Each use of a segment has an *identity*, 16 random bytes in its header. Both
//!   checks are keyed by it: the header's is over the first 24 bytes, the record's over those and
//!   the record. What was written under another identity does not hold, whatever it says; nor can
//!   a client make a request look like a record, since it never sees the identity.
//! * **What was durable.** A group is written only after the one before it was durable. *Behind* is
//!   the token of the first record of the group: every record before it was durable when this one
//!   was written. So a record that does not hold was promised to nobody unless something that holds
//!   stands behind it; then it is damage, and not a tear.
//! * **Where to look.** A group begins at a page, so that no page of a durable group is written
//!   again, none has to be read to be written, and what stands behind damage is found at a page.
//!
//! Where no group waits to be written, a *seal* says so: a header with the tag `QFJS`, no record,
//! and the token that comes next. The next group takes its place. It costs no sync of its own, yet
//! it is with the kernel at once, and so damage to the last group is told from a tear after every
//! crash of a process, and after a loss of power that comes later than the kernel writes by itself.
//! What cannot be told is damage to the very last group before a loss of power that came at once:
//! it passes for a tear.

use super::recovery::Entry;
use crate::step::Token;
use crate::wire::limits::RECORD_BYTES_MAX;
use bytes::{BufMut, Bytes};

/// Bytes before a record.
pub const FRAME_HEADER_BYTES: usize = NAMED_BYTES + 8 + 16;
/// Groups begin at multiples of this, counted from the first one.
pub const PAGE_BYTES: usize = 4096;
const NAMED_BYTES: usize = 24;
const RECORD_TAG: [u8; 4] = *b"QFJ2";
const SEAL_TAG: [u8; 4] = *b"QFJS";
const CONTEXT_HEADER: &str = "quorumfs 2026 bft journal segment's frame header";
const CONTEXT_RECORD: &str = "quorumfs 2026 bft journal segment's record";

/// Tells one use of a segment's bytes from every other. Random, and never sent anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentIdentity(pub [u8; 16]);

/// Writes and reads what lies in one segment.
pub struct Framing {
    header: blake3::Hasher,
    record: blake3::Hasher,
}

/// What a header that holds says.
struct Header<'a> {
    named: &'a [u8],
    is_seal: bool,
    length: usize,
    token: Token,
    behind: Token,
}

/// Where reading a segment ended, and why there.
pub(super) struct End {
    /// The token after the last record that was read.
    pub(super) next: Token,
    /// Where the bytes stand that are not read.
    pub(super) at: usize,
    pub(super) why: Why,
}

/// Why a segment ends.
pub(super) enum Why {
    /// Nothing is missing.
    Whole,
    /// What may have stood there was never reported to be durable.
    Torn,
    /// A durable record does not hold.
    Damaged(&'static str),
}

impl Framing {
    /// For the segment of this identity.
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

    /// What says that every record before `next` is durable and none is being written: a page.
    #[must_use]
    pub fn seal(&self, next: Token) -> Vec<u8> {
        let named = named(SEAL_TAG, 0, next, next);
        let mut page = Vec::with_capacity(PAGE_BYTES);
        page.put_slice(&named);
        page.put_slice(&check::<8>(&self.header, &[&named]));
        end_page(&mut page);
        page
    }

    fn header<'a>(&self, bytes: &'a [u8], at: usize) -> Option<Header<'a>> {
        let (named, rest) = bytes.get(at..)?.split_at_checked(NAMED_BYTES)?;
        let (found, _) = rest.split_first_chunk::<8>()?;
        if *found != check(&self.header, &[named]) {
            return None;
        }
        let (tag, rest) = named.split_first_chunk::<4>()?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let (token, rest) = rest.split_first_chunk::<8>()?;
        let (behind, _) = rest.split_first_chunk::<8>()?;
        Some(Header {
            named,
            is_seal: *tag == SEAL_TAG,
            length: u32::from_le_bytes(*length) as usize,
            token: Token(u64::from_le_bytes(*token)),
            behind: Token(u64::from_le_bytes(*behind)),
        })
    }

    /// The record of this token at `at`, if it holds, and where it ends.
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

    /// Reads the records of a segment, the first of which is called `first`.
    pub(super) fn read(&self, bytes: &Bytes, first: Token, entries: &mut Vec<Entry>) -> End {
        let (mut at, mut next) = (0_usize, first);
        loop {
            // Behind the last record of a group stands what fills its page: it says nothing.
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

    /// Why no record called `next` is found at `at` or the page after it.
    fn why(&self, bytes: &[u8], at: usize, next: Token) -> Why {
        let page = at.next_multiple_of(PAGE_BYTES);
        if at == bytes.len() || page == bytes.len() {
            return Why::Whole;
        }
        let sealed = |header: &Header<'_>| header.is_seal && header.token == next;
        if self.header(bytes, page).is_some_and(|it| sealed(&it)) {
            return Why::Whole;
        }
        let pages = (page..bytes.len()).step_by(PAGE_BYTES);
        for place in std::iter::once(at).chain(pages) {
            if self.header(bytes, place).is_some_and(|it| it.behind > next) {
                return Why::Damaged("a record that was durable does not hold");
            }
        }
        Why::Torn
    }
}

/// Ends a group: what follows it begins at a page.
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
