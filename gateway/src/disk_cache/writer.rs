//! The writer: reads existing segments, appends chunks, evicts old segments.
//!
//! It alone changes segments, on a thread of its own; readers share only the index with it. After
//! an error of the disk it never writes again; existing chunks can still be read.

use super::index::{ChunkKey, Evicted, Index, SegmentId, TAG_BYTES};
use super::place::SegmentPlace;
use super::segment::Segment;
use crate::keys::Secret;
use bytes::Bytes;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{mpsc, oneshot};

/// The state shared with the readers.
#[derive(Debug)]
pub(super) struct SharedIndex {
    index: Mutex<Index<Arc<Segment>>>,
    pub(super) hits: AtomicU64,
    pub(super) misses: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) damaged: AtomicU64,
    problem: Mutex<Option<String>>,
}

impl SharedIndex {
    pub(super) fn new(index: Index<Arc<Segment>>) -> Arc<Self> {
        Arc::new(Self {
            index: Mutex::new(index),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            damaged: AtomicU64::new(0),
            problem: Mutex::new(None),
        })
    }

    pub(super) fn index(&self) -> MutexGuard<'_, Index<Arc<Segment>>> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn problem(&self) -> Option<String> {
        let problem = self.problem.lock();
        problem.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Stops writing, and reports the reason once.
    pub(super) fn stop_writing(&self, reason: String) {
        let mut problem = self.problem.lock().unwrap_or_else(PoisonError::into_inner);
        if problem.is_none() {
            tracing::warn!(%reason, "the disk cache is not written to any more; reads go on");
            *problem = Some(reason);
        }
    }

    /// Reads a chunk into a buffer that it fills together with its tag; returns whether it was
    /// present. A chunk that does not open is forgotten.
    pub(super) fn read(&self, key: ChunkKey, buffer: &mut [u8]) -> bool {
        let found = self.index().lookup(key);
        let Some((segment, id, place)) = found else {
            return false;
        };
        let read = segment.read(key, place, buffer);
        let read =
            read.inspect_err(|error| tracing::debug!(%error, "a read from the disk cache failed"));
        let whole = read.unwrap_or(false);
        if !whole {
            self.damaged.fetch_add(1, Ordering::Relaxed);
            self.index().forget(key, id, place);
        }
        whole
    }
}

/// Bytes in the queue, while this value lives.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) all: Arc<AtomicU64>,
    pub(super) bytes: u64,
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// A request to the writer.
#[derive(Debug)]
pub(super) enum Job {
    /// Store this chunk.
    Put(ChunkKey, Bytes, Queued),
    /// Answer when all earlier requests are done and all segments were read.
    Settle(oneshot::Sender<()>),
}

/// See the module.
#[derive(Debug)]
pub(super) struct SegmentWriter {
    shared: Arc<SharedIndex>,
    place: Box<dyn SegmentPlace>,
    key: Secret,
    free_floor: u64,
    /// Existing segments that are not yet read, the newest last.
    unread: Vec<SegmentId>,
}

impl SegmentWriter {
    /// Lists the segments, and evicts beyond the bound.
    pub(super) fn start(
        shared: Arc<SharedIndex>,
        place: Box<dyn SegmentPlace>,
        key: Secret,
        free_floor: u64,
    ) -> io::Result<Self> {
        let mut found = place.list()?;
        found.sort_unstable();
        {
            let mut index = shared.index();
            for (id, bytes) in &found {
                index.found(*id, *bytes);
            }
        }
        let writer = Self {
            shared,
            place,
            key,
            free_floor,
            unread: found.into_iter().map(|(id, _)| id).collect(),
        };
        writer.free_space()?;
        Ok(writer)
    }

