//! Reads from memory: without waiting, and without copying if the bytes lie in one run.
//!
//! Most reads end here, so they have a path of their own. A read that has to wait, or that covers
//! uncommitted data, takes the general path ([`source`](super::source)).

use super::chunk_cache::ChunkRange;
use super::owner::Reading;
use super::source::by_chunk;
use crate::slices::CHUNK_BYTES;
use crate::vfs::known::ReadSource;
use bytes::Bytes;
use std::ops::Range;

/// A part of an answer.
enum Piece<'s> {
    Chunk(ChunkRange),
    Inline(&'s [u8]),
    Zeros(usize),
}

fn length_of(range: &Range<u64>) -> usize {
    usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX)
}

impl Reading {
    /// The bytes of consecutive sources, with zeros behind them up to `count`; `None` if some are
    /// not in memory.
    pub(in crate::vfs) fn cached_read(
        &self,
        count: usize,
        sources: &[ReadSource],
    ) -> Option<Bytes> {
        let mut pieces: Vec<Piece<'_>> = Vec::new();
        for source in sources {
            match source {
                ReadSource::Hole(range) => pieces.push(Piece::Zeros(length_of(range))),
                ReadSource::Inline(range, bytes) => {
                    let from = usize::try_from(range.start).unwrap_or(usize::MAX);
                    let bytes = bytes.get(from..).unwrap_or_default();
                    let wanted = length_of(range);
                    pieces.push(Piece::Inline(bytes.get(..wanted).unwrap_or(bytes)));
                    pieces.push(Piece::Zeros(wanted.saturating_sub(bytes.len())));
                }
                ReadSource::Slice(range, stored, begin) => {
                    for (_, stored, range) in by_chunk(range, stored, *begin) {
                        let number = range.start / CHUNK_BYTES;
                        let before = number.saturating_mul(CHUNK_BYTES);
                        let within =
                            range.start.saturating_sub(before)..range.end.saturating_sub(before);
                        let chunk = self.chunks.get_cached(stored.id, number)?;
                        append(&mut pieces, chunk.part(within)?);
                    }
                }
            }
        }
        match pieces.as_slice() {
            [Piece::Chunk(part)] if part.len() == count => Some(part.clone().into_bytes()),
            pieces => Some(concatenate(count, pieces)),
        }
    }
}

fn append(pieces: &mut Vec<Piece<'_>>, part: ChunkRange) {
    let part = match pieces.last_mut() {
        Some(Piece::Chunk(last)) => last.join(part),
        _ => Err(part),
    };
    if let Err(part) = part {
        pieces.push(Piece::Chunk(part));
    }
}

fn concatenate(count: usize, pieces: &[Piece<'_>]) -> Bytes {
    let mut buffer = Vec::with_capacity(count);
    for piece in pieces {
        match piece {
            Piece::Chunk(part) => buffer.extend_from_slice(part.bytes()),
            Piece::Inline(bytes) => buffer.extend_from_slice(bytes),
            Piece::Zeros(zeros) => buffer.resize(buffer.len().saturating_add(*zeros), 0),
        }
    }
    buffer.resize(count, 0);
    Bytes::from(buffer)
}
