//! Plain content that was read recently, in aligned chunks of slices, within a bound.
//!
//! A slice never changes, so a chunk is valid as long as it is cached. Readers that want the same
//! chunk at the same time wait for one fetch; when the fetching reader gives up, the next one takes
//! over.
//!
//! Chunks that were fetched together lie in one *run* of memory, so that a read over several of
//! them is answered without copying. They are also evicted together: a run takes memory as long as
//! any of its chunks is cached, so a use of one counts as a use of its siblings.
//!
//! The least recently used chunk is evicted. That is exact but for a tolerance: a chunk that was
//! used recently is not moved to the front again, which spares most uses the work.

use crate::slices::CHUNK_BYTES;
use bytes::Bytes;
use quorumfs_metadata::identity::SliceId;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::OnceCell;

/// A chunk is moved to the front if more than 1/TOLERANCE of all were, since it was.
const TOLERANCE: u64 = 4;

type Key = (SliceId, u32);
type Cell = Arc<OnceCell<Chunk>>;

/// A part of a run.
#[derive(Clone, Debug)]
pub(in crate::vfs) struct Chunk {
    /// The memory in which it lies.
    run: Bytes,
    /// Where in that memory.
    place: Range<usize>,
    /// The chunks that the memory holds.
    numbers: Range<u32>,
}

impl Chunk {
    /// Chunk `number` of the `numbers` that `run` holds.
    pub(in crate::vfs) fn of_run(run: &Bytes, numbers: &Range<u32>, number: u32) -> Self {
        let at = |number: u32| {
            let before = number.saturating_sub(numbers.start) as usize;
            before.saturating_mul(CHUNK_BYTES as usize).min(run.len())
        };
        Self {
            run: run.clone(),
            place: at(number)..at(number.saturating_add(1)),
            numbers: numbers.clone(),
        }
    }

    /// A part of it; `None` if it is shorter.
    pub(in crate::vfs) fn part(&self, range: Range<u32>) -> Option<ChunkRange> {
        let at = |position: u32| self.place.start.saturating_add(position as usize);
        let place = at(range.start)..at(range.end);
        (place.start <= place.end && place.end <= self.place.end).then(|| ChunkRange {
            run: self.run.clone(),
            place,
        })
    }
}

/// Bytes of one or several chunks.
#[derive(Clone, Debug)]
pub(in crate::vfs) struct ChunkRange {
    run: Bytes,
    place: Range<usize>,
}

impl ChunkRange {
    /// Appends what follows in the same memory; otherwise returns it.
    pub(in crate::vfs) fn join(&mut self, next: Self) -> Result<(), Self> {
        let same = std::ptr::eq(self.run.as_ptr(), next.run.as_ptr());
        if !same || self.place.end != next.place.start {
            return Err(next);
        }
        self.place.end = next.place.end;
        Ok(())
    }

    /// How many bytes.
    pub(in crate::vfs) fn len(&self) -> usize {
        self.place.len()
    }

    /// The bytes.
    pub(in crate::vfs) fn bytes(&self) -> &[u8] {
        self.run.get(self.place.clone()).unwrap_or_default()
    }

    /// The bytes, not copied.
    pub(in crate::vfs) fn into_bytes(self) -> Bytes {
        self.run.slice(self.place)
    }
}

#[derive(Debug)]
struct CachedChunk {
    cell: Cell,
    used: u64,
}

#[derive(Debug, Default)]
struct Map {
    cached: HashMap<Key, CachedChunk>,
    /// By the time of the last use.
    order: BTreeMap<u64, Key>,
    /// Counts moves to the front.
    now: u64,
}

impl Map {
    fn touch(&mut self, key: Key) {
        let Some(cached) = self.cached.get_mut(&key) else {
            return;
        };
        self.order.remove(&cached.used);
        self.now = self.now.saturating_add(1);
        cached.used = self.now;
        self.order.insert(self.now, key);
    }

