//! Reading: dirty over uploaded ahead over frozen over committed, as of one moment, with what comes
//! next fetched ahead.

use super::VfsError;
use super::chunk_cache::{CHUNK_BYTES, Chunk, Part};
use super::content::{ContentMap, Piece, Source, StoredSlice};
use super::dirty::part_of;
use super::file_system::{FileSystem, Inner};
use super::handle::HandleId;
use super::node::{Node, State};
use crate::blocks::BlockErrorKind;
use crate::keys::ValueBinding;
use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use futures_util::FutureExt;
use quorumfs_metadata::identity::InodeId;
use quorumfs_metadata::reply::ContentPage;
use quorumfs_metadata::row::Inline;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::task::Poll;

/// How often a read starts over because the content changed under it, before it gives up.
const TRIES: u32 = 16;
/// Chunks fetched side by side for one read.
const CHUNKS_AT_ONCE: usize = 8;
/// Runs of chunks fetched side by side, ahead of one reader.
const RUNS_AT_ONCE: usize = 16;

impl FileSystem {
    /// Reads up to `size` bytes at `offset`; fewer at the end of the file.
    ///
    /// # Errors
    /// If the handle is not open for reading, or too few clouds have good shards.
    #[boxed]
    pub async fn read(&self, handle: HandleId, offset: u64, size: u32) -> Result<Bytes, VfsError> {
        let inner = &self.inner;
        let handle = inner.handles.file(handle)?;
        // The kernel reads from files that are open for writing only, to fill pages.
        let node = &handle.node;
        if !handle.mode.read && !handle.mode.write {
            return Err(VfsError::refused("read", Errno::BADF));
        }
        // Before it is answered: of several requests at a time the answers come in any order.
        let ahead = handle.ahead().on_read(offset, u64::from(size));
        let read = inner.read_node(node, offset, size);
        tokio::pin!(read);
        // What is wanted now queues for disk and clouds before what will be.
        let first = poll_fn(|context| Poll::Ready(read.as_mut().poll(context))).await;
        if let Some(range) = ahead {
            let (inner, node) = (inner.clone(), node.clone());
            let fetch = async move { inner.fetch_ahead(&node, range).await };
            handle.ahead().begin(fetch);
        }
        match first {
            Poll::Ready(data) => data,
            Poll::Pending => read.await,
        }
    }
}

/// What a read finds at one moment.
enum Found {
    /// So many bytes, all of which were committed, in the order of these sources.
    Committed(usize, Vec<Source>),
    /// What was not committed yet, and where the bytes come from that are missing there.
    Overlaid(Vec<u8>, Vec<Source>),
}

impl Found {
    /// A range of a file that was committed as a whole; or from where on it is to be asked about.
    fn committed(content: &ContentMap, range: Range<u64>, size: u64) -> Result<Self, u64> {
        let count = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(0);
        // Beyond the committed end there is nothing to ask about.
        let known = range.start..range.end.min(size);
        if known.is_empty() {
            return Ok(Self::Committed(count, Vec::new()));
        }
        Ok(Self::Committed(count, content.sources(known)?))
    }

    /// The same of a file that something was written to since.
    fn overlaid(state: &State, offset: u64, count: usize) -> Result<Self, u64> {
        let mut buffer = vec![0; count];
        let gaps = state.dirty.overlay(offset, &mut buffer);
        let gaps = state.ahead.runs().overlay(offset, &mut buffer, gaps);
        let gaps = state.frozen.overlay(offset, &mut buffer, gaps);
        let committed = state.base.size;
        let gaps = gaps
            .into_iter()
            .map(|gap| gap.start..gap.end.min(committed));
        let sources: Result<Vec<Vec<Source>>, u64> = gaps
            .filter(|gap| !gap.is_empty())
            .map(|gap| state.content.sources(gap))
            .collect();
        Ok(Self::Overlaid(
            buffer,
            sources?.into_iter().flatten().collect(),
        ))
    }
}

