//! The index of the disk cache: positions and eviction, without disk, clock or key.
//!
//! Segments are numbered in order and only the newest may be open. Space is freed before a segment
//! begins: for all of it and as much again, since chunks that are carried over from an old segment
//! are on disk twice for a moment.

use quorumfs_metadata::identity::{AllocationId, SliceId};
use std::collections::{BTreeMap, HashMap};

/// The least size of a disk cache, in bytes.
pub const CACHE_BYTES_MIN: u64 = 16 << 20;
/// The cost of a chunk in memory, in bytes, with the map half full.
pub const ENTRY_BYTES: usize = 80;

/// Bytes of a segment's header.
pub(super) const HEADER_BYTES: u64 = 64;
/// Bytes of an entry in a segment's table.
pub(super) const TABLE_ENTRY_BYTES: u64 = 40;
/// Bytes of a tag.
pub(super) const TAG_BYTES: u32 = 16;

const SEGMENT_BYTES_USUAL: u64 = 64 << 20;
const SEGMENT_BYTES_MAX: u64 = 1 << 30;
const SEGMENTS_USUAL: u64 = 256;
const SEGMENTS_MAX: usize = 512;
const RECORDS_MAX: usize = 4096;
const RECORDS_MIN: usize = 16;

/// A chunk of a slice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub(super) struct ChunkKey {
    // A slice's id would be padded to more bytes than it has.
    allocation: u64,
    counter: u32,
    /// The chunk's number in its slice.
    pub(super) number: u32,
}

impl ChunkKey {
    pub(super) fn new(slice: SliceId, number: u32) -> Self {
        Self {
            allocation: slice.allocation.0,
            counter: slice.counter,
            number,
        }
    }

    pub(super) fn slice(self) -> SliceId {
        SliceId {
            allocation: AllocationId(self.allocation),
            counter: self.counter,
        }
    }
}

/// The number of a segment; never reused while a younger one exists.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct SegmentId(pub(super) u32);

/// The position of a chunk in a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ChunkLocation {
    /// Its record number, which is also its nonce.
    pub(super) record: u16,
    /// The beginning of its ciphertext.
    pub(super) offset: u32,
    /// Bytes of plaintext.
    pub(super) length: u32,
}

impl ChunkLocation {
    /// Its end, tag included.
    pub(super) fn end(self) -> u64 {
        u64::from(self.offset) + u64::from(self.length) + u64::from(TAG_BYTES)
    }
}

/// The bounds of a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Limits {
    /// Bytes of all files.
    pub(super) bytes_max: u64,
    /// Bytes of one file.
    pub(super) segment_bytes: u64,
    /// Chunks in one segment.
    pub(super) records: u16,
    /// Chunks in all segments.
    pub(super) entries_max: usize,
}

impl Limits {
    /// Divides so many bytes of disk and of memory.
    pub(super) fn of(bytes_max: u64, memory_bytes: usize) -> Self {
        let bytes_max = bytes_max.max(CACHE_BYTES_MIN);
        let entries_max = (memory_bytes / ENTRY_BYTES).max(8 * RECORDS_MIN);
        let usual = (bytes_max / SEGMENTS_USUAL).clamp(SEGMENT_BYTES_USUAL, SEGMENT_BYTES_MAX);
        Self {
            bytes_max,
            segment_bytes: usual.min(bytes_max / 8),
            records: (entries_max / 8).clamp(RECORDS_MIN, RECORDS_MAX) as u16,
            entries_max,
        }
    }
}

/// The position of the first chunk in a segment with so many entries.
pub(super) fn first_offset(records: u16) -> u32 {
    (HEADER_BYTES + u64::from(records) * TABLE_ENTRY_BYTES) as u32
}

#[derive(Clone, Copy, Debug)]
struct ChunkEntry {
    segment: SegmentId,
    offset: u32,
    length: u32,
    record: u16,
    was_read: bool,
}

impl ChunkEntry {
    fn place(&self) -> ChunkLocation {
        ChunkLocation {
            record: self.record,
            offset: self.offset,
            length: self.length,
        }
    }
}

#[derive(Debug)]
struct Segment<H> {
    /// The disk's handle of it; `None` until it was opened.
    handle: Option<H>,
    bytes: u64,
}

/// An evicted segment.
#[derive(Debug)]
pub(super) struct Evicted<H> {
    pub(super) id: SegmentId,
    pub(super) handle: Option<H>,
    pub(super) bytes: u64,
    /// Its chunks that were read since they were written.
    pub(super) was_read: Vec<(ChunkKey, ChunkLocation)>,
}

/// See the module. `H` is the disk's handle of a segment.
#[derive(Debug)]
pub(super) struct Index<H> {
    limits: Limits,
    entries: HashMap<ChunkKey, ChunkEntry>,
    segments: BTreeMap<SegmentId, Segment<H>>,
    /// The segment that is being written, and its number of records.
    open: Option<(SegmentId, u16)>,
    next: u32,
}

