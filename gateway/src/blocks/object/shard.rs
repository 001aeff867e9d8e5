//! From a slice to the bytes on n clouds, and back from any k of them.
//!
//! Everything here is a pure function of its arguments: sealing the same bytes under the same ids
//! and keys gives the same shards, and so does rebuilding one from k others. That is why completion
//! and repair can restore exactly the shard whose digest the metadata holds.
//!
//! *Encoding* goes row by row, so that a row's k cells are sealed, coded and hashed while they are
//! in the processor's cache. *Checking* takes a whole shard, or a run of its cells, and tells
//! whether the metadata's digest covers it; no byte is interpreted before that. *Rebuilding* turns
//! k checked shards into all n and compares every one with its digest. The digests of the data
//! shards define the content, so a rebuilt shard that does not match convicts the writer and not a
//! cloud.

use super::buffers::{Buffer, Buffers};
use super::code::Code;
use super::error::BlockError;
use super::header::{HEADER_BYTES, HeaderBytes};
use super::layout::{CELL_BYTES, Layout};
use super::merkle::{MerkleTree, leaf, proves};
use super::open::Cells;
use super::stored::StoredObject;
use super::stream::{Content, Stream};
use bytes::Bytes;
use quorumfs_bft::identity::Digest;
use std::ops::Range;

/// A stored shard, with its digest.
#[derive(Clone, Debug)]
pub(in crate::blocks) struct ShardBytes {
    pub(in crate::blocks) body: Bytes,
    pub(in crate::blocks) digest: Digest,
}

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// The bytes of a cell in a buffer, by its layout.
fn cut(buffer: &[u8], begin: u64, length: u64) -> &[u8] {
    buffer
        .get(size(begin)..size(begin + length))
        .unwrap_or_default()
}

/// The same for writing; a buffer that is too short gives an empty part, which its user refuses.
fn cut_mut(buffer: &mut [u8], begin: u64, length: u64) -> &mut [u8] {
    buffer
        .get_mut(size(begin)..size(begin + length))
        .unwrap_or_default()
}

/// Fills one shard's buffer cell by cell; paths come last, when all cells are known.
struct Builder {
    layout: Layout,
    shard: u64,
    buffer: Buffer,
    leaves: Vec<[u8; 32]>,
}

impl Builder {
    fn new(layout: Layout, shard: u64, header: &HeaderBytes, buffers: &Buffers) -> Self {
        let mut buffer = buffers.take(size(layout.stored_length(shard)));
        for (to, from) in buffer.as_mut().iter_mut().zip(header) {
            *to = *from;
        }
        let leaves = Vec::with_capacity(size(layout.rows()));
        Self {
            layout,
            shard,
            buffer,
            leaves,
        }
    }

    /// Bytes of the cell of a row.
    fn cell_length(&self, row: u64) -> u64 {
        self.layout.shard_cell_length(self.shard, row)
    }

    fn cell(&self, row: u64) -> &[u8] {
        cut(
            self.buffer.as_ref(),
            self.layout.slot(row),
            self.cell_length(row),
        )
    }

    fn cell_mut(&mut self, row: u64) -> &mut [u8] {
        let length = self.cell_length(row);
        cut_mut(self.buffer.as_mut(), self.layout.slot(row), length)
    }

    /// Hashes the cell of the next row, if there is one.
    fn end_cell(&mut self, row: u64) {
        if self.cell_length(row) > 0 {
            self.leaves.push(leaf(self.cell(row)));
        }
    }

    fn finish(mut self, header: &HeaderBytes) -> ShardBytes {
        let layout = self.layout;
        let tree = MerkleTree::new(std::mem::take(&mut self.leaves), layout.depth());
        for row in 0..layout.shard_cells(self.shard) {
            let begin = layout.slot(row) + self.cell_length(row);
            let place = cut_mut(self.buffer.as_mut(), begin, layout.path_length());
            for (to, hash) in place
                .as_chunks_mut::<32>()
                .0
                .iter_mut()
                .zip(tree.path(size(row)))
            {
                *to = *hash;
            }
        }
        ShardBytes {
            digest: tree.digest(header),
            body: self.buffer.share(),
        }
    }
}

