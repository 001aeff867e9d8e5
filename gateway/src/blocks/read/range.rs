//! The verified read.
//!
//! ```text
//! range → segments → stream → cells ──► one ranged GET from each data shard concerned
//!                                          │ every cell proved against the shard's digest
//!                        all in time ──────┤
//!                                          │ one bad, missing, failing, or late
//!                                          └─► the whole object from any k good shards
//! ```
//!
//! No byte is interpreted before it was proved to be the one that the metadata names. The rebuild
//! runs while the other answers are awaited, and the first to complete wins. It takes whole shards,
//! because the data shards' digests define the content and can only be compared whole. A rebuilt
//! object is cached for a while, so that small sequential reads past a missing cloud do not fetch
//! everything at every step, and concurrent readers share one rebuild.
//!
//! Another principal's object is rebuilt before any read; see `consistency_check`.

use super::Reads;
use crate::blocks::object::{
    BlockError, CELL_BYTES, Cells, Opening, Rebuilt, SEGMENT_BYTES, SealedSlice, ShardFault,
    SliceCipher, StoredObject, cells_range, check, most_held, segments,
};
use crate::keys::SliceKey;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use tokio::task::JoinSet;
use tokio::time::Instant;

impl Reads {
    /// Reads a range of a slice. An error by a writer's fault names the writer.
    pub(in crate::blocks) async fn read(
        self: &Arc<Self>,
        object: Arc<StoredObject>,
        slice: SealedSlice,
        key: &SliceKey,
        range: Range<u32>,
    ) -> Result<Bytes, BlockError> {
        match self.read_verified(&object, slice, key, range).await {
            Ok(plain) => Ok(plain),
            Err(error) => Err(self.named(error).await),
        }
    }

    async fn read_verified(
        self: &Arc<Self>,
        object: &Arc<StoredObject>,
        slice: SealedSlice,
        key: &SliceKey,
        range: Range<u32>,
    ) -> Result<Bytes, BlockError> {
        let wrong = |reason| BlockError::Row {
            object: object.id(),
            reason,
        };
        if slice.object != object.id() {
            return Err(wrong("it is not the object of the slice"));
        }
        check(&slice).map_err(wrong)?;
        let end = slice.offset.checked_add(slice.sealed_length);
        if end.is_none_or(|end| end > object.length()) {
            return Err(wrong("its slice ends beyond its end"));
        }
        if range.start > range.end || range.end > slice.length {
            return Err(BlockError::Length {
                what: "a range",
                length: u64::from(range.start.max(range.end)),
                most: u64::from(slice.length),
            });
        }
        if range.is_empty() && slice.length > 0 {
            return Ok(Bytes::new());
        }
        let first = range.start / SEGMENT_BYTES;
        let last = (range.end.saturating_sub(1) / SEGMENT_BYTES).min(segments(slice.length) - 1);
        let _memory = self.clouds.hold(most_held(&slice, &(first..=last))).await?;

        self.ensure_consistent(object).await?;
        let volume = self.clouds.config().volume;
        let cipher = SliceCipher::of(key, volume, &slice, self.sealing)?;
        let by_writer = |error: BlockError| error.written_by(object.writer());
        let located = self.locate(object, &slice, &cipher, first..=last).await;
        let located = located.map_err(by_writer)?;
        let cells = match located.cells {
            Some(cells) => cells,
            None => self.read_cells(object, &located.stream).await?,
        };
        let opening = Opening {
            cells,
            positions: located.positions,
            offset: slice.offset,
            segments: first..=last,
            cipher,
            buffers: self.plain_buffers.clone(),
        };
        let plain = match opening.is_long() {
            true => {
                let workers = self.clouds.config().workers;
                workers
                    .run(move || opening.open())
                    .await
                    .and_then(|opened| opened)
            }
            false => opening.open(),
        };
        let plain = plain.map_err(by_writer)?;
        let skip = (range.start - first * SEGMENT_BYTES) as usize;
        let length = range.len();
        self.clouds.counters().bytes_read.add(length as u64);
        Ok(plain.slice(skip..skip + length))
    }