    /// Works until all senders are gone.
    pub(super) fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        loop {
            let is_learning = self.learn_one();
            let job = if is_learning {
                match jobs.try_recv() {
                    Ok(job) => job,
                    Err(mpsc::error::TryRecvError::Empty) => continue,
                    Err(mpsc::error::TryRecvError::Disconnected) => return,
                }
            } else {
                match jobs.blocking_recv() {
                    Some(job) => job,
                    None => return,
                }
            };
            match job {
                Job::Put(key, chunk, _queued) => self.put(key, &chunk),
                Job::Settle(settled) => {
                    while self.learn_one() {}
                    let _ = settled.send(());
                }
            }
        }
    }

    /// Reads the table of the newest unread segment; returns whether there was one.
    pub(super) fn learn_one(&mut self) -> bool {
        let Some(id) = self.unread.pop() else {
            return false;
        };
        let opened = Segment::open(self.place.as_ref(), id, &self.key);
        let useful = opened.ok().flatten().filter(|(_, held)| !held.is_empty());
        match useful {
            Some((segment, held)) => self.shared.index().learn(id, Arc::new(segment), &held),
            // Of another key, torn, or empty: it can never be read.
            None => {
                self.shared.index().remove(id);
                if let Err(error) = self.place.remove(id)
                    && error.kind() != io::ErrorKind::NotFound
                {
                    self.shared.stop_writing(error.to_string());
                }
            }
        }
        true
    }

    /// Stores a chunk, if possible.
    pub(super) fn put(&mut self, key: ChunkKey, chunk: &[u8]) {
        if self.shared.index().holds(key) {
            return;
        }
        let kept = self.shared.problem().is_none()
            && self.try_put(key, chunk).unwrap_or_else(|error| {
                self.shared.index().close();
                self.shared.stop_writing(error.to_string());
                false
            });
        if !kept {
            self.shared.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn try_put(&mut self, key: ChunkKey, chunk: &[u8]) -> io::Result<bool> {
        if !self.is_above_floor(chunk.len())? {
            return Ok(false);
        }
        if self.append(key, chunk)? {
            return Ok(true);
        }
        self.begin()?;
        self.append(key, chunk)
    }

    /// Appends a chunk to the open segment, if it has space.
    fn append(&self, key: ChunkKey, chunk: &[u8]) -> io::Result<bool> {
        let Ok(length) = u32::try_from(chunk.len()) else {
            return Ok(false);
        };
        let Some((segment, id, place)) = self.shared.index().place(length) else {
            return Ok(false);
        };
        segment.write(key, place, chunk.to_vec())?;
        self.shared.index().written(key, id, place);
        Ok(true)
    }

    /// Begins a segment, with the chunks that were read in the evicted ones.
    fn begin(&self) -> io::Result<()> {
        let gone = self.free_space()?;
        let (next, limits) = {
            let index = self.shared.index();
            (index.next(), index.limits())
        };
        let id = next.ok_or_else(|| io::Error::other("all segment numbers are used up"))?;
        let segment = Segment::create(self.place.as_ref(), id, &self.key, limits.records)?;
        self.shared.index().begin(id, Arc::new(segment));
        // At most half of the new one, so that the eviction frees space.
        let (mut bytes, mut records) = (limits.segment_bytes / 2, limits.records / 2);
        for evicted in gone {
            let Some(handle) = evicted.handle else {
                continue;
            };
            for (key, place) in evicted.was_read {
                let length = u64::from(place.length);
                if length > bytes || records == 0 {
                    break;
                }
                // A chunk that cannot be read is no loss here.
                let mut chunk = vec![0; place.length as usize + TAG_BYTES as usize];
                if let Ok(true) = handle.read(key, place, &mut chunk)
                    && let Some(plain) = chunk.get(..place.length as usize)
                    && self.append(key, plain)?
                {
                    bytes = bytes.saturating_sub(length);
                    records = records.saturating_sub(1);
                }
            }
        }
        Ok(())
    }

    /// Evicts the oldest segments until the next one can begin.
    fn free_space(&self) -> io::Result<Vec<Evicted<Arc<Segment>>>> {
        let mut gone = Vec::new();
        while self.shared.index().is_full() {
            let evicted = self.shared.index().evict();
            let Some(evicted) = evicted else {
                break;
            };
            self.place.remove(evicted.id)?;
            gone.push(evicted);
        }
        Ok(gone)
    }

    /// Whether so many bytes are free above the floor; evicts segments if not.
    fn is_above_floor(&self, bytes: usize) -> io::Result<bool> {
        let wanted = self.free_floor.saturating_add(bytes as u64);
        let mut available = self.place.available()?;
        let is_above = available >= wanted;
        // Counted by their lengths: some disks report freed space only after a while.
        while available < wanted {
            let evicted = self.shared.index().evict();
            let Some(evicted) = evicted else {
                break;
            };
            self.place.remove(evicted.id)?;
            available = available.saturating_add(evicted.bytes);
        }
        Ok(is_above || self.place.available()? >= wanted)
    }
}
