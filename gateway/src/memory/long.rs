//! Memory for content that comes in megabytes, in pages as large as the processor has.
//!
//! A block of 4 MiB is a thousand pages of 4 KiB. An allocator gives so much back to the kernel as
//! soon as it is let go of, and gets it back page by page, each zeroed under a fault of its own: a
//! quarter of a microsecond on bare metal, up to some microseconds in a virtual machine, which was
//! half of the time of reading a large file from the disk cache (docs/PERFORMANCE.md). In large
//! pages it takes two faults. So content that is long has memory of its own here, which the kernel
//! is asked to give in large pages where it has any; it is the same memory otherwise. What is short
//! is left to the allocator.
//!
//! What is not written to takes no memory, but for the rest of a large page: half of what there is
//! at the worst.

use bytes::Bytes;
use memmap2::{Advice, MmapMut};
use std::ops::{Deref, DerefMut};

/// What a large page holds. Where it is more, the kernel finds nothing to make one of.
const LARGE_PAGE_BYTES: usize = 2 << 20;
/// What is shorter than this has its memory from the allocator.
const LONG_BYTES: usize = LARGE_PAGE_BYTES / 2;

/// Where the bytes are.
#[derive(Debug)]
enum Memory {
    Allocated(Vec<u8>),
    Mapped(MmapMut),
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

/// Memory that is zeros, if it is worth a mapping of its own and the kernel gives one.
fn map(bytes: usize) -> Option<MmapMut> {
    if bytes < LONG_BYTES {
        return None;
    }
    // The kernel lays out on the borders of large pages only what is a multiple of them.
    let map = MmapMut::map_anon(bytes.next_multiple_of(LARGE_PAGE_BYTES)).ok()?;
    // No large page for a tail that is short.
    let large = bytes.saturating_add(LONG_BYTES) / LARGE_PAGE_BYTES * LARGE_PAGE_BYTES;
    if large > 0 {
        // It is the same memory if the kernel has none.
        let _ = map.advise_range(Advice::HugePage, 0, large);
    }
    Some(map)
}

impl LongBytes {
    fn of(bytes: Vec<u8>) -> Self {
        Self {
            length: bytes.len(),
            memory: Memory::Allocated(bytes),
        }
    }

    /// So many zeros.
    pub(crate) fn zeros(length: usize) -> Self {
        match map(length) {
            Some(map) => Self {
                memory: Memory::Mapped(map),
                length,
            },
            None => Self::of(vec![0; length]),
        }
    }

    /// Appends bytes. There will never be more than `most`.
    pub(crate) fn append(&mut self, bytes: &[u8], most: usize) {
        let longer = self.length.saturating_add(bytes.len());
        if matches!(self.memory, Memory::Allocated(_))
            && longer >= LONG_BYTES
            && let Some(mut map) = map(most.max(longer))
        {
            if let Some(to) = map.get_mut(..self.length) {
                to.copy_from_slice(self);
            }
            self.memory = Memory::Mapped(map);
        }
        match &mut self.memory {
            Memory::Allocated(vec) => vec.extend_from_slice(bytes),
            Memory::Mapped(map) => match map.get_mut(self.length..longer) {
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
            Memory::Mapped(map) => map.get(..self.length).unwrap_or_default(),
        }
    }
}

impl DerefMut for LongBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Allocated(vec) => vec,
            Memory::Mapped(map) => map.get_mut(..self.length).unwrap_or_default(),
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
        let most = 4 << 20;
        for step in [1 << 10, 100_000, 1 << 20, 3 << 20] {
            let (mut long, mut same) = (LongBytes::default(), Vec::new());
            while same.len() < most {
                let more = vec![same.len() as u8 ^ 0x5a; step.min(most - same.len())];
                long.append(&more, most);
                same.extend_from_slice(&more);
                assert!(*long == *same, "{step} at a time, at {}", same.len());
            }
            assert!(is_mapped(&long));
            long[7] = 1;
            same[7] = 1;
            long.truncate(most - 5);
            same.truncate(most - 5);
            assert_eq!(long.len(), same.len());
            assert_eq!(long.share(), same);
        }
    }

    #[test]
    fn what_is_short_is_left_to_the_allocator() {
        let mut short = LongBytes::zeros(LONG_BYTES - 1);
        assert!(!is_mapped(&short));
        short.append(b"x", 4 << 20);
        assert!(is_mapped(&short));
        assert_eq!(short[LONG_BYTES - 1], b'x');
        assert!(short[..LONG_BYTES - 1].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn more_than_was_promised_is_taken_all_the_same() {
        let mut long = LongBytes::zeros(LARGE_PAGE_BYTES - 1);
        long.append(&[1, 2, 3], LARGE_PAGE_BYTES);
        long.append(&[4], LARGE_PAGE_BYTES);
        assert_eq!(long.len(), LARGE_PAGE_BYTES + 3);
        assert_eq!(long[LARGE_PAGE_BYTES - 2..], [0, 1, 2, 3, 4]);
        let copy = LongBytes::copy_of(&long);
        assert_eq!(copy, long.share());
    }
}
