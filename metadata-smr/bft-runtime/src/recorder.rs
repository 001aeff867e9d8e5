//! Records the events of a replica, so that they can be replayed.
//!
//! [`quorumfs_bft::recording`] says what a recording is and why it is exact. This module writes it
//! to a disk without delaying the replica.
//!
//! ```text
//!   the replica's thread                              a thread of its own
//!   RecordingCore: events, effects ─┐
//!   RecordedRows: rows read ────────┴─► queue ──────► blocks ──► DIR/KEY-TIME.recording
//!                                   (handles, not     every 20 ms, or when a
//!                                    bytes; bounded)  mebibyte waits
//! ```
//!
//! # What always holds
//!
//! * A replica that is not recorded pays one branch for an event and one for a row that it reads.
//! * A recording has no gaps. Where it cannot go on (its bound is reached, the disk fails or does
//!   not keep up) it ends, and the reason is logged and, if the disk still accepts that, stored at
//!   its end. The replica goes on.
//! * Nothing waits for the recording's disk, except for two seconds at most when the replica ends:
//!   its last moments are the purpose of a recording. A killed process loses up to 20 ms of it.
//!   Nothing is synced, so a loss of power may lose some seconds.
//! * Requests and rows are stored in plain text, so only the owner may read the file.
//!
//! # Several processes of a replica
//!
//! A recording covers one process, and ends early when its share of the space is used up. All
//! recordings of one replica in a directory share one bound: when a process starts, the oldest ones
//! are removed until half of the bound is free, and the new one gets all the free part. So frequent
//! restarts do not fill the disk, and each recording has at least half the bound.

mod writing;

#[cfg(test)]
mod tests;

use crate::event_loop::Core;
use crate::server::Start;
use crate::store::DiskStore;
use bytes::Bytes;
use quorumfs_bft::identity::{Now, Sequence};
use quorumfs_bft::metrics::ReplicaStatus;
use quorumfs_bft::recording::{self, Entry};
use quorumfs_bft::replica::Replica;
use quorumfs_bft::service::Service;
use quorumfs_bft::state::{StateError, Store};
use quorumfs_bft::step::{Effect, Effects, Event};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How much may wait to be written; a disk that falls further behind does not keep up.
const QUEUE_BYTES_MAX: usize = 64 << 20;
/// The memory of an entry in addition to the bytes that it refers to.
const ENTRY_BYTES: usize = 128;
/// How long the end of a replica waits for the end of its recording.
const END_WAIT: Duration = Duration::from_secs(2);

/// Where a replica is recorded, and how much of it.
#[derive(Clone, Debug)]
pub struct RecordingConfig {
    /// The directory; it is created if necessary.
    pub directory: PathBuf,
    /// The bound of all recordings of this replica in the directory.
    pub bytes_max: u64,
    /// The service's name, by which a replay finds it.
    pub service: String,
}

/// Something to write.
enum Item {
    Entry(Entry),
    Did(Vec<Effect>),
}

#[derive(Default)]
struct RecorderQueue {
    items: Vec<Item>,
    bytes: usize,
    /// Why nothing more is accepted.
    over: Option<String>,
    /// Whether the writer has finished.
    done: bool,
}

#[derive(Default)]
struct RecorderShared {
    /// Read without the lock: an ended recording costs no more than none.
    over: AtomicBool,
    queue: Mutex<RecorderQueue>,
    changed: Condvar,
}

impl RecorderShared {
    fn queue(&self) -> MutexGuard<'_, RecorderQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts nothing more.
    fn end(&self, queue: &mut RecorderQueue, why: &str) {
        self.over.store(true, Ordering::Relaxed);
        queue.over.get_or_insert_with(|| why.to_owned());
        self.changed.notify_all();
    }
}

/// A handle on a running recording.
#[derive(Clone)]
struct Recorder(Arc<RecorderShared>);

impl Recorder {
    fn put(&self, item: Item, bytes: usize) {
        if self.0.over.load(Ordering::Relaxed) {
            return;
        }
        let mut queue = self.0.queue();
        if queue.over.is_some() {
            return;
        }
        let waited = queue.bytes;
        queue.items.push(item);
        queue.bytes += ENTRY_BYTES + bytes;
        if queue.bytes > QUEUE_BYTES_MAX {
            self.0.end(&mut queue, "the disk did not keep up");
        } else if waited < writing::BLOCK_BYTES && queue.bytes >= writing::BLOCK_BYTES {
            self.0.changed.notify_all();
        }
    }

    fn record_event(&self, now: Now, event: &Event) {
        let bytes = match event {
            Event::Received { message, .. } | Event::Signed { message } => message.frame().len(),
            _ => 0,
        };
        let event = event.clone();
        self.put(Item::Entry(Entry::Event { now, event }), bytes);
    }

