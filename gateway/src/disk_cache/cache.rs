//! The interface of the disk cache for the rest of the program.

use super::index::{CACHE_BYTES_MIN, ChunkKey, Index, Limits, TAG_BYTES};
use super::place::{SegmentDirectory, SegmentPlace};
use super::writer::{Job, Queued, SegmentWriter, SharedIndex};
use crate::keys::Secret;
use crate::memory::LongBytes;
use crate::slices::CHUNK_BYTES;
use bytes::Bytes;
use quorumfs_metadata::identity::SliceId;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Semaphore, mpsc, oneshot};

/// The most chunks that wait to be written, of any length.
const QUEUE_MAX: usize = 4096;
/// The most concurrent reads of chunks, each with a waiting caller.
const READS_AT_ONCE: usize = 8;

/// The most concurrent reads of runs. Each goes chunk by chunk, so that the kernel sees a
/// sequential reader and prefetches. More runs than processors take memory and are no faster.
fn runs_at_once() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    processors.clamp(2, READS_AT_ONCE)
}

/// The place and the bounds of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskCacheOptions {
    /// A directory of its own; created if it is missing.
    pub path: PathBuf,
    /// Bytes on disk; [`CACHE_BYTES_MIN`] at least.
    pub bytes_max: u64,
    /// Bytes of the disk that stay free for others.
    pub free_floor: u64,
    /// Bytes of memory for the index.
    pub index_bytes_max: usize,
    /// Bytes of memory for chunks that wait to be written.
    pub queue_bytes_max: u64,
}

/// The state of the disk cache.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DiskCacheStatus {
    /// Bytes on disk.
    pub bytes: u64,
    /// The bound of these.
    pub bytes_max: u64,
    /// Chunks that can be found.
    pub chunks: usize,
    /// Chunks read from it.
    pub hits: u64,
    /// Chunks that were missing.
    pub misses: u64,
    /// Chunks that were not taken: the queue was full, the disk below its floor, or the cache
    /// disabled.
    pub refused: u64,
    /// Chunks that were present and did not open.
    pub damaged: u64,
    /// Why nothing more is written, if that is so.
    pub problem: Option<String>,
}

/// See [`crate::disk_cache`].
#[derive(Debug)]
pub struct DiskCache {
    shared: Arc<SharedIndex>,
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
    ended: Mutex<Option<oneshot::Receiver<()>>>,
    queued: Arc<AtomicU64>,
    queue_bytes_max: u64,
    reads: Arc<Semaphore>,
    runs: Arc<Semaphore>,
}

impl DiskCache {
    /// Opens the cache in its directory; the content is read in the background. Opening cannot
    /// fail: after an error the cache is empty, and the error is in its status.
    #[must_use]
    pub fn open(options: DiskCacheOptions, key: Secret) -> Self {
        let path = options.path.clone();
        let place = move || Ok(Box::new(SegmentDirectory::open(&path)?) as Box<dyn SegmentPlace>);
        Self::over(options, key, place)
    }

    pub(super) fn over(
        options: DiskCacheOptions,
        key: Secret,
        place: impl FnOnce() -> io::Result<Box<dyn SegmentPlace>> + Send + 'static,
    ) -> Self {
        let limits = Limits::of(
            options.bytes_max.max(CACHE_BYTES_MIN),
            options.index_bytes_max,
        );
        let shared = SharedIndex::new(Index::new(limits));
        let (sender, jobs) = mpsc::channel(QUEUE_MAX);
        let (end, ended) = oneshot::channel::<()>();
        let begun = {
            let shared = shared.clone();
            let work = move || {
                let _end = end;
                let started = place().and_then(|place| {
                    SegmentWriter::start(shared.clone(), place, key, options.free_floor)
                });
                match started {
                    Ok(writer) => writer.run(jobs),
                    Err(error) => shared.stop_writing(cannot_open(&options.path, &error)),
                }
            };
            let thread = std::thread::Builder::new().name("disk cache".into());
            thread.spawn(work)
        };
        if let Err(error) = begun {
            shared.stop_writing(error.to_string());
        }
        Self {
            shared,
            jobs: Mutex::new(Some(sender)),
            ended: Mutex::new(Some(ended)),
            queued: Arc::default(),
            queue_bytes_max: options.queue_bytes_max,
            reads: Arc::new(Semaphore::new(READS_AT_ONCE)),
            runs: Arc::new(Semaphore::new(runs_at_once())),
        }
    }

