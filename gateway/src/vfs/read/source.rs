//! A read: dirty over early uploads over frozen over committed, as of one moment.

use super::chunk_cache::{Chunk, ChunkRange};
use super::owner::Reading;
use crate::blocks::BlockErrorKind;
use crate::error::VfsError;
use crate::slices::{CHUNK_BYTES, StoredSlice};
use crate::vfs::files::{FileHandle, Node, NodeState, part_of};
use crate::vfs::known::{ContentMap, ReadSource};
use bytes::Bytes;
use rustix::io::Errno;
use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::task::Poll;

/// How often a read starts over because the content changed under it, before it gives up.
pub(super) const TRIES: u32 = 16;
/// Chunks fetched in parallel for one read.
const CHUNKS_AT_ONCE: usize = 8;

/// The sources of a read at one moment.
enum ReadPlan {
    /// So many bytes, all committed, in the order of these sources.
    Committed(usize, Vec<ReadSource>),
    /// Uncommitted bytes, and the sources of those that are missing there.
    Overlaid(Vec<u8>, Vec<ReadSource>),
}

impl ReadPlan {
    /// A range of a fully committed file; or the offset from which on to ask the servers.
    fn committed(content: &ContentMap, range: Range<u64>, size: u64) -> Result<Self, u64> {
        let count = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(0);
        // There is nothing beyond the committed end.
        let known = range.start..range.end.min(size);
        if known.is_empty() {
            return Ok(Self::Committed(count, Vec::new()));
        }
        Ok(Self::Committed(count, content.sources(known)?))
    }

    /// The same of a file with uncommitted writes.
    fn overlaid(state: &NodeState, offset: u64, count: usize) -> Result<Self, u64> {
        let mut buffer = vec![0; count];
        let gaps = state.dirty.overlay(offset, &mut buffer);
        let gaps = state
            .early_uploads
            .runs()
            .overlay(offset, &mut buffer, gaps);
        let gaps = state.frozen.overlay(offset, &mut buffer, gaps);
        let committed = state.base.size;
        let gaps = gaps
            .into_iter()
            .map(|gap| gap.start..gap.end.min(committed));
        let sources: Result<Vec<Vec<ReadSource>>, u64> = gaps
            .filter(|gap| !gap.is_empty())
            .map(|gap| state.content.sources(gap))
            .collect();
        Ok(Self::Overlaid(
            buffer,
            sources?.into_iter().flatten().collect(),
        ))
    }
}

impl Reading {
    /// Reads up to `size` bytes at `offset` of an open file; fewer at its end.
    pub(in crate::vfs) async fn read(
        self: &Arc<Self>,
        handle: &FileHandle,
        offset: u64,
        size: u32,
    ) -> Result<Bytes, VfsError> {
        let node = &handle.node;
        // Before this read is answered: answers of parallel requests come in any order.
        let wanted_next = handle.prefetcher().on_read(offset, u64::from(size));
        let read = self.read_node(node, offset, size);
        tokio::pin!(read);
        // This read queues for disk and clouds before the prefetch.
        let first = poll_fn(|context| Poll::Ready(read.as_mut().poll(context))).await;
        if let Some(range) = wanted_next {
            let (inner, node) = (Arc::clone(self), node.clone());
            let fetch = async move { inner.prefetch(&node, range).await };
            handle.prefetcher().begin(fetch);
        }
        match first {
            Poll::Ready(data) => data,
            Poll::Pending => read.await,
        }
    }

    async fn read_node(
        self: &Arc<Self>,
        node: &Arc<Node>,
        offset: u64,
        size: u32,
    ) -> Result<Bytes, VfsError> {
        for _ in 0..TRIES {
            let found = {
                let state = node.state();
                let length = state.attributes().size;
                let end = offset.saturating_add(u64::from(size)).min(length);
                let count = usize::try_from(end.saturating_sub(offset)).unwrap_or(0);
                if state.holds_written() {
                    ReadPlan::overlaid(&state, offset, count)
                } else {
                    ReadPlan::committed(&state.content, offset..end, state.base.size)
                }
            };
            let (mut buffer, sources) = match found {
                Ok(ReadPlan::Committed(count, sources)) => {
                    match self.cached_read(count, &sources) {
                        Some(bytes) => return Ok(bytes),
                        None => (vec![0; count], sources),
                    }
                }
                Ok(ReadPlan::Overlaid(buffer, sources)) => (buffer, sources),
                Err(from) => {
                    self.files.learn_content(node, from).await?;
                    continue;
                }
            };
            self.fill(offset, &mut buffer, sources.into_iter()).await?;
            return Ok(Bytes::from(buffer));
        }
        Err(VfsError::refused("read", Errno::AGAIN))
    }

