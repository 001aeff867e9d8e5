//! One segment's file: a header, a table of its chunks, and the chunks.
//!
//! A chunk is written before its entry in the table. Nothing is synced, so after a power loss
//! either may be missing: then the entry or the chunk does not open, and counts as never written.

use super::index::{
    ChunkKey, ChunkLocation, HEADER_BYTES, SegmentId, TABLE_ENTRY_BYTES, first_offset,
};
use super::place::{SegmentFile, SegmentPlace};
use super::sealing::{SegmentCipher, TableEntry};
use crate::keys::Secret;
use std::io;

/// The chunks in a segment's table.
pub(super) type SegmentTable = Vec<(ChunkKey, ChunkLocation)>;

/// A segment that is open for reading, and for writing while it is the newest.
#[derive(Debug)]
pub(super) struct Segment {
    file: Box<dyn SegmentFile>,
    cipher: SegmentCipher,
}

fn not_sealed() -> io::Error {
    io::Error::other("a chunk could not be sealed")
}

impl Segment {
    /// Creates a segment.
    pub(super) fn create(
        place: &dyn SegmentPlace,
        id: SegmentId,
        cache: &Secret,
        records: u16,
    ) -> io::Result<Self> {
        let sealed = SegmentCipher::new(cache, records);
        let (cipher, header) = sealed.map_err(io::Error::other)?;
        let file = place.create(id)?;
        file.write_at(&header, 0)?;
        Ok(Self { file, cipher })
    }

    /// Opens an existing segment with its table; `None` if its key or format is another.
    pub(super) fn open(
        place: &dyn SegmentPlace,
        id: SegmentId,
        cache: &Secret,
    ) -> io::Result<Option<(Self, SegmentTable)>> {
        let file = place.open(id)?;
        let mut header = [0; HEADER_BYTES as usize];
        file.read_at(&mut header, 0)?;
        let Some(cipher) = SegmentCipher::of_header(cache, &header) else {
            return Ok(None);
        };
        let table = usize::from(cipher.records()) * TABLE_ENTRY_BYTES as usize;
        let mut table = vec![0; table];
        file.read_at(&mut table, HEADER_BYTES)?;
        let entries = table.as_chunks::<{ TABLE_ENTRY_BYTES as usize }>().0;
        let entries = (0..).zip(entries);
        let written = entries.filter(|(_, entry)| entry.iter().any(|byte| *byte != 0));
        let held = written.filter_map(|(record, entry)| cipher.open_entry(record, *entry));
        let begin = first_offset(cipher.records());
        let held = held.filter(|(_, place)| place.offset >= begin).collect();
        Ok(Some((Self { file, cipher }, held)))
    }

    /// Seals a chunk into its position.
    pub(super) fn write(
        &self,
        key: ChunkKey,
        place: ChunkLocation,
        chunk: Vec<u8>,
    ) -> io::Result<()> {
        let mut chunk = chunk;
        let sealed = self.cipher.seal(key, place.record, &mut chunk);
        sealed.ok_or_else(not_sealed)?;
        let entry: Option<TableEntry> = self.cipher.seal_entry(key, place);
        let entry = entry.ok_or_else(not_sealed)?;
        self.file.write_at(&chunk, u64::from(place.offset))?;
        let at = HEADER_BYTES + u64::from(place.record) * TABLE_ENTRY_BYTES;
        self.file.write_at(&entry, at)
    }

    /// Reads the chunk at a position into a buffer that it fills together with its tag; returns
    /// whether it opens.
    pub(super) fn read(
        &self,
        key: ChunkKey,
        place: ChunkLocation,
        buffer: &mut [u8],
    ) -> io::Result<bool> {
        if buffer.len() as u64 != place.end().saturating_sub(u64::from(place.offset)) {
            return Ok(false);
        }
        self.file.read_at(buffer, u64::from(place.offset))?;
        Ok(self.cipher.open(key, place, buffer).is_some())
    }
}
