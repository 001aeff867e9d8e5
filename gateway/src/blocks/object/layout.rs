//! The position of each byte of an object: pure arithmetic.
//!
//! An object holds a *stream* of sealed segments. The stream is cut into *cells* of one size, the
//! last one shorter. Cell number `c` is cell `c / k` of data shard `c mod k`. The k cells at the
//! same position in their shards are a *row*; each parity shard has one cell for each row, as long
//! as the row's first.
//!
//! ```text
//! stream    0 │ 1 │ 2 │ 3 │ 4 │ 5 │ 6ₛ        (k = 2, 7 cells, the last one short)
//!
//! data 0    0   2   4   6ₛ                    rows 0 … 3
//! data 1    1   3   5
//! parity    p   p   p   pₛ
//! ```
//!
//! In its shard a cell is followed by its Merkle path, whose length is the same for all cells of
//! the object, so that the position of any cell follows from numbers in the metadata.

use super::header::HEADER_BYTES;
use super::segment::SEALED_SEGMENT_BYTES;

/// Bytes of a full cell: one sealed segment.
pub const CELL_BYTES: u32 = SEALED_SEGMENT_BYTES;
/// Bytes of one hash in a Merkle path.
pub(super) const HASH_BYTES: u64 = 32;

/// The shape of one object: its stream's length and its number of data shards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::blocks) struct Layout {
    length: u64,
    data: u64,
}

impl Layout {
    /// A stream of `length` bytes over `data` data shards. Both come from a checked policy and row.
    pub(in crate::blocks) fn new(length: u32, data: u8) -> Self {
        Self {
            length: u64::from(length),
            data: u64::from(data.max(1)),
        }
    }

    /// Bytes of the stream.
    pub(in crate::blocks) fn length(self) -> u64 {
        self.length
    }

    /// k.
    pub(in crate::blocks) fn data(self) -> u64 {
        self.data
    }

    /// Cells of the stream.
    pub(in crate::blocks) fn cells(self) -> u64 {
        self.length.div_ceil(u64::from(CELL_BYTES))
    }

    /// Rows of cells: cells of the first data shard and of every parity shard.
    pub(in crate::blocks) fn rows(self) -> u64 {
        self.cells().div_ceil(self.data)
    }

    /// Hashes in a Merkle path.
    pub(in crate::blocks) fn depth(self) -> u32 {
        self.rows().next_power_of_two().trailing_zeros()
    }

    /// Bytes of a cell of the stream.
    pub(super) fn cell_length(self, cell: u64) -> u64 {
        let begin = cell.saturating_mul(u64::from(CELL_BYTES));
        self.length.saturating_sub(begin).min(u64::from(CELL_BYTES))
    }

    /// Bytes of the longest cell of a row, which is the length of its parity cells.
    pub(super) fn row_length(self, row: u64) -> u64 {
        self.cell_length(row.saturating_mul(self.data))
    }

    /// Bytes of a shard's cell in a row; zero if it has none there.
    pub(in crate::blocks) fn shard_cell_length(self, shard: u64, row: u64) -> u64 {
        if shard < self.data {
            self.cell_length(row.saturating_mul(self.data).saturating_add(shard))
        } else {
            self.row_length(row)
        }
    }

    /// Cells of a shard.
    pub(in crate::blocks) fn shard_cells(self, shard: u64) -> u64 {
        let short_by_one = self
            .rows()
            .checked_sub(1)
            .is_some_and(|last| self.shard_cell_length(shard, last) == 0);
        self.rows() - u64::from(short_by_one)
    }

    /// Bytes of a cell's Merkle path.
    pub(super) fn path_length(self) -> u64 {
        u64::from(self.depth()) * HASH_BYTES
    }

    /// The position in the stored shard where a cell begins; its path follows it.
    pub(super) fn slot(self, row: u64) -> u64 {
        HEADER_BYTES + row * (u64::from(CELL_BYTES) + self.path_length())
    }

    /// Bytes of a stored shard.
    pub(in crate::blocks) fn stored_length(self, shard: u64) -> u64 {
        match self.shard_cells(shard).checked_sub(1) {
            None => HEADER_BYTES,
            Some(last) => {
                self.slot(last) + self.shard_cell_length(shard, last) + self.path_length()
            }
        }
    }

    /// Bytes of a shard's cells without paths, with zeros appended where a data shard is shorter
    /// than the parity: the input of the code.
    pub(super) fn payload_length(self) -> u64 {
        match self.rows().checked_sub(1) {
            None => 0,
            Some(last) => last * u64::from(CELL_BYTES) + self.row_length(last),
        }
    }
}

/// Bytes of a stored shard of an object whose stream has `length` bytes, over `data` data shards:
/// for plans, which have no object.
#[must_use]
pub fn shard_bytes(length: u32, data: u8, shard: u8) -> u64 {
    Layout::new(length, data).stored_length(u64::from(shard))
}

/// Bytes of a full cell of such an object with its path: the least that a read fetches.
#[must_use]
pub fn proved_cell_bytes(length: u32, data: u8) -> u64 {
    u64::from(CELL_BYTES) + Layout::new(length, data).path_length()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_byte_of_the_stream_lies_in_exactly_one_data_shard(
            length in 0u32..3_000_000, data in 1u8..8,
        ) {
            let layout = Layout::new(length, data);
            let mut sum = 0;
            for shard in 0..u64::from(data) {
                let cells = layout.shard_cells(shard);
                prop_assert!(cells == layout.rows() || cells + 1 == layout.rows());
                for row in 0..layout.rows() {
                    let bytes = layout.shard_cell_length(shard, row);
                    prop_assert_eq!(bytes > 0, row < cells);
                    prop_assert!(bytes <= layout.row_length(row));
                    sum += bytes;
                }
            }
            prop_assert_eq!(sum, u64::from(length));
            let parity = layout.stored_length(u64::from(data));
            prop_assert!(parity >= layout.stored_length(u64::from(data) - 1));
            prop_assert_eq!(parity, layout.stored_length(0));
            let paths = layout.rows() * layout.path_length();
            prop_assert_eq!(layout.payload_length() + paths + HEADER_BYTES, parity);
        }
    }
}
