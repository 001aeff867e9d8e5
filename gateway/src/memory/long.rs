//! Memory for content that comes in megabytes, in pages as large as the processor has.
//!
//! A block of 4 MiB is a thousand pages of 4 KiB. An allocator gives so much back to the kernel as
//! soon as it is let go of, and gets it back page by page, each zeroed under a fault of its own. In
//! a virtual machine that takes microseconds, a good part of the time of writing a large file or of
//! reading it from the disk cache (docs/PERFORMANCE.md). In large pages it takes two faults. So
//! content that is long has memory of its own here, which the kernel is asked to give in large
//! pages where it has any; else it is the same memory. What is short is left to the allocator, and
//! so is what is longer than a block.
//!
//! Each mapping holds a block, so that any can be used for any. One that is let go of is put on a
//! *shelf*, up to a bound, with what is in it: whoever takes it overwrites that before anybody can
//! read it. All of it is plaintext; nothing that goes to a cloud is ever made here. What nobody has
//! taken from the shelf for a while goes back to the kernel.

use bytes::Bytes;
use memmap2::{Advice, MmapMut};
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a large page holds. Where it is more, the kernel finds nothing to make one of.
const LARGE_PAGE_BYTES: usize = 2 << 20;
/// What a mapping is made for.
pub(crate) const BLOCK_BYTES: usize = 2 * LARGE_PAGE_BYTES;
/// What may lie behind it: the tag of what is opened in place.
const TAIL_BYTES: usize = 4096;
/// What grows beyond this has a mapping: more than one write of the kernel is in it.
const LONG_BYTES: usize = BLOCK_BYTES / 4;
/// What never becomes longer than this has none: half of it would be for nothing.
const SHORT_BYTES_MAX: usize = BLOCK_BYTES / 2;
/// The shelf is emptied if nobody has taken anything from it for so long.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(30);

/// Mappings that nobody uses.
struct Shelf {
    free: Vec<MmapMut>,
    most: usize,
    used: Option<Instant>,
}

static SHELF: Mutex<Shelf> = Mutex::new(Shelf {
    free: Vec::new(),
    most: 4,
    used: None,
});

fn shelf() -> MutexGuard<'static, Shelf> {
    SHELF.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shelf {
    fn keep_at_most(&mut self, bytes: u64) {
        self.most = usize::try_from(bytes / BLOCK_BYTES as u64).unwrap_or(usize::MAX);
        self.free.truncate(self.most);
    }

    fn take(&mut self) -> Option<MmapMut> {
        self.used = Some(Instant::now());
        self.free.pop()
    }

    fn put(&mut self, map: Option<MmapMut>) {
        if self.free.len() < self.most {
            self.free.extend(map);
        }
    }

    fn give_back(&mut self, after: Duration) {
        let forgotten = |used: Instant| used.elapsed() >= after;
        if self.used.is_none_or(forgotten) {
            self.free.clear();
        }
    }
}

/// Sets how many bytes of memory that was let go of are kept for what comes next.
pub(crate) fn spare(bytes: u64) {
    shelf().keep_at_most(bytes);
}

/// Gives back to the kernel what nobody has wanted for a while; to be called now and then.
pub(crate) fn give_back_spare() {
    shelf().give_back(FORGOTTEN_AFTER);
}

/// A mapping, as long as it is used.
#[derive(Debug)]
struct Block(Option<MmapMut>);

impl Block {
    /// One for so many bytes, with whatever is in it; nothing if they do not fit, or the kernel has
    /// no memory.
    fn take(bytes: usize) -> Option<Self> {
        if bytes > BLOCK_BYTES + TAIL_BYTES {
            return None;
        }
        let used = shelf().take();
        if used.is_some() {
            return Some(Self(used));
        }
        // The kernel lays out on the borders of large pages only what is a multiple of them. What
        // nobody writes to takes no memory.
        let map = MmapMut::map_anon(BLOCK_BYTES + LARGE_PAGE_BYTES).ok()?;
        // It is the same memory if the kernel has no large pages.
        let _ = map.advise_range(Advice::HugePage, 0, BLOCK_BYTES);
        Some(Self(Some(map)))
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
        shelf().put(self.0.take());
    }
}

/// Where the bytes are.
#[derive(Debug)]
enum Memory {
    Allocated(Vec<u8>),
    Mapped(Block),
}