    /// The cell of a chunk, which counts as used, with its run.
    fn find(&mut self, key: Key) -> Option<Cell> {
        let cached = self.cached.get(&key)?;
        let cell = cached.cell.clone();
        let since = self.now.saturating_sub(cached.used);
        if since > self.cached.len() as u64 / TOLERANCE {
            match cell.get() {
                Some(chunk) => {
                    for number in chunk.numbers.clone() {
                        self.touch((key.0, number));
                    }
                }
                None => self.touch(key),
            }
        }
        Some(cell)
    }

    /// A new cell; evicts others to make room for it.
    fn add(&mut self, key: Key, capacity: usize) -> Cell {
        while self.cached.len() >= capacity
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.cached.remove(&oldest);
        }
        let cell = Cell::default();
        self.now = self.now.saturating_add(1);
        let (used, cached) = (self.now, cell.clone());
        self.cached.insert(key, CachedChunk { cell: cached, used });
        self.order.insert(used, key);
        cell
    }
}

/// See the module.
#[derive(Debug)]
pub(in crate::vfs) struct ChunkCache {
    map: Mutex<Map>,
    capacity: usize,
}

impl ChunkCache {
    /// Caches at most `bytes` of plain content.
    pub(in crate::vfs) fn new(bytes: u64) -> Self {
        let chunks = usize::try_from(bytes / u64::from(CHUNK_BYTES)).unwrap_or(usize::MAX);
        Self {
            map: Mutex::default(),
            capacity: chunks.max(4),
        }
    }

    fn map(&self) -> MutexGuard<'_, Map> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The chunk `number` of `slice`; runs `fetch` unless it is cached or being fetched.
    pub(in crate::vfs) async fn get<E>(
        &self,
        slice: SliceId,
        number: u32,
        fetch: impl Future<Output = Result<Chunk, E>>,
    ) -> Result<Chunk, E> {
        let key = (slice, number);
        let cell = {
            let mut map = self.map();
            map.find(key).unwrap_or_else(|| map.add(key, self.capacity))
        };
        cell.get_or_try_init(|| fetch).await.cloned()
    }

    /// The chunk, if it is cached.
    pub(in crate::vfs) fn get_cached(&self, slice: SliceId, number: u32) -> Option<Chunk> {
        self.map().find((slice, number))?.get().cloned()
    }

    /// Whether the chunk is cached.
    pub(in crate::vfs) fn holds(&self, slice: SliceId, number: u32) -> bool {
        let map = self.map();
        let cached = map.cached.get(&(slice, number));
        cached.is_some_and(|cached| cached.cell.initialized())
    }

