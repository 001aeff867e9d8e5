//! Writes down what a replica is told, so that it can be told the same again.
//!
//! What a recording is and why it is exact: [`quorumfs_bft::recording`]. Here is how it gets to a
//! disk without getting into the replica's way.
//!
//! ```text
//!   the replica's thread                         a thread of its own
//!   Recorded core: told, did ─┐
//!   RecordedRows: read ───────┴─► queue ───────► blocks ──► DIR/KEY-TIME.recording
//!                              (handles, not     every 20 ms, or when a
//!                               bytes; bounded)  mebibyte waits
//! ```
//!
//! # What always holds
//!
//! * A replica that is not recorded pays one branch for an event and one for a row that it reads.
//! * A recording has no holes. Where it cannot go on it ends, says so in the log and, if the disk
//!   takes that, at its end: the bound is reached, the disk fails or does not keep up. The replica
//!   goes on.
//! * Nothing waits for the recording's disk, but for two seconds at most when the replica ends: its
//!   last moments are what it is for. A process that is killed loses up to 20 ms of it. Nothing is
//!   synced, so a loss of power may take some seconds.
//! * Requests and rows are in it as they are, so nobody but the owner may read the file.
//!
//! # The ring of lives
//!
//! A recording begins with a process and ends at the latest where its room does. All recordings of
//! one replica in a directory share one bound: when a life begins, the oldest ones are removed
//! until half of it is free, and the new one gets all that is left. So whatever starts a replica
//! again and again does not fill the disk, and a life has room for half the bound at least.

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

/// How much may wait to be written; a disk that takes less than this in a burst does not keep up.
const QUEUE_BYTES_MAX: usize = 64 << 20;
/// What an entry takes besides what it refers to.
const ENTRY_BYTES: usize = 128;
/// How long the end of a replica waits for the recording's.
const END_WAIT: Duration = Duration::from_secs(2);

/// Where and how much of a replica is recorded.
#[derive(Clone, Debug)]
pub struct RecordingConfig {
    /// The directory; it is made if it is not there.
    pub directory: PathBuf,
    /// How many bytes all recordings of this replica there may take.
    pub bytes_max: u64,
    /// The service's name, by which whoever replays finds it.
    pub service: String,
}

/// Something that is to be written.
enum Item {
    Entry(Entry),
    Did(Vec<Effect>),
}

#[derive(Default)]
struct Queue {
    items: Vec<Item>,
    bytes: usize,
    /// Why nothing more is taken.
    over: Option<String>,
    /// Whether the writer has nothing more to do.
    done: bool,
}

#[derive(Default)]
struct Shared {
    /// Read without the lock: what is over costs no more than what never was.
    over: AtomicBool,
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes nothing more.
    fn end(&self, queue: &mut Queue, why: &str) {
        self.over.store(true, Ordering::Relaxed);
        queue.over.get_or_insert_with(|| why.to_owned());
        self.changed.notify_all();
    }
}

/// A handle on a recording under way.
#[derive(Clone)]
struct Recorder(Arc<Shared>);

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

    fn told(&self, now: Now, event: &Event) {
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

    fn did<'a>(&self, effects: impl Iterator<Item = &'a Effect>) {
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

/// What an effect keeps in memory.
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

/// A state store that notes what is read of it.
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

/// A core that notes what it is told and what it does.
pub(crate) struct Recorded<C> {
    core: C,
    recorder: Option<Recorder>,
}

impl<C: Core> Core for Recorded<C> {
    fn step(&mut self, now: Now, event: Event, effects: &mut Effects) {
        let Some(recorder) = &self.recorder else {
            return self.core.step(now, event, effects);
        };
        recorder.told(now, &event);
        let before = effects.iter().len();
        self.core.step(now, event, effects);
        recorder.did(effects.iter().skip(before));
    }

    fn status(&self) -> ReplicaStatus {
        self.core.status()
    }

    fn committed(&self) -> Sequence {
        self.core.committed()
    }
}

impl<C> Drop for Recorded<C> {
    fn drop(&mut self) {
        if let Some(recorder) = &self.recorder {
            recorder.finish(match std::thread::panicking() {
                true => "the replica panicked",
                false => "the replica ended",
            });
        }
    }
}

/// Starts a replica on what is on its disk, and its recording if it is to have one.
pub(crate) fn recover<S: Service>(
    config: Option<&RecordingConfig>,
    start: Start,
    service: S,
    now: Now,
    effects: &mut Effects,
) -> Result<Recorded<Replica<S, RecordedRows>>, StateError> {
    let recorder = config.and_then(|config| begin(config, &start, now));
    let rows = RecordedRows {
        store: start.store,
        recorder: recorder.clone(),
    };
    let core = Replica::recover(start.config, service, rows, start.journal, now, effects);
    if let Some(recorder) = &recorder {
        match &core {
            Ok(_) => recorder.did(effects.iter()),
            Err(error) => {
                // What a replay makes of it as well.
                let reason = error.to_string();
                let poison = Effect::Poison { reason };
                recorder.did(effects.iter().chain([&poison]));
                recorder.finish("the replica could not start");
            }
        }
    }
    let core = core?;
    Ok(Recorded { core, recorder })
}

/// Begins a recording. None if that fails: a replica is not held up by what may once explain it.
fn begin(config: &RecordingConfig, start: &Start, now: Now) -> Option<Recorder> {
    let recorded = recording::Start {
        service: config.service.clone(),
        release: env!("CARGO_PKG_VERSION").to_owned(),
        config: start.config.clone(),
        condition: start.journal.condition.clone(),
        next: start.journal.next,
        now,
    };
    let shared = Arc::new(Shared::default());
    match writing::begin(config, &recorded, &start.journal.entries, &shared) {
        Ok(path) => {
            let path = path.display();
            tracing::info!(%path, "what the replica is told is recorded, requests as they are");
            Some(Recorder(shared))
        }
        Err(error) => {
            let directory = config.directory.display();
            tracing::warn!(%directory, %error, "the replica is not recorded");
            None
        }
    }
}
