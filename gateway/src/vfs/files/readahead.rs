//! How much to prefetch for a sequential reader.
//!
//! The kernel's own readahead stops at 128 KiB, which hides nothing of a cloud's latency. An open
//! file that is read in order gets a window that grows up to the bound; a jump closes it again, and
//! stops fetches in flight, which behind a slow link may block everything else for half a minute.
//! It begins at four times the size of one request, which is what a reader may have in flight at a
//! time. While it is small it grows fourfold, since each growth waits for the fetch before, and a
//! file may begin on a slow cloud; half of it is fetched at a time. From a block on it doubles, and
//! whole blocks are fetched, aligned to the slices of a writer that began at the file's beginning:
//! one request then brings a whole shard instead of parts of it.

/// The least window, in bytes.
const WINDOW_MIN: u64 = 256 << 10;

/// Requests in flight at the same time for one reader, about.
const SIDE_BY_SIDE: u64 = 4;

/// Bytes of a large file that are fetched together.
const BLOCK_BYTES: u64 = super::dirty::RUN_BYTES_MAX as u64;

/// The effect of a read on the prefetch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::vfs) enum Prefetch {
    /// The fetches in flight are enough.
    Enough,
    /// Fetch this next.
    Fetch(std::ops::Range<u64>),
    /// The reader jumped: no fetch in flight is wanted.
    Stop,
}

/// What one open file handle has read so far.
#[derive(Debug, Clone, Copy)]
pub(in crate::vfs) struct Readahead {
    /// Where the next read of a sequential reader begins.
    expected: u64,
    /// How much to prefetch, in bytes; 0 while the reader jumps.
    window: u64,
    /// Up to where data has been fetched.
    fetched: u64,
    window_max: u64,
}

impl Readahead {
    pub(in crate::vfs) fn new(window_max: u64) -> Self {
        Self {
            expected: 0,
            window: 0,
            fetched: 0,
            window_max,
        }
    }

    /// A read begins.
    pub(in crate::vfs) fn on_read(&mut self, offset: u64, length: u64) -> Prefetch {
        let end = offset.saturating_add(length);
        // One large read arrives as several parallel requests, in any order.
        let close = length.saturating_mul(SIDE_BY_SIDE).max(WINDOW_MIN);
        let near = offset.abs_diff(self.expected) <= close;
        if !near {
            *self = Self {
                expected: end,
                ..Self::new(self.window_max)
            };
            return Prefetch::Stop;
        }
        self.expected = self.expected.max(end);
        let growth = if self.window < BLOCK_BYTES { 4 } else { 2 };
        let grown = self.window.saturating_mul(growth).max(close);
        self.window = grown.min(self.window_max.max(1));
        let mut until = self.expected.saturating_add(self.window);
        let from = self.fetched.max(end);
        if self.window >= BLOCK_BYTES {
            until = until / BLOCK_BYTES * BLOCK_BYTES;
        }
        // Not in small pieces of one request.
        if until.saturating_sub(from) < BLOCK_BYTES.min(self.window / 2) {
            return Prefetch::Enough;
        }
        self.fetched = until;
        Prefetch::Fetch(from..until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequential_reader_always_has_prefetched_data() {
        let mut readahead = Readahead::new(8 << 20);
        let (mut fetched, mut asked) = (0u64, 0);
        for number in 0..512u64 {
            let offset = number * (128 << 10);
            if let Prefetch::Fetch(range) = readahead.on_read(offset, 128 << 10) {
                assert!(range.start >= fetched, "nothing is fetched twice");
                fetched = range.end;
                asked += 1;
            }
            assert!(fetched > offset + (128 << 10));
        }
        assert!(
            fetched <= 512 * (128 << 10) + (8 << 20),
            "and not beyond the bound"
        );
        assert!(asked < 40, "in large pieces, not {asked}");
    }

    #[test]
    fn large_reads_are_prefetched_in_whole_blocks_from_the_first_read_on() {
        let mut readahead = Readahead::new(48 << 20);
        let first = readahead.on_read(0, 1 << 20);
        assert_eq!(first, Prefetch::Fetch(1 << 20..BLOCK_BYTES));
        let next = readahead.on_read(1 << 20, 1 << 20);
        assert_eq!(next, Prefetch::Fetch(BLOCK_BYTES..2 * BLOCK_BYTES));
    }

    #[test]
    fn parallel_requests_in_any_order_are_one_reader() {
        const PIECE: u64 = 1 << 20;
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [3, 0, 1, 2], [1, 3, 0, 2]] {
            let (mut readahead, mut fetched) = (Readahead::new(48 << 20), 0);
            for block in 0..20 {
                for piece in order {
                    let offset = (block * SIDE_BY_SIDE + piece) * PIECE;
                    if let Prefetch::Fetch(range) = readahead.on_read(offset, PIECE) {
                        assert!(range.start >= fetched, "nothing is fetched twice");
                        fetched = range.end;
                    }
                }
                let asked = (block + 1) * SIDE_BY_SIDE * PIECE;
                assert!(fetched >= asked + BLOCK_BYTES, "{order:?}: {fetched}");
            }
        }
    }

    #[test]
    fn a_reader_that_jumps_gets_no_prefetch() {
        let mut readahead = Readahead::new(8 << 20);
        assert!((1..100u64).all(|n| {
            let offset = n * 977 % 64 * (1 << 20) + (1 << 20);
            readahead.on_read(offset, 4096) == Prefetch::Stop
        }));
    }
}
