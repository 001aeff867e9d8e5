//! Memory for content of several megabytes, in the processor's large pages.
//!
//! A block of 4 MiB is a thousand pages of 4 KiB. An allocator returns so much memory to the kernel
//! as soon as it is freed, and gets it back page by page, each zeroed under a fault of its own. In
//! a virtual machine that takes microseconds, a good part of the time of writing a large file or of
//! reading it from the disk cache (docs/PERFORMANCE.md). In large pages it takes two faults. So
//! long content has memory of its own here, for which the kernel is asked for large pages; without
//! them it is ordinary memory. Short content is left to the allocator, and so is content longer
//! than a block.
//!
//! Each mapping holds a block, so that all are interchangeable. A freed mapping goes to a pool with
//! its old content: its next user overwrites that before any byte can be read. All of it is
//! plaintext; nothing for a cloud is ever made here. The pool has no share of the memory budget:
//! mappings in use and in the pool are together no more than may be in use. Mappings that were
//! unused for a while are returned to the kernel.

use bytes::Bytes;
use memmap2::{Advice, MmapMut};
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The size of a large page. On processors with larger ones the kernel makes none here.
const LARGE_PAGE_BYTES: usize = 2 << 20;
/// The content size of a mapping.
pub(crate) const BLOCK_BYTES: usize = 2 * LARGE_PAGE_BYTES;
/// Space behind the content: the tag of content that is opened in place.
const TAIL_BYTES: usize = 4096;
/// Content that grows beyond this gets a mapping: it is more than one write of the kernel.
const LONG_BYTES: usize = BLOCK_BYTES / 4;
/// Content with a smaller maximum gets none: half of the mapping would be unused.
const SHORT_BYTES_MAX: usize = BLOCK_BYTES / 2;
/// A mapping that was unused for so long is returned to the kernel.
const UNUSED_AFTER: Duration = Duration::from_secs(30);

/// Unused mappings.
struct MappingPool {
    /// The last one was freed last.
    free: Vec<MmapMut>,
    /// How many are in use.
    used: usize,
    /// The most mappings, in use or here.
    most: usize,
    /// How many were here all the time since `since`.
    idle: usize,
    since: Option<Instant>,
}

static POOL: Mutex<MappingPool> = Mutex::new(MappingPool::new());

fn pool() -> MutexGuard<'static, MappingPool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MappingPool {
    const fn new() -> Self {
        Self {
            free: Vec::new(),
            used: 0,
            most: 4,
            idle: 0,
            since: None,
        }
    }

    fn keep_at_most(&mut self, bytes: u64) {
        self.most = usize::try_from(bytes / BLOCK_BYTES as u64).unwrap_or(usize::MAX);
        self.free.truncate(self.most.saturating_sub(self.used));
        self.idle = self.idle.min(self.free.len());
    }

    /// One more is in use: the returned one, or a new one.
    fn take(&mut self) -> Option<MmapMut> {
        self.used = self.used.saturating_add(1);
        let map = self.free.pop();
        self.idle = self.idle.min(self.free.len());
        map
    }

    /// A mapping was freed; returns it if the pool is full.
    fn put(&mut self, map: Option<MmapMut>) -> Option<MmapMut> {
        self.used = self.used.saturating_sub(1);
        if self.used.saturating_add(self.free.len()) >= self.most {
            return map;
        }
        self.free.extend(map);
        None
    }

    /// The mappings that were unused for so long.
    fn unused(&mut self, after: Duration) -> Vec<MmapMut> {
        if self.since.is_some_and(|since| since.elapsed() < after) {
            return Vec::new();
        }
        let idle = match self.since {
            Some(_) => self.idle,
            None => 0,
        };
        let unused = self.free.drain(..idle.min(self.free.len())).collect();
        (self.idle, self.since) = (self.free.len(), Some(Instant::now()));
        unused
    }
}

/// Sets how many bytes may be in use; the unused part may be pooled.
pub(crate) fn keep_at_most(bytes: u64) {
    pool().keep_at_most(bytes);
}

/// Returns unused mappings to the kernel; to be called at intervals.
pub(crate) fn give_back_spare() {
    let unused = pool().unused(UNUSED_AFTER);
    // The pool is not locked during the unmapping.
    drop(unused);
}

/// A mapping, as long as it is used.
#[derive(Debug)]
struct Block(Option<MmapMut>);