    /// Evicts everything.
    pub(in crate::vfs) fn clear(&self) {
        *self.map() = Map::default();
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
    const RUN: usize = 4;

    fn alone(number: u32, bytes: Bytes) -> Chunk {
        Chunk::of_run(&bytes, &(number..number + 1), number)
    }

    fn bytes_of(chunk: &Chunk) -> Bytes {
        let length = u32::try_from(chunk.place.len()).unwrap();
        chunk.part(0..length).unwrap().into_bytes()
    }

    /// Enters a run of [`RUN`] chunks whose bytes are their numbers; the last is short.
    async fn enter_run(cache: &ChunkCache, first: u32) {
        let numbers = first..first + RUN as u32;
        let mut run = Vec::new();
        for number in numbers.clone() {
            run.extend(vec![number as u8; CHUNK_BYTES as usize]);
        }
        run.truncate(run.len() - 1000);
        let run = Bytes::from(run);
        for number in numbers.clone() {
            let chunk = Chunk::of_run(&run, &numbers, number);
            let entered = cache.get(SLICE, number, async { Ok::<_, ()>(chunk) });
            entered.await.unwrap();
        }
    }

    #[tokio::test]
    async fn readers_of_one_chunk_wait_for_one_fetch() {
        let (cache, fetches) = (ChunkCache::new(1 << 20), AtomicU32::new(0));
        let fetch = || async {
            fetches.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            Ok::<_, ()>(alone(0, Bytes::from_static(b"content")))
        };
        let (a, b) = tokio::join!(cache.get(SLICE, 0, fetch()), cache.get(SLICE, 0, fetch()));
        for found in [a.unwrap(), b.unwrap()] {
            assert_eq!(bytes_of(&found), Bytes::from("content"));
        }
        assert_eq!(fetches.load(Ordering::Relaxed), 1);
        assert!(cache.holds(SLICE, 0) && !cache.holds(SLICE, 1));
    }

    #[tokio::test]
    async fn a_failed_fetch_is_tried_again() {
        let cache = ChunkCache::new(1 << 20);
        assert!(cache.get(SLICE, 0, async { Err(()) }).await.is_err());
        assert!(cache.get_cached(SLICE, 0).is_none());
        let fetch = async { Ok::<_, ()>(alone(0, Bytes::from_static(b"x"))) };
        let found = cache.get(SLICE, 0, fetch).await.unwrap();
        assert_eq!(bytes_of(&found), Bytes::from("x"));
        assert!(cache.get_cached(SLICE, 0).is_some());
    }

    #[tokio::test]
    async fn the_bound_holds() {
        let cache = ChunkCache::new(8 * u64::from(CHUNK_BYTES));
        for number in 0..100 {
            let fetch = async { Ok::<_, ()>(alone(number, Bytes::new())) };
            let _ = cache.get(SLICE, number, fetch).await;
            let map = cache.map.lock().unwrap();
            assert!(map.cached.len() <= 8 && map.order.len() == map.cached.len());
        }
    }

    #[tokio::test]
    async fn chunks_of_one_run_are_read_in_one_piece_and_no_others() {
        let cache = ChunkCache::new(64 * u64::from(CHUNK_BYTES));
        enter_run(&cache, 0).await;
        enter_run(&cache, 4).await;
        let part = |number: u32, range: Range<u32>| {
            let chunk = cache.get_cached(SLICE, number).unwrap();
            chunk.part(range)
        };
        let mut whole = part(0, 100..CHUNK_BYTES).unwrap();
        whole.join(part(1, 0..CHUNK_BYTES).unwrap()).unwrap();
        whole.join(part(2, 0..50).unwrap()).unwrap();
        let bytes = whole.clone().into_bytes();
        let chunk = CHUNK_BYTES as usize;
        assert_eq!(bytes.len(), chunk - 100 + chunk + 50);
        assert!(bytes[..chunk - 100].iter().all(|&byte| byte == 0));
        assert!(bytes[chunk - 100..][..chunk].iter().all(|&byte| byte == 1));
        assert!(bytes[2 * chunk - 100..].iter().all(|&byte| byte == 2));
        // Neither with a gap nor with a range that lies elsewhere.
        assert!(whole.join(part(2, 51..60).unwrap()).is_err());
        let mut last = part(3, 0..CHUNK_BYTES - 1000).unwrap();
        assert!(last.join(part(4, 0..1).unwrap()).is_err());
        assert!(part(3, 0..CHUNK_BYTES).is_none(), "it is shorter");
    }

    #[tokio::test]
    async fn chunks_of_a_run_are_evicted_together() {
        let cache = ChunkCache::new(12 * u64::from(CHUNK_BYTES));
        for run in [0, 4, 8] {
            enter_run(&cache, run).await;
        }
        assert!(cache.get_cached(SLICE, 2).is_some());
        enter_run(&cache, 12).await;
        for number in 0..16 {
            let cached = !(4..8).contains(&number);
            assert_eq!(cache.holds(SLICE, number), cached, "{number}");
        }
    }

    #[tokio::test]
    async fn content_that_fits_stays_cached_however_often_it_is_read_in_order() {
        let cache = ChunkCache::new(16 * u64::from(CHUNK_BYTES));
        for run in [0, 4, 8, 12] {
            enter_run(&cache, run).await;
        }
        for number in (0..16).cycle().take(200) {
            assert!(cache.get_cached(SLICE, number).is_some(), "{number}");
        }
    }
}
