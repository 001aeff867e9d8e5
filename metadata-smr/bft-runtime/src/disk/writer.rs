//! The threads: one appends to the journal with group commit, one applies flushes of the state, one
//! prepares the journal's spare segments.
//!
//! While a group is being synced the next one gathers, so a slow disk leads to larger groups
//! instead of longer queues.

use super::appender::Appender;
use super::error::failed;
use super::queue::Queue;
use super::spare::Spares;
use super::{Completion, DiskError, Durability};
use crate::store::DiskStore;
use bytes::Bytes;
use quorumfs_bft::state::{DurableRoot, WriteBatch};
use quorumfs_bft::step::Token;
use std::path::Path;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

/// The approximate size at which a group is closed.
const GROUP_BYTES_MAX: usize = 8 << 20;

/// A task of the journal's thread.
pub(super) enum JournalWrite {
    Append { token: Token, record: Bytes },
    Trim { before: Token },
}

/// A task of the state's thread.
pub(super) struct StateWrite {
    pub(super) batch: WriteBatch,
    pub(super) root: DurableRoot,
}

type CompletionCallback<F> = Arc<F>;

pub(super) fn journal<F: Fn(Completion) + Send + Sync + 'static>(
    queue: Arc<Queue<JournalWrite>>,
    mut appender: Appender,
    durability: Durability,
    report: CompletionCallback<F>,
) -> Result<JoinHandle<()>, DiskError> {
    let run = move || {
        if let Err(error) = append_all(&queue, &mut appender, durability, &*report) {
            // The cause first, then the refusals that follow from it.
            report(Completion::Failed { error });
            queue.fail();
        }
    };
    spawn("journal", run)
}

/// Writes items until the queue is closed.
fn append_all(
    queue: &Queue<JournalWrite>,
    appender: &mut Appender,
    durability: Durability,
    report: &impl Fn(Completion),
) -> Result<(), DiskError> {
    while let Some(group) = queue.take(GROUP_BYTES_MAX) {
        let (last, trim) = write_group(appender, group, durability)?;
        if let Some(token) = last {
            report(Completion::Persisted { token });
            // The next group overwrites the seal; nothing waits for it.
            if queue.is_empty() {
                appender.seal()?;
            }
        }
        if let Some(before) = trim {
            appender.trim(before)?;
        }
    }
    // A clean stop: with any durability, all records are on the medium before the mark is.
    appender.sync()
}

/// Writes a group; returns the last token that is now durable, and what may be given up.
fn write_group(
    appender: &mut Appender,
    group: Vec<JournalWrite>,
    durability: Durability,
) -> Result<(Option<Token>, Option<Token>), DiskError> {
    let length = |write: &JournalWrite| match write {
        JournalWrite::Append { record, .. } => Some(record.len()),
        JournalWrite::Trim { .. } => None,
    };
    let mut last = None;
    let mut trim = None;
    if group.iter().any(|write| length(write).is_some()) {
        appender.begin_group(group.iter().filter_map(length))?;
    }
    for write in group {
        match write {
            JournalWrite::Append { token, record } => {
                appender.put(token, &record)?;
                last = Some(token);
            }
            JournalWrite::Trim { before } => trim = trim.max(Some(before)),
        }
    }
    if last.is_some() {
        appender.write_group()?;
        if durability == Durability::Strict {
            appender.sync()?;
        }
    }
    Ok((last, trim))
}

/// The thread that prepares spare segments.
pub(super) fn spares(spares: Arc<Spares>) -> Result<JoinHandle<()>, DiskError> {
    spawn("journal-spares", move || spares.prepare())
}

pub(super) fn state<F: Fn(Completion) + Send + Sync + 'static>(
    queue: Arc<Queue<StateWrite>>,
    store: DiskStore,
    report: CompletionCallback<F>,
) -> Result<JoinHandle<()>, DiskError> {
    let run = move || {
        while let Some(writes) = queue.take(1) {
            for StateWrite { batch, root } in writes {
                if let Err(error) = store.apply(&batch) {
                    report(Completion::Failed { error });
                    queue.fail();
                    return;
                }
                let sequence = root.sequence;
                report(Completion::Flushed { sequence });
            }
        }
    };
    spawn("state", run)
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, DiskError> {
    let thread = Builder::new().name(name.to_owned()).spawn(run);
    thread.map_err(failed("starting a thread for", Path::new(name)))
}