impl Inner {
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
                    Found::overlaid(&state, offset, count)
                } else {
                    Found::committed(&state.content, offset..end, state.base.size)
                }
            };
            let (mut buffer, sources) = match found {
                Ok(Found::Committed(count, sources)) => match self.at_hand(count, &sources) {
                    Some(bytes) => return Ok(bytes),
                    None => (vec![0; count], sources),
                },
                Ok(Found::Overlaid(buffer, sources)) => (buffer, sources),
                Err(from) => {
                    self.learn_content(node, from).await?;
                    continue;
                }
            };
            self.fill(offset, &mut buffer, sources.into_iter()).await?;
            return Ok(Bytes::from(buffer));
        }
        Err(VfsError::refused("read", Errno::AGAIN))
    }

    /// Asks where the bytes from `from` on are.
    pub(crate) async fn learn_content(&self, node: &Arc<Node>, from: u64) -> Result<(), VfsError> {
        let asked = self.cache.ask();
        let page = self.metadata.content(node.inode, from).await?;
        let inline = match &page.inline {
            Some(inline) => Some(self.open_inline(node.inode, inline).await?),
            None => None,
        };
        self.cache.learn(&page.attributes, asked);
        let mut state = node.state();
        state.learn(&page.attributes);
        if state.base.version != page.attributes.version {
            // A commit of ours overtook the answer; whoever needs it asks again.
            return Ok(());
        }
        if state.content.version() != page.attributes.version {
            state.content = ContentMap::unknown(page.attributes.version);
        }
        match inline {
            Some(plain) => {
                state.content = ContentMap::inline(page.attributes.version, plain);
            }
            None => {
                let (covered, pieces) = pieces_of(from, &page);
                state.content.learn(covered, pieces.into_iter());
            }
        }
        Ok(())
    }

    /// The plain bytes of a tiny file.
    async fn open_inline(&self, inode: InodeId, inline: &Inline) -> Result<Bytes, VfsError> {
        let key = self.key_of(inline.sealed.epoch).await?.small_value_key();
        let mut plain = key.open(ValueBinding::content(inode), &inline.sealed.bytes)?;
        // A truncation made it shorter, without being able to cut the ciphertext.
        plain.truncate(usize::from(inline.length));
        Ok(Bytes::from(plain))
    }

    async fn fill(
        self: &Arc<Self>,
        offset: u64,
        buffer: &mut [u8],
        sources: impl Iterator<Item = Source>,
    ) -> Result<(), VfsError> {
        let mut chunks: Vec<(u64, Arc<StoredSlice>, Range<u32>)> = Vec::new();
        for source in sources {
            match source {
                Source::Hole(_) => {}
                Source::Inline(range, bytes) => {
                    if let Some(to) = part_of(buffer, offset, &range) {
                        let from = usize::try_from(range.start).unwrap_or(usize::MAX);
                        let from = bytes.get(from..).unwrap_or_default();
                        for (to, from) in to.iter_mut().zip(from) {
                            *to = *from;
                        }
                    }
                }
                Source::Slice(range, stored, begin) => {
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
            self.key_of(stored.slice.key.epoch()).await?;
            let bytes = self.slices.read(stored, begin..end).await?;
            let alone = number..number.saturating_add(1);
            Ok::<_, VfsError>(Chunk::of_run(&bytes, &alone, number))
        };
        let chunk = self.chunks.get(stored.id, number, fetch).await?;
        let within = |position: u32| position.saturating_sub(begin);
        let part = chunk.part(within(range.start)..within(range.end));
        part.map(Part::into_bytes).ok_or_else(|| VfsError::Data {
            doing: "reading a slice",
            kind: BlockErrorKind::Corrupt,
            reason: format!("slice {} is shorter than its extents", stored.id),
        })
    }

    /// Brings what a sequential reader will want next into the cache.
    async fn fetch_ahead(self: &Arc<Self>, node: &Arc<Node>, range: Range<u64>) {
        let Some(sources) = self.sources_ahead(node, range).await else {
            return;
        };
        let mut fetches = tokio::task::JoinSet::new();
        for source in sources {
            let Source::Slice(range, stored, begin) = source else {
                continue;
            };
            for numbers in self.absent(&range, &stored, begin) {
                if fetches.len() >= RUNS_AT_ONCE {
                    let _ = fetches.join_next().await;
                }
                let (inner, stored) = (self.clone(), stored.clone());
                let mut fetch = Box::pin(async move { inner.fetch_run(&stored, numbers).await });
                // They queue for disk and clouds in the order in which they are wanted.
                let first = poll_fn(|context| Poll::Ready(fetch.as_mut().poll(context)));
                if first.await.is_pending() {
                    fetches.spawn(fetch);
                }
            }
        }
        while fetches.join_next().await.is_some() {}
    }

    /// Where the committed bytes of `range` are, asked for unless it is known; nothing if the range
    /// is behind the end, or it cannot be found out: the read itself will meet that error.
    async fn sources_ahead(&self, node: &Arc<Node>, range: Range<u64>) -> Option<Vec<Source>> {
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
                Err(from) => self.learn_content(node, from).await.ok()?,
            }
        }
        None
    }

    /// The runs of chunks of a part of a slice that are not in the cache.
    fn absent(&self, range: &Range<u64>, stored: &Arc<StoredSlice>, begin: u32) -> Vec<Range<u32>> {
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

    /// Brings some chunks of a slice into the cache with one read. Whoever wants one of them
    /// meanwhile waits for it.
    async fn fetch_run(&self, stored: &StoredSlice, numbers: Range<u32>) {
        let at = |number: u32| number.saturating_mul(CHUNK_BYTES).min(stored.slice.length);
        let begin = at(numbers.start);
        let range = begin..at(numbers.end);
        let read = async {
            self.key_of(stored.slice.key.epoch()).await?;
            self.slices.read(stored, range).await
        };
        let read = read.shared();
        let chunks = numbers.clone().map(|number| {
            let (read, numbers) = (read.clone(), numbers.clone());
            self.chunks.get(stored.id, number, async move {
                Ok::<_, VfsError>(Chunk::of_run(&read.await?, &numbers, number))
            })
        });
        // An error here will be met, and told, by the read itself.
        let _ = futures_util::future::join_all(chunks).await;
    }
}