/// Seals slices, which follow each other in the stream, and codes them into n shards.
pub(in crate::blocks) fn encode(
    layout: Layout,
    code: &Code,
    headers: &[HeaderBytes],
    contents: &[Content<'_>],
    buffers: &Buffers,
) -> Result<Vec<ShardBytes>, BlockError> {
    let mut stream = Stream::new(contents);
    check_length(layout, stream.length())?;
    encode_cells(layout, code, headers, buffers, |cell| stream.fill(cell))
}

/// Codes a previously sealed stream into n shards.
pub(in crate::blocks) fn encode_sealed(
    layout: Layout,
    code: &Code,
    headers: &[HeaderBytes],
    stream: &[u8],
    buffers: &Buffers,
) -> Result<Vec<ShardBytes>, BlockError> {
    check_length(layout, stream.len() as u64)?;
    let mut rest = stream;
    encode_cells(layout, code, headers, buffers, |cell| {
        let (part, behind) = rest.split_at(cell.len().min(rest.len()));
        for (to, from) in cell.iter_mut().zip(part) {
            *to = *from;
        }
        rest = behind;
        Ok(())
    })
}

fn check_length(layout: Layout, length: u64) -> Result<(), BlockError> {
    if length == layout.length() {
        return Ok(());
    }
    Err(BlockError::Length {
        what: "an object's slices",
        length,
        most: layout.length(),
    })
}

/// Fills the data shards cell by cell, in the order of the stream, and makes the parity.
fn encode_cells(
    layout: Layout,
    code: &Code,
    headers: &[HeaderBytes],
    buffers: &Buffers,
    mut fill: impl FnMut(&mut [u8]) -> Result<(), BlockError>,
) -> Result<Vec<ShardBytes>, BlockError> {
    let mut shards: Vec<Builder> = (0u64..)
        .zip(headers)
        .map(|(shard, header)| Builder::new(layout, shard, header, buffers))
        .collect();
    for row in 0..layout.rows() {
        let (data, parity) = shards
            .split_at_mut_checked(size(layout.data()))
            .unwrap_or_default();
        for shard in data.iter_mut() {
            fill(shard.cell_mut(row))?;
        }
        encode_row(layout, code, row, data, parity)?;
        for shard in &mut shards {
            shard.end_cell(row);
        }
    }
    Ok(shards
        .into_iter()
        .zip(headers)
        .map(|(shard, header)| shard.finish(header))
        .collect())
}

/// Computes a row's parity. In the last row data cells may be short or absent: a copy fills them up
/// with zeros.
fn encode_row(
    layout: Layout,
    code: &Code,
    row: u64,
    data: &[Builder],
    parity: &mut [Builder],
) -> Result<(), BlockError> {
    let length = layout.row_length(row);
    let is_whole = |shard: &&Builder| shard.cell_length(row) == length;
    let padded: Vec<Vec<u8>> = data
        .iter()
        .filter(|shard| !is_whole(shard))
        .map(|shard| {
            let mut copy = shard.cell(row).to_vec();
            copy.resize(size(length), 0);
            copy
        })
        .collect();
    // Only the end of the stream is short: the whole cells are the first.
    let cells: Vec<&[u8]> = data
        .iter()
        .filter(is_whole)
        .map(|shard| shard.cell(row))
        .chain(padded.iter().map(Vec::as_slice))
        .collect();
    let mut coded: Vec<&mut [u8]> = parity.iter_mut().map(|shard| shard.cell_mut(row)).collect();
    code.encode(&cells, &mut coded)
}

/// The position of the cells of `rows` in the stored shard, paths included.
pub(in crate::blocks) fn cells_range(layout: Layout, shard: u64, rows: &Range<u64>) -> Range<u64> {
    match rows.end.checked_sub(1) {
        Some(last) if rows.start < rows.end => {
            let end = layout.slot(last) + layout.shard_cell_length(shard, last);
            layout.slot(rows.start)..end + layout.path_length()
        }
        _ => HEADER_BYTES..HEADER_BYTES,
    }
}

/// Checks the bytes of `rows` against the shard's digest and takes the cells out of them; `None` if
/// any byte differs.
pub(in crate::blocks) fn check_cells(
    layout: Layout,
    shard: u64,
    rows: &Range<u64>,
    header: &HeaderBytes,
    digest: &Digest,
    bytes: &Bytes,
) -> Option<Vec<Bytes>> {
    let range = cells_range(layout, shard, rows);
    if bytes.len() as u64 != range.end - range.start {
        return None;
    }
    let mut cells = Vec::with_capacity(size(rows.end.saturating_sub(rows.start)));
    for row in rows.clone() {
        let begin = size(layout.slot(row) - range.start);
        let middle = begin + size(layout.shard_cell_length(shard, row));
        let end = middle + size(layout.path_length());
        let (cell, path) = (bytes.get(begin..middle)?, bytes.get(middle..end)?);
        if !proves(digest, header, row, cell, path, layout.depth()) {
            return None;
        }
        cells.push(bytes.slice(begin..middle));
    }
    Some(cells)
}

/// Checks a whole shard, header, every cell and every path, and takes its cells out of it, padded
/// to the length that the code requires.
pub(in crate::blocks) fn check_whole(
    layout: Layout,
    shard: u64,
    header: &HeaderBytes,
    digest: &Digest,
    body: &[u8],
) -> Option<Vec<u8>> {
    if body.len() as u64 != layout.stored_length(shard) || !body.starts_with(header) {
        return None;
    }
    let mut payload = Vec::with_capacity(size(layout.payload_length()));
    let mut leaves = Vec::with_capacity(size(layout.rows()));
    for row in 0..layout.shard_cells(shard) {
        let cell = cut(body, layout.slot(row), layout.shard_cell_length(shard, row));
        leaves.push(leaf(cell));
        payload.extend_from_slice(cell);
    }
    let tree = MerkleTree::new(leaves, layout.depth());
    if tree.digest(header) != *digest {
        return None;
    }
    for row in 0..layout.shard_cells(shard) {
        let begin = layout.slot(row) + layout.shard_cell_length(shard, row);
        let path = cut(body, begin, layout.path_length());
        if !path.as_chunks::<32>().0.iter().eq(tree.path(size(row))) {
            return None;
        }
    }
    payload.resize(size(layout.payload_length()), 0);
    Some(payload)
}

/// A shard's cells without a check: a defect that simulations look for.
pub(in crate::blocks) fn unchecked(layout: Layout, shard: u64, body: &[u8]) -> Option<Vec<u8>> {
    if body.len() as u64 != layout.stored_length(shard) {
        return None;
    }
    let mut payload = Vec::with_capacity(size(layout.payload_length()));
    for row in 0..layout.shard_cells(shard) {
        let length = layout.shard_cell_length(shard, row);
        payload.extend_from_slice(cut(body, layout.slot(row), length));
    }
    payload.resize(size(layout.payload_length()), 0);
    Some(payload)
}

/// Makes a shard from its payload, the inverse of [`check_whole`].
pub(in crate::blocks) fn assemble(
    layout: Layout,
    shard: u64,
    header: &HeaderBytes,
    payload: &[u8],
    buffers: &Buffers,
) -> ShardBytes {
    let mut builder = Builder::new(layout, shard, header, buffers);
    for row in 0..layout.shard_cells(shard) {
        let begin = row * u64::from(CELL_BYTES);
        let cell = cut(payload, begin, builder.cell_length(row));
        let place = builder.cell_mut(row);
        if place.len() == cell.len() {
            place.copy_from_slice(cell);
        }
        builder.end_cell(row);
    }
    builder.finish(header)
}

/// A whole object, rebuilt from k shards.
#[derive(Debug)]
pub(in crate::blocks) struct Rebuilt {
    layout: Layout,
    payloads: Vec<Vec<u8>>,
    /// Parity shards without the digest in the metadata: the writer's fault.
    pub(in crate::blocks) wrong_parity: Vec<usize>,
}

impl Rebuilt {
    /// Rebuilds all payloads from k checked ones. `unverified` skips the comparison with the
    /// digests, which is a defect that simulations look for.
    ///
    /// # Errors
    /// `WrittenWrong` if a rebuilt data shard does not have its digest.
    pub(in crate::blocks) fn new(
        object: &StoredObject,
        code: &Code,
        headers: &[HeaderBytes],
        mut payloads: Vec<Option<Vec<u8>>>,
        unverified: bool,
    ) -> Result<Self, BlockError> {
        let layout = object.layout();
        let given: Vec<bool> = payloads.iter().map(Option::is_some).collect();
        code.rebuild(&mut payloads)?;
        let payloads: Vec<Vec<u8>> = payloads
            .into_iter()
            .map(Option::unwrap_or_default)
            .collect();
        let mut wrong_parity = Vec::new();
        for (shard, (payload, given)) in payloads.iter().zip(given).enumerate() {
            let (Some(header), Some(digest)) = (headers.get(shard), object.digest(shard)) else {
                continue;
            };
            if given || unverified || has_digest(layout, shard as u64, header, digest, payload) {
                continue;
            }
            if (shard as u64) < layout.data() {
                return Err(BlockError::WrittenWrong {
                    object: object.id(),
                    writer: object.writer(),
                    shard,
                });
            }
            wrong_parity.push(shard);
        }
        Ok(Self {
            layout,
            payloads,
            wrong_parity,
        })
    }

    /// A cell of the stream.
    pub(in crate::blocks) fn cell(&self, cell: u64) -> &[u8] {
        let payload = self.payloads.get(size(cell % self.layout.data()));
        let begin = cell / self.layout.data() * u64::from(CELL_BYTES);
        cut(
            payload.map_or(&[][..], Vec::as_slice),
            begin,
            self.layout.cell_length(cell),
        )
    }

    /// The cells that hold a range of the stream.
    pub(in crate::blocks) fn cells(&self, stream: Range<u64>) -> Cells {
        let cells = stream.start / u64::from(CELL_BYTES)..stream.end.div_ceil(CELL_BYTES.into());
        cells
            .map(|cell| (cell, Bytes::copy_from_slice(self.cell(cell))))
            .collect()
    }

    /// A shard as stored.
    pub(in crate::blocks) fn shard(
        &self,
        shard: usize,
        header: &HeaderBytes,
        buffers: &Buffers,
    ) -> ShardBytes {
        let payload = self.payloads.get(shard).map_or(&[][..], Vec::as_slice);
        assemble(self.layout, shard as u64, header, payload, buffers)
    }

    /// Its size in memory.
    pub(in crate::blocks) fn bytes(&self) -> usize {
        self.payloads.iter().map(Vec::len).sum()
    }

    /// Drops the parity, which reading does not need.
    pub(in crate::blocks) fn without_parity(mut self) -> Self {
        self.payloads.truncate(size(self.layout.data()));
        self
    }
}

/// Whether a rebuilt payload hashes to the digest. The bytes behind a short last cell have to be
/// zero: the digest does not cover them and the code relies on them.
fn has_digest(
    layout: Layout,
    shard: u64,
    header: &HeaderBytes,
    digest: &Digest,
    payload: &[u8],
) -> bool {
    let cells = layout.shard_cells(shard);
    let leaves = (0..cells)
        .map(|row| {
            let begin = row * u64::from(CELL_BYTES);
            leaf(cut(payload, begin, layout.shard_cell_length(shard, row)))
        })
        .collect();
    let used: u64 = (0..cells)
        .map(|row| layout.shard_cell_length(shard, row))
        .sum();
    let rest = payload.get(size(used)..).unwrap_or_default();
    MerkleTree::new(leaves, layout.depth()).digest(header) == *digest
        && rest.iter().all(|b| *b == 0)
}