    async fn fill(
        self: &Arc<Self>,
        offset: u64,
        buffer: &mut [u8],
        sources: impl Iterator<Item = ReadSource>,
    ) -> Result<(), VfsError> {
        let mut chunks: Vec<(u64, Arc<StoredSlice>, Range<u32>)> = Vec::new();
        for source in sources {
            match source {
                ReadSource::Hole(_) => {}
                ReadSource::Inline(range, bytes) => {
                    if let Some(to) = part_of(buffer, offset, &range) {
                        let from = usize::try_from(range.start).unwrap_or(usize::MAX);
                        let from = bytes.get(from..).unwrap_or_default();
                        for (to, from) in to.iter_mut().zip(from) {
                            *to = *from;
                        }
                    }
                }
                ReadSource::Slice(range, stored, begin) => {
                    chunks.extend(by_chunk(&range, &stored, begin));
                }
            }
        }
        if let [(at, stored, range)] = chunks.as_slice() {
            let data = self.chunk_part(stored, range.clone()).await?;
            return copy(buffer, offset, *at, &data);
        }
        let mut fetches = tokio::task::JoinSet::new();
        let mut rest = chunks.into_iter();
        loop {
            while fetches.len() < CHUNKS_AT_ONCE
                && let Some((at, stored, range)) = rest.next()
            {
                let inner = self.clone();
                fetches.spawn(async move {
                    inner
                        .chunk_part(&stored, range)
                        .await
                        .map(|data| (at, data))
                });
            }
            match fetches.join_next().await {
                None => return Ok(()),
                Some(Ok(Ok((at, data)))) => copy(buffer, offset, at, &data)?,
                Some(Ok(Err(error))) => return Err(error),
                Some(Err(error)) => {
                    return Err(VfsError::Internal {
                        reason: error.to_string(),
                    });
                }
            }
        }
    }

    /// A part of one chunk of a slice.
    async fn chunk_part(&self, stored: &StoredSlice, range: Range<u32>) -> Result<Bytes, VfsError> {
        let number = range.start / CHUNK_BYTES;
        let begin = number.saturating_mul(CHUNK_BYTES);
        let end = begin.saturating_add(CHUNK_BYTES).min(stored.slice.length);
        let fetch = async {
            self.services.key_of(stored.slice.epoch()).await?;
            let bytes = self.services.slices.read(stored, begin..end).await?;
            let alone = number..number.saturating_add(1);
            Ok::<_, VfsError>(Chunk::of_run(&bytes, &alone, number))
        };
        let chunk = self.chunks.get(stored.id, number, fetch).await?;
        let within = |position: u32| position.saturating_sub(begin);
        let part = chunk.part(within(range.start)..within(range.end));
        part.map(ChunkRange::into_bytes)
            .ok_or_else(|| VfsError::Data {
                doing: "reading a slice",
                kind: BlockErrorKind::Corrupt,
                reason: format!("slice {} is shorter than its extents", stored.id),
            })
    }
}

/// Cuts a run of a slice at the borders of chunks.
pub(in crate::vfs) fn by_chunk(
    range: &Range<u64>,
    stored: &Arc<StoredSlice>,
    begin: u32,
) -> Vec<(u64, Arc<StoredSlice>, Range<u32>)> {
    let mut parts = Vec::new();
    let (mut at, mut position) = (range.start, begin);
    while at < range.end {
        let chunk_end = (position / CHUNK_BYTES)
            .saturating_add(1)
            .saturating_mul(CHUNK_BYTES);
        let left = u32::try_from(range.end.saturating_sub(at)).unwrap_or(u32::MAX);
        let take = chunk_end.saturating_sub(position).min(left);
        let end = position.saturating_add(take);
        parts.push((at, stored.clone(), position..end));
        at = at.saturating_add(u64::from(take.max(1)));
        position = end;
    }
    parts
}

fn copy(buffer: &mut [u8], offset: u64, at: u64, data: &[u8]) -> Result<(), VfsError> {
    let range = at..at.saturating_add(data.len() as u64);
    let to = part_of(buffer, offset, &range).ok_or_else(|| VfsError::Internal {
        reason: "a read got bytes outside its range".into(),
    })?;
    to.copy_from_slice(data);
    Ok(())
}
