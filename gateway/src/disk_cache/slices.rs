//! The disk cache in front of a store of slices.

use super::cache::{DiskCache, FoundChunks};
use crate::blocks::{LinkFor, LinkedObject, ShareStore};
use crate::cost::PaidWork;
use crate::error::VfsError;
use crate::keys::SliceKey;
use crate::metadata::AllocatedId;
use crate::slices::{CHUNK_BYTES, SliceStore, StoredSlice, Warmed, WrittenSlice};
use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use quorumfs_metadata::identity::ObjectId;
use std::ops::Range;
use std::sync::Arc;

/// The most chunks that prefetching reads from the store behind the cache at once.
const RUN_CHUNKS: u32 = 16;

/// Reads chunks from the disk on a cache hit; stores the chunks that it had to read or write
/// elsewhere.
pub struct CachedSlices {
    inner: Arc<dyn SliceStore>,
    cache: Arc<DiskCache>,
}

impl std::fmt::Debug for CachedSlices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CachedSlices")
            .field("cache", &self.cache.status())
            .finish_non_exhaustive()
    }
}

impl CachedSlices {
    /// `cache` in front of `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn SliceStore>, cache: Arc<DiskCache>) -> Self {
        Self { inner, cache }
    }

    /// Reads the missing chunks, each run of them at once.
    async fn complete(
        &self,
        stored: &StoredSlice,
        first: u32,
        found: &mut [Option<Bytes>],
    ) -> Result<(), VfsError> {
        let mut rest = found;
        let mut number = first;
        while let Some(begin) = rest.iter().position(Option::is_none) {
            let (_, from) = std::mem::take(&mut rest).split_at_mut(begin);
            let missing = from.iter().take_while(|it| it.is_none()).count();
            let (run, behind) = from.split_at_mut(missing);
            let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
            let from_number = number.saturating_add(count(begin));
            number = from_number.saturating_add(count(missing));
            let at = |number: u32| number.saturating_mul(CHUNK_BYTES).min(stored.slice.length);
            let bytes = self.inner.read(stored, at(from_number)..at(number)).await?;
            self.cache.offer(stored.id, from_number, &bytes);
            let mut left = bytes;
            for chunk in run {
                *chunk = Some(left.split_to(left.len().min(CHUNK_BYTES as usize)));
            }
            rest = behind;
        }
        Ok(())
    }
}

/// The chunks that a range of a slice covers, if it covers whole ones.
fn whole_chunks(range: &Range<u32>, length: u32) -> Option<Range<u32>> {
    let begins = range.start.is_multiple_of(CHUNK_BYTES);
    let ends = range.end.is_multiple_of(CHUNK_BYTES) || range.end == length;
    let is_some = range.start < range.end && range.end <= length;
    let numbers = range.start / CHUNK_BYTES..range.end.div_ceil(CHUNK_BYTES);
    (begins && ends && is_some).then_some(numbers)
}

// A method that is not forwarded would silently be the trait's default.
#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl SliceStore for CachedSlices {
    async fn write(&self, id: &AllocatedId, plain: Bytes) -> Result<WrittenSlice, VfsError> {
        let written = self.inner.write(id, plain.clone()).await?;
        self.cache.offer(written.slice.id, 0, &plain);
        Ok(written)
    }

    async fn read(&self, stored: &StoredSlice, range: Range<u32>) -> Result<Bytes, VfsError> {
        let length = stored.slice.length;
        let Some(numbers) = whole_chunks(&range, length) else {
            return self.inner.read(stored, range).await;
        };
        let first = numbers.start;
        let mut found = match self.cache.get(stored.id, numbers, length).await {
            FoundChunks::All(bytes) => return Ok(bytes),
            FoundChunks::Parts(parts) => parts,
        };
        if found.iter().all(Option::is_none) {
            let bytes = self.inner.read(stored, range).await?;
            self.cache.offer(stored.id, first, &bytes);
            return Ok(bytes);
        }
        self.complete(stored, first, &mut found).await?;
        let bytes = usize::try_from(range.end - range.start).unwrap_or(0);
        let mut whole = BytesMut::with_capacity(bytes);
        for chunk in found.iter().flatten() {
            whole.extend_from_slice(chunk);
        }
        Ok(whole.freeze())
    }

    async fn link(
        &self,
        stored: &StoredSlice,
        link_for: &mut LinkFor,
    ) -> Result<LinkedObject, VfsError> {
        self.inner.link(stored, link_for).await
    }

    fn key_of(&self, stored: &StoredSlice) -> Result<SliceKey, VfsError> {
        self.inner.key_of(stored)
    }

    async fn warm(&self, stored: &StoredSlice, range: Range<u32>) -> Result<Warmed, VfsError> {
        let mut warmed = Warmed::default();
        let at = |number: u32| number.saturating_mul(CHUNK_BYTES).min(stored.slice.length);
        let mut number = range.start / CHUNK_BYTES;
        let end = range.end.min(stored.slice.length).div_ceil(CHUNK_BYTES);
        while number < end {
            let begin = number;
            let most = begin.saturating_add(RUN_CHUNKS).min(end);
            let is_there = self.cache.holds(stored.id, begin);
            while number < most && self.cache.holds(stored.id, number) == is_there {
                number = number.saturating_add(1);
            }
            // Earlier answers may have changed by now.
            number = number.max(begin.saturating_add(1));
            let bytes = u64::from(at(number).saturating_sub(at(begin)));
            if is_there {
                warmed.present = warmed.present.saturating_add(bytes);
                continue;
            }
            let read = self.inner.read(stored, at(begin)..at(number)).await?;
            let kept = self.cache.store(stored.id, begin, &read).await;
            warmed.brought = warmed.brought.saturating_add(kept);
            warmed.refused = warmed.refused.saturating_add(bytes.saturating_sub(kept));
        }
        Ok(warmed)
    }

    fn committed(&self, object: ObjectId) {
        self.inner.committed(object);
    }

    fn abandoned(&self, object: ObjectId) {
        self.inner.abandoned(object);
    }

    fn shares(&self) -> Option<ShareStore> {
        self.inner.shares()
    }

    async fn room(&self) -> Option<u64> {
        self.inner.room().await
    }

    fn allows(&self, work: PaidWork) -> bool {
        self.inner.allows(work)
    }
}