    fn read(&self, key: &[u8], found: &Result<Option<Bytes>, StateError>) {
        let key = Bytes::copy_from_slice(key);
        let found = match found {
            Ok(value) => Ok(value.clone()),
            Err(StateError::Store { reason, .. }) => Err(reason.clone()),
            Err(other) => Err(other.to_string()),
        };
        let value = found.as_ref().ok().and_then(Option::as_ref);
        let bytes = key.len() + value.map_or(0, Bytes::len);
        self.put(Item::Entry(Entry::Read { key, found }), bytes);
    }

    fn record_effects<'a>(&self, effects: impl Iterator<Item = &'a Effect>) {
        let effects: Vec<Effect> = effects.cloned().collect();
        let bytes = effects.iter().map(bytes_of).sum();
        self.put(Item::Did(effects), bytes);
    }

    /// Ends it, and waits until it is written, but not for long.
    fn finish(&self, why: &str) {
        let mut queue = self.0.queue();
        self.0.end(&mut queue, why);
        let waited = self
            .0
            .changed
            .wait_timeout_while(queue, END_WAIT, |queue| !queue.done);
        drop(waited);
    }
}

/// The memory that an effect keeps.
fn bytes_of(effect: &Effect) -> usize {
    match effect {
        Effect::Sign { message } => message.signed_bytes().len(),
        Effect::Persist { record, .. } => record.len(),
        Effect::Send { frame, .. } | Effect::Show { frame, .. } => frame.len(),
        Effect::Flush { batch, .. } => {
            let value = |value: &Option<Bytes>| value.as_ref().map_or(0, Bytes::len);
            let entries = batch.entries.iter();
            entries.map(|(key, it)| key.len() + value(it)).sum()
        }
        _ => 0,
    }
}

/// A state store that records the rows that are read from it.
pub(crate) struct RecordedRows {
    store: DiskStore,
    recorder: Option<Recorder>,
}

impl Store for RecordedRows {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        let found = self.store.get(key);
        if let Some(recorder) = &self.recorder {
            recorder.read(key, &found);
        }
        found
    }
}

/// A core whose events and effects are recorded.
pub(crate) struct RecordingCore<C> {
    core: C,
    recorder: Option<Recorder>,
}

impl<C: Core> Core for RecordingCore<C> {
    fn step(&mut self, now: Now, event: Event, effects: &mut Effects) {
        let Some(recorder) = &self.recorder else {
            return self.core.step(now, event, effects);
        };
        recorder.record_event(now, &event);
        let before = effects.iter().len();
        self.core.step(now, event, effects);
        recorder.record_effects(effects.iter().skip(before));
    }

    fn status(&self) -> ReplicaStatus {
        self.core.status()
    }

    fn committed(&self) -> Sequence {
        self.core.committed()
    }
}

impl<C> Drop for RecordingCore<C> {
    fn drop(&mut self) {
        if let Some(recorder) = &self.recorder {
            recorder.finish(match std::thread::panicking() {
                true => "the replica panicked",
                false => "the replica ended",
            });
        }
    }
}

/// Starts a replica from its disk, and its recording if one is configured.
pub(crate) fn recover<S: Service>(
    config: Option<&RecordingConfig>,
    start: Start,
    service: S,
    now: Now,
    effects: &mut Effects,
) -> Result<RecordingCore<Replica<S, RecordedRows>>, StateError> {
    let recorder = config.and_then(|config| begin(config, &start, now));
    let rows = RecordedRows {
        store: start.store,
        recorder: recorder.clone(),
    };
    let core = Replica::recover(start.config, service, rows, start.journal, now, effects);
    if let Some(recorder) = &recorder {
        match &core {
            Ok(_) => recorder.record_effects(effects.iter()),
            Err(error) => {
                // A replay fails in the same words.
                let reason = error.to_string();
                let poison = Effect::Poison { reason };
                recorder.record_effects(effects.iter().chain([&poison]));
                recorder.finish("the replica could not start");
            }
        }
    }
    let core = core?;
    Ok(RecordingCore { core, recorder })
}

/// Begins a recording. None if that fails: a recording must not stop a replica.
fn begin(config: &RecordingConfig, start: &Start, now: Now) -> Option<Recorder> {
    let recorded = recording::Start {
        service: config.service.clone(),
        release: env!("CARGO_PKG_VERSION").to_owned(),
        config: start.config.clone(),
        condition: start.journal.condition.clone(),
        next: start.journal.next,
        now,
    };
    let shared = Arc::new(RecorderShared::default());
    match writing::begin(config, &recorded, &start.journal.entries, &shared) {
        Ok(path) => {
            let path = path.display();
            tracing::info!(%path, "the replica is recorded, with its requests in plain text");
            Some(Recorder(shared))
        }
        Err(error) => {
            let directory = config.directory.display();
            tracing::warn!(%directory, %error, "the replica is not recorded");
            None
        }
    }
}
