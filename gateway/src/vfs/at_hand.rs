//! Reading what is in memory already: without waiting, and without copying where it lies in one
//! run.
//!
//! This is how most reads end, so it is worth a way of its own: a read that has to wait, or of what
//! was not committed yet, takes the general one ([`read`](super::read)).

use super::chunk_cache::{CHUNK_BYTES, Part};
use super::content::Source;
use super::file_system::Inner;
use super::read::by_chunk;
use bytes::Bytes;
use std::ops::Range;

/// What an answer is put together from.
enum Piece<'s> {
    Part(Part),
    Inline(&'s [u8]),
    Zeros(usize),
}

fn length_of(range: &Range<u64>) -> usize {
    usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX)
}

impl Inner {
    /// The bytes of sources that follow each other, with zeros behind them up to `count`; nothing
    /// if something is not in memory.
    pub(crate) fn at_hand(&self, count: usize, sources: &[Source]) -> Option<Bytes> {
        let mut pieces: Vec<Piece<'_>> = Vec::new();
        for source in sources {
            match source {
                Source::Hole(range) => pieces.push(Piece::Zeros(length_of(range))),
                Source::Inline(range, bytes) => {
                    let from = usize::try_from(range.start).unwrap_or(usize::MAX);
                    let bytes = bytes.get(from..).unwrap_or_default();
                    let wanted = length_of(range);
                    pieces.push(Piece::Inline(bytes.get(..wanted).unwrap_or(bytes)));
                    pieces.push(Piece::Zeros(wanted.saturating_sub(bytes.len())));
                }
                Source::Slice(range, stored, begin) => {
                    for (_, stored, range) in by_chunk(range, stored, *begin) {
                        let number = range.start / CHUNK_BYTES;
                        let before = number.saturating_mul(CHUNK_BYTES);
                        let within =
                            range.start.saturating_sub(before)..range.end.saturating_sub(before);
                        let chunk = self.chunks.at_hand(stored.id, number)?;
                        append(&mut pieces, chunk.part(within)?);
                    }
                }
            }
        }
        match pieces.as_slice() {
            [Piece::Part(part)] if part.len() == count => Some(part.clone().into_bytes()),
            pieces => Some(together(count, pieces)),
        }
    }
}

fn append(pieces: &mut Vec<Piece<'_>>, part: Part) {
    let part = match pieces.last_mut() {
        Some(Piece::Part(last)) => last.join(part),
        _ => Err(part),
    };
    if let Err(part) = part {
        pieces.push(Piece::Part(part));
    }
}

fn together(count: usize, pieces: &[Piece<'_>]) -> Bytes {
    let mut buffer = Vec::with_capacity(count);
    for piece in pieces {
        match piece {
            Piece::Part(part) => buffer.extend_from_slice(part.bytes()),
            Piece::Inline(bytes) => buffer.extend_from_slice(bytes),
            Piece::Zeros(zeros) => buffer.resize(buffer.len().saturating_add(*zeros), 0),
        }
    }
    buffer.resize(count, 0);
    Bytes::from(buffer)
}
