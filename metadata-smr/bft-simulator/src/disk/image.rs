//! The bytes of a segment after a crash.

use super::Record;
use crate::random::Random;
use quorumfs_bft::journal::framing::end_page;
use quorumfs_bft::journal::{Framing, Segment, SegmentIdentity};
use quorumfs_bft::step::Token;
use std::collections::VecDeque;
use std::ops::Range;

/// The unit that a medium writes completely or not at all.
const SECTOR_BYTES: usize = 512;
/// The identity of the older segment.
const OLD: SegmentIdentity = SegmentIdentity([0; 16]);

/// A segment's bytes.
pub(super) struct Image {
    first: Token,
    identity: SegmentIdentity,
    bytes: Vec<u8>,
    /// The positions of complete records.
    whole: Vec<Range<usize>>,
}

impl Image {
    /// An image with these records, of which the first ones were durable when the others were
    /// written, and so many bytes of another one that was being written with those.
    pub(super) fn of(
        records: &VecDeque<Record>,
        durable: usize,
        torn: Option<(Record, usize)>,
    ) -> Self {
        let torn = torn.as_ref();
        let begins = records.front().or(torn.map(|(record, _)| record));
        let first = begins.map_or(Token(1), |record| record.token);
        // A stream of its own: the form of a tear changes nothing else in the simulation.
        let mut random = Random::new(first.0 ^ (records.len() as u64).rotate_left(32));
        let identity = SegmentIdentity([random.below(255) as u8 + 1; 16]);
        let framing = Framing::new(identity);
        let (mut new, mut whole) = (Vec::new(), Vec::new());
        let behind = records.get(durable).map(|record| record.token);
        for (record, index) in records.iter().zip(0..) {
            if index <= durable {
                end_page(&mut new);
            }
            let behind = behind.filter(|it| *it <= record.token);
            let start = new.len();
            put(&framing, record, behind, &mut new);
            whole.push(start..new.len());
        }
        if behind.is_none() {
            end_page(&mut new);
        }
        let cut = new.len() + torn.map_or(0, |(_, length)| *length);
        if let Some((record, _)) = torn {
            put(&framing, record, behind, &mut new);
        }
        end_page(&mut new);
        let mut bytes = old(records, torn, new.len());
        let mut write = |range: Range<usize>| {
            if let (Some(to), Some(from)) = (bytes.get_mut(range.clone()), new.get(range)) {
                to.copy_from_slice(from);
            }
        };
        if torn.is_some() {
            write(0..cut);
            for at in (cut.next_multiple_of(SECTOR_BYTES)..new.len()).step_by(SECTOR_BYTES) {
                if random.chance(1, 2) {
                    write(at..at + SECTOR_BYTES);
                }
            }
        } else {
            write(0..new.len());
            if behind.is_none() && random.chance(1, 2) {
                let next = records.back().map_or(first.0, |last| last.token.0 + 1);
                bytes.truncate(new.len());
                bytes.extend_from_slice(&framing.seal(Token(next)));
            }
        }
        Self {
            first,
            identity,
            bytes,
            whole,
        }
    }

    /// Flips a bit of a complete record, if there is one.
    pub(super) fn damage(&mut self, random: &mut Random) {
        let mut at = random.index(self.whole.iter().map(Range::len).sum());
        for range in &self.whole {
            if at < range.len() {
                if let Some(byte) = self.bytes.get_mut(range.start + at) {
                    *byte ^= 1 << random.below(8);
                }
                return;
            }
            at -= range.len();
        }
    }

    pub(super) fn segment(self) -> Segment {
        Segment {
            first: self.first,
            identity: self.identity,
            bytes: self.bytes.into(),
        }
    }
}

fn put(framing: &Framing, record: &Record, behind: Option<Token>, bytes: &mut Vec<u8>) {
    let behind = behind.unwrap_or(record.token);
    framing.put_record(record.token, behind, &record.body, bytes);
}

/// The content of an older segment: the same records under the same tokens, each at a page, for at
/// least so many bytes.
fn old(records: &VecDeque<Record>, torn: Option<&(Record, usize)>, length: usize) -> Vec<u8> {
    let framing = Framing::new(OLD);
    let mut bytes = Vec::new();
    for record in records.iter().chain(torn.map(|(record, _)| record)) {
        put(&framing, record, None, &mut bytes);
        end_page(&mut bytes);
    }
    bytes.resize(bytes.len().max(length), 0);
    bytes
}