impl Block {
    /// A mapping for so many bytes, with arbitrary content; `None` if they do not fit, or the
    /// kernel has no memory.
    fn take(bytes: usize) -> Option<Self> {
        if bytes > BLOCK_BYTES + TAIL_BYTES {
            return None;
        }
        // From here on, dropping it returns it to the pool.
        let mut block = Self(pool().take());
        if block.0.is_some() {
            return Some(block);
        }
        // The kernel aligns only multiples of the large page size to large pages. Pages that are
        // never written take no memory.
        let map = MmapMut::map_anon(BLOCK_BYTES + LARGE_PAGE_BYTES).ok()?;
        // Without large pages it is ordinary memory.
        let _ = map.advise_range(Advice::HugePage, 0, BLOCK_BYTES);
        block.0 = Some(map);
        Some(block)
    }

    fn bytes(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.as_deref_mut().unwrap_or_default()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let too_many = pool().put(self.0.take());
        drop(too_many);
    }
}

/// The place of the bytes.
#[derive(Debug)]
enum LongMemory {
    Allocated(Vec<u8>),
    Mapped(Block),
}

/// Bytes that may be many, and may grow.
#[derive(Debug)]
pub(crate) struct LongBytes {
    memory: LongMemory,
    length: usize,
}

impl Default for LongBytes {
    fn default() -> Self {
        Self::of(Vec::new())
    }
}

impl LongBytes {
    fn of(bytes: Vec<u8>) -> Self {
        Self {
            length: bytes.len(),
            memory: LongMemory::Allocated(bytes),
        }
    }

    /// So many arbitrary bytes: all of them have to be written before one is read.
    pub(crate) fn to_fill(length: usize) -> Self {
        let block = (length > SHORT_BYTES_MAX).then(|| Block::take(length));
        match block.flatten() {
            Some(block) => Self {
                memory: LongMemory::Mapped(block),
                length,
            },
            None => Self::of(vec![0; length]),
        }
    }

    /// The memory that it takes, in bytes.
    pub(crate) fn held(&self) -> usize {
        match &self.memory {
            LongMemory::Allocated(vec) => vec.len(),
            LongMemory::Mapped(_) => BLOCK_BYTES,
        }
    }

    /// Appends bytes. There will never be more than `most`.
    pub(crate) fn append(&mut self, bytes: &[u8], most: usize) {
        let longer = self.length.saturating_add(bytes.len());
        if matches!(self.memory, LongMemory::Allocated(_))
            && longer > LONG_BYTES
            && most > SHORT_BYTES_MAX
            && let Some(mut block) = Block::take(most.max(longer))
        {
            if let Some(to) = block.bytes_mut().get_mut(..self.length) {
                to.copy_from_slice(self);
            }
            self.memory = LongMemory::Mapped(block);
        }
        match &mut self.memory {
            LongMemory::Allocated(vec) => vec.extend_from_slice(bytes),
            LongMemory::Mapped(block) => match block.bytes_mut().get_mut(self.length..longer) {
                Some(to) => to.copy_from_slice(bytes),
                // More than was announced.
                None => {
                    let mut vec = self.to_vec();
                    vec.extend_from_slice(bytes);
                    self.memory = LongMemory::Allocated(vec);
                }
            },
        }
        self.length = longer;
    }

    /// Drops the bytes behind `length`.
    pub(crate) fn truncate(&mut self, length: usize) {
        if length >= self.length {
            return;
        }
        self.length = length;
        if let LongMemory::Allocated(vec) = &mut self.memory {
            vec.truncate(length);
        }
    }

    /// The bytes, to be shared.
    pub(crate) fn share(self) -> Bytes {
        match self.memory {
            LongMemory::Allocated(vec) => Bytes::from(vec),
            LongMemory::Mapped(_) => Bytes::from_owner(self),
        }
    }

    /// A copy of `bytes`, to be shared.
    pub(crate) fn copy_of(bytes: &[u8]) -> Bytes {
        let mut copy = Self::default();
        copy.append(bytes, bytes.len());
        copy.share()
    }
}

impl Deref for LongBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.memory {
            LongMemory::Allocated(vec) => vec,
            LongMemory::Mapped(block) => block.bytes().get(..self.length).unwrap_or_default(),
        }
    }
}

impl DerefMut for LongBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        let length = self.length;
        match &mut self.memory {
            LongMemory::Allocated(vec) => vec,
            LongMemory::Mapped(block) => block.bytes_mut().get_mut(..length).unwrap_or_default(),
        }
    }
}

