//! A cache of indexes of recently read compressed slices.
//!
//! A reader that reads a slice in steps from front to back needs its index at each step. Fetching
//! it again would cost a cell and perhaps a round trip for every step. A slice never changes under
//! its id, so no entry is ever stale; the oldest are evicted beyond a bound in bytes. A cached
//! index was opened with the slice's key and checked against its row; a later row that contradicts
//! it misses the cache.

use crate::blocks::object::{SealedSlice, SliceIndex};
use quorumfs_metadata::identity::SliceId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The approximate cost of an entry apart from its index, in bytes.
const ENTRY_BYTES: usize = 128;

#[derive(Debug, Default)]
struct CachedIndexes {
    /// Each with the time of its last use.
    indexes: BTreeMap<SliceId, (u64, Arc<SliceIndex>)>,
    by_use: BTreeMap<u64, SliceId>,
    uses: u64,
    bytes: usize,
}

/// The cache, bounded in bytes.
#[derive(Debug)]
pub(super) struct IndexCache {
    bytes_max: usize,
    cached: Mutex<CachedIndexes>,
}

impl CachedIndexes {
    fn remove(&mut self, slice: SliceId) {
        if let Some((used, index)) = self.indexes.remove(&slice) {
            self.by_use.remove(&used);
            self.bytes = self.bytes.saturating_sub(index.bytes() + ENTRY_BYTES);
        }
    }

    fn insert(&mut self, slice: SliceId, index: Arc<SliceIndex>) {
        self.uses += 1;
        self.bytes += index.bytes() + ENTRY_BYTES;
        self.by_use.insert(self.uses, slice);
        self.indexes.insert(slice, (self.uses, index));
    }
}

impl IndexCache {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            cached: Mutex::default(),
        }
    }

    pub(super) fn get(&self, slice: &SealedSlice) -> Option<Arc<SliceIndex>> {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, index) = cached.indexes.get(&slice.id)?;
        let index = Arc::clone(index);
        if !index.fits(slice) {
            return None;
        }
        cached.remove(slice.id);
        cached.insert(slice.id, Arc::clone(&index));
        Some(index)
    }

    pub(super) fn put(&self, slice: SliceId, index: Arc<SliceIndex>) {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        cached.remove(slice);
        cached.insert(slice, index);
        while cached.bytes > self.bytes_max
            && let Some((_, oldest)) = cached.by_use.first_key_value()
        {
            let oldest = *oldest;
            cached.remove(oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorumfs_metadata::identity::{AllocationId, Codec, ObjectId};

    fn slice(counter: u32) -> SealedSlice {
        let allocation = AllocationId(1);
        SealedSlice {
            id: SliceId {
                allocation,
                counter,
            },
            object: ObjectId {
                allocation,
                counter,
            },
            offset: 0,
            length: 1000,
            sealed_length: 4 + 16 + 500 + 16,
            codec: Codec::ZSTD,
        }
    }

    #[test]
    fn the_least_recently_used_go_first_and_the_bound_holds() {
        let index = Arc::new(SliceIndex::of_lengths(1000, &[500]).unwrap());
        let each = index.bytes() + ENTRY_BYTES;
        let cache = IndexCache::new(3 * each);
        for counter in 1..=3 {
            cache.put(slice(counter).id, Arc::clone(&index));
        }
        assert!(cache.get(&slice(1)).is_some());
        cache.put(slice(3).id, Arc::clone(&index));
        cache.put(slice(4).id, Arc::clone(&index));
        let present = (1..=4).map(|counter| cache.get(&slice(counter)).is_some());
        assert_eq!(present.collect::<Vec<_>>(), [true, false, true, true]);
        let bytes = cache.cached.lock().unwrap().bytes;
        assert_eq!(bytes, 3 * each);
        let mut other = slice(1);
        other.sealed_length += 1;
        assert!(cache.get(&other).is_none(), "not that row's index");
    }
}