/// The extents on a page, and which range of the file it tells all about.
fn pieces_of(from: u64, page: &ContentPage) -> (Range<u64>, Vec<(u64, Piece)>) {
    let objects: BTreeMap<_, _> = page.objects.iter().map(|(id, row)| (*id, row)).collect();
    let slices: BTreeMap<_, _> = page
        .slices
        .iter()
        .filter_map(|(id, slice)| {
            let object = objects.get(&slice.object)?;
            let stored = StoredSlice {
                id: *id,
                slice: slice.clone(),
                object: (*object).clone(),
            };
            Some((*id, Arc::new(stored)))
        })
        .collect();
    let mut pieces = Vec::new();
    let mut until = from;
    for listed in &page.extents {
        let length = listed.extent.length;
        until = listed.offset.saturating_add(u64::from(length));
        if listed.extent.unwritten {
            continue;
        }
        match slices.get(&listed.extent.slice) {
            Some(stored) => {
                let slice_offset = listed.extent.slice_offset;
                pieces.push((
                    listed.offset,
                    Piece {
                        stored: stored.clone(),
                        slice_offset,
                        length,
                    },
                ));
            }
            // An answer that lacks a slice tells nothing from there on.
            None => return (from..listed.offset.max(from), pieces),
        }
    }
    let end = if page.more { until } else { u64::MAX };
    (from..end, pieces)
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
        reason: "a read got bytes that it had not asked for".into(),
    })?;
    to.copy_from_slice(data);
    Ok(())
}