impl AsRef<[u8]> for LongBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_mapped(bytes: &LongBytes) -> bool {
        matches!(bytes.memory, LongMemory::Mapped(_))
    }

    #[test]
    fn growing_content_keeps_its_bytes_in_every_kind_of_memory() {
        for step in [1 << 10, 100_000, 1 << 20, 3 << 20] {
            let (mut long, mut same) = (LongBytes::default(), Vec::new());
            while same.len() < BLOCK_BYTES {
                let more = vec![same.len() as u8 ^ 0x5a; step.min(BLOCK_BYTES - same.len())];
                long.append(&more, BLOCK_BYTES);
                same.extend_from_slice(&more);
                assert!(*long == *same, "{step} at a time, at {}", same.len());
                let held = if is_mapped(&long) {
                    BLOCK_BYTES
                } else {
                    same.len()
                };
                assert_eq!(long.held(), held);
            }
            assert!(is_mapped(&long));
            long[7] = 1;
            same[7] = 1;
            long.truncate(BLOCK_BYTES - 5);
            same.truncate(BLOCK_BYTES - 5);
            assert_eq!(long.len(), same.len());
            assert_eq!(long.share(), same);
        }
    }

    #[test]
    fn short_and_too_long_content_is_left_to_the_allocator() {
        let mut short = LongBytes::to_fill(LONG_BYTES - 1);
        assert!(!is_mapped(&short) && !is_mapped(&LongBytes::to_fill(SHORT_BYTES_MAX)));
        short.append(b"x", SHORT_BYTES_MAX);
        assert!(!is_mapped(&short));
        short.append(b"y", BLOCK_BYTES);
        assert!(is_mapped(&short));
        assert_eq!(short[LONG_BYTES - 2..], [0, b'x', b'y']);
        assert!(is_mapped(&LongBytes::to_fill(BLOCK_BYTES + TAIL_BYTES)));
        assert!(!is_mapped(&LongBytes::to_fill(
            BLOCK_BYTES + TAIL_BYTES + 1
        )));
        short.append(&vec![7; 2 * BLOCK_BYTES], BLOCK_BYTES);
        assert!(!is_mapped(&short), "more than was announced");
        assert_eq!(short.len(), LONG_BYTES + 1 + 2 * BLOCK_BYTES);
        assert_eq!(short[LONG_BYTES - 1..][..3], [b'x', b'y', 7]);
    }

    #[test]
    fn mappings_in_use_and_in_the_pool_are_bounded_together() {
        let map = || Some(MmapMut::map_anon(4096).unwrap());
        let mut pool = MappingPool::new();
        pool.keep_at_most(3 * BLOCK_BYTES as u64 + 1);
        for _ in 0..5 {
            assert!(pool.take().is_none(), "there is none yet");
        }
        for kept in [false, false, true, true, true] {
            assert_eq!(pool.put(map()).is_none(), kept, "{} in use", pool.used);
        }
        assert_eq!((pool.used, pool.free.len()), (0, 3));
        assert!(pool.take().is_some());
        pool.keep_at_most(2 * BLOCK_BYTES as u64);
        assert_eq!((pool.used, pool.free.len()), (1, 1));
        pool.keep_at_most(0);
        assert!(pool.put(map()).is_some() && pool.free.is_empty());
    }

    #[test]
    fn mappings_unused_since_the_last_check_are_returned() {
        let mut pool = MappingPool::new();
        pool.keep_at_most(8 * BLOCK_BYTES as u64);
        let mut in_use: Vec<_> = (0..6).map(|_| pool.take()).collect();
        assert!(pool.unused(UNUSED_AFTER).is_empty());
        for map in &mut in_use {
            *map = Some(MmapMut::map_anon(4096).unwrap());
            assert!(pool.put(map.take()).is_none());
        }
        assert!(
            pool.unused(Duration::ZERO).is_empty(),
            "they have just arrived"
        );
        let two = [pool.take(), pool.take()];
        two.into_iter()
            .for_each(|map| assert!(pool.put(map).is_none()));
        assert!(pool.unused(UNUSED_AFTER).is_empty(), "not yet");
        assert_eq!(pool.unused(Duration::ZERO).len(), 4);
        assert_eq!(pool.unused(Duration::ZERO).len(), 2);
        assert!(pool.take().is_none());
    }

    #[test]
    fn a_reused_mapping_holds_its_new_content() {
        for byte in 1..20 {
            let copy = LongBytes::copy_of(&vec![byte; BLOCK_BYTES - 1]);
            let part = copy.slice(BLOCK_BYTES - 5..);
            assert!(copy.iter().all(|it| *it == byte));
            drop(copy);
            assert_eq!(part, vec![byte; 4]);
        }
    }
}