impl<H: Clone> Index<H> {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            entries: HashMap::new(),
            segments: BTreeMap::new(),
            open: None,
            next: 0,
        }
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    /// Bytes on disk.
    pub(super) fn bytes(&self) -> u64 {
        self.segments.values().map(|segment| segment.bytes).sum()
    }

    /// Chunks that can be found.
    pub(super) fn chunks(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn holds(&self, key: ChunkKey) -> bool {
        self.entries.contains_key(&key)
    }

    /// The position of a chunk, for a reader.
    pub(super) fn lookup(&mut self, key: ChunkKey) -> Option<(H, SegmentId, ChunkLocation)> {
        let entry = self.entries.get_mut(&key)?;
        entry.was_read = true;
        let handle = self.segments.get(&entry.segment)?.handle.clone()?;
        Some((handle, entry.segment, entry.place()))
    }

    /// The chunk at this position did not open.
    pub(super) fn forget(&mut self, key: ChunkKey, segment: SegmentId, place: ChunkLocation) {
        let is_it = |entry: &ChunkEntry| entry.segment == segment && entry.place() == place;
        if self.entries.get(&key).is_some_and(is_it) {
            self.entries.remove(&key);
        }
    }

    /// A file of an earlier process exists. Its bytes count at once; its content is read later.
    pub(super) fn found(&mut self, id: SegmentId, bytes: u64) {
        let handle = None;
        self.segments.insert(id, Segment { handle, bytes });
        self.next = self.next.max(id.0.saturating_add(1));
    }

    /// Adds the chunks of an earlier process's file, as far as memory allows and no younger copy is
    /// known.
    pub(super) fn learn(&mut self, id: SegmentId, handle: H, held: &[(ChunkKey, ChunkLocation)]) {
        let Some(segment) = self.segments.get_mut(&id) else {
            return;
        };
        segment.handle = Some(handle);
        // Entries for the segment that is being written stay reserved.
        let Limits {
            entries_max,
            records,
            ..
        } = self.limits;
        let most = entries_max.saturating_sub(usize::from(records));
        for (key, place) in held {
            if self.entries.len() >= most || place.end() > segment.bytes {
                continue;
            }
            self.entries.entry(*key).or_insert(ChunkEntry {
                segment: id,
                offset: place.offset,
                length: place.length,
                record: place.record,
                was_read: false,
            });
        }
    }

    /// The position of the next chunk, if the open segment has space for it. The position is used
    /// up, whatever becomes of the chunk: a nonce is not used twice.
    pub(super) fn place(&mut self, length: u32) -> Option<(H, SegmentId, ChunkLocation)> {
        let (id, record) = self.open?;
        let segment = self.segments.get_mut(&id)?;
        let place = ChunkLocation {
            record,
            offset: u32::try_from(segment.bytes).ok()?,
            length,
        };
        if record >= self.limits.records || place.end() > self.limits.segment_bytes {
            return None;
        }
        segment.bytes = place.end();
        self.open = Some((id, record.saturating_add(1)));
        Some((segment.handle.clone()?, id, place))
    }

    /// A chunk was written to this position.
    pub(super) fn written(&mut self, key: ChunkKey, segment: SegmentId, place: ChunkLocation) {
        if self.entries.len() >= self.limits.entries_max || !self.segments.contains_key(&segment) {
            return;
        }
        self.entries.insert(
            key,
            ChunkEntry {
                segment,
                offset: place.offset,
                length: place.length,
                record: place.record,
                was_read: false,
            },
        );
    }

    /// Whether a segment has to be evicted before the next one begins.
    pub(super) fn is_full(&self) -> bool {
        let Limits {
            bytes_max,
            segment_bytes,
            records,
            entries_max,
        } = self.limits;
        let room = self.bytes().saturating_add(segment_bytes.saturating_mul(2));
        room > bytes_max
            || self.entries.len() + usize::from(records) > entries_max
            || self.segments.len() >= SEGMENTS_MAX
    }

    /// Removes the oldest segment; the one that is being written only if there is no other.
    pub(super) fn evict(&mut self) -> Option<Evicted<H>> {
        let (id, segment) = self.segments.pop_first()?;
        if self.open.is_some_and(|(open, _)| open == id) {
            self.open = None;
        }
        let mut was_read = Vec::new();
        self.entries.retain(|key, entry| {
            let stays = entry.segment != id;
            if !stays && entry.was_read {
                was_read.push((*key, entry.place()));
            }
            stays
        });
        was_read.sort_unstable_by_key(|(_, place)| place.record);
        Some(Evicted {
            id,
            handle: segment.handle,
            bytes: segment.bytes,
            was_read,
        })
    }

    /// Removes one segment with all its chunks.
    pub(super) fn remove(&mut self, id: SegmentId) {
        if self.segments.remove(&id).is_some() {
            self.entries.retain(|_, entry| entry.segment != id);
        }
        if self.open.is_some_and(|(open, _)| open == id) {
            self.open = None;
        }
    }

    /// The number of the segment that begins next; `None` when all are used up.
    pub(super) fn next(&self) -> Option<SegmentId> {
        (self.next < u32::MAX).then_some(SegmentId(self.next))
    }

    /// Begins a segment, and closes the one before.
    pub(super) fn begin(&mut self, id: SegmentId, handle: H) {
        let bytes = u64::from(first_offset(self.limits.records));
        let handle = Some(handle);
        self.segments.insert(id, Segment { handle, bytes });
        self.next = self.next.max(id.0.saturating_add(1));
        self.open = Some((id, 0));
    }

    /// Closes the open segment.
    pub(super) fn close(&mut self) {
        self.open = None;
    }
}