    /// The cells that hold a range of the object's stream.
    pub(super) async fn read_cells(
        self: &Arc<Self>,
        object: &Arc<StoredObject>,
        stream: &Range<u64>,
    ) -> Result<Cells, BlockError> {
        let object = &self.clouds.with_replacements(object);
        let cells = stream.start / u64::from(CELL_BYTES)..stream.end.div_ceil(CELL_BYTES.into());
        if let Some(rebuilt) = self.rebuilt.finished(object.id()) {
            return Ok(rebuilt.cells(stream.clone()));
        }
        let data = object.layout().data();
        let mut fetches = JoinSet::new();
        let mut awaited = BTreeMap::new();
        let mut faults = Vec::new();
        let mut wanted = Vec::new();
        for shard in 0..data {
            // The rows in which this shard's cell is wanted.
            let first = cells.start.saturating_sub(shard).div_ceil(data);
            let end = cells.end.saturating_sub(shard).div_ceil(data);
            if first >= end {
                continue;
            }
            let index = usize::try_from(shard).unwrap_or(usize::MAX);
            let bytes = cells_range(object.layout(), shard, &(first..end));
            wanted.push((index, bytes.end.saturating_sub(bytes.start)));
            awaited.insert(index, first..end);
        }
        let suspended_ones = wanted
            .iter()
            .filter(|(index, _)| self.clouds.is_suspended(object, *index));
        faults.extend(
            suspended_ones.map(|(index, _)| (*index, self.clouds.suspended(object, *index))),
        );
        // A suspended cloud is replaced by a rebuild of the whole object, which would request the
        // other data shards a second time.
        let elsewhere = !faults.is_empty() || self.clouds.reads_elsewhere(object, &wanted);
        for (index, rows) in awaited.clone() {
            if elsewhere {
                break;
            }
            let (reads, object) = (Arc::clone(self), Arc::clone(object));
            fetches.spawn(async move { (index, reads.fetch_cells(&object, index, rows).await) });
        }
        let begin = Instant::now();
        let hedge = tokio::time::sleep(self.clouds.hedge_delay_of(object, wanted.into_iter()));
        tokio::pin!(hedge);
        let mut found = Cells::new();
        let mut rebuild = None;
        let mut rebuild_error = None;
        let mut hedged = elsewhere;
        let mut late = BTreeSet::new();
        loop {
            if awaited.is_empty() {
                return Ok(found);
            }
            if rebuild.is_none() && rebuild_error.is_none() && (hedged || !faults.is_empty()) {
                rebuild = Some(Box::pin(self.rebuilt(object, faults.clone(), late.clone())));
            }
            if fetches.is_empty()
                && let Some(error) = rebuild_error
            {
                return Err(error);
            }
            tokio::select! {
                biased;
                Some(done) = fetches.join_next() => match done {
                    Ok((shard, Ok(fetched))) => {
                        let rows = awaited.remove(&shard).unwrap_or(0..0);
                        for (row, cell) in (rows.start..).zip(fetched) {
                            found.insert(row * data + shard as u64, cell);
                        }
                    }
                    Ok((shard, Err(fault))) => {
                        self.clouds.order_repair(object, shard, &fault);
                        faults.push((shard, fault));
                    }
                    Err(_) => faults.push((usize::MAX, ShardFault::Defect)),
                },
                () = &mut hedge, if !hedged => {
                    hedged = true;
                    let is_waiting = |shard: &usize| faults.iter().all(|(bad, _)| bad != shard);
                    late = awaited.keys().copied().filter(is_waiting).collect();
                    self.clouds.are_overdue(object, begin, late.iter().copied());
                }
                done = async {
                    match rebuild.as_mut() {
                        Some(rebuild) => rebuild.await,
                        None => std::future::pending().await,
                    }
                } => {
                    rebuild = None;
                    match done {
                        Ok(rebuilt) => {
                            self.clouds.counters().shards_replaced.add(awaited.len() as u64);
                            return Ok(rebuilt.cells(stream.clone()));
                        }
                        Err(error) => rebuild_error = Some(error),
                    }
                }
            }
        }
    }

    /// The whole object, rebuilt once for all concurrent readers.
    pub(in crate::blocks) async fn rebuilt(
        self: &Arc<Self>,
        object: &Arc<StoredObject>,
        known: Vec<(usize, ShardFault)>,
        late: BTreeSet<usize>,
    ) -> Result<Arc<Rebuilt>, BlockError> {
        let cell = self.rebuilt.cell(object.id());
        let result = cell
            .get_or_try_init(|| async {
                let gathered = self.gather(object, known, &late).await?;
                Ok(Arc::new(gathered.without_parity()))
            })
            .await
            .cloned();
        drop(cell);
        self.rebuilt.bound();
        result
    }
}
