//! Bringing what a sequential reader will read next into the cache.
//!
//! How far ahead is decided where the handle is ([`readahead`](crate::vfs::files)).

use super::chunk_cache::Chunk;
use super::owner::Reading;
use super::source::{TRIES, by_chunk};
use crate::error::VfsError;
use crate::slices::{CHUNK_BYTES, StoredSlice};
use crate::vfs::files::Node;
use crate::vfs::known::ReadSource;
use futures_util::FutureExt;
use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::task::Poll;

/// Runs of chunks prefetched in parallel for one reader.
const RUNS_AT_ONCE: usize = 16;

impl Reading {
    /// Brings the next data of a sequential reader into the cache.
    pub(super) async fn prefetch(self: &Arc<Self>, node: &Arc<Node>, range: Range<u64>) {
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
