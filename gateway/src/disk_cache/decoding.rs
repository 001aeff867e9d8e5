//! Segments with arbitrary content.
//!
//! | Piece | Treatment |
//! |---|---|
//! | 0 | the table's capacity in records (1), below 64 |
//! | 1 | a chunk, sealed with its entry in the table |
//! | 2 | slice (12), number, offset and length (4 each): an entry, sealed, of no chunk |
//! | 3 | an entry of the table, unchanged |
//! | 4 | appended unchanged |
//! | 5 | the whole file, instead of everything else |

use super::index::{
    CACHE_BYTES_MIN, ChunkKey, ChunkLocation, Index, Limits, SegmentId, TABLE_ENTRY_BYTES,
    TAG_BYTES, first_offset,
};
use super::place::{SegmentFile, SegmentPlace};
use super::sealing::SegmentCipher;
use super::segment::Segment;
use crate::decoders::{Piece, Seed};
use crate::keys::Secret;
use quorumfs_metadata::identity::{AllocationId, SliceId};
use std::collections::BTreeMap;
use std::io;

const SEGMENT: SegmentId = SegmentId(1);
const MEMORY_BYTES: usize = 1 << 20;

fn cache() -> Secret {
    Secret::from_bytes([5; 32])
}

/// A single file for reading.
#[derive(Clone, Debug)]
struct MemoryFile(Vec<u8>);

impl SegmentFile for MemoryFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let begin = usize::try_from(offset).ok();
        let end = begin.and_then(|begin| begin.checked_add(buffer.len()));
        let range = begin.zip(end).map(|(begin, end)| begin..end);
        let found = range.and_then(|range| self.0.get(range));
        buffer.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
}

impl SegmentPlace for MemoryFile {
    fn list(&self) -> io::Result<Vec<(SegmentId, u64)>> {
        Ok(vec![(SEGMENT, self.0.len() as u64)])
    }

    fn create(&self, _: SegmentId) -> io::Result<Box<dyn SegmentFile>> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn open(&self, _: SegmentId) -> io::Result<Box<dyn SegmentFile>> {
        Ok(Box::new(self.clone()))
    }

    fn remove(&self, _: SegmentId) -> io::Result<()> {
        Ok(())
    }

    fn available(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }
}

/// A file, and the chunks that were sealed into it.
struct Laid {
    file: Vec<u8>,
    chunks: BTreeMap<ChunkKey, Vec<u8>>,
}

fn laid(pieces: &[Piece<'_>]) -> Option<Laid> {
    let room = pieces.iter().find_map(|piece| match piece {
        (0, [room, ..]) => Some(u16::from(room % 64)),
        _ => None,
    });
    let records = room.unwrap_or(8);
    let (cipher, header) = SegmentCipher::salted(&cache(), &[7; 32], records).ok()?;
    let mut table = vec![[0; TABLE_ENTRY_BYTES as usize]; records.into()];
    let mut stored = Vec::new();
    let mut chunks = BTreeMap::new();
    let mut free = (0..).zip(&mut table);
    for (kind, piece) in pieces {
        match (kind % 6, *piece) {
            (1, chunk) => {
                let Some((record, entry)) = free.next() else {
                    continue;
                };
                let slice = SliceId {
                    allocation: AllocationId(1),
                    counter: record.into(),
                };
                let key = ChunkKey::new(slice, 0);
                let place = ChunkLocation {
                    record,
                    offset: first_offset(records) + stored.len() as u32,
                    length: chunk.len() as u32,
                };
                let mut sealed = chunk.to_vec();
                cipher.seal(key, record, &mut sealed)?;
                stored.extend_from_slice(&sealed);
                *entry = cipher.seal_entry(key, place)?;
                chunks.insert(key, chunk.to_vec());
            }
            (2, said) => {
                let (Some((slice, rest)), Some((record, entry))) =
                    (said.split_first_chunk::<12>(), free.next())
                else {
                    continue;
                };
                let numbers = rest.as_chunks::<4>().0;
                let number = |at: usize| numbers.get(at).copied().map(u32::from_be_bytes);
                let key = ChunkKey::new(SliceId::from_be_bytes(slice)?, number(0).unwrap_or(0));
                let place = ChunkLocation {
                    record,
                    offset: number(1).unwrap_or(0),
                    length: number(2).unwrap_or(0),
                };
                *entry = cipher.seal_entry(key, place)?;
            }
            (3, bytes) => {
                if let Some((_, entry)) = free.next() {
                    entry
                        .iter_mut()
                        .zip(bytes)
                        .for_each(|(to, from)| *to = *from);
                }
            }
            (4, bytes) => stored.extend_from_slice(bytes),
            (5, bytes) => {
                return Some(Laid {
                    file: bytes.to_vec(),
                    chunks: BTreeMap::new(),
                });
            }
            _ => {}
        }
    }
    let file = [&header[..], table.as_flattened(), &stored].concat();
    Some(Laid { file, chunks })
}

/// Reads a segment's table and chunks. Returns how many chunks are present.
///
/// # Panics
/// If a chunk is located outside the file, or bytes are read that were not written.
pub(crate) fn read(pieces: &[Piece<'_>]) -> usize {
    let Some(Laid { file, chunks }) = laid(pieces) else {
        return 0;
    };
    let bytes = file.len() as u64;
    let Ok(Some((segment, held))) = Segment::open(&MemoryFile(file), SEGMENT, &cache()) else {
        return 0;
    };
    let mut index = Index::new(Limits::of(CACHE_BYTES_MIN, MEMORY_BYTES));
    index.found(SEGMENT, bytes);
    index.learn(SEGMENT, (), &held);
    let mut read = 0;
    for (key, _) in held {
        let Some(((), _, place)) = index.lookup(key) else {
            continue;
        };
        assert!(place.end() <= bytes, "{place:?} of {bytes} bytes");
        let mut buffer = vec![0; place.length as usize + TAG_BYTES as usize];
        if matches!(segment.read(key, place, &mut buffer), Ok(true)) {
            buffer.truncate(place.length as usize);
            assert_eq!(chunks.get(&key), Some(&buffer), "{key:?}");
            read += 1;
        }
    }
    read
}

/// Segments of a few chunks: alone, with a false entry, with garbage in between.
pub(crate) fn seeds() -> Vec<Seed> {
    let chunks = || {
        vec![
            (0, vec![6]),
            (1, b"the first chunk".to_vec()),
            (1, vec![0; 300]),
        ]
    };
    let and = |more: Seed| [chunks(), more].concat();
    let elsewhere = [&[0; 12][..], &[0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 40]].concat();
    let far = [&[1; 12][..], &[0, 0, 0, 1], &[0xff; 8]].concat();
    vec![
        chunks(),
        and(vec![(2, elsewhere), (1, b"another".to_vec())]),
        and(vec![(2, far)]),
        and(vec![(3, vec![0xa5; 40]), (4, vec![1; 99]), (1, vec![2; 9])]),
    ]
}
