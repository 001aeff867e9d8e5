//! Buffers for shards and for plaintext, used again and again.
//!
//! A block's shards are some megabytes that live for as long as their puts take. An allocator gives
//! memory of that size back to the kernel at once and gets it back page by page, each page zeroed
//! under a fault, which was a fifth of the time of opening a block (docs/PERFORMANCE.md). So large
//! buffers go to a shelf when their last reader drops them, up to a bound in bytes, and come back
//! with their old content, which is overwritten completely.
//!
//! **Plaintext and ciphertext never share a shelf.** [`Buffers`] hold what goes to clouds; if ever
//! a byte of one were not overwritten, a cloud would see a byte that some cloud has seen before.
//! [`PlainBuffers`] hold what was opened, and have a type of their own, so that nothing that is
//! uploaded can be made in one. They are not wiped when they come back: the same bytes were just
//! handed to whoever read them, the allocator does not wipe what it is given back either, and
//! whoever can look into this process finds the keys.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Sizes are rounded up to a multiple of this; what is smaller is left to the allocator.
const GRAIN_BYTES: usize = 256 << 10;

#[derive(Default)]
struct Free {
    by_size: BTreeMap<usize, Vec<Vec<u8>>>,
    bytes: usize,
}

struct Shelf {
    bytes_max: usize,
    free: Mutex<Free>,
}

impl Shelf {
    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where buffers come from.
#[derive(Clone)]
pub(super) struct Buffers(Arc<Shelf>);

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffers({} bytes free)", self.0.free().bytes)
    }
}

/// A buffer of a certain length with arbitrary content.
pub(super) struct Buffer {
    bytes: Vec<u8>,
    length: usize,
    shelf: Arc<Shelf>,
}

impl Buffers {
    /// Keeps at most `bytes_max` bytes for later.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self(Arc::new(Shelf {
            bytes_max,
            free: Mutex::default(),
        }))
    }

    /// A buffer of `length` bytes.
    pub(super) fn take(&self, length: usize) -> Buffer {
        let size = if length < GRAIN_BYTES {
            length
        } else {
            length.next_multiple_of(GRAIN_BYTES)
        };
        let mut free = self.0.free();
        let found = free.by_size.get_mut(&size).and_then(Vec::pop);
        if found.is_some() {
            free.bytes = free.bytes.saturating_sub(size);
        }
        drop(free);
        let bytes = found.unwrap_or_else(|| vec![0; size]);
        Buffer {
            bytes,
            length,
            shelf: Arc::clone(&self.0),
        }
    }
}

/// Where buffers for plaintext come from.
#[derive(Clone, Debug)]
pub(super) struct PlainBuffers(Buffers);

impl PlainBuffers {
    /// Keeps at most `bytes_max` bytes for later.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self(Buffers::new(bytes_max))
    }

    /// A buffer of `length` bytes.
    pub(super) fn take(&self, length: usize) -> Buffer {
        self.0.take(length)
    }
}

impl Buffer {
    /// The bytes, for whoever fills them.
    pub(super) fn as_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(..self.length).unwrap_or_default()
    }

    /// The bytes, to be shared; the buffer goes back when the last one lets go.
    pub(super) fn share(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let size = self.bytes.len();
        let mut free = self.shelf.free();
        if size >= GRAIN_BYTES && free.bytes.saturating_add(size) <= self.shelf.bytes_max {
            free.bytes += size;
            free.by_size
                .entry(size)
                .or_default()
                .push(std::mem::take(&mut self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_buffer_comes_back_when_its_last_reader_lets_go_and_the_shelf_is_bounded() {
        let buffers = Buffers::new(2 * GRAIN_BYTES);
        let mut buffer = buffers.take(GRAIN_BYTES - 7);
        assert_eq!(buffer.as_mut().len(), GRAIN_BYTES - 7);
        drop(buffer);
        assert_eq!(buffers.0.free().bytes, 0, "too small to be kept");

        let mut buffer = buffers.take(GRAIN_BYTES);
        buffer.as_mut().fill(7);
        let shared = buffer.share();
        let reader = shared.slice(5..);
        drop(shared);
        assert_eq!(buffers.0.free().bytes, 0);
        assert!(reader.iter().all(|byte| *byte == 7));
        drop(reader);
        assert_eq!(buffers.0.free().bytes, GRAIN_BYTES);

        let many: Vec<_> = (0..5).map(|_| buffers.take(GRAIN_BYTES)).collect();
        assert_eq!(buffers.0.free().bytes, 0);
        drop(many);
        assert_eq!(buffers.0.free().bytes, 2 * GRAIN_BYTES);
    }
}
