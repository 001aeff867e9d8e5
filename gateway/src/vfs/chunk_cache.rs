//! Plain content that was read a moment ago, in aligned chunks of slices, within a bound.
//!
//! A slice never changes, so a chunk is right for as long as it is kept. Readers that want the
//! same chunk at the same time wait for one fetch; when the one who fetches gives up, the next one
//! takes over.

use bytes::Bytes;
use quorumfs_metadata::identity::SliceId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::OnceCell;

/// Bytes of plaintext in one chunk: two kernel readahead windows.
pub(crate) const CHUNK_BYTES: u32 = 256 << 10;

type Key = (SliceId, u32);
type Cell = Arc<OnceCell<Bytes>>;

#[derive(Debug, Default)]
struct Map {
    young: HashMap<Key, Cell>,
    old: HashMap<Key, Cell>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct ChunkCache {
    map: Mutex<Map>,
    most: usize,
}

impl ChunkCache {
    /// Keeps at most `bytes` of plain content.
    pub(crate) fn new(bytes: u64) -> Self {
        let chunks = usize::try_from(bytes / u64::from(CHUNK_BYTES) / 2).unwrap_or(usize::MAX);
        Self {
            map: Mutex::default(),
            most: chunks.max(4),
        }
    }

    fn cell(&self, key: Key) -> Cell {
        let mut map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cell) = map.young.get(&key) {
            return cell.clone();
        }
        if map.young.len() >= self.most {
            map.old = std::mem::take(&mut map.young);
        }
        let cell = map.old.remove(&key).unwrap_or_default();
        map.young.insert(key, cell.clone());
        cell
    }

    /// The chunk `number` of `slice`; `fetch` is run unless it is there or on its way.
    pub(crate) async fn get<E>(
        &self,
        slice: SliceId,
        number: u32,
        fetch: impl Future<Output = Result<Bytes, E>>,
    ) -> Result<Bytes, E> {
        let cell = self.cell((slice, number));
        cell.get_or_try_init(|| fetch).await.cloned()
    }

    /// Whether the chunk is there already.
    pub(crate) fn holds(&self, slice: SliceId, number: u32) -> bool {
        let map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (slice, number);
        let cell = map.young.get(&key).or_else(|| map.old.get(&key));
        cell.is_some_and(|cell| cell.initialized())
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        *self.map.lock().unwrap_or_else(PoisonError::into_inner) = Map::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorumfs_metadata::identity::AllocationId;
    use std::sync::atomic::{AtomicU32, Ordering};

    const SLICE: SliceId = SliceId {
        allocation: AllocationId(1),
        counter: 1,
    };

    #[tokio::test]
    async fn readers_of_one_chunk_wait_for_one_fetch() {
        let (cache, fetches) = (ChunkCache::new(1 << 20), AtomicU32::new(0));
        let fetch = || async {
            fetches.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            Ok::<_, ()>(Bytes::from_static(b"content"))
        };
        let (a, b) = tokio::join!(cache.get(SLICE, 0, fetch()), cache.get(SLICE, 0, fetch()));
        assert_eq!(
            (a.unwrap(), b.unwrap()),
            (Bytes::from("content"), Bytes::from("content"))
        );
        assert_eq!(fetches.load(Ordering::Relaxed), 1);
        assert!(cache.holds(SLICE, 0) && !cache.holds(SLICE, 1));
    }

    #[tokio::test]
    async fn a_failed_fetch_is_tried_again() {
        let cache = ChunkCache::new(1 << 20);
        assert!(cache.get(SLICE, 0, async { Err(()) }).await.is_err());
        let found = cache
            .get(SLICE, 0, async { Ok::<_, ()>(Bytes::from_static(b"x")) })
            .await;
        assert_eq!(found, Ok(Bytes::from_static(b"x")));
    }

    #[tokio::test]
    async fn the_bound_holds() {
        let cache = ChunkCache::new(8 * u64::from(CHUNK_BYTES));
        for number in 0..100 {
            let _ = cache
                .get(SLICE, number, async { Ok::<_, ()>(Bytes::new()) })
                .await;
            let map = cache.map.lock().unwrap();
            assert!(map.young.len() + map.old.len() <= 8);
        }
    }
}