    /// The state of the cache.
    #[must_use]
    pub fn status(&self) -> DiskCacheStatus {
        let shared = &self.shared;
        let (bytes, bytes_max, chunks) = {
            let index = shared.index();
            (index.bytes(), index.limits().bytes_max, index.chunks())
        };
        DiskCacheStatus {
            bytes,
            bytes_max,
            chunks,
            hits: shared.hits.load(Ordering::Relaxed),
            misses: shared.misses.load(Ordering::Relaxed),
            refused: shared.refused.load(Ordering::Relaxed),
            damaged: shared.damaged.load(Ordering::Relaxed),
            problem: shared.problem(),
        }
    }

    fn sender(&self) -> Option<mpsc::Sender<Job>> {
        let jobs = self.jobs.lock();
        jobs.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until everything that was offered is written or refused, and the content of the disk
    /// is known.
    pub async fn settle(&self) {
        let (settled, wait) = oneshot::channel();
        if let Some(jobs) = self.sender()
            && jobs.send(Job::Settle(settled)).await.is_ok()
        {
            let _ = wait.await;
        }
    }

    /// Writes the waiting chunks and releases the directory. New chunks are refused from then on.
    pub async fn close(&self) {
        drop(
            self.jobs
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        );
        let ended = self
            .ended
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(ended) = ended {
            let _ = ended.await;
        }
    }

    /// Stores the chunks of a slice that `bytes` hold, beginning with chunk `first`, if there is
    /// time and space for them.
    pub(super) fn offer(&self, slice: SliceId, first: u32, bytes: &Bytes) {
        let Some(jobs) = self.sender() else {
            return;
        };
        for (number, begin) in (first..).zip((0..bytes.len()).step_by(CHUNK_BYTES as usize)) {
            let end = bytes.len().min(begin.saturating_add(CHUNK_BYTES as usize));
            let chunk = bytes.slice(begin..end);
            let taken = self.reserve(chunk.len() as u64).is_some_and(|queued| {
                let job = Job::Put(ChunkKey::new(slice, number), chunk, queued);
                jobs.try_send(job).is_ok()
            });
            if !taken {
                self.shared.refused.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// The same, waiting for the disk; returns how many of the bytes are stored in the end.
    pub(super) async fn store(&self, slice: SliceId, first: u32, bytes: &Bytes) -> u64 {
        let chunk_bytes = CHUNK_BYTES as usize;
        let chunks = || (first..).zip((0..bytes.len()).step_by(chunk_bytes));
        for (number, begin) in chunks() {
            let chunk = bytes.slice(begin..bytes.len().min(begin.saturating_add(chunk_bytes)));
            // After the last write the queue is empty.
            let queued = loop {
                match self.reserve(chunk.len() as u64) {
                    Some(queued) => break queued,
                    None => self.settle().await,
                }
            };
            let job = Job::Put(ChunkKey::new(slice, number), chunk, queued);
            match self.sender() {
                Some(jobs) if jobs.send(job).await.is_ok() => {}
                _ => return 0,
            }
        }
        self.settle().await;
        let kept = chunks().filter(|(number, _)| self.holds(slice, *number));
        let length = |begin: usize| (bytes.len().saturating_sub(begin)).min(chunk_bytes) as u64;
        kept.map(|(_, begin)| length(begin)).sum()
    }

    /// Whether a chunk is present.
    pub(super) fn holds(&self, slice: SliceId, number: u32) -> bool {
        self.shared.index().holds(ChunkKey::new(slice, number))
    }

    fn reserve(&self, bytes: u64) -> Option<Queued> {
        let take = |used: u64| (used < self.queue_bytes_max).then(|| used.saturating_add(bytes));
        let taken = self
            .queued
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, take);
        // Not before: dropping a `Queued` releases its bytes.
        taken.is_ok().then(|| Queued {
            all: self.queued.clone(),
            bytes,
        })
    }

    /// Some chunks of a slice of `length` bytes: the ones that are present.
    pub(super) async fn get(
        &self,
        slice: SliceId,
        numbers: Range<u32>,
        length: u32,
    ) -> FoundChunks {
        let wanted: Vec<(ChunkKey, u32)> = numbers
            .map(|number| {
                let begin = number.saturating_mul(CHUNK_BYTES);
                let chunk = length.saturating_sub(begin).min(CHUNK_BYTES);
                (ChunkKey::new(slice, number), chunk)
            })
            .collect();
        let count = wanted.len() as u64;
        let nothing = FoundChunks::Parts(vec![None; wanted.len()]);
        let is_there = {
            let index = self.shared.index();
            wanted.iter().any(|(key, _)| index.holds(*key))
        };
        let found = if is_there {
            self.read(wanted).await.unwrap_or(nothing)
        } else {
            nothing
        };
        let hits = match &found {
            FoundChunks::All(_) => count,
            FoundChunks::Parts(parts) => parts.iter().flatten().count() as u64,
        };
        let misses = count.saturating_sub(hits);
        self.shared.hits.fetch_add(hits, Ordering::Relaxed);
        self.shared.misses.fetch_add(misses, Ordering::Relaxed);
        found
    }
}

impl DiskCache {
    /// `None` at the end of the program.
    async fn read(&self, wanted: Vec<(ChunkKey, u32)>) -> Option<FoundChunks> {
        let is_run = wanted.len() > 1;
        let turns = if is_run { &self.runs } else { &self.reads };
        let turn = turns.clone().acquire_owned().await.ok()?;
        let shared = self.shared.clone();
        let read = move || {
            let _turn = turn;
            FoundChunks::read(&shared, &wanted)
        };
        tokio::task::spawn_blocking(read).await.ok()
    }
}

/// Consecutive chunks of a slice, as far as they were on the disk.
pub(super) enum FoundChunks {
    /// The bytes of all of them.
    All(Bytes),
    /// The chunks that were present, at their positions.
    Parts(Vec<Option<Bytes>>),
}

impl FoundChunks {
    /// Reads them into one buffer, which the results share. Each tag is overwritten by the next
    /// chunk.
    fn read(shared: &SharedIndex, wanted: &[(ChunkKey, u32)]) -> Self {
        let tag = TAG_BYTES as usize;
        let bytes: usize = wanted.iter().map(|(_, length)| *length as usize).sum();
        let mut buffer = LongBytes::to_fill(bytes.saturating_add(tag));
        let mut rest = &mut buffer[..];
        let mut is_there = Vec::with_capacity(wanted.len());
        for (key, length) in wanted {
            let length = *length as usize;
            let room = rest.get_mut(..length.saturating_add(tag));
            is_there.push(room.is_some_and(|room| shared.read(*key, room)));
            rest = std::mem::take(&mut rest)
                .get_mut(length..)
                .unwrap_or_default();
        }
        buffer.truncate(bytes);
        if is_there.iter().all(|is_there| *is_there) {
            return Self::All(buffer.share());
        }
        let mut begin = 0_usize;
        let parts = wanted.iter().zip(is_there).map(|((_, length), is_there)| {
            let end = begin.saturating_add(*length as usize);
            let part = buffer.get(begin..end).filter(|_| is_there);
            begin = end;
            part.map(Bytes::copy_from_slice)
        });
        Self::Parts(parts.collect())
    }
}

fn cannot_open(path: &std::path::Path, error: &io::Error) -> String {
    let path = path.display();
    match error.kind() {
        io::ErrorKind::WouldBlock => format!("another process uses {path}"),
        _ => format!("cannot use {path}: {error}"),
    }
}
