//! Reusable buffers for shards and plaintext.
//!
//! A block's shards are some megabytes that live for as long as their puts take. An allocator
//! returns memory of that size to the kernel at once and gets it back page by page, each page
//! zeroed under a fault. That was a fifth of the time of opening a block (docs/PERFORMANCE.md). So
//! a large buffer goes to a pool, bounded in bytes, when its last reader drops it. It comes out of
//! the pool with its old content, which the next user overwrites completely.
//!
//! **Plaintext and ciphertext never share a pool.** [`Buffers`] hold bytes for clouds: if one byte
//! were not overwritten, a cloud would see a byte that some cloud has seen before. [`PlainBuffers`]
//! hold opened bytes and have a type of their own, so that no upload can be built in one. They are
//! not wiped on their return: the same bytes were just given to their reader, the allocator does
//! not wipe freed memory either, and an attacker who can read this process finds the keys.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Sizes are rounded up to a multiple of this; the allocator serves smaller ones.
const GRAIN_BYTES: usize = 256 << 10;

#[derive(Default)]
struct FreeBuffers {
    by_size: BTreeMap<usize, Vec<Vec<u8>>>,
    bytes: usize,
}

struct BufferPool {
    bytes_max: usize,
    free: Mutex<FreeBuffers>,
}

impl BufferPool {
    fn free(&self) -> MutexGuard<'_, FreeBuffers> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A source of buffers.
#[derive(Clone)]
pub(in crate::blocks) struct Buffers(Arc<BufferPool>);

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffers({} bytes free)", self.0.free().bytes)
    }
}

/// A buffer of a certain length with arbitrary content.
pub(in crate::blocks) struct Buffer {
    bytes: Vec<u8>,
    length: usize,
    pool: Arc<BufferPool>,
}

impl Buffers {
    /// Keeps at most `bytes_max` bytes in the pool.
    pub(in crate::blocks) fn new(bytes_max: usize) -> Self {
        Self(Arc::new(BufferPool {
            bytes_max,
            free: Mutex::default(),
        }))
    }

    /// A buffer of `length` bytes.
    pub(in crate::blocks) fn take(&self, length: usize) -> Buffer {
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
            pool: Arc::clone(&self.0),
        }
    }
}

/// A source of buffers for plaintext.
#[derive(Clone, Debug)]
pub(in crate::blocks) struct PlainBuffers(Buffers);

impl PlainBuffers {
    /// Keeps at most `bytes_max` bytes in the pool.
    pub(in crate::blocks) fn new(bytes_max: usize) -> Self {
        Self(Buffers::new(bytes_max))
    }

    /// A buffer of `length` bytes.
    pub(in crate::blocks) fn take(&self, length: usize) -> Buffer {
        self.0.take(length)
    }
}

impl Buffer {
    /// The bytes, to be filled.
    pub(in crate::blocks) fn as_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(..self.length).unwrap_or_default()
    }

    /// The bytes, to be shared; the buffer returns to the pool when the last reference is dropped.
    pub(in crate::blocks) fn share(self) -> Bytes {
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
        let mut free = self.pool.free();
        if size >= GRAIN_BYTES && free.bytes.saturating_add(size) <= self.pool.bytes_max {
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
    fn a_large_buffer_comes_back_when_its_last_reader_drops_it_and_the_pool_is_bounded() {
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
