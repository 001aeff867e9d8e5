//! A disk in memory, with its possible faults.

use super::super::index::SegmentId;
use super::super::place::{SegmentFile, SegmentPlace};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

/// Pseudorandom numbers from a seed.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 32) % u64::from(bound)) as u32
    }
}

type FileContent = Arc<Mutex<Vec<u8>>>;

#[derive(Debug)]
struct MemoryDiskState {
    files: BTreeMap<SegmentId, FileContent>,
    size: u64,
    /// Bytes that can be written before this write and every later one fails.
    budget: u64,
}

impl Default for MemoryDiskState {
    fn default() -> Self {
        Self {
            files: BTreeMap::new(),
            size: u64::MAX,
            budget: u64::MAX,
        }
    }
}

/// See the module. Clones are the same disk.
#[derive(Clone, Default, Debug)]
pub(super) struct MemoryDisk(Arc<Mutex<MemoryDiskState>>);

impl MemoryDisk {
    fn state(&self) -> MutexGuard<'_, MemoryDiskState> {
        self.0.lock().unwrap()
    }

    /// Bytes of all files with a name.
    pub(super) fn bytes(&self) -> u64 {
        let state = self.state();
        let lengths = state.files.values().map(|it| it.lock().unwrap().len());
        lengths.sum::<usize>() as u64
    }

    /// The capacity, in bytes.
    pub(super) fn set_size(&self, size: u64) {
        self.state().size = size;
    }

    /// Fails after so many more bytes, in the middle of a write.
    pub(super) fn fail_after(&self, bytes: u64) {
        self.state().budget = bytes;
    }

    /// A new process, for which the disk works again. Written bytes stay.
    pub(super) fn restart(&self) {
        self.state().budget = u64::MAX;
    }

    /// A random change by the disk or by another program.
    pub(super) fn damage(&self, random: &mut Random) {
        let mut state = self.state();
        let ids: Vec<SegmentId> = state.files.keys().copied().collect();
        if ids.is_empty() {
            return;
        }
        let id = ids[random.below(ids.len() as u32) as usize];
        let other = ids[random.below(ids.len() as u32) as usize];
        let (one, two) = (state.files[&id].clone(), state.files[&other].clone());
        // An ended process holds the old file, not this one.
        let mut bytes = one.lock().unwrap().clone();
        let length = bytes.len() as u32;
        if length == 0 {
            return;
        }
        let at = random.below(length) as usize;
        match random.below(6) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes.truncate(at),
            2 => {
                let end = bytes.len().min(at + 512);
                bytes[at..end].fill(0);
            }
            3 => {
                state.files.remove(&id);
                return;
            }
            4 => {
                state.files.insert(id, two);
                state.files.insert(other, one);
                return;
            }
            _ => {
                // A record moved over another, with its entry or without.
                let from = random.below(length) as usize;
                let count = (bytes.len() - at.max(from)).min(600);
                bytes.copy_within(from..from + count, at);
            }
        }
        state.files.insert(id, Arc::new(Mutex::new(bytes)));
    }
}

#[derive(Debug)]
struct DiskFile {
    disk: MemoryDisk,
    content: FileContent,
}

impl SegmentFile for DiskFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let content = self.content.lock().unwrap();
        let from = content.get(offset as usize..).unwrap_or_default();
        let from = from
            .get(..buffer.len())
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(from);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let written = {
            let mut state = self.disk.state();
            let written = state.budget.min(bytes.len() as u64);
            state.budget -= written;
            written as usize
        };
        let (offset, mut content) = (offset as usize, self.content.lock().unwrap());
        if written > 0 && content.len() < offset + written {
            content.resize(offset + written, 0);
        }
        if written > 0 {
            content[offset..offset + written].copy_from_slice(&bytes[..written]);
        }
        match written == bytes.len() {
            true => Ok(()),
            false => Err(io::ErrorKind::StorageFull.into()),
        }
    }
}

impl SegmentPlace for MemoryDisk {
    fn list(&self) -> io::Result<Vec<(SegmentId, u64)>> {
        let state = self.state();
        let length = |content: &FileContent| content.lock().unwrap().len() as u64;
        Ok(state
            .files
            .iter()
            .map(|(id, it)| (*id, length(it)))
            .collect())
    }

    fn create(&self, id: SegmentId) -> io::Result<Box<dyn SegmentFile>> {
        self.state().files.insert(id, FileContent::default());
        self.open(id)
    }

    fn open(&self, id: SegmentId) -> io::Result<Box<dyn SegmentFile>> {
        let content = self.state().files.get(&id).cloned();
        let content = content.ok_or(io::ErrorKind::NotFound)?;
        let disk = self.clone();
        Ok(Box::new(DiskFile { disk, content }))
    }

    fn remove(&self, id: SegmentId) -> io::Result<()> {
        let removed = self.state().files.remove(&id);
        removed.map(|_| ()).ok_or(io::ErrorKind::NotFound.into())
    }

    fn available(&self) -> io::Result<u64> {
        let size = self.state().size;
        Ok(size.saturating_sub(self.bytes()))
    }
}