/// Bytes that may be many, and may become more.
#[derive(Debug)]
pub(crate) struct LongBytes {
    memory: Memory,
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
            memory: Memory::Allocated(bytes),
        }
    }

    /// So many bytes, whatever they are: all of them have to be written to before one is read.
    pub(crate) fn to_fill(length: usize) -> Self {
        let block = (length > SHORT_BYTES_MAX).then(|| Block::take(length));
        match block.flatten() {
            Some(block) => Self {
                memory: Memory::Mapped(block),
                length,
            },
            None => Self::of(vec![0; length]),
        }
    }

    /// The memory that it takes, in bytes.
    pub(crate) fn held(&self) -> usize {
        match &self.memory {
            Memory::Allocated(vec) => vec.len(),
            Memory::Mapped(_) => BLOCK_BYTES,
        }
    }

    /// Appends bytes. There will never be more than `most`.
    pub(crate) fn append(&mut self, bytes: &[u8], most: usize) {
        let longer = self.length.saturating_add(bytes.len());
        if matches!(self.memory, Memory::Allocated(_))
            && longer > LONG_BYTES
            && most > SHORT_BYTES_MAX
            && let Some(mut block) = Block::take(most.max(longer))
        {
            if let Some(to) = block.bytes_mut().get_mut(..self.length) {
                to.copy_from_slice(self);
            }
            self.memory = Memory::Mapped(block);
        }
        match &mut self.memory {
            Memory::Allocated(vec) => vec.extend_from_slice(bytes),
            Memory::Mapped(block) => match block.bytes_mut().get_mut(self.length..longer) {
                Some(to) => to.copy_from_slice(bytes),
                // More than was promised.
                None => {
                    let mut vec = self.to_vec();
                    vec.extend_from_slice(bytes);
                    self.memory = Memory::Allocated(vec);
                }
            },
        }
        self.length = longer;
    }

    /// Forgets what is behind `length`.
    pub(crate) fn truncate(&mut self, length: usize) {
        if length >= self.length {
            return;
        }
        self.length = length;
        if let Memory::Allocated(vec) = &mut self.memory {
            vec.truncate(length);
        }
    }

    /// The bytes, to be shared.
    pub(crate) fn share(self) -> Bytes {
        match self.memory {
            Memory::Allocated(vec) => Bytes::from(vec),
            Memory::Mapped(_) => Bytes::from_owner(self),
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
            Memory::Allocated(vec) => vec,
            Memory::Mapped(block) => block.bytes().get(..self.length).unwrap_or_default(),
        }
    }
}

impl DerefMut for LongBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        let length = self.length;
        match &mut self.memory {
            Memory::Allocated(vec) => vec,
            Memory::Mapped(block) => block.bytes_mut().get_mut(..length).unwrap_or_default(),
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
        matches!(bytes.memory, Memory::Mapped(_))
    }

    #[test]
    fn what_grows_keeps_its_bytes_wherever_they_are() {
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
    fn what_is_short_or_too_long_is_left_to_the_allocator() {
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
        assert!(!is_mapped(&short), "more than was promised");
        assert_eq!(short.len(), LONG_BYTES + 1 + 2 * BLOCK_BYTES);
        assert_eq!(short[LONG_BYTES - 1..][..3], [b'x', b'y', 7]);
    }

    #[test]
    fn the_shelf_is_bounded_and_emptied_when_nobody_takes_from_it() {
        let map = || Some(MmapMut::map_anon(4096).unwrap());
        let mut shelf = Shelf {
            free: Vec::new(),
            most: 0,
            used: None,
        };
        shelf.put(map());
        assert!(shelf.take().is_none(), "there was no room");
        shelf.keep_at_most(3 * BLOCK_BYTES as u64 + 1);
        for _ in 0..5 {
            shelf.put(map());
        }
        assert_eq!(shelf.free.len(), 3);
        shelf.give_back(FORGOTTEN_AFTER);
        assert!(shelf.take().is_some(), "somebody took one a moment ago");
        shelf.keep_at_most(BLOCK_BYTES as u64);
        assert_eq!(shelf.free.len(), 1);
        shelf.give_back(Duration::ZERO);
        assert!(shelf.take().is_none());
    }

    #[test]
    fn what_was_used_before_holds_what_it_is_filled_with() {
        for byte in 1..20 {
            let copy = LongBytes::copy_of(&vec![byte; BLOCK_BYTES - 1]);
            let part = copy.slice(BLOCK_BYTES - 5..);
            assert!(copy.iter().all(|it| *it == byte));
            drop(copy);
            assert_eq!(part, vec![byte; 4]);
        }
    }
}
