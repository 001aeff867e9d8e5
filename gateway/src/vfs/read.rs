//! Reading: dirty over early uploads over frozen over committed, as of one moment, with prefetch.

use super::chunk_cache::{Chunk, ChunkRange};
use super::file_system::{FileSystem, FileSystemCore};
use super::files::HandleId;
use super::files::part_of;
use super::files::{Node, NodeState};
use super::known::{ContentMap, ReadSource};
use crate::blocks::BlockErrorKind;
use crate::error::VfsError;
use crate::slices::{CHUNK_BYTES, StoredSlice};
use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use futures_util::FutureExt;
use rustix::io::Errno;
use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::task::Poll;

/// How often a read starts over because the content changed under it, before it gives up.
const TRIES: u32 = 16;
/// Chunks fetched in parallel for one read.
const CHUNKS_AT_ONCE: usize = 8;
/// Runs of chunks prefetched in parallel for one reader.
const RUNS_AT_ONCE: usize = 16;

impl FileSystem {
    /// Reads up to `size` bytes at `offset`; fewer at the end of the file.
    ///
    /// # Errors
    /// If the handle is not open for reading, or too few clouds have good shards.
    #[boxed]
    pub async fn read(&self, handle: HandleId, offset: u64, size: u32) -> Result<Bytes, VfsError> {
        let inner = &self.inner;
        let handle = inner.files.handles.file(handle)?;
        // The kernel reads from files that are open for writing only, to fill pages.
        let node = &handle.node;
        if !handle.mode.read && !handle.mode.write {
            return Err(VfsError::refused("read", Errno::BADF));
        }
        // Before this read is answered: answers of parallel requests come in any order.
        let wanted_next = handle.prefetcher().on_read(offset, u64::from(size));
        let read = inner.read_node(node, offset, size);
        tokio::pin!(read);
        // This read queues for disk and clouds before the prefetch.
        let first = poll_fn(|context| Poll::Ready(read.as_mut().poll(context))).await;
        if let Some(range) = wanted_next {
            let (inner, node) = (inner.clone(), node.clone());
            let fetch = async move { inner.prefetch(&node, range).await };
            handle.prefetcher().begin(fetch);
        }
        match first {
            Poll::Ready(data) => data,
            Poll::Pending => read.await,
        }
    }
}

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

impl FileSystemCore {
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

    /// Brings the next data of a sequential reader into the cache.
    async fn prefetch(self: &Arc<Self>, node: &Arc<Node>, range: Range<u64>) {
        let Some(sources) = self.sources_to_prefetch(node, range).await else {
            return;
        };
        let mut fetches = tokio::task::JoinSet::new();
        for source in sources {
            let ReadSource::Slice(range, stored, begin) = source else {
                continue;
            };
            for numbers in self.missing_runs(&range, &stored, begin) {
                if fetches.len() >= RUNS_AT_ONCE {
                    let _ = fetches.join_next().await;
                }
                let (inner, stored) = (self.clone(), stored.clone());
                let mut fetch = Box::pin(async move { inner.fetch_run(&stored, numbers).await });
                // They queue for disk and clouds in the order in which they will be read.
                let first = poll_fn(|context| Poll::Ready(fetch.as_mut().poll(context)));
                if first.await.is_pending() {
                    fetches.spawn(fetch);
                }
            }
        }
        while fetches.join_next().await.is_some() {}
    }

    /// Where the committed bytes of `range` are, asked for unless known; `None` if the range is
    /// beyond the end, or on an error, which the read itself will meet.
    async fn sources_to_prefetch(
        &self,
        node: &Arc<Node>,
        range: Range<u64>,
    ) -> Option<Vec<ReadSource>> {
        for _ in 0..TRIES {
            let sources = {
                let state = node.state();
                let end = range.end.min(state.base.size);
                if range.start >= end {
                    return None;
                }
                state.content.sources(range.start..end)
            };
            match sources {
                Ok(sources) => return Some(sources),
                Err(from) => self.files.learn_content(node, from).await.ok()?,
            }
        }
        None
    }

    /// The runs of chunks of a part of a slice that are not in the cache.
    fn missing_runs(
        &self,
        range: &Range<u64>,
        stored: &Arc<StoredSlice>,
        begin: u32,
    ) -> Vec<Range<u32>> {
        let mut runs: Vec<Range<u32>> = Vec::new();
        for (_, stored, range) in by_chunk(range, stored, begin) {
            let number = range.start / CHUNK_BYTES;
            if self.chunks.holds(stored.id, number) {
                continue;
            }
            match runs.last_mut() {
                Some(last) if last.end == number => last.end = number.saturating_add(1),
                _ => runs.push(number..number.saturating_add(1)),
            }
        }
        runs
    }

    /// Brings some chunks of a slice into the cache with one read. A reader that wants one of them
    /// meanwhile waits for it.
    async fn fetch_run(&self, stored: &StoredSlice, numbers: Range<u32>) {
        let at = |number: u32| number.saturating_mul(CHUNK_BYTES).min(stored.slice.length);
        let begin = at(numbers.start);
        let range = begin..at(numbers.end);
        let read = async {
            self.services.key_of(stored.slice.epoch()).await?;
            self.services.slices.read(stored, range).await
        };
        let read = read.shared();
        let chunks = numbers.clone().map(|number| {
            let (read, numbers) = (read.clone(), numbers.clone());
            self.chunks.get(stored.id, number, async move {
                Ok::<_, VfsError>(Chunk::of_run(&read.await?, &numbers, number))
            })
        });
        // The read itself will meet and return an error.
        let _ = futures_util::future::join_all(chunks).await;
    }
}

/// Cuts a run of a slice at the borders of chunks.
pub(super) fn by_chunk(
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
