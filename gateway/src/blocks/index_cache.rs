//! Indexes of compressed slices that were read lately.
//!
//! Whoever reads a slice from front to back in steps needs its index at each of them, and fetching
//! it again would be a cell and perhaps a round trip for every step. A slice never changes under
//! its id, so nothing is ever stale; the oldest go when there are too many bytes. What is kept was
//! opened with the slice's key and checked against its row; a later row that does not fit it is
//! not served from here.

use super::index::SliceIndex;
use super::object::SealedSlice;
use quorumfs_metadata::identity::SliceId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// What an entry costs beside its index, about.
const ENTRY_BYTES: usize = 128;

#[derive(Debug, Default)]
struct Kept {
    /// Each with when it was last used.
    indexes: BTreeMap<SliceId, (u64, Arc<SliceIndex>)>,
    by_use: BTreeMap<u64, SliceId>,
    uses: u64,
    bytes: usize,
}

/// Indexes, up to a bound in bytes.
#[derive(Debug)]
pub(super) struct IndexCache {
    bytes_max: usize,
    kept: Mutex<Kept>,
}

impl Kept {
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
            kept: Mutex::default(),
        }
    }

    pub(super) fn get(&self, slice: &SealedSlice) -> Option<Arc<SliceIndex>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, index) = kept.indexes.get(&slice.id)?;
        let index = Arc::clone(index);
        if !index.fits(slice) {
            return None;
        }
        kept.remove(slice.id);
        kept.insert(slice.id, Arc::clone(&index));
        Some(index)
    }

    pub(super) fn keep(&self, slice: SliceId, index: Arc<SliceIndex>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.remove(slice);
        kept.insert(slice, index);
        while kept.bytes > self.bytes_max
            && let Some((_, oldest)) = kept.by_use.first_key_value()
        {
            let oldest = *oldest;
            kept.remove(oldest);
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
            cache.keep(slice(counter).id, Arc::clone(&index));
        }
        assert!(cache.get(&slice(1)).is_some());
        cache.keep(slice(3).id, Arc::clone(&index));
        cache.keep(slice(4).id, Arc::clone(&index));
        let kept = (1..=4).map(|counter| cache.get(&slice(counter)).is_some());
        assert_eq!(kept.collect::<Vec<_>>(), [true, false, true, true]);
        let bytes = cache.kept.lock().unwrap().bytes;
        assert_eq!(bytes, 3 * each);
        let mut other = slice(1);
        other.sealed_length += 1;
        assert!(cache.get(&other).is_none(), "not that row's index");
    }
}
