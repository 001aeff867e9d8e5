//! The one who writes: learns what is there, appends what comes, throws away what is old.
//!
//! It is the only one that changes segments, on a thread of its own; readers meet it at the index
//! alone. An error of the disk ends its writing for good, and what is there can still be read.

use super::index::{ChunkKey, Evicted, Index, SegmentId, TAG_BYTES};
use super::place::SegmentPlace;
use super::segment::Segment;
use crate::keys::Secret;
use bytes::Bytes;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{mpsc, oneshot};

/// What it and the readers share.
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

    /// Says, once, why nothing more is written.
    pub(super) fn stop_writing(&self, reason: String) {
        let mut problem = self.problem.lock().unwrap_or_else(PoisonError::into_inner);
        if problem.is_none() {
            tracing::warn!(%reason, "the disk cache is written no more");
            *problem = Some(reason);
        }
    }

    /// Reads a chunk into a buffer that it fills together with its tag; answers whether it was
    /// there. Whatever does not open is forgotten.
    pub(super) fn read(&self, key: ChunkKey, buffer: &mut [u8]) -> bool {
        let found = self.index().lookup(key);
        let Some((segment, id, place)) = found else {
            return false;
        };
        let read = segment.read(key, place, buffer);
        let read = read.inspect_err(|error| tracing::debug!(%error, "the disk cache fails"));
        let whole = read.unwrap_or(false);
        if !whole {
            self.damaged.fetch_add(1, Ordering::Relaxed);
            self.index().forget(key, id, place);
        }
        whole
    }
}

/// Bytes that wait in the queue, as long as this lives.
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

/// What it is asked for.
#[derive(Debug)]
pub(super) enum Job {
    /// Keep this.
    Put(ChunkKey, Bytes, Queued),
    /// Say when everything before was done, and everything that is there is known.
    Settle(oneshot::Sender<()>),
}

/// See the module.
#[derive(Debug)]
pub(super) struct SegmentWriter {
    shared: Arc<SharedIndex>,
    place: Box<dyn SegmentPlace>,
    key: Secret,
    free_floor: u64,
    /// Segments from before, the newest last.
    unread: Vec<SegmentId>,
}

impl SegmentWriter {
    /// Finds what is there, and throws away what is too much.
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

    /// Works until nobody can ask for anything more.
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

    /// Learns what the newest segment holds of those that are not known yet; whether there was one.
    pub(super) fn learn_one(&mut self) -> bool {
        let Some(id) = self.unread.pop() else {
            return false;
        };
        let opened = Segment::open(self.place.as_ref(), id, &self.key);
        let useful = opened.ok().flatten().filter(|(_, held)| !held.is_empty());
        match useful {
            Some((segment, held)) => self.shared.index().learn(id, Arc::new(segment), &held),
            // Of another key, torn, or empty: nobody will ever read it.
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

    /// Keeps a chunk, if it can.
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

    /// Puts a chunk into the open segment, if it has room.
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

    /// Begins a segment, with what was read of those that had to go for it.
    fn begin(&self) -> io::Result<()> {
        let gone = self.free_space()?;
        let (next, limits) = {
            let index = self.shared.index();
            (index.next(), index.limits())
        };
        let id = next.ok_or_else(|| io::Error::other("it has begun all segments it can"))?;
        let segment = Segment::create(self.place.as_ref(), id, &self.key, limits.records)?;
        self.shared.index().begin(id, Arc::new(segment));
        // Half of the new one at most: something has to be gained.
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
                // What cannot be read any more is no loss here.
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

    /// Throws the oldest segments away until another one can begin.
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

    /// Whether there is room for so many bytes above the floor; what is lacking is given back.
    fn is_above_floor(&self, bytes: usize) -> io::Result<bool> {
        let wanted = self.free_floor.saturating_add(bytes as u64);
        let mut available = self.place.available()?;
        let is_above = available >= wanted;
        // By their lengths: some disks take a while until they say that they have got it.
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
