//! The recording's file and the thread that writes it.

use super::{Item, RecorderQueue, RecorderShared, RecordingConfig};
use quorumfs_bft::journal;
use quorumfs_bft::recording::{Entry, Marker, RecordingWriter, Start};
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// So much is written at once; as soon as so much waits, it is written.
pub(super) const BLOCK_BYTES: usize = 1 << 20;
/// Pending data is written after this time in any case: a killed process loses so much.
const PAUSE: Duration = Duration::from_millis(20);
/// Space for an end that says that the space is used up.
const END_BYTES: u64 = 512;
/// The longest reason.
const WHY_CHARS: usize = 100;
const SUFFIX: &str = ".recording";

/// Why nothing more is written.
pub(super) enum Stop {
    /// The bound is reached.
    Bound,
    Failed(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// Creates the file, with everything known at the start, and starts the thread.
pub(super) fn begin(
    config: &RecordingConfig,
    start: &Start,
    journal: &[journal::Entry],
    shared: &Arc<RecorderShared>,
) -> io::Result<PathBuf> {
    let mut directory = DirBuilder::new();
    directory.recursive(true).mode(0o700);
    directory.create(&config.directory)?;
    let key: String = start.config.key.to_string().chars().take(8).collect();
    let free = remove_oldest(&config.directory, &key, config.bytes_max)?;
    let name = format!("{key}-{:020}{SUFFIX}", start.now.clock.0);
    let path = config.directory.join(name);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let begun = Recording::begin(options.open(&path)?, free, start, journal);
    let recording = match begun {
        Ok(recording) => recording,
        Err(stop) => {
            std::fs::remove_file(&path)?;
            return Err(match stop {
                Stop::Failed(error) => error,
                Stop::Bound => io::Error::other(format!(
                    "the state at the start does not fit into the free {free} bytes"
                )),
            });
        }
    };
    let shared = shared.clone();
    std::thread::Builder::new()
        .name("recorder".to_owned())
        .spawn(move || recording.run(&shared))?;
    Ok(path)
}

/// Removes the oldest recordings of this replica until half of the bound is free. Returns the free
/// part of the bound.
pub(super) fn remove_oldest(directory: &Path, key: &str, bytes_max: u64) -> io::Result<u64> {
    let mut lives = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().into_string().unwrap_or_default();
        if name.starts_with(key) && name.ends_with(SUFFIX) {
            lives.push((name, entry.metadata()?.len()));
        }
    }
    // Their names end with their times.
    lives.sort();
    let mut used = lives.iter().map(|(_, bytes)| bytes).sum::<u64>();
    for (name, bytes) in lives {
        if used > bytes_max / 2 {
            std::fs::remove_file(directory.join(name))?;
            used -= bytes;
        }
    }
    Ok(bytes_max - used)
}

/// A recording, and its file.
pub(super) struct Recording<W> {
    file: W,
    writer: RecordingWriter,
    marker: Marker,
    bytes_max: u64,
}

impl<W: Write> Recording<W> {
    pub(super) fn begin(
        mut file: W,
        bytes_max: u64,
        start: &Start,
        journal: &[journal::Entry],
    ) -> Result<Self, Stop> {
        let (writer, head) = RecordingWriter::begin(start);
        if writer.written() + END_BYTES > bytes_max {
            return Err(Stop::Bound);
        }
        file.write_all(&head)?;
        let mut recording = Self {
            file,
            writer,
            marker: Marker::default(),
            bytes_max,
        };
        for journal::Entry { token, record } in journal {
            let (token, record) = (*token, record.clone());
            recording.put(&Entry::JournalRecord { token, record })?;
        }
        recording.write()?;
        Ok(recording)
    }

    /// Writes the queue's entries until it ends.
    pub(super) fn run(mut self, shared: &RecorderShared) {
        loop {
            let queue = shared.queue();
            let waits =
                |queue: &mut RecorderQueue| queue.over.is_none() && queue.bytes < BLOCK_BYTES;
            let (mut queue, _) = shared
                .changed
                .wait_timeout_while(queue, PAUSE, waits)
                .unwrap_or_else(PoisonError::into_inner);
            let items = std::mem::take(&mut queue.items);
            queue.bytes = 0;
            let over = queue.over.clone();
            drop(queue);
            let ended = match (self.take(items), over) {
                (Ok(()), None) => continue,
                (Ok(()), Some(why)) => self.end(&why),
                (Err(Stop::Bound), _) => {
                    self.writer.forget();
                    self.end(&format!(
                        "its bound of {} bytes was reached",
                        self.bytes_max
                    ))
                }
                // The file may end anywhere by now.
                (Err(Stop::Failed(error)), _) => Err(error),
            };
            if let Err(error) = ended {
                tracing::warn!(%error, "the recording ends early: it cannot be written");
            }
            let mut queue = shared.queue();
            shared.end(&mut queue, "it is no longer written");
            queue.items.clear();
            queue.done = true;
            return;
        }
    }

    fn take(&mut self, items: Vec<Item>) -> Result<(), Stop> {
        for item in items {
            let entry = match item {
                Item::Entry(entry) => entry,
                Item::Did(effects) => Entry::Effects {
                    effects: effects.iter().map(|it| self.marker.mark(it)).collect(),
                },
            };
            self.put(&entry)?;
        }
        self.write()
    }

    fn put(&mut self, entry: &Entry) -> Result<(), Stop> {
        self.writer.put(entry);
        match self.writer.waiting() {
            BLOCK_BYTES.. => self.write(),
            _ => Ok(()),
        }
    }

    fn write(&mut self) -> Result<(), Stop> {
        let end = self.writer.written() + self.writer.waiting() as u64 + END_BYTES;
        if end > self.bytes_max {
            return Err(Stop::Bound);
        }
        Ok(self.file.write_all(&self.writer.take())?)
    }

    fn end(&mut self, why: &str) -> io::Result<()> {
        tracing::info!(why, "the recording ends");
        let why = why.chars().take(WHY_CHARS).collect();
        self.writer.put(&Entry::End { why });
        self.file.write_all(&self.writer.take())
    }
}
